"""grouping: a study made of runs that were not asked for as one. What differs between their identities makes the arms."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import Any

from ablate.errors import ConfigError, did_you_mean
from ablate.files import flat, read_yaml
from ablate.report.load import ArmMeta, StudyMeta, Tuned
from ablate.report.records import NOT_IDENTITY, Record, Role, number
from ablate.shipped import conf_dir, shipped
from ablate.trackers.variants import ARCHITECTURE

SEEDS = ("init_seed", "data_seed")
RATE = "optim.lr"
BASELINE = "baseline"
HASH_DIGITS = 12
LEAST_RATES = 3
"""That make a grid, as in a study: of two, the best is always at an end."""

Flat = dict[str, Any]
Seeds = tuple[int, int]
"""Of init and data."""


@dataclass
class Group:
    """An arm: its runs, and what they share."""

    what: Flat
    records: list[Record] = field(default_factory=list)
    name: str = ""
    tuned: Tuned | None = None
    tuning_seeds: frozenset[Seeds] = frozenset()

    @property
    def rates(self) -> list[float]:
        return sorted({rate for record in self.records if (rate := rate_of(record)) is not None})


def study_of(
    records: Sequence[Record], baseline: str | None, source: str, notes: Sequence[str] = (), name: str = ""
) -> tuple[StudyMeta, list[tuple[Record, Role]]]:
    """Runs that differ in seeds alone are one arm. The baseline is the arm that is named, else the shipped architecture, else that with
    the most runs; other arms are named by how they differ from it.

    Several learning rates of an arm are its tuning where the runs look like a study's (`tuning_of`), else each is an arm of its own, as
    `-m optim.lr=...` would have it.
    """
    known = [record for record in records if record.says]
    said = [*notes, *(f"{record.name} has neither identity nor config: left out" for record in records if not record.says)]
    if not known:
        raise ConfigError.at(name or "RUN", "no run with an identity or a config was found")
    identities = _identities(known)
    groups = _groups(known, identities, keep_rate=False)
    if not tuning_of(groups):
        groups = _groups(known, identities, keep_rate=any(len(group.rates) > 1 for group in groups))
    base = _named(groups, baseline)
    blocks = _blocks(known, said)
    roles = [(record, _role(record, group, blocks)) for group in groups for record in group.records]
    tuned = {group.name: group.tuned for group in groups if group.tuned is not None}
    meta = StudyMeta(
        name=name or "runs",
        question="",
        design="runs",
        baseline=base.name,
        arms=tuple(_arms(groups, base)),
        blocks=tuple(sorted({role.block for _, role in roles if role.stage == "confirm"})),
        source=source,
        tuning_rates=tuple(sorted({rate for found in tuned.values() for rate in found.rates})),
        tuning_seeds=tuple(sorted({role.block for _, role in roles if role.stage == "tune"})),
        tuned=tuned,
        planned=len(roles),
        notes=tuple(said),
    )
    return meta, roles


def rate_of(record: Record) -> float | None:
    return number(record.says.get(RATE))


def seeds_of(record: Record) -> Seeds:
    init, data = (record.says.get(key, record.says.get("seed", 0)) for key in SEEDS)
    return int(init), int(data)


def _blocks(records: Sequence[Record], notes: list[str]) -> dict[Seeds, int]:
    """Seeds -> block: the seed where both are one, else the place of the pair among all pairs."""
    pairs = sorted({seeds_of(record) for record in records})
    if all(init == data for init, data in pairs):
        return {(init, data): init for init, data in pairs}
    named = ", ".join(f"{index} is {init}/{data}" for index, (init, data) in enumerate(pairs))
    notes.append(f"blocks are pairs of init and data seed: {named}")
    return {pair: index for index, pair in enumerate(pairs)}


def _identities(records: Sequence[Record]) -> dict[str, Flat]:
    """Hash -> what can move a number of the run but its seeds; from configs for all where one run has lost its identity."""
    whole = all(record.identity for record in records)
    return {record.digest: _without_seeds(record.identity if whole else record.says, whole) for record in records}


def _without_seeds(values: Flat, whole: bool) -> Flat:
    """Of a config also without what moves no number. Where its corpus lies stays: the content of what lies there is not known."""
    unnamed = SEEDS if whole else (*SEEDS, *NOT_IDENTITY, "schema", "eval.extend")
    return {key: value for key, value in values.items() if key not in unnamed and key.partition(".")[0] not in unnamed}


def _groups(records: Sequence[Record], identities: Mapping[str, Flat], keep_rate: bool) -> list[Group]:
    groups: dict[str, Group] = {}
    for record in records:
        what = {key: value for key, value in identities[record.digest].items() if keep_rate or key != RATE}
        groups.setdefault(json.dumps(what, sort_keys=True, default=str), Group(what)).records.append(record)
    return list(groups.values())


# --- tuning


def tuning_of(groups: Sequence[Group]) -> bool:
    """Finds the tuning of each group with several rates, and says whether all such groups have one.

    Runs are split as a study splits them when a group has at least three rates, all of them on the same tuning seeds, every other seed at
    one rate alone, and that rate is the best of the tuning seeds: smallest mean of min(loss, unigram entropy), a failed run counting as
    the latter.
    """
    several = [group for group in groups if len(group.rates) > 1]
    for group in several:
        _tune(group)
    return all(group.tuned is not None for group in several)


def _tune(group: Group) -> None:
    by_rate: dict[float, dict[Seeds, Record]] = defaultdict(dict)
    for record in group.records:
        if (rate := rate_of(record)) is not None:
            by_rate[rate][seeds_of(record)] = record
    rates = sorted(by_rate)
    shared = frozenset.intersection(*(frozenset(runs) for runs in by_rate.values()))
    confirming = [rate for rate in rates if set(by_rate[rate]) - shared]
    if len(rates) < LEAST_RATES or not shared or len(confirming) != 1:
        return
    means = {rate: _mean_capped([by_rate[rate][seed] for seed in shared]) for rate in rates}
    best = min(rates, key=lambda rate: (means[rate], rate))
    if best == confirming[0]:
        group.tuned = Tuned(tuple(rates), best, "low" if best == rates[0] else "high" if best == rates[-1] else None)
        group.tuning_seeds = shared


def _mean_capped(records: Sequence[Record]) -> float:
    caps = [cap for record in records if (cap := number(record.summary.get("unigram_entropy"))) is not None]
    cap = min(caps, default=float("inf"))
    return sum(min(record.loss, cap) if record.loss is not None else cap for record in records) / len(records)


def _role(record: Record, group: Group, blocks: Mapping[Seeds, int]) -> Role:
    seeds = seeds_of(record)
    return Role(group.name, "tune" if seeds in group.tuning_seeds else "confirm", rate_of(record), seeds[0], blocks[seeds])


# --- the baseline, and names


def _named(groups: Sequence[Group], wanted: str | None) -> Group:
    """Names all groups and returns the baseline."""
    reference = _reference(groups)
    _name_by(groups, reference)
    if wanted is None or wanted == BASELINE:
        return reference
    runs = {word: group for group in groups for record in group.records for word in (record.name, record.digest)}
    names = {group.name: group for group in groups}
    if wanted not in names and wanted not in runs:
        raise ConfigError.at("--baseline", f"no such arm: {wanted!r}; arms are {', '.join(names)}{did_you_mean(wanted, names)}")
    base = names.get(wanted) or runs[wanted]
    if base is not reference:  # another than it is the baseline: it goes by what it has where others differ
        reference.name = " ".join(f"{key}={value}" for key, value in _levels(groups)[BASELINE].items())
    return base


def _reference(groups: Sequence[Group]) -> Group:
    """The shipped architecture if it is there, else the arm with the most runs; of equals, that at the commonest learning rate, then that
    with the most axes as shipped."""
    rates = Counter(rate_of(record) for group in groups for record in group.records)

    def rank(group: Group) -> tuple[bool, int, int, int]:
        as_shipped = axes_as_shipped(group.what)
        commonest = max(rates[rate_of(record)] for record in group.records)
        return as_shipped == len(ARCHITECTURE), len(group.records), commonest, as_shipped

    return max(groups, key=rank)


def axes_as_shipped(what: Mapping[str, Any]) -> int:
    """How many axes of the architecture are as conf/config.yaml has them; none where layers differ."""
    if any(key.startswith("layers.") for key in what):
        return 0
    return sum(_as_shipped(what, axis, word) for axis, word in _choices().items() if axis in ARCHITECTURE)


@cache
def _choices() -> dict[str, str]:
    """Axis -> the variant that conf/config.yaml chooses."""
    config = read_yaml(conf_dir() / "config.yaml") or {}
    return {axis: word for choice in config["defaults"] if isinstance(choice, dict) for axis, word in choice.items()}


def _as_shipped(what: Mapping[str, Any], axis: str, word: str) -> bool:
    usual = flat(shipped(axis, word), f"{axis}.")
    open_ended = {key for key, value in usual.items() if value is None or value == "???" or "${" in str(value)}
    return all(key in what and (key in open_ended or _alike(what[key], value)) for key, value in usual.items())


def _alike(ours: Any, usual: Any) -> bool:
    """2/3 is how a file writes 0.6666666666666666."""
    if ours == usual or str(ours) == str(usual):
        return True
    try:
        return float(Fraction(str(usual))) == float(ours)
    except (TypeError, ValueError, OverflowError):
        return number(ours) == number(usual) is not None


def _name_by(groups: Sequence[Group], reference: Group) -> None:
    taken: Counter[str] = Counter()
    for group in groups:
        name = " ".join(f"{key}={value}" for key, value in _differences(group, reference, groups).items()) or BASELINE
        taken[name] += 1
        group.name = name if taken[name] == 1 else f"{name}.{taken[name]}"


def _differences(group: Group, reference: Group, groups: Sequence[Group]) -> dict[str, str]:
    """Key as in an override -> value, where a group differs from the reference. An option that came with a variant is not named, unless
    groups with that variant differ in it."""
    found = {}
    for key in sorted({*group.what, *reference.what}, key=lambda key: (not key.endswith(".kind"), key)):
        if group.what.get(key) == reference.what.get(key) and (key in group.what) == (key in reference.what):
            continue
        if key.startswith("layers."):
            found["layers"] = _layers(group)
        elif key in group.what and (not _came_along(key, group, reference) or _varies(key, group, groups)):
            found[key.removesuffix(".kind")] = _text(key, group.what[key])
    return found


def _kinds(key: str) -> Iterator[str]:
    """The keys of the variants that an option is of: attention.qk_norm.eps is of attention.kind and attention.qk_norm.kind."""
    parts = key.split(".")
    for length in range(1, len(parts)):
        kind = ".".join([*parts[:length], "kind"])
        if kind != key:
            yield kind


def _came_along(key: str, group: Group, reference: Group) -> bool:
    return any(group.what.get(kind) != reference.what.get(kind) for kind in _kinds(key))


def _varies(key: str, group: Group, groups: Sequence[Group]) -> bool:
    same = [other for other in groups if all(other.what.get(kind) == group.what.get(kind) for kind in _kinds(key))]
    return any(other.what.get(key) != group.what[key] for other in same)


def _layers(group: Group) -> str:
    rules = {key: value for key, value in group.what.items() if key.startswith("layers.")}
    return hashlib.sha256(json.dumps(rules, sort_keys=True, default=str).encode()).hexdigest()[:6] if rules else "uniform"


def _text(key: str, value: Any) -> str:
    if key == "data":  # a hash of the corpus
        return str(value)[:HASH_DIGITS]
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value) if isinstance(value, list | dict) else str(value)


def _levels(groups: Sequence[Group]) -> dict[str, dict[str, str]]:
    """Name -> what an arm has wherever arms differ."""
    reference = _reference(groups)
    keys = dict.fromkeys(key for group in groups for key in _differences(group, reference, groups))
    return {group.name: dict(_level(group, keys)) for group in groups}


def _level(group: Group, keys: Mapping[str, None]) -> Iterator[tuple[str, str]]:
    for key in keys:
        if key == "layers":
            yield key, _layers(group)
        elif (whole := f"{key}.kind") in group.what or (whole := key) in group.what:
            yield key, _text(key, group.what[whole])


def _arms(groups: Sequence[Group], base: Group) -> Iterator[ArmMeta]:
    """The baseline first."""
    levels = _levels(groups)
    for group in [base, *(group for group in groups if group is not base)]:
        costs: Mapping[str, Any] = next((record.summary for record in group.records if number(record.summary.get("training_flops"))), {})
        flops, tokens, parameters = (number(costs.get(key)) for key in ("training_flops", "tokens", "parameters"))
        yield ArmMeta(
            name=group.name,
            overrides=tuple(f"{key}={value}" for key, value in _differences(group, base, groups).items()),
            levels=levels[group.name],
            parameters=int(parameters) if parameters is not None else None,
            training_flops_per_token=flops / tokens if flops is not None and tokens else None,
            flops=flops,
        )
