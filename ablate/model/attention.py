"""attention: how tokens read each other. Causal throughout; a variant says how queries, keys and values are made."""

from __future__ import annotations

import math
from typing import Annotated, Literal, TypedDict

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from ablate.errors import ConfigError
from ablate.model.linear import Linear
from ablate.model.mask import Reach, Visible, attend
from ablate.model.norm import NORM, NoNorm
from ablate.model.placement import MakeNorm
from ablate.model.position import Position
from ablate.model.qk_norm import QK_NORM
from ablate.registry import Count, Limit, LimitOrNone, Options, Positive, Registry, Section, Size, sized

AnyNorm = Annotated[Options, NORM]
AnyQKNorm = Annotated[Options, QK_NORM]


class Temperature(Section):
    """Queries times 1 + beta log(1 + floor((t + shift) / floor)): sharper scores far from the start (Llama 4: shift 1; Ministral 3: 0)."""

    floor: Size  # tokens, or a share of the context
    beta: Positive
    shift: Literal[0, 1]


class Reading(TypedDict):
    """Options of every attention: what happens to scores and to what was read."""

    out_bias: bool
    scale: Positive | None  # of scores; null: 1 / sqrt(head width)
    soft_cap: Limit
    sink: Literal["none", "learned", "zero"]
    window: LimitOrNone
    chunk: LimitOrNone
    temperature: Temperature | None
    gate: Literal["none", "head", "element"]
    value_residual: Literal["none", "average", "learned"]


class Projecting(Reading):
    """Options of attention whose queries, keys and values are each one matrix."""

    head_dim: Count | None
    qkv_bias: bool
    k_eq_v: bool
    qk_norm: AnyQKNorm
    v_norm: AnyNorm
    clip: Limit


