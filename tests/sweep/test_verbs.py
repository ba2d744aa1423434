"""The verbs on a local study: whether somebody is at it is known between two runs too, and what a kill cut short is one message."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from ablate.claim import owner_of
from ablate.sweep import control
from ablate.sweep.local import CANCEL
from tests.sweep.test_command import Pool, ablate, composer_of


@pytest.fixture
def study(short: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """The folder of a local study of two runs, both done."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(control, "Pool", Pool)
    monkeypatch.setattr(control, "Composer", composer_of)
    monkeypatch.setattr(Pool, "given", [])
    assert ablate("-m", "norm=layernorm,dyt", "study=mine", *short) == 0
    capsys.readouterr()
    return tmp_path / "results/mine"


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What happens while a verb sleeps, one after another; a sleep beyond those fails the test."""
    events: list[Callable[[], None]] = []
    monkeypatch.setattr(time, "sleep", lambda seconds: events.pop(0)())
    return events


def last_run(study: Path) -> Path:
    return Path(json.loads((study / "plan.json").read_text())["cells"][-1]["directory"])


def nothing() -> None:
    pass


# --- whether somebody is at it


def test_wait_stays_between_two_runs(study: Path, asleep: list[Callable[[], None]]) -> None:
    status = last_run(study) / "status.json"
    away, lock = status.rename(study / "away.json"), FileLock(study / "lock")
    lock.acquire()

    def done() -> None:
        away.rename(status)
        lock.release()

    asleep += [nothing, nothing, done]
    assert ablate("wait", "mine") == 0
    assert asleep == []


def test_a_live_status_ends_when_nobody_is_at_the_study(
    study: Path, asleep: list[Callable[[], None]], capsys: pytest.CaptureFixture[str]
) -> None:
    (last_run(study) / "status.json").unlink()
    lock = FileLock(study / "lock")
    lock.acquire()
    asleep += [nothing, lock.release]
    assert ablate("status", "mine", "--live") == 0
    assert asleep == []
    assert "1 done" in capsys.readouterr().out


def test_cancel_holds_the_study_back_until_its_controller_has_ended(
    study: Path, asleep: list[Callable[[], None]], capsys: pytest.CaptureFixture[str]
) -> None:
    lock = FileLock(study / "lock")
    lock.acquire()
    held: list[bool] = []

    def look() -> None:
        held.append(owner_of(study / CANCEL) is not None)

    asleep += [look, lock.release]
    assert ablate("cancel", "mine") == 0
    assert held == [True]
    assert owner_of(study / CANCEL) is None
    assert "0 runs on this machine asked to stop and so is the process that starts them" in capsys.readouterr().out


# --- what cannot be read

BROKEN: dict[str, tuple[str, Callable[[str], str]]] = {
    "plan.json without arms": ("plan.json", lambda text: '{"cells": []}'),
    "plan.json that is a list": ("plan.json", lambda text: "[]"),
    "plan.json with a null": ("plan.json", lambda text: text.replace('"later": 0', '"later": null')),
    "plan.json with a run that is no run": ("plan.json", lambda text: text.replace('"steps": 32', '"steps": 0')),
    "plan.json cut short": ("plan.json", lambda text: text[: len(text) // 3]),
    "study.yaml without its end": ("study.yaml", lambda text: text.partition("config_name:")[0]),
    "study.yaml without a launcher": ("study.yaml", lambda text: text.partition("launcher:")[0]),
    "study.yaml cut within its launcher": ("study.yaml", lambda text: text.partition("  runs_per_gpu:")[0]),
    "study.yaml that is a text": ("study.yaml", lambda text: "mine"),
    "study.yaml without its command": ("study.yaml", lambda text: text.partition("command:")[0]),
}


def test_what_cannot_be_read_of_a_study_is_one_message(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for what, (name, broken) in BROKEN.items():
        before = (study / name).read_text()
        assert broken(before) != before, what
        (study / name).write_text(broken(before))
        for verb in ("status", "cancel", "wait", "retry"):
            assert ablate(verb, "mine") == 2, what
            out, err = capsys.readouterr()
            assert (out, err.count("\n")) == ("", 2), what
            assert "has no plan that can be read: the command that made the study writes it anew" in err
        (study / name).write_text(before)


@pytest.mark.parametrize("lines", ["0", "-3", "few"])
def test_logs_of_fewer_lines_than_one_are_refused(lines: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ablate("logs", "0123", "-n", lines) == 2
    assert f"at least 1, got {lines}" in capsys.readouterr().err
