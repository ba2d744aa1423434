"""probes: what a model looks like from within while it trains, at every `probes.every_steps`-th step.

    probe/residual_rms/L   root mean square of the residual stream after layer L; `embedding`: before the first
    probe/max_logit/L      largest scale * q k^T + bias of a token and one that it sees, before any soft cap
    probe/log_z            mean over tokens of log sum exp of the scores of the vocabulary
    probe/grad_norm/P      norm of the gradient of part P, before clipping
    probe/update_ratio/P   norm of the update of part P over the norm of its weights before it, weight decay included
    probe/max_load/L       largest share of the work of a router that one expert got in this step; `min_load`: the smallest

L counts layers from 0; P is one of these or embedding, positions, norm (the last one), head, future. Gradients, updates and loads are
those of the step. The rest is read from its first two sequences, without dropout, by a second forward pass in plain operators: what is
compiled stays as it is, no random number is drawn, and no number of the run moves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from ablate.model.attention import Attention
from ablate.model.mask import visible
from ablate.model.moe import MoE
from ablate.model.position import Position
from ablate.model.residual import Block
from ablate.model.transformer import Transformer
from ablate.registry import sized
from ablate.train.parallel import Parallel

SEQUENCES = 2
"""Read in the second forward pass. Attention writes its scores out there: B N T T numbers a layer."""

Found = dict[str, Tensor]


class NoProbe:
    """A step that is not looked at."""

    seconds = 0.0
    """What looking took; the time of a step does not have it."""

    def before_update(self, inputs_BT: Tensor) -> None:
        """When gradients are there, not yet clipped."""

    def after_update(self, loads: Sequence[Tensor]) -> None:
        """When weights have moved; `loads` has the load_E of each router."""

    def row(self) -> dict[str, float]:
        """What was found, in the row of the step."""
        return {}


class Probe(NoProbe):
    """One step, looked at. `autocast` gives the context in which the model runs."""

    def __init__(
        self, model: Transformer, device: torch.device, autocast: Callable[[], AbstractContextManager[None]], parallel: Parallel
    ) -> None:
        self.model, self.device, self.autocast, self.parallel = model, device, autocast, parallel
        self.found: Found = {}
        self.weights: dict[str, list[Tensor]] = {}

    def before_update(self, inputs_BT: Tensor) -> None:
        with self._timed():
            with self.autocast(), self.parallel.gathered(self.model):
                self.found.update(look(self.model, inputs_BT[:SEQUENCES].to(self.device)))
            for part, parameters in parts(self.model).items():
                gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
                if gradients:
                    self.found[f"grad_norm/{part}"] = self.parallel.norm(gradients)
                self.weights[part] = [parameter.detach().clone() for parameter in parameters]

    def after_update(self, loads: Sequence[Tensor]) -> None:
        with self._timed():
            for part, parameters in parts(self.model).items():
                before = self.weights.pop(part)
                moved = [parameter.detach() - old for parameter, old in zip(parameters, before, strict=True)]
                self.found[f"update_ratio/{part}"] = self.parallel.norm(moved) / self.parallel.norm(before)
            routed = [layer for layer, block in enumerate(layers(self.model)) if isinstance(block.ffn.sublayer, MoE)]
            for layer, load_E in zip(routed, loads, strict=False):  # the loads of `future` layers come after these
                share_E = load_E / load_E.sum()
                self.found[f"max_load/{layer}"], self.found[f"min_load/{layer}"] = share_E.max(), share_E.min()

    def row(self) -> dict[str, float]:
        """A ratio over weights that were all zero is no number, and is missing."""
        with self._timed():
            values: list[float] = torch.stack([value.float() for value in self.found.values()]).tolist()
        pairs = zip(self.found, values, strict=True)
        return {f"probe/{name}": value for name, value in pairs if math.isfinite(value) or not name.startswith("update_ratio")}

    @contextmanager
    def _timed(self) -> Iterator[None]:
        self._wait()
        start = time.perf_counter()
        yield
        self._wait()
        self.seconds += time.perf_counter() - start

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def is_due(step: int, every_steps: int | float, steps: int) -> bool:
    """Whether step number `step` of `steps` is looked at, counted from 1. `every_steps` may be a share of all steps; .inf: none is."""
    return not math.isinf(every_steps) and step % sized(every_steps, steps) == 0


def parts(model: Transformer) -> dict[str, list[nn.Parameter]]:
    """The parameters of each layer by its number, and of each other child of the model by its name; every parameter once."""
    named = {name: child for name, child in model.named_children() if name != "blocks"}
    named.update({str(layer): block for layer, block in enumerate(layers(model))})
    found = {name: list(module.parameters()) for name, module in named.items()}
    return {name: parameters for name, parameters in found.items() if parameters}


def layers(model: Transformer) -> list[Block]:
    return [block for block in model.blocks if isinstance(block, Block)]


@torch.no_grad()
def look(model: Transformer, tokens_BT: Tensor) -> Found:
    """What the forward pass of some sequences shows: residual_rms, max_logit, log_z. Only plain operators run, none that is compiled."""
    model.eval()
    try:
        x_BTD, first_value = model.embed(tokens_BT), None
        found = {"residual_rms/embedding": root_mean_square(x_BTD)}
        for layer, (block, attention) in enumerate(zip(layers(model), model.attentions, strict=True)):
            position = model.position(layer)
            seen = visible(attention.reach, tokens_BT.shape[1], tokens_BT.device, flex=False)
            found[f"max_logit/{layer}"] = largest_logit(attention, block.attention.input(x_BTD), position)
            x_BTD, value, _ = type(block).forward(block, x_BTD, position, seen, first_value)
            first_value = value if first_value is None else first_value
            found[f"residual_rms/{layer}"] = root_mean_square(x_BTD)
        logits_BTV = model.head.forward(model.norm(x_BTD), model.embedding.table.weight)
        return {**found, "log_z": logits_BTV.logsumexp(-1).mean()}
    finally:
        model.train()


def root_mean_square(x_BTD: Tensor) -> Tensor:
    return x_BTD.float().square().mean().sqrt()


def largest_logit(attention: Attention, x_BTD: Tensor, position: Position) -> Tensor:
    """The largest score of attention over heads, queries and the keys they see, from its input."""
    q_BNTH, k_BKTH, _ = attention.project(x_BTD, position)
    if attention.temperature is not None:
        q_BNTH = attention.temperature(q_BNTH)
    k_BNTH = k_BKTH.repeat_interleave(attention.heads // k_BKTH.shape[1], dim=1)
    bias = position.bias(q_BNTH, k_BNTH, attention.scale)
    with torch.autocast(x_BTD.device.type, enabled=False):
        score_BNTT = attention.scale * (q_BNTH.float() @ k_BNTH.float().transpose(-1, -2))
    if bias is not None:
        score_BNTT = score_BNTT + bias
    t_T = torch.arange(x_BTD.shape[1], device=x_BTD.device)
    return score_BNTT.masked_fill(~attention.reach.sees(t_T[:, None], t_T), -math.inf).max()
