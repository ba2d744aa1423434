"""A run across processes is the run of one: its curve, its directory, its checkpoint, its ending."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ablate import build_model, compose
from ablate.claim import read_status
from ablate.cli import main
from ablate.errors import ConfigError
from ablate.runs import canonical, read_json, read_metrics
from ablate.train.distributed import World, check, export_slurm_tasks, rows_at_once
from tests.command import Command
from tests.train.test_launch import only_run, rows, wait_for_step

TOLERANCE = 1e-5
"""Relative, of every loss of a curve. Partial sums in another order differ in the last bits of float32 (6e-8)."""

MOE = ["ffn=moe", "ffn.expert.ratio=1", "ffn.selection_bias_rate=0.01", "dropout=dropout", "train.micro_batch_size=1"]

MUON = ["optim=muon", "train.micro_batch_size=2", "train.grad_clip=inf"]
"""Half a batch for each of two processes: then sums have one order, and no last bit is there for Muon's bfloat16 to make larger."""

NUMBERS = ["norm=dyt", "ffn=xielu", "position=fire", "optim.lr=5e-3"]
"""Parameters that are a single number each, which cannot be divided."""


class Ranks:
    """Processes of one run on this machine, started as torchrun starts them."""

    def __init__(self, start: Callable[..., Command], num: int, overrides: tuple[str, ...]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        shared = {"WORLD_SIZE": str(num), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
        places = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num)]
        self.commands = [start(*overrides, environment={**os.environ, **shared, **place}) for place in places]

    def codes(self, timeout: float = 400) -> list[int]:
        deadline = time.monotonic() + timeout
        return [command.wait(max(deadline - time.monotonic(), 1)) for command in self.commands]

    @property
    def outs(self) -> list[str]:
        return [command.output for command in self.commands]

    def kill(self) -> None:
        for command in self.commands:
            command.kill()


@pytest.fixture
def ranks(start: Callable[..., Command]) -> Callable[..., Ranks]:
    return lambda num, *overrides: Ranks(start, num, overrides)


def torchrun(num: int, *overrides: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num}", "-m", "ablate", *overrides]
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=400)


def assert_same_curve(one: Path, other: Path) -> None:
    """Every loss of every step and evaluation within rounding, every other number there."""
    ours, theirs = rows(one), rows(other)
    assert [(row["step"], *row) for row in ours] == [(row["step"], *row) for row in theirs]
    for mine, its in zip(ours, theirs, strict=True):
        for name in mine.keys() & {"loss", "eval/loss", "router_balance", "router_z", "future_tokens"}:
            assert its[name] == pytest.approx(mine[name], rel=TOLERANCE), (name, mine["step"])
        for name in (name for name in mine if name.startswith("probe/")):
            assert its[name] == pytest.approx(mine[name], rel=1e-3), (name, mine["step"])


def assert_same_to_the_bit(one: Path, other: Path) -> None:
    assert rows(one) == rows(other)
    ours, theirs = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert ours.keys() == theirs.keys()


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


CASES = [
    pytest.param(2, ["optim=adamw", "probes.every_steps=8"], id="adamw"),
    pytest.param(2, ["parallel=fsdp", "probes.every_steps=8", *NUMBERS], id="numbers-fsdp", marks=pytest.mark.slow),
    *(
        pytest.param(num, [*overrides, f"parallel={parallel}"], id=f"{name}-{parallel}-{num}", marks=pytest.mark.slow)
        for name, num, parallel, overrides in (
            ("moe", 2, "ddp", MOE),
            ("moe", 2, "fsdp", MOE),
            ("muon", 2, "ddp", MUON),
            ("muon", 2, "fsdp", MUON),
            ("accumulating", 2, "fsdp", ["train.micro_batch_size=1"]),
            ("tied-multi_token", 4, "fsdp", ["head=tied", "loss=multi_token"]),
            ("task", 2, "ddp", ["data=copy", "data.vocab_size=32", "optim.lr=1e-3"]),
        )
    ),
]


