"""The local pool: it shares out the machine, its runs end by themselves or with it, and the same command again runs what is left."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import pytest

from ablate.claim import Claim, owner_of
from ablate.files import read_metrics
from ablate.sweep.board import is_controlled
from ablate.sweep.launchers import Local
from ablate.sweep.local import CANCEL, Interrupted, Pool, Slot, slots
from ablate.sweep.plan import Cell
from ablate.sweep.worker import LONGEST_DELAY_SECONDS, _spread_starts
from ablate.trackers.variants import DELAY
from tests.command import Command

LONG = 50_000
"""Steps of a run that does not end before a signal finds it."""

MODULE = """
import os, signal, time
from ablate.model.norm import NORM, RMSNorm


@NORM.register("raising")
class Raising(RMSNorm):
    def forward(self, x):
        if not x.is_meta and self.weight.requires_grad and self.training:
            raise RuntimeError("this one raises")
        return super().forward(x)


@NORM.register("killed")
class Killed(RMSNorm):
    def forward(self, x):
        if not x.is_meta and self.training and not os.path.exists("mended"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)


@NORM.register("waiting")
class Waiting(RMSNorm):
    def forward(self, x):
        if not x.is_meta and self.training and os.path.exists("wait"):
            time.sleep(0.2)  # a step is a second
        return super().forward(x)
"""


def options(**given: Any) -> Local:
    return Local.model_validate({"kind": "local", "workers": None, "threads": None, "runs_per_gpu": 1, "fail_fast": False, **given})


@pytest.mark.parametrize(
    ("given", "cores", "gpus", "expected"),
    [
        ({}, 4, [], [Slot(1, None)] * 4),
        ({"threads": 3}, 8, [], [Slot(3, None)] * 2),
        ({"threads": 16}, 8, [], [Slot(16, None)]),
        ({"workers": 3}, 2, [], [Slot(1, None)] * 3),
        ({"workers": 2, "threads": 4}, 2, [], [Slot(4, None)] * 2),
        ({}, 8, ["0", "1"], [Slot(4, "0"), Slot(4, "1")]),
        ({"runs_per_gpu": 2}, 8, ["0", "1"], [Slot(2, "0"), Slot(2, "1"), Slot(2, "0"), Slot(2, "1")]),
        ({"workers": 1}, 8, ["5", "7"], [Slot(8, "5")]),
        ({"workers": 9}, 8, ["5"], [Slot(8, "5")]),
        ({"runs_per_gpu": 8, "threads": 2}, 4, ["0"], [Slot(2, "0")] * 8),
        ({"runs_per_gpu": 8}, 4, ["0"], [Slot(1, "0")] * 8),
    ],
)
def test_threads_and_gpus_are_shared_out(given: dict[str, Any], cores: int, gpus: list[str], expected: list[Slot]) -> None:
    assert slots(options(**given), cores, gpus) == expected


@pytest.mark.parametrize(("runs", "longest"), [(1, 0.25), (40, 10.0), (4000, LONGEST_DELAY_SECONDS)])
def test_trackers_of_many_runs_start_apart(runs: int, longest: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({"to_run": runs}))
    delays = []
    for _ in range(50):
        monkeypatch.delenv(DELAY, raising=False)
        _spread_starts(tmp_path)
        delays.append(float(os.environ[DELAY]))
    monkeypatch.delenv(DELAY)
    assert 0 <= min(delays) <= max(delays) <= longest + 0.05
    assert len(set(delays)) > 1


def test_a_pool_of_a_cancelled_study_starts_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    pool, cells = Pool(tmp_path, tmp_path, [Slot(1, None)], said.append), [cast(Cell, None)]
    claim = Claim.take(tmp_path / CANCEL)
    with pytest.raises(Interrupted, match="cancel"):
        pool.run(cells, tmp_path / "batch", fail_fast=False)
    claim.release()
    assert said == ["cancel: 0 runs save and stop; the same command goes on"]


# --- real processes


class Sweep:
    """Commands of one folder."""

    def __init__(self, folder: Path, short: list[str], start: Callable[..., Command]) -> None:
        self.folder, self._short, self._start = folder, short, start

    def start(self, *words: str) -> Command:
        return self._start(*words, folder=self.folder)

    def norms(self, *words: str) -> list[str]:
        """Of the user's own, with what chooses among them on the command line."""
        (self.folder / "mine.py").write_text(MODULE)
        (self.folder / "conf/norm").mkdir(parents=True)
        for word in words:
            (self.folder / f"conf/norm/{word}.yaml").write_text(f"defaults: [rmsnorm, _self_]\nkind: {word}\n")
        return ["--config-dir", "conf", "imports=[mine]"]

    def grid(self, *words: str) -> list[str]:
        typed = {word.partition("=")[0] for word in words}
        return ["-m", "study=mine", *words, *(text for text in self._short if text.partition("=")[0] not in typed)]

    def directories(self) -> dict[str, Path]:
        plan = json.loads((self.folder / "results/mine/plan.json").read_text())
        return {f"{cell['arm']}-{cell['seed']}": Path(cell["directory"]) for cell in plan["cells"]}

    def states(self) -> dict[str, str]:
        return {name: json.loads((path / "status.json").read_text())["state"] for name, path in self.directories().items() if path.exists()}

    def steps(self) -> dict[str, int]:
        """The last step of every run that has taken one."""
        found = {path.parent.name: read_metrics(path) for path in self.folder.glob("results/runs/*/metrics.jsonl")}
        return {name: rows[-1]["step"] for name, rows in found.items() if rows}

    def wait_for_two(self, before: Mapping[str, int] = MappingProxyType({})) -> None:
        """Until two runs have taken steps beyond those of `before`."""
        self.wait(lambda: sum(step > before.get(name, 0) + 1 for name, step in self.steps().items()) >= 2)

    def unbroken(self, path: Path, *words: str) -> Path:
        """The run that a directory is of, when nothing happens to it."""
        kept = [text for text in self._short if not text.startswith("results_dir=")]
        self.start(*words, *kept, "results_dir=unbroken").end()
        return self.folder / "unbroken/runs" / path.name

    def wait(self, ready: Callable[[], bool]) -> None:
        end = time.monotonic() + 240
        while not ready():
            assert time.monotonic() < end
            time.sleep(0.1)

    def owners(self) -> list[dict[str, Any]]:
        found = [owner_of(path) for path in self.folder.glob("results/runs/*/claim")]
        return [owner for owner in found if owner is not None]


