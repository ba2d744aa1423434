from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ablate.config import build_model
from ablate.errors import ConfigError
from ablate.model.embedding import EMBEDDING, TokenTable
from tests.model.conftest import changed, max_difference, options_of, randomise, small, tokens_of, yaml_of

VOCABULARY, DIM = 50, 12
TOKENS = torch.tensor([[3, 0, 49], [7, 7, 1]])


def embedding(word: str = "token", **options: Any) -> TokenTable:
    module = EMBEDDING.build(options_of(EMBEDDING, word, **options), VOCABULARY, DIM)
    randomise(module)
    return module


def rows(module: TokenTable) -> Tensor:
    return torch.stack([torch.stack([module.table.weight[token] for token in sequence]) for sequence in TOKENS.tolist()])


def test_a_token_is_its_row_of_the_table() -> None:
    assert torch.equal(embedding()(TOKENS), rows(embedding()))


@pytest.mark.parametrize(("scale", "factor"), [(3.5, 3.5), ("sqrt_width", math.sqrt(12))])
def test_rows_are_multiplied_by_the_scale(scale: Any, factor: float) -> None:
    assert max_difference(embedding(scale=scale)(TOKENS), factor * rows(embedding())) < 1e-6


def test_the_norm_works_on_scaled_rows() -> None:
    module = embedding(scale=0.1, norm={**yaml_of("norm", "layernorm"), "eps": 0.05})
    expected = F.layer_norm(0.1 * rows(module), (DIM,), module.norm.weight, module.norm.bias, 0.05)
    assert max_difference(module(TOKENS), expected) < 1e-6


def test_a_factorised_table_is_narrow_and_brought_to_the_width_by_a_matrix() -> None:
    module = embedding("factorised", dim=5)
    assert module.table.weight.shape == (VOCABULARY, 5)
    assert module.project.weight.shape == (DIM, 5)
    assert max_difference(module(TOKENS), rows(module) @ module.project.weight.T) < 1e-6


def test_the_scale_of_a_factorised_table_is_that_of_the_model() -> None:
    module = embedding("factorised", dim=5, scale="sqrt_width", norm=yaml_of("norm", "rmsnorm"))
    wide = math.sqrt(12) * rows(module) @ module.project.weight.T
    assert max_difference(module(TOKENS), F.rms_norm(wide, (DIM,), module.norm.weight, 1e-5)) < 1e-5


@pytest.mark.parametrize(("dim", "width"), [("1/4", 3), (0.5, 6), (11, 11), (0.001, 1)])
def test_a_share_is_of_the_width(dim: Any, width: int) -> None:
    assert embedding("factorised", dim=dim).table.embedding_dim == width


@pytest.mark.parametrize("dim", [32, 40])
def test_a_table_that_is_not_narrower_is_refused(dim: int) -> None:
    with pytest.raises(ConfigError, match="embedding=token") as raised:
        changed(small("embedding=factorised"), "embedding.dim", dim)
    assert [problem.key for problem in raised.value.problems] == ["embedding.dim"]


@pytest.mark.parametrize("scale", [math.inf, 0.0, "sqrt_depth"])
def test_a_scale_is_a_finite_number_above_zero_or_the_root_of_the_width(scale: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        changed(small(), "embedding.scale", scale)
    assert [problem.key for problem in raised.value.problems] == ["embedding.scale"]


def test_positions_are_added_to_what_the_embedding_gives() -> None:
    cfg = changed(small("position=learned", "embedding=normed"), "embedding.scale", 2.0)
    model, tokens, given = build_model(cfg), tokens_of(cfg), []
    model.blocks[0].register_forward_pre_hook(lambda module, inputs: given.append(inputs[0]))
    model(tokens)
    assert torch.equal(given[0], model.embedding(tokens) + model.positions[0].table.weight[:16])
