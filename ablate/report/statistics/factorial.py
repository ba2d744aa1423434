"""Factorial: what each axis does on average over the others, what two do together, and the steps of a ladder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise, product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ablate.report.statistics.contrasts import family

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

TINY = 1e-12
"""Share of the largest loss below which a deviation or an effect is a rounding error."""


class AxisEffect(NamedTuple):
    """A level of one axis against the first, or of two axes together; None where nothing is left to estimate noise from."""

    axes: tuple[str, ...]
    levels: tuple[str, ...]  # one for each axis
    reference: tuple[str, ...]  # the first levels
    mean: float
    low: float | None
    high: float | None
    p: float | None


class AxisTest(NamedTuple):
    """F test of all levels of one axis, or of all combinations of two, at once."""

    f: float | None
    df: int
    p: float | None


class Effects(NamedTuple):
    """`tests` is by axes, ("norm",) or ("norm", "ffn"). `aliased`: the pairs of axes that this design cannot tell from the rest."""

    main: tuple[AxisEffect, ...]
    interactions: tuple[AxisEffect, ...]
    tests: dict[tuple[str, ...], AxisTest]
    aliased: tuple[tuple[str, str], ...]
    sd: float | None  # of what the model leaves
    df: int


class _Term(NamedTuple):
    axes: tuple[str, ...]
    levels: list[tuple[str, ...]]
    columns: Array  # run x level


class _Fit(NamedTuple):
    coefficients: Array
    inverse: Array  # of X'X
    sd: float | None
    df: int
    tiny: float


def effects(levels: Sequence[Mapping[str, str]], losses: Sequence[float], blocks: Sequence[int], confidence: float = 0.95) -> Effects:
    """Main effects and two-way interactions, by least squares with a constant for each block; one entry of each argument for each run.

    A main effect is the difference of a level from the first, averaged over the levels of the other axes with equal weights. An interaction
    is a difference of differences: what both axes change together, less what each changes at the first level of the other. First is what
    comes first in `levels`. Interactions of three axes count as noise. A pair of axes is left out of the model, and named in `aliased`,
    where the design confounds it with blocks, axes or other pairs; the main effects then hold as far as such a pair does nothing.

    Raises ValueError where runs differ in axes, an axis has one level, a loss is not finite, or the axes cannot be told apart.
    """
    values = _checked(levels, losses, blocks)
    mains = [_main(levels, axis, values[axis]) for axis in values]
    base = np.stack([np.array([block == other for block in blocks], float) for other in sorted(set(blocks))], axis=1)
    if not _independent(base, mains):
        raise ValueError(f"these runs do not tell {', '.join(values)} and the blocks apart")
    pairs = [_pair(left, right) for left, right in combinations(mains, 2)]
    kept = [pair for pair in pairs if _estimable(pair, base, [*mains, *(other for other in pairs if other is not pair)])]
    terms = [*mains, *kept]
    fit = _fit(np.hstack([base, *(term.columns for term in terms)]), np.asarray(losses, float))
    told: list[AxisEffect] = []
    tests = {}
    at = base.shape[1]
    for term in terms:
        places = list(range(at, at + len(term.levels)))
        reference = tuple(values[axis][0] for axis in term.axes)
        told += [
            AxisEffect(term.axes, level, reference, *_told(fit, place, confidence))
            for level, place in zip(term.levels, places, strict=True)
        ]
        tests[term.axes] = _tested(fit, places)
        at += len(term.levels)
    aliased = tuple((pair.axes[0], pair.axes[1]) for pair in pairs if pair not in kept)
    single, double = (tuple(effect for effect in told if len(effect.axes) == count) for count in (1, 2))
    return Effects(single, double, tests, aliased, fit.sd, fit.df)


def _checked(levels: Sequence[Mapping[str, str]], losses: Sequence[float], blocks: Sequence[int]) -> dict[str, list[str]]:
    """axis -> its levels, in the order in which they come."""
    if not len(levels) == len(losses) == len(blocks):
        raise ValueError(f"{len(levels)} runs with levels, {len(losses)} losses and {len(blocks)} blocks: one of each for each run")
    if not levels or not levels[0]:
        raise ValueError("effects need runs, and axes")
    if any(set(run) != set(levels[0]) for run in levels):
        raise ValueError(f"every run must have a level of each axis, {', '.join(levels[0])}")
    if not np.isfinite(losses).all():
        raise ValueError("a loss is not finite; leave failed runs out")
    values = {axis: list(dict.fromkeys(run[axis] for run in levels)) for axis in levels[0]}
    for axis, found in values.items():
        if len(found) < 2:
            raise ValueError(f"axis {axis} has one level, {found[0]}: there is no effect of it")
    return values


def _main(levels: Sequence[Mapping[str, str]], axis: str, values: Sequence[str]) -> _Term:
    """A column for each level but the first: 1 where a run has it, less 1 / levels, so that other axes are averaged over."""
    columns = [[(run[axis] == value) - 1 / len(values) for run in levels] for value in values[1:]]
    return _Term((axis,), [(value,) for value in values[1:]], np.array(columns).T)


def _pair(left: _Term, right: _Term) -> _Term:
    columns = [left.columns[:, i] * right.columns[:, j] for i, j in product(range(len(left.levels)), range(len(right.levels)))]
    return _Term(left.axes + right.axes, [a + b for a, b in product(left.levels, right.levels)], np.stack(columns, axis=1))


def _independent(base: Array, terms: Sequence[_Term]) -> bool:
    whole = np.hstack([base, *(term.columns for term in terms)])
    return int(np.linalg.matrix_rank(whole)) == whole.shape[1]


def _estimable(pair: _Term, base: Array, others: Sequence[_Term]) -> bool:
    """Whether no other column can do what those of the pair do."""
    rest = np.hstack([base, *(term.columns for term in others)])
    return int(np.linalg.matrix_rank(np.hstack([rest, pair.columns])) - np.linalg.matrix_rank(rest)) == len(pair.levels)


def _fit(design: Array, losses: Array) -> _Fit:
    coefficients: Array = np.linalg.lstsq(design, losses, rcond=None)[0].astype(np.float64)
    df, tiny = design.shape[0] - design.shape[1], TINY * float(np.abs(losses).max())
    sd = float(np.sqrt(((losses - design @ coefficients) ** 2).sum() / df)) if df else None
    return _Fit(coefficients, np.linalg.inv(design.T @ design), 0.0 if sd is not None and sd <= tiny else sd, df, tiny)


def _told(fit: _Fit, place: int, confidence: float) -> tuple[float, float | None, float | None, float | None]:
    """Mean, interval and p of one coefficient."""
    from scipy.stats import t

    mean = float(fit.coefficients[place])
    if fit.sd is None:
        return mean, None, None, None
    if not fit.sd:
        return mean, mean, mean, float(abs(mean) <= fit.tiny)
    se = fit.sd * float(np.sqrt(fit.inverse[place, place]))
    half = float(t.ppf((1 + confidence) / 2, fit.df)) * se
    return mean, mean - half, mean + half, 2 * float(t.sf(abs(mean) / se, fit.df))


def _tested(fit: _Fit, places: Sequence[int]) -> AxisTest:
    """Wald's F: b' C^-1 b / (q sd^2), of q coefficients b and their block C of (X'X)^-1."""
    from scipy.stats import f

    own = fit.coefficients[places]
    if fit.sd is None:
        return AxisTest(None, len(places), None)
    if not fit.sd:
        nothing = bool((np.abs(own) <= fit.tiny).all())
        return AxisTest(0.0 if nothing else float("inf"), len(places), float(nothing))
    found = float(own @ np.linalg.solve(fit.inverse[np.ix_(places, places)], own)) / (len(places) * fit.sd**2)
    return AxisTest(found, len(places), float(f.sf(found, len(places), fit.df)))


class Rung(NamedTuple):
    """One step of a ladder: the arm less the arm before it, and `total`, the arm less the first."""

    name: str
    mean: float
    low: float | None
    high: float | None
    total: float


def ladder(losses: Mapping[str, Mapping[int, float]]) -> list[Rung]:
    """The steps between arms in the order given, arm -> block -> loss, over the blocks that all of them have, so that means add up.

    Each interval is that of the family of contrasts with the arm before (`family`): pooled or its own, by the number of blocks. Raises
    ValueError for less than two arms, or where no block has all of them.
    """
    names = list(losses)
    if len(names) < 2:
        raise ValueError(f"a ladder needs at least two arms, not {names}")
    blocks = sorted(set.intersection(*(set(own) for own in losses.values())))
    if not blocks:
        raise ValueError(f"no block has all arms of the ladder, {', '.join(names)}")
    common = {name: {block: own[block] for block in blocks} for name, own in losses.items()}
    means = {name: math.fsum(own.values()) / len(blocks) for name, own in common.items()}
    rungs = []
    for before, name in pairwise(names):
        step = family(common, before).contrasts[name]
        rungs.append(Rung(name, step.mean, step.low, step.high, means[name] - means[names[0]]))
    return rungs
