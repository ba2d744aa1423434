"""Loading: the frames hold what runs wrote, of whatever shape the folder is, and what cannot be read is one clear message."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from ablate.claim import Claim, read_status
from ablate.cli import main
from ablate.config import Config
from ablate.errors import ConfigError
from ablate.report.load import Tuned, load, load_runs_as_study, load_study, tidy
from ablate.report.records import COLUMNS, CURVE_COLUMNS, NOT_IDENTITY
from ablate.runs import load_runs
from tests.conftest import SHORT
from tests.report import made

ROOT = Path(__file__).parents[2]


def only(frame: pd.DataFrame) -> pd.Series:
    assert len(frame) == 1
    return frame.iloc[0]


def of(frame: pd.DataFrame, **values: Any) -> pd.DataFrame:
    for key, value in values.items():
        frame = frame[frame[key] == value]
    return frame


def message(call: Callable[[], object]) -> str:
    """What a person reads: one problem."""
    with pytest.raises(ConfigError) as raised:
        call()
    [problem] = raised.value.problems
    return f"{problem.key} {problem.message}"


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


# --- runs that were trained


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with a baseline, a variant, and a run that failed."""
    root = tmp_path_factory.mktemp("trained")
    common = [*SHORT, f"results_dir={root / 'results'}", f"cache_dir={root / 'cache'}", "probes.every_steps=10"]
    assert main(common) == 0
    assert main([*common, "norm=layernorm"]) == 0
    assert main([*common, "norm=none", "optim.lr=1e6", "train.grad_clip=.inf"]) == 1
    return root / "results"


def test_what_was_trained_is_loaded_as_it_was_written(trained: Path) -> None:
    loaded = load([str(trained)])
    assert list(loaded.runs.columns) == list(COLUMNS)
    assert loaded.curves.columns[: len(CURVE_COLUMNS)].tolist() == list(CURVE_COLUMNS)
    for row in loaded.runs.itertuples():
        directory = Path(row.directory)
        summary = json.loads((directory / "summary.json").read_text()) if row.state == "done" else {}
        rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
        curve = of(loaded.curves, run=directory.name)
        assert row.loss == summary["eval_loss"] if summary else math.isnan(row.loss)
        assert row.initial_loss == rows[0]["loss"]
        assert row.unigram_entropy > 1
        assert list(curve["step"]) == sorted({line["step"] for line in rows})
        for name in ("loss", "eval/loss", "grad_norm", "probe/log_z"):
            written = {line["step"]: line[name] for line in rows if name in line and not math.isnan(line[name])}
            assert dict(curve.set_index("step")[name].dropna()) == written, name


def test_architectures_that_were_trained_are_the_arms(trained: Path) -> None:
    loaded = load([str(trained)])
    assert loaded.meta.baseline == "baseline"
    assert [arm.name for arm in loaded.meta.arms][:2] == ["baseline", "norm=layernorm"]
    layernorm = of(loaded.runs, arm="norm=layernorm")
    assert list(layernorm["block"]) == [0]
    assert set(layernorm["outcome"]) == {"ok"}
    assert set(of(loaded.runs, state="failed")["outcome"]) <= {"nan", "collapsed", "diverged"}


def test_curves_are_those_of_load_runs(trained: Path) -> None:
    """The reader for notebooks and the one for reports are two ways to the same numbers."""
    ours, theirs = load([str(trained)]).curves, load_runs(trained).curves
    columns = sorted(ours.columns)
    assert columns == sorted(theirs.columns)
    ours, theirs = (frame[columns].sort_values(["run", "step"]).reset_index(drop=True) for frame in (ours, theirs))
    pd.testing.assert_frame_equal(ours, theirs, check_dtype=False, check_exact=True)


