"""residual: how attention and feed-forward join the residual stream. A variant is the block of the model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ablate.errors import ConfigError
from ablate.model.norm import NoNorm
from ablate.model.placement import Placement
from ablate.registry import Positive, Registry

Found = Any
"""What a feed-forward layer finds out on its way (the statistics of a router), or None."""


class Block(nn.Module):
    """One layer: x -> x. It also gives the values of its attention, for value residuals, and what its feed-forward layer found."""

    def __init__(self, attention: Placement, ffn: Placement, dim: int, dropout: float) -> None:
        super().__init__()
        self.attention, self.ffn = attention, ffn
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def read(self, x_BTD: Tensor, around: Any) -> tuple[Tensor, Tensor]:
        """Attention as a branch; `around` is what it needs beside x: position, mask, first values."""
        y_BTD, value = self.attention.sublayer(self.attention.input(x_BTD), *around)
        return self.dropout(self.attention.output(y_BTD)), value

    def think(self, x_BTD: Tensor) -> tuple[Tensor, Found]:
        """The feed-forward layer as a branch."""
        y_BTD, found = self.ffn.sublayer(self.ffn.input(x_BTD))
        return self.dropout(self.ffn.output(y_BTD)), found


RESIDUAL: Registry[Block] = Registry("residual")


class Scaled(Block):
    """Multipliers on the branch and on the stream."""

    def __init__(self, attention: Placement, ffn: Placement, dim: int, dropout: float, branch: float, stream: float) -> None:
        super().__init__(attention, ffn, dim, dropout)
        self.branch, self.by = branch, stream

    def stream(self, x_BTD: Tensor) -> Tensor:
        return x_BTD if self.by == 1 else self.by * x_BTD

    def scaled(self, y_BTD: Tensor) -> Tensor:
        return y_BTD if self.branch == 1 else self.branch * y_BTD


@RESIDUAL.register("serial")
class Serial(Scaled):
    """x = stream x + branch attention(x), then the same with the feed-forward layer. Multipliers as in Granite and muP; 1: plain."""

    def __init__(self, attention: Placement, ffn: Placement, dim: int, dropout: float, *, branch: Positive, stream: Positive) -> None:
        super().__init__(attention, ffn, dim, dropout, branch, stream)

    def forward(self, x_BTD: Tensor, *around: Any) -> tuple[Tensor, Tensor, Found]:
        y_BTD, value = self.read(x_BTD, around)
        x_BTD = self.attention.residual(self.stream(self.attention.stream(x_BTD)) + self.scaled(y_BTD))
        y_BTD, found = self.think(x_BTD)
        return self.ffn.residual(self.stream(self.ffn.stream(x_BTD)) + self.scaled(y_BTD)), value, found


@RESIDUAL.register("parallel")
class Parallel(Scaled):
    """x = stream x + branch (attention(x) + ffn(x)) (GPT-J; PaLM, arXiv 2204.02311, section 2); `shared_norm`: one norm for both."""

    def __init__(
        self, attention: Placement, ffn: Placement, dim: int, dropout: float, *, shared_norm: bool, branch: Positive, stream: Positive
    ) -> None:
        super().__init__(attention, ffn, dim, dropout, branch, stream)
        placed = attention.norms
        if "residual" in placed or isinstance(attention.residual_norm, nn.Identity) != isinstance(ffn.residual_norm, nn.Identity):
            raise ConfigError.at(
                "residual", "parallel adds both branches at once and has no place for norms between: placement must be pre, sandwich, "
                "output, ln_scaling, sub_ln or none"
            )  # fmt: skip
        if shared_norm and ("input" not in placed or isinstance(attention.input_norm, NoNorm)):
            raise ConfigError.at("residual.shared_norm", "has no effect: there is no norm on the input of a sublayer")
        if shared_norm:
            ffn.input_norm = nn.Identity()
        self.shared_norm = shared_norm

    def forward(self, x_BTD: Tensor, *around: Any) -> tuple[Tensor, Tensor, Found]:
        read_BTD = self.attention.input(x_BTD)
        y_BTD, value = self.attention.sublayer(read_BTD, *around)
        z_BTD, found = self.ffn.sublayer(read_BTD if self.shared_norm else self.ffn.input(x_BTD))
        sum_BTD = self.dropout(self.attention.output(y_BTD)) + self.dropout(self.ffn.output(z_BTD))
        return self.stream(x_BTD) + self.scaled(sum_BTD), value, found


class Learned(Block):
    """A learned multiplier on each branch, which starts at `start`."""

    def __init__(self, attention: Placement, ffn: Placement, dim: int, dropout: float, start: Tensor) -> None:
        super().__init__(attention, ffn, dim, dropout)
        self.attention_scale, self.ffn_scale = nn.Parameter(start), nn.Parameter(start.clone())

    def forward(self, x_BTD: Tensor, *around: Any) -> tuple[Tensor, Tensor, Found]:
        y_BTD, value = self.read(x_BTD, around)
        x_BTD = self.attention.residual(self.attention.stream(x_BTD) + self.attention_scale.type_as(y_BTD) * y_BTD)
        y_BTD, found = self.think(x_BTD)
        return self.ffn.residual(self.ffn.stream(x_BTD) + self.ffn_scale.type_as(y_BTD) * y_BTD), value, found


@RESIDUAL.register("layerscale")
class LayerScale(Learned):
    """x = x + scale * f(x), a learned scale for each feature that starts at `init` (arXiv 2103.17239, eq. 4)."""

    def __init__(self, attention: Placement, ffn: Placement, dim: int, dropout: float, *, init: Positive) -> None:
        super().__init__(attention, ffn, dim, dropout, torch.full((dim,), float(init)))


@RESIDUAL.register("rezero")
class ReZero(Learned):
    """x = x + a f(x), one learned a for each branch, which starts at 0: the model starts as its embedding and head (arXiv 2003.04887)."""

    def __init__(self, attention: Placement, ffn: Placement, dim: int, dropout: float) -> None:
        super().__init__(attention, ffn, dim, dropout, torch.zeros(()))
