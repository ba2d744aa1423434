"""ffn: the feed-forward layer. `ratio` means the same for every kind: the parameters of a plain MLP of width ratio * D.

The dense words stand here, one class each; `moe`, which chooses among experts that are dense words, in ablate/model/moe.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import TypedDict, Unpack

from ablate.errors import ConfigError
from ablate.model.linear import Linear
from ablate.registry import Count, Limit, NonNegative, Positive, Ratio, Registry

MakeNorm = Callable[[int], nn.Module]
"""Width -> a norm of the chosen kind."""
MakeMatrix = Callable[..., Any]
"""(inputs, outputs, bias=, writes=) -> y = W x + b: one Linear, or one for each expert."""


class FeedForward(nn.Module):
    """A layer that works on each token alone: x_BTD -> y_BTD, and what a router found out (None without one).

    `width` is what was built, `target_parameters` what `ratio` asked for, `inactive_parameters` what does not work on a given token.
    """

    width: int
    target_parameters: float
    inactive_parameters = 0

    @property
    def parameter_error(self) -> float:
        """Relative difference of the parameters from those of a plain MLP of the same `ratio`, unrounded."""
        return sum(parameter.numel() for parameter in self.parameters()) / self.target_parameters - 1

    def scale_init(self, gain: float) -> None:
        """Multiplies the initial standard deviation of the matrices that values pass: those of `up` and `down`."""
        raise NotImplementedError

    def normalise_inner(self, make_norm: MakeNorm) -> None:
        """Puts a norm before the last matrix."""
        raise NotImplementedError

    def normalise_heads(self, make_norm: MakeNorm) -> bool:
        return False

    def forward(self, x_BTD: Tensor) -> tuple[Tensor, Any]:
        raise NotImplementedError


FFN: Registry[FeedForward] = Registry("ffn")
"""All words."""
DENSE: Registry[Dense] = Registry("ffn")
"""The words that can be an expert of `moe`."""


def dense(word: str) -> Callable[[type[Dense]], type[Dense]]:
    """Class decorator: makes the class the word of both registries."""

    def add(variant: type[Dense]) -> type[Dense]:
        DENSE.register(word)(variant)
        FFN.register(word)(variant)
        return variant

    return add


class Dense(FeedForward):
    """y = W_down n(h), h what a word's `activate` makes of x; n is the identity except under placement=sub_ln."""

    gated: ClassVar[bool]

    def __init__(
        self, dim: int, matrix: MakeMatrix, ratio: float, glu_factor: float, multiple_of: int, up_bias: bool, down_bias: bool
    ) -> None:
        super().__init__()
        self.width = self.inner_dim = max(1, round(ratio * glu_factor * dim / multiple_of)) * multiple_of
        self.target_parameters = 2 * ratio * dim**2
        if self.gated:
            self.gate = matrix(dim, self.width, bias=up_bias)
        self.up = matrix(dim, self.width, bias=up_bias)
        self.inner_norm: nn.Module = nn.Identity()
        self.down = matrix(self.width, dim, bias=down_bias, writes=True)

    def hidden(self, x: Tensor, *rows: Any) -> Tensor:
        raise NotImplementedError

    def transform(self, x: Tensor, *rows: Any) -> Tensor:
        """The layer, on x of any shape; experts need to know which row is whose."""
        return self.down(self.inner_norm(self.hidden(x, *rows)), *rows)

    def forward(self, x_BTD: Tensor) -> tuple[Tensor, Any]:
        return self.transform(x_BTD), None

    def scale_init(self, gain: float) -> None:
        for matrix in (self.up, self.down):
            matrix.gain *= gain

    def normalise_inner(self, make_norm: MakeNorm) -> None:
        self.inner_norm = make_norm(self.inner_dim)


class PlainOptions(TypedDict):
    ratio: Ratio
    multiple_of: Count
    up_bias: bool
    down_bias: bool


class GatedOptions(PlainOptions):
    glu_factor: Ratio


class Plain(Dense):
    """y = W_down a(W_up x), of width ratio * D."""

    gated = False

    def __init__(self, dim: int, matrix: MakeMatrix = Linear, **common: Unpack[PlainOptions]) -> None:
        super().__init__(dim, matrix, glu_factor=1, **common)

    def hidden(self, x: Tensor, *rows: Any) -> Tensor:
        return self.activate(self.up(x, *rows))

    def activate(self, up: Tensor) -> Tensor:
        raise NotImplementedError


class Gated(Dense):
    """y = W_down (a(W_gate x) * W_up x) (arXiv 2002.05202), of width ratio * glu_factor * D. `up_bias` is of W_gate too.

    Three matrices instead of two: glu_factor 2/3 matches the parameters of the plain MLP (8/3 for ratio 4); 1 makes it 1.5 times as large.
    """

    gated = True

    def __init__(self, dim: int, matrix: MakeMatrix = Linear, **common: Unpack[GatedOptions]) -> None:
        super().__init__(dim, matrix, **common)

    def hidden(self, x: Tensor, *rows: Any) -> Tensor:
        return self.activate(self.gate(x, *rows), self.up(x, *rows))

    def activate(self, gate: Tensor, up: Tensor) -> Tensor:
        raise NotImplementedError


@dense("relu")
class Relu(Plain):
    """y = W_down relu(W_up x) (arXiv 1706.03762, eq. 2)."""

    def activate(self, up: Tensor) -> Tensor:
        return F.relu(up)


