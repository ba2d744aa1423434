"""What is dropped, where, how often, and never but in training."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ablate.config import Config
from ablate.errors import ConfigError
from ablate.model.mask import Reach, attend, visible
from ablate.train.loop import step_seed
from ablate.train.loss import LOSS
from tests.model.conftest import changed, gradients_of, loss_of, max_difference, random_model, small, targets_of, tokens_of, yaml_of

PLACES = ("attention", "residual", "embedding")


def dropping(**rates: float) -> Config:
    """A config with the given rates, and 0 elsewhere."""
    return changed(small(), "dropout", {"kind": "dropout", **dict.fromkeys(PLACES, 0.0), **rates})


@pytest.mark.parametrize("place", PLACES)
def test_a_rate_moves_the_loss_of_training_and_not_that_of_evaluation(place: str) -> None:
    cfg = dropping(**{place: 0.5})
    model, plain, tokens = random_model(cfg).train(), random_model(small()), tokens_of(cfg)
    assert max_difference(model(tokens), plain(tokens)) > 0.1
    assert torch.equal(model.eval()(tokens), plain(tokens))


def test_dropout_of_the_embedding_zeroes_the_share_asked_for_and_scales_the_rest() -> None:
    model, given = random_model(dropping(embedding=0.25)).train(), []
    model.blocks[0].register_forward_pre_hook(lambda module, inputs: given.append(inputs[0]))
    tokens = tokens_of(small(), sequences=64)
    torch.manual_seed(0)
    model(tokens)
    embedded = model.embedding(tokens)
    assert_dropped(given[0], embedded, 0.25)


def assert_dropped(found: Tensor, plain: Tensor, rate: float) -> None:
    zeros = found == 0
    assert zeros.float().mean().item() == pytest.approx(rate, abs=0.02)
    assert max_difference(found[~zeros], plain[~zeros] / (1 - rate)) < 1e-5


@pytest.mark.parametrize("residual", ["serial", "parallel", "layerscale", "rezero"])
def test_dropout_of_the_residual_drops_what_each_branch_adds(residual: str) -> None:
    cfg = changed(dropping(residual=0.25), "residual", yaml_of("residual", residual))
    block = random_model(cfg).train().blocks[0]
    seen: list[tuple[Tensor, Tensor]] = []
    block.dropout.register_forward_hook(lambda module, inputs, output: seen.append((inputs[0], output)))
    block(torch.randn(16, 16, 32, generator=torch.Generator().manual_seed(0)), random_model(small()).positions[0], None, None)
    assert len(seen) == 2, "attention and feed-forward"
    for branch, dropped in seen:
        assert_dropped(dropped, branch, 0.25)


@pytest.mark.parametrize("placement", ["sandwich", "output"])
def test_a_branch_is_dropped_after_its_norm(placement: str) -> None:
    cfg = changed(dropping(residual=0.25), "placement", {"kind": placement})
    block = random_model(cfg).train().blocks[0]
    norms: list[Tensor] = []
    block.attention.output_norm.register_forward_hook(lambda module, inputs, output: norms.append(output))
    block.dropout.register_forward_pre_hook(lambda module, inputs: norms.append(inputs[0]))
    block(torch.randn(1, 16, 32, generator=torch.Generator().manual_seed(0)), random_model(small()).positions[0], None, None)
    assert norms[0] is norms[1]


PATHS: dict[str, dict[str, Any]] = {
    "fused": {"sink": None, "soft_cap": math.inf, "bias": None},
    "biased": {"sink": None, "soft_cap": math.inf, "bias": torch.zeros(16, 16)},
    "written out": {"sink": torch.zeros(8), "soft_cap": 5.0, "bias": None},
}


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("path", PATHS)
def test_dropout_of_attention_drops_weights_on_every_path(path: str, window: int | None) -> None:
    """Values that are the unit vectors: what is read is the weights themselves."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(16, 8, 16, 4, generator=generator) for _ in range(2))
    v = torch.eye(16).expand(16, 8, 16, 16)
    seen = visible(Reach(window, None), 16, torch.device("cpu"), flex=False)
    torch.manual_seed(0)
    plain, dropped = (attend(q, k, v, seen, scale=0.5, dropout=rate, **PATHS[path]) for rate in (0.0, 0.25))
    inside = plain > 0
    assert (dropped[~inside] == 0).all()
    assert_dropped(dropped[inside], plain[inside], 0.25)


def test_every_rate_alone_leaves_all_parameters_with_a_gradient() -> None:
    for place in PLACES:
        cfg = dropping(**{place: 0.3})
        assert all(gradient is not None for gradient in gradients_of(cfg, random_model(cfg).train()).values())


# --- one seed a step


def test_the_same_generator_state_drops_the_same() -> None:
    cfg = dropping(attention=0.2, residual=0.2, embedding=0.2)
    model = random_model(cfg).train()
    assert loss_of(cfg, model) == loss_of(cfg, model)  # loss_of sets its seed
    torch.manual_seed(1)
    assert LOSS.build(cfg.loss)(model.run(tokens_of(cfg)), targets_of(cfg))[0] != loss_of(cfg, model)


def test_every_micro_batch_step_and_seed_drops_something_else() -> None:
    seeds = [step_seed(seed, step, place) for seed in range(20) for step in range(50) for place in range(4)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_the_seed_of_a_step_is_the_one_it_always_was() -> None:
    """sha256 of 'seed/step N', its first eight bytes, halved: `printf '3/step 7' | sha256sum` begins 2b33eb8cb7b83e89."""
    assert step_seed(3, 7, 0) == 0x2B33EB8CB7B83E89 >> 1


# --- what cannot be


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rate", [1.0, -0.1, 1.5, math.nan])
def test_a_rate_is_from_zero_to_below_one(place: str, rate: float) -> None:
    with pytest.raises(ConfigError) as raised:
        dropping(**{place: rate})
    assert [problem.key for problem in raised.value.problems] == [f"dropout.{place}"]


def test_rates_of_zero_are_dropout_none() -> None:
    with pytest.raises(ConfigError, match="dropout=none") as raised:
        dropping()
    assert [problem.key for problem in raised.value.problems] == ["dropout"]
