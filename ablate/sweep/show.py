"""show: a plan as a person reads it before anything is started, and what has become of it at the end."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from ablate.matching import match_line
from ablate.report.numbers import duration
from ablate.sweep.arms import Arm
from ablate.sweep.launchers import Launcher, Slurm
from ablate.sweep.outlook import Noise, Power
from ablate.sweep.plan import ENDED, Plan
from ablate.sweep.slurm import Queued
from ablate.sweep.study import BASELINE

MOST_DROPPED, LONGEST_BASELINE = 12, 60


def show_plan(
    plan: Plan, console: Console, *, hours: float | None, power: Power, noise: Noise | None, queued: Mapping[str, Queued]
) -> None:
    """The arms, the runs and their states, what fell away, the cost, and the smallest difference that can be found."""
    study = plan.study
    console.print(f"study {study.name}: {study.question}")
    console.print(arms_table(plan, queued))
    for line in [*plan.arms.notes, *_dropped(plan), *_alike(plan), *_other_data(plan), *_tuning(plan)]:
        console.print(line)
    console.print(totals(plan, queued))
    console.print(_cost(plan, hours))
    console.print(_power(power, noise))


def arms_table(plan: Plan, queued: Mapping[str, Queued]) -> Table:
    """A row an arm: size, training FLOPs of a run, and the states of its runs."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, justify in (("arm", "left"), ("parameters", "right"), ("FLOPs a run", "right"), ("lr", "right"), ("runs", "left")):
        table.add_column(name, justify="left" if justify == "left" else "right", overflow="fold")
    for arm in plan.arms.arms:
        cells = [cell for cell in plan.cells if cell.arm == arm.name]
        cost, tuned = plan.costs[arm.name], plan.tuned.get(arm.name)
        rate = "" if not cells else f"{cells[-1].rate:g}"
        if tuned is not None:
            rate = f"{tuned.best:g}{' (edge)' if tuned.edge else ''}" if tuned.best is not None else f"tuning {len(tuned.rates)}"
        counts = Counter(shown_state(plan.states[cell.digest], queued.get(cell.digest)) for cell in cells)
        name = _named_baseline(arm) if arm.name == plan.arms.baseline else arm.name
        states = ", ".join(f"{number} {state}" for state, number in counts.items()) or "the same as another arm"
        table.add_row(name, f"{cost.parameters:,}", f"{cost.flops:.2e}", rate, states)
    return table


def _named_baseline(arm: Arm) -> str:
    """What the others are compared with; of a grid, its first values."""
    what = " ".join(arm.overrides)
    told = "reference" if arm.name != BASELINE else what if len(what) <= LONGEST_BASELINE else ""
    return f"{arm.name} ({told})" if told else arm.name


def shown_state(state: str, place: Queued | None) -> str:
    """The state of the directory, and of the queue where the directory does not say more."""
    if place is None or state in (*ENDED, "running"):
        return state
    return "held" if place.held else "queued" if place.state == "PENDING" else "starting"


def totals(plan: Plan, queued: Mapping[str, Queued]) -> str:
    """The runs of a plan by their states."""
    states = [shown_state(plan.states[cell.digest], queued.get(cell.digest)) for cell in plan.cells]
    text = sum_of_states(states, len(plan.arms.arms), len(plan.study.blocks), plan.later)
    return f"{text}; {len(plan.duplicates)} cells are duplicates of others" if plan.duplicates else text


def sum_of_states(states: Sequence[str], arms: int, blocks: int, later: int) -> str:
    runs = ", ".join(f"{number} {state}" for state, number in Counter(states).most_common())
    what = [f"{number} {noun}{'s' * (number != 1)}" for number, noun in ((len(states), "run"), (arms, "arm"), (blocks, "block"))]
    text = f"{what[0]} ({runs or 'none'}) of {what[1]} on {what[2]}"
    return f"{text}; {later} more follow once the learning rates are known" if later else text


def _dropped(plan: Plan) -> list[str]:
    dropped = plan.arms.dropped
    lines = [f"dropped: {' '.join(overrides)}: {reason}" for overrides, reason in dropped[:MOST_DROPPED]]
    more = len(dropped) - MOST_DROPPED
    return [*lines, *([f"dropped: {more} more cells, all of them in plan.json"] if more > 0 else [])]


def _alike(plan: Plan) -> list[str]:
    pairs = dict.fromkeys(pair for pair in plan.duplicates if pair[0] != pair[1])
    return [f"{arm} is the same configuration as {same}: its runs are run once" for arm, same in pairs]


def _other_data(plan: Plan) -> list[str]:
    """Unless the data are an axis of the study, and every arm has a baseline on its own."""
    if any("data" in arm.levels for arm in plan.arms.arms):
        return []
    data = {cell.arm: cell.cfg.data for cell in plan.cells}
    ours = data.get(plan.arms.baseline)
    others = [arm for arm, told in data.items() if told != ours] if ours is not None else []
    return [f"{arm} is of other data than the baseline: a difference of their losses says nothing of the model" for arm in others]


def _tuning(plan: Plan) -> list[str]:
    lines = []
    for arm, tuned in plan.tuned.items():
        if tuned.best is not None and tuned.edge:
            lines.append(f"{arm}: the best learning rate {tuned.best:g} is at the {tuned.edge} end of {_rates(tuned.rates)}: not tuned")
    return lines


def _rates(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates)


def _cost(plan: Plan, hours: float | None) -> str:
    todo = plan.unfinished()
    flops = math.fsum(plan.costs[cell.arm].flops * cell.share for cell in todo)
    later = math.fsum(
        plan.costs[arm.name].flops * len(plan.study.blocks)
        for arm in plan.arms.arms
        if plan.study.tuning is not None and plan.tuned[arm.name].best is None
    )
    total = f"training FLOPs to go: {flops:.2e}" + (f", and {later:.2e} of the second stage" if later else "")
    if not todo:
        return total
    if hours is None:
        return f"{total}; hours: not known, no run of these arms is at hand (measure=true times a few steps of each)"
    return f"{total}; about {duration(hours)} of one worker for the {len(todo)} runs"


def _power(power: Power, noise: Noise | None) -> str:
    if not math.isfinite(power.deviations):
        return f"smallest difference that can be found: none, {power.blocks} block gives no interval: a screen"
    text = (
        f"smallest difference from the baseline found with 80 % power on {power.blocks} blocks: {power.deviations:.2f} deviations of a pair"
    )
    if noise is None or power.nats is None:
        return f"{text}; in nats: not known, no two arms of this setting have been run on two common blocks"
    known = f"deviation {noise.deviation:.4f} with {noise.df} degrees of freedom, from {noise.runs} runs at hand"
    return f"{text}, {power.nats:.4f} nats ({known})"


def launch_lines(launcher: Launcher, runs: int) -> list[str]:
    """What Slurm will be asked for, with the options that are not null."""
    if not isinstance(launcher, Slurm) or not runs:
        return []
    skipped = ("kind", "attempts", "follow", "follow_parameters", "stderr_to_stdout", "max_queued")
    told = [f"{key}={value}" for key, value in launcher.model_dump().items() if key not in skipped and value not in (None, [], {})]
    after = "; a small job after them goes on with the study" if launcher.follow else ""
    return [f"on Slurm: array jobs, a task for each of {runs} runs: {' '.join(told)}{after}"]


def match_lines(plan: Plan) -> list[str]:
    """How near each arm came to the baseline's size."""
    found: dict[str, str] = {}
    for cell in plan.cells:
        if (line := match_line(cell.cfg)) and cell.arm not in found:
            found[cell.arm] = f"{cell.arm}: {line}"
    return list(found.values())
