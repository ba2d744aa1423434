"""Families whose norm is RMSNorm and whose layers are dense and alike: Llama and its kin, and the decoder of T5.

Most differ from Llama in numbers and in the names of norms; `llama_like` is their common table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ablate.pretrained.tables import (
    Family,
    HfConfig,
    Operation,
    Rule,
    copy,
    halved,
    option,
    rope,
    rope_parameters,

    rows,
    rule,
    shaped,
    sizes,
    skip,
    text,
    tied,
)

LAYER = r"model\.layers\.(\d+)\."
ATTENTION, FFN = r"blocks.\1.attention.", r"blocks.\1.ffn."

PRE = {"input_layernorm": ATTENTION + "input_norm", "post_attention_layernorm": FFN + "input_norm"}
OUTPUT = {"post_attention_layernorm": ATTENTION + "output_norm", "post_feedforward_layernorm": FFN + "output_norm"}
GLM_SANDWICH = {
    **PRE,
    "post_self_attn_layernorm": ATTENTION + "output_norm",
    "post_mlp_layernorm": FFN + "output_norm",
}

SILU = {"hidden_act": "silu"}


# --- sizes of one config.json


def width_of_head(hf: HfConfig) -> int:
    """head_dim, or the width by the heads."""
    return int(hf.get("head_dim", hf["hidden_size"] // hf["num_attention_heads"]))


def key_heads(hf: HfConfig) -> int:
    return int(hf.get("num_key_value_heads", hf["num_attention_heads"]))


# --- overrides


def base(hf: HfConfig, *, eps: float, tied_head: bool = False, gated: bool = True, activation: Mapping[str, str] = SILU) -> list[str]:
    """Sizes, eps, head and width of the feed-forward layer. `tied_head`: what a missing tie_word_embeddings means, as the arch has it."""
    for key, word in activation.items():
        hf.only(key, [word], word)
    overrides = [*sizes(hf), option("norm.eps", float(hf.get("rms_norm_eps", eps)))]
    overrides += feed_forward(hf["hidden_size"], hf["intermediate_size"], gated=gated)
    is_tied = hf.get("tie_word_embeddings", tied_head)
    return overrides if is_tied == tied_head else [*overrides, f"head.kind={'tied' if is_tied else 'untied'}"]


def feed_forward(width: int, inner: int, *, gated: bool) -> list[str]:
    """A layer of exactly `inner` features, of the kind that the arch has."""
    return [f"ffn.ratio={inner}/{width}", "ffn.multiple_of=1", *(["ffn.glu_factor=1"] if gated else [])]


def heads(hf: HfConfig, *, grouped: bool = True) -> list[str]:
    """Key heads and the width of a head. `grouped`: the arch has attention of kind gqa, else mha."""
    count, all_heads = key_heads(hf), hf["num_attention_heads"]
    kind = "mha" if count == all_heads else "mqa" if count == 1 else "gqa"
    overrides = [option("attention.head_dim", width_of_head(hf))]
    if kind != ("gqa" if grouped else "mha"):
        overrides.append(f"attention.kind={kind}")
    if kind == "gqa":
        return [*overrides, option("attention.kv_heads", count)]
    return [*overrides, "~attention.kv_heads"] if grouped else overrides


def biases(hf: HfConfig, *, qkv: bool = False, out: bool = False, ffn: bool = False) -> list[str]:
    chosen = {"attention.qkv_bias": qkv, "attention.out_bias": out, "ffn.up_bias": ffn, "ffn.down_bias": ffn}
    return [option(key, bool(value)) for key, value in chosen.items()]


def qk_eps(hf: HfConfig, eps: float) -> list[str]:
    """Norms of queries and keys share the eps of the others."""
    return [option("attention.qk_norm.norm.eps", float(hf.get("rms_norm_eps", eps)))]


def limit(hf: HfConfig, tokens: int | None) -> int | float:
    """A window as our option has it: one that covers the context is none."""
    return math.inf if tokens is None or tokens >= hf["max_position_embeddings"] else tokens


def nullable(hf: HfConfig, key: str, default: Any) -> Any:
    """The value where null means none, and only a missing key means the default."""
    return hf.get(key) if key in hf else default


def layers_where(name: str, layers: Sequence[int], usual: Sequence[int]) -> list[str]:
    """The rule `name` of the arch for these layers; `usual` are those that it has by itself."""
    if list(layers) == list(usual):
        return []
    if not layers:
        return [f"~layers.{name}"]
    return [f"~layers.{name}.where", f"layers.{name}.where.layers={text(list(layers))}"]


def sliding(hf: HfConfig, usual: Sequence[int]) -> list[int]:
    """The layers that layer_types calls sliding; `usual` where it is missing."""
    kinds = hf.get("layer_types")
    if kinds is None:
        return list(usual)
    for kind in sorted(set(kinds) - {"sliding_attention", "full_attention"}):
        hf.refuse("layer_types", f"{kind!r} is no kind of layer of this family; can be: full_attention, sliding_attention")
    return [layer for layer, kind in enumerate(kinds) if kind == "sliding_attention"]


def plain_rope(hf: HfConfig, theta: float = 10000.0) -> list[str]:
    return rope(hf, rope_parameters(hf, theta))


# --- tables of names


def llama_like(
    hf: HfConfig,
    *,
    norms: Mapping[str, str] = PRE,
    qk_norms: tuple[str, str] | None = None,
    turned: Operation | None = None,
    turned_key: Operation | None = None,
    tied_head: bool = False,
    more: Sequence[Rule] = (),
) -> list[Rule]:
    """The table of Llama: names of norms, of norms on queries and keys, what becomes of rotated rows, and rules that come first."""
    sublayer = ATTENTION + "sublayer."
    rules = [*more, rule(r"model\.embed_tokens\.weight", "embedding.table.weight"), rule(r"model\.norm\.weight", "norm.weight")]
    if hf.get("tie_word_embeddings", tied_head):
        rules.append(tied(r"lm_head\.weight", "embedding.table.weight"))
    else:
        rules.append(rule(r"lm_head\.weight", "head.unembed.weight"))
    rules += [rule(LAYER + name + r"\.weight", target + ".weight") for name, target in norms.items()]
    for letter, name in zip("qk", qk_norms or (), strict=False):
        rules.append(rule(LAYER + rf"self_attn\.{name}\.(weight|bias)", sublayer + rf"qk_norm.{letter}.\2"))
    rules += [
        rule(LAYER + r"self_attn\.q_proj\.(weight|bias)", sublayer + r"q.\2", op=turned or copy),
        rule(LAYER + r"self_attn\.k_proj\.(weight|bias)", sublayer + r"k.\2", op=turned_key or copy),
        rule(LAYER + r"self_attn\.v_proj\.(weight|bias)", sublayer + r"v.\2"),
        rule(LAYER + r"self_attn\.o_proj\.(weight|bias)", sublayer + r"out.\2"),
        rule(LAYER + r"mlp\.(gate|up|down)_proj\.(weight|bias)", FFN + r"sublayer.\2.\3"),
    ]
    return rules


def interleaved(hf: HfConfig, fraction: float = 1.0) -> dict[str, Operation]:
    """Rows of queries and keys whose pairs stand side by side."""
    width = width_of_head(hf)
    turned = int(width * fraction)
    return {
        "turned": halved(hf["num_attention_heads"], width, turned),
        "turned_key": halved(key_heads(hf), width, turned),
    }


def gate_up(hf: HfConfig) -> Rule:
    """Gate and up in one matrix, gate first."""
    inner = hf["intermediate_size"]
    sublayer = FFN + "sublayer."
    return rule(LAYER + r"mlp\.gate_up_proj\.weight", sublayer + "gate.weight", sublayer + "up.weight", op=rows(inner, inner))


# --- Llama, Mistral, Qwen


def llama_arch(hf: HfConfig) -> str:
    return "llama3.1" if rope_parameters(hf)["rope_type"] == "llama3" else "llama"


def llama(hf: HfConfig) -> list[str]:
    attention, ffn = hf.get("attention_bias", False), hf.get("mlp_bias", False)
    return [*base(hf, eps=1e-6), *heads(hf), *biases(hf, qkv=attention, out=attention, ffn=ffn), *plain_rope(hf)]


def mistral(hf: HfConfig) -> list[str]:
    window = limit(hf, nullable(hf, "sliding_window", 4096))
    return [*base(hf, eps=1e-6), *heads(hf), option("attention.window", window), *plain_rope(hf)]


def qwen_window(hf: HfConfig) -> list[str]:
    """A rule for the layers from max_window_layers on, which published models do not use."""
    window = limit(hf, hf.get("sliding_window", 4096) if hf.get("use_sliding_window", False) else None)
    layers = sliding(hf, range(hf.get("max_window_layers", 28), hf["num_hidden_layers"]))
    if math.isinf(window) or not layers:
        return []
    return [f"layers.local.where.layers={text(layers)}", option("layers.local.set.attention.window", window)]


def qwen2(hf: HfConfig) -> list[str]:
    return [*base(hf, eps=1e-6), *heads(hf), *plain_rope(hf), *qwen_window(hf)]


def qwen3(hf: HfConfig) -> list[str]:
    bias = hf.get("attention_bias", False)
    return [*base(hf, eps=1e-6), *heads(hf), *biases(hf, qkv=bias, out=bias), *qk_eps(hf, 1e-6), *plain_rope(hf), *qwen_window(hf)]


def qk_normed(hf: HfConfig) -> list[Rule]:
    return llama_like(hf, qk_norms=("q_norm", "k_norm"))


# --- other families of one kind of layer


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


def hunyuan(hf: HfConfig) -> list[str]:
    bias = hf.get("attention_bias", False)
    turned = rope_parameters(hf)
    if turned["rope_type"] == "dynamic" and turned.get("alpha"):  # called dynamic, but a fixed base
        width = width_of_head(hf)
        turned = {"rope_type": "default", "rope_theta": turned["rope_theta"] * turned["alpha"] ** (width / (width - 2))}
    return [*base(hf, eps=1e-5), *heads(hf), *biases(hf, qkv=bias, out=bias), *qk_eps(hf, 1e-5), *rope(hf, turned)]


def helium(hf: HfConfig) -> list[str]:
    chosen = biases(hf, qkv=hf.get("attention_bias", False), ffn=hf.get("mlp_bias", False))
    return [*base(hf, eps=1e-8), *heads(hf, grouped=False), *chosen, *plain_rope(hf, 1e5)]


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


FAMILIES = [
    Family("llama", llama_arch, llama, llama_like),
    Family("mistral", "mistral", mistral, llama_like),
    Family("qwen2", "qwen2", qwen2, llama_like),
    Family("qwen3", "qwen3", qwen3, qk_normed),
    Family("olmo2", "olmo2", olmo2, olmo_table),
    Family("phi3", "phi3", phi3, phi3_table),
    Family("granite", "granite", granite, llama_like),
    Family("smollm3", "smollm3", smollm3, lambda hf: llama_like(hf, tied_head=True)),
    Family("glm", "glm", glm, glm_table),
    Family("glm4", "glm4", glm, glm4_table),
    Family("seed_oss", "seed_oss", seed_oss, llama_like),
    Family("apertus", "apertus", apertus, apertus_table),
    Family("ernie4_5", "ernie4_5", ernie, lambda hf: llama_like(hf, tied_head=True, **interleaved(hf))),
    Family("hunyuan_v1_dense", "hunyuan_v1_dense", hunyuan, lambda hf: llama_like(hf, qk_norms=("query_layernorm", "key_layernorm"))),
    Family("helium", "helium", helium, lambda hf: llama_like(hf, **interleaved(hf))),
    Family("bitnet", "bitnet", bitnet, bitnet_table),
    Family("ministral3", "ministral3", ministral3, llama_like),
    Family("chameleon", "chameleon", chameleon, chameleon_table),
    Family("t5", "t5", t5, t5_table),
]
