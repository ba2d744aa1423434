"""Arrays in, numbers out: nothing here knows a frame, a path or a config."""

from ablate.report.statistics.contrasts import (
    Contrast,
    Equivalence,
    Family,
    equivalence,
    family,
    holm,
    holm_interval,
    paired_contrast,
    pooled_deviation,
)
from ablate.report.statistics.curves import DifferenceCurve, binned, difference_curve
from ablate.report.statistics.factorial import AxisEffect, AxisTest, Effects, Rung, effects, ladder
from ablate.report.statistics.failures import OUTCOMES, failure_interval, failures_differ, outcome, spike_share
from ablate.report.statistics.gain import Budgets, Gain, fit_budgets, margin_from_tokens, time_gain, token_gain
from ablate.report.statistics.power import Row, blocks_to_certify, blocks_to_find, smallest_certifiable, smallest_detectable, table
from ablate.report.statistics.robustness import Components, Pairing, bca, components, leave_one_out, pairing, sign_flip_p
from ablate.report.statistics.scaling import PowerLaw, RankStability, power_law, rank_stability
from ablate.report.statistics.sensitivity import lr_sensitivity, usable_width
from ablate.report.statistics.verdicts import WORDS, Judgement, Verdict, judge

__all__ = [
    "OUTCOMES",
    "WORDS",
    "AxisEffect",
    "AxisTest",
    "Budgets",
    "Components",
    "Contrast",
    "DifferenceCurve",
    "Effects",
    "Equivalence",
    "Family",
    "Gain",
    "Judgement",
    "Pairing",
    "PowerLaw",
    "RankStability",
    "Row",
    "Rung",
    "Verdict",
    "bca",
    "binned",
    "blocks_to_certify",
    "blocks_to_find",
    "components",
    "difference_curve",
    "effects",
    "equivalence",
    "failure_interval",
    "failures_differ",
    "family",
    "fit_budgets",
    "holm",
    "holm_interval",
    "judge",
    "ladder",
    "leave_one_out",
    "lr_sensitivity",
    "margin_from_tokens",
    "outcome",
    "paired_contrast",
    "pairing",
    "pooled_deviation",
    "power_law",
    "rank_stability",
    "sign_flip_p",
    "smallest_certifiable",
    "smallest_detectable",
    "spike_share",
    "table",
    "time_gain",
    "token_gain",
    "usable_width",
]
