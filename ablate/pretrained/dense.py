"""Families whose layers are dense, alike, and behind RMSNorm: numbers and names of norms make most of their difference to Llama.

The decoder of T5 is one too, by other names.
"""

from __future__ import annotations

from ablate.pretrained.rmsnorm import (
    ATTENTION,
    FFN,
    LAYER,
    OUTPUT,
    PRE,
    base,
    biases,
    family,
    gate_up,
    heads,
    interleaved,
    key_heads,
    layers_where,
    limit,
    llama,
    llama_like,
    plain_rope,
    qk_eps,
    width_of_head,
)
from ablate.pretrained.tables import HfConfig, Rule, feed_forward, option, rope, rope_parameters, rows, rule, shaped, sizes, skip, tied

GLM_SANDWICH = {
    **PRE,
    "post_self_attn_layernorm": ATTENTION + "output_norm",
    "post_mlp_layernorm": FFN + "output_norm",
}


def phi3(hf: HfConfig) -> list[str]:
    return [*base(hf, eps=1e-5), *heads(hf), option("attention.window", limit(hf, hf.get("sliding_window"))), *plain_rope(hf)]


def phi3_table(hf: HfConfig) -> list[Rule]:
    width, queries = width_of_head(hf), hf["num_attention_heads"]
    cut = rows(queries * width, key_heads(hf) * width, key_heads(hf) * width)
    qkv = [ATTENTION + f"sublayer.{letter}.weight" for letter in "qkv"]
    return llama_like(hf, more=[rule(LAYER + r"self_attn\.qkv_proj\.weight", *qkv, op=cut), gate_up(hf)])


def olmo2_common(hf: HfConfig) -> list[str]:
    bias = hf.get("attention_bias", False)
    return [*base(hf, eps=1e-5), *heads(hf), *biases(hf, qkv=bias, out=bias), *qk_eps(hf, 1e-5)]


def olmo2(hf: HfConfig) -> list[str]:
    return [*olmo2_common(hf), *plain_rope(hf)]


def olmo_table(hf: HfConfig) -> list[Rule]:
    return llama_like(hf, norms=OUTPUT, qk_norms=("q_norm", "k_norm"))


def granite(hf: HfConfig) -> list[str]:
    multipliers = {
        "embedding.scale": hf.get("embedding_multiplier", 1.0),
        "residual.branch": hf.get("residual_multiplier", 1.0),
        "attention.scale": hf.get("attention_multiplier", 1.0),
        "head.scale": 1 / hf.get("logits_scaling", 1.0),
    }
    return [*llama(hf), *(option(key, float(value)) for key, value in multipliers.items())]


def smollm3(hf: HfConfig) -> list[str]:
    hf.only("use_sliding_window", [False], False)
    attention, ffn = hf.get("attention_bias", False), hf.get("mlp_bias", False)
    usual = [layer for layer in range(hf["num_hidden_layers"]) if (layer + 1) % 4 == 0]
    turned = hf.get("no_rope_layers")
    period = hf.get("no_rope_layer_interval", 4)
    if turned is None:
        turned = [int((layer + 1) % period != 0) for layer in range(hf["num_hidden_layers"])]
    still = [layer for layer in range(hf["num_hidden_layers"]) if not turned[layer]]
    overrides = [*base(hf, eps=1e-6, tied_head=True), *heads(hf), *biases(hf, qkv=attention, out=attention, ffn=ffn)]
    return [*overrides, *plain_rope(hf, 2e6), *layers_where("nope", still, usual)]


def glm_fraction(hf: HfConfig) -> float:
    return float(rope_parameters(hf).get("partial_rotary_factor", hf.get("partial_rotary_factor", 0.5)))


def glm(hf: HfConfig) -> list[str]:
    turned = rope(hf, rope_parameters(hf), fraction=glm_fraction(hf))
    return [*base(hf, eps=1.5625e-7), *heads(hf), *biases(hf, qkv=hf.get("attention_bias", True)), *turned]


def glm_table(hf: HfConfig) -> list[Rule]:
    return llama_like(hf, more=[gate_up(hf)], **interleaved(hf, glm_fraction(hf)))


def glm4_table(hf: HfConfig) -> list[Rule]:
    return llama_like(hf, norms=GLM_SANDWICH, more=[gate_up(hf)], **interleaved(hf, glm_fraction(hf)))


def seed_oss(hf: HfConfig) -> list[str]:
    chosen = biases(hf, qkv=hf.get("attention_bias", True), out=hf.get("attention_out_bias", False), ffn=hf.get("mlp_bias", False))
    return [*base(hf, eps=1e-6), *heads(hf), *chosen, *plain_rope(hf)]


