"""drawings: which figures a report has, from its analysis and the frames behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from ablate.report import figures
from ablate.report.analysis.shapes import Analysis, ArmResult
from ablate.report.analysis.words import OF_ITS_SIZE
from ablate.report.figures import Cell, Cost, Drawing, EffectRow, Row, Series, StepRow, Trace
from ablate.report.load import Loaded
from ablate.report.statistics import binned, difference_curve

POINTS, FEWER = 120, 40
"""Of a curve; what lies between two is averaged. Fewer where single points would be read."""
FAILED = ("nan", "diverged", "collapsed")
MEASURED = {
    "gradient norm, before clipping": "grad_norm",
    "largest attention logit of any layer": "probe/max_logit/",
    "mean log Z": "probe/log_z",
    "largest residual RMS of any layer": "probe/residual_rms/",
}
"""What F8 shows: a column, or the largest of those that start with a prefix."""

Curves = dict[str, dict[int, Series]]
"""arm -> block -> a curve."""


def figures_of(analysis: Analysis, loaded: Loaded) -> list[Drawing]:
    """All that apply, in the order of the sections."""
    own = confirmation_of(analysis, loaded)
    found = [*_of_effects(analysis), _tuning(analysis, loaded), *_of_curves(analysis, loaded, own), _cost(analysis)]
    found += [_status(analysis, loaded), _traces(analysis, loaded, own), *_of_length(analysis, loaded, own), _noise(analysis)]
    return [drawing for drawing in [*found, *_of_structure(analysis, loaded)] if drawing is not None]


def position_arms(analysis: Analysis) -> bool:
    """Whether an arm changes how positions are told: the sections on length are for those."""
    words = [word.lstrip("+").partition("=")[0] for arm in (analysis.baseline, *analysis.arms) for word in arm.overrides]
    return any(word.partition(".")[0] in ("position", "arch") for word in words)


def everyone(analysis: Analysis) -> list[ArmResult]:
    return [analysis.baseline, *analysis.arms]


def order_of(analysis: Analysis) -> list[str]:
    """By which an arm has the same colour and marker in every figure."""
    return [arm.name for arm in everyone(analysis)]


def confirmation_of(analysis: Analysis, loaded: Loaded) -> pd.DataFrame:
    """The runs that are judged, by arm in the order of the analysis, so that an arm looks the same in every figure."""
    rows = loaded.runs[loaded.runs["stage"] == "confirm"].drop_duplicates(["arm", "block"], keep="last")
    judged = {(arm.name, block) for arm in everyone(analysis) for block in arm.outcomes}
    rows = rows[np.array([(arm, int(block)) in judged for arm, block in zip(rows["arm"], rows["block"], strict=True)], dtype=bool)]
    order = {arm.name: place for place, arm in enumerate(everyone(analysis))}
    return rows.sort_values("arm", key=lambda names: names.map(order), kind="stable")


def _of_effects(analysis: Analysis) -> list[Drawing | None]:
    rows = [_row(arm) for arm in analysis.arms if not arm.is_baseline and arm.judgement is not None]
    base, order, metric, margin = analysis.baseline.name, order_of(analysis), analysis.metric, analysis.margin.nats
    against = OF_ITS_SIZE if any(arm.is_baseline for arm in analysis.arms) else base
    forests = [
        figures.forest(rows, baseline=base, against=against, order=order, margin=margin, metric=metric, narrow=narrow)
        for narrow in (False, True)
    ]
    failed = {arm.name: {block: word for block, word in arm.outcomes.items() if word in FAILED} for arm in everyone(analysis)}
    if analysis.scale is not None:  # arms of another size have another baseline
        return forests
    losses = {arm.name: arm.losses for arm in everyone(analysis)}
    return [*forests, figures.blocks(losses, baseline=base, order=order, failed=failed, metric=metric)]


def _row(arm: ArmResult) -> Row:
    assert arm.judgement is not None
    contrast, word = arm.judgement.contrast, arm.judgement.verdict
    mean, low, high = (contrast.mean, contrast.low, contrast.high) if contrast is not None else (None, None, None)
    holm = (arm.judgement.holm_low, arm.judgement.holm_high)
    return Row(arm.name, word.word, word.detail, mean, low, high, *holm, arm.differences, arm.failed, arm.ended)


def _tuning(analysis: Analysis, loaded: Loaded) -> Drawing | None:
    tuned = {arm.name: arm for arm in everyone(analysis) if arm.tuning}
    remarks = {name: f"usable over {arm.usable_decades:.2g} decades" for name, arm in tuned.items() if arm.usable_decades is not None}
    return figures.learning_rates(
        {name: arm.tuning for name, arm in tuned.items()},
        baseline=analysis.baseline.name,
        order=order_of(analysis),
        chosen={name: arm.lr for name, arm in tuned.items()},
        edges={name: arm.lr_edge for name, arm in tuned.items()},
        remarks=remarks,
        collapse=_collapse(list(tuned.values()), loaded),
    )


def _collapse(tuned: Sequence[ArmResult], loaded: Loaded) -> float | None:
    """The unigram entropy, where runs collapsed to it, and where its line leaves the losses a quarter of the axis."""
    entropy = loaded.runs["unigram_entropy"].dropna()
    if not len(entropy) or not any("collapsed" in words for arm in tuned for words in arm.tuning_outcomes.values()):
        return None
    held = [loss for arm in tuned for losses in arm.tuning.values() for loss in losses if loss is not None]
    line = float(entropy.median())
    return line if not held or 4 * (max(held) - min(held)) >= line - min(held) else None


def curves_of(loaded: Loaded, own: pd.DataFrame, column: str, points: int = POINTS) -> Curves:
    """A logged column of each judged run over tokens, averaged in bins; of several with one prefix the largest. Arms as in `own`."""
    frame = loaded.curves
    columns = [column] if column in frame else [name for name in frame.columns if column.endswith("/") and name.startswith(column)]
    if not columns:
        return {}
    values = frame[columns].max(axis=1)
    known = frame.loc[values.notna(), ["run", "tokens"]].assign(value=values[values.notna()])
    by_run = dict(iter(known.groupby("run", sort=False)))
    found: Curves = {}
    for run, arm, block in zip(own["run"], own["arm"], own["block"], strict=True):
        if run in by_run:
            x, y = binned(by_run[run]["tokens"].to_numpy(), by_run[run]["value"].to_numpy(), points)
            if len(x):
                found.setdefault(arm, {})[int(block)] = (x.tolist(), y.tolist())
    return found


def _of_curves(analysis: Analysis, loaded: Loaded, own: pd.DataFrame) -> Iterator[Drawing | None]:
    losses = curves_of(loaded, own, "loss")
    failed = {arm.name: [block for block, word in arm.outcomes.items() if word in FAILED] for arm in everyone(analysis)}
    yield figures.curves(losses, baseline=analysis.baseline.name, order=order_of(analysis), failed=failed)
    if analysis.scale is None:
        smoother = curves_of(loaded, own, "loss", FEWER)
        yield figures.differences(
            traces_of(analysis, smoother), baseline=analysis.baseline.name, order=order_of(analysis), margin=analysis.margin.nats
        )


def traces_of(analysis: Analysis, losses: Curves) -> dict[str, Trace]:
    """The paired difference of training losses, over the blocks whose difference counts."""
    theirs = losses.get(analysis.baseline.name, {})
    found = {}
    for arm in analysis.arms:
        ours = losses.get(arm.name, {})
        blocks = [block for block in arm.differences if block in ours and block in theirs]
        if not blocks:
            continue
        grid = theirs[blocks[0]][0]
        curve = difference_curve(grid, _on(grid, ours, blocks), _on(grid, theirs, blocks))
        if len(curve.tokens):
            found[arm.name] = Trace(*(values.tolist() for values in curve[:4]))
    return found


def _on(grid: Sequence[float], curves: Mapping[int, Series], blocks: Sequence[int]) -> dict[int, list[float]]:
    """At the places of a grid, read off linearly; missing beyond a curve's ends."""
    return {block: np.interp(grid, *curves[block], left=np.nan, right=np.nan).tolist() for block in blocks}


