"""Matching: what is solved costs what the reference does, is a plain number, and is refused where it cannot be had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ablate.cli import main
from ablate.composition import OF_ARCHITECTURE, compose, without
from ablate.config import Config, meta_model
from ablate.errors import ConfigError
from ablate.files import read_object
from ablate.matching import MATCH, Achieved, around, matched
from ablate.model.attention import ATTENTION
from ablate.model.count import Counts, active_parameters, count, parameters
from ablate.model.ffn import FFN
from ablate.model.norm import NORM
from ablate.runs import canonical, run_hash
from ablate.train.launch import baseline_command, same_architecture
from tests.model.conftest import changed, composed, small

KINDS = ("params", "active_params", "flops")


def counted(cfg: Config) -> Counts:
    return count(meta_model(cfg), cfg.model.context)


def flops(cfg: Config) -> float:
    return counted(cfg).training_flops_per_token


def digest(cfg: Config) -> str:
    return run_hash(canonical(cfg, "c" * 64))


def achieved(cfg: Config) -> Achieved:
    found = MATCH.build(cfg.match).achieved
    assert found is not None
    return found


def finest(cfg: Config) -> Config:
    """The arm, whose width may be any number."""
    return changed(cfg, "ffn.expert.multiple_of" if cfg.ffn.kind == "moe" else "ffn.multiple_of", 1)


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as error:
        composed(*overrides)
    return str(error.value)


# --- what is achieved


ATTENTIONS, NORMS = ATTENTION.words(), NORM.words()
PAIRS = [(ffn, NORMS[row % len(NORMS)], ATTENTIONS[row % len(ATTENTIONS)]) for row, ffn in enumerate(FFN.words())]
ALL = [(ffn, norm, attention) for ffn in FFN.words() for norm in NORMS for attention in ATTENTIONS]


def check_parameters(ffn: str, norm: str, attention: str) -> None:
    """Matched within 1 %, or no width does that."""
    arm = finest(small(f"ffn={ffn}", f"norm={norm}", f"attention={attention}", "match=params"))
    wanted = parameters(meta_model(small()))
    try:
        found = matched(arm, small())
    except ConfigError:
        assert ffn == "moe"  # one unit of the width of 8 experts is 3.7 % of this small model
        widths = [changed(arm, "ffn.expert.ratio", width / (2 / 3) / 32) for width in range(1, 30)]
        assert all(abs(parameters(meta_model(cfg)) / wanted - 1) > 0.01 for cfg in widths)
        return
    error = parameters(meta_model(found)) / wanted - 1
    assert abs(error) <= 0.01
    assert achieved(found).error == error


@pytest.mark.parametrize(("ffn", "norm", "attention"), PAIRS)
def test_every_feed_forward_word_is_matched_within_the_tolerance(ffn: str, norm: str, attention: str) -> None:
    check_parameters(ffn, norm, attention)


@pytest.mark.slow
@pytest.mark.parametrize(("ffn", "norm", "attention"), ALL)
def test_every_feed_forward_norm_and_attention_is_matched_within_the_tolerance(ffn: str, norm: str, attention: str) -> None:
    check_parameters(ffn, norm, attention)


COSTS: dict[str, Callable[[Config], float]] = {
    "params": lambda cfg: parameters(meta_model(cfg)),
    "active_params": lambda cfg: active_parameters(meta_model(cfg)),
    "flops": flops,
}


@pytest.mark.parametrize(
    ("kind", "choice", "share", "widths"),
    [
        ("params", "ffn=gelu", 1, range(120, 180)),
        ("params", "ffn=geglu", 2 / 3, range(90, 130)),
        ("active_params", "ffn=moe", 2 / 3, range(40, 80)),
        ("flops", "ffn=geglu", 2 / 3, range(100, 108)),
    ],
)
def test_no_other_width_is_nearer(kind: str, choice: str, share: float, widths: range) -> None:
    arm, cost = finest(small(choice, "attention=mqa", f"match={kind}")), COSTS[kind]
    key, target = "ffn.expert.ratio" if choice == "ffn=moe" else "ffn.ratio", cost(small())
    nearest = min(widths, key=lambda width: abs(cost(changed(arm, key, width / share / 32)) - target))
    assert counted(matched(arm, small())).ffn_width == nearest
    assert nearest not in (widths[0], widths[-1])


def test_matched_parameters_are_equal_where_they_can_be() -> None:
    found = composed("match=params", "attention=mqa", "ffn.multiple_of=1")
    assert counted(found).parameters == counted(composed()).parameters
    assert counted(found).ffn_width == 88 + 32 * (32 - 8) * 2 / (3 * 32)  # the width of the keys and values that are gone


def test_active_parameters_leave_the_idle_experts_out() -> None:
    found = composed("match=active_params", "ffn=moe", "attention=mqa", "ffn.expert.multiple_of=1")
    counts, baseline = counted(found), counted(composed())
    assert counts.active == pytest.approx(baseline.active, rel=0.01)
    assert counts.parameters > 2 * baseline.parameters
    assert found.ffn.model_dump()["expert"]["ratio"] == achieved(found).after != 2


def test_flops_that_grouped_heads_save_go_into_the_width() -> None:
    found = composed("match=flops", "attention=gqa", "ffn.multiple_of=1")
    half_a_unit_of_width = 3 * 2 * 3 * 32  # training, multiply and add, three matrices, on one of two layers
    assert abs(flops(found) - flops(composed())) <= half_a_unit_of_width
    assert flops(composed()) - flops(composed("attention=gqa")) > 10 * half_a_unit_of_width


def test_parameters_that_cost_no_flops_are_matched_as_parameters_alone() -> None:
    """Learned positions are looked up."""
    by_flops, by_parameters = (composed(f"match={kind}", "position=learned", "ffn.multiple_of=1") for kind in ("flops", "params"))
    assert counted(by_flops).parameters - counted(composed()).parameters == 16 * 32
    assert counted(by_parameters).parameters == pytest.approx(counted(composed()).parameters, rel=0.003)
    assert flops(by_parameters) < flops(by_flops) == flops(composed())


def test_a_window_moves_no_flops_as_attention_is_counted_over_the_whole_square() -> None:
    found = composed("match=flops", "attention.window=1/2")
    assert (achieved(found).error, achieved(found).after) == (0, 4)


def test_depth_is_solved_when_asked() -> None:
    found = composed("match=params", "match.solve=depth", "ffn.ratio=2", "match.tolerance=0.05")
    assert (found.model.depth, achieved(found).key, achieved(found).before) == (3, "model.depth", 2)
    assert found.ffn == composed("ffn.ratio=2").ffn
    assert abs(counted(found).parameters / counted(composed()).parameters - 1) < 0.05


def test_depth_is_solved_downwards_past_what_layer_rules_allow() -> None:
    rule = ["layers.wide.where={layers:[2]}", "layers.wide.set={ffn:{ratio:6}}", "model.depth=8"]
    assert "depth 3 gives +" in refusal("match=params", "match.solve=depth", "match.reference='model.depth=1'", *rule)


# --- identity


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("arm", "reference"),
    [([], ""), (["model.width=40", "head=untied"], ""), (["arch=llama"], "arch=llama"), (["ffn=gelu", "norm=none"], "ffn=gelu norm=none")],
)
def test_the_reference_itself_stays_as_it_is(kind: str, arm: list[str], reference: str) -> None:
    found = composed(f"match={kind}", f"match.reference='{reference}'", *arm)
    assert digest(found) == digest(composed(*arm))
    assert achieved(found).error == 0


@pytest.mark.parametrize(
    ("kind", "arm", "key"),
    [
        ("params", ["attention=mqa"], "ffn.ratio"),
        ("flops", ["ffn=gelu", "ffn.multiple_of=1", "attention=gqa"], "ffn.ratio"),
        ("active_params", ["ffn=moe", "ffn.expert.multiple_of=1", "attention=mqa"], "ffn.expert.ratio"),
        ("params", ["ffn.ratio=2", "match.solve=depth", "match.tolerance=0.05"], "model.depth"),
    ],
)
def test_to_give_the_solved_value_by_hand_is_the_same_run(kind: str, arm: list[str], key: str) -> None:
    found = composed(f"match={kind}", *arm)
    by_hand = [word for word in arm if not word.startswith("match.")]
    assert achieved(found).key == key
    assert digest(found) == digest(composed(*by_hand, f"{key}={achieved(found).after}"))
    assert digest(found) != digest(composed(*by_hand))


# --- traps that are published


def test_a_gated_layer_at_equal_expansion_has_one_and_a_half_times_the_parameters() -> None:
    """arXiv 2002.05202, section 3.1: three matrices instead of two."""
    assert counted(composed("ffn.glu_factor=1")).ffn_parameter_error == 0.5


def test_a_gated_layer_at_equal_expansion_is_matched_to_two_thirds_of_the_width() -> None:
    found = composed("match=params", "ffn.glu_factor=1")
    assert achieved(found).error == 0
    assert achieved(found).after == pytest.approx(4 * 88 / 128)
    assert counted(found).ffn_width == counted(composed()).ffn_width == 88


def test_rounding_two_thirds_to_multiples_of_256_adds_an_eighth_at_width_256() -> None:
    """As Llama's code rounds (arXiv 2302.13971): 8/3 of 256 is 682.7, and becomes 768."""
    wide = composed("model.width=256", "ffn.multiple_of=256")
    assert counted(wide).ffn_width == 768
    assert counted(wide).ffn_parameter_error == pytest.approx(0.125)


