"""What is costly is made once: folders that appear whole or not at all, and facts about files that are remembered."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ablate.errors import ConfigError

SMALL_FILE_BYTES = 1 << 20
"""Smaller files are hashed again each time: that is as fast as looking the answer up."""
SETTLED_NS = 2_000_000_000
"""A file changed less than this ago may change again within one tick of its clock, so nothing is remembered about it yet."""
BLOCK_BYTES = 1 << 22
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class Cache:
    """A folder of entries, each made once however many processes ask for it at the same moment.

    An entry is written under a temporary name and renamed, so whoever sees it sees all of it, with or without the lock; the
    lock only saves the other processes the same work. A builder that dies leaves a temporary folder, which the next one removes.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder = folder.expanduser()
        self.say = say
        with self._writing():
            self.folder.mkdir(parents=True, exist_ok=True)

    def entry(self, name: str, build: Callable[[Path], None]) -> Path:
        """The folder of the entry; `build` fills it when it is not there yet."""
        final = self.folder / name
        if final.is_dir():
            return final
        with self._lock(name):
            if not final.is_dir():
                self._remove_abandoned(name)
                self._build(final, build)
        return final

    def remember(self, path: Path, what: str, compute: Callable[[Path], Any]) -> Any:
        """`compute(path)` (a JSON value), remembered for as long as the file's path, size and time of change stay the same."""
        stat = path.stat()
        if stat.st_size < SMALL_FILE_BYTES:
            return compute(path)
        identity = [what, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
        name = "file-" + hashlib.sha256(f"{path.resolve()}\0{what}".encode()).hexdigest()[:32]
        note = self.folder / f"{name}.json"
        known = _read_note(note, identity)
        if known is not None:
            return known["value"]
        with self._lock(name):
            known = _read_note(note, identity)
            if known is not None:
                return known["value"]
            value = compute(path)
            if time.time_ns() - stat.st_mtime_ns > SETTLED_NS:
                self._write(note, json.dumps({"identity": identity, "value": value}))
        return value

    def file_hash(self, path: Path) -> str:
        """sha256 of a file's bytes, remembered."""
        return str(self.remember(path, "sha256", hash_of_file))

    def _build(self, final: Path, build: Callable[[Path], None]) -> None:
        temporary = self._temporary(final.name)
        with self._writing():
            try:
                temporary.mkdir()
                build(temporary)
                for file in temporary.iterdir():
                    _to_disk(file)
                with contextlib.suppress(FileExistsError):
                    _rename_folder(temporary, final)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)

    def _write(self, path: Path, text: str) -> None:
        temporary = self._temporary(path.name)
        with self._writing():
            try:
                temporary.write_text(text, encoding="utf-8")
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)

    def _temporary(self, name: str) -> Path:
        return self.folder / f".{name}.{socket.gethostname()}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp"

    def _remove_abandoned(self, name: str) -> None:
        """Temporary folders of this entry whose process, on this host, is no longer alive."""
        for path in self.folder.glob(f".{name}.{socket.gethostname()}.*.tmp"):
            pid = path.name.split(".")[-3]
            if path.is_dir() and pid.isdigit() and not _alive(int(pid)):
                shutil.rmtree(path, ignore_errors=True)

    @contextlib.contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        lock = FileLock(self.folder / f".{name}.lock")
        with self._writing():
            try:
                lock.acquire(timeout=1)
            except Timeout:
                self.say(f"waiting for another process that prepares the same data in {self.folder}")
                lock.acquire()
            except NotImplementedError:  # a file system without locks: the same work is done more than once, the result is the same
                yield
                return
        try:
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            ours = error.errno in NO_ROOM if error.filename is None else str(error.filename).startswith(str(self.folder))
            if not ours:
                raise
            cure = "name another folder, or free some room"
            raise ConfigError.at("cache_dir", f"cannot write to {str(self.folder)!r} ({error.strerror or error}): {cure}") from error


def hash_of_file(path: Path) -> str:
    """sha256 of a file's bytes, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def hash_of(*parts: object) -> str:
    """sha256 over the parts, each with its length before it, so that no two lists of parts look alike."""
    digest = hashlib.sha256()
    for part in parts:
        content = part if isinstance(part, bytes) else str(part).encode()
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()


def _read_note(note: Path, identity: list[Any]) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(note.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return found if found.get("identity") == identity else None


def _to_disk(file: Path) -> None:
    with file.open("rb+") as opened:
        os.fsync(opened.fileno())


def _rename_folder(temporary: Path, final: Path) -> None:
    try:
        temporary.rename(final)
    except OSError:
        if final.is_dir():  # another process was faster: its entry has the same content
            raise FileExistsError(str(final)) from None
        raise


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
