from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ablate.errors import ConfigError
from ablate.model.transformer import Auxiliary, Outputs
from ablate.train.loss import LOSS, Loss
from tests.model.conftest import changed, options_of, random_model, small, targets_of, tokens_of

IGNORED = -100


def loss(word: str = "cross_entropy", **options: Any) -> Loss:
    return LOSS.build(options_of(LOSS, word, **options))


def scores(seed: int = 0) -> Tensor:
    """Random logits_BTV of 2 sequences, 3 tokens, 5 words."""
    return 2 * torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(seed)) + 1


def targets(seed: int = 0) -> Tensor:
    return torch.randint(0, 5, (2, 3), generator=torch.Generator().manual_seed(seed))


def outputs(logits_BTV: Tensor, *further: Tensor, auxiliary: list[Auxiliary] | None = None) -> Outputs:
    return Outputs(logits_BTV, auxiliary or [], list(further), [])


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
    total, parts = loss(z_loss=0.0)(outputs(scores()), targets())
    assert total.item() == pytest.approx(by_loops(scores(), targets())[0], rel=1e-5)
    assert list(parts) == ["cross_entropy"]


def test_equal_logits_give_the_log_of_the_vocabulary_size() -> None:
    total, _ = loss(z_loss=0.0)(outputs(torch.full((1, 4, 256), 7.0)), torch.zeros(1, 4, dtype=torch.long))
    assert total.item() == pytest.approx(math.log(256), rel=1e-6)


def test_z_loss_is_the_mean_square_of_log_z() -> None:
    _, parts = loss(z_loss=0.5)(outputs(scores()), targets())
    assert parts["z_loss"].item() == pytest.approx(by_loops(scores(), targets())[1], rel=1e-5)


def test_z_loss_does_not_depend_on_the_targets() -> None:
    first, second = (loss(z_loss=0.5)(outputs(scores()), targets(seed))[1]["z_loss"] for seed in (0, 1))
    assert torch.equal(first, second)


@pytest.mark.parametrize("weight", [1e-4, 0.5])
def test_the_sum_is_cross_entropy_and_weighted_z_loss(weight: float) -> None:
    total, _ = loss(z_loss=weight)(outputs(scores()), targets())
    cross_entropy, square = by_loops(scores(), targets())
    assert total.item() == pytest.approx(cross_entropy + weight * square, rel=1e-5)


@pytest.mark.parametrize("word", LOSS.words())
def test_z_loss_is_never_inside_the_reported_cross_entropy(word: str) -> None:
    given = outputs(scores(), scores(1))
    _, plain = loss(word, z_loss=0.0)(given, targets())
    _, parts = loss(word, z_loss=0.5)(given, targets())
    assert set(parts) - set(plain) == {"z_loss"}
    assert torch.equal(parts["cross_entropy"], plain["cross_entropy"])


def test_weight_0_minimises_exactly_cross_entropy() -> None:
    total, parts = loss(z_loss=0.0)(outputs(scores()), targets())
    assert total is parts["cross_entropy"]


def test_z_loss_pulls_log_z_to_zero_and_cross_entropy_does_not_see_a_shift() -> None:
    (_, near), (_, far) = (loss(z_loss=1.0)(outputs(scores() + shift), targets()) for shift in (0.0, 3.0))
    assert far["cross_entropy"].item() == pytest.approx(near["cross_entropy"].item(), rel=1e-5)
    assert far["z_loss"] > near["z_loss"] + 5


def test_gradient_of_z_loss_is_twice_log_z_times_the_probabilities() -> None:
    logits = scores().requires_grad_()
    [gradient] = torch.autograd.grad(loss(z_loss=1.0)(outputs(logits), targets())[1]["z_loss"], logits)
    exact = logits.detach().double()
    expected = 2 * exact.logsumexp(-1, keepdim=True) * exact.softmax(-1) / 6
    assert (gradient - expected).abs().max() < 1e-6


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_ignored_targets_count_in_no_part(weight: float) -> None:
    some = targets()
    some[0, 1:] = IGNORED
    _, parts = loss(z_loss=weight)(outputs(scores()), some)
    cross_entropy, square = by_loops(scores(), some)
    assert parts["cross_entropy"].item() == pytest.approx(cross_entropy, rel=1e-5)
    if weight:
        assert parts["z_loss"].item() == pytest.approx(square, rel=1e-5)


def test_ignored_targets_give_their_logits_no_gradient() -> None:
    logits, some = scores().requires_grad_(), targets()
    some[0, 1:] = IGNORED
    loss(z_loss=0.5)(outputs(logits), some)[0].backward()
    assert logits.grad is not None
    assert (logits.grad.abs().sum(-1) > 0).tolist() == [[True, False, False], [True, True, True]]


@pytest.mark.parametrize("word", LOSS.words())
def test_loss_of_bfloat16_logits_is_taken_in_float32(word: str) -> None:
    rounded, exact = (
        loss(word, z_loss=0.5)(outputs(change(scores()), change(scores(1))), targets())[0]
        for change in (Tensor.bfloat16, lambda logits: logits.bfloat16().float())
    )
    assert rounded.dtype == torch.float32
    assert torch.equal(rounded, exact)


# --- what a model adds


