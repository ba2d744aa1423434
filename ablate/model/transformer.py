"""The decoder: wires the axes, names no variant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from ablate.model.attention import ATTENTION
from ablate.model.ffn import FFN
from ablate.model.head import HEAD
from ablate.model.linear import Embedding
from ablate.model.norm import NORM
from ablate.model.placement import PLACEMENT
from ablate.model.position import POSITION, Position

if TYPE_CHECKING:
    from ablate.config import Config


class Block(nn.Module):
    """Attention, then feed-forward, each on the residual stream as `placement` says."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        dim = cfg.model.width

        def make_norm() -> nn.Module:
            return NORM.build(cfg.norm, dim)

        attention = ATTENTION.build(cfg.attention, dim, cfg.model.heads)
        self.head_dim = attention.head_dim
        self.attention = PLACEMENT.build(cfg.placement, attention, make_norm)
        self.ffn = PLACEMENT.build(cfg.placement, FFN.build(cfg.ffn, dim), make_norm)

    def forward(self, x_BTD: Tensor, position: Position) -> Tensor:
        return self.ffn(self.attention(x_BTD, position))


class Transformer(nn.Module):
    """tokens_BT -> logits_BTV in float32; logits at t depend on tokens up to t."""

    def __init__(self, cfg: Config, vocab_size: int) -> None:
        super().__init__()
        dim = cfg.model.width
        self.embedding = Embedding(vocab_size, dim)
        blocks = [Block(cfg) for _ in range(cfg.model.depth)]
        self.blocks = nn.ModuleList(blocks)
        self.position = POSITION.build(cfg.position, dim, blocks[0].head_dim, cfg.model.context)
        self.norm = PLACEMENT.variant(cfg.placement.kind).final(lambda: NORM.build(cfg.norm, dim))
        self.head = HEAD.build(cfg.head, dim, vocab_size)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x_BTD = self.position.embed(self.embedding(tokens_BT))
        for block in self.blocks:
            x_BTD = block(x_BTD, self.position)
        return self.head(self.norm(x_BTD), self.embedding.weight)

    def compile_blocks(self) -> None:
        """Compiles the block once for all layers (they share code and guards), and the end of the model."""
        for block in self.blocks:
            block.compile(fullgraph=True, dynamic=False)
        self.head.compile(fullgraph=True, dynamic=False)
