from __future__ import annotations

import math

import pytest
import torch

from ablate.config import meta_model
from ablate.model.head import HEAD
from tests.model.conftest import changed, gradients_of, max_difference, random_model, small, tokens_of


@pytest.fixture
def same_matrix() -> tuple[torch.nn.Module, torch.nn.Module]:
    """A tied model, and an untied one whose two matrices are both the tied one."""
    tied, untied = random_model(small("head=tied")), random_model(small())
    untied.load_state_dict({**tied.state_dict(), "head.unembed.weight": tied.embedding.weight})
    return tied, untied


def test_a_tied_head_scores_with_the_matrix_of_the_embedding(same_matrix: tuple[torch.nn.Module, torch.nn.Module]) -> None:
    tied, untied = same_matrix
    assert torch.equal(tied(tokens_of(small())), untied(tokens_of(small())))


def test_gradient_of_a_tied_matrix_is_the_sum_of_both_its_uses(same_matrix: tuple[torch.nn.Module, torch.nn.Module]) -> None:
    tied, untied = (gradients_of(small(), model) for model in same_matrix)
    both, as_embedding, as_head = tied["embedding.weight"], untied["embedding.weight"], untied["head.unembed.weight"]
    assert both is not None
    assert as_embedding is not None
    assert as_head is not None
    assert max_difference(both, as_embedding + as_head) < 1e-6
    assert as_embedding.abs().max() > 1e-3
    assert as_head.abs().max() > 1e-3


def test_a_tied_model_has_one_matrix_less() -> None:
    sizes = {word: sum(parameter.numel() for parameter in meta_model(small(f"head={word}")).parameters()) for word in HEAD.words()}
    assert sizes["untied"] - sizes["tied"] == 256 * 32


@pytest.mark.parametrize("word", HEAD.words())
def test_a_finite_soft_cap_bends_logits_to_its_tanh(word: str) -> None:
    plain_cfg = small(f"head={word}")
    plain = random_model(plain_cfg)(tokens_of(plain_cfg))
    capped = random_model(changed(plain_cfg, "head.soft_cap", 3.0))(tokens_of(plain_cfg))
    expected = plain.detach().double().apply_(lambda z: 3 * math.tanh(z / 3))
    assert plain.abs().max() > 4
    assert capped.abs().max() < 3
    assert max_difference(capped, expected) < 1e-5


@pytest.mark.parametrize("word", HEAD.words())
def test_a_large_soft_cap_approaches_none(word: str) -> None:
    cfg = small(f"head={word}")
    plain, near = (random_model(other)(tokens_of(cfg)) for other in (cfg, changed(cfg, "head.soft_cap", 1e5)))
    assert max_difference(near, plain) < 1e-5 * plain.abs().max()


@pytest.mark.parametrize("word", HEAD.words())
def test_logits_of_a_bfloat16_state_leave_in_float32(word: str) -> None:
    cfg = small(f"head={word}")
    model = random_model(cfg).bfloat16()
    assert model.head(torch.ones(1, 2, 32).bfloat16(), model.embedding.weight).dtype == torch.float32
