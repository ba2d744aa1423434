"""optim: how a gradient becomes a step. Weight decay works on matrices alone; gains and biases have none."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.nn import Parameter
from torch.optim import AdamW, Muon, Optimizer

from ablate.errors import ConfigError
from ablate.model.transformer import Transformer
from ablate.registry import NonNegative, Positive, Registry, Share


class Optim:
    """Makes the optimisers of a model; the schedule scales the rates of all their groups alike."""

    lr: float

    def optimizers(self, model: Transformer) -> list[Optimizer]:
        raise NotImplementedError


OPTIM: Registry[Optim] = Registry("optim")


def _two(betas: list[float]) -> tuple[float, float]:
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ConfigError.at("optim.betas", f"two numbers, each from 0 to below 1, are needed, got {betas}")
    return betas[0], betas[1]


def _adamw(parameters: Iterable[Parameter], lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> AdamW:
    parameters = list(parameters)
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return AdamW([group for group in groups if group["params"]], lr=lr, betas=betas, eps=eps, fused=True)


@OPTIM.register("adamw")
class Adam(Optim):
    """AdamW with decoupled weight decay (arXiv 1711.05101), fused."""

    def __init__(self, *, lr: Positive, betas: list[Share], eps: Positive, weight_decay: NonNegative) -> None:
        self.lr, self.betas, self.eps, self.weight_decay = lr, _two(betas), eps, weight_decay

    def optimizers(self, model: Transformer) -> list[Optimizer]:
        return [_adamw(model.parameters(), self.lr, self.betas, self.eps, self.weight_decay)]


@OPTIM.register("muon")
class MuonAndAdam(Optim):
    """Muon on the matrices of the blocks, AdamW on the rest (Jordan et al. 2024, kellerjordan.github.io/posts/muon).

    The orthogonalised update is scaled by 0.2 sqrt(max(rows, columns)), so that it is as large as an AdamW update and the same
    rate and weight decay serve both (arXiv 2502.16982, section 2.2).
    """

    def __init__(self, *, lr: Positive, momentum: Share, betas: list[Share], eps: Positive, weight_decay: NonNegative) -> None:
        self.lr, self.momentum, self.betas, self.eps, self.weight_decay = lr, momentum, _two(betas), eps, weight_decay

    def optimizers(self, model: Transformer) -> list[Optimizer]:
        matrices = [module.weight for module in model.blocks.modules() if isinstance(module, nn.Linear)]
        chosen = {id(parameter) for parameter in matrices}
        rest = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
        muon = Muon(
            matrices, lr=self.lr, weight_decay=self.weight_decay, momentum=self.momentum, nesterov=True, adjust_lr_fn="match_rms_adamw"
        )
        return [muon, _adamw(rest, self.lr, self.betas, self.eps, self.weight_decay)]
