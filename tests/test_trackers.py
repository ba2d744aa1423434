"""Mirrors against the real W&B and TensorBoard: what arrives, what a dead or silent server costs, and that a directory replays."""

from __future__ import annotations

import gzip
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

import ablate.config
from ablate.errors import ConfigError
from ablate.registry import Options
from ablate.trackers import TRACKER, Mirror, start_mirror, sync
from ablate.trackers.follow import Rows
from ablate.trackers.variants import ARCHITECTURE

ROOT = Path(__file__).parents[1]
KEY = "a" * 40
NAME = "layernorm-lr=0.01-s0-0123456789ab"
CONFIG = {"norm": {"kind": "layernorm", "eps": 1e-5}, "attention": {"kind": "mha"}, "optim": {"kind": "adamw", "lr": 0.01}, "threads": None}
EVERY, EVAL_EVERY = 10, 25


# --- run directories, as training writes them


def make(directory: Path, steps: int = 100, state: str = "running", summary: dict[str, Any] | None = None) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    train(directory, 1, steps)
    if summary:
        (directory / "summary.json").write_text(json.dumps(summary))
    end(directory, state)
    return directory


def train(directory: Path, first: int, last: int) -> None:
    with open(directory / "metrics.jsonl", "a") as file:
        for step in range(first, last + 1):
            file.write(json.dumps({"step": step, "tokens": step * 64, "loss": loss(step), "lr": 0.01}) + "\n")
            if step % EVAL_EVERY == 0:
                file.write(json.dumps({"step": step, "tokens": step * 64, "eval/loss": loss(step) + 1}) + "\n")


def loss(step: int) -> float:
    return {30: math.nan, 40: math.inf}.get(step, 3 + 1 / step)


def end(directory: Path, state: str, **facts: Any) -> None:
    temporary = directory / "status.tmp"
    temporary.write_text(json.dumps({"state": state, "time": time.time(), **facts}))
    temporary.rename(directory / "status.json")


def options(kind: str = "wandb", **changes: Any) -> Options:
    values = yaml.safe_load((ROOT / f"conf/tracker/{kind}.yaml").read_text())
    return TRACKER.options(kind).model_validate({**values, **changes})


def mirrored(directory: Path, tracker: Options) -> Mirror:
    """A mirror of a run that is over: it has sent all when this returns."""
    mirror = Mirror(directory, tracker)
    mirror.start(follow=False)
    assert mirror.wait(60) is None, (directory / "tracker.log").read_text()
    return mirror


# --- what arrived


def wandb_runs(directory: Path) -> list[Path]:
    return sorted((directory / "wandb").glob("*run-*"))


