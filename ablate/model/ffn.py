"""ffn: the feed-forward layer. `ratio` means the same for every kind: the parameters of a plain MLP of width ratio * D."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from ablate.model.linear import Linear
from ablate.registry import Count, Ratio, Registry


class FeedForward(nn.Module):
    """A layer that works on each token alone. `width` is what was built, `target_parameters` what `ratio` asked for."""

    def __init__(self, dim: int, ratio: float, glu_factor: float, multiple_of: int) -> None:
        super().__init__()
        self.width = max(1, round(ratio * glu_factor * dim / multiple_of)) * multiple_of
        self.target_parameters = 2 * ratio * dim**2

    @property
    def parameter_error(self) -> float:
        """Relative difference of the parameters from those of a plain MLP of the same `ratio`, unrounded."""
        return sum(parameter.numel() for parameter in self.parameters()) / self.target_parameters - 1


FFN: Registry[FeedForward] = Registry("ffn")


@FFN.register("relu")
class Relu(FeedForward):
    """y = W_down relu(W_up x) (arXiv 1706.03762, eq. 2, without biases)."""

    def __init__(self, dim: int, *, ratio: Ratio, multiple_of: Count) -> None:
        super().__init__(dim, ratio, 1, multiple_of)
        self.up = Linear(dim, self.width, bias=False)
        self.down = Linear(self.width, dim, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x_BTD)))


@FFN.register("gelu")
class Gelu(FeedForward):
    """y = W_down gelu(W_up x), gelu(x) = x Phi(x), exact (arXiv 1606.08415)."""

    def __init__(self, dim: int, *, ratio: Ratio, multiple_of: Count) -> None:
        super().__init__(dim, ratio, 1, multiple_of)
        self.up = Linear(dim, self.width, bias=False)
        self.down = Linear(self.width, dim, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x_BTD)))


@FFN.register("swiglu")
class SwiGLU(FeedForward):
    """y = W_down (silu(W_gate x) * W_up x) (arXiv 2002.05202, eq. 6), of width ratio * glu_factor * D.

    Three matrices instead of two: glu_factor 2/3 matches the parameters of the plain MLP (8/3 for ratio 4); 1 makes it 1.5 times as large.
    """

    def __init__(self, dim: int, *, ratio: Ratio, glu_factor: Ratio, multiple_of: Count) -> None:
        super().__init__(dim, ratio, glu_factor, multiple_of)
        self.gate = Linear(dim, self.width, bias=False)
        self.up = Linear(dim, self.width, bias=False)
        self.down = Linear(self.width, dim, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x_BTD)) * self.up(x_BTD))
