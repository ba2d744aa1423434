"""Verdicts: one word for each arm, decided by intervals and by rules that are fixed before the runs, never by prose."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from ablate.report.statistics.contrasts import (
    Contrast,
    Equivalence,
    Family,
    equivalence,
    family,
    holm_interval,
    holm_share,
    holm_uncapped,
)
from ablate.report.statistics.power import blocks_to_certify, blocks_to_find

WORDS = ("BETTER", "WORSE", "EQUIVALENT", "INCONCLUSIVE", "UNSTABLE", "NOT TUNED", "NOT COMPARABLE", "SCREEN ONLY")


class Verdict(NamedTuple):
    """One of WORDS, and a few more words that qualify it; empty where there is nothing to add."""

    word: str
    detail: str


class Judgement(NamedTuple):
    """A verdict and all that it rests on. What cannot be told is None."""

    verdict: Verdict
    contrast: Contrast | None  # the primary one; None without a block in common with the baseline
    own: Contrast | None
    pooled: Contrast | None
    holm_p: float | None
    holm_low: float | None
    holm_high: float | None
    equivalence: Equivalence | None  # its interval is Holm's too
    equivalence_holm_p: float | None
    blocks_needed: int | None  # where the intervals leave it open
    loss_verdict: Verdict | None  # of the survivors, where the verdict is UNSTABLE


class _Tests(NamedTuple):
    """What was tested of one arm, corrected by Holm; an exploratory arm's is not corrected."""

    p: float
    low: float
    high: float
    equivalence: Equivalence | None
    same_p: float | None


class _Rules(NamedTuple):
    """What a verdict depends on besides the losses."""

    baseline: str
    margin: float | None
    alpha: float
    failed: Mapping[str, tuple[int, int]]
    untuned: Mapping[str, str]
    unmatched: Mapping[str, str]
    exploratory: Collection[str]


def judge(
    losses: Mapping[str, Mapping[int, float]],
    baseline: str,
    margin: float | None,
    *,
    failed: Mapping[str, tuple[int, int]] | None = None,
    untuned: Mapping[str, str] | None = None,
    unmatched: Mapping[str, str] | None = None,
    alpha: float = 0.05,
    exploratory: Collection[str] = (),
) -> dict[str, Judgement]:
    """The judgement of every arm but the baseline, from the final losses of its runs that did not fail (arm -> block -> nats).

    The first that applies: NOT COMPARABLE (`unmatched`: arm -> reason), NOT TUNED (`untuned`: arm -> the end of the grid where its best
    rate lies), UNSTABLE (`failed`: arm -> (failures, runs)), SCREEN ONLY (one block, or two without six degrees of freedom from other
    arms). What makes the baseline NOT TUNED does so to every arm, what makes it UNSTABLE to every arm of which a run has ended. Then, with
    intervals and tests corrected by Holm over all arms that are not `exploratory`, for differences and for equivalence apart:

    EQUIVALENT: equivalence tests at +-margin reject at alpha. BETTER, WORSE: not so, and the interval excludes 0. Else INCONCLUSIVE.
    Without a margin nothing is EQUIVALENT. Raises ValueError for a margin that is not positive.
    """
    failures = {arm: told for arm, told in (failed or {}).items() if told[0]}
    rules = _Rules(baseline, margin, alpha, failures, untuned or {}, unmatched or {}, exploratory)
    known = family(losses, baseline, failures)
    tested = _tested(known, rules)
    started = {arm for arm, values in losses.items() if values} | failures.keys()
    return {arm: _judgement(arm, known, tested, rules, arm in started) for arm in losses if arm != baseline}


def _tested(known: Family, rules: _Rules) -> dict[str, _Tests]:
    contrasts = {arm: contrast for arm, contrast in known.contrasts.items() if not _screen(contrast)}
    registered = {arm: contrast for arm, contrast in contrasts.items() if arm not in rules.exploratory}
    p = {arm: contrast.p for arm, contrast in contrasts.items() if contrast.p is not None}
    same = {}
    if rules.margin is not None:
        same = {arm: equivalence(contrast, rules.margin, rules.alpha) for arm, contrast in contrasts.items()}
    holm_p = holm_uncapped({arm: p[arm] for arm in registered})
    same_holm = holm_uncapped({arm: same[arm].p for arm in registered if arm in same})
    tests = {}
    for arm, contrast in contrasts.items():
        low, high = holm_interval(contrast, p[arm], holm_p.get(arm, p[arm]), 1 - rules.alpha)
        within, same_p = None, None
        if arm in same:
            same_p = same_holm.get(arm, same[arm].p)
            within = _corrected(contrast, same[arm], same_p, rules.alpha)
        tests[arm] = _Tests(min(1.0, holm_p.get(arm, p[arm])), low, high, within, None if same_p is None else min(1.0, same_p))
    return tests


