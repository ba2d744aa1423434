"""qk_norm: norms on queries and keys, an option of attention (arXiv 2010.04245). Which numbers share a mean and which a gain."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from ablate.errors import ConfigError
from ablate.model.norm import NORM, Weighted
from ablate.model.placement import MakeNorm
from ablate.registry import Options, Registry

AnyNorm = Annotated[Options, NORM]
Order = Literal["before_rope", "after_rope"]


class QKNorm(nn.Module):
    """Here: none. `before` and `after` are called before and after the rotation."""

    present = False
    after_rope = False

    def before(self, q_BNTH: Tensor, k_BKTH: Tensor) -> tuple[Tensor, Tensor]:
        return (q_BNTH, k_BKTH) if self.after_rope else self.norms(q_BNTH, k_BKTH)

    def after(self, q_BNTH: Tensor, k_BKTH: Tensor) -> tuple[Tensor, Tensor]:
        return self.norms(q_BNTH, k_BKTH) if self.after_rope else (q_BNTH, k_BKTH)

    def norms(self, q_BNTH: Tensor, k_BKTH: Tensor) -> tuple[Tensor, Tensor]:
        return q_BNTH, k_BKTH


QK_NORM: Registry[QKNorm] = Registry("attention/qk_norm")


@QK_NORM.register("none")
class NoQKNorm(QKNorm):
    """Queries and keys as they are."""

    def __init__(self, heads: int, kv_heads: int, head_dim: int) -> None:
        super().__init__()


class Present(QKNorm):
    """Some norm, before or after the rotation."""

    present = True

    def __init__(self, norm: Options, order: Order) -> None:
        super().__init__()
        if norm.kind == "none":
            raise ConfigError.at("attention.qk_norm.norm", "none leaves nothing to do: choose attention/qk_norm=none")
        self.after_rope = order == "after_rope"
        self.q: nn.Module
        self.k: nn.Module

    def norms(self, q_BNTH: Tensor, k_BKTH: Tensor) -> tuple[Tensor, Tensor]:
        return self.q(q_BNTH), self.k(k_BKTH)


@QK_NORM.register("head")
class ByHead(Present):
    """Each head by itself, one gain of H numbers for all heads of queries, one for those of keys (Qwen3, Gemma 3)."""

    def __init__(self, heads: int, kv_heads: int, head_dim: int, *, norm: AnyNorm, order: Order) -> None:
        super().__init__(norm, order)
        self.q, self.k = NORM.build(norm, head_dim), NORM.build(norm, head_dim)

    @classmethod
    def of(cls, make_norm: MakeNorm, head_dim: int) -> ByHead:
        """With norms that are made elsewhere, before the rotation."""
        made = cls.__new__(cls)
        QKNorm.__init__(made)
        made.q, made.k = make_norm(head_dim), make_norm(head_dim)
        return made


@QK_NORM.register("full")
class Full(Present):
    """All heads of a token together, with a gain for each of their N H numbers (OLMo 2)."""

    def __init__(self, heads: int, kv_heads: int, head_dim: int, *, norm: AnyNorm, order: Order) -> None:
        super().__init__(norm, order)
        self.q, self.k = NORM.build(norm, heads * head_dim), NORM.build(norm, kv_heads * head_dim)

    def norms(self, q_BNTH: Tensor, k_BKTH: Tensor) -> tuple[Tensor, Tensor]:
        return _over_heads(self.q, q_BNTH), _over_heads(self.k, k_BKTH)


def _over_heads(norm: nn.Module, x_BNTH: Tensor) -> Tensor:
    x_BTM = norm(x_BNTH.transpose(1, 2).flatten(-2))
    return x_BTM.unflatten(-1, (x_BNTH.shape[1], -1)).transpose(1, 2)


@QK_NORM.register("per_head")
class PerHead(Present):
    """Each head by itself and with a gain of its own (Cohere, StableLM 2)."""

    def __init__(self, heads: int, kv_heads: int, head_dim: int, *, norm: AnyNorm, order: Order) -> None:
        super().__init__(norm, order)
        self.q, self.k = GainByHead(norm, heads, head_dim), GainByHead(norm, kv_heads, head_dim)


class GainByHead(nn.Module):
    """The statistics of a norm, then w_NH times, plus b_NH where the norm has a bias."""

    def __init__(self, norm: Options, heads: int, head_dim: int) -> None:
        super().__init__()
        plain = NORM.build(norm, head_dim)
        if not isinstance(plain, Weighted) or plain.weight is None:
            message = "needs a norm with a gain for each head: layernorm or rmsnorm, with a weight"
            raise ConfigError.at("attention.qk_norm", f"per_head {message}")
        has_bias = getattr(norm, "bias", False)
        self.offset = plain.offset
        self.weight = nn.Parameter(plain.weight.detach().repeat(heads, 1))
        self.bias = nn.Parameter(torch.zeros(heads, head_dim)) if has_bias else None
        self.norm = NORM.build(norm.model_copy(update={"weight": "none", **({"bias": False} if has_bias else {})}), head_dim)

    def forward(self, x_BNTH: Tensor) -> Tensor:
        y_BNTH = self.norm(x_BNTH) * (self.weight + self.offset)[:, None, :]
        return (y_BNTH if self.bias is None else y_BNTH + self.bias[:, None, :]).type_as(x_BNTH)
