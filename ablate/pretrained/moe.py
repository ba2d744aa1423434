"""Families with experts, and those with latent attention: Mixtral, OLMoE, Qwen's, gpt-oss, DeepSeek's, Llama 4, GLM-4.5, MiniCPM3.

A checkpoint holds each expert by itself, as it is published (`experts.3.up_proj`, Mixtral's `w3`), or all in one tensor, as
transformers holds it in memory; both are read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ablate.pretrained.rmsnorm import (
    ATTENTION,
    FFN,
    LAYER,
    biases,
    heads,
    key_heads,
    limit,
    llama_like,
    plain_rope,
    qk_eps,
    width_of_head,
)
from ablate.pretrained.tables import (
    Family,
    HfConfig,
    Operation,
    Rule,
    chain,
    each,
    halved,
    linear,
    option,
    per_head,
    rope,
    rope_parameters,
    rows,
    rule,
    sizes,
    skip,
    transpose,
    yarn_scale,
)

EXPERTS, SHARED = FFN + "sublayer.experts.", FFN + "sublayer.shared."
DENSE = "layers.dense"


# --- overrides


def base(hf: HfConfig, eps: float, *, tied_head: bool = False) -> list[str]:
    """Sizes, eps and head. `tied_head`: what a missing tie_word_embeddings means, as the arch has it."""
    hf.only("hidden_act", ["silu"], "silu")
    overrides = [*sizes(hf), option("norm.eps", float(hf.get("rms_norm_eps", eps)))]
    is_tied = hf.get("tie_word_embeddings", tied_head)
    return overrides if is_tied == tied_head else [*overrides, f"head.kind={'tied' if is_tied else 'untied'}"]


def experts(hf: HfConfig, inner: int, num: int, *, per_token: int, renormalise: bool, shared: int = 0, groups: Any = None) -> list[str]:
    """A router over `num` experts of `inner` features, and a shared one of `shared`."""
    width = hf["hidden_size"]
    return [
        f"ffn.expert.ratio={inner}/{width}",
        "ffn.expert.glu_factor=1",
        "ffn.expert.multiple_of=1",
        option("ffn.num_experts", num),
        option("ffn.experts_per_token", per_token),
        option("ffn.renormalise", renormalise),
        f"ffn.shared_ratio={shared}/{width}" if shared else "ffn.shared_ratio=null",
        option("ffn.groups", groups),
    ]


def dense_layers(hf: HfConfig, layers: Sequence[int], inner: int, usual: Sequence[int], *, bias: bool = False) -> list[str]:
    """The rule `dense`, for layers that have no experts; `usual` are those that it has in the arch by itself."""
    if not layers:
        return [f"~{DENSE}"] if usual else []
    chosen = {
        "kind": "swiglu",
        "ratio": f"{inner}/{hf['hidden_size']}",
        "glu_factor": 1,
        "multiple_of": 1,
        "up_bias": bias,
        "down_bias": bias,
    }
    where = [] if list(layers) == list(usual) else [option(f"{DENSE}.where.layers", list(layers))]
    return [*([f"~{DENSE}.where"] if where and usual else []), *where, *(option(f"{DENSE}.set.ffn.{key}", v) for key, v in chosen.items())]


def first_layers(hf: HfConfig, default: int) -> list[str]:
    """Layers before the first with experts; the arch has one such."""
    count = hf.get("first_k_dense_replace", default)
    return dense_layers(hf, range(count), hf["intermediate_size"], [0], bias=hf.get("mlp_bias", False))


def sparse_steps(hf: HfConfig) -> list[str]:
    """Layers without experts in the manner of Qwen: all but every decoder_sparse_step-th, and those of mlp_only_layers."""
    step, named = hf.get("decoder_sparse_step", 1), hf.get("mlp_only_layers", [])
    layers = [layer for layer in range(hf["num_hidden_layers"]) if layer in named or (layer + 1) % step]
    return dense_layers(hf, layers, hf.get("intermediate_size", 0), [])


def group_limit(hf: HfConfig, num_experts: int, per_token: int, score: str) -> dict[str, Any] | None:
    """Groups of experts, or none where they limit nothing."""
    num, kept = hf.get("n_group", 1), hf.get("topk_group", 1)
    always = score == "max" and kept >= per_token
    return None if kept >= num or num == num_experts or always else {"num": num, "kept": kept, "score": score}


def no_jitter(hf: HfConfig) -> None:
    hf.only("router_jitter_noise", [0.0], 0.0)


# --- operations


def gate_up(inner: int, *, transposed: bool = False, alternating: bool = False) -> Operation:
    """(E, 2F, D) -> gate and up (E, F, D). Of gpt-oss and Llama 4 stored the other way round; of gpt-oss in turn."""
    dim = -1 if transposed else 1
    cut = every_second(dim) if alternating else rows(inner, inner, dim=dim)
    return chain(cut, transpose) if transposed else cut


def every_second(dim: int) -> Operation:
    """Numbers 0, 2, 4, ... and 1, 3, 5, ... along a dimension."""
    return linear(lambda tensor: tuple(tensor.unflatten(dim, (-1, 2)).unbind(-1)))


# --- tables of names


def expert_rules(inner: int, *, block: str = "mlp", of_mixtral: bool = False) -> list[Rule]:
    """Router and experts, in both forms; the published names of Mixtral are its own."""
    names = {"w1": "gate", "w3": "up", "w2": "down"} if of_mixtral else {f"{name}_proj": name for name in ("gate", "up", "down")}
    prefix = LAYER + (r"(?:mlp|block_sparse_moe)" if of_mixtral else block)
    each_alone = [rule(prefix + rf"\.experts\.(\d+)\.{theirs}\.weight", EXPERTS + rf"{ours}.weight[\2]") for theirs, ours in names.items()]
    return [
        rule(prefix + r"\.gate\.weight", FFN + "sublayer.router.weight"),
        rule(prefix + r"\.gate\.e_score_correction_bias", FFN + "sublayer.selection_bias"),
        *each_alone,
        rule(prefix + r"\.experts\.gate_up_proj", EXPERTS + "gate.weight", EXPERTS + "up.weight", op=gate_up(inner)),
        rule(prefix + r"\.experts\.down_proj", EXPERTS + "down.weight"),
        rule(prefix + r"\.shared_experts?\.(gate|up|down)_proj\.weight", SHARED + r"\2.weight"),
        rule(prefix + r"\.shared_expert_gate\.weight", FFN + "sublayer.shared_gate.weight"),
    ]


def beyond_last_layer(hf: HfConfig) -> list[Rule]:
    """The layers of a second prediction, which stand in a checkpoint after the others and are left out."""
    depth = hf["num_hidden_layers"]
    extra = hf.get("num_nextn_predict_layers", hf.get("num_mtp_layers", 1))
    return [skip(rf"model\.layers\.{depth + layer}\..*") for layer in range(extra)]


# --- Mixtral, OLMoE, Qwen


def mixtral(hf: HfConfig) -> list[str]:
    no_jitter(hf)
    chosen = experts(
        hf, hf["intermediate_size"], hf.get("num_local_experts", 8), per_token=hf.get("num_experts_per_tok", 2), renormalise=True
    )
    window = option("attention.window", limit(hf, hf.get("sliding_window")))
    return [*base(hf, 1e-5), *heads(hf), window, *chosen, *plain_rope(hf, 1e6)]


def mixtral_table(hf: HfConfig) -> list[Rule]:
    return llama_like(hf, more=expert_rules(hf["intermediate_size"], of_mixtral=True))


def olmoe(hf: HfConfig) -> list[str]:
    bias = hf.get("attention_bias", False)
    chosen = experts(
        hf,
        hf["intermediate_size"],
        hf.get("num_experts", 64),
        per_token=hf.get("num_experts_per_tok", 8),
        renormalise=hf.get("norm_topk_prob", False),
    )
    clip = option("attention.clip", float(hf.get("clip_qkv", math.inf)))
    attention = [*heads(hf, grouped=False), *biases(hf, qkv=bias, out=bias)[:2], *qk_eps(hf, 1e-5), clip]
    return [*base(hf, 1e-5), *attention, *chosen, *plain_rope(hf)]


def olmoe_table(hf: HfConfig) -> list[Rule]:
    return llama_like(hf, qk_norms=("q_norm", "k_norm"), more=expert_rules(hf["intermediate_size"]))


def qwen_experts(hf: HfConfig, num: int, per_token: int, *, renormalise: bool, inner: int, shared: int = 0) -> list[str]:
    return experts(
        hf,
        hf.get("moe_intermediate_size", inner),
        hf.get("num_experts", hf.get("num_local_experts", num)),
        per_token=hf.get("num_experts_per_tok", per_token),
        renormalise=hf.get("norm_topk_prob", renormalise),
        shared=hf.get("shared_expert_intermediate_size", shared),
    )


def qwen2_moe(hf: HfConfig) -> list[str]:
    hf.only("use_sliding_window", [False], False)
    chosen = qwen_experts(hf, 60, 4, renormalise=False, inner=1408, shared=5632)
    attention = [*heads(hf, grouped=False), option("attention.qkv_bias", bool(hf.get("qkv_bias", True)))]
    return [*base(hf, 1e-6), *attention, *chosen, *sparse_steps(hf), *plain_rope(hf)]


def qwen3_moe(hf: HfConfig) -> list[str]:
    hf.only("use_sliding_window", [False], False)
    bias = hf.get("attention_bias", False)
    chosen = qwen_experts(hf, 128, 8, renormalise=False, inner=768)
    attention = [*heads(hf), *biases(hf, qkv=bias, out=bias)[:2], *qk_eps(hf, 1e-6)]
    return [*base(hf, 1e-6), *attention, *chosen, *sparse_steps(hf), *plain_rope(hf)]


def qwen_table(hf: HfConfig) -> list[Rule]:
    return llama_like(hf, more=expert_rules(hf.get("moe_intermediate_size", 1408)))


def qwen3_moe_table(hf: HfConfig) -> list[Rule]:
    return llama_like(hf, qk_norms=("q_norm", "k_norm"), more=expert_rules(hf.get("moe_intermediate_size", 768)))


def qwen3_next(hf: HfConfig) -> list[str]:
    for kind in sorted(set(hf.get("layer_types", ["linear_attention"])) - {"full_attention"}):
        hf.refuse("layer_types", f"{kind!r} is no kind of layer that we have; can be: full_attention")
    bias = hf.get("attention_bias", False)
    turned = rope(hf, rope_parameters(hf), fraction=fraction(hf, 0.25))
    chosen = qwen_experts(hf, 512, 10, renormalise=True, inner=512, shared=512)
    attention = [*heads(hf), *biases(hf, qkv=bias, out=bias)[:2], *qk_eps(hf, 1e-6)]
    return [*base(hf, 1e-6), *attention, *chosen, *sparse_steps(hf), *turned]


def qwen3_next_table(hf: HfConfig) -> list[Rule]:
    """Each head of q_proj is its query, then its gate."""
    width, sublayer = hf.get("head_dim", 256), ATTENTION + "sublayer."
    query = rule(
        LAYER + r"self_attn\.q_proj\.weight",
        sublayer + "q.weight",
        sublayer + "gate.weight",
        op=per_head(hf["num_attention_heads"], width, width),
    )
    more = [query, skip(r"mtp\..*"), *expert_rules(hf.get("moe_intermediate_size", 512))]
    return llama_like(hf, qk_norms=("q_norm", "k_norm"), more=more)


def fraction(hf: HfConfig, default: float) -> float:
    return float(rope_parameters(hf).get("partial_rotary_factor", hf.get("partial_rotary_factor", default)))


# --- gpt-oss, Llama 4, GLM-4.5


def gpt_oss(hf: HfConfig) -> list[str]:
    hf.only("attention_bias", [True], True)
    depth = hf["num_hidden_layers"]
    usual = [layer for layer in range(depth) if layer % 2 == 0]
    kinds = hf.get("layer_types", ["sliding_attention" if layer in usual else "full_attention" for layer in range(depth)])
    local = [layer for layer, kind in enumerate(kinds) if kind == "sliding_attention"]
    window = limit(hf, hf.get("sliding_window", 128))
    chosen = experts(
        hf, hf["intermediate_size"], hf.get("num_local_experts", 128), per_token=hf.get("num_experts_per_tok", 4), renormalise=True
    )
    clamp = [
        option("ffn.expert.limit", float(hf.get("swiglu_limit", 7.0))),
        option("ffn.expert.alpha", float(hf.get("swiglu_alpha", 1.702))),
    ]
    return [*base(hf, 1e-5), *heads(hf), *windowed(local, usual, window), *chosen, *clamp, *plain_rope(hf, 150000.0)]


def windowed(local: Sequence[int], usual: Sequence[int], window: int | float) -> list[str]:
    """The rule `local` of an arch."""
    if not local or math.isinf(window):
        return ["~layers.local"]
    where = [] if list(local) == list(usual) else ["~layers.local.where", option("layers.local.where.layers", list(local))]
    return [*where, option("layers.local.set.attention.window", window)]


def gpt_oss_table(hf: HfConfig) -> list[Rule]:
    pair = (EXPERTS + "gate.", EXPERTS + "up.")
    more = [
        rule(LAYER + r"self_attn\.sinks", ATTENTION + "sublayer.sink"),
        rule(LAYER + r"mlp\.router\.(weight|bias)", FFN + r"sublayer.router.\2"),
        rule(
            LAYER + r"mlp\.experts\.gate_up_proj",
            *(name + "weight" for name in pair),
            op=gate_up(hf["intermediate_size"], transposed=True, alternating=True),
        ),
        rule(LAYER + r"mlp\.experts\.gate_up_proj_bias", *(name + "bias" for name in pair), op=every_second(-1)),
        rule(LAYER + r"mlp\.experts\.down_proj", EXPERTS + "down.weight", op=transpose),
        rule(LAYER + r"mlp\.experts\.down_proj_bias", EXPERTS + "down.bias"),
    ]
    return llama_like(hf, more=more)


def llama4(hf: HfConfig) -> list[str]:
    no_jitter(hf)
    depth = hf["num_hidden_layers"]
    usual = [layer for layer in range(depth) if (layer + 1) % 4 == 0]
    period = hf.get("no_rope_layer_interval", 4)
    turned = hf.get("no_rope_layers") or [int((layer + 1) % period != 0) for layer in range(depth)]
    still = [layer for layer in range(depth) if not turned[layer]]
    kinds = hf.get("layer_types", ["chunked_attention" if turn else "full_attention" for turn in turned])
    if kinds != ["chunked_attention" if turn else "full_attention" for turn in turned]:
        hf.refuse("layer_types", "layers with rotation see chunks and the others all, or our model cannot hold them")
    step = hf.get("interleave_moe_layer_step", 1)
    sparse = hf.get("moe_layers") or list(range(step - 1, depth, step))
    dense = dense_layers(hf, [layer for layer in range(depth) if layer not in sparse], hf.get("intermediate_size_mlp", 16384), [])
    inner = hf["intermediate_size"]
    per_token, num = hf.get("num_experts_per_tok", 1), hf.get("num_local_experts", 16)
    chosen = experts(hf, inner, num, per_token=per_token, renormalise=False, shared=inner)
    bias = hf.get("attention_bias", False)
    normed = qk_eps(hf, 1e-5) if hf.get("use_qk_norm", True) else ["attention/qk_norm=none"]
    chunk = option("attention.chunk", limit(hf, hf.get("attention_chunk_size", 8192)))
    attention = [*heads(hf), *biases(hf, qkv=bias, out=bias)[:2], *normed, chunk]
    return [*base(hf, 1e-5), *attention, *chosen, *dense, *still_layers(hf, still, usual, chunk), *plain_rope(hf, 500000.0)]


def still_layers(hf: HfConfig, still: Sequence[int], usual: Sequence[int], chunk: str) -> list[str]:
    """The rule `nope`: layers without rotation, and their temperature."""
    if not still:
        return ["~layers.nope"]
    where = [] if list(still) == list(usual) else ["~layers.nope.where", option("layers.nope.where.layers", list(still))]
    key = "layers.nope.set.attention.temperature"
    floor = hf.get("floor_scale", 8192)
    if not hf.get("attn_temperature_tuning", True) or floor > hf["max_position_embeddings"]:
        return [*where, f"{key}=null"]
    return [*where, option(f"{key}.floor", floor), option(f"{key}.beta", float(hf.get("attn_scale", 0.1)))]


def llama4_table(hf: HfConfig) -> list[Rule]:
    """Names of the text model by itself; a dense layer's too begin with feed_forward."""
    block, width = LAYER + r"feed_forward\.", width_of_head(hf)
    more = [
        rule(block + r"router\.weight", FFN + "sublayer.router.weight"),
        rule(
            block + r"experts\.gate_up_proj",
            EXPERTS + "gate.weight",
            EXPERTS + "up.weight",
            op=gate_up(hf["intermediate_size"], transposed=True),
        ),
        rule(block + r"experts\.down_proj", EXPERTS + "down.weight", op=transpose),
        rule(block + r"shared_expert\.(gate|up|down)_proj\.weight", SHARED + r"\2.weight"),
        rule(block + r"(gate|up|down)_proj\.weight", FFN + r"sublayer.\2.weight"),
    ]
    return llama_like(hf, more=more, turned=halved(hf["num_attention_heads"], width), turned_key=halved(key_heads(hf), width))


