"""Matrices without numbers: `init` gives them, so building a model draws nothing and costs nothing, on any device."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ablate.model.grouped import grouped_product


class Linear(nn.Linear):
    """y = x W^T + b; its numbers come from the `init` axis alone.

    `writes`: its output goes to the residual stream. `gain` multiplies the standard deviation that `init` gives (placement=deepnorm).
    """

    def __init__(self, in_features: int, out_features: int, bias: bool, writes: bool = False) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.writes, self.gain = writes, 1.0

    def reset_parameters(self) -> None:
        pass


class Embedding(nn.Embedding):
    """Row t of a table; its numbers come from the `init` axis alone."""

    def reset_parameters(self) -> None:
        pass


class Rows(NamedTuple):
    """Which expert each row is for, the rows being sorted by it: the expert of each row, and where the rows of each end."""

    expert_R: Tensor
    ends_E: Tensor


class ExpertLinear(nn.Module):
    """y[r] = x[r] W[e]^T + b[e] for the rows r of expert e: E matrices in one. x_RI -> y_RO, weight (E, O, I), bias (E, O).

    Its numbers come from the `init` axis alone; `writes` and `gain` are those of Linear.
    """

    def __init__(self, num_experts: int, in_features: int, out_features: int, bias: bool, writes: bool = False) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.writes, self.gain = writes, 1.0
        self.weight = nn.Parameter(torch.empty(num_experts, out_features, in_features))
        self.bias = nn.Parameter(torch.empty(num_experts, out_features)) if bias else None

    def forward(self, x_RI: Tensor, rows: Rows) -> Tensor:
        device = "cuda" if x_RI.is_cuda else "cpu"  # the meta device has no autocast of its own
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else self.weight.dtype
        y_RO = grouped_product(x_RI.to(dtype), self.weight.to(dtype).transpose(1, 2), rows.ends_E)
        # An embedding, as its gradient is summed in a fixed order on every device.
        return y_RO if self.bias is None else y_RO + F.embedding(rows.expert_R, self.bias.to(dtype))
