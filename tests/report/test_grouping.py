"""Runs that were not asked for as a study: arms are what differs, and learning rates are tuning only where runs are split as a study's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import ablate
from ablate.errors import ConfigError
from ablate.files import flat
from ablate.report.grouping import ARCHITECTURE, axes_as_shipped
from ablate.report.load import Loaded, Tuned, load, load_runs_as_study
from ablate.runs import canonical
from tests.report import made

LAYERNORM, WIDE = ["norm=layernorm"], ["model.width=192"]


def compared(tmp_path: Path, *arms: Sequence[str], baseline: str | None = None, seeds: int = 1) -> Loaded:
    for overrides in arms:
        for seed in range(seeds):
            made.run(tmp_path / "runs", 2.0, overrides, seed=seed)
    return load([str(tmp_path)], baseline=baseline)


def names(loaded: Loaded) -> list[str]:
    return [arm.name for arm in loaded.meta.arms]


def flat_identity(*overrides: str) -> dict[str, object]:
    return flat(canonical(ablate.compose(overrides), "c" * 64))


# --- arms and their names


def test_an_arm_is_named_by_how_it_differs_from_the_baseline(tmp_path: Path) -> None:
    loaded = compared(tmp_path, [], LAYERNORM, [*LAYERNORM, *WIDE])
    assert set(names(loaded)) == {"baseline", "norm=layernorm", "norm=layernorm model.width=192"}
    assert names(loaded)[0] == loaded.meta.baseline == "baseline"
    arm = next(arm for arm in loaded.meta.arms if arm.name == "norm=layernorm model.width=192")
    assert arm.overrides == ("norm=layernorm", "model.width=192")
    assert arm.levels == {"norm": "layernorm", "model.width": "192"}
    assert loaded.meta.arms[0].levels == {"norm": "rmsnorm", "model.width": "96"}


def test_an_option_is_named_where_arms_with_its_variant_differ_in_it(tmp_path: Path) -> None:
    loaded = compared(tmp_path, [], LAYERNORM, [*LAYERNORM, "norm.bias=false"], [*LAYERNORM, "norm.eps=0.001"])
    assert set(names(loaded)) == {
        "baseline",
        "norm=layernorm norm.bias=true",
        "norm=layernorm norm.bias=false",
        "norm=layernorm norm.bias=true norm.eps=0.001",
    }


def test_an_option_of_the_same_variant_is_named_alone(tmp_path: Path) -> None:
    assert set(names(compared(tmp_path, [], ["norm.eps=0.001"]))) == {"baseline", "norm.eps=0.001"}


def test_runs_that_differ_in_seeds_alone_are_one_arm_in_blocks(tmp_path: Path) -> None:
    loaded = compared(tmp_path, [], LAYERNORM, seeds=3)
    assert loaded.meta.blocks == (0, 1, 2)
    assert loaded.runs.groupby("arm")["block"].apply(list).to_dict() == {"baseline": [0, 1, 2], "norm=layernorm": [0, 1, 2]}
    assert (loaded.meta.source, loaded.meta.design, loaded.meta.planned) == ("runs", "runs", 6)


def test_pairs_of_different_seeds_are_numbered_and_said(tmp_path: Path) -> None:
    for arm in ([], LAYERNORM):
        for init, data in ((0, 0), (0, 1), (1, 0)):
            made.run(tmp_path / "runs", 2.0, arm, seed=init, data_seed=data)
    loaded = load([str(tmp_path)])
    assert loaded.meta.blocks == (0, 1, 2)
    assert loaded.meta.notes == ("blocks are pairs of init and data seed: 0 is 0/0, 1 is 0/1, 2 is 1/0",)


# --- the baseline


def test_the_shipped_architecture_is_the_baseline_whatever_has_more_runs(tmp_path: Path) -> None:
    made.run(tmp_path / "runs", 2.0, [])
    for seed in range(3):
        made.run(tmp_path / "runs", 2.0, LAYERNORM, seed=seed)
    assert names(load([str(tmp_path)]))[0] == "baseline"
    assert load([str(tmp_path)]).meta.arms[1].name == "norm=layernorm"


def test_without_it_the_arm_with_the_most_runs_is(tmp_path: Path) -> None:
    made.run(tmp_path / "runs", 2.0, ["norm=dyt"])
    for seed in range(2):
        made.run(tmp_path / "runs", 2.0, LAYERNORM, seed=seed)
    assert names(load([str(tmp_path)])) == ["baseline", "norm=dyt"]
    assert load([str(tmp_path)]).meta.arms[0].levels == {"norm": "layernorm"}


def test_another_baseline_can_be_named_as_an_arm_or_by_a_run_of_it(tmp_path: Path) -> None:
    made.run(tmp_path / "runs", 2.0, ["norm=dyt"])
    run = made.run(tmp_path / "runs", 2.0, LAYERNORM)
    made.run(tmp_path / "runs", 2.0, [])
    for word in ("norm=layernorm", run.name, run.name[-12:]):
        loaded = load([str(tmp_path)], baseline=word)
        assert loaded.meta.baseline == "norm=layernorm"
        assert names(loaded)[0] == "norm=layernorm"
        assert set(names(loaded)) == {"norm=layernorm", "norm=rmsnorm", "norm=dyt"}
        assert next(arm for arm in loaded.meta.arms if arm.name == "norm=dyt").overrides == ("norm=dyt",)
    with pytest.raises(ConfigError, match="did you mean 'norm=layernorm'"):
        load([str(tmp_path)], baseline="norm=layrnorm")


def test_what_is_shipped_is_seen_in_real_identities() -> None:
    """Fractions are numbers there, and what a file leaves open is whatever it became."""
    assert axes_as_shipped(flat_identity("scale=tiny", "train.tokens=9999", "optim.lr=0.1", "tokenizer=bpe")) == len(ARCHITECTURE)
    assert axes_as_shipped(flat_identity("norm=layernorm", "ffn.ratio=3", "attention.window=64")) == len(ARCHITECTURE) - 3
    assert axes_as_shipped(flat_identity("layers=gemma2")) == 0


# --- learning rates


def grid(tmp_path: Path, losses: dict[float, float], overrides: Sequence[str] = (), seeds: Sequence[int] = (100, 101)) -> None:
    for rate, loss in losses.items():
        for seed in seeds:
            made.run(tmp_path / "runs", loss, overrides, seed=seed, lr=rate)


def test_rates_on_the_same_seeds_are_arms_of_their_own(tmp_path: Path) -> None:
    grid(tmp_path, {1e-3: 2.3, 4e-3: 2.1, 8e-3: 2.2}, seeds=(0, 1))
    loaded = load([str(tmp_path)])
    assert set(loaded.runs["stage"]) == {"confirm"}
    assert len(names(loaded)) == 3
    assert sum("optim.lr=" in name for name in names(loaded)) == 2
    assert loaded.meta.tuned == {}


def test_runs_of_a_tuned_study_without_its_plan_are_tuning_and_confirmation(tmp_path: Path) -> None:
    tuning = {1e-3: [2.3, 2.3], 2e-3: [2.1, 2.1], 4e-3: [2.4, "collapsed"]}
    losses = {"baseline": {0: 2.0, 1: 2.1}, "layernorm": {0: 2.05, 1: 2.15}}
    study = made.study(tmp_path, losses, tuning=dict.fromkeys(losses, tuning))
    loaded, planned = load([str(study.parent / "runs")]), load([str(study)])
    assert loaded.meta.tuned == {arm: Tuned((1e-3, 2e-3, 4e-3), 2e-3, None) for arm in ("baseline", "norm=layernorm")}
    assert (loaded.meta.blocks, loaded.meta.tuning_seeds) == ((0, 1), (100, 101))
    keys = ["hash", "stage", "lr", "block", "loss", "outcome"]
    ours, theirs = (one.runs[keys].sort_values("hash").reset_index(drop=True) for one in (loaded, planned))
    assert ours.equals(theirs)


def test_a_rate_that_tuning_did_not_choose_is_not_confirmed_by_it(tmp_path: Path) -> None:
    grid(tmp_path, {1e-3: 2.3, 2e-3: 2.1, 4e-3: 2.4})
    made.run(tmp_path / "runs", 2.0, seed=0, lr=4e-3)
    assert load([str(tmp_path)]).meta.tuned == {}


def test_two_rates_are_no_grid(tmp_path: Path) -> None:
    grid(tmp_path, {1e-3: 2.3, 2e-3: 2.1}, seeds=[100])
    made.run(tmp_path / "runs", 2.0, seed=0, lr=2e-3)
    assert load([str(tmp_path)]).meta.tuned == {}


def test_one_arm_without_a_grid_leaves_no_arm_with_one(tmp_path: Path) -> None:
    grid(tmp_path, {1e-3: 2.3, 2e-3: 2.1, 4e-3: 2.4})
    made.run(tmp_path / "runs", 2.0, seed=0, lr=2e-3)
    grid(tmp_path, {1e-3: 2.3, 2e-3: 2.1, 4e-3: 2.4}, LAYERNORM, seeds=[0])
    assert load([str(tmp_path)]).meta.tuned == {}


def test_arms_with_one_rate_each_are_named_without_it(tmp_path: Path) -> None:
    made.run(tmp_path / "runs", 2.0, [], lr=1e-3)
    made.run(tmp_path / "runs", 2.0, LAYERNORM, lr=2e-3)
    loaded = load([str(tmp_path)])
    assert names(loaded) == ["baseline", "norm=layernorm"]
    assert dict(zip(loaded.runs["arm"], loaded.runs["lr"], strict=True)) == {"baseline": 1e-3, "norm=layernorm": 2e-3}


# --- what is typed


def test_runs_are_given_as_paths_names_hashes_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one, two = made.run(tmp_path / "results/runs", 2.0), made.run(tmp_path / "results/runs", 2.1, LAYERNORM)
    for words in (
        ["results"],
        ["results/runs"],
        [str(one), str(two)],
        [one.name, two.name],
        [one.name[-12:], two.name[-12:]],
        [str(one), "results"],
    ):
        assert set(load(words).runs["run"]) == {one.name, two.name}, words


def test_every_word_that_is_no_run_is_named_with_the_nearest(tmp_path: Path) -> None:
    run = made.run(tmp_path / "runs", 2.0)
    with pytest.raises(ConfigError) as raised:
        load_runs_as_study([run, f"{run.name[:-1]}_", "nowhere"], results_dir=tmp_path)
    assert [problem.key for problem in raised.value.problems] == [f"{run.name[:-1]}_", "nowhere"]
    assert f"did you mean {run.name!r}" in raised.value.problems[0].message


def test_no_runs_at_all_are_one_message(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    for words in ([], [str(tmp_path)]):
        with pytest.raises(ConfigError):
            load_runs_as_study(words)


def test_a_run_that_lost_its_identity_is_known_by_its_config(tmp_path: Path) -> None:
    made.run(tmp_path / "runs", 2.0)
    (made.run(tmp_path / "runs", 2.1, LAYERNORM) / "identity.json").unlink()
    assert names(load([str(tmp_path)])) == ["baseline", "norm=layernorm"]


def test_a_run_that_lost_both_is_left_out_and_said(tmp_path: Path) -> None:
    made.run(tmp_path / "runs", 2.0)
    lost = made.run(tmp_path / "runs", 2.1, LAYERNORM)
    (lost / "identity.json").unlink()
    (lost / "config.yaml").unlink()
    loaded = load([str(tmp_path)])
    assert names(loaded) == ["baseline"]
    assert loaded.meta.notes == (f"{lost.name} has neither identity nor config: left out",)


def test_another_corpus_and_other_layers_are_arms_with_short_names(tmp_path: Path) -> None:
    made.run(tmp_path / "runs", 2.0)
    identity = made.base()
    made.run(tmp_path / "runs", 2.0, identity={**identity, "data": "e" * 64})
    made.run(tmp_path / "runs", 2.0, identity={**identity, "layers": {"0": {"norm": {"kind": "none"}, "ffn": {"ratio": 2.0}}}})
    found = names(load([str(tmp_path)]))
    assert found[:1] == ["baseline"]
    assert f"data={'e' * 12}" in found
    [layers] = [name for name in found if name.startswith("layers=")]
    assert len(layers) == len("layers=") + 6


def test_a_name_with_quotes_and_brackets_survives(tmp_path: Path) -> None:
    identity = {**made.base(), "norm": {"kind": 'a"<b>[1]'}}
    made.run(tmp_path / "runs", 2.0)
    path = made.run(tmp_path / "runs", 2.0, identity=identity, seed=0)
    assert json.loads((path / "identity.json").read_text())["norm"]["kind"] == 'a"<b>[1]'
    assert 'norm=a"<b>[1]' in names(load([str(tmp_path)]))
