from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, T5Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as llama_rotation
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.qwen2.modeling_qwen2 import apply_rotary_pos_emb as qwen2_rotation
from transformers.models.t5.modeling_t5 import T5Attention

from ablate.errors import ConfigError
from ablate.model.position import POSITION, SCALING, Position
from ablate.model.position.none import inverse_frequencies
from ablate.model.position.scaling import scaled_frequencies
from ablate.registry import Options
from tests.model.conftest import changed, max_difference, random_model, randomise, small, tokens_of, yaml_of

ADDED_TO_SCORES = ["alibi", "t5", "kerple", "fire", "transformer_xl"]


def scaling_of(word: str, **options: Any) -> Options:
    return SCALING.options(word).model_validate({**yaml_of("position/scaling", word), **options})


def position(
    word: str,
    *,
    dim: int = 32,
    heads: int = 4,
    head_dim: int = 8,
    context: int = 16,
    trained_context: int | None = None,
    random: bool = True,
    **options: Any,
) -> Position:
    given = {key: value.model_dump() if isinstance(value, Options) else value for key, value in options.items()}
    chosen = POSITION.options(word).model_validate({**yaml_of("position", word), **given})
    module = POSITION.build(chosen, dim, heads, head_dim, context, trained_context or context)
    if random:
        randomise(module)
    return module


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def bias_of(module: Position, tokens: int = 16, *, heads: int = 4, sequences: int = 1) -> Tensor:
    """(B, N, T, T), with zeros in the future, from random queries and keys."""
    q, k = normal(sequences, heads, tokens, 8, seed=1), normal(sequences, heads, tokens, 8, seed=2)
    bias = module.bias(q, k, 0.5)
    assert bias is not None
    assert torch.isfinite(bias).all(), "also where attention masks"
    return bias.expand(sequences, heads, tokens, tokens).tril()