def records(run: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(run)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return [json.loads(line) for line in shown.stdout.splitlines()]


def history(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = [record["history"]["item"] for record in found if record["type"] == "history"]
    return [{key: float(value) for key, value in row.items() if not key.startswith("_")} for row in rows]


def expected_steps(last: int) -> list[int]:
    return [step for step in range(1, last + 1) if step % EVERY == 0 or step % EVAL_EVERY == 0]


def wait_until(condition: Callable[[], Any], seconds: float = 30) -> Any:
    """What the condition gives once it is true."""
    stop = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < stop, "it did not happen"
        time.sleep(0.05)
    return value


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def processes_that_mention(text: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            mentions = text.encode() in (path / "environ").read_bytes()
        except OSError:
            continue
        if mentions and int(path.name) != os.getpid() and running(int(path.name)):
            found.append(int(path.name))
    return found


@pytest.fixture(scope="module", autouse=True)
def no_account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No key, no settings, and an address where nobody listens: nothing leaves this machine."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            patch.delenv(name)
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
        yield


# --- the module


def test_importing_the_trackers_loads_neither_wandb_nor_torch_nor_pandas() -> None:
    code = "import sys, ablate.trackers; print({'wandb', 'torch', 'tensorboard', 'pandas', 'hydra', 'ablate.config'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout == "set()\n"


@pytest.mark.parametrize("word", TRACKER.words())
def test_every_tracker_has_a_yaml_that_gives_each_option_and_no_other(word: str) -> None:
    assert set(options(word).model_dump()) == set(yaml.safe_load((ROOT / f"conf/tracker/{word}.yaml").read_text()))


def test_the_tags_know_every_axis_of_the_architecture() -> None:
    assert set(ARCHITECTURE) == set(ablate.config.ARCHITECTURE)


# --- the rows of a growing file


def test_a_last_line_that_is_cut_is_read_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = Rows(path)
    assert list(rows.read(ended=False)) == []
    path.write_text('{"step": 1, "loss": 3.0}\n{"step": 2, "lo')
    assert list(rows.read(ended=False)) == []
    with open(path, "a") as file:
        file.write('ss": 2.5}\n{"step": 2, "eval/loss": 2.0}\n{"step": 3')
    assert list(rows.read(ended=False)) == [{"step": 1, "loss": 3.0}]
    assert list(rows.read(ended=True)) == [{"step": 2, "loss": 2.5, "eval/loss": 2.0}]


def test_a_file_that_a_resume_rewrites_gives_each_step_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"step": {step}, "start": 1}}\n' for step in range(1, 6)))
    rows = Rows(path)
    seen = list(rows.read(ended=False))
    temporary = tmp_path / "new"
    temporary.write_text("".join(f'{{"step": {step}, "start": 2}}\n' for step in range(1, 9)))
    temporary.rename(path)
    seen += list(rows.read(ended=True))
    assert [(row["step"], row["start"]) for row in seen] == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2), (6, 2), (7, 2), (8, 2)]


# --- W&B offline


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was mirrored while it ran, and failed."""
    directory = make(tmp_path_factory.mktemp("runs") / NAME, steps=60)
    mirror = start_mirror(directory, options(project="a/b#c", tags=["mine", "x" * 100, "mine"]))
    train(directory, 61, 100)
    (directory / "summary.json").write_text(json.dumps({"eval": {"loss": 2.5}, "steps": 100}))
    end(directory, "failed", reason="collapse")
    assert mirror.finish() is None, (directory / "tracker.log").read_text()
    return directory


@pytest.fixture(scope="module")
def offline(followed: Path) -> list[dict[str, Any]]:
    """Its records."""
    [run] = wandb_runs(followed)
    assert run.name.startswith("offline-run-")
    return records(run)


def test_every_evaluation_and_every_tenth_training_row_arrive(offline: list[dict[str, Any]]) -> None:
    rows = history(offline)
    assert [row["step"] for row in rows] == expected_steps(100)
    assert all(row["tokens"] == row["step"] * 64 for row in rows)
    assert {row["step"]: row["eval/loss"] for row in rows if "eval/loss" in row} == {step: loss(step) + 1 for step in (25, 50, 75, 100)}
    assert {row["step"]: row["loss"] for row in rows if row["step"] not in (30, 40)} == {
        step: loss(step) for step in expected_steps(100) if step not in (30, 40)
    }


def test_numbers_that_are_not_finite_survive(offline: list[dict[str, Any]]) -> None:
    by_step = {row["step"]: row["loss"] for row in history(offline)}
    assert math.isnan(by_step[30])
    assert by_step[40] == math.inf


def test_a_run_is_found_by_id_name_group_and_tags_that_w_and_b_allows(offline: list[dict[str, Any]]) -> None:
    [run] = [record["run"] for record in offline if record["type"] == "run"]
    assert (run["run_id"], run["display_name"], run["run_group"]) == ("0123456789ab", "layernorm-lr=0.01-s0", "layernorm-lr=0.01")
    assert (run["project"], run["job_type"]) == ("a-b-c", "train")
    assert sorted(run["tags"]) == ["attention:mha", "mine", "norm:layernorm", "x" * 64]
    config = {key: value for key, value in run["config"]["update"].items() if key != "_wandb"}
    assert config == {
        "norm.kind": "layernorm",
        "norm.eps": 1e-5,
        "attention.kind": "mha",
        "optim.kind": "adamw",
        "optim.lr": 0.01,
        "threads": None,
    }


def test_summary_end_state_and_exit_code_arrive(offline: list[dict[str, Any]]) -> None:
    summary: dict[str, Any] = {}
    for record in offline:
        summary.update(record.get("summary", {}).get("update", {}))
    assert {key: summary[key] for key in ("eval.loss", "steps", "state", "reason")} == {
        "eval.loss": 2.5,
        "steps": 100,
        "state": "failed",
        "reason": "collapse",
    }
    assert [record["exit"]["exit_code"] for record in offline if record["type"] == "exit"] == [1]


@pytest.mark.slow
def test_a_resumed_run_leaves_one_complete_offline_run(followed: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(followed, tmp_path / NAME))
    (directory / "tracker.log").unlink()
    mirror = start_mirror(directory, options())  # the state is still the earlier end, which must not end it
    wait_until(lambda: (directory / "tracker.log").read_text().startswith("to "))
    time.sleep(1)
    end(directory, "running")
    train(directory, 101, 150)
    end(directory, "done")
    assert mirror.finish() is None
    [run] = wandb_runs(directory)
    found = records(run)
    assert [row["step"] for row in history(found)] == expected_steps(150)
    assert [record["exit"]["exit_code"] for record in found if record["type"] == "exit"] == [0]


@pytest.mark.slow
def test_w_and_b_s_own_word_for_offline_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_MODE", "offline")
    mirror = mirrored(make(tmp_path / NAME, state="done"), options(mode="auto"))
    assert "offline-run-" in str(mirror.result)


@pytest.mark.slow
def test_a_killed_run_is_mirrored_to_its_last_row_and_not_as_a_clean_end(tmp_path: Path) -> None:
    directory = make(tmp_path / NAME, steps=60)
    code = f"""
