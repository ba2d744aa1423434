"""attention: how tokens read each other. Causal throughout; each variant says how many heads keys and values have."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ablate.errors import ConfigError
from ablate.model.linear import Linear
from ablate.model.norm import NORM
from ablate.model.position import Position
from ablate.registry import Count, Options, Positive, Registry

AnyNorm = Annotated[Options, NORM]


class Attention(nn.Module):
    """softmax(q k^T / sqrt(H)) v over the past and the token itself (arXiv 1706.03762, eq. 1), for any number of key heads.

    `qk_norm` normalises each head's query and key before the rotation (arXiv 2010.04245); `soft_cap` bends scores to
    cap * tanh(score / cap) (arXiv 2408.00118, eq. 1), infinity meaning none.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        kv_heads: int,
        head_dim: int | None,
        qk_norm: Options,
        soft_cap: float,
        qkv_bias: bool,
        out_bias: bool,
    ) -> None:
        super().__init__()
        if head_dim is None and dim % heads:
            raise ConfigError.at("model.heads", f"model.width={dim} is not a multiple of {heads} heads (or set attention.head_dim)")
        if heads % kv_heads:
            raise ConfigError.at("attention.kv_heads", f"must divide model.heads={heads}, got {kv_heads}")
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim or dim // heads
        self.scale = 1 / math.sqrt(self.head_dim)
        self.soft_cap = soft_cap
        self.q = Linear(dim, heads * self.head_dim, bias=qkv_bias)
        self.k = Linear(dim, kv_heads * self.head_dim, bias=qkv_bias)
        self.v = Linear(dim, kv_heads * self.head_dim, bias=qkv_bias)
        self.out = Linear(heads * self.head_dim, dim, bias=out_bias)
        self.q_norm = NORM.build(qk_norm, self.head_dim)
        self.k_norm = NORM.build(qk_norm, self.head_dim)

    @property
    def kv_elements_per_token(self) -> int:
        """Numbers that generation must keep for each token of the past."""
        return self.k.out_features + self.v.out_features

    def forward(self, x_BTD: Tensor, position: Position) -> Tensor:
        q_BNTH = self.q(x_BTD).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
        k_BKTH = self.k(x_BTD).unflatten(-1, (self.kv_heads, self.head_dim)).transpose(1, 2)
        v_BKTH = self.v(x_BTD).unflatten(-1, (self.kv_heads, self.head_dim)).transpose(1, 2)
        q_BNTH, k_BKTH = position.rotate(self.q_norm(q_BNTH), self.k_norm(k_BKTH))
        y_BNTH = attend(q_BNTH, k_BKTH, v_BKTH, self.scale, self.soft_cap)
        return self.out(y_BNTH.transpose(1, 2).flatten(-2))


def attend(q_BNTH: Tensor, k_BKTH: Tensor, v_BKTH: Tensor, scale: float, soft_cap: float) -> Tensor:
    """Causal attention by the fastest correct path: the fused operator, or written out where it cannot cap or is slower."""
    fused = math.isinf(soft_cap) and not (q_BNTH.dtype == torch.bfloat16 and q_BNTH.device.type == "cpu")
    if q_BNTH.shape[1] != k_BKTH.shape[1]:
        groups = q_BNTH.shape[1] // k_BKTH.shape[1]
        k_BKTH, v_BKTH = k_BKTH.repeat_interleave(groups, dim=1), v_BKTH.repeat_interleave(groups, dim=1)
    if fused:
        return F.scaled_dot_product_attention(q_BNTH, k_BKTH, v_BKTH, is_causal=True, scale=scale)
    return written_out(q_BNTH, k_BKTH, v_BKTH, scale, soft_cap)


def written_out(q_BNTH: Tensor, k_BNTH: Tensor, v_BNTH: Tensor, scale: float, soft_cap: float) -> Tensor:
    """The same in plain operators; cap and softmax in float32. On a CPU in bfloat16 it is faster than the fused operator."""
    score_BNTT = (q_BNTH @ k_BNTH.transpose(-1, -2)).float() * scale
    if math.isfinite(soft_cap):
        score_BNTT = soft_cap * torch.tanh(score_BNTT / soft_cap)
    time = torch.arange(q_BNTH.shape[-2], device=q_BNTH.device)
    future_TT = time[None, :] > time[:, None]
    weight_BNTT = score_BNTT.masked_fill(future_TT, -math.inf).softmax(-1).type_as(v_BNTH)
    return weight_BNTT @ v_BNTH


ATTENTION: Registry[Attention] = Registry("attention")


@ATTENTION.register("mha")
class MultiHead(Attention):
    """Every query head has keys and values of its own (arXiv 1706.03762)."""

    def __init__(
        self, dim: int, heads: int, *, head_dim: Count | None, qk_norm: AnyNorm, soft_cap: Positive, qkv_bias: bool, out_bias: bool
    ) -> None:
        super().__init__(dim, heads, heads, head_dim, qk_norm, soft_cap, qkv_bias, out_bias)


@ATTENTION.register("gqa")
class GroupedQuery(Attention):
    """heads / kv_heads query heads share one head of keys and values (arXiv 2305.13245)."""

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        kv_heads: Count,
        head_dim: Count | None,
        qk_norm: AnyNorm,
        soft_cap: Positive,
        qkv_bias: bool,
        out_bias: bool,
    ) -> None:
        super().__init__(dim, heads, kv_heads, head_dim, qk_norm, soft_cap, qkv_bias, out_bias)


@ATTENTION.register("mqa")
class MultiQuery(Attention):
    """All query heads share one head of keys and values (arXiv 1911.02150)."""

    def __init__(
        self, dim: int, heads: int, *, head_dim: Count | None, qk_norm: AnyNorm, soft_cap: Positive, qkv_bias: bool, out_bias: bool
    ) -> None:
        super().__init__(dim, heads, 1, head_dim, qk_norm, soft_cap, qkv_bias, out_bias)
