"""A run from the command to its directory: done once, resumed bit for bit, owned by one, ended with what happened."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ablate.claim import ClaimLost, read_status
from ablate.cli import main
from ablate.runs import load_runs, read_json, read_metrics
from tests.command import Command

VOLATILE = {"seconds", "tokens_per_second", "flop_utilisation"}


def only_run(results: Path) -> Path:
    [directory] = (results / "runs").iterdir()
    return directory


def rows(directory: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in VOLATILE} for row in read_metrics(directory / "metrics.jsonl")]


def wait_for_step(results: Path, step: int, command: Command) -> Path:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        assert command.code is None, command.output
        for directory in (results / "runs").glob("*/"):
            if any(row["step"] >= step for row in read_metrics(directory / "metrics.jsonl")):
                return directory
        time.sleep(0.01)
    raise AssertionError("the run did not get there in time")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


def test_a_run_whose_result_cannot_be_read_is_told_and_done_again_on_request(
    short: list[str], results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(short) == 0
    directory = only_run(results)
    whole = read_json(directory / "summary.json")
    (directory / "summary.json").write_text('{"eval_lo')
    assert read_status(directory)["state"] == "lost"
    assert main(short) == 1
    assert "its summary.json is broken: rerun=true does it again" in capsys.readouterr().out
    assert main([*short, "rerun=true"]) == 0
    assert read_json(directory / "summary.json")["eval_loss"] == whole["eval_loss"]


def test_a_run_leaves_a_whole_directory(short: list[str], results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["+norm=layernorm", *short]) == 0
    directory = only_run(results)
    assert directory.name.startswith("norm=layernorm-init=fan_in-")
    assert {path.name for path in directory.iterdir()} == {
        *("config.yaml", "identity.json", "environment.json", "metrics.jsonl", "summary.json", "status.json", "log.txt"),
        *("model.safetensors", "claim.lock"),
    }
    assert read_status(directory)["state"] == "done"
    summary = read_json(directory / "summary.json")
    evaluations = [row for row in rows(directory) if "eval/loss" in row]
    assert [row["step"] for row in evaluations] == [8, 16, 24, 32]
    assert summary["eval_loss"] == evaluations[-1]["eval/loss"] < evaluations[0]["eval/loss"]
    assert summary["eval_bytes"] == 4096
    assert summary["tokens"] == 32 * 4 * 64
    out = capsys.readouterr().out
    assert f"evaluation loss {summary['eval_loss']:.4f}" in out
    assert "No run of the baseline at seed 0 yet" in out


def test_the_same_command_again_says_already_done_and_trains_nothing(
    short: list[str], results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(short) == 0
    before = {path.name: path.stat().st_mtime_ns for path in only_run(results).iterdir()}
    first = capsys.readouterr().out
    assert main([*short, "threads=1", "checkpoint.every_seconds=7"]) == 0
    again = capsys.readouterr().out
    assert "already done" in again
    assert read_json(only_run(results) / "summary.json")["eval_loss"] == pytest.approx(
        float(first.split("evaluation loss ")[1].split()[0]), abs=1e-4
    )
    assert {path.name: path.stat().st_mtime_ns for path in only_run(results).iterdir()} == before


def test_a_finished_run_that_is_asked_for_an_extension_names_the_verb(
    short: list[str], results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*short, "eval.extend=ntk"]) == 0
    capsys.readouterr()
    assert main([*short, "eval.extend=ntk"]) == 0
    assert "extrapolate" not in capsys.readouterr().out
    assert main([*short, "eval.extend=yarn"]) == 0
    assert f"python -m ablate extrapolate {only_run(results)} --extend yarn" in capsys.readouterr().out


def test_brackets_in_a_path_are_no_markup(short: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*short, f"results_dir='{tmp_path}/a[/b]c'"]) == 0
    assert f"run {tmp_path}/a[/b]c/runs/" in capsys.readouterr().out


def test_rerun_does_it_again_with_the_same_numbers(short: list[str], results: Path) -> None:
    assert main(short) == 0
    first, weights = rows(only_run(results)), load_file(only_run(results) / "model.safetensors")
    assert main([*short, "rerun=true"]) == 0
    assert rows(only_run(results)) == first
    again = load_file(only_run(results) / "model.safetensors")
    assert all(torch.equal(again[name], weights[name]) for name in weights)


def test_a_changed_corpus_is_another_run(short: list[str], results: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    for content in ("one two three four\n" * 2000, "one two three fIve\n" * 2000):
        text.write_text(content)
        assert main([*short, "data=text", f"data.path={text}", "train.tokens=512"]) in (0, 1)
    assert len(list((results / "runs").iterdir())) == 2


@pytest.mark.parametrize("optim", ["adamw", pytest.param("muon", marks=pytest.mark.slow)])
def test_a_killed_run_ends_bit_for_bit_as_an_unbroken_one(
    optim: str, short: list[str], start: Callable[..., Command], results: Path, tmp_path: Path
) -> None:
    command = [*short, f"optim={optim}", "train.tokens=20480", "checkpoint.every_seconds=0.05"]
    assert main([*command, f"results_dir={tmp_path / 'unbroken'}"]) == 0
    for step in (15, 40):
        killed = start(*command)
        directory = wait_for_step(results, step, killed)
        killed.kill()
        assert read_status(directory)["state"] == "interrupted"
    assert main(command) == 0
    unbroken = only_run(tmp_path / "unbroken")
    directory = only_run(results)
    assert directory.name == unbroken.name
    assert len(read_json(directory / "environment.json")) == 3
    assert rows(directory) == rows(unbroken)
    one, other = load_file(directory / "model.safetensors"), load_file(unbroken / "model.safetensors")
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert read_json(directory / "summary.json")["eval_loss"] == read_json(unbroken / "summary.json")["eval_loss"]


@pytest.mark.parametrize("name", ["SIGTERM", *(pytest.param(name, marks=pytest.mark.slow) for name in ("SIGUSR2", "SIGINT"))])
def test_a_signal_finishes_the_step_saves_and_leaves(name: str, short: list[str], start: Callable[..., Command], results: Path) -> None:
    asked = start(*short, "train.tokens=409600")
    directory = wait_for_step(results, 5, asked)
    asked.send(signal.Signals[name])
    assert "Traceback" not in asked.end(75)
    status = read_status(directory)
    assert (status["state"], status["reason"]) == ("stopped", name)
    steps = [row["step"] for row in rows(directory) if "loss" in row]
    assert steps == list(range(1, status["step"] + 1))
    assert torch.load(directory / "checkpoint.pt", weights_only=True)["step"] == status["step"]


@pytest.mark.slow
def test_a_stopped_run_goes_on_where_it_was(short: list[str], start: Callable[..., Command], results: Path, tmp_path: Path) -> None:
    command = [*short, "train.tokens=40960"]
    assert main([*command, f"results_dir={tmp_path / 'unbroken'}"]) == 0
    asked = start(*command)
    wait_for_step(results, 5, asked)
    asked.send(signal.SIGTERM)
    asked.end(75)
    assert "resumed at step" in start(*command).end()
    assert rows(only_run(results)) == rows(only_run(tmp_path / "unbroken"))


def test_a_second_process_leaves_a_run_to_its_owner(short: list[str], start: Callable[..., Command], results: Path) -> None:
    command = [*short, "train.tokens=409600"]
    first = start(*command)
    directory = wait_for_step(results, 3, first)
    assert f"is being run by process {first.pid}" in start(*command).end(75)
    assert read_status(directory)["state"] == "running"
    assert first.code is None


def test_a_process_that_lost_its_run_writes_nothing_more_into_it(
    short: list[str], results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lose(run: Any) -> None:
        raise ClaimLost("another process took this run over")

    monkeypatch.setattr("ablate.runs.Run.check_owned", lose)
    assert main(short) == 75
    assert "took this run over" in capsys.readouterr().out
    assert read_status(only_run(results))["state"] in ("running", "interrupted")
    assert not (only_run(results) / "error.txt").exists()


def test_a_run_that_is_not_finite_ends_as_failed_and_is_not_tried_again(
    short: list[str], results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*short, "optim.lr=1e20", "schedule=constant", "train.grad_clip=inf"]
    assert main(command) == 1
    status = read_status(only_run(results))
    assert (status["state"], status["reason"]) == ("failed", "non-finite")
    assert "non-finite" in capsys.readouterr().out
    assert not (only_run(results) / "summary.json").exists()
    assert main(command) == 1
    assert "failed before" in capsys.readouterr().out
    assert len(read_json(only_run(results) / "environment.json")) == 1
    runs, curves = load_runs(results)
    assert runs["state"].tolist() == ["failed"]
    assert len(curves) == status["step"]


def test_a_collapsed_run_ends_as_failed_and_says_why(short: list[str], results: Path) -> None:
    assert main([*short, "optim.lr=1e-12"]) == 1
    status = read_status(only_run(results))
    assert (status["state"], status["reason"]) == ("failed", "collapsed")
    assert status["step"] == 16
    assert "unigram entropy" in status["detail"]


def test_a_crash_leaves_its_traceback_and_is_tried_again(short: list[str], results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("the disk is on fire")

    with monkeypatch.context() as patched:
        patched.setattr("ablate.train.loop.evaluate_now", broken)
        with pytest.raises(RuntimeError, match="on fire"):
            main(short)
    status = read_status(only_run(results))
    assert (status["state"], status["reason"], status["detail"]) == ("crashed", "RuntimeError", "the disk is on fire")
    assert "the disk is on fire" in (only_run(results) / "error.txt").read_text()
    assert main(short) == 0
    assert not (only_run(results) / "error.txt").exists()


def test_a_broken_checkpoint_is_one_clear_message(short: list[str], results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(short) == 0
    directory = only_run(results)
    (directory / "status.json").write_text("{}")
    for content in (b"", b"garbage"):
        (directory / "checkpoint.pt").write_bytes(content)
        assert main(short) == 2
        assert "rerun=true starts again" in capsys.readouterr().err
    assert main([*short, "rerun=true"]) == 0


def test_one_seed_is_called_a_screen_and_more_get_an_interval(short: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    command = [word for word in short if word.partition("=")[0] not in ("init", "optim.lr", "train.tokens")]
    command += ["optim.lr=1e-2", "train.tokens=16384"]
    for seed in (0, 1):
        assert main([*command, f"seed={seed}"]) == 0
    capsys.readouterr()
    assert main([*command, "norm=layernorm", "seed=0"]) == 0
    out = capsys.readouterr().out
    assert "screen only, run seeds 0..2 to learn more" in out
    assert "interval" not in out
    assert main([*command, "norm=layernorm", "seed=1"]) == 0
    assert "95 % interval" in (out := capsys.readouterr().out)
    assert "2 paired seeds" in out


@pytest.mark.slow
def test_gradient_accumulation_is_the_same_run_but_for_rounding(short: list[str], plain: Path, results: Path) -> None:
    assert main([*short, "train.micro_batch_size=1"]) == 0
    one, other = (read_json(directory / "summary.json")["eval_loss"] for directory in (plain, only_run(results)))
    assert one == pytest.approx(other, abs=2e-4)


@pytest.mark.slow
def test_bfloat16_trains_close_to_float32(short: list[str], plain: Path, results: Path) -> None:
    assert main([*short, "dtype=bfloat16"]) == 0
    one, other = (read_json(directory / "summary.json")["eval_loss"] for directory in (plain, only_run(results)))
    assert one == pytest.approx(other, abs=0.02)
    assert one != other


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside torch.compile
def test_a_compiled_run_is_close_to_an_eager_one(short: list[str], plain: Path, results: Path) -> None:
    assert main([*short, "compile=true"]) == 0
    one, other = (read_json(directory / "summary.json") for directory in (plain, only_run(results)))
    assert (one["compiled"], other["compiled"]) == (False, True)
    assert one["eval_loss"] == pytest.approx(other["eval_loss"], abs=2e-4)


def test_the_seeds_of_weights_and_data_can_be_set_alone(short: list[str], results: Path) -> None:
    first_losses = {}
    for seeds in ([], ["init_seed=1"], ["data_seed=1"]):
        assert main([*short, "train.tokens=512", "optim.lr=1e-3", *seeds]) in (0, 1)
    for path in (results / "runs").glob("*/identity.json"):
        identity = json.loads(path.read_text())
        first_losses[identity["init_seed"], identity["data_seed"]] = rows(path.parent)[0]["loss"]
    assert len(first_losses) == len(set(first_losses.values())) == 3
