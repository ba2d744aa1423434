"""Norms on queries and keys: which numbers share a mean and which a gain, in loops, and on which side of the rotation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ablate.errors import ConfigError
from ablate.model.position import POSITION
from ablate.model.qk_norm import QK_NORM, QKNorm
from tests.model.conftest import changed, max_difference, options_of, random_model, randomise, small, tokens_of, yaml_of

HEADS, KV_HEADS, WIDTH = 4, 2, 6
EPS = 0.05


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + 0.4


def norm(word: str = "rmsnorm", **options: Any) -> dict[str, Any]:
    return {**yaml_of("norm", word), "eps": EPS, **options}


def qk_norm(word: str, **options: Any) -> QKNorm:
    """With every parameter random."""
    module = QK_NORM.build(options_of(QK_NORM, word, **options), HEADS, KV_HEADS, WIDTH)
    randomise(module)
    return module


def qk() -> tuple[Tensor, Tensor]:
    return normal(2, HEADS, 5, WIDTH, seed=1), normal(2, KV_HEADS, 5, WIDTH, seed=2)


def by_loops(x_BNTH: Tensor, gain_NH: Tensor, bias_NH: Tensor, mean: bool, together: bool) -> Tensor:
    """Statistics over one head, or over all heads of a token."""
    y = torch.zeros_like(x_BNTH, dtype=torch.float64)
    batch, heads, tokens, width = x_BNTH.shape
    for b in range(batch):
        for t in range(tokens):
            for n in range(heads):
                group = x_BNTH[b, :, t].flatten().tolist() if together else x_BNTH[b, n, t].tolist()
                centre = sum(group) / len(group) if mean else 0.0
                size = math.sqrt(sum((value - centre) ** 2 for value in group) / len(group) + EPS)
                for h in range(width):
                    y[b, n, t, h] = (x_BNTH[b, n, t, h].item() - centre) / size * gain_NH[n, h].item() + bias_NH[n, h].item()
    return y


@pytest.mark.parametrize(("weight", "offset"), [("plain", 0), ("zero_centred", 1)])
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("word", ["head", "full", "per_head"])
def test_queries_and_keys_are_what_loops_in_float64_give(word: str, mean: bool, weight: str, offset: int) -> None:
    chosen = norm("layernorm", weight=weight) if mean else norm(weight=weight)
    module = qk_norm(word, norm=chosen)
    for name, x_BNTH, y_BNTH in zip("qk", qk(), module.before(*qk()), strict=True):
        heads, parameters = x_BNTH.shape[1], dict(getattr(module, name).named_parameters())
        shape = {"head": (WIDTH,), "full": (heads * WIDTH,), "per_head": (heads, WIDTH)}[word]
        assert {tuple(parameter.shape) for parameter in parameters.values()} == {shape}
        assert set(parameters) == ({"weight", "bias"} if mean else {"weight"})
        gain, bias = parameters["weight"].detach() + offset, parameters.get("bias", torch.zeros(shape)).detach()
        gain_NH, bias_NH = (z.expand(heads, WIDTH) if word == "head" else z.reshape(heads, WIDTH) for z in (gain, bias))
        assert max_difference(y_BNTH, by_loops(x_BNTH, gain_NH, bias_NH, mean, together=word == "full")) < 1e-5


@pytest.mark.parametrize("word", ["full", "per_head"])
def test_gains_start_at_one_and_biases_at_zero(word: str) -> None:
    module = QK_NORM.build(options_of(QK_NORM, word, norm=norm("layernorm")), HEADS, KV_HEADS, WIDTH)
    assert all((parameter == (1 if name.endswith("weight") else 0)).all() for name, parameter in module.named_parameters())


def test_a_zero_centred_gain_for_each_head_starts_at_zero() -> None:
    module = QK_NORM.build(options_of(QK_NORM, "per_head", norm=norm(weight="zero_centred")), HEADS, KV_HEADS, WIDTH)
    assert all((parameter == 0).all() for parameter in module.parameters())


def test_none_gives_queries_and_keys_back() -> None:
    module, (q, k) = qk_norm("none"), qk()
    assert module.before(q, k)[0] is q
    assert module.after(q, k)[1] is k
    assert not list(module.parameters())


@pytest.mark.parametrize("word", ["head", "full", "per_head"])
def test_the_order_says_on_which_side_of_the_rotation_it_works(word: str) -> None:
    q, k = qk()
    before, after = qk_norm(word, norm=norm()), qk_norm(word, norm=norm(), order="after_rope")
    for here, there in ((before.before, before.after), (after.after, after.before)):
        assert max_difference(here(q, k)[0], q) > 0.1
        assert max_difference(here(q, k)[1], k) > 0.1
        assert there(q, k)[0] is q
        assert there(q, k)[1] is k


def test_attention_normalises_turns_or_turns_normalises() -> None:
    rope = POSITION.build(options_of(POSITION, "rope"), 32, 4, 8, 16, 16)
    for order in ("before_rope", "after_rope"):
        cfg = changed(small("attention=gqa", "attention/qk_norm=head"), "attention.qk_norm.order", order)
        module = random_model(cfg).blocks[0].attention.sublayer
        x_BTD = normal(1, 7, 32)
        q, k = (z.unflatten(-1, (-1, 8)).transpose(1, 2) for z in (module.q(x_BTD), module.k(x_BTD)))
        steps = (module.qk_norm.norms, rope.rotate) if order == "before_rope" else (rope.rotate, module.qk_norm.norms)
        expected = steps[1](*steps[0](q, k))
        assert torch.equal(module.project(x_BTD, rope)[0], expected[0])
        assert torch.equal(module.project(x_BTD, rope)[1], expected[1])


def test_a_gain_before_and_after_the_rotation_are_two_functions() -> None:
    before = changed(small(), "attention.qk_norm", yaml_of("attention/qk_norm", "head"))
    after = changed(before, "attention.qk_norm.order", "after_rope")
    assert max_difference(random_model(before)(tokens_of(before)), random_model(after)(tokens_of(after))) > 0.01


@pytest.mark.parametrize("word", ["head", "full", "per_head"])
def test_bfloat16_queries_stay_bfloat16(word: str) -> None:
    q, k = (x.bfloat16() for x in qk())
    assert {x.dtype for x in qk_norm(word, norm=norm("layernorm")).before(q, k)} == {torch.bfloat16}


# --- what cannot be


def problems(key: str, value: Any, *choices: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        changed(small(*choices), key, value)
    return [problem.key for problem in raised.value.problems]


@pytest.mark.parametrize("word", ["head", "full", "per_head"])
def test_a_norm_that_is_none_leaves_nothing_to_do(word: str) -> None:
    assert problems("attention.qk_norm.norm", yaml_of("norm", "none"), f"attention/qk_norm={word}") == ["attention.qk_norm.norm"]


@pytest.mark.parametrize("chosen", [norm("prmsnorm"), yaml_of("norm", "dyt"), norm(weight="none"), norm("layernorm", weight="none")])
def test_a_gain_for_each_head_needs_a_norm_with_one(chosen: dict[str, Any]) -> None:
    assert problems("attention.qk_norm.norm", chosen, "attention/qk_norm=per_head") == ["attention.qk_norm"]


@pytest.mark.parametrize("position", ["none", "learned", "alibi"])
def test_after_a_rotation_that_there_is_not_is_refused(position: str) -> None:
    assert problems("attention.qk_norm.order", "after_rope", "attention/qk_norm=head", f"position={position}") == [
        "attention.qk_norm.order"
    ]
