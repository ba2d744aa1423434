from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ablate.config import build_model, meta_model
from ablate.model.init import INIT
from tests.model.conftest import CHOICES, changed, small


def parameters(*choices: str, seed: int = 0, **sizes: int) -> dict[str, Tensor]:
    cfg = changed(small(*choices), "init_seed", seed)
    for name, value in sizes.items():
        cfg = changed(cfg, f"model.{name}", value)
    return {name: parameter.detach() for name, parameter in build_model(cfg).named_parameters()}


RECORDED = [0.00138021, -0.01103584, -0.01418539, 0.00859851]
MATRIX = "blocks.1.attention.sublayer.q.weight"


def test_the_same_seed_gives_the_same_numbers() -> None:
    first, second = parameters(seed=3), parameters(seed=3)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_another_seed_gives_every_matrix_other_numbers() -> None:
    first, second = parameters(seed=3), parameters(seed=4)
    assert all((first[name] != second[name]).float().mean() > 0.99 for name in first if first[name].ndim == 2)


def test_matrices_of_one_shape_start_from_different_numbers() -> None:
    square = [tensor for tensor in parameters().values() if tensor.shape == (32, 32)]
    assert len(square) == 8
    correlations = torch.corrcoef(torch.stack([tensor.flatten() for tensor in square]))
    assert (correlations - torch.eye(8)).abs().max() < 0.15  # 32 * 32 numbers: a standard error of 0.03


def test_more_layers_leave_the_first_ones_as_they_are() -> None:
    two, three = parameters(depth=2), parameters(depth=3)
    assert set(two) < set(three)
    assert all(torch.equal(tensor, three[name]) for name, tensor in two.items())


def test_seed_0_gives_the_numbers_that_it_always_gave() -> None:
    """A change here makes every earlier run incomparable."""
    assert parameters(seed=0)[MATRIX][0, :4].tolist() == pytest.approx(RECORDED, abs=1e-7)


@pytest.mark.parametrize("std", [0.02, 0.3])
def test_normal_gives_every_matrix_its_standard_deviation(std: float) -> None:
    cfg = changed(changed(small(), "init.std", std), "model.width", 128)
    for name, parameter in build_model(cfg).named_parameters():
        if parameter.ndim == 2:
            assert parameter.std().item() == pytest.approx(std, rel=0.03), name
            assert abs(parameter.mean().item()) < 0.03 * std, name


def test_fan_in_gives_linear_layers_one_over_the_root_of_their_inputs_and_embeddings_their_own() -> None:
    cfg = changed(changed(small("init=fan_in"), "init.embedding_std", 0.07), "model.width", 128)
    for name, parameter in build_model(cfg).named_parameters():
        if parameter.ndim == 2:
            expected = 0.07 if name.startswith("embedding") else 1 / math.sqrt(parameter.shape[1])
            assert parameter.std().item() == pytest.approx(expected, rel=0.03), name


@pytest.mark.parametrize("word", INIT.words())
def test_gains_start_at_one_and_biases_at_zero(word: str) -> None:
    cfg = changed(changed(small(f"init={word}", "norm=layernorm"), "attention.qkv_bias", True), "attention.out_bias", True)
    for name, parameter in build_model(cfg).named_parameters():
        if parameter.ndim == 1:
            assert (parameter == (1 if name.endswith("weight") else 0)).all(), name


@pytest.mark.parametrize("choice", CHOICES)
def test_building_a_model_does_not_touch_the_generator_of_torch(choice: str) -> None:
    cfg = small(choice)
    before = torch.get_rng_state()
    build_model(cfg)
    assert torch.equal(torch.get_rng_state(), before)


def test_numbers_do_not_depend_on_the_generator_of_torch() -> None:
    torch.manual_seed(1)
    first = parameters()
    torch.manual_seed(2)
    second = parameters()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_model_on_the_meta_device_has_the_names_and_shapes_of_the_real_one() -> None:
    meta = {name: parameter.shape for name, parameter in meta_model(small()).named_parameters()}
    assert meta == {name: tensor.shape for name, tensor in parameters().items()}
    assert all(tensor.is_meta for tensor in [*meta_model(small()).parameters(), *meta_model(small()).buffers()])
