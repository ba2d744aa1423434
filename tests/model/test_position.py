from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as llama_rotation
from transformers.models.qwen2.modeling_qwen2 import apply_rotary_pos_emb as qwen2_rotation

from ablate.errors import ConfigError
from ablate.model.position import POSITION, Position
from tests.model.conftest import changed, max_difference, random_model, randomise, small, tokens_of, yaml_of


def position(word: str, *, dim: int = 32, head_dim: int = 8, context: int = 16, **options: Any) -> Position:
    module = POSITION.build(POSITION.options(word).model_validate({**yaml_of("position", word), **options}), dim, head_dim, context)
    randomise(module)
    return module


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


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


@pytest.mark.parametrize("theta", [10_000.0, 500.0])
def test_rope_is_a_turn_of_complex_numbers_by_position_times_frequency(theta: float) -> None:
    q_BNTH, k_BKTH = normal(2, 4, 16, 8, seed=1), normal(2, 2, 16, 8, seed=2)
    for x, turned in zip((q_BNTH, k_BKTH), position("rope", theta=theta).rotate(q_BNTH, k_BKTH), strict=True):
        number = torch.complex(x[..., :4].double(), x[..., 4:].double())
        expected = torch.empty_like(number)
        for t in range(16):
            for i in range(4):
                angle = t * theta ** (-2 * i / 8)
                expected[:, :, t, i] = number[:, :, t, i] * complex(math.cos(angle), math.sin(angle))
        assert max_difference(turned, torch.cat([expected.real, expected.imag], dim=-1)) < 1e-6


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


def test_rope_keeps_the_dtype_of_queries_and_keys_and_turns_in_float32() -> None:
    q = normal(1, 2, 16, 8).bfloat16()
    turned, _ = position("rope").rotate(q, q)
    exact, _ = position("rope").rotate(q.float(), q.float())
    assert turned.dtype == torch.bfloat16
    assert torch.equal(turned, exact.bfloat16())


def test_rope_does_nothing_to_embeddings() -> None:
    x = normal(2, 16, 32)
    assert position("rope").embed(x) is x


def test_rope_refuses_a_head_of_odd_width() -> None:
    with pytest.raises(ConfigError) as raised:
        changed(small(), "attention.head_dim", 7)
    assert raised.value.problems[0].key == "attention.head_dim"


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
    with pytest.raises(ConfigError) as raised:
        position("sinusoidal", dim=31)
    assert raised.value.problems[0].key == "model.width"


def test_learned_adds_row_t_of_its_table_to_token_t() -> None:
    module, x = position("learned"), normal(2, 5, 32)
    [table_TD] = module.parameters()
    assert table_TD.shape == (16, 32)
    assert max_difference(module.embed(x) - x, table_TD[:5].expand(2, 5, 32)) < 1e-6


@pytest.mark.parametrize("word", ["learned", "none", "sinusoidal"])
def test_only_rope_turns_queries_and_keys(word: str) -> None:
    q, k = normal(1, 4, 16, 8), normal(1, 2, 16, 8)
    turned_q, turned_k = position(word).rotate(q, k)
    assert turned_q is q
    assert turned_k is k


def test_none_gives_embeddings_back() -> None:
    x = normal(2, 16, 32)
    assert position("none").embed(x) is x


# --- in the model


@pytest.mark.parametrize("word", POSITION.words())
def test_one_layer_sees_the_order_of_the_past_unless_position_is_none(word: str) -> None:
    cfg = changed(small(f"position={word}"), "model.depth", 1)
    model, tokens = random_model(cfg), tokens_of(cfg)
    shuffled = torch.cat([tokens[:, :-1].flip(1), tokens[:, -1:]], dim=1)
    moved = max_difference(model(tokens)[:, -1], model(shuffled)[:, -1])
    assert moved < 1e-5 if word == "none" else moved > 0.01
