"""text: the first screen of a report in the terminal."""

from __future__ import annotations

from rich.console import Console

from ablate.report.analysis.shapes import Analysis, ArmResult
from ablate.report.numbers import with_interval
from ablate.report.statistics import Contrast

WIDTH = 49
"""Characters of an interval as drawn; odd, so that one is the middle."""


def first_screen(analysis: Analysis, console: Console) -> None:
    """Question, answer, warnings, one sentence an arm, and the intervals drawn in characters."""
    if analysis.question:
        console.print(analysis.question)
    console.print(f"{analysis.answer}\n", style="bold")
    for banner in sorted(analysis.banners, key=lambda banner: banner.severity != "red"):
        console.print(
            f"{'Stop:' if banner.severity == 'red' else 'Note:'} {banner.text}", style="red" if banner.severity == "red" else "yellow"
        )
    if analysis.banners:
        console.print()
    for arm in analysis.arms:
        console.print(arm.sentence)
    if drawn := forest(analysis.arms, analysis.margin.nats, analysis.metric):
        console.print("\n" + "\n".join(drawn))
    console.print("\n" + " · ".join(f"{label} {value}" for label, value in analysis.identity.strip if value))


def forest(arms: list[ArmResult], margin: float | None, metric: str) -> list[str]:
    """An arm a line: its 95 % interval as a bar, its mean in it, zero and the margin; nothing where no arm has an interval."""
    known = {arm.name: contrast for arm in arms if (contrast := _contrast(arm)) is not None and contrast.low is not None}
    if not known:
        return []
    reach = max([abs(end) for contrast in known.values() for end in (contrast.low, contrast.high) if end is not None])
    reach = max(reach, margin or 0.0) or 1.0
    width = max(len(name) for name in known)
    lines = [
        f"{name:<{width}}  {_bar(contrast, margin, reach)}  {with_interval(contrast.mean, contrast.low, contrast.high)}"
        for name, contrast in known.items()
    ]
    band = f", ░ margin ±{margin:.2g}" if margin else ""
    return [*lines, f"{'':<{width}}  {'better ◂ 0 ▸ worse':^{WIDTH}}  {metric}, 95 % intervals{band}"]


def _contrast(arm: ArmResult) -> Contrast | None:
    return arm.judgement.contrast if arm.judgement is not None else None


def _bar(contrast: Contrast, margin: float | None, reach: float) -> str:
    def place(value: float) -> int:
        return round((value / reach + 1) / 2 * (WIDTH - 1))

    signs = [" "] * WIDTH
    if margin:
        signs[place(-margin) : place(margin) + 1] = "░" * (place(margin) - place(-margin) + 1)
    signs[WIDTH // 2] = "│"
    if contrast.low is not None and contrast.high is not None:
        signs[place(contrast.low) : place(contrast.high) + 1] = "━" * (place(contrast.high) - place(contrast.low) + 1)
    signs[place(contrast.mean)] = "●"
    return "".join(signs)
