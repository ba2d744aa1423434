"""Which tokens see which, and that each path of attention honours every part of a mask."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import flex_attention
from torch.nn.attention.flex_attention import BlockMask

from ablate.model.mask import Reach, attend, visible, written_out
from tests.model.conftest import max_difference

TOKENS, HEADS = 12, 2
SCALE = 0.4

Sees = Callable[[int, int], bool]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def qkv(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(2 * normal(2, HEADS, TOKENS, 4, seed=seed).to(dtype) for seed in (1, 2, 3))  # type: ignore[return-value]


# --- who sees whom


def rows(reach: Reach, tokens: int) -> list[str]:
    seen_TT = reach.sees(torch.arange(tokens)[:, None], torch.arange(tokens)[None, :])
    return ["".join("x" if seen else "." for seen in row) for row in seen_TT.tolist()]


def test_without_limits_a_token_sees_itself_and_all_before() -> None:
    assert rows(Reach(None, None), 4) == ["x...", "xx..", "xxx.", "xxxx"]


def test_a_window_of_3_keeps_exactly_three_keys_the_token_itself_among_them() -> None:
    assert rows(Reach(3, None), 6) == ["x.....", "xx....", "xxx...", ".xxx..", "..xxx.", "...xxx"]


def test_a_window_of_1_keeps_the_token_alone() -> None:
    assert rows(Reach(1, None), 3) == ["x..", ".x.", "..x"]


def test_chunks_of_3_are_seen_from_their_own_start() -> None:
    assert rows(Reach(None, 3), 7) == ["x......", "xx.....", "xxx....", "...x...", "...xx..", "...xxx.", "......x"]


def test_a_window_in_a_chunk_is_what_both_allow() -> None:
    assert rows(Reach(2, 3), 6) == ["x.....", "xx....", ".xx...", "...x..", "...xx.", "....xx"]


def test_a_mask_of_blocks_hides_what_a_mask_of_tokens_hides() -> None:
    """Blocks are 128 tokens wide: one that is left out must hold nothing that is seen."""
    blocks = visible(Reach(40, 100), 300, torch.device("cpu"), flex=True)
    assert isinstance(blocks, BlockMask)
    expected = torch.tensor([[t - 40 < s <= t and t // 100 == s // 100 for s in range(300)] for t in range(300)])
    t_T = torch.arange(300)
    assert torch.equal(blocks.mask_mod(torch.tensor(0), torch.tensor(0), t_T[:, None], t_T[None, :]), expected)
    kept = blocks.to_dense()[0, 0].bool().repeat_interleave(128, 0).repeat_interleave(128, 1)[:300, :300]
    assert kept[expected].all()
    assert not kept[:128, 128:].any()


# --- every path against loops in float64


class Case(NamedTuple):
    reach: Reach
    sees: Sees
    bias: bool
    sink: bool
    soft_cap: float

    def arguments(self) -> dict[str, Any]:
        return {
            "bias": 3 * normal(HEADS, TOKENS, TOKENS, seed=4) if self.bias else None,
            "sink": torch.tensor([0.7, -1.3]) if self.sink else None,
            "scale": SCALE,
            "soft_cap": self.soft_cap,
        }


REACHES: dict[str, tuple[Reach, Sees]] = {
    "all": (Reach(None, None), lambda t, s: True),
    "window": (Reach(5, None), lambda t, s: s in (t - 4, t - 3, t - 2, t - 1, t)),
    "chunk": (Reach(None, 5), lambda t, s: (t < 5) == (s < 5) and (t < 10) == (s < 10)),
}
CASES = {
    " ".join([name, *["bias"] * bias, *["sink"] * sink, *["cap"] * (cap < math.inf)]): Case(reach, sees, bias, sink, cap)
    for name, (reach, sees) in REACHES.items()
    for bias in (False, True)
    for sink in (False, True)
    for cap in (math.inf, 1.5)
}


def exact(case: Case, q_BNTH: Tensor, k_BNTH: Tensor, v_BNTH: Tensor) -> Tensor:
    """One query at a time, over the keys that it sees and no others, in float64."""
    given = case.arguments()
    y_BNTH = torch.zeros_like(v_BNTH, dtype=torch.float64)
    for n in range(HEADS):
        for t in range(TOKENS):
            keys = [s for s in range(t + 1) if case.sees(t, s)]
            score_BS = torch.einsum("bh,bsh->bs", q_BNTH[:, n, t].double(), k_BNTH[:, n, keys].double()) * SCALE
            if case.soft_cap < math.inf:
                score_BS = case.soft_cap * torch.tanh(score_BS / case.soft_cap)
            if given["bias"] is not None:
                score_BS = score_BS + given["bias"][n, t, keys]
            weight_BS = score_BS.exp()
            total_B = weight_BS.sum(-1) + (math.exp(given["sink"][n].item()) if case.sink else 0)
            y_BNTH[:, n, t] = torch.einsum("bs,bsh->bh", weight_BS / total_B[:, None], v_BNTH[:, n, keys].double())
    return y_BNTH


def by_mask(case: Case, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """What `attend` takes on a CPU."""
    seen = visible(case.reach, TOKENS, torch.device("cpu"), flex=False)
    return attend(q, k, v, seen, **case.arguments(), dropout=0.0)


def by_flex(case: Case, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    blocks = visible(case.reach, TOKENS, torch.device("cpu"), flex=True)
    return attend(q, k, v, blocks, **case.arguments(), dropout=0.0)


def in_plain_operators(case: Case, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    seen = visible(case.reach, TOKENS, torch.device("cpu"), flex=False)
    assert seen is None or isinstance(seen, Tensor)
    return written_out(q, k, v, seen, **case.arguments(), dropout=0.0)


PATHS = {"by_mask": by_mask, "by_flex": by_flex, "in_plain_operators": in_plain_operators}


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flex attention as the plain operator behind it, without a second of compiling for each case."""
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.usefixtures("uncompiled")
def test_every_path_is_what_a_loop_over_seen_keys_gives(path: str, name: str) -> None:
    """With flex attention the forward pass alone: on a CPU PyTorch has no gradient of it."""
    assert max_difference(PATHS[path](CASES[name], *qkv()), exact(CASES[name], *qkv())) < 1e-5


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", [name for name in CASES if name != "all"])
@pytest.mark.usefixtures("uncompiled")
def test_no_path_loses_a_part_and_ends_as_plain_causal_attention(path: str, name: str) -> None:
    plain = F.scaled_dot_product_attention(*qkv(), is_causal=True, scale=SCALE)
    assert max_difference(PATHS[path](CASES[name], *qkv()), plain) > 0.1


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_flex_attention_is_the_same_as_it_is_called() -> None:
    torch.compiler.reset()
    case = CASES["window bias sink cap"]
    assert max_difference(by_flex(case, *qkv()), exact(case, *qkv())) < 1e-5


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("path", ["by_mask", "in_plain_operators"])
def test_gradients_are_those_of_a_loop_over_seen_keys(path: str, name: str) -> None:
    gradients = []
    for attention in (PATHS[path], exact):
        inputs = [x.requires_grad_() for x in qkv()]
        gradients.append(torch.autograd.grad((attention(CASES[name], *inputs) * normal(2, HEADS, TOKENS, 4)).sum(), inputs))
    for ours, expected in zip(*gradients, strict=True):
        assert max_difference(ours, expected) < 1e-5


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["all", "window bias sink cap", "chunk bias sink cap"])
@pytest.mark.usefixtures("uncompiled")
def test_no_path_lets_the_future_through(path: str, name: str) -> None:
    q, k, v = qkv()
    before = PATHS[path](CASES[name], q, k, v)
    k[:, :, 7:], v[:, :, 7:] = 50.0, -50.0
    after = PATHS[path](CASES[name], q, k, v)
    assert max_difference(before[:, :, :7], after[:, :, :7]) == 0
    assert max_difference(before[:, :, 7:], after[:, :, 7:]) > 1


