"""Sweeps on the command line: what is typed becomes a study, a wrong word is one message and code 2, and the verbs find the study again."""

from __future__ import annotations

import errno
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from ablate.cli import main
from ablate.config import parse
from ablate.files import read_yaml, write_text
from ablate.sweep import control
from ablate.sweep.composer import Composer
from ablate.sweep.plan import Cell

ROOT = Path(__file__).parents[2]


class Pool:
    """In place of processes: writes the end of each run. `ends`: how those of an arm end, if not with a result."""

    ends: ClassVar[dict[str, str]] = {}
    given: ClassVar[list[list[str]]] = []

    def __init__(self, study_dir: Path, code: Path, places: Sequence[Any], say: Any) -> None:
        pass

    def run(self, cells: Sequence[Cell], log_dir: Path, fail_fast: bool) -> None:
        self.given.append([cell.arm for cell in cells])
        for cell in cells:
            state = self.ends.get(cell.arm, "done")
            cell.directory.mkdir(parents=True)
            reason = {} if state == "done" else {"reason": "ValueError", "detail": "no luck"}
            (cell.directory / "status.json").write_text(json.dumps({"state": state, **reason}))
            if state == "done":
                (cell.directory / "summary.json").write_text(json.dumps({"eval_loss": _loss(cell), "seconds": 7.0}))


def _loss(cell: Cell) -> float:
    """Where rates are tried, a higher one is worse; both below what a model of token frequencies has."""
    return 2.0 + (float(cell.rate) if cell.stage == "tune" else cell.seed)


COMPOSED: tuple[dict[Any, Any], dict[Any, Any]] = ({}, {})


def composer_of(config_name: str, config_dir: str | None) -> Composer:
    """What Hydra composes is the same in all tests, and composed once."""
    composer = Composer(config_name, config_dir)
    if config_dir is None:
        composer._raw, composer._structures = COMPOSED
    return composer


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["ablate"])
    monkeypatch.setattr(control, "Pool", Pool)
    monkeypatch.setattr(control, "Composer", composer_of)
    monkeypatch.setattr(Pool, "ends", {})
    monkeypatch.setattr(Pool, "given", [])


def ablate(*words: str) -> int:
    """The exit code of a command."""
    try:
        return main(words)
    except SystemExit as end:
        return int(end.code or 0)


def plan_of(study: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path("results", study, "plan.json").read_text())
    return found


# --- what is typed wrongly

