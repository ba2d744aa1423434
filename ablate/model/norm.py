"""norm: what keeps activations at one scale. Statistics are taken in float32; the result has the dtype of the input."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ablate.registry import Positive, PositiveShare, Registry

NORM: Registry[nn.Module] = Registry("norm")


@NORM.register("none")
class NoNorm(nn.Module):
    """y = x."""

    def __init__(self, dim: int) -> None:
        super().__init__()

    def forward(self, x_D: Tensor) -> Tensor:
        return x_D


@NORM.register("layernorm")
class LayerNorm(nn.Module):
    """y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, var without Bessel's correction (arXiv 1607.06450, eq. 4)."""

    def __init__(self, dim: int, *, eps: Positive, bias: bool) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim)) if bias else None

    def forward(self, x_D: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.float()
        return F.layer_norm(x_D.float(), self.weight.shape, self.weight.float(), bias, self.eps).type_as(x_D)


@NORM.register("rmsnorm")
class RMSNorm(nn.Module):
    """y = x / sqrt(mean(x^2) + eps) * weight (arXiv 1910.07467, eq. 4)."""

    def __init__(self, dim: int, *, eps: Positive) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x_D: Tensor) -> Tensor:
        return F.rms_norm(x_D.float(), self.weight.shape, self.weight.float(), self.eps).type_as(x_D)


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