@pytest.mark.slow
def test_a_study_that_was_run_is_loaded_with_its_plan(tmp_path: Path, short: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["ablate"])
    places = [text for text in short if text.startswith(("results_dir", "cache_dir", "tracker"))]
    kept = [text for text in short if text not in places and not text.startswith(("progress", "optim.lr", "train.tokens"))]
    study = {
        "question": "Which?",
        "set": [*kept, "train.tokens=24576"],  # so many that none of the runs collapses
        "design": "arms",
        "arms": {"layernorm": ["norm=layernorm"]},
        "blocks": 2,
        "tuning": {"lr": [0.005, 0.01, 0.02], "seeds": [100], "extend": 0},
        "budgets": [0.5],
    }
    Path("mine.yaml").write_text(yaml.safe_dump(study))
    with pytest.raises(SystemExit) as ended:  # Hydra's sweepers end the process
        main(["sweep=mine.yaml", *places, "yes=true"])
    assert ended.value.code == 0
    loaded = load(["mine"], tmp_path / "results")
    counts = loaded.runs.groupby(["arm", "stage"]).size().to_dict()
    assert counts == {("baseline", "budget"): 2, ("baseline", "confirm"): 2, ("baseline", "tune"): 3} | {
        ("layernorm", "confirm"): 2,
        ("layernorm", "tune"): 3,
    }
    assert (loaded.meta.planned, loaded.meta.later, loaded.meta.budgets, loaded.meta.question) == (12, 0, (0.5,), "Which?")
    for arm in loaded.meta.arms:
        tuning = of(loaded.runs, arm=arm.name, stage="tune")
        assert set(of(loaded.runs, arm=arm.name, stage="confirm")["lr"]) == {tuning.loc[tuning["loss"].idxmin(), "lr"]}
        assert arm.active_parameters == arm.parameters == tuning["parameters"].iloc[0]


# --- a study


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return made.study(
        tmp_path,
        {"baseline": {0: 2.0, 1: 2.1}, "layernorm": {0: 2.05, 1: "collapsed"}, "again": {0: 2.02, 1: 2.04}},
        tuning={arm: {1e-3: [2.3, 2.3], 2e-3: [2.1, 2.2], 4e-3: [2.4, "nan"]} for arm in ("baseline", "layernorm", "again")},
        budgets={0.5: {0: 2.4}, 2.0: {0: 1.8}},
        bench={"baseline": 1.0, "layernorm": 1.1},
        seed_offsets={"again": 1000},
        margin={"tokens": 0.03},
        looks=[2],
    )


def test_every_run_has_its_part_in_the_study(study: Path) -> None:
    runs = load_study(study).runs
    assert runs.groupby(["arm", "stage"]).size().to_dict() == {
        ("again", "confirm"): 2,
        ("again", "tune"): 6,
        ("baseline", "budget"): 2,
        ("baseline", "confirm"): 2,
        ("baseline", "tune"): 6,
        ("layernorm", "confirm"): 2,
        ("layernorm", "tune"): 6,
    }
    assert set(of(runs, stage="confirm")["lr"]) == {2e-3}
    assert list(of(runs, stage="budget")["share"]) == [0.5, 2.0]
    assert list(of(runs, stage="budget")["tokens"]) == [20 * 1024, 80 * 1024]
    assert set(of(runs, stage="confirm")["share"]) == {1.0}


def test_an_arm_with_seeds_of_its_own_is_in_the_blocks_of_the_study(study: Path) -> None:
    again = of(load_study(study).runs, arm="again")
    assert sorted(of(again, stage="confirm")["seed"]) == [1000, 1001]
    assert sorted(of(again, stage="confirm")["block"]) == [0, 1]
    assert set(of(again, stage="tune")["block"]) == {100, 101}


def test_the_meta_is_what_was_asked_and_found(study: Path) -> None:
    meta = load_study(study).meta
    assert (meta.name, meta.question, meta.design, meta.baseline, meta.source) == ("made", "Does it matter?", "arms", "baseline", "study")
    assert (meta.blocks, meta.looks, meta.budgets, meta.seed_offsets) == ((0, 1), (2,), (0.5, 2.0), {"again": 1000})
    assert (meta.margin_tokens, meta.margin_nats, meta.match, meta.tolerance) == (0.03, None, "none", None)
    assert (meta.tuning_rates, meta.tuning_seeds) == ((1e-3, 2e-3, 4e-3), (100, 101))
    assert meta.tuned["layernorm"] == Tuned((1e-3, 2e-3, 4e-3), 2e-3, None)
    assert (meta.planned, meta.later, meta.command) == (26, 0, "python -m ablate sweep=made")
    arm = next(arm for arm in meta.arms if arm.name == "layernorm")
    assert (arm.overrides, arm.levels, arm.parameters, arm.kv_bytes_per_token) == (("norm=layernorm",), {"arm": "layernorm"}, 492_384, 1536)


