"""study: one question, typed: what is compared, on which seeds, at which learning rates, and what difference would matter.

`load_study("norm")` reads sweeps/norm.yaml; `parse_study()` is the door for a study that is built in code. What comes out is checked
as far as it can be without composing a config; ablate.sweep.designs makes arms of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError, model_serializer

from ablate.config import ARCHITECTURE, Seed
from ablate.errors import ConfigError, Problem, asked_for, did_you_mean
from ablate.registry import Positive, PositiveShare, Section, Share
from ablate.shipped import sweeps_dir

BASELINE = "baseline"
ALL = "all"
PLAIN = "plain"
RESERVED = (BASELINE, ALL, PLAIN)
"""Names that designs give to arms of their own."""

NEEDS = {
    "arms": ("arms",),
    "grid": ("axes",),
    "one_at_a_time": ("axes",),
    "add_one": ("changes",),
    "leave_one_out": ("changes",),
    "ladder": ("ladder",),
    "fractional": ("axes",),
}
"""design -> the keys that it cannot do without."""

MAY = {
    "arms": ("baseline", "seed_offsets"),
    "grid": ("baseline",),
    "one_at_a_time": ("baseline",),
    "add_one": ("baseline",),
    "leave_one_out": ("baseline",),
    "ladder": (),
    "fractional": ("resolution",),
}
"""design -> the keys that it reads if they are there. The other keys of designs would have no effect, and are refused."""

OWNED = {
    "seed": "blocks",
    "init_seed": "blocks",
    "data_seed": "blocks",
    "match": "match",
    "results_dir": "results_dir=... on the command line",
    "rerun": "`python -m ablate retry STUDY`, which runs again what has no result",
}
"""Key of a run that a study sets itself -> what to write instead."""

OF_ALL_RUNS = frozenset({"cache_dir", "threads", "progress", "checkpoint", "tracker", "probes"})
"""Keys that move no number of a run: they make no arm."""

LADDER_AXES = (*ARCHITECTURE, "layers")
"""What an architecture chooses, in the order in which a ladder changes it: rules for layers last, which need what they set."""

RUNS = "runs"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


def _named(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError("must be usable as a file name: letters, digits, and . _ + - after the first, at most 100")
    if name == RUNS:
        raise ValueError(f"must be another than {RUNS}, which is where runs lie")
    return name


def _readable(override: str) -> str:
    if not re.fullmatch(r"\+{0,2}[^=\s+~]+=.*|~[^\s+~]+", override, re.DOTALL):
        raise ValueError("must be an override: key=value")
    return override


def _distinct(values: list[Any]) -> list[Any]:
    texts = [as_text(value) for value in values]
    again = next((text for index, text in enumerate(texts) if text in texts[:index]), None)
    if again is not None:
        raise ValueError(f"must be distinct: {again} is there twice")
    return values


def _rising(values: list[float]) -> list[float]:
    if any(after <= before for before, after in pairwise(values)):
        raise ValueError("must rise from each to the next")
    return values


def _apart(rates: list[float]) -> list[float]:
    """A grid that grows does so by three digits."""
    if any(after < 1.01 * before for before, after in pairwise(rates)):
        raise ValueError("must lie apart by 1 % at least")
    return rates


def _not_one(values: list[float]) -> list[float]:
    if 1.0 in values:
        raise ValueError("must not have 1 in it: those are the blocks themselves")
    return values


def _seeds(value: object) -> object:
    """8 -> the seeds 0 to 7."""
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= 10_000:
            raise ValueError("must be a list of seeds, or how many: 1 to 10000")
        return list(range(value))
    return value


Name = Annotated[str, AfterValidator(_named)]
Override = Annotated[str, AfterValidator(_readable)]
Overrides = list[Override]
Value = str | int | float | bool | None | list[Any] | dict[str, Any]
"""Of an axis: what stands right of the equals sign of an override, as YAML or as the command line writes it."""
Values = Annotated[list[Value], Field(min_length=1), AfterValidator(_distinct)]
Seeds = Annotated[list[Seed], BeforeValidator(_seeds), Field(min_length=1), AfterValidator(_distinct)]


class Ladder(Section):
    """The way from one architecture to another; `order`: the axes in the order in which they change, then those that are not named."""

    start: str = Field(alias="from")
    to: str
    order: Annotated[list[str], AfterValidator(_distinct)] = Field(default=[])

    @model_serializer
    def _as_written(self) -> dict[str, Any]:
        return {"from": self.start, "to": self.to, "order": self.order}


class Tuning(Section):
    """Every arm takes the best of the same learning rates; a best one at the end of the grid adds up to `extend` points there."""

    lr: Annotated[list[Positive], Field(min_length=3), AfterValidator(_rising), AfterValidator(_apart)]
    seeds: Seeds
    extend: Annotated[int, Field(ge=0, le=2)] = 2


class Matching(Section):
    """What each arm is made equal to the baseline in: conf/match. null: as shipped there."""

    kind: Literal["none", "params", "active_params", "flops"] = "none"
    tolerance: Share | None = None
    solve: Literal["ffn_width", "depth"] | None = None


class Margin(Section):
    """The smallest difference worth acting on: of the share of training tokens that it is worth, or in nats. One of the two."""

    tokens: PositiveShare | None = None
    nats: Positive | None = None


class Study(Section):
    """One question. Overrides are those of the command line; `set` holds for every run, and arms are made on top of it.

    `seed_offsets` gives an arm that is the baseline once more seeds of its own: block b of it runs with the seed b + offset, in tuning
    too, so that it goes through everything an arm goes through and differs by chance alone (an A/A test).

    `budgets` are shares of the training tokens on which the tuned baseline is trained too, each with a whole schedule of its own, in the
    first two blocks: they tell what a difference is worth in tokens. `looks` are the numbers of blocks after which verdicts may be read
    before the last one: the chance of error is shared out among them and the end.
    """

    name: Name
    question: Annotated[str, Field(min_length=1)]
    set: Overrides = Field(default=[])
    design: Literal["arms", "grid", "one_at_a_time", "add_one", "leave_one_out", "ladder", "fractional"]
    baseline: Overrides | None = None  # null: the shipped baseline; of axes, their first values
    arms: dict[Name, Overrides] | None = None
    seed_offsets: dict[Name, Annotated[int, Field(ge=1)]] | None = None
    axes: dict[str, Values] | None = None
    changes: dict[Name, Annotated[Overrides, Field(min_length=1)]] | None = None
    ladder: Ladder | None = None
    resolution: Literal["III", "IV", "V"] | None = None  # null: IV
    blocks: Seeds
    tuning: Tuning | None = None
    match: Matching = Matching()
    margin: Margin = Margin(tokens=0.03)
    budgets: Annotated[list[Positive], AfterValidator(_rising), AfterValidator(_not_one)] = Field(default=[])
    looks: Annotated[list[Annotated[int, Field(ge=2)]], AfterValidator(_rising)] = Field(default=[])


def load_study(word: str) -> Study:
    """The shipped study of that name, or the study in a YAML file (my/study.yaml)."""
    is_path = "/" in word or word.endswith((".yaml", ".yml"))
    path = Path(word) if is_path else sweeps_dir() / f"{word}.yaml"
    if not path.is_file():
        if is_path:
            raise ConfigError.at(word, "no such file")
        known = shipped_studies()
        allowed = f"shipped are {', '.join(known)}, and a path such as my/study.yaml is one of your own"
        raise ConfigError.at("sweep", f"no such study: {word!r}; {allowed}{did_you_mean(word, known)}")
    where = word if is_path else f"sweeps/{path.name}"
    return parse_study(_read(path, where), path.stem, where)


def shipped_studies() -> list[str]:
    """The names of the shipped studies."""
    return sorted(path.stem for path in sweeps_dir().glob("*.yaml"))


def _read(path: Path, where: str) -> dict[str, Any]:
    """The mapping in a file. OmegaConf reads it as it reads conf/: 1e-3 is a number, and a key that is there twice an error."""
    try:
        values = OmegaConf.to_container(OmegaConf.load(path))
    except (yaml.YAMLError, OmegaConfBaseException, OSError, UnicodeDecodeError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ConfigError.at(where, f"cannot be read as YAML: {' '.join(lines[:4])}") from None
    if not isinstance(values, dict) or not values:
        raise ConfigError.at(where, "must be a mapping: question: ..., design: ..., blocks: ...")
    if "name" in values:
        raise ConfigError.at(f"{where}: name", "is that of the file, and not written in it")
    return {str(key): value for key, value in values.items()}


def parse_study(values: Mapping[str, Any], name: str, where: str = "") -> Study:
    """Checks everything that shows without composing; raises one ConfigError with every problem, each key behind the file's name."""
    raw = {key: value for key, value in values.items() if value is not None}
    problems = [*_of_design(raw), *_owned(raw)]
    study = None
    try:
        study = Study.model_validate({"name": name, **raw})
    except ValidationError as error:
        problems = [*_one_a_key(_problem(detail) for detail in error.errors()), *problems]
    if study is not None and not problems:
        problems = list(_together(study))
    if problems:
        raise ConfigError(Problem(f"{where}: {problem.key}" if where else problem.key, problem.message) for problem in problems)
    assert study is not None
    return study


