"""analyse: a loaded study -> all numbers of its report."""

from __future__ import annotations

from ablate.errors import ConfigError
from ablate.report.analysis.arms import arm_result, judged
from ablate.report.analysis.guards import banners, missing
from ablate.report.analysis.identity import identity_of
from ablate.report.analysis.margin import margin_of, worth_of
from ablate.report.analysis.method import method_of
from ablate.report.analysis.shapes import Analysis, ArmResult
from ablate.report.analysis.table import table_of
from ablate.report.analysis.whole import effects_of, ladder_of, noise_of, pair_noise, scale_of
from ablate.report.analysis.words import OF_ITS_SIZE, answer, named, with_sentence
from ablate.report.load import Loaded
from ablate.report.statistics import family

ALPHA = 0.05


def analyse(loaded: Loaded, margin: float | None = None) -> Analysis:
    """`margin` in nats replaces that of the study. Raises ConfigError where there is nothing to report."""
    if loaded.runs.empty:
        raise ConfigError.at(loaded.meta.name, "has no runs yet: there is nothing to report")
    blocks, stage, alpha = look_of(loaded)
    table = table_of(loaded, blocks)
    worth, several = worth_of(table), len(table.baselines) > 1
    without = judged(table, None, alpha)
    first = [arm_result(table, meta, without, worth, None) for meta in loaded.meta.arms]
    noise = pair_noise(first)
    known_margin = margin_of(table, worth, margin, noise[0] if noise else None)
    known = judged(table, known_margin.nats, alpha)
    arms = [
        with_sentence(
            arm_result(table, meta, known, worth, known_margin.nats), table.metric, alpha, table.baseline_of(meta.name) if several else ""
        )
        for meta in loaded.meta.arms
    ]
    baseline = next(arm for arm in arms if arm.name == loaded.meta.baseline)
    others = sorted((arm for arm in arms if arm is not baseline), key=_effect)
    failing = [arm.name for arm in arms if arm.failed]
    families = [family({arm: table.losses(arm) for arm in table.arms(stratum)}, own, failing) for stratum, own in table.baselines.items()]
    effects, aliased = effects_of(table)
    noise_here = noise_of(table, arms, known_margin.nats, alpha)
    final = stage == "final" and not missing(table) and not loaded.meta.later
    return Analysis(
        study=loaded.meta.name,
        question=loaded.meta.question,
        answer=answer(others, OF_ITS_SIZE if several else named(baseline, loaded.meta.reference), final),
        metric=table.metric,
        baseline=baseline,
        arms=others,
        margin=known_margin,
        banners=banners(table, arms, families, known_margin, stage, noise_here),
        stage=stage,
        noise=noise_here,
        effects=effects,
        aliased=aliased,
        ladder=ladder_of(table),
        scale=scale_of(table, arms),
        identity=identity_of(table, arms, known_margin, baseline),
        method=method_of(loaded.meta, known_margin, alpha, table.metric, any(known.is_pooled for known in families)),
        missing=missing(table),
    )


def _effect(arm: ArmResult) -> tuple[bool, float]:
    """Best first; arms without a difference last."""
    contrast = arm.judgement.contrast if arm.judgement is not None else None
    return contrast is None, contrast.mean if contrast is not None else 0.0


def look_of(loaded: Loaded) -> tuple[int | None, str, float]:
    """How many blocks are judged, at which stage, and at what chance of error: each look of a study that plans several has its share."""
    meta, runs = loaded.meta, loaded.runs
    if not meta.looks:
        return None, "final", ALPHA
    alpha = ALPHA / (len(meta.looks) + 1)
    confirmed = runs[runs["stage"] == "confirm"]
    ended = set(map(tuple, confirmed[confirmed["state"].isin(["done", "failed"])][["arm", "block"]].values.tolist()))
    names = [arm.name for arm in meta.arms]
    whole = 0
    for block in meta.blocks:
        if any((name, block) not in ended for name in names):
            break
        whole += 1
    if whole == len(meta.blocks):
        return None, "final", alpha
    look = max((number for number in meta.looks if number <= whole), default=None)
    if look is None:
        return None, f"{whole} blocks are whole and the first planned look is at {meta.looks[0]}: verdicts before it do not count", alpha
    number = meta.looks.index(look) + 1
    return look, f"look {number} of {len(meta.looks) + 1}, at {look} of {len(meta.blocks)} blocks, tested at {alpha:g}", alpha
