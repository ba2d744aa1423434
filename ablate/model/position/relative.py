"""Positions that are added to the scores of attention, from the distance of key and query."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from ablate.errors import ConfigError
from ablate.model.linear import Embedding, Linear
from ablate.model.position.none import POSITION, Finite, Position, waves
from ablate.registry import Count, Positive, Size, sized


@POSITION.register("alibi")
class ALiBi(Position):
    """-scale * m_n * (t - s), with a fixed slope m_n for each head (arXiv 2108.12409).

    For N = 2^p heads m_n = 2^(-8n/N), n = 1..N. For another N the slopes of the next lower power of two, then those of the next
    higher one, every second from the first. `scale` is 1 in the paper, Bloom and MPT; `inverse_sqrt_head_dim` is that of Falcon,
    which divides the biased scores by sqrt(H) (arXiv 2311.16867).
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int,
        context: int,
        trained_context: int,
        *,
        scale: Finite | Literal["inverse_sqrt_head_dim"],
    ) -> None:
        super().__init__(dim, heads, head_dim, context, trained_context)
        factor = 1 / math.sqrt(head_dim) if scale == "inverse_sqrt_head_dim" else scale
        bias_NT = -factor * np.outer(_slopes(heads), np.arange(context))
        self.register_buffer("bias_NT", torch.tensor(bias_NT, dtype=torch.float32), persistent=False)
        self.bias_NT: Tensor

    def bias(self, q_BNTH: Tensor, k_BNTH: Tensor, scale: float) -> Tensor:
        return same_for_all_queries(self.bias_NT[:, : q_BNTH.shape[-2]])


@POSITION.register("t5")
class T5Buckets(Position):
    """table[bucket(t - s), n]: a learned number for each bucket of distances and each head, one table for all layers (arXiv 1910.10683).

    With E = buckets // 2, distances below E have a bucket each; d >= E falls into
    min(buckets - 1, E + floor((buckets - E) ln(d / E) / ln(max_distance / E))). `max_distance` is in tokens, or a share of
    model.context. T5 also leaves out the division of scores: attention.scale=1.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int,
        context: int,
        trained_context: int,
        *,
        buckets: Annotated[int, Field(ge=2)],
        max_distance: Size,
    ) -> None:
        super().__init__(dim, heads, head_dim, context, trained_context)
        farthest = sized(max_distance, trained_context)
        if farthest <= buckets // 2:
            raise ConfigError.at(
                "position.max_distance",
                f"must be above {buckets // 2}, as position.buckets={buckets} has a bucket for each shorter distance, got {farthest}",
            )
        bucket_T = _t5_buckets(np.arange(context), buckets, farthest)
        self.register_buffer("bucket_T", torch.tensor(bucket_T, dtype=torch.long), persistent=False)
        self.bucket_T: Tensor
        self.table = Embedding(buckets, heads)

    def bias(self, q_BNTH: Tensor, k_BNTH: Tensor, scale: float) -> Tensor:
        return same_for_all_queries(self.table(self.bucket_T[: q_BNTH.shape[-2]]).T)


@POSITION.register("kerple")
class Kerple(Position):
    """-r1 ln(1 + r2 (t - s)), r1 and r2 > 0 learned for each head (arXiv 2205.09921, the logarithmic variant).

    Learned are ln(r1) and ln(r2), so both stay positive. Heads start evenly spread over r1 in (0, 2 * `r1`), and all at `r2`, where the
    released code draws both: with 1 and 1/2 the means are its. `shared`: all layers have the same, as there.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int,
        context: int,
        trained_context: int,
        *,
        r1: Finite,
        r2: Finite,
        shared: bool,
    ) -> None:
        super().__init__(dim, heads, head_dim, context, trained_context)
        self.per_layer = not shared
        spread_N = (2 * np.arange(heads) + 1) / heads
        self.log_r1 = nn.Parameter(torch.tensor(np.log(r1 * spread_N), dtype=torch.float32))
        self.log_r2 = nn.Parameter(torch.tensor(np.full(heads, math.log(r2)), dtype=torch.float32))
        self.register_buffer("distance_T", torch.tensor(np.arange(context), dtype=torch.float32), persistent=False)
        self.distance_T: Tensor

    def bias(self, q_BNTH: Tensor, k_BNTH: Tensor, scale: float) -> Tensor:
        r1_N1, r2_N1 = self.log_r1.exp()[:, None], self.log_r2.exp()[:, None]
        return same_for_all_queries(-r1_N1 * torch.log1p(r2_N1 * self.distance_T[: q_BNTH.shape[-2]]))


