"""tables: the tables of a report, from its numbers; how they look is the page's matter."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from ablate.report.analysis.shapes import Analysis, ArmResult, Scale, Span
from ablate.report.numbers import (
    MISSING,
    decimals_of,
    half_width,
    p_value,
    percent,
    quantity,
    rate,
    signed,
    with_interval,
)
from ablate.report.statistics import Contrast

NO_BENCH = "not measured: ablate bench --study NAME"
NO_LOSS = "no run with a result"
NO_PAIR = "no block in common with the baseline"
BASELINE = "the baseline itself"


class Cell(NamedTuple):
    """What a cell says, its value to sort by, and of a missing one the reason."""

    text: str
    value: float | None = None
    why: str = ""
    kind: str = "number"  # or "text", "name", "word"
    link: str = ""


class Column(NamedTuple):
    label: str
    kind: str = "number"


class Table(NamedTuple):
    """Rows of cells under columns; the first column names the row."""

    name: str
    caption: str
    columns: list[Column]
    rows: list[list[Cell]]
    note: str = ""
    sortable: bool = False


def missing(why: str) -> Cell:
    return Cell(MISSING, None, why)


def name(text: str) -> Cell:
    return Cell(text, kind="name")


def words(text: str) -> Cell:
    return Cell(text, kind="text")


def number(value: float | None, text: str, why: str) -> Cell:
    return missing(why) if value is None or not math.isfinite(value) else Cell(text, float(value))


def plain(value: float | None, form: str, why: str) -> Cell:
    """A number in a format of str.format, or missing."""
    return number(value, "" if value is None else form.format(value), why)


def of_quantity(value: float | None, why: str) -> Cell:
    return number(value, "" if value is None else quantity(value), why)


def of_span(span: Span, why: str) -> Cell:
    return number(span.mean, "" if span.mean is None else with_interval(span.mean, span.low, span.high), why)


def of_ratio(span: Span, why: str) -> Cell:
    return number(span.mean, "" if span.mean is None else percent(span.mean, span.low, span.high), why)


def of_contrast(contrast: Contrast | None, why: str) -> Cell:
    return missing(why) if contrast is None else Cell(with_interval(contrast.mean, contrast.low, contrast.high), contrast.mean)


def of_p(p: float | None, why: str) -> Cell:
    return number(p, "" if p is None else p_value(p), why)


def of_rate(lr: float | None) -> Cell:
    return number(lr, "" if lr is None else rate(lr), "no learning rate was chosen")


def without_empty(table: Table) -> Table:
    """A column in which every number is missing goes, and the note says so with the reason."""
    empty = [index for index in range(len(table.columns)) if table.rows and all(row[index].why for row in table.rows)]
    if not empty:
        return table
    reasons = {table.columns[index].label: _why([row[index].why for row in table.rows]) for index in empty}
    note = f"{table.note} Not known for any arm: {'; '.join(f'{label} ({why})' for label, why in reasons.items())}."

    def kept(row: list[Any]) -> list[Any]:
        return [item for index, item in enumerate(row) if index not in empty]

    return table._replace(columns=kept(table.columns), rows=[kept(row) for row in table.rows], note=note.strip())


def _why(reasons: list[str]) -> str:
    """The reason of the arms that could have a number, where others have no run."""
    return next((why for why in reversed(reasons) if why not in (NO_PAIR, NO_LOSS, BASELINE)), reasons[-1])


def verdict(arm: ArmResult) -> Cell:
    if arm.judgement is None:
        return Cell("baseline", kind="text") if arm.is_baseline else missing(NO_PAIR)
    return Cell(arm.judgement.verdict.word, kind="word")


def everyone(analysis: Analysis) -> list[ArmResult]:
    return [analysis.baseline, *analysis.arms]


def failures(arm: ArmResult) -> Cell:
    """2/8 collapsed; 0/8 where none has failed."""
    if not arm.ended:
        return missing("no run has ended")
    kinds = Counter(outcome for outcome in arm.outcomes.values() if outcome in ("nan", "diverged", "collapsed"))
    said = f" {', '.join(sorted(kinds))}" if arm.failed else ""
    return Cell(f"{arm.failed}/{arm.ended}{said}", arm.failed / arm.ended)


def loss(arm: ArmResult) -> Cell:
    """The mean and deviation of the runs that are ok; with failures it says of how many runs."""
    if arm.mean is None:
        return missing(NO_LOSS)
    decimals = decimals_of(arm.sd)
    text = f"{arm.mean:.{decimals}f}" + (f" ± {arm.sd:.{decimals}f}" if arm.sd is not None else "")
    return Cell(f"{text} (of {len(arm.losses)}/{arm.ended})" if arm.failed else text, arm.mean)


def difference(arm: ArmResult) -> Cell:
    if arm.is_baseline:
        return missing(BASELINE)
    return of_contrast(arm.judgement.contrast if arm.judgement else None, NO_PAIR)


def unless_baseline(arm: ArmResult, cell: Cell) -> Cell:
    return missing(BASELINE) if arm.is_baseline else cell


def summary(analysis: Analysis) -> Table:
    """T1: an arm a row, with the columns of Narang et al. (2102.11972, table 1) and what they lack."""
    columns = [Column("arm", "name"), Column("verdict", "word"), Column(f"Δ, {analysis.metric}, [95 %]"), Column("Holm p")]
    columns += [Column("worth in tokens [95 %]"), Column("loss, mean ± sd"), Column("learning rate"), Column("failed")]
    columns += [Column("parameters"), Column("FLOPs/token"), Column("tokens/s"), Column("peak memory, bytes")]
    rows = [
        [
            name(arm.name),
            verdict(arm),
            difference(arm),
            unless_baseline(arm, of_p(arm.judgement.holm_p if arm.judgement else None, "no test")),
            unless_baseline(arm, of_ratio(arm.token_gain, "what tokens are worth is not known here")),
            loss(arm),
            of_rate(arm.lr),
            failures(arm),
            of_quantity(arm.parameters, "not counted"),
            of_quantity(arm.flops_per_token, "not counted"),
            of_quantity(arm.tokens_per_second, NO_BENCH),
            of_quantity(arm.peak_memory, NO_BENCH),
        ]
        for arm in everyone(analysis)
    ]
    note = "Δ is the arm less the baseline, paired in blocks; below zero is better. FLOPs are of training, forward and backward."
    return without_empty(Table("summary", "Every arm at its chosen learning rate", columns, rows, note))


def contrasts(analysis: Analysis) -> Table:
    """Of each arm the difference with all that the verdict was made from."""
    labels = [
        f"Δ, {analysis.metric}, [95 %]",
        "Holm interval",
        "n",
        "df",
        "method",
        "p",
        "Holm p",
        "equivalence interval",
        "equivalence p (Holm)",
    ]
    columns = [Column("arm", "name"), *(Column(label) for label in labels), Column("Δ, bits per byte [95 %]"), Column("blocks needed")]
    rows = [_contrast_row(arm) for arm in analysis.arms if not arm.is_baseline]
    margin = f", m = {analysis.margin.nats:.2g}" if analysis.margin.nats is not None else ""
    note = (
        f"EQUIVALENT asks for the equivalence interval (90 %, widened by Holm) inside of the margin (−m, m){margin}. "
        "Blocks needed: for either answer at the margin with 80 % power, by the arm's own noise and corrected for all arms."
    )
    return without_empty(Table("contrasts", "Differences from the baseline, and their tests", columns, rows, note))


def _contrast_row(arm: ArmResult) -> list[Cell]:
    judgement = arm.judgement
    if judgement is None or judgement.contrast is None:
        return [name(arm.name), *[missing(NO_PAIR)] * 11]
    contrast, equivalence = judgement.contrast, judgement.equivalence
    decimals = decimals_of(half_width(contrast.low, contrast.high))

    def interval(low: float | None, high: float | None, why: str) -> Cell:
        return missing(why) if low is None or high is None else Cell(f"[{signed(low, decimals)}, {signed(high, decimals)}]", low)

    return [
        name(arm.name),
        of_contrast(contrast, NO_PAIR),
        interval(judgement.holm_low, judgement.holm_high, "no interval"),
        plain(contrast.n, "{:.0f}", NO_PAIR),
        plain(contrast.df, "{:.0f}", NO_PAIR),
        words(contrast.method),
        of_p(contrast.p, "one block has no test"),
        of_p(judgement.holm_p, "no test"),
        interval(equivalence.low, equivalence.high, "no test") if equivalence else missing("the margin is not known"),
        of_p(judgement.equivalence_holm_p, "the margin is not known"),
        of_span(arm.bits_difference, "bytes are not known"),
        plain(judgement.blocks_needed, "{:.0f}", "settled, or not to be told"),
    ]


def tuning(analysis: Analysis) -> Table:
    """T2: the mean loss over tuning seeds at each rate, the rate that was chosen, and how much it matters."""
    rates = sorted({lr for arm in everyone(analysis) for lr in arm.tuning})
    columns = [
        Column("arm", "name"),
        Column("chosen"),
        *(Column(rate(lr)) for lr in rates),
        Column("sensitivity"),
        Column("usable decades"),
    ]
    rows = [
        [
            name(arm.name),
            Cell(rate(arm.lr) + (f" ({arm.lr_edge} end)" if arm.lr_edge else ""), arm.lr) if arm.lr is not None else of_rate(None),
            *(_tuned(arm, lr) for lr in rates),
            _sensitivity(arm.sensitivity or Span(None)),
            plain(arm.usable_decades, "{:.2f}", "the rates do not allow it"),
        ]
        for arm in everyone(analysis)
    ]
    note = "Sensitivity: the mean excess over the best rate, a failed run counting as its first loss (Wortsman et al. 2023, 2309.14322)."
    return Table("tuning", "Mean loss over the tuning seeds, by learning rate", columns, rows, note)


def _sensitivity(span: Span) -> Cell:
    """Never negative, so without a sign."""
    cell = of_span(span, "the rates do not allow it")
    return cell._replace(text=cell.text.replace("+", ""))


def _tuned(arm: ArmResult, lr: float) -> Cell:
    losses = arm.tuning.get(lr)
    if losses is None:
        return missing("not tried")
    fine = [value for value in losses if value is not None]
    bad = sorted({outcome for outcome in arm.tuning_outcomes.get(lr, []) if outcome != "ok"})
    if len(fine) < len(losses):
        return Cell(f"{len(losses) - len(fine)}/{len(losses)} {', '.join(bad)}".strip(), math.inf)
    return Cell(f"{sum(fine) / len(fine):.4f}", sum(fine) / len(fine)) if fine else missing("no run")


def cost(analysis: Analysis) -> Table:
    """T3: what an arm takes, and what its difference is worth in tokens and in time."""
    labels = [
        "parameters",
        "active",
        "FLOPs/token",
        "KV bytes/token",
        "off the match",
        "tokens/s",
        "speed [95 %]",
        "peak memory, bytes",
    ]
    columns = [
        Column("arm", "name"),
        *(Column(label) for label in labels),
        Column("worth in tokens [95 %]"),
        Column("worth in time [95 %]"),
    ]
    rows = [
        [
            name(arm.name),
            of_quantity(arm.parameters, "not counted"),
            of_quantity(arm.active_parameters, "not counted"),
            of_quantity(arm.flops_per_token, "not counted"),
            of_quantity(arm.kv_bytes_per_token, "not counted"),
            number(arm.match_error, "" if arm.match_error is None else f"{signed(100 * arm.match_error, 2)} %", "nothing is matched"),
            of_quantity(arm.tokens_per_second, NO_BENCH),
            of_ratio(arm.speed_ratio, NO_BENCH),
            of_quantity(arm.peak_memory, NO_BENCH),
            unless_baseline(arm, of_ratio(arm.token_gain, "what tokens are worth is not known here")),
            unless_baseline(arm, of_ratio(arm.time_gain, "needs the worth in tokens and the bench")),
        ]
        for arm in everyone(analysis)
    ]
    note = (
        "Speed: the median over rounds; the baseline's is of two copies of it, and what does not go beyond that is chance. "
        "Worth in tokens: how many more tokens the baseline would need for the arm's loss. Worth in time: that, times the speed."
    )
    return without_empty(Table("cost", "What each arm costs, and what it is worth", columns, rows, note))


def stability(analysis: Analysis) -> Table:
    """Failed runs at the chosen rate, with the exact interval of their share (Clopper and Pearson 1934)."""
    columns = [Column("arm", "name"), Column("failed"), Column("share that fails [95 %]"), Column("outcome by block", "text")]
    rows = [[name(arm.name), failures(arm), _share(arm), words(_by_block(arm.outcomes))] for arm in everyone(analysis)]
    note = "Spiky: more than one training loss in a thousand is a spike; such a run has not failed. Runs that tune are in the figure."
    return Table("stability", "How the confirmation runs ended", columns, rows, note)


def _share(arm: ArmResult) -> Cell:
    if arm.failure_interval is None or not arm.ended:
        return missing("no run has ended")
    low, high = arm.failure_interval
    return Cell(f"{100 * arm.failed / arm.ended:.0f} % [{100 * low:.0f}, {100 * high:.0f}]", arm.failed / arm.ended)


def _by_block(outcomes: Mapping[int, str]) -> str:
    """ok: 0 to 5; collapsed: 6, 7."""
    blocks: dict[str, list[int]] = {}
    for block, outcome in sorted(outcomes.items()):
        blocks.setdefault(outcome, []).append(block)
    return "; ".join(f"{outcome}: {_runs_of(found)}" for outcome, found in blocks.items()) or MISSING


def _runs_of(blocks: Sequence[int]) -> str:
    """0 to 5, 7."""
    spans: list[list[int]] = []
    for block in blocks:
        if spans and block == spans[-1][-1] + 1:
            spans[-1].append(block)
        else:
            spans.append([block])
    return ", ".join(f"{span[0]} to {span[-1]}" if len(span) > 2 else ", ".join(map(str, span)) for span in spans)


def length(analysis: Analysis) -> Table | None:
    """The loss of the same targets at 1, 2 and 4 times the context of training."""
    arms = [arm for arm in everyone(analysis) if arm.extrapolation]
    times = sorted({factor for arm in arms for factor in arm.extrapolation})
    if not times:
        return None
    columns = [
        Column("arm", "name"),
        *(Column(f"loss at {factor}×") for factor in times),
        *(Column(f"change at {factor}×") for factor in times[1:]),
    ]
    rows = [[name(arm.name), *_lengths(arm.extrapolation, times)] for arm in arms]
    return Table("length", "Loss of the same targets, by context as a multiple of the training context", columns, rows)


def _lengths(losses: Mapping[int, float], times: Sequence[int]) -> list[Cell]:
    first, found = losses.get(times[0]), [losses.get(factor) for factor in times]
    cells = [plain(value, "{:.4f}", "not evaluated") for value in found]
    for value in found[1:]:
        known = value is not None and first is not None
        cells.append(Cell(signed(value - first, 4), value - first) if known else missing("not evaluated"))  # type: ignore[operator]
    return cells


def noise(analysis: Analysis) -> list[Table]:
    """T4: the deviation of each arm over blocks, and how many blocks a difference takes."""
    columns = [
        Column("arm", "name"),
        Column("sd over blocks"),
        Column("correlation with the baseline"),
        Column("sd of a pair"),
        Column("saved by pairs"),
    ]
    rows = [
        [
            name(arm.name),
            plain(analysis.noise.seed_sd.get(arm.name), "{:.2g}", "fewer than two runs"),
            unless_baseline(arm, _correlation(arm.rho)),
            unless_baseline(arm, plain(arm.pair_sd, "{:.2g}", "fewer than two pairs")),
            unless_baseline(arm, _saving(analysis.noise.seed_sd, analysis.baseline.name, arm)),
        ]
        for arm in everyone(analysis)
    ]
    note = "Saved by pairs: how much smaller the deviation of a paired difference is than of one between unrelated runs."
    tables = [Table("noise", "Chance, by arm", columns, rows, note)]
    if analysis.noise.blocks_table:
        columns = [Column("difference, nats", "name"), Column("blocks to find it"), Column("blocks to certify it as margin")]
        many = "more than can be told"
        counts = [
            [name(f"{size:.2g}"), plain(find, "{:.0f}", many), plain(certify, "{:.0f}", many)]
            for size, find, certify in analysis.noise.blocks_table
        ]
        note = (
            "By the pooled noise; to find it corrected for all arms, to certify it for one arm alone. "
            "By the noise of an arm: the table of effects."
        )
        tables.append(Table("power", "Blocks that a difference takes, with 80 % power", columns, counts, note))
    return tables


def _correlation(rho: float | None) -> Cell:
    return number(rho, "" if rho is None else signed(rho, 2).removeprefix("+"), "fewer than three pairs")


def _saving(seed_sd: Mapping[str, float], baseline: str, arm: ArmResult) -> Cell:
    own, other = seed_sd.get(arm.name), seed_sd.get(baseline)
    unpaired = math.hypot(own, other) if own is not None and other is not None else 0.0
    if arm.pair_sd is None or not unpaired:
        return missing("fewer than two pairs")
    return Cell(f"{signed(100 * (1 - arm.pair_sd / unpaired), 0).lstrip('+')} %", 1 - arm.pair_sd / unpaired)


def robustness(analysis: Analysis) -> Table:
    """T5: the same data by other roads."""
    columns = [Column("arm", "name"), Column("verdict", "word"), Column("own t [95 %]"), Column("pooled t [95 %]"), Column("sign-flip p")]
    columns += [Column("without one block", "text"), Column("at half the margin", "text"), Column("at twice the margin", "text")]
    rows = [_robust_row(arm) for arm in analysis.arms if arm.judgement is not None]
    note = "A verdict that one block can turn is not to be leaned on. Sign-flip: exact, over all signs of the paired differences."
    return Table("robustness", "Whether the verdict hangs on how it was reached", columns, rows, note)


def _robust_row(arm: ArmResult) -> list[Cell]:
    assert arm.judgement is not None
    flips = "; ".join(f"{word} without {block}" for block, word in sorted(arm.flips.items()))
    return [
        name(arm.name),
        verdict(arm),
        of_contrast(arm.judgement.own, "fewer than two pairs"),
        of_contrast(arm.judgement.pooled, "not in the pool"),
        of_p(arm.sign_flip_p, "fewer than two pairs"),
        words(flips or "no change"),
        words(arm.half_margin) if arm.half_margin else missing("the margin is not known"),
        words(arm.double_margin) if arm.double_margin else missing("the margin is not known"),
    ]


def effects(analysis: Analysis) -> Table | None:
    if not analysis.effects:
        return None
    columns = [Column("effect", "name"), Column("kind", "text"), Column(f"{analysis.metric} [95 %]"), Column("p"), Column("Holm p")]
    rows = [
        [
            name(effect.name),
            words(effect.kind),
            Cell(with_interval(effect.mean, effect.low, effect.high), effect.mean),
            of_p(effect.p, "no test"),
            of_p(effect.holm_p, "no test"),
        ]
        for effect in analysis.effects
    ]
    return Table("factors", "Main effects and interactions", columns, rows)


def ladder(analysis: Analysis) -> Table | None:
    if not analysis.ladder:
        return None
    columns = [Column("step", "name"), Column(f"{analysis.metric} [95 %]"), Column("from the start")]
    rows = [
        [name(step.name), Cell(with_interval(step.mean, step.low, step.high), step.mean), Cell(signed(step.total, 4), step.total)]
        for step in analysis.ladder
    ]
    return Table("ladder", "From one architecture to the other, a step at a time", columns, rows)


def scales(analysis: Analysis) -> list[Table]:
    if analysis.scale is None:
        return []
    scale = analysis.scale
    columns = [Column("arm", "name"), *(Column(f"loss at {size}") for size in scale.names)]
    rows = [[name(arm), *(plain(value, "{:.4f}", NO_LOSS) for value in losses)] for arm, losses in scale.losses.items()]
    tables = [Table("scales", "Mean loss by size", columns, rows)]
    if scale.stability:
        columns = [Column("small", "name"), Column("large", "text"), Column("Kendall's tau [95 %]"), Column("pairs ordered alike")]
        pairs = [
            [name(small), words(large), _of_tau(tau), Cell(f"{100 * alike:.0f} %", alike)] for small, large, tau, alike in scale.stability
        ]
        tables.append(Table("ranks", "Whether the small size orders the arms as the large one does", columns, pairs))
    return [*tables, *_power_laws(scale)]


def _of_tau(tau: Span) -> Cell:
    if tau.mean is None:
        return missing("too few arms")
    inside = f" [{signed(tau.low, 2)}, {signed(tau.high, 2)}]" if tau.low is not None and tau.high is not None else ""
    return Cell(signed(tau.mean, 2) + inside, tau.mean)


def _power_laws(scale: Scale) -> list[Table]:
    if not scale.curves:
        return []
    columns = [Column("arm", "name"), Column("exponent"), Column("floor"), *(Column(f"residual at {size}") for size in scale.names)]
    rows = [
        [
            name(arm),
            *(plain(value, "{:.3g}", NO_LOSS) for value in (fit.exponent, fit.floor)),
            *(plain(r, "{:+.4f}", NO_LOSS) for r in fit.residuals),
        ]
        for arm, fit in scale.curves.items()
    ]
    note = (
        "loss = a C^(-exponent) + floor, C training FLOPs, by Huber's loss. Residuals as large as the differences between arms mean that "
        "the curves tell nothing of them. Nothing is read off beyond twice the largest size."
    )
    return [Table("power-laws", "Power laws of the loss in training FLOPs", columns, rows, note)]


RUN_COLUMNS = {
    "arm": ("arm", "text", "{}"),
    "stage": ("stage", "text", "{}"),
    "lr": ("learning rate", "number", "{:g}"),
    "init_seed": ("init seed", "number", "{:.0f}"),
    "data_seed": ("data seed", "number", "{:.0f}"),
    "block": ("block", "number", "{:.0f}"),
    "outcome": ("outcome", "text", "{}"),
    "loss": ("loss", "number", "{:.4f}"),
    "tokens": ("tokens", "number", "{:,.0f}"),
    "seconds": ("seconds", "number", "{:,.1f}"),
}


def runs_table(runs: pd.DataFrame, links: Mapping[str, str]) -> Table:
    """T6: every run there is, whatever came of it. `links`: run -> its config, from the page's folder."""
    kept = {column: told for column, told in RUN_COLUMNS.items() if column in runs.columns}
    columns = [Column("run", "name"), *(Column(label, kind) for label, kind, _ in kept.values())]
    rows = []
    for row in runs.to_dict("records"):
        called = str(row["run"])
        cells = [_of_run(row[column], kind, form) for column, (_, kind, form) in kept.items()]
        rows.append([Cell(called, kind="name", link=links.get(called, "")), *cells])
    return Table("runs", "Runs by arm, stage, learning rate and block", columns, rows, sortable=True)


def _of_run(value: Any, kind: str, form: str) -> Cell:
    if value is None or pd.isna(value):
        return missing("not recorded")
    return Cell(form.format(value), None if kind == "text" else float(value), kind=kind)


def changes(analysis: Analysis) -> Table:
    """What was asked for, and what then differs from the baseline in all that can move a number."""
    rows = [
        [
            name(arm.name),
            words(" ".join(arm.overrides) or ("nothing" if arm.is_baseline else "not known as a command")),
            unless_baseline(arm, words("; ".join(arm.changes) or "nothing but seeds and learning rates")),
        ]
        for arm in everyone(analysis)
    ]
    columns = [Column("arm", "name"), Column("asked for", "text"), Column("differs from its baseline in", "text")]
    return Table("arms", "What each arm changes", columns, rows)


def pairs_table(key: str, caption: str, labels: tuple[str, str], pairs: Iterable[tuple[str, str]]) -> Table:
    return Table(
        key, caption, [Column(labels[0], "name"), Column(labels[1], "text")], [[name(label), words(value)] for label, value in pairs]
    )