def _corrected(contrast: Contrast, found: Equivalence, holm_p: float, alpha: float) -> Equivalence:
    """The interval that lies within the margin exactly where Holm's p value is below alpha, by the derivation of `holm_interval`."""
    return equivalence(contrast, found.margin, alpha * holm_share(found.p, holm_p))


def _screen(contrast: Contrast) -> bool:
    return contrast.n == 1 or (contrast.n == 2 and contrast.method != "pooled blocks")


def _judgement(arm: str, known: Family, tested: Mapping[str, _Tests], rules: _Rules, started: bool) -> Judgement:
    """`started`: a run of the arm has ended, well or not."""
    contrast, tests = known.contrasts.get(arm), tested.get(arm)
    needed = None
    if contrast is not None and (tests is None or _word(contrast, tests, rules.alpha) == "INCONCLUSIVE"):
        needed = _blocks_needed(contrast, known, arm, len(tested), rules)
    of_losses = _of_losses(arm, contrast, tests, needed, rules)
    barred = _barred(arm, rules, started)
    registered = tests if arm not in rules.exploratory else None
    return Judgement(
        verdict=barred or of_losses,
        contrast=contrast,
        own=known.own.get(arm),
        pooled=known.pooled.get(arm),
        holm_p=registered.p if registered else None,
        holm_low=registered.low if registered else None,
        holm_high=registered.high if registered else None,
        equivalence=tests.equivalence if tests else None,
        equivalence_holm_p=registered.same_p if registered else None,
        blocks_needed=needed,
        loss_verdict=of_losses if barred and barred.word == "UNSTABLE" and contrast is not None else None,
    )


def _barred(arm: str, rules: _Rules, started: bool) -> Verdict | None:
    """The verdict that no loss can change, if there is one."""
    if arm in rules.unmatched:
        return Verdict("NOT COMPARABLE", rules.unmatched[arm])
    whose = {arm: "", rules.baseline: " of the baseline"}
    ends = [f"best rate{of} at the {rules.untuned[name]} end" for name, of in whose.items() if name in rules.untuned]
    if ends:
        return Verdict("NOT TUNED", "; ".join(ends))
    who = {arm: "", rules.baseline: "the baseline "}
    counts = [f"{name}{rules.failed[key][0]}/{rules.failed[key][1]} failed" for key, name in who.items() if key in rules.failed]
    return Verdict("UNSTABLE", "; ".join(counts)) if counts and started else None


def _word(contrast: Contrast, tests: _Tests, alpha: float) -> str:
    if tests.same_p is not None and tests.same_p < alpha:
        return "EQUIVALENT"
    if tests.p < alpha:
        return "BETTER" if contrast.mean < 0 else "WORSE"
    return "INCONCLUSIVE"


def _of_losses(arm: str, contrast: Contrast | None, tests: _Tests | None, needed: int | None, rules: _Rules) -> Verdict:
    if contrast is None:
        return Verdict("SCREEN ONLY", "")
    if tests is None:
        return Verdict("SCREEN ONLY", f"{contrast.n} block{'s' * (contrast.n > 1)}")
    word = _word(contrast, tests, rules.alpha)
    details = ["exploratory, no correction"] if arm in rules.exploratory else []
    details += ["identical losses"] if contrast.sd == 0 and contrast.mean == 0 else []
    details += [_degree(word, tests, rules), _open(word, contrast, needed, rules.margin)]
    details += ["from 2 blocks"] if contrast.n == 2 else []
    return Verdict(word, "; ".join(detail for detail in details if detail))


def _degree(word: str, tests: _Tests, rules: _Rules) -> str:
    """How much better, or how alike."""
    if word == "EQUIVALENT":
        return "detectable but negligible" if tests.p < rules.alpha else "within the margin"
    if word not in ("BETTER", "WORSE") or rules.margin is None:
        return ""
    return "clearly" if tests.high < -rules.margin or tests.low > rules.margin else ""


def _open(word: str, contrast: Contrast, needed: int | None, margin: float | None) -> str:
    """What it would take to know."""
    if margin is None or word != "INCONCLUSIVE" or needed is None:
        return ""
    return f"about {needed} blocks would tell" if needed > contrast.n else "rules out neither 0 nor the margin"


def _blocks_needed(contrast: Contrast, known: Family, arm: str, num_tests: int, rules: _Rules) -> int | None:
    """The blocks that find a difference of the margin, and that certify equivalence if there is none, each with 80 % power.

    At Holm's first step over the arms that are tested now, with the noise as it is estimated now, and by the method that so many blocks
    would be judged by.
    """
    noise = known.pooled.get(arm) if _screen(contrast) else contrast
    if rules.margin is None or noise is None or not noise.resolution:
        return None
    size, alpha, arms = rules.margin / noise.resolution, rules.alpha / max(1, num_tests), len(known.pooled) if arm in known.pooled else 1
    found, certified = blocks_to_find(size, alpha, arms=arms), blocks_to_certify(size, alpha, arms=arms)
    return max(found, certified) if found is not None and certified is not None else None
