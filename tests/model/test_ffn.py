from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Qwen2Config
from transformers.activations import XIELUActivation
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.qwen2.modeling_qwen2 import Qwen2MLP

from ablate.errors import ConfigError
from ablate.model.ffn import DENSE, FFN, Dense, FeedForward, Gated
from tests.model.conftest import changed, max_difference, randomise, small, yaml_of


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def gelu(z: float) -> float:
    return z * (1 + math.erf(z / math.sqrt(2))) / 2


def gelu_tanh(z: float) -> float:
    return z / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))


ALPHA_P, ALPHA_N = math.log1p(math.exp(0.3)), 0.5 + math.log1p(math.exp(-0.2))


def xielu(z: float) -> float:
    return (ALPHA_P * z * z if z > 0 else ALPHA_N * (math.expm1(min(z, -1e-6)) - z)) + 0.5 * z


PLAIN: dict[str, Callable[[float], float]] = {
    "relu": lambda z: max(0.0, z),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu2": lambda z: max(0.0, z) ** 2,
    "silu": lambda z: z * sigmoid(z),
    "xielu": xielu,
}
"""h = a(u), number by number."""
GATED: dict[str, Callable[[float, float], float]] = {
    "swiglu": lambda g, u: g * sigmoid(g) * u,
    "geglu": lambda g, u: gelu(g) * u,
    "geglu_tanh": lambda g, u: gelu_tanh(g) * u,
    "reglu": lambda g, u: max(0.0, g) * u,
    "reglu2": lambda g, u: max(0.0, g) ** 2 * u,
    "swiglu_clamped": lambda g, u: (max(-1.5, min(u, 1.5)) + 1) * min(g, 1.5) * sigmoid(1.702 * min(g, 1.5)),
}
"""h = a(g, u)."""
CHANGES: dict[str, dict[str, Any]] = {"swiglu_clamped": {"limit": 1.5}}
"""A published limit of 7 is never reached here."""


def ffn(word: str, dim: int, **options: Any) -> Any:
    return FFN.build(FFN.options(word).model_validate({**yaml_of("ffn", word), **options}), dim)


def num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("word", DENSE.words())
@pytest.mark.parametrize("bias", [False, True])
def test_feed_forward_is_what_the_formula_in_float64_gives(word: str, bias: bool) -> None:
    module = ffn(word, 16, up_bias=bias, down_bias=bias, **CHANGES.get(word, {}))
    randomise(module)
    if word == "xielu":
        nn.init.constant_(module.alpha_p, 0.3)
        nn.init.constant_(module.alpha_n, -0.2)
    x_TD = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    up_TF = linear_in_float64(module.up, x_TD)
    gated = word in GATED
    hidden_TF = linear_in_float64(module.gate, x_TD).map_(up_TF, GATED[word]) if gated else up_TF.apply_(PLAIN[word])
    y_1TD, stats = module(x_TD.unsqueeze(0))
    assert max_difference(y_1TD[0], linear_in_float64(module.down, hidden_TF)) < 2e-5
    assert stats is None


@torch.no_grad()
def linear_in_float64(matrix: nn.Linear, x_TI: Tensor) -> Tensor:
    y_TO = x_TI.double() @ matrix.weight.double().T
    return y_TO if matrix.bias is None else y_TO + matrix.bias.double()


def test_the_oracle_reaches_both_sides_of_every_clamp() -> None:
    module = ffn("swiglu_clamped", 16, limit=1.5)
    randomise(module)
    x_TD = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    assert (module.gate(x_TD) > 1.5).any()
    assert (module.up(x_TD) > 1.5).any()
    assert (module.up(x_TD) < -1.5).any()


def test_swiglu_is_that_of_qwen2() -> None:
    ours = ffn("swiglu", 24)
    randomise(ours)
    theirs = Qwen2MLP(Qwen2Config(hidden_size=24, intermediate_size=ours.width, hidden_act="silu"))
    theirs.load_state_dict({name.replace(".", "_proj."): tensor for name, tensor in ours.state_dict().items()})
    x: Tensor = torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(0))
    assert max_difference(ours(x)[0], theirs(x)) == 0.0


@pytest.mark.parametrize("parameters", [(0.3, -0.2), None])
def test_xielu_is_that_of_transformers_at_its_start_and_after(parameters: tuple[float, float] | None) -> None:
    ours, theirs = ffn("xielu", 24), XIELUActivation(dtype=torch.float32)
    if parameters is not None:
        for module in (ours, theirs):
            nn.init.constant_(module.alpha_p, parameters[0])
            nn.init.constant_(module.alpha_n, parameters[1])
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 3
    assert max_difference(ours.activate(x), theirs._xielu_python(x)) < 1e-5


