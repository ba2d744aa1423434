"""Positions that are added to the embedded tokens."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ablate.errors import ConfigError
from ablate.model.linear import Embedding
from ablate.model.position.none import POSITION, Position, waves
from ablate.registry import Positive


@POSITION.register("learned")
class Learned(Position):
    """x_t + table[t], one learned row for each position up to the context (arXiv 1705.03122); beyond it there is none."""

    acts_on_embedding: ClassVar[bool] = True

    def __init__(self, dim: int, heads: int, head_dim: int, context: int, trained_context: int) -> None:
        super().__init__(dim, heads, head_dim, context, trained_context)
        if context > trained_context:
            raise ConfigError.at(
                "position", f"learned is not defined beyond model.context={trained_context}; {context} tokens were asked for"
            )
        self.table = Embedding(trained_context, dim)

    def embed(self, x_BTD: Tensor) -> Tensor:
        return x_BTD + self.table.weight[: x_BTD.shape[1]]


@POSITION.register("sinusoidal")
class Sinusoidal(Position):
    """x_t + scale * table[t], table[t, 2i] = sin(t / theta^(2i/D)), table[t, 2i+1] = cos of the same (arXiv 1706.03762, section 3.5).

    There embeddings have unit variance. Ours start at the standard deviation of `init`, so `scale` keeps the two in proportion.
    """

    acts_on_embedding: ClassVar[bool] = True

    def __init__(
        self, dim: int, heads: int, head_dim: int, context: int, trained_context: int, *, theta: Positive, scale: Positive
    ) -> None:
        super().__init__(dim, heads, head_dim, context, trained_context)
        if dim % 2:
            raise ConfigError.at("model.width", f"position=sinusoidal pairs a sine with a cosine: an even width is needed, got {dim}")
        self.register_buffer("table_TD", torch.tensor(scale * waves(context, dim, theta), dtype=torch.float32), persistent=False)
        self.table_TD: Tensor

    def embed(self, x_BTD: Tensor) -> Tensor:
        return x_BTD + self.table_TD[: x_BTD.shape[1]]