import json, sys, time
from pathlib import Path
from ablate.trackers import TRACKER, start_mirror
tracker = TRACKER.options("wandb").model_validate(json.loads(sys.argv[1]))
print(start_mirror(Path({str(directory)!r}), tracker).pid, flush=True)
time.sleep(600)
"""
    command = [sys.executable, "-c", code, json.dumps(options().model_dump())]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        mirror = int(parent.stdout.readline())
        wait_until(lambda: wandb_runs(directory))
        train(directory, 61, 100)
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: not running(mirror), seconds=15)
    [run] = wandb_runs(directory)
    found = records(run)
    assert [row["step"] for row in history(found)] == expected_steps(100)
    assert [record["exit"]["exit_code"] for record in found if record["type"] == "exit"] == [255]


# --- servers that are dead, silent, or there


def test_a_dead_server_costs_a_warning_and_the_rows_are_kept_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{unused.getsockname()[1]}")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "1")
    directory = make(tmp_path / NAME)
    mirror = start_mirror(directory, options())
    assert mirror.problem() is None  # it is back before the mirror has so much as tried
    warning = wait_until(mirror.problem)
    assert "online is not possible" in warning
    assert f"ablate sync {directory}" in warning
    end(directory, "done")
    assert mirror.finish() is None
    [run] = wandb_runs(directory)
    assert run.name.startswith("offline-run-")
    assert [row["step"] for row in history(records(run))] == expected_steps(100)


def test_a_silent_server_holds_the_run_up_no_longer_than_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel takes connections; nobody answers
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        directory = make(tmp_path / NAME)
        began = time.monotonic()
        mirror = start_mirror(directory, options(finish_timeout_seconds=4))
        end(directory, "done")
        warning = str(mirror.finish())
        assert 3.5 < time.monotonic() - began < 6
    assert warning.startswith("the W&B mirror did not finish within 4 s")
    assert f"ablate sync {directory}" in warning
    wait_until(lambda: not processes_that_mention(os.environ["WANDB_BASE_URL"]), seconds=10)


class Server(ThreadingHTTPServer):
    """As much of a W&B server as a run needs. Once `silent` is set it takes requests and answers none."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.rows: list[dict[str, Any]] = []
        self.silent = threading.Event()
        self.free = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path.endswith("/file_stream"):
            self.rows += [json.loads(row) for row in body.get("files", {}).get("wandb-history.jsonl", {}).get("content", [])]
            return {}
        query, variables = body.get("query", ""), body.get("variables", {})
        project = {"id": "P", "name": variables.get("project"), "entity": {"id": "E", "name": "me"}}
        if "upsertBucket" in query:
            bucket = {"id": "B", "name": variables["name"], "displayName": "", "config": "{}", "project": project}
            return {"upsertBucket": {"bucket": bucket, "inserted": not self.rows}}
        if "createRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.url}/upload/{name}"} for name in variables["files"]]
            return {"createRunFiles": {"runID": "B", "uploadHeaders": [], "files": files}}
        if "RunResumeStatus" in query:
            return {"model": {**project, "bucket": self.bucket(variables["name"]) if self.rows else None}}
        return {}

    def bucket(self, name: str) -> dict[str, Any]:
        last = json.dumps(self.rows[-1])
        counts = {"logLineCount": 0, "historyLineCount": len(self.rows), "eventsLineCount": 0}
        tails = {"summaryMetrics": last, "historyTail": json.dumps([last]), "eventsTail": "[]", "config": "{}", "wandbConfig": '{"t": {}}'}
        return {"id": "B", "name": name, "displayName": "", "tags": [], **counts, **tails}


