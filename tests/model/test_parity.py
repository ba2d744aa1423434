"""Every row of published architectures: the same weights give the same logits and gradients, and as many parameters.

`python -m tests.model.test_parity` prints the table of all rows; words after it choose rows by their names.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest
import torch
from rich.console import Console
from rich.table import Table

from ablate.pretrained import load_pretrained
from tests.model import parity_layernorm, parity_moe, parity_rmsnorm
from tests.model.parity import GRADIENT_TOLERANCE, LOGITS_TOLERANCE, Case, measure, our_model, their_model

CASES: list[Case] = [*parity_layernorm.CASES, *parity_rmsnorm.CASES, *parity_moe.CASES]


def as_parameters(cases: list[Case]) -> list[object]:
    return [pytest.param(case, id=case.name, marks=() if case.quick else (pytest.mark.slow,)) for case in cases]


@pytest.mark.parametrize("case", as_parameters(CASES))
def test_logits_and_gradients_and_parameters_are_those_of_the_published_model(case: Case) -> None:
    measured = measure(case)
    assert measured.logits < LOGITS_TOLERANCE
    assert measured.gradients < GRADIENT_TOLERANCE, measured.worst_gradient
    assert measured.parameters == measured.their_parameters


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_folder_that_transformers_saves_gives_the_same_weights(case: Case, tmp_path: Path) -> None:
    """Names on disk are not always those in memory: experts are stacked in one and apart in the other."""
    theirs = their_model(case)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs.save_pretrained(tmp_path)
    expected, loaded = our_model(case, theirs).state_dict(), load_pretrained(tmp_path)[1].state_dict()
    assert expected.keys() == loaded.keys()
    assert all(torch.equal(expected[name], loaded[name]) for name in expected)


def table_of(cases: list[Case]) -> tuple[Table, bool]:
    """One line a row, errors as the tolerances count them, and whether all rows hold."""
    table = Table("row", "logits", "largest logit", "gradients", "parameters", "holds", title="Parity with transformers")
    all_hold = True
    for case in cases:
        found = measure(case)
        same = found.parameters == found.their_parameters
        holds = found.logits < LOGITS_TOLERANCE and found.gradients < GRADIENT_TOLERANCE and same
        all_hold &= holds
        errors = f"{found.logits:.1e}", f"{found.largest_logit:.2g}", f"{found.gradients:.1e}"
        table.add_row(case.name, *errors, f"{found.parameters:,}", "yes" if holds else "NO")
    return table, all_hold


def main(words: list[str]) -> int:
    table, all_hold = table_of([case for case in CASES if not words or any(word in case.name for word in words)])
    Console().print(table)
    return 0 if all_hold else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
