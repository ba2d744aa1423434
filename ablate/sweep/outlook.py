"""outlook: what a plan will cost and what it can find, from the runs at hand or from a few measured steps."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from ablate.claim import read_status
from ablate.config import ARCHITECTURE
from ablate.data import Dataset
from ablate.files import read_json, read_object
from ablate.report.statistics import pooled_deviation, smallest_detectable
from ablate.sweep.plan import Plan

SEEDS = ("init_seed", "data_seed")
WARM_STEPS, TIMED_STEPS = 2, 5


class Finished(NamedTuple):
    """A finished run as far as it matters here."""

    setting: str  # all that is no architecture, no seed, no learning rate
    arm: str
    block: tuple[int, int]
    loss: float
    seconds: float  # of the whole run where it was never interrupted, else of its steps alone


class Noise(NamedTuple):
    """The standard deviation of a paired difference between two arms, in nats."""

    deviation: float
    df: int
    runs: int


class Power(NamedTuple):
    """The smallest difference from the baseline that the design finds with 80 % power: in deviations, and in nats if noise is known."""

    blocks: int
    deviations: float
    nats: float | None


def finished_runs(results_dir: Path) -> list[Finished]:
    """All runs with a result under a results folder."""
    found = []
    for path in (results_dir / "runs").glob("*/summary.json"):
        identity, summary = read_object(path.with_name("identity.json")), read_object(path)
        loss, seconds = summary.get("eval_loss"), summary.get("seconds")
        if not identity or not isinstance(loss, int | float) or not isinstance(seconds, int | float):
            continue
        status = read_status(path.parent)
        if status.get("state") == "done":
            found.append(Finished(*labels(identity), _block(identity), float(loss), _whole(path.parent, status) or float(seconds)))
    return found


def _whole(directory: Path, status: Mapping[str, Any]) -> float | None:
    """Seconds from a run's start to its end, with evaluations, which steps do not count; not known of a run with more than one start."""
    starts = read_json(directory / "environment.json")
    if not isinstance(starts, list) or len(starts) != 1 or not isinstance(ended := status.get("time"), int | float):
        return None
    try:
        return max(0.0, ended - datetime.fromisoformat(starts[0]["time"]).timestamp())
    except (KeyError, TypeError, ValueError):
        return None


def labels(identity: Mapping[str, Any]) -> tuple[str, str]:
    """The setting of a run, and its arm in it."""
    optim = dict(identity["optim"])
    rate = optim.pop("lr", None)
    architecture = (*ARCHITECTURE, "layers")
    setting = {key: value for key, value in identity.items() if key not in (*architecture, *SEEDS, "optim")}
    return repr((setting, optim)), repr(({key: identity.get(key) for key in architecture}, rate))


def _block(identity: Mapping[str, Any]) -> tuple[int, int]:
    return identity["init_seed"], identity["data_seed"]


def noise_of(runs: Iterable[Finished], setting: str) -> Noise | None:
    """Pooled over the arms of a setting, each against the one with the most blocks; None without two arms on two common blocks."""
    arms: dict[str, dict[tuple[int, int], float]] = defaultdict(dict)
    for run in runs:
        if run.setting == setting:
            arms[run.arm][run.block] = run.loss
    if len(arms) < 2:
        return None
    reference = max(arms, key=lambda name: (len(arms[name]), name))
    others = [arm for name, arm in arms.items() if name != reference]
    differences = [[loss - arms[reference][block] for block, loss in arm.items() if block in arms[reference]] for arm in others]
    pooled = pooled_deviation(differences)
    if pooled is None or pooled[0] == 0:
        return None
    return Noise(*pooled, runs=sum(map(len, arms.values())))


def power_of(plan: Plan, noise: Noise | None) -> Power:
    """Two-sided at 5 % over all arms by Holm's first step; below six blocks by the residual of all arms, from six on by each arm's own."""
    blocks, contrasts = len(plan.study.blocks), max(1, len(plan.arms.arms) - 1)
    df = contrasts * (blocks - 1) if blocks < 6 else blocks - 1
    deviations = smallest_detectable(blocks, df, alpha=0.05 / contrasts)
    return Power(blocks, deviations, deviations * noise.deviation if noise and math.isfinite(deviations) else None)


def seconds_at_hand(runs: Iterable[Finished], identities: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """arm -> seconds of one run, the median of finished runs that differ in seed and learning rate alone."""
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for run in runs:
        times[run.setting, _without_rate(run.arm)].append(run.seconds)
    found = {}
    for arm, identity in identities.items():
        setting, name = labels(identity)
        if seen := times.get((setting, _without_rate(name))):
            found[arm] = median(seen)
    return found


def _without_rate(arm: str) -> str:
    return arm.rpartition(", ")[0]


def measured_seconds(cfg: Any, data: Dataset) -> float:
    """Seconds of the steps and evaluations of a run, from a few steps and one evaluation here."""
    from ablate.train.loop import build, evaluate_now, evaluation_steps, train_step

    training = build(cfg, data)
    for _ in range(min(WARM_STEPS, cfg.steps)):
        train_step(training)
    seconds = []
    for _ in range(min(TIMED_STEPS, cfg.steps)):
        start = time.perf_counter()
        train_step(training)
        seconds.append(time.perf_counter() - start)
    start = time.perf_counter()
    evaluate_now(training)
    evaluation = time.perf_counter() - start
    return median(seconds) * float(cfg.steps) + evaluation * len(evaluation_steps(cfg))
