"""head: from the last hidden state to a score for each token of the vocabulary. Logits leave in float32."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ablate.model.linear import Linear
from ablate.registry import Positive, Registry


class Head(nn.Module):
    """logits = W x, bent to cap * tanh(logits / cap) when `soft_cap` is finite (arXiv 2408.00118, eq. 1)."""

    def __init__(self, soft_cap: float) -> None:
        super().__init__()
        self.soft_cap = soft_cap

    def cap(self, logits_BTV: Tensor) -> Tensor:
        logits_BTV = logits_BTV.float()
        if math.isinf(self.soft_cap):
            return logits_BTV
        return self.soft_cap * torch.tanh(logits_BTV / self.soft_cap)


HEAD: Registry[Head] = Registry("head")


@HEAD.register("untied")
class Untied(Head):
    """A matrix of its own."""

    def __init__(self, dim: int, vocab_size: int, *, soft_cap: Positive) -> None:
        super().__init__(soft_cap)
        self.unembed = Linear(dim, vocab_size, bias=False)

    def forward(self, x_BTD: Tensor, embedding_VD: Tensor) -> Tensor:
        return self.cap(self.unembed(x_BTD))


@HEAD.register("tied")
class Tied(Head):
    """The embedding's matrix (arXiv 1608.05859)."""

    def __init__(self, dim: int, vocab_size: int, *, soft_cap: Positive) -> None:
        super().__init__(soft_cap)

    def forward(self, x_BTD: Tensor, embedding_VD: Tensor) -> Tensor:
        return self.cap(F.linear(x_BTD, embedding_VD))
