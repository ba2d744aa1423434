"""Families whose layers are of two kinds, local and global: Gemma 2, 3 and 4, OLMo 3; and Gemma, which Gemma 2 is made from.

The arch has a rule `local` of its own; a checkpoint may name other layers, another window, other rotations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ablate.pretrained.dense import olmo2_common, olmo_table
from ablate.pretrained.rmsnorm import (
    ATTENTION,
    FFN,
    LAYER,
    base,
    family,
    heads,
    key_heads,
    layers_where,
    limit,
    llama_like,
    nullable,
    plain_rope,
    qk_eps,
    sliding,
    width_of_head,
)
from ablate.pretrained.tables import HfConfig, Rule, constant, option, rope, rope_parameters, rope_scaling

TANH = {"hidden_activation": "gelu_pytorch_tanh"}
SANDWICH = {
    "input_layernorm": ATTENTION + "input_norm",
    "post_attention_layernorm": ATTENTION + "output_norm",
    "pre_feedforward_layernorm": FFN + "input_norm",
    "post_feedforward_layernorm": FFN + "output_norm",
}
LOCAL = "layers.local.set"
AS_GLOBAL = f"~{LOCAL}.position"


# --- local layers


def all_but_each(hf: HfConfig, period: int) -> list[int]:
    """All layers but every period-th: number period - 1, 2 period - 1, ..."""
    return [layer for layer in range(hf["num_hidden_layers"]) if (layer + 1) % period]


def local_layers(hf: HfConfig, period: int, window: int, *, attention: Sequence[str] = (), position: Sequence[str] = ()) -> list[str]:
    """The rule `local` of the arch, which leaves out each period-th layer: its layers here, its window, and what else it sets."""
    chosen = sliding(hf, all_but_each(hf, hf.get("sliding_window_pattern", period)))
    tokens = limit(hf, hf.get("sliding_window", window))
    windowed = math.isfinite(tokens)
    if not chosen or not (windowed or attention or set(position) - {AS_GLOBAL}):
        return ["~layers.local"]
    seen = option(f"{LOCAL}.attention.window", tokens) if windowed or attention else f"~{LOCAL}.attention"
    return [*layers_where("local", chosen, all_but_each(hf, period)), seen, *attention, *position]


def two_ropes(hf: HfConfig, full_theta: float, local_theta: float | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Rotation of global and of local layers, in both spellings: rope_parameters of each kind, or rope_local_base_freq and rope_scaling.

    Without a theta of their own local layers have that of the global ones.
    """
    full = rope_parameters(hf, full_theta, "full_attention")
    if "sliding_attention" in hf.get("rope_parameters", {}):
        return full, rope_parameters(hf, full_theta, "sliding_attention")
    theta = hf.get("rope_local_base_freq", full["rope_theta"] if local_theta is None else local_theta)
    return full, {"rope_type": "default", "rope_theta": theta}


def local_rope(hf: HfConfig, full: Mapping[str, Any], local: Mapping[str, Any], *, names_scaling: bool) -> list[str]:
    """Rotation of the rule `local`; `names_scaling`: that of the arch says that there is none, else it is as in global layers."""
    if local == full:
        return [AS_GLOBAL]
    overrides = [option(f"{LOCAL}.position.theta", float(local["rope_theta"]))]
    if local["rope_type"] == "default":
        return overrides if names_scaling or full["rope_type"] == "default" else [*overrides, f"{LOCAL}.position.scaling.kind=none"]
    kind, *numbers = rope_scaling(hf, local)
    if names_scaling:
        overrides.append(f"~{LOCAL}.position.scaling")
    overrides.append(kind.replace("position/scaling", f"{LOCAL}.position.scaling.kind"))
    return overrides + [number.replace("position.", f"{LOCAL}.position.", 1) for number in numbers]


# --- Gemma


def gemma_common(hf: HfConfig) -> list[str]:
    hf.only("attention_bias", [False], False)
    hf.only("use_bidirectional_attention", [False, "vision"], False)  # "vision": of pictures, not of text
    return base(hf, eps=1e-6, tied_head=True, activation=TANH)


def score_scale(hf: HfConfig) -> str:
    """1 / sqrt(query_pre_attn_scalar); null where that is the width of a head."""
    scalar = hf.get("query_pre_attn_scalar", 256)
    return option("attention.scale", None if scalar == width_of_head(hf) else scalar**-0.5)


def caps(hf: HfConfig, attention: float | None, final: float | None) -> list[str]:
    """Soft caps of scores and of logits."""
    chosen = {
        "attention.soft_cap": nullable(hf, "attn_logit_softcapping", attention),
        "head.soft_cap": nullable(hf, "final_logit_softcapping", final),
    }
    return [option(key, math.inf if value is None else float(value)) for key, value in chosen.items()]


