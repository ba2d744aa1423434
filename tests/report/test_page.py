"""The page: self-contained, complete, the same as its Markdown, and safe whatever an arm is called."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from ablate.report import numbers, tables
from ablate.report.analysis.shapes import Analysis, Noise, Span
from ablate.report.drawings import figures_of
from ablate.report.figures import Drawing
from ablate.report.load import Loaded
from ablate.report.page import html_table, markdown, markdown_table, write_page
from tests.report import example

HOSTILE = "<script>alert('a|b')</script> & \"*c*\""
VOID = {"meta", "link", "br", "hr", "img", "input", "wbr"}


class Made(NamedTuple):
    """A report of the example."""

    analysis: Analysis
    drawings: Sequence[Drawing]
    loaded: Loaded
    html: str
    folder: Path


class Parsed(HTMLParser):
    """Fails at tags that do not match; keeps elements and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data if not self.open or self.open[-1] not in ("style", "script") else ""

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def words(text: str) -> str:
    """Text with single plain spaces."""
    return " ".join(text.split())


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("report")
    analysis, loaded = example.analysis(), example.loaded(root)
    drawings = figures_of(analysis, loaded)
    page = write_page(analysis, drawings, loaded, root / "results" / "made")
    return Made(analysis, drawings, loaded, page.read_text(encoding="utf-8"), page.parent)


