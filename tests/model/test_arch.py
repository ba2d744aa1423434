"""Published architectures as words: each composes, learns, swaps one axis and nothing else, and compiles once for each kind of layer.
That arch=X is X is shown by parity (test_parity.py, test_references.py)."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from ablate.config import ARCHITECTURE, Config, meta_model, parse
from ablate.errors import ConfigError
from tests.model.conftest import QUIET_COMPILER, composed, gradients_of, max_difference, random_model, shipped, tokens_of, yaml_words

ARCHES = [word for word in yaml_words("arch") if word != "none"]
SIZE = ("tokenizer=bytes", "model.depth=4", "model.width=64", "model.context=32")
AXES = (*ARCHITECTURE, "layers")

SWAPS = {
    "norm": "layernorm",
    "placement": "sandwich",
    "residual": "layerscale",
    "embedding": "normed",
    "position": "alibi",
    "attention": "mha",
    "ffn": "geglu",
    "head": "soft_capped",
    "loss": "multi_token",
    "init": "fan_in",
    "dropout": "dropout",
}


def small_arch(word: str, *overrides: str) -> Config:
    return composed(f"arch={word}", *SIZE, *overrides)


@pytest.mark.parametrize("word", ARCHES)
def test_an_architecture_says_its_name_and_differs_from_the_baseline(word: str) -> None:
    cfg, baseline = small_arch(word), composed(*SIZE)
    assert cfg.arch == word
    assert [axis for axis in AXES if getattr(cfg, axis) != getattr(baseline, axis)]


@pytest.mark.slow
@pytest.mark.parametrize("word", ARCHES)
def test_every_parameter_of_an_architecture_learns_and_none_sees_the_future(word: str) -> None:
    cfg = small_arch(word)
    model, tokens = random_model(cfg), tokens_of(cfg)
    gradients = gradients_of(cfg, model)
    for name, gradient in gradients.items():
        assert gradient is not None, name
        assert torch.isfinite(gradient).all(), name
    still = [name for name, gradient in gradients.items() if gradient is not None and not gradient.any()]
    assert not still, f"no gradient: {still}"
    other = tokens.clone()
    other[:, 20] = (other[:, 20] + 1) % 256
    before, after = model(tokens), model(other)
    assert max_difference(before[:, :20], after[:, :20]) < 1e-5 * max(1, before.abs().max())
    assert max_difference(before[:, 20], after[:, 20]) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("word", ARCHES)
def test_a_choice_on_one_axis_goes_with_an_architecture_or_is_refused_by_name(word: str) -> None:
    published = small_arch(word)
    for axis, choice in SWAPS.items():
        values = {**published.model_dump(), axis: shipped(axis, choice)}
        problems = problems_of(values)
        assert all(re.split(r"[./]", key)[0] in AXES for key in problems), problems
        if not problems:
            assert random_model(parse(values))(tokens_of(published)).isfinite().all()


def problems_of(values: dict[str, Any]) -> list[str]:
    try:
        parse(values)
    except ConfigError as error:
        return [problem.key for problem in error.problems]
    return []


@pytest.mark.slow
@pytest.mark.parametrize(("word", "axis"), list(zip(ARCHES, itertools.cycle(SWAPS))))
def test_a_choice_on_the_command_line_changes_that_axis_alone(word: str, axis: str) -> None:
    published = small_arch(word)
    values = {**published.model_dump(), axis: shipped(axis, SWAPS[axis])}
    if problems_of(values):
        with pytest.raises(ConfigError):
            small_arch(word, f"{axis}={SWAPS[axis]}")
    else:
        assert small_arch(word, f"{axis}={SWAPS[axis]}") == parse(values)


@pytest.mark.slow
@pytest.mark.parametrize("word", ARCHES)
@pytest.mark.filterwarnings(*QUIET_COMPILER)
def test_an_architecture_compiles_once_for_each_kind_of_layer(word: str) -> None:
    cfg = small_arch(word, "model.depth=6")
    model = random_model(cfg)
    expected = model(tokens_of(cfg))
    kinds = {(options, at) for options, at in zip(cfg.layer_options(), model.position_of, strict=True)}
    torch.compiler.reset()
    counters.clear()
    for module in [*model.blocks, model.head]:
        module.compile(fullgraph=True, dynamic=False, backend="eager")
    assert max_difference(model(tokens_of(cfg)), expected) < 1e-5 * max(1, expected.abs().max())
    assert counters["stats"]["unique_graphs"] <= len(kinds) + 1


def test_the_scale_of_an_architecture_is_the_scale() -> None:
    assert meta_model(composed("arch=gemma2", "model.width=96", "model.depth=3")).width == 96
