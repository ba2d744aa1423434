"""Identity, directories, files that are whole or absent, and the tolerant reader."""

from __future__ import annotations

import errno
import json
import math
from pathlib import Path

import pytest

import ablate
from ablate.claim import read_status
from ablate.config import Config
from ablate.runs import Run, canonical, load_runs, read_metrics, run_directory, run_hash, slug, write_json

CONTENT = "c" * 64


def digest(*overrides: str) -> str:
    return run_hash(canonical(ablate.compose(overrides), CONTENT))


@pytest.mark.parametrize(
    "override",
    [
        "norm=layernorm",
        "norm.eps=1e-3",
        "placement=post",
        "stability=qk_norm",
        "seed=1",
        "init_seed=1",
        "data_seed=1",
        "optim.lr=1e-3",
        "optim=muon",
        "schedule=linear",
        "schedule.warmup_fraction=0.1",
        "train.tokens=5000",
        "train.batch_size=4",
        "train.grad_clip=2",
        "model.depth=3",
        "scale=tiny",
        "dtype=bfloat16",
        "tokenizer=bpe",
    ],
)
def test_what_can_move_a_number_makes_another_run(override: str) -> None:
    assert digest(override) != digest()


@pytest.mark.parametrize(
    "override",
    [
        "tracker=none",
        "results_dir=elsewhere",
        "cache_dir=elsewhere",
        "threads=2",
        "rerun=true",
        "progress=false",
        "checkpoint.every_seconds=5",
    ],
)
def test_what_moves_no_number_leaves_the_run_the_same(override: str) -> None:
    assert digest(override) == digest()


def test_two_ways_to_say_the_same_are_one_run() -> None:
    assert digest("stability=qk_norm") == digest("attention/qk_norm=head")
    assert digest("head=soft_capped") == digest("head.soft_cap=30")
    assert digest("seed=4") == digest("init_seed=4", "data_seed=4")
    assert digest("ffn.ratio=8/3") == digest("ffn.ratio=16/6")


def test_the_corpus_counts_by_content_and_not_by_path() -> None:
    one, other = ablate.compose(["data=text", "data.path=a"]), ablate.compose(["data=text", "data.path=b"])
    assert run_hash(canonical(one, CONTENT)) == run_hash(canonical(other, CONTENT))
    assert run_hash(canonical(one, CONTENT)) != run_hash(canonical(one, "d" * 64))


def test_another_schema_is_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest()
    monkeypatch.setattr("ablate.runs.SCHEMA", 10**6)
    assert digest() != before


def test_the_identity_of_the_baseline_is_what_it_was() -> None:
    """A change of this number makes every finished run a stranger: it needs a reason, and the SCHEMA does it on purpose."""
    assert digest() == "19bc70ae7347"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], "baseline-s0"),
        (["seed=3"], "baseline-s3"),
        (["init_seed=1"], "baseline-i1-d0"),
        (["norm=layernorm"], "norm=layernorm-s0"),
        (["norm=prmsnorm", "placement=post", "seed=2"], "norm=prmsnorm-placement=post-s2"),
        (["norm.eps=1e-3"], "norm.eps=0.001-s0"),
        (["optim.lr=0.01"], "optim.lr=0.01-s0"),
        (["optim.lr=1e6"], "optim.lr=1e6-s0"),
        (["optim.lr=1e-6"], "optim.lr=1e-06-s0"),
        (["position.theta=1.5e10"], "position.theta=1.5e10-s0"),
        (["attention=gqa"], "attention=gqa-s0"),
        (["attention=gqa", "model.heads=8", "attention.kv_heads=4"], "attention=gqa-attention.kv_heads=4-model.heads=8-s0"),
        (["norm=layernorm", "norm.bias=false"], "norm=layernorm-norm.bias=False-s0"),
        (["stability=qk_norm"], "attention.qk_norm=head-s0"),
        (["optim=muon"], "optim=muon-s0"),
    ],
)
def test_the_slug_says_how_a_run_differs_from_the_baseline(overrides: list[str], expected: str) -> None:
    assert slug(ablate.compose(overrides), ablate.compose()) == expected


