"""Files that are whole or absent, and readers that take what is there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from ablate.errors import ConfigError, did_you_mean


def write_text(path: Path, text: str) -> None:
    """Whole or not at all: a temporary name, then a rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_over(path: Path, text: str) -> None:
    """In the room that the file has already; a kill in between leaves it broken."""
    with path.open("r+", encoding="utf-8") as file:
        file.write(text)
        file.truncate()


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1) + "\n")


def read_json(path: Path) -> Any:
    """The content, or None when the file is absent or broken."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file, or an empty one when the file is absent, broken or something else."""
    value = read_json(path)
    return value if isinstance(value, dict) else {}


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file; a last line that a kill cut short is left out."""
    try:
        return list(metric_rows(path.read_bytes().splitlines()))
    except OSError:
        return []


def metric_rows(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The rows that lines hold; what is no row is left out."""
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            yield row


def read_yaml(path: Path) -> dict[str, Any] | None:
    """The mapping, or None when the file is absent or broken."""
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return value if isinstance(value, dict) else None


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys as dotted ones."""
    pairs: dict[str, Any] = {}
    for key, value in values.items():
        pairs.update(flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value})
    return pairs


def find_study(name: str, results_dir: str | Path) -> Path:
    """The folder of a study by its path or its name; raises ConfigError with those there are."""
    root = Path(results_dir).expanduser()
    for place in (Path(name).expanduser(), root / name):
        if (place / "study.yaml").is_file():
            return place.absolute()
    known = sorted(path.parent.name for path in root.glob("*/study.yaml"))
    there = f"there {'are' if len(known) > 1 else 'is'} {', '.join(known) or 'none'}"
    raise ConfigError.at(name, f"no such study in {results_dir}; {there}{did_you_mean(name, known)}")
