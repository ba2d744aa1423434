"""command: the verbs `report` and `compare`."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ablate.errors import ConfigError
from ablate.files import flat, read_object
from ablate.report.analysis import Analysis, ArmResult, analyse
from ablate.report.compare import SEEDS, arm_of
from ablate.report.load import WANDB, Loaded, load, load_runs_as_study, load_study, run_directories
from ablate.report.numbers import MISSING, with_interval
from ablate.report.statistics import Contrast
from ablate.report.text import first_screen

LEAST_MARGIN, MOST_MARGIN = 1e-6, 100.0
WIDTH = 160
"""Of a table that goes to a file."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong as everything here does."""

    def error(self, message: str) -> Any:
        raise ConfigError.at(self.prog.rpartition(" ")[2], f"{message}; {' '.join(self.format_usage().split())}")


def _margin(text: str) -> float:
    try:
        nats = float(text)
    except ValueError:
        nats = math.nan
    if not LEAST_MARGIN <= nats <= MOST_MARGIN:  # not a number is neither
        raise ConfigError.at("--margin", f"must be a number of nats above 0, from {LEAST_MARGIN:g} to {MOST_MARGIN:g}, got {text!r}")
    return nats


def _place(out: Path) -> Path:
    """A folder that can be written into."""
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError.at("--out", f"{out} is no folder that can be written into: {(error.strerror or str(error)).lower()}") from None
    return out


def _parser(verb: str, says: str) -> _Parser:
    parser = _Parser(prog=f"ablate {verb}", description=says, allow_abbrev=False)
    parser.add_argument("--results-dir", default="results", help="where runs and studies lie (results)")
    parser.add_argument("--margin", type=_margin, metavar="NATS", help="the smallest difference worth acting on, in place of the study's")
    return parser


def _console() -> Console:
    """Prints what it is given: brackets in the name of an arm are no markup."""
    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else WIDTH
    return Console(width=width, soft_wrap=True, highlight=False, markup=False, emoji=False)


def report(argv: Sequence[str]) -> int:
    """Writes report.html, report.md, runs.csv, contrasts.csv and figures/, and prints the first screen."""
    parser = _parser("report", report.__doc__ or "")
    parser.add_argument("words", nargs="+", metavar="STUDY|RUN|wandb:ENTITY/PROJECT[/GROUP]", help="a study, or any runs")
    parser.add_argument("--out", metavar="DIR", help="where to write (the study's folder; results/report for runs)")
    parser.add_argument("--baseline", metavar="NAME", help="the arm that the others are compared with")
    flags = parser.parse_args(argv)
    loaded = load(flags.words, flags.results_dir, flags.baseline)
    out = Path(flags.out).expanduser() if flags.out else place_of(loaded, flags.words, Path(flags.results_dir).expanduser())
    console = _console()
    page = write_report(loaded, _place(out), console, flags.margin)
    console.print(f"\n{page}")
    return 0


def write_report(loaded: Loaded, out: Path, console: Console, margin: float | None = None) -> Path:
    """The first screen to the console, all of it into a folder; gives the path of the page."""
    analysis = analyse(loaded, margin)
    first_screen(analysis, console)
    from ablate.report.drawings import figures_of  # seconds of imports, after the answer is on the screen
    from ablate.report.page import write_page

    return write_page(analysis, figures_of(analysis, loaded), loaded, out)


def place_of(loaded: Loaded, words: Sequence[str], results_dir: Path) -> Path:
    """A study's own folder; of runs on W&B one with their project's name."""
    if loaded.meta.source == "study":
        return Path(loaded.meta.directory)
    name = re.sub(r"[^\w.-]+", "-", words[0].removeprefix(WANDB)) if words[0].startswith(WANDB) else "report"
    return results_dir / name


def compare(argv: Sequence[str]) -> int:
    """What B changes against A: of runs the keys that differ and the paired difference, of studies the verdicts that changed."""
    parser = _parser("compare", compare.__doc__ or "")
    parser.add_argument("a", metavar="A", help="a run, or a study: what is compared with")
    parser.add_argument("b", metavar="B", help="a run, or a study")
    flags = parser.parse_args(argv)
    studies = [is_study(word, flags.results_dir) for word in (flags.a, flags.b)]
    if studies[0] != studies[1]:
        list(run_directories([word for word, found in zip((flags.a, flags.b), studies, strict=True) if not found], flags.results_dir))
        raise ConfigError.at(f"{flags.a} {flags.b}", "one is a study and the other is not: compare two runs, or two studies")
    told = compare_studies if all(studies) else compare_runs
    told(flags.a, flags.b, flags.results_dir, flags.margin, _console())
    return 0


def is_study(word: str, results_dir: str | Path) -> bool:
    return any((place / "study.yaml").is_file() for place in (Path(word).expanduser(), Path(results_dir).expanduser() / word))


