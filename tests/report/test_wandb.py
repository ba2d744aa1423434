"""Runs from W&B: what a mirror sent is read back by the real client, and gives the frames that the run directories give.

The server here keeps what W&B's client uploads and answers what its public API asks. Like W&B's own it returns rows and configs as they
came; it is no proof of what that one does with a request that this one does not know.
"""

from __future__ import annotations

import gzip
import json
import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from ablate.errors import ConfigError
from ablate.report.load import Loaded, Tuned, load
from ablate.report.wandb_runs import record_of
from ablate.trackers import TRACKER, Mirror
from tests.report import made

ROOT = Path(__file__).parents[2]
KEY = "a" * 40


class Server(ThreadingHTTPServer):
    """As much of W&B as runs need to be sent and read."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.runs: dict[str, dict[str, Any]] = {}
        self.url = f"http://127.0.0.1:{self.server_port}"

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path.endswith("/file_stream"):
            return self.stream(self.runs[path.split("/")[-2]], body)
        query, variables = body.get("query", ""), body.get("variables", {})
        if "upsertBucket" in query:
            return self.upsert(variables)
        if "createRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.url}/upload/{name}"} for name in variables["files"]]
            return {"createRunFiles": {"runID": "B", "uploadHeaders": [], "files": files}}
        if "RunResumeStatus" in query:  # of runs that are all new
            return {"model": {"id": "P", "name": variables.get("project"), "entity": {"id": "E", "name": "me"}, "bucket": None}}
        if "viewer {" in query:
            return {"viewer": {"id": "U", "entity": "me", "username": "me", "email": "me@here", "flags": "{}", "teams": {"edges": []}}}
        return {"project": self.project(query, variables)}

    def upsert(self, variables: dict[str, Any]) -> dict[str, Any]:
        run = self.runs.setdefault(variables["name"], {"rows": [], "summary": {}, "state": "running"})
        run.update({key: value for key, value in variables.items() if value is not None})
        project = {"id": "P", "name": variables.get("project"), "entity": {"id": "E", "name": "me"}}
        bucket = {"id": "B", "name": variables["name"], "displayName": variables.get("displayName"), "config": "{}", "project": project}
        return {"upsertBucket": {"bucket": bucket, "inserted": True}}

    def stream(self, run: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
        files = body.get("files", {})
        run["rows"] += files.get("wandb-history.jsonl", {}).get("content", [])
        for text in files.get("wandb-summary.json", {}).get("content", []):
            run["summary"] = json.loads(text)
        if body.get("complete"):
            run["state"] = "finished" if body.get("exitcode") == 0 else "failed"
        return {}

    def project(self, query: str, variables: dict[str, Any]) -> dict[str, Any] | None:
        if variables.get("project") != "ablate":
            return None
        if "query Runs(" in query:
            group = json.loads(variables.get("filters") or "{}").get("group")
            nodes = [self.node(name, run) for name, run in self.runs.items() if group in (None, run.get("groupName"))]
            page = {"endCursor": None, "hasNextPage": False}
            edges = [{"node": node, "cursor": node["name"]} for node in nodes]
            return {"internalId": "7", "runCount": len(nodes), "readOnly": False, "runs": {"edges": edges, "pageInfo": page}}
        run = self.runs[variables.get("name") or variables.get("runName") or variables["run"]]
        if "parquetHistory" in query:
            return {"run": {"parquetHistory": {"parquetUrls": [], "liveData": [{"_step": len(run["rows"]) - 1}]}}}
        if "history(" in query:
            return {"run": {"history": run["rows"][variables["minStep"] : variables["maxStep"]]}}
        return {"run": {"historyKeys": {"lastStep": len(run["rows"]) - 1}}}

    def node(self, name: str, run: dict[str, Any]) -> dict[str, Any]:
        facts = {"id": "B", "projectId": "7", "name": name, "displayName": run["displayName"], "group": run.get("groupName"), "tags": []}
        data = {"config": run["config"], "summaryMetrics": json.dumps(run["summary"]), "systemMetrics": "{}"}
        times = dict.fromkeys(("createdAt", "heartbeatAt"), "2026-11-30T04:12:25Z")
        history = {"historyLineCount": len(run["rows"]), "historyKeys": {"lastStep": len(run["rows"]) - 1}}
        rest = {"sweepName": None, "jobType": "train", "commit": None, "readOnly": False, "description": "", "notes": ""}
        return {**facts, **data, **times, **history, **rest, "state": run["state"], "user": {"name": "me", "username": "me"}}


class Answers(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        asked = json.loads(body) if body.startswith(b"{") and "/upload/" not in self.path else {}
        text = json.dumps({"data": self.server.answer(self.path, asked)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_PUT = do_POST

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server() as server, pytest.MonkeyPatch.context() as patch:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("WANDB_BASE_URL", server.url)
        patch.setenv("WANDB_API_KEY", KEY)
        patch.delenv("WANDB_MODE", raising=False)
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def both(server: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[Loaded, Loaded]:
    """The same runs, from W&B and from their directories."""
    root = tmp_path_factory.mktemp("runs")
    paths = [made.run(root, 2.0, seed=0), made.run(root, 2.1, ["norm=layernorm"], seed=0), made.run(root, "nan", ["norm=dyt"], seed=0)]
    values = yaml.safe_load((ROOT / "conf/tracker/wandb.yaml").read_text())
    for path in paths:
        options = {**values, "project": "ablate", "entity": "me", "group": "mine", "every_steps": 1, "mode": "online"}
        mirror = Mirror(path, TRACKER.options("wandb").model_validate(options))
        mirror.start(follow=False)
        assert mirror.wait(120) is None, (path / "tracker.log").read_text()
    return load(["wandb:me/ablate/mine"]), load([str(root)])


@pytest.mark.slow
def test_w_and_b_gives_the_rows_that_the_directories_give(both: tuple[Loaded, Loaded]) -> None:
    theirs, ours = (one.runs.sort_values("hash").reset_index(drop=True) for one in both)
    assert both[0].meta.source == "wandb"
    for one in both:
        assert one.meta.baseline == one.meta.arms[0].name == "baseline"
        assert {arm.name for arm in one.meta.arms} == {"baseline", "norm=layernorm", "norm=dyt"}
    unknown = ["commit", "device", "device_type", "threads", "processes", "torch", "numpy", "python", "host", "started"]
    assert theirs[unknown].isna().all().all()
    same = [column for column in ours if column not in (*unknown, "directory", "data", "run", "detail")]
    pd.testing.assert_frame_equal(theirs[same], ours[same], check_dtype=False, check_exact=True)
    assert dict(zip(theirs["arm"], theirs["outcome"], strict=True)) == {"baseline": "ok", "norm=layernorm": "ok", "norm=dyt": "nan"}


@pytest.mark.slow
def test_w_and_b_gives_every_number_of_the_curves(both: tuple[Loaded, Loaded]) -> None:
    frames = []
    for one in both:
        curves = one.curves.assign(run=one.curves["run"].str[-12:])
        frames.append(curves[sorted(curves.columns)].sort_values(["run", "step"]).reset_index(drop=True))
    pd.testing.assert_frame_equal(*frames, check_dtype=False, check_exact=True)
    positions = [one.by_position.assign(run=one.by_position["run"].str[-12:]).sort_values(["run", "position"]) for one in both]
    pd.testing.assert_frame_equal(*(frame.reset_index(drop=True) for frame in positions), check_exact=True)


@pytest.mark.slow
def test_another_group_and_another_project_are_one_message(both: tuple[Loaded, Loaded]) -> None:
    with pytest.raises(ConfigError, match=r"wandb:me/ablate/other.* has no runs"):
        load(["wandb:me/ablate/other"])
    with pytest.raises(ConfigError, match=r"wandb:me/nowhere.* W&B does not give it: "):
        load(["wandb:me/nowhere"])


@pytest.mark.parametrize("place", ["me", "me/", "/ablate", "me/ablate/a/b", "", "me//a"])
def test_a_place_that_is_none_is_refused_before_anybody_is_asked(place: str) -> None:
    with pytest.raises(ConfigError, match="must be wandb:ENTITY/PROJECT or wandb:ENTITY/PROJECT/GROUP"):
        load([f"wandb:{place}"])


class Run:
    """What `record_of` reads of a run of W&B's public API."""

    id, name, url, state = "0123456789ab", "norm=layernorm-s0", "https://wandb.ai/me/ablate/runs/0123456789ab", "finished"

    def __init__(self, **changes: Any) -> None:
        self.config: dict[str, Any] = {"norm.kind": "layernorm", "attention": {"window": "Infinity"}, "init_seed": 3, "_wandb": {}}
        self.summary_metrics: dict[str, Any] = {"state": "done", "eval_loss": 2.5, "length_extrapolation.2": 2.6, "_step": 3}
        self.__dict__.update(changes)


