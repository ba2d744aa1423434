"""embedding: from token numbers to the first state of the residual stream."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from torch import Tensor, nn

from ablate.errors import ConfigError
from ablate.model.linear import Embedding, Linear
from ablate.model.norm import NORM
from ablate.registry import Options, Positive, Registry, Size, sized

AnyNorm = Annotated[Options, NORM]
Scale = Positive | Literal["sqrt_width"]


class TokenTable(nn.Module):
    """x = norm(scale * W[token] + position); a scale of sqrt_width is sqrt(D) (arXiv 1706.03762, section 3.4; Gemma).

    `norm` stands after a position that is added to the tokens, as in BERT; the model calls it there.
    """

    def __init__(self, vocab_size: int, dim: int, table_dim: int, scale: float | str, norm: Options) -> None:
        super().__init__()
        self.table = Embedding(vocab_size, table_dim)
        self.project = nn.Identity() if table_dim == dim else Linear(table_dim, dim, bias=False)
        self.scale = math.sqrt(dim) if isinstance(scale, str) else scale
        self.norm = NORM.build(norm, dim)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x_BTD = self.project(self.table(tokens_BT))
        return x_BTD if self.scale == 1 else self.scale * x_BTD


EMBEDDING: Registry[TokenTable] = Registry("embedding")


@EMBEDDING.register("token")
class Token(TokenTable):
    """A row of D numbers for each token."""

    def __init__(self, vocab_size: int, dim: int, *, scale: Scale, norm: AnyNorm) -> None:
        super().__init__(vocab_size, dim, dim, scale, norm)


@EMBEDDING.register("factorised")
class Factorised(TokenTable):
    """A row of `dim` numbers for each token, brought to D by a matrix (arXiv 1909.11942, section 3.1). `dim` may be a share of D."""

    def __init__(self, vocab_size: int, width: int, *, dim: Size, scale: Scale, norm: AnyNorm) -> None:
        table_dim = sized(dim, width)
        if table_dim >= width:
            raise ConfigError.at("embedding.dim", f"must be below model.width={width}, got {dim}: or choose embedding=token")
        super().__init__(vocab_size, width, table_dim, scale, norm)
