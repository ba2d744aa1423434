"""Published tables with exact answers, put through the statistics of the report: python -m tests.report.statistics.golden prints them."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any, NamedTuple

from ablate.report.statistics import Contrast, equivalence, holm, paired_contrast
from ablate.report.statistics.contrasts import t_interval, t_tail

FOLDER = Path(__file__).with_suffix("")

NARANG_RUNS, SHAZEER_RUNS = 5, 4
SOFTCAP_TARGET = 3.28


class Line(NamedTuple):
    """One known answer: `expected` is the source's own where it prints one, else what scipy and statsmodels make of its table."""

    what: str
    expected: float
    computed: float
    tolerance: float  # half a unit of the last digit of `expected`


def rows(name: str) -> list[dict[str, str]]:
    """A table without its comment."""
    text = (FOLDER / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in text if not line.startswith("#")))


def welch(arm: dict[str, Any], baseline: dict[str, Any], n: int) -> Contrast:
    """Unpaired, from means and deviations, as papers print them (Welch 1947)."""
    mean = float(arm["early_mean"]) - float(baseline["early_mean"])
    parts = [float(row["early_sd"]) ** 2 / n for row in (arm, baseline)]
    se, df = math.sqrt(sum(parts)), sum(parts) ** 2 / sum(part**2 / (n - 1) for part in parts)
    return Contrast(mean, *t_interval(mean, se, df, 0.95), n, df, None, se, 2 * t_tail(abs(mean), se, df), "Welch")  # type: ignore[arg-type]


def against_first(name: str, n: int) -> dict[str, Contrast]:
    """Every variant of a table against its first row."""
    baseline, *variants = rows(name)
    return {row["variant"]: welch(row, baseline, n) for row in variants}


def narang() -> list[Line]:
    """The early losses of 51 variants against the vanilla Transformer."""
    found = against_first("narang_2021_table1", NARANG_RUNS)
    p = {name: contrast.p for name, contrast in found.items() if contrast.p is not None}
    corrected, rms = holm(p), found["RMS Norm"]
    named = [name for name in found if corrected[name] < 0.05]
    return [
        Line("Narang table 1: variants", 51, len(found), 0),
        Line("raw p < .05", 43, sum(value < 0.05 for value in p.values()), 0),
        Line("better after Holm", 7, sum(found[name].mean < 0 for name in named), 0),
        Line("worse after Holm", 25, sum(found[name].mean > 0 for name in named), 0),
        Line("RMS Norm: difference", -0.015, rms.mean, 1e-9),
        Line("RMS Norm: p", 0.00995, p["RMS Norm"], 5e-6),
        Line("RMS Norm: Holm p", 0.1303, corrected["RMS Norm"], 5e-5),
        Line("RMS Norm: equivalence p, margin .01", 0.862, equivalence(rms, 0.01).p, 5e-4),
        Line("RMS Norm: equivalence p, margin .02", 0.138, equivalence(rms, 0.02).p, 5e-4),
        Line("RMS Norm: equivalence p, margin .03", 0.00497, equivalence(rms, 0.03).p, 5e-6),
        Line("GeLU: p", 0.290, p["GeLU"], 5e-4),
    ]


def shazeer() -> list[Line]:
    """The early losses of seven activations against ReLU, and of two pairs."""
    table = {row["variant"]: row for row in rows("shazeer_2020_table1")}
    found = against_first("shazeer_2020_table1", SHAZEER_RUNS)
    corrected = holm({name: contrast.p for name, contrast in found.items() if contrast.p is not None})
    expected = {"GELU": (0.022, 5e-4), "Swish": (0.35, 5e-3), "GLU": (0.022, 5e-4), "Bilinear": (0.0002, 5e-5)}
    expected |= {"GEGLU": (3e-5, 5e-6), "SwiGLU": (0.0017, 5e-5), "ReGLU": (0.0002, 5e-5)}
    lines = [Line(f"Shazeer table 1, {name}: Holm p", value, corrected[name], bound) for name, (value, bound) in expected.items()]
    for arm, other, value, bound in (("SwiGLU", "GELU", 0.0015, 5e-5), ("GEGLU", "SwiGLU", 0.73, 5e-3)):
        lines.append(Line(f"Shazeer table 1, {arm} against {other}: p", value, welch(table[arm], table[other], SHAZEER_RUNS).p or 0, bound))
    return lines


def softcap() -> list[Line]:
    """80 runs against the target that a record has to beat, one-sided."""
    losses = [float(row["loss"]) for row in rows("modded_nanogpt_softcap")]
    found = paired_contrast([loss - SOFTCAP_TARGET for loss in losses])
    assert found.p is not None
    assert found.sd is not None
    one_sided = found.p / 2 if found.mean < 0 else 1 - found.p / 2
    return [
        Line("modded-nanogpt: runs", 80, found.n, 0),
        Line("mean (README: 3.2791)", 3.2791, found.mean + SOFTCAP_TARGET, 5e-5),
        Line("deviation (README: 0.0019)", 0.0019, found.sd, 5e-5),
        Line("one-sided p (README: 0.0001)", 0.0001, one_sided, 5e-5),
        Line("one-sided p, more digits", 6.72e-5, one_sided, 5e-8),
    ]


def lines() -> list[Line]:
    """All of them."""
    return [*narang(), *shazeer(), *softcap()]


if __name__ == "__main__":
    for line in lines():
        print(f"{line.what:45} {line.expected:>12.6g} {line.computed:>12.6g}")
