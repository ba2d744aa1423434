from __future__ import annotations

import torch
from torch import Tensor, nn

from ablate.config import meta_model
from ablate.model.placement import PLACEMENT, Post, Pre
from tests.model.conftest import max_difference, random_model, small, tokens_of


class Double(nn.Module):
    """A sublayer that is known: 2 x + shift."""

    def forward(self, x: Tensor, shift: float) -> Tensor:
        return 2 * x + shift


class Halve(nn.Module):
    """In place of a norm."""

    def forward(self, x: Tensor) -> Tensor:
        return x / 2


def test_pre_adds_the_sublayer_of_the_norm_to_the_stream() -> None:
    assert Pre(Double(), Halve)(torch.tensor([4.0]), 1.0).tolist() == [4 + (2 * (4 / 2) + 1)]


def test_post_normalises_the_sum_of_the_stream_and_the_sublayer() -> None:
    assert Post(Double(), Halve)(torch.tensor([4.0]), 1.0).tolist() == [(4 + (2 * 4 + 1)) / 2]


def norms_of(word: str) -> list[str]:
    names = [name for name, _ in meta_model(small(f"placement={word}")).named_parameters()]
    return [name for name in names if name.split(".")[-2] == "norm"]


def test_pre_has_a_norm_for_each_sublayer_and_one_before_the_head() -> None:
    layers = [f"blocks.{layer}.{part}.norm.weight" for layer in range(2) for part in ("attention", "ffn")]
    assert norms_of("pre") == [*layers, "norm.weight"]


def test_post_has_a_norm_for_each_sublayer_and_none_before_the_head() -> None:
    assert norms_of("post") == [f"blocks.{layer}.{part}.norm.weight" for layer in range(2) for part in ("attention", "ffn")]


def silenced(word: str) -> nn.Module:
    """A model whose sublayers give zero, so that norms and stream alone are left."""
    model = random_model(small(f"placement={word}"))
    with torch.no_grad():
        for block in model.blocks:
            block.attention.sublayer.out.weight.zero_()
            block.ffn.sublayer.down.weight.zero_()
    return model


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def test_the_stream_of_pre_reaches_the_head_through_the_final_norm_alone() -> None:
    model, tokens = silenced("pre"), tokens_of(small())
    expected = rms(model.embedding.weight[tokens], model.norm.weight) @ model.head.unembed.weight.T
    assert max_difference(model(tokens), expected) < 1e-5


def test_the_stream_of_post_goes_through_the_norm_of_every_sublayer() -> None:
    model, tokens = silenced("post"), tokens_of(small())
    x = model.embedding.weight[tokens]
    for block in model.blocks:
        x = rms(rms(x, block.attention.norm.weight), block.ffn.norm.weight)
    assert max_difference(model(tokens), x @ model.head.unembed.weight.T) < 1e-5


def test_the_order_is_attention_then_feed_forward() -> None:
    for word in PLACEMENT.words():
        model, tokens = random_model(small(f"placement={word}")), tokens_of(small())
        x = model.embedding(tokens)
        for block in model.blocks:
            x = block.ffn(block.attention(x, model.position))
        assert torch.equal(model(tokens), model.head(model.norm(x), model.embedding.weight))
