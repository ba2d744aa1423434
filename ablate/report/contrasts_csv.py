"""contrasts_csv: every number of every arm in one row, for whoever wants to compute it again."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ablate.report.analysis.shapes import Analysis, ArmResult, Span
from ablate.report.statistics import Contrast


def contrasts_frame(analysis: Analysis) -> pd.DataFrame:
    """An arm a row, the baseline first; columns that an arm has no number for are empty there."""
    return pd.DataFrame([_row(arm, analysis) for arm in (analysis.baseline, *analysis.arms)])


def _row(arm: ArmResult, analysis: Analysis) -> dict[str, Any]:
    judgement = arm.judgement
    equivalence = judgement.equivalence if judgement else None
    return {
        "arm": arm.name,
        "overrides": " ".join(arm.overrides),
        "is_baseline": arm.is_baseline,
        "word": judgement.verdict.word if judgement else None,
        "detail": judgement.verdict.detail if judgement else None,
        "metric": analysis.metric,
        **_contrast("difference", judgement.contrast if judgement else None),
        "holm_p": judgement.holm_p if judgement else None,
        "holm_low": judgement.holm_low if judgement else None,
        "holm_high": judgement.holm_high if judgement else None,
        "margin": analysis.margin.nats,
        "equivalence_p": equivalence.p if equivalence else None,
        "equivalence_low": equivalence.low if equivalence else None,
        "equivalence_high": equivalence.high if equivalence else None,
        "equivalence_holm_p": judgement.equivalence_holm_p if judgement else None,
        "blocks_needed": judgement.blocks_needed if judgement else None,
        "loss_word": judgement.loss_verdict.word if judgement and judgement.loss_verdict else None,
        **_contrast("own", judgement.own if judgement else None),
        **_contrast("pooled", judgement.pooled if judgement else None),
        "sign_flip_p": arm.sign_flip_p,
        "flips": "; ".join(f"{word} without {block}" for block, word in sorted(arm.flips.items())) or None,
        "word_at_half_margin": arm.half_margin,
        "word_at_double_margin": arm.double_margin,
        **_losses(arm),
        **_costs(arm),
    }


def _losses(arm: ArmResult) -> dict[str, Any]:
    return {
        "blocks_ok": len(arm.losses),
        "loss_mean": arm.mean,
        "loss_sd": arm.sd,
        "bits_per_byte": arm.bits_per_byte,
        **_span("bits_difference", arm.bits_difference),
        "lr": arm.lr,
        "lr_edge": arm.lr_edge,
        **_span("lr_sensitivity", arm.sensitivity or Span(None)),
        "usable_decades": arm.usable_decades,
        "failed": arm.failed,
        "ended": arm.ended,
        "failure_low": arm.failure_interval[0] if arm.failure_interval else None,
        "failure_high": arm.failure_interval[1] if arm.failure_interval else None,
        "rho": arm.rho,
        "pair_sd": arm.pair_sd,
        **{f"extrapolation_{times}": arm.extrapolation.get(times) for times in (1, 2, 4)},
    }


def _costs(arm: ArmResult) -> dict[str, Any]:
    return {
        **_span("token_gain", arm.token_gain),
        **_span("time_gain", arm.time_gain),
        **_span("speed_ratio", arm.speed_ratio),
        "tokens_per_second": arm.tokens_per_second,
        "peak_memory": arm.peak_memory,
        "parameters": arm.parameters,
        "active_parameters": arm.active_parameters,
        "flops_per_token": arm.flops_per_token,
        "kv_bytes_per_token": arm.kv_bytes_per_token,
        "match_error": arm.match_error,
    }


def _span(name: str, span: Span) -> dict[str, Any]:
    return {name: span.mean, f"{name}_low": span.low, f"{name}_high": span.high}


def _contrast(name: str, contrast: Contrast | None) -> dict[str, Any]:
    fields = {field: getattr(contrast, field) if contrast else None for field in ("low", "high", "n", "df", "sd", "se", "p", "method")}
    return {name: contrast.mean if contrast else None, **{f"{name}_{field}": value for field, value in fields.items()}}
