"""From overrides to a config, through Hydra's public API, with our own words for what is wrong.

Both spellings of a choice mean the same (`norm=x`, `+norm=x`), and every value key may be written with or without its plus:
what is not a key is found by parse(), with the nearest right spelling, and never trained in silence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ablate.config import ARCHITECTURE, Config, parse, same_architecture
from ablate.errors import ConfigError, Problem, did_you_mean
from ablate.matching import MATCH, matched
from ablate.shipped import conf_dir

HYDRA_VERSION_BASE: dict[str, Any] = {"version_base": "1.3"} if hydra.__version__ < "1.4" else {}
"""Hydra 1.4 warns when it is passed, 1.3 when it is not."""

OF_ARCHITECTURE = frozenset({*ARCHITECTURE, "layers", "stability", "match"})
"""What a command says that its baseline does not."""


@dataclass
class Request:
    """What a command line asks of Hydra: overrides, the primary config, a folder of the user's own."""

    overrides: list[str]
    config_name: str = "config"
    config_dir: str | None = None
    multirun: bool = False  # may sweep
    of_hydra: bool = False  # may set keys of Hydra itself
    problems: list[Problem] = field(default_factory=list)


def compose(overrides: Sequence[str] = (), *, config_name: str = "config", config_dir: str | None = None) -> Config:
    """The typed config of some overrides, the same as `python -m ablate OVERRIDES` trains."""
    return parse_request(Request(list(overrides), config_name, config_dir))


def parse_request(request: Request) -> Config:
    """Composes and parses; every problem of choices and of values comes in one ConfigError."""
    with open_loader(request) as loader:
        cleaned = normalise(request, loader)
        problems = list(cleaned.problems)
        try:
            cfg = parse(compose_raw(cleaned))
        except ConfigError as error:
            raise ConfigError([*problems, *(_with_imports(problem, request.config_dir) for problem in error.problems)]) from None
    if problems:
        raise ConfigError(problems)
    if MATCH.build(cfg.match).reference is None:
        return cfg
    reference = match_reference(cfg, request.overrides, lambda overrides: parse_request(replace(request, overrides=overrides)))
    return parse(matched(cfg, reference).model_dump())


def _with_imports(problem: Problem, config_dir: str | None) -> Problem:
    """Names `imports` where a file of the user's folder chooses a variant whose class is not registered."""
    unknown = re.match(r"no such variant: '(\w+)'", problem.message)
    if not (unknown and config_dir):
        return problem
    for path in sorted(Path(config_dir, *problem.key.split(".")[:-1]).glob("*.yaml")):
        if re.search(rf"^kind: *{unknown[1]}\b", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE):
            return Problem(problem.key, f"{problem.message}; {path} chooses it: import the module of its class with imports=[...]")
    return problem


def match_reference(cfg: Config, overrides: Sequence[str], composed: Callable[[list[str]], Config]) -> Config:
    """What an arm is matched with: what it names, else what its run is compared with. `composed` gives the config of some overrides."""
    named = MATCH.build(cfg.match).reference or []
    kept = without(overrides, OF_ARCHITECTURE)
    ours = without(kept, {"arch"})
    try:
        if named:
            return composed([*ours, *named, "match=none"])
        reference = composed([*kept, "match=none"])
        published = cfg.arch != "none" and same_architecture(cfg, reference)
        return composed([*ours, "match=none"]) if published else reference
    except ConfigError as error:
        raise ConfigError(Problem("match.reference", f"{problem.key}: {problem.message}") for problem in error.problems) from None


def without(overrides: Sequence[str], names: Collection[str]) -> list[str]:
    """The overrides that neither choose on the named axes nor set anything of theirs."""
    return [text for text in overrides if re.split(r"[=.@/]", text.lstrip("+~"))[0] not in names]


def normalise_request(request: Request) -> Request:
    """The overrides in the form in which Hydra takes them, and the choices that do not exist as problems."""
    with open_loader(request) as loader:
        return normalise(request, loader)


@contextmanager
def open_loader(request: Request) -> Iterator[ConfigLoader]:
    callers = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(conf_dir()), job_name="ablate", **HYDRA_VERSION_BASE):
            yield GlobalHydra.instance().config_loader()
    finally:
        GlobalHydra.instance().hydra = callers


def compose_raw(request: Request) -> DictConfig:
    """What Hydra composes, not resolved, not checked; overrides are in the form of `normalise`. Needs an open loader."""
    search = [f"hydra.searchpath=[file://{Path(request.config_dir).resolve()}]"] if request.config_dir else []
    try:
        return hydra.compose(request.config_name, overrides=[*search, *request.overrides])
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        nowhere = re.search(r"Could not override '([^'@]+)[^']*'\. No match", str(error))
        if nowhere:
            by = re.search(r"In '([^']+)'", str(error))
            who = f"{by[1].replace('/', '=', 1)} sets it, but " if by and by[1] != request.config_name else ""
            axis = nowhere[1].partition("/")[0]
            raise ConfigError.at(nowhere[1], f"has no place here: {who}the {axis} that is chosen has no such option") from None
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ConfigError.at("config", " ".join(lines[:2])) from None


