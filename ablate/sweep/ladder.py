"""ladder: from one architecture to another, one axis at a time, each step on top of those before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from ablate.errors import ConfigError, Problem, did_you_mean
from ablate.shipped import conf_dir
from ablate.sweep.arms import Arm, Arms, Dropped, Refused
from ablate.sweep.study import BASELINE, LADDER_AXES, Study

Words = dict[str, str]
"""axis -> variant."""


def ladder(study: Study, why: Refused, config_dir: str | None) -> Arms:
    """The arms from arch=FROM to what arch=TO is. A step that cannot be had alone is made together with others."""
    assert study.ladder is not None
    start, to, order = study.ladder.start, study.ladder.to, study.ladder.order
    folders = [Path(config_dir), conf_dir()] if config_dir else [conf_dir()]
    first, last = _ends(start, to, folders, why)
    todo = [axis for axis in (*order, *(axis for axis in LADDER_AXES if axis not in order)) if first[axis] != last[axis]]
    if not todo:
        raise ConfigError.at("ladder.to", f"arch={to} chooses what arch={start} does on every axis: there is no step to take")
    now, done = dict(first), [f"arch={start}"]
    arms = [Arm(BASELINE if start == "none" else start, tuple(done), _levels(first, first, last))]
    dropped: Dropped = []
    while todo:
        alone = (*done, *_overrides(todo[:1], last))
        step = next(step for step in _steps(todo) if len(step) == len(todo) or why([*done, *_overrides(step, last)]) is None)
        if len(step) > 1:
            dropped.append((alone, why(alone) or ""))
        done += _overrides(step, last)
        now.update({axis: last[axis] for axis in step})
        todo = [axis for axis in todo if axis not in step]
        arms.append(Arm("+".join(step), tuple(done), _levels(now, first, last)))
    note = f"each arm is the one before and one step more; the last, {arms[-1].name}, is arch={to}"
    return Arms(tuple(arms), arms[0].name, tuple(dropped), (note,))


def _ends(start: str, to: str, folders: Sequence[Path], why: Refused) -> tuple[Words, Words]:
    """What both architectures choose; both must be possible where the study asks for them."""
    words, problems = [], []
    for key, arch in (("ladder.from", start), ("ladder.to", to)):
        try:
            words.append(words_of(arch, folders))
        except ConfigError as error:
            problems += [Problem(key, problem.message) for problem in error.problems]
            continue
        reason = why([f"arch={arch}"])
        if reason:
            problems.append(Problem(key, f"arch={arch} cannot be had: {reason}"))
    if problems:
        raise ConfigError(problems)
    return words[0], words[1]


def words_of(arch: str, folders: Sequence[Path]) -> Words:
    """axis -> the variant that an architecture chooses, by its file and, where it says nothing, by the shipped baseline's."""
    return {**_chosen(conf_dir() / "config.yaml", folders), **_of_file(arch, folders)}


def _of_file(arch: str, folders: Sequence[Path]) -> Words:
    for folder in folders:
        path = folder / "arch" / f"{arch}.yaml"
        if path.is_file():
            return _chosen(path, folders)
    known = sorted({path.stem for folder in folders for path in (folder / "arch").glob("*.yaml")})
    raise ConfigError.at("arch", f"no such architecture: {arch!r}; allowed: {', '.join(known)}{did_you_mean(arch, known)}")


def _chosen(path: Path, folders: Sequence[Path]) -> Words:
    """The axes that a file of architectures, or the primary config, chooses. An architecture that does more has no ladder."""
    loaded = OmegaConf.load(path)
    assert isinstance(loaded, DictConfig), path
    words: Words = {}
    is_arch = path.parent.name == "arch"
    for item in loaded.get("defaults", []):
        if isinstance(item, str):
            words.update(_of_file(item, folders) if item != "_self_" else {})
            continue
        [(target, word)] = item.items()
        axis = str(target).removeprefix("override ").lstrip("/")
        if axis in LADDER_AXES:
            words[axis] = str(word)
        elif is_arch:
            raise ConfigError.at("arch", f"{path.stem} chooses {axis} too, which is no axis that a ladder can step on")
    beside = [str(key) for key in loaded if key not in ("defaults", "arch")] if is_arch else []
    if beside:
        raise ConfigError.at("arch", f"{path.stem} sets {', '.join(beside)} beside choosing variants, and a ladder steps on axes alone")
    return words


def _steps(todo: Sequence[str]) -> Iterator[list[str]]:
    """What may be the next step: the next axis alone, else with as few of those that follow as can be."""
    first, *rest = todo
    for length in range(len(todo)):
        yield from ([first, *others] for others in combinations(rest, length))


def _overrides(step: Sequence[str], words: Words) -> list[str]:
    return [f"{axis}={words[axis]}" for axis in step]


def _levels(now: Words, first: Words, last: Words) -> Words:
    """Of the axes on which the ends differ."""
    return {axis: now[axis] for axis in LADDER_AXES if first[axis] != last[axis]}
