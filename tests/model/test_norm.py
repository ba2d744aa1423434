from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from ablate.errors import ConfigError
from ablate.model.norm import NORM
from tests.model.conftest import changed, max_difference, options_of, randomise, small

SCALING = ["layernorm", "prmsnorm", "rmsnorm"]
"""The norms that bring activations to one scale."""


def norm(word: str, dim: int, **options: Any) -> nn.Module:
    """A norm with the options of its YAML, but for those given."""
    return NORM.build(options_of(NORM, word, **options), dim)


def random_norm(word: str, dim: int, **options: Any) -> nn.Module:
    module = norm(word, dim, **options)
    randomise(module)
    return module


def features(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + 0.3


def test_none_gives_its_input_back() -> None:
    x = features(3, 8)
    assert norm("none", 8)(x) is x


def test_rmsnorm_of_2_0_4_0_is_0_894_0_1_789_0() -> None:
    y = norm("rmsnorm", 4, eps=1e-5)(torch.tensor([2.0, 0.0, 4.0, 0.0]))
    assert y.tolist() == pytest.approx([0.894, 0, 1.789, 0], abs=5e-4)


def test_output_of_layernorm_has_mean_zero_and_that_of_rmsnorm_has_not() -> None:
    x = torch.tensor([2.0, 0.0, 4.0, 0.0])
    assert abs(norm("layernorm", 4)(x).mean().item()) < 1e-6
    assert norm("rmsnorm", 4)(x).mean().item() == pytest.approx(0.671, abs=5e-4)


def test_eps_of_rmsnorm_stands_inside_the_root() -> None:
    y = norm("rmsnorm", 4, eps=1e-6)(torch.full((4,), 1e-3))
    assert y.tolist() == pytest.approx([0.5**0.5] * 4, rel=1e-5)


def test_rmsnorm_is_that_of_qwen2_bit_for_bit() -> None:
    ours, theirs = norm("rmsnorm", 896, eps=1e-6), Qwen2RMSNorm(896, eps=1e-6)
    randomise(ours)
    theirs.load_state_dict(ours.state_dict())
    x = features(4, 16, 896)
    assert max_difference(ours(x), theirs(x)) == 0.0


@pytest.mark.parametrize("bias", [True, False])
def test_layernorm_is_that_of_torch(bias: bool) -> None:
    ours, theirs = random_norm("layernorm", 24, eps=0.05, bias=bias), nn.LayerNorm(24, eps=0.05, bias=bias)
    theirs.load_state_dict(ours.state_dict())
    x = features(3, 5, 24)
    assert max_difference(ours(x), theirs(x)) < 1e-6


def test_layernorm_without_bias_has_none() -> None:
    assert [name for name, _ in norm("layernorm", 4, bias=False).named_parameters()] == ["weight"]


def test_prmsnorm_takes_the_mean_square_of_the_first_features() -> None:
    module, x_ND = random_norm("prmsnorm", 40, eps=0.05, fraction=0.0625), features(6, 40)
    expected = torch.zeros(6, 40, dtype=torch.float64)
    for n, row in enumerate(x_ND.tolist()):
        mean_square = (row[0] ** 2 + row[1] ** 2 + row[2] ** 2) / 3  # 6.25 % of 40 are 2.5
        for d in range(40):
            expected[n, d] = row[d] / math.sqrt(mean_square + 0.05) * module.weight[d].item()
    assert max_difference(module(x_ND), expected) < 1e-5


def test_prmsnorm_looks_at_one_feature_at_least() -> None:
    y = norm("prmsnorm", 8, eps=1e-6, fraction=1e-9)(torch.tensor([2.0, 1, 1, 1, 1, 1, 1, 1]))
    assert y.tolist() == pytest.approx([1.0] + [0.5] * 7, rel=1e-5)


@pytest.mark.parametrize(("fraction", "dim", "expected"), [(0.07, 100, 7), (0.0625, 96, 6), (0.0625, 1024, 64), (1 / 3, 10, 4)])
def test_prmsnorm_rounds_its_features_up_and_never_past_a_whole_number(fraction: float, dim: int, expected: int) -> None:
    x = features(dim).requires_grad_()
    norm("prmsnorm", dim, fraction=fraction)(x)[-1].backward()
    assert x.grad is not None
    assert x.grad[:-1].nonzero().flatten().tolist() == list(range(expected))


def test_prmsnorm_of_all_features_is_rmsnorm() -> None:
    x = features(5, 24)
    assert max_difference(random_norm("prmsnorm", 24, fraction=1.0, eps=0.05)(x), random_norm("rmsnorm", 24, eps=0.05)(x)) < 1e-6


@pytest.mark.parametrize("word", SCALING)
def test_zero_gives_zero_and_a_finite_gradient(word: str) -> None:
    x = torch.zeros(2, 16, requires_grad=True)
    y = norm(word, 16)(x)
    (y * torch.arange(16)).sum().backward()
    assert torch.equal(y, torch.zeros(2, 16))
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


def test_prmsnorm_of_a_zero_prefix_is_finite() -> None:
    x = features(32)
    x[:2] = 0
    assert torch.isfinite(norm("prmsnorm", 32)(x)).all()


@pytest.mark.parametrize("word", SCALING)
@pytest.mark.parametrize("factor", [1e-2, 37.0, 1e4])
def test_output_does_not_depend_on_the_scale_of_the_input(word: str, factor: float) -> None:
    module, x = random_norm(word, 32, eps=1e-12), features(4, 32)
    assert max_difference(module(x * factor), module(x)) < 1e-4


def test_layernorm_does_not_see_a_shift_and_rmsnorm_does() -> None:
    x = features(4, 32)
    layernorm, rmsnorm = random_norm("layernorm", 32), random_norm("rmsnorm", 32)
    assert max_difference(layernorm(x + 3), layernorm(x)) < 1e-5
    assert max_difference(rmsnorm(x + 3), rmsnorm(x)) > 0.1


@pytest.mark.parametrize("word", ["layernorm", "rmsnorm"])
def test_a_zero_centred_gain_is_one_plus_its_weight(word: str) -> None:
    plain, centred = random_norm(word, 24, eps=0.05), random_norm(word, 24, eps=0.05, weight="zero_centred")
    with torch.no_grad():
        centred.weight.copy_(plain.weight - 1)
    x = features(3, 24)
    assert max_difference(centred(x), plain(x)) < 1e-6
    assert (norm(word, 24, weight="zero_centred").weight == 0).all()


def test_a_zero_centred_rmsnorm_is_that_of_gemma() -> None:
    ours, theirs = norm("rmsnorm", 64, eps=1e-6, weight="zero_centred"), GemmaRMSNorm(64, eps=1e-6)
    randomise(ours)
    theirs.load_state_dict(ours.state_dict())
    x = features(4, 16, 64)
    assert max_difference(ours(x), theirs(x)) < 1e-6


@pytest.mark.parametrize(("word", "parameters"), [("layernorm", {"bias"}), ("rmsnorm", set())])
def test_a_norm_without_a_weight_is_one_whose_weight_is_one(word: str, parameters: set[str]) -> None:
    module, plain = random_norm(word, 24, eps=0.05, weight="none"), random_norm(word, 24, eps=0.05)
    assert {name for name, _ in module.named_parameters()} == parameters
    plain.load_state_dict({**plain.state_dict(), **module.state_dict(), "weight": torch.ones(24)})
    x = features(3, 24)
    assert max_difference(module(x), plain(x)) < 1e-6


def test_layernorm_without_weight_and_bias_is_that_of_torch() -> None:
    x = features(3, 24)
    ours = norm("layernorm", 24, eps=0.05, weight="none", bias=False)
    assert torch.equal(ours(x), nn.LayerNorm(24, eps=0.05, elementwise_affine=False)(x))


def test_dyt_is_a_tanh_with_a_gain_and_a_bias_for_each_feature() -> None:
    module, x_ND = random_norm("dyt", 5), features(3, 5)
    alpha, weight, bias = module.alpha.item(), module.weight.tolist(), module.bias.tolist()
    expected = [[weight[d] * math.tanh(alpha * x) + bias[d] for d, x in enumerate(row)] for row in x_ND.tolist()]
    assert max_difference(module(x_ND), torch.tensor(expected)) < 1e-6


def test_dyt_starts_with_the_alpha_asked_for_and_neither_gain_nor_bias() -> None:
    module = norm("dyt", 3, alpha=0.8)
    assert module(torch.tensor([0.5, 0.0, -2.0])).tolist() == pytest.approx([math.tanh(0.4), 0, -math.tanh(1.6)])
    assert module.alpha.ndim == 0


def test_dyt_has_no_statistics() -> None:
    module, x = random_norm("dyt", 8), features(8)
    other = x.clone()
    other[3] += 5
    assert (module(x) != module(other)).tolist() == [d == 3 for d in range(8)]


@pytest.mark.parametrize(("word", "option"), [("rmsnorm", "eps"), ("layernorm", "eps"), ("prmsnorm", "eps"), ("dyt", "alpha")])
def test_numbers_of_a_norm_are_above_zero(word: str, option: str) -> None:
    for value in (0.0, -1.0):
        with pytest.raises(ConfigError) as raised:
            changed(small(f"norm={word}"), f"norm.{option}", value)
        assert [problem.key for problem in raised.value.problems] == [f"norm.{option}"]


def test_an_infinite_alpha_is_refused() -> None:
    with pytest.raises(ConfigError) as raised:
        changed(small("norm=dyt"), "norm.alpha", math.inf)
    assert {problem.key for problem in raised.value.problems} == {"norm.alpha"}


@pytest.mark.parametrize("word", NORM.words())
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_statistics_are_taken_in_float32_and_the_result_has_the_dtype_of_the_input(word: str, dtype: torch.dtype) -> None:
    module, x = random_norm(word, 64), (features(4, 64) * 300).to(dtype)  # squares overflow float16
    assert torch.equal(module(x), module(x.float()).to(dtype))
    assert torch.isfinite(module(x)).all()


@pytest.mark.parametrize("word", SCALING)
def test_statistics_are_those_of_each_token_alone(word: str) -> None:
    module, x_BTD = random_norm(word, 16), features(3, 5, 16)
    alone = torch.stack([torch.stack([module(x_D) for x_D in x_TD]) for x_TD in x_BTD])
    assert max_difference(module(x_BTD), alone) < 1e-6