def test_the_stand_in_has_what_the_real_client_has() -> None:
    from wandb.apis.public import Run as Real

    for name in ("id", "name", "url", "state", "config", "summary_metrics", "scan_history"):
        assert hasattr(Real, name), name


def test_numbers_that_json_has_not_and_nested_keys_are_read() -> None:
    record = record_of(Run(), [{"step": 1, "loss": "NaN", "_step": 0}, {"step": 2.0, "loss": "Infinity"}, {"_step": 2, "_runtime": 1}])
    assert record.config == {"norm.kind": "layernorm", "attention.window": math.inf, "init_seed": 3}
    assert record.summary["length_extrapolation"] == {"2": 2.6}
    assert (record.state, record.loss, record.digest) == ("done", 2.5, Run.id)
    assert list(record.curve["step"]) == [1, 2]
    assert math.isnan(record.curve["loss"][0])
    assert record.curve["loss"][1] == math.inf


@pytest.mark.parametrize(
    ("state", "ours"), [("crashed", "crashed"), ("failed", "interrupted"), ("running", "running"), ("odd", "interrupted")]
)
def test_a_run_whose_end_was_not_sent_has_no_result(state: str, ours: str) -> None:
    record = record_of(Run(state=state, summary_metrics={"eval_loss": 2.5}), [])
    assert (record.state, record.loss) == (ours, None)


def test_tuned_is_made_of_configs_too() -> None:
    """Arms and tuning come from W&B's configs as from identities."""
    from ablate.report.grouping import study_of

    records = []
    for number, (rate, seed, loss) in enumerate([(1e-3, 100, 2.3), (2e-3, 100, 2.1), (4e-3, 100, 2.2), (2e-3, 0, 2.0)]):
        config = {"norm.kind": "layernorm", "optim.lr": rate, "init_seed": seed, "data_seed": seed, "results_dir": f"r{number}"}
        summary = {"state": "done", "eval_loss": loss, "unigram_entropy": 3.0}
        records.append(record_of(Run(id=str(number), config=config, summary_metrics=summary), []))
    meta, roles = study_of(records, None, "wandb")
    assert meta.tuned == {"baseline": Tuned((1e-3, 2e-3, 4e-3), 2e-3, None)}
    assert [role.stage for _, role in roles] == ["tune", "tune", "tune", "confirm"]
