"""Llama, Mistral and Qwen; and the table of names and the overrides that most families with RMSNorm share with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from ablate.pretrained.tables import (
    Family,
    HfConfig,
    Operation,
    Rule,
    copy,
    feed_forward,
    halved,
    option,
    rope,
    rope_parameters,
    rows,
    rule,
    sizes,
    text,
    tied,
)

LAYER = r"model\.layers\.(\d+)\."
ATTENTION, FFN = r"blocks.\1.attention.", r"blocks.\1.ffn."

PRE = {"input_layernorm": ATTENTION + "input_norm", "post_attention_layernorm": FFN + "input_norm"}
OUTPUT = {"post_attention_layernorm": ATTENTION + "output_norm", "post_feedforward_layernorm": FFN + "output_norm"}

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


# --- families


def family(
    model_type: str,
    arch: str | Callable[[HfConfig], str],
    overrides: Callable[[HfConfig], list[str]],
    rules: Callable[[HfConfig], list[Rule]],
    **missing: Any,
) -> Family:
    """A family, and the sizes that transformers takes where config.json leaves them out."""

    def filled(hf: HfConfig) -> HfConfig:
        given = {key: value for key, value in missing.items() if key != "rope_parameters" or not hf.get("rope_scaling")}
        result = HfConfig({**given, **hf.raw})
        result.problems = hf.problems
        return result

    return Family(model_type, arch, lambda hf: overrides(filled(hf)), lambda hf: rules(filled(hf)))


# --- tables of names


def llama_like(
    hf: HfConfig,
    *,
    norms: Mapping[str, str] = PRE,
    qk_norms: tuple[str, str] | None = None,
    turned: Operation = copy,
    turned_key: Operation = copy,
    tied_head: bool = False,
    more: Sequence[Rule] = (),
) -> list[Rule]:
    """The table of Llama: names of norms, of norms on queries and keys, what is done to rows that are rotated, rules that come first."""
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
        rule(LAYER + r"self_attn\.q_proj\.(weight|bias)", sublayer + r"q.\2", op=turned),
        rule(LAYER + r"self_attn\.k_proj\.(weight|bias)", sublayer + r"k.\2", op=turned_key),
        rule(LAYER + r"self_attn\.v_proj\.(weight|bias)", sublayer + r"v.\2"),
        rule(LAYER + r"self_attn\.o_proj\.(weight|bias)", sublayer + r"out.\2"),
        rule(LAYER + r"mlp\.(gate|up|down)_proj\.(weight|bias)", FFN + r"sublayer.\2.\3"),
    ]
    return rules


class Turned(TypedDict):
    """What is done to the rows of queries and of keys."""

    turned: Operation
    turned_key: Operation


def interleaved(hf: HfConfig, fraction: float = 1.0) -> Turned:
    """For pairs that stand side by side."""
    width = width_of_head(hf)
    rotated = int(width * fraction)
    return {
        "turned": halved(hf["num_attention_heads"], width, rotated),
        "turned_key": halved(key_heads(hf), width, rotated),
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


FAMILIES = [
    family("llama", llama_arch, llama, llama_like),
    family("mistral", "mistral", mistral, llama_like, num_key_value_heads=8),
    family("qwen2", "qwen2", qwen2, llama_like, num_key_value_heads=32),
    family("qwen3", "qwen3", qwen3, qk_normed, num_key_value_heads=32, head_dim=128),
]
