"""One process at a time owns a run: an exclusive claim with a heartbeat that goes stale when its owner dies.

On the owner's machine its death is seen at once, from its process id and start time; from another machine, once the heartbeat
is older than STALE_SECONDS by the file system's own clock.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from filelock import FileLock

from ablate.files import read_object, write_text

BEAT_SECONDS = 5.0
STALE_SECONDS = 60.0


class Owned(Exception):
    """Another process owns the claim; `owner` says which."""

    def __init__(self, owner: dict[str, Any]) -> None:
        self.owner = owner
        super().__init__(f"process {owner.get('pid')} on {owner.get('host')} owns it")


class ClaimLost(Exception):
    """Another process took the claim while this one slept."""


class Claim:
    """A file that names its owner, touched every few seconds by a thread."""

    def __init__(self, path: Path, token: str) -> None:
        self.path, self._token = path, token
        self._done = threading.Event()
        self._lost = False
        self._thread = threading.Thread(target=self._beat, daemon=True, name="claim-heartbeat")
        self._thread.start()

    @classmethod
    def take(cls, path: Path) -> Claim:
        """Takes the claim if it is free or stale, else raises `Owned`. The lock makes look-and-take one act."""
        token = uuid.uuid4().hex
        owner = {**_this_process(), "token": token, "since": time.time()}
        with FileLock(f"{path}.lock", timeout=30):
            current = _read(path)
            if current is not None and _alive(path, current):
                raise Owned(current)
            write_text(path, json.dumps(owner))
        return cls(path, token)

    def check(self) -> None:
        if self._lost:
            raise ClaimLost(f"{self.path.parent.name}: another process took this run over; nothing more is written from here")

    def release(self) -> None:
        self._done.set()
        self._thread.join()
        with FileLock(f"{self.path}.lock", timeout=30):
            current = _read(self.path)
            if current is not None and current.get("token") == self._token:
                self.path.unlink()

    def _beat(self) -> None:
        while not self._done.wait(BEAT_SECONDS):
            current = _read(self.path)
            if current is None or current.get("token") != self._token:
                self._lost = True
                return
            try:
                os.utime(self.path)
            except OSError:
                continue  # a file system that hiccups: the next beat tries again


def owner_of(path: Path) -> dict[str, Any] | None:
    """Who holds a claim now, or None when it is free or stale."""
    current = _read(path)
    return current if current is not None and _alive(path, current) else None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _alive(path: Path, owner: dict[str, Any]) -> bool:
    here = _this_process()
    if owner.get("machine") == here["machine"]:
        return _start_time(int(owner["pid"])) == owner.get("started")
    return _age_seconds(path) < STALE_SECONDS


def _age_seconds(path: Path) -> float:
    """Against a file made now on the same file system: clocks of two machines differ."""
    probe = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        probe.touch()
        return probe.stat().st_mtime - path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")
    finally:
        probe.unlink(missing_ok=True)


def _this_process() -> dict[str, Any]:
    return {"host": socket.gethostname(), "machine": _machine(), "pid": os.getpid(), "started": _start_time(os.getpid())}


def _machine() -> str:
    """One boot of one machine and one space of process ids (containers share a host name, not this)."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"unknown/{uuid.uuid4().hex}"  # no way to see a process: the heartbeat alone decides


def _start_time(pid: int) -> str | None:
    """When a process started, in ticks since boot; None when it is gone or a zombie. A reused id has another time."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def read_status(directory: Path) -> dict[str, Any]:
    """status.json; a run that says `running` while nobody owns it was killed, and reads as `interrupted`; one that says
    `done` and has no result that can be read is `lost`."""
    status = read_object(directory / "status.json")
    if status.get("state") == "running" and owner_of(directory / "claim") is None:
        return {**status, "state": "interrupted"}
    if status.get("state") == "done" and not isinstance(read_object(directory / "summary.json").get("eval_loss"), int | float):
        return {**status, "state": "lost"}
    return status