def gemma(hf: HfConfig) -> list[str]:
    # The first release says "gelu" and means its tanh form, as transformers knows.
    hf.only("hidden_act", ["gelu_pytorch_tanh", "gelu"], "gelu_pytorch_tanh")
    return [*gemma_common(hf), *heads(hf), *plain_rope(hf)]


def gemma2(hf: HfConfig) -> list[str]:
    return [*gemma_common(hf), *heads(hf), *plain_rope(hf), score_scale(hf), *caps(hf, 50.0, 30.0), *local_layers(hf, 2, 4096)]


def gemma3(hf: HfConfig) -> list[str]:
    full, local = two_ropes(hf, 1e6, 1e4)
    turned = local_rope(hf, full, local, names_scaling=False)
    return [
        *gemma_common(hf),
        *heads(hf),
        *qk_eps(hf, 1e-6),
        score_scale(hf),
        *caps(hf, None, None),
        *rope(hf, full),
        *local_layers(hf, 6, 4096, position=turned),
    ]


def sandwiched(hf: HfConfig) -> list[Rule]:
    return llama_like(hf, norms=SANDWICH, tied_head=True)


def gemma3_table(hf: HfConfig) -> list[Rule]:
    return llama_like(hf, norms=SANDWICH, qk_norms=("q_norm", "k_norm"), tied_head=True)


def global_heads(hf: HfConfig) -> dict[str, int]:
    """Sizes of the heads of global layers of Gemma 4, in both spellings."""
    by_layer = list(hf.get("per_layer_config", {}).values())
    if any(sizes != by_layer[0] for sizes in by_layer):
        hf.refuse("per_layer_config", "global layers differ from each other")
    if by_layer:
        return {"num_key_value_heads": key_heads(hf), **by_layer[0]}
    count = hf.get("num_global_key_value_heads", key_heads(hf)) if hf.get("attention_k_eq_v", False) else key_heads(hf)
    return {"num_key_value_heads": count, "head_dim": hf.get("global_head_dim", 512)}


def gemma4(hf: HfConfig) -> list[str]:
    for key, default in (("hidden_size_per_layer_input", 256), ("num_kv_shared_layers", 0)):
        hf.only(key, [0], default)
    for key in ("enable_moe_block", "use_double_wide_mlp"):
        hf.only(key, [False], False)
    full, local = two_ropes(hf, 1e6, 1e4)
    if not hf.get("rope_parameters"):
        full |= {"rope_type": "proportional", "partial_rotary_factor": 0.25}
    wide = HfConfig({**hf.raw, **global_heads(hf)})
    in_local = [option(f"{LOCAL}.attention.head_dim", width_of_head(hf))]
    if key_heads(hf) != key_heads(wide):
        in_local.append(option(f"{LOCAL}.attention.kv_heads", key_heads(hf)))
    return [
        *gemma_common(hf),
        *heads(wide),
        option("attention.k_eq_v", hf.get("attention_k_eq_v", False)),
        *qk_eps(hf, 1e-6),
        option("attention.v_norm.eps", float(hf.get("rms_norm_eps", 1e-6))),
        *caps(hf, None, None),
        *rope(hf, full),
        *local_layers(hf, 6, 512, attention=in_local, position=local_rope(hf, full, local, names_scaling=True)),
    ]


def gemma4_table(hf: HfConfig) -> list[Rule]:
    return llama_like(hf, norms=SANDWICH, qk_norms=("q_norm", "k_norm"), tied_head=True, more=[constant(LAYER + "layer_scalar", 1.0)])


# --- OLMo 3


def olmo3(hf: HfConfig) -> list[str]:
    full, local = two_ropes(hf, 5e5, None)
    return [*olmo2_common(hf), *rope(hf, full), *local_layers(hf, 4, 4096, position=local_rope(hf, full, local, names_scaling=True))]


FAMILIES = [
    family("gemma", "gemma", gemma, lambda hf: llama_like(hf, tied_head=True), num_key_value_heads=16, head_dim=256),
    family("gemma2", "gemma2", gemma2, sandwiched, num_key_value_heads=4, head_dim=256),
    family("gemma3_text", "gemma3", gemma3, gemma3_table, num_key_value_heads=4, head_dim=256),
    family("gemma4_text", "gemma4", gemma4, gemma4_table, num_key_value_heads=4, head_dim=256),
    family("olmo3", "olmo3", olmo3, olmo_table),
]