def normalise(request: Request, loader: ConfigLoader) -> Request:
    """Groups lose their plus, values gain two, and a choice that no group has becomes a problem and falls out."""
    known = _Groups(request, loader)
    chosen: dict[str, set[str | None]] = {}
    result = replace(request, overrides=[], problems=[])
    for text in request.overrides:
        try:
            override = OverridesParser.create().parse_override(text)
        except HydraException:
            key, equals, value = text.partition("=")
            message = (
                f"cannot be read; put the value in quotes: \"{key}='{value}'\"" if equals and key else "is no override: key=value is needed"
            )
            result.problems.append(Problem(key if equals and key else text, message))
            continue
        if override.key_or_group in chosen and known.is_group(override.key_or_group) and override.package in chosen[override.key_or_group]:
            result.problems.append(Problem(override.key_or_group, f"is chosen twice, by {text!r} for the second time"))
            continue
        chosen.setdefault(override.key_or_group, set()).add(override.package)
        problem = known.problem(override)
        if problem:
            result.problems.append(problem)
        else:
            result.overrides.append(known.spelled(override, text))
    return result


class _Groups:
    """The config groups in reach: the shipped ones, and those of the user's folder."""

    def __init__(self, request: Request, loader: ConfigLoader) -> None:
        self.loader = loader
        self.own = Path(request.config_dir) if request.config_dir else None
        if self.own is not None and not self.own.is_dir():
            raise ConfigError.at("--config-dir", f"no such folder: {request.config_dir}")
        own_names = {path.name for path in self.own.iterdir() if path.is_dir()} if self.own else set()
        for path in self.own.rglob("*.yaml") if self.own else []:
            if (conf_dir() / path.relative_to(self.own or path)).exists():
                raise ConfigError.at("--config-dir", f"{path} has the name of a shipped file and would be ignored: give it another name")
        self.names = set(loader.list_groups("")) | own_names
        self.multirun, self.of_hydra = request.multirun, request.of_hydra
        self.declared = _declared_groups(request, self.own)

    def choices(self, group: str) -> list[str]:
        found = set(self.loader.get_group_options(group))
        if self.own and (self.own / group).is_dir():
            found |= {path.stem for path in (self.own / group).glob("*.yaml")}
        return sorted(found)

    def problem(self, override: Override) -> Problem | None:
        group = override.key_or_group
        if override.is_sweep_override() and not self.multirun:
            return Problem(
                group, f"{str(override.input_line).partition('=')[2]} are several values: a sweep, which needs -m (a list is written [a,b])"
            )
        if override.is_hydra_override() and not self.of_hydra:
            return Problem(group, "has no effect on a single run: Hydra only composes its config")
        if override.is_hydra_override() or override.is_delete() or not self.is_group(group):
            return None
        if override.is_sweep_override():
            return self._wrong_choice(override, group, _swept_words(override))
        value = override.value()
        if isinstance(value, list) and group != "stability" and group in self.declared:
            return Problem(group, f"takes one choice, got {value}")
        return self._wrong_choice(override, group, value if isinstance(value, list) else [value])

    def _wrong_choice(self, override: Override, group: str, words: Sequence[Any]) -> Problem | None:
        choices = self.choices(group)
        for word in words:
            if str(word) not in choices:
                message = f"no such choice: {word!r}; allowed: {', '.join(choices)}{did_you_mean(str(word), choices)}"
                return Problem(override.get_key_element().lstrip("+"), message)
        return None

    def spelled(self, override: Override, text: str) -> str:
        bare = text.lstrip("+")
        if override.is_hydra_override() or override.is_delete():
            return text
        if self.is_group(override.key_or_group):
            # A group that the primary config does not name (one of the user's own) keeps its plus: Hydra needs it there.
            group = override.key_or_group
            return bare if group in self.declared or override.package or ("/" in group and (conf_dir() / group).is_dir()) else f"+{bare}"
        return f"++{bare}"

    def is_group(self, name: str) -> bool:
        return name in self.names or "/" in name


def _swept_words(override: Override) -> list[str]:
    """The choices of a sweep that are words; a glob and lists of words choose for themselves."""
    if not override.is_choice_sweep() or isinstance(override.value(), Glob):
        return []
    return [word for word in map(str, override.sweep_string_iterator()) if not word.startswith("[")]


def _declared_groups(request: Request, own: Path | None) -> set[str]:
    for folder in [folder for folder in (own, conf_dir()) if folder is not None]:
        path = folder / f"{request.config_name}.yaml"
        if path.exists():
            loaded = OmegaConf.load(path)
            defaults = loaded.get("defaults", []) if isinstance(loaded, DictConfig) else []
            keys = {str(key) for item in defaults if not isinstance(item, str) for key in item}
            return {key.split()[-1].lstrip("/") for key in keys}
    known = sorted(path.stem for path in conf_dir().glob("*.yaml"))
    raise ConfigError.at("--config-name", f"no such config: {request.config_name!r}{did_you_mean(request.config_name, known)}")


def group_options(request: Request, group: str) -> list[str]:
    """The choices of a group, the user's own among them."""
    with open_loader(request) as loader:
        return _Groups(request, loader).choices(group)
