"""The hooks of a position, and the variant that uses none of them."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from ablate.registry import Number, Registry

Finite = Annotated[Number, Field(gt=0, lt=math.inf)]
"""A float above 0 that is not infinite."""

POSITION: Registry[Position] = Registry("position")


@POSITION.register("none")
class Position(nn.Module):
    """No position: causal attention alone breaks the symmetry (NoPE, arXiv 2305.19466). Its hooks do nothing.

    Tables reach to `context` tokens; an option that is a share is a share of `trained_context`.
    """

    acts_on_embedding: ClassVar[bool] = False
    """It works in `embed`, once for the whole model, and not in the layers."""
    per_layer: bool = False
    """Each layer has a module, and so parameters, of its own."""

    def __init__(self, dim: int, heads: int, head_dim: int, context: int, trained_context: int) -> None:
        super().__init__()

    def embed(self, x_BTD: Tensor) -> Tensor:
        """Once, on the embedded tokens."""
        return x_BTD

    def rotate(self, q_BNTH: Tensor, k_BKTH: Tensor) -> tuple[Tensor, Tensor]:
        """In each attention layer, on queries and keys."""
        return q_BNTH, k_BKTH

    def bias(self, q_BNTH: Tensor, k_BNTH: Tensor, scale: float) -> Tensor | None:
        """In each attention layer: what is added to the scores scale * q k^T, in a shape that broadcasts to (B, N, T, T).

        Attention masks the future; what stands there is finite and means nothing.
        """
        return None


def inverse_frequencies(width: int, theta: float) -> NDArray[np.float64]:
    """theta^(-2i/width) for i < width/2: radians a token."""
    return theta ** (-np.arange(0, width, 2, dtype=np.float64) / width)


def angles(context: int, frequencies: NDArray[np.float64]) -> NDArray[np.float64]:
    """t * frequency for t < context, in float64: float32 angles are off by 1e-4 at position 1,000."""
    return np.outer(np.arange(context), frequencies)


def waves(context: int, dim: int, theta: float) -> NDArray[np.float64]:
    """(context, dim): [t, 2i] = sin(t / theta^(2i/dim)), [t, 2i+1] = cos of the same (arXiv 1706.03762, section 3.5)."""
    angle = angles(context, inverse_frequencies(dim, theta))
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(context, dim)
