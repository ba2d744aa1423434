from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from ablate.errors import ConfigError
from ablate.train.schedule import SCHEDULE, Schedule
from tests.model.conftest import yaml_of

STEPS = 200
OPTIONS = [(word, option) for word in SCHEDULE.words() for option in SCHEDULE.options(word).model_fields if option != "kind"]


def schedule(word: str, **options: Any) -> Schedule:
    """A schedule with the options of its YAML, but for those given."""
    return SCHEDULE.build(SCHEDULE.options(word).model_validate({**yaml_of("schedule", word), **options}))


def factors(word: str, steps: int = STEPS, **options: Any) -> list[float]:
    made = schedule(word, **options)
    return [made.factor(step, steps) for step in range(steps)]


@pytest.mark.parametrize("word", SCHEDULE.words())
def test_warm_up_rises_in_equal_steps_to_one_at_its_last(word: str) -> None:
    assert factors(word, warmup_fraction=0.05)[:10] == pytest.approx([i / 10 for i in range(1, 11)])


@pytest.mark.parametrize("word", SCHEDULE.words())
def test_without_warm_up_the_first_steps_are_not_slowed(word: str) -> None:
    assert factors(word, warmup_fraction=0.0)[0] == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("word", SCHEDULE.words())
def test_factors_never_rise_after_warm_up(word: str) -> None:
    after = factors(word, warmup_fraction=0.05)[9:]
    assert all(later <= earlier for earlier, later in itertools.pairwise(after))


@pytest.mark.parametrize("word", SCHEDULE.words())
@pytest.mark.parametrize("steps", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("warmup_fraction", [0.0, 0.3, 0.5, 0.8])
def test_factors_of_runs_of_any_length_lie_from_0_to_1(word: str, steps: int, warmup_fraction: float) -> None:
    assert all(0 <= factor <= 1 for factor in factors(word, steps, warmup_fraction=warmup_fraction))


def test_constant_stays_at_one() -> None:
    assert set(factors("constant", warmup_fraction=0.05)[9:]) == {1.0}


@pytest.mark.parametrize("word", ["cosine", "linear", "wsd"])
@pytest.mark.parametrize("final_fraction", [0.0, 0.1, 1.0])
def test_the_last_step_has_the_final_fraction(word: str, final_fraction: float) -> None:
    assert factors(word, final_fraction=final_fraction)[-1] == pytest.approx(final_fraction, abs=1e-12)


def test_linear_falls_by_the_same_amount_at_every_step() -> None:
    after = factors("linear", warmup_fraction=0.05, final_fraction=0.24)[9:]
    falls = [earlier - later for earlier, later in itertools.pairwise(after)]
    assert falls == pytest.approx([0.76 / 190] * 190)


def test_cosine_is_at_its_mean_half_way_and_near_its_ends_a_quarter_before_and_after() -> None:
    values = factors("cosine", warmup_fraction=0.1, final_fraction=0.2)
    quarters = [values[20 + 45 * quarter - 1] for quarter in (1, 2, 3)]
    assert quarters == pytest.approx([0.2 + 0.8 * (1 + math.sqrt(0.5)) / 2, 0.6, 0.2 + 0.8 * (1 - math.sqrt(0.5)) / 2])


def test_wsd_stays_at_one_until_its_decay_and_then_falls_in_a_straight_line() -> None:
    values = factors("wsd", warmup_fraction=0.05, decay_fraction=0.2, final_fraction=0.1)
    assert set(values[9:160]) == {1.0}
    assert values[160:] == pytest.approx([1 - 0.9 * i / 40 for i in range(1, 41)])


def test_decay_of_wsd_is_a_share_of_the_whole_run_whatever_the_warm_up() -> None:
    for warmup_fraction in (0.0, 0.1, 0.5):
        assert sum(factor < 1 for factor in factors("wsd", warmup_fraction=warmup_fraction, decay_fraction=0.3)[100:]) == 60


@pytest.mark.parametrize("tenths", range(10))
def test_wsd_takes_a_warm_up_and_a_decay_that_fill_the_run(tenths: int) -> None:
    values = factors("wsd", warmup_fraction=tenths / 10, decay_fraction=(10 - tenths) / 10, final_fraction=0.0)
    assert max(values) == pytest.approx(1, abs=0.006)


def test_wsd_refuses_a_warm_up_and_a_decay_longer_than_the_run() -> None:
    with pytest.raises(ConfigError, match=r"warmup_fraction=0\.6 \+ decay_fraction=0\.5") as raised:
        schedule("wsd", warmup_fraction=0.6, decay_fraction=0.5)
    assert [problem.key for problem in raised.value.problems] == ["schedule.decay_fraction"]


@pytest.mark.parametrize(("word", "option"), OPTIONS)
def test_an_option_changes_the_factors(word: str, option: str) -> None:
    assert factors(word, **{option: 0.3}) != factors(word)
