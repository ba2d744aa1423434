"""Parity with a published implementation: the same weights, through the importer's own table, give the same logits and gradients.

A case is a tiny model of transformers. Its every parameter is random, because ones, zeros and a std of 0.02 hide errors. The config comes
from `config.to_dict()` and the weights from `state_dict()`, as a checkpoint gives them; gradients go through the same table.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.utils import logging

from ablate.model.transformer import Transformer
from ablate.pretrained import config_of, family_of, model_of
from ablate.pretrained.tables import convert

logging.set_verbosity_error()  # transformers remarks on configs as small as these

VOCABULARY = 320
TOKENS = 24
"""More than any window, chunk, floor or original context of a case: otherwise they do nothing."""

LOGITS_TOLERANCE = 1e-5
"""Of max(1, largest logit)."""
GRADIENT_TOLERANCE = 1e-4
"""Of max(largest gradient of the tensor, 1e-3 of the largest of all)."""


def their_logits(model: Any, tokens_BT: Tensor) -> Tensor:
    """What most models of transformers give."""
    return model(tokens_BT, use_cache=False).logits


@dataclass(frozen=True)
class Case:
    """One row. `unused` counts parameters of theirs that ours folds into others or leaves out; `overrides` come after the importer's."""

    name: str
    theirs: Callable[[], nn.Module]
    overrides: tuple[str, ...] = ()
    unused: int = 0
    logits: Callable[[Any, Tensor], Tensor] = their_logits
    prepare: Callable[[nn.Module], None] = lambda model: None
    """Runs after the parameters are random: buffers that must be, such as the selection bias of a router."""
    quick: bool = False
    """Runs without `slow`: one of each kind of layout and of each axis."""


@dataclass(frozen=True)
class Measured:
    """Errors as shares of what the tolerances are shares of."""

    logits: float
    largest_logit: float
    gradients: float
    worst_gradient: str
    parameters: int
    their_parameters: int


@torch.no_grad()
def randomise(model: nn.Module) -> None:
    """Every parameter that trains, in turn; frozen tables stay. Matrices keep variance, embeddings are large: scores stay moderate while
    logits are not, so that rounding (all there is in the gradient of a key bias without rotation) stays far below the tolerance."""
    generator = torch.Generator().manual_seed(0)
    tables = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim > 1:
            parameter.copy_(noise * (4 if parameter in tables else 1) / math.sqrt(parameter.shape[-1]))
        else:
            parameter.copy_(noise / 2 + (1 if name.endswith("weight") else 0))


def their_model(case: Case) -> Any:
    """Their model with random weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what transformers says about itself
        model = case.theirs().eval()
    randomise(model)
    case.prepare(model)
    return model


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


def our_model(case: Case, theirs: Any) -> Transformer:
    """Our model of their config, with their weights."""
    config = theirs.config.to_dict()
    return model_of(config_of(config, case.overrides), config, weights_of(theirs))


def tokens_of(seed: int) -> Tensor:
    """Ids 0 and 1 and the last ones are left to padding, whose gradients transformers drops."""
    return torch.randint(2, VOCABULARY - 2, (2, TOKENS), generator=torch.Generator().manual_seed(seed))


def measure(case: Case) -> Measured:
    """Both models on the same tokens and targets; the loss is computed here, since theirs may shift the targets."""
    theirs = their_model(case)
    ours = our_model(case, theirs).eval()
    logits_BTV, expected_BTV = ours(tokens_of(0)), case.logits(theirs, tokens_of(0))
    for scores_BTV in (logits_BTV, expected_BTV):
        F.cross_entropy(scores_BTV.flatten(0, 1), tokens_of(1).flatten()).backward()
    config = theirs.config.to_dict()
    gradients = {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in theirs.named_parameters()
        if parameter.requires_grad
    }
    expected = convert(family_of(config), config, gradients, gradients=True)
    errors = gradient_errors(ours, expected)
    worst = max(errors, key=lambda name: errors[name])
    largest = expected_BTV.abs().max().item()
    return Measured(
        logits=(logits_BTV - expected_BTV).abs().max().item() / max(1.0, largest),
        largest_logit=largest,
        gradients=errors[worst],
        worst_gradient=worst,
        parameters=sum(parameter.numel() for parameter in ours.parameters()),
        their_parameters=sum(parameter.numel() for parameter in theirs.parameters() if parameter.requires_grad) - case.unused,
    )


def gradient_errors(ours: nn.Module, expected: dict[str, Tensor]) -> dict[str, float]:
    """For each parameter of ours, its error as the share that the tolerance bounds."""
    largest = max(gradient.abs().max().item() for gradient in expected.values())
    errors = {}
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        scale = max(expected[name].abs().max().item(), 1e-3 * largest)
        errors[name] = (parameter.grad - expected[name]).abs().max().item() / scale
    return errors
