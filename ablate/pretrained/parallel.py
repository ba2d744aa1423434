"""Families between GPT-3 and Llama, with rotation or ALiBi: GPT-J, GPT-NeoX, Falcon, BLOOM, MPT."""

from __future__ import annotations

import math

from ablate.pretrained.layernorm import GPT_SIZES, TABLE, A, F, biases, head, head_dim, head_rules, is_tied
from ablate.pretrained.tables import (
    Family,
    HfConfig,
    Rule,
    activation,
    feed_forward,
    halved,
    key_heads,
    option,
    per_head,
    rope,
    rope_parameters,
    rows,
    rule,
    sizes,
    skip,
    tied,
)

# --- GPT-J: parallel, one norm for both branches; rotated pairs stand side by side


def gptj_overrides(hf: HfConfig) -> list[str]:
    hf.only("tie_word_embeddings", [False], False)
    width = hf["n_embd"]
    rotary = hf.get("rotary_dim", head_dim(hf, "n_embd", "n_head"))
    return [
        *sizes(hf, **GPT_SIZES),
        option("norm.eps", hf.get("layer_norm_epsilon", 1e-5)),
        option("position.fraction", rotary / head_dim(hf, "n_embd", "n_head")),
        *activation(hf, "activation_function", "gelu_new", "gelu_tanh"),
        *feed_forward(width, hf.get("n_inner", 4 * width), gated=False),
    ]


def gptj_rules(hf: HfConfig) -> list[Rule]:
    heads, width = int(hf["n_head"]), head_dim(hf, "n_embd", "n_head")
    turned = halved(heads, width, hf.get("rotary_dim", width))
    p = r"(?:transformer\.)?"
    layer = p + r"h\.(\d+)\."
    return [
        skip(layer + r"attn\.(?:bias|masked_bias|embed_positions)"),
        rule(p + r"wte\.weight", TABLE),
        rule(p + r"ln_f\.(weight|bias)", r"norm.\1"),
        rule(layer + r"ln_1\.(weight|bias)", r"blocks.\1.attention.input_norm.\2"),
        rule(layer + r"attn\.([qk])_proj\.weight", A + r".\2.weight", op=turned),
        rule(layer + r"attn\.v_proj\.weight", A + ".v.weight"),
        rule(layer + r"attn\.out_proj\.weight", A + ".out.weight"),
        rule(layer + r"mlp\.fc_in\.(weight|bias)", F + r".up.\2"),
        rule(layer + r"mlp\.fc_out\.(weight|bias)", F + r".down.\2"),
        *head_rules(hf, False, bias=True),
    ]


# --- GPT-NeoX and Pythia (arXiv 2204.06745, 2304.01373): parallel with two norms; q, k, v of a head stand together


def gpt_neox_overrides(hf: HfConfig) -> list[str]:
    bias = bool(hf.get("attention_bias", True))
    parameters = rope_parameters(hf, hf.get("rotary_emb_base", 10000))
    return [
        *sizes(hf),
        option("norm.eps", hf.get("layer_norm_eps", 1e-5)),
        *([] if hf.get("use_parallel_residual", True) else ["residual=serial"]),
        *rope(hf, parameters, fraction=parameters.get("partial_rotary_factor", hf.get("rotary_pct", 0.25))),
        *([] if bias else biases(False, False)),
        *activation(hf, "hidden_act", "gelu", "gelu"),
        *feed_forward(hf["hidden_size"], hf["intermediate_size"], gated=False),
        *head(hf, False),
    ]


def gpt_neox_rules(hf: HfConfig) -> list[Rule]:
    heads, width = int(hf["num_attention_heads"]), head_dim(hf)
    p = r"(?:gpt_neox\.)?"
    layer = p + r"layers\.(\d+)\."
    cut = per_head(heads, width, width, width)
    unembed = r"(?:embed_out|lm_head)\.weight"
    return [
        skip(layer + r"attention\.(?:bias|masked_bias)"),
        rule(p + r"embed_in\.weight", TABLE),
        rule(p + r"final_layer_norm\.(weight|bias)", r"norm.\1"),
        rule(layer + r"input_layernorm\.(weight|bias)", r"blocks.\1.attention.input_norm.\2"),
        rule(layer + r"post_attention_layernorm\.(weight|bias)", r"blocks.\1.ffn.input_norm.\2"),
        rule(layer + r"attention\.query_key_value\.(weight|bias)", A + r".q.\2", A + r".k.\2", A + r".v.\2", op=cut),
        rule(layer + r"attention\.dense\.(weight|bias)", A + r".out.\2"),
        rule(layer + r"mlp\.dense_h_to_4h\.(weight|bias)", F + r".up.\2"),
        rule(layer + r"mlp\.dense_4h_to_h\.(weight|bias)", F + r".down.\2"),
        tied(unembed, TABLE) if is_tied(hf, False) else rule(unembed, "head.unembed.weight"),
    ]