@pytest.fixture
def sweep(tmp_path: Path, short: list[str], start: Callable[..., Command]) -> Sweep:
    return Sweep(tmp_path, short, start)


@pytest.mark.slow
def test_a_grid_runs_to_its_end_and_the_same_command_runs_nothing(sweep: Sweep) -> None:
    command = sweep.grid("norm=layernorm,rmsnorm", "hydra.launcher.workers=2")
    said = sweep.start(*command).end()
    assert "2 runs, 2 at once, each with 1 thread" in said
    assert "2 of 2 runs are done" in said
    assert set(sweep.states().values()) == {"done"}
    before = {path: path.stat().st_mtime_ns for path in sweep.folder.glob("results/runs/*/*")}
    said = sweep.start(*command).end()
    assert "2 runs (2 done)" in said
    assert "hours of one worker" not in said
    assert {path: path.stat().st_mtime_ns for path in sweep.folder.glob("results/runs/*/*")} == before


@pytest.mark.slow
def test_runs_that_raise_or_are_killed_are_named_and_the_others_finish(sweep: Sweep) -> None:
    command = [*sweep.norms("raising", "killed"), *sweep.grid("norm=raising,killed,rmsnorm", "hydra.launcher.workers=1")]
    said = sweep.start(*command).end(1)
    assert sweep.states()["baseline-0"] == "crashed"
    assert "RuntimeError: this one raises" in said
    assert "node: it was killed" in said
    assert "1 of 3 runs are done" in said
    (sweep.folder / "mended").touch()
    assert "2 runs, 1 at once" in sweep.start(*command).end(1)
    assert {name: state for name, state in sweep.states().items() if state != "done"} == {"baseline-0": "crashed"}
    assert "RuntimeError: this one raises" in sweep.start("logs", sweep.directories()["baseline-0"].name).end()
    sweep.start(*command, "hydra.launcher.fail_fast=true", "seed=0,1").end(1)
    assert "rmsnorm-1" not in sweep.states()  # behind the one that raised