def refused_key(word: str, **options: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        position(word, **options)
    [problem] = raised.value.problems
    return problem.key


# --- every position


@pytest.mark.parametrize("word", POSITION.words())
def test_tables_are_no_part_of_a_checkpoint(word: str) -> None:
    module = position(word)
    assert set(module.state_dict()) == {name for name, _ in module.named_parameters()}


@pytest.mark.parametrize("word", POSITION.words())
def test_a_position_is_built_on_the_meta_device_without_numbers(word: str) -> None:
    with torch.device("meta"):
        module = position(word, random=False)
    assert all(tensor.is_meta for tensor in [*module.parameters(), *module.buffers()])


@pytest.mark.parametrize("word", sorted(set(POSITION.words()) - {"learned"}))
def test_tables_for_more_tokens_begin_with_those_of_training(word: str) -> None:
    q, k, x = normal(1, 4, 16, 8, seed=1), normal(1, 4, 16, 8, seed=2), normal(1, 16, 32)
    short, long = position(word), position(word, context=40, trained_context=16)
    assert torch.equal(short.embed(x), long.embed(x))
    for first, second in zip(short.rotate(q, k), long.rotate(q, k), strict=True):
        assert torch.equal(first, second)
    if word in ADDED_TO_SCORES:
        assert torch.equal(bias_of(short), bias_of(long))


def test_learned_is_refused_beyond_the_context_it_is_trained_on() -> None:
    assert refused_key("learned", context=17, trained_context=16) == "position"


@pytest.mark.parametrize("word", POSITION.words())
def test_a_position_works_at_one_place_or_nowhere(word: str) -> None:
    module = position(word)
    q, k, x = normal(1, 4, 16, 8, seed=1), normal(1, 4, 16, 8, seed=2), normal(1, 16, 32)
    embeds, rotates, biases = module.embed(x) is not x, module.rotate(q, k)[0] is not q, module.bias(q, k, 1.0) is not None
    assert embeds + rotates + biases == (word != "none")
    assert embeds == module.acts_on_embedding == (word in ("learned", "sinusoidal"))
    assert biases == (type(module).bias is not Position.bias)


@pytest.mark.parametrize(
    ("word", "options", "per_layer"),
    [
        ("kerple", {"shared": True}, False),
        ("kerple", {"shared": False}, True),
        ("fire", {"shared": True}, False),
        ("fire", {"shared": False}, True),
        ("t5", {}, False),
        ("transformer_xl", {}, True),
        ("rope", {}, False),
    ],
)
def test_layers_have_parameters_of_their_own_where_the_variant_says(word: str, options: dict[str, Any], per_layer: bool) -> None:
    assert position(word, **options).per_layer == per_layer


@pytest.mark.parametrize("word", sorted(set(POSITION.words()) - {"none"}))
def test_a_compiled_position_gives_the_same_numbers(word: str) -> None:
    module = position(word)
    q, k, x = normal(2, 4, 9, 8, seed=1), normal(2, 4, 9, 8, seed=2), normal(2, 9, 32)

    def hooks(x: Tensor, q: Tensor, k: Tensor) -> tuple[Any, ...]:
        return module.embed(x), *module.rotate(q, k), module.bias(q, k, 0.5)

    torch.compiler.reset()
    compiled = torch.compile(hooks, fullgraph=True, dynamic=False, backend="aot_eager")(x, q, k)
    for ours, expected in zip(compiled, hooks(x, q, k), strict=True):
        assert (ours is None) == (expected is None)
        assert ours is None or max_difference(ours, expected) < 1e-5


# --- rope


def test_product_of_rotated_query_and_key_depends_on_their_distance_alone() -> None:
    rope = position("rope")
    q_T, k_T = (normal(1, 1, 1, 8, seed=seed).expand(1, 1, 16, 8) for seed in (1, 2))
    q, k = rope.rotate(q_T, k_T)
    products_TT = (q @ k.transpose(-1, -2))[0, 0]
    for distance in range(-15, 16):
        diagonal = products_TT.diagonal(distance)
        assert max_difference(diagonal, diagonal[:1].expand_as(diagonal)) < 1e-5
    assert products_TT[0].std() > 0.1, "and it does depend on it"


def turned_by_hand(x_BNTH: Tensor, theta: float) -> Tensor:
    half = x_BNTH.shape[-1] // 2
    number = torch.complex(x_BNTH[..., :half].double(), x_BNTH[..., half:].double())
    expected = torch.empty_like(number)
    for t in range(x_BNTH.shape[-2]):
        for i in range(half):
            angle = t * theta ** (-2 * i / (2 * half))
            expected[..., t, i] = number[..., t, i] * complex(math.cos(angle), math.sin(angle))
    return torch.cat([expected.real, expected.imag], dim=-1)


@pytest.mark.parametrize("theta", [10_000.0, 500.0])
def test_rope_is_a_turn_of_complex_numbers_by_position_times_frequency(theta: float) -> None:
    q_BNTH, k_BKTH = normal(2, 4, 16, 8, seed=1), normal(2, 2, 16, 8, seed=2)
    for x, turned in zip((q_BNTH, k_BKTH), position("rope", theta=theta).rotate(q_BNTH, k_BKTH), strict=True):
        assert max_difference(turned, turned_by_hand(x, theta)) < 1e-6


@pytest.mark.parametrize("rotation", [llama_rotation, qwen2_rotation])
def test_rope_is_that_of_transformers(rotation: Any) -> None:
    q, k = normal(2, 4, 16, 8, seed=1), normal(2, 2, 16, 8, seed=2)
    parameters = {"rope_type": "default", "rope_theta": 500.0}
    config = LlamaConfig(hidden_size=32, num_attention_heads=4, max_position_embeddings=16, rope_parameters=parameters)
    cos, sin = LlamaRotaryEmbedding(config)(q, torch.arange(16)[None])
    for ours, theirs in zip(position("rope", theta=500.0).rotate(q, k), rotation(q, k, cos, sin), strict=True):
        assert max_difference(ours, theirs) < 1e-6


def test_rope_keeps_lengths_and_leaves_the_first_token_as_it_is() -> None:
    q, k = normal(2, 4, 16, 8, seed=1), normal(2, 4, 16, 8, seed=2)
    for before, after in zip((q, k), position("rope").rotate(q, k), strict=True):
        assert max_difference(before.norm(dim=-1), after.norm(dim=-1)) < 1e-5
        assert torch.equal(before[:, :, 0], after[:, :, 0])
        assert max_difference(before[:, :, 1], after[:, :, 1]) > 0.1


def test_angles_of_rope_are_exact_at_far_positions() -> None:
    q = torch.zeros(1, 1, 8192, 8)
    q[..., 0] = 1.0  # its first pair turns by one radian a token
    turned, _ = position("rope", context=8192).rotate(q, q)
    expected = np.cos(np.arange(8192, dtype=np.float64))
    assert np.abs(turned[0, 0, :, 0].numpy() - expected).max() < 1e-7


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_rope_keeps_the_dtype_of_queries_and_keys_and_turns_in_float32(fraction: float) -> None:
    q = normal(1, 2, 16, 8).bfloat16()
    turned, _ = position("rope", fraction=fraction).rotate(q, q)
    exact, _ = position("rope", fraction=fraction).rotate(q.float(), q.float())
    assert turned.dtype == torch.bfloat16
    assert torch.equal(turned, exact.bfloat16())


@pytest.mark.parametrize(("fraction", "rotated"), [(0.5, 4), (0.25, 2), (0.7, 4), (0.9999, 6)])
def test_a_fraction_turns_the_first_features_as_a_narrower_head_and_leaves_the_others(fraction: float, rotated: int) -> None:
    q, k = normal(2, 4, 16, 8, seed=1), normal(2, 2, 16, 8, seed=2)
    for before, after in zip((q, k), position("rope", fraction=fraction).rotate(q, k), strict=True):
        assert max_difference(after[..., :rotated], turned_by_hand(before[..., :rotated], 10_000.0)) < 1e-6
        assert torch.equal(after[..., rotated:], before[..., rotated:])


def test_a_fraction_that_is_a_whole_number_of_features_gives_that_number() -> None:
    for features in range(2, 128, 2):
        q = torch.ones(1, 1, 4, 128)
        turned, _ = position("rope", head_dim=128, context=4, fraction=features / 128).rotate(q, q)
        assert (turned != q).any(-2)[0, 0].sum() == features, features


def test_rope_refuses_a_fraction_that_turns_nothing() -> None:
    assert refused_key("rope", fraction=0.2) == "position.fraction"
    with pytest.raises(ValueError, match="greater than 0"):
        position("rope", fraction=0.0)


@pytest.mark.parametrize("word", ["rope", "xpos"])
def test_a_head_of_odd_width_cannot_be_turned(word: str) -> None:
    assert refused_key(word, head_dim=7) == "attention.head_dim"


# --- position/scaling


def of_transformers(kind: str, *, theta: float, width: int, context: int, seq_len: int | None = None, **parameters: Any) -> Any:
    rope_parameters = {"rope_type": kind, "rope_theta": theta, **parameters}
    config = LlamaConfig(
        hidden_size=4 * width, num_attention_heads=4, head_dim=width, max_position_embeddings=context, rope_parameters=rope_parameters
    )
    frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=seq_len)
    return frequencies.double().numpy(), factor