@pytest.mark.parametrize(("num", "overrides"), CASES)
def test_the_curve_is_that_of_one_process(
    num: int, overrides: list[str], short: list[str], ranks: Any, results: Path, tmp_path: Path
) -> None:
    command = [*short, "train.tokens=5120", *overrides]
    code = main([*(word for word in command if not word.startswith("parallel")), f"results_dir={tmp_path / 'one'}"])
    group = ranks(num, *command)
    assert group.codes() == [code] * num, group.outs
    assert only_run(results).name == only_run(tmp_path / "one").name
    assert_same_curve(only_run(tmp_path / "one"), only_run(results))
    if code:  # collapsed, which is as good a curve
        return
    one, other = (read_json(only_run(folder) / "summary.json") for folder in (tmp_path / "one", results))
    assert one.keys() == other.keys()
    scored = [place for place, loss in enumerate(one["loss_at_position"]) if loss is not None]
    assert scored == [place for place, loss in enumerate(other["loss_at_position"]) if loss is not None]
    assert [other["loss_at_position"][place] for place in scored] == pytest.approx(
        [one["loss_at_position"][place] for place in scored], rel=1e-4
    )
    assert other["length_extrapolation"]["targets"] == one["length_extrapolation"]["targets"]


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_killed_processes_end_bit_for_bit_as_unbroken_ones(
    parallel: str, short: list[str], ranks: Any, results: Path, tmp_path: Path
) -> None:
    command = [*short, *MOE, "train.batch_size=6", "train.tokens=7680", "optim=muon", "checkpoint.every_seconds=0.2"]
    command += [f"parallel={parallel}"]
    assert ranks(3, *command, f"results_dir={tmp_path / 'unbroken'}").codes() == [0, 0, 0]  # three: their sums have an order
    killed = ranks(3, *command)
    directory = wait_for_step(results, 5, killed.commands[0])
    killed.kill()
    assert read_status(directory)["state"] == "interrupted"
    asked = ranks(3, *command)
    wait_for_step(results, 10, asked.commands[0])
    asked.commands[1].send(signal.SIGTERM)  # only one of them hears it
    assert asked.codes() == [75, 75, 75], asked.outs
    status = read_status(directory)
    assert (status["state"], status["reason"]) == ("stopped", "SIGTERM")
    assert torch.load(directory / "checkpoint.pt", weights_only=True)["step"] == status["step"] < 20
    assert ranks(3, *command).codes() == [0, 0, 0]
    assert_same_to_the_bit(only_run(tmp_path / "unbroken"), directory)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_run_goes_on_with_another_number_of_processes(parallel: str, short: list[str], ranks: Any, results: Path, tmp_path: Path) -> None:
    command = [*short, "optim=muon"]
    assert main([*command, f"results_dir={tmp_path / 'one'}"]) == 0
    group = ranks(2, *command, f"parallel={parallel}")
    wait_for_step(results, 4, group.commands[0])
    group.commands[0].send(signal.SIGTERM)
    assert group.codes() == [75, 75], group.outs
    step = read_status(only_run(results))["step"]
    assert main(command) == 0
    starts = read_json(only_run(results) / "environment.json")
    assert [start["processes"] for start in starts] == [2, 1]
    assert 4 <= step < 32
    assert read_json(only_run(results) / "summary.json")["eval_loss"] == pytest.approx(
        read_json(only_run(tmp_path / "one") / "summary.json")["eval_loss"], rel=1e-3
    )


@pytest.mark.slow
def test_the_first_process_alone_writes_and_speaks(short: list[str], ranks: Any, results: Path) -> None:
    group = ranks(2, *(word for word in short if word != "tracker=none"), "tracker=tensorboard", "train.tokens=2048")
    assert group.codes() in ([0, 0], [1, 1]), group.outs
    directory = only_run(results)
    assert "2 processes (ddp)" in group.outs[0]
    assert group.outs[1] == ""
    assert [row["step"] for row in rows(directory) if "loss" in row] == list(range(1, 9))
    assert [start["processes"] for start in read_json(directory / "environment.json")] == [2]
    assert len(list(directory.rglob("events.out.*"))) == 1


@pytest.mark.slow
def test_a_number_that_is_not_finite_ends_all_alike(short: list[str], ranks: Any, results: Path) -> None:
    group = ranks(2, *short, "optim.lr=1e20", "schedule=constant", "train.grad_clip=inf")
    assert group.codes() == [1, 1], group.outs
    assert read_status(only_run(results))["reason"] == "non-finite"
    assert "Traceback" not in "".join(group.outs)


