"""What is said after a run: paired by seed, with an interval as soon as there is one, and never more than the runs allow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ablate.files import write_json
from ablate.report.compare import comparison

COMMAND = "python -m ablate"


def identity(norm: str, seed: int, *, lr: float = 0.01) -> dict[str, Any]:
    return {"norm": {"kind": norm}, "optim": {"lr": lr}, "init_seed": seed, "data_seed": seed}


def put(results: Path, this: dict[str, Any], loss: float | None, state: str = "done") -> None:
    directory = results / "runs" / f"{this['norm']['kind']}-{this['optim']['lr']}-{this['init_seed']}"
    directory.mkdir(parents=True)
    write_json(directory / "identity.json", this)
    write_json(directory / "status.json", {"state": state})
    if loss is not None:
        write_json(directory / "summary.json", {"eval_loss": loss})


def said(results: Path, seed: int = 0) -> str:
    return comparison(results, identity("layernorm", seed), identity("rmsnorm", seed), COMMAND)


def test_without_the_baseline_its_command_is_given(tmp_path: Path) -> None:
    put(tmp_path, identity("layernorm", 0), 2.0)
    assert f"No run of the baseline at seed 0 yet. Run it: {COMMAND}" in said(tmp_path)


def test_one_seed_is_a_screen(tmp_path: Path) -> None:
    put(tmp_path, identity("layernorm", 0), 2.0)
    put(tmp_path, identity("rmsnorm", 0), 1.5)
    assert "+0.5000 nats per token" in said(tmp_path)
    assert "screen only, run seeds 0..2 to learn more" in said(tmp_path)
    assert "interval" not in said(tmp_path)


def test_more_seeds_are_paired_and_get_their_interval(tmp_path: Path) -> None:
    for seed, (arm, baseline) in enumerate([(2.0, 1.0), (4.0, 2.0), (6.0, 3.0)]):
        put(tmp_path, identity("layernorm", seed), arm)
        put(tmp_path, identity("rmsnorm", seed), baseline)
    assert "+2.0000 nats per token" in said(tmp_path)
    assert "95 % interval -0.4841 to +4.4841, 3 paired seeds (0, 1, 2)" in said(tmp_path)


def test_a_seed_that_one_arm_lacks_does_not_count(tmp_path: Path) -> None:
    put(tmp_path, identity("layernorm", 0), 2.0)
    put(tmp_path, identity("rmsnorm", 0), 1.5)
    put(tmp_path, identity("rmsnorm", 1), 9.0)
    assert "from one seed (0)" in said(tmp_path)
    assert "of the baseline: seed 1 (no pair)" in said(tmp_path)


def test_a_run_whose_baseline_is_missing_is_told_so_before_any_other_seed(tmp_path: Path) -> None:
    for seed in (0, 1):
        put(tmp_path, identity("layernorm", seed), 2.0 + seed)
    put(tmp_path, identity("rmsnorm", 0), 1.5)
    assert said(tmp_path, seed=1).startswith("No run of the baseline at seed 1 yet.")


def test_a_failed_baseline_is_not_asked_for_again(tmp_path: Path) -> None:
    put(tmp_path, identity("layernorm", 0), 2.0)
    put(tmp_path, identity("rmsnorm", 0), None, state="failed")
    assert "The baseline at seed 0 is failed: there is no difference to give" in said(tmp_path)
    assert COMMAND not in said(tmp_path)


def test_arms_that_are_identical_get_no_interval_of_width_zero(tmp_path: Path) -> None:
    for seed in (0, 1):
        put(tmp_path, identity("layernorm", seed), 2.0)
        put(tmp_path, identity("rmsnorm", seed), 2.0)
    assert "identical at seed 0, 1: the change had no effect there" in said(tmp_path)
    assert "interval" not in said(tmp_path)


def test_another_learning_rate_is_another_arm(tmp_path: Path) -> None:
    put(tmp_path, identity("layernorm", 0), 2.0)
    put(tmp_path, identity("rmsnorm", 0, lr=0.1), 1.5)
    assert "No run of the baseline" in said(tmp_path)


def test_failed_runs_are_said_and_not_dropped(tmp_path: Path) -> None:
    put(tmp_path, identity("layernorm", 0), 2.0)
    put(tmp_path, identity("rmsnorm", 0), 1.5)
    put(tmp_path, identity("layernorm", 1), None, state="failed")
    assert "Not in it, of this arm: seed 1 failed." in said(tmp_path)


def test_the_baseline_is_not_compared_with_itself(tmp_path: Path) -> None:
    put(tmp_path, identity("rmsnorm", 0), 1.5)
    assert "This is the baseline" in comparison(tmp_path, identity("rmsnorm", 0), identity("rmsnorm", 0), COMMAND)


@pytest.mark.parametrize(("norm", "other"), [("rmsnorm", "layernorm"), ("layernorm", "rmsnorm")])
def test_the_baseline_is_told_a_change_of_the_command_that_was_typed(tmp_path: Path, norm: str, other: str) -> None:
    said = comparison(tmp_path, identity(norm, 0), identity(norm, 0), f"{COMMAND} data=mqar seed=1")
    assert said.endswith(f"compare with it: {COMMAND} data=mqar seed=1 norm={other}")


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_a_broken_neighbour_does_not_matter(tmp_path: Path, text: str) -> None:
    put(tmp_path, identity("layernorm", 0), 2.0)
    put(tmp_path, identity("rmsnorm", 0), 1.5)
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "identity.json").write_text(text)
    assert "+0.5000" in said(tmp_path)