def _cost(analysis: Analysis) -> Drawing | None:
    costs = {arm.name: _cost_of(arm) for arm in everyone(analysis) if arm.mean is not None}
    differ = len({cost.flops for cost in costs.values()}) > 1 or any(cost.time is not None for cost in costs.values())
    return (
        figures.pareto(costs, baseline=analysis.baseline.name, order=order_of(analysis), metric=analysis.metric)
        if differ and len(costs) > 1
        else None
    )


def _cost_of(arm: ArmResult) -> Cost:
    """The interval is that of the difference, about the arm's mean: what tells arms apart in paired blocks."""
    contrast = arm.judgement.contrast if arm.judgement is not None else None
    low, high = (contrast.low, contrast.high) if contrast is not None else (None, None)
    shift = arm.mean - contrast.mean if contrast is not None and arm.mean is not None else 0.0
    low, high = (None if end is None else end + shift for end in (low, high))
    if arm.is_baseline:  # what others are over: its own ratio is of two copies of it
        return Cost(arm.mean, low, high, 1.0 if arm.tokens_per_second is not None else None, None, None, arm.flops_per_token)
    speed = arm.speed_ratio
    time = _inverse(speed.mean)
    return Cost(arm.mean, low, high, time, _inverse(speed.high), _inverse(speed.low), arm.flops_per_token)


