"""placement: where the norms of a block stand. A placement wraps one sublayer and owns the norms at its three sites.

    y = output(f(input(x)))         the branch
    x = residual(stream(x) + y)     the residual stream; the sum is made by `residual` (ablate/model/residual.py)

A site without a norm is the identity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ablate.registry import Registry

MakeNorm = Callable[[int], nn.Module]
"""Width -> a norm of the chosen kind."""


class Sublayer(Protocol):
    """Attention or feed-forward, as a placement sees it."""

    def scale_init(self, gain: float) -> None:
        """Multiplies the initial standard deviation of every matrix on the path of values."""

    def normalise_inner(self, make_norm: MakeNorm) -> None:
        """Puts a norm before its last matrix."""

    def normalise_heads(self, make_norm: MakeNorm) -> bool:
        """Puts norms on queries, keys and values, and says whether it has them."""


class Placement(nn.Module):
    """One sublayer on the residual stream, number `layer` of `depth`. Here: no norm at any site."""

    norms: tuple[str, ...] = ()
    final_norm = True

    def __init__(self, sublayer: Any, make_norm: MakeNorm, dim: int, layer: int, depth: int) -> None:
        super().__init__()
        self.sublayer = sublayer
        self.input_norm = make_norm(dim) if "input" in self.norms else nn.Identity()
        self.output_norm = make_norm(dim) if "output" in self.norms else nn.Identity()
        self.residual_norm = make_norm(dim) if "residual" in self.norms else nn.Identity()

    @classmethod
    def final(cls, make_norm: MakeNorm, dim: int) -> nn.Module:
        """What stands between the last block and the head."""
        return make_norm(dim) if cls.final_norm else nn.Identity()

    def input(self, x_BTD: Tensor) -> Tensor:
        return self.input_norm(x_BTD)

    def output(self, y_BTD: Tensor) -> Tensor:
        return self.output_norm(y_BTD)

    def stream(self, x_BTD: Tensor) -> Tensor:
        return x_BTD

    def residual(self, x_BTD: Tensor) -> Tensor:
        return self.residual_norm(x_BTD)


PLACEMENT: Registry[Placement] = Registry("placement")


@PLACEMENT.register("none")
class Nowhere(Placement):
    """x = x + f(x): no norm in the blocks, one before the head."""


@PLACEMENT.register("pre")
class Pre(Placement):
    """x = x + f(norm(x)), and a norm before the head (arXiv 2002.04745)."""

    norms = ("input",)


@PLACEMENT.register("post")
class Post(Placement):
    """x = norm(x + f(x)), and no norm before the head (arXiv 1706.03762)."""

    norms = ("residual",)
    final_norm = False


@PLACEMENT.register("sandwich")
class Sandwich(Placement):
    """x = x + norm(f(norm(x))), and a norm before the head (arXiv 2105.13290; Gemma 2; Peri-LN, arXiv 2502.02732)."""

    norms = ("input", "output")


@PLACEMENT.register("output")
class Output(Placement):
    """x = x + norm(f(x)), and a norm before the head (OLMo 2, arXiv 2501.00656)."""

    norms = ("output",)


@PLACEMENT.register("deepnorm")
class DeepNorm(Placement):
    """x = norm(alpha x + f(x)), alpha = (2 L)^(1/4), and no norm before the head (arXiv 2203.00555, table for decoders of L layers).

    With it, and never without, the matrices of values, outputs and feed-forward layers start beta = (8 L)^(-1/4) times as large.
    """

    norms = ("residual",)
    final_norm = False

    def __init__(self, sublayer: Any, make_norm: MakeNorm, dim: int, layer: int, depth: int) -> None:
        super().__init__(sublayer, make_norm, dim, layer, depth)
        self.alpha = (2 * depth) ** 0.25
        sublayer.scale_init((8 * depth) ** -0.25)

    def stream(self, x_BTD: Tensor) -> Tensor:
        return self.alpha * x_BTD


@PLACEMENT.register("hybrid")
class Hybrid(Placement):
    """Norms on queries, keys and values instead of the input of attention, and post-norm on its sum (HybridNorm, arXiv 2503.04598).

    y = x + attention(x) with q, k, v each normalised by head; z = norm(y); x = z + ffn(z); a norm before the head.
    """

    def __init__(self, sublayer: Any, make_norm: MakeNorm, dim: int, layer: int, depth: int) -> None:
        super().__init__(sublayer, make_norm, dim, layer, depth)
        if sublayer.normalise_heads(make_norm):
            self.residual_norm = make_norm(dim)


@PLACEMENT.register("ln_scaling")
class LayerNormScaling(Placement):
    """x = x + f(norm(x) / sqrt(l)) in layer l = 1, 2, ... (arXiv 2502.05795, eq. 4), and a norm before the head."""

    norms = ("input",)

    def __init__(self, sublayer: Any, make_norm: MakeNorm, dim: int, layer: int, depth: int) -> None:
        super().__init__(sublayer, make_norm, dim, layer, depth)
        # A buffer: a Python number that differs between layers would compile each of them anew.
        self.register_buffer("factor", torch.tensor(1 / math.sqrt(layer + 1)), persistent=False)
        self.factor: Tensor

    def input(self, x_BTD: Tensor) -> Tensor:
        x = self.input_norm(x_BTD)
        return (x * self.factor).type_as(x)


@PLACEMENT.register("sub_ln")
class SubNorm(Placement):
    """Pre-norm, and a second norm inside each sublayer before its last matrix (Magneto, arXiv 2210.06423; BitNet).

    With it the matrices of values, outputs and feed-forward layers start sqrt(ln(2 L)) times as large, as the paper has it for L layers.
    """

    norms = ("input",)

    def __init__(self, sublayer: Any, make_norm: MakeNorm, dim: int, layer: int, depth: int) -> None:
        super().__init__(sublayer, make_norm, dim, layer, depth)
        sublayer.normalise_inner(make_norm)
        sublayer.scale_init(math.sqrt(math.log(2 * depth)))