def test_numbers_of_a_run_are_those_of_its_files(study: Path) -> None:
    loaded = load_study(study)
    row = only(of(loaded.runs, arm="layernorm", stage="confirm", block=0))
    assert (row["loss"], row["bits_per_byte"]) == (2.05, 2.05 / math.log(2))
    assert (row["commit"], row["device_type"], row["torch"], row["threads"]) == ("0123456789ab", "cpu", "2.13.0+cpu", 1)
    assert (row["tokenizer"], row["dtype"], row["context"], row["width"], row["depth"]) == ("bytes", "float32", 128, 96, 4)
    assert (row["extrapolation_1"], row["extrapolation_2"]) == (2.05 - 0.01, 2.05 + 0.15)
    assert math.isnan(row["extrapolation_4"])
    assert row["started"] == "2026-11-30T04:12:25+0000"
    positions = of(loaded.by_position, run=row["run"])
    assert dict(zip(positions["position"], positions["loss"], strict=True))[128] == 2.05 + 0.8 / 128
    assert loaded.bench is not None
    assert loaded.bench["arms"]["layernorm"]["ratio"] == 1.1


def test_a_failed_run_has_no_loss_and_keeps_its_reason_and_the_entropy_of_its_corpus(study: Path) -> None:
    row = only(of(load_study(study).runs, arm="layernorm", stage="confirm", block=1))
    assert (row["state"], row["reason"], row["outcome"]) == ("failed", "collapsed", "collapsed")
    assert math.isnan(row["loss"])
    assert row["unigram_entropy"] == made.UNIGRAM_ENTROPY
    assert row["steps"] == 20


def test_a_training_row_and_the_evaluation_of_its_step_are_one_row(study: Path) -> None:
    loaded = load_study(study)
    curve = of(loaded.curves, run=only(of(loaded.runs, arm="layernorm", stage="confirm", block=0))["run"]).set_index("step")
    assert list(curve.index) == list(range(1, 41))
    assert curve["eval/loss"].dropna().index.tolist() == [10, 20, 30, 40]
    assert curve["loss"].notna().all()
    assert curve.loc[40, "eval/loss"] == 2.05
    assert curve["probe/log_z"].dropna().index.tolist() == list(range(4, 41, 4))


def test_a_study_is_found_by_name_and_by_path_and_another_arm_can_be_its_baseline(study: Path) -> None:
    assert load(["made"], study.parent).meta == load([str(study)]).meta == load_study(study).meta
    changed = load(["made"], study.parent, baseline="layernorm").meta
    assert changed.baseline == "layernorm"
    assert "planned against baseline" in changed.deviations[-1]
    assert "did you mean 'layernorm'" in message(lambda: load(["made"], study.parent, baseline="layrnorm"))


def test_a_results_folder_that_was_moved_is_loaded_from_where_it_is(study: Path, tmp_path: Path) -> None:
    before = load_study(study)
    moved = shutil.move(study.parent, tmp_path / "elsewhere")
    after = load_study(Path(moved) / "made")
    pd.testing.assert_frame_equal(after.runs.drop(columns="directory"), before.runs.drop(columns="directory"))
    assert after.runs["directory"].str.startswith(str(moved)).all()


def test_a_run_directory_under_another_name_is_found_by_its_hash(small: Path) -> None:
    run = baseline_run(small)
    run.rename(run.with_name(f"older-name-{run.name[-12:]}"))
    assert only(of(load_study(small).runs, arm="baseline", stage="confirm", block=0))["run"].startswith("older-name-")


def test_a_study_that_was_changed_says_how(small: Path) -> None:
    told = yaml.safe_load((small / "study.yaml").read_text())
    told["study"] |= {"blocks": [0, 1, 2], "margin": {"tokens": None, "nats": 0.5}}
    (small / "study-20261130-041500.yaml").write_text(yaml.safe_dump(told))
    [deviation] = load_study(small).meta.deviations
    assert deviation.startswith("study-20261130-041500.yaml: ")
    assert "blocks was [0, 1, 2] and became [0]" in deviation
    assert "margin was" in deviation


