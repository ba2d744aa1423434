from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ablate.errors import ConfigError
from ablate.model.attention import ATTENTION, Attention, attend, written_out
from ablate.model.position import POSITION, Position
from tests.model.conftest import changed, composed, max_difference, random_model, randomise, small, tokens_of, yaml_of

DIM, HEADS, KV_HEADS = 24, 4, {"mha": 4, "gqa": 2, "mqa": 1}


def attention(word: str, **options: Any) -> Attention:
    """Attention of width 24 with 4 heads and every parameter random."""
    module = ATTENTION.build(ATTENTION.options(word).model_validate({**yaml_of("attention", word), **options}), DIM, HEADS)
    randomise(module)
    return module


def position(word: str, head_dim: int) -> Position:
    return POSITION.build(POSITION.options(word).model_validate(yaml_of("position", word)), DIM, head_dim, 16)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def qkv(kv_heads: int = 4, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = normal(2, 4, 16, 8, seed=1), normal(2, kv_heads, 16, 8, seed=2), normal(2, kv_heads, 16, 8, seed=3)
    return q.to(dtype), k.to(dtype), v.to(dtype)


# --- against loops in float64


def by_loops(module: Attention, x_TD: Tensor, *, kv_heads: int, head_dim: int, soft_cap: float, eps: float, rope: bool) -> Tensor:
    """Attention written from the papers for one sequence, one head and one pair of tokens at a time."""
    matrix = {name: parameter.detach().double() for name, parameter in module.named_parameters()}
    x_TD = x_TD.double()

    def projected(name: str, heads: int) -> Tensor:
        y = x_TD @ matrix[f"{name}.weight"].T + matrix.get(f"{name}.bias", torch.zeros(heads * head_dim))
        return y.reshape(len(x_TD), heads, head_dim)

    def prepared(name: str, heads: int) -> Tensor:
        y_TNH = projected(name, heads)
        gain = matrix.get(f"{name}_norm.weight")
        for t in range(len(x_TD)):
            for n in range(heads):
                if gain is not None:
                    y_TNH[t, n] = y_TNH[t, n] / math.sqrt(y_TNH[t, n].square().mean().item() + eps) * gain
                if rope:
                    y_TNH[t, n] = turned(y_TNH[t, n], t)
        return y_TNH

    q_TNH, k_TKH, v_TKH = prepared("q", HEADS), prepared("k", kv_heads), projected("v", kv_heads)
    y_TNH = torch.zeros(len(x_TD), HEADS, head_dim, dtype=torch.float64)
    for n in range(HEADS):
        group = n // (HEADS // kv_heads)
        for t in range(len(x_TD)):
            scores = [q_TNH[t, n].dot(k_TKH[s, group]).item() / math.sqrt(head_dim) for s in range(t + 1)]
            if soft_cap != math.inf:
                scores = [soft_cap * math.tanh(score / soft_cap) for score in scores]
            total = sum(math.exp(score) for score in scores)
            for s in range(t + 1):
                y_TNH[t, n] += math.exp(scores[s]) / total * v_TKH[s, group]
    return y_TNH.reshape(len(x_TD), -1) @ matrix["out.weight"].T + matrix.get("out.bias", torch.zeros(DIM))


def turned(x_H: Tensor, t: int) -> Tensor:
    half = len(x_H) // 2
    angle = torch.tensor([t * 10_000 ** (-i / half) for i in range(half)], dtype=torch.float64)
    number = torch.complex(x_H[:half], x_H[half:]) * torch.polar(torch.ones(half, dtype=torch.float64), angle)
    return torch.cat([number.real, number.imag])


@pytest.mark.parametrize("word", ATTENTION.words())
@pytest.mark.parametrize("soft_cap", [math.inf, 0.7])
@pytest.mark.parametrize("bias", [False, True])
def test_attention_is_what_loops_in_float64_give(word: str, soft_cap: float, bias: bool) -> None:
    module, x_TD = attention(word, soft_cap=soft_cap, qkv_bias=bias, out_bias=bias), normal(7, DIM)
    expected = by_loops(module, x_TD, kv_heads=KV_HEADS[word], head_dim=6, soft_cap=soft_cap, eps=0, rope=False)
    assert max_difference(module(x_TD[None], position("none", 6))[0], expected) < 1e-5


@pytest.mark.parametrize("word", ATTENTION.words())
def test_queries_and_keys_are_normalised_before_they_turn(word: str) -> None:
    qk_norm = yaml_of("norm", "rmsnorm") | {"eps": 0.05}
    module, x_TD = attention(word, qk_norm=qk_norm), normal(7, DIM)
    expected = by_loops(module, x_TD, kv_heads=KV_HEADS[word], head_dim=6, soft_cap=math.inf, eps=0.05, rope=True)
    assert max_difference(module(x_TD[None], position("rope", 6))[0], expected) < 1e-5


def test_a_width_of_heads_that_is_chosen_scales_scores_by_its_own_root() -> None:
    module, x_TD = attention("gqa", head_dim=16), normal(7, DIM)
    expected = by_loops(module, x_TD, kv_heads=2, head_dim=16, soft_cap=math.inf, eps=0, rope=False)
    assert (module.q.out_features, module.k.out_features) == (64, 32)
    assert max_difference(module(x_TD[None], position("none", 16))[0], expected) < 1e-5


# --- variants against each other


@pytest.mark.parametrize("word", ["gqa", "mqa"])
def test_grouped_heads_are_multi_head_with_repeated_keys_and_values(word: str) -> None:
    grouped, full, x = attention(word, qkv_bias=True), attention("mha", qkv_bias=True), normal(2, 9, DIM)
    state = grouped.state_dict()
    for name in ("k.weight", "k.bias", "v.weight", "v.bias"):
        state[name] = state[name].unflatten(0, (KV_HEADS[word], 6)).repeat_interleave(4 // KV_HEADS[word], dim=0).flatten(0, 1)
    full.load_state_dict(state)
    rope = position("rope", 6)
    assert max_difference(grouped(x, rope), full(x, rope)) < 1e-5


def test_gqa_with_one_head_of_keys_is_mqa() -> None:
    x, rope = normal(2, 9, DIM), position("rope", 6)
    assert torch.equal(attention("gqa", kv_heads=1)(x, rope), attention("mqa")(x, rope))


def test_gqa_with_all_heads_of_keys_is_mha() -> None:
    x, rope = normal(2, 9, DIM), position("rope", 6)
    assert torch.equal(attention("gqa", kv_heads=4)(x, rope), attention("mha")(x, rope))


def test_a_large_soft_cap_approaches_none_and_a_small_one_does_not() -> None:
    q, k, v = qkv()
    plain = attend(q, k, v, 1.0, math.inf)
    differences = [max_difference(attend(q, k, v, 1.0, cap), plain) for cap in (2.0, 20.0, 200.0, 2e4)]
    assert differences[0] > 0.1
    assert differences[0] > differences[1] > differences[2]
    assert differences[3] < 1e-5


def test_soft_capped_attention_of_the_whole_model_approaches_plain_attention() -> None:
    cfg = small()
    plain = random_model(cfg)(tokens_of(cfg))
    near = random_model(changed(cfg, "attention.soft_cap", 1e4))(tokens_of(cfg))
    far = random_model(changed(cfg, "attention.soft_cap", 0.5))(tokens_of(cfg))
    assert max_difference(near, plain) < 1e-4
    assert max_difference(far, plain) > 0.1


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_the_fused_operator_is_attention_written_out(kv_heads: int) -> None:
    q, k, v = qkv(kv_heads)
    groups = 4 // kv_heads
    plain = written_out(q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1), 0.3, math.inf)
    assert max_difference(attend(q, k, v, 0.3, math.inf), plain) < 1e-6


def test_gradients_of_the_fused_operator_are_those_of_attention_written_out() -> None:
    gradients = []
    for path in (attend, written_out):
        q, k, v = (x.requires_grad_() for x in qkv())
        gradients.append(torch.autograd.grad((path(q, k, v, 0.3, math.inf) * normal(2, 4, 16, 8)).sum(), (q, k, v)))
    for fused, plain in zip(*gradients, strict=True):
        assert max_difference(fused, plain) < 1e-5


def test_bfloat16_attention_keeps_its_dtype_and_stays_near_float32() -> None:
    exact = attend(*qkv(2), 0.3, math.inf)
    rounded = attend(*qkv(2, torch.bfloat16), 0.3, math.inf)
    assert rounded.dtype == torch.bfloat16
    assert max_difference(rounded, exact) < 0.03


def test_the_first_token_reads_itself_alone() -> None:
    module, x = attention("mha"), normal(1, 5, DIM)
    y = module(x, position("rope", 6))
    assert max_difference(y[0, 0], module.out(module.v(x[0, 0]))) < 1e-6


# --- what cannot be


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(ConfigError) as raised:
        changed(small(), "model.heads", 5)
    assert raised.value.problems[0].key == "model.heads"


def test_key_heads_that_do_not_divide_the_heads_are_refused() -> None:
    with pytest.raises(ConfigError) as raised:
        changed(small("attention=gqa"), "attention.kv_heads", 3)
    assert raised.value.problems[0].key == "attention.kv_heads"


def test_stability_soft_cap_caps_scores_and_logits() -> None:
    cfg = composed("stability=soft_cap")
    caps = (cfg.attention.soft_cap, cfg.head.soft_cap)
    model = random_model(cfg)
    assert caps == (50, 30)
    assert (model.blocks[1].attention.sublayer.soft_cap, model.head.soft_cap) == caps
