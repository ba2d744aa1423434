"""The decoder: wires the axes, names no variant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from ablate.errors import ConfigError
from ablate.model.attention import ATTENTION, Attention
from ablate.model.dropout import DROPOUT
from ablate.model.embedding import EMBEDDING, TokenTable
from ablate.model.ffn import FFN
from ablate.model.head import HEAD
from ablate.model.linear import Linear
from ablate.model.mask import Visible, visible
from ablate.model.moe import router_loss_weights, router_losses
from ablate.model.norm import NORM
from ablate.model.placement import PLACEMENT, MakeNorm
from ablate.model.position import POSITION, Position
from ablate.model.residual import RESIDUAL, Block, Found
from ablate.registry import Options

if TYPE_CHECKING:
    from ablate.config import Config, LayerOptions


class Auxiliary(NamedTuple):
    """A loss that the model itself adds, by name, with its weight in the sum."""

    name: str
    weight: float
    value: Tensor


class Outputs(NamedTuple):
    """What training needs: scores of the next token, what else is minimised, scores of tokens further on."""

    logits_BTV: Tensor
    auxiliary: list[Auxiliary]
    future: list[Tensor]  # [k] scores at t the token t + 2 + k
    found: list[Found]  # by the feed-forward layers: the statistics of their routers


def make_norm_of(options: Options) -> MakeNorm:
    return lambda dim: NORM.build(options, dim)


def build_block(cfg: Config, options: LayerOptions, layer: int) -> Block:
    """Attention and feed-forward, each where `placement` puts its norms, joined as `residual` says."""
    dim, depth, dropout = cfg.model.width, cfg.model.depth, DROPOUT.build(cfg.dropout)
    norm = make_norm_of(options.norm)
    attention = ATTENTION.build(options.attention, dim, cfg.model.heads, cfg.model.context, layer, dropout.attention)
    return RESIDUAL.build(
        options.residual,
        PLACEMENT.build(options.placement, attention, norm, dim, layer, depth),
        PLACEMENT.build(options.placement, FFN.build(options.ffn, dim), norm, dim, layer, depth),
        dim,
        dropout.residual,
    )


class Transformer(nn.Module):
    """tokens_BT -> logits_BTV in float32; logits at t depend on tokens up to t.

    `max_tokens` is the longest sequence, at first that of training; a longer one needs the tables of more positions.
    """

    def __init__(self, cfg: Config, vocab_size: int, max_tokens: int | None = None) -> None:
        super().__init__()
        dim, layers = cfg.model.width, cfg.layer_options()
        self.width, self.max_tokens = dim, max_tokens or cfg.model.context
        self.compiled = False
        self.embedding: TokenTable = EMBEDDING.build(cfg.embedding, vocab_size, dim)
        blocks: list[Block] = [build_block(cfg, options, layer) for layer, options in enumerate(layers)]
        self.blocks = nn.ModuleList(blocks)
        self.attentions: list[Attention] = [block.attention.sublayer for block in blocks]
        self._build_positions(cfg, [options.position for options in layers])
        self.dropout = nn.Dropout(rate) if (rate := DROPOUT.build(cfg.dropout).embedding) else nn.Identity()
        self.norm = PLACEMENT.variant(cfg.placement.kind).final(make_norm_of(cfg.norm), dim)
        self.head = HEAD.build(cfg.head, dim, vocab_size, self.embedding.table.embedding_dim)
        self.future = nn.ModuleList(FutureToken(cfg, layers[-1]) for _ in range(cfg.num_future))
        self.loss_weights = router_loss_weights(self)
        _check_values(self.attentions)

    def _build_positions(self, cfg: Config, options: Sequence[Options]) -> None:
        """One module for all layers with the same position; only one that works on the embedded tokens also does so."""
        made: dict[tuple[object, ...], int] = {}
        self.position_of: list[int] = []
        positions: list[Position] = []
        for layer, (chosen, attention) in enumerate(zip(options, self.attentions, strict=True)):
            rotates = POSITION.variant(chosen.kind).rotate is not Position.rotate
            head_dim = attention.rotary_dim if rotates else attention.head_dim
            position = POSITION.build(chosen, cfg.model.width, cfg.model.heads, head_dim, self.max_tokens, cfg.model.context)
            key = (chosen, head_dim, layer if position.per_layer else None)
            if key not in made:
                made[key] = len(positions)
                positions.append(position)
            self.position_of.append(made[key])
        self.positions = nn.ModuleList(positions)
        if any(position.acts_on_embedding for position in positions) and len(positions) > 1:
            message = "a position that works on the embedded tokens is one for all layers: a rule on position has no effect or no meaning"
            raise ConfigError.at("layers", message)
        rotates = any(type(position).rotate is not Position.rotate for position in positions)
        if not rotates and any(attention.norm_after_rope for attention in self.attentions):
            raise ConfigError.at("attention.qk_norm.order", "after_rope has no effect: this position rotates nothing")

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return self.head(self.norm(self.states(tokens_BT)[0]), self.embedding.table.weight)

    def run(self, tokens_BT: Tensor) -> Outputs:
        """Scores, and everything else that training minimises."""
        x_BTD, found = self.states(tokens_BT)
        logits_BTV = self.head(self.norm(x_BTD), self.embedding.table.weight)
        future = []
        for ahead, module in enumerate(self.future, start=1):
            embedded_BTD = self.embedding.norm(self.embedding(tokens_BT.roll(-ahead, dims=1)))
            around = self.position(len(self.blocks) - 1), self._visible(len(self.blocks) - 1, tokens_BT)
            x_BTD, stats = module(x_BTD, embedded_BTD, *around)
            found += [] if stats is None else [stats]
            future.append(self.head(self.norm(x_BTD), self.embedding.table.weight))
        auxiliary = [Auxiliary(name, self.loss_weights[name], value) for name, value in router_losses(found).items()]
        return Outputs(logits_BTV, auxiliary, future, found)

    def states(self, tokens_BT: Tensor) -> tuple[Tensor, list[Found]]:
        """The residual stream after the last block, and what the feed-forward layers found out."""
        if tokens_BT.shape[1] > self.max_tokens:
            raise ValueError(f"{tokens_BT.shape[1]} tokens, and the model was built for {self.max_tokens}")
        x_BTD = self.dropout(self.embed(tokens_BT))
        first_value, found = None, []
        for layer, block in enumerate(self.blocks):
            x_BTD, value, stats = block(x_BTD, self.position(layer), self._visible(layer, tokens_BT), first_value)
            first_value = value if first_value is None else first_value
            if stats is not None:
                found.append(stats)
        return x_BTD, found

    def embed(self, tokens_BT: Tensor) -> Tensor:
        """The residual stream before the first block."""
        return self.embedding.norm(self.position(0).embed(self.embedding(tokens_BT)))

    def position(self, layer: int) -> Position:
        """The position of a layer."""
        module = self.positions[self.position_of[layer]]
        assert isinstance(module, Position)
        return module

    def _visible(self, layer: int, tokens_BT: Tensor) -> Visible:
        attention, position = self.attentions[layer], self.position(layer)
        biased = type(position).bias is not Position.bias
        able = self.compiled and tokens_BT.device.type == "cuda"  # eager, flex attention writes everything out
        flex = able and not attention.dropout and (biased or not attention.plain)
        return visible(attention.reach, tokens_BT.shape[1], tokens_BT.device, flex)

    def compile_blocks(self, within_hooks: bool = False) -> None:
        """Compiles the block once for all layers of a kind (they share code and guards), and the end of the model.

        `within_hooks`: what is hooked onto a block (that it is gathered from several processes) stays outside of what is compiled.
        """
        from torch._dynamo import config  # late: it takes seconds to import

        self.compiled = True
        config.recompile_limit = max(config.recompile_limit, len(self.blocks) + 1)  # by rules, every layer may differ
        for block in self.blocks:
            if within_hooks:
                block.forward = torch.compile(block.forward, fullgraph=True, dynamic=False)
            else:
                block.compile(fullgraph=True, dynamic=False)
        self.head.compile(fullgraph=True, dynamic=False)


class FutureToken(nn.Module):
    """One more layer that predicts one token further (DeepSeek-V3, arXiv 2412.19437, eq. 21 to 23): block(W [norm(h_t); norm(e_(t+1))])."""

    def __init__(self, cfg: Config, options: LayerOptions) -> None:
        super().__init__()
        dim, norm = cfg.model.width, make_norm_of(options.norm)
        self.state_norm, self.token_norm = norm(dim), norm(dim)
        self.join = Linear(2 * dim, dim, bias=False)
        self.block = build_block(cfg, options, 0)

    def forward(self, x_BTD: Tensor, embedded_BTD: Tensor, position: Position, visible: Visible) -> tuple[Tensor, Found]:
        both_BTD = self.join(torch.cat([self.state_norm(x_BTD), self.token_norm(embedded_BTD)], dim=-1))
        state_BTD, _, stats = self.block(both_BTD, position, visible, None)
        return state_BTD, stats


def _check_values(attentions: list[Attention]) -> None:
    mixing = [attention for attention in attentions if attention.gives_value]
    if not mixing:
        return
    if len(attentions) == 1:
        raise ConfigError.at("attention.value_residual", "has no effect in a model of one layer")
    shapes = {(attention.value_heads, attention.value_dim) for attention in attentions}
    if len(shapes) > 1 or len(mixing) < len(attentions):
        raise ConfigError.at("attention.value_residual", "needs the same heads of values in all layers")