def glm4_moe(hf: HfConfig) -> list[str]:
    num, per_token = hf.get("n_routed_experts", 128), hf.get("num_experts_per_tok", 8)
    chosen = experts(
        hf,
        hf.get("moe_intermediate_size", 1408),
        num,
        per_token=per_token,
        renormalise=hf.get("norm_topk_prob", True),
        shared=hf.get("moe_intermediate_size", 1408) * hf.get("n_shared_experts", 1),
        groups=group_limit(hf, num, per_token, "top2"),
    )
    scale = option("ffn.output_scale", float(hf.get("routed_scaling_factor", 1.0)))
    normed = qk_eps(hf, 1e-5) if hf.get("use_qk_norm", False) else ["attention/qk_norm=none"]
    attention = [*heads(hf), option("attention.qkv_bias", bool(hf.get("attention_bias", False))), *normed]
    turned = rope(hf, rope_parameters(hf), fraction=fraction(hf, 0.5))
    return [*base(hf, 1e-5), *attention, *chosen, scale, *first_layers(hf, 1), *turned]


def glm4_moe_table(hf: HfConfig) -> list[Rule]:
    more = [*beyond_last_layer(hf), *expert_rules(hf.get("moe_intermediate_size", 1408))]
    return llama_like(hf, qk_norms=("q_norm", "k_norm"), more=more)


