"""No dead knob: another value of every option of every variant changes parameters, first numbers, or the loss of the same numbers.

`python -m tests.model.test_dead_knobs` prints the table: each option, the two values, and what they change.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any, Literal, NamedTuple, get_args, get_origin

import pytest
from rich.console import Console
from rich.table import Table

from ablate.config import ARCHITECTURE, Config
from ablate.errors import ConfigError
from ablate.registry import Options, Registry
from tests.model.conftest import change_of, changed, small, yaml_of


class Knob(NamedTuple):
    """An option of a variant, and where the variant stands in a config."""

    place: str  # attention.qk_norm
    group: str  # attention/qk_norm
    word: str
    option: str

    @property
    def name(self) -> str:
        return f"{self.place}={self.word}.{self.option}"


def knobs(registry: Registry[Any], place: str) -> Iterator[Knob]:
    """Every option of every variant of an axis, and of the axes nested in it."""
    for word in registry.words():
        options = registry.options(word)
        for option in options.model_fields:
            if option != "kind":
                yield Knob(place, registry.axis, word, option)


def all_knobs() -> list[Knob]:
    """At every place of the config where a variant can stand, once."""
    places: dict[str, Registry[Any]] = {}

    def visit(registry: Registry[Any], place: str) -> None:
        if place in places:
            return
        places[place] = registry
        for word in registry.words():
            for option, nested in registry.options(word).nested.items():
                visit(nested, f"{place}.{option}")

    for axis, registry in ARCHITECTURE.items():
        visit(registry, axis)
    return [knob for place, registry in places.items() for knob in knobs(registry, place)]


KNOBS = all_knobs()

HOMES: dict[str, list[tuple[str, Any]]] = {
    "attention.latent_norm": [("attention", yaml_of("attention", "mla"))],
    "position.scaling": [("position", yaml_of("position", "rope"))],
    "ffn.expert": [("ffn", yaml_of("ffn", "moe"))],
    "attention.qk_norm.norm": [("attention.qk_norm", yaml_of("attention/qk_norm", "head"))],
    "head.transform.norm": [("head.transform", yaml_of("head/transform", "dense"))],
}
"""What must be chosen before a nested variant has a place to stand."""

NEEDED: dict[str, tuple[str, Any]] = {
    "ffn=moe.shared_gate": ("ffn.shared_ratio", 1.0),
    # Its betas are rotations over the original context, which a short one does not have.
    **{f"position.scaling=yarn.{option}": ("position.scaling.original_context", 4096) for option in ("beta_fast", "beta_slow", "truncate")},
}
"""What an option needs beside it to have an effect."""

OTHER: dict[str, list[Any]] = {
    "temperature": [{"floor": 2, "beta": 5.0, "shift": 0}],
    "groups": [{"num": 4, "kept": 1, "score": "top2"}, {"num": 2, "kept": 1, "score": "max"}],
    "factors": [[1.0, 3.0], [2.0]],
    "shared_ratio": [1.0],
    "selection_bias_rate": [0.001, 0.0],
    "original_context": [4096],
    "beta_fast": [4.0],
    "attention_factor": [0.5],
    "q_rank": [8],
    "scale": [0.3],
    "window": [4],
    "chunk": [4],
}
"""Values to try for options whose type does not say them."""


def home(knob: Knob) -> Config:
    """A config in which the variant stands at its place."""
    # Room for key heads between one and all; for positions, for many angles and distances.
    cfg = small("model.heads=8", *(["model.context=64", "attention.head_dim=16"] if knob.place.startswith("position") else []))
    for place, value in HOMES.get(knob.place, []):
        cfg = changed(cfg, place, value)
    cfg = changed(cfg, knob.place, yaml_of(knob.group, knob.word))
    return changed(cfg, *NEEDED[knob.name]) if knob.name in NEEDED else cfg


def other_values(knob: Knob, options: Options) -> Iterator[Any]:
    """Values to try instead of the one that is there; the first that is valid counts."""
    value = getattr(options, knob.option)
    nested = options.nested.get(knob.option)
    if nested is not None:
        yield from (yaml_of(nested.axis, word) for word in nested.words() if word != value.kind)
        return
    yield from OTHER.get(knob.option, [])
    yield from _words(type(options).model_fields[knob.option].annotation)
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (3 * value, 2 * value, value + 1, 1)
    elif isinstance(value, float):
        yield from (0.5, 2 * value, 0.9, value / 2)
    elif value is None:
        yield from (16, 0.5)


def _words(hint: Any) -> Iterator[Any]:
    """The words of a Literal, wherever it stands in a type."""
    if get_origin(hint) is Literal:
        yield from get_args(hint)
    else:
        for part in get_args(hint):
            yield from _words(part)


def with_another_value(cfg: Config, knob: Knob) -> tuple[Config, Any, Any]:
    """The config with another valid value of an option, and both values."""
    options: Any = reduce(getattr, knob.place.split("."), cfg)
    value = getattr(options, knob.option)
    plain = value.model_dump() if isinstance(value, Options) else value
    for other in other_values(knob, options):
        if other != plain:
            try:
                return changed(cfg, f"{knob.place}.{knob.option}", other), plain, other
            except ConfigError:
                continue
    raise AssertionError(f"no second valid value is known for {knob.name}={plain!r}")


NESTED_NORMS = [knob for knob in KNOBS if knob.group == "norm" and "." in knob.place]
"""The options of a norm are tested where they stand on their own axis; at every other place they are slow."""


@pytest.mark.parametrize(
    "knob", [pytest.param(knob, id=knob.name, marks=[pytest.mark.slow] if knob in NESTED_NORMS else []) for knob in KNOBS]
)
def test_an_option_changes_parameters_first_numbers_or_loss(knob: Knob) -> None:
    cfg = home(knob)
    other, *_ = with_another_value(cfg, knob)
    assert change_of(cfg, other)


def print_table() -> None:
    table = Table("option", "value", "another", "changes")
    dead = 0
    for knob in KNOBS:
        cfg = home(knob)
        other, value, another = with_another_value(cfg, knob)
        change = change_of(cfg, other)
        dead += change is None
        table.add_row(knob.name, _short(value), _short(another), change or "NOTHING")
    console = Console(width=150)
    console.print(table)
    console.print(f"{len(KNOBS)} options, {dead} dead")


def _short(value: Any) -> str:
    return str(value["kind"]) if isinstance(value, dict) and "kind" in value else str(value)


if __name__ == "__main__":
    print_table()