# --- Falcon (arXiv 2311.16867): 7B multi-query with one norm, 40B grouped with two, RW serial with ALiBi


def falcon_arch(hf: HfConfig) -> str:
    if hf.get("alibi", False):
        return "falcon_rw"
    return "falcon_40b" if hf.get("new_decoder_architecture", False) else "falcon_7b"


def falcon_kv_heads(hf: HfConfig) -> int:
    heads = int(hf["num_attention_heads"])
    if hf.get("new_decoder_architecture", False):
        return int(hf.get("num_kv_heads", heads))
    return 1 if hf.get("multi_query", True) else heads


def falcon_residual(hf: HfConfig) -> str:
    """serial, parallel, or parallel with one norm for both branches."""
    new = hf.get("new_decoder_architecture", False)
    if not hf.get("parallel_attn", True):
        return "serial"
    return "parallel" if hf.get("num_ln_in_parallel_attn", 2 if new else 1) == 2 else "parallel_shared"


FALCON = {"falcon_7b": ("parallel_shared", "mqa", False), "falcon_40b": ("parallel", "gqa", False), "falcon_rw": ("serial", "mha", True)}
"""What each arch has by itself: residual, attention, biases."""


def falcon_overrides(hf: HfConfig) -> list[str]:
    width, heads, bias = hf["hidden_size"], hf["num_attention_heads"], bool(hf.get("bias", False))
    residual, kind, biased = FALCON[falcon_arch(hf)]
    return [
        *sizes(hf),
        option("norm.eps", hf.get("layer_norm_epsilon", 1e-5)),
        *([] if falcon_residual(hf) == residual else [f"residual={falcon_residual(hf)}"]),
        *([] if hf.get("alibi", False) else rope(hf, rope_parameters(hf))),
        *key_heads(falcon_kv_heads(hf), heads, kind),
        *([] if bias == biased else [*biases(bias, bias), option("ffn.up_bias", bias), option("ffn.down_bias", bias)]),
        *activation(hf, "activation", "gelu", "gelu"),
        *feed_forward(width, hf.get("ffn_hidden_size", 4 * width), gated=False),
        *head(hf, True),
    ]