def test_arms_of_a_grid_that_are_one_configuration_are_one_arm_and_noted(study: Path) -> None:
    def change(plan: dict[str, Any]) -> None:
        plan["arms"].append({**plan["arms"][1], "name": "twin"})
        plan["duplicates"] = [["twin", "layernorm"], ["twin", "layernorm"]]
        plan["dropped"] = [{"overrides": ["norm=a", "ffn=b"], "reason": "do not go together"}]

    edit(study / "plan.json", change)
    meta = load_study(study).meta
    assert [arm.name for arm in meta.arms] == ["baseline", "layernorm", "again"]
    assert "twin is the same configuration as layernorm" in meta.notes
    assert meta.dropped == ("norm=a ffn=b: do not go together",)


def test_a_plan_of_before_budgets_is_read(study: Path) -> None:
    def change(plan: dict[str, Any]) -> None:
        for cell in plan["cells"]:
            del cell["share"]
        for arm in plan["arms"]:
            for key in ("active_parameters", "training_flops_per_token", "kv_bytes_per_token"):
                del arm[key]

    edit(study / "plan.json", change)
    told = yaml.safe_load((study / "study.yaml").read_text())
    del told["study"]["budgets"], told["study"]["looks"]
    (study / "study.yaml").write_text(yaml.safe_dump(told))
    loaded = load_study(study)
    assert set(loaded.runs["share"]) == {1.0}
    assert (loaded.meta.budgets, loaded.meta.looks, loaded.meta.arms[0].active_parameters) == ((), (), None)


# --- runs that did not end, and files that are broken


@pytest.mark.parametrize("word", [*made.STATES, *made.FAILURES, "spiky", "diverged"])
def test_every_end_of_a_run_is_a_row(word: str, tmp_path: Path) -> None:
    study = made.study(tmp_path, {"baseline": {0: 2.0}, "dyt": {0: ("spiky", 2.1) if word == "spiky" else word}})
    row = only(of(load_study(study).runs, arm="dyt"))
    state = "interrupted" if word == "running" else "failed" if word in made.FAILURES else word  # nobody owns it
    assert row["state"] == ("done" if word in ("spiky", "diverged") else state)
    assert row["outcome"] == ("incomplete" if word in made.STATES else word)
    assert math.isnan(row["loss"]) == (word not in ("spiky", "diverged"))


