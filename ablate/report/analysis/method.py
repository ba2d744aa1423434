"""method: what was planned, how it was judged, and what it cannot say."""

from __future__ import annotations

from ablate.report.analysis.shapes import Margin
from ablate.report.load import StudyMeta


def method_of(meta: StudyMeta, margin: Margin, alpha: float, metric: str, pooled: bool) -> list[str]:
    """Paragraphs of the section on method and limits; `pooled`: whether arms are judged by the noise of all."""
    tuned = (
        f"Each arm was tuned on the same learning rates ({', '.join(f'{rate:g}' for rate in meta.tuning_rates)}; an optimum at an end adds "
        f"points) with the seeds {', '.join(map(str, meta.tuning_seeds))}, and judged on fresh seeds at its own best rate."
        if meta.tuning_rates
        else "No arm was tuned: all have the learning rate of the setting, and the answer holds for that rate alone."
    )
    own = (
        "the t interval of a randomised-block model, the noise of all arms pooled; an arm of other noise keeps its own"
        if pooled
        else "the t interval of the arm's own paired differences"
    )
    offsets = ", ".join(meta.seed_offsets)
    return [
        f"Estimand: the mean over blocks of the evaluation loss ({metric}) of an arm less that of the baseline after the whole schedule. "
        "A block is one seed of initialisation and data order; every arm runs in every block"
        + (f", but for {offsets}, which have seeds of their own." if offsets else "."),
        tuned,
        *(
            [
                f"The baseline, tuned, was also trained on {', '.join(f'{share:g}' for share in meta.budgets)} times the tokens, to tell "
                "what a difference is worth."
            ]
            if meta.budgets
            else []
        ),
        f"Interval and test: {own}. Family: all arms against the baseline, two-sided at {alpha:g}, corrected by Holm; equivalence by two "
        "one-sided tests, corrected by Holm among themselves.",
        f"Margin: {f'±{margin.nats:.4f} nats, ' if margin.nats is not None else ''}{margin.told}.",
        "Failed runs (number errors, divergence, collapse to token frequencies) are outcomes: they are counted, and in no mean.",
        *([f"Left out of the design: {len(meta.dropped)} combinations that cannot be had."] if meta.dropped else []),
        *([f"Notes of the plan: {'; '.join(meta.notes)}."] if meta.notes else []),
        "Limits: this is an answer at this scale, on this data, with this budget. Rankings of small runs need not hold for large ones: the "
        "better of two data sets at small scale was the better one at large scale for about 80 % of pairs (DataDecide, arXiv 2504.11393), "
        "and the ranks of architecture changes at 1.2B and 3B parameters had a rank correlation of −0.27 (arXiv 2605.20798).",
    ]