# --- latent attention


def latent(hf: HfConfig, ranks: Mapping[str, int]) -> dict[str, int]:
    """The sizes of latent attention; `ranks` are the family's defaults. q_lora_rank of 0: none."""
    sizes_of = {key: hf.get(key, default) for key, default in ranks.items() if key != "q_lora_rank"}
    absent = "q_lora_rank" in hf and hf.get("q_lora_rank") is None
    return {**sizes_of, "q_lora_rank": 0 if absent else hf.get("q_lora_rank", ranks["q_lora_rank"])}


def latent_overrides(hf: HfConfig, ranks: Mapping[str, int], theta: float = 10000.0) -> list[str]:
    """Sizes, rotation, and the factor on scores that DeepSeek has with YaRN (arXiv 2405.04434, section 2.1.4)."""
    hf.only("attention_bias", [False], False)
    if hf.get("num_key_value_heads", hf["num_attention_heads"]) != hf["num_attention_heads"]:
        hf.refuse("num_key_value_heads", "latent attention has as many key heads as heads")
    found, parameters = latent(hf, ranks), rope_parameters(hf, theta)
    width = found["qk_nope_head_dim"] + found["qk_rope_head_dim"]
    factor = 1.0
    if parameters["rope_type"] != "default" and parameters.get("mscale_all_dim"):
        factor = yarn_scale(float(parameters["factor"]), parameters["mscale_all_dim"]) ** 2
    return [
        option("attention.q_rank", found["q_lora_rank"] or None),
        option("attention.kv_rank", found["kv_lora_rank"]),
        option("attention.nope_dim", found["qk_nope_head_dim"]),
        option("attention.rope_dim", found["qk_rope_head_dim"]),
        option("attention.v_dim", found["v_head_dim"]),
        option("attention.scale", None if factor == 1 else factor / math.sqrt(width)),
        *rope(hf, parameters),
    ]


