from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ablate.config import Config
from ablate.errors import ConfigError
from ablate.model.embedding import EMBEDDING, TokenTable
from ablate.model.transformer import Transformer
from tests.model.conftest import changed, max_difference, options_of, random_model, randomise, small, tokens_of

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


def test_a_factorised_table_is_narrow_and_brought_to_the_width_by_a_matrix() -> None:
    module = embedding("factorised", dim=5)
    assert module.table.weight.shape == (VOCABULARY, 5)
    assert module.project.weight.shape == (DIM, 5)
    assert max_difference(module(TOKENS), rows(module) @ module.project.weight.T) < 1e-6


def test_the_scale_of_a_factorised_table_is_that_of_the_model() -> None:
    module = embedding("factorised", dim=5, scale="sqrt_width")
    assert max_difference(module(TOKENS), math.sqrt(12) * rows(module) @ module.project.weight.T) < 1e-5


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


# --- in the model


def first_state(cfg: Config) -> tuple[Transformer, Tensor]:
    """A model, and what its first block gets."""
    model, given = random_model(cfg), []
    model.blocks[0].register_forward_pre_hook(lambda module, inputs: given.append(inputs[0]))
    model(tokens_of(cfg))
    return model, given[0]


def test_positions_are_added_to_scaled_rows() -> None:
    model, x_BTD = first_state(changed(small("position=learned"), "embedding.scale", 2.0))
    assert torch.equal(x_BTD, 2 * model.embedding.table.weight[tokens_of(small())] + model.positions[0].table.weight[:16])


@pytest.mark.parametrize("position", ["rope", "learned"])
def test_the_norm_of_the_embedding_works_on_scaled_rows_with_their_positions(position: str) -> None:
    """As in BERT, where positions are added before it."""
    cfg = changed(small(f"position={position}", "embedding=normed"), "embedding.scale", 0.1)
    model, x_BTD = first_state(changed(cfg, "embedding.norm.eps", 0.05))
    rows_BTD = 0.1 * model.embedding.table.weight[tokens_of(small())]
    rows_BTD = rows_BTD + model.positions[0].table.weight[:16] if position == "learned" else rows_BTD
    norm = model.embedding.norm
    assert max_difference(x_BTD, F.layer_norm(rows_BTD, (32,), norm.weight, norm.bias, 0.05)) < 1e-5