def test_rounding_to_multiples_of_256_is_refused_and_cured() -> None:
    coarse = ["match=params", "model.width=256", "ffn.multiple_of=256"]
    message = refusal(*coarse)
    for words in ("within 1.00%", "feed-forward width 512 gives -", "feed-forward width 768 gives +", "ffn.multiple_of=1 (now 256)"):
        assert words in message
    assert achieved(composed(*coarse[:-1], "ffn.multiple_of=1")).error == 0
    assert achieved(composed(*coarse, "match.tolerance=0.2")).after == 4


# --- what is refused


def test_an_arm_too_large_at_the_least_width_is_refused() -> None:
    message = refusal("match=params", "ffn=moe", "ffn.num_experts=256")
    assert "even feed-forward width 8 gives +" in message
    assert "multiple_of" not in message  # experts of width 1 are too large
    assert "match.solve=depth" in message
    assert "ffn.expert.multiple_of=1 (now 8)" in refusal("match=params", "ffn=moe", "ffn.num_experts=16")


def test_a_depth_between_two_layers_is_refused_with_both() -> None:
    message = refusal("match=params", "match.solve=depth", "attention=mqa")
    assert "depth 2 gives -" in message
    assert "depth 3 gives +" in message
    assert "match.solve=ffn_width" in message


