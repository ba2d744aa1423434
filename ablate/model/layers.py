"""layers: named rules that change the choices of some layers.

    local:                                    # a name, so that a command line can say layers.local.where.every=6
      where: {every: 6, except: [5]}          # of each 6 layers all but number 5 (from 0)
      set: {attention: {window: 1/2}}         # a deep override of any group; with `kind`, another variant, whole

`where` is one of: every + at, every + except, first, last, layers. One mechanism gives sliding windows in alternation, layers without
position, dense first layers, layers of experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablate.errors import ConfigError, did_you_mean
from ablate.registry import Section

LAYERED = ("norm", "placement", "residual", "position", "attention", "ffn")
"""Groups that a rule may set."""


class Rule(Section):
    """Which layers, and what is set there."""

    where: dict[str, int | list[int]]
    set: dict[str, dict[str, Any]]


def overrides(rules: Mapping[str, Rule], depth: int) -> list[dict[str, dict[str, Any]]]:
    """For each layer what is set there, by group. Two rules that set one key of a layer differently are an error: order never counts."""
    result: list[dict[str, dict[str, Any]]] = [{} for _ in range(depth)]
    setter: dict[tuple[int, str], str] = {}
    for name, rule in rules.items():
        for group in rule.set:
            if group not in LAYERED:
                allowed = ", ".join(LAYERED)
                raise ConfigError.at(
                    f"layers.{name}.set.{group}", f"cannot differ by layer; allowed: {allowed}{did_you_mean(group, LAYERED)}"
                )
        chosen = chosen_layers(name, rule.where, depth)
        if not chosen:
            raise ConfigError.at(f"layers.{name}.where", f"{rule.where} is no layer of a model of {depth}: the rule has no effect")
        for layer in chosen:
            for group, values in rule.set.items():
                for key, value in values.items():
                    already = result[layer].setdefault(group, {})
                    if key in already and already[key] != value:
                        other = setter[layer, f"{group}.{key}"]
                        message = f"{value!r} in layer {layer}, where layers.{other} sets {already[key]!r}"
                        raise ConfigError.at(f"layers.{name}.set.{group}.{key}", message)
                    already[key] = value
                    setter[layer, f"{group}.{key}"] = name
    return result


FORMS = ({"every", "at"}, {"every", "except"}, {"first"}, {"last"}, {"layers"})


def chosen_layers(name: str, where: Mapping[str, int | list[int]], depth: int) -> list[int]:
    """The layers of 0 .. depth-1 that a rule names."""

    def number(key: str) -> int:
        value = where[key]
        if isinstance(value, (list, bool)) or value < 1:
            raise ConfigError.at(f"layers.{name}.where.{key}", f"must be an integer above 0, got {value!r}")
        return value

    def numbers(key: str, below: int) -> list[int]:
        value = where[key]
        if not isinstance(value, list) or any(not 0 <= layer < below for layer in value):
            raise ConfigError.at(f"layers.{name}.where.{key}", f"must be a list of layers from 0 to {below - 1}, got {value!r}")
        return value

    if set(where) not in FORMS:
        message = f"must be every + at, every + except, first, last, or layers; got {', '.join(where) or 'nothing'}"
        raise ConfigError.at(f"layers.{name}.where", message)
    if "layers" in where:
        return sorted(set(numbers("layers", depth)))
    if "every" in where:
        period = number("every")
        named = set(numbers("at" if "at" in where else "except", period))
        return [layer for layer in range(depth) if (layer % period in named) == ("at" in where)]
    count = min(number(next(iter(where))), depth)
    return list(range(count)) if "first" in where else list(range(depth - count, depth))


def merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """A deep override; a mapping with another `kind` takes the place of the old one whole."""
    if change.get("kind", base.get("kind")) != base.get("kind"):
        return dict(change)
    result = dict(base)
    for key, value in change.items():
        deep = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if deep else value
    return result