def _inverse(ratio: float | None) -> float | None:
    return 1 / ratio if ratio else None


def _status(analysis: Analysis, loaded: Loaded) -> Drawing | None:
    runs = loaded.runs[loaded.runs["stage"].isin(["tune", "confirm"])]
    cells = [
        Cell(arm, float(lr), int(seed), str(outcome))
        for arm, lr, seed, outcome in zip(runs["arm"], runs["lr"], runs["seed"], runs["outcome"], strict=True)
        if pd.notna(lr)
    ]
    return figures.status(cells, baseline=analysis.baseline.name, order=order_of(analysis))


def _traces(analysis: Analysis, loaded: Loaded, own: pd.DataFrame) -> Drawing | None:
    quantities = {what: curves_of(loaded, own, column, FEWER) for what, column in MEASURED.items()}
    return figures.traces(
        {what: found for what, found in quantities.items() if found}, baseline=analysis.baseline.name, order=order_of(analysis)
    )


def _of_length(analysis: Analysis, loaded: Loaded, own: pd.DataFrame) -> Iterator[Drawing | None]:
    if not position_arms(analysis):
        return
    fine = own[~own["outcome"].isin(FAILED)]
    table = loaded.by_position.merge(fine[["run", "arm"]], on="run")
    means = table.groupby(["arm", "position"])["loss"].mean().reset_index()
    by_arm = {str(arm): (group["position"].tolist(), group["loss"].tolist()) for arm, group in means.groupby("arm")}
    yield figures.by_position(by_arm, baseline=analysis.baseline.name, order=order_of(analysis))
    contexts = own["context"].dropna().unique()
    yield figures.by_length(
        {arm.name: arm.extrapolation for arm in everyone(analysis)},
        baseline=analysis.baseline.name,
        order=order_of(analysis),
        context=int(contexts[0]) if len(contexts) == 1 else None,
        runs=_single_lengths(fine),
    )


def _single_lengths(rows: pd.DataFrame) -> dict[str, dict[int, list[float]]]:
    found: dict[str, dict[int, list[float]]] = {}
    for times in (1, 2, 4):
        for arm, group in rows.groupby("arm"):
            values = group[f"extrapolation_{times}"].dropna().tolist()
            if values:
                found.setdefault(str(arm), {})[times] = values
    return found