class Attention(nn.Module):
    """softmax(scale q k^T) v over the past and the token itself (arXiv 1706.03762, eq. 1), and what may be done to it:

    soft_cap        scores become cap * tanh(score / cap) (arXiv 2408.00118, eq. 1); .inf: none
    sink            one more score that takes weight and gives nothing: learned for each head (gpt-oss), or zero, which is softmax "off
                    by one" (weights sum to less than 1)
    window, chunk   a token sees the last `window` tokens, itself one of them; those of its own chunk (Llama 4); a share is of the context
    gate            sigmoid(W x) times what was read, one number a head or an element (Qwen3-Next; arXiv 2505.06708)
    value_residual  values are mixed with those of the first layer: half and half, or learned (ResFormer, arXiv 2410.17897)
    """

    def __init__(
        self, dim: int, heads: int, head_dim: int, value_dim: int, context: int, layer: int, dropout: float, options: Reading
    ) -> None:
        super().__init__()
        self.heads, self.head_dim, self.value_dim = heads, head_dim, value_dim
        self.value_heads, self.inner_dim = heads, heads * value_dim
        self.scale = options["scale"] or 1 / math.sqrt(head_dim)
        self.soft_cap, self.dropout = options["soft_cap"], dropout
        self.reach = Reach(limit("window", options["window"], context), limit("chunk", options["chunk"], context))
        if self.reach.window and self.reach.chunk and self.reach.window >= self.reach.chunk:
            message = f"{self.reach.window} tokens cover every chunk of {self.reach.chunk} and have no effect; allowed: fewer, .inf"
            raise ConfigError.at("attention.window", message)
        self.temperature = _temperature(options["temperature"], context)
        self.sink: Tensor | None
        if options["sink"] == "learned":
            self.sink = nn.Parameter(torch.zeros(heads))
        else:
            self.register_buffer("sink", torch.zeros(heads) if options["sink"] == "zero" else None, persistent=False)
        gates = {"none": 0, "head": heads, "element": self.inner_dim}[options["gate"]]
        self.gate = Linear(dim, gates, bias=False) if gates else None
        self.value_mix: Tensor | None
        self.gives_value = options["value_residual"] != "none"
        half = torch.full((2,), 0.5) if self.gives_value and layer > 0 else None  # the first layer has nothing to mix with
        if half is not None and options["value_residual"] == "learned":
            self.value_mix = nn.Parameter(half)
        else:
            self.register_buffer("value_mix", half, persistent=False)
        self.inner_norm: nn.Module = nn.Identity()
        self.out = Linear(self.inner_dim, dim, bias=options["out_bias"], writes=True)

    @property
    def kv_elements_per_token(self) -> int:
        """Numbers that generation must keep for each token of the past, without a window."""
        raise NotImplementedError

    @property
    def norm_after_rope(self) -> bool:
        """Whether queries and keys are normalised after their rotation."""
        return False

    @property
    def plain(self) -> bool:
        """Whether scores are a softmax over the whole past and nothing else: the case of fused operators."""
        return math.isinf(self.soft_cap) and self.sink is None and self.reach == Reach(None, None)

    def project(self, x_BTD: Tensor, position: Position) -> tuple[Tensor, Tensor, Tensor]:
        """q_BNTH, k_BKTH and v_BKTH, rotated and normalised."""
        raise NotImplementedError

    def forward(self, x_BTD: Tensor, position: Position, visible: Visible, first_value: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What was read, and the values, if later layers or this one mix them."""
        q_BNTH, k_BKTH, v_BKTH = self.project(x_BTD, position)
        if self.temperature is not None:
            q_BNTH = self.temperature(q_BNTH)
        if self.value_mix is not None:
            assert first_value is not None
            mix = self.value_mix.type_as(v_BKTH)
            v_BKTH = mix[0] * first_value + mix[1] * v_BKTH
        groups = self.heads // k_BKTH.shape[1]
        k_BNTH, v_BNTH = (z.repeat_interleave(groups, dim=1) if groups > 1 else z for z in (k_BKTH, v_BKTH))
        y_BNTH = attend(
            q_BNTH,
            k_BNTH,
            v_BNTH,
            visible,
            bias=position.bias(q_BNTH, k_BNTH, self.scale),
            sink=self.sink,
            scale=self.scale,
            soft_cap=self.soft_cap,
            dropout=self.dropout if self.training else 0.0,
        )
        y_BTND = y_BNTH.transpose(1, 2)
        if self.gate is not None:
            y_BTND = y_BTND * self.gate(x_BTD).unflatten(-1, (self.heads, -1)).sigmoid()
        return self.out(self.inner_norm(y_BTND.flatten(-2))), v_BKTH if self.gives_value else None

    def scale_init(self, gain: float) -> None:
        self.out.gain = gain
        for name, module in self.named_modules():
            if name in ("v", "v_up"):
                module.gain = gain

    def normalise_inner(self, make_norm: MakeNorm) -> None:
        self.inner_norm = make_norm(self.inner_dim)

    def normalise_heads(self, make_norm: MakeNorm) -> bool:
        raise ConfigError.at("placement", "hybrid normalises queries, keys and values by head: choose attention=mha, gqa or mqa")


def limit(name: str, value: int | float, context: int) -> int | None:
    """The tokens of a window or chunk, None for no limit; ConfigError for one without effect."""
    if math.isinf(value):
        return None
    tokens = sized(value, context)
    if tokens < 2:
        if isinstance(value, int):
            raise ConfigError.at(
                f"attention.{name}", "1 token sees itself alone, so that queries and keys have no effect; allowed: from 2 on"
            )
        tokens = 2  # the least share
    if tokens >= context:
        message = f"{value} covers the whole context of {context} tokens and has no effect; allowed: below {context}, a share as 1/2, .inf"
        raise ConfigError.at(f"attention.{name}", message)
    return tokens


class Sharpen(nn.Module):
    """The factor of `Temperature` on queries."""

    def __init__(self, floor: int, beta: float, shift: int) -> None:
        super().__init__()
        self.floor, self.beta, self.shift = floor, beta, shift

    def forward(self, q_BNTH: Tensor) -> Tensor:
        t_T = torch.arange(q_BNTH.shape[-2], device=q_BNTH.device) + self.shift
        factor_T = 1 + self.beta * torch.log1p(torch.floor(t_T / self.floor))
        return (q_BNTH * factor_T[:, None]).type_as(q_BNTH)


def _temperature(options: Temperature | None, context: int) -> Sharpen | None:
    if options is None:
        return None
    if math.isinf(options.beta):
        raise ConfigError.at("attention.temperature.beta", "must be finite")
    floor = sized(options.floor, context)
    if floor > context - 1 + options.shift:
        raise ConfigError.at("attention.temperature.floor", f"{floor} tokens are not reached in a context of {context}: no effect")
    return Sharpen(floor, options.beta, options.shift)


class Projected(Attention):
    """q = W_q x, k = W_k x, v = W_v x, each head of them by itself.

    qk_norm  norms on queries and keys (ablate/model/qk_norm.py)      v_norm  a norm on each head's values (Gemma 4)
    clip     q, k and v are clamped to [-clip, clip] (MPT, OLMo)      k_eq_v  values are the keys before norm and rotation (Gemma 4)
    """

    def __init__(
        self, dim: int, heads: int, kv_heads: int, context: int, layer: int, dropout: float, **options: Unpack[Projecting]
    ) -> None:
        head_dim = options["head_dim"]
        if head_dim is None and dim % heads:
            raise ConfigError.at("model.heads", f"model.width={dim} is not a multiple of {heads} heads (or set attention.head_dim)")
        if heads % kv_heads:
            raise ConfigError.at("attention.kv_heads", f"must divide model.heads={heads}, got {kv_heads}")
        head_dim = head_dim or dim // heads
        super().__init__(dim, heads, head_dim, head_dim, context, layer, dropout, options)
        self.kv_heads = self.value_heads = kv_heads
        bias = options["qkv_bias"]
        self.q = Linear(dim, heads * head_dim, bias=bias)
        self.k = Linear(dim, kv_heads * head_dim, bias=bias)
        self.v = None if options["k_eq_v"] else Linear(dim, kv_heads * head_dim, bias=bias)
        self.qk_norm = QK_NORM.build(options["qk_norm"], heads, kv_heads, head_dim)
        self.v_norm = NORM.build(options["v_norm"], head_dim)
        self.clip = options["clip"]
        self.rotary_dim = head_dim

    @property
    def kv_elements_per_token(self) -> int:
        return 2 * self.k.out_features

    @property
    def norm_after_rope(self) -> bool:
        after_rope: bool = self.qk_norm.after_rope
        return after_rope

    def project(self, x_BTD: Tensor, position: Position) -> tuple[Tensor, Tensor, Tensor]:
        q_BTM, k_BTM = self.q(x_BTD), self.k(x_BTD)
        v_BTM = k_BTM if self.v is None else self.v(x_BTD)
        q_BNTH, k_BKTH, v_BKTH = (z.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for z in (q_BTM, k_BTM, v_BTM))
        q_BNTH, k_BKTH = self.qk_norm.before(q_BNTH, k_BKTH)
        v_BKTH = self.v_norm(v_BKTH)
        if math.isfinite(self.clip):
            q_BNTH, k_BKTH, v_BKTH = (z.clamp(-self.clip, self.clip) for z in (q_BNTH, k_BKTH, v_BKTH))
        q_BNTH, k_BKTH = position.rotate(q_BNTH, k_BKTH)
        return *self.qk_norm.after(q_BNTH, k_BKTH), v_BKTH

    def normalise_heads(self, make_norm: MakeNorm) -> bool:
        if self.qk_norm.present or not isinstance(self.v_norm, NoNorm):
            raise ConfigError.at("placement", "hybrid has norms on queries, keys and values of its own: leave qk_norm and v_norm at none")
        self.qk_norm = QK_NORM.variant("head").of(make_norm, self.head_dim)
        self.v_norm = make_norm(self.head_dim)
        return True


ATTENTION: Registry[Attention] = Registry("attention")


@ATTENTION.register("mha")
class MultiHead(Projected):
    """Every query head has keys and values of its own (arXiv 1706.03762)."""

    def __init__(self, dim: int, heads: int, context: int, layer: int, dropout: float, **options: Unpack[Projecting]) -> None:
        super().__init__(dim, heads, heads, context, layer, dropout, **options)


@ATTENTION.register("gqa")
class GroupedQuery(Projected):
    """heads / kv_heads query heads share one head of keys and values (arXiv 2305.13245)."""

    def __init__(
        self, dim: int, heads: int, context: int, layer: int, dropout: float, *, kv_heads: Count, **options: Unpack[Projecting]
    ) -> None:
        if kv_heads in (1, heads):
            same = "mqa" if kv_heads == 1 else "mha"
            raise ConfigError.at("attention.kv_heads", f"{kv_heads} of model.heads={heads} is attention={same}: choose that")
        super().__init__(dim, heads, kv_heads, context, layer, dropout, **options)


@ATTENTION.register("mqa")
class MultiQuery(Projected):
    """All query heads share one head of keys and values (arXiv 1911.02150)."""

    def __init__(self, dim: int, heads: int, context: int, layer: int, dropout: float, **options: Unpack[Projecting]) -> None:
        super().__init__(dim, heads, 1, context, layer, dropout, **options)


@ATTENTION.register("mla")
class Latent(Attention):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    Keys and values of all heads are read from one small latent vector, c = norm(W_c x) of `kv_rank` numbers; queries from another of
    `q_rank` (null: from x). Only `rope_dim` features of a head are rotated, and their key is one for all heads; `nope_dim` are not.
    Ranks may be shares of the width; null dimensions are those of a plain head (rope_dim: half of it).
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        context: int,
        layer: int,
        dropout: float,
        *,
        q_rank: Size | None,
        kv_rank: Size,
        nope_dim: Count | None,
        rope_dim: Count | None,
        v_dim: Count | None,
        latent_norm: AnyNorm,
        **options: Unpack[Reading],
    ) -> None:
        plain = max(1, dim // heads)
        nope_dim, rope_dim = nope_dim or plain, rope_dim or 2 * max(1, plain // 4)
        super().__init__(dim, heads, nope_dim + rope_dim, v_dim or plain, context, layer, dropout, options)
        self.nope_dim, self.rotary_dim = nope_dim, rope_dim
        self.kv_rank = sized(kv_rank, dim)
        self.q = Linear(dim, heads * self.head_dim, bias=False) if q_rank is None else None
        if q_rank is not None:
            rank = sized(q_rank, dim)
            self.q_down = Linear(dim, rank, bias=False)
            self.q_latent_norm = NORM.build(latent_norm, rank)
            self.q_up = Linear(rank, heads * self.head_dim, bias=False)
        self.kv_down = Linear(dim, self.kv_rank, bias=False)
        self.k_rope = Linear(dim, rope_dim, bias=False)
        self.kv_latent_norm = NORM.build(latent_norm, self.kv_rank)
        self.k_up = Linear(self.kv_rank, heads * nope_dim, bias=False)
        self.v_up = Linear(self.kv_rank, heads * self.value_dim, bias=False)

    @property
    def kv_elements_per_token(self) -> int:
        return self.kv_rank + self.rotary_dim

    def project(self, x_BTD: Tensor, position: Position) -> tuple[Tensor, Tensor, Tensor]:
        q_BTM = self.q_up(self.q_latent_norm(self.q_down(x_BTD))) if self.q is None else self.q(x_BTD)
        q_BNTH = _heads(q_BTM, self.heads)
        latent_BTC = self.kv_latent_norm(self.kv_down(x_BTD))
        k_BNTH, v_BNTH = _heads(self.k_up(latent_BTC), self.heads), _heads(self.v_up(latent_BTC), self.heads)
        q_nope, q_rope = q_BNTH.split([self.nope_dim, self.rotary_dim], dim=-1)
        q_rope, k_rope = position.rotate(q_rope, _heads(self.k_rope(x_BTD), 1))
        k_rope = k_rope.expand(-1, self.heads, -1, -1)
        return torch.cat([q_nope, q_rope], dim=-1), torch.cat([k_BNTH, k_rope], dim=-1), v_BNTH


def _heads(x_BTM: Tensor, heads: int) -> Tensor:
    return x_BTM.unflatten(-1, (heads, -1)).transpose(1, 2)


def attentions(model: nn.Module) -> list[Attention]:
    return [module for module in model.modules() if isinstance(module, Attention)]