def test_the_page_is_whole_html(report: Made) -> None:
    parsed = Parsed(report.html)
    assert report.html.lstrip().startswith("<!doctype html>")
    assert parsed.all("html") == [{"lang": "en"}]
    ids = [attributes["id"] for _, attributes in parsed.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [str(link["href"]) for link in parsed.all("a")]
    assert {target[1:] for target in targets if target.startswith("#")} <= set(ids)


def test_nothing_is_fetched(report: Made) -> None:
    parsed = Parsed(report.html)
    sources = [str(attributes[key]) for _, attributes in parsed.elements for key in ("src", "href", "data") if attributes.get(key)]
    assert [source for source in sources if not re.match(r"#|data:,$|\.\./runs/", source)] == []
    assert re.findall(r"@import|url\((?!#)", report.html) == []


def test_headings_go_down_a_level_at_a_time(report: Made) -> None:
    levels = [int(tag[1]) for tag, _ in Parsed(report.html).elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_every_figure_says_what_it_shows(report: Made) -> None:
    pictures = Parsed(report.html).all("svg")
    assert len(pictures) == len(report.drawings) >= 10
    assert all(picture["role"] == "img" for picture in pictures)
    text = words(Parsed(report.html).text)
    for drawing in report.drawings:
        assert words(drawing.alt) in text
        assert (report.folder / "figures" / f"{drawing.name}.png").stat().st_size > 1000


def test_every_arm_has_its_sentence_on_the_page_and_in_the_markdown(report: Made) -> None:
    text, plain = words(Parsed(report.html).text), (report.folder / "report.md").read_text(encoding="utf-8")
    for arm in report.analysis.arms:
        assert words(arm.sentence) in text
        assert markdown(arm.sentence) in plain.replace("**", "")


def test_banners_are_on_the_page_and_in_the_markdown(report: Made) -> None:
    text, plain = words(Parsed(report.html).text), (report.folder / "report.md").read_text(encoding="utf-8")
    for banner in report.analysis.banners:
        assert f"{'Stop' if banner.severity == 'red' else 'Note'} {banner.text}" in text
        assert markdown(banner.text) in plain


def test_what_is_left_out_says_so_in_the_contents(report: Made) -> None:
    text = words(Parsed(report.html).text)
    assert "Length: left out, no arm changes how positions are told" in text
    assert 'id="length"' not in report.html
    assert "## 7. Length\n\nLeft out" in (report.folder / "report.md").read_text(encoding="utf-8")


def test_failed_runs_are_counted_beside_the_mean_of_the_others(report: Made) -> None:
    text = words(Parsed(report.html).text)
    assert "2/8 collapsed" in text
    assert "(of 6/8)" in text
    assert "2/2 collapsed" in text  # tuning


def test_a_missing_number_is_a_dash_that_says_why(report: Made) -> None:
    assert '<abbr class="missing" title="the baseline itself">–</abbr>' in report.html


def test_every_run_is_in_the_table_with_a_link_to_its_config(report: Made) -> None:
    links = [str(link["href"]) for link in Parsed(report.html).all("a") if str(link["href"]).startswith("../runs/")]
    assert len(links) == len(report.loaded.runs)
    assert all((report.folder / link).is_file() for link in links)


def test_tables_of_numbers_have_every_digit(report: Made) -> None:
    with open(report.folder / "contrasts.csv", newline="", encoding="utf-8") as file:
        rows = {row["arm"]: row for row in csv.DictReader(file)}
    for arm in report.analysis.arms:
        assert arm.judgement is not None
        assert arm.judgement.contrast is not None
        assert float(rows[arm.name]["difference"]) == arm.judgement.contrast.mean
        assert rows[arm.name]["word"] == arm.judgement.verdict.word
        assert rows[arm.name]["peak_memory"] == ""
    with open(report.folder / "runs.csv", newline="", encoding="utf-8") as file:
        assert [row["run"] for row in csv.DictReader(file)].count("") == 0


def test_the_same_numbers_make_the_same_bytes(report: Made, tmp_path: Path) -> None:
    for name in ("one", "other"):
        write_page(example.analysis(), figures_of(report.analysis, report.loaded)[:2], report.loaded, tmp_path / name)
    written = [path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.*")]
    assert len(written) == 8
    assert [path for path in written if (tmp_path / "one" / path).read_bytes() != (tmp_path / "other" / path).read_bytes()] == []


def test_no_name_of_an_arm_becomes_markup(report: Made, tmp_path: Path) -> None:
    arm = report.analysis.arms[0]
    named = replace(arm, name=HOSTILE, sentence=arm.sentence.replace(arm.name, HOSTILE, 1))
    hostile = replace(report.analysis, arms=[named, *report.analysis.arms[1:]], answer=HOSTILE, question=HOSTILE, study=HOSTILE)
    page = write_page(hostile, report.drawings[:1], report.loaded, tmp_path)
    html = page.read_text(encoding="utf-8")
    assert len(Parsed(html).all("script")) == len(Parsed(report.html).all("script")) == 1
    assert words(named.sentence) in words(Parsed(html).text)
    lines = (tmp_path / "report.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("|") and "script" in line]
    widths = {len(re.split(r"(?<!\\)\|", line)) for line in lines if line.startswith("| **") or line in rows}
    assert rows
    assert all(r"\<script\>" in row for row in rows)
    assert all(len(re.split(r"(?<!\\)\|", row)) in widths for row in rows)


def test_a_baseline_alone_has_a_page(report: Made, tmp_path: Path) -> None:
    alone = replace(report.analysis, arms=[], banners=[], noise=Noise({}, None, 0, None, None, [], [], None))
    html = write_page(alone, [], report.loaded, tmp_path).read_text(encoding="utf-8")
    assert "There is no arm beside the baseline." in Parsed(html).text
    assert "Effects: left out, no arm has a block in common with the baseline" in words(Parsed(html).text)


def test_nothing_is_left_half_written(report: Made) -> None:
    assert [path.name for path in report.folder.rglob(".*")] == []


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (numbers.with_interval(-0.01912, -0.0283, -0.0091), "−0.0191 [−0.0283, −0.0091]"),
        (numbers.with_interval(-0.0191, -0.12, 0.08), "−0.02 [−0.12, +0.08]"),
        (numbers.with_interval(0.5, None, None), "+0.5000"),
        (numbers.signed(-0.00001, 3), "0.000"),
        (numbers.p_value(0.0123), ".012"),
        (numbers.p_value(0.00099), "<.001"),
        (numbers.p_value(1.0), "1.000"),
        (numbers.percent(1.054, 1.014, 1.096), "+5.4 % [+1.4, +9.6]"),
        (numbers.quantity(492_384), "492k"),
        (numbers.quantity(999_600), "1.00M"),
        (numbers.quantity(512), "512"),
        (numbers.rate(0.003), "3e-3"),
    ],
)
def test_numbers_as_they_are_written(said: str, text: str) -> None:
    assert said == text


def test_a_column_without_a_number_goes_and_is_named() -> None:
    columns = [tables.Column("arm", "name"), tables.Column("speed"), tables.Column("loss")]
    rows = [[tables.name("a"), tables.missing("no bench"), tables.of_span(Span(1.0), "no run")]]
    kept = tables.without_empty(tables.Table("t", "c", columns, rows, "A note."))
    assert [column.label for column in kept.columns] == ["arm", "loss"]
    assert [len(row) for row in kept.rows] == [2]
    assert kept.note == "A note. Not known for any arm: speed (no bench)."


def test_a_table_has_the_same_cells_as_html_and_as_markdown() -> None:
    table = tables.summary(example.analysis())
    text = words(Parsed(str(html_table(table))).text)
    lines = markdown_table(table).splitlines()
    assert len(lines) == len(table.rows) + 2
    for row, line in zip(table.rows, lines[2:], strict=True):
        for cell in row:
            assert words(cell.text) in text
            assert markdown(cell.text) in line