def place_of(override: str) -> str:
    """Where an override sets something: attention/qk_norm=head at attention.qk_norm, norm@embedding.norm=x at embedding.norm."""
    key, _, package = override.partition("=")[0].lstrip("+~").partition("@")
    return package or key.replace("/", ".")


def over(below: Sequence[str], above: Sequence[str]) -> list[str]:
    """Overrides over others. What `above` sets falls out of `below`, with the values in it: norm=layernorm takes norm.fraction=1/2 away."""
    places = {place_of(text) for text in above}

    def stays(text: str) -> bool:
        parts = place_of(text).split(".")
        return not any(".".join(parts[:length]) in places for length in range(1, len(parts) + 1))

    return [*filter(stays, below), *above]


def as_text(value: Any) -> str:
    """A value as it stands in an override. A text stays as it is: it is Hydra's own spelling."""
    if isinstance(value, list):
        return f"[{','.join(map(as_text, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{as_text(inner)}" for key, inner in value.items()) + "}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def _of_design(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """The keys that the design lacks, and those that it would not read."""
    design = raw.get("design")
    if not isinstance(design, str) or design not in NEEDS:
        return
    for key in NEEDS[design]:
        if key not in raw:
            yield Problem(key, f"missing: design={design} is made of it")
    for key in dict.fromkeys(key for keys in (*NEEDS.values(), *MAY.values()) for key in keys):
        if key in raw and key not in (*NEEDS[design], *MAY[design]):
            readers = [other for other in NEEDS if key in (*NEEDS[other], *MAY[other])]
            yield Problem(key, f"has no effect with design={design}; it belongs to {', '.join(readers)}")


def _owned(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """What overrides may not set, because the study does or because it makes no difference."""
    for place, override in _overrides(raw):
        key = place_of(override)
        top = key.partition(".")[0]
        if top in OWNED:
            yield Problem(place, f"{override!r} is set by the study itself: use {OWNED[top]}")
        elif key == "optim.lr" and "tuning" in raw:
            yield Problem(place, f"{override!r} is set by the study itself: use tuning.lr, or leave tuning out")
        elif top in OF_ALL_RUNS and not place.startswith("set"):
            yield Problem(place, f"{override!r} moves no number of a run and makes no arm: write it under set")


def _overrides(raw: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Where an override stands -> the override; of an axis, its key. What has the wrong type is left to the schema."""
    for place in ("set", "baseline"):
        yield from _texts(place, raw.get(place))
    for place in ("arms", "changes"):
        for name, overrides in raw[place].items() if isinstance(raw.get(place), Mapping) else ():
            yield from _texts(f"{place}.{name}", overrides)
    for key in raw["axes"] if isinstance(raw.get("axes"), Mapping) else ():
        yield f"axes.{key}", str(key)