def _noise(analysis: Analysis) -> Drawing | None:
    noise = analysis.noise
    return figures.noise(
        {arm.name: noise.seed_sd[arm.name] for arm in everyone(analysis) if arm.name in noise.seed_sd},
        noise.blocks_table,
        baseline=analysis.baseline.name,
        order=order_of(analysis),
        margin=analysis.margin.nats,
        blocks=max((len(arm.differences) for arm in analysis.arms), default=None),
        detectable=noise.detectable,
        certifiable=noise.certifiable,
        metric=analysis.metric,
    )


def _of_structure(analysis: Analysis, loaded: Loaded) -> Iterator[Drawing | None]:
    known = [effect for effect in analysis.effects if effect.low is not None and effect.high is not None and effect.holm_p is not None]
    rows = [EffectRow(effect.name, effect.kind, effect.mean, effect.low, effect.high, effect.holm_p) for effect in known]  # type: ignore[arg-type]
    yield figures.effects(rows, metric=analysis.metric)
    if analysis.effects:
        yield from _interactions(analysis, loaded)
    steps = [StepRow(step.name, step.mean, step.low, step.high, step.total) for step in analysis.ladder]
    yield figures.ladder(steps, start=analysis.baseline.name, metric=analysis.metric)
    if analysis.scale is not None:
        yield from _scales(analysis)


def _interactions(analysis: Analysis, loaded: Loaded) -> Iterator[Drawing | None]:
    """Of each pair of axes whose interaction was estimated, the loss in every cell."""
    levels = {meta.name: meta.levels for meta in loaded.meta.arms}
    axes = list(dict.fromkeys(axis for found in levels.values() for axis in found if len({own.get(axis) for own in levels.values()}) > 1))
    for i, first in enumerate(axes):
        for second in axes[i + 1 :]:
            if not any(_is_of(effect.name, first, second) for effect in analysis.effects if effect.kind == "interaction"):
                continue
            cells: dict[tuple[str, str], list[float]] = {}
            for arm in everyone(analysis):
                own = levels[arm.name]
                cells.setdefault((f"{first}={own.get(first)}", f"{second}={own.get(second)}"), []).extend(arm.losses.values())
            yield figures.interaction(cells, axes=(first, second), metric=analysis.metric)


def _is_of(name: str, first: str, second: str) -> bool:
    return {part.partition("=")[0].strip() for part in name.split("×")} == {first, second}


def _scales(analysis: Analysis) -> Iterator[Drawing | None]:
    scale = analysis.scale
    assert scale is not None
    baseline = next(iter(scale.losses))
    points = {arm: [(x, y) for x, y in zip(scale.flops, losses, strict=True) if y is not None] for arm, losses in scale.losses.items()}
    series = {arm: ([x for x, _ in pairs], [y for _, y in pairs]) for arm, pairs in points.items()}
    whole = next((pair for pair in scale.stability if (pair[0], pair[1]) == (scale.names[0], scale.names[-1])), None)
    yield figures.ranks(
        {
            change: {size: (span.mean, span.low, span.high) for size, span in each.items() if span.mean is not None}
            for change, each in scale.differences.items()
        },
        scales=scale.names,
        baseline=OF_ITS_SIZE,
        order=list(scale.losses),
        tau=(whole[2].mean, whole[2].low, whole[2].high) if whole is not None and whole[2].mean is not None else None,
        agreement=whole[3] if whole is not None else None,
        metric=analysis.metric,
    )
    fits = {arm: (scale.flops, [fit.predict(x) for x in scale.flops]) for arm, fit in scale.curves.items()}
    exponents = {arm: fit.exponent for arm, fit in scale.curves.items()}
    yield figures.power_law(series, baseline=baseline, fits=fits, exponents=exponents, across="training FLOPs", metric=analysis.metric)
