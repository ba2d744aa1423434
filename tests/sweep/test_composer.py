"""Composer: what it gives is what compose() gives, config or error, for every combination; and what is alike is done once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from ablate.composition import compose
from ablate.config import Config, container
from ablate.errors import ConfigError
from ablate.shipped import conf_dir
from ablate.sweep import composer as composing
from ablate.sweep.composer import PLAIN_AXES, Composer, resolved, set_value


@pytest.fixture(scope="module")
def composer() -> Iterator[Composer]:
    with Composer() as composer:
        yield composer


def outcome(made: Any) -> Config | set[str]:
    """The config, or every problem."""
    try:
        cfg: Config = made()
    except ConfigError as error:
        return {f"{problem.key}: {problem.message}" for problem in error.problems}
    return cfg


def check(composer: Composer, overrides: list[str]) -> bool:
    """Whether the combination can be had; fails unless both say the same of it."""
    ours, theirs = outcome(lambda: composer.config(overrides)), outcome(lambda: compose(overrides))
    assert ours == theirs, overrides
    return isinstance(ours, Config)


def choices(group: str) -> list[str]:
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


VALUES = [
    *("model.depth=2", "model.width=64", "model.width=97", "norm.eps=1e-3", "norm.fraction=1/4", "norm.epss=1", "ffn.ratio=8/3"),
    *("optim.lr=1e-2", "optim.lr=-1", "optim.betas=[0.9,0.99]", "schedule.warmup_fraction=0.2", "attention.window=1/4"),
    *("attention.window=none", "attention.sink=learned", "attention.kv_heads=2", "residual.branch_scale=0.5", "loss.z_loss=1e-4"),
    *("position.theta=500000", "train.batch_size=4", "train.tokens=20000", "dtype=bfloat16", "eval.bytes=4096", "head.soft_cap=30.0"),
    *("seed=3", "init_seed=7", "data_seed=8", "seed=-1", "tracker=none", "imports=[]", "train.grad_clip=.inf", "nrm=layernorm"),
]
NESTED = [
    *("attention/qk_norm=head", "attention/qk_norm=full", "position/scaling=yarn", "norm@embedding.norm=layernorm"),
    *("norm@attention.v_norm=rmsnorm", "head/transform=dense", "ffn/inner=gelu"),
]
WIDE = [
    *("arch=gemma2", "arch=gpt2", "arch=llama3.1", "arch=qwen3", "arch=t5", "arch=mixtral", "arch=none", "scale=tiny"),
    *("stability=qk_norm", "stability=[qk_norm,z_loss]", "stability=[soft_cap]", "data=mqar", "tokenizer=bpe", "layers=gemma2"),
    *("match=params", "match=flops", "match=active_params", "layers.own={where:{first:1},set:{attention:{window:1/2}}}"),
    *("~norm", "~norm.eps", "~layers", "norm=rmsnrom", "arch=gemma22"),
]


def sample(chance: random.Random) -> list[str]:
    """A combination as a study could ask for it."""
    axes = chance.sample(sorted(PLAIN_AXES), chance.choice([0, 1, 1, 2, 3]))
    found = [f"{axis}={chance.choice(choices(axis))}" for axis in axes]
    for pool, most in ((VALUES, 3), (NESTED, 1), (WIDE, 2)):
        found += chance.sample(pool, chance.randint(0, most))
    chance.shuffle(found)
    keys = [text.partition("=")[0].lstrip("~") for text in found]
    return [chance.choice(["", "", "+"]) * (text[0] != "~") + text for index, text in enumerate(found) if keys[index] not in keys[:index]]


@pytest.mark.parametrize("number", [6, pytest.param(25, marks=pytest.mark.slow)])
def test_a_combination_is_what_compose_makes_of_it(composer: Composer, number: int) -> None:
    chance = random.Random(number)
    had = [check(composer, sample(chance)) for _ in range(number)]
    assert 0 < sum(had) < number  # configs and errors both


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["norm=layernorm", "ffn=gelu", "position=alibi", "placement=post", "optim=muon", "schedule=wsd"],
        ["arch=gemma2", "norm=layernorm", "norm.eps=1e-4"],
        ["norm=layernorm", "arch=gemma2"],
        ["attention=gqa", "attention/qk_norm=full", "attention.kv_heads=2"],
        ["stability=[qk_norm,z_loss]", "attention=gqa"],
        ["layers.x={where:{every:2,at:[0]},set:{attention:{window:1/2}}}", "layers.x.where.every=3"],
        ["match=params", "ffn=gelu", "norm=layernorm"],
        ["match=params", "match.reference='ffn=gelu'", "ffn=swiglu"],
        ["match=params", "match.reference='arch=gpt2'", "match.tolerance=0.1", "arch=llama"],
        ["scale=tiny", "tokenizer=bpe", "seed=4"],
        ["data=mqar", "model.context=64", "seed=4", "data_seed=5"],
        ["seed=${init_seed}", "init_seed=3"],
        ["model.width=64", "model={depth:2}"],
        ["norm=rmsnrom", "nrm=layernorm", "optim.lr=-1", "model.depht=1"],
        ["position=learned", "position/scaling=yarn"],
        ["match=params", "ffn=gelu", "norm=rmsnrom"],
        ["seed=-1", "init_seed=x"],
    ],
    ids=" ".join,
)
def test_what_reaches_over_axes_is_what_compose_makes_of_it(composer: Composer, overrides: list[str]) -> None:
    check(composer, overrides)


def test_an_answer_does_not_change_with_what_was_asked_before() -> None:
    asked = [["norm=layernorm"], ["norm=layernorm", "norm.eps=1e-3"], ["layers.x={where:{first:1},set:{norm:{eps:1e-3}}}"], []]
    with Composer() as one, Composer() as other:
        forward = [one.config(overrides) for overrides in asked]
        backward = [other.config(overrides) for overrides in reversed(asked)]
    assert forward == backward[::-1]


def test_a_refusal_is_one_line_with_every_problem(composer: Composer) -> None:
    assert composer.refused(["norm=layernorm"]) is None
    said = composer.refused(["norm.epss=1", "optim.lr=-1"]) or ""
    assert "did you mean 'eps'" in said
    assert "; optim.lr: must be greater than 0" in said


def test_configs_that_differ_in_seeds_are_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    real = composing.parse
    monkeypatch.setattr(composing, "parse", lambda raw: parsed.append(raw) or real(raw))
    with Composer() as composer:
        found = [composer.config(["norm=layernorm", f"seed={seed}"]) for seed in range(20)]
        found.append(composer.config(["norm=layernorm", "init_seed=1", "data_seed=2"]))
    assert [(cfg.init_seed, cfg.data_seed) for cfg in found] == [*((seed, seed) for seed in range(20)), (1, 2)]
    assert len(parsed) == 1


def test_hydra_composes_each_choice_once_and_not_each_combination(monkeypatch: pytest.MonkeyPatch) -> None:
    composed = []
    real = composing.compose_raw
    monkeypatch.setattr(composing, "compose_raw", lambda request: composed.append(request.overrides) or real(request))
    small = ["model.width=32", "model.heads=2", "model.depth=1"]
    with Composer() as composer:
        for norm, ffn, head in product(["rmsnorm", "layernorm", "dyt"], ["swiglu", "gelu"], ["tied", "untied"]):
            composer.config([f"norm={norm}", f"ffn={ffn}", f"head={head}", *small])
    assert len(composed) == 1 + 1 + (3 - 1) + (2 - 1) + (2 - 1)  # the first cell, what all have, every other choice


@pytest.mark.parametrize("axis", sorted(PLAIN_AXES))
def test_files_of_a_plain_axis_set_nothing_beside_their_own_key(axis: str) -> None:
    """What composing axis by axis rests on."""
    paths = list((conf_dir() / axis).rglob("*.yaml"))
    assert paths
    assert [path for path in paths if "_global_" in path.read_text()] == []


def test_folder_of_the_users_own_adds_choices_and_axes_files(tmp_path: Path) -> None:
    (tmp_path / "norm").mkdir()
    (tmp_path / "norm" / "coarse.yaml").write_text("defaults: [rmsnorm, _self_]\neps: 0.1\n")
    (tmp_path / "arch").mkdir()
    (tmp_path / "arch" / "mine.yaml").write_text("# @package _global_\ndefaults:\n  - override /norm: coarse\n")
    with Composer(config_dir=str(tmp_path)) as composer:
        for overrides in (["norm=coarse"], ["norm=coarse", "ffn=gelu"], ["arch=mine", "ffn=gelu"], ["norm=coarsee"]):
            ours = outcome(lambda overrides=overrides: composer.config(overrides))  # type: ignore[misc]
            assert ours == outcome(lambda overrides=overrides: compose(overrides, config_dir=str(tmp_path)))  # type: ignore[misc]


@pytest.mark.parametrize(
    "text", ["${a.b}", "${k}", "x${k}y${a.b}", "${a.${k}}", "${oc.select:a.b}", "${.g}", "${..a.b}", "${a[b]}", "${h}", "\\${k}", "no"]
)
def test_interpolations_are_resolved_as_omegaconf_resolves_a_whole_config(text: str) -> None:
    values: dict[str, Any] = {"a": {"b": 1}, "k": "b", "f": {"e": text, "g": 2}, "l": ["${k}"], "h": {"i": "${a.b}"}, "j": None}
    assert resolved(values) == container(OmegaConf.create(values))


def test_an_interpolation_that_names_nothing_is_an_error() -> None:
    with pytest.raises(ConfigError, match="nothing"):
        resolved({"a": "${nothing}", "b": 1})


def test_a_value_is_set_as_hydra_sets_it() -> None:
    values: dict[str, Any] = {"a": {"b": 1, "c": [1, 2]}}
    set_value(values, "a", {"b": 2, "d": {"e": 3}})
    set_value(values, "a.c", [3])
    set_value(values, "x.y", None)
    assert values == {"a": {"b": 2, "c": [3], "d": {"e": 3}}, "x": {"y": None}}
    with pytest.raises(ConfigError, match="has no keys"):
        set_value(values, "a.b.c", 1)