def latent_rules(hf: HfConfig, ranks: Mapping[str, int], *, interleaved: bool) -> list[Rule]:
    """Names of latent attention. Rows of pairs side by side become halves."""
    found, all_heads, sublayer = latent(hf, ranks), hf["num_attention_heads"], ATTENTION + "sublayer."
    nope, turned, rank = found["qk_nope_head_dim"], found["qk_rope_head_dim"], found["kv_lora_rank"]
    query = halved(all_heads, nope + turned, turned, offset=nope) if interleaved else rows(all_heads * (nope + turned))
    key = halved(1, turned) if interleaved else rows(turned)
    down = each(rows(rank, turned), rows(rank), key)
    block = LAYER + r"self_attn\."
    return [
        rule(block + r"q_proj\.weight", sublayer + "q.weight", op=query),
        rule(block + r"q_a_proj\.weight", sublayer + "q_down.weight"),
        rule(block + r"q_a_layernorm\.weight", sublayer + "q_latent_norm.weight"),
        rule(block + r"q_b_proj\.weight", sublayer + "q_up.weight", op=query),
        rule(block + r"kv_a_proj_with_mqa\.weight", sublayer + "kv_down.weight", sublayer + "k_rope.weight", op=down),
        rule(block + r"kv_a_layernorm\.weight", sublayer + "kv_latent_norm.weight"),
        rule(
            block + r"kv_b_proj\.weight",
            sublayer + "k_up.weight",
            sublayer + "v_up.weight",
            op=per_head(all_heads, nope, found["v_head_dim"]),
        ),
    ]


