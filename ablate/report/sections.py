"""sections: what a report has after its first screen, in order; page and Markdown print the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from ablate.report import tables
from ablate.report.analysis.shapes import Analysis, Noise
from ablate.report.drawings import position_arms
from ablate.report.figures import Drawing
from ablate.report.tables import Table, everyone

FIRST_SCREEN = ("forest", "forest-narrow")
"""The same drawing for a wide and for a narrow screen."""

PLACES = {
    "blocks": "effects",
    "learning-rates": "tuning",
    "curves": "curves",
    "differences": "curves",
    "cost": "cost",
    "status": "stability",
    "traces": "stability",
    "by-position": "length",
    "by-length": "length",
    "noise": "noise",
    "effects": "structure",
    "interaction": "structure",
    "ladder": "structure",
    "ranks": "structure",
    "power-law": "structure",
}
"""drawing -> the section that it stands in; there is one `interaction-` for each pair of axes."""

COSTS = (
    "Loss and cost together. Intervals of losses are those of the paired difference from the baseline. Speed and memory come from "
    "ablate bench, by turns of arm and baseline on one device, never from the runs of the sweep."
)


@dataclass(frozen=True)
class Section:
    """A section without content says in `left_out` why."""

    number: int
    slug: str
    title: str
    texts: list[str] = field(default_factory=list)
    drawings: list[Drawing] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    left_out: str = ""


def sections(analysis: Analysis, drawings: Sequence[Drawing], runs: pd.DataFrame, links: Mapping[str, str]) -> list[Section]:
    """The thirteen sections; `links`: run -> its config, from the page's folder."""
    judged = any(arm.judgement is not None and arm.judgement.contrast is not None for arm in analysis.arms)
    tuned = any(arm.tuning for arm in everyone(analysis))
    contents: list[tuple[str, str, list[str], list[Table | None], str]] = [
        ("summary", "Summary", [], [tables.summary(analysis)], ""),
        ("effects", "Effects", [], [tables.contrasts(analysis) if judged else None], "no arm has a block in common with the baseline"),
        (
            "tuning",
            "Learning rates",
            [],
            [tables.tuning(analysis) if tuned else None],
            "no rate was tuned, each arm ran at the one of its config",
        ),
        ("curves", "Training curves", [], [], "no curves were loaded"),
        ("cost", "Cost", [COSTS], [tables.cost(analysis)], ""),
        ("stability", "Stability", [], [tables.stability(analysis)], ""),
        ("length", "Length", [], [tables.length(analysis) if position_arms(analysis) else None], "no arm changes how positions are told"),
        ("noise", "Noise and power", chance(analysis.noise), _noise(analysis), "chance takes two blocks to be seen"),
        ("robustness", "Robustness", [], [tables.robustness(analysis) if judged else None], "there is no difference to doubt"),
        (
            "structure",
            "Interactions, ladders and sizes",
            [*_survivors(analysis), *_aliased(analysis)],
            _structure(analysis),
            "the study is not factorial, no ladder, and of one size",
        ),
        ("runs", "Every run", [], [tables.runs_table(runs, links) if len(runs) else None], "there are no runs"),
        ("method", "Method and limits", method(analysis), [_arms(analysis)], ""),
        ("reproduce", "Do it again", [], [_again(analysis)], "nothing is known of how the runs were made"),
    ]
    return [
        _section(number, slug, title, texts, [table for table in found if table is not None], why, drawings)
        for number, (slug, title, texts, found, why) in enumerate(contents, 1)
    ]


def _section(number: int, slug: str, title: str, texts: list[str], found: list[Table], why: str, drawings: Sequence[Drawing]) -> Section:
    own = [drawing for drawing in drawings if place_of(drawing.name) == slug]
    return Section(number, slug, title, texts, own, found, "" if texts or own or found else why)


def is_drawing(name: str) -> bool:
    """Whether a report has a drawing of that name."""
    return name in FIRST_SCREEN or name in PLACES or name.startswith("interaction-")


def place_of(name: str) -> str | None:
    """The section that a drawing stands in; None for the first screen's."""
    return None if name in FIRST_SCREEN else PLACES["interaction" if name.startswith("interaction-") else name]


def chance(noise: Noise) -> list[str]:
    """What chance does here, and what a design of this size could find, in sentences."""
    said = []
    if noise.pair_sd is not None:
        said.append(
            f"A paired difference of one block has a standard deviation of {noise.pair_sd:.2g} nats ({noise.pair_df} degrees of freedom)."
        )
    if noise.rho is not None:
        said.append(f"The correlation of an arm with the baseline over blocks is {noise.rho:.2f}: what pairing is worth here.")
    if noise.detectable is not None:
        said.append(
            f"The smallest difference that this design finds with 80 % power is {noise.detectable:.2g} nats, corrected for all arms."
        )
    if noise.certifiable is not None:
        said.append(f"The smallest margin within which it can certify equivalence, with 80 % power, is {noise.certifiable:.2g} nats.")
    return [" ".join(said), *noise.again] if said else list(noise.again)


def _noise(analysis: Analysis) -> list[Table | None]:
    return [*tables.noise(analysis)] if analysis.noise.seed_sd else []


def _survivors(analysis: Analysis) -> list[str]:
    """Effects and steps are of the blocks in which no run failed: how many those are, and what failed."""
    failed = [f"{arm.name} {arm.failed}/{arm.ended}" for arm in everyone(analysis) if arm.failed]
    if not failed or not (analysis.effects or analysis.ladder):
        return []
    whole = set.intersection(*(set(arm.losses) for arm in everyone(analysis)))
    blocks = {block for arm in everyone(analysis) for block in arm.outcomes}
    return [
        f"Runs failed: {', '.join(failed)}. What follows is of the {len(whole)} of {len(blocks)} blocks in which none did, and of no other."
    ]


def _aliased(analysis: Analysis) -> list[str]:
    pairs = ", ".join(" and ".join(pair) for pair in analysis.aliased)
    return [f"The design cannot tell these interactions from other effects: {pairs}."] if pairs else []


def _structure(analysis: Analysis) -> list[Table | None]:
    return [tables.effects(analysis), tables.ladder(analysis), *tables.scales(analysis)]


def method(analysis: Analysis) -> list[str]:
    """The plan and its limits, and what is missing."""
    missing = [f"Without a result: {'; '.join(analysis.missing)}."] if analysis.missing else []
    return [*analysis.method, *missing]


def _arms(analysis: Analysis) -> Table:
    return tables.changes(analysis)


def _again(analysis: Analysis) -> Table | None:
    pairs = [(label, value) for label, value in analysis.identity.reproduce if value]
    return tables.pairs_table("reproduce", "What it takes", ("what", "value"), pairs) if pairs else None