def assert_is_that_of_transformers(ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(ours[0], theirs[0], rtol=2e-6, atol=0)  # theirs are made in float32
    assert ours[1] == pytest.approx(theirs[1], rel=1e-12)


@pytest.mark.parametrize(("theta", "width", "factor"), [(1e4, 64, 4.0), (5e5, 128, 2.5), (1e4, 8, 0.5)])
def test_linear_scaling_is_that_of_transformers(theta: float, width: int, factor: float) -> None:
    ours = scaled_frequencies(scaling_of("linear", factor=factor), theta, width, 2048)
    assert_is_that_of_transformers(ours, of_transformers("linear", theta=theta, width=width, context=2048, factor=factor))


@pytest.mark.parametrize(("theta", "width", "factor"), [(1e4, 64, 3.0), (5e5, 128, 7.0), (1e4, 4, 1.5)])
def test_ntk_scaling_is_the_dynamic_one_of_transformers_at_one_length(theta: float, width: int, factor: float) -> None:
    ours = scaled_frequencies(scaling_of("ntk", factor=factor + 1), theta, width, 2048)
    # At twice the context the dynamic rule multiplies theta by (2 factor - (factor - 1))^(R / (R - 2)).
    theirs = of_transformers("dynamic", theta=theta, width=width, context=2048, seq_len=4096, factor=factor)
    assert_is_that_of_transformers(ours, theirs)


@pytest.mark.parametrize("width", [4, 64])
def test_ntk_scaling_keeps_the_fastest_pair_and_slows_the_slowest_down_by_the_factor(width: int) -> None:
    frequencies, _ = scaled_frequencies(scaling_of("ntk", factor=5.0), 1e4, width, 2048)
    ratio = inverse_frequencies(width, 1e4) / frequencies
    assert ratio[0] == 1
    assert ratio[-1] == pytest.approx(5)
    assert (np.diff(ratio) > 0).all()


@pytest.mark.parametrize(
    ("theta", "width", "factor", "low", "high", "original"),
    [(5e5, 128, 8.0, 1.0, 4.0, 8192), (1e4, 32, 4.0, 1.0, 4.0, 16), (1.2e7, 64, 32.0, 2.0, 3.0, 4096), (1e4, 64, 4.0, 1.0, 4.0, 10**6)],
)
def test_llama3_scaling_is_that_of_transformers(theta: float, width: int, factor: float, low: float, high: float, original: int) -> None:
    options = scaling_of("llama3", factor=factor, low=low, high=high, original_context=original)
    theirs = of_transformers(
        "llama3",
        theta=theta,
        width=width,
        context=2 * original,
        factor=factor,
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position_embeddings=original,
    )
    unscaled = np.allclose(theirs[0], inverse_frequencies(width, theta), rtol=1e-6, atol=0)
    if unscaled:
        with pytest.raises(ConfigError, match="none is the same"):
            scaled_frequencies(options, theta, width, 2 * original)
    else:
        assert_is_that_of_transformers(scaled_frequencies(options, theta, width, 2 * original), theirs)


YARN_OPTIONS = ("theta", "width", "factor", "original", "beta_fast", "beta_slow", "truncate")
YARN: dict[str, dict[str, Any]] = {
    name: dict(zip(YARN_OPTIONS, values, strict=True))
    for name, values in {
        "published": (1e4, 128, 4.0, 2048, 32.0, 1.0, True),
        "gpt_oss": (150_000.0, 64, 32.0, 4096, 32.0, 1.0, False),
        "gpt_oss_truncated": (150_000.0, 64, 32.0, 4096, 32.0, 1.0, True),
        "deepseek": (1e4, 64, 40.0, 4096, 32.0, 1.0, True),
        "a_few_tokens": (1e4, 16, 4.0, 16, 4.0, 1.0, True),
        "a_step_and_no_range": (1e4, 8, 4.0, 4, 32.0, 1.0, True),
        "faster": (1e4, 64, 0.5, 4096, 32.0, 1.0, True),
    }.items()
}


def our_yarn(*, theta: float, width: int, original: int, **options: Any) -> Any:
    return scaled_frequencies(scaling_of("yarn", original_context=original, **options), theta, width, 4 * original)


@pytest.mark.parametrize("name", YARN)
@pytest.mark.parametrize("attention_factor", [None, 1.0, 1.3])
def test_yarn_scaling_is_that_of_transformers(name: str, attention_factor: float | None) -> None:
    ours = our_yarn(**YARN[name], attention_factor=attention_factor)
    options = {("original_max_position_embeddings" if key == "original" else key): value for key, value in YARN[name].items()}
    assert_is_that_of_transformers(ours, of_transformers("yarn", context=16384, attention_factor=attention_factor, **options))


@pytest.mark.parametrize(
    ("option", "other"),
    [("factor", 16.0), ("original", 2048), ("beta_fast", 16.0), ("beta_slow", 2.0), ("truncate", True), ("attention_factor", 1.1)],
)
def test_each_option_of_yarn_changes_frequencies_or_factor(option: str, other: float) -> None:
    before, after = our_yarn(**YARN["gpt_oss"]), our_yarn(**{**YARN["gpt_oss"], option: other})
    moved = np.abs(after[0] / before[0] - 1).max()
    assert moved > 1e-3 or abs(after[1] - before[1]) > 1e-3


def test_yarn_with_a_factor_near_one_is_rope() -> None:
    frequencies, factor = our_yarn(**{**YARN["published"], "factor": 1 + 1e-6})
    np.testing.assert_allclose(frequencies, inverse_frequencies(128, 1e4), rtol=2e-6)
    assert factor == pytest.approx(1, abs=1e-6)


def test_yarn_divides_the_seldom_turning_pairs_alone() -> None:
    frequencies, factor = our_yarn(**YARN["published"])
    ratio = inverse_frequencies(128, 1e4) / frequencies
    turns = 2048 * inverse_frequencies(128, 1e4) / (2 * math.pi)
    assert (ratio[turns > 32] < 1 + 0.05).all()  # the range is rounded down to a whole pair
    assert ratio[turns < 0.8] == pytest.approx(4)
    assert factor == pytest.approx(1.1386, abs=1e-4)  # 0.1 ln 4 + 1


@pytest.mark.parametrize("seq_len", [None, 40])
def test_longrope_scaling_is_the_long_list_of_transformers(seq_len: int | None) -> None:
    factors = [1.0, 1.5, 2.0, 4.0]
    ours = scaled_frequencies(scaling_of("longrope", factors=factors, original_context=16), 1e4, 8, 64)
    short = [1.0] * 4 if seq_len else factors
    theirs = of_transformers(
        "longrope",
        theta=1e4,
        width=8,
        context=64,
        seq_len=seq_len,
        long_factor=factors,
        short_factor=short,
        original_max_position_embeddings=16,
        factor=4.0,
    )
    assert_is_that_of_transformers(ours, theirs)
    assert ours[1] == pytest.approx(1.2247, abs=1e-4)  # sqrt(1 + ln 4 / ln 16)


@pytest.mark.parametrize(
    ("factors", "expected"),
    [([3.0], [3, 3, 3, 3, 3]), ([1.0, 5.0], [1, 2, 3, 4, 5]), ([1.0, 2.0, 8.0], [1, 1.5, 2, 5, 8]), ([4, 1, 3, 2, 9], [4, 1, 3, 2, 9])],
)
def test_factors_of_longrope_are_interpolated_over_the_pairs(factors: list[float], expected: list[float]) -> None:
    frequencies, _ = scaled_frequencies(scaling_of("longrope", factors=factors), 1e4, 10, 64)
    assert inverse_frequencies(10, 1e4) / frequencies == pytest.approx(expected)


@pytest.mark.parametrize(("width", "proportion"), [(512, 0.25), (64, 0.3), (8, 0.25), (32, 0.9)])
def test_proportional_scaling_is_that_of_transformers(width: int, proportion: float) -> None:
    ours = scaled_frequencies(scaling_of("proportional", proportion=proportion), 1e6, width, 2048)
    theirs = of_transformers("proportional", theta=1e6, width=width, context=2048, partial_rotary_factor=proportion)
    assert_is_that_of_transformers(ours, theirs)


def test_a_proportion_of_one_is_rope() -> None:
    frequencies, factor = SCALING.build(scaling_of("proportional", proportion=1.0)).frequencies(1e4, 64, 2048)
    assert factor == 1
    assert (frequencies == inverse_frequencies(64, 1e4)).all()


SCALED: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "llama3": {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 4.0, "beta_slow": 1.0},
    "longrope": {"factor": 4.0, "original_max_position_embeddings": 16, "long_factor": [1.0, 4.0], "short_factor": [1.0, 4.0]},
}
OURS: dict[str, dict[str, Any]] = {
    "linear": {},
    "llama3": {"factor": 4.0, "original_context": 16},
    "yarn": {"original_context": 16, "beta_fast": 4.0},
    "longrope": {"original_context": "1/4"},
}


