"""Figures show all that there is, in an order that says something, and can be read by everyone on every page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import pictures
import pytest
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from ablate.report import figures
from ablate.report.figures import Cell, Drawing, Row, look, svg
from ablate.report.figures.cost import behind, front

CASES: dict[str, dict[str, Any]] = {
    "usual": {"failed": {"norm=layernorm,placement=post": 2}},
    "twelve arms of 40 characters": {"arms": pictures.LONG, "failed": {pictures.LONG[3]: 8, pictures.LONG[5]: 3}},
    "one arm, one block": {"arms": ("relu2",), "blocks": 1},
    "all failed": {"arms": ("relu2", "swiglu"), "blocks": 3, "failed": {pictures.BASELINE: 3, "relu2": 3, "swiglu": 3}},
    "twenty arms": {"arms": tuple(f"arm{i}" for i in range(20)), "blocks": 10},
}


def forest(rows: list[Row] | None = None, **options: Any) -> Drawing:
    drawing = figures.forest(pictures.rows() if rows is None else rows, **{"margin": 0.01, "baseline": pictures.BASELINE, **options})
    assert drawing is not None
    return drawing


def marked(figure: Figure, start: str) -> list[Any]:
    """What was drawn under a name that starts so."""
    found: list[Artist] = figure.findobj(lambda artist: str(artist.get_gid() or "").startswith(start))
    return found


def texts_of(figure: Figure, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Bbox]]:
    """Every text that is really drawn, with its box in pixels."""
    found: list[tuple[str, Bbox]] = []
    draw = Text.draw

    def recorded(self: Text, renderer: Any, *args: Any, **kwargs: Any) -> None:
        if self.get_visible() and self.get_text().strip():
            found.append((self.get_text(), Text.get_window_extent(self, renderer)))
        draw(self, renderer, *args, **kwargs)

    canvas = FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # it is settled
    with monkeypatch.context() as patch:
        patch.setattr(Text, "draw", recorded)
        canvas.draw()
    return found


@pytest.mark.parametrize("case", [pytest.param(case, marks=[] if case == "one arm, one block" else [pytest.mark.slow]) for case in CASES])
def test_no_text_is_cut_and_none_lies_on_another(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for drawing in filter(None, pictures.drawings(**CASES[case])):
        texts = texts_of(drawing.figure, monkeypatch)
        assert texts, drawing.name
        for i, (text, box) in enumerate(texts):
            assert all(drawing.figure.bbox.padded(1).contains(*corner) for corner in box.corners()), f"{drawing.name}: {text!r} is cut"
            for other, its in texts[i + 1 :]:
                lap = Bbox.intersection(box, its)
                assert lap is None or lap.width < 2 or lap.height < 2, f"{drawing.name}: {text!r} lies on {other!r}"


def test_a_forest_draws_every_arm_every_block_and_every_failure() -> None:
    for options in ({"failed": {"relu2": 3}}, {"arms": ("a", "b"), "blocks": 1}, {"arms": [f"arm{i}" for i in range(20)], "blocks": 10}):
        rows = pictures.rows(**options)
        for narrow in (False, True):
            figure = forest(rows, narrow=narrow).figure
            assert len(marked(figure, "mean ")) == len(rows)
            assert len(marked(figure, "block ")) == sum(len(row.blocks) for row in rows)
            assert len(marked(figure, "failed ")) == sum(row.failed for row in rows)
            assert len(marked(figure, "interval ")) == sum(row.low is not None for row in rows)


def test_a_forest_is_sorted_by_effect_with_the_best_on_top() -> None:
    rows = [*reversed(pictures.rows()), Row("lost", "UNSTABLE", "", None, None, None, None, None, {}, 8, 8)]
    lines = {str(line.get_gid())[5:]: line.get_ydata()[0] for line in marked(forest(rows).figure, "mean ")}
    means = {row.name: row.mean for row in rows if row.mean is not None}
    assert sorted(lines, key=lambda arm: lines[arm]) == sorted(means, key=lambda arm: means[arm])
    (y,) = {mark.get_ydata()[0] for mark in marked(forest(rows).figure, "failed lost")}
    assert y > max(lines.values())


def test_a_dot_lies_at_its_difference() -> None:
    row = Row("a", "BETTER", "", -0.02, -0.03, -0.01, -0.035, -0.005, {3: -0.025, 7: -0.015})
    figure = forest([row]).figure
    assert {str(dot.get_gid()): dot.get_xdata()[0] for dot in marked(figure, "block ")} == {"block a 3": -0.025, "block a 7": -0.015}
    (thick,), (thin,) = marked(figure, "interval a"), marked(figure, "holm a")
    assert list(thick.get_xdata()) == [-0.03, -0.01]
    assert list(thin.get_xdata()) == [-0.035, -0.005]
    assert thick.get_linewidth() > thin.get_linewidth()


def test_an_arm_far_out_leaves_room_for_the_others_and_is_shown_at_the_edge() -> None:
    rows = [*pictures.rows(("a", "b"), 3), Row("far", "WORSE", "", 1.02, 0.98, 1.06, 0.95, 1.1, {1: 1.0, 2: 1.04})]
    figure = forest(rows).figure
    low, high = figure.axes[0].get_xlim()
    assert high < 0.1
    for mark in [*marked(figure, "block far"), *marked(figure, "mean far")]:
        assert mark.get_marker() == ">"
        assert low <= mark.get_xdata()[0] <= high
    assert any(text.get_text() == "+1.020" for text in figure.findobj(Text))


@pytest.mark.parametrize(("word", "mean", "said"), [("BETTER", -0.0123, "Better than"), ("WORSE", 0.0123, "Worse than")])
def test_the_finding_says_the_sign_the_size_and_the_arm(word: str, mean: float, said: str) -> None:
    drawing = forest([Row("swiglu", word, "", mean, mean - 0.005, mean + 0.005, None, None, {1: mean})])
    assert drawing.title.startswith(said)
    assert "swiglu by 0.0123" in drawing.title
    assert drawing.alt.startswith(drawing.title)
    assert f"swiglu {'−' if mean < 0 else '+'}0.0123 [" in drawing.alt


def test_failed_runs_stand_in_the_finding() -> None:
    assert "post (2 of 8 runs failed)" in forest([Row("post", "UNSTABLE", "", 0.1, 0.0, 0.2, None, None, {1: 0.1}, 2, 8)]).title


def test_paired_blocks_are_counted_and_drawn() -> None:
    losses = {"base": {1: 2.0, 2: 2.1, 3: 2.2}, "arm": {1: 1.9, 2: 2.2}}
    drawing = figures.blocks(losses, baseline="base", failed={"arm": {3: "nan"}})
    assert drawing is not None
    assert "arm in 1 of 2" in drawing.title
    assert len(marked(drawing.figure, "block arm")) == 5
    assert len(marked(drawing.figure, "failed arm 3")) == 1


def test_every_tuning_run_is_drawn_and_failures_at_the_cap() -> None:
    tuning: dict[str, dict[float, list[float | None]]] = {"base": {0.01: [2.0, 2.1]}, "arm": {0.01: [1.9, 2.0], 0.1: [None, 3.0]}}
    drawing = figures.learning_rates(tuning, baseline="base", chosen={"arm": 0.01}, edges={"arm": "low"}, collapse=3.15)
    assert drawing is not None
    seeds = {str(mark.get_gid()): mark for mark in marked(drawing.figure, "seed ")}
    assert len(seeds) == 6
    assert seeds["seed arm 0.1 0"].get_marker() == "x"
    assert seeds["seed arm 0.1 0"].get_ydata()[0] > 3.15
    assert "arm (low end), so not tuned" in drawing.title
    (mean,) = marked(drawing.figure, "mean arm")
    assert list(mean.get_xdata()) == [0.01]  # a mean of survivors is no mean


def test_every_run_has_its_tile() -> None:
    cells = [*pictures.cells(pictures.USUAL, 8), Cell("relu2", 1.0, 0, "nan")]
    drawing = figures.status(cells, baseline=pictures.BASELINE)
    assert drawing is not None
    assert len(marked(drawing.figure, "run ")) == len(cells)
    failed = sum(cell.outcome in ("nan", "diverged", "collapsed") for cell in cells)
    assert drawing.title.startswith(f"{failed} of {len(cells)} runs failed")


def test_every_run_has_its_curve_and_the_mean_leaves_failures_out() -> None:
    runs = {"base": {1: ([1, 2, 3], [4.0, 3.0, 2.0]), 2: ([1, 2, 3], [4.0, 3.0, 3.0]), 3: ([1, 2], [9.0, 9.0])}}
    drawing = figures.curves(runs, baseline="base", failed={"base": [3]})
    assert drawing is not None
    assert len(marked(drawing.figure, "run base")) == 3
    (mean,) = marked(drawing.figure, "mean base")
    assert list(mean.get_ydata()) == [4.0, 3.0, 2.5]
    assert len(marked(drawing.figure, "failed base 3")) == 1
    assert "2.500 (base); runs of one arm differ by up to 1.0" in drawing.title


def test_thinning_keeps_means_and_the_end() -> None:
    x, y = look.thinned(list(range(1, 1002)), [float(i) for i in range(1, 1002)], most=101)
    assert len(x) == 101
    assert (x[-1], y[-1]) == (1001, 1001)
    assert y[:-1].mean() == pytest.approx(500.5)
    assert list(look.thinned([1, 2, 3], [1.0, float("nan"), 3.0])[0]) == [1, 3]


def test_the_front_holds_what_nothing_beats() -> None:

    assert front({"cheap": (1.0, 3.0), "good": (2.0, 2.0), "beaten": (2.5, 2.5), "best": (3.0, 1.0)}) == ["cheap", "good", "best"]


def test_without_data_there_is_no_figure() -> None:
    nan = float("nan")
    base: dict[str, Any] = {"baseline": "base"}
    none = [
        figures.forest([], margin=None, **base),
        figures.blocks({}, **base),
        figures.learning_rates({}, chosen={}, **base),
        figures.curves({"base": {1: ([], [])}, "arm": {}}, **base),
        figures.curves({"base": {1: ([1, 2], [nan, nan])}}, **base),
        figures.differences({"arm": figures.Trace([], [])}, **base),
        figures.pareto({"arm": figures.Cost(None, None, None, 1.0, None, None, None)}, **base),
        figures.status([], **base),
        figures.traces({"gradient norm": {"arm": {}}}, **base),
        figures.by_position({"arm": ([], [])}, **base),
        figures.by_length({"arm": {}}, **base),
        figures.noise({}, [], **base),
        figures.ranks({"arm": {"1M": (nan, None, None)}}, scales=["1M"], **base),
        figures.power_law({"arm": ([nan], [1.0])}, **base),
        figures.effects([]),
        figures.interaction({("a", "b"): []}, axes=("x", "y")),
        figures.ladder([], start="base"),
    ]
    assert none == [None] * len(none)


def test_an_arm_with_failures_alone_has_a_forest_that_says_so() -> None:
    drawing = forest([Row("post", "UNSTABLE", "", None, None, None, None, None, {}, 8, 8)], margin=None)
    assert "post (8 of 8 runs failed)" in drawing.title
    assert len(marked(drawing.figure, "failed post")) == 8


def all_svg(**options: Any) -> Iterator[tuple[str, str]]:
    for drawing in filter(None, pictures.drawings(**options)):
        yield drawing.name, svg(drawing)


def test_a_forest_is_the_same_bytes_each_time() -> None:
    assert svg(forest()) == svg(forest())


@pytest.mark.slow
def test_svgs_are_the_same_bytes_each_time_and_share_no_id() -> None:
    arms: dict[str, Any] = {"arms": ("relu2", "swiglu"), "blocks": 3, "failed": {"relu2": 1}}
    first, second = dict(all_svg(**arms)), dict(all_svg(**arms))
    assert first == second
    ids = [name for text in first.values() for name in re.findall(r'\bid="([^"]*)"', text)]
    assert len(ids) == len(set(ids))
    assert all(set(re.findall(r'(?:href="|url\()#([^")]+)', text)) <= set(re.findall(r'\bid="([^"]*)"', text)) for text in first.values())


def test_an_svg_needs_nothing_and_follows_the_page() -> None:
    text = svg(forest())
    root = ElementTree.fromstring(text)
    assert root.get("viewBox") == f"0 0 576 {float(root.get('viewBox', '').split()[-1]):g}"
    assert (root.get("role"), root.get("width"), root.get("height")) == ("img", "100%", None)
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert "<style" not in text
    bare = re.sub(r"var\(--figure-[a-z0-9-]+, (?:#[0-9a-f]{6}|currentColor)\)", "", text)
    assert not re.findall(r"#[0-9a-f]{6}\b", bare)
    assert set(re.findall(r"var\((--figure-[a-z0-9-]+)", text)) <= set(re.findall(r"(--figure-[a-z0-9-]+):", look.CSS))
    words = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"relu2", "BETTER", "INCONCLUSIVE"} <= set(words)


def test_names_are_text_whatever_they_hold() -> None:
    name = '<script>"$x_1$ & </svg>'
    drawing = forest([Row(name, "BETTER", "", -0.1, -0.2, -0.05, None, None, {1: -0.1})])
    root = ElementTree.fromstring(svg(drawing))
    assert [root.findtext(f"{{http://www.w3.org/2000/svg}}{tag}") for tag in ("title", "desc")] == [drawing.title, drawing.alt]
    assert name in "".join(node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text"))
    assert "<script" not in svg(drawing)


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("page", [1, 2], ids=["light", "dark"])
def test_colours_stand_out_from_the_page_and_from_the_margin(page: int) -> None:
    paper, band = look.COLOURS["paper"][page], look.COLOURS["band"][page]
    for name, colours in look.COLOURS.items():
        if name.startswith("arm-"):
            assert contrast(colours[page], paper) >= 3, name
            assert contrast(colours[page], band) >= 2.5, name
    assert contrast(look.COLOURS["muted"][page], paper) >= 4.5


def test_no_two_arms_look_alike_and_colour_is_never_all() -> None:
    looks = look.styles([f"arm{i}" for i in range(20)], "base")
    assert looks["base"].colour == look.INK
    assert len({style.colour for style in looks.values()} - {look.INK, look.MUTED}) == 8
    assert len({(style.colour, style.marker, str(style.dash)) for style in looks.values()}) == 21
    without_colour = [(style.marker, str(style.dash)) for style in list(looks.values())[:9]]
    assert len(set(without_colour)) == 9


def test_an_arm_keeps_its_look_whatever_a_figure_is_sorted_by() -> None:
    order = ("base", "a", "b", "c")
    rows = [Row(name, "WORSE", "", mean, None, None, None, None, {}) for name, mean in (("c", 0.1), ("a", 0.2))]
    figure = forest(rows, baseline="base", order=order).figure
    assert [line.get_color() for line in marked(figure, "mean ")] == [look.PALETTE[2], look.PALETTE[0]]


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("rmsnorm", 10, "rmsnorm"),
        ("norm=layernorm,placement=post", 28, "norm=layernorm,\nplacement=post"),
        ("a very long name", 8, "a very\nlong\nname"),
        ("abcdefghij", 5, "abcd\nefgh\nij"),
        ("", 5, ""),
    ],
)
def test_long_names_break_where_they_can(text: str, width: int, lines: str) -> None:
    assert look.wrapped(text, width) == lines


@pytest.mark.parametrize(
    ("value", "half", "text"), [(-0.01234, 0.006, "−0.0123"), (0.5, 0.12, "+0.50"), (0.0, None, "+0.000"), (12.3, 30.0, "+12")]
)
def test_numbers_have_two_digits_of_their_half_width(value: float, half: float | None, text: str) -> None:
    assert look.amount(value, half, sign=True) == text


def test_an_arm_is_behind_another_only_beyond_the_intervals_of_both() -> None:
    cheap, dear = (1.0, 1.1), (1.2, 1.3)
    assert behind({"a": (*cheap, 2.0, 2.1), "b": (*dear, 2.2, 2.3)}) == ["b"]
    assert behind({"a": (*cheap, 2.0, 2.25), "b": (*dear, 2.2, 2.3)}) == []
    assert behind({"a": (1.0, 1.25, 2.0, 2.1), "b": (*dear, 2.2, 2.3)}) == []
    assert behind({"a": (*dear, 2.0, 2.1), "b": (*cheap, 2.2, 2.3)}) == []