def apertus(hf: HfConfig) -> list[str]:
    bias = hf.get("attention_bias", False)
    overrides = base(hf, eps=1e-5, gated=False, activation={"hidden_act": "xielu"})
    return [*overrides, *heads(hf), *biases(hf, qkv=bias, out=bias), *qk_eps(hf, 1e-5), *plain_rope(hf, 1.2e7)]


def apertus_table(hf: HfConfig) -> list[Rule]:
    norms = {"attention_layernorm": ATTENTION + "input_norm", "feedforward_layernorm": FFN + "input_norm"}
    activation = [
        rule(LAYER + r"mlp\.act_fn\.(alpha_[pn])", FFN + r"sublayer.\2", op=shaped()),
        skip(LAYER + r"mlp\.act_fn\.(beta|eps)"),  # constants of the formula
    ]
    return llama_like(hf, norms=norms, qk_norms=("q_norm", "k_norm"), more=activation)


def ernie(hf: HfConfig) -> list[str]:
    bias = hf.get("use_bias", False)
    overrides = [*base(hf, eps=1e-5, tied_head=True), *heads(hf), *biases(hf, qkv=bias, out=bias, ffn=bias)]
    return [*overrides, *plain_rope(hf, 5e5)]


def ernie_table(hf: HfConfig) -> list[Rule]:
    return llama_like(hf, tied_head=True, **interleaved(hf))


def hunyuan(hf: HfConfig) -> list[str]:
    bias = hf.get("attention_bias", False)
    turned = rope_parameters(hf)
    if turned["rope_type"] == "dynamic" and turned.get("alpha"):  # called dynamic, but a fixed base
        width = width_of_head(hf)
        turned = {"rope_type": "default", "rope_theta": turned["rope_theta"] * turned["alpha"] ** (width / (width - 2))}
    return [*base(hf, eps=1e-5), *heads(hf), *biases(hf, qkv=bias, out=bias), *qk_eps(hf, 1e-5), *rope(hf, turned)]


def hunyuan_table(hf: HfConfig) -> list[Rule]:
    return llama_like(hf, qk_norms=("query_layernorm", "key_layernorm"))


def helium(hf: HfConfig) -> list[str]:
    chosen = biases(hf, qkv=hf.get("attention_bias", False), ffn=hf.get("mlp_bias", False))
    return [*base(hf, eps=1e-8), *heads(hf, grouped=False), *chosen, *plain_rope(hf, 1e5)]


def helium_table(hf: HfConfig) -> list[Rule]:
    return llama_like(hf, **interleaved(hf))


def bitnet(hf: HfConfig) -> list[str]:
    bias = hf.get("attention_bias", False)
    overrides = base(hf, eps=1e-5, activation={"hidden_act": "relu2"})
    return [*overrides, *heads(hf), *biases(hf, qkv=bias, out=bias), *plain_rope(hf, 5e5)]


def bitnet_table(hf: HfConfig) -> list[Rule]:
    inner = [
        rule(LAYER + r"self_attn\.attn_sub_norm\.weight", ATTENTION + "sublayer.inner_norm.weight"),
        rule(LAYER + r"mlp\.ffn_sub_norm\.weight", FFN + "sublayer.inner_norm.weight"),
    ]
    return llama_like(hf, more=inner)


def ministral3(hf: HfConfig) -> list[str]:
    turned = rope_parameters(hf, 1e6)
    floor, beta = turned["original_max_position_embeddings"], float(turned["llama_4_scaling_beta"])
    reached = floor < hf["max_position_embeddings"] and beta > 0
    sharpened = (
        [option("attention.temperature.floor", floor), option("attention.temperature.beta", beta)]
        if reached
        else ["attention.temperature=null"]
    )
    window = option("attention.window", limit(hf, hf.get("sliding_window")))
    return [*base(hf, eps=1e-5), *heads(hf), window, *sharpened, *rope(hf, turned)]


def chameleon(hf: HfConfig) -> list[str]:
    hf.only("swin_norm", [False], False)
    attention, ffn = hf.get("attention_bias", False), hf.get("mlp_bias", False)
    return [*base(hf, eps=1e-5), *heads(hf), *biases(hf, qkv=attention, out=attention, ffn=ffn), *plain_rope(hf)]


def chameleon_table(hf: HfConfig) -> list[Rule]:
    """Text only: the encoder of pictures is left out."""
    return llama_like(hf, qk_norms=("q_norm", "k_norm"), more=[skip(r"model\.vqmodel\..*")])