@POSITION.register("fire")
class Fire(Position):
    """f(p(t - s) / p(max(L, t))), p(x) = ln(1 + c x), f a network with one hidden layer of ReLU (arXiv 2310.04418).

    c and L are learned as ln(c / `c`) and ln(L / `threshold`), so both stay positive. `threshold` is in tokens, or a share of
    model.context. The hidden units start as ramps up and down from evenly spread points of [0, 1], so that none is dead; the output has
    no constant, as softmax does not see it. `shared`: all layers have the same network (FIRE-S). The gradient needs T * T * hidden
    numbers of each layer.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int,
        context: int,
        trained_context: int,
        *,
        hidden: Count,
        c: Finite,
        threshold: Size,
        shared: bool,
    ) -> None:
        super().__init__(dim, heads, head_dim, context, trained_context)
        self.per_layer = not shared
        self.first_c, self.first_threshold = c, sized(threshold, trained_context)
        self.log_c, self.log_threshold = nn.Parameter(torch.tensor(0.0)), nn.Parameter(torch.tensor(0.0))
        slope_F = np.where(np.arange(hidden) % 2 == 0, 1.0, -1.0)
        self.slope = nn.Parameter(torch.tensor(slope_F, dtype=torch.float32))
        self.offset = nn.Parameter(torch.tensor(-slope_F * (np.arange(hidden) + 0.5) / hidden, dtype=torch.float32))
        self.out = Linear(hidden, heads, bias=False)
        self.register_buffer("time_T", torch.tensor(np.arange(context), dtype=torch.float32), persistent=False)
        self.time_T: Tensor

    def bias(self, q_BNTH: Tensor, k_BNTH: Tensor, scale: float) -> Tensor:
        time_T = self.time_T[: q_BNTH.shape[-2]]
        distance_TT = (time_T[:, None] - time_T).clamp(min=0)
        c, threshold = self.first_c * self.log_c.exp(), self.first_threshold * self.log_threshold.exp()
        share_TT = torch.log1p(c * distance_TT) / torch.log1p(c * torch.maximum(time_T, threshold))[:, None]
        hidden_TTF = F.relu(share_TT[..., None] * self.slope + self.offset)
        return self.out(hidden_TTF).permute(2, 0, 1)


@POSITION.register("transformer_xl")
class TransformerXL(Position):
    """The scores are scale * ((q_t + u) k_s + (q_t + v) W_r R_(t-s)), R the sinusoidal table of distances (arXiv 1901.02860, section 3.3).

    This adds scale * (u k_s + (q_t + v) W_r R_(t-s)). u, v (N, H) and W_r are of the layer; Gopher has them too (arXiv 2112.11446).
    """

    per_layer = True

    def __init__(self, dim: int, heads: int, head_dim: int, context: int, trained_context: int, *, theta: Positive) -> None:
        super().__init__(dim, heads, head_dim, context, trained_context)
        if dim % 2:
            raise ConfigError.at("model.width", f"position=transformer_xl pairs a sine with a cosine: an even width is needed, got {dim}")
        self.heads, self.head_dim = heads, head_dim
        self.u, self.v = nn.Parameter(torch.zeros(heads, head_dim)), nn.Parameter(torch.zeros(heads, head_dim))
        self.r = Linear(dim, heads * head_dim, bias=False)
        self.register_buffer("distance_TD", torch.tensor(waves(context, dim, theta), dtype=torch.float32), persistent=False)
        self.distance_TD: Tensor

    def bias(self, q_BNTH: Tensor, k_BNTH: Tensor, scale: float) -> Tensor:
        r_NTH = self.r(self.distance_TD[: q_BNTH.shape[-2]]).unflatten(-1, (self.heads, self.head_dim)).transpose(0, 1)
        of_key_BN1T = (k_BNTH @ self.u[:, :, None]).transpose(-1, -2)
        by_distance_BNTT = (q_BNTH + self.v[:, None]) @ r_NTH.transpose(-1, -2)
        return scale * (of_key_BN1T + _by_key(by_distance_BNTT))


def same_for_all_queries(bias_NT: Tensor) -> Tensor:
    """(N, T) by head and distance -> (N, T, T) by head, query and key."""
    return _shifted(_reversed(bias_NT)[:, None].expand(-1, bias_NT.shape[-1], -1))


def _by_key(by_distance_TT: Tensor) -> Tensor:
    """[..., t, d] -> [..., t, s] with d = t - s, for s <= t; the rest is other finite entries of the same tensor."""
    return _shifted(_reversed(by_distance_TT))


def _reversed(by_distance_T: Tensor) -> Tensor:
    """Distances T-1 to 0, after a column of zeros."""
    return F.pad(by_distance_T.flip(-1), (1, 0))


def _shifted(reversed_TS: Tensor) -> Tensor:
    """Moves row t by T-1-t columns: the T+1 columns of a row are read in rows of T (arXiv 1901.02860, appendix B).

    Without an index, so the gradient is a sum in a fixed order on every device.
    """
    tokens = reversed_TS.shape[-2]
    return reversed_TS.flatten(-2).unflatten(-1, (tokens + 1, tokens))[..., 1:, :]


def _slopes(heads: int) -> NDArray[np.float64]:
    """(N,) the slopes of ALiBi, as in its released code."""
    lower = 2 ** int(math.log2(heads))
    slopes = 2.0 ** (-8 * np.arange(1, lower + 1) / lower)
    between = 2.0 ** (-8 * np.arange(1, 2 * lower, 2) / (2 * lower))
    return np.concatenate([slopes, between])[:heads]


def _t5_buckets(distance_T: NDArray[np.int64], buckets: int, max_distance: int) -> NDArray[np.int64]:
    exact = buckets // 2
    octaves_T = np.log(np.maximum(distance_T, exact) / exact) / math.log(max_distance / exact)
    far_T = exact + (octaves_T * (buckets - exact)).astype(np.int64)
    return np.where(distance_T < exact, distance_T, np.minimum(far_T, buckets - 1))