def _texts(place: str, overrides: Any) -> Iterator[tuple[str, str]]:
    for text in overrides if isinstance(overrides, list) else ():
        if isinstance(text, str):
            yield place, text


def _together(study: Study) -> Iterator[Problem]:
    """What only shows when values meet."""
    yield from _seeds_together(study)
    yield from _arms_together(study)
    yield from _axes_together(study)
    yield from _set_together(study)
    for look in study.looks:
        if look >= len(study.blocks):
            yield Problem("looks", f"must be before the last of {len(study.blocks)} blocks, got {look}")
    arms = [text for place, text in _overrides(study.model_dump()) if place != "set"]
    if study.budgets and "train.tokens" in map(place_of, arms):
        yield Problem("budgets", "are shares of the training tokens, which an arm or an axis changes here")
    if (study.margin.tokens is None) == (study.margin.nats is None):
        yield Problem("margin", "must be one of tokens: 0.03 (a share of the training tokens) and nats: 0.01")
    if study.match.kind == "none":
        for key in ("tolerance", "solve"):
            if getattr(study.match, key) is not None:
                yield Problem(f"match.{key}", "has no effect with match.kind=none")


def _seeds_together(study: Study) -> Iterator[Problem]:
    """Blocks, tuning seeds and what seed_offsets makes of them do not meet."""
    tuning = study.tuning.seeds if study.tuning else []
    both = sorted({*study.blocks} & {*tuning})
    if both:
        message = f"must be seeds that no block has, or the best rate is chosen on the runs that confirm it: {both[0]} is in blocks too"
        yield Problem("tuning.seeds", message)
    taken = dict.fromkeys((*study.blocks, *tuning), "the study's own")
    for name, offset in (study.seed_offsets or {}).items():
        fresh = [seed + offset for seed in (*study.blocks, *tuning)]
        meets = next((seed for seed in fresh if seed in taken), None)
        if meets is not None:
            yield Problem(f"seed_offsets.{name}", f"makes seeds that are {taken[meets]}, {meets} for one: a larger offset makes fresh ones")
        taken.update(dict.fromkeys(fresh, f"those of {name}"))


