from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen2Config
from transformers.models.qwen2.modeling_qwen2 import Qwen2MLP

from ablate.model.ffn import FFN, FeedForward
from tests.model.conftest import changed, max_difference, randomise, small, yaml_of

ACTIVATION: dict[str, Callable[[float], float]] = {
    "relu": lambda z: max(0.0, z),
    "gelu": lambda z: z * (1 + math.erf(z / math.sqrt(2))) / 2,
    "swiglu": lambda z: z / (1 + math.exp(-z)),
}


def ffn(word: str, dim: int, **options: Any) -> FeedForward:
    return FFN.build(FFN.options(word).model_validate({**yaml_of("ffn", word), **options}), dim)


def num_parameters(module: FeedForward) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("word", FFN.words())
def test_feed_forward_is_what_the_formula_in_float64_gives(word: str) -> None:
    module = ffn(word, 16)
    randomise(module)
    matrix = {name: parameter.detach().double() for name, parameter in module.named_parameters()}
    x_TD = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    activated = "gate" if "gate.weight" in matrix else "up"
    hidden_TF = (x_TD.double() @ matrix[f"{activated}.weight"].T).apply_(ACTIVATION[word])
    if activated == "gate":
        hidden_TF = hidden_TF * (x_TD.double() @ matrix["up.weight"].T)
    assert max_difference(module(x_TD), hidden_TF @ matrix["down.weight"].T) < 1e-5


def test_swiglu_is_that_of_qwen2() -> None:
    ours = ffn("swiglu", 24)
    randomise(ours)
    theirs = Qwen2MLP(Qwen2Config(hidden_size=24, intermediate_size=ours.width, hidden_act="silu"))
    theirs.load_state_dict({name.replace(".", "_proj."): tensor for name, tensor in ours.state_dict().items()})
    x: Tensor = torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(0))
    assert max_difference(ours(x), theirs(x)) == 0.0


@pytest.mark.parametrize("dim", [96, 384, 768, 1536])
def test_width_of_swiglu_is_8_3_of_the_width_of_the_model_for_the_parameters_of_a_plain_mlp(dim: int) -> None:
    swiglu, gelu = ffn("swiglu", dim), ffn("gelu", dim)
    assert swiglu.width * 3 == dim * 8
    assert num_parameters(swiglu) == num_parameters(gelu) == 8 * dim**2
    assert swiglu.parameter_error == gelu.parameter_error == 0


@pytest.mark.parametrize("word", FFN.words())
@pytest.mark.parametrize("dim", [128, 256, 512, 1024, 2048, 4096])
def test_parameters_are_within_one_in_thirty_of_those_asked_for_and_nearer_with_width(word: str, dim: int) -> None:
    assert abs(num_parameters(ffn(word, dim)) / (8 * dim**2) - 1) <= 4 / dim


def test_an_unmatched_gate_makes_it_one_and_a_half_times_as_large() -> None:
    module = ffn("swiglu", 768, glu_factor=1)
    assert num_parameters(module) == 12 * 768**2
    assert module.parameter_error == 0.5


def test_multiples_of_256_at_a_width_of_256_make_it_an_eighth_too_large_and_it_says_so() -> None:
    module = ffn("swiglu", 256, multiple_of=256)
    assert module.width == 768
    assert num_parameters(module) == 589_824
    assert module.parameter_error == pytest.approx(0.125)


@pytest.mark.parametrize(("ratio", "width"), [(4, 3072), ("8/3", 2048), (1, 768), (0.001, 8)])
def test_width_of_a_plain_mlp_is_ratio_times_that_of_the_model(ratio: float | str, width: int) -> None:
    assert ffn("relu", 768, ratio=ratio).width == width


def test_width_is_the_nearest_multiple() -> None:
    assert [ffn("swiglu", dim, multiple_of=64).width for dim in (96, 128, 256)] == [256, 320, 704]  # of 256, 341.3, 682.7


@pytest.mark.parametrize("word", FFN.words())
def test_the_same_ratio_gives_every_kind_the_same_parameters(word: str) -> None:
    cfg = changed(small(f"ffn={word}"), "ffn.ratio", 3.0)
    assert num_parameters(FFN.build(cfg.ffn, 96)) == 2 * 3 * 96**2
