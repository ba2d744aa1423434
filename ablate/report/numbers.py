"""numbers: how a number is written in a report. A missing one is an en dash, never 0."""

from __future__ import annotations

import math

MISSING = "–"
MINUS = "−"


def decimals_of(half_width: float | None, otherwise: int = 4) -> int:
    """Decimals that leave two significant digits of a half-width; `otherwise` where there is none."""
    if half_width is None or not math.isfinite(half_width) or half_width <= 0:
        return otherwise
    return min(max(1 - math.floor(math.log10(half_width)), 0), 6)


def half_width(low: float | None, high: float | None) -> float | None:
    return (high - low) / 2 if low is not None and high is not None else None


def signed(value: float, decimals: int) -> str:
    """+0.012 or −0.012; what rounds to zero has no sign."""
    text = f"{abs(value):.{decimals}f}"
    if not float(text):
        return text
    return f"{'+' if value > 0 else MINUS}{text}"


def with_interval(mean: float, low: float | None, high: float | None) -> str:
    """A difference and its interval, to two significant digits of the interval's half-width."""
    decimals = decimals_of(half_width(low, high))
    if low is None or high is None:
        return signed(mean, decimals)
    return f"{signed(mean, decimals)} [{signed(low, decimals)}, {signed(high, decimals)}]"


def p_value(p: float) -> str:
    """.012, or <.001."""
    return "<.001" if p < 0.001 else f"{p:.3f}".removeprefix("0")


def percent(ratio: float, low: float | None = None, high: float | None = None) -> str:
    """A ratio as its distance from one: 1.05 is +5 %; its interval in brackets."""
    width = half_width(low, high)
    decimals = 1 if width is None or width < 0.1 else 0
    first = f"{signed(100 * (ratio - 1), decimals)} %"
    if low is None or high is None:
        return first
    return f"{first} [{signed(100 * (low - 1), decimals)}, {signed(100 * (high - 1), decimals)}]"


def quantity(value: float) -> str:
    """Three significant digits with a metric prefix: 493k, 1.23M, 12.3G."""
    rounded = float(f"{value:.3g}")
    for power, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(rounded) >= power:
            return f"{rounded / power:#.3g}".rstrip(".") + prefix
    return f"{rounded:g}"


def rate(lr: float) -> str:
    """A learning rate: 0.003 as 3e-3, which is how a grid is read."""
    mantissa, found, exponent = f"{lr:.3e}".partition("e")
    if not found:  # an infinite one diverges, and is still what the run was asked for
        return mantissa
    return f"{float(mantissa):g}e{int(exponent)}"


def duration(hours: float) -> str:
    """Hours, or minutes below one; 1 minute at the least."""
    minutes = max(1, round(60 * hours))
    return f"{hours:.1f} hours" if hours >= 1 else "1 minute" if minutes == 1 else f"{minutes} minutes"


def setting(value: object) -> str:
    """A value of a config: 0.0625, 1e-05, True."""
    return f"{value:g}" if isinstance(value, float) else str(value)
