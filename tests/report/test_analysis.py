"""The analysis of whole studies: what a reader would be told about runs whose truth is known."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ablate.errors import ConfigError
from ablate.report.analysis import Analysis, ArmResult, analyse
from ablate.report.analysis.arms import _time_gain, changes
from ablate.report.analysis.shapes import Span
from ablate.report.load import load_study
from tests.report import made

GRID = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)


def losses(mean: float, *, shift: float = 0.0, noise: float = 0.002, blocks: int = 8, seed: int = 0) -> dict[int, made.Result]:
    """Losses whose blocks are common to all arms, and whose own noise is small."""
    common, own = random.Random("blocks"), random.Random(seed)
    return {block: mean + common.gauss(0, 0.02) + shift + own.gauss(0, noise) for block in range(blocks)}


def study(root: Path, found: dict[str, dict[int, Any]], **more: Any) -> Analysis:
    made.study(root, found, **more)
    return analyse(load_study(more.get("name", "made"), root / "results"))


def arm(analysis: Analysis, name: str) -> ArmResult:
    return next(arm for arm in [analysis.baseline, *analysis.arms] if arm.name == name)


def word(analysis: Analysis, name: str) -> str:
    judgement = arm(analysis, name).judgement
    assert judgement is not None
    return judgement.verdict.word


def reds(analysis: Analysis) -> str:
    return "\n".join(banner.text for banner in analysis.banners if banner.severity == "red")


def test_arms_get_the_word_of_their_truth_and_stand_in_the_order_of_their_effect(tmp_path: Path) -> None:
    analysis = study(
        tmp_path,
        {
            "baseline": losses(2.0),
            "layernorm": losses(2.0, shift=0.05, seed=1),
            "prmsnorm": losses(2.0, shift=-0.05, seed=2),
            "dyt": losses(2.0, seed=3),
        },
    )
    assert [a.name for a in analysis.arms] == ["prmsnorm", "dyt", "layernorm"]
    assert [word(analysis, a.name) for a in analysis.arms] == ["BETTER", "EQUIVALENT", "WORSE"]
    assert (
        analysis.answer == "Better than baseline (norm=rmsnorm): prmsnorm; equivalent to baseline (norm=rmsnorm) within the margin: dyt; "
        "worse than baseline (norm=rmsnorm): layernorm."
    )
    assert not reds(analysis)


def test_sentences_have_size_interval_unit_and_blocks(tmp_path: Path) -> None:
    analysis = study(tmp_path, {"baseline": losses(2.0), "layernorm": losses(2.0, shift=0.05, seed=1)})
    found = arm(analysis, "layernorm")
    assert found.judgement is not None
    contrast = found.judgement.contrast
    assert contrast is not None
    assert contrast.mean == pytest.approx(sum(found.differences.values()) / 8)
    assert found.sentence.startswith("layernorm: WORSE (clearly), +0.0")
    assert " nats [+0.0" in found.sentence
    assert found.sentence.endswith("8 blocks")


def test_an_optimum_at_the_end_of_the_grid_is_not_tuned_and_a_red_banner(tmp_path: Path) -> None:
    tuning = {
        "baseline": {rate: [2.0 + abs(i - 2) * 0.1] * 2 for i, rate in enumerate(GRID)},
        "layernorm": {rate: [2.0 + i * 0.1] * 2 for i, rate in enumerate(GRID)},
    }
    analysis = study(tmp_path, {"baseline": losses(2.0), "layernorm": losses(2.0, shift=-0.05, seed=1)}, tuning=tuning)
    assert word(analysis, "layernorm") == "NOT TUNED"
    assert "end of the grid" in reds(analysis)
    assert arm(analysis, "baseline").lr == 4e-3
    assert analysis.baseline.sensitivity is not None
    assert analysis.baseline.sensitivity.mean == pytest.approx((0.2 + 0.1 + 0 + 0.1 + 0.2) / 5, abs=1e-6)


def test_failed_runs_are_counted_and_in_no_mean(tmp_path: Path) -> None:
    broken = losses(2.0, shift=-0.05, seed=1) | {3: "collapsed", 5: "nan"}
    analysis = study(tmp_path, {"baseline": losses(2.0), "layernorm": broken})
    found = arm(analysis, "layernorm")
    assert word(analysis, "layernorm") == "UNSTABLE"
    assert (found.failed, found.ended) == (2, 8)
    assert found.failure_interval == pytest.approx((0.0319, 0.6509), abs=1e-4)  # Clopper-Pearson of 2 in 8
    assert set(found.losses) == {0, 1, 2, 4, 6, 7}
    assert found.judgement is not None
    assert found.judgement.loss_verdict is not None
    assert "2/8 failed" in found.sentence
    assert any("2/8" in banner.text for banner in analysis.banners)


def test_arms_outside_of_the_declared_match_are_not_comparable(tmp_path: Path) -> None:
    costs = {"layernorm": {"parameters": made.PARAMETERS * 1.05}}
    found = {"baseline": losses(2.0), "layernorm": losses(2.0, shift=-0.05, seed=1)}
    matched = study(tmp_path / "a", found, match="params", costs=costs)
    assert word(matched, "layernorm") == "NOT COMPARABLE"
    assert "equal in params" in reds(matched)
    unasked = study(tmp_path / "b", found, costs=costs)
    assert word(unasked, "layernorm") == "BETTER"
    assert any("differ from the baseline in parameters: layernorm +5.0%" in banner.text for banner in unasked.banners)


def test_the_margin_in_tokens_is_the_slope_of_the_budgets(tmp_path: Path) -> None:
    flat = {block: 2.0 + block / 100 for block in range(8)}
    budgets = {0.5: {0: 2.1, 1: 2.11}, 2.0: {0: 1.92, 1: 1.93}}
    analysis = study(tmp_path, {"baseline": flat, "layernorm": losses(2.0, seed=1)}, margin={"tokens": 0.03}, budgets=budgets)
    slope = analysis.margin.slope
    assert slope is not None
    assert 0.08 < slope / 0.6931 < 0.2 or 0.08 < slope < 0.16  # between the two falls of 0.1 and 0.08 nats a doubling
    assert analysis.margin.nats == pytest.approx(slope * 0.0295588, rel=1e-4)
    gain = arm(analysis, "layernorm").token_gain
    assert gain.mean is not None


def test_without_budgets_a_margin_in_tokens_is_not_known_and_nothing_is_equivalent(tmp_path: Path) -> None:
    analysis = study(tmp_path, {"baseline": losses(2.0), "layernorm": losses(2.0, seed=1)}, margin={"tokens": 0.03})
    assert analysis.margin.nats is None
    assert "no budgets" in analysis.margin.told
    assert word(analysis, "layernorm") != "EQUIVALENT"


def test_one_block_is_a_screen_and_no_block_says_nothing(tmp_path: Path) -> None:
    one = study(tmp_path / "a", {"baseline": {0: 2.0}, "layernorm": {0: 1.9}})
    assert word(one, "layernorm") == "SCREEN ONLY"
    none = study(tmp_path / "b", {"baseline": {0: 2.0}, "layernorm": {0: "new"}})
    assert none.answer.startswith("So far: Nothing can be said") or none.answer.startswith("Nothing can be said")
    assert "no result" in reds(none)


def test_one_arm_is_a_page_without_verdicts(tmp_path: Path) -> None:
    analysis = study(tmp_path, {"baseline": losses(2.0)})
    assert analysis.arms == []
    assert analysis.answer == "There is one arm, baseline: nothing to compare it with."


def test_a_study_of_several_looks_tests_each_at_its_share_and_reads_no_block_between_them(tmp_path: Path) -> None:
    def at(blocks: int, root: Path) -> Analysis:
        found = {
            name: {block: loss if block < blocks else "new" for block, loss in losses(2.0, shift=shift, seed=i).items()}
            for i, (name, shift) in enumerate({"baseline": 0.0, "layernorm": -0.05}.items())
        }
        return study(root, found, looks=[3])

    early, first, between, last = (at(blocks, tmp_path / str(blocks)) for blocks in (2, 3, 5, 8))
    assert "first planned look is at 3" in early.stage
    assert first.stage.startswith("look 1 of 2, at 3 of 8 blocks, tested at 0.025")
    assert arm(between, "layernorm").differences.keys() == arm(first, "layernorm").differences.keys() == {0, 1, 2}
    assert last.stage == "final"
    assert any("tested at 0.025" in text or "two-sided at 0.025" in text for text in last.method)


def test_mixed_commits_and_data_are_red(tmp_path: Path) -> None:
    made.study(tmp_path, {"baseline": losses(2.0), "layernorm": losses(2.0, seed=1)})
    loaded = load_study("made", tmp_path / "results")
    runs = loaded.runs.copy()
    runs.loc[0, "commit"], runs.loc[1, "data"] = "fedcba987654", "e" * 64
    text = reds(analyse(loaded._replace(runs=runs) if hasattr(loaded, "_replace") else replace(loaded, runs=runs)))
    assert "commits" in text
    assert "different data" in text


def test_tokenizers_that_differ_are_compared_per_byte(tmp_path: Path) -> None:
    made.study(tmp_path, {"baseline": losses(2.0), "layernorm": losses(2.0, seed=1)})
    loaded = load_study("made", tmp_path / "results")
    runs = loaded.runs.copy()
    runs.loc[runs["arm"] == "layernorm", "tokenizer"] = "bpe"
    mixed = loaded._replace(runs=runs) if hasattr(loaded, "_replace") else replace(loaded, runs=runs)
    assert analyse(mixed).metric == "nats per byte"
    runs["bits_per_byte"] = float("nan")
    with pytest.raises(ConfigError, match="cannot be compared"):
        analyse(mixed)


def test_the_baseline_on_other_seeds_is_told_apart_only_as_a_red_banner(tmp_path: Path) -> None:
    found = {"baseline": losses(2.0), "again": losses(2.0, shift=-0.05, seed=1)}
    analysis = study(tmp_path, found, seed_offsets={"again": 1000})
    assert "baseline on other seeds" in reds(analysis)
    assert len(analysis.noise.again) == 1


def test_a_grid_of_two_axes_has_main_effects_and_an_interaction(tmp_path: Path) -> None:
    levels = {f"{n}+{p}": {"norm": n, "placement": p} for n in ("rmsnorm", "layernorm") for p in ("pre", "post")}
    shift = {"rmsnorm+pre": 0.0, "rmsnorm+post": 0.1, "layernorm+pre": 0.02, "layernorm+post": 0.12}
    found = {name: losses(2.0, shift=shift[name], seed=i) for i, name in enumerate(levels)}
    overrides = {name: [f"{axis}={value}" for axis, value in own.items()] for name, own in levels.items()}
    analysis = study(tmp_path, found, levels=levels, overrides=overrides, design="grid")
    by_name = {effect.name: effect for effect in analysis.effects}
    assert by_name["placement=post"].mean == pytest.approx(0.1, abs=0.005)
    assert by_name["norm=layernorm"].mean == pytest.approx(0.02, abs=0.005)
    (interaction,) = (effect for effect in analysis.effects if effect.kind == "interaction")
    assert abs(interaction.mean) < 0.01
    assert all(effect.holm_p is not None and effect.p is not None and effect.holm_p >= effect.p for effect in analysis.effects)


def test_the_steps_of_a_ladder_add_up(tmp_path: Path) -> None:
    found = {"from": losses(2.0), "norm": losses(2.0, shift=-0.03, seed=1), "ffn": losses(2.0, shift=-0.08, seed=2)}
    overrides: dict[str, list[str]] = {"from": [], "norm": ["norm=layernorm"], "ffn": ["norm=layernorm", "ffn=gelu"]}
    analysis = study(tmp_path, found, overrides=overrides, design="ladder")
    assert [step.name for step in analysis.ladder] == ["norm", "ffn"]
    assert sum(step.mean for step in analysis.ladder) == pytest.approx(analysis.ladder[-1].total)
    assert analysis.ladder[-1].total == pytest.approx(-0.08, abs=0.005)


def test_sizes_of_a_grid_are_compared_within_themselves(tmp_path: Path) -> None:
    levels = {f"{n}+{s}": {"scale": s, "norm": n} for s in ("nano", "tiny") for n in ("rmsnorm", "layernorm", "dyt")}
    shift = {"rmsnorm": 0.0, "layernorm": 0.05, "dyt": 0.1}
    found = {
        name: losses(2.0 if own["scale"] == "nano" else 1.5, shift=shift[own["norm"]], seed=i)
        for i, (name, own) in enumerate(levels.items())
    }
    overrides = {name: [f"norm={own['norm']}", f"model.width={96 if own['scale'] == 'nano' else 192}"] for name, own in levels.items()}
    costs = {name: {"flops": 1e12 if own["scale"] == "nano" else 8e12} for name, own in levels.items()}
    analysis = study(tmp_path, found, levels=levels, overrides=overrides, costs=costs, design="grid")
    assert arm(analysis, "rmsnorm+tiny").is_baseline
    assert word(analysis, "layernorm+tiny") == "WORSE"
    assert sum(arm(analysis, "dyt+tiny").differences.values()) / 8 == pytest.approx(0.1, abs=0.005)
    assert analysis.scale is not None
    ((small, large, tau, alike),) = analysis.scale.stability
    assert (small, large) == ("scale=nano", "scale=tiny")
    assert tau.mean == alike == 1.0


def test_speed_comes_from_the_bench_and_is_missing_without_it(tmp_path: Path) -> None:
    found = {"baseline": losses(2.0), "layernorm": losses(2.0, shift=0.05, seed=1)}
    with_bench = study(tmp_path / "a", found, bench={"baseline": 1.0, "layernorm": 1.25})
    ratio = arm(with_bench, "layernorm").speed_ratio
    assert ratio.mean == pytest.approx(0.8)
    assert "0.80x speed [0.78, 0.82]" in arm(with_bench, "layernorm").sentence
    without = study(tmp_path / "b", found)
    assert arm(without, "layernorm").speed_ratio.mean is None
    assert "speed" not in arm(without, "layernorm").sentence


@pytest.mark.parametrize(("copies", "told"), [(1.0, True), (1.04, False), (0.94, False)])
def test_a_speed_is_named_only_beyond_what_two_copies_of_the_baseline_do(copies: float, told: bool, tmp_path: Path) -> None:
    found = {"baseline": losses(2.0), "layernorm": losses(2.0, shift=0.05, seed=1)}
    analysis = study(tmp_path, found, bench={"baseline": copies, "layernorm": 1.05})
    assert ("0.95x speed" in arm(analysis, "layernorm").sentence) == told
    assert ("speed not told apart" in arm(analysis, "layernorm").sentence) != told


def test_what_a_difference_is_worth_in_time_has_the_errors_of_both_its_parts(tmp_path: Path) -> None:
    whole = _time_gain(Span(1.1, 1.0, 1.2), Span(0.9, 0.8, 1.0))
    assert whole.mean == pytest.approx(0.99)
    assert whole.low == pytest.approx(0.99 * math.exp(-math.hypot(math.log(1.1), math.log(0.9 / 0.8))))
    assert whole.high == pytest.approx(0.99 * math.exp(math.hypot(math.log(1.2 / 1.1), math.log(1 / 0.9))))
    assert _time_gain(Span(1.1, None, 1.2), Span(0.9, 0.8, 1.0)).low is None
    assert _time_gain(Span(1.1, 1.0, 1.2), Span(0.9, 0.9, 0.9)).low == pytest.approx(0.9)


def test_what_an_arm_changes_is_told_by_its_configs() -> None:
    theirs = {"norm.kind": "rmsnorm", "norm.eps": 1e-5, "optim.lr": 1e-3, "init_seed": 0}
    ours = {"norm.kind": "prmsnorm", "norm.eps": 1e-5, "norm.fraction": 0.0625, "optim.lr": 2e-3, "init_seed": 1}
    assert changes(theirs, ours) == [
        "norm.kind: rmsnorm \N{RIGHTWARDS ARROW} prmsnorm",
        "norm.fraction: \N{EN DASH} \N{RIGHTWARDS ARROW} 0.0625",
    ]


def test_an_arm_left_open_by_too_few_blocks_is_said_to_be(tmp_path: Path) -> None:
    found = {"baseline": losses(2.0), "layernorm": losses(2.0, seed=1)}
    few = [banner.text for banner in study(tmp_path / "a", found, margin={"nats": 1e-4}).banners if "blocks are few" in banner.text]
    assert len(few) == 1
    assert "not within" in few[0]
    enough = study(tmp_path / "b", found, margin={"nats": 1.0})
    assert not any("blocks are few" in banner.text for banner in enough.banners)


def edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_run_that_lost_its_result_is_missing_and_nothing_is_final(tmp_path: Path) -> None:
    folder = made.study(tmp_path, {"baseline": losses(2.0, blocks=4), "layernorm": losses(2.0, shift=0.05, seed=1, blocks=4)})
    lost = next(path for path in (folder.parent / "runs").iterdir() if "layernorm" in path.name)
    (lost / "summary.json").write_text("")
    analysis = analyse(load_study("made", tmp_path / "results"))
    assert "1 of 8 runs have no result" in reds(analysis)
    assert "(lost)" in reds(analysis)
    assert analysis.answer.startswith("So far: ")


def test_arms_of_several_sizes_are_told_from_the_baseline_of_their_own(tmp_path: Path) -> None:
    found = {"a+nano": losses(2.0), "b+nano": losses(1.9, seed=1), "a+tiny": losses(1.6), "b+tiny": losses(1.7, seed=2)}
    overrides = {name: [f"norm={'rmsnorm' if name[0] == 'a' else 'dyt'}", f"model.width={96 if 'nano' in name else 128}"] for name in found}
    levels = {name: dict(word.split("=") for word in words) for name, words in overrides.items()}
    analysis = study(tmp_path, found, overrides=overrides, levels=levels, design="grid")
    assert analysis.answer == "Better than the baseline of its size: b+nano; worse than the baseline of its size: b+tiny."
    assert "against a+tiny" in arm(analysis, "b+tiny").sentence
    assert analysis.scale is not None
    below, above = (analysis.scale.differences["norm=dyt"][size].mean for size in ("model.width=96", "model.width=128"))
    assert below is not None
    assert above is not None
    assert below < 0 < above


def test_an_arm_without_a_baseline_of_its_size_is_not_comparable_and_no_baseline(tmp_path: Path) -> None:
    found = {"a": losses(2.0), "b": losses(1.6, seed=1)}
    levels = {"a": {"norm": "rmsnorm", "model.width": "96"}, "b": {"norm": "dyt", "model.width": "128"}}
    analysis = study(tmp_path, found, levels=levels, design="grid")
    assert word(analysis, "b") == "NOT COMPARABLE"
    assert "there is no baseline of its size (model.width=128)" in arm(analysis, "b").sentence
    assert not arm(analysis, "b").is_baseline


def test_two_vocabularies_are_compared_by_bytes_with_the_margin_in_bytes_too(tmp_path: Path) -> None:
    overrides = {f"v{size}": ["tokenizer.kind=bpe", f"tokenizer.vocab_size={size}"] for size in (512, 1024)}
    folder = made.study(tmp_path, {"v512": losses(2.0), "v1024": losses(2.3, seed=1)}, overrides=overrides, margin={"nats": 0.01})
    for run in (folder.parent / "runs").iterdir():
        large = "1024" in run.name
        loss = json.loads((run / "summary.json").read_text())["eval_loss"]
        edit(run / "summary.json", bits_per_byte=loss * (0.4 if large else 0.5) / math.log(2))
        edit(run / "identity.json", data=("e" if large else "d") * 64)
    analysis = analyse(load_study("made", tmp_path / "results"))
    assert analysis.metric == "nats per byte"
    assert word(analysis, "v1024") == "BETTER"  # 0.92 against 1 nats per byte, though 2.3 against 2 per token
    assert analysis.margin.nats == pytest.approx(0.005)
    assert not reds(analysis)


def test_arms_are_not_called_unstable_for_runs_of_the_baseline_that_failed(tmp_path: Path) -> None:
    analysis = study(tmp_path, {"baseline": {**losses(2.0), 1: "nan"}, "layernorm": losses(2.0, seed=1)})
    assert word(analysis, "layernorm") == "UNSTABLE"
    assert analysis.answer == "Open, since runs of baseline (norm=rmsnorm) failed: layernorm."
