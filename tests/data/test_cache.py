"""Many processes at once, processes that die: real ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ablate.data.cache import Cache, hash_of
from ablate.errors import ConfigError

from .conftest import Prepare, data, sentences, tokenizer

ROOT = Path(__file__).parents[2]
PREPARE = """
import json, os, sys
from pathlib import Path
from ablate.data import DATA, TOKENIZER, prepare
gate_read, gate_write = os.pipe()
for _ in range(int(sys.argv[3]) - 1):
    if not os.fork():
        break
else:
    os.write(gate_write, b"." * int(sys.argv[3]))
os.read(gate_read, 1)
def say(message):
    os.write(1, (json.dumps({"said": message}) + "\\n").encode())
    if sys.argv[4:] and sys.argv[4] in message:
        sys.stdin.read()
dataset = prepare(
    DATA.options("text")(kind="text", path=sys.argv[1], text_key="text"),
    TOKENIZER.options("bpe")(kind="bpe", vocab_size=400),
    eval_bytes=400, segment_bytes=100, cache_dir=Path(sys.argv[2]), say=say,
)
result = {"hash": dataset.content_hash, "tokens": len(dataset.train), "entropy": dataset.unigram_entropy}
os.write(1, (json.dumps(result) + "\\n").encode())
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path, folder: Path) -> Start:
    def call(processes: int, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PREPARE, str(folder), str(tmp_path / "cache"), str(processes), *arguments]
        return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    return call


def test_ten_processes_at_once_build_once_and_agree(start: Start) -> None:
    """One process imports and becomes ten, which begin at the same moment; their lines end when the last of them ends."""
    process = start(10)
    lines = [json.loads(line) for line in process.communicate()[0].splitlines()]
    results = [json.dumps(line) for line in lines if "hash" in line]
    assert len(results) == 10
    assert len(set(results)) == 1
    assert sum("training a byte-level BPE" in line.get("said", "") for line in lines) == 1
    assert sum("split 100 documents" in line.get("said", "") for line in lines) == 1


def test_a_builder_that_is_killed_leaves_a_usable_cache(start: Start, tmp_path: Path, folder: Path, prepared: Prepare) -> None:
    process = start(1, "training a byte-level BPE")
    assert process.stdin is not None
    assert process.stdout is not None
    while "training" not in process.stdout.readline():
        pass
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdin.close()
    process.stdout.close()
    cache = tmp_path / "cache"
    assert list(cache.glob(".bpe-*.tmp")) != []
    assert list(cache.glob("bpe-*")) == []
    chosen = data("text", path=str(folder)), tokenizer("bpe", vocab_size=400)
    again = prepared(*chosen)
    assert list(cache.glob(".*.tmp")) == []
    assert again.content_hash == prepared(*chosen, cache_dir=tmp_path / "fresh").content_hash


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise RuntimeError("no")

    cache = Cache(tmp_path / "cache", lambda message: None)
    with pytest.raises(RuntimeError, match="no"):
        cache.entry("entry", build)
    assert [path for path in cache.folder.iterdir() if path.suffix != ".lock"] == []
    cache.entry("entry", lambda folder: None)
    assert (cache.folder / "entry").is_dir()


def test_without_locks_two_builders_leave_one_whole_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_lock(self: object, **options: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr("ablate.data.cache.FileLock.acquire", no_lock)
    cache = Cache(tmp_path, lambda message: None)

    def build(folder: Path) -> None:
        (folder / "value").write_text("slow")
        cache.entry("entry", lambda folder: (folder / "value").write_text("fast") and None)

    assert (cache.entry("entry", build) / "value").read_text() == "fast"
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]


def test_a_full_disk_is_a_problem_of_cache_dir(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(ConfigError, match=r"cache_dir .*No space left on device.*free some room"):
        Cache(tmp_path, lambda message: None).entry("entry", build)


def test_a_cached_start_writes_and_says_nothing(folder: Path, tmp_path: Path, prepared: Prepare) -> None:
    said: list[str] = []
    chosen = data("text", path=str(folder)), tokenizer("bpe", vocab_size=300)
    prepared(*chosen)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*")}
    prepared(*chosen, say=said.append)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*")} == before
    assert said == []


def test_lists_of_parts_that_join_to_the_same_text_hash_differently() -> None:
    assert len({hash_of("ab", "c"), hash_of("a", "bc"), hash_of("abc"), hash_of("abc", "")}) == 4


def test_different_corpora_have_different_entries(tmp_path: Path, prepared: Prepare) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("\n".join(sentences(100, name)))
    first, second = (prepared(data("text", path=str(tmp_path / name))) for name in ("a", "b"))
    assert first.content_hash != second.content_hash
