"""length: loss by position in the context (F9), and by context length beyond that of training (F10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ablate.report.figures.curves import Series
from ablate.report.figures.look import INK, WIDTH, Drawing, amount, drawn, key, known, log_ticks, names, plain, sheet, styles


def position_finding(ends: Mapping[str, float]) -> str:
    """Between which arms' means the loss lies at the end of the context."""
    low, high = min(ends, key=lambda arm: ends[arm]), max(ends, key=lambda arm: ends[arm])
    between = f"between {ends[low]:.3f} ({low}) and {ends[high]:.3f} ({high})" if low != high else f"at {ends[low]:.3f} ({low})"
    return f"At the end of the context mean losses lie {between}. Means without intervals."


@drawn
def by_position(
    losses: Mapping[str, Series], *, baseline: str, order: Sequence[str] = (), metric: str = "nats per token"
) -> Drawing | None:
    """F9: the mean loss of tokens over their position, at the length of training; positions are the upper ends of their ranges."""
    held = {arm: [(x, y) for x, y in zip(*series, strict=True) if known(x) and known(y) and x > 0] for arm, series in losses.items()}
    held = {arm: points for arm, points in held.items() if points}
    if not held:
        return None
    looks = styles([*order, *losses], baseline)
    figure = sheet(WIDTH, 3.2)
    ax = figure.subplots()
    for arm, points in held.items():
        look = looks[arm]
        ax.plot(*zip(*points, strict=True), color=look.colour, marker=look.marker, linestyle=look.dash, gid=f"mean {arm}")
    positions = sorted({x for points in held.values() for x, _ in points})
    log_ticks(ax, "x", positions[:: -(-len(positions) // 10)])
    ax.set(xlabel="position in the context, tokens", ylabel=f"loss, {metric} (lower is better)")
    ends = {arm: points[-1][1] for arm, points in held.items()}
    key(figure, looks, sorted(ends, key=lambda arm: -ends[arm]))
    title = position_finding(ends)
    return Drawing("by-position", figure, title, f"{title} Mean loss over the position in the context, one line an arm.")


def length_finding(losses: Mapping[str, Mapping[int, float]]) -> str:
    """How much the loss of the same targets moves from the length of training to the longest context."""
    moved = {}
    for arm, each in losses.items():
        if 1 in each and len(each) > 1:
            moved[arm] = (each[max(each)] - each[1], max(each))
    if not moved:
        return "No arm was evaluated beyond the context length of training."
    order = sorted(moved, key=lambda arm: moved[arm][0])
    said = [f"{arm} {amount(moved[arm][0], sign=True)} at {moved[arm][1]}x" for arm in order]
    return f"Change of the loss of the same targets in longer contexts: {names(said, 5)}."


@drawn
def by_length(
    losses: Mapping[str, Mapping[int, float]],
    *,
    baseline: str,
    order: Sequence[str] = (),
    context: int | None = None,
    runs: Mapping[str, Mapping[int, list[float]]] | None = None,
    metric: str = "nats per token",
) -> Drawing | None:
    """F10: the mean loss of the same targets over the length of the context, in lengths of training; `runs` are single blocks."""
    held = {arm: {k: v for k, v in sorted(each.items()) if known(v)} for arm, each in losses.items()}
    held = {arm: each for arm, each in held.items() if each}
    if not held:
        return None
    looks = styles([*order, *losses], baseline)
    figure = sheet(WIDTH, 3.2)
    ax = figure.subplots()
    for arm, each in held.items():
        look = looks[arm]
        for factor, values in (runs or {}).get(arm, {}).items():
            ax.plot(
                [factor] * len(values), values, look.marker, color=look.colour, markersize=3, alpha=0.5, linestyle="none", gid=f"runs {arm}"
            )
        ax.plot(list(each), list(each.values()), color=look.colour, marker=look.marker, linestyle=look.dash, gid=f"mean {arm}")
    ax.axvline(1, color=INK, linewidth=0.8)
    factors = sorted({factor for each in held.values() for factor in each})
    log_ticks(ax, "x", factors)
    ax.set_xticks(factors, [f"{k}x" + (f" ({plain(k * context)})" if context else "") for k in factors])
    ax.set(xlabel="context length over that of training", ylabel=f"loss of the same targets,\n{metric} (lower is better)")
    key(figure, looks, sorted(held, key=lambda arm: -list(held[arm].values())[-1]))
    title = length_finding(held)
    return Drawing(
        "by-length", figure, title, f"{title} Loss over context length, one line an arm; the vertical line is the length of training."
    )