def compare_runs(a: str, b: str, results_dir: str | Path, margin: float | None, console: Console) -> None:
    """Two runs stand for their arms: every run beside them that differs from them in seeds alone takes part."""
    first, second = (_one_run(word, results_dir) for word in (a, b))
    identities = [read_object(run / "identity.json") for run in (first, second)]
    console.print(_differing(flat(identities[0]), flat(identities[1]), first.name, second.name))
    arms = [arm_of(identity) for identity in identities]
    if arms[0] == arms[1]:
        console.print("The same arm: they differ in seeds alone, so there is nothing to compare.")
        return
    runs = [path for directory in dict.fromkeys((first.parent, second.parent)) for path in _of_arms(directory, arms)]
    loaded = load_runs_as_study(runs, first.name, results_dir)
    arms_here = tuple(replace(arm, levels={}) for arm in loaded.meta.arms)  # the two were asked for: a size is what is compared, too
    analysis = analyse(replace(loaded, meta=replace(loaded.meta, arms=arms_here)), margin)
    for arm in analysis.arms:
        console.print(arm.sentence)
    for banner in analysis.banners:
        console.print(f"Note: {banner.text}")


def _one_run(word: str, results_dir: str | Path) -> Path:
    found = list(run_directories([word], results_dir))
    if len(found) != 1:
        raise ConfigError.at(word, f"stands for {len(found)} runs: name one of them")
    if not read_object(found[0] / "identity.json"):
        raise ConfigError.at(word, "has no identity.json that can be read, which says what the run is")
    return found[0]


def _of_arms(directory: Path, arms: Sequence[dict[str, Any]]) -> Iterator[Path]:
    for path in sorted(directory.glob("*/identity.json")):
        identity = read_object(path)
        if identity and arm_of(identity) in arms:
            yield path.parent


def _differing(ours: Mapping[str, Any], theirs: Mapping[str, Any], a: str, b: str) -> Table:
    """The keys whose values differ, side by side; seeds last."""
    keys = [key for key in dict.fromkeys([*ours, *theirs]) if ours.get(key, MISSING) != theirs.get(key, MISSING)]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", a, b):
        table.add_column(name, overflow="fold")
    for key in sorted(keys, key=lambda key: key in SEEDS):
        table.add_row(key, str(ours.get(key, MISSING)), str(theirs.get(key, MISSING)))
    return table


def compare_studies(a: str, b: str, results_dir: str | Path, margin: float | None, console: Console) -> None:
    """The verdicts of two studies side by side: only the arms whose verdict or difference changed, and those that one of them lacks."""
    before, after = (analyse(load_study(word, results_dir), margin) for word in (a, b))
    rows = [row for name in _names(before, after) if (row := _changed(_find(before, name), _find(after, name))) is not None]
    if before.metric != after.metric:
        console.print(f"Note: {a} is in {before.metric}, {b} in {after.metric}")
    if before.baseline.name != after.baseline.name:
        console.print(f"Note: the baseline of {a} is {before.baseline.name}, that of {b} is {after.baseline.name}")
    if rows:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("arm", f"{a}, {before.metric}", "", b, ""):
            table.add_column(name, overflow="fold")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    console.print(f"{len(_names(before, after)) - len(rows)} arms as before, {len(rows)} changed")


def _names(before: Analysis, after: Analysis) -> list[str]:
    return list(dict.fromkeys(arm.name for analysis in (after, before) for arm in analysis.arms))


def _find(analysis: Analysis, name: str) -> ArmResult | None:
    return next((arm for arm in analysis.arms if arm.name == name), None)


def _changed(before: ArmResult | None, after: ArmResult | None) -> tuple[str, ...] | None:
    """A row of both, or None where the verdict is the same and each interval holds the other's mean."""
    ours, theirs = _contrast(before), _contrast(after)
    words = _word(before), _word(after)
    alike = ours == theirs or (ours is not None and theirs is not None and _holds(ours, theirs) and _holds(theirs, ours))
    if words[0] == words[1] and alike:
        return None
    named = after if after is not None else before
    assert named is not None
    told = [with_interval(*contrast[:3]) if contrast is not None else MISSING for contrast in (ours, theirs)]
    return named.name, told[0], words[0], told[1], words[1]


def _word(arm: ArmResult | None) -> str:
    if arm is None:
        return "not there"
    return arm.judgement.verdict.word if arm.judgement is not None else "no verdict"


def _contrast(arm: ArmResult | None) -> Contrast | None:
    return arm.judgement.contrast if arm is not None and arm.judgement is not None else None


def _holds(ours: Contrast, theirs: Contrast) -> bool:
    return ours.low is not None and ours.high is not None and ours.low <= theirs.mean <= ours.high
