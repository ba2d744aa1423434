"""shipped: what a YAML of conf/ gives, read without composing: its own values over those of its defaults list."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf


def conf_dir() -> Path:
    """The shipped conf folder: inside the installed package, else beside it in a checkout. Never the working directory's."""
    return _folder("conf")


def sweeps_dir() -> Path:
    """The shipped studies, found as conf is."""
    return _folder("sweeps")


def _folder(name: str) -> Path:
    package = Path(__file__).resolve().parent
    inside = package / name
    return inside if inside.is_dir() else package.parent / name


Choices = dict[str, tuple[str, str]]
"""Where a nested variant stands (`qk_norm.norm`) -> its group and word."""


def shipped(group: str, word: str, overrides: Choices | None = None) -> dict[str, Any]:
    """The values of conf/GROUP/WORD.yaml at its own place.

    Its defaults list may name files of the same group (`- gqa`), variants of nested groups (`- qk_norm: head` is
    GROUP/qk_norm, `- /norm@v_norm: rmsnorm` the group norm at v_norm), and with `override` other variants than those files name.
    """
    chosen: Choices = {}
    values = _collect(group, word, {}, chosen)
    chosen.update(overrides or {})
    for place, (nested, choice) in chosen.items():
        if not any(place.startswith(f"{other}.") for other in chosen):  # those come with the variant they stand in
            inner = {other.removeprefix(f"{place}."): what for other, what in chosen.items() if other.startswith(f"{place}.")}
            _put(values, place.split("."), shipped(nested, choice, inner), under=True)
    return values


def _collect(group: str, word: str, values: dict[str, Any], chosen: Choices) -> dict[str, Any]:
    """Merges the files of one group, deepest first, and notes which nested variants they choose."""
    own = deepcopy(_read(conf_dir() / group / f"{word}.yaml"))
    for item in own.get("defaults", []):
        if isinstance(item, str) and item != "_self_":
            _collect(group, item, values, chosen)
        elif isinstance(item, dict):
            [(target, choice)] = item.items()
            name, _, place = str(target).removeprefix("override ").partition("@")
            nested = name[1:] if name.startswith("/") else f"{group}/{name}"
            if not place.startswith("_global_"):  # another axis (the tokenizer of data=mqar) has a place of its own
                chosen[place or name.rpartition("/")[2]] = (nested, str(choice))
    for key, value in own.items():
        if key != "defaults":
            _put(values, [str(key)], value)
    return values


@cache
def _read(path: Path) -> dict[str, Any]:
    own = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(own, dict), path
    return {str(key): value for key, value in own.items()}


def _put(values: dict[str, Any], path: list[str], value: Any, under: bool = False) -> None:
    """Sets a value; mappings are merged, and with `under` what is there already stays above."""
    *parents, last = path
    for part in parents:
        values = values.setdefault(part, {})
    old = values.get(last)
    if isinstance(old, dict) and isinstance(value, dict):
        first, second = (value, old) if under else (old, value)
        merged: dict[str, Any] = dict(first)
        for key, inner in second.items():
            _put(merged, [key], inner)
        values[last] = merged
    elif not (under and last in values):
        values[last] = value
