"""Many configs of one sweep, each the same as compose() gives it, without composing each of them.

Hydra takes some tenths of a second for a config. Here it composes each choice on a plain axis once, those of several axes together, and a
cell takes its axes from what was composed; what reaches over axes (arch, stability, scale, data, nested groups) is composed whole. Plain
values are set on what was composed, as Hydra does itself, and cells that differ in their seeds alone are parsed once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from copy import deepcopy
from functools import cached_property
from typing import Any, NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf
from pydantic import TypeAdapter, ValidationError
from typing_extensions import Self

from ablate.composition import Request, compose_raw, match_reference, normalise, open_loader
from ablate.config import ARCHITECTURE, Config, Seed, container, parse
from ablate.errors import ConfigError, Problem
from ablate.matching import MATCH, matched

PLAIN_AXES = frozenset({*ARCHITECTURE, "optim", "schedule", "tracker", "match"})
"""Groups whose files set nothing beside their own key."""

PLAIN_INTERPOLATION = re.compile(r"\$\{(\w+)(?:\.\w+)*\}")
"""${train.batch_size}, of which the first key is found."""

SEEDS = ("seed", "init_seed", "data_seed")
PLAIN_SEED = re.compile(rf"({'|'.join(SEEDS)})=\d+")

Normal = tuple[str, Override]
"""An override as Hydra takes it, and what Hydra reads in it."""

Values = dict[str, Any]
"""A composed config as plain values, its interpolations open."""


def key_of(text: str) -> str:
    """The key that an override sets: `norm` of norm=layernorm, `norm.eps` of ++norm.eps=1."""
    return text.partition("=")[0].lstrip("+~")


class Parts(NamedTuple):
    """Overrides by what they do."""

    wide: tuple[str, ...]  # reach over axes, or take something away
    axes: tuple[tuple[str, str], ...]  # axis, variant
    values: tuple[tuple[str, Any], ...]
    seeds: tuple[tuple[str, Any], ...]


class Composer:
    """A context in which configs are composed; each of its answers is kept."""

    def __init__(self, config_name: str = "config", config_dir: str | None = None) -> None:
        self._request = Request([], config_name, config_dir)
        self._stack = ExitStack()
        self._normal: dict[str, Normal | Problem] = {}
        self._raw: dict[tuple[str, ...], Values] = {}
        self._choices: dict[tuple[str, ...], dict[tuple[str, str], Any]] = {}
        self._structures: dict[tuple[Any, ...], Values] = {}
        self._parsed: dict[tuple[Any, ...], Config | ConfigError] = {}
        self._seeds: dict[str, dict[str, int] | None] = {}
        self._configs: dict[tuple[str, ...], Config | ConfigError] = {}

    def __enter__(self) -> Self:
        self._loader = self._stack.enter_context(open_loader(self._request))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @cached_property
    def _parser(self) -> OverridesParser:
        return OverridesParser.create()

    def config(self, overrides: Sequence[str]) -> Config:
        """The config of some overrides, matched if they ask for it; raises ConfigError as compose() does."""
        key = tuple(overrides)
        if key not in self._configs:
            try:
                self._configs[key] = self._config(key)
            except ConfigError as error:
                self._configs[key] = error
        return _or_raised(self._configs[key])

    def refused(self, overrides: Sequence[str]) -> str | None:
        """Why a combination cannot be had, or None."""
        try:
            self.config(overrides)
        except ConfigError as error:
            return "; ".join(f"{problem.key}: {problem.message}" for problem in error.problems)
        return None

    def _config(self, overrides: tuple[str, ...]) -> Config:
        cfg = self._unmatched(overrides)
        if MATCH.build(cfg.match).reference is None:
            return cfg
        return parse(matched(cfg, match_reference(cfg, list(overrides), self.config)).model_dump())

    def _unmatched(self, overrides: tuple[str, ...]) -> Config:
        """Problems of spelling come with those of values, as compose() gives them."""
        normal, problems = self._checked(overrides)
        try:
            cfg = self._config_of(self._parts(normal))
        except ConfigError as error:
            raise ConfigError([*problems, *error.problems]) from None
        if problems:
            raise ConfigError(problems)
        return cfg

    def _config_of(self, parts: Parts) -> Config:
        structure = self._structure(parts.wide, parts.axes)
        shared = (parts.wide, parts.axes, repr(parts.values))
        if shared not in self._parsed:
            try:
                self._parsed[shared] = _parsed(structure, parts.values)
            except ConfigError as error:
                self._parsed[shared] = error
        found = self._parsed[shared]
        if not parts.seeds:
            return _or_raised(found)
        seeds = self._seeds_of({name: structure[name] for name in SEEDS} | dict(parts.seeds))
        if seeds is None or isinstance(found, ConfigError):  # all problems at once, those of the seeds among them
            return _parsed(structure, [*parts.values, *parts.seeds])
        return found.model_copy(update=seeds)

    def _seeds_of(self, chosen: Values) -> dict[str, int] | None:
        key = repr(sorted(chosen.items()))
        if key not in self._seeds:
            self._seeds[key] = _seeds(chosen)
        return self._seeds[key]

    def _parts(self, overrides: Sequence[Normal]) -> Parts:
        wide: list[str] = []
        axes: dict[str, str] = {}
        values: list[tuple[str, Any]] = []
        seeds: list[tuple[str, Any]] = []
        for normal, override in overrides:
            key = override.key_or_group
            if _is_value(override, self._groups):
                (seeds if key in SEEDS else values).append((key, override.value()))
            elif key in PLAIN_AXES and override.package is None and not override.is_delete() and isinstance(override.value(), str):
                axes[key] = str(override.value())
            else:
                wide.append(normal)
        if any("/" in key_of(text) or "@" in key_of(text) or text.startswith("~") for text in wide):
            wide, axes = [*(f"{axis}={word}" for axis, word in axes.items()), *wide], {}
        return Parts(tuple(wide), tuple(axes.items()), tuple(values), tuple(seeds))

    @cached_property
    def _groups(self) -> set[str]:
        return set(self._loader.list_groups(""))

    def _checked(self, overrides: Sequence[str]) -> tuple[list[Normal], list[Problem]]:
        """The overrides as Hydra takes them, and what is misspelt; each override is looked at once."""
        normal: list[Normal] = []
        problems: list[Problem] = []
        keys: set[str] = set()
        self._look_at([text for text in dict.fromkeys(overrides) if text not in self._normal])
        for text in overrides:
            found = self._normal[text]
            if isinstance(found, Problem):
                problems.append(found)
            elif "=" in text and key_of(text) in keys:
                problems.append(Problem(key_of(text), f"is set twice, by {text!r} for the second time"))
            else:
                normal.append(found)
            keys.add(key_of(text))
        return normal, problems

    def _look_at(self, texts: list[str]) -> None:
        """Overrides at once, since groups are listed for each look at them; one by one where something is wrong."""
        if all(map(PLAIN_SEED.fullmatch, texts)):  # of which a study has many, and which are of no group
            spelled, problems = [f"++{text}" for text in texts], []
        else:
            cleaned = normalise(Request(texts, self._request.config_name, self._request.config_dir), self._loader)
            spelled, problems = cleaned.overrides, cleaned.problems
        if problems and len(texts) > 1:
            for text in texts:
                self._look_at([text])
        else:
            found: Sequence[Normal | Problem] = problems or [(text, self._parser.parse_override(text)) for text in spelled]
            self._normal |= zip(texts, found, strict=True)

    def _structure(self, wide: tuple[str, ...], axes: tuple[tuple[str, str], ...]) -> Values:
        """What the groups give, interpolations still open. What is new is composed together: on a plain axis, no choice moves another."""
        if (wide, axes) not in self._structures:
            known = self._choices.setdefault(wide, {})
            new = [choice for choice in axes if choice not in known]
            composed = self._composed((*wide, *(f"{axis}={word}" for axis, word in new)))
            known |= {(axis, word): composed[axis] for axis, word in new}
            rest = composed if len(new) == len(axes) else self._composed(wide)
            self._structures[wide, axes] = rest | {axis: known[axis, word] for axis, word in axes}
        return self._structures[wide, axes]

    def _composed(self, overrides: tuple[str, ...]) -> Values:
        if overrides not in self._raw:
            raw = compose_raw(Request(list(overrides), self._request.config_name, self._request.config_dir))
            self._raw[overrides] = {str(key): value for key, value in OmegaConf.to_container(raw, resolve=False).items()}  # type: ignore[union-attr]
        return self._raw[overrides]


def _is_value(override: Override, groups: set[str]) -> bool:
    key = override.key_or_group
    return not override.is_delete() and key not in groups and "/" not in key and "@" not in key and override.package is None


def set_value(values: Values, key: str, value: Any) -> None:
    """As Hydra sets an override of a value: mappings are merged, all else is replaced."""
    *parents, last = key.split(".")
    for depth, name in enumerate(parents):
        inner = values.setdefault(name, {})
        if not isinstance(inner, dict):
            raise ConfigError.at(key, f"cannot be set: {'.'.join(parents[: depth + 1])} is {inner!r} here and has no keys")
        values = inner
    if isinstance(value, dict) and isinstance(values.get(last), dict):
        for name, inner in value.items():
            set_value(values[last], str(name), inner)
    else:
        values[last] = value


def _parsed(structure: Values, chosen: Sequence[tuple[str, Any]]) -> Config:
    values = deepcopy(structure)
    for key, value in chosen:
        set_value(values, key, value)
    return parse(resolved(values))


def resolved(values: Values) -> Values:
    """Interpolations resolved, by OmegaConf, which takes its time: it gets the keys that have some, and the keys that those name."""
    unresolved = {key: value for key, value in values.items() if "${" in repr(value)}
    text = repr(unresolved)
    names = PLAIN_INTERPOLATION.findall(text)
    asked = {*unresolved, *names} if len(names) == text.count("${") else values.keys()
    return values | container(OmegaConf.create({key: value for key, value in values.items() if key in asked}))


def _or_raised(found: Config | ConfigError) -> Config:
    if isinstance(found, ConfigError):
        raise ConfigError(found.problems)
    return found


def _seeds(chosen: Values) -> dict[str, int] | None:
    """The three seeds: what is chosen, and what follows from it (init_seed: ${seed}); None where one is no seed."""
    try:
        found = container(OmegaConf.create(chosen))
        return {name: TypeAdapter(Seed).validate_python(found[name], strict=True) for name in SEEDS}
    except (ConfigError, ValidationError):
        return None
