"""Rows of published architectures whose norm is LayerNorm. eps is 0.05 where their config has one, so that a wrong eps is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertLMHeadModel,
    BloomConfig,
    BloomForCausalLM,
    Cohere2Config,
    Cohere2ForCausalLM,
    CohereConfig,
    CohereForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTJConfig,
    GPTJForCausalLM,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    MarianConfig,
    MptConfig,
    MptForCausalLM,
    NemotronConfig,
    NemotronForCausalLM,
    OlmoConfig,
    OlmoForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    OPTConfig,
    OPTForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
)
from transformers.models.marian.modeling_marian import MarianForCausalLM

from tests.model.parity import TOKENS, VOCABULARY, Case

EPS = 0.05
WIDTH, DEPTH, HEADS, INNER = 64, 4, 4, 96

GPT = {"n_positions": TOKENS, "n_embd": WIDTH, "n_layer": DEPTH, "n_head": HEADS, "layer_norm_epsilon": EPS}
LLAMA = {
    "hidden_size": WIDTH,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
    "max_position_embeddings": TOKENS,
}
GROUPED = {**LLAMA, "num_key_value_heads": 2}
NO_PADDING: dict[str, Any] = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}


def tiny(model: Callable[[Any], nn.Module], config: Callable[..., Any], **options: Any) -> Callable[[], nn.Module]:
    """A model of a config with a small vocabulary; eager attention unless an option says otherwise."""

    def build() -> nn.Module:
        return model(config(**{"vocab_size": VOCABULARY, "attn_implementation": "eager", **NO_PADDING, **options}))

    return build


def rope(theta: float = 10000.0, fraction: float = 1.0) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": fraction}}


OPT = {**{key: value for key, value in LLAMA.items() if key != "intermediate_size"}, "ffn_dim": INNER}
FALCON = {
    "hidden_size": WIDTH,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "max_position_embeddings": TOKENS,
    "layer_norm_epsilon": EPS,
    "ffn_hidden_size": INNER,
}
NEO = {
    "max_position_embeddings": TOKENS,
    "hidden_size": WIDTH,
    "num_layers": DEPTH,
    "num_heads": HEADS,
    "intermediate_size": INNER,
    "window_size": 5,
    "layer_norm_epsilon": EPS,
}
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
BLOOM = {"n_layer": DEPTH, "layer_norm_epsilon": EPS}
MARIAN: dict[str, Any] = {
    "d_model": WIDTH,
    "decoder_layers": DEPTH,
    "encoder_layers": DEPTH,
    "decoder_attention_heads": HEADS,
    "encoder_attention_heads": HEADS,
    "decoder_ffn_dim": INNER,
    "max_position_embeddings": TOKENS,
    "activation_function": "relu",
    "scale_embedding": True,
    "is_decoder": True,
    "is_encoder_decoder": False,
    "pad_token_id": VOCABULARY - 1,
    "decoder_start_token_id": VOCABULARY - 1,
}


@torch.no_grad()
def small_embeddings(model: nn.Module) -> None:
    """Where the code of a family fixes eps at 1e-5, the first norm must see as little."""
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.weight *= 0.003


def without_encoder(model: nn.Module) -> None:
    """A decoder that no encoder feeds: its cross attention never runs, and its weights go."""
    for layer in model.model.decoder.layers:  # type: ignore[union-attr]
        del layer.encoder_attn, layer.encoder_attn_layer_norm


def marian_logits(model: Any, tokens_BT: Tensor) -> Tensor:
    return model.lm_head(model.model.decoder(tokens_BT, use_cache=False).last_hidden_state)


CASES = [
    Case("gpt2", tiny(GPT2LMHeadModel, GPT2Config, **GPT, n_inner=INNER), quick=True),
    Case("gpt1", tiny(OpenAIGPTLMHeadModel, OpenAIGPTConfig, **GPT)),
    Case("opt", tiny(OPTForCausalLM, OPTConfig, **OPT, word_embed_proj_dim=WIDTH), unused=2 * WIDTH, prepare=small_embeddings),
    Case(
        "opt-350m",
        tiny(OPTForCausalLM, OPTConfig, **OPT, word_embed_proj_dim=32, do_layer_norm_before=False),
        unused=2 * WIDTH,
        quick=True,
    ),
    Case(
        "transformer-2017",
        tiny(MarianForCausalLM, MarianConfig, **MARIAN),
        prepare=without_encoder,
        logits=marian_logits,
    ),
    Case(
        "bert-causal",
        tiny(BertLMHeadModel, BertConfig, **LLAMA, is_decoder=True, layer_norm_eps=EPS),
        unused=2 * WIDTH,
    ),
    Case(
        "gpt_neo",
        tiny(GPTNeoForCausalLM, GPTNeoConfig, **NEO, attention_types=[[["global", "local"], DEPTH // 2]]),
        quick=True,
    ),
    Case("gptj", tiny(GPTJForCausalLM, GPTJConfig, **GPT, n_inner=INNER, rotary_dim=8), quick=True),
    Case("gpt_neox", tiny(GPTNeoXForCausalLM, GPTNeoXConfig, **LLAMA, **rope(fraction=0.25), layer_norm_eps=EPS)),
    Case(
        "gpt_neox(serial)",
        tiny(GPTNeoXForCausalLM, GPTNeoXConfig, **LLAMA, **rope(fraction=0.25), layer_norm_eps=EPS, use_parallel_residual=False),
    ),
    Case("falcon-7b", tiny(FalconForCausalLM, FalconConfig, **FALCON)),
    Case("falcon-40b", tiny(FalconForCausalLM, FalconConfig, **FALCON, new_decoder_architecture=True, num_kv_heads=2), quick=True),
    Case(
        "falcon-rw(alibi)",  # sdpa: eager adds ALiBi twice
        tiny(
            FalconForCausalLM,
            FalconConfig,
            **FALCON,
            alibi=True,
            multi_query=False,
            parallel_attn=False,
            bias=True,
            attn_implementation="sdpa",
        ),
    ),
    Case("phi", tiny(PhiForCausalLM, PhiConfig, **GROUPED, **rope(fraction=0.5), layer_norm_eps=EPS)),
    Case("phi(qk-ln)", tiny(PhiForCausalLM, PhiConfig, **GROUPED, **rope(fraction=0.5), layer_norm_eps=EPS, qk_layernorm=True)),
    Case("cohere", tiny(CohereForCausalLM, CohereConfig, **GROUPED, **rope(5e5), layer_norm_eps=EPS, use_qk_norm=True), quick=True),
    Case(
        "cohere2",
        tiny(Cohere2ForCausalLM, Cohere2Config, **GROUPED, **rope(), layer_norm_eps=EPS, sliding_window=5),
    ),
    Case("bloom", tiny(BloomForCausalLM, BloomConfig, **BLOOM, hidden_size=WIDTH, n_head=HEADS, seq_length=TOKENS)),
    Case("bloom(6 heads)", tiny(BloomForCausalLM, BloomConfig, **BLOOM, hidden_size=96, n_head=6, seq_length=TOKENS), quick=True),
    Case(
        "mpt",
        tiny(
            MptForCausalLM,
            MptConfig,
            d_model=96,
            n_heads=6,
            n_layers=DEPTH,
            max_seq_len=TOKENS,
            layer_norm_epsilon=EPS,
            attn_config={"clip_qkv": 1.0},
        ),
    ),
    Case("olmo", tiny(OlmoForCausalLM, OlmoConfig, **GROUPED, **rope(), clip_qkv=1.0), prepare=small_embeddings),
    Case(
        "stablelm",
        tiny(
            StableLmForCausalLM,
            StableLmConfig,
            **GROUPED,
            **rope(fraction=0.25),
            layer_norm_eps=EPS,
            use_qkv_bias=True,
            qk_layernorm=True,
        ),
        quick=True,
    ),
    Case(
        "stablelm(parallel)",
        tiny(StableLmForCausalLM, StableLmConfig, **GROUPED, **rope(fraction=0.25), layer_norm_eps=EPS, use_parallel_residual=True),
    ),
    Case("starcoder2", tiny(Starcoder2ForCausalLM, Starcoder2Config, **GROUPED, **rope(), norm_epsilon=EPS, sliding_window=5)),
    Case("nemotron", tiny(NemotronForCausalLM, NemotronConfig, **GROUPED, **rope(fraction=0.5), norm_eps=EPS)),
    # Checkpoints that differ from their row: what the importer has to change.
    Case(
        "opt(galactica)",
        tiny(OPTForCausalLM, OPTConfig, **OPT, word_embed_proj_dim=WIDTH, enable_bias=False, activation_function="gelu"),
        unused=2 * WIDTH,
    ),
    Case("gpt_neo(global)", tiny(GPTNeoForCausalLM, GPTNeoConfig, **NEO, attention_types=[[["global"], DEPTH]])),
    Case("gpt_neo(local first)", tiny(GPTNeoForCausalLM, GPTNeoConfig, **NEO, attention_types=[[["local", "global"], DEPTH // 2]])),
    Case(
        "gpt_neox(linear)",
        tiny(
            GPTNeoXForCausalLM,
            GPTNeoXConfig,
            **LLAMA,
            rope_parameters=LINEAR,
            layer_norm_eps=EPS,
            attention_bias=False,
            tie_word_embeddings=True,
        ),
    ),
    Case(
        "falcon-11b",
        tiny(
            FalconForCausalLM, FalconConfig, **FALCON, new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1, bias=True
        ),
    ),
    Case("falcon(serial, mha)", tiny(FalconForCausalLM, FalconConfig, **FALCON, multi_query=False, parallel_attn=False)),
    Case("phi(mqa)", tiny(PhiForCausalLM, PhiConfig, **LLAMA, num_key_value_heads=1, **rope(fraction=0.5), layer_norm_eps=EPS)),
    Case("command-r", tiny(CohereForCausalLM, CohereConfig, **LLAMA, **rope(8e6), layer_norm_eps=EPS, attention_bias=True)),
    Case(
        "cohere2(every other)",
        tiny(
            Cohere2ForCausalLM,
            Cohere2Config,
            **GROUPED,
            **rope(),
            layer_norm_eps=EPS,
            sliding_window=5,
            layer_types=["sliding_attention", "full_attention"] * 2,
            tie_word_embeddings=False,
        ),
    ),
    Case("cohere2(wide window)", tiny(Cohere2ForCausalLM, Cohere2Config, **GROUPED, **rope(), layer_norm_eps=EPS, sliding_window=TOKENS)),
    Case(
        "stablelm-2-1.6b",
        tiny(
            StableLmForCausalLM,
            StableLmConfig,
            **LLAMA,
            num_key_value_heads=HEADS,
            **rope(fraction=0.25),
            layer_norm_eps=EPS,
            use_qkv_bias=True,
        ),
    ),
    Case(
        "stablelm-2-12b",
        tiny(
            StableLmForCausalLM,
            StableLmConfig,
            **GROUPED,
            **rope(fraction=0.25),
            layer_norm_eps=EPS,
            qk_layernorm=True,
            use_parallel_residual=True,
        ),
    ),
    Case(
        "starcoder2(no bias)",
        tiny(Starcoder2ForCausalLM, Starcoder2Config, **GROUPED, **rope(), norm_epsilon=EPS, use_bias=False, tie_word_embeddings=False),
    ),
    Case(
        "nemotron(wide heads, biases)",
        tiny(
            NemotronForCausalLM,
            NemotronConfig,
            **GROUPED,
            **rope(fraction=0.5),
            norm_eps=EPS,
            head_dim=32,
            attention_bias=True,
            mlp_bias=True,
        ),
    ),
]