def test_clamped_swiglu_is_that_of_gpt_oss() -> None:
    ours = ffn("swiglu_clamped", 24, limit=1.5)
    gate, up = torch.randn(2, 1000, generator=torch.Generator().manual_seed(0)) * 3
    theirs = type("Experts", (), {"alpha": 1.702, "limit": 1.5})()
    expected = GptOssExperts._apply_gate(theirs, torch.stack([gate, up], dim=-1).flatten())
    assert max_difference(ours.activate(gate, up), expected) < 1e-6


def test_clamped_swiglu_without_its_changes_is_swiglu_and_is_refused() -> None:
    ours = ffn("swiglu_clamped", 24, limit=1e9, alpha=1, up_offset=0)
    gate, up = torch.randn(2, 1000, generator=torch.Generator().manual_seed(0))
    assert max_difference(ours.activate(gate, up), F.silu(gate) * up) < 1e-6
    with pytest.raises(ConfigError, match="is swiglu"):
        ffn("swiglu_clamped", 24, limit=math.inf, alpha=1, up_offset=0)


@pytest.mark.parametrize("option", ["alpha_p", "alpha_n", "beta"])
def test_infinite_numbers_of_xielu_are_refused_by_name(option: str) -> None:
    with pytest.raises(ConfigError, match=f"ffn.{option}"):
        changed(small("ffn=xielu"), f"ffn.{option}", math.inf)


def test_xielu_needs_a_curvature_below_that_is_above_beta() -> None:
    with pytest.raises(ConfigError, match=r"ffn.alpha_n.*above ffn.beta=0.5, got 0.4"):
        ffn("xielu", 24, alpha_n=0.4)


@pytest.mark.parametrize("dim", [96, 384, 768, 1536])
@pytest.mark.parametrize("word", sorted(GATED))
def test_width_of_a_gated_layer_is_8_3_of_the_width_of_the_model_for_the_parameters_of_a_plain_mlp(word: str, dim: int) -> None:
    gated, gelu = ffn(word, dim), ffn("gelu", dim)
    assert gated.width * 3 == dim * 8
    assert num_parameters(gated) == num_parameters(gelu) == 8 * dim**2
    assert gated.parameter_error == gelu.parameter_error == 0


@pytest.mark.parametrize("word", DENSE.words())
@pytest.mark.parametrize("dim", [128, 256, 512, 1024, 2048, 4096])
def test_parameters_are_within_one_in_thirty_of_those_asked_for_and_nearer_with_width(word: str, dim: int) -> None:
    assert abs(num_parameters(ffn(word, dim)) / (8 * dim**2) - 1) <= 4 / dim


@pytest.mark.parametrize("word", sorted(GATED))
def test_an_unmatched_gate_makes_it_one_and_a_half_times_as_large(word: str) -> None:
    module = ffn(word, 768, glu_factor=1)
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


@pytest.mark.parametrize("word", sorted({*PLAIN, *GATED} - {"xielu"}))
def test_the_same_ratio_gives_every_kind_the_same_parameters(word: str) -> None:
    assert num_parameters(ffn(word, 96, ratio=3.0)) == 2 * 3 * 96**2


def test_xielu_adds_two_parameters_to_those() -> None:
    assert num_parameters(ffn("xielu", 96, ratio=3.0)) == 2 * 3 * 96**2 + 2


@pytest.mark.parametrize("word", DENSE.words())
def test_biases_are_one_number_an_output(word: str) -> None:
    plain, biased = ffn(word, 96), ffn(word, 96, up_bias=True, down_bias=True)
    assert num_parameters(biased) - num_parameters(plain) == plain.width * (2 if isinstance(plain, Gated) else 1) + 96
    assert (biased.up.bias is None, ffn(word, 96, down_bias=True).up.bias is None) == (False, True)


@pytest.mark.parametrize("word", DENSE.words())
def test_only_the_last_matrix_writes_to_the_residual_stream(word: str) -> None:
    module: Dense = ffn(word, 96)
    assert [name for name, matrix in module.named_modules() if getattr(matrix, "writes", False)] == ["down"]


@pytest.mark.parametrize("word", FFN.words())
def test_the_norm_inside_is_as_wide_as_the_layer_and_stands_before_the_last_matrix(word: str) -> None:
    module: FeedForward = ffn(word, 96)
    randomise(module)
    seen: list[int] = []

    def make_norm(dim: int) -> nn.Module:
        seen.append(dim)
        return nn.LayerNorm(dim)

    x_1TD = torch.randn(1, 7, 96, generator=torch.Generator().manual_seed(0))
    before = module(x_1TD)[0]
    module.normalise_inner(make_norm)
    assert seen == [module.width]
    assert max_difference(module(x_1TD)[0], before) > 0.1


@pytest.mark.parametrize("word", FFN.words())
def test_a_larger_start_is_for_the_matrices_that_values_pass(word: str) -> None:
    module: FeedForward = ffn(word, 96)
    module.scale_init(0.5)
    scaled = {name.split(".")[-1] for name, matrix in module.named_modules() if getattr(matrix, "gain", 1.0) == 0.5}
    assert scaled == {"up", "down"}
