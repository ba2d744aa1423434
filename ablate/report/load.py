"""load: what runs have left on disk, as one thing that a report is made of.

`load` takes what a person types: a study, run directories, or wandb:ENTITY/PROJECT[/GROUP].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from ablate.errors import ConfigError, Problem, did_you_mean
from ablate.files import find_study, read_json, read_object, read_yaml
from ablate.report.records import Record, Role, better_copy, curves_frame, positions_frame, read_record, runs_frame, with_config

WANDB = "wandb:"
OF_RUN = ("status.json", "config.yaml", "identity.json", "metrics.jsonl")
"""A folder with one of these is a run directory."""


class Tuned(NamedTuple):
    """The learning rate of an arm: the grid as it has grown, the best of it once all runs have ended, and at which end of it that is."""

    rates: tuple[float, ...]
    best: float | None
    edge: str | None


@dataclass(frozen=True)
class ArmMeta:
    """An arm as it was asked for, and what one of its runs costs; None where that is not known."""

    name: str
    overrides: tuple[str, ...]
    levels: dict[str, str]  # axis -> variant
    parameters: int | None = None
    active_parameters: int | None = None
    training_flops_per_token: float | None = None
    flops: float | None = None  # of training
    kv_bytes_per_token: int | None = None


@dataclass(frozen=True)
class StudyMeta:
    """What was asked. `later` runs are not in `planned` yet: their learning rate is not known."""

    name: str
    question: str
    design: str  # of the study; "runs" where there is none
    baseline: str
    arms: tuple[ArmMeta, ...]
    blocks: tuple[int, ...]
    source: str  # study, runs or wandb
    tuning_rates: tuple[float, ...] = ()
    tuning_seeds: tuple[int, ...] = ()
    tuned: dict[str, Tuned] = field(default_factory=dict)
    match: str = "none"
    tolerance: float | None = None
    margin_tokens: float | None = None
    margin_nats: float | None = None
    budgets: tuple[float, ...] = ()
    looks: tuple[int, ...] = ()
    seed_offsets: dict[str, int] = field(default_factory=dict)
    command: str = ""
    planned: int = 0
    later: int = 0
    dropped: tuple[str, ...] = ()  # combinations that cannot be had, each with its reason
    notes: tuple[str, ...] = ()
    deviations: tuple[str, ...] = ()  # how the study was changed since it was first asked for
    directory: str = ""
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)  # arm -> the identity of one of its runs, with dotted keys
    reference: dict[str, str] = field(default_factory=dict)  # of axes that arms change, what the baseline has there


@dataclass(frozen=True)
class Loaded:
    """`runs`: a row a run and role (records.COLUMNS); `curves`: a row a run and step; `by_position`: a row a run and bucket."""

    meta: StudyMeta
    runs: pd.DataFrame
    curves: pd.DataFrame
    by_position: pd.DataFrame
    bench: dict[str, Any] | None = None


def load(words: Sequence[str], results_dir: str | Path = "results", baseline: str | None = None) -> Loaded:
    """A study by name or path, run directories (paths, names, hashes, folders of runs), or wandb:ENTITY/PROJECT[/GROUP]."""
    if len(words) == 1 and words[0].startswith(WANDB):
        from ablate.report.wandb_runs import load_wandb

        return load_wandb(words[0].removeprefix(WANDB), baseline)
    if len(words) == 1 and not _is_runs(words[0], results_dir):
        study = load_study(words[0], results_dir)
        return study if baseline is None else against(study, baseline)
    return load_runs_as_study(words, baseline, results_dir)


def against(study: Loaded, baseline: str) -> Loaded:
    """A study with another of its arms as the baseline; raises ConfigError if it has none of that name."""
    meta, names = study.meta, [arm.name for arm in study.meta.arms]
    if baseline not in names:
        raise ConfigError.at("--baseline", f"no such arm: {baseline!r}; arms are {', '.join(names)}{did_you_mean(baseline, names)}")
    if baseline == meta.baseline:
        return study
    note = f"the study was planned against {meta.baseline}; {baseline} is the baseline here because it was asked for"
    return replace(study, meta=replace(meta, baseline=baseline, deviations=(*meta.deviations, note)))


def load_study(name_or_path: str | Path, results_dir: str | Path = "results") -> Loaded:
    """A study as its folder and its runs tell it; raises ConfigError where it has none, or no plan that can be read."""
    study_dir = find_study(str(name_or_path), results_dir)
    plan, told = read_object(study_dir / "plan.json"), read_yaml(study_dir / "study.yaml") or {}
    try:
        meta = _meta(study_dir, plan, told)
        cells = [(cell, _role(cell, meta)) for cell in plan["cells"]]
        places = [_place(study_dir, cell) for cell, _ in cells]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        command = f": {told['command']}" if isinstance(told.get("command"), str) else ""
        message = f"is no plan that this version can read ({type(error).__name__}: {error}); the command that made the study writes it anew"
        raise ConfigError.at(str(study_dir / "plan.json"), message + command) from None
    meta = replace(meta, deviations=tuple(_deviations(study_dir, told["study"])))
    if not any(place.is_dir() for place in places):
        raise ConfigError.at(str(name_or_path), f"none of its {len(places)} runs is there; to run them: {meta.command}")
    records = {place: read_record(place) for place in dict.fromkeys(places)}
    roles = [(records[place], role) for place, (_, role) in zip(places, cells, strict=True)]
    meta = replace(meta, reference=reference_of(meta, roles))
    bench = read_json(study_dir / "bench.json")
    usable = isinstance(bench, dict) and isinstance(bench.get("arms"), dict)
    return loaded(meta, roles, bench if usable else None)


def loaded(meta: StudyMeta, roles: Sequence[tuple[Record, Role]], bench: dict[str, Any] | None = None) -> Loaded:
    """The frames of some runs."""
    records = list({id(record): record for record, _ in roles}.values())
    settings: dict[str, dict[str, Any]] = {}
    for record, role in sorted(roles, key=lambda pair: pair[1].stage != "confirm"):
        if record.says:
            settings.setdefault(role.arm, record.says)
    meta = replace(meta, settings=settings)
    return Loaded(meta, runs_frame(roles), curves_frame(records), positions_frame(records), bench)


def reference_of(meta: StudyMeta, roles: Sequence[tuple[Record, Role]]) -> dict[str, str]:
    """axis -> variant of the baseline, for the axes that its own or another arm's overrides name."""
    identity = next((record.identity for record, role in roles if role.arm == meta.baseline and record.identity), {})
    keys = dict.fromkeys(override.lstrip("+").partition("=")[0] for arm in meta.arms for override in arm.overrides)
    return {key: str(identity[f"{key}.kind"]) for key in keys if f"{key}.kind" in identity}