@pytest.mark.parametrize("word", LOSS.words())
def test_losses_of_the_model_are_added_with_their_weights_and_reported_without(word: str) -> None:
    added = [Auxiliary("router_balance", 0.25, torch.tensor(3.0)), Auxiliary("router_z", 2.0, torch.tensor(5.0))]
    plain, before = loss(word, z_loss=0.1)(outputs(scores(), scores(1)), targets())
    total, parts = loss(word, z_loss=0.1)(outputs(scores(), scores(1), auxiliary=added), targets())
    assert (total - plain).item() == pytest.approx(0.25 * 3 + 2 * 5, rel=1e-5)
    assert {name: part.item() for name, part in parts.items()} == {
        **{name: part.item() for name, part in before.items()},
        "router_balance": 3.0,
        "router_z": 5.0,
    }


def test_a_loss_of_weight_zero_is_reported_and_changes_nothing() -> None:
    plain, _ = loss(z_loss=0.0)(outputs(scores()), targets())
    total, parts = loss(z_loss=0.0)(outputs(scores(), auxiliary=[Auxiliary("router_z", 0.0, torch.tensor(5.0))]), targets())
    assert torch.equal(total, plain)
    assert parts["router_z"].item() == 5.0


def test_the_losses_of_a_router_reach_the_sum_with_the_weights_of_its_config() -> None:
    cfg = changed(changed(small("ffn=moe"), "ffn.balance_loss", 0.25), "ffn.router_z_loss", 0.5)
    total, parts = LOSS.build(cfg.loss)(random_model(cfg).run(tokens_of(cfg)), targets_of(cfg))
    assert set(parts) == {"cross_entropy", "router_balance", "router_z"}
    expected = parts["cross_entropy"] + 0.25 * parts["router_balance"] + 0.5 * parts["router_z"]
    assert total.item() == pytest.approx(expected.item(), rel=1e-6)
    assert parts["router_z"] > 0


# --- further tokens


def by_shifts(further: list[Tensor], targets_BT: Tensor) -> float:
    """The mean over k of the mean -log p(token k further on), over the places where there is one and it counts."""
    means = []
    for k, logits_BTV in enumerate(further, start=1):
        nats = []
        for sequence in range(logits_BTV.shape[0]):
            for t in range(logits_BTV.shape[1] - k):
                target = int(targets_BT[sequence, t + k])
                if target != IGNORED:
                    row = logits_BTV[sequence, t].tolist()
                    nats.append(math.log(sum(math.exp(logit) for logit in row)) - row[target])
        means.append(sum(nats) / len(nats))
    return sum(means) / len(means)


@pytest.mark.parametrize("ignore", [False, True])
@pytest.mark.parametrize("num_future", [1, 2])
def test_further_tokens_are_the_targets_shifted_and_none_beyond_the_end(num_future: int, ignore: bool) -> None:
    further, some = [scores(seed) for seed in range(1, num_future + 1)], targets()
    if ignore:
        some[0, 2] = IGNORED
    total, parts = loss("multi_token", num_future=num_future, weight=0.3, z_loss=0.5)(outputs(scores(), *further), some)
    cross_entropy, square = by_loops(scores(), some)
    assert set(parts) == {"cross_entropy", "z_loss", "future_tokens"}
    assert parts["cross_entropy"].item() == pytest.approx(cross_entropy, rel=1e-5)
    assert parts["future_tokens"].item() == pytest.approx(by_shifts(further, some), rel=1e-5)
    assert total.item() == pytest.approx(cross_entropy + 0.5 * square + 0.3 * by_shifts(further, some), rel=1e-5)


def test_the_last_scores_of_further_tokens_have_no_target() -> None:
    further = scores(1).requires_grad_()
    loss("multi_token", num_future=1)(outputs(scores(), further), targets())[0].backward()
    assert further.grad is not None
    assert (further.grad.abs().sum(-1) > 0).tolist() == [[True, True, False]] * 2


def test_the_loss_says_how_many_further_tokens_it_needs() -> None:
    assert loss().num_future == 0
    assert loss("multi_token", num_future=3).num_future == 3
    assert small("loss=multi_token").num_future == 1


def test_a_model_predicts_further_tokens_only_where_the_loss_wants_them() -> None:
    cfg = changed(small("loss=multi_token"), "loss.num_future", 2)
    total, parts = LOSS.build(cfg.loss)(random_model(cfg).run(tokens_of(cfg)), targets_of(cfg))
    assert len(random_model(cfg).run(tokens_of(cfg)).future) == 2
    assert total.item() == pytest.approx((parts["cross_entropy"] + 0.3 * parts["future_tokens"]).item(), rel=1e-6)
    assert len(random_model(small()).future) == 0


@pytest.mark.parametrize(
    ("option", "value"), [("weight", math.inf), ("weight", 0.0), ("num_future", 0), ("num_future", 16), ("z_loss", -1.0)]
)
def test_numbers_that_mean_nothing_are_refused_by_their_key(option: str, value: float) -> None:
    with pytest.raises(ConfigError) as raised:
        changed(small("loss=multi_token"), f"loss.{option}", value)
    assert {problem.key for problem in raised.value.problems} == {f"loss.{option}"}
