"""Families with LayerNorm and the names of Llama: Phi, Cohere, OLMo, StableLM, StarCoder 2, Nemotron.

What gpt.py and parallel.py share with them comes first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ablate.pretrained.tables import (
    Family,
    HfConfig,
    Rule,
    activation,
    changed,
    feed_forward,
    halved,
    key_heads,
    layers_where,
    option,
    pair_order,
    reordered,
    rope,
    rope_parameters,
    rule,
    sizes,
    tied,
)

A = r"blocks.\1.attention.sublayer"
F = r"blocks.\1.ffn.sublayer"
TABLE = "embedding.table.weight"
PLACES = "positions.0.table.weight"
TORCH_EPS = 1e-5
"""What torch's LayerNorm has when a family's code says nothing."""

GPT_SIZES = {"width": "n_embd", "depth": "n_layer", "heads": "n_head", "context": "n_positions"}


def head_dim(hf: HfConfig, width: str = "hidden_size", heads: str = "num_attention_heads") -> int:
    """D / N."""
    return int(hf[width]) // int(hf[heads])


def group_size(hf: HfConfig) -> tuple[int, int]:
    """Query heads and key heads of the Llama spelling."""
    heads = int(hf["num_attention_heads"])
    return heads, int(hf.get("num_key_value_heads", heads))


def is_tied(hf: HfConfig, default: bool) -> bool:
    return bool(hf.get("tie_word_embeddings", default))


def head(hf: HfConfig, default: bool) -> list[str]:
    """The kind of head where it is not the family's own."""
    return changed("head.kind", "tied" if is_tied(hf, default) else "untied", "tied" if default else "untied")


def grouped(hf: HfConfig, usual: str) -> list[str]:
    heads, kv_heads = group_size(hf)
    return key_heads(kv_heads, heads, usual)


def biases(qkv: bool, out: bool) -> list[str]:
    return [option("attention.qkv_bias", qkv), option("attention.out_bias", out)]


def limit(hf: HfConfig, tokens: int | None) -> float:
    """A window as our option has it: one that covers the context is none."""
    return math.inf if tokens is None or tokens >= hf["max_position_embeddings"] else tokens


def windowed(layers: Sequence[int], window: float, usual: Sequence[int]) -> list[str]:
    """The arch's rule `local` with these layers and this window."""
    if math.isinf(window) or not layers:
        return ["~layers.local"]
    return [*layers_where("local", layers, usual), option("layers.local.set.attention.window", window)]


def head_rules(hf: HfConfig, default: bool, bias: bool = False) -> list[Rule]:
    """lm_head: another name of the embedding, or a matrix of its own."""
    weight = tied(r"lm_head\.weight", TABLE) if is_tied(hf, default) else rule(r"lm_head\.weight", "head.unembed.weight")
    return [weight, *([rule(r"lm_head\.bias", "head.bias")] if bias else [])]


LAYER = r"model\.layers\.(\d+)\."


def llama_rules(hf: HfConfig, tie: bool, *, bias_of_head: bool = False, gated: bool = True) -> list[Rule]:
    """What all of them name alike. A norm that a family lacks has no tensor, and its rule does nothing."""
    up = [rule(LAYER + r"mlp\.(gate|up|down)_proj\.(weight|bias)", F + r".\2.\3")]
    return [
        rule(r"model\.embed_tokens\.weight", TABLE),
        rule(r"model\.norm\.(weight|bias)", r"norm.\1"),
        rule(LAYER + r"input_layernorm\.(weight|bias)", r"blocks.\1.attention.input_norm.\2"),
        rule(LAYER + r"post_attention_layernorm\.(weight|bias)", r"blocks.\1.ffn.input_norm.\2"),
        rule(LAYER + r"self_attn\.([qkv])_proj\.(weight|bias)", A + r".\2.\3"),
        rule(LAYER + r"self_attn\.o_proj\.(weight|bias)", A + r".out.\2"),
        *(up if gated else []),
        *head_rules(hf, tie, bias_of_head),
    ]