def _place(study_dir: Path, cell: Mapping[str, Any]) -> Path:
    """Where a run lies: beside its study, which may have been moved or copied, else where it was planned; by its hash at last."""
    planned, runs = Path(cell["directory"]), study_dir.parent / "runs"
    for place in (runs / planned.name, planned):
        if place.is_dir():
            return place
    return next(iter(sorted(runs.glob(f"*-{cell['hash']}"))), planned)


def _role(cell: Mapping[str, Any], meta: StudyMeta) -> Role:
    block = int(cell["seed"]) - meta.seed_offsets.get(cell["arm"], 0)
    return Role(cell["arm"], cell["stage"], float(cell["lr"]), int(cell["seed"]), block, float(cell.get("share", 1.0)))


def _meta(study_dir: Path, plan: Mapping[str, Any], told: Mapping[str, Any]) -> StudyMeta:
    asked = told["study"]
    tuning, match, margin = asked.get("tuning") or {}, asked.get("match") or {}, asked.get("margin") or {}
    same = [f"{arm} is the same configuration as {other}" for arm, other in plan.get("duplicates", []) if arm != other]
    unused = {arm for arm, _ in plan.get("duplicates", [])} - {cell["arm"] for cell in plan["cells"]}
    return StudyMeta(
        name=plan["study"],
        question=plan["question"],
        design=asked["design"],
        baseline=plan["baseline"],
        arms=tuple(_arm(arm) for arm in plan["arms"] if arm["name"] not in unused),
        blocks=tuple(plan["blocks"]),
        source="study",
        tuning_rates=tuple(float(rate) for rate in tuning.get("lr", ())),
        tuning_seeds=tuple(tuning.get("seeds", ())),
        tuned={name: Tuned(tuple(found["rates"]), found["best"], found["edge"]) for name, found in plan["tuned"].items()},
        match=match.get("kind", "none"),
        tolerance=match.get("tolerance"),
        margin_tokens=margin.get("tokens"),
        margin_nats=margin.get("nats"),
        budgets=tuple(asked.get("budgets") or ()),
        looks=tuple(asked.get("looks") or ()),
        seed_offsets=dict(asked.get("seed_offsets") or {}),
        command=plan["command"],
        planned=len(plan["cells"]),
        later=plan["later"],
        dropped=tuple(f"{' '.join(one['overrides'])}: {one['reason']}" for one in plan.get("dropped", [])),
        notes=(*plan.get("notes", ()), *dict.fromkeys(same)),
        directory=str(study_dir),
    )


