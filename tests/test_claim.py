"""One process at a time owns a run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ablate import claim as claims
from ablate.claim import Claim, ClaimLost, Owned, owner_of

HOLD = """
import sys, time
from pathlib import Path
from ablate.claim import Claim

Claim.take(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def holder(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_a_second_process_is_refused_and_told_the_owner(tmp_path: Path) -> None:
    process = holder(tmp_path / "claim")
    try:
        with pytest.raises(Owned) as refused:
            Claim.take(tmp_path / "claim")
        assert refused.value.owner["pid"] == process.pid
    finally:
        end(process)


def test_a_killed_owner_loses_its_claim_at_once(tmp_path: Path) -> None:
    process = holder(tmp_path / "claim")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert owner_of(tmp_path / "claim") is None
    Claim.take(tmp_path / "claim").release()


def test_a_released_claim_is_free_and_leaves_no_file(tmp_path: Path) -> None:
    Claim.take(tmp_path / "claim").release()
    assert not (tmp_path / "claim").exists()
    Claim.take(tmp_path / "claim").release()


def test_a_reused_process_id_is_not_the_owner(tmp_path: Path) -> None:
    held = Claim.take(tmp_path / "claim")
    owner = json.loads((tmp_path / "claim").read_text())
    held.release()
    (tmp_path / "claim").write_text(json.dumps({**owner, "started": "1"}))
    assert owner_of(tmp_path / "claim") is None


def test_an_owner_on_another_machine_counts_until_its_heartbeat_is_stale(tmp_path: Path) -> None:
    path = tmp_path / "claim"
    path.write_text(json.dumps({"host": "elsewhere", "machine": "elsewhere", "pid": 1, "started": "1", "token": "t"}))
    assert owner_of(path) is not None
    old = time.time() - claims.STALE_SECONDS - 5
    os.utime(path, (old, old))
    assert owner_of(path) is None
    Claim.take(path).release()


def test_the_heartbeat_keeps_the_claim_fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "BEAT_SECONDS", 0.05)
    held = Claim.take(tmp_path / "claim")
    os.utime(tmp_path / "claim", (0, 0))
    deadline = time.monotonic() + 10
    while (tmp_path / "claim").stat().st_mtime == 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert (tmp_path / "claim").stat().st_mtime > 0
    held.release()


def test_an_owner_that_was_replaced_notices_and_does_not_remove_the_new_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "BEAT_SECONDS", 0.05)
    held = Claim.take(tmp_path / "claim")
    (tmp_path / "claim").write_text(json.dumps({"token": "another"}))
    held._thread.join(10)
    with pytest.raises(ClaimLost):
        held.check()
    held.release()
    assert json.loads((tmp_path / "claim").read_text()) == {"token": "another"}


def test_of_many_that_take_a_stale_claim_at_once_one_wins(tmp_path: Path) -> None:
    path = tmp_path / "claim"
    path.write_text(json.dumps({"host": "x", "machine": "x", "pid": 1, "started": "1", "token": "t"}))
    os.utime(path, (0, 0))
    code = (
        "import sys,time; from pathlib import Path; from ablate.claim import Claim, Owned\n"
        "sys.stdin.readline()\n"
        "try: Claim.take(Path(sys.argv[1])); print('won', flush=True); time.sleep(60)\n"
        "except Owned: print('lost', flush=True)"
    )
    racers = [
        subprocess.Popen([sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    try:
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        said = [racer.stdout.readline().strip() for racer in racers if racer.stdout]
    finally:
        for racer in racers:
            end(racer)
    assert sorted(said) == ["lost"] * 7 + ["won"]
