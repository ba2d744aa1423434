"""look: what all figures share: colours, type, and how a figure becomes SVG that follows the page, or a PNG.

A figure is drawn in the light colours of COLOURS. In the SVG each of them is a CSS variable with that colour to fall back on, so that
CSS, put once on the page, makes it readable on a dark page and on paper. No figure carries its title: the page sets it as text.
"""

from __future__ import annotations

import functools
import html
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeGuard, TypeVar

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

P = ParamSpec("P")
R = TypeVar("R")

WIDTH = 8.0
"""Inches, of a figure for a desktop window."""
NARROW = 4.0
"""Inches, of a figure for a phone."""

INK, MUTED, GRID, BAND, PAPER = "#1c2024", "#5d646c", "#d9dde1", "#e6e9ed", "#fefefe"
PALETTE = ("#0173b2", "#b86e00", "#02815e", "#c8460a", "#b4559f", "#946231", "#2b8fc9", "#7d7600")
"""Hues of seaborn's `colorblind`, the pale ones darkened until each has a contrast of 3 to white (WCAG 2.2, 1.4.11)."""

COLOURS: dict[str, tuple[str, str, str]] = {
    "ink": (INK, "currentColor", "currentColor"),
    "muted": (MUTED, MUTED, "#a3abb4"),
    "grid": (GRID, GRID, "#363c43"),
    "band": (BAND, BAND, "#2b3138"),
    "paper": (PAPER, "#ffffff", "#14171a"),
    **{
        f"arm-{i}": (light, light, dark)
        for i, (light, dark) in enumerate(
            zip(PALETTE, ("#4ba6e0", "#de9a26", "#2dbd92", "#ee7a3f", "#d88dc8", "#ca9161", "#7cc4ee", "#c9bf2c"), strict=True), start=1
        )
    },
}
"""Name of the CSS variable without --figure-: the colour as drawn, in a light page, in a dark page."""

MARKERS = ("s", "^", "D", "v", "p", "<", "d", ">", "h")  # without x, which is a failed run
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 1, 1, 1, 1, 1)))

RC: Any = {
    "font.family": ["DejaVu Sans"],  # wider than the system fonts that replace it in the SVG, so what fits here fits there
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,  # a name with dollars is a name
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "figure.facecolor": "none",
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
    "lines.solid_capstyle": "round",
    "path.simplify": True,
}


class Drawing(NamedTuple):
    """A figure, what it found in one sentence, and that sentence with what is drawn, for those who cannot see it."""

    name: str
    figure: Figure
    title: str
    alt: str


class Style(NamedTuple):
    """How an arm looks in every figure; no two arms differ in colour alone."""

    colour: str
    marker: str
    dash: Any


def _css() -> str:
    light = "".join(f"--figure-{name}:{colours[1]};" for name, colours in COLOURS.items())
    dark = "".join(f"--figure-{name}:{colours[2]};" for name, colours in COLOURS.items())
    font = "--figure-font:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif;"
    return f":root{{{font}{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"


CSS = _css()
"""To be put once on a page that holds figures."""


def styles(arms: Iterable[str], baseline: str | None) -> dict[str, Style]:
    """The baseline in ink with a round marker; the first eight of the other arms in colour; the rest grey, told apart by their markers."""
    looks = {} if baseline is None else {baseline: Style(INK, "o", "-")}
    others = [arm for arm in dict.fromkeys(arms) if arm != baseline]
    for i, arm in enumerate(others):
        colour = PALETTE[i] if i < len(PALETTE) else MUTED
        looks[arm] = Style(colour, MARKERS[i % len(MARKERS)], DASHES[i % len(DASHES)])
    return looks


def drawn(function: Callable[P, R]) -> Callable[P, R]:
    """Draws with the house type and colours, whatever the settings outside are."""

    @functools.wraps(function)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        with mpl.rc_context(RC):
            return function(*args, **kwargs)

    return inside


def sheet(width: float, height: float) -> Figure:
    """An empty figure that no global state of pyplot knows; inches."""
    return Figure(figsize=(width, height), layout="constrained")