def _arm(arm: Mapping[str, Any]) -> ArmMeta:
    return ArmMeta(
        name=arm["name"],
        overrides=tuple(arm["overrides"]),
        levels=dict(arm["levels"]),
        parameters=arm.get("parameters"),
        active_parameters=arm.get("active_parameters"),
        training_flops_per_token=arm.get("training_flops_per_token"),
        flops=arm.get("flops"),
        kv_bytes_per_token=arm.get("kv_bytes_per_token"),
    )


def _deviations(study_dir: Path, asked: Mapping[str, Any]) -> Iterator[str]:
    """What each earlier version of a study had otherwise than the one that came after it."""
    kept = sorted(study_dir.glob("study-*.yaml"))
    earlier = [(read_yaml(path) or {}).get("study") for path in kept]
    for path, before, after in zip(kept, earlier, [*earlier, asked][1:], strict=True):
        if not isinstance(before, dict) or not isinstance(after, Mapping):
            yield f"{path.name} cannot be read"
            continue
        keys = [key for key in dict.fromkeys([*before, *after]) if before.get(key) != after.get(key)]
        changes = ", ".join(f"{key} was {before.get(key)} and became {after.get(key)}" for key in keys)
        yield f"{path.name}: {changes or 'no key differs'}"


# --- runs without a study


def load_runs_as_study(paths: Sequence[str | Path], baseline: str | None = None, results_dir: str | Path = "results") -> Loaded:
    """Runs compared as a study would: arms are what differs in their identity. `baseline` names one of them, or one of their runs."""
    from ablate.report.grouping import study_of

    directories = list(run_directories([str(path) for path in paths], results_dir))
    found = [read_record(directory) for directory in directories]
    if not all(record.identity for record in found):  # then configs for all, or no two of them could be compared
        found = [with_config(record) for record in found]
    records, notes = without_copies(found)
    meta, roles = study_of(records, baseline, "runs", notes)
    return loaded(meta, roles)


def without_copies(records: Sequence[Record]) -> tuple[list[Record], list[str]]:
    """Every run once, in the order given, and what is to be said about copies."""
    kept: dict[str, Record] = {}
    notes = []
    for record in records:
        if (other := kept.get(record.digest)) is None:
            kept[record.digest] = record
            continue
        kept[record.digest] = better_copy(other, record)
        differ = f", with different losses ({other.loss} and {record.loss})" if other.loss != record.loss else ""
        notes.append(f"{record.digest} is there twice{differ}: {kept[record.digest].directory} counts")
    return list(kept.values()), notes


def run_directories(words: Sequence[str], results_dir: str | Path) -> Iterator[Path]:
    """The run directories that paths, names, hashes and folders of runs stand for; raises ConfigError with all that stand for none."""
    problems = []
    for word in words:
        found = _directories(word, results_dir)
        yield from found
        if not found:
            known = [path.name for path in (Path(results_dir).expanduser() / "runs").glob("*/")]
            problems.append(Problem(word, f"is no run, and no folder of runs{did_you_mean(word, known)}"))
    if problems or not words:
        raise ConfigError(problems or [Problem("RUN", "no run was given")])


def _directories(word: str, results_dir: str | Path) -> list[Path]:
    path, runs = Path(word).expanduser(), Path(results_dir).expanduser() / "runs"
    for folder in (path, path / "runs"):
        if _is_run(folder):
            return [folder.absolute()]
        if found := [inner.absolute() for inner in sorted(folder.glob("*/")) if _is_run(inner)]:
            return found
    named = [runs / word, *sorted(runs.glob(f"*-{word}"))] if word and "/" not in word else []
    return [found.absolute() for found in named if _is_run(found)][:1]


def _is_run(path: Path) -> bool:
    return any((path / name).is_file() for name in OF_RUN)


def _is_runs(word: str, results_dir: str | Path) -> bool:
    """Whether a word stands for runs rather than for a study."""
    is_study = any((place / "study.yaml").is_file() for place in (Path(word).expanduser(), Path(results_dir).expanduser() / word))
    return not is_study and bool(_directories(word, results_dir))


# --- for a table


def tidy(loaded: Loaded) -> pd.DataFrame:
    """runs.csv: a row a run and role, in the order of arms, stages, rates and blocks; where runs lie is left out."""
    arms = {arm.name: index for index, arm in enumerate(loaded.meta.arms)}
    stages = {"tune": 0, "confirm": 1, "budget": 2}
    frame = loaded.runs.drop(columns="directory")
    order = frame.assign(arm=frame["arm"].map(arms), stage=frame["stage"].map(stages)).sort_values(["arm", "stage", "share", "lr", "block"])
    return frame.loc[order.index].reset_index(drop=True)
