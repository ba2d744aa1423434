"""fraction: a two-level fractional factorial of a stated resolution (Box and Hunter 1961), with what it cannot tell apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from ablate.errors import ConfigError
from ablate.sweep.arms import Arm, Arms, axes_of, names_of, overrides_of
from ablate.sweep.study import BASELINE, Study

RESOLUTIONS = {"III": 3, "IV": 4, "V": 5}
DEFAULT_RESOLUTION = "IV"


def fractional(study: Study) -> Arms:
    """The smallest fraction of that resolution or better, the full factorial if none is smaller. The cell of first values is in it."""
    axes = axes_of(study)
    signs = fraction(len(axes), RESOLUTIONS[study.resolution or DEFAULT_RESOLUTION])
    cells = [{key: values[int(sign > 0)] for (key, values), sign in zip(axes.items(), row, strict=True)} for row in signs]
    base, *others = cells
    names = names_of([{key: value for key, value in cell.items() if value != base[key]} for cell in others], axes)
    arms = [Arm(name, overrides_of(cell), cell) for name, cell in zip(names, others, strict=True)]
    notes = (f"{len(cells)} of {2 ** len(axes)} cells, {_resolution(signs)}", *aliases(signs, list(axes)))
    return Arms((Arm(BASELINE, overrides_of(base), base), *arms), BASELINE, notes=notes)


def fraction(factors: int, resolution: int) -> NDArray[np.int64]:
    """A row of -1 and +1 for each arm, the first of them all -1. To change the signs of a factor keeps what is aliased."""
    try:
        from pydoe import fracfact_by_res  # type: ignore[import-untyped]  # here, since it takes two seconds and few studies need it
    except ModuleNotFoundError:
        raise ConfigError.at("design", "fractional needs the package pydoe, which needs Python 3.11; another design does not") from None

    design = np.asarray(fracfact_by_res(factors, resolution)).astype(np.int64)
    design = design * -design[0]
    return design[np.lexsort(design.T[::-1])]


def words_of(signs: NDArray[np.int64], length: int) -> list[tuple[int, ...]]:
    """The words of that length in the defining relation: sets of factors whose product is the same in every arm."""
    return [word for word in combinations(range(signs.shape[1]), length) if len(set(np.prod(signs[:, word], axis=1).tolist())) == 1]


def _resolution(signs: NDArray[np.int64]) -> str:
    if signs.shape[0] == 2 ** signs.shape[1]:
        return "the full factorial: nothing is aliased"
    found = next((name for name, length in RESOLUTIONS.items() if words_of(signs, length)), None)
    effects = {"III": "main effects are aliased with interactions of two", "IV": "no main effect is aliased with an interaction of two"}
    clear = "no main effect and no interaction of two is aliased with another of them"
    return f"resolution {found or 'VI or more'}: {effects.get(found or '', clear)}"


def aliases(signs: NDArray[np.int64], names: Sequence[str]) -> Iterator[str]:
    """Main effects and interactions of two that cannot be told apart, from the words of three and of four factors."""
    pairs: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for word in (*words_of(signs, 3), *words_of(signs, 4)):
        for part in (part for size in (1, 2) for part in combinations(word, size)):
            rest = tuple(factor for factor in word if factor not in part)
            if len(rest) <= 2:
                pairs.setdefault(part, {part}).add(rest)
    groups = sorted(
        {tuple(sorted(group, key=lambda part: (len(part), part))) for group in pairs.values()}, key=lambda group: (len(group[0]), group)
    )
    for group in groups:
        yield "cannot be told apart: " + " = ".join(" x ".join(names[factor] for factor in part) for part in group)