WRONG = {
    "-m nrm=rmsnorm,layernorm": ["nrm", "did you mean 'norm'"],
    "-m norm=rmsnrom,layernorm": ["norm", "'rmsnrom'", "did you mean 'rmsnorm'"],
    "-m norm.epss=1,2": ["norm.epss", "did you mean 'eps'"],
    "-m norm.eps=abc,1e-5": ["norm.eps", "abc fits nowhere", "valid number"],
    "-m norm=rmsnorm,layernorm optim.lr=-1": ["optim.lr", "greater than 0"],
    "-m norm=rmsnorm,layernorm dri_run=true": ["dri_run", "did you mean 'dry_run'"],
    "-m norm=rmsnorm,layernorm dry_run=maybe": ["dry_run", "valid boolean", "'maybe'"],
    "-m norm=rmsnorm,layernorm yes=no": ["yes", "valid boolean", "'no'"],
    "-m norm=rmsnorm,layernorm ask_above_hours=-1": ["ask_above_hours", "greater than or equal to 0"],
    "-m norm=rmsnorm,layernorm study=a,b": ["study", "one"],
    "-m norm=rmsnorm,layernorm study=a study=b": ["study", "set twice"],
    "-m norm=rmsnorm,layernorm 'study=\"a b\"'": ["name", "file name", "'a b'"],
    "-m norm=rmsnorm,layernorm norm=dyt": ["norm", "chosen twice"],
    "-m norm=rmsnorm,layernorm rerun=true": ["rerun", "single run", "retry"],
    "-m norm=rmsnorm,layernorm results_dir=a,b": ["results_dir", "one value"],
    "-m norm=rmsnorm,layernorm results_dir=null": ["results_dir", "must be a text", "'null'"],
    "-m norm=rmsnorm,layernorm 'results_dir=[a]'": ["results_dir", "must be a text", "'[a]'"],
    "-m norm=rmsnorm,layernorm study=runs": ["name", "where runs lie"],
    "-m norm=rmsnorm,layernorm tracker=none,wandb": ["tracker", "one value"],
    "-m norm=rmsnorm,layernorm seed=-1,0": ["seed", "at least 0"],
    "-m norm=rmsnorm,layernorm seed=a,b": ["seed", "whole numbers"],
    "-m norm=rmsnorm,layernorm init_seed=0,1": ["init_seed", "blocks"],
    "-m norm=rmsnorm,layernorm match=param": ["match", "did you mean 'params'"],
    "-m norm=none placement=post seed=0,1": ["no effect with norm=none"],
    "-m hydra/launcher=submitit_slurm norm=rmsnorm,layernorm": ["hydra/launcher", "hydra/launcher=slurm", "same options"],
    "-m hydra/launcher=joblib norm=rmsnorm,layernorm": ["hydra/launcher", "allowed: local, slurm"],
    "-m hydra/launcher=slrum norm=rmsnorm,layernorm": ["hydra/launcher", "did you mean 'slurm'"],
    "-m hydra/launcher=slurm hydra.launcher.partitoin=gpu norm=dyt,none": ["hydra.launcher.partitoin", "did you mean 'partition'"],
    "-m hydra.launcher.workers=0 norm=dyt,none": ["hydra.launcher.workers", "greater than or equal to 1"],
    "-m hydra.launcher.workers=1,2 norm=dyt,none": ["hydra.launcher.workers", "one"],
    "-m hydra.run.dir=x norm=dyt,none": ["hydra.run.dir", "has no effect", "hydra/launcher"],
    "-m norm=rmsnorm,layernorm --cfg job": ["--cfg", "dry_run=true"],
    "-m norm=rmsnorm,layernorm --info": ["--info", "dry_run=true"],
    "-m norm": ["norm", "key=value"],
    "norm=layernorm dry_run=true": ["dry_run", "-m"],
    "norm=layernorm study=mine": ["study", "-m"],
    "sweep=nrom": ["sweep", "'nrom'", "shipped are aa, ", "did you mean 'norm'"],
    "sweep=no/such.yaml": ["no/such.yaml", "no such file"],
    "sweep=norm norm=dyt,none": ["norm", "arms are what the study says"],
    "sweep=norm rerun=true": ["rerun", "retry"],
    "sweep=norm norm=dyt": ["norm", "what arms of norm differ in", "a study of your own"],
    "sweep=norm norm.eps=1e-3": ["norm.eps", "what arms of norm differ in"],
    "sweep=gpt2_to_llama3 ladder.to=gemma2": ["ladder.to", "key of study files"],
    "-m norm=rmsnorm,layernorm tuning.extend=1": ["tuning.extend", "key of study files"],
    "-m norm=rmsnorm,layernorm margin.nats=-1": ["margin.nats", "greater than 0"],
    "-m norm=rmsnorm,layernorm margin=0.01": ["margin", "margin.nats=0.01"],
    "-m norm=glob(layrnorm*)": ["norm", "glob(layrnorm*)", "fits none of"],
    "sweep=norm model.widht=64": ["set", "model.widht", "did you mean 'width'"],
    "sweep=norm optim.lr=1e-3": ["optim.lr", "tuning"],
    "status": ["status", "STUDY"],
    "status norm": ["norm", "no such study in results"],
    "wait norm": ["norm", "no such study"],
    "cancel norm": ["norm", "no such study"],
    "retry norm --failed=everything": ["--failed", "everything", "'crash'"],
    "retry norm": ["norm", "no such study"],
    "logs 0123": ["0123", "no such run"],
    "statsu norm": ["statsu", "did you mean 'status'"],
}


