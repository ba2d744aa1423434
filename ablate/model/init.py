"""init: the numbers a model starts from. Every tensor has a random stream of its own, keyed by (seed, parameter name).

So an arm that adds a parameter leaves all others as they are, and two arms of one block start from the same weights.
Gains start at one and biases at zero, in every variant.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor, nn

from ablate.registry import Positive, Registry


class Init:
    """The standard deviation of each matrix; values come from a normal distribution around 0."""

    def linear_std(self, weight_OI: Tensor) -> float:
        raise NotImplementedError

    def embedding_std(self, weight_VD: Tensor) -> float:
        raise NotImplementedError


INIT: Registry[Init] = Registry("init")


@INIT.register("normal")
class Normal(Init):
    """One standard deviation for every matrix (0.02 in GPT-2 and Llama)."""

    def __init__(self, *, std: Positive) -> None:
        self.std = std

    def linear_std(self, weight_OI: Tensor) -> float:
        return self.std

    def embedding_std(self, weight_VD: Tensor) -> float:
        return self.std


@INIT.register("fan_in")
class FanIn(Init):
    """1 / sqrt(inputs) for linear layers, which keeps the scale of activations; one number for embeddings."""

    def __init__(self, *, embedding_std: Positive) -> None:
        self._embedding_std = embedding_std

    def linear_std(self, weight_OI: Tensor) -> float:
        return 1 / math.sqrt(weight_OI.shape[1])

    def embedding_std(self, weight_VD: Tensor) -> float:
        return self._embedding_std


@torch.no_grad()
def initialise(model: nn.Module, init: Init, seed: int) -> None:
    """Fills every matrix of a model on the CPU; the device's own generator is never used, so devices start equal."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            _normal(module.weight, init.linear_std(module.weight), f"{name}.weight", seed)
            if module.bias is not None:
                module.bias.zero_()
        elif isinstance(module, nn.Embedding):
            _normal(module.weight, init.embedding_std(module.weight), f"{name}.weight", seed)


def _normal(weight: Tensor, std: float, name: str, seed: int) -> None:
    key = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "big") >> 1)
    weight.normal_(0, std, generator=generator)