DEEPSEEK = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}


def deepseek_v2(hf: HfConfig) -> list[str]:
    hf.only("mlp_bias", [False], False)
    method = hf.only("topk_method", ["greedy", "group_limited_greedy"], "greedy")
    num, per_token = hf.get("n_routed_experts", 64), hf["num_experts_per_tok"]
    inner = hf.get("moe_intermediate_size", 1407)
    chosen = experts(
        hf,
        inner,
        num,
        per_token=per_token,
        renormalise=False,
        shared=inner * hf.get("n_shared_experts", 2),
        groups=group_limit(hf, num, per_token, "max") if method == "group_limited_greedy" else None,
    )
    scale = option("ffn.output_scale", float(hf.get("routed_scaling_factor", 1.0)))
    return [*base(hf, 1e-6), *latent_overrides(hf, DEEPSEEK), *chosen, scale, *first_layers(hf, 0)]


def deepseek_v2_table(hf: HfConfig) -> list[Rule]:
    more = [*latent_rules(hf, DEEPSEEK, interleaved=True), *expert_rules(hf.get("moe_intermediate_size", 1407))]
    return llama_like(hf, more=more)


def deepseek_v3(hf: HfConfig) -> list[str]:
    num, per_token = hf.get("n_routed_experts", 256), hf.get("num_experts_per_tok", 8)
    inner = hf.get("moe_intermediate_size", 2048)
    groups = {"n_group": 8, "topk_group": 4} | {key: hf[key] for key in ("n_group", "topk_group") if key in hf}
    chosen = experts(
        hf,
        inner,
        num,
        per_token=per_token,
        renormalise=hf.get("norm_topk_prob", True),
        shared=inner * hf.get("n_shared_experts", 1),
        groups=group_limit(HfConfig(groups), num, per_token, "top2"),
    )
    scale = option("ffn.output_scale", float(hf.get("routed_scaling_factor", 2.5)))
    return [*base(hf, 1e-6), *latent_overrides(hf, DEEPSEEK), *chosen, scale, *first_layers(hf, 3)]