@pytest.mark.slow
def test_what_the_first_alone_finds_wrong_ends_all_alike(short: list[str], ranks: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    group = ranks(2, *short, f"results_dir={tmp_path / 'file'}")
    assert group.codes() == [2, 2], group.outs
    assert "cannot write" in group.outs[0]
    assert group.outs[1] == ""


@pytest.mark.slow
def test_a_run_that_others_own_is_left_to_them(short: list[str], ranks: Any, results: Path) -> None:
    command = [*short, "train.tokens=4096000"]
    owner = ranks(1, *command)
    directory = wait_for_step(results, 3, owner.commands[0])
    second = ranks(2, *command)
    assert second.codes() == [75, 75], second.outs
    assert "is being run by process" in second.outs[0]
    assert read_status(directory)["state"] == "running"


@pytest.mark.slow
@pytest.mark.parametrize("dying", [0, 1])
def test_a_process_that_dies_leaves_no_other_waiting(dying: int, short: list[str], ranks: Any, results: Path) -> None:
    group = ranks(2, *short, "train.tokens=4096000")
    directory = wait_for_step(results, 3, group.commands[0])
    group.commands[dying].kill()
    codes = group.codes(timeout=120)
    assert codes[dying] == -signal.SIGKILL
    assert codes[1 - dying] not in (0, -signal.SIGKILL)
    assert read_status(directory)["state"] in ("crashed", "interrupted")


@pytest.mark.slow
def test_torchrun_trains_a_run_once(short: list[str], ranks: Any, results: Path) -> None:
    first = torchrun(2, *short)
    assert first.returncode == 0, first.stderr
    assert first.stdout.count("2 processes (ddp)") == 1
    again = ranks(2, *short)
    assert again.codes() == [0, 0], again.outs
    assert "".join(again.outs).count("already done") == 1
    assert len(read_metrics(only_run(results) / "metrics.jsonl")) == 32 + 4


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_compiled_processes_train_close_to_eager_ones(parallel: str, short: list[str], plain: Path, ranks: Any, results: Path) -> None:
    group = ranks(2, *short, "compile=true", f"parallel={parallel}")
    assert group.codes() == [0, 0], group.outs
    one, other = (read_json(directory / "summary.json") for directory in (plain, only_run(results)))
    assert (one["compiled"], other["compiled"]) == (False, True)
    assert one["eval_loss"] == pytest.approx(other["eval_loss"], abs=2e-4)


def sequences(num: int, *overrides: str) -> int:
    """How many a process runs at once."""
    cfg = compose(list(overrides))
    check(cfg, World(size=num))
    return rows_at_once(cfg, build_model(cfg), World(size=num))


SMALL = ["model.width=32", "model.depth=1", "model.heads=2", "train.batch_size=12"]


@pytest.mark.parametrize(("num", "micro", "rows"), [(1, 12, 12), (2, 12, 6), (3, 12, 4), (2, 6, 6), (4, 6, 3), (6, 2, 2), (12, 12, 1)])
def test_a_micro_batch_is_cut_where_there_are_too_few_for_all(num: int, micro: int, rows: int) -> None:
    assert sequences(num, *SMALL, f"train.micro_batch_size={micro}") == rows


@pytest.mark.parametrize(
    ("num", "overrides", "said"),
    [
        (2, ["ffn=moe"], "experts are balanced over a micro-batch); allowed: 6, 3, 2, 1"),
        (4, ["dropout=dropout"], "dropout draws its numbers for a micro-batch); allowed: 3, 1"),
        (5, [], "12 sequences cannot be shared evenly by 5 processes"),
        (1, ["parallel=fsdp"], "it has no effect"),
    ],
)
def test_what_cannot_be_shared_is_refused_with_the_cure(num: int, overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        sequences(num, *SMALL, *overrides)
    assert said in str(refused.value)


def test_how_a_run_is_parallel_is_no_part_of_what_it_is() -> None:
    assert canonical(compose(["parallel=fsdp"]), "") == canonical(compose([]), "")


def test_an_environment_of_torchrun_that_is_not_whole_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="needs RANK and LOCAL_RANK"):
        World.from_environment()


@pytest.mark.parametrize("set_before", [{"SLURM_NTASKS": "1"}, {"SLURM_NTASKS": "4", "WORLD_SIZE": "2"}, {}])
def test_a_single_slurm_task_stays_one_process(set_before: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_NTASKS", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in set_before.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    export_slurm_tasks()
    assert dict(os.environ) == before