@pytest.mark.parametrize("word", SCALED)
def test_a_scaled_rope_turns_and_stretches_as_transformers_does(word: str) -> None:
    head_dim = 4 if word == "longrope" else 16  # their list has a number for each pair
    q, k = normal(1, 4, 24, head_dim, seed=1), normal(1, 4, 24, head_dim, seed=2)
    parameters = {"rope_type": word, "rope_theta": 1e4, **SCALED[word]}
    config = LlamaConfig(
        hidden_size=4 * head_dim, num_attention_heads=4, head_dim=head_dim, max_position_embeddings=64, rope_parameters=parameters
    )
    theirs = llama_rotation(q, k, *LlamaRotaryEmbedding(config)(q, torch.arange(24)[None]))
    rope = position("rope", head_dim=head_dim, context=64, scaling=scaling_of(word, **OURS[word]))
    for ours, expected in zip(rope.rotate(q, k), theirs, strict=True):
        assert max_difference(ours, expected) < 1e-5


@pytest.mark.parametrize("word", sorted(set(SCALING.words()) - {"none"}))
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_every_scaling_changes_rope_and_keeps_products_a_function_of_distance(word: str, fraction: float) -> None:
    q_T, k_T = (normal(1, 1, 1, 16, seed=seed).expand(1, 1, 64, 16) for seed in (1, 2))
    plain, scaled = (
        position("rope", head_dim=16, context=64, fraction=fraction, scaling=scaling_of(kind)).rotate(q_T, k_T) for kind in ("none", word)
    )
    assert max_difference(plain[0], scaled[0]) > 0.1
    products_TT = (scaled[0] @ scaled[1].transpose(-1, -2))[0, 0]
    for distance in range(-63, 64):
        diagonal = products_TT.diagonal(distance)
        assert max_difference(diagonal, diagonal[:1].expand_as(diagonal)) < 2e-5