def deepseek_v3_table(hf: HfConfig) -> list[Rule]:
    turned = latent_rules(hf, DEEPSEEK, interleaved=hf.get("rope_interleave", True))
    more = [*beyond_last_layer(hf), *turned, *expert_rules(hf.get("moe_intermediate_size", 2048))]
    return llama_like(hf, more=more)


def minicpm3_ranks(hf: HfConfig) -> dict[str, int]:
    plain = hf["hidden_size"] // hf["num_attention_heads"]
    return {"q_lora_rank": 768, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": plain}


def minicpm3(hf: HfConfig) -> list[str]:
    depth, width, inner = hf["num_hidden_layers"], hf["hidden_size"], hf["intermediate_size"]
    hf.only("mlp_bias", [False], False)
    multipliers = {
        "embedding.scale": hf.get("scale_emb", 12),
        "residual.branch": hf.get("scale_depth", 1.4) / math.sqrt(depth),
        "head.scale": hf.get("dim_model_base", 256) / width,
    }
    ffn = [f"ffn.ratio={inner}/{width}", "ffn.glu_factor=1", "ffn.multiple_of=1"]
    scaled = [option(key, float(value)) for key, value in multipliers.items()]
    return [*base(hf, 1e-5, tied_head=True), *latent_overrides(hf, minicpm3_ranks(hf)), *ffn, *scaled]


def minicpm3_table(hf: HfConfig) -> list[Rule]:
    return llama_like(hf, tied_head=True, more=latent_rules(hf, minicpm3_ranks(hf), interleaved=False))


FAMILIES = [
    Family("mixtral", "mixtral", mixtral, mixtral_table),
    Family("olmoe", "olmoe", olmoe, olmoe_table),
    Family("qwen2_moe", "qwen2_moe", qwen2_moe, qwen_table),
    Family("qwen3_moe", "qwen3_moe", qwen3_moe, qwen3_moe_table),
    Family("qwen3_next", "qwen3_next", qwen3_next, qwen3_next_table),
    Family("gpt_oss", "gpt_oss", gpt_oss, gpt_oss_table),
    Family("llama4_text", "llama4", llama4, llama4_table),
    Family("glm4_moe", "glm4_moe", glm4_moe, glm4_moe_table),
    Family("deepseek_v2", "deepseek_v2", deepseek_v2, deepseek_v2_table),
    Family("deepseek_v3", "deepseek_v3", deepseek_v3, deepseek_v3_table),
    Family("minicpm3", "minicpm3", minicpm3, minicpm3_table),
]
