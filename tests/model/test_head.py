from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from ablate.config import meta_model
from ablate.errors import ConfigError
from ablate.model.head import HEAD, Head
from tests.model.conftest import changed, gradients_of, max_difference, options_of, random_model, randomise, small, tokens_of, yaml_of


@pytest.fixture
def same_matrix() -> tuple[torch.nn.Module, torch.nn.Module]:
    """A tied model, and an untied one whose two matrices are both the tied one."""
    tied, untied = random_model(small("head=tied")), random_model(small())
    untied.load_state_dict({**tied.state_dict(), "head.unembed.weight": tied.embedding.table.weight})
    return tied, untied


def test_a_tied_head_scores_with_the_matrix_of_the_embedding(same_matrix: tuple[torch.nn.Module, torch.nn.Module]) -> None:
    tied, untied = same_matrix
    assert torch.equal(tied(tokens_of(small())), untied(tokens_of(small())))


def test_gradient_of_a_tied_matrix_is_the_sum_of_both_its_uses(same_matrix: tuple[torch.nn.Module, torch.nn.Module]) -> None:
    tied, untied = (gradients_of(small(), model) for model in same_matrix)
    both, as_embedding, as_head = tied["embedding.table.weight"], untied["embedding.table.weight"], untied["head.unembed.weight"]
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
    assert model.head(torch.ones(1, 2, 32).bfloat16(), model.embedding.table.weight).dtype == torch.float32


# --- options, by formula


DIM, VOCABULARY = 12, 20


def head(word: str = "untied", table_dim: int = DIM, **options: Any) -> Head:
    module = HEAD.build(options_of(HEAD, word, **options), DIM, VOCABULARY, table_dim)
    randomise(module)
    return module


def state() -> torch.Tensor:
    return torch.randn(2, 3, DIM, generator=torch.Generator().manual_seed(1))


def table(dim: int = DIM) -> torch.Tensor:
    return torch.randn(VOCABULARY, dim, generator=torch.Generator().manual_seed(2))


def test_a_head_is_a_product_with_its_matrix() -> None:
    assert torch.equal(head()(state(), table()), state() @ head().unembed.weight.T)
    assert torch.equal(head("tied")(state(), table()), state() @ table().T)


@pytest.mark.parametrize(("scale", "factor"), [(0.25, 0.25), ("inverse_sqrt_width", 1 / math.sqrt(12))])
def test_logits_are_scaled_with_their_bias_and_then_capped(scale: Any, factor: float) -> None:
    module = head("tied", scale=scale, soft_cap=0.9, bias=True)
    for b in range(2):
        for t in range(3):
            for v in range(VOCABULARY):
                score = sum(x * w for x, w in zip(state()[b, t].tolist(), table()[v].tolist(), strict=True)) + module.bias[v].item()
                expected = 0.9 * math.tanh(factor * score / 0.9)
                assert module(state(), table())[b, t, v].item() == pytest.approx(expected, abs=1e-6)


def test_a_bias_is_one_number_a_word_and_starts_at_zero() -> None:
    chosen = options_of(HEAD, "untied", bias=True)
    assert HEAD.build(chosen, DIM, VOCABULARY, DIM).bias.tolist() == [0.0] * VOCABULARY


@pytest.mark.parametrize("word", HEAD.words())
def test_a_normalised_head_gives_the_cosine_times_the_length_of_the_state(word: str) -> None:
    module = head(word, normalise=True)
    weight_VD = table() if word == "tied" else module.unembed.weight
    cosine = F.cosine_similarity(state()[:, :, None], weight_VD, dim=-1)
    assert max_difference(module(state(), table()), cosine * state().norm(dim=-1, keepdim=True)) < 1e-5


def test_a_dense_transform_is_a_norm_of_the_gelu_of_a_matrix() -> None:
    module = head("tied", transform={"kind": "dense", "norm": {**yaml_of("norm", "layernorm"), "eps": 0.05}})
    inner = module.transform
    z = state().double() @ inner.linear.weight.T.double() + inner.linear.bias.double()
    gelu = 0.5 * z * (1 + torch.erf(z / math.sqrt(2)))
    centred = gelu - gelu.mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + 0.05).sqrt() * inner.norm.weight.double() + inner.norm.bias.double()
    assert max_difference(module(state(), table()), expected @ table().T.double()) < 1e-5


def test_a_tied_head_of_a_narrow_table_brings_the_state_to_its_width() -> None:
    module = head("tied", table_dim=5)
    assert module.project.weight.shape == (5, DIM)
    assert max_difference(module(state(), table(5)), state() @ module.project.weight.T @ table(5).T) < 1e-5
    assert not [name for name, _ in head("tied").named_parameters()]


def test_an_untied_head_does_not_care_about_the_width_of_the_table() -> None:
    assert [tuple(parameter.shape) for parameter in head(table_dim=5).parameters()] == [(VOCABULARY, DIM)]


@pytest.mark.parametrize("scale", [math.inf, 0.0, "sqrt_width"])
def test_a_scale_is_a_finite_number_above_zero_or_one_over_the_root_of_the_width(scale: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        changed(small(), "head.scale", scale)
    assert [problem.key for problem in raised.value.problems] == ["head.scale"]