def test_widths_that_layer_rules_set_everywhere_are_not_solved() -> None:
    rule = ["layers.all.where={first:2}", "layers.all.set={ffn:{ratio:3}}"]
    message = refusal("match=params", *rule)
    assert "rules of layers set ffn.ratio in every layer" in message
    assert "match.solve=depth" in message


def test_layers_whose_rule_sets_their_width_keep_it() -> None:
    found = composed("match=params", "ffn.multiple_of=1", "layers.first.where={first:1}", "layers.first.set={ffn:{ratio:3}}")
    assert [layer.ffn.model_dump()["ratio"] for layer in found.layer_options()] == [3, achieved(found).after]
    assert abs(achieved(found).error) <= 0.01


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["match=params", "match.reference='arch=lama'"], ["match.reference", "arch: no such choice: 'lama'", "did you mean 'llama'"]),
        (["match=params", "match.reference='match=flops'"], ["match.reference", "match: is chosen twice"]),
        (["match=params", "match.reference='ffn.ratoi=3'"], ["match.reference", "did you mean 'ratio'"]),
        (["match=params", "match.solve=width"], ["match.solve", "'ffn_width' or 'depth'"]),
        (["match=params", "match.tolerance=2"], ["match.tolerance", "less than or equal to 1"]),
        (["match=none", "match.tolerance=0.1"], ["match.tolerance", "unknown key"]),
        (["match=parms"], ["match", "did you mean 'params'"]),
        (["match=params", "match.achieved={key:a,before:1,after:1,target:1,reached:1,error:0.0}"], ["match.achieved", "not chosen"]),
    ],
)
def test_a_wrong_word_says_what_is_allowed(overrides: list[str], words: list[str]) -> None:
    message = refusal(*overrides)
    for word in words:
        assert word in message


# --- the reference