def phi_overrides(hf: HfConfig) -> list[str]:
    hf.only("tie_word_embeddings", [False], False)
    eps, parameters = hf.get("layer_norm_eps", 1e-5), rope_parameters(hf)
    normalised = ["attention/qk_norm=head_layernorm", option("attention.qk_norm.norm.eps", eps)]
    return [
        *sizes(hf),
        option("norm.eps", eps),
        *rope(hf, parameters, fraction=parameters.get("partial_rotary_factor", hf.get("partial_rotary_factor", 0.5))),
        *grouped(hf, "mha"),
        *(normalised if hf.get("qk_layernorm", False) else []),
        *activation(hf, "hidden_act", "gelu_new", "gelu_tanh"),
        *feed_forward(hf["hidden_size"], hf["intermediate_size"], gated=False),
    ]


def phi_rules(hf: HfConfig) -> list[Rule]:
    return [
        rule(LAYER + r"self_attn\.dense\.(weight|bias)", A + r".out.\2"),
        rule(LAYER + r"self_attn\.([qk])_layernorm\.(weight|bias)", A + r".qk_norm.\2.\3"),
        rule(LAYER + r"mlp\.fc1\.(weight|bias)", F + r".up.\2"),
        rule(LAYER + r"mlp\.fc2\.(weight|bias)", F + r".down.\2"),
        rule(r"model\.final_layernorm\.(weight|bias)", r"norm.\1"),
        *llama_rules(hf, False, bias_of_head=True, gated=False),
    ]


def cohere_common(hf: HfConfig, theta: float) -> list[str]:
    hf.only("hidden_act", ["silu"], "silu")
    bias = bool(hf.get("attention_bias", False))
    return [
        *sizes(hf),
        option("norm.eps", hf.get("layer_norm_eps", 1e-5)),
        *rope(hf, rope_parameters(hf, theta)),
        *grouped(hf, "gqa"),
        *(biases(True, True) if bias else []),
        *feed_forward(hf["hidden_size"], hf["intermediate_size"], gated=True),
        *head(hf, True),
        option("head.scale", hf.get("logit_scale", 0.0625)),
    ]


WITHOUT_QK_NORM = ["~attention.qk_norm", "attention.qk_norm.kind=none"]


def cohere_overrides(hf: HfConfig) -> list[str]:
    normalised = [option("attention.qk_norm.norm.eps", hf.get("layer_norm_eps", 1e-5))]
    return [*cohere_common(hf, 500000.0), *(normalised if hf.get("use_qk_norm", False) else WITHOUT_QK_NORM)]


def cohere2_overrides(hf: HfConfig) -> list[str]:
    depth, pattern = int(hf["num_hidden_layers"]), int(hf.get("sliding_window_pattern", 4))
    kinds = hf.get("layer_types") or ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(depth)]
    local = [i for i, kind in enumerate(kinds) if kind == "sliding_attention"]
    return [
        *cohere_common(hf, 10000.0),
        *windowed(local, limit(hf, hf.get("sliding_window", 4096)), [layer for layer in range(depth) if (layer + 1) % 4]),
        *layers_where("nope", [layer for layer in range(depth) if layer not in local], range(3, depth, 4)),
    ]


def cohere_rules(hf: HfConfig) -> list[Rule]:
    """Rotated pairs stand side by side, in the rows of q and k and in the weights of their norms."""
    (heads, kv_heads), width = group_size(hf), head_dim(hf)
    return [
        rule(LAYER + r"self_attn\.q_proj\.(weight|bias)", A + r".q.\2", op=halved(heads, width)),
        rule(LAYER + r"self_attn\.k_proj\.(weight|bias)", A + r".k.\2", op=halved(kv_heads, width)),
        rule(LAYER + r"self_attn\.([qk])_norm\.weight", A + r".qk_norm.\2.weight", op=reordered(pair_order(width), 1)),
        *llama_rules(hf, True),
    ]


def olmo_overrides(hf: HfConfig) -> list[str]:
    hf.only("hidden_act", ["silu"], "silu")
    bias = bool(hf.get("attention_bias", False))
    return [
        *sizes(hf),
        option("norm.eps", TORCH_EPS),
        *rope(hf, rope_parameters(hf)),
        *grouped(hf, "mha"),
        *(biases(True, True) if bias else []),
        option("attention.clip", hf.get("clip_qkv", math.inf)),
        *feed_forward(hf["hidden_size"], hf["intermediate_size"], gated=True),
        *head(hf, False),
    ]


