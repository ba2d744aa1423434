"""Options that are the same function at one value, or of other weights: models that must agree, each beside one that must not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ablate.config import Config, build_model
from ablate.errors import ConfigError
from ablate.model.transformer import Transformer
from tests.model.conftest import changed, gradients_of, max_difference, random_model, small, tokens_of, yaml_of

State = dict[str, Tensor]


def config(*choices: str, **values: Any) -> Config:
    cfg = small(*choices)
    for key, value in values.items():
        cfg = changed(cfg, key.replace("__", "."), value)
    return cfg


def with_weights(cfg: Config, state: State) -> Transformer:
    model = build_model(cfg).eval()
    model.load_state_dict(state)
    return model


def logits(model: Transformer) -> Tensor:
    return model(tokens_of(small()))


def assert_same(model: Transformer, other: Transformer) -> None:
    expected = logits(other)
    assert max_difference(logits(model), expected) < 1e-5 * max(1, expected.abs().max())


def assert_far(cfg: Config, other: Config) -> None:
    """With the same random parameters."""
    assert max_difference(logits(random_model(cfg)), logits(random_model(other))) > 0.01


def edited(state: State, *words: str, by: Callable[[Tensor], Tensor]) -> State:
    """The tensors of the modules `words`, changed."""
    found = {name for name in state if any(name.removesuffix(".weight").endswith(word) for word in words)}
    assert found
    return {name: by(tensor) if name in found else tensor for name, tensor in state.items()}


def without(state: State, *words: str) -> State:
    return {name: tensor for name, tensor in state.items() if not any(word in name for word in words)}


# --- limits


def test_a_window_of_all_but_one_token_hides_the_first_from_the_last_alone() -> None:
    near, plain = config(attention__window=15, model__depth=1), config(model__depth=1)
    moved_T = (logits(random_model(near)) - logits(random_model(plain))).abs().amax((0, 2))
    assert moved_T[:15].max() < 1e-5
    assert moved_T[15] > 0.01


def test_a_chunk_of_all_but_one_token_leaves_the_last_alone() -> None:
    plain, tokens = random_model(config("position=none", model__depth=1)), tokens_of(small())
    chunked = logits(random_model(config("position=none", attention__chunk=15, model__depth=1)))
    assert max_difference(chunked, torch.cat([plain(tokens)[:, :15], plain(tokens[:, 15:])], dim=1)) < 1e-5


@pytest.mark.parametrize("option", ["window", "chunk"])
def test_a_limit_of_one_token_is_refused_as_each_token_would_be_read_alone(option: str) -> None:
    with pytest.raises(ConfigError, match=f"attention.{option}.*sees itself alone"):
        config(**{f"attention__{option}": 1})


@pytest.mark.parametrize(
    ("key", "far", "near"),
    [("attention__soft_cap", 0.5, 1e5), ("attention__clip", 0.5, 1e5), ("head__soft_cap", 0.5, 1e6)],
)
def test_a_limit_that_is_never_reached_is_none(key: str, far: float, near: float) -> None:
    assert_same(random_model(config(**{key: near})), random_model(small()))
    assert_far(config(**{key: far}), small())


def test_a_temperature_of_almost_nothing_is_none() -> None:
    options = {"floor": 2, "beta": 1e-9, "shift": 0}
    assert_same(random_model(config(attention__temperature=options)), random_model(small()))
    assert_far(config(attention__temperature={**options, "beta": 1.0}), small())


def test_dropout_does_nothing_outside_of_training() -> None:
    assert torch.equal(logits(random_model(small("dropout=dropout"))), logits(random_model(small())))


# --- heads


@pytest.mark.parametrize(("word", "kv_heads"), [("gqa", 2), ("mqa", 1)])
def test_shared_key_heads_are_multi_head_attention_with_repeated_ones(word: str, kv_heads: int) -> None:
    cfg = config(f"attention={word}", attention__qkv_bias=True)
    state = random_model(cfg).state_dict()
    repeated = {
        name: tensor.unflatten(0, (kv_heads, 8)).repeat_interleave(4 // kv_heads, dim=0).flatten(0, 1)
        for name, tensor in state.items()
        if name.split(".")[-2] in ("k", "v")
    }
    assert_same(with_weights(config(attention__qkv_bias=True), {**state, **repeated}), random_model(cfg))


@pytest.mark.parametrize("q_rank", [None, 8])
def test_latent_attention_without_norms_is_multi_head_attention_of_the_multiplied_matrices(q_rank: int | None) -> None:
    """Without rotation: key and value matrices are products of two, and all heads share some rows of the keys."""
    latent = {"q_rank": q_rank, "kv_rank": 10, "nope_dim": 6, "rope_dim": 2, "v_dim": 8, "latent_norm": yaml_of("norm", "none")}
    cfg = config("attention=mla", "position=none", attention={**yaml_of("attention", "mla"), **latent})
    state = random_model(cfg).state_dict()
    folded = without(state, "sublayer.q", "sublayer.k", "sublayer.v")
    for layer in range(2):
        part = {name.split(".")[-2]: tensor for name, tensor in state.items() if f"blocks.{layer}.attention.sublayer" in name}
        content = (part["k_up"] @ part["kv_down"]).unflatten(0, (4, 6))
        at = f"blocks.{layer}.attention.sublayer"
        folded[f"{at}.k.weight"] = torch.cat([content, part["k_rope"].expand(4, 2, 32)], dim=1).flatten(0, 1)
        folded[f"{at}.v.weight"] = part["v_up"] @ part["kv_down"]
        folded[f"{at}.q.weight"] = part["q"] if q_rank is None else part["q_up"] @ part["q_down"]
    assert_same(with_weights(small("position=none"), folded), random_model(cfg))


def test_a_scale_of_scores_is_one_of_queries() -> None:
    state = edited(random_model(small()).state_dict(), "sublayer.q", by=lambda q: q / 3)
    assert_same(with_weights(config(attention__scale=3 / math.sqrt(8)), state), random_model(small()))
    assert_far(config(attention__scale=3 / math.sqrt(8)), small())


def test_norms_without_a_gain_are_the_same_before_and_after_the_rotation() -> None:
    """A rotation keeps lengths."""
    norm = yaml_of("norm", "rmsnorm_no_weight")
    before = config("attention/qk_norm=head", attention__qk_norm__norm=norm)
    assert_same(random_model(before), random_model(changed(before, "attention.qk_norm.order", "after_rope")))
    assert_far(before, small())


def test_one_gain_for_all_heads_is_an_equal_gain_for_each() -> None:
    cfg = small("attention/qk_norm=head")
    state = edited(random_model(cfg).state_dict(), "qk_norm.q", "qk_norm.k", by=lambda gain_H: gain_H.expand(4, 8))
    assert_same(with_weights(small("attention/qk_norm=per_head"), state), random_model(cfg))
    assert_far(cfg, small("attention/qk_norm=full"))


def test_a_bias_of_keys_is_nothing_without_rotation() -> None:
    """It adds the same to all scores of a query."""
    cfg = config("position=none", attention__qkv_bias=True)
    state = random_model(cfg).state_dict()
    moved = {name: tensor + 1 if name.endswith("k.bias") else tensor for name, tensor in state.items()}
    assert_same(with_weights(cfg, moved), random_model(cfg))
    gradients = gradients_of(cfg, random_model(cfg))
    assert max(g.abs().max() for name, g in gradients.items() if name.endswith("k.bias") and g is not None) < 1e-6
    turning = config(attention__qkv_bias=True)
    assert max_difference(logits(with_weights(turning, moved)), logits(with_weights(turning, state))) > 0.01


# --- sinks, gates, value residuals


def test_a_learned_sink_of_zero_is_softmax_off_by_one() -> None:
    learned, zero = config(attention__sink="learned"), config(attention__sink="zero")
    state = random_model(zero).state_dict()
    sinks = {f"blocks.{layer}.attention.sublayer.sink": torch.zeros(4) for layer in range(2)}
    assert_same(with_weights(learned, {**state, **sinks}), random_model(zero))
    assert_far(zero, small())


def test_softmax_off_by_one_is_one_more_key_of_zeros_with_a_value_of_zeros() -> None:
    module, plain = (random_model(config(attention__sink=sink)).blocks[0].attention.sublayer for sink in ("zero", "none"))
    x, position = torch.randn(1, 9, 32, generator=torch.Generator().manual_seed(0)), random_model(small()).positions[0]
    q, k, v = (F.pad(z, (0, 0, 1, 0)) for z in plain.project(x, position))
    seen = torch.ones(10, 10, dtype=torch.bool).tril()
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)[:, :, 1:].transpose(1, 2).flatten(-2)
    assert max_difference(module(x, position, None, None)[0], plain.out(y)) < 1e-5


def test_a_sink_far_below_every_score_is_none() -> None:
    learned = config(attention__sink="learned")
    state = random_model(small()).state_dict()
    sinks = {f"blocks.{layer}.attention.sublayer.sink": torch.full((4,), -1e4) for layer in range(2)}
    assert_same(with_weights(learned, {**state, **sinks}), random_model(small()))
    assert_far(learned, small())


@pytest.mark.parametrize("gate", ["head", "element"])
def test_a_gate_of_zeros_is_half_open(gate: str) -> None:
    """sigmoid(0) = 1/2, which an output matrix twice as large undoes."""
    cfg = config(attention__gate=gate)
    random = random_model(cfg).state_dict()
    state = edited(random, "attention.sublayer.gate", by=torch.zeros_like)
    state = edited(state, "sublayer.out", by=lambda out: 2 * out)
    plain = with_weights(small(), without(random, "attention.sublayer.gate"))
    assert_same(with_weights(cfg, state), plain)
    assert max_difference(logits(random_model(cfg)), logits(plain)) > 0.01


@pytest.mark.parametrize(("mix", "same"), [([0.0, 1.0], True), ([0.5, 0.5], False)])
def test_a_value_residual_of_nothing_and_all_is_none(mix: list[float], same: bool) -> None:
    state = {**random_model(small()).state_dict(), "blocks.1.attention.sublayer.value_mix": torch.tensor(mix)}
    model = with_weights(config(attention__value_residual="learned"), state)
    if same:
        assert_same(model, random_model(small()))
    else:
        average = with_weights(config(attention__value_residual="average"), random_model(small()).state_dict())
        assert_same(model, average)
        assert max_difference(logits(average), logits(random_model(small()))) > 0.01


# --- norms and placements


@pytest.mark.parametrize("norm", ["rmsnorm", "layernorm"])
@pytest.mark.parametrize("placement", ["pre", "post", "sandwich"])
def test_a_zero_centred_gain_is_a_plain_one_less_one(norm: str, placement: str) -> None:
    plain = config(f"placement={placement}", norm=yaml_of("norm", norm))
    centred = changed(plain, "norm.weight", "zero_centred")
    state = random_model(plain).state_dict()
    moved = {name: tensor - 1 if "norm" in name and name.endswith("weight") else tensor for name, tensor in state.items()}
    assert_same(with_weights(centred, moved), random_model(plain))
    assert_far(centred, plain)


def test_a_norm_without_a_gain_is_one_whose_gain_is_one() -> None:
    state = random_model(small()).state_dict()
    ones = {name: torch.ones_like(tensor) if "norm" in name else tensor for name, tensor in state.items()}
    assert_same(with_weights(small("norm=rmsnorm_no_weight"), without(state, "norm")), with_weights(small(), ones))


def test_deepnorm_with_an_alpha_of_one_is_post() -> None:
    model, post = random_model(small("placement=deepnorm")), random_model(small("placement=post"))
    assert max_difference(logits(model), logits(post)) > 0.01
    for block in model.blocks:
        block.attention.alpha = block.ffn.alpha = 1.0
    assert_same(model, post)


def test_ln_scaling_of_one_layer_is_pre() -> None:
    one, pre = config("placement=ln_scaling", model__depth=1), config(model__depth=1)
    assert torch.equal(logits(random_model(one)), logits(random_model(pre)))
    assert_far(small("placement=ln_scaling"), small())


def test_ln_scaling_is_pre_with_gains_over_the_root_of_the_layer() -> None:
    state = random_model(small("placement=ln_scaling")).state_dict()
    folded = {
        name: tensor / math.sqrt(2) if name.startswith("blocks.1") and "input_norm" in name else tensor for name, tensor in state.items()
    }
    assert_same(with_weights(small(), folded), random_model(small("placement=ln_scaling")))


# --- residual streams


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich"])
@pytest.mark.parametrize("word", ["layerscale", "rezero"])
def test_a_learned_scale_of_one_is_the_plain_residual_stream(word: str, placement: str) -> None:
    cfg = small(f"residual={word}", f"placement={placement}")
    state = edited(random_model(cfg).state_dict(), "attention_scale", "ffn_scale", by=torch.ones_like)
    assert_same(with_weights(cfg, state), with_weights(small(f"placement={placement}"), without(state, "_scale")))
    assert max_difference(logits(random_model(cfg)), logits(with_weights(cfg, state))) > 0.01


def test_rezero_of_zero_is_the_embedding_before_the_head_whatever_the_layers_hold() -> None:
    cfg = small("residual=rezero")
    model = with_weights(cfg, edited(random_model(cfg).state_dict(), "attention_scale", "ffn_scale", by=torch.zeros_like))
    embedded = model.embedding(tokens_of(cfg))
    assert torch.equal(logits(model), model.head(model.norm(embedded), model.embedding.table.weight))


def test_a_multiplier_of_branches_is_one_of_the_matrices_that_write() -> None:
    cfg = config(residual__branch=0.3)
    state = edited(random_model(small()).state_dict(), "sublayer.out", "sublayer.down", by=lambda w: w / 0.3)
    assert_same(with_weights(cfg, state), random_model(small()))
    assert_far(cfg, small())


@pytest.mark.parametrize("word", ["serial", "parallel"])
def test_the_scale_of_a_whole_pre_norm_stream_means_nothing(word: str) -> None:
    """Twice the embedding and twice every branch: each norm undoes it, but for eps."""
    cfg = config(f"residual={word}", norm__eps=1e-12)
    state = edited(random_model(cfg).state_dict(), "sublayer.out", "sublayer.down", "embedding.table", by=lambda w: 2 * w)
    assert_same(with_weights(cfg, state), random_model(cfg))


def test_a_multiplier_of_the_stream_is_one_over_the_branches_and_a_power_of_it_in_the_end() -> None:
    """pre-norm: x -> 2 x + y is 2 (x + y / 2), and no norm sees the 2 but by eps."""
    cfg, plain = config(residual__stream=2.0, norm__eps=1e-12), config(norm__eps=1e-12)
    state = random_model(plain).state_dict()
    shrunk = {}
    for name, tensor in state.items():
        part, layer = name.split(".")[-2], int(name.split(".")[1]) if name.startswith("blocks") else 0
        sublayers_before = {"out": 2 * layer + 1, "down": 2 * layer + 2}
        shrunk[name] = tensor * 2.0 ** sublayers_before[part] if part in sublayers_before else tensor
    assert_same(with_weights(cfg, shrunk), random_model(plain))
    assert_far(cfg, plain)


def test_parallel_and_serial_agree_where_feed_forward_gives_nothing() -> None:
    state = edited(random_model(small()).state_dict(), "sublayer.down", by=torch.zeros_like)
    assert_same(with_weights(small("residual=parallel"), state), with_weights(small(), state))
    assert_far(small("residual=parallel"), small())


def test_parallel_with_two_equal_norms_shares_one() -> None:
    state = random_model(small("residual=parallel_shared")).state_dict()
    both = {name.replace("attention.input_norm", "ffn.input_norm"): tensor for name, tensor in state.items()} | state
    assert_same(with_weights(small("residual=parallel"), both), random_model(small("residual=parallel_shared")))
    assert_far(small("residual=parallel"), small("residual=parallel_shared"))


# --- embedding and head


def test_a_scale_of_the_embedding_is_one_of_its_table() -> None:
    cfg = config(embedding__scale="sqrt_width")
    state = edited(random_model(small()).state_dict(), "embedding.table", by=lambda table: table / math.sqrt(32))
    assert_same(with_weights(cfg, state), random_model(small()))
    assert_same(random_model(config(embedding__scale=math.sqrt(32))), random_model(cfg))
    assert_far(cfg, small())


def test_a_factorised_embedding_is_a_table_of_the_product() -> None:
    cfg = small("embedding=factorised")
    state = random_model(cfg).state_dict()
    table = state["embedding.table.weight"] @ state["embedding.project.weight"].T
    assert_same(with_weights(small(), {**without(state, "embedding"), "embedding.table.weight": table}), random_model(cfg))


def test_a_tied_head_of_a_factorised_embedding_is_an_untied_one_of_the_product() -> None:
    cfg = small("embedding=factorised", "head=tied")
    state = random_model(cfg).state_dict()
    unembed = state["embedding.table.weight"] @ state["head.project.weight"]
    untied = with_weights(small("embedding=factorised"), {**without(state, "head"), "head.unembed.weight": unembed})
    assert_same(random_model(cfg), untied)


@pytest.mark.parametrize(("scale", "factor"), [(0.25, 0.25), ("inverse_sqrt_width", 32**-0.5)])
def test_a_scale_of_the_head_is_one_of_its_matrix(scale: Any, factor: float) -> None:
    cfg = config(head__scale=scale)
    state = edited(random_model(small()).state_dict(), "head.unembed", by=lambda w: w / factor)
    assert_same(with_weights(cfg, state), random_model(small()))
    assert_far(cfg, small())


def test_a_normalised_head_does_not_see_the_lengths_of_its_rows() -> None:
    cfg = config(head__normalise=True)
    state = random_model(cfg).state_dict()
    lengths = torch.linspace(0.1, 9, 256)[:, None]
    assert_same(with_weights(cfg, edited(state, "head.unembed", by=lambda w: w * lengths)), random_model(cfg))
    unit = edited(state, "head.unembed", by=lambda w: w / w.norm(dim=-1, keepdim=True))
    assert_same(with_weights(small(), unit), random_model(cfg))
    assert_far(cfg, small())


# --- losses


def test_predicting_further_tokens_leaves_the_scores_of_the_next_as_they_are() -> None:
    cfg = small("loss=multi_token")
    state = random_model(cfg).state_dict()
    assert torch.equal(logits(random_model(cfg)), logits(with_weights(small(), without(state, "future"))))
