"""typed: the command line of a sweep as Hydra's multirun takes it, and what is wrong with the words that are not a run's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from ablate.composition import Request, normalise_request
from ablate.config import AXES, OVERLAYS, Config
from ablate.errors import ConfigError, Problem, did_you_mean
from ablate.sweep.launchers import OURS, not_ours

SWEEP_KEYS = ("sweep", "study", "dry_run", "yes", "wait", "measure", "ask_above_hours")
"""Keys of hydra.sweeper that are typed bare."""

LAUNCHER, LAUNCHER_OPTION = "hydra/launcher", "hydra.launcher."


def arguments_of_sweep(overrides: Sequence[str], config_name: str, config_dir: str | None) -> list[str]:
    """The overrides of `--multirun`; raises one ConfigError with every problem."""
    words = [(text.lstrip("+").removeprefix("hydra.sweeper."), text) for text in overrides]
    asked = [word for word, _ in words if word.partition("=")[0] in SWEEP_KEYS and "=" in word]
    rest = [text for word, text in words if word not in asked]
    hydras = [text.lstrip("+") for text in rest if text.lstrip("+").startswith(("hydra.", "hydra/"))]
    for text in hydras:
        if text.startswith(f"{LAUNCHER}=") and text.partition("=")[2] not in OURS:
            raise not_ours(text.partition("=")[2])
    ours = [text for text in rest if text.lstrip("+") not in hydras]
    request = normalise_request(Request(ours, config_name, config_dir, multirun=True))
    problems = [*_twice(asked), *_several([*asked, *hydras]), *_without_effect(hydras), *_misspelt(ours), *request.problems]
    if problems:
        raise ConfigError(problems)
    options = [f"++{text}" if text.startswith(LAUNCHER_OPTION) else text for text in hydras]  # launcher_of says which do not exist
    return [*(f"hydra.sweeper.{text}" for text in asked), *options, *request.overrides]


def without_sweep(overrides: Sequence[str]) -> Iterator[Problem]:
    """Keys of a sweep in the command of a single run."""
    for text in overrides:
        key = text.lstrip("+").partition("=")[0]
        if key in SWEEP_KEYS and "=" in text:
            yield Problem(key, "is for a sweep: -m with several values (-m norm=rmsnorm,layernorm seed=0,1), or sweep=STUDY")


def _twice(asked: Sequence[str]) -> Iterator[Problem]:
    seen: dict[str, str] = {}
    for text in asked:
        key = text.partition("=")[0]
        if key in seen:
            yield Problem(key, f"is set twice, by {text!r} for the second time")
        seen[key] = text


def _several(texts: Sequence[str]) -> Iterator[Problem]:
    """What a sweep itself is told has one value."""
    for text in texts:
        key, _, value = text.partition("=")
        try:
            several = OverridesParser.create().parse_override(text).is_sweep_override()
        except HydraException:
            yield Problem(key, f"cannot be read; put the value in quotes: \"{key}='{value}'\"")
            continue
        if several:
            yield Problem(key, f"{value} are several values, and a sweep is told one (a list is written [a,b])")


def _without_effect(hydras: Sequence[str]) -> Iterator[Problem]:
    for text in hydras:
        key = text.partition("=")[0]
        if key != LAUNCHER and not key.startswith(LAUNCHER_OPTION):
            yield Problem(key, f"has no effect here: of Hydra's own, a sweep reads {LAUNCHER} and {LAUNCHER_OPTION}OPTION")


def _misspelt(overrides: Sequence[str]) -> Iterator[Problem]:
    """dri_run=true is no option of a run. Other misspelt keys are found where configs are parsed."""
    known: Mapping[str, object] = {**AXES, **Config.model_fields, **dict.fromkeys(OVERLAYS)}
    for text in overrides:
        key = text.lstrip("+~").partition("=")[0]
        if key.isidentifier() and key not in known and (hint := did_you_mean(key, [*known, *SWEEP_KEYS])):
            yield Problem(key, f"unknown key; a sweep reads {', '.join(SWEEP_KEYS)} and the keys of a run{hint}")
