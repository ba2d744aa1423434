"""evaluate: the loss on the fixed evaluation set, the same bytes for every arm."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ablate.data import EvalSet, TaskEvalSet
from ablate.data.batches import eval_batches
from ablate.data.source import IGNORED
from ablate.train.distributed import ALONE, World


@dataclass(frozen=True)
class Evaluation:
    """`loss` in nats per token, `bits_per_byte` free of the tokenizer; None when the bytes are not known.

    `accuracy` is the share of a task's answers that the model puts first; None of text, where most tokens have no right answer.
    """

    loss: float
    bits_per_byte: float | None
    tokens: int
    accuracy: float | None = None


def evaluate(
    logits_of: Callable[[Tensor], Tensor],
    eval_set: EvalSet | TaskEvalSet,
    *,
    context: int,
    batch_size: int,
    device: torch.device,
    grad: bool,
    world: World = ALONE,
) -> Evaluation:
    """Scores every token of the set once, the batches shared by all processes. All batches have one shape, so a compiled model is
    compiled once; with `grad` it also runs the very graph that trains, and no second one is built."""
    nats, tokens, right = 0.0, 0.0, 0.0
    with torch.set_grad_enabled(grad):
        for inputs_BT, targets_BT in shared(eval_batches(eval_set, context=context, batch_size=batch_size), world):
            logits_BTV = logits_of(inputs_BT.to(device)).detach()
            targets_BT = targets_BT.to(device)
            nats += F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), reduction="sum").item()
            right += num_right(logits_BTV, targets_BT)
            tokens += float((targets_BT != -100).sum())
    nats, tokens, right = world.total(nats, tokens, right)
    bits_per_byte = nats / math.log(2) / eval_set.bytes if eval_set.bytes else None
    accuracy = right / tokens if isinstance(eval_set, TaskEvalSet) else None
    return Evaluation(loss=nats / tokens, bits_per_byte=bits_per_byte, tokens=int(tokens), accuracy=accuracy)


def shared(batches: Iterable[tuple[Tensor, Tensor]], world: World) -> Iterator[tuple[Tensor, Tensor]]:
    """This process's share of batches. Where they do not go round it gets one without a target: a divided model is run by all at once."""
    rest = iter(batches)
    while round_of := list(itertools.islice(rest, world.size)):
        inputs_BT, targets_BT = round_of[0]
        yield round_of[world.rank] if world.rank < len(round_of) else (inputs_BT, torch.full_like(targets_BT, IGNORED))


def num_right(logits_BTV: Tensor, targets_BT: Tensor) -> int:
    """Targets that have the largest logit of their position; of -100 there is none."""
    return int((logits_BTV.argmax(-1) == targets_BT).sum())
