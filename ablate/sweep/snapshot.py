"""snapshot: the code of a study as it is when its runs are submitted. What changes later does not change runs that wait."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ablate.environment import git_commit
from ablate.errors import ConfigError
from ablate.files import write_text
from ablate.shipped import conf_dir, sweeps_dir

OWN_CONF = "own_conf"
"""Where the folder of --config-dir lies in a snapshot."""


class Source(NamedTuple):
    """A file, and where it lies in the snapshot."""

    path: Path
    place: str


def snapshot(study_dir: Path, imports: Sequence[str], config_dir: str | None) -> Path:
    """Copies the package, its conf, the modules of `imports` and the user's conf folder; the same content is one folder, made once."""
    sources = sorted(_sources(imports, config_dir), key=lambda source: source.place)
    digest = hashlib.sha256()
    for source in sources:
        digest.update(f"{source.place}\0".encode() + hashlib.sha256(source.path.read_bytes()).digest())
    folder = study_dir / "code" / digest.hexdigest()[:12]
    if folder.is_dir():
        return folder
    temporary = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.tmp")
    try:
        for source in sources:
            target = temporary / source.place
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source.path, target)
        write_text(temporary / "ablate" / "COMMIT", f"{git_commit() or 'unknown'}\n")
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _sources(imports: Sequence[str], config_dir: str | None) -> Iterator[Source]:
    package = Path(__file__).resolve().parents[1]
    yield from _files(package, "ablate", "**/*.py")
    yield from _files(package / "report" / "templates", "ablate/report/templates", "*.*")
    yield from _files(conf_dir(), "ablate/conf", "**/*.yaml")
    yield from _files(sweeps_dir(), "ablate/sweeps", "**/*.yaml")
    if config_dir:
        yield from _files(Path(config_dir), OWN_CONF, "**/*.yaml")
    for module in imports:
        yield from _module(module)


def _files(folder: Path, place: str, pattern: str) -> Iterator[Source]:
    for path in folder.glob(pattern):
        inside = path.relative_to(folder)
        if not (place == "ablate" and inside.parts[0] in ("conf", "sweeps")):  # of a wheel; they come on their own
            yield Source(path, f"{place}/{inside.as_posix()}")


def _module(name: str) -> Iterator[Source]:
    """The files of one module of the user's; what is installed in site-packages is left there."""
    top = name.partition(".")[0]
    spec = importlib.util.find_spec(top)
    if spec is None:
        raise ConfigError.at("imports", f"{name!r} cannot be found")
    if spec.submodule_search_locations:
        for folder in map(Path, spec.submodule_search_locations):
            if "site-packages" not in folder.parts:
                yield from _files(folder, top, "**/*.py")
    elif spec.origin and "site-packages" not in Path(spec.origin).parts:
        yield Source(Path(spec.origin), f"{top}.py")
