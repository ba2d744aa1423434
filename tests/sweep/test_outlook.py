"""What a plan says ahead: the difference that a design can find, the noise of the runs at hand, and hours."""

from __future__ import annotations

import json
import math
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import t

from ablate.report.statistics import pooled_deviation, smallest_detectable
from ablate.sweep.outlook import Finished, finished_runs, labels, noise_of, power_of, seconds_at_hand

TABLE = {3: 3.26, 4: 2.13, 5: 1.68, 6: 1.43, 8: 1.16, 10: 1.00}
"""Blocks -> the smallest difference in deviations of a pair that one comparison finds with 80 % power at 5 %."""


@pytest.mark.parametrize("blocks", TABLE)
def test_smallest_detectable_difference_is_that_of_the_table(blocks: int) -> None:
    assert smallest_detectable(blocks, blocks - 1) == pytest.approx(TABLE[blocks], abs=0.006)


@pytest.mark.parametrize(("blocks", "contrasts"), [(3, 1), (5, 1), (8, 4)])
def test_difference_of_that_size_is_found_in_80_percent_of_simulated_studies(blocks: int, contrasts: int) -> None:
    alpha, studies = 0.05 / contrasts, 40_000
    size = smallest_detectable(blocks, blocks - 1, alpha=alpha)
    pairs = np.random.default_rng(0).normal(size, 1.0, (studies, blocks))
    found = np.abs(pairs.mean(1)) / (pairs.std(1, ddof=1) / math.sqrt(blocks)) > t.ppf(1 - alpha / 2, blocks - 1)
    assert found.mean() == pytest.approx(0.8, abs=4 * math.sqrt(0.8 * 0.2 / studies))


@pytest.mark.parametrize(("blocks", "df"), [(1, 5), (0, 3), (4, 0)])
def test_without_anything_to_estimate_noise_from_no_difference_is_found(blocks: int, df: int) -> None:
    assert smallest_detectable(blocks, df) == math.inf


def test_more_blocks_more_power_or_a_laxer_level_find_smaller_differences() -> None:
    sizes = [smallest_detectable(blocks, blocks - 1) for blocks in range(2, 20)]
    assert sizes == sorted(sizes, reverse=True)
    assert smallest_detectable(5, 4, power=0.9) > smallest_detectable(5, 4) > smallest_detectable(5, 4, alpha=0.1)


def test_pooled_deviation_is_about_each_groups_own_mean() -> None:
    groups = np.random.default_rng(1).normal(0, 1, (3, 4)) + np.array([[10.0], [-5.0], [0.0]])
    deviation, df = pooled_deviation(groups.tolist()) or (0.0, 0)
    assert df == 9
    assert deviation == pytest.approx(math.sqrt(groups.var(1, ddof=1).mean()))
    assert pooled_deviation([[1.0], []]) is None


def plan_of(arms: int, blocks: int) -> Any:
    names = ["baseline", *(f"arm_{index}" for index in range(1, arms))]
    return SimpleNamespace(
        study=SimpleNamespace(blocks=list(range(blocks))), arms=SimpleNamespace(arms=[SimpleNamespace(name=name) for name in names])
    )


@pytest.mark.parametrize(("arms", "blocks", "df"), [(5, 3, 8), (5, 8, 7), (2, 3, 2), (2, 6, 5), (1, 4, 3)])
def test_power_of_a_plan_is_held_at_5_percent_over_all_its_arms(arms: int, blocks: int, df: int) -> None:
    contrasts = max(1, arms - 1)
    power = power_of(plan_of(arms, blocks), None)
    assert power == (blocks, smallest_detectable(blocks, df, alpha=0.05 / contrasts), None)


def run(arm: str, seed: int, loss: float, setting: str = "nano", seconds: float = 60.0) -> Finished:
    return Finished(setting, arm, (seed, seed), loss, seconds)


def test_noise_is_that_of_pairs_on_the_same_block() -> None:
    """Blocks differ by whole nats here, and pairs by hundredths."""
    differences = [0.01, 0.03, -0.02]
    runs = [run("a", seed, float(seed)) for seed in range(3)] + [run("b", seed, seed + d) for seed, d in enumerate(differences)]
    noise = noise_of(runs, "nano")
    assert noise is not None
    assert noise.deviation == pytest.approx(np.std(differences, ddof=1))
    assert (noise.df, noise.runs) == (2, 6)
    power = power_of(plan_of(2, 3), noise)
    assert power.nats == pytest.approx(power.deviations * noise.deviation)