@pytest.mark.parametrize("name", CASES)
def test_bfloat16_keeps_its_dtype_and_the_mask_and_stays_near_the_loop(name: str) -> None:
    case, rounded = CASES[name], qkv(torch.bfloat16)
    y = by_mask(case, *rounded)
    assert y.dtype == torch.bfloat16
    assert max_difference(y, exact(case, *rounded)) < 0.06  # numbers to 8: half of their last place is 0.016


def test_plain_attention_is_the_fused_operator_of_torch() -> None:
    assert torch.equal(by_mask(CASES["all"], *qkv()), F.scaled_dot_product_attention(*qkv(), is_causal=True, scale=SCALE))


# --- numbers on paper: one query and two keys whose scores are log 2 and log 6


def read(**changes: Any) -> float:
    """How much of the first key's value (1, the other's is 0) the second token reads."""
    q, k = torch.ones(1, 1, 2, 1), torch.tensor([2.0, 6.0]).log().reshape(1, 1, 2, 1)
    v = torch.tensor([1.0, 0.0]).reshape(1, 1, 2, 1)
    given: dict[str, Any] = {"bias": None, "sink": None, "scale": 1.0, "soft_cap": math.inf, "dropout": 0.0, **changes}
    return attend(q, k, v, None, **given)[0, 0, 1, 0].item()