def test_a_slug_is_short_and_safe_whatever_the_config() -> None:
    many = ["norm=layernorm", "placement=post", "position=learned", "ffn=gelu", "head=tied", "init=fan_in", "optim=muon", "schedule=wsd"]
    name = slug(ablate.compose([*many, "model.width=1024", "train.tokens=123456789"]), ablate.compose())
    assert len(name) <= 70
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.=_-")


def test_a_run_under_another_slug_is_found_by_its_hash(tmp_path: Path) -> None:
    cfg = ablate.compose([f"results_dir={tmp_path}"])
    identity = canonical(cfg, CONTENT)
    other = tmp_path / "runs" / f"an-older-name-s0-{run_hash(identity)}"
    other.mkdir(parents=True)
    assert run_directory(cfg, identity, cfg) == other


def open_run(folder: Path, name: str = "x-s0-000000000000") -> Run:
    return Run.open(folder / "runs" / name)


def record(run: Run, cfg: Config) -> None:
    run.set_state("running")
    run.record_start(cfg, canonical(cfg, CONTENT), {"argv": []})


def test_resuming_drops_the_rows_after_the_checkpoint(tmp_path: Path) -> None:
    run = open_run(tmp_path)
    run.open_metrics(0)
    for step in range(1, 6):
        run.log({"step": step, "loss": float(step)})
    run.close()
    run = open_run(tmp_path)
    run.open_metrics(3)
    run.log({"step": 4, "loss": 40.0})
    run.close()
    assert [(row["step"], row["loss"]) for row in read_metrics(run.directory / "metrics.jsonl")] == [(1, 1), (2, 2), (3, 3), (4, 40)]


def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": NaN}\n{"step": 2, "lo')
    rows = read_metrics(path)
    assert len(rows) == 1
    assert math.isnan(rows[0]["loss"])


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"a": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"a": object()})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_the_reader_takes_what_is_there(tmp_path: Path) -> None:
    cfg = ablate.compose()
    whole = open_run(tmp_path, "whole-s0-000000000001")
    record(whole, cfg)
    whole.open_metrics(0)
    whole.log({"step": 1, "tokens": 10, "loss": 2.0})
    whole.log({"step": 1, "tokens": 10, "eval/loss": 1.5})
    write_json(whole.directory / "summary.json", {"eval_loss": 1.5, "bits_per_byte": None})
    whole.set_state("done")
    whole.close()
    killed = open_run(tmp_path, "killed-s0-000000000002")
    record(killed, cfg)
    killed.close()
    (tmp_path / "runs" / "empty").mkdir()
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "config.yaml").write_text("norm: {kind: [")
    runs, curves = load_runs(tmp_path)
    assert dict(zip(runs["run"], runs["state"], strict=True)) == {"killed-s0-000000000002": "interrupted", "whole-s0-000000000001": "done"}
    row = runs.set_index("run").loc["whole-s0-000000000001"]
    assert (row["norm.kind"], row["summary.eval_loss"], row["hash"]) == ("rmsnorm", 1.5, "000000000001")
    assert runs["summary.bits_per_byte"].isna().all()
    assert curves[["step", "loss", "eval/loss"]].to_numpy().tolist() == [[1, 2.0, 1.5]]


def test_a_folder_without_runs_gives_empty_frames(tmp_path: Path) -> None:
    runs, curves = load_runs(tmp_path)
    assert len(runs) == len(curves) == 0
    assert {"run", "hash", "state"} <= set(runs.columns)


def test_a_run_says_how_it_ended_on_a_disk_without_room_for_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, value: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    run = Run.open(tmp_path / "run")
    run.set_state("done", detail="x" * 1000)
    monkeypatch.setattr("ablate.runs.write_json", full)
    run.set_state("crashed", reason="OSError")
    run.close()
    assert read_status(tmp_path / "run")["reason"] == "OSError"
