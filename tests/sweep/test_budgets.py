"""Budgets and looks: the baseline on other numbers of tokens, and verdicts that may be read before the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ablate.errors import ConfigError
from ablate.sweep.composer import Composer
from ablate.sweep.plan import BUDGET_BLOCKS, Cell, Planner
from ablate.sweep.study import parse_study
from tests.sweep.test_plan import write


@pytest.fixture(scope="module")
def composer() -> Iterator[Composer]:
    with Composer() as composer:
        yield composer


def planner(composer: Composer, short: list[str], **values: Any) -> Planner:
    common = [text for text in short if not text.startswith("optim.lr=")]
    arms = {"layer": ["norm=layernorm"]}
    study = parse_study({"question": "Which?", "design": "arms", "arms": arms, "blocks": 3, **values}, "mine")
    return Planner(study, composer, common, lambda text: None)


def test_budgets_train_the_baseline_alone_on_their_shares_of_the_tokens_in_the_first_blocks(composer: Composer, short: list[str]) -> None:
    plan = planner(composer, short, budgets=[0.5, 2.0]).plan()
    usual = {cell.seed: cell for cell in plan.of_stage("confirm") if cell.arm == "baseline"}
    tokens = usual[0].cfg.train.tokens
    budgets = plan.of_stage("budget")
    assert {(cell.arm, cell.seed, cell.cfg.train.tokens) for cell in budgets} == {
        ("baseline", seed, int(share * tokens)) for share in (0.5, 2.0) for seed in range(BUDGET_BLOCKS)
    }
    for cell in budgets:
        assert cell.share == cell.cfg.train.tokens / tokens
        changed = usual[cell.seed].cfg.model_copy(update={"train": cell.cfg.train})
        assert changed == cell.cfg  # a whole schedule of its own, and nothing else
    assert plan.cells[-len(budgets) :] == budgets  # last: verdicts do not wait for them


def test_budgets_of_a_tuned_study_wait_for_the_baseline_and_have_its_best_rate(composer: Composer, short: list[str]) -> None:
    tuning = {"lr": [1e-3, 2e-3, 4e-3], "seeds": [100]}
    made = planner(composer, short, budgets=[2.0], tuning=tuning)
    before = made.plan()
    assert not before.of_stage("budget")
    assert before.later == 2 * 3 + BUDGET_BLOCKS

    def loss(cell: Cell) -> float:
        return 2.0 if cell.rate == 2e-3 else 2.5

    for cell in before.of_stage("tune"):
        write(cell, "done", loss(cell))
    after = made.plan()
    assert {cell.rate for cell in after.of_stage("budget")} == {2e-3}
    assert len(after.of_stage("budget")) == BUDGET_BLOCKS
    assert after.later == 0


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"budgets": [1.0, 2.0]}, "budgets"),
        ({"budgets": [2.0, 0.5]}, "budgets"),
        ({"budgets": [-1.0]}, "budgets"),
        ({"budgets": [0.5], "arms": {"long": ["train.tokens=100000"]}}, "budgets"),
        ({"looks": [3]}, "looks"),
        ({"looks": [1]}, "looks"),
    ],
)
def test_budgets_and_looks_that_make_no_sense_are_refused(composer: Composer, short: list[str], values: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        planner(composer, short, **values)
    assert [problem.key.partition(".")[0] for problem in caught.value.problems] == [key]
