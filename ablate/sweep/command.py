"""command: `-m norm=a,b seed=0,1,2` and `sweep=norm`, from what a person typed to runs that are on their way."""

from __future__ import annotations

import hashlib
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from pydantic import BeforeValidator, Field, ValidationError
from rich.console import Console

from ablate.composition import Request, group_options
from ablate.errors import ConfigError, Problem, asked_for
from ablate.flags import AS_TYPED
from ablate.registry import Section
from ablate.sweep.control import Control, Told
from ablate.sweep.launchers import launcher_of
from ablate.sweep.study import OF_ALL_RUNS, Study, as_text, load_study, over, parse_study, place_of
from ablate.train.launch import plain_console

Word = Annotated[str, BeforeValidator(lambda value: str(value) if isinstance(value, int) else value)]
"""study=2024 is a name too."""

OF_FILES = frozenset(Study.model_fields) - {"name", "set", "match", "margin"}
"""Keys of a study that no command line sets; blocks are its seeds, axes its keys with several values."""

COMMON = OF_ALL_RUNS | {"results_dir"}
"""Keys that hold for all runs of a sweep and move no number."""


class Asked(Section):
    """What Hydra composed of a command line."""

    overrides: list[str]  # of the task: keys and choices, some with several values
    launcher: dict[str, Any]
    config_name: str
    config_dir: str | None
    sweep: Word | None
    study: Word | None
    dry_run: bool
    yes: bool
    wait: bool
    measure: bool
    ask_above_hours: Annotated[float, Field(ge=0)]


def asked_of(values: Mapping[str, Any]) -> Asked:
    """Typed, so that yes=no is no yes; raises ConfigError with every problem."""
    try:
        return Asked.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(
            Problem(str(detail["loc"][0]), f"{asked_for(detail)}, got {detail['input']!r}") for detail in error.errors()
        ) from None


def sweep(asked: Asked) -> int:
    """Plans, prints, and unless it is a dry run starts; gives the exit code."""
    console = plain_console()
    launcher = launcher_of(asked.launcher)
    common, chosen = _parted(asked.overrides)
    study = _study_of(asked, chosen)
    told = Told(
        study=study.model_dump(by_alias=True, exclude={"name"}),
        name=study.name,
        common=_without_marks(common),
        launcher=launcher.model_dump(),
        config_name=asked.config_name,
        config_dir=str(Path(asked.config_dir).absolute()) if asked.config_dir else None,
        cwd=str(Path.cwd()),
        command=" ".join(["python -m ablate", *map(shlex.quote, AS_TYPED or sys.argv[1:])]),
    )
    with Control(told, console) as control:
        plan = control.show(measure=asked.measure)
        if asked.dry_run:
            return 0
        _ask(asked, control.hours, len(plan.unfinished()), console)
        return control.go(by_person=True, wait=asked.wait)


def _without_marks(overrides: Sequence[str]) -> list[str]:
    return [text.lstrip("+") for text in overrides]


