"""designs: the arms of a study.

A design says which combinations of choices are compared, and with which of them the others are. Whether a combination can be had is asked
of `refused`: arms that a person named must be possible, cells of a grid and steps of a ladder need not all be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations, product
from typing import Any

from ablate.errors import ConfigError, Problem
from ablate.sweep.arms import Arm, Arms, Cell, Dropped, Refused, axes_of, names_of, overrides_of
from ablate.sweep.fraction import fractional
from ablate.sweep.ladder import ladder
from ablate.sweep.study import ALL, BASELINE, PLAIN, Study, over

__all__ = ["Arm", "Arms", "Refused", "arms_of"]


def arms_of(study: Study, refused: Refused, config_dir: str | None = None) -> Arms:
    """The arms of a study; raises one ConfigError for all that cannot be had.

    `refused` is asked about whole command lines, study.set and an arm together. `config_dir` is a folder of the user's own with the arch
    files of a ladder.
    """

    def why(overrides: Sequence[str]) -> str | None:
        return refused(over(study.set, overrides))

    if study.design == "grid":
        return _grid(study, why)
    if study.design == "ladder":
        return ladder(study, why, config_dir)
    if study.design == "fractional":
        return _possible(fractional(study), "axes", why)
    makers = {"arms": _arms, "one_at_a_time": _one_at_a_time, "add_one": _add_one, "leave_one_out": _leave_one_out}
    key = {"arms": "arms", "one_at_a_time": "axes"}.get(study.design, "changes")
    return _possible(makers[study.design](study), key, why)


def _possible(arms: Arms, key: str, why: Refused) -> Arms:
    """The same arms, each of which can be had."""
    reasons = [(arm, why(arm.overrides)) for arm in arms.arms]
    problems = [Problem(arm.name if arm.name == BASELINE else f"{key}.{arm.name}", reason) for arm, reason in reasons if reason]
    if len(problems) == len(reasons) > 1 and len({problem.message for problem in problems}) == 1:  # of what all arms have
        problems = [Problem("set", problems[0].message)]
    if problems:
        raise ConfigError(problems)
    return arms


def _arms(study: Study) -> Arms:
    named = study.arms or {}
    offsets = study.seed_offsets or {}
    arms = [Arm(name, tuple(overrides), {"arm": name}, offsets.get(name, 0)) for name, overrides in named.items()]
    return Arms((Arm(BASELINE, tuple(study.baseline or ()), {"arm": BASELINE}), *arms), BASELINE, notes=tuple(_fresh(arms)))


def _fresh(arms: Sequence[Arm]) -> Iterator[str]:
    fresh = [arm.name for arm in arms if arm.seed_offset]
    if fresh:
        yield f"{', '.join(fresh)}: the baseline on seeds of its own, so every difference is chance, and pairs have nothing in common"


def _add_one(study: Study) -> Arms:
    changes = study.changes or {}
    base = study.baseline or []
    single = [Arm(name, tuple(over(base, overrides)), _made(changes, [name])) for name, overrides in changes.items()]
    return Arms((Arm(BASELINE, tuple(base), _made(changes, [])), *single, _all(study)), BASELINE)


def _leave_one_out(study: Study) -> Arms:
    """Compared with all changes together, so that a loss is what a change was worth among the others."""
    changes = study.changes or {}
    base = study.baseline or []
    others = []
    for name in changes:
        kept = [other for other in changes if other != name]
        others.append(Arm(f"without_{name}", tuple(over(base, _joined(changes, kept))), _made(changes, kept)))
    return Arms((_all(study), *others, Arm(PLAIN, tuple(base), _made(changes, []))), ALL)


def _all(study: Study) -> Arm:
    changes = study.changes or {}
    return Arm(ALL, tuple(over(study.baseline or [], _joined(changes, changes))), _made(changes, changes))


def _joined(changes: Mapping[str, Sequence[str]], names: Sequence[str] | Mapping[str, Any]) -> list[str]:
    return list(chain.from_iterable(changes[name] for name in names))


def _made(changes: Mapping[str, Any], names: Sequence[str] | Mapping[str, Any]) -> dict[str, str]:
    return {name: "on" if name in names else "off" for name in changes}


def _one_at_a_time(study: Study) -> Arms:
    axes = axes_of(study)
    first = {key: values[0] for key, values in axes.items()}
    base = overrides_of(first) if study.baseline is None else tuple(study.baseline)
    levels = first if study.baseline is None else {}
    cells = [{key: value} for key, values in axes.items() for value in values[study.baseline is None :]]
    overrides = [tuple(over(base, overrides_of(cell))) for cell in cells]
    kept = [index for index, found in enumerate(overrides) if frozenset(found) != frozenset(base)]
    names = names_of([cells[index] for index in kept], axes)
    arms = [Arm(name, overrides[index], {**levels, **cells[index]}) for name, index in zip(names, kept, strict=True)]
    return Arms((Arm(BASELINE, base, levels), *arms), BASELINE)


def _grid(study: Study, why: Refused) -> Arms:
    axes = axes_of(study)
    cells, dropped = _cells(axes, why)
    _each_fits(axes, cells, dropped, why)
    given = study.baseline
    base = overrides_of(_reduced({key: values[0] for key, values in axes.items()}, axes, why)) if given is None else tuple(given)
    reason = why(base)
    if reason:
        cure = "; put other values first, or name a baseline" if given is None else ""
        raise ConfigError.at(BASELINE, f"{' '.join(base)} cannot be had: {reason}{cure}")
    levels = next((cell for cell in cells if frozenset(overrides_of(cell)) == frozenset(base)), {})
    others = [cell for cell in cells if frozenset(overrides_of(cell)) != frozenset(base)]
    names = names_of([{key: value for key, value in cell.items() if levels.get(key) != value} or cell for cell in others], axes)
    arms = [Arm(name, overrides_of(cell), cell) for name, cell in zip(names, others, strict=True)]
    return Arms((Arm(BASELINE, base, levels), *arms), BASELINE, tuple(dropped))


def _cells(axes: Mapping[str, Sequence[str]], why: Refused) -> tuple[list[Cell], Dropped]:
    """The cells that can be had, each once, and the others with their reasons."""
    cells: dict[frozenset[str], Cell] = {}
    dropped: Dropped = []
    for values in product(*axes.values()):
        asked = dict(zip(axes, values, strict=True))
        cell = _reduced(asked, axes, why)
        reason = why(overrides_of(cell))
        if reason:
            dropped.append((overrides_of(asked), reason))
            continue
        if cell != asked:
            gone = ", ".join(key for key in asked if key not in cell)
            dropped.append((overrides_of(asked), f"{gone} does not apply: it is the cell {' '.join(overrides_of(cell))}"))
        cells.setdefault(frozenset(overrides_of(cell)), cell)
    return list(cells.values()), dropped


def _reduced(cell: Cell, axes: Mapping[str, Sequence[str]], why: Refused) -> Cell:
    """The cell without the options that its variants do not have: norm.fraction of norm=rmsnorm.

    An option of another axis falls away where none of its values can be had and the cell without it can.
    """
    if why(overrides_of(cell)) is None:
        return cell
    options = [key for key in cell if any(key.startswith(f"{axis.replace('/', '.')}.") for axis in axes)]
    for count in range(1, len(options) + 1):
        for gone in combinations(options, count):
            rest = {key: value for key, value in cell.items() if key not in gone}
            filled = ({**rest, **dict(zip(gone, values, strict=True))} for values in product(*(axes[key] for key in gone)))
            if why(overrides_of(rest)) is None and all(why(overrides_of(other)) for other in filled):
                return rest
    return cell


def _each_fits(axes: Mapping[str, Sequence[str]], cells: Sequence[Cell], dropped: Dropped, why: Refused) -> None:
    """A value that no possible cell has is a mistake, not a hole in the grid."""
    if not cells:
        said = (re.sub(r" \(got [^)]*\)", "", reason) for _, reason in dropped)  # an unknown key is one problem, not one a value
        reasons = dict.fromkeys(said)
        raise ConfigError(Problem("axes", f"no cell of the grid can be had: {reason}") for reason in reasons)
    problems = []
    for key, values in axes.items():
        for value in values:
            if not any(cell.get(key) == value for cell in cells):
                refusals = dict.fromkeys(why(overrides) for overrides, _ in dropped if f"{key}={value}" in overrides)
                problems.append(Problem(f"axes.{key}", f"{value} fits nowhere: {' / '.join(filter(None, refusals))}"))
    if problems:
        raise ConfigError(problems)
