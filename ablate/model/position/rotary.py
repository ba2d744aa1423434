"""Positions that turn queries and keys, so that their product depends on their distance alone."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ablate.errors import ConfigError
from ablate.model.position.none import POSITION, Finite, Position, angles, inverse_frequencies
from ablate.model.position.scaling import SCALING, scaled_frequencies
from ablate.registry import Options, Positive, PositiveShare, Size, sized

AnyScaling = Annotated[Options, SCALING]

LARGEST_EXPONENT = 40.0
"""e^40 squared is still a float32."""


@POSITION.register("rope")
class Rope(Position):
    """Rotary embedding: features i and i + R/2 of q and k turn by t * theta^(-2i/R) (arXiv 2104.09864, eq. 34, half pairing).

    R = fraction * H, rounded down to an even number: the first R features of a head turn, the others have no position (GPT-NeoX,
    arXiv 2204.06745). `scaling` changes the frequencies, and the length of what is turned, for contexts longer than those of
    the first training.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int,
        context: int,
        trained_context: int,
        *,
        theta: Positive,
        fraction: PositiveShare,
        scaling: AnyScaling,
    ) -> None:
        super().__init__(dim, heads, head_dim, context, trained_context)
        _check_even(head_dim, "rope")
        rotated = int(head_dim * fraction + 1e-6) // 2 * 2  # 1e-6: a third of 12 is 4, also as 0.3333333
        if rotated == 0:
            raise ConfigError.at("position.fraction", f"{fraction:g} of {head_dim} features is no pair to turn: position=none is the same")
        frequencies, factor = scaled_frequencies(scaling, theta, rotated, trained_context)
        angle_TH = np.tile(angles(context, frequencies), 2)
        self.cos_TH = _buffer(self, "cos_TH", factor * np.cos(angle_TH))
        self.sin_TH = _buffer(self, "sin_TH", factor * np.sin(angle_TH))

    def rotate(self, q_BNTH: Tensor, k_BKTH: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self.cos_TH[: q_BNTH.shape[-2]], self.sin_TH[: q_BNTH.shape[-2]]
        return _turn(q_BNTH, cos, sin), _turn(k_BKTH, cos, sin)


@POSITION.register("xpos")
class XPos(Position):
    """Rotary embedding whose products decay with distance (arXiv 2212.10554, algorithm 1).

    Pair i of q_t is turned by t * theta^(-2i/H) and multiplied by z_i^(t / scale_base), that of k_s divided by
    z_i^(s / scale_base), z_i = (2i/H + gamma) / (1 + gamma); so their product has the factor z_i^((t-s) / scale_base). `scale_base` is in
    tokens, or a share of model.context (the paper has 512 for 1,024). Normalising queries and keys after the rotation undoes the decay.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int,
        context: int,
        trained_context: int,
        *,
        theta: Positive,
        gamma: Finite,
        scale_base: Size,
    ) -> None:
        super().__init__(dim, heads, head_dim, context, trained_context)
        _check_even(head_dim, "xpos")
        decay_H = np.log((np.arange(0, head_dim, 2) / head_dim + gamma) / (1 + gamma))
        # Counted from the middle of the context: only differences matter, and both ends stay near one.
        time_T = np.arange(context) - trained_context // 2
        exponent_TH = np.tile(np.outer(time_T / sized(scale_base, trained_context), decay_H), 2)
        if np.abs(exponent_TH).max() > LARGEST_EXPONENT:
            raise ConfigError.at(
                "position.scale_base", f"is too small for {context} tokens: e^{np.abs(exponent_TH).max():.0f} is no factor"
            )
        angle_TH, growth_TH = np.tile(angles(context, inverse_frequencies(head_dim, theta)), 2), np.exp(exponent_TH)
        self.q_cos_TH = _buffer(self, "q_cos_TH", np.cos(angle_TH) * growth_TH)
        self.q_sin_TH = _buffer(self, "q_sin_TH", np.sin(angle_TH) * growth_TH)
        self.k_cos_TH = _buffer(self, "k_cos_TH", np.cos(angle_TH) / growth_TH)
        self.k_sin_TH = _buffer(self, "k_sin_TH", np.sin(angle_TH) / growth_TH)

    def rotate(self, q_BNTH: Tensor, k_BKTH: Tensor) -> tuple[Tensor, Tensor]:
        tokens = q_BNTH.shape[-2]
        return (
            _turn(q_BNTH, self.q_cos_TH[:tokens], self.q_sin_TH[:tokens]),
            _turn(k_BKTH, self.k_cos_TH[:tokens], self.k_sin_TH[:tokens]),
        )


def _check_even(head_dim: int, word: str) -> None:
    if head_dim % 2:
        raise ConfigError.at(
            "attention.head_dim", f"position={word} turns pairs of features: the width of a head must be even, got {head_dim}"
        )


def _buffer(module: nn.Module, name: str, table: NDArray[np.float64]) -> Tensor:
    """Registers a table in float32 that no checkpoint holds."""
    tensor = torch.tensor(table, dtype=torch.float32)
    module.register_buffer(name, tensor, persistent=False)
    return tensor


def _turn(x_BNTH: Tensor, cos_TH: Tensor, sin_TH: Tensor) -> Tensor:
    """Turns the first features of each head, as many as the tables have, in float32."""
    rotated = cos_TH.shape[-1]
    x = x_BNTH[..., :rotated].float()
    first, second = x.chunk(2, dim=-1)
    turned = (x * cos_TH + torch.cat([-second, first], dim=-1) * sin_TH).type_as(x_BNTH)
    return turned if rotated == x_BNTH.shape[-1] else torch.cat([turned, x_BNTH[..., rotated:]], dim=-1)
