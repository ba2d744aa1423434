"""Matrices without numbers: `init` gives them, so building a model draws nothing and costs nothing, on any device."""

from __future__ import annotations

from torch import nn


class Linear(nn.Linear):
    """y = x W^T + b; its numbers come from the `init` axis alone."""

    def reset_parameters(self) -> None:
        pass


class Embedding(nn.Embedding):
    """Row t of a table; its numbers come from the `init` axis alone."""

    def reset_parameters(self) -> None:
        pass
