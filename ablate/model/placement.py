"""placement: where the norms of a block stand. A placement wraps one sublayer and owns the norms around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ablate.registry import Registry

MakeNorm = Callable[[], nn.Module]


class Placement(nn.Module):
    """One sublayer on the residual stream."""

    def __init__(self, sublayer: nn.Module, make_norm: MakeNorm) -> None:
        super().__init__()
        self.sublayer = sublayer
        self.norm = make_norm()

    @staticmethod
    def final(make_norm: MakeNorm) -> nn.Module:
        """What stands between the last block and the head."""
        raise NotImplementedError

    def forward(self, x_BTD: Tensor, *context: Any) -> Tensor:
        raise NotImplementedError


PLACEMENT: Registry[Placement] = Registry("placement")


@PLACEMENT.register("pre")
class Pre(Placement):
    """y = x + f(norm(x)), and a norm before the head (arXiv 2002.04745)."""

    @staticmethod
    def final(make_norm: MakeNorm) -> nn.Module:
        return make_norm()

    def forward(self, x_BTD: Tensor, *context: Any) -> Tensor:
        return x_BTD + self.sublayer(self.norm(x_BTD), *context)


@PLACEMENT.register("post")
class Post(Placement):
    """y = norm(x + f(x)), and no norm before the head (arXiv 1706.03762)."""

    @staticmethod
    def final(make_norm: MakeNorm) -> nn.Module:
        return nn.Identity()

    def forward(self, x_BTD: Tensor, *context: Any) -> Tensor:
        return self.norm(x_BTD + self.sublayer(x_BTD, *context))