def test_scores_of_log_2_and_log_6_share_the_weight_as_one_to_three() -> None:
    assert read() == pytest.approx(2 / 8)


def test_a_sink_of_log_8_takes_half_of_the_weight() -> None:
    assert read(sink=torch.tensor([math.log(8)])) == pytest.approx(2 / 16)


def test_a_sink_of_zero_is_softmax_off_by_one() -> None:
    assert read(sink=torch.zeros(1)) == pytest.approx(2 / 9)


def test_a_bias_is_added_after_the_cap() -> None:
    bias = torch.tensor([[0.0, 0.0], [math.log(5), 0.0]])
    first, second = (math.exp(0.5 * math.tanh(math.log(score) / 0.5)) for score in (2, 6))
    assert read(bias=bias, soft_cap=0.5) == pytest.approx(5 * first / (5 * first + second))


def test_the_cap_bends_scores_that_are_scaled_already() -> None:
    first, second = (math.exp(0.5 * math.tanh(0.3 * math.log(score) / 0.5)) for score in (2, 6))
    assert read(scale=0.3, soft_cap=0.5) == pytest.approx(first / (first + second))


def test_a_sink_is_neither_scaled_nor_capped() -> None:
    first, second = (math.exp(0.5 * math.tanh(0.3 * math.log(score) / 0.5)) for score in (2, 6))
    assert read(scale=0.3, soft_cap=0.5, sink=torch.tensor([math.log(8)])) == pytest.approx(first / (first + second + 8))


def test_attention_with_a_sink_is_that_without_times_the_sigmoid_of_log_sum_minus_sink() -> None:
    q, k, v = qkv()
    case = CASES["all sink"]
    sink_N = case.arguments()["sink"].double()
    score = (q.double() @ k.double().transpose(-1, -2) * SCALE).masked_fill(torch.ones(TOKENS, TOKENS).triu(1).bool(), -math.inf)
    share_BNT = 1 / (1 + torch.exp(sink_N[:, None] - score.logsumexp(-1)))
    assert max_difference(by_mask(case, q, k, v), by_mask(CASES["all"], q, k, v) * share_BNT[..., None]) < 1e-5


@pytest.mark.parametrize("name", ["all sink", "window sink cap"])
def test_weights_beside_a_sink_sum_to_less_than_one(name: str) -> None:
    q, k, _ = qkv()
    sums = by_mask(CASES[name], q, k, torch.ones(2, HEADS, TOKENS, 1))
    assert sums.max() < 1
    assert sums.min() > 0
    assert max_difference(by_mask(CASES[name]._replace(sink=False), q, k, torch.ones(2, HEADS, TOKENS, 1)), torch.ones(())) < 1e-6


def test_a_bias_in_the_future_means_nothing() -> None:
    q, k, v = qkv()
    bias = normal(HEADS, TOKENS, TOKENS)
    huge = bias + 1e4 * torch.ones(TOKENS, TOKENS).triu(1)
    given: dict[str, Any] = {"sink": None, "scale": SCALE, "soft_cap": math.inf, "dropout": 0.0}
    assert torch.equal(attend(q, k, v, None, bias=bias, **given), attend(q, k, v, None, bias=huge, **given))


def test_flex_attention_refuses_to_forget_dropout() -> None:
    blocks = visible(Reach(None, None), TOKENS, torch.device("cpu"), flex=True)
    with pytest.raises(AssertionError, match="drops nothing"):
        attend(*qkv(), blocks, **CASES["all"].arguments(), dropout=0.1)
