"""Published tables: exact answers, without training."""

from __future__ import annotations

import pytest
from scipy.stats import shapiro, ttest_1samp, ttest_ind_from_stats
from statsmodels.stats.multitest import multipletests

from ablate.report.statistics import holm, paired_contrast
from tests.report.statistics.golden import NARANG_RUNS, SHAZEER_RUNS, SOFTCAP_TARGET, Line, against_first, lines, rows


@pytest.mark.parametrize("line", lines(), ids=lambda line: line.what)
def test_a_published_number_is_reproduced(line: Line) -> None:
    assert line.computed == pytest.approx(line.expected, abs=line.tolerance, rel=0)


@pytest.mark.parametrize(("name", "n"), [("narang_2021_table1", NARANG_RUNS), ("shazeer_2020_table1", SHAZEER_RUNS)])
def test_a_whole_table_is_what_scipy_and_statsmodels_make_of_it(name: str, n: int) -> None:
    baseline, *variants = rows(name)
    ours = against_first(name, n)
    theirs = [
        ttest_ind_from_stats(
            *(float(row[key]) for key in ("early_mean", "early_sd")),
            n,
            float(baseline["early_mean"]),
            float(baseline["early_sd"]),
            n,
            False,
        ).pvalue
        for row in variants
    ]
    assert [ours[row["variant"]].p for row in variants] == pytest.approx(theirs, rel=1e-9)
    corrected = holm({row["variant"]: p for row, p in zip(variants, theirs, strict=True)})
    assert list(corrected.values()) == pytest.approx(multipletests(theirs, method="holm")[1].tolist(), rel=1e-12)


def test_the_seven_that_are_better_than_the_vanilla_transformer() -> None:
    found = against_first("narang_2021_table1", NARANG_RUNS)
    corrected = holm({name: contrast.p for name, contrast in found.items()})
    better = {name for name, contrast in found.items() if contrast.mean < 0 and corrected[name] < 0.05}
    assert better == {"GeGLU", "ReGLU", "SwiGLU", "LiGLU", "Mixture of experts", "Switch Transformer", "Product key memory"}


def test_eighty_runs_are_what_scipy_says_of_them() -> None:
    losses = [float(row["loss"]) for row in rows("modded_nanogpt_softcap")]
    ours, theirs = paired_contrast([loss - SOFTCAP_TARGET for loss in losses]), ttest_1samp(losses, SOFTCAP_TARGET)
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-9)
    assert (ours.low, ours.high) == pytest.approx([bound - SOFTCAP_TARGET for bound in theirs.confidence_interval()], rel=1e-9)
    assert shapiro(losses).pvalue == pytest.approx(0.14, abs=0.005)  # seed noise is near enough to normal
