"""arms: every number about one arm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd

from ablate.report.analysis.margin import Worth
from ablate.report.analysis.shapes import ArmResult, Span
from ablate.report.analysis.table import FAILED, Table
from ablate.report.load import ArmMeta
from ablate.report.numbers import setting
from ablate.report.statistics import (
    Judgement,
    failure_interval,
    judge,
    leave_one_out,
    lr_sensitivity,
    paired_contrast,
    pairing,
    sign_flip_p,
    time_gain,
    token_gain,
    usable_width,
)

TOLERANCE = 0.01
"""Of what a study matches, where it states none (conf/match)."""

OF_MATCH = {"params": "parameters", "active_params": "active_parameters", "flops": "training_flops_per_token"}
"""match.kind -> what of an arm it makes equal."""


class Judged(NamedTuple):
    """The judgements of all arms, and what they become under other margins and without single blocks."""

    judgements: dict[str, Judgement]
    flips: dict[str, dict[int, str]]
    half: dict[str, str]
    double: dict[str, str]


def judged(table: Table, margin: float | None, alpha: float) -> Judged:
    """Each stratum is a family of its own, with its own baseline."""
    result = Judged({}, {}, {}, {})
    for stratum, baseline in table.baselines.items():
        arms = table.arms(stratum)
        losses = {arm: table.losses(arm) for arm in arms}
        facts: dict[str, Any] = {
            "failed": {arm: table.failures(arm) for arm in arms},
            "untuned": untuned(table, arms),
            "unmatched": unmatched(table, arms),
        }
        result.judgements.update(judge(losses, baseline, margin, alpha=alpha, **facts))
        result.flips.update(leave_one_out(losses, baseline, margin, alpha=alpha, **facts))
        if margin is not None:
            for words, factor in ((result.half, 0.5), (result.double, 2.0)):
                other = judge(losses, baseline, factor * margin, alpha=alpha, **facts)
                words.update({arm: judgement.verdict.word for arm, judgement in other.items()})
    return result


def untuned(table: Table, arms: list[str]) -> dict[str, str]:
    """Arms whose best learning rate is at an end of the grid -> which end."""
    tuned = table.loaded.meta.tuned
    return {arm: str(tuned[arm].edge) for arm in arms if arm in tuned and tuned[arm].best is not None and tuned[arm].edge}


def unmatched(table: Table, arms: list[str]) -> dict[str, str]:
    """Arms outside the tolerance of what the study matches, or trained on another number of tokens -> how they differ."""
    meta = table.loaded.meta
    found: dict[str, str] = {}
    tokens = {arm: set(table.of(arm)["tokens"].dropna()[table.of(arm)["state"] == "done"]) for arm in arms}
    for arm in arms:
        error = match_error(table, arm)
        if error is not None and abs(error) > (meta.tolerance if meta.tolerance is not None else TOLERANCE):
            found[arm] = f"{error:+.1%} in {meta.match}"
        theirs = tokens[table.baseline_of(arm)]
        if tokens[arm] and theirs and tokens[arm] != theirs:
            found[arm] = f"trained on {_several(tokens[arm])} tokens, the baseline on {_several(theirs)}"
        if other_data(table.of(arm), table.of(table.baseline_of(arm))):
            found[arm] = "trained on other data than the baseline"
        if arm in table.alone:
            found[arm] = f"there is no baseline of its size ({table.alone[arm] or 'as shipped'})"
    return found


def other_data(ours: pd.DataFrame, theirs: pd.DataFrame) -> bool:
    """Whether two arms that cut text alike were trained on different tokens."""
    (data, cut), (their_data, their_cut) = (({*rows["data"].dropna()}, {*rows["tokenizer"].dropna()}) for rows in (ours, theirs))
    return bool(data and their_data) and cut == their_cut and data != their_data


def _several(numbers: set[float]) -> str:
    return " and ".join(f"{number:,.0f}" for number in sorted(numbers))


def match_error(table: Table, arm: str) -> float | None:
    """Of what the study matches, relative to the baseline; None where it matches nothing."""
    name = OF_MATCH.get(table.loaded.meta.match)
    if name is None:
        return None
    metas = {meta.name: meta for meta in table.loaded.meta.arms}
    ours, theirs = getattr(metas[arm], name), getattr(metas[table.baseline_of(arm)], name)
    return ours / theirs - 1 if ours is not None and theirs else None


def arm_result(table: Table, meta: ArmMeta, known: Judged, worth: Worth, margin: float | None) -> ArmResult:
    """Everything but the sentence, which ablate.report.analysis.words adds."""
    name, baseline = meta.name, table.baseline_of(meta.name)
    losses, theirs = table.losses(name), table.losses(baseline)
    differences = {} if name == baseline else {block: loss - theirs[block] for block, loss in losses.items() if block in theirs}
    judgement = known.judgements.get(name)
    failed, ended = table.failures(name)
    values = list(losses.values())
    pair = pairing([losses[block] for block in differences], [theirs[block] for block in differences]) if len(differences) > 2 else None
    speed = _speed(table, name)
    settings = table.loaded.meta.settings
    gain = _token_gain(judgement, worth)
    tuning = _of_tuning(table, name, margin)
    memory = _of_bench(table, name, "peak_memory")
    return ArmResult(
        name=name,
        overrides=meta.overrides,
        is_baseline=name == baseline,
        judgement=judgement,
        sentence="",
        losses=losses,
        differences=differences,
        outcomes=table.outcomes(name),
        mean=math.fsum(values) / len(values) if values else None,
        sd=float(pd.Series(values).std()) if len(values) > 1 else None,
        bits_per_byte=_mean(_column(table, name, "bits_per_byte")),
        bits_difference=_bits(table, name, baseline),
        lr=tuning.chosen,
        lr_edge=tuning.edge,
        tuning=tuning.losses,
        tuning_outcomes=tuning.outcomes,
        sensitivity=tuning.sensitivity,
        usable_decades=tuning.usable_decades,
        failed=failed,
        ended=ended,
        failure_interval=failure_interval(failed, ended) if ended else None,
        rho=pair.rho if pair else None,
        pair_sd=judgement.own.sd if judgement and judgement.own else None,
        token_gain=gain,
        time_gain=_time_gain(gain, speed),
        flips=known.flips.get(name, {}),
        sign_flip_p=sign_flip_p(list(differences.values())) if len(differences) > 1 else None,
        half_margin=known.half.get(name),
        double_margin=known.double.get(name),
        parameters=meta.parameters,
        active_parameters=meta.active_parameters,
        flops_per_token=meta.training_flops_per_token,
        kv_bytes_per_token=meta.kv_bytes_per_token,
        match_error=match_error(table, name),
        changes=changes(settings.get(baseline, {}), settings.get(name, {})),
        speed_ratio=speed,
        speed_differs=_told_apart(speed, _speed(table, baseline)),
        tokens_per_second=_of_bench(table, name, "tokens_per_second"),
        peak_memory=int(memory) if memory is not None else None,
        extrapolation={times: mean for times in (1, 2, 4) if (mean := _mean(_column(table, name, f"extrapolation_{times}"))) is not None},
    )


def _column(table: Table, arm: str, column: str) -> dict[int, float]:
    """block -> a number of the runs that did not fail; what is missing is not there."""
    rows = table.of(arm)
    rows = rows[(rows["state"] == "done") & ~rows["outcome"].isin(FAILED)]
    if column not in rows:
        return {}
    return {int(block): float(value) for block, value in zip(rows["block"], rows[column], strict=True) if pd.notna(value)}


def _mean(values: Mapping[int, float]) -> float | None:
    return math.fsum(values.values()) / len(values) if values else None


def _bits(table: Table, arm: str, baseline: str) -> Span:
    ours, theirs = _column(table, arm, "bits_per_byte"), _column(table, baseline, "bits_per_byte")
    differences = [ours[block] - theirs[block] for block in ours if block in theirs]
    if arm == baseline or not differences:
        return Span(None)
    contrast = paired_contrast(differences)
    return Span(contrast.mean, contrast.low, contrast.high)


class Tuning(NamedTuple):
    """Fields of ArmResult."""

    chosen: float | None
    edge: str | None
    losses: dict[float, list[float | None]]
    outcomes: dict[float, list[str]]
    sensitivity: Span | None
    usable_decades: float | None


def _of_tuning(table: Table, arm: str, margin: float | None) -> Tuning:
    """The losses over the learning rate, and what they say about how much the rate matters."""
    runs, tuned = table.loaded.runs, table.loaded.meta.tuned.get(arm)
    rows = runs[(runs["arm"] == arm) & (runs["stage"] == "tune")]
    losses: dict[float, list[float | None]] = {}
    outcomes: dict[float, list[str]] = {}
    for rate, group in rows.sort_values("seed").groupby("lr"):
        failed = group["outcome"].isin([*FAILED, "incomplete"])
        losses[float(rate)] = [None if bad or pd.isna(loss) else float(loss) for loss, bad in zip(group["loss"], failed, strict=True)]
        outcomes[float(rate)] = [str(outcome) for outcome in group["outcome"]]
    chosen = tuned.best if tuned is not None else None
    if chosen is None and tuned is None and len(rates := set(table.of(arm)["lr"].dropna())) == 1:
        chosen = float(next(iter(rates)))
    whole = losses and all("incomplete" not in words for words in outcomes.values())
    return Tuning(
        chosen=chosen,
        edge=tuned.edge if tuned is not None else None,
        losses=losses,
        outcomes=outcomes,
        sensitivity=_sensitivity(rows, losses) if whole else None,
        usable_decades=_usable(losses, margin) if whole else None,
    )


def _sensitivity(rows: pd.DataFrame, losses: dict[float, list[float | None]]) -> Span | None:
    """Of each tuning seed, then their mean; an interval takes three seeds."""
    starts = rows["initial_loss"].dropna()
    if len(losses) < 2 or starts.empty:
        return None
    start, rates = float(starts.mean()), list(losses)
    seeds = min(len(values) for values in losses.values())
    each = [lr_sensitivity(rates, [losses[rate][seed] for rate in rates], start) for seed in range(seeds)]
    found = [value for value in each if value is not None]
    if len(found) < 3:
        return Span(math.fsum(found) / len(found)) if found else None
    contrast = paired_contrast(found)
    return Span(contrast.mean, contrast.low, contrast.high)


def _usable(losses: dict[float, list[float | None]], margin: float | None) -> float | None:
    """Decades of the learning rate within the margin of the best; a rate at which a seed failed is not usable."""
    if margin is None or len(losses) < 2:
        return None
    means = [
        None if None in values or not values else math.fsum(v for v in values if v is not None) / len(values) for values in losses.values()
    ]
    return usable_width(list(losses), means, margin)


def _token_gain(judgement: Judgement | None, worth: Worth) -> Span:
    """Tokens that the baseline would need for the arm's loss, over those that it had; more loss is fewer tokens."""
    if judgement is None or judgement.contrast is None or worth.curve is None or worth.tokens is None:
        return Span(None)
    contrast = judgement.contrast
    gain = token_gain(contrast.low, contrast.mean, contrast.high, worth.curve, worth.tokens)
    return Span(gain.mean, gain.low, gain.high)


