"""Effects of axes, of two together, and the steps of a ladder."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pandas as pd
import pytest
from statsmodels.formula.api import ols

from ablate.report.statistics import AxisEffect, Effects, effects, family, ladder, paired_contrast

Levels = list[dict[str, str]]


def runs(axes: dict[str, list[str]], blocks: int) -> tuple[Levels, list[int]]:
    """Every cell in every block."""
    cells = [dict(zip(axes, cell, strict=True)) for cell in product(*axes.values())]
    return [cell for cell in cells for _ in range(blocks)], [block for _ in cells for block in range(blocks)]


def noisy(levels: Levels, blocks: list[int], seed: int = 0) -> list[float]:
    """An effect of each level, an interaction, blocks, and noise."""
    rng = np.random.default_rng(seed)
    own = {value: rng.normal() for value in sorted({value for run in levels for value in run.values()})}
    pairs = {key: rng.normal() for key in sorted({tuple(run.values())[:2] for run in levels})}
    shared = rng.normal(0, 3, 100)
    return [
        3 + sum(own[v] for v in run.values()) + pairs[tuple(run.values())[:2]] + shared[block] + 0.1 * rng.normal()
        for run, block in zip(levels, blocks, strict=True)
    ]


def one(found: tuple[AxisEffect, ...], *levels: str) -> AxisEffect:
    (effect,) = [effect for effect in found if effect.levels == levels]
    return effect


TWO = {"norm": ["layernorm", "rmsnorm"], "ffn": ["gelu", "swiglu"]}
LARGE = {"norm": ["layernorm", "rmsnorm"], "ffn": ["gelu", "swiglu", "relu2"], "qk": ["none", "rms"]}


def test_effects_by_hand() -> None:
    """Cells 1, 2 / 4, 9 (norm down, ffn across): norm 6.5 - 1.5, ffn 5.5 - 2.5, together (9 - 4) - (2 - 1). Noise +1, -1, -1, +1 in
    block 0 and its opposite in block 1 is none of them; with blocks alike its sd is sqrt(8 / 3), and the se of a main effect sqrt(4 / 3).
    """
    levels, blocks = runs(TWO, 2)
    found = effects(levels, [1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 9.0, 9.0], blocks)
    assert one(found.main, "rmsnorm").mean == pytest.approx(5)
    assert one(found.main, "swiglu").mean == pytest.approx(3)
    assert one(found.interactions, "rmsnorm", "swiglu").mean == pytest.approx(4)
    spread = effects(levels, [2.0, 0.0, 1.0, 3.0, 3.0, 5.0, 10.0, 8.0], blocks)
    norm = one(spread.main, "rmsnorm")
    assert (spread.df, spread.sd) == (3, pytest.approx(math.sqrt(8 / 3)))
    assert norm.mean == pytest.approx(5)
    assert norm.high == pytest.approx(5 + 3.182446 * math.sqrt(4 / 3))
    assert norm.low == pytest.approx(5 - 3.182446 * math.sqrt(4 / 3))


def frame(levels: Levels, losses: list[float], blocks: list[int]) -> pd.DataFrame:
    return pd.DataFrame(levels).assign(loss=losses, block=blocks)


@pytest.mark.parametrize("missing", [(), (5,), (0, 7, 13)])
def test_effects_are_those_of_statsmodels(missing: tuple[int, ...]) -> None:
    """Effects at the first levels, of its treatment coding, averaged by hand over the levels of other axes; runs may be missing."""
    levels, blocks = runs(LARGE, 3)
    losses = noisy(levels, blocks)
    levels, blocks, losses = ([v for i, v in enumerate(values) if i not in missing] for values in (levels, blocks, losses))  # type: ignore[assignment]
    first = {axis: f"C({axis}, Treatment('{values[0]}'))" for axis, values in LARGE.items()}
    fit = ols(f"loss ~ ({' + '.join(first.values())})**2 + C(block)", frame(levels, losses, blocks)).fit()
    norm, ffn, qk = (f"{first[axis]}[T.{level}]" for axis, level in (("norm", "rmsnorm"), ("ffn", "relu2"), ("qk", "rms")))
    swiglu = f"{first['ffn']}[T.swiglu]"
    names = list(fit.params.index)
    averaged = {"rmsnorm": {norm: 1, f"{norm}:{swiglu}": 1 / 3, f"{norm}:{ffn}": 1 / 3, f"{norm}:{qk}": 1 / 2}}
    averaged["relu2"] = {ffn: 1, f"{norm}:{ffn}": 1 / 2, f"{ffn}:{qk}": 1 / 2}
    found = effects(levels, losses, blocks)
    for level, weights in averaged.items():
        expected, got = fit.t_test([weights.get(name, 0) for name in names]), one(found.main, level)
        assert got.mean == pytest.approx(expected.effect[0])
        assert (got.low, got.high) == pytest.approx(tuple(expected.conf_int()[0]))
        assert got.p == pytest.approx(float(expected.pvalue), rel=1e-6)
    pair = one(found.interactions, "rmsnorm", "relu2")
    assert pair.mean == pytest.approx(fit.params[f"{norm}:{ffn}"])
    assert (pair.low, pair.high) == pytest.approx(tuple(fit.conf_int().loc[f"{norm}:{ffn}"]))
    assert pair.p == pytest.approx(fit.pvalues[f"{norm}:{ffn}"], rel=1e-6)
    assert (found.sd, found.df) == (pytest.approx(math.sqrt(fit.mse_resid)), fit.df_resid)


def test_the_test_of_an_axis_is_that_of_statsmodels() -> None:
    levels, blocks = runs(LARGE, 3)
    losses = [loss if run["ffn"] != "relu2" else loss + 0.01 for run, loss in zip(levels, noisy(levels, blocks, 3), strict=True)]
    data, found = frame(levels, losses, blocks), effects(levels, losses, blocks)
    full = ols("loss ~ (C(norm, Sum) + C(ffn, Sum) + C(qk, Sum))**2 + C(block)", data).fit()
    anova = full.wald_test_terms(scalar=True).summary_frame()
    for axes, name in ((("ffn",), "C(ffn, Sum)"), (("norm", "ffn"), "C(norm, Sum):C(ffn, Sum)"), (("qk",), "C(qk, Sum)")):
        assert found.tests[axes].f == pytest.approx(anova.loc[name, "F"])
        assert found.tests[axes].p == pytest.approx(anova.loc[name, "P>F"], rel=1e-6)
        assert found.tests[axes].df == anova.loc[name, "df constraint"]


def test_of_an_axis_with_two_levels_the_two_tests_agree() -> None:
    levels, blocks = runs(LARGE, 3)
    found = effects(levels, noisy(levels, blocks), blocks)
    assert found.tests["norm",].p == pytest.approx(one(found.main, "rmsnorm").p, rel=1e-6)


def test_an_additive_table_has_no_interaction() -> None:
    levels, blocks = runs(LARGE, 3)
    worth = {"rmsnorm": -0.3, "swiglu": -0.5, "relu2": 0.25, "rms": 0.125}
    losses = [3 + sum(worth.get(v, 0) for v in run.values()) + block / 4 for run, block in zip(levels, blocks, strict=True)]
    found = effects(levels, losses, blocks)
    for effect in found.interactions:
        assert effect.mean == pytest.approx(0, abs=1e-12)
        assert effect.p == 1.0
    assert {effect.levels[0]: effect.mean for effect in found.main} == pytest.approx(worth)
    assert all(effect.p == 0.0 for effect in found.main)
    assert found.tests["norm", "ffn"][::2] == (0.0, 1.0)
    assert found.tests["ffn",][::2] == (math.inf, 0.0)
    assert found.sd == 0.0


def test_losses_that_are_all_alike_have_no_effect() -> None:
    levels, blocks = runs(TWO, 3)
    found = effects(levels, [2.5] * 12, blocks)
    assert all(effect.p == 1.0 for effect in (*found.main, *found.interactions))


def test_a_block_that_is_worse_for_all_moves_no_effect() -> None:
    levels, blocks = runs(LARGE, 3)
    losses = noisy(levels, blocks)
    moved = [loss + 5 * (block == 1) for loss, block in zip(losses, blocks, strict=True)]
    for ours, theirs in zip(effects(levels, moved, blocks).main, effects(levels, losses, blocks).main, strict=True):
        assert ours[3:] == pytest.approx(theirs[3:])


def test_effects_have_the_unit_of_the_loss() -> None:
    levels, blocks = runs(LARGE, 3)
    losses = noisy(levels, blocks)
    for ours, theirs in zip(
        effects(levels, [100 * loss for loss in losses], blocks).interactions, effects(levels, losses, blocks).interactions, strict=True
    ):
        assert ours[3:] == pytest.approx((*(100 * value for value in theirs[3:6] if value is not None), theirs.p))


def test_the_order_of_runs_is_no_matter_but_for_which_level_is_first() -> None:
    levels, blocks = runs(LARGE, 3)
    losses = noisy(levels, blocks)
    order = [0, *np.random.default_rng(0).permutation(range(1, len(losses))).tolist()]
    found = effects([levels[i] for i in order], [losses[i] for i in order], [blocks[i] for i in order])
    expected = effects(levels, losses, blocks)
    for effect in expected.main:
        assert one(found.main, *effect.levels)[3:] == pytest.approx(effect[3:])


def test_one_at_a_time_has_effects_and_names_what_it_cannot_tell() -> None:
    levels, blocks = runs(TWO, 3)
    kept = [i for i, run in enumerate(levels) if run != {"norm": "rmsnorm", "ffn": "swiglu"}]
    losses = [1.0, 1.1, 1.2, 2.0, 2.1, 2.2, 4.0, 4.1, 4.2]
    found = effects([levels[i] for i in kept], losses, [blocks[i] for i in kept])
    assert one(found.main, "swiglu").mean == pytest.approx(1)
    assert one(found.main, "rmsnorm").mean == pytest.approx(3)
    assert found.interactions == ()
    assert found.aliased == (("norm", "ffn"),)


def test_a_half_fraction_has_main_effects_and_no_pair() -> None:
    """c = a b: each axis is confounded with the pair of the two others."""
    cells = [("-", "-", "+"), ("-", "+", "-"), ("+", "-", "-"), ("+", "+", "+")]
    levels: Levels = [dict(zip("abc", cell, strict=True)) for cell in cells for _ in range(2)]
    worth = {"a": 1.0, "b": 2.0, "c": 4.0}
    losses = [sum(worth[axis] * (value == "+") for axis, value in run.items()) + 0.01 * (i % 2) for i, run in enumerate(levels)]
    found = effects(levels, losses, [0, 1] * 4)
    assert found.aliased == (("a", "b"), ("a", "c"), ("b", "c"))
    means = {effect.axes[0]: effect.mean * (1 if effect.levels == ("+",) else -1) for effect in found.main}
    assert means == pytest.approx(worth)


def test_pairs_that_only_each_other_can_do_for_are_told_by_none() -> None:
    """d = a b c: no axis is confounded with a pair, and ab with cd, ac with bd, ad with bc."""
    cells = [(*cell, "+" if cell.count("+") % 2 else "-") for cell in product("-+", repeat=3)]
    levels: Levels = [dict(zip("abcd", cell, strict=True)) for cell in cells for _ in range(2)]
    found = effects(levels, noisy(levels, [0, 1] * 8), [0, 1] * 8)
    assert len(found.main) == 4
    assert found.interactions == ()
    assert len(found.aliased) == 6


def test_without_runs_to_spare_effects_have_no_interval() -> None:
    levels, blocks = runs(TWO, 1)
    found = effects(levels, [1.0, 2.0, 4.0, 9.0], blocks)
    assert one(found.main, "rmsnorm")[3:] == (pytest.approx(5), None, None, None)
    assert found.tests["norm",] == (None, 1, None)
    assert (found.sd, found.df) == (None, 0)


@pytest.mark.parametrize(
    ("levels", "losses", "blocks", "message"),
    [
        ([{"a": "x"}, {"a": "y"}], [1.0], [0, 0], "one of each for each run"),
        ([], [], [], "effects need runs"),
        ([{}, {}], [1.0, 2.0], [0, 0], "and axes"),
        ([{"a": "x"}, {"b": "y"}], [1.0, 2.0], [0, 0], "a level of each axis, a"),
        ([{"a": "x"}, {"a": "x"}], [1.0, 2.0], [0, 1], "axis a has one level, x"),
        ([{"a": "x"}, {"a": "y"}], [1.0, math.nan], [0, 0], "not finite"),
        ([{"a": "x"}, {"a": "y"}], [1.0, 2.0], [0, 1], "do not tell a and the blocks apart"),
        ([{"a": "x", "b": "x"}, {"a": "y", "b": "y"}], [1.0, 2.0], [0, 0], "do not tell a, b and the blocks apart"),
    ],
)
def test_runs_without_effects_are_refused(levels: Levels, losses: list[float], blocks: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        effects(levels, losses, blocks)


def test_interval_and_p_of_an_effect_agree() -> None:
    """At every seed an interval excludes 0 exactly where p is below 5 %."""
    levels, blocks = runs(TWO, 3)

    def told(seed: int) -> Effects:
        return effects(levels, np.random.default_rng(seed).normal(size=12).tolist(), blocks)

    found = [effect for seed in range(100) for effect in (*told(seed).main, *told(seed).interactions)]
    excluded = [effect.low is not None and effect.high is not None and not effect.low <= 0 <= effect.high for effect in found]
    assert excluded == [effect.p is not None and effect.p < 0.05 for effect in found]
    assert 0 < sum(excluded) < len(found) / 8


LADDER = {
    "plain": {0: 3.0, 1: 3.2, 2: 3.1},
    "norm": {0: 2.8, 1: 3.1, 2: 2.9},
    "ffn": {0: 2.7, 1: 2.75, 2: 2.8, 3: 1.0},
    "position": {0: 2.75, 1: 2.8, 2: 2.95},
}


def test_a_ladder_by_hand() -> None:
    found = ladder(LADDER)
    assert [step.name for step in found] == ["norm", "ffn", "position"]
    assert [step.mean for step in found] == pytest.approx([-0.5 / 3, -0.55 / 3, 0.25 / 3])
    assert [step.total for step in found] == pytest.approx([-0.5 / 3, -1.05 / 3, -0.8 / 3])


def test_the_steps_of_a_ladder_add_up_though_blocks_are_missing() -> None:
    rng = np.random.default_rng(1)
    losses = {f"arm{i}": {b: float(rng.normal(3, 0.1)) for b in range(8) if (i, b) not in {(1, 2), (4, 5)}} for i in range(6)}
    found = ladder(losses)
    blocks = [0, 1, 3, 4, 6, 7]
    end_to_end = sum(losses["arm5"][b] - losses["arm0"][b] for b in blocks) / len(blocks)
    assert math.fsum(step.mean for step in found) == pytest.approx(end_to_end)
    assert found[-1].total == pytest.approx(end_to_end)
    assert [step.total for step in found] == pytest.approx(np.cumsum([step.mean for step in found]).tolist())


def test_few_blocks_pool_the_noise_of_a_ladder_and_many_do_not() -> None:
    rng = np.random.default_rng(2)
    losses = {f"arm{i}": {b: float(rng.normal(3, 0.1)) for b in range(8)} for i in range(4)}
    own = paired_contrast([losses["arm1"][b] - losses["arm0"][b] for b in range(8)])
    assert ladder(losses)[0][2:4] == (own.low, own.high)
    few = {arm: {b: loss for b, loss in values.items() if b < 3} for arm, values in losses.items()}
    pooled = family(few, "arm0").pooled["arm1"]
    assert ladder(few)[0][2:4] == (pooled.low, pooled.high)


def test_a_ladder_in_one_block_has_no_interval() -> None:
    (step,) = ladder({"a": {0: 3.0}, "b": {0: 2.5}})
    assert step == ("b", -0.5, None, None, -0.5)


@pytest.mark.parametrize(
    ("losses", "message"), [({"a": {0: 1.0}}, "at least two arms"), ({"a": {0: 1.0}, "b": {1: 1.0}}, "no block has all arms")]
)
def test_what_is_no_ladder_is_refused(losses: dict[str, dict[int, float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ladder(losses)
