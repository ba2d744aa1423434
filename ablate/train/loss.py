"""loss: what training minimises, in named parts. Reports compare the cross-entropy, never the sum."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ablate.registry import NonNegative, Registry

Parts = dict[str, Tensor]


class Loss:
    """logits_BTV, targets_BT -> the sum to minimise, and its parts by name; targets of -100 do not count."""

    def __call__(self, logits_BTV: Tensor, targets_BT: Tensor) -> tuple[Tensor, Parts]:
        raise NotImplementedError


LOSS: Registry[Loss] = Registry("loss")


@LOSS.register("cross_entropy")
class CrossEntropy(Loss):
    """mean(-log p(target)) + z_loss * mean(log(Z)^2), Z the sum of exp(logits) (arXiv 2204.02311, section 5). Nats per token."""

    def __init__(self, *, z_loss: NonNegative) -> None:
        self.z_loss = z_loss

    def __call__(self, logits_BTV: Tensor, targets_BT: Tensor) -> tuple[Tensor, Parts]:
        logits_NV, targets_N = logits_BTV.float().flatten(0, 1), targets_BT.flatten()
        cross_entropy = F.cross_entropy(logits_NV, targets_N)
        if not self.z_loss:
            return cross_entropy, {"cross_entropy": cross_entropy}
        counted = targets_N != -100
        z_loss = (torch.logsumexp(logits_NV, -1).square() * counted).sum() / counted.sum()
        return cross_entropy + self.z_loss * z_loss, {"cross_entropy": cross_entropy, "z_loss": z_loss}