def _arms_together(study: Study) -> Iterator[Problem]:
    """Names are free and distinct, arms differ, and fresh seeds go to arms that are the baseline."""
    for place, named in (("arms", study.arms), ("changes", study.changes)):
        seen: dict[str, str] = {}
        for name in named or {}:
            if name.lower() in RESERVED:
                yield Problem(f"{place}.{name}", f"is a name that the study gives itself ({', '.join(RESERVED)}): take another")
            if name.lower() in seen:
                yield Problem(f"{place}.{name}", f"is the same file name as {seen[name.lower()]!r} where case does not count")
            seen[name.lower()] = name
    if study.arms is not None:
        yield from _alike(study, study.arms)
    if study.changes is not None:
        yield from _clashes(study.changes)


def _alike(study: Study, arms: Mapping[str, Sequence[str]]) -> Iterator[Problem]:
    offsets = study.seed_offsets or {}
    if not arms:
        yield Problem("arms", "is empty: nothing is compared")
    for name in offsets:
        if name not in arms:
            yield Problem(f"seed_offsets.{name}", f"no such arm; arms are {', '.join(arms)}{did_you_mean(name, arms)}")
    baseline = frozenset(study.baseline or ())
    seen = {(baseline, 0): BASELINE}
    for name, overrides in arms.items():
        what = (frozenset(overrides), offsets.get(name, 0))
        if what[1] and what[0] != baseline:
            yield Problem(f"seed_offsets.{name}", "is for an arm that is the baseline once more; others are compared on the same seeds")
        if what in seen:
            hint = f"; seed_offsets: {{{name}: 1000}} gives it seeds of its own" if what[0] == baseline else ""
            yield Problem(f"arms.{name}", f"is the same as {seen[what]}{hint}")
        seen.setdefault(what, name)


