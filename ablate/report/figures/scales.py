"""scales: whether what holds at one size holds at another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ablate.report.figures.curves import Series
from ablate.report.figures.look import INK, WIDTH, Drawing, amount, drawn, key, known, log_ticks, names, sheet, styles, wrapped

Interval = tuple[float, float | None, float | None]
"""Mean, low, high."""


def ranks_finding(tau: Interval | None, agreement: float | None) -> str:
    """How far the order of arms at one scale tells that at another: Kendall's tau, the share of pairs ordered alike."""
    said = []
    if tau is not None and known(tau[0]):
        inside = f" [{tau[1]:.2f}, {tau[2]:.2f}]" if known(tau[1]) and known(tau[2]) else " (interval not known)"
        said.append(f"the order of arms agrees between scales with Kendall's tau {tau[0]:.2f}{inside}")
    if known(agreement):
        said.append(f"{100 * agreement:.0f} % of pairs are ordered alike")
    text = ", ".join(said) or "whether the order of arms holds between scales is not known"
    return f"{text[0].upper()}{text[1:]}.".replace("-", "−")


@drawn
def ranks(
    differences: Mapping[str, Mapping[str, Interval]],
    *,
    scales: Sequence[str],
    baseline: str,
    order: Sequence[str] = (),
    tau: Interval | None = None,
    agreement: float | None = None,
    metric: str = "nats per token",
) -> Drawing | None:
    """Each arm's difference from the baseline with its interval at each of `scales`; lines that cross are ranks that change."""
    held = {arm: {s: v for s, v in each.items() if s in scales and known(v[0])} for arm, each in differences.items() if arm != baseline}
    held = {arm: each for arm, each in held.items() if each}
    if not held:
        return None
    looks = styles([*order, *differences], baseline)
    figure = sheet(WIDTH, 3.4)
    ax = figure.subplots()
    for i, (arm, each) in enumerate(held.items()):
        look, shift = looks[arm], 0.3 * ((i + 0.5) / len(held) - 0.5)
        places = [(scales.index(s) + shift, each[s]) for s in scales if s in each]
        ax.plot(
            [x for x, _ in places], [v[0] for _, v in places], color=look.colour, marker=look.marker, linestyle=look.dash, gid=f"mean {arm}"
        )
        for x, (_, low, high) in places:
            if known(low) and known(high):
                ax.plot([x, x], [low, high], color=look.colour, linewidth=1, gid=f"interval {arm}")
    ax.axhline(0, color=INK, linewidth=1)
    ax.set_xticks(range(len(scales)), [wrapped(scale, 60 // len(scales) + 2) for scale in scales])
    ax.set_xlim(-0.4, len(scales) - 0.6)
    ax.set_ylabel(f"difference from {wrapped(baseline, 24)}\n{metric} (below 0 is better)")
    last = [s for s in scales if any(s in each for each in held.values())][-1]
    key(figure, looks, sorted(held, key=lambda arm: -held[arm].get(last, (float("inf"), None, None))[0]))
    title = ranks_finding(tau, agreement)
    return Drawing(
        "ranks", figure, title, f"{title} Difference from {baseline} with 95 % intervals at {names(list(scales), 6)}, one line an arm."
    )


@drawn
def power_law(
    points: Mapping[str, Series],
    *,
    baseline: str,
    order: Sequence[str] = (),
    fits: Mapping[str, Series] | None = None,
    exponents: Mapping[str, float] | None = None,
    across: str = "parameters",
    metric: str = "nats per token",
) -> Drawing | None:
    """Loss over size on logarithmic axes, every run a marker, with the fitted curves as given; no curve is drawn where none is given."""
    held = {
        arm: [(x, y) for x, y in zip(*series, strict=True) if known(x) and known(y) and x > 0 and y > 0] for arm, series in points.items()
    }
    held = {arm: each for arm, each in held.items() if each}
    if not held:
        return None
    looks = styles([*order, *points], baseline)
    figure = sheet(WIDTH, 3.4)
    ax = figure.subplots()
    for arm, each in held.items():
        look = looks[arm]
        ax.plot(*zip(*each, strict=True), look.marker, color=look.colour, linestyle="none", gid=f"runs {arm}")
        if arm in (fits or {}):
            assert fits is not None
            ax.plot(*fits[arm], color=look.colour, linestyle=look.dash, linewidth=1.2, gid=f"fit {arm}")
    log_ticks(ax, "x")
    log_ticks(ax, "y")
    ax.set(xlabel=across, ylabel=f"loss, {metric} (lower is better)")
    key(figure, looks, list(held))
    told = [f"{arm} {amount(value)}" for arm, value in (exponents or {}).items() if known(value)]
    title = (
        f"Exponents of loss over {across}: {names(told, 5)}."
        if told
        else f"Loss over {across}; no curve was fitted, which takes four sizes."
    )
    return Drawing(
        "power-law",
        figure,
        title,
        f"{title} The mean of an arm at a size is a marker{', fitted curves are lines' if fits else ''}, both axes logarithmic.",
    )