def _time_gain(gain: Span, speed: Span) -> Span:
    if gain.mean is None or speed.mean is None:
        return Span(None)
    mean = time_gain(gain.mean, speed.mean)
    ends = (
        _together(mean, *pairs)
        for pairs in (((gain.mean, gain.low), (speed.mean, speed.low)), ((gain.mean, gain.high), (speed.mean, speed.high)))
    )
    return Span(mean, *ends)


def _together(mean: float, *parts: tuple[float, float | None]) -> float | None:
    """An end of the interval of a product: the logarithms of the distances of its parts add as independent errors do, by squares."""
    distances = [math.log(end / middle) if end else None for middle, end in parts]
    if any(distance is None for distance in distances):
        return None
    down = sum(distance or 0.0 for distance in distances) < 0
    return mean * math.exp(math.hypot(*(distance or 0.0 for distance in distances)) * (-1 if down else 1))


def _speed(table: Table, arm: str) -> Span:
    """Steps of the baseline over those of the arm in time, measured by turns on one device."""
    ratio, low, high = (_of_bench(table, arm, key) for key in ("ratio", "low", "high"))
    return Span(1 / ratio, 1 / high if high else None, 1 / low if low else None) if ratio else Span(None)


def _told_apart(ratio: Span, copies: Span) -> bool:
    if ratio.mean is None or ratio.low is None or ratio.high is None:
        return False
    chance = max((abs(math.log(value)) for value in copies if value), default=0.0)
    return (ratio.low > 1 or ratio.high < 1) and abs(math.log(ratio.mean)) > chance


NOT_A_CHANGE = ("init_seed", "data_seed", "seed", "schema", "optim.lr")


def changes(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """key: before -> after, of all that differs between two runs but their seeds and learning rates."""
    keys = [key for key in dict.fromkeys([*theirs, *ours]) if key not in NOT_A_CHANGE and theirs.get(key, ABSENT) != ours.get(key, ABSENT)]
    return [f"{key}: {setting(theirs.get(key, ABSENT))[:40]} \N{RIGHTWARDS ARROW} {setting(ours.get(key, ABSENT))[:40]}" for key in keys]


ABSENT = "\N{EN DASH}"


def _of_bench(table: Table, arm: str, key: str) -> float | None:
    bench = table.loaded.bench
    value = bench["arms"].get(arm, {}).get(key) if bench else None
    return value if isinstance(value, int | float) else None