@pytest.mark.slow
def test_a_signal_saves_and_stops_the_runs_and_the_same_command_goes_on_bit_for_bit(sweep: Sweep) -> None:
    mine = [*sweep.norms("waiting"), "norm=waiting"]
    command = [*mine, *sweep.grid("seed=3,4", "hydra.launcher.workers=2")]
    (sweep.folder / "wait").touch()
    for number in (signal.SIGINT, signal.SIGTERM):
        before = sweep.steps()
        process = sweep.start(*command)
        sweep.wait_for_two(before)
        process.send(number)
        assert f"{number.name}: 2 runs save and stop; the same command goes on" in process.end(130)
        assert set(sweep.states().values()) == {"stopped"}
    (sweep.folder / "wait").unlink()
    sweep.start(*command).end()
    for path, seed in zip(sweep.directories().values(), (3, 4), strict=True):
        other = sweep.unbroken(path, *mine, f"seed={seed}")
        assert (path / "log.txt").read_text().count("resumed at step") == 2
        assert (path / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
        assert loss_of(path) == loss_of(other)


def loss_of(directory: Path) -> float:
    return float(json.loads((directory / "summary.json").read_text())["eval_loss"])


@pytest.mark.slow
def test_runs_end_by_themselves_when_their_controller_is_killed_and_a_second_controller_keeps_off(sweep: Sweep) -> None:
    command = sweep.grid("seed=0,1,2", f"train.tokens={LONG * 256}", "hydra.launcher.workers=2")
    process = sweep.start(*command)
    sweep.wait_for_two()
    assert "study mine is being run by another process: nothing was started" in sweep.start(*command).end(75)
    assert len(sweep.owners()) == 2
    assert "3 runs (2 running, 1 new)" in sweep.start("status", "mine").end()
    process.kill()
    sweep.wait(lambda: not sweep.owners())
    assert set(sweep.states().values()) == {"stopped"}


@pytest.mark.slow
def test_cancel_stops_what_runs_and_nothing_is_started_in_its_place(sweep: Sweep) -> None:
    command = [*sweep.norms("waiting"), "norm=waiting", *sweep.grid("seed=0,1,2", "hydra.launcher.workers=2")]
    (sweep.folder / "wait").touch()
    process = sweep.start(*command)
    sweep.wait_for_two()
    assert "2 runs on this machine asked to stop" in sweep.start("cancel", "mine").end()
    assert "cancel: 2 runs save and stop; the same command goes on" in process.end(130)
    assert sweep.states() == {"baseline-0": "stopped", "baseline-1": "stopped"}
    (sweep.folder / "wait").unlink()
    assert "3 of 3 runs are done" in sweep.start(*command).end()


@pytest.mark.slow
def test_before_a_run_trains_cancel_finds_the_study_and_wait_stays(sweep: Sweep) -> None:
    command = sweep.grid("seed=0,1", "hydra.launcher.workers=1")
    process = sweep.start(*command)
    sweep.wait((sweep.folder / "results/mine/plan.json").exists)
    sweep.start("cancel", "mine").end()
    assert "the same command goes on" in process.end(130)
    process = sweep.start(*command)
    sweep.wait(lambda: is_controlled(sweep.folder / "results/mine"))
    assert "2 of 2 runs are done" in sweep.start("wait", "mine").end()
    process.end()