def test_noise_is_not_that_of_another_setting() -> None:
    runs = [run(arm, seed, seed + 0.1 * (arm == "b") * seed, setting="tiny") for arm in "ab" for seed in range(3)]
    assert noise_of(runs, "tiny") is not None
    assert noise_of(runs, "nano") is None


@pytest.mark.parametrize(
    "runs",
    [
        [],
        [run("a", 0, 1.0), run("a", 1, 2.0)],
        [run("a", 0, 1.0), run("b", 0, 2.0)],
        [run("a", 0, 1.0), run("a", 1, 2.0), run("b", 2, 2.0), run("b", 3, 2.0)],
        [run(arm, seed, 1.0) for arm in "ab" for seed in range(3)],  # all the same: a broken measure, and no noise of 0
    ],
)
def test_noise_is_not_known_without_two_arms_on_two_common_blocks(runs: list[Finished]) -> None:
    assert noise_of(runs, "nano") is None


IDENTITY = {"schema": 2, "norm": {"kind": "rmsnorm"}, "optim": {"kind": "adamw", "lr": 1e-3}, "model": {"width": 96}, "layers": {}}


def identity(seed: int, **changed: Any) -> dict[str, Any]:
    return {**IDENTITY, "init_seed": seed, "data_seed": seed, **changed}


def test_setting_is_all_but_architecture_seeds_and_learning_rate() -> None:
    setting, arm = labels(identity(0))
    assert labels(identity(1)) == (setting, arm)
    other = identity(0, norm={"kind": "layernorm"})
    assert labels(other)[0] == setting
    assert labels(other)[1] != arm
    faster = identity(0, optim={"kind": "adamw", "lr": 2e-3})
    assert labels(faster)[0] == setting
    assert labels(faster)[1] != arm
    assert labels(identity(0, model={"width": 64}))[0] != setting
    assert labels(identity(0, optim={"kind": "muon", "lr": 1e-3}))[0] != setting


def write_run(
    results: Path,
    name: str,
    state: str,
    identity: dict[str, Any],
    starts: list[str] | None = None,
    ended: float | None = None,
    **summary: Any,
) -> None:
    directory = results / "runs" / name
    directory.mkdir(parents=True)
    (directory / "status.json").write_text(json.dumps({"state": state, "time": ended}))
    (directory / "environment.json").write_text(json.dumps([{"time": start} for start in starts or []]))
    (directory / "identity.json").write_text(json.dumps(identity))
    (directory / "summary.json").write_text(json.dumps(summary))


def test_runs_at_hand_are_those_that_are_done_and_whole(tmp_path: Path) -> None:
    write_run(tmp_path, "a", "done", identity(0), eval_loss=2.0, seconds=10.0)
    write_run(tmp_path, "b", "stopped", identity(1), eval_loss=3.0, seconds=5.0)
    write_run(tmp_path, "c", "done", identity(2), seconds=10.0)
    write_run(tmp_path, "d", "done", {}, eval_loss=2.0, seconds=10.0)
    assert finished_runs(tmp_path) == [Finished(*labels(identity(0)), (0, 0), 2.0, 10.0)]
    assert finished_runs(tmp_path / "nowhere") == []


def test_a_run_of_one_start_took_as_long_as_from_there_to_its_end(tmp_path: Path) -> None:
    start = "2026-01-01T00:00:00+0000"
    ended = datetime.fromisoformat(start).timestamp() + 60
    write_run(tmp_path, "once", "done", identity(0), [start], ended, eval_loss=2.0, seconds=10.0)
    assert [run.seconds for run in finished_runs(tmp_path)] == [60.0]
    write_run(tmp_path, "twice", "done", identity(1), [start, start], ended, eval_loss=2.0, seconds=10.0)
    assert sorted(run.seconds for run in finished_runs(tmp_path)) == [10.0, 60.0]


def test_seconds_of_an_arm_are_the_median_over_its_seeds_and_rates() -> None:
    setting, arm = labels(identity(0))
    _, faster = labels(identity(0, optim={"kind": "adamw", "lr": 2e-3}))
    _, other = labels(identity(0, norm={"kind": "layernorm"}))
    runs = [run(arm, 0, 1.0, setting, 10.0), run(arm, 1, 1.0, setting, 30.0), run(faster, 0, 1.0, setting, 20.0)]
    runs += [run(arm, 0, 1.0, "another setting", 1000.0), run(other, 0, 1.0, setting, 2000.0)]
    identities = {"baseline": identity(5), "arm_1": identity(5, norm={"kind": "dyt"})}
    assert seconds_at_hand(runs, identities) == {"baseline": 20.0}
