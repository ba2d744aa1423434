"""page: an analysis and its drawings -> report.html, report.md, runs.csv, contrasts.csv and figures/. Each is whole or absent."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup, escape

from ablate.files import write_text
from ablate.report.analysis.shapes import Analysis, ArmResult
from ablate.report.contrasts_csv import contrasts_frame
from ablate.report.figures import CSS, Drawing, png, svg
from ablate.report.load import Loaded, tidy
from ablate.report.sections import FIRST_SCREEN, Section, is_drawing, sections
from ablate.report.statistics import WORDS
from ablate.report.tables import Cell, Table

TEMPLATES = ("report.html.j2", "report.md.j2")


class Said(NamedTuple):
    """A verdict sentence, cut where its arm and its word end."""

    arm: str
    word: str
    rest: str


def write_page(analysis: Analysis, drawings: Sequence[Drawing], loaded: Loaded, out: Path) -> Path:
    """Writes the report into a folder, and gives the path of its page."""
    pictures = {drawing.name: svg(drawing) for drawing in drawings}
    runs = tidy(loaded)
    found = sections(analysis, drawings, runs, config_links(loaded.runs, out))
    texts = {
        "runs.csv": csv(runs),
        "contrasts.csv": csv(contrasts_frame(analysis)),
        "report.md": render("report.md.j2", analysis, found, drawings, pictures),
        "report.html": render("report.html.j2", analysis, found, drawings, pictures),
    }  # all of it, before the first file is written
    (out / "figures").mkdir(parents=True, exist_ok=True)
    for drawing in drawings:
        write_text(out / "figures" / f"{drawing.name}.svg", pictures[drawing.name])
        drawing.figure.set_layout_engine("none")  # it is laid out; doing so again takes as long as drawing
        temporary = out / "figures" / f".{drawing.name}.{os.getpid()}.png"
        png(drawing, temporary)
        os.replace(temporary, out / "figures" / f"{drawing.name}.png")
    for path in (out / "figures").glob("*.*"):  # of an earlier report
        if path.suffix in (".png", ".svg") and is_drawing(path.stem) and path.stem not in pictures:
            path.unlink()
    for name, text in texts.items():
        write_text(out / name, text)
    return out / "report.html"


def render(template: str, analysis: Analysis, found: Sequence[Section], drawings: Sequence[Drawing], pictures: Mapping[str, str]) -> str:
    """One of the two templates, filled."""
    first = {drawing.name: drawing for drawing in drawings if drawing.name in FIRST_SCREEN}
    text = (
        environment()
        .get_template(template)
        .render(
            a=analysis,
            sections=found,
            first=first,
            pictures={key: Markup(picture) for key, picture in pictures.items()},
            verdicts=[said(arm) for arm in analysis.arms],
            stops=[banner.text for banner in analysis.banners if banner.severity == "red"],
            notes=[banner.text for banner in analysis.banners if banner.severity != "red"],
            style=Markup(CSS + "\n" + _packaged("style.css")),
            script=Markup(_packaged("sort.js")),
        )
    )
    return text.rstrip() + "\n"


def environment() -> Environment:
    """Escapes all that goes into HTML; Markdown has a filter of its own."""
    loader = DictLoader({name: _packaged(name) for name in TEMPLATES})
    made = Environment(
        loader=loader,
        autoescape=lambda name: bool(name) and str(name).endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters: dict[str, Callable[..., Any]] = {
        "md": markdown,
        "table": html_table,
        "md_table": markdown_table,
        "slug": slug,
        "unbroken": unbroken,
    }
    made.filters.update(filters)
    return made


def _packaged(name: str) -> str:
    return (files("ablate.report") / "templates" / name).read_text(encoding="utf-8")


def said(arm: ArmResult) -> Said:
    """The sentence in three parts where it starts with `arm: WORD`, so that both can be set apart; else all of it is the rest."""
    start, rest = f"{arm.name}: ", arm.sentence
    if not rest.startswith(start):
        return Said("", "", rest)
    rest = rest.removeprefix(start)
    word = max((word for word in WORDS if rest.startswith(word)), key=len, default="")
    return Said(arm.name, word, rest.removeprefix(word))


def unbroken(text: str) -> str:
    """A line does not end within an interval, or between a number and its noun."""
    text = re.sub(r"\[[^\]]*\]", lambda match: match[0].replace(" ", "\N{NO-BREAK SPACE}"), text)
    return re.sub(r"(?<=\d) (?=%|nats|block|of)", "\N{NO-BREAK SPACE}", text)


def slug(word: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-")


def html_table(table: Table) -> Markup:
    """The table as HTML, by great_tables; without the styles it brings for itself, which style.css replaces."""
    from great_tables import GT, html

    names = [f"c{index}" for index in range(len(table.columns))]
    frame = pd.DataFrame([[str(html_cell(cell)) for cell in row] for row in table.rows], columns=names, dtype=object)
    made = GT(frame, rowname_col="c0", id=f"table-{table.name}").fmt(str, columns=names)
    made = made.tab_stubhead(label=html(str(escape(table.columns[0].label))))
    made = made.cols_label(
        cases={key: html(str(escape(column.label))) for key, column in zip(names, table.columns, strict=True) if key != "c0"}
    )
    numbers = [key for key, column in zip(names, table.columns, strict=True) if column.kind == "number" and key != "c0"]
    text = made.cols_align("left", names[1:]).cols_align("right", numbers).as_raw_html()
    text = text[text.index("<table") : text.index("</table>") + len("</table>")]
    text = re.sub(r' (headers|data-quarto-[a-z-]+)="[^"]*"| (rowspan|colspan)="1"', "", text)
    return Markup(re.sub(r'(<th [^>]*?) id="[^"]*"', r"\1", text))


def html_cell(cell: Cell) -> Markup:
    """What a table's cell holds: a value to sort by, the reason of what is missing, a link, or just text."""
    if cell.why:
        return Markup('<abbr class="missing" title="{0}">{1}</abbr>').format(cell.why, cell.text)
    if cell.kind == "word":
        return Markup('<span class="word {0}">{1}</span>').format(slug(cell.text), cell.text)
    if cell.link:
        return Markup('<a href="{0}">{1}</a>').format(cell.link, cell.text)
    if cell.value is not None:
        return Markup('<data value="{0}">{1}</data>').format(f"{cell.value:.9g}", cell.text)
    return escape(cell.text)


def markdown(text: str) -> str:
    """Plain text in Markdown, on one line: nothing in it is a mark."""
    return re.sub(r"([\\`*_\[\]<>|#~&])", r"\\\1", re.sub(r"\s+", " ", text))


def markdown_table(table: Table) -> str:
    """The table with pipes."""
    lines = [[markdown(column.label) for column in table.columns]]
    lines.append(["---:" if column.kind == "number" else "---" for column in table.columns])
    lines += [[markdown(cell.text) for cell in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def config_links(runs: pd.DataFrame, out: Path) -> dict[str, str]:
    """run -> its config.yaml, for runs that lie where a study's report expects them: beside it, in runs/."""
    beside = out.absolute().parent / "runs"
    paths = {str(name): Path(str(directory)).absolute() for name, directory in zip(runs["run"], runs["directory"], strict=True)}
    return {name: f"../runs/{path.name}/config.yaml" for name, path in paths.items() if path.parent == beside}


def csv(frame: pd.DataFrame) -> str:
    """Every digit that there is; what is missing is empty."""
    buffer = io.StringIO()
    frame.to_csv(buffer, index=False, lineterminator="\n")
    return buffer.getvalue()