@dense("gelu")
class Gelu(Plain):
    """y = W_down gelu(W_up x), gelu(z) = z Phi(z), exact (arXiv 1606.08415)."""

    def activate(self, up: Tensor) -> Tensor:
        return F.gelu(up)


@dense("gelu_tanh")
class GeluTanh(Plain):
    """gelu, approximated by z / 2 (1 + tanh(sqrt(2 / pi) (z + 0.044715 z^3))) (arXiv 1606.08415, section 2; GPT-2)."""

    def activate(self, up: Tensor) -> Tensor:
        return F.gelu(up, approximate="tanh")


@dense("relu2")
class Relu2(Plain):
    """y = W_down relu(W_up x)^2 (Primer, arXiv 2109.08668, section 4.1)."""

    def activate(self, up: Tensor) -> Tensor:
        return F.relu(up).square()


@dense("silu")
class Silu(Plain):
    """y = W_down silu(W_up x), silu(z) = z sigmoid(z) (arXiv 1702.03118)."""

    def activate(self, up: Tensor) -> Tensor:
        return F.silu(up)


@dense("xielu")
class XIELU(Plain):
    """a_p z^2 + beta z above 0, a_n (e^min(z, eps) - 1 - z) + beta z else, eps = -1e-6 (arXiv 2411.13010; Apertus, arXiv 2509.14233).

    a_p = softplus(alpha_p) and a_n = beta + softplus(alpha_n) are learned, one of each for the layer (experts share them); the
    options `alpha_p` and `alpha_n` are what a_p and a_n start from. beta is the slope at 0.
    """

    def __init__(
        self,
        dim: int,
        matrix: MakeMatrix = Linear,
        *,
        alpha_p: Positive,
        alpha_n: Positive,
        beta: NonNegative,
        **common: Unpack[PlainOptions],
    ) -> None:
        super().__init__(dim, matrix, **common)
        if alpha_n <= beta:
            raise ConfigError.at("ffn.alpha_n", f"must be above ffn.beta={beta}, got {alpha_n}")
        self.beta = beta
        self.alpha_p = nn.Parameter(torch.full((), _inverse_softplus(alpha_p)))
        self.alpha_n = nn.Parameter(torch.full((), _inverse_softplus(alpha_n - beta)))

    def activate(self, up: Tensor) -> Tensor:
        alpha_p = F.softplus(self.alpha_p).type_as(up)
        alpha_n = (self.beta + F.softplus(self.alpha_n)).type_as(up)
        negative = alpha_n * (torch.expm1(up.clamp(max=-1e-6)) - up)
        return torch.where(up > 0, alpha_p * up.square(), negative) + self.beta * up


def _inverse_softplus(value: float) -> float:
    """x with log(1 + e^x) = value; written so that a large value does not overflow."""
    return value + math.log(-math.expm1(-value))


@dense("swiglu")
class SwiGLU(Gated):
    """y = W_down (silu(W_gate x) * W_up x) (arXiv 2002.05202, eq. 6)."""

    def activate(self, gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(gate) * up


@dense("geglu")
class GeGLU(Gated):
    """y = W_down (gelu(W_gate x) * W_up x), gelu exact (arXiv 2002.05202, eq. 6)."""

    def activate(self, gate: Tensor, up: Tensor) -> Tensor:
        return F.gelu(gate) * up


@dense("geglu_tanh")
class GeGLUTanh(Gated):
    """geglu with the tanh approximation of gelu_tanh (T5 1.1, Gemma)."""

    def activate(self, gate: Tensor, up: Tensor) -> Tensor:
        return F.gelu(gate, approximate="tanh") * up


@dense("reglu")
class ReGLU(Gated):
    """y = W_down (relu(W_gate x) * W_up x) (arXiv 2002.05202, eq. 6)."""

    def activate(self, gate: Tensor, up: Tensor) -> Tensor:
        return F.relu(gate) * up


@dense("reglu2")
class ReGLU2(Gated):
    """y = W_down (relu(W_gate x)^2 * W_up x) (BitNet b1.58, arXiv 2504.12285)."""

    def activate(self, gate: Tensor, up: Tensor) -> Tensor:
        return F.relu(gate).square() * up


@dense("swiglu_clamped")
class SwiGLUClamped(Gated):
    """y = W_down ((u + up_offset) * g sigmoid(alpha g)), g = min(W_gate x, limit), u = W_up x held within +-limit (gpt-oss).

    gpt-oss (arXiv 2508.10925) has limit 7, alpha 1.702 and up_offset 1. Without a limit (`.inf`), 1 and 0: swiglu.
    """

    def __init__(
        self,
        dim: int,
        matrix: MakeMatrix = Linear,
        *,
        limit: Limit,
        alpha: Positive,
        up_offset: NonNegative,
        **common: Unpack[GatedOptions],
    ) -> None:
        super().__init__(dim, matrix, **common)
        if (limit, alpha, up_offset) == (math.inf, 1, 0):
            raise ConfigError.at("ffn", "swiglu_clamped with limit=.inf, alpha=1 and up_offset=0 is swiglu: choose that")
        self.limit, self.alpha, self.up_offset = limit, alpha, up_offset

    def activate(self, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return (up + self.up_offset) * gate * torch.sigmoid(self.alpha * gate)