def test_a_run_that_is_being_trained_is_running_and_reads_as_elsewhere(tmp_path: Path) -> None:
    directory = made.run(tmp_path, "running")
    assert read_status(directory)["state"] == "interrupted"
    claim = Claim.take(directory / "claim")
    try:
        assert read_status(directory)["state"] == "running"
    finally:
        claim.release()


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A study of two runs."""
    return made.study(tmp_path, {"baseline": {0: 2.0}, "layernorm": {0: 2.1}})


def baseline_run(study: Path) -> Path:
    return Path(only(of(load_study(study).runs, arm="baseline", stage="confirm", block=0))["directory"])


def test_a_last_line_that_was_cut_costs_that_line_alone(small: Path) -> None:
    path = baseline_run(small) / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:20]) + "\n" + lines[20][:30])
    loaded = load_study(small)
    steps = of(loaded.curves, run=path.parent.name)["step"]
    assert list(steps) == sorted({json.loads(line)["step"] for line in lines[:20]})


def test_a_step_that_is_there_twice_counts_as_it_was_written_last(small: Path) -> None:
    path = baseline_run(small) / "metrics.jsonl"
    path.write_text(
        '{"step": 1, "loss": 5.0, "lr": 1}\n{"step": 2, "loss": 4.0, "lr": 1}\n{"step": 1, "loss": null, "grad_norm": Infinity}\n'
    )
    curve = of(load_study(small).curves, run=path.parent.name)
    assert list(curve["step"]) == [1, 2]
    assert math.isnan(curve["loss"].iloc[0])
    assert curve["grad_norm"].iloc[0] == math.inf
    assert curve["loss"].iloc[1] == 4.0


@pytest.mark.parametrize("name", ["summary.json", "metrics.jsonl", "environment.json", "identity.json", "status.json"])
@pytest.mark.parametrize("damage", ["gone", "half", "empty", "another thing"])
def test_a_file_that_is_gone_or_broken_costs_what_it_held(name: str, damage: str, small: Path) -> None:
    path = baseline_run(small) / name
    text = path.read_text()
    path.unlink()
    if damage != "gone":
        path.write_text({"half": text[: len(text) // 2], "empty": "", "another thing": "[1, {}]"}[damage])
    loaded = load_study(small)
    row = only(of(loaded.runs, arm="baseline", stage="confirm", block=0))
    assert row["outcome"] == ("incomplete" if name in ("summary.json", "status.json") else "ok")
    assert (row["loss"] == 2.0) == (row["outcome"] == "ok")
    assert row["lr"] == 4e-3
    assert len(loaded.runs) == 2


def test_a_run_directory_that_was_deleted_is_a_row_without_a_result(small: Path) -> None:
    shutil.rmtree(baseline_run(small))
    row = only(of(load_study(small).runs, arm="baseline", stage="confirm", block=0))
    assert (row["state"], row["outcome"]) == ("new", "incomplete")
    assert math.isnan(row["loss"])


def test_a_study_none_of_whose_runs_is_there_says_how_to_run_them(small: Path) -> None:
    shutil.rmtree(small.parent / "runs")
    assert "none of its 2 runs is there; to run them: python -m ablate sweep=made" in message(lambda: load_study(small))


def test_an_unknown_study_names_those_there_are(small: Path) -> None:
    said = message(lambda: load(["mad"], small.parent))
    assert said.startswith("mad no such study")
    assert "there is made; did you mean 'made'?" in said
    assert "there is none" in message(lambda: load(["mad"], small / "cells"))


@pytest.mark.parametrize("content", ["{}", "", "[]", '{"arms": [{}], "cells": []}', '{"cells": [{"hash": 1}], "arms": []}'])
def test_a_plan_that_cannot_be_read_is_one_message_with_the_cure(content: str, small: Path) -> None:
    (small / "plan.json").write_text(content)
    said = message(lambda: load_study(small))
    assert "plan.json is no plan that this version can read" in said
    assert said.endswith("the command that made the study writes it anew: python -m ablate sweep=made")


def test_a_study_file_that_is_cut_is_one_message(small: Path) -> None:
    (small / "study.yaml").write_text("study: {question: [")
    assert "no plan that this version can read" in message(lambda: load_study(small))


# --- what is known beforehand


def test_loading_imports_no_torch() -> None:
    code = "import ablate.report.load, ablate.report.grouping, sys; print({'torch', 'wandb', 'hydra'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout == "set()\n"


def test_keys_that_are_no_identity_are_those_of_the_config() -> None:
    assert Config.not_identity == NOT_IDENTITY


# --- the table


def test_the_table_of_runs_has_every_row_in_the_order_of_arms_and_no_path(study: Path) -> None:
    loaded = load_study(study)
    table = tidy(loaded)
    assert len(table) == len(loaded.runs)
    assert list(dict.fromkeys(table["arm"])) == ["baseline", "layernorm", "again"]
    assert list(dict.fromkeys(of(table, arm="baseline")["stage"])) == ["tune", "confirm", "budget"]
    assert not table.map(lambda value: os.sep in str(value) and str(study.parent) in str(value)).any().any()
    assert sorted(table["hash"]) == sorted(loaded.runs["hash"])


def test_two_copies_of_a_run_count_once_and_are_noted(tmp_path: Path) -> None:
    first = made.run(tmp_path / "a", 2.0)
    second = made.run(tmp_path / "b", "running")
    made.run(tmp_path / "b", 2.5, ["norm=layernorm"])
    assert first.name == second.name
    loaded = load_runs_as_study([tmp_path / "b", tmp_path / "a"])
    row = only(of(loaded.runs, arm="baseline"))
    assert (row["loss"], row["directory"]) == (2.0, str(first))
    [note] = loaded.meta.notes
    assert note == f"{first.name[-12:]} is there twice, with different losses (None and 2.0): {first} counts"
