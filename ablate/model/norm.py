"""norm: what keeps activations at one scale. Statistics are taken in float32; the result has the dtype of the input."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ablate.registry import Positive, PositiveShare, Registry

NORM: Registry[nn.Module] = Registry("norm")

Gain = Literal["plain", "zero_centred", "none"]


@NORM.register("none")
class NoNorm(nn.Module):
    """y = x."""

    def __init__(self, dim: int) -> None:
        super().__init__()

    def forward(self, x_D: Tensor) -> Tensor:
        return x_D


class Weighted(nn.Module):
    """A gain for each feature: `plain` is w, which starts at 1; `zero_centred` is 1 + w, w starting at 0 (Gemma); `none` is 1.

    Plain and zero-centred are one function and train alike, unless gains decay (optim.decay=all): then one is drawn to 0, the other to 1.
    """

    def __init__(self, dim: int, weight: Gain) -> None:
        super().__init__()
        self.dim = dim
        self.offset = 1 if weight == "zero_centred" else 0
        self.weight = None if weight == "none" else nn.Parameter(torch.full((dim,), 1.0 - self.offset))

    def gain(self) -> Tensor | None:
        if self.weight is None:
            return None
        return self.weight.float() + self.offset if self.offset else self.weight.float()


@NORM.register("layernorm")
class LayerNorm(Weighted):
    """y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, var without Bessel's correction (arXiv 1607.06450, eq. 4)."""

    def __init__(self, dim: int, *, eps: Positive, weight: Gain, bias: bool) -> None:
        super().__init__(dim, weight)
        self.eps = eps
        self.bias = nn.Parameter(torch.zeros(dim)) if bias else None

    def forward(self, x_D: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.float()
        return F.layer_norm(x_D.float(), (self.dim,), self.gain(), bias, self.eps).type_as(x_D)


@NORM.register("rmsnorm")
class RMSNorm(Weighted):
    """y = x / sqrt(mean(x^2) + eps) * weight (arXiv 1910.07467, eq. 4)."""

    def __init__(self, dim: int, *, eps: Positive, weight: Gain) -> None:
        super().__init__(dim, weight)
        self.eps = eps

    def forward(self, x_D: Tensor) -> Tensor:
        return F.rms_norm(x_D.float(), (self.dim,), self.gain(), self.eps).type_as(x_D)


@NORM.register("prmsnorm")
class PRMSNorm(nn.Module):
    """RMSNorm whose mean square comes from the first ceil(fraction * D) features (arXiv 1910.07467, section 4.2).

    y = x / sqrt(mean(x[:k]^2) + eps) * weight. With eps a zero prefix gives finite values, and zero gives zero.
    """

    def __init__(self, dim: int, *, eps: Positive, fraction: PositiveShare) -> None:
        super().__init__()
        self.eps = eps
        self.num_features = max(1, math.ceil(round(fraction * dim, 6)))  # 0.07 * 100 is 7.000000000000001
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x_D: Tensor) -> Tensor:
        x = x_D.float()
        mean_square = x[..., : self.num_features].square().mean(-1, keepdim=True)
        return (x * torch.rsqrt(mean_square + self.eps) * self.weight.float()).type_as(x_D)


@NORM.register("dyt")
class DynamicTanh(nn.Module):
    """y = weight * tanh(a x) + bias with one learned a, which starts at `alpha`: no statistics at all (arXiv 2503.10622, eq. 2)."""

    def __init__(self, dim: int, *, alpha: Positive) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(float(alpha)))
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x_D: Tensor) -> Tensor:
        return (self.weight * torch.tanh(self.alpha * x_D.float()) + self.bias).type_as(x_D)
