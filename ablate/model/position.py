"""position: how the model learns where a token stands. A variant overrides the hooks it needs."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ablate.errors import ConfigError
from ablate.model.linear import Embedding
from ablate.registry import Positive, Registry

POSITION: Registry[Position] = Registry("position")


@POSITION.register("none")
class Position(nn.Module):
    """No position: causal attention alone breaks the symmetry (NoPE, arXiv 2305.19466). Its hooks do nothing."""

    def __init__(self, dim: int, head_dim: int, context: int) -> None:
        super().__init__()

    def embed(self, x_BTD: Tensor) -> Tensor:
        """Once, on the embedded tokens."""
        return x_BTD

    def rotate(self, q_BNTH: Tensor, k_BKTH: Tensor) -> tuple[Tensor, Tensor]:
        """In each attention layer, on queries and keys."""
        return q_BNTH, k_BKTH


@POSITION.register("learned")
class Learned(Position):
    """x_t + table[t], one learned row for each position up to the context (arXiv 1705.03122)."""

    def __init__(self, dim: int, head_dim: int, context: int) -> None:
        super().__init__(dim, head_dim, context)
        self.table = Embedding(context, dim)

    def embed(self, x_BTD: Tensor) -> Tensor:
        return x_BTD + self.table.weight[: x_BTD.shape[1]]


@POSITION.register("sinusoidal")
class Sinusoidal(Position):
    """x_t + scale * table[t], table[t, 2i] = sin(t / theta^(2i/D)), table[t, 2i+1] = cos of the same (arXiv 1706.03762, section 3.5).

    There embeddings have unit variance. Ours start at the standard deviation of `init`, so `scale` keeps the two in proportion.
    """

    def __init__(self, dim: int, head_dim: int, context: int, *, theta: Positive, scale: Positive) -> None:
        super().__init__(dim, head_dim, context)
        if dim % 2:
            raise ConfigError.at("model.width", f"position=sinusoidal pairs a sine with a cosine: an even width is needed, got {dim}")
        angle = _angles(context, dim, theta)
        table = np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(context, dim)
        self.register_buffer("table_TD", torch.tensor(scale * table, dtype=torch.float32), persistent=False)
        self.table_TD: Tensor

    def embed(self, x_BTD: Tensor) -> Tensor:
        return x_BTD + self.table_TD[: x_BTD.shape[1]]


@POSITION.register("rope")
class Rope(Position):
    """Rotary embedding: features i and i + H/2 of q and k turn by t * theta^(-2i/H) (arXiv 2104.09864, eq. 34, half pairing).

    The product of a rotated query and key depends on their distance alone.
    """

    def __init__(self, dim: int, head_dim: int, context: int, *, theta: Positive) -> None:
        super().__init__(dim, head_dim, context)
        if head_dim % 2:
            raise ConfigError.at(
                "attention.head_dim", f"position=rope turns pairs of features: the width of a head must be even, got {head_dim}"
            )
        angle = np.tile(_angles(context, head_dim, theta), 2)
        self.register_buffer("cos_TH", torch.tensor(np.cos(angle), dtype=torch.float32), persistent=False)
        self.register_buffer("sin_TH", torch.tensor(np.sin(angle), dtype=torch.float32), persistent=False)
        self.cos_TH: Tensor
        self.sin_TH: Tensor

    def rotate(self, q_BNTH: Tensor, k_BKTH: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self.cos_TH[: q_BNTH.shape[-2]], self.sin_TH[: q_BNTH.shape[-2]]
        return _turn(q_BNTH, cos, sin), _turn(k_BKTH, cos, sin)


def _angles(context: int, dim: int, theta: float) -> NDArray[np.float64]:
    """t * theta^(-2i/dim) for t < context, i < dim/2, in float64: float32 angles are off by 1e-4 at position 1,000."""
    return np.outer(np.arange(context), theta ** (-np.arange(0, dim, 2) / dim))


def _turn(x_BNTH: Tensor, cos_TH: Tensor, sin_TH: Tensor) -> Tensor:
    x = x_BNTH.float()
    first, second = x.chunk(2, dim=-1)
    return (x * cos_TH + torch.cat([-second, first], dim=-1) * sin_TH).type_as(x_BNTH)
