"""Numbers made up for figures: `numbers(arms, blocks)` is a study as the figures take it, `drawings` all of its figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ablate.report import figures
from ablate.report.figures import Cell, Cost, Drawing, EffectRow, Row, StepRow, Trace

BASELINE = "rmsnorm"
USUAL = ("relu2", "layernorm", "swiglu", "norm=layernorm,placement=post", "qk_norm")
LONG = tuple(f"ffn=a_gated_variant_with_a_long_name_{i:04d}" for i in range(12))  # 40 characters each
RATES = (0.001, 0.00316, 0.01, 0.0316, 0.1)


def rows(arms: Sequence[str] = USUAL, blocks: int = 8, failed: dict[str, int] | None = None) -> list[Row]:
    """Effects from -0.02 on, by turns of every verdict; an arm all of whose runs failed has no difference."""
    failed, chance, found = failed or {}, np.random.default_rng(0), []
    words = ("BETTER", "EQUIVALENT", "INCONCLUSIVE", "UNSTABLE", "WORSE", "NOT TUNED", "NOT COMPARABLE", "SCREEN ONLY")
    for i, arm in enumerate(arms):
        lost = failed.get(arm, 0)
        held = {b: float(v) for b, v in enumerate(-0.02 + 0.011 * (i % 6) + 0.008 * chance.standard_normal(blocks - lost), start=1)}
        word, detail = (
            ("UNSTABLE", f"{lost}/{blocks} failed") if lost else (words[i % 8], "best rate at the high end" if i % 8 == 5 else "")
        )
        if not held:
            found.append(Row(arm, word, detail, None, None, None, None, None, {}, lost, blocks))
            continue
        mean, half = float(np.mean(list(held.values()))), 0.006
        spans = (mean - half, mean + half, mean - 1.6 * half, mean + 1.6 * half) if len(held) > 1 else (None,) * 4
        found.append(Row(arm, word, detail, mean, *spans, held, lost, blocks))
    return found


def losses(arms: Sequence[str], blocks: int) -> dict[str, dict[int, float]]:
    chance = np.random.default_rng(1)
    seeds = 0.012 * chance.standard_normal(blocks)
    return {
        arm: {b + 1: float(1.9 - 0.02 * (i > 0) + 0.01 * (i % 6) + seeds[b] + 0.005 * chance.standard_normal()) for b in range(blocks)}
        for i, arm in enumerate((BASELINE, *arms))
    }


def tuning(arms: Sequence[str]) -> dict[str, dict[float, list[float | None]]]:
    """Parabolas in the logarithm of the rate; at the largest rate every third arm fails."""
    found: dict[str, dict[float, list[float | None]]] = {}
    for i, arm in enumerate((BASELINE, *arms)):
        found[arm] = {rate: [1.9 + 0.15 * (math.log10(rate) + 2 - 0.1 * i) ** 2 + 0.01 * seed for seed in (0, 1)] for rate in RATES}
        if i % 3 == 1:
            found[arm][RATES[-1]] = [None, 3.14]
    return found


def curve(end: float, seed: int, steps: int = 400) -> tuple[list[float], list[float]]:
    step = np.arange(1, steps + 1)
    noise = 0.02 * np.random.default_rng(seed).standard_normal(steps)
    return (1024.0 * step).tolist(), (end + 3.6 * np.exp(-step / 40) + 0.3 * (1 - step / steps) + noise).tolist()


def runs(arms: Sequence[str], blocks: int) -> dict[str, dict[int, Any]]:
    return {arm: {b: curve(1.9 + 0.03 * (i % 6), 97 * i + b) for b in range(1, blocks + 1)} for i, arm in enumerate((BASELINE, *arms))}


def cells(arms: Sequence[str], blocks: int) -> list[Cell]:
    words = ("ok", "ok", "ok", "spiky", "collapsed", "nan", "diverged", "incomplete")
    found = [
        Cell(arm, rate, seed, words[(i + 3 * k + seed) % 8] if k == 4 else "ok")
        for i, arm in enumerate((BASELINE, *arms))
        for k, rate in enumerate(RATES)
        for seed in (1000, 1001)
    ]
    return found + [Cell(arm, 0.01, seed, "ok") for arm in (BASELINE, *arms) for seed in range(blocks)]


def trace(end: float) -> Trace:
    tokens = np.linspace(1024, 409600, 300)
    mean = end + 0.3 * np.exp(-tokens / 3e4) * np.sin(tokens / 2e4)
    half = 0.006 + 0.2 * np.exp(-tokens / 3e4)
    return Trace(tokens.tolist(), mean.tolist(), (mean - half).tolist(), (mean + half).tolist())


def drawings(arms: Sequence[str] = USUAL, blocks: int = 8, failed: dict[str, int] | None = None) -> list[Drawing | None]:
    """Every figure there is."""
    everyone, told = (BASELINE, *arms), {"baseline": BASELINE, "order": (BASELINE, *arms)}
    lost = {arm: dict.fromkeys(range(1, k + 1), "collapsed") for arm, k in (failed or {}).items()}
    finals = {arm: {b: v for b, v in each.items() if b not in lost.get(arm, {})} for arm, each in losses(arms, blocks).items()}
    effects = rows(arms, blocks, failed)
    quantities = {
        "gradient norm": runs(arms, min(blocks, 3)),
        "largest attention logit": {a: {1: curve(20.0 * 3**i, i)} for i, a in enumerate(arms[:6])},
    }
    return [
        figures.forest(effects, margin=0.01, **told),
        figures.forest(effects, margin=0.01, narrow=True, **told),
        figures.blocks(finals, failed=lost, **told),
        figures.learning_rates(
            tuning(arms),
            chosen=dict.fromkeys(everyone, 0.01),
            edges={arms[-1]: "high"},
            remarks=dict.fromkeys(arms, "usable over 1.5 decades"),
            collapse=3.15,
            **told,
        ),
        figures.curves(runs(arms, blocks), failed={arm: list(each) for arm, each in lost.items()}, **told),
        figures.differences({arm: trace(-0.02 + 0.011 * (i % 6)) for i, arm in enumerate(arms)}, margin=0.01, **told),
        figures.pareto(
            {
                arm: Cost(
                    1.9 + 0.01 * ((3 * i) % 7),
                    1.894 + 0.01 * ((3 * i) % 7),
                    1.906 + 0.01 * ((3 * i) % 7),
                    1 + 0.04 * i,
                    0.98 + 0.04 * i,
                    1.02 + 0.04 * i,
                    8e5 + 2e4 * i,
                )
                for i, arm in enumerate(everyone)
            },
            **told,
        ),
        figures.status(cells(arms, blocks), **told),
        figures.traces(quantities, **told),
        figures.by_position(
            {arm: ([1, 2, 4, 8, 16, 32, 64], [3 - 0.2 * k + 0.02 * i for k in range(7)]) for i, arm in enumerate(everyone)}, **told
        ),
        figures.by_length(
            {arm: {1: 1.9 + 0.03 * i, 2: 1.92 + 0.2 * (i % 4), 4: 1.93 + 0.3 * (i % 5)} for i, arm in enumerate(everyone)},
            context=64,
            runs={arm: {1: [1.89 + 0.03 * i, 1.91 + 0.03 * i]} for i, arm in enumerate(everyone)},
            **told,
        ),
        figures.noise(
            {arm: 0.012 + 0.001 * (i % 5) for i, arm in enumerate(everyone)},
            [(0.002, 80, 90), (0.005, 18, 20), (0.01, 7, 8), (0.02, 4, 5), (0.05, 3, None)],
            margin=0.01,
            blocks=blocks,
            detectable=0.0093,
            certifiable=0.0104,
            **told,
        ),
        figures.ranks(
            {
                arm: {
                    s: (m, m - 0.01, m + 0.01)
                    for m, s in ((-0.02 + 0.008 * (i % 6) * (1 - k / 2), s) for k, s in enumerate(("0.1M", "1M", "10M")))
                }
                for i, arm in enumerate(arms)
            },
            scales=("0.1M", "1M", "10M"),
            tau=(0.33, -0.2, 0.8),
            agreement=0.67,
            **told,
        ),
        figures.power_law(
            {arm: ([1e5, 1e6, 1e7], [(2.9 + 0.05 * i) * 10 ** (-0.05 * k) for k in range(3)]) for i, arm in enumerate(everyone)},
            fits={arm: ([1e5, 1e7], [2.9 + 0.05 * i, (2.9 + 0.05 * i) * 10**-0.1]) for i, arm in enumerate(everyone)},
            exponents=dict.fromkeys(everyone, -0.0217),
            across="training FLOPs",
            **told,
        ),
        figures.effects(
            [
                EffectRow(arm, "interaction" if i % 3 == 2 else "main", -0.02 + 0.01 * i, -0.03 + 0.01 * i, -0.01 + 0.01 * i, 0.02 * i)
                for i, arm in enumerate(arms)
            ]
        ),
        figures.interaction(
            {
                (a, b): [1.9 + 0.1 * i + 0.05 * k * (2 * i - 1) + 0.01 * s for s in range(3)]
                for i, a in enumerate(("norm=rmsnorm", "norm=layernorm"))
                for k, b in enumerate(("placement=pre", "placement=post"))
            },
            axes=("norm", "placement"),
        ),
        figures.ladder(
            [
                StepRow(arm, -0.01 + 0.004 * i, -0.016 + 0.004 * i, -0.004 + 0.004 * i, sum(-0.01 + 0.004 * k for k in range(i + 1)))
                for i, arm in enumerate(arms)
            ],
            start=BASELINE,
        ),
    ]