@pytest.mark.parametrize("command", WRONG)
def test_a_wrong_word_gets_one_clear_message_and_code_2_and_nothing_is_written(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ablate(*shlex.split(command)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ablate: 1 problem with what was asked:\n  ")
    assert "Traceback" not in err
    for words in WRONG[command]:
        assert words in err
    assert list(Path().iterdir()) == []


def test_all_problems_come_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert ablate("-m", "norm=rmsnrom,dyt", "ffn=gleu,gelu", "dri_run=true", "study=a,b", "hydra.run.dir=x") == 2
    err = capsys.readouterr().err
    for key in ("norm ", "ffn ", "dri_run", "study", "hydra.run.dir"):
        assert f"\n  {key}" in err


def test_all_problems_of_a_study_file_come_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    text = "question: Which?\ndesing: arms\narms: {layer: [norm=layernorm, seed=1]}\nblocks: -1\ntuning: {lr: [1e-3], seeds: [0]}\n"
    Path("mine.yaml").write_text(text)
    assert ablate("sweep=mine.yaml") == 2
    err = capsys.readouterr().err
    for key in ("mine.yaml: desing", "mine.yaml: design", "mine.yaml: arms.layer", "mine.yaml: blocks", "mine.yaml: tuning.lr"):
        assert f"\n  {key}" in err
    assert "did you mean 'design'" in err


def test_arms_of_a_study_file_that_cannot_be_had_come_at_once(capsys: pytest.CaptureFixture[str], short: list[str]) -> None:
    arms = {"one": ["norm=layernrom"], "two": ["norm=none", "placement=post"], "good": ["norm=dyt"]}
    Path("mine.yaml").write_text(yaml.safe_dump({"question": "Which?", "design": "arms", "arms": arms, "blocks": 2}))
    assert ablate("sweep=mine.yaml", *short) == 2
    err = capsys.readouterr().err
    assert "arms.one" in err
    assert "arms.two" in err
    assert "arms.good" not in err


# --- what is typed rightly


@pytest.mark.parametrize(
    ("typed", "folder"),
    [('"my results"', "my results"), ("my\\ results", "my results"), ('"größe"', "größe"), ("${oc.env:ABLATE_PLACE}/x", "there/x")],
)
def test_where_results_go_is_read_as_hydra_reads_it(typed: str, folder: str, short: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABLATE_PLACE", "there")
    Path("it's here").mkdir()
    monkeypatch.chdir("it's here")
    own = [word for word in short if not word.startswith("results_dir=")]
    assert ablate("-m", "norm=rmsnorm,layernorm", *own, f"results_dir={typed}", "study=a") == 0
    assert {path.name for path in Path(folder).iterdir()} >= {"a", "runs"}


def test_a_results_folder_that_is_a_file_is_one_message(short: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("taken").write_text("")
    own = [word for word in short if not word.startswith("results_dir=")]
    assert ablate("-m", "norm=rmsnorm,layernorm", *own, "results_dir=taken", "study=a") == 1
    assert capsys.readouterr().err.strip().endswith("taken/a: not a directory")


def test_a_results_folder_that_nobody_can_make_is_one_message(short: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    own = [word for word in short if not word.startswith("results_dir=")]
    assert ablate("-m", "norm=rmsnorm,layernorm", *own, "results_dir=/proc/none", "study=a") == 2
    err = capsys.readouterr().err
    assert "results_dir" in err
    assert "/proc/none/a cannot be made" in err


def test_a_run_whose_result_is_lost_is_trained_again(short: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-m", "norm=rmsnorm,layernorm", *short, "study=a"]
    assert ablate(*words) == 0
    lost = next(iter(Path("results", "runs").glob("*layernorm*")))
    (lost / "summary.json").write_text('{"eval')
    Pool.given.clear()
    assert ablate("status", "a") == 0
    assert "1 lost" in capsys.readouterr().out
    shutil.rmtree(lost)  # this pool makes the folder itself
    lost.mkdir()
    lost.rmdir()
    assert ablate(*words) == 0
    assert Pool.given == [["layernorm"]]


def test_a_study_that_cannot_be_written_anew_keeps_what_it_was(short: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert ablate("-m", "norm=rmsnorm,layernorm", *short, "study=a") == 0
    before = Path("results/a/study.yaml").read_text()

    def full(path: Path, text: str) -> None:
        if path.name == "study.yaml":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write_text(path, text)

    monkeypatch.setattr(control, "write_text", full)
    assert ablate("-m", "norm=rmsnorm,layernorm,dyt", *short, "study=a") == 1
    assert Path("results/a/study.yaml").read_text() == before


def test_a_dry_run_shows_the_plan_and_writes_nothing(short: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert ablate("-m", "norm=layernorm,dyt", "seed=0,1,2", "dry_run=true", *short) == 0
    out = capsys.readouterr().out
    assert "baseline (norm=layernorm)" in out
    assert "6 runs (6 new) of 2 arms on 3 blocks" in out
    assert "smallest difference from the baseline found with 80 % power on 3 blocks" in out
    assert not Path("results").exists()
    assert Pool.given == []


def axes_and_blocks(study: str) -> tuple[Any, Any]:
    values = (read_yaml(Path("results", study, "study.yaml")) or {})["study"]
    return values["axes"], values["blocks"]


@pytest.mark.parametrize(
    ("words", "axes", "blocks"),
    [
        (["norm=layernorm,dyt"], {"norm": ["layernorm", "dyt"]}, [0]),
        (["+norm=layernorm,dyt", "+seed=2"], {"norm": ["layernorm", "dyt"]}, [2]),
        (["norm=choice(layernorm,dyt)", "seed=range(1,3)"], {"norm": ["layernorm", "dyt"]}, [1, 2]),
        (["norm=glob(layernorm*)", "seed=5,3"], {"norm": None}, [5, 3]),
        (["norm.eps=1e-3,1e-4", "model.depth=range(1,3)"], {"norm.eps": ["0.001", "0.0001"], "model.depth": ["1", "2"]}, [0]),
        (["stability=[qk_norm],[qk_norm,z_loss]"], {"stability": ["[qk_norm]", "[qk_norm,z_loss]"]}, [0]),
        (["attention/qk_norm=none,head"], {"attention/qk_norm": ["none", "head"]}, [0]),
        (["norm=dyt", "seed=0,1"], {}, [0, 1]),
        (["norm=dyt,dyt", "seed=0,0,1"], {}, [0, 1]),
        ([], {}, [0]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and all(isinstance(word, str) for word in value) else "",
)
def test_keys_with_several_values_are_axes_and_seeds_are_blocks(words: list[str], axes: Any, blocks: Any, short: list[str]) -> None:
    quick = [text for text in short if not text.startswith("model.depth")] if "depth" in str(words) else short
    assert ablate("-m", *words, "study=mine", *quick) == 0
    found, seeds = axes_and_blocks("mine")
    assert seeds == blocks
    assert list(found) == list(axes)
    for key, values in axes.items():
        if values is None:
            assert set(found[key]) == {path.stem for path in (ROOT / "conf/norm").glob("layernorm*.yaml")}
        else:
            assert found[key] == values


def test_the_same_question_has_one_name_and_another_question_another(short: list[str]) -> None:
    def name(*words: str) -> str:
        before = set(Path("results").glob("*/study.yaml"))
        assert ablate("-m", *words, *short) == 0
        (new,) = {*Path("results").glob("*/study.yaml")} - before or {None}
        return new.parent.name if new else ""

    first = name("norm=layernorm,dyt", "seed=0,1")
    assert first.startswith("norm-")
    assert name("+norm=layernorm,dyt", "seed=0,1,2", "hydra.launcher.workers=1") == ""  # more blocks of the same
    assert name("norm=layernorm,dyt", "ffn=gelu") not in ("", first)


def test_a_grid_that_has_run_is_on_disk_and_runs_nothing_again(short: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    command = ["-m", "norm=layernorm,none", "placement=pre,post", "seed=0,1", "study=mine", *short]
    assert ablate(*command) == 0
    assert Pool.given == [["baseline", "post", "norm_none"] * 2]
    plan = plan_of("mine")
    assert [cell["seed"] for cell in plan["cells"]] == [0, 0, 0, 1, 1, 1]
    assert plan["dropped"][0]["overrides"] == ["norm=none", "placement=post"]
    assert [arm["name"] for arm in plan["arms"]] == ["baseline", "post", "norm_none"]
    assert plan["arms"][1]["levels"] == {"norm": "layernorm", "placement": "post"}
    for cell in plan["cells"]:
        kept = read_yaml(Path("results/mine/cells", f"{cell['hash']}.yaml")) or {}
        assert parse(kept["config"]).init_seed == cell["seed"]
        assert Path(cell["directory"]).is_dir()
        assert kept["directory"] == cell["directory"] == str(Path("results/runs", Path(cell["directory"]).name).absolute())
    assert Path("results/mine/code", plan["code"], "ablate/conf/config.yaml").is_file()
    capsys.readouterr()
    assert ablate(*command) == 0
    assert "6 runs (6 done)" in capsys.readouterr().out
    assert len(Pool.given) == 1


def test_more_seeds_run_what_is_new(short: list[str]) -> None:
    assert ablate("-m", "norm=layernorm,dyt", "seed=0,1", "study=mine", *short) == 0
    assert ablate("-m", "norm=layernorm,dyt", "seed=0,1,2", "study=mine", *short) == 0
    assert [len(given) for given in Pool.given] == [4, 2]


def test_a_run_without_a_result_is_named_with_its_reason_and_the_code_is_1(
    short: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pool, "ends", {"dyt": "failed"})
    assert ablate("-m", "norm=layernorm,dyt", "study=mine", *short) == 1
    out = capsys.readouterr().out
    assert "ValueError: no luck" in out
    assert "1 of 2 runs are done" in out


def test_a_study_of_two_stages_goes_through_both(short: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    tuning = {"lr": [1e-3, 2e-3, 4e-3], "seeds": [100], "extend": 0}
    values = {"question": "Which?", "design": "arms", "arms": {"layer": ["norm=layernorm"]}, "blocks": 2, "tuning": tuning}
    Path("mine.yaml").write_text(yaml.safe_dump(values))
    fixed = [text for text in short if not text.startswith("optim.lr=")]
    assert ablate("sweep=mine.yaml", *fixed) == 0
    assert list(map(len, Pool.given)) == [6, 4]
    plan = plan_of("mine")
    assert [cell["stage"] for cell in plan["cells"]] == ["tune"] * 6 + ["confirm"] * 4
    assert plan["tuned"]["layer"]["best"] == 1e-3
    assert ablate("sweep=mine.yaml", "seed=0,1,2", "study=longer", *fixed) == 0
    assert list(map(len, Pool.given)) == [6, 4, 2]
    assert len(plan_of("longer")["cells"]) - len(plan_of("mine")["cells"]) == 2
    assert "not tuned" in capsys.readouterr().out  # the best is at the end of the grid


def test_runs_of_a_study_are_one_group_at_wandb(short: list[str]) -> None:
    mirrored = [text for text in short if not text.startswith("tracker")]
    assert ablate("-m", "norm=layernorm,dyt", "study=mine", *mirrored, "tracker.tags=[x]") == 0
    assert ablate("-m", "norm=layernorm,dyt", "study=other", "seed=7", *mirrored, "tracker.group=of_mine") == 0
    for study, group, tags in (("mine", "mine", ["x"]), ("other", "of_mine", [])):
        for path in Path("results", study, "cells").iterdir():
            tracker = (read_yaml(path) or {})["config"]["tracker"]
            assert (tracker["group"], tracker["tags"]) == (group, tags)


def test_another_tracker_the_second_time_is_that_of_what_is_left(short: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pool, "run", lambda *given: None)
    assert ablate("-m", "norm=layernorm,dyt", "study=mine", *short) == 1
    assert ablate("-m", "norm=layernorm,dyt", "study=mine", *[t for t in short if not t.startswith("tracker")], "tracker=tensorboard") == 1
    for path in Path("results/mine/cells").iterdir():
        assert (read_yaml(path) or {})["config"]["tracker"]["kind"] == "tensorboard"


def test_many_hours_are_asked_about_and_nobody_to_ask_is_a_no(
    short: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["-m", "norm=layernorm,dyt", "study=mine", "ask_above_hours=24", *short]
    monkeypatch.setattr(control.Control, "_hours", lambda *given: 25.0)
    assert ablate(*command) == 2
    assert "about 25 hours of one worker for 2 runs" in capsys.readouterr().err
    assert not Path("results").exists()
    assert ablate(*command, "dry_run=true") == 0
    assert ablate(*command, "yes=true") == 0
    assert len(Pool.given) == 1


def test_a_grid_may_name_one_configuration_twice(short: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert ablate("-m", "attention.window=1/2,32,1/4", "study=mine", *short) == 0
    out = capsys.readouterr().out
    assert "window_32 is the same configuration as baseline: its runs are run once" in out
    assert len(plan_of("mine")["cells"]) == 2


def test_a_name_whose_runs_are_those_of_another_study_is_refused(short: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    command = ["-m", "norm=layernorm,dyt", "study=mine", *short]
    other = [text.replace("train.tokens=8192", "train.tokens=4096") for text in command]
    assert ablate(*command) == 0
    before = {path: path.read_bytes() for path in Path("results/mine").rglob("*") if path.is_file()}
    for words in (["dry_run=true"], []):
        assert ablate(*other, *words) == 2
        assert "'mine' is the name of another study, none of whose 2 runs is one of these: study=NAME" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in Path("results/mine").rglob("*") if path.is_file()} == before
    assert ablate("-m", "norm=layernorm,dyt", "seed=7", "study=mine", *short, "dry_run=true") == 0  # seeds make no other study
    assert ablate("-m", "norm=layernorm,rmsnorm", "study=mine", *short, "dry_run=true") == 0
    assert "this study has changed since it was last asked for" in capsys.readouterr().out


def test_a_margin_may_be_told_on_the_command_line(short: list[str]) -> None:
    assert ablate("-m", "norm=layernorm,dyt", "study=mine", "margin.nats=0.02", *short) == 0
    assert (read_yaml(Path("results/mine/study.yaml")) or {})["study"]["margin"] == {"tokens": None, "nats": 0.02}


def test_a_plan_says_what_slurm_will_be_asked_for(short: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    options = ["hydra/launcher=slurm", "hydra.launcher.partition=gpu", "hydra.launcher.timeout_min=90", "dry_run=true"]
    assert ablate("-m", "norm=layernorm,dyt", *short, *options) == 0
    said = capsys.readouterr().out
    assert "on Slurm: array jobs, a task for each of 2 runs: timeout_min=90 partition=gpu" in said
    assert "None" not in said


def test_an_arm_on_other_data_is_said_before_it_is_run(short: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    arms = "{other: [data=mqar], dyt: [norm=dyt]}"
    Path("mine.yaml").write_text(f"question: q\ndesign: arms\narms: {arms}\nblocks: [0, 1]\n", encoding="utf-8")
    assert ablate("sweep=mine.yaml", "dry_run=true", *short) == 0
    assert "other is of other data than the baseline" in capsys.readouterr().out
    assert ablate("-m", "data=sotu,mqar", "norm=layernorm,dyt", "dry_run=true", *short) == 0
    assert "other data" not in capsys.readouterr().out


# --- verbs


def test_verbs_find_a_study_and_say_how_it_stands(
    short: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pool, "ends", {"dyt": "crashed"})
    assert ablate("-m", "norm=layernorm,dyt", "study=mine", *short) == 1
    runs = {cell["arm"]: Path(cell["directory"]).name for cell in plan_of("mine")["cells"]}
    capsys.readouterr()
    assert ablate("status", "mine") == 0
    out = capsys.readouterr().out
    assert "2 runs (1 done, 1 crashed)" in out
    assert runs["dyt"][-12:-4] in out
    assert "2.0000" in out
    assert ablate("status", "results/mine", "--all") == 0
    assert ablate("wait", "mine") == 1
    assert "ValueError: no luck" in capsys.readouterr().out
    assert ablate("cancel", "mine") == 0
    assert ablate("status", "mien") == 2
    assert "did you mean 'mine'" in capsys.readouterr().err
    assert ablate("logs", runs["dyt"][-12:-6]) == 0
    Path("results/runs", runs["dyt"], "log.txt").write_text("what it said\n")
    capsys.readouterr()
    assert ablate("logs", runs["dyt"]) == 0
    assert "what it said" in capsys.readouterr().out
    assert ablate("retry", "mine", "--failed", "oom") == 0
    assert "nothing to retry" in capsys.readouterr().out


def test_retry_runs_what_crashed_and_nothing_else(short: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pool, "ends", {"dyt": "crashed", "norm_none": "failed"})
    assert ablate("-m", "norm=layernorm,dyt,none", "study=mine", *short) == 1
    monkeypatch.setattr(Pool, "run", lambda self, cells, *rest: self.given.append([cell.arm for cell in cells]))
    assert ablate("retry", "mine", "--failed", "crash") == 1
    assert Pool.given[1:] == [["dyt"]]


@pytest.mark.parametrize("words", [["status", "--help"], ["retry", "-h"], ["-m", "--help"]], ids=" ".join)
def test_help_of_verbs_and_of_multirun_names_a_study(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert ablate(*words) == 0
    out, err = capsys.readouterr()
    assert "STUDY" in out
    assert err == ""


def test_a_wrong_command_prints_no_traceback_and_writes_nothing(tmp_path: Path) -> None:
    words = ["-m", "norm=rmsnorm,layernorm", "hydra/launcher=slurm", "hydra.launcher.partitoin=x"]
    done = subprocess.run([sys.executable, "-m", "ablate", *words], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean 'partition'" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