def panels(count: int, *, columns: int = 3, height: float = 2.1, sharex: bool = True, sharey: bool = True) -> tuple[Figure, list[Axes]]:
    """`count` axes in rows, each `height` inches high."""
    width = min(WIDTH, max(0.7 * WIDTH, WIDTH * count / columns))  # few panels are not wider than many, and the key still has room
    columns = min(count, columns)
    rows = math.ceil(count / columns)
    figure = sheet(width, rows * height + 0.5)
    axes = list(figure.subplots(rows, columns, sharex=sharex, sharey=sharey, squeeze=False).flat)
    for ax in axes[count:]:
        ax.remove()
    for ax in lowest(axes[:count], columns):  # above a gap as well
        ax.tick_params(labelbottom=True)
    return figure, axes[:count]


def lowest(axes: Sequence[Axes], columns: int) -> Sequence[Axes]:
    """Of panels the last of each column, where the label of the abscissa goes."""
    return axes[-min(columns, len(axes)) :]


def known(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def wrapped(text: str, width: int) -> str:
    """In lines of at most `width` characters, broken at spaces and commas, else behind other signs, else anywhere."""
    pieces: list[str] = []
    for part in re.findall(r"[^ ,]*[ ,]?", text):
        finer = re.findall(rf"[^=_/+.-]{{1,{max(1, width - 1)}}}[=_/+.-]?|[=_/+.-]", part)
        pieces += [part] if len(part.rstrip()) <= width else finer
    lines = [""]
    for piece in pieces:
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)


def names(arms: Sequence[str], most: int = 3) -> str:
    """Arms in prose: a, b and 4 more."""
    if len(arms) > most + 1:
        return f"{', '.join(arms[:most])} and {len(arms) - most} more"
    return arms[0] if len(arms) == 1 else f"{', '.join(arms[:-1])} and {arms[-1]}" if arms else "none"


def amount(value: float, half_width: float | None = None, sign: bool = False) -> str:
    """A number to two significant digits of its half-width, or of itself where it has none."""
    scale = abs(half_width) if known(half_width) and half_width else abs(value)
    decimals = min(6, max(0, 1 - math.floor(math.log10(scale)))) if scale else 3
    text = f"{value:+.{decimals}f}" if sign else f"{value:.{decimals}f}"
    return text.replace("-", "−")