@pytest.mark.parametrize(
    ("word", "options", "key"),
    [
        ("linear", {"factor": 1.0}, "position.scaling.factor"),
        ("ntk", {"factor": 1.0}, "position.scaling.factor"),
        ("llama3", {"factor": 1.0}, "position.scaling.factor"),
        ("llama3", {"high": 1.0}, "position.scaling.high"),
        ("llama3", {"original_context": 10**9}, "position.scaling"),
        ("yarn", {"factor": 1.0}, "position.scaling.factor"),
        ("yarn", {"beta_fast": 1.0}, "position.scaling.beta_fast"),
        ("yarn", {"original_context": 1}, "position.scaling.original_context"),
        ("yarn", {"original_context": 10**15}, "position.scaling.original_context"),
        ("yarn", {"original_context": 10**7, "attention_factor": 1.0}, "position.scaling"),
        ("longrope", {"factors": [1.0], "attention_factor": 1.0}, "position.scaling"),
        ("longrope", {"original_context": 64}, "position.scaling.original_context"),
        ("longrope", {"original_context": 1}, "position.scaling.original_context"),
        ("proportional", {"proportion": 1.0}, "position.scaling"),
        ("proportional", {"proportion": 0.1}, "position.scaling.proportion"),
    ],
)
def test_a_scaling_that_does_nothing_or_means_nothing_is_refused(word: str, options: dict[str, Any], key: str) -> None:
    assert refused_key("rope", head_dim=16, context=64, scaling=scaling_of(word, **options)) == key


def test_ntk_scaling_is_refused_for_a_single_pair_and_yarn_for_frequencies_that_do_not_fall() -> None:
    assert refused_key("rope", head_dim=2, scaling=scaling_of("ntk")) == "position.scaling"
    assert refused_key("rope", theta=1.0, scaling=scaling_of("yarn")) == "position.theta"


@pytest.mark.parametrize("word", ["llama3", "yarn"])
def test_an_original_context_as_long_as_the_context_is_legal(word: str) -> None:
    position("rope", head_dim=16, context=64, scaling=scaling_of(word, original_context=64))


# --- xpos