def _clashes(changes: Mapping[str, Sequence[str]]) -> Iterator[Problem]:
    """All changes are made together in one arm, so no two may set one key."""
    if len(changes) < 2:
        yield Problem("changes", "needs two changes at least; one change is design: arms")
    setters: dict[str, str] = {}
    for name, overrides in changes.items():
        for key in map(place_of, overrides):
            if setters.get(key, name) != name:
                yield Problem(f"changes.{name}", f"sets {key}, as {setters[key]} does, and all changes are made together in one arm")
            setters[key] = name


def _axes_together(study: Study) -> Iterator[Problem]:
    for key, values in (study.axes or {}).items():
        if not re.fullmatch(r"[^=\s+~,]+", key):
            yield Problem(f"axes.{key}", "must be a key as in an override, such as norm or norm.fraction")
        if study.design == "fractional" and len(values) != 2:
            yield Problem(f"axes.{key}", f"must have two values in a fractional design, got {len(values)}")
        elif len(values) < 2 and not (study.design == "one_at_a_time" and study.baseline is not None):
            yield Problem(f"axes.{key}", "has one value, which is no axis: write it under set")
    if study.axes is not None and len(study.axes) < {"grid": 0, "fractional": 3}.get(study.design, 1):
        least = "three axes at least; of two, a grid is as small" if study.design == "fractional" else "an axis at least"
        yield Problem("axes", f"needs {least}")


def _set_together(study: Study) -> Iterator[Problem]:
    """What `set` says is not what every arm replaces; a ladder changes axes that exist."""
    changed = {key.replace("/", "."): "is an axis: its values stand there" for key in study.axes or ()}
    if study.ladder is not None:
        changed = dict.fromkeys((*LADDER_AXES, "arch"), "is what the ladder changes")
        for axis in study.ladder.order:
            if axis not in LADDER_AXES:
                allowed = ", ".join(LADDER_AXES)
                yield Problem("ladder.order", f"no such axis: {axis!r}; allowed: {allowed}{did_you_mean(axis, LADDER_AXES)}")
    for override in study.set:
        if place_of(override) in changed:
            yield Problem("set", f"{override!r} has no effect: {place_of(override)} {changed[place_of(override)]}")


def _one_a_key(problems: Iterator[Problem]) -> list[Problem]:
    """A value that may be of several types is wrong once for each: the first says it."""
    found: dict[str, Problem] = {}
    for problem in problems:
        found.setdefault(problem.key, problem)
    return list(found.values())


def _problem(detail: Any) -> Problem:
    """One pydantic error in our words."""
    path, kind, got = [str(part) for part in detail["loc"] if part != "[key]"], detail["type"], detail.get("input")
    key, context = ".".join(path), detail.get("ctx", {})
    if path[:1] == ["axes"]:  # behind the key and the index come the types that a value may have
        key = ".".join(path[:2])
    if kind == "extra_forbidden":
        known = _known(path[:-1])
        return Problem(key, f"unknown key; known here: {', '.join(known)}{did_you_mean(path[-1], known)}")
    if kind == "missing":
        return Problem(key, "missing: it needs a value")
    if kind == "literal_error":
        words = re.findall(r"'([^']+)'", context["expected"])
        return Problem(key, f"must be {context['expected']}, got {got!r}{did_you_mean(str(got), words)}")
    return Problem(key, f"{asked_for(detail)}, got {_show(got)}")


def _known(path: list[str]) -> list[str]:
    """The keys of the section at a path."""
    sections: dict[str, type[BaseModel]] = {"ladder": Ladder, "tuning": Tuning, "match": Matching, "margin": Margin}
    model = sections[path[0]] if path else Study
    return [field.alias or name for name, field in model.model_fields.items() if name != "name" or path]


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
