"""loss: what training minimises, in named parts. Reports compare the cross-entropy, never the sum."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from ablate.errors import ConfigError
from ablate.model.transformer import Outputs
from ablate.registry import Count, NonNegative, Positive, Registry

Parts = dict[str, Tensor]


class Loss:
    """outputs, targets_BT -> the sum to minimise, and its parts by name, unweighted; targets of -100 do not count.

    The parts have `cross_entropy`, the rest of the loss's own, and what the model adds (the losses of routers), each with its weight in
    the sum.
    """

    num_future = 0
    """Tokens beyond the next one whose scores it needs."""

    def __init__(self, z_loss: float) -> None:
        self.z_loss = z_loss

    def __call__(self, outputs: Outputs, targets_BT: Tensor) -> tuple[Tensor, Parts]:
        total, parts = self.own(outputs, targets_BT)
        for auxiliary in outputs.auxiliary:
            total = total + auxiliary.weight * auxiliary.value
            parts[auxiliary.name] = auxiliary.value
        return total, parts

    def own(self, outputs: Outputs, targets_BT: Tensor) -> tuple[Tensor, Parts]:
        raise NotImplementedError

    def next_token(self, logits_BTV: Tensor, targets_BT: Tensor) -> tuple[Tensor, Parts]:
        logits_NV, targets_N = logits_BTV.float().flatten(0, 1), targets_BT.flatten()
        cross_entropy = F.cross_entropy(logits_NV, targets_N)
        if not self.z_loss:
            return cross_entropy, {"cross_entropy": cross_entropy}
        counted = targets_N != -100
        z_loss = (torch.logsumexp(logits_NV, -1).square() * counted).sum() / counted.sum()
        return cross_entropy + self.z_loss * z_loss, {"cross_entropy": cross_entropy, "z_loss": z_loss}


LOSS: Registry[Loss] = Registry("loss")


@LOSS.register("cross_entropy")
class CrossEntropy(Loss):
    """mean(-log p(target)) + z_loss * mean(log(Z)^2), Z the sum of exp(logits) (arXiv 2204.02311, section 5). Nats per token."""

    def __init__(self, *, z_loss: NonNegative) -> None:
        super().__init__(z_loss)

    def own(self, outputs: Outputs, targets_BT: Tensor) -> tuple[Tensor, Parts]:
        return self.next_token(outputs.logits_BTV, targets_BT)


@LOSS.register("multi_token")
class MultiToken(Loss):
    """Cross-entropy, plus `weight` times the mean cross-entropy of `num_future` tokens further on (DeepSeek-V3, arXiv 2412.19437, eq. 25).

    Each of them is predicted by one more layer, which has that token's predecessor as input; these layers serve training alone.
    """

    def __init__(self, *, z_loss: NonNegative, num_future: Count, weight: Positive) -> None:
        super().__init__(z_loss)
        if math.isinf(weight):
            raise ConfigError.at("loss.weight", "must be finite")
        self.num_future, self.weight = num_future, weight

    def own(self, outputs: Outputs, targets_BT: Tensor) -> tuple[Tensor, Parts]:
        total, parts = self.next_token(outputs.logits_BTV, targets_BT)
        further = []
        for ahead, logits_BTV in enumerate(outputs.future, start=1):
            shifted_BT = F.pad(targets_BT[:, ahead:], (0, ahead), value=-100)
            further.append(F.cross_entropy(logits_BTV.float().flatten(0, 1), shifted_BT.flatten()))
        parts["future_tokens"] = torch.stack(further).mean()
        return total + self.weight * parts["future_tokens"], parts
