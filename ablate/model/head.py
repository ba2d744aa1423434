"""head: from the last hidden state to a score for each token of the vocabulary. Logits leave in float32."""

from __future__ import annotations

import math
from typing import Annotated, Literal, TypedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import Unpack

from ablate.model.linear import Linear
from ablate.model.norm import NORM
from ablate.registry import Limit, Options, Positive, Registry

AnyNorm = Annotated[Options, NORM]

TRANSFORM: Registry[nn.Module] = Registry("head/transform")


@TRANSFORM.register("none")
class NoTransform(nn.Module):
    """The hidden state as it is."""

    def __init__(self, dim: int) -> None:
        super().__init__()

    def forward(self, x_BTD: Tensor) -> Tensor:
        return x_BTD


@TRANSFORM.register("dense")
class Dense(nn.Module):
    """norm(gelu(W x + b)), as in BERT (arXiv 1810.04805)."""

    def __init__(self, dim: int, *, norm: AnyNorm) -> None:
        super().__init__()
        self.linear = Linear(dim, dim, bias=True)
        self.norm = NORM.build(norm, dim)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.norm(F.gelu(self.linear(x_BTD)))


class Scoring(TypedDict):
    """Options of every head."""

    scale: Positive | Literal["inverse_sqrt_width"]
    soft_cap: Limit
    bias: bool
    normalise: bool
    transform: Annotated[Options, TRANSFORM]


class Head(nn.Module):
    """logits = cap(scale * (W f(x) + b)), f a transform.

    scale       a number, or 1 / sqrt(D) (T5)       normalise   rows of W at length 1 (NormHead of Baichuan 2, arXiv 2309.10305)
    soft_cap    cap * tanh(logits / cap) (Gemma 2, arXiv 2408.00118, eq. 1); .inf: none
    """

    def __init__(self, dim: int, vocab_size: int, options: Scoring) -> None:
        super().__init__()
        scale = options["scale"]
        self.scale = 1 / math.sqrt(dim) if isinstance(scale, str) else scale
        self.soft_cap, self.normalise = options["soft_cap"], options["normalise"]
        self.transform = TRANSFORM.build(options["transform"], dim)
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if options["bias"] else None

    def score(self, x_BTD: Tensor, weight_VD: Tensor) -> Tensor:
        if self.normalise:
            weight_VD = F.normalize(weight_VD, dim=-1)
        logits_BTV = F.linear(x_BTD, weight_VD, self.bias).float()
        if self.scale != 1:
            logits_BTV = self.scale * logits_BTV
        if math.isinf(self.soft_cap):
            return logits_BTV
        return self.soft_cap * torch.tanh(logits_BTV / self.soft_cap)


HEAD: Registry[Head] = Registry("head")


@HEAD.register("untied")
class Untied(Head):
    """A matrix of its own."""

    def __init__(self, dim: int, vocab_size: int, table_dim: int, **options: Unpack[Scoring]) -> None:
        super().__init__(dim, vocab_size, options)
        self.unembed = Linear(dim, vocab_size, bias=False)

    def forward(self, x_BTD: Tensor, embedding_VD: Tensor) -> Tensor:
        return self.score(self.transform(x_BTD), self.unembed.weight)


@HEAD.register("tied")
class Tied(Head):
    """The embedding's matrix (arXiv 1608.05859); with a factorised embedding a matrix before it brings x to the width of the table."""

    def __init__(self, dim: int, vocab_size: int, table_dim: int, **options: Unpack[Scoring]) -> None:
        super().__init__(dim, vocab_size, options)
        self.project = nn.Identity() if table_dim == dim else Linear(dim, table_dim, bias=False)

    def forward(self, x_BTD: Tensor, embedding_VD: Tensor) -> Tensor:
        return self.score(self.project(self.transform(x_BTD)), embedding_VD)