def olmo_rules(hf: HfConfig) -> list[Rule]:
    return llama_rules(hf, False)


def stablelm_arch(hf: HfConfig) -> str:
    return "stablelm_parallel" if hf.get("use_parallel_residual", False) else "stablelm"


def stablelm_overrides(hf: HfConfig) -> list[str]:
    hf.only("hidden_act", ["silu"], "silu")
    eps, parameters = hf.get("layer_norm_eps", 1e-5), rope_parameters(hf)
    is_parallel, normed = stablelm_arch(hf) == "stablelm_parallel", bool(hf.get("qk_layernorm", False))
    chosen = ["attention/qk_norm=per_head_layernorm_no_bias"] if is_parallel else []
    return [
        *sizes(hf),
        option("norm.eps", eps),
        *rope(hf, parameters, fraction=parameters.get("partial_rotary_factor", hf.get("partial_rotary_factor", 0.25))),
        *grouped(hf, "gqa"),
        *changed("attention.qkv_bias", bool(hf.get("use_qkv_bias", False)), not is_parallel),
        *([*chosen, option("attention.qk_norm.norm.eps", eps)] if normed else [] if is_parallel else WITHOUT_QK_NORM),
        *feed_forward(hf["hidden_size"], hf["intermediate_size"], gated=True),
        *head(hf, False),
    ]


def stablelm_rules(hf: HfConfig) -> list[Rule]:
    return [
        rule(LAYER + r"self_attn\.([qk])_layernorm\.norms\.(\d+)\.weight", A + r".qk_norm.\2.weight[\3]"),
        *llama_rules(hf, False),
    ]


def starcoder2_overrides(hf: HfConfig) -> list[str]:
    bias = bool(hf.get("use_bias", True))
    return [
        *sizes(hf),
        option("norm.eps", hf.get("norm_epsilon", 1e-5)),
        *rope(hf, rope_parameters(hf)),
        *grouped(hf, "gqa"),
        *([] if bias else [*biases(False, False), "ffn.up_bias=false", "ffn.down_bias=false"]),
        option("attention.window", limit(hf, hf.get("sliding_window"))),
        *activation(hf, "hidden_act", "gelu_pytorch_tanh", "gelu_tanh"),
        *feed_forward(hf["hidden_size"], hf["intermediate_size"], gated=False),
        *head(hf, True),
    ]


def starcoder2_rules(hf: HfConfig) -> list[Rule]:
    return [
        rule(LAYER + r"mlp\.c_fc\.(weight|bias)", F + r".up.\2"),
        rule(LAYER + r"mlp\.c_proj\.(weight|bias)", F + r".down.\2"),
        *llama_rules(hf, True, gated=False),
    ]


def nemotron_overrides(hf: HfConfig) -> list[str]:
    parameters = rope_parameters(hf)
    return [
        *sizes(hf),
        option("norm.eps", hf.get("norm_eps", 1e-5)),
        *rope(hf, parameters, fraction=parameters.get("partial_rotary_factor", hf.get("partial_rotary_factor", 0.5))),
        *grouped(hf, "gqa"),
        option("attention.head_dim", hf.get("head_dim")),
        *(biases(True, True) if hf.get("attention_bias", False) else []),
        *(["ffn.up_bias=true", "ffn.down_bias=true"] if hf.get("mlp_bias", False) else []),
        *activation(hf, "hidden_act", "relu2", "relu2"),
        *feed_forward(hf["hidden_size"], hf["intermediate_size"], gated=False),
        *head(hf, False),
    ]


FAMILIES = [
    Family("phi", "phi", phi_overrides, phi_rules),
    Family("cohere", "cohere", cohere_overrides, cohere_rules),
    Family("cohere2", "cohere2", cohere2_overrides, cohere_rules),
    Family("olmo", "olmo", olmo_overrides, olmo_rules),
    Family("stablelm", stablelm_arch, stablelm_overrides, stablelm_rules),
    Family("starcoder2", "starcoder2", starcoder2_overrides, starcoder2_rules),
    Family("nemotron", "nemotron", nemotron_overrides, olmo_rules),
]
