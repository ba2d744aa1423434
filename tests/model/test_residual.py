"""How branches join the stream: every variant against its formula, with sublayers and norms that are known."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ablate.config import build_model, meta_model, parse
from ablate.errors import ConfigError
from ablate.model.placement import PLACEMENT
from ablate.model.residual import RESIDUAL
from tests.model.conftest import max_difference, options_of, random_model, small, tokens_of, yaml_of
from tests.model.test_placement import Known, Square, a, f, n

WORDS = RESIDUAL.words()


def block(word: str, placement: str = "pre", dim: int = 1, **options: Any) -> nn.Module:
    """x -> 2 x + 1 and x -> 3 x - 1, in layer 4 of 8, with x^2 / 8 where norms stand."""
    attention, ffn = Known(2, 1, has_heads=True), Known(3, -1, has_heads=False)
    placed = [PLACEMENT.variant(placement)(sublayer, lambda dim: Square(), dim, 3, 8) for sublayer in (attention, ffn)]
    return RESIDUAL.build(options_of(RESIDUAL, word, **options), *placed, dim, 0.0)


def result(module: nn.Module, x: float = 0.5) -> float:
    return module(torch.tensor([x]))[0].item()


# --- formulas


def test_serial_multiplies_what_is_added_and_what_it_is_added_to() -> None:
    y = 3.0 * 0.5 + 0.25 * a(n(0.5))
    assert result(block("serial", branch=0.25, stream=3.0)) == pytest.approx(3.0 * y + 0.25 * f(n(y)))


def test_multipliers_of_serial_meet_those_of_its_placement() -> None:
    y = n(3.0 * 2.0 * 0.5 + 0.25 * a(0.5))  # deepnorm of 8 layers: alpha 2
    assert result(block("serial", "deepnorm", branch=0.25, stream=3.0)) == pytest.approx(n(3.0 * 2.0 * y + 0.25 * f(y)))


def test_multipliers_work_on_normed_branches() -> None:
    y = 0.5 + 0.25 * n(a(0.5))
    assert result(block("serial", "output", branch=0.25)) == pytest.approx(y + 0.25 * n(f(y)))


def test_parallel_reads_one_state_with_both_branches() -> None:
    x = 0.5
    assert result(block("parallel")) == pytest.approx(x + a(n(x)) + f(n(x)))
    assert result(block("parallel", branch=0.25, stream=3.0)) == pytest.approx(3.0 * x + 0.25 * (a(n(x)) + f(n(x))))


def test_parallel_with_a_shared_norm_uses_that_of_attention_for_both() -> None:
    module = block("parallel", shared_norm=True)
    assert isinstance(module.ffn.input_norm, nn.Identity)
    assert result(module) == pytest.approx(result(block("parallel")))


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        ("none", 0.5 + a(0.5) + f(0.5)),
        ("sandwich", 0.5 + n(a(n(0.5))) + n(f(n(0.5)))),
        ("output", 0.5 + n(a(0.5)) + n(f(0.5))),
        ("ln_scaling", 0.5 + a(n(0.5) / 2) + f(n(0.5) / 2)),
        ("sub_ln", 0.5 + a(n(n(0.5))) + f(n(n(0.5)))),
    ],
)
def test_parallel_takes_every_placement_without_a_norm_on_the_sum(placement: str, expected: float) -> None:
    assert result(block("parallel", placement)) == pytest.approx(expected)


@pytest.mark.parametrize("placement", ["sandwich", "ln_scaling", "sub_ln"])
def test_a_shared_norm_keeps_the_other_parts_of_a_placement(placement: str) -> None:
    assert result(block("parallel", placement, shared_norm=True)) == pytest.approx(result(block("parallel", placement)))


def set_scales(module: nn.Module, attention: Any, ffn: Any) -> nn.Module:
    with torch.no_grad():
        module.attention_scale.copy_(torch.tensor(attention))
        module.ffn_scale.copy_(torch.tensor(ffn))
    return module


def test_layerscale_multiplies_each_feature_of_a_branch_by_its_own_number() -> None:
    module = set_scales(block("layerscale", dim=2), [0.1, 0.2], [0.3, 0.4])
    y, _, _ = module(torch.tensor([0.5, 0.7]))
    expected = []
    for x, first, second in ((0.5, 0.1, 0.3), (0.7, 0.2, 0.4)):
        x = x + first * a(n(x))
        expected.append(x + second * f(n(x)))
    assert y.tolist() == pytest.approx(expected)


def test_layerscale_starts_at_its_init_in_every_feature() -> None:
    module = block("layerscale", dim=3, init=0.01)
    assert module.attention_scale.tolist() == pytest.approx([0.01] * 3)
    assert module.ffn_scale.tolist() == pytest.approx([0.01] * 3)


def test_rezero_multiplies_a_branch_by_one_number() -> None:
    y = 0.5 + 0.1 * a(n(0.5))
    assert result(set_scales(block("rezero"), 0.1, 0.3)) == pytest.approx(y + 0.3 * f(n(y)))


@pytest.mark.parametrize("word", ["layerscale", "rezero"])
def test_learned_scales_work_on_normed_branches_and_before_norms_of_the_sum(word: str) -> None:
    one, other = (0.1, 0.3) if word == "rezero" else ([0.1], [0.3])
    y = n(0.5 + 0.1 * a(0.5))
    assert result(set_scales(block(word, "post"), one, other)) == pytest.approx(n(y + 0.3 * f(y)))
    y = 0.5 + 0.1 * n(a(n(0.5)))
    assert result(set_scales(block(word, "sandwich"), one, other)) == pytest.approx(y + 0.3 * n(f(n(y))))


# --- in the model


def test_rezero_starts_as_embedding_norm_and_head() -> None:
    cfg = small("residual=rezero")
    model, tokens = build_model(cfg), tokens_of(cfg)
    expected = torch.nn.functional.rms_norm(model.embedding.table.weight[tokens], (32,), eps=1e-5) @ model.head.unembed.weight.T
    assert max_difference(model(tokens), expected) < 1e-6
    assert all(block.attention_scale.ndim == 0 for block in model.blocks)


def test_at_the_start_of_rezero_the_two_scales_alone_learn_in_a_block() -> None:
    cfg = small("residual=rezero")
    model = build_model(cfg)
    model(tokens_of(cfg)).square().sum().backward()
    moving = {name for name, parameter in model.blocks.named_parameters() if parameter.grad is not None and parameter.grad.abs().max() > 0}
    assert moving == {f"{layer}.{name}" for layer in range(2) for name in ("attention_scale", "ffn_scale")}


@pytest.mark.parametrize(("choice", "removed"), [("parallel", 0), ("parallel_shared", 2)])
def test_a_shared_norm_leaves_one_out_in_every_layer(choice: str, removed: int) -> None:
    names = {name for name, _ in meta_model(small()).named_parameters()}
    left = {name for name, _ in meta_model(small(f"residual={choice}")).named_parameters()}
    assert names - left == {f"blocks.{layer}.ffn.input_norm.weight" for layer in range(removed)}
    assert left < names or not removed


def test_a_parallel_model_runs_feed_forward_on_what_attention_reads() -> None:
    cfg = small("residual=parallel_shared")
    model, tokens = random_model(cfg), tokens_of(cfg)
    seen: dict[str, Tensor] = {}
    for name in ("attention", "ffn"):
        getattr(model.blocks[1], name).sublayer.register_forward_pre_hook(lambda module, inputs, name=name: seen.update({name: inputs[0]}))
    model(tokens)
    assert seen["attention"] is seen["ffn"]


# --- what cannot be


def problems(word: str, *choices: str, **options: Any) -> list[str]:
    values = {**small().model_dump(), **{axis: yaml_of(axis, name) for axis, _, name in (choice.partition("=") for choice in choices)}}
    values["residual"] = {**yaml_of("residual", word), **options}
    with pytest.raises(ConfigError) as raised:
        parse(values)
    return [problem.key for problem in raised.value.problems]


@pytest.mark.parametrize("placement", ["post", "deepnorm", "hybrid"])
def test_parallel_branches_have_no_place_for_a_norm_between_them(placement: str) -> None:
    assert problems("parallel", f"placement={placement}") == ["residual"]


@pytest.mark.parametrize("placement", ["output", "none"])
def test_a_shared_norm_that_there_is_not_is_refused(placement: str) -> None:
    assert problems("parallel_shared", f"placement={placement}") == ["residual.shared_norm"]


def test_a_shared_norm_of_norm_none_is_refused() -> None:
    assert problems("parallel_shared", "norm=none") == ["residual.shared_norm"]


@pytest.mark.parametrize(("word", "option"), [("serial", "branch"), ("serial", "stream"), ("parallel", "branch"), ("layerscale", "init")])
@pytest.mark.parametrize("value", [math.inf, 0.0, -1.0])
def test_multipliers_are_finite_and_above_zero(word: str, option: str, value: float) -> None:
    assert problems(word, **{option: value}) == [f"residual.{option}"]
