"""Rows of published architectures whose norm is RMSNorm and whose layers are dense. eps is 0.05 in all, so that a wrong eps is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers import (
    ApertusConfig,
    ApertusForCausalLM,
    BitNetConfig,
    BitNetForCausalLM,
    ChameleonConfig,
    ChameleonForConditionalGeneration,
    Ernie4_5Config,
    Ernie4_5ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    Glm4Config,
    Glm4ForCausalLM,
    GlmConfig,
    GlmForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    HeliumConfig,
    HeliumForCausalLM,
    HunYuanDenseV1Config,
    HunYuanDenseV1ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Ministral3Config,
    Ministral3ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SeedOssConfig,
    SeedOssForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from tests.model.parity import TOKENS, VOCABULARY, Case

EPS = 0.05
WIDTH = 64
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": TOKENS,
    "rms_norm_eps": EPS,
    "attn_implementation": "eager",
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


def rope(theta: float = 10000.0, kind: str = "default", **options: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": theta, **options}


def yarn(theta: float = 10000.0, **options: Any) -> dict[str, Any]:
    short = {"factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 4.0, "beta_slow": 1.0}
    return rope(theta, "yarn", **{**short, **options})


def tiny(model: Callable[[Any], nn.Module], config: Callable[..., Any], **options: Any) -> Callable[[], nn.Module]:
    """A model of a small config; rotation at theta 10000 unless an option says otherwise."""

    def build() -> nn.Module:
        return model(config(**{**SIZES, "rope_parameters": rope(), **options}))

    return build


def layer_types(letters: str) -> list[str]:
    """'ssf' -> sliding, sliding, full attention."""
    return [{"s": "sliding_attention", "f": "full_attention"}[letter] for letter in letters]


def both(full: dict[str, Any], sliding: dict[str, Any]) -> dict[str, Any]:
    return {"full_attention": full, "sliding_attention": sliding}


LLAMA3 = rope(kind="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
LONG_YARN = yarn(150000.0, factor=32.0, original_max_position_embeddings=4096, beta_fast=32.0, beta_slow=1.0)
"""The betas of YaRN act only where the original context is long against 2 pi."""
LONGROPE = rope(
    kind="longrope",
    partial_rotary_factor=0.5,
    short_factor=[1.0, 1.0, 1.0, 1.0],
    long_factor=[1.0, 1.5, 2.0, 4.0],
    original_max_position_embeddings=16,
)
TIED: dict[str, Any] = {"tie_word_embeddings": True}
GEMMA: dict[str, Any] = {**TIED, "head_dim": 32}


T5: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    "d_kv": 16,
    "d_ff": 96,
    "num_layers": 1,
    "num_decoder_layers": 4,
    "num_heads": 4,
    "n_positions": TOKENS,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
    "layer_norm_epsilon": EPS,
    "dropout_rate": 0.0,
    "attn_implementation": "eager",
}


def t5() -> nn.Module:
    """T5 1.1 with the head of T5: tied, and its input divided by the root of the width."""
    return T5ForConditionalGeneration(T5Config(**T5, feed_forward_proj="gated-gelu"))


def t5_plain() -> nn.Module:
    """T5 1.0: one matrix up, relu."""
    return T5ForConditionalGeneration(T5Config(**T5, feed_forward_proj="relu"))


def without_encoder(model: Any) -> None:
    """A decoder that no encoder feeds: its cross attention never runs, and its weights go."""
    del model.encoder
    for block in model.decoder.block:
        del block.layer[1].EncDecAttention, block.layer[1].layer_norm


def t5_logits(model: Any, tokens_BT: Tensor) -> Tensor:
    return model.lm_head(model.decoder(tokens_BT, use_cache=False).last_hidden_state * WIDTH**-0.5)


def chameleon() -> nn.Module:
    pictures = {"embed_dim": 4, "num_embeddings": 4, "latent_channels": 4, "base_channels": 32, "channel_multiplier": [1]}
    return ChameleonForConditionalGeneration(
        ChameleonConfig(**SIZES, rope_parameters=rope(), vocabulary_map={"<image>": VOCABULARY - 1}, vq_config=pictures)
    )


def without_pictures(model: Any) -> None:
    del model.model.vqmodel


def chameleon_logits(model: Any, tokens_BT: Tensor) -> Tensor:
    """Without the mask that forbids picture tokens."""
    return model.lm_head(model.model(tokens_BT, use_cache=False).last_hidden_state)


CASES = [
    Case("t5-decoder", t5, prepare=without_encoder, logits=t5_logits, quick=True),
    Case("t5-decoder(1.0)", t5_plain, prepare=without_encoder, logits=t5_logits),
    Case("llama", tiny(LlamaForCausalLM, LlamaConfig)),
    Case("llama3.1", tiny(LlamaForCausalLM, LlamaConfig, head_dim=32, rope_parameters=LLAMA3), quick=True),
    Case("llama(linear)", tiny(LlamaForCausalLM, LlamaConfig, rope_parameters=rope(kind="linear", factor=4.0))),
    Case("llama(one key head)", tiny(LlamaForCausalLM, LlamaConfig, num_key_value_heads=1, **TIED)),
    Case("llama(biases)", tiny(LlamaForCausalLM, LlamaConfig, num_key_value_heads=4, attention_bias=True, mlp_bias=True)),
    Case("mistral", tiny(MistralForCausalLM, MistralConfig, sliding_window=5)),
    Case(
        "qwen2",
        tiny(Qwen2ForCausalLM, Qwen2Config, use_sliding_window=True, sliding_window=5, max_window_layers=2),
    ),
    Case("qwen3(yarn 4096)", tiny(Qwen3ForCausalLM, Qwen3Config, head_dim=32, rope_parameters=LONG_YARN)),
    Case(
        "qwen3(yarn 4096, not truncated)",
        tiny(Qwen3ForCausalLM, Qwen3Config, head_dim=32, rope_parameters={**LONG_YARN, "truncate": False}),
    ),
    Case("qwen3", tiny(Qwen3ForCausalLM, Qwen3Config, head_dim=32)),
    Case("gemma", tiny(GemmaForCausalLM, GemmaConfig, **GEMMA)),
    Case(
        "gemma2",
        tiny(
            Gemma2ForCausalLM,
            Gemma2Config,
            **GEMMA,
            query_pre_attn_scalar=24,
            sliding_window=5,
            attn_logit_softcapping=5.0,
            final_logit_softcapping=10.0,
        ),
        quick=True,
    ),
    Case("gemma2(short context)", tiny(Gemma2ForCausalLM, Gemma2Config, **GEMMA, sliding_window=TOKENS)),
    Case(
        "gemma3",
        tiny(
            Gemma3ForCausalLM,
            Gemma3TextConfig,
            **GEMMA,
            query_pre_attn_scalar=24,
            sliding_window=5,
            num_hidden_layers=7,
            rope_parameters=both(rope(1e6), rope(1e4)),
        ),
    ),
    Case(
        "gemma3(27B)",
        tiny(
            Gemma3ForCausalLM,
            Gemma3TextConfig,
            **GEMMA,
            sliding_window=5,
            layer_types=layer_types("ssfs"),
            rope_parameters=both(rope(1e6, "linear", factor=8.0), rope(1e4)),
        ),
    ),
    Case(
        "gemma3(short context)",
        tiny(
            Gemma3ForCausalLM,
            Gemma3TextConfig,
            **GEMMA,
            sliding_window=TOKENS,
            layer_types=layer_types("ssfs"),
            rope_parameters=both(rope(1e6), rope(1e4)),
        ),
    ),
    Case(
        "gemma4",
        tiny(
            Gemma4ForCausalLM,
            Gemma4TextConfig,
            **TIED,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=16,
            global_head_dim=32,
            num_global_key_value_heads=2,
            attention_k_eq_v=True,
            num_hidden_layers=6,
            sliding_window=5,
            final_logit_softcapping=10.0,
            hidden_size_per_layer_input=0,
            vocab_size_per_layer_input=VOCABULARY,
            rope_parameters=both(rope(1e6, "proportional", partial_rotary_factor=0.25), rope(1e4)),
        ),
        quick=True,
    ),
    Case("olmo2", tiny(Olmo2ForCausalLM, Olmo2Config)),
    Case("olmo3", tiny(Olmo3ForCausalLM, Olmo3Config, sliding_window=5, rope_parameters=both(yarn(5e5), rope(5e5)))),
    Case("olmo3(yarn in all layers)", tiny(Olmo3ForCausalLM, Olmo3Config, sliding_window=5, rope_parameters=both(yarn(), yarn()))),
    Case(
        "phi3",
        tiny(
            Phi3ForCausalLM,
            Phi3Config,
            sliding_window=5,
            max_position_embeddings=64,
            original_max_position_embeddings=16,
            rope_parameters=LONGROPE,
        ),
        quick=True,
    ),
    Case(
        "granite",
        tiny(
            GraniteForCausalLM,
            GraniteConfig,
            embedding_multiplier=3.0,
            logits_scaling=4.0,
            residual_multiplier=0.22,
            attention_multiplier=0.1,
        ),
        quick=True,
    ),
    Case("smollm3", tiny(SmolLM3ForCausalLM, SmolLM3Config, **TIED, rope_parameters=rope(2e6))),
    Case("glm", tiny(GlmForCausalLM, GlmConfig, head_dim=32, rope_parameters=rope(partial_rotary_factor=0.5)), quick=True),
    Case("glm4", tiny(Glm4ForCausalLM, Glm4Config, head_dim=32, rope_parameters=rope(partial_rotary_factor=0.5))),
    Case("seed_oss", tiny(SeedOssForCausalLM, SeedOssConfig, head_dim=32)),
    Case("apertus", tiny(ApertusForCausalLM, ApertusConfig, rope_parameters=LLAMA3)),
    Case("ernie4_5", tiny(Ernie4_5ForCausalLM, Ernie4_5Config, **TIED, head_dim=32, use_bias=True, rope_parameters=rope(5e5))),
    Case("hunyuan_v1_dense", tiny(HunYuanDenseV1ForCausalLM, HunYuanDenseV1Config, head_dim=32)),
    Case("helium", tiny(HeliumForCausalLM, HeliumConfig, num_key_value_heads=4, head_dim=16, rope_parameters=rope(1e5))),
    Case("bitnet", tiny(BitNetForCausalLM, BitNetConfig, rope_parameters=rope(5e5)), quick=True),
    Case(
        "ministral3",
        tiny(
            Ministral3ForCausalLM,
            Ministral3Config,
            head_dim=16,
            rope_parameters=yarn(original_max_position_embeddings=8, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1),
        ),
        quick=True,
    ),
    Case("chameleon", chameleon, prepare=without_pictures, logits=chameleon_logits, quick=True),
]