# --- the decoder of T5


def t5(hf: HfConfig) -> list[str]:
    """Its decoder without an encoder: what cross attention would add is left out."""
    width, kind = hf["d_model"], hf.only("feed_forward_proj", ["relu", "gated-gelu"], "relu")
    tied_head = hf.get("tie_word_embeddings", True)
    named = HfConfig({**hf.raw, "n_positions": hf.get("n_positions", 512), "depth": hf.get("num_decoder_layers", hf["num_layers"])})
    return [
        *sizes(named, width="d_model", depth="depth", heads="num_heads", context="n_positions"),
        option("norm.eps", float(hf.get("layer_norm_epsilon", 1e-6))),
        *([] if kind == "gated-gelu" else ["ffn=relu"]),
        *feed_forward(width, hf["d_ff"], gated=kind == "gated-gelu"),
        option("attention.head_dim", hf["d_kv"]),
        option("position.buckets", hf.get("relative_attention_num_buckets", 32)),
        option("position.max_distance", hf.get("relative_attention_max_distance", 128)),
        *([] if tied_head else ["head.kind=untied"]),
        *([] if hf.get("scale_decoder_outputs", tied_head) else ["head.scale=1.0"]),
    ]


def t5_table(hf: HfConfig) -> list[Rule]:
    block = r"decoder\.block\.(\d+)\.layer\."
    sublayer = ATTENTION + "sublayer."
    head = tied(r"lm_head\.weight", "embedding.table.weight")
    return [
        rule(r"shared\.weight", "embedding.table.weight"),
        tied(r"decoder\.embed_tokens\.weight", "embedding.table.weight"),
        head if hf.get("tie_word_embeddings", True) else rule(r"lm_head\.weight", "head.unembed.weight"),
        skip(r"encoder\..*"),
        skip(block + r"1\.(EncDecAttention|layer_norm)\..*"),
        rule(block + r"0\.SelfAttention\.([qkv])\.weight", sublayer + r"\2.weight"),
        rule(block + r"0\.SelfAttention\.o\.weight", sublayer + "out.weight"),
        rule(block + r"0\.SelfAttention\.relative_attention_bias\.weight", "positions.0.table.weight"),
        rule(block + r"0\.layer_norm\.weight", ATTENTION + "input_norm.weight"),
        rule(block + r"2\.layer_norm\.weight", FFN + "input_norm.weight"),
        rule(block + r"2\.DenseReluDense\.wi_0\.weight", FFN + "sublayer.gate.weight"),
        rule(block + r"2\.DenseReluDense\.(wi|wi_1)\.weight", FFN + "sublayer.up.weight"),
        rule(block + r"2\.DenseReluDense\.wo\.weight", FFN + "sublayer.down.weight"),
        rule(r"decoder\.final_layer_norm\.weight", "norm.weight"),
    ]


APERTUS_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1.2e7,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
MINISTRAL_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    "llama_4_scaling_beta": 0.1,
}

FAMILIES = [
    family("olmo2", "olmo2", olmo2, olmo_table),
    family("phi3", "phi3", phi3, phi3_table, partial_rotary_factor=1.0, original_max_position_embeddings=4096),
    family("granite", "granite", granite, llama_like),
    family("smollm3", "smollm3", smollm3, lambda hf: llama_like(hf, tied_head=True), num_key_value_heads=4),
    family("glm", "glm", glm, glm_table, num_key_value_heads=2, head_dim=128),
    family("glm4", "glm4", glm, glm4_table, num_key_value_heads=2, head_dim=128),
    family("seed_oss", "seed_oss", seed_oss, llama_like, num_key_value_heads=8, head_dim=128),
    family("apertus", "apertus", apertus, apertus_table, rope_parameters=APERTUS_ROPE),
    family("ernie4_5", "ernie4_5", ernie, ernie_table, num_key_value_heads=2, head_dim=128),
    family("hunyuan_v1_dense", "hunyuan_v1_dense", hunyuan, hunyuan_table),
    family("helium", "helium", helium, helium_table, num_key_value_heads=20, head_dim=128),
    family("bitnet", "bitnet", bitnet, bitnet_table, num_key_value_heads=5),
    family("ministral3", "ministral3", ministral3, llama_like, num_key_value_heads=8, head_dim=128, rope_parameters=MINISTRAL_ROPE),
    family("chameleon", "chameleon", chameleon, chameleon_table, num_key_value_heads=32),
    family("t5", "t5", t5, t5_table),
]
