"""Every row of published architectures: the same weights give the same logits and gradients, and as many parameters.

`python -m tests.model.test_parity` prints the table of all rows; words after it choose rows by their names.
"""

from __future__ import annotations

import sys

import pytest
from rich.console import Console
from rich.table import Table

from tests.model import parity_layernorm, parity_moe, parity_rmsnorm
from tests.model.parity import GRADIENT_TOLERANCE, LOGITS_TOLERANCE, Case, measure

CASES: list[Case] = [*parity_layernorm.CASES, *parity_rmsnorm.CASES, *parity_moe.CASES]


def as_parameters(cases: list[Case]) -> list[object]:
    return [pytest.param(case, id=case.name, marks=() if case.quick else (pytest.mark.slow,)) for case in cases]


@pytest.mark.parametrize("case", as_parameters(CASES))
def test_logits_and_gradients_and_parameters_are_those_of_the_published_model(case: Case) -> None:
    measured = measure(case)
    assert measured.logits < LOGITS_TOLERANCE
    assert measured.gradients < GRADIENT_TOLERANCE, measured.worst_gradient
    assert measured.parameters == measured.their_parameters


def table_of(cases: list[Case]) -> Table:
    """One line a row: errors as the tolerances count them."""
    table = Table("row", "logits", "largest logit", "gradients", "parameters", title="Parity with transformers")
    for case in cases:
        found = measure(case)
        assert found.parameters == found.their_parameters, case.name
        table.add_row(case.name, f"{found.logits:.1e}", f"{found.largest_logit:.2g}", f"{found.gradients:.1e}", f"{found.parameters:,}")
    return table


def main(words: list[str]) -> None:
    chosen = [case for case in CASES if not words or any(word in case.name for word in words)]
    Console().print(table_of(chosen))


if __name__ == "__main__":
    main(sys.argv[1:])
