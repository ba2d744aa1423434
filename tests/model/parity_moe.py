"""Rows of published architectures with experts or latent attention. eps is 0.05 in all, so that a wrong eps is seen."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    MiniCPM3Config,
    MiniCPM3ForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from tests.model.parity import Case
from tests.model.parity_rmsnorm import layer_types, rope, tiny, yarn

FULL = ["full_attention"] * 4
LATENT: dict[str, Any] = {
    "q_lora_rank": 24,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "num_key_value_heads": 4,
}
SMALL: dict[str, Any] = {"moe_intermediate_size": 32, "num_experts_per_tok": 3}
ROUTED: dict[str, Any] = {**SMALL, "n_routed_experts": 8, "n_shared_experts": 2, "routed_scaling_factor": 2.5, "first_k_dense_replace": 1}
MSCALE = yarn(mscale=1.0, mscale_all_dim=1.0)


@torch.no_grad()
def random_selection_bias(model: nn.Module) -> None:
    """Buffers that choose experts; 0 would hide whether they are used."""
    generator = torch.Generator().manual_seed(3)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(torch.randn(buffer.shape, generator=generator) / 4)


def deepseek_v3(**options: Any) -> Any:
    return tiny(DeepseekV3ForCausalLM, DeepseekV3Config, **{**LATENT, **ROUTED, "n_group": 4, "topk_group": 2, **options})


def deepseek_v2(**options: Any) -> Any:
    groups = {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}
    return tiny(DeepseekV2ForCausalLM, DeepseekV2Config, **{**LATENT, **ROUTED, **groups, "q_lora_rank": None, **options})


def llama4(**options: Any) -> Any:
    experts = {"num_local_experts": 8, "num_experts_per_tok": 2, "interleave_moe_layer_step": 2}
    sizes = {"intermediate_size": 32, "intermediate_size_mlp": 96, "head_dim": 16}
    far = {"attention_chunk_size": 6, "floor_scale": 4, "attn_scale": 0.1}
    return tiny(Llama4ForCausalLM, Llama4TextConfig, **{**experts, **sizes, **far, "rope_parameters": rope(5e5), **options})


def gpt_oss(**options: Any) -> Any:
    """The clamp is at 1.5 instead of 7, which random numbers do not reach."""
    sizes = {"head_dim": 32, "sliding_window": 5, "num_local_experts": 16, "num_experts_per_tok": 2, "swiglu_limit": 1.5}
    stretched = yarn(150000.0, truncate=False)
    return tiny(GptOssForCausalLM, GptOssConfig, **{**sizes, "rope_parameters": stretched, **options})


CASES = [
    Case("mixtral", tiny(MixtralForCausalLM, MixtralConfig, rope_parameters=rope(1e6)), quick=True),
    Case("mixtral(window)", tiny(MixtralForCausalLM, MixtralConfig, sliding_window=5)),
    Case("olmoe", tiny(OlmoeForCausalLM, OlmoeConfig, num_experts=8, num_experts_per_tok=3, clip_qkv=1.0), quick=True),
    Case("olmoe(renormalised)", tiny(OlmoeForCausalLM, OlmoeConfig, num_experts=8, num_experts_per_tok=3, norm_topk_prob=True)),
    Case(
        "qwen2_moe",
        tiny(Qwen2MoeForCausalLM, Qwen2MoeConfig, **SMALL, num_experts=8, shared_expert_intermediate_size=40, decoder_sparse_step=2),
        quick=True,
    ),
    Case(
        "qwen3_moe",
        tiny(Qwen3MoeForCausalLM, Qwen3MoeConfig, **SMALL, num_experts=8, head_dim=32, norm_topk_prob=True),
        quick=True,
    ),
    Case(
        "qwen3_moe(a dense layer)",
        tiny(Qwen3MoeForCausalLM, Qwen3MoeConfig, **SMALL, num_experts=8, head_dim=32, mlp_only_layers=[2]),
    ),
    Case("gpt_oss", gpt_oss(), quick=True),
    Case("gpt_oss(yarn 4096)", gpt_oss(rope_parameters=yarn(150000.0, factor=32.0, original_max_position_embeddings=4096, truncate=False))),
    Case("gpt_oss(other layers)", gpt_oss(layer_types=layer_types("fssf"), swiglu_limit=7.0)),
    Case("deepseek_v3", deepseek_v3(rope_parameters=MSCALE), prepare=random_selection_bias, quick=True),
    Case(
        "deepseek_v3(no groups, three dense layers)",
        deepseek_v3(n_group=1, topk_group=1, first_k_dense_replace=3, rope_interleave=False, norm_topk_prob=False),
        prepare=random_selection_bias,
    ),
    Case("deepseek_v2", deepseek_v2(), quick=True),
    Case(
        "deepseek_v2(low-rank queries, greedy, yarn)",
        deepseek_v2(q_lora_rank=24, topk_method="greedy", rope_parameters=yarn(mscale=0.7, mscale_all_dim=0.7), first_k_dense_replace=0),
    ),
    Case(
        "minicpm3",
        tiny(MiniCPM3ForCausalLM, MiniCPM3Config, **LATENT, tie_word_embeddings=True, scale_emb=3, dim_model_base=16),
        quick=True,
    ),
    Case("llama4", llama4(), quick=True),
    Case("llama4(one expert, all layers alike)", llama4(num_experts_per_tok=1, interleave_moe_layer_step=1, no_rope_layers=[1, 1, 1, 1])),
    Case("llama4(no norm on queries and keys, no temperature)", llama4(use_qk_norm=False, attn_temperature_tuning=False)),
    Case(
        "glm4_moe",
        tiny(
            Glm4MoeForCausalLM,
            Glm4MoeConfig,
            **{**ROUTED, "head_dim": 16},
            attention_bias=True,
            use_qk_norm=True,
            rope_parameters=rope(partial_rotary_factor=0.5),
        ),
        prepare=random_selection_bias,
        quick=True,
    ),
    Case(
        "qwen3_next(full attention)",
        tiny(
            Qwen3NextForCausalLM,
            Qwen3NextConfig,
            **SMALL,
            num_experts=8,
            head_dim=32,
            shared_expert_intermediate_size=40,
            decoder_sparse_step=2,
            layer_types=FULL,
            rope_parameters=rope(partial_rotary_factor=0.25),
        ),
        quick=True,
    ),
]
