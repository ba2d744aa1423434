"""Every row of published architectures: the same weights give the same logits and gradients, and as many parameters.

`python -m tests.model.test_parity` prints the table of all rows, after those of transformers the logits of the references in
test_references.py; words after it choose rows by their names.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest
import torch
from rich.console import Console
from rich.table import Table

from ablate.pretrained import family_of, load_pretrained
from ablate.pretrained.tables import convert
from tests.model import parity_layernorm, parity_moe, parity_rmsnorm, test_references
from tests.model.parity import GRADIENT_TOLERANCE, LOGITS_TOLERANCE, Case, measure, their_model, weights_of

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
    config = theirs.config.to_dict()
    expected, loaded = convert(family_of(config), config, weights_of(theirs)), load_pretrained(tmp_path)[1].state_dict()
    assert expected.keys() == loaded.keys()
    assert all(torch.equal(expected[name], loaded[name]) for name in expected)


def table_of(cases: list[Case], written_out: list[str]) -> tuple[Table, bool]:
    """One line a row, errors as the tolerances count them, and whether all rows hold; `written_out` are the rows of test_references.py."""
    table = Table("row", "logits", "largest logit", "gradients", "parameters", "holds", title="Parity with transformers")
    table.caption = "– : not in transformers, compared with a reference written from its paper or code" if written_out else None
    all_hold = True
    for case in cases:
        found = measure(case)
        same = found.parameters == found.their_parameters
        holds = found.logits < LOGITS_TOLERANCE and found.gradients < GRADIENT_TOLERANCE and same
        all_hold &= holds
        errors = f"{found.logits:.1e}", f"{found.largest_logit:.2g}", f"{found.gradients:.1e}"
        table.add_row(case.name, *errors, f"{found.parameters:,}", "yes" if holds else "NO")
    for arch in written_out:
        logits, largest, parameters = test_references.measure(arch)
        holds = logits < LOGITS_TOLERANCE
        all_hold &= holds
        table.add_row(arch, f"{logits:.1e}", f"{largest:.2g}", "–", f"{parameters:,}", "yes" if holds else "NO")
    return table, all_hold


def main(words: list[str]) -> int:
    def chosen(name: str) -> bool:
        return not words or any(word in name for word in words)

    written_out = [arch for arch in test_references.REFERENCES if chosen(arch)]
    table, all_hold = table_of([case for case in CASES if chosen(case.name)], written_out)
    Console().print(table)
    return 0 if all_hold else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