def _parted(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """What holds for all runs, and what says which runs there are."""
    common = [text for text in overrides if place_of(text).partition(".")[0] in COMMON]
    if any(place_of(text) == "rerun" for text in overrides):
        raise ConfigError.at("rerun", "is for a single run; of a study, `python -m ablate retry STUDY` runs again what crashed")
    several = [text for text in common if OverridesParser.create().parse_override(text).is_sweep_override()]
    if several:
        message = "are several values, and it holds for all runs of a sweep: one value"
        raise ConfigError(Problem(place_of(text), f"{text.partition('=')[2]} {message}") for text in several)
    return common, [text for text in overrides if text not in common]


def _study_of(asked: Asked, chosen: list[str]) -> Study:
    parsed = [(text, OverridesParser.create().parse_override(text)) for text in chosen]
    swept = [(text, override) for text, override in parsed if override.is_sweep_override()]
    if asked.sweep is None:
        return _grid(asked, [text for text, override in parsed if not override.is_sweep_override()], [override for _, override in swept])
    if [text for text, override in swept if override.key_or_group != "seed"]:
        problems = [(override.key_or_group, text) for text, override in swept if override.key_or_group != "seed"]
        raise ConfigError(Problem(key, f"{text!r} are several values, and arms are what the study says") for key, text in problems)
    study = load_study(asked.sweep)
    values = study.model_dump(by_alias=True, exclude={"name"})
    margin, fixed = _margin([text for text, override in parsed if override.key_or_group != "seed"])
    _refuse_of_arms(study, fixed)
    values["set"] = over(study.set, _without_marks(fixed))
    values["margin"] = margin or values["margin"]
    for text, override in parsed:
        if override.key_or_group == "seed":
            values["blocks"] = _seeds(text, override, asked)
    return parse_study(values, asked.study or study.name)


def _grid(asked: Asked, fixed: list[str], swept: list[Override]) -> Study:
    """The study of a command line: every key with several values is an axis, seeds are blocks."""
    values: dict[str, Any] = {"design": "grid", "axes": {}, "blocks": [0], "match": {}}
    kept = []
    margin, fixed = _margin(fixed)
    if margin:
        values["margin"] = margin
    for text in _without_marks(fixed):
        key, _, value = text.partition("=")
        if key == "seed":
            values["blocks"] = _seeds(text, OverridesParser.create().parse_override(text), asked)
        elif place_of(text).partition(".")[0] == "match":
            values["match"]["kind" if key == "match" else key.removeprefix("match.")] = _plain(value)
        else:
            kept.append(text)
    for override in swept:
        if override.key_or_group == "seed":
            values["blocks"] = _seeds(str(override.input_line), override, asked)
        else:
            values["axes"][override.get_key_element().lstrip("+")] = _values(override, asked)
    single = [key for key, several in values["axes"].items() if len(several) == 1]
    kept += [f"{key}={values['axes'].pop(key)[0]}" for key in single]
    values["set"] = kept
    values["question"] = " ".join(shlex.quote(str(text).lstrip("+")) for text in [*(o.input_line for o in swept), *fixed]) or "the baseline"
    if not values["match"]:
        del values["match"]
    return parse_study(values, asked.study or _name(values))


def _margin(chosen: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """What is said of the margin, and the rest; raises ConfigError for the other keys of study files."""
    wrong = [text for text in chosen if place_of(text).partition(".")[0] in OF_FILES]
    if wrong:
        raise ConfigError(Problem(place_of(text), "is a key of study files: write it in one, sweep=my/study.yaml") for text in wrong)
    ours = [text for text in chosen if place_of(text).partition(".")[0] == "margin"]
    values = {place_of(text).partition(".")[2]: _plain(text.partition("=")[2]) for text in ours}
    if "" in values:
        raise ConfigError.at("margin", "must be margin.nats=0.01 or margin.tokens=0.03")
    return values, [text for text in chosen if text not in ours]


def _refuse_of_arms(study: Study, fixed: Sequence[str]) -> None:
    """An override of every run that some arms replace would move the baseline, and the others not."""
    overrides = [*(study.arms or {}).values(), *(study.changes or {}).values()]
    theirs = {place_of(text) for several in overrides for text in several}
    problems = [
        Problem(
            place_of(text), f"is what arms of {study.name} differ in ({place}), so it cannot be the same for all: write a study of your own"
        )
        for text in fixed
        for place in sorted(theirs)
        if f"{place_of(text)}.".startswith(f"{place}.")
    ]
    if problems:
        raise ConfigError(problems)


def _plain(text: str) -> Any:
    from yaml import safe_load

    return safe_load(text)


def _name(values: dict[str, Any]) -> str:
    """Of its axes, and a hash of all that makes another grid of it: the same command is the same study."""
    axes = "-".join(re.sub(r"[^A-Za-z0-9]+", "_", key).strip("_") for key in values["axes"]) or "seeds"
    told = repr((sorted(values["axes"].items()), values["set"], values.get("match")))
    return f"{axes[:60]}-{hashlib.sha256(told.encode()).hexdigest()[:6]}"


def _values(override: Override, asked: Asked) -> list[str]:
    """The values of a sweep as they stand in overrides: a,b  range(3)  glob(*)  choice(a,b)."""
    value: Any = override.value()
    if isinstance(value, Glob):
        options = group_options(Request([], asked.config_name, asked.config_dir), override.key_or_group)
        found = [str(word) for word in value.filter(options)]
        if not found:
            key, text = override.key_or_group, str(override.input_line).partition("=")[2]
            raise ConfigError.at(key, f"{text} fits none of {', '.join(options)}")
        return found
    return list(dict.fromkeys(str(text) for text in override.sweep_string_iterator()))


def _seeds(text: str, override: Override, asked: Asked) -> list[int]:
    values = _values(override, asked) if override.is_sweep_override() else [as_text(override.value())]
    wrong = [value for value in values if not re.fullmatch(r"\d+", value)]
    if wrong:
        raise ConfigError.at("seed", f"must be whole numbers of at least 0, got {text.partition('=')[2]}")
    return [int(value) for value in values]


def _ask(asked: Asked, hours: float | None, runs: int, console: Console) -> None:
    """A person is asked before many hours of work; nobody to ask, and yes=true is needed."""
    if asked.yes or hours is None or hours <= asked.ask_above_hours:
        return
    if not (sys.stdin.isatty() and console.is_terminal):
        message = (
            f"about {hours:.0f} hours of one worker for {runs} runs, above ask_above_hours={asked.ask_above_hours:g}: yes=true starts them"
        )
        raise ConfigError.at("yes", message)
    if console.input(f"Start {runs} runs? [y/N] ").strip().lower() not in ("y", "yes"):
        raise ConfigError.at("yes", "nothing was started")
