"""words: what is said about each arm and about all. Every size comes with its interval; nobody is called better by prose."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from ablate.report.analysis.shapes import ArmResult, Span
from ablate.report.statistics import Contrast

OF_ITS_SIZE = "the baseline of its size"
"""How the baselines of several sizes are called together."""

UNITS = {"nats per token": "nats", "nats per byte": "nats per byte"}


def sized(value: float, half_width: float | None = None) -> str:
    """A difference with two significant digits of its half width (of itself, where it has none), signed."""
    scale = half_width if half_width else abs(value)
    digits = 4 if not scale else min(6, max(2, 1 - math.floor(math.log10(scale))))
    return f"{value:+.{digits}f}".replace("-", "\N{MINUS SIGN}")


def interval(contrast: Contrast) -> str:
    if contrast.low is None or contrast.high is None:
        return "no interval"
    half = (contrast.high - contrast.low) / 2
    return f"[{sized(contrast.low, half)}, {sized(contrast.high, half)}]"


def p_value(p: float) -> str:
    return "<.001" if p < 0.001 else f"{p:.3f}".replace("0.", ".", 1)


def share(span: Span, noun: str) -> str:
    """Ratios as changes: +5.4 % tokens [+1.4 %, +9.6 %]; an open end is one that cannot be told."""
    if span.mean is None:
        return ""
    low, high = (f"{100 * (value - 1):+.1f} %" if value is not None else "?" for value in (span.low, span.high))
    text = f"{100 * (span.mean - 1):+.1f} % {noun}"
    return (text if span.low is None and span.high is None else f"{text} [{low}, {high}]").replace("-", "\N{MINUS SIGN}")


def with_sentence(arm: ArmResult, metric: str, alpha: float, against: str = "") -> ArmResult:
    """`against`: the baseline of the arm, where arms have several."""
    return replace(arm, sentence=_sentence(arm, UNITS[metric], alpha, against))


def _sentence(arm: ArmResult, unit: str, alpha: float, against: str) -> str:
    """name: VERDICT by how much [interval], what it is worth, at what speed, from how many blocks."""
    if arm.is_baseline:
        return f"{arm.name}: the baseline"
    judgement = arm.judgement
    if judgement is None or (judgement.contrast is None and not judgement.verdict.detail):
        return f"{arm.name}: no block in common with the baseline has ended yet"
    word, detail = judgement.verdict
    parts = [f"{arm.name}: {word}" + (f" ({detail})" if detail else "") + (f" against {against}" if against else "")]
    contrast = judgement.contrast
    if contrast is not None:
        said = f"{sized(contrast.mean, _half(contrast))} {unit} {interval(contrast)}"
        if judgement.loss_verdict is not None:
            said = f"of the runs that did not fail: {said}"
        parts.append(said)
        if word == "INCONCLUSIVE" and contrast.p is not None and contrast.p < 0.05 and judgement.holm_p is not None:
            level = f", tested at {p_value(alpha)}" if alpha < 0.05 else ""
            parts.append(f"p = {p_value(contrast.p)} alone, {p_value(judgement.holm_p)} among all arms{level}")
    parts += [text for text in (share(arm.token_gain, "tokens"), _speed(arm)) if text]
    if contrast is not None:
        parts.append(f"{contrast.n} block{'s' * (contrast.n != 1)}")
    if arm.failed and word != "UNSTABLE":
        parts.append(f"{arm.failed}/{arm.ended} failed")
    return ", ".join(parts)


def _half(contrast: Contrast) -> float | None:
    return (contrast.high - contrast.low) / 2 if contrast.low is not None and contrast.high is not None else None


def _speed(arm: ArmResult) -> str:
    """A speed is named where it is more than chance."""
    ratio = arm.speed_ratio
    if ratio.mean is None:
        return ""
    return f"{ratio.mean:.2f}x speed [{ratio.low:.2f}, {ratio.high:.2f}]" if arm.speed_differs else "speed not told apart"


def named(baseline: ArmResult, reference: Mapping[str, str]) -> str:
    """The baseline, with what it has where arms differ: a name alone says too little."""
    what = baseline.overrides or [f"{axis}={variant}" for axis, variant in reference.items()]
    return f"{baseline.name} ({' '.join(what)})" if what else baseline.name


def _group(arm: ArmResult, word: str) -> str:
    """What makes the baseline unstable or untuned leaves every arm open, which is no fault of theirs."""
    of_baseline = (word == "UNSTABLE" and not arm.failed) or (word == "NOT TUNED" and arm.lr_edge is None)
    return f"{word} BASELINE" if of_baseline else word


def answer(arms: list[ArmResult], baseline: str, final: bool) -> str:
    """All arms in one sentence, by verdict."""
    groups: dict[str, list[str]] = {}
    for arm in arms:
        judgement = arm.judgement
        if judgement is not None and (judgement.contrast is not None or judgement.verdict.word != "SCREEN ONLY"):
            groups.setdefault(_group(arm, judgement.verdict.word), []).append(arm.name)
    if not arms:
        return f"There is one arm, {baseline}: nothing to compare it with."
    if not groups:
        return f"Nothing can be said yet: no arm has a block in common with {baseline} that has ended with a result."
    phrases = {
        "BETTER": "better than {b}: {a}",
        "EQUIVALENT": "equivalent to {b} within the margin: {a}",
        "WORSE": "worse than {b}: {a}",
        "INCONCLUSIVE": "inconclusive: {a}",
        "UNSTABLE": "unstable: {a}",
        "UNSTABLE BASELINE": "open, since runs of {b} failed: {a}",
        "NOT TUNED": "not tuned: {a}",
        "NOT TUNED BASELINE": "open, since {b} is not tuned: {a}",
        "NOT COMPARABLE": "not comparable: {a}",
        "SCREEN ONLY": "screened only: {a}",
    }
    said = "; ".join(text.format(a=", ".join(groups[word]), b=baseline) for word, text in phrases.items() if word in groups)
    text = f"{said[0].upper()}{said[1:]}."
    return text if final else f"So far: {said}."
