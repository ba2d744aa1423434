"""optim: how a gradient becomes a step. Weight decay works on matrices alone, or on gains and biases too (`decay: all`)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from torch import nn
from torch.nn import Parameter
from torch.optim import AdamW, Muon, Optimizer

from ablate.errors import ConfigError
from ablate.model.init import Init, matrices
from ablate.model.transformer import Transformer
from ablate.registry import NonNegative, Positive, Registry, Share


class Optim:
    """Makes the optimisers of a model; the schedule scales the rates of all their groups alike, each times its `rate` from `init`."""

    lr: float

    def optimizers(self, model: Transformer, init: Init) -> list[Optimizer]:
        raise NotImplementedError


OPTIM: Registry[Optim] = Registry("optim")

Decay = Literal["matrices", "all"]


def _two(betas: list[float]) -> tuple[float, float]:
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ConfigError.at("optim.betas", f"two numbers, each from 0 to below 1, are needed, got {betas}")
    return betas[0], betas[1]


def _check_decay(decay: Decay, weight_decay: float) -> None:
    if decay == "all" and not weight_decay:
        raise ConfigError.at("optim.decay", "all has no effect while optim.weight_decay is 0")


class _AdamW:
    """AdamW in groups: decayed or not, and by the rate that `init` gives a matrix."""

    def __init__(self, lr: float, betas: list[float], eps: float, weight_decay: float, decay: Decay) -> None:
        _check_decay(decay, weight_decay)
        self.lr, self.betas, self.eps, self.weight_decay, self.decay = lr, _two(betas), eps, weight_decay, decay

    def of(self, model: Transformer, init: Init, without: Collection[int] = ()) -> AdamW:
        rates = {id(module.weight): init.rate(matrix) for _, module, matrix in matrices(model, len(model.blocks), model.width)}
        groups: dict[tuple[float, float], list[Parameter]] = {}
        for parameter in model.parameters():
            if id(parameter) not in without:
                decayed = self.decay == "all" or id(parameter) in rates
                key = (self.weight_decay if decayed else 0.0, rates.get(id(parameter), 1.0))
                groups.setdefault(key, []).append(parameter)
        listed = [{"params": parameters, "weight_decay": decay, "rate": rate} for (decay, rate), parameters in groups.items()]
        return AdamW(listed, lr=self.lr, betas=self.betas, eps=self.eps, fused=True)


@OPTIM.register("adamw")
class Adam(Optim):
    """AdamW with decoupled weight decay (arXiv 1711.05101), fused."""

    def __init__(self, *, lr: Positive, betas: list[Share], eps: Positive, weight_decay: NonNegative, decay: Decay) -> None:
        self.lr, self._adamw = lr, _AdamW(lr, betas, eps, weight_decay, decay)

    def optimizers(self, model: Transformer, init: Init) -> list[Optimizer]:
        return [self._adamw.of(model, init)]


@OPTIM.register("muon")
class MuonAndAdam(Optim):
    """Muon on the matrices of the blocks, AdamW on the rest, stacks of experts too (Jordan et al. 2024, kellerjordan.github.io/posts/muon).

    The orthogonalised update is scaled by 0.2 sqrt(max(rows, columns)), so that it is as large as an AdamW update and the same
    rate and weight decay serve both (arXiv 2502.16982, section 2.2).
    """

    def __init__(
        self, *, lr: Positive, momentum: Share, betas: list[Share], eps: Positive, weight_decay: NonNegative, decay: Decay
    ) -> None:
        if momentum == 1:
            raise ConfigError.at("optim.momentum", "must be below 1, got 1: nothing would be learned")
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self._adamw = _AdamW(lr, betas, eps, weight_decay, decay)

    def optimizers(self, model: Transformer, init: Init) -> list[Optimizer]:
        weights = [module.weight for module in model.blocks.modules() if isinstance(module, nn.Linear)]
        muon = Muon(
            [{"params": weights, "rate": 1.0}],
            lr=self.lr,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            nesterov=True,
            adjust_lr_fn="match_rms_adamw",
        )
        return [muon, self._adamw.of(model, init, without={id(weight) for weight in weights})]
