"""mask: which tokens see which, and attention under it by the fastest path that honours every part of it.

Plain causal attention has fused operators everywhere. Windows, chunks, biases, caps and sinks go through flex attention on CUDA, which
skips what a window hides, and through a mask or plain operators elsewhere. No path leaves a part out: what it cannot do, it is not given.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention


class Reach(NamedTuple):
    """How far a token sees: the last `window` tokens, itself one of them, within its own chunk. None: no limit."""

    window: int | None
    chunk: int | None

    def tokens(self, context: int) -> int:
        """How many tokens of a context there is a use for at any time."""
        return min(limit for limit in (self.window, self.chunk, context) if limit is not None)

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        """Whether the token at `query` sees the one at `key`."""
        seen = key <= query
        if self.window is not None:
            seen = seen & (query - key < self.window)
        if self.chunk is not None:
            seen = seen & (query // self.chunk == key // self.chunk)
        return seen


Visible = Tensor | BlockMask | None
"""A mask_TT of what is seen; the same in blocks, for flex attention; None: everything up to the token itself."""


def visible(reach: Reach, tokens: int, device: torch.device, flex: bool) -> Visible:
    """What is passed to `attend`; with `flex`, for flex attention."""
    if flex:
        return create_block_mask(lambda b, h, query, key: reach.sees(query, key), None, None, tokens, tokens, device=device)
    if reach == Reach(None, None):
        return None
    t_T = torch.arange(tokens, device=device)
    return reach.sees(t_T[:, None], t_T[None, :])


def attend(
    q_BNTH: Tensor,
    k_BNTH: Tensor,
    v_BNTH: Tensor,
    visible: Visible,
    *,
    bias: Tensor | None,
    sink: Tensor | None,
    scale: float,
    soft_cap: float,
    dropout: float,
) -> Tensor:
    """softmax(cap(scale q k^T) + bias) v over what is visible; bias is broadcast to B N T T, sink_N is one more score."""
    if isinstance(visible, BlockMask):
        assert not dropout, "flex attention drops nothing out"
        return _flex(q_BNTH, k_BNTH, v_BNTH, visible, bias, sink, scale, soft_cap)
    slow_fused = q_BNTH.dtype == torch.bfloat16 and q_BNTH.device.type == "cpu"  # there plain operators are faster
    if math.isinf(soft_cap) and sink is None and not slow_fused:
        mask = visible if bias is None else _masked(bias, visible, q_BNTH).type_as(q_BNTH)
        return F.scaled_dot_product_attention(
            q_BNTH, k_BNTH, v_BNTH, attn_mask=mask, is_causal=mask is None, dropout_p=dropout, scale=scale
        )
    return written_out(q_BNTH, k_BNTH, v_BNTH, visible, bias, sink, scale, soft_cap, dropout)


def written_out(
    q_BNTH: Tensor,
    k_BNTH: Tensor,
    v_BNTH: Tensor,
    visible: Tensor | None,
    bias: Tensor | None,
    sink: Tensor | None,
    scale: float,
    soft_cap: float,
    dropout: float,
) -> Tensor:
    """The same in plain operators; cap, bias and softmax in float32."""
    score_BNTT = (q_BNTH @ k_BNTH.transpose(-1, -2)).float() * scale
    if math.isfinite(soft_cap):
        score_BNTT = soft_cap * torch.tanh(score_BNTT / soft_cap)
    score_BNTT = _masked(score_BNTT if bias is None else score_BNTT + bias, visible, q_BNTH)
    if sink is not None:
        column_BNT1 = sink.float()[:, None, None].expand(*score_BNTT.shape[:-1], 1)
        score_BNTT = torch.cat([score_BNTT, column_BNT1], dim=-1)
    weight_BNTT = score_BNTT.softmax(-1)[..., : k_BNTH.shape[-2]]
    return F.dropout(weight_BNTT, dropout).type_as(v_BNTH) @ v_BNTH


def _masked(score: Tensor, visible: Tensor | None, q_BNTH: Tensor) -> Tensor:
    if visible is None:
        t_T = torch.arange(q_BNTH.shape[-2], device=q_BNTH.device)
        visible = Reach(None, None).sees(t_T[:, None], t_T[None, :])
    return score.masked_fill(~visible, -math.inf)


def _flex(
    q_BNTH: Tensor,
    k_BNTH: Tensor,
    v_BNTH: Tensor,
    visible: BlockMask,
    bias: Tensor | None,
    sink: Tensor | None,
    scale: float,
    soft_cap: float,
) -> Tensor:
    if bias is not None:
        bias = bias.expand(q_BNTH.shape[0], q_BNTH.shape[1], -1, -1)

    def change(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
        if math.isfinite(soft_cap):
            score = soft_cap * torch.tanh(score / soft_cap)
        return score if bias is None else score + bias[batch, head, query, key]

    wanted = AuxRequest(lse=sink is not None)
    y_BNTH, found = flex_attention(q_BNTH, k_BNTH, v_BNTH, change, visible, scale=scale, return_aux=wanted)
    if sink is None:
        return y_BNTH
    assert found.lse is not None
    # The sink takes exp(sink) of the sum: what is left is sum / (sum + exp(sink)).
    return (y_BNTH * torch.sigmoid(found.lse - sink[:, None])[..., None]).type_as(v_BNTH)