class Answers(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.server.silent.is_set():
            self.server.free.wait(60)
            return
        body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        asked = json.loads(body) if "/upload/" not in self.path else {}
        text = json.dumps({"data": self.server.answer(self.path, asked)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_PUT = do_POST

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        yield server
        server.free.set()
        server.shutdown()


@pytest.mark.slow
def test_online_a_resumed_run_sends_only_what_the_server_lacks(server: Server, tmp_path: Path) -> None:
    directory = make(tmp_path / NAME, state="stopped")
    assert "/runs/0123456789ab" in str(mirrored(directory, options()).result)
    assert [row["step"] for row in server.rows] == expected_steps(100)
    train(directory, 101, 150)
    end(directory, "done")
    mirrored(directory, options())
    assert [row["step"] for row in server.rows] == expected_steps(150)


@pytest.mark.slow
def test_a_server_that_falls_silent_in_mid_run_costs_a_warning(server: Server, tmp_path: Path) -> None:
    directory = make(tmp_path / NAME)
    mirror = start_mirror(directory, options(finish_timeout_seconds=8))
    wait_until(lambda: server.rows)
    server.silent.set()
    train(directory, 101, 150)
    end(directory, "done")
    began = time.monotonic()
    warning = str(mirror.finish())
    assert time.monotonic() - began < 10
    assert f"ablate sync {directory}" in warning


# --- replay


@pytest.mark.slow
def test_sync_replays_every_run_of_a_folder_on_its_own_with_the_numbers_of_its_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "results/runs/a-s0-aaaaaaaaaaaa", steps=20, state="done")
    make(tmp_path / "results/runs/b-s1-bbbbbbbbbbbb", steps=40, state="crashed")
    assert sync([str(tmp_path / "results"), "project=12", "every_steps=1", "tracker.tags=[x]"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["a-s0-aaaaaaaaaaaa", "b-s1-bbbbbbbbbbbb"]
    for name, steps in (("a-s0-aaaaaaaaaaaa", 20), ("b-s1-bbbbbbbbbbbb", 40)):
        [path] = wandb_runs(tmp_path / "results/runs" / name)
        found = records(path)
        [run] = [record["run"] for record in found if record["type"] == "run"]
        assert (run["run_id"], run["project"]) == (name[-12:], "12")
        assert "x" in run["tags"]
        rows = history(found)
        assert [row["step"] for row in rows] == list(range(1, steps + 1))
        assert [row["loss"] for row in rows] == pytest.approx([loss(step) for step in range(1, steps + 1)], rel=0, abs=0, nan_ok=True)


@pytest.mark.slow
def test_sync_tries_no_other_run_once_the_server_is_not_to_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "1")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    first, second = (make(tmp_path / f"x-s{seed}-{seed:012d}", steps=20, state="done") for seed in (0, 1))
    assert sync([str(first), str(second)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "online is not possible" in lines[0]
    assert lines[1].endswith("not tried")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], ["run directory"]),
        (["nowhere"], ["nowhere", "no run directory"]),
        (["RUN", "projct=x"], ["projct", "did you mean 'project'"]),
        (["RUN", "mode=onlin"], ["mode", "'online'", "onlin"]),
        (["RUN", "every_steps=0"], ["every_steps", "greater than or equal to 1"]),
        (["RUN", "tags=[x"], ["tags", "must be a list"]),
        (["RUN", "kind=wandbb"], ["kind", "did you mean 'wandb'"]),
    ],
)
def test_sync_says_what_was_typed_wrongly(tmp_path: Path, argv: list[str], words: list[str]) -> None:
    run = make(tmp_path / NAME, steps=1)
    with pytest.raises(ConfigError) as caught:
        sync([str(run) if word == "RUN" else word for word in argv])
    assert [word for word in words if word not in str(caught.value)] == []


# --- TensorBoard


@pytest.mark.slow
def test_tensorboard_holds_the_numbers_of_the_rows_once_after_a_resume(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

    directory = make(tmp_path / NAME, state="stopped")
    (directory / "tensorboard").mkdir()
    (directory / "tensorboard/events.out.tfevents.1.earlier.0").write_bytes(b"")
    (directory / "summary.json").write_text('{"eval": {"loss": 2.5}}')
    mirrored(directory, options("tensorboard"))
    assert len(list((directory / "tensorboard").iterdir())) == 1
    events = EventAccumulator(str(directory / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    read = {event.step: event.value for event in events.Scalars("loss")}
    assert list(read) == expected_steps(100)
    assert read == pytest.approx({step: loss(step) for step in read}, rel=1e-6, nan_ok=True)  # event files hold float32
    assert {event.step: event.value for event in events.Scalars("eval/loss")} == pytest.approx({s: loss(s) + 1 for s in (25, 50, 75, 100)})
    assert [(event.step, event.value) for event in events.Scalars("summary/eval.loss")] == [(100, 2.5)]


# --- what is not installed, and what dies


@pytest.mark.parametrize("kind", ["wandb", "tensorboard"])
def test_a_tracker_that_is_not_installed_costs_a_warning_with_the_cure(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {kind!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""
    (tmp_path / "sitecustomize.py").write_text(hook)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    directory = make(tmp_path / NAME)
    mirror = start_mirror(directory, options(kind))
    end(directory, "done")
    warning = str(mirror.finish())
    assert f"pip install {kind}" in warning
    assert f"ablate sync {directory}" in warning
    assert mirror.finish() is None  # each warning once


@pytest.mark.slow
def test_the_signals_of_a_scheduler_do_not_end_a_mirror(tmp_path: Path) -> None:
    directory = make(tmp_path / NAME)
    mirror = start_mirror(directory, options("tensorboard"))
    assert mirror.pid is not None
    wait_until(lambda: "to " in (directory / "tracker.log").read_text())
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        os.killpg(mirror.pid, number)
    end(directory, "stopped")
    assert mirror.finish() is None
    assert str(mirror.result).startswith(f"{len(expected_steps(100))} rows")


def test_a_mirror_that_dies_is_a_warning_that_comes_once(tmp_path: Path) -> None:
    mirror = start_mirror(make(tmp_path / NAME), options())
    assert mirror.problem() is None
    assert mirror.pid is not None
    os.killpg(mirror.pid, signal.SIGKILL)
    assert "mirror died" in wait_until(mirror.problem)
    assert mirror.problem() is None
    assert mirror.finish() is None


def test_a_directory_that_cannot_be_written_costs_a_warning(tmp_path: Path) -> None:
    mirror = start_mirror(tmp_path / "absent", options())
    assert "did not start" in str(mirror.finish())


def test_no_tracker_is_no_process(tmp_path: Path) -> None:
    directory = make(tmp_path / NAME)
    mirror = start_mirror(directory, options("none"))
    assert mirror.pid is None
    assert mirror.problem() is None
    assert mirror.finish() is None
    assert not (directory / "tracker.log").exists()
