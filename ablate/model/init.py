"""init: the numbers a model starts from. Every tensor has a random stream of its own, keyed by (seed, parameter name).

So an arm that adds a parameter leaves all others as they are, and two arms of one block start from the same weights.
Gains start at one and biases at zero, in every variant.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ablate.errors import ConfigError
from ablate.model.linear import Embedding, ExpertLinear, Linear
from ablate.registry import Count, Positive, Registry


@dataclass(frozen=True)
class Matrix:
    """A matrix of the model, as an initialisation sees it."""

    role: Literal["embedding", "hidden", "head"]
    inputs: int
    writes: bool  # onto the residual stream
    layer: int  # 0, 1, ...; 0 outside of the blocks
    depth: int
    width: int  # of the model


class Init:
    """The standard deviation of each matrix; values come from a normal distribution around 0."""

    def std(self, matrix: Matrix) -> float:
        raise NotImplementedError

    def rate(self, matrix: Matrix) -> float:
        """What multiplies the learning rate of AdamW for a matrix."""
        return 1.0

    def check(self, width: int) -> None:
        """ConfigError when it has no effect in a model of this width."""


INIT: Registry[Init] = Registry("init")


@INIT.register("normal")
class Normal(Init):
    """One standard deviation for every matrix (0.02 in GPT-2 and Llama)."""

    def __init__(self, *, std: Positive) -> None:
        self._std = std

    def std(self, matrix: Matrix) -> float:
        return self._std


@INIT.register("fan_in")
class FanIn(Init):
    """1 / sqrt(inputs) for linear layers, which keeps the scale of activations; one number for embeddings."""

    def __init__(self, *, embedding_std: Positive) -> None:
        self._embedding_std = embedding_std

    def std(self, matrix: Matrix) -> float:
        return self._embedding_std if matrix.role == "embedding" else 1 / math.sqrt(matrix.inputs)


@INIT.register("gpt2")
class ByDepth(Init):
    """`std`, and std / sqrt(2 L) for matrices that write to the residual stream of L layers (GPT-2; Megatron-LM, arXiv 1909.08053)."""

    def __init__(self, *, std: Positive) -> None:
        self._std = std

    def std(self, matrix: Matrix) -> float:
        return self._std / math.sqrt(2 * matrix.depth) if matrix.writes else self._std


@INIT.register("depth_scaled")
class ByLayer(Init):
    """`std`, and std / sqrt(2 l) for matrices of layer l = 1, 2, ... that write to the residual stream (arXiv 1908.11365, section 4)."""

    def __init__(self, *, std: Positive) -> None:
        self._std = std

    def std(self, matrix: Matrix) -> float:
        return self._std / math.sqrt(2 * (matrix.layer + 1)) if matrix.writes else self._std


@INIT.register("small")
class Small(Init):
    """sqrt(2 / (5 D)) (SmallInit, arXiv 1910.05895), and 2 / (L sqrt(D)) for matrices that write to the residual stream (GPT-NeoX-20B)."""

    def __init__(self) -> None:
        pass

    def std(self, matrix: Matrix) -> float:
        if matrix.writes:
            return 2 / (matrix.depth * math.sqrt(matrix.width))
        return math.sqrt(2 / (5 * matrix.width))


@INIT.register("mup")
class MaximalUpdate(Init):
    """muP for AdamW (arXiv 2203.03466, table 3): a model of width `base_width` starts and learns as with init=normal.

    With m = D / `base_width`, by which the inputs of every matrix grow: hidden matrices std / sqrt(m), learning rate over m. Head: std / m,
    the same rate. Embeddings as they are. The paper's scores with 1 / H instead of 1 / sqrt(H) are an option of attention (scale).
    """

    def __init__(self, *, std: Positive, base_width: Count) -> None:
        self._std, self.base_width = std, base_width

    def check(self, width: int) -> None:
        if self.base_width == width:
            raise ConfigError.at("init.base_width", f"{width} is model.width: there muP is init=normal; give the width that was tuned")

    def std(self, matrix: Matrix) -> float:
        shrink = self.base_width / matrix.width
        return self._std * {"embedding": 1.0, "hidden": math.sqrt(shrink), "head": shrink}[matrix.role]

    def rate(self, matrix: Matrix) -> float:
        return 1.0 if matrix.role == "embedding" else self.base_width / matrix.width


MatrixModule = Linear | Embedding | ExpertLinear


def matrices(model: nn.Module, depth: int, width: int) -> Iterator[tuple[str, MatrixModule, Matrix]]:
    """Every matrix of a model by the name of its module."""
    for name, module in model.named_modules():
        if not isinstance(module, (Linear, Embedding, ExpertLinear)):
            continue
        parts = name.split(".")
        layer = int(parts[1]) if parts[0] == "blocks" else 0
        role: Literal["embedding", "hidden", "head"] = (
            "embedding" if isinstance(module, Embedding) else "head" if name == "head.unembed" else "hidden"
        )
        writes = False if isinstance(module, Embedding) else module.writes
        yield name, module, Matrix(role, module.weight.shape[-1], writes, layer, depth, width)


@torch.no_grad()
def initialise(model: nn.Module, init: Init, seed: int, *, depth: int, width: int) -> None:
    """Fills every matrix of a model on the CPU; the device's own generator is never used, so devices start equal."""
    for name, module, matrix in matrices(model, depth, width):
        gain = 1.0 if isinstance(module, Embedding) else module.gain
        _normal(module.weight, gain * init.std(matrix), f"{name}.weight", seed)
        if not isinstance(module, Embedding) and module.bias is not None:
            module.bias.zero_()


def _normal(weight: Tensor, std: float, name: str, seed: int) -> None:
    key = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "big") >> 1)
    weight.normal_(0, std, generator=generator)