def products(module: Position, tokens: int = 16) -> Tensor:
    """(T, T) of one query and one key at all places."""
    q_T, k_T = (normal(1, 1, 1, 8, seed=seed).expand(1, 1, tokens, 8) for seed in (1, 2))
    q, k = module.rotate(q_T, k_T)
    return (q @ k.transpose(-1, -2))[0, 0]


@pytest.mark.parametrize(("scale_base", "base"), [("1/2", 8), (5, 5)])
def test_xpos_multiplies_each_pair_of_rope_by_its_decay_to_the_power_of_the_distance(scale_base: Any, base: int) -> None:
    q, k = (normal(8, seed=seed).double() for seed in (1, 2))
    expected = torch.zeros(16, 16, dtype=torch.float64)
    for t, s, i in product(range(16), range(16), range(4)):
        turn = complex(math.cos((t - s) * 10_000 ** (-i / 4)), math.sin((t - s) * 10_000 ** (-i / 4)))
        inner = complex(q[i], q[i + 4]) * complex(k[i], -k[i + 4]) * turn
        expected[t, s] += inner.real * ((i / 4 + 0.4) / 1.4) ** ((t - s) / base)
    ours = products(position("xpos", scale_base=scale_base))
    assert max_difference(ours, expected) < 1e-5 * expected.abs().max()


def test_products_of_xpos_depend_on_distance_alone() -> None:
    products_TT = products(position("xpos"))
    for distance in range(-15, 16):
        diagonal = products_TT.diagonal(distance)
        assert max_difference(diagonal, diagonal[:1].expand_as(diagonal)) < 1e-5 * products_TT.abs().max()


def test_xpos_with_a_huge_gamma_is_rope() -> None:
    q, k = normal(2, 4, 16, 8, seed=1), normal(2, 4, 16, 8, seed=2)
    for ours, rope in zip(position("xpos", gamma=1e9).rotate(q, k), position("rope").rotate(q, k), strict=True):
        assert max_difference(ours, rope) < 1e-6


def test_products_of_xpos_decay_with_distance_where_rope_only_turns() -> None:
    decay_T = products(position("xpos", context=64), 64)[:, 0] / products(position("rope", context=64), 64)[:, 0]
    assert 0.01 < decay_T[63].abs() < 0.7 < decay_T[1].abs()


def test_xpos_refuses_a_decay_that_no_float32_holds() -> None:
    assert refused_key("xpos", context=2048, scale_base=16) == "position.scale_base"


# --- alibi


@pytest.mark.parametrize(
    ("heads", "exponents"),
    [
        (1, [8]),
        (2, [4, 8]),
        (4, [2, 4, 6, 8]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (3, [4, 8, 2]),
        (6, [2, 4, 6, 8, 1, 3]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
    ],
)
def test_slopes_of_alibi_are_the_published_powers_of_two(heads: int, exponents: list[float]) -> None:
    slopes_N = -bias_of(position("alibi", heads=heads), heads=heads)[0, :, 1, 0]
    assert slopes_N.tolist() == pytest.approx([2**-exponent for exponent in exponents], rel=1e-6)


@pytest.mark.parametrize("heads", [1, 4, 6, 12, 14, 16, 71])
def test_slopes_of_alibi_are_those_of_bloom_and_mpt(heads: int) -> None:
    ours = -bias_of(position("alibi", heads=heads), heads=heads)[0, :, 1, 0]
    bloom = build_alibi_tensor(torch.ones(1, 16), heads, torch.float32)[:, 0, 1]
    mpt = build_mpt_alibi_tensor(heads, 16)[:, 0, -1] - build_mpt_alibi_tensor(heads, 16)[:, 0, -2]
    assert max_difference(ours, bloom) < 1e-6
    assert max_difference(ours, mpt) < 1e-6


@pytest.mark.parametrize(("scale", "factor"), [(1.0, 1.0), (0.25, 0.25), ("inverse_sqrt_head_dim", 8**-0.5)])
def test_alibi_falls_linearly_with_distance(scale: Any, factor: float) -> None:
    bias = bias_of(position("alibi", scale=scale), sequences=2)
    for n, t in product(range(4), range(16)):
        for s in range(t + 1):
            assert bias[1, n, t, s].item() == pytest.approx(-factor * 2 ** (-2 * (n + 1)) * (t - s), rel=1e-6)


def softmax_of(scores_BNTT: Tensor) -> Tensor:
    future_TT = torch.ones(scores_BNTT.shape[-2:], dtype=torch.bool).triu(1)
    return scores_BNTT.masked_fill(future_TT, -math.inf).softmax(-1)


def test_alibi_by_distance_and_by_place_are_the_same_under_softmax() -> None:
    scores = normal(1, 4, 16, 16, seed=3)
    bloom = build_alibi_tensor(torch.ones(1, 16), 4, torch.float32)[None]
    assert max_difference(softmax_of(scores + bias_of(position("alibi"))), softmax_of(scores + bloom)) < 1e-6


# --- t5


@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 16), (32, 1000), (2, 5), (7, 100), (128, 512), (64, 33)])
def test_buckets_are_those_of_t5(buckets: int, max_distance: int) -> None:
    module = position("t5", context=2048, buckets=buckets, max_distance=max_distance)
    theirs = T5Attention._relative_position_bucket(-torch.arange(2048), False, buckets, max_distance)
    assert torch.equal(dict(module.named_buffers())["bucket_T"], theirs)


