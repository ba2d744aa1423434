from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ablate.train.loss import LOSS, Loss

IGNORED = -100


def loss(word: str = "cross_entropy", **options: Any) -> Loss:
    return LOSS.build(LOSS.options(word).model_validate({"kind": word, **options}))


def batch(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random logits_BTV of 2 sequences, 3 tokens, 5 words, and their targets."""
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(2, 3, 5, generator=generator) + 1, torch.randint(0, 5, (2, 3), generator=generator)


def by_loops(logits_BTV: Tensor, targets_BT: Tensor) -> tuple[float, float]:
    """Mean -log p(target) and mean log(Z)^2 over the targets that count."""
    nats, squares = [], []
    for logits_V, target in zip(logits_BTV.flatten(0, 1).tolist(), targets_BT.flatten().tolist(), strict=True):
        if target != IGNORED:
            log_z = math.log(sum(math.exp(logit) for logit in logits_V))
            nats.append(log_z - logits_V[target])
            squares.append(log_z**2)
    return sum(nats) / len(nats), sum(squares) / len(squares)


def test_cross_entropy_is_the_mean_negative_log_probability_of_the_targets() -> None:
    total, parts = loss(z_loss=0.0)(*batch())
    assert total.item() == pytest.approx(by_loops(*batch())[0], rel=1e-5)
    assert list(parts) == ["cross_entropy"]


def test_equal_logits_give_the_log_of_the_vocabulary_size() -> None:
    total, _ = loss(z_loss=0.0)(torch.full((1, 4, 256), 7.0), torch.zeros(1, 4, dtype=torch.long))
    assert total.item() == pytest.approx(math.log(256), rel=1e-6)


def test_z_loss_is_the_mean_square_of_log_z() -> None:
    _, parts = loss(z_loss=0.5)(*batch())
    assert parts["z_loss"].item() == pytest.approx(by_loops(*batch())[1], rel=1e-5)


def test_z_loss_does_not_depend_on_the_targets() -> None:
    logits, targets = batch()
    first, second = (loss(z_loss=0.5)(logits, other)[1]["z_loss"] for other in (targets, (targets + 1) % 5))
    assert torch.equal(first, second)


@pytest.mark.parametrize("weight", [1e-4, 0.5])
def test_the_sum_is_cross_entropy_and_weighted_z_loss(weight: float) -> None:
    total, _ = loss(z_loss=weight)(*batch())
    cross_entropy, square = by_loops(*batch())
    assert total.item() == pytest.approx(cross_entropy + weight * square, rel=1e-5)


def test_z_loss_is_never_inside_the_reported_cross_entropy() -> None:
    _, plain = loss(z_loss=0.0)(*batch())
    _, parts = loss(z_loss=0.5)(*batch())
    assert set(parts) == {"cross_entropy", "z_loss"}
    assert torch.equal(parts["cross_entropy"], plain["cross_entropy"])


def test_weight_0_minimises_exactly_cross_entropy() -> None:
    total, parts = loss(z_loss=0.0)(*batch())
    assert total is parts["cross_entropy"]


def test_z_loss_pulls_log_z_to_zero_and_cross_entropy_does_not_see_a_shift() -> None:
    logits, targets = batch()
    (_, near), (_, far) = (loss(z_loss=1.0)(logits + shift, targets) for shift in (0.0, 3.0))
    assert far["cross_entropy"].item() == pytest.approx(near["cross_entropy"].item(), rel=1e-5)
    assert far["z_loss"] > near["z_loss"] + 5


def test_gradient_of_z_loss_is_twice_log_z_times_the_probabilities() -> None:
    logits, targets = batch()
    logits.requires_grad_()
    [gradient] = torch.autograd.grad(loss(z_loss=1.0)(logits, targets)[1]["z_loss"], logits)
    exact = logits.detach().double()
    expected = 2 * exact.logsumexp(-1, keepdim=True) * exact.softmax(-1) / 6
    assert (gradient - expected).abs().max() < 1e-6


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_ignored_targets_count_in_no_part(weight: float) -> None:
    logits, targets = batch()
    targets[0, 1:] = IGNORED
    _, parts = loss(z_loss=weight)(logits, targets)
    cross_entropy, square = by_loops(logits, targets)
    assert parts["cross_entropy"].item() == pytest.approx(cross_entropy, rel=1e-5)
    if weight:
        assert parts["z_loss"].item() == pytest.approx(square, rel=1e-5)


def test_ignored_targets_give_their_logits_no_gradient() -> None:
    logits, targets = batch()
    targets[0, 1:] = IGNORED
    logits.requires_grad_()
    loss(z_loss=0.5)(logits, targets)[0].backward()
    assert logits.grad is not None
    assert (logits.grad.abs().sum(-1) > 0).tolist() == [[True, False, False], [True, True, True]]


@pytest.mark.parametrize("word", LOSS.words())
def test_loss_of_bfloat16_logits_is_taken_in_float32(word: str) -> None:
    logits, targets = batch()
    rounded, exact = (loss(word, z_loss=0.5)(scores, targets)[0] for scores in (logits.bfloat16(), logits.bfloat16().float()))
    assert rounded.dtype == torch.float32
    assert torch.equal(rounded, exact)
