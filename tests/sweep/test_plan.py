"""Plans: which runs a study needs now, from what it asks and from what its run directories say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ablate.claim import Claim
from ablate.errors import ConfigError
from ablate.sweep import composer as composing
from ablate.sweep.composer import Composer
from ablate.sweep.plan import Cell, Plan, Planner, check_arms, state_of
from ablate.sweep.study import load_study, parse_study

MakePlanner = Callable[..., Planner]


@pytest.fixture(scope="module")
def composer() -> Iterator[Composer]:
    with Composer() as composer:
        yield composer


@pytest.fixture
def planner_of(composer: Composer, short: list[str]) -> MakePlanner:
    """A planner of a study of short runs."""
    common = [text for text in short if not text.startswith("optim.lr=")]

    def make(design: str, **values: Any) -> Planner:
        study = parse_study({"question": "Which?", "design": design, "blocks": 3, **values}, "mine")
        return Planner(study, composer, common, lambda text: None)

    return make


def layer(planner_of: MakePlanner, **values: Any) -> Planner:
    """LayerNorm against the baseline."""
    return planner_of("arms", arms={"layer": ["norm=layernorm"]}, **values)


def write(cell: Cell, state: str, loss: float | None = None) -> None:
    """The directory of a run that has ended so."""
    cell.directory.mkdir(parents=True, exist_ok=True)
    (cell.directory / "status.json").write_text(json.dumps({"state": state}))
    if loss is not None or state == "done":
        (cell.directory / "summary.json").write_text(json.dumps({"eval_loss": 2.0 if loss is None else loss, "seconds": 1.0}))


@pytest.mark.parametrize("state", ["done", "failed", "stopped", "crashed", "interrupted", "running", "lost", "new"])
def test_state_of_a_run_is_what_its_directory_says(planner_of: MakePlanner, state: str) -> None:
    planner = layer(planner_of)
    cell = planner.plan().cells[0]
    claim = None
    if state != "new":
        write(cell, {"interrupted": "running", "lost": "done"}.get(state, state))
    if state == "lost":
        (cell.directory / "summary.json").write_text('{"eval_lo')
    if state == "running":
        claim = Claim.take(cell.directory / "claim")
    try:
        plan = planner.plan()
    finally:
        if claim is not None:
            claim.release()
    assert plan.states[cell.digest] == state
    assert plan.counts() == {state: 1, "new": 5} if state != "new" else {"new": 6}
    assert (cell in plan.unfinished()) == (state not in ("done", "failed"))


def test_a_directory_without_a_status_that_can_be_read_is_new(tmp_path: Path) -> None:
    assert state_of(tmp_path / "nowhere") == "new"
    (tmp_path / "status.json").write_text('{"state": "do')
    assert state_of(tmp_path) == "new"


def test_a_study_is_complete_when_every_run_has_a_result_and_a_failure_is_one(planner_of: MakePlanner) -> None:
    planner = layer(planner_of)
    for index, cell in enumerate(planner.plan().cells):
        assert not planner.plan().complete
        write(cell, "failed" if index == 2 else "done")
    assert planner.plan().complete


def test_blocks_come_one_after_another_each_with_all_its_arms_in_the_order_of_the_study(planner_of: MakePlanner) -> None:
    cells = layer(planner_of, blocks=[7, 0, 3]).plan().cells
    assert [(cell.seed, cell.arm) for cell in cells] == [(seed, arm) for seed in (7, 0, 3) for arm in ("baseline", "layer")]


def test_a_block_is_one_seed_of_weights_and_of_data(planner_of: MakePlanner) -> None:
    for cell in layer(planner_of).plan().cells:
        assert cell.cfg.init_seed == cell.cfg.data_seed == cell.seed


def test_arms_with_seeds_of_their_own_run_on_those(planner_of: MakePlanner) -> None:
    cells = planner_of("arms", arms={"again": []}, seed_offsets={"again": 1000}, blocks=2).plan().cells
    assert [(cell.arm, cell.seed) for cell in cells] == [("baseline", 0), ("again", 1000), ("baseline", 1), ("again", 1001)]


def test_runs_are_those_of_the_same_command_line(planner_of: MakePlanner, short: list[str]) -> None:
    """A run that `python -m ablate` has trained is done for a study."""
    from ablate.composition import compose
    from ablate.data import prepare
    from ablate.runs import canonical, run_directory
    from ablate.train.launch import cache_dir

    cell = planner_of("arms", arms={"layer": ["norm=layernorm"]}, set=["optim.lr=2e-2"]).plan().cells[1]
    cfg = compose(["norm=layernorm", "seed=0", *short])
    data = prepare(
        cfg.data,
        cfg.tokenizer,
        eval_bytes=cfg.eval.bytes,
        segment_bytes=cfg.eval.segment_bytes,
        cache_dir=cache_dir(cfg),
        say=lambda text: None,
    )
    assert cell.directory == run_directory(cfg, canonical(cfg, data.content_hash), compose()).absolute()


def test_the_same_configuration_twice_in_a_grid_is_run_once_and_said(planner_of: MakePlanner) -> None:
    planner = planner_of("grid", axes={"norm.eps": ["1e-3", "0.001", "1e-4"]}, blocks=2)
    plan = planner.plan()
    assert len(plan.cells) == len({cell.digest for cell in plan.cells}) == 4
    assert plan.duplicates == [("eps_0.001", "baseline")] * 2
    check_arms(plan)


def test_two_named_arms_that_are_one_configuration_are_an_error(planner_of: MakePlanner) -> None:
    plan = planner_of("arms", arms={"half": ["attention.window=1/2"], "tokens": ["attention.window=32"]}).plan()
    with pytest.raises(ConfigError, match="tokens is the same configuration as half"):
        check_arms(plan)


def test_cells_that_cannot_be_had_are_dropped_with_their_reasons(planner_of: MakePlanner) -> None:
    plan = planner_of("grid", axes={"norm": ["rmsnorm", "none"], "placement": ["pre", "post"]}, blocks=1).plan()
    assert len(plan.cells) == 3
    ((overrides, reason),) = plan.arms.dropped
    assert overrides == ("norm=none", "placement=post")
    assert "no effect with norm=none" in reason


def test_a_grid_is_composed_as_often_as_its_longest_axis_has_values(monkeypatch: pytest.MonkeyPatch) -> None:
    composed: list[list[str]] = []
    real = composing.compose_raw
    monkeypatch.setattr(composing, "compose_raw", lambda request: composed.append(request.overrides) or real(request))
    axes = {"norm": ["rmsnorm", "layernorm", "dyt"], "ffn": ["swiglu", "gelu"], "model.depth": [1, 2]}
    study = parse_study(
        {"question": "Which?", "design": "grid", "axes": axes, "blocks": 2, "set": ["model.width=32", "model.heads=2"]}, "mine"
    )
    with Composer() as composer:
        planner = Planner(study, composer, ["tracker=none"], lambda text: None)
    assert len(planner.arms.arms) == 3 * 2 * 2
    assert len(composed) == 3 + 1  # and what all cells have


def test_an_arm_that_cannot_be_had_is_an_error_of_the_study(planner_of: MakePlanner) -> None:
    with pytest.raises(ConfigError, match=r"arms\.typo.*did you mean 'layernorm'"):
        planner_of("arms", arms={"typo": ["norm=layernrom"]})


# --- two stages

RATES = [1e-3, 2e-3, 4e-3]


def tuned(planner_of: MakePlanner, **values: Any) -> Planner:
    return layer(planner_of, tuning={"lr": RATES, "seeds": [100, 101], **values})


def end_tuning(plan: Plan, arm: str, losses: dict[float, float | None]) -> None:
    """Every tuning run of an arm has ended: with a loss, or as failed."""
    for cell in plan.of_stage("tune"):
        if cell.arm == arm and cell.rate in losses:
            loss = losses[cell.rate]
            write(cell, "failed" if loss is None else "done", loss)


def rates_of(plan: Plan, arm: str, stage: Any) -> list[float]:
    return sorted({cell.rate for cell in plan.of_stage(stage) if cell.arm == arm})


def test_at_first_the_tuning_runs_alone_are_known(planner_of: MakePlanner) -> None:
    plan = tuned(planner_of).plan()
    assert len(plan.cells) == len(plan.of_stage("tune")) == 2 * 3 * 2
    assert {cell.seed for cell in plan.cells} == {100, 101}
    assert rates_of(plan, "layer", "tune") == RATES
    assert plan.later == 2 * 3


def test_half_of_a_tuning_says_nothing(planner_of: MakePlanner) -> None:
    planner = tuned(planner_of)
    plan = planner.plan()
    for cell in plan.cells[:-1]:
        write(cell, "done", 2.0 + abs(cell.rate - 2e-3))
    assert planner.plan().tuned["baseline"].best == 2e-3
    assert planner.plan().tuned["layer"].best is None


def test_an_arm_that_is_tuned_goes_on_at_its_best_rate_while_another_is_not(planner_of: MakePlanner) -> None:
    planner = tuned(planner_of)
    end_tuning(planner.plan(), "layer", {1e-3: 2.5, 2e-3: 2.0, 4e-3: 2.2})
    plan = planner.plan()
    assert [(cell.arm, cell.rate, cell.seed) for cell in plan.of_stage("confirm")] == [("layer", 2e-3, seed) for seed in range(3)]
    assert plan.later == 3
    assert [cell.stage for cell in plan.cells] == ["tune"] * 12 + ["confirm"] * 3


def test_each_arm_is_confirmed_at_its_own_rate(planner_of: MakePlanner) -> None:
    planner = tuned(planner_of, lr=[1e-3, 2e-3, 4e-3, 8e-3])
    end_tuning(planner.plan(), "baseline", {1e-3: 2.5, 2e-3: 2.3, 4e-3: 2.2, 8e-3: 3.0})
    end_tuning(planner.plan(), "layer", {1e-3: 2.5, 2e-3: 2.0, 4e-3: 2.2, 8e-3: 3.0})
    plan = planner.plan()
    assert {(cell.arm, cell.rate) for cell in plan.of_stage("confirm")} == {("baseline", 4e-3), ("layer", 2e-3)}
    assert all(cell.cfg.optim.model_dump()["lr"] == cell.rate for cell in plan.cells)
    assert plan.later == 0
    assert not plan.complete


def test_best_rate_at_an_end_adds_points_there_up_to_extend(planner_of: MakePlanner) -> None:
    planner = tuned(planner_of, extend=2)
    losses: dict[float, float | None] = {rate: 3.0 - 100 * rate for rate in (*RATES, 8e-3, 1.6e-2)}
    for known in (3, 4, 5):
        plan = planner.plan()
        assert rates_of(plan, "layer", "tune") == list(losses)[:known]
        assert not plan.of_stage("confirm")
        end_tuning(plan, "layer", losses)
    plan = planner.plan()
    assert plan.tuned["layer"].edge == "high"
    assert rates_of(plan, "layer", "tune") == list(losses)
    assert rates_of(plan, "layer", "confirm") == [1.6e-2]


def test_a_failed_run_counts_as_a_model_that_has_learned_nothing_and_no_more(planner_of: MakePlanner) -> None:
    """Its loss is the entropy of token frequencies; so is that of a run that ended far above."""
    planner = tuned(planner_of, extend=0)
    cap = planner.data(planner.plan().cells[0].cfg).unigram_entropy
    end_tuning(planner.plan(), "baseline", {1e-3: cap - 0.1, 2e-3: None, 4e-3: cap - 0.2})
    end_tuning(planner.plan(), "layer", {1e-3: cap + 9, 2e-3: None, 4e-3: cap + 1})
    plan = planner.plan()
    assert plan.tuned["baseline"].best == 4e-3
    assert plan.tuned["layer"].best == 2e-3  # all are the cap, which tells nothing: the middle one


def test_runs_of_both_stages_differ(planner_of: MakePlanner) -> None:
    planner = tuned(planner_of)
    for arm in ("baseline", "layer"):
        end_tuning(planner.plan(), arm, {1e-3: 2.5, 2e-3: 2.0, 4e-3: 2.2})
    plan = planner.plan()
    assert len({cell.directory for cell in plan.cells}) == len(plan.cells) == 12 + 6


# --- the size of arms


@pytest.mark.parametrize("name", ["ffn", "attention"])
def test_arms_of_a_matched_study_are_as_large_as_its_own_baseline(name: str, composer: Composer, short: list[str]) -> None:
    places = [text for text in short if text.startswith(("results_dir=", "cache_dir=", "eval."))]
    planner = Planner(load_study(name), composer, [*places, "tracker=none"], lambda text: None)
    sizes = {arm.name: planner._cost(arm).parameters for arm in planner.arms.arms}
    assert len(sizes) > 3
    for arm, size in sizes.items():
        assert size == pytest.approx(sizes["baseline"], rel=0.01), arm


def test_an_arm_that_cannot_be_made_as_large_is_named(planner_of: MakePlanner) -> None:
    match = {"kind": "params", "tolerance": 1e-6}
    with pytest.raises(ConfigError, match=r"gelu: .*match"):
        planner_of("arms", arms={"gelu": ["ffn=gelu"], "layer": ["norm=layernorm"]}, match=match)


@pytest.mark.slow
def test_a_thousand_runs_are_planned_each_once_and_an_edit_of_one_is_seen(planner_of: MakePlanner) -> None:
    axes = {"norm": ["rmsnorm", "layernorm"], "norm.eps": ["1e-3", "1e-4", "1e-5", "1e-6", "1e-7"]}
    planner = planner_of("grid", axes=axes, blocks=100)
    plan = planner.plan()
    assert len({cell.digest for cell in plan.cells}) == len({cell.directory for cell in plan.cells}) == 1000
    assert all(before.seed <= after.seed for before, after in pairwise(plan.cells))
    write(plan.cells[500], "done")
    assert planner.plan().counts() == {"new": 999, "done": 1}