def test_bias_of_t5_is_that_of_transformers() -> None:
    module = position("t5", heads=4, context=40, buckets=8, max_distance="1/2")
    config = T5Config(
        d_model=32, num_heads=4, is_decoder=True, relative_attention_num_buckets=8, relative_attention_max_distance=20, use_cache=False
    )
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    with torch.no_grad():
        theirs.relative_attention_bias.weight.copy_(dict(module.named_parameters())["table.weight"])
    assert torch.equal(bias_of(module, 40), theirs.compute_bias(40, 40).tril())


@pytest.mark.parametrize("max_distance", [16, 3])
def test_t5_refuses_a_longest_distance_that_has_a_bucket_of_its_own(max_distance: int) -> None:
    assert refused_key("t5", buckets=32, max_distance=max_distance) == "position.max_distance"


# --- kerple


def set_to(module: Position, **values: Tensor) -> Position:
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name in values:
                parameter.copy_(values[name])
    return module


def test_kerple_falls_with_the_logarithm_of_the_distance() -> None:
    module = position("kerple")
    parameters = dict(module.named_parameters())
    r1, r2 = parameters["log_r1"].double().exp(), parameters["log_r2"].double().exp()
    bias = bias_of(module, sequences=2)
    for n, t in product(range(4), range(16)):
        for s in range(t + 1):
            assert bias[1, n, t, s].item() == pytest.approx(-r1[n].item() * math.log(1 + r2[n].item() * (t - s)), rel=1e-5)


def test_kerple_starts_at_the_means_that_are_asked_for() -> None:
    parameters = dict(position("kerple", r1=3.0, r2=0.25, random=False).named_parameters())
    assert parameters["log_r1"].exp().tolist() == pytest.approx([0.75, 2.25, 3.75, 5.25])
    assert parameters["log_r2"].exp().tolist() == pytest.approx([0.25] * 4)


def test_kerple_with_a_small_r2_is_alibi() -> None:
    slope_N, r2 = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8]), 1e-5
    kerple = set_to(position("kerple"), log_r1=(slope_N / r2).log(), log_r2=torch.full((4,), math.log(r2)))
    assert max_difference(bias_of(kerple), bias_of(position("alibi"))) < 1e-3


@pytest.mark.parametrize("value", [-30.0, 0.0, 5.0])
def test_kerple_never_rewards_distance_whatever_its_parameters(value: float) -> None:
    bias = bias_of(set_to(position("kerple"), log_r1=torch.full((4,), value), log_r2=torch.full((4,), -value)))
    assert (bias[0, :, -1].diff(dim=-1) >= 0).all(), "a nearer key has no smaller score"


# --- fire


def test_fire_is_the_published_function_of_distance_and_place() -> None:
    module = position("fire", hidden=6)
    p = {name: parameter.detach().double() for name, parameter in module.named_parameters()}
    c, threshold = 0.1 * math.exp(p["log_c"].item()), 4 * math.exp(p["log_threshold"].item())
    bias = bias_of(module, sequences=2)
    assert 1 < threshold < 15, "both cases of the maximum are tried"
    for n, t in product(range(4), range(16)):
        for s in range(t + 1):
            share = math.log(1 + c * (t - s)) / math.log(1 + c * max(threshold, t))
            units = [max(0.0, a * share + b) for a, b in zip(p["slope"].tolist(), p["offset"].tolist(), strict=True)]
            expected = sum(w * unit for w, unit in zip(p["out.weight"][n].tolist(), units, strict=True))
            assert bias[1, n, t, s].item() == pytest.approx(expected, abs=1e-5)


def test_fire_with_a_straight_line_and_a_far_threshold_is_alibi() -> None:
    slope_N = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8])
    fire = position("fire", hidden=1, c=1e-5, threshold=100)
    zero, one = torch.zeros(()), torch.ones(1)
    set_to(fire, log_c=zero, log_threshold=zero, slope=one, offset=0 * one, **{"out.weight": -100 * slope_N[:, None]})
    assert max_difference(bias_of(fire), bias_of(position("alibi"))) < 3e-3


@pytest.mark.parametrize("hidden", [1, 2, 32])
def test_no_hidden_unit_of_fire_starts_dead(hidden: int) -> None:
    p = dict(position("fire", hidden=hidden, random=False).named_parameters())
    share = torch.linspace(0, 1, 101)[:, None]
    active = (share * p["slope"] + p["offset"] > 0).float().mean(0)
    assert ((active > 0) & (active < 1)).all()