def test_a_reference_is_the_baseline_with_what_is_named_changed() -> None:
    found = composed("match=params", "match.reference='norm=layernorm head=tied'", "attention=mqa", "ffn.multiple_of=1")
    assert achieved(found).target == counted(composed("norm=layernorm", "head=tied")).parameters


@pytest.mark.parametrize("spelled", ["'[norm=layernorm, ffn=gelu]'", "['norm=layernorm','ffn=gelu']", "'norm=layernorm ffn=gelu'"])
def test_a_reference_is_a_list_or_a_text(spelled: str) -> None:
    assert MATCH.build(composed("match=params", f"match.reference={spelled}").match).reference == ["norm=layernorm", "ffn=gelu"]


def test_without_a_reference_an_arm_equals_what_its_run_is_compared_with() -> None:
    changed_one = composed("match=params", "arch=gpt2", "attention=mqa", "ffn.multiple_of=1")
    assert achieved(changed_one).target == counted(composed("arch=gpt2")).parameters
    itself = composed("match=params", "arch=gpt2", "match.tolerance=0.1")
    assert achieved(itself).target == counted(composed()).parameters
    assert not same_architecture(itself, composed("arch=gpt2"))  # it was solved


def test_the_reference_has_the_scale_and_tokenizer_of_the_command() -> None:
    found = composed("match=params", "model.width=64", "tokenizer=bpe", "attention=mqa")
    assert achieved(found).target == counted(composed("model.width=64", "tokenizer=bpe")).parameters


def test_the_command_of_the_baseline_matches_nothing() -> None:
    assert baseline_command(["match=params", "match.solve=depth", "attention=mqa", "seed=1"]) == "python -m ablate seed=1"


# --- the search


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(-5, 3000), st.integers(1, 60))
def test_neighbours_enclose_the_target_whatever_rises(steps: list[int], target: int, start: int) -> None:
    def cost(n: int) -> int:
        return sum(steps[i % len(steps)] for i in range(n))

    low, high = around(cost, target, start)
    assert high == low + 1
    assert low == 0 or cost(low) <= target
    assert cost(high) > target


def test_what_costs_in_proportion_is_found_in_a_few_looks() -> None:
    looked: set[int] = set()

    def cost(n: int) -> float:
        looked.add(n)
        return 1000 + 0.3 * n

    assert around(cost, 1000 + 0.3 * 70_000.5, 50_000) == (70_000, 70_001)
    assert len(looked) <= 5


# --- what is said and kept


def test_count_prints_the_achieved_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["count", "match=params", "attention=mqa"]) == 0
    assert "match=params: 492,384 against 492,384 of the reference, +0.00%; solved ffn.ratio=4.75 (was 4)" in capsys.readouterr().out


def test_count_says_nothing_of_an_arm_that_is_not_matched(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["count", "attention=mqa"]) == 0
    assert "match" not in capsys.readouterr().out


def test_a_run_says_and_keeps_what_was_asked_and_achieved(short: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*short, "match=params", "attention=mqa", "ffn.multiple_of=1"]) == 0
    out = capsys.readouterr().out
    [directory] = (tmp_path / "results" / "runs").iterdir()
    summary, config = read_object(directory / "summary.json"), yaml.safe_load((directory / "config.yaml").read_text())
    baseline = counted(compose(short))
    assert "match=params: " in out
    assert summary["match"] == config["match"]["achieved"]
    assert config["match"]["kind"] == "params"
    assert summary["match"]["target"] == baseline.parameters
    assert summary["match"]["reached"] == summary["parameters"]
    assert config["ffn"]["ratio"] == summary["match"]["after"]


def test_the_baseline_of_an_arm_whose_depth_was_solved_is_as_deep_as_asked(short: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    baseline = without(short, OF_ARCHITECTURE)
    assert main(baseline) in (0, 1)  # with its own initialisation so short a run may not learn
    capsys.readouterr()
    assert main([*short, "match=params", "match.solve=depth", "match.tolerance=0.05", "ffn.ratio=2"]) == 0
    out = capsys.readouterr().out
    assert "solved model.depth=3 (was 2)" in out
    assert "No run of the baseline" not in out


def test_hydra_shows_the_config_that_would_be_trained(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--cfg", "job", "match=params", "attention=mqa"]) == 0
    assert "ratio: 4.75" in capfd.readouterr().out
