"""The whole model against published ones: the same weights give the same logits and gradients. Every parameter is random, eps is
large (a wrong one would hide below any tolerance), and the loss is computed here."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from ablate.composition import compose
from ablate.config import Config, build_model, meta_model
from ablate.model.attention import Attention
from ablate.model.ffn import FeedForward
from tests.model.conftest import changed, max_difference, randomise, small, targets_of, tokens_of

Tensors = dict[str, Tensor]
EPS = 0.05
ROPE_THETA = 500.0


class Published(NamedTuple):
    """A published model in transformers, the choices that make it here, and its tensors under our names."""

    theirs: Callable[[], nn.Module]
    choices: tuple[str, ...]
    options: dict[str, Any]
    renamed: Callable[[Tensors], Tensors]


LLAMA_NAMES = {
    "model.embed_tokens.weight": "embedding.weight",
    "model.norm.weight": "norm.weight",
    "lm_head.weight": "head.unembed.weight",
    "input_layernorm": "attention.norm",
    "post_attention_layernorm": "ffn.norm",
    "self_attn.o_proj": "attention.sublayer.out",
    "self_attn.": "attention.sublayer.",
    "mlp.": "ffn.sublayer.",
    "_proj.": ".",
    "model.layers.": "blocks.",
}


def from_llama(tensors: Tensors) -> Tensors:
    return {renamed(name, LLAMA_NAMES): tensor for name, tensor in tensors.items()}


def renamed(name: str, names: dict[str, str]) -> str:
    for theirs, ours in names.items():
        name = name.replace(theirs, ours)
    return name


GPT_NAMES = {
    "transformer.wte.": "embedding.",
    "transformer.tokens_embed.": "embedding.",
    "transformer.wpe.weight": "position.table.weight",
    "transformer.positions_embed.weight": "position.table.weight",
    "transformer.ln_f.": "norm.",
    "ln_1.": "attention.norm.",
    "ln_2.": "ffn.norm.",
    "attn.c_proj.": "attention.sublayer.out.",
    "mlp.c_fc.": "ffn.sublayer.up.",
    "mlp.c_proj.": "ffn.sublayer.down.",
    "transformer.h.": "blocks.",
}


def from_gpt(tensors: Tensors) -> Tensors:
    """GPT stores linear layers transposed, and q, k, v as one. Its feed-forward biases, zero here, have no place in ours."""
    ours: Tensors = {}
    for name, tensor in tensors.items():
        if re.search(r"mlp\.c_\w+\.bias", name):
            continue
        tensor = tensor.T if re.search(r"c_\w+\.weight", name) else tensor
        if "attn.c_attn." in name:
            for part, piece in zip("qkv", tensor.chunk(3), strict=True):
                ours[renamed(name.replace("attn.c_attn", f"attention.sublayer.{part}"), GPT_NAMES)] = piece
        else:
            ours[renamed(name, GPT_NAMES)] = tensor
    return ours


def llama_like(family: type, config: type, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        sizes = {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 88, "num_hidden_layers": 2, "num_attention_heads": 4}
        sizes |= {"max_position_embeddings": 16, "rms_norm_eps": EPS, "attn_implementation": "eager"}
        rope = {"rope_type": "default", "rope_theta": ROPE_THETA}
        return family(config(**{**sizes, "rope_parameters": rope, "tie_word_embeddings": False, **options}))

    return build


def gpt_like(family: type, config: type, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        model: nn.Module = family(
            config(
                vocab_size=256,
                n_positions=16,
                n_embd=32,
                n_layer=2,
                n_head=4,
                layer_norm_epsilon=EPS,
                attn_implementation="eager",
                **options,
            )
        )
        return model

    return build


ROPE = {"position.theta": ROPE_THETA, "norm.eps": EPS}
QK_NORM = {"attention.qk_norm": {"kind": "rmsnorm", "eps": EPS}, "attention.head_dim": 16}
LIKE_GPT = ("norm=layernorm", "position=learned", "head=tied")
GPT_BIASES = {"norm.eps": EPS, "attention.qkv_bias": True, "attention.out_bias": True}

PUBLISHED = {
    "llama": Published(llama_like(LlamaForCausalLM, LlamaConfig), (), ROPE, from_llama),
    "llama with one key head": Published(
        llama_like(LlamaForCausalLM, LlamaConfig, num_key_value_heads=1), ("attention=mqa",), ROPE, from_llama
    ),
    "qwen2": Published(
        llama_like(Qwen2ForCausalLM, Qwen2Config, num_key_value_heads=2, tie_word_embeddings=True),
        ("attention=gqa", "head=tied"),
        {**ROPE, "attention.qkv_bias": True},
        from_llama,
    ),
    "qwen3": Published(
        llama_like(Qwen3ForCausalLM, Qwen3Config, num_key_value_heads=2, head_dim=16), ("attention=gqa",), ROPE | QK_NORM, from_llama
    ),
    "gpt2": Published(gpt_like(GPT2LMHeadModel, GPT2Config, activation_function="gelu"), (*LIKE_GPT, "ffn=gelu"), GPT_BIASES, from_gpt),
    "gpt1": Published(
        gpt_like(OpenAIGPTLMHeadModel, OpenAIGPTConfig, afn="relu"), (*LIKE_GPT, "ffn=relu", "placement=post"), GPT_BIASES, from_gpt
    ),
}


def config_of(published: Published) -> Config:
    cfg = small(*published.choices)
    for key, value in published.options.items():
        cfg = changed(cfg, key, value)
    return cfg


def both(published: Published) -> tuple[Config, nn.Module, nn.Module]:
    """Ours and theirs, with the same random weights."""
    cfg, theirs = config_of(published), published.theirs().eval()
    randomise(theirs)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if re.search(r"mlp\.c_\w+\.bias", name):
                parameter.zero_()
    ours = build_model(cfg)
    ours.load_state_dict(published.renamed({name: parameter.detach() for name, parameter in theirs.named_parameters()}))
    return cfg, ours, theirs


@pytest.mark.parametrize("name", PUBLISHED)
def test_logits_and_gradients_are_those_of_the_published_model(name: str) -> None:
    cfg, ours, theirs = both(PUBLISHED[name])
    logits, expected = ours(tokens_of(cfg)), theirs(tokens_of(cfg), use_cache=False).logits
    assert max_difference(logits, expected) < 1e-5 * max(1, expected.abs().max())
    for scores in (logits, expected):
        F.cross_entropy(scores.flatten(0, 1), targets_of(cfg).flatten()).backward()
    gradients = PUBLISHED[name].renamed({n: p.grad for n, p in theirs.named_parameters() if p.grad is not None})
    largest = max(gradient.abs().max() for gradient in gradients.values())
    for parameter_name, parameter in ours.named_parameters():
        gradient = gradients[parameter_name]
        assert parameter.grad is not None
        assert max_difference(parameter.grad, gradient) < 1e-4 * max(gradient.abs().max(), 1e-3 * largest), parameter_name


@pytest.mark.parametrize("name", [name for name in PUBLISHED if "gpt" not in name])
def test_parameters_are_as_many_as_those_of_the_published_model(name: str) -> None:
    _, ours, theirs = both(PUBLISHED[name])
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


# --- Qwen2 0.5B by the numbers


@pytest.fixture(scope="module")
def qwen2_half_billion() -> nn.Module:
    sizes = ["model.width=896", "model.depth=24", "model.heads=14", "model.context=128", "tokenizer=bpe", "tokenizer.vocab_size=151936"]
    heads = ["attention=gqa", "attention.kv_heads=2", "attention.qkv_bias=true", "head=tied"]
    return meta_model(compose([*sizes, *heads, "ffn.ratio=4864/896", "ffn.glu_factor=1"]))


def size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_attention_of_qwen2_half_billion_has_1_836_160_parameters(qwen2_half_billion: nn.Module) -> None:
    assert {size(module) for module in qwen2_half_billion.modules() if isinstance(module, Attention)} == {1_836_160}


def test_swiglu_of_qwen2_half_billion_has_13_074_432_parameters(qwen2_half_billion: nn.Module) -> None:
    layers = [module for module in qwen2_half_billion.modules() if isinstance(module, FeedForward)]
    assert {(layer.width, size(layer)) for layer in layers} == {(4864, 13_074_432)}


def test_norms_of_qwen2_half_billion_have_1_792_parameters_a_layer_and_43_008_in_all(qwen2_half_billion: nn.Module) -> None:
    layers = [size(block.attention.norm) + size(block.ffn.norm) for block in qwen2_half_billion.blocks]
    assert set(layers) == {1_792}
    assert sum(layers) == 43_008


def test_qwen2_half_billion_has_494_032_768_parameters(qwen2_half_billion: nn.Module) -> None:
    """As its model card says: 0.49 billion, 0.36 of them no embedding."""
    assert size(qwen2_half_billion) == 494_032_768
    assert size(qwen2_half_billion) - 151_936 * 896 == 357_898_112
