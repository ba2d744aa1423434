"""Attention against loops in float64 that are written from the papers, one head and one pair of tokens at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ablate.config import meta_model
from ablate.errors import ConfigError
from ablate.model.attention import ATTENTION, Attention
from ablate.model.mask import visible
from ablate.model.position import POSITION, Position
from tests.model.conftest import changed, composed, max_difference, options_of, random_model, randomise, small, tokens_of, yaml_of

DIM, HEADS, CONTEXT, TOKENS = 24, 4, 16, 9
KV_HEADS = {"mha": 4, "gqa": 2, "mqa": 1}
RMSNORM = yaml_of("norm", "rmsnorm") | {"eps": 0.05}

Weights = dict[str, Tensor]


def attention(word: str, layer: int = 0, **options: Any) -> Attention:
    """Attention of width 24 with 4 heads and every parameter random."""
    module = started(word, layer, **options)
    randomise(module)
    return module


def started(word: str, layer: int = 0, **options: Any) -> Attention:
    """The same as it is built."""
    return ATTENTION.build(options_of(ATTENTION, word, **options), DIM, HEADS, CONTEXT, layer, 0.0)


def position(word: str, head_dim: int) -> Position:
    return POSITION.build(options_of(POSITION, word), DIM, HEADS, head_dim, CONTEXT, CONTEXT)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def run(module: Attention, x_BTD: Tensor, at: Position, first_value: Tensor | None = None) -> Tensor:
    return module(x_BTD, at, visible(module.reach, x_BTD.shape[1], x_BTD.device, flex=False), first_value)[0]


def values_of(module: Attention, x_BTD: Tensor) -> Tensor | None:
    """What it hands on to later layers."""
    return module(x_BTD, position("none", module.rotary_dim), None, None)[1]


def weights_of(module: Attention) -> Weights:
    return {name: parameter.detach().double() for name, parameter in module.named_parameters()}


# --- loops


def read(
    q_TNH: Tensor,
    k_TNH: Tensor,
    v_TNH: Tensor,
    scale: float,
    sees: Callable[[int, int], bool] = lambda t, s: True,
    cap: float | None = None,
    sink: list[float] | None = None,
) -> Tensor:
    """softmax of the scores times the values -> y_TNH."""
    y_TNH = torch.zeros_like(v_TNH)
    for t in range(len(q_TNH)):
        for n in range(q_TNH.shape[1]):
            seen = [s for s in range(t + 1) if sees(t, s)]
            scores = [q_TNH[t, n].dot(k_TNH[s, n]).item() * scale for s in seen]
            if cap is not None:
                scores = [cap * math.tanh(score / cap) for score in scores]
            total = sum(math.exp(score) for score in scores) + (math.exp(sink[n]) if sink else 0)
            for score, s in zip(scores, seen, strict=True):
                y_TNH[t, n] += math.exp(score) / total * v_TNH[s, n]
    return y_TNH


def split(x_TD: Tensor, weights: Weights, name: str, heads: int) -> Tensor:
    y = x_TD @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", torch.zeros(()))
    return y.reshape(len(x_TD), heads, -1)


def turned(x_TNH: Tensor) -> Tensor:
    """Rotary embedding as complex numbers."""
    half = x_TNH.shape[-1] // 2
    frequency = torch.tensor([10_000 ** (-i / half) for i in range(half)], dtype=torch.float64)
    turn_TH = torch.polar(torch.ones(len(x_TNH), half, dtype=torch.float64), torch.outer(torch.arange(len(x_TNH)).double(), frequency))
    number = torch.complex(x_TNH[..., :half], x_TNH[..., half:]) * turn_TH[:, None]
    return torch.cat([number.real, number.imag], dim=-1)


def normed(x_TNH: Tensor, gain: Tensor) -> Tensor:
    return x_TNH / (x_TNH.square().mean(-1, keepdim=True) + 0.05).sqrt() * gain


def by_loops(
    module: Attention,
    x_TD: Tensor,
    *,
    kv_heads: int,
    head_dim: int = 6,
    rope: bool = False,
    norms: tuple[str, ...] = (),
    clip: float = math.inf,
    k_eq_v: bool = False,
    scale: float | None = None,
    temperature: Callable[[int], float] = lambda t: 1.0,
    gate: Callable[[Tensor], Tensor] = lambda y_TNH: y_TNH,
    values: Callable[[Tensor], Tensor] = lambda v_TKH: v_TKH,
    **reading: Any,
) -> Tensor:
    weights, x_TD = weights_of(module), x_TD.double()
    q_TNH, k_TKH = split(x_TD, weights, "q", HEADS), split(x_TD, weights, "k", kv_heads)
    v_TKH = k_TKH if k_eq_v else split(x_TD, weights, "v", kv_heads)
    if "qk" in norms:
        q_TNH, k_TKH = normed(q_TNH, weights["qk_norm.q.weight"]), normed(k_TKH, weights["qk_norm.k.weight"])
    if "v" in norms:
        v_TKH = normed(v_TKH, weights["v_norm.weight"])
    q_TNH, k_TKH, v_TKH = (z.minimum(torch.tensor(clip)).maximum(torch.tensor(-clip)) for z in (q_TNH, k_TKH, v_TKH))
    if rope:
        q_TNH, k_TKH = turned(q_TNH), turned(k_TKH)
    q_TNH = torch.stack([q_TNH[t] * temperature(t) for t in range(len(q_TNH))])
    of_query = [n * kv_heads // HEADS for n in range(HEADS)]
    y_TNH = read(q_TNH, k_TKH[:, of_query], values(v_TKH)[:, of_query], scale or head_dim**-0.5, **reading)
    return gate(y_TNH).reshape(len(x_TD), -1) @ weights["out.weight"].T + weights.get("out.bias", torch.zeros(DIM))


def assert_loops_agree(word: str, options: dict[str, Any], rope: bool = True, **in_loops: Any) -> None:
    """And that the options matter: without them it is another number."""
    module, x_TD = attention(word, **options), normal(TOKENS, DIM)
    at = position("rope" if rope else "none", in_loops.get("head_dim", 6))
    expected = by_loops(module, x_TD, kv_heads=KV_HEADS[word], rope=rope, **in_loops)
    assert max_difference(run(module, x_TD[None], at)[0], expected) < 1e-5
    if options:
        assert max_difference(run(attention(word), x_TD[None], position("rope", 6))[0], expected) > 0.01


@pytest.mark.parametrize("rope", [False, True])
@pytest.mark.parametrize("word", KV_HEADS)
def test_attention_is_what_loops_in_float64_give(word: str, rope: bool) -> None:
    assert_loops_agree(word, {}, rope)


@pytest.mark.parametrize("word", KV_HEADS)
def test_biases_are_added_to_queries_keys_values_and_output(word: str) -> None:
    assert_loops_agree(word, {"qkv_bias": True, "out_bias": True})


def test_a_width_of_heads_that_is_chosen_scales_scores_by_its_own_root() -> None:
    assert (attention("gqa", head_dim=16).q.out_features, attention("gqa", head_dim=16).k.out_features) == (64, 32)
    assert_loops_agree("gqa", {"head_dim": 16}, head_dim=16)


@pytest.mark.parametrize("word", KV_HEADS)
def test_queries_and_keys_are_normalised_before_they_turn(word: str) -> None:
    assert_loops_agree(word, {"qk_norm": {"kind": "head", "norm": RMSNORM, "order": "before_rope"}}, norms=("qk",))


def test_values_are_normalised_by_head() -> None:
    assert_loops_agree("gqa", {"v_norm": RMSNORM}, norms=("v",))


def test_queries_keys_and_values_are_clipped_after_norms_and_before_they_turn() -> None:
    options = {"clip": 0.4, "qk_norm": {"kind": "head", "norm": RMSNORM, "order": "before_rope"}, "v_norm": RMSNORM}
    assert_loops_agree("gqa", options, clip=0.4, norms=("qk", "v"))
    assert_loops_agree("mha", {"clip": 0.4}, clip=0.4)


def test_values_are_the_keys_before_norm_and_turn() -> None:
    qk_norm = {"kind": "head", "norm": RMSNORM, "order": "before_rope"}
    assert attention("gqa", k_eq_v=True).v is None
    assert_loops_agree("gqa", {"k_eq_v": True, "qk_norm": qk_norm, "qkv_bias": True}, k_eq_v=True, norms=("qk",))
    assert_loops_agree("gqa", {"k_eq_v": True, "v_norm": RMSNORM}, k_eq_v=True, norms=("v",))


def test_a_scale_that_is_chosen_takes_the_place_of_the_root() -> None:
    assert_loops_agree("gqa", {"scale": 1.7}, scale=1.7)


def test_scores_are_scaled_then_capped() -> None:
    assert_loops_agree("gqa", {"soft_cap": 0.7, "scale": 1.3}, scale=1.3, cap=0.7)


@pytest.mark.parametrize("word", KV_HEADS)
def test_a_window_keeps_the_last_keys_the_token_itself_among_them(word: str) -> None:
    assert_loops_agree(word, {"window": 3}, sees=lambda t, s: s >= t - 2)


def test_a_share_of_the_context_is_a_window_of_so_many_tokens() -> None:
    assert attention("mha", window="1/4").reach.window == 4
    assert attention("mha", chunk=0.5).reach.chunk == 8
    assert_loops_agree("gqa", {"window": "1/4"}, sees=lambda t, s: s >= t - 3)


def test_chunks_do_not_see_each_other() -> None:
    assert_loops_agree("gqa", {"chunk": 4}, sees=lambda t, s: t // 4 == s // 4)


def test_a_learned_sink_takes_weight_of_each_head() -> None:
    sink = attention("gqa", sink="learned").sink
    assert sink is not None
    assert_loops_agree("gqa", {"sink": "learned"}, sink=sink.tolist())


def test_a_learned_sink_starts_at_zero_and_one_of_zero_is_no_parameter() -> None:
    assert started("mha", sink="learned").sink.tolist() == [0.0] * 4  # type: ignore[union-attr]
    zero = attention("mha", sink="zero")
    assert {name for name, _ in zero.named_parameters()} == {name for name, _ in attention("mha").named_parameters()}
    assert set(zero.state_dict()) == set(attention("mha").state_dict())


def test_a_sink_of_zero_is_softmax_off_by_one() -> None:
    assert_loops_agree("gqa", {"sink": "zero"}, sink=[0.0] * 4)


def test_everything_at_once_is_still_what_the_loops_give() -> None:
    qk_norm = {"kind": "head", "norm": RMSNORM, "order": "before_rope"}
    sink = attention("gqa", sink="learned").sink
    assert sink is not None
    assert_loops_agree(
        "gqa",
        {"window": 4, "chunk": 7, "soft_cap": 0.9, "sink": "learned", "qk_norm": qk_norm, "clip": 1.1, "qkv_bias": True, "scale": 0.8},
        norms=("qk",),
        clip=1.1,
        scale=0.8,
        cap=0.9,
        sink=sink.tolist(),
        sees=lambda t, s: s > t - 4 and t // 7 == s // 7,
    )


@pytest.mark.parametrize("word", KV_HEADS)
@pytest.mark.parametrize("bias", ["alibi", "t5", "kerple"])
def test_a_bias_of_position_is_added_to_the_scores(word: str, bias: str) -> None:
    module, x_TD = attention(word), normal(TOKENS, DIM)
    at = position(bias, 6)
    randomise(at)
    q, k, v = (
        split(x_TD.double(), weights_of(module), name, heads) for name, heads in zip("qkv", (HEADS, *[KV_HEADS[word]] * 2), strict=True)
    )
    bias_NTT = at.bias(torch.zeros(1, HEADS, TOKENS, 6), torch.zeros(1, HEADS, TOKENS, 6), 1.0)
    assert bias_NTT is not None
    y_TNH = torch.zeros(TOKENS, HEADS, 6, dtype=torch.float64)
    for n in range(HEADS):
        group = n * KV_HEADS[word] // HEADS
        for t in range(TOKENS):
            scores = [q[t, n].dot(k[s, group]).item() / math.sqrt(6) + bias_NTT[..., n, t, s].item() for s in range(t + 1)]
            total = sum(map(math.exp, scores))
            y_TNH[t, n] = sum(math.exp(score) / total * v[s, group] for s, score in enumerate(scores))
    expected = y_TNH.reshape(TOKENS, -1) @ weights_of(module)["out.weight"].T
    assert max_difference(run(module, x_TD[None], at)[0], expected) < 1e-5


# --- temperature


@pytest.mark.parametrize(
    ("floor", "shift", "expected"),
    [
        # 1 + 0.5 ln(1 + floor((t + shift) / floor)): a step each `floor` tokens
        (4, 0, [0, 0, 0, 0, math.log(2), math.log(2), math.log(2), math.log(2), math.log(3)]),
        (4, 1, [0, 0, 0, math.log(2), math.log(2), math.log(2), math.log(2), math.log(3), math.log(3)]),
        (1, 0, [math.log(t + 1) for t in range(9)]),
        ("1/8", 0, [0, 0, math.log(2), math.log(2), math.log(3), math.log(3), math.log(4), math.log(4), math.log(5)]),
    ],
)
def test_temperature_sharpens_queries_by_the_logarithm_of_their_distance_from_the_start(
    floor: Any, shift: int, expected: list[float]
) -> None:
    options = {"temperature": {"floor": floor, "beta": 0.5, "shift": shift}}
    assert_loops_agree("gqa", options, temperature=lambda t: 1 + 0.5 * expected[t])


@pytest.mark.parametrize(("floor", "shift", "beta", "key"), [(16, 0, 0.1, "floor"), (17, 1, 0.1, "floor"), (4, 0, math.inf, "beta")])
def test_a_temperature_that_does_nothing_or_means_nothing_is_refused(floor: int, shift: int, beta: float, key: str) -> None:
    assert_refused("attention.temperature", {"floor": floor, "beta": beta, "shift": shift}, f"attention.temperature.{key}")


def test_a_temperature_that_is_reached_at_the_last_token_is_legal() -> None:
    changed(small(), "attention.temperature", {"floor": 15, "beta": 0.1, "shift": 0})
    changed(small(), "attention.temperature", {"floor": 16, "beta": 0.1, "shift": 1})


# --- gate


@pytest.mark.parametrize("word", KV_HEADS)
@pytest.mark.parametrize(("gate", "width"), [("head", 1), ("element", 6)])
def test_a_gate_multiplies_what_was_read_by_a_sigmoid_of_the_input(word: str, gate: str, width: int) -> None:
    module, x_TD = attention(word, gate=gate), normal(TOKENS, DIM)
    logits = (x_TD.double() @ weights_of(module)["gate.weight"].T).reshape(TOKENS, HEADS, width)
    assert_loops_agree(word, {"gate": gate}, gate=lambda y_TNH: y_TNH / (1 + torch.exp(-logits)))


# --- value residual


def test_the_first_layer_hands_its_values_on_and_mixes_nothing() -> None:
    module, x = attention("gqa", value_residual="learned"), normal(1, TOKENS, DIM)
    assert {name for name, _ in module.named_parameters()} == {name for name, _ in attention("gqa").named_parameters()}
    assert torch.equal(run(module, x, position("rope", 6)), run(attention("gqa"), x, position("rope", 6)))
    values = values_of(module, x)
    assert values is not None
    assert max_difference(values[0].transpose(0, 1), split(x[0].double(), weights_of(module), "v", 2)) < 1e-5
    assert values_of(attention("gqa"), x) is None


@pytest.mark.parametrize("kind", ["average", "learned"])
def test_later_layers_mix_the_values_of_the_first_into_their_own(kind: str) -> None:
    module, x_TD, first_BKTH = attention("gqa", layer=1, value_residual=kind), normal(TOKENS, DIM), normal(1, 2, TOKENS, 6, seed=5)
    first, own = weights_of(module)["value_mix"].tolist() if kind == "learned" else (0.5, 0.5)
    expected = by_loops(
        module, x_TD, kv_heads=2, rope=True, values=lambda v_TKH: first * first_BKTH[0].transpose(0, 1).double() + own * v_TKH
    )
    assert max_difference(run(module, x_TD[None], position("rope", 6), first_BKTH)[0], expected) < 1e-5


def test_a_learned_mix_starts_half_and_half() -> None:
    cfg = changed(small(), "attention.value_residual", "learned")
    mixes = {name: tuple(tensor.shape) for name, tensor in meta_model(cfg).named_parameters() if "value_mix" in name}
    assert mixes == {"blocks.1.attention.sublayer.value_mix": (2,)}
    assert started("mha", layer=1, value_residual="learned").value_mix.tolist() == [0.5, 0.5]  # type: ignore[union-attr]


def test_every_later_layer_gets_the_values_of_the_first_and_not_of_the_one_before() -> None:
    cfg = changed(changed(small(), "model.depth", 4), "attention.value_residual", "average")
    model, given = random_model(cfg), []
    for block in model.blocks:
        block.attention.sublayer.register_forward_pre_hook(lambda module, inputs: given.append(inputs[3]))
        block.attention.sublayer.register_forward_hook(lambda module, inputs, output: given.append(output[1]))
    model(tokens_of(cfg))
    first = given[1]
    assert given[0] is None
    assert all(values is first for values in given[2::2])


def test_value_residuals_need_a_second_layer_and_one_shape_in_all() -> None:
    one = changed(small(), "model.depth", 1)
    assert_refused("attention.value_residual", "average", "attention.value_residual", one)
    mixing = changed(small("attention=gqa"), "attention.value_residual", "average")
    for other in (
        {"kv_heads": 2, "head_dim": 16},
        {"value_residual": "none"},
        {**yaml_of("attention", "mqa"), "value_residual": "average"},
    ):
        assert_refused("layers", {"a": {"where": {"layers": [1]}, "set": {"attention": other}}}, "attention.value_residual", mixing)


def test_values_of_one_head_are_not_mixed_with_those_of_several() -> None:
    """Latent attention here caches as many numbers as multi-query attention, and they would broadcast."""
    mixing = changed(small("attention=mqa"), "attention.value_residual", "average")
    latent = {**yaml_of("attention", "mla"), "value_residual": "average", "kv_rank": 12, "rope_dim": 4, "v_dim": 8}
    assert_refused("layers", {"a": {"where": {"last": 1}, "set": {"attention": latent}}}, "attention.value_residual", mixing)


# --- latent attention


MLA = {"kv_rank": 10, "nope_dim": 5, "rope_dim": 4, "v_dim": 7, "latent_norm": RMSNORM}


def latent_by_loops(module: Attention, x_TD: Tensor, q_rank: int | None, **reading: Any) -> Tensor:
    """arXiv 2405.04434, eq. 9 to 19 with eq. 37 to 47: the two parts of a key are projected and rotated apart, one rotated part for all."""
    w, x_TD = weights_of(module), x_TD.double()
    if q_rank is None:
        q_TNH = split(x_TD, w, "q", HEADS)
    else:
        assert w["q_down.weight"].shape == (q_rank, DIM)
        q_TNH = split(normed(x_TD @ w["q_down.weight"].T, w["q_latent_norm.weight"]), w, "q_up", HEADS)
    c_TC = normed(x_TD @ w["kv_down.weight"].T, w["kv_latent_norm.weight"])
    content_TNH, v_TNH = split(c_TC, w, "k_up", HEADS), split(c_TC, w, "v_up", HEADS)
    shared_T1H = turned((x_TD @ w["k_rope.weight"].T)[:, None])
    q_turned = turned(q_TNH[..., 5:])
    q = torch.stack([torch.cat([q_TNH[:, n, :5], q_turned[:, n]], dim=-1) for n in range(HEADS)], dim=1)
    k = torch.stack([torch.cat([content_TNH[:, n], shared_T1H[:, 0]], dim=-1) for n in range(HEADS)], dim=1)
    return read(q, k, v_TNH, 1 / math.sqrt(5 + 4), **reading).reshape(len(x_TD), -1) @ w["out.weight"].T


@pytest.mark.parametrize("q_rank", [None, 8])
@pytest.mark.parametrize("window", [math.inf, 3])
def test_latent_attention_is_what_loops_in_float64_give(q_rank: int | None, window: float) -> None:
    module, x_TD = attention("mla", q_rank=q_rank, window=window, **MLA), normal(TOKENS, DIM)
    expected = latent_by_loops(module, x_TD, q_rank, sees=lambda t, s: s > t - window)
    assert max_difference(run(module, x_TD[None], position("rope", 4))[0], expected) < 1e-5


def test_latent_attention_takes_sinks_caps_and_gates_as_any_other() -> None:
    module, x_TD = attention("mla", q_rank=8, soft_cap=0.6, sink="zero", **MLA), normal(TOKENS, DIM)
    expected = latent_by_loops(module, x_TD, 8, cap=0.6, sink=[0.0] * 4)
    assert max_difference(run(module, x_TD[None], position("rope", 4))[0], expected) < 1e-5
    assert attention("mla", gate="element", **MLA).gate.out_features == 4 * 7  # type: ignore[union-attr]


def test_ranks_may_be_shares_of_the_width_and_dimensions_those_of_a_plain_head() -> None:
    module = attention("mla", kv_rank="1/3", q_rank="1/2")
    shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    assert shapes == {
        "q_down.weight": (12, 24),
        "q_latent_norm.weight": (12,),
        "q_up.weight": (4 * (6 + 2), 12),
        "kv_down.weight": (8, 24),
        "kv_latent_norm.weight": (8,),
        "k_rope.weight": (2, 24),
        "k_up.weight": (24, 8),
        "v_up.weight": (24, 8),
        "out.weight": (24, 24),
    }


def test_latent_attention_caches_its_latent_and_one_rotated_key() -> None:
    assert attention("mla", **MLA).kv_elements_per_token == 10 + 4
    assert {word: attention(word).kv_elements_per_token for word in KV_HEADS} == {"mha": 48, "gqa": 24, "mqa": 12}


# --- causality of each path


FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 3},
    "chunk": {"chunk": 4},
    "sink": {"sink": "learned"},
    "zero sink": {"sink": "zero"},
    "cap": {"soft_cap": 0.5},
    "temperature": {"temperature": {"floor": 2, "beta": 0.5, "shift": 1}},
    "gate": {"gate": "element"},
    "all": {"window": 3, "chunk": 4, "sink": "learned", "soft_cap": 0.5, "gate": "head"},
}


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("at", ["rope", "alibi"])
@pytest.mark.parametrize("word", ATTENTION.words())
def test_a_token_reads_nothing_of_the_future(word: str, at: str, feature: str) -> None:
    module, x = attention(word, **FEATURES[feature]), normal(1, TOKENS, DIM)
    other = x.clone()
    other[:, 5] += 3.0
    before, after = (run(module, given, position(at, module.rotary_dim)) for given in (x, other))
    assert torch.equal(before[:, :5], after[:, :5])
    assert (before[:, 5] != after[:, 5]).all()


def test_the_first_token_reads_itself_alone() -> None:
    module, x = attention("mha"), normal(1, 5, DIM)
    y = run(module, x, position("rope", 6))
    assert max_difference(y[0, 0], module.out(module.v(x[0, 0]))) < 1e-6


@pytest.mark.parametrize("word", ATTENTION.words())
def test_only_the_output_matrix_writes_to_the_residual_stream(word: str) -> None:
    writes = [name for name, module in attention(word).named_modules() if getattr(module, "writes", False)]
    assert writes == ["out"]


# --- what cannot be


def assert_refused(key: str, value: Any, problem: str, cfg: Any = None) -> None:
    with pytest.raises(ConfigError) as raised:
        changed(cfg or small(), key, value)
    assert [found.key for found in raised.value.problems] == [problem]


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    assert_refused("model.heads", 5, "model.heads")


@pytest.mark.parametrize("kv_heads", [3, 8])
def test_key_heads_that_do_not_divide_the_heads_are_refused(kv_heads: int) -> None:
    assert_refused("attention.kv_heads", kv_heads, "attention.kv_heads", small("attention=gqa"))


def test_key_heads_that_make_another_word_are_refused_by_it() -> None:
    for kv_heads, word in ((1, "mqa"), (4, "mha")):
        with pytest.raises(ConfigError, match=f"attention={word}"):
            changed(small("attention=gqa"), "attention.kv_heads", kv_heads)


@pytest.mark.parametrize("option", ["window", "chunk"])
@pytest.mark.parametrize("tokens", [16, 17, 1000])
def test_limits_that_cover_the_whole_context_are_refused(option: str, tokens: int) -> None:
    assert_refused(f"attention.{option}", tokens, f"attention.{option}")


@pytest.mark.parametrize("window", [4, 5])
def test_a_window_that_covers_every_chunk_is_refused(window: int) -> None:
    assert_refused("attention.window", window, "attention.window", changed(small(), "attention.chunk", 4))
    changed(changed(small(), "attention.chunk", 4), "attention.window", 3)


@pytest.mark.parametrize("value", [0, -1, 1.5, "1.5", True, "much"])
def test_limits_that_are_no_number_of_tokens_are_refused(value: Any) -> None:
    assert_refused("attention.window", value, "attention.window")


def test_an_infinite_scale_is_refused() -> None:
    assert_refused("attention.scale", math.inf, "attention.scale")


def test_stability_soft_cap_caps_scores_and_logits() -> None:
    cfg = composed("stability=soft_cap")
    caps = (cfg.attention.soft_cap, cfg.head.soft_cap)
    model = random_model(cfg)
    assert caps == (50, 30)
    assert (model.blocks[1].attention.sublayer.soft_cap, model.head.soft_cap) == caps