def plain(value: float) -> str:
    """A tick of a logarithmic axis without mathematics: 0.003, 40, 2k, 1.5M."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def thinned(x: Sequence[float], y: Sequence[float], most: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """At most `most` points, means over bins of equally many steps; the last point stays as it is, values that are not finite go."""
    xs, ys = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    keep = np.isfinite(xs) & np.isfinite(ys)
    xs, ys = xs[keep], ys[keep]
    if len(xs) <= most:
        return xs, ys
    bins = np.array_split(np.arange(len(xs) - 1), most - 1)
    return np.append([xs[i].mean() for i in bins], xs[-1]), np.append([ys[i].mean() for i in bins], ys[-1])


def ceiling(values: Iterable[float], at_least: float = -math.inf) -> float:
    """Where an axis ends upwards: at the largest value, unless a few values lie so far out that they would flatten all others."""
    held = np.asarray([value for value in values if math.isfinite(value)])
    if not len(held):
        return at_least if math.isfinite(at_least) else 1.0
    bottom, upper = float(held.min()), float(np.quantile(held, 0.75))
    reach = upper + 3 * max(upper - bottom, 1e-3)
    return max(at_least, float(held[held <= reach].max()))


def log_ticks(ax: Axes, axis: str, ticks: Sequence[float] | None = None) -> None:
    """A logarithmic axis with plain numbers, at `ticks` if given."""
    which = ax.xaxis if axis == "x" else ax.yaxis
    (ax.set_xscale if axis == "x" else ax.set_yscale)("log")
    low, high = ax.get_xlim() if axis == "x" else ax.get_ylim()
    if ticks is not None:
        which.set_ticks(list(ticks))
    elif high / max(low, 1e-300) < 100:
        which.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    which.set_minor_locator(NullLocator())
    which.set_minor_formatter(NullFormatter())
    which.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))


def token_axis(ax: Axes) -> None:
    ax.xaxis.set_major_locator(MaxNLocator(4))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))


def key(figure: Figure, looks: Mapping[str, Style], arms: Sequence[str], *, lines: bool = True) -> None:
    """The legend beside the axes, in the order given."""
    handles = [
        Line2D(
            [],
            [],
            color=looks[arm].colour,
            marker=looks[arm].marker,
            linestyle=looks[arm].dash if lines else "none",
            label=wrapped(arm, 22) if not arm.startswith("_") else f" {wrapped(arm, 22)}",
        )
        for arm in arms
    ]
    height = 0.4 + sum(0.06 + 0.16 * (1 + str(handle.get_label()).count("\n")) for handle in handles)
    if figure.get_figheight() < height:
        figure.set_figheight(height)
    figure.legend(handles=handles, loc="outside right upper", handlelength=2.6)


def note(figure: Figure, handles: Sequence[Line2D | Any], columns: int) -> None:
    """What the signs mean, below the axes."""
    figure.legend(handles=list(handles), loc="outside lower left", ncols=columns, handlelength=1.8, columnspacing=1.4)


def cross(ax: Axes, x: float, y: float, gid: str, colour: str = INK) -> None:
    """A failed run."""
    ax.plot([x], [y], marker="x", markersize=6, markeredgewidth=1.6, color=colour, linestyle="none", clip_on=False, gid=gid, zorder=5)


def svg(drawing: Drawing) -> str:
    """Inline SVG: as wide as its place, at most as wide as drawn; the same bytes for the same numbers; ids that no other drawing has."""
    buffer = io.StringIO()
    with mpl.rc_context({**RC, "svg.fonttype": "none", "svg.hashsalt": drawing.name}):
        drawing.figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r'\s*<style type="text/css">.*?</style>', "", text, flags=re.S)  # its rule is for *, which would be all of the page
    text = re.sub(r'(?<= d=")[^"]*', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), text)  # hundredths of a point
    text = _with_own_ids(text, re.sub(r"[^A-Za-z0-9_-]", "-", drawing.name))
    text = re.sub(r"#[0-9a-f]{6}\b", lambda match: _VARIABLES.get(match[0], match[0]), text)
    text = re.sub(r"font:([^;\"]*?)'DejaVu Sans'", r"font:\1var(--figure-font, system-ui, sans-serif)", text)
    return re.sub(r"<svg[^>]*>", _root(drawing), text, count=1).strip() + "\n"


_VARIABLES = {colour: f"var(--figure-{name}, {'currentColor' if name == 'ink' else colour})" for name, (colour, *_) in COLOURS.items()}


def _root(drawing: Drawing) -> str:
    width, height = (72 * float(inches) for inches in drawing.figure.get_size_inches())
    told = f"<title>{html.escape(drawing.title)}</title>\n <desc>{html.escape(drawing.alt)}</desc>"
    root = (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width:g} {height:g}" width="100%" '
        f'style="max-width: {width * 4 / 3:g}px; stroke-linejoin: round; stroke-linecap: butt">\n {told}'
    )
    return root.replace("\\", r"\\")


def _with_own_ids(text: str, prefix: str) -> str:
    """Ids that something refers to get the drawing's name in front; the others go."""
    text = text.replace("xlink:href", "href")
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda match: f' id="{prefix}-{match[1]}"' if match[1] in used else "", text)
    return re.sub(r'(href="|url\()#([^")]+)', rf"\1#{prefix}-\2", text)


def png(drawing: Drawing, path: str | Path) -> None:
    """For places that show no SVG; 150 dots an inch on white."""
    with mpl.rc_context(RC):
        drawing.figure.savefig(path, format="png", dpi=150, facecolor="white", metadata={"Software": None})