def falcon_rules(hf: HfConfig) -> list[Rule]:
    heads, kv_heads, width = int(hf["num_attention_heads"]), falcon_kv_heads(hf), head_dim(hf)
    cut = per_head(kv_heads, heads // kv_heads * width, width, width)
    p = r"(?:transformer\.)?"
    layer = p + r"h\.(\d+)\."
    return [
        rule(p + r"word_embeddings\.weight", TABLE),
        rule(p + r"ln_f\.(weight|bias)", r"norm.\1"),
        rule(layer + r"(?:input_layernorm|ln_attn)\.(weight|bias)", r"blocks.\1.attention.input_norm.\2"),
        rule(layer + r"(?:post_attention_layernorm|ln_mlp)\.(weight|bias)", r"blocks.\1.ffn.input_norm.\2"),
        rule(layer + r"self_attention\.query_key_value\.(weight|bias)", A + r".q.\2", A + r".k.\2", A + r".v.\2", op=cut),
        rule(layer + r"self_attention\.dense\.(weight|bias)", A + r".out.\2"),
        rule(layer + r"mlp\.dense_h_to_4h\.(weight|bias)", F + r".up.\2"),
        rule(layer + r"mlp\.dense_4h_to_h\.(weight|bias)", F + r".down.\2"),
        *head_rules(hf, True),
    ]


# --- BLOOM (arXiv 2211.05100): a norm on the embedding, ALiBi; q, k, v of a head stand together


def bloom_config(hf: HfConfig) -> HfConfig:
    """Both spellings of its sizes as one."""
    names = {"hidden_size": "n_embed", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}
    both = {name: hf.get(name, hf.get(other)) for name, other in names.items()}
    return HfConfig({**hf.raw, **both, "seq_length": hf.get("seq_length", 2048)})


def bloom_overrides(hf: HfConfig) -> list[str]:
    hf.only("apply_residual_connection_post_layernorm", [False], False)
    known = bloom_config(hf)
    width, eps = known["hidden_size"], hf.get("layer_norm_epsilon", 1e-5)
    return [
        *sizes(known, depth="n_layer", heads="n_head", context="seq_length"),
        option("norm.eps", eps),
        option("embedding.norm.eps", eps),
        *feed_forward(width, 4 * width, gated=False),
        *head(hf, True),
    ]


def bloom_rules(hf: HfConfig) -> list[Rule]:
    known = bloom_config(hf)
    width = head_dim(known, "hidden_size", "n_head")
    cut = per_head(int(known["n_head"]), width, width, width)
    p = r"(?:transformer\.)?"
    layer = p + r"h\.(\d+)\."
    return [
        rule(p + r"word_embeddings\.weight", TABLE),
        rule(p + r"word_embeddings_layernorm\.(weight|bias)", r"embedding.norm.\1"),
        rule(p + r"ln_f\.(weight|bias)", r"norm.\1"),
        rule(layer + r"input_layernorm\.(weight|bias)", r"blocks.\1.attention.input_norm.\2"),
        rule(layer + r"post_attention_layernorm\.(weight|bias)", r"blocks.\1.ffn.input_norm.\2"),
        rule(layer + r"self_attention\.query_key_value\.(weight|bias)", A + r".q.\2", A + r".k.\2", A + r".v.\2", op=cut),
        rule(layer + r"self_attention\.dense\.(weight|bias)", A + r".out.\2"),
        rule(layer + r"mlp\.dense_h_to_4h\.(weight|bias)", F + r".up.\2"),
        rule(layer + r"mlp\.dense_4h_to_h\.(weight|bias)", F + r".down.\2"),
        *head_rules(hf, True),
    ]


# --- MPT (MosaicML 2023): ALiBi, no bias anywhere, q, k and v clipped


def mpt_attention(hf: HfConfig) -> HfConfig:
    return HfConfig(hf.get("attn_config", {}))


def mpt_overrides(hf: HfConfig) -> list[str]:
    inner = mpt_attention(hf)
    inner.only("attn_type", ["multihead_attention"], "multihead_attention")
    inner.only("alibi", [True], True)
    inner.only("alibi_bias_max", [8], 8)
    inner.only("qk_ln", [False], False)
    inner.only("prefix_lm", [False], False)
    hf.only("no_bias", [True], True)
    hf.only("logit_scale", [None], None)
    hf.only("expansion_ratio", [4], 4)
    hf.problems += inner.problems
    width = hf["d_model"]
    return [
        *sizes(hf, width="d_model", depth="n_layers", heads="n_heads", context="max_seq_len"),
        option("norm.eps", hf.get("layer_norm_epsilon", 1e-5)),
        option("attention.clip", inner.get("clip_qkv", math.inf)),
        option("attention.scale", inner.get("softmax_scale")),
        *feed_forward(width, 4 * width, gated=False),
        *head(hf, True),
    ]


def mpt_rules(hf: HfConfig) -> list[Rule]:
    width = int(hf["d_model"])
    p = r"(?:transformer\.)?"
    layer = p + r"blocks\.(\d+)\."
    return [
        rule(p + r"wte\.weight", TABLE),
        rule(p + r"norm_f\.weight", "norm.weight"),
        rule(layer + r"norm_1\.weight", r"blocks.\1.attention.input_norm.weight"),
        rule(layer + r"norm_2\.weight", r"blocks.\1.ffn.input_norm.weight"),
        rule(layer + r"attn\.Wqkv\.weight", A + ".q.weight", A + ".k.weight", A + ".v.weight", op=rows(width, width, width)),
        rule(layer + r"attn\.out_proj\.weight", A + ".out.weight"),
        rule(layer + r"ffn\.(up|down)_proj\.weight", F + r".\2.weight"),
        *head_rules(hf, True),
    ]


FAMILIES = [
    Family("gptj", "gptj", gptj_overrides, gptj_rules),
    Family("gpt_neox", "gpt_neox", gpt_neox_overrides, gpt_neox_rules),
    Family("falcon", falcon_arch, falcon_overrides, falcon_rules),
    Family("bloom", "bloom", bloom_overrides, bloom_rules),
    Family("mpt", "mpt", mpt_overrides, mpt_rules),
]
