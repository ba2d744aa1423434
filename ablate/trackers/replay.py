"""`ablate sync PATH [PATH ...] [project=x mode=online ...]`: replays run directories to W&B, each in a mirror process of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from ablate.errors import ConfigError, Problem, asked_for, did_you_mean
from ablate.registry import Options
from ablate.trackers.mirror import SENT_ELSEWHERE, Mirror
from ablate.trackers.variants import TRACKER


def sync(argv: Sequence[str]) -> int:
    """A path is a run or a results folder. Tracker options hold for all runs; else each run's own, else those of conf/tracker.

    Prints a line for each run and returns 0 if all went where they should. `kind=tensorboard` replays to event files. Once the
    server is not to be had, the rest is not tried.
    """
    paths = [word for word in argv if "=" not in word or Path(word).expanduser().exists()]  # the name of a run may hold a "="
    typed = dict(word.removeprefix("tracker.").split("=", 1) for word in argv if word not in paths)
    directories = _directories(paths)
    kind = typed.pop("kind", "wandb")
    if kind not in TRACKER.words() or kind == "none":
        known = [word for word in TRACKER.words() if word != "none"]
        raise ConfigError.at("kind", f"no such tracker: {kind!r}; allowed: {', '.join(known)}{did_you_mean(kind, known)}")
    jobs = [(directory, _options(kind, directory, typed)) for directory in directories]
    failed = unreachable = False
    for directory, options in jobs:
        if unreachable:
            print(f"{directory.name}  not tried")
            continue
        mirror = Mirror(directory, options)
        mirror.start(follow=False)
        problem = mirror.wait()
        print(f"{directory.name}  {'; '.join(filter(None, [mirror.result, problem]))}", flush=True)
        failed = failed or problem is not None
        unreachable = mirror.code == SENT_ELSEWHERE
    return int(failed)


def _directories(paths: list[str]) -> list[Path]:
    """The runs under some paths."""
    if not paths:
        raise ConfigError.at("sync", "needs a run directory or a results folder: python -m ablate sync results")
    found, problems = [], []
    for path in paths:
        runs = list(_runs(Path(path).expanduser()))
        found += runs
        if not runs:
            problems.append(Problem(path, "is no run directory (no config.yaml) and holds no runs"))
    if problems:
        raise ConfigError(problems)
    return list(dict.fromkeys(found))


def _runs(path: Path) -> Iterator[Path]:
    if (path / "config.yaml").is_file():
        yield path.resolve()
        return
    for folder in (path / "runs", path):
        for config in sorted(folder.glob("*-*/config.yaml")):
            yield config.parent.resolve()


def _options(kind: str, directory: Path, typed: dict[str, str]) -> Options:
    from ablate.shipped import conf_dir

    model = TRACKER.options(kind)
    values: dict[str, Any] = yaml.safe_load((conf_dir() / "tracker" / f"{kind}.yaml").read_text(encoding="utf-8"))
    own = yaml.safe_load((directory / "config.yaml").read_text(encoding="utf-8")).get("tracker", {})
    if own.get("kind") == kind:
        values.update({key: value for key, value in own.items() if key in model.model_fields})
    values.update({key: _value(model, key, text) for key, text in typed.items()})
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_problem(detail, model) for detail in error.errors()) from None


def _value(model: type[Options], key: str, text: str) -> Any:
    """Words stay words (`project=12`); the rest is YAML."""
    field = model.model_fields.get(key)
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text  # of the wrong type, which its own message says
    return text if field is not None and field.annotation in (str, str | None) and value is not None else value


def _problem(detail: Any, model: type[Options]) -> Problem:
    key = ".".join(map(str, detail["loc"]))
    if detail["type"] == "extra_forbidden":
        known = [name for name in model.model_fields if name != "kind"]
        return Problem(key, f"unknown option; known: {', '.join(known)}{did_you_mean(key, known)}")
    return Problem(key, f"{asked_for(detail)}, got {detail['input']!r}")