@pytest.mark.parametrize("value", [-5.0, 5.0])
def test_fire_stays_finite_whatever_c_and_threshold(value: float) -> None:
    fire = position("fire")
    set_to(fire, log_c=torch.tensor(value), log_threshold=torch.tensor(-value))
    assert torch.isfinite(bias_of(fire)).all()


# --- transformer_xl


@pytest.mark.parametrize("theta", [10_000.0, 50.0])
def test_transformer_xl_adds_the_terms_of_key_and_distance(theta: float) -> None:
    module = position("transformer_xl", theta=theta)
    p = {name: parameter.detach().double() for name, parameter in module.named_parameters()}
    q, k = normal(2, 4, 16, 8, seed=1).double(), normal(2, 4, 16, 8, seed=2).double()
    bias = bias_of(module, sequences=2)
    for d in range(16):
        wave = [f(d / theta ** (2 * i / 32)) for i in range(16) for f in (math.sin, math.cos)]
        r_NH = (p["r.weight"] @ torch.tensor(wave, dtype=torch.float64)).view(4, 8)
        for t in range(d, 16):
            expected_BN = ((p["u"] * k[:, :, t - d]).sum(-1) + ((q[:, :, t] + p["v"]) * r_NH).sum(-1)) * 0.5
            assert max_difference(bias[:, :, t, t - d], expected_BN) < 1e-5


def test_transformer_xl_refuses_an_odd_width() -> None:
    assert refused_key("transformer_xl", dim=31) == "model.width"


# --- all that is added to scores


@pytest.mark.parametrize("word", ADDED_TO_SCORES)
@pytest.mark.parametrize("tokens", [1, 2, 7])
def test_a_short_sequence_has_the_first_biases_of_a_long_one(word: str, tokens: int) -> None:
    module = position(word)
    q, k = normal(2, 4, 16, 8, seed=1), normal(2, 4, 16, 8, seed=2)
    long, short = module.bias(q, k, 0.5), module.bias(q[:, :, :tokens], k[:, :, :tokens], 0.5)
    assert long is not None
    assert short is not None
    assert max_difference(short.tril(), long.tril()[..., :tokens, :tokens]) < 1e-5


@pytest.mark.parametrize("word", sorted(set(ADDED_TO_SCORES) - {"alibi"}))
def test_each_parameter_of_a_bias_moves_the_attention_it_gives(word: str) -> None:
    module = position(word)
    attention = softmax_of(normal(1, 4, 16, 16, seed=3) + bias_of(module))
    (attention * normal(1, 4, 16, 16, seed=4)).sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 1e-3, name


@pytest.mark.parametrize("word", ["alibi", "kerple", "t5"])
def test_a_bias_depends_on_the_distance_alone(word: str) -> None:
    bias_NTT = bias_of(position(word))[0]
    for distance in range(16):
        diagonal = bias_NTT.diagonal(-distance, dim1=-2, dim2=-1)
        assert torch.equal(diagonal, diagonal[:, :1].expand_as(diagonal))
    assert bias_NTT[:, -1].std() > 0.01


# --- sinusoidal and learned


def test_sinusoidal_adds_the_published_table() -> None:
    x = normal(2, 16, 32)
    added = position("sinusoidal", theta=100.0, scale=0.5).embed(x) - x
    for t in range(16):
        for i in range(16):
            angle = t / 100.0 ** (2 * i / 32)
            expected = torch.tensor([0.5 * math.sin(angle), 0.5 * math.cos(angle)]).expand(2, 2)
            assert max_difference(added[:, t, 2 * i : 2 * i + 2], expected) < 1e-6


def test_sinusoidal_refuses_an_odd_width() -> None:
    assert refused_key("sinusoidal", dim=31) == "model.width"


def test_learned_adds_row_t_of_its_table_to_token_t() -> None:
    module, x = position("learned"), normal(2, 5, 32)
    [table_TD] = module.parameters()
    assert table_TD.shape == (16, 32)
    assert max_difference(module.embed(x) - x, table_TD[:5].expand(2, 5, 32)) < 1e-6


# --- in the model


def test_the_key_of_a_bad_head_comes_up_when_a_config_is_made() -> None:
    with pytest.raises(ConfigError) as raised:
        changed(small(), "attention.head_dim", 7)
    assert raised.value.problems[0].key == "attention.head_dim"


@pytest.mark.parametrize("word", POSITION.words())
def test_one_layer_sees_the_order_of_the_past_unless_position_is_none(word: str) -> None:
    cfg = changed(small(f"position={word}"), "model.depth", 1)
    model, tokens = random_model(cfg), tokens_of(cfg)
    shuffled = torch.cat([tokens[:, :-1].flip(1), tokens[:, -1:]], dim=1)
    moved = max_difference(model(tokens)[:, -1], model(shuffled)[:, -1])
    assert moved < 1e-5 if word == "none" else moved > 0.01
