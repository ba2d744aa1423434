"""Designs: which arms there are, what they are compared with, and what is dropped or refused because it cannot be had."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ablate.composition import compose
from ablate.config import ARCHITECTURE, meta_model, same_architecture
from ablate.errors import ConfigError
from ablate.model.count import parameters
from ablate.shipped import conf_dir
from ablate.sweep.arms import Arm, Arms, match_overrides, names_of
from ablate.sweep.composer import Composer
from ablate.sweep.designs import arms_of
from ablate.sweep.fraction import aliases, fraction, words_of
from ablate.sweep.ladder import words_of as words_of_arch
from ablate.sweep.study import NAME, Study, load_study, over, parse_study, shipped_studies

Refused = Callable[[Sequence[str]], str | None]

NORMS = {"norm": ["rmsnorm", "layernorm"], "placement": ["pre", "post"]}
FACTORS = {"norm": ["rmsnorm", "layernorm"], "ffn": ["swiglu", "gelu"], "head": ["untied", "tied"], "position": ["rope", "alibi"]}


def study(design: str, **values: Any) -> Study:
    return parse_study({"question": "Which?", "design": design, "blocks": 3, **values}, "mine")


def nothing(overrides: Sequence[str]) -> None:
    """All can be had."""


def unless(*together: str) -> Refused:
    """Refuses what has all these overrides."""
    return lambda overrides: f"no {' with '.join(together)}" if set(together) <= set(overrides) else None


def by_name(arms: Arms) -> dict[str, tuple[str, ...]]:
    return {arm.name: arm.overrides for arm in arms.arms}


@pytest.fixture(scope="module")
def composer() -> Iterator[Composer]:
    with Composer() as composer:
        yield composer


MADE = {
    "arms": study("arms", arms={"layer": ["norm=layernorm"], "again": []}, seed_offsets={"again": 1000}),
    "grid": study("grid", axes=NORMS),
    "one_at_a_time": study("one_at_a_time", axes=NORMS),
    "add_one": study("add_one", changes={"norm": ["norm=layernorm"], "ffn": ["ffn=gelu"]}),
    "leave_one_out": study("leave_one_out", changes={"norm": ["norm=layernorm"], "ffn": ["ffn=gelu"]}),
    "ladder": study("ladder", ladder={"from": "gpt2", "to": "llama3.1"}),
    "fractional": study("fractional", axes=FACTORS),
}


@pytest.mark.parametrize("design", MADE)
def test_arms_are_distinct_and_the_first_is_the_one_compared_with(design: str) -> None:
    found = arms_of(MADE[design], nothing)
    assert found.arms[0].name == found.baseline
    assert len({arm.name.lower() for arm in found.arms}) == len(found.arms) > 1
    assert len({(frozenset(arm.overrides), arm.seed_offset) for arm in found.arms}) == len(found.arms)
    assert all(NAME.fullmatch(arm.name) for arm in found.arms)


@pytest.mark.parametrize("design", MADE)
def test_what_may_be_had_is_asked_with_what_all_runs_have(design: str) -> None:
    asked: list[list[str]] = []
    made = MADE[design].model_copy(update={"set": ["scale=tiny"]})
    arms_of(made, lambda overrides: asked.append(list(overrides)))
    assert asked
    assert all(overrides[0] == "scale=tiny" for overrides in asked)


def test_arms_are_those_given_after_the_baseline() -> None:
    found = arms_of(study("arms", baseline=["ffn=gelu"], arms={"b": ["ffn=relu"], "a": []}), nothing)
    assert by_name(found) == {"baseline": ("ffn=gelu",), "b": ("ffn=relu",), "a": ()}


def test_arm_on_fresh_seeds_keeps_the_overrides_and_says_so() -> None:
    found = arms_of(MADE["arms"], nothing)
    assert [arm.seed_offset for arm in found.arms] == [0, 0, 1000]
    assert "again" in found.notes[0]


def test_all_arms_that_cannot_be_had_are_said_at_once_by_name() -> None:
    made = study("arms", arms={"a": ["norm=a"], "b": ["norm=b"], "c": ["norm=c"]})
    with pytest.raises(ConfigError) as caught:
        arms_of(made, lambda overrides: "no such norm" if {"norm=a", "norm=c"} & set(overrides) else None)
    assert {problem.key: problem.message for problem in caught.value.problems} == {"arms.a": "no such norm", "arms.c": "no such norm"}


def test_grid_is_every_cell_and_its_baseline_the_cell_of_first_values() -> None:
    found = arms_of(MADE["grid"], nothing)
    assert by_name(found) == {
        "baseline": ("norm=rmsnorm", "placement=pre"),
        "post": ("norm=rmsnorm", "placement=post"),
        "layernorm": ("norm=layernorm", "placement=pre"),
        "layernorm+post": ("norm=layernorm", "placement=post"),
    }
    assert found.arms[3].levels == {"norm": "layernorm", "placement": "post"}


def test_grid_without_axes_is_the_baseline_alone() -> None:
    assert by_name(arms_of(study("grid", axes={}), nothing)) == {"baseline": ()}


def test_baseline_of_a_grid_may_be_another_of_its_cells() -> None:
    found = arms_of(study("grid", axes=NORMS, baseline=["placement=post", "norm=layernorm"]), nothing)
    assert len(found.arms) == 4
    assert found.arms[0] == Arm("baseline", ("placement=post", "norm=layernorm"), {"norm": "layernorm", "placement": "post"})


def test_baseline_of_a_grid_may_be_none_of_its_cells() -> None:
    found = arms_of(study("grid", axes=NORMS, baseline=[]), nothing)
    assert by_name(found)["baseline"] == ()
    assert "rmsnorm+pre" in by_name(found)
    assert len(found.arms) == 5


def test_cell_that_cannot_be_had_is_dropped_with_its_reason() -> None:
    found = arms_of(MADE["grid"], unless("norm=layernorm", "placement=post"))
    assert len(found.arms) == 3
    assert found.dropped == ((("norm=layernorm", "placement=post"), "no norm=layernorm with placement=post"),)


def test_value_that_fits_nowhere_is_an_error_with_the_reason() -> None:
    with pytest.raises(ConfigError) as caught:
        arms_of(MADE["grid"], unless("placement=post"))
    [problem] = caught.value.problems
    assert (problem.key, problem.message) == ("axes.placement", "post fits nowhere: no placement=post")


def test_grid_of_no_cell_says_each_reason_once() -> None:
    with pytest.raises(ConfigError) as caught:
        arms_of(MADE["grid"], lambda overrides: "no such scale")
    [problem] = caught.value.problems
    assert "no such scale" in problem.message


def test_grid_whose_first_cell_cannot_be_had_needs_a_baseline() -> None:
    with pytest.raises(ConfigError, match="put other values first"):
        arms_of(MADE["grid"], unless("norm=rmsnorm", "placement=pre"))


def test_option_of_one_variant_leaves_the_others_one_cell(composer: Composer) -> None:
    made = study("grid", axes={"norm": ["rmsnorm", "prmsnorm"], "norm.fraction": [0.25, 0.5]})
    found = arms_of(made, composer.refused)
    assert [arm.overrides for arm in found.arms] == [
        ("norm=rmsnorm",),
        ("norm=prmsnorm", "norm.fraction=0.25"),
        ("norm=prmsnorm", "norm.fraction=0.5"),
    ]
    assert all("does not apply" in reason for _, reason in found.dropped)


def test_option_with_wrong_values_alone_is_an_error_that_says_why(composer: Composer) -> None:
    made = study("grid", axes={"norm": ["rmsnorm", "prmsnorm"], "norm.fraction": [-1, 2]})
    with pytest.raises(ConfigError) as caught:
        arms_of(made, composer.refused)
    assert [problem.key for problem in caught.value.problems] == ["axes.norm.fraction"] * 2
    assert "got -1" in caught.value.problems[0].message


def test_wrong_value_among_right_ones_of_an_option_is_an_error(composer: Composer) -> None:
    made = study("grid", axes={"norm": ["rmsnorm", "prmsnorm"], "norm.fraction": [0.5, 2]})
    with pytest.raises(ConfigError) as caught:
        arms_of(made, composer.refused)
    [problem] = caught.value.problems
    assert "2 fits nowhere" in problem.message


def test_one_at_a_time_changes_one_axis_of_the_first_values() -> None:
    found = arms_of(study("one_at_a_time", axes={**NORMS, "ffn": ["swiglu", "gelu", "relu"]}), nothing)
    base = {"norm=rmsnorm", "placement=pre", "ffn=swiglu"}
    assert set(by_name(found)["baseline"]) == base
    assert {name: set(overrides) - base for name, overrides in by_name(found).items() if name != "baseline"} == {
        "layernorm": {"norm=layernorm"},
        "post": {"placement=post"},
        "gelu": {"ffn=gelu"},
        "relu": {"ffn=relu"},
    }
    assert found.arms[1].levels == {"norm": "layernorm", "placement": "pre", "ffn": "swiglu"}


def test_one_at_a_time_from_a_named_baseline_tries_every_value_that_it_has_not() -> None:
    found = arms_of(study("one_at_a_time", baseline=["norm=dyt"], axes={"norm": ["dyt", "layernorm"], "ffn": ["gelu"]}), nothing)
    assert by_name(found) == {"baseline": ("norm=dyt",), "layernorm": ("norm=layernorm",), "gelu": ("norm=dyt", "ffn=gelu")}


def test_add_one_is_each_change_alone_and_all() -> None:
    made = study("add_one", baseline=["head=tied"], changes={"n": ["norm=dyt"], "h": ["head=untied"]})
    assert by_name(arms_of(made, nothing)) == {
        "baseline": ("head=tied",),
        "n": ("head=tied", "norm=dyt"),
        "h": ("head=untied",),
        "all": ("norm=dyt", "head=untied"),
    }


def test_leave_one_out_compares_with_all_changes() -> None:
    made = study("leave_one_out", changes={"n": ["norm=dyt"], "f": ["ffn=gelu"], "h": ["head=tied"]})
    found = arms_of(made, nothing)
    assert found.baseline == "all"
    assert by_name(found) == {
        "all": ("norm=dyt", "ffn=gelu", "head=tied"),
        "without_n": ("ffn=gelu", "head=tied"),
        "without_f": ("norm=dyt", "head=tied"),
        "without_h": ("norm=dyt", "ffn=gelu"),
        "plain": (),
    }
    assert found.arms[1].levels == {"n": "off", "f": "on", "h": "on"}


PAIRS = [
    ("gpt2", "gemma2"),
    ("llama", "olmo2"),
    ("gemma3", "gpt2"),
    ("none", "deepseek_v3"),
    ("llama4", "gpt2"),
    ("chinchilla", "gpt_oss_small"),
]
"""Rules for layers, nested variants, steps that only go together, an arch file that builds on another."""


@pytest.mark.parametrize(
    ("start", "to"), [("gpt2", "llama3.1"), *(pytest.param(*pair, marks=pytest.mark.slow, id="-".join(pair)) for pair in PAIRS)]
)
def test_ladder_leads_from_one_architecture_to_the_other(composer: Composer, start: str, to: str) -> None:
    found = arms_of(study("ladder", ladder={"from": start, "to": to}), composer.refused)
    assert found.arms[0].overrides == (f"arch={start}",)
    assert same_architecture(composer.config(found.arms[-1].overrides), composer.config([f"arch={to}"]))
    for before, after in zip(found.arms, found.arms[1:], strict=False):
        assert after.overrides[: len(before.overrides)] == before.overrides
        assert len(after.overrides) - len(before.overrides) == len(after.name.split("+"))
        assert not same_architecture(composer.config(before.overrides), composer.config(after.overrides))


def test_composed_ladder_is_what_the_command_line_trains() -> None:
    found = arms_of(MADE["ladder"], nothing)
    assert same_architecture(compose(found.arms[-1].overrides), compose(["arch=llama3.1"]))
    assert found.arms[2].overrides == ("arch=gpt2", "norm=rmsnorm", "position=rope_llama3.1")


def test_ladder_skips_axes_on_which_the_ends_agree() -> None:
    found = arms_of(MADE["ladder"], nothing)
    assert [arm.name for arm in found.arms] == ["gpt2", "norm", "position", "attention", "ffn", "head", "init"]
    assert found.arms[1].levels["norm"] == "rmsnorm"
    assert found.arms[1].levels["ffn"] == "gelu_tanh_bias"


def test_ladder_goes_in_the_order_that_is_asked() -> None:
    found = arms_of(study("ladder", ladder={"from": "gpt2", "to": "llama3.1", "order": ["head", "placement", "ffn"]}), nothing)
    assert [arm.name for arm in found.arms] == ["gpt2", "head", "ffn", "norm", "position", "attention", "init"]


def test_step_that_cannot_be_had_is_made_with_one_that_makes_it_possible() -> None:
    def refused(overrides: Sequence[str]) -> str | None:
        return "no rotation here" if "position=rope_llama3.1" in overrides and "ffn=swiglu" not in overrides else None

    found = arms_of(MADE["ladder"], refused)
    assert [arm.name for arm in found.arms] == ["gpt2", "norm", "position+ffn", "attention", "head", "init"]
    assert found.dropped == ((("arch=gpt2", "norm=rmsnorm", "position=rope_llama3.1"), "no rotation here"),)


def test_ladder_of_impossible_steps_is_one_step() -> None:
    found = arms_of(MADE["ladder"], lambda overrides: "no" if 1 < len(overrides) < 7 else None)
    assert [arm.name for arm in found.arms] == ["gpt2", "norm+position+attention+ffn+head+init"]


def test_end_of_a_ladder_that_cannot_be_had_is_an_error() -> None:
    with pytest.raises(ConfigError) as caught:
        arms_of(MADE["ladder"], unless("arch=llama3.1"))
    assert [problem.key for problem in caught.value.problems] == ["ladder.to"]


def test_unknown_ends_of_a_ladder_name_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        arms_of(study("ladder", ladder={"from": "gtp2", "to": "llama3"}), nothing)
    found = {problem.key: problem.message for problem in caught.value.problems}
    assert "did you mean 'gpt2'?" in found["ladder.from"]
    assert "llama3.1" in found["ladder.to"]


def test_ladder_that_leads_nowhere_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no step to take"):
        arms_of(study("ladder", ladder={"from": "gpt2", "to": "gpt2"}), nothing)


def test_ladder_knows_architectures_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "arch").mkdir()
    (tmp_path / "arch" / "mine.yaml").write_text("# @package _global_\ndefaults: [gpt2, {override /ffn: swiglu}]\narch: mine\n")
    found = arms_of(study("ladder", ladder={"from": "gpt2", "to": "mine"}), nothing, str(tmp_path))
    assert by_name(found)["ffn"] == ("arch=gpt2", "ffn=swiglu")


@pytest.mark.parametrize("more", ["model: {width: 8}\n", "defaults: [{override /attention/qk_norm: head}]\n"])
def test_architecture_that_does_more_than_choose_axes_has_no_ladder(tmp_path: Path, more: str) -> None:
    (tmp_path / "arch").mkdir()
    (tmp_path / "arch" / "mine.yaml").write_text(f"# @package _global_\narch: mine\n{more}")
    with pytest.raises(ConfigError, match="ladder"):
        arms_of(study("ladder", ladder={"from": "gpt2", "to": "mine"}), nothing, str(tmp_path))


@pytest.mark.parametrize("arch", sorted(path.stem for path in (conf_dir() / "arch").glob("*.yaml")))
def test_shipped_architecture_has_a_word_on_every_axis(arch: str) -> None:
    words = words_of_arch(arch, [conf_dir()])
    assert set(words) == {*ARCHITECTURE, "layers"}
    assert all((conf_dir() / axis / f"{word}.yaml").is_file() for axis, word in words.items())


RUNS = {3: {3: 4, 4: 8, 5: 8, 6: 8, 7: 8, 8: 16}, 4: {3: 8, 4: 8, 5: 16, 6: 16, 7: 16, 8: 16}, 5: {3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 8: 64}}
"""resolution -> factors -> runs: NIST/SEMATECH e-Handbook of Statistical Methods, 5.3.3.4.7, and full factorials where none is smaller."""


@pytest.mark.parametrize(("resolution", "factors"), [(resolution, factors) for resolution in RUNS for factors in RUNS[resolution]])
class TestFraction:
    def test_is_as_small_as_the_published_one(self, resolution: int, factors: int) -> None:
        assert fraction(factors, resolution).shape == (RUNS[resolution][factors], factors)

    def test_starts_with_the_cell_of_first_values(self, resolution: int, factors: int) -> None:
        assert (fraction(factors, resolution)[0] == -1).all()

    def test_has_each_value_of_each_factor_as_often(self, resolution: int, factors: int) -> None:
        assert (fraction(factors, resolution).sum(axis=0) == 0).all()

    def test_has_no_cell_twice(self, resolution: int, factors: int) -> None:
        signs = fraction(factors, resolution)
        assert len({tuple(row) for row in signs.tolist()}) == len(signs)

    def test_tells_main_effects_from_what_its_resolution_says(self, resolution: int, factors: int) -> None:
        """In numbers: columns of effects are orthogonal, up to interactions of so many factors that the two orders reach the resolution."""
        signs = fraction(factors, resolution)
        column = {part: signs[:, part].prod(axis=1) for size in range(1, factors + 1) for part in combinations(range(factors), size)}
        for one, other in combinations(column, 2):
            if len(one) + len(other) < resolution:
                assert column[one] @ column[other] == 0, (one, other)


@pytest.mark.parametrize(("resolution", "factors"), [(3, 5), (3, 7), (4, 4), (4, 6), (4, 8), (5, 6)])
def test_aliases_are_the_columns_that_are_alike_and_no_others(resolution: int, factors: int) -> None:
    signs = fraction(factors, resolution)
    letters = "abcdefgh"[:factors]
    column = {
        " x ".join(letters[i] for i in part): signs[:, part].prod(axis=1) for size in (1, 2) for part in combinations(range(factors), size)
    }
    alike = {frozenset((one, other)) for one, other in combinations(column, 2) if abs(column[one] @ column[other]) == len(signs)}
    said = [line.removeprefix("cannot be told apart: ").split(" = ") for line in aliases(signs, letters)]
    assert {frozenset(pair) for group in said for pair in combinations(group, 2)} == alike


def test_plan_says_what_a_fraction_aliases() -> None:
    found = arms_of(MADE["fractional"], nothing)
    assert len(found.arms) == 8
    assert found.notes[0] == "8 of 16 cells, resolution IV: no main effect is aliased with an interaction of two"
    assert "cannot be told apart: norm x ffn = head x position" in found.notes
    assert found.arms[0].levels == {key: values[0] for key, values in FACTORS.items()}


def test_no_smaller_fraction_is_the_full_factorial() -> None:
    found = arms_of(study("fractional", axes={key: FACTORS[key] for key in ("norm", "ffn", "head")}), nothing)
    assert len(found.arms) == 8
    assert found.notes == ("8 of 8 cells, the full factorial: nothing is aliased",)


def test_resolution_III_halves_it_and_says_the_price() -> None:
    found = arms_of(study("fractional", resolution="III", axes={key: FACTORS[key] for key in ("norm", "ffn", "head")}), nothing)
    assert len(found.arms) == 4
    assert "main effects are aliased" in found.notes[0]


def test_fraction_with_a_cell_that_cannot_be_had_is_an_error() -> None:
    with pytest.raises(ConfigError) as caught:
        arms_of(MADE["fractional"], unless("ffn=gelu", "head=tied"))
    assert {problem.message for problem in caught.value.problems} == {"no ffn=gelu with head=tied"}


def test_word_of_a_defining_relation_is_found_by_hand() -> None:
    signs = np.array([[-1, -1, 1], [-1, 1, -1], [1, -1, -1], [1, 1, 1]])
    assert words_of(signs, 3) == [(0, 1, 2)]
    assert words_of(signs, 2) == []


@pytest.mark.parametrize(
    ("cells", "names"),
    [
        ([{"position": "none"}, {"dropout": "none"}], ["position_none", "dropout_none"]),
        ([{"norm.fraction": "0.5"}, {"norm.fraction": "1/2"}], ["fraction_0.5", "fraction_1_2"]),
        ([{"ffn.ratio": "4"}, {"head.ratio": "4"}], ["ffn.ratio_4", "head.ratio_4"]),
        ([{"stability": "[qk_norm,z_loss]"}], ["stability_qk_norm_z_loss"]),
        ([{"data.path": "a/b"}, {"data.path": "a_b"}], ["a_b", "a_b.2"]),
        ([{"ffn": "all"}, {"ffn": "Baseline"}], ["all.2", "Baseline.2"]),
        ([{"norm": "x" * 300}], ["x" * 90]),
    ],
)
def test_names_of_cells_say_their_values_and_differ(cells: list[dict[str, str]], names: list[str]) -> None:
    axes = {key: [cell[key] for cell in cells if key in cell] for cell in cells for key in cell}
    assert names_of(cells, axes) == names


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped_studies())
def test_every_arm_of_a_shipped_study_composes(composer: Composer, name: str) -> None:
    made = load_study(name)
    found = arms_of(made, composer.refused)
    configs = [composer.config(over(made.set, [*arm.overrides, *match_overrides(made, found.arms[0])])) for arm in found.arms]
    fresh = [arm.seed_offset for arm in found.arms if arm.seed_offset]
    assert len({config.model_dump_json() for config in configs}) == len(configs) - len(fresh)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("baseline", "arm"), [([], "attention=mqa"), (["ffn=gelu", "ffn.ratio=2"], "ffn=swiglu"), (["arch=gpt2"], "ffn=swiglu")]
)
def test_matched_arm_is_as_large_as_the_baseline_of_the_study(composer: Composer, baseline: list[str], arm: str) -> None:
    made = study("arms", set=["head=tied"], baseline=baseline, arms={"a": [arm]}, match={"kind": "params"})
    found = arms_of(made, composer.refused)
    reference = composer.config(over(made.set, found.arms[0].overrides))
    other = composer.config(over(made.set, [*found.arms[1].overrides, *match_overrides(made, found.arms[0])]))
    sizes = [parameters(meta_model(config)) for config in (reference, other)]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.01)
    assert not same_architecture(reference, other)


def test_study_without_a_match_adds_nothing_for_it() -> None:
    assert match_overrides(MADE["arms"], arms_of(MADE["arms"], nothing).arms[0]) == []
