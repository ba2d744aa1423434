"""curves: what the one number of the final evaluation hides.

Loss by position: the loss of a token by how many tokens the model sees before it.
Length extrapolation: the loss of the same targets when the model sees 1, 2 and 4 times the context it was trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ablate.config import Config, check_stretch
from ablate.data import EvalSet, TaskEvalSet, vocab_size
from ablate.data.batches import eval_batches
from ablate.data.source import Ids
from ablate.errors import ConfigError
from ablate.model.position import POSITION
from ablate.model.transformer import Transformer
from ablate.shipped import shipped
from ablate.train.distributed import ALONE, World
from ablate.train.evaluate import shared

T = TypeVar("T")

MULTIPLES = (1, 2, 4)
"""Of the context of training. The longest says how much text is needed."""
MAX_SPANS = 48
"""Stretches of text in which targets are scored at each multiple: with the loss by position, below a tenth of a run at scale=nano."""
TARGETS_OF_CONTEXT = 8
"""A stretch has one target for each 8 tokens of the context: its last ones. More of them would see less than the context that is said."""
MAX_WINDOWS = 128
"""Windows, about, from which the loss by position is taken."""


@dataclass(frozen=True)
class LossByPosition:
    """Summed nats and number of the targets at each place of the context."""

    nats_T: Tensor
    targets_T: Tensor

    def curve(self) -> list[float | None]:
        """[t]: the loss of targets that are predicted from t + 1 tokens; None where there is no target."""
        pairs = zip(self.nats_T.tolist(), self.targets_T.tolist(), strict=True)
        return [nats / targets if targets else None for nats, targets in pairs]

    def buckets(self) -> list[dict[str, float | int | None]]:
        """The same in buckets, each twice as wide as the one before: targets predicted from `from` to `to` tokens."""
        context = len(self.nats_T)
        lasts = sorted({*(2**power for power in range(context.bit_length())), context})
        rows: list[dict[str, float | int | None]] = []
        for first, last in zip([1, *(last + 1 for last in lasts)], lasts, strict=False):
            targets = int(self.targets_T[first - 1 : last].sum())
            loss = float(self.nats_T[first - 1 : last].sum()) / targets if targets else None
            rows.append({"from": first, "to": last, "loss": loss, "targets": targets})
        return rows


def loss_by_position(
    logits_of: Callable[[Tensor], Tensor],
    eval_set: EvalSet | TaskEvalSet,
    *,
    context: int,
    batch_size: int,
    device: torch.device,
    grad: bool,
    rows: int | None = None,
    world: World = ALONE,
) -> LossByPosition:
    """From evenly spaced batches of the evaluation set, run `rows` at once, the shape in which it is evaluated (see `evaluate`)."""
    nats_T, targets_T = torch.zeros(context, dtype=torch.float64), torch.zeros(context, dtype=torch.float64)
    batches = list(eval_batches(eval_set, context=context, batch_size=batch_size))
    chosen = evenly(batches, max(1, MAX_WINDOWS // batch_size))
    pieces = [piece for batch in chosen for piece in zip(*(ids_BT.split(rows or batch_size) for ids_BT in batch), strict=True)]
    with torch.set_grad_enabled(grad):
        for inputs_BT, targets_BT in shared(pieces, world):
            logits_BTV = logits_of(inputs_BT.to(device)).detach()
            loss_BT = F.cross_entropy(logits_BTV.transpose(1, 2), targets_BT.to(device), reduction="none")
            nats_T += loss_BT.sum(0).double().cpu()
            targets_T += (targets_BT != -100).sum(0)
    return LossByPosition(*world.sum([nats_T, targets_T]))


def length_extrapolation(
    cfg: Config,
    weights: Mapping[str, Tensor],
    eval_set: EvalSet | TaskEvalSet,
    device: torch.device,
    extend: str,
) -> dict[str, Any]:
    """{"1": loss, "2": loss, "4": loss, "targets": number of them, "reasons": {}}, in nats per token.

    The last targets of a stretch of text of 4 contexts are predicted from a window that ends with them and holds 1, 2 or 4 contexts
    (the last of them sees exactly that, the first an eighth of a context less). Tables of positions are longer, windows of attention
    stay. With `extend` (ntk, yarn) one more entry, {"yarn": {"2": loss, "4": loss}}: the same weights with the rotary embedding
    stretched by the multiple. What is not defined is None, with its reason.
    """
    context = cfg.model.context
    stretches = evenly(spans(eval_set, MULTIPLES[-1] * context), MAX_SPANS)
    num_targets = max(1, context // TARGETS_OF_CONTEXT)
    reasons: dict[str, str] = {}

    def loss(multiple: int, word: str) -> float | None:
        if not stretches:
            reasons["targets"] = _no_stretch(eval_set, MULTIPLES[-1] * context)
            return None
        try:
            model = longer(cfg if word == "none" else extended(cfg, word, multiple), weights, multiple * context, device)
            return loss_of_last(model, stretches, multiple * context, num_targets, cfg, device)
        except ConfigError as error:
            reasons[word if word != "none" else str(multiple)] = f"not defined: {error.problems[0].message}"
        except torch.OutOfMemoryError:
            reasons[f"{multiple} {word}" if word != "none" else str(multiple)] = "out of memory"
        return None

    found: dict[str, Any] = {str(multiple): loss(multiple, "none") for multiple in MULTIPLES}
    if extend != "none":
        found[extend] = {str(multiple): loss(multiple, extend) for multiple in MULTIPLES[1:]}
    return {**found, "targets": len(stretches) * num_targets, "reasons": reasons}


def spans(eval_set: EvalSet | TaskEvalSet, tokens: int) -> list[Ids]:
    """Stretches of `tokens` inputs and their targets (so of one id more) that lie within one segment and share no target."""
    if isinstance(eval_set, TaskEvalSet):
        return []
    return [segment[start : start + tokens + 1] for segment in eval_set.segments for start in range(0, len(segment) - tokens, tokens)]


def _no_stretch(eval_set: EvalSet | TaskEvalSet, tokens: int) -> str:
    if isinstance(eval_set, TaskEvalSet):
        return "not defined: an example of a task is as long as the context"
    longest = max((len(segment) - 1 for segment in eval_set.segments), default=0)
    return f"not measured: {tokens} tokens of text in one piece are needed, and the longest has {longest}: raise eval.segment_bytes"


def evenly(items: Sequence[T], most: int) -> list[T]:
    """At most so many of them, evenly spaced."""
    count = min(most, len(items))
    return [items[index * len(items) // count] for index in range(count)]


def longer(cfg: Config, weights: Mapping[str, Tensor], tokens: int, device: torch.device) -> Transformer:
    """The model with these very weights and tables for sequences of `tokens`; ConfigError if its position is not defined there."""
    model = Transformer(cfg, vocab_size(cfg.tokenizer), tokens)
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise ConfigError.at("config", f"is not that of these weights: {str(error).splitlines()[-1].strip()}") from None
    return model.eval().to(device)


def extended(cfg: Config, word: str, multiple: int) -> Config:
    """The config with its rotary embedding stretched for contexts of so many times the one of training; ConfigError if it has none."""
    check_stretch(cfg.position, word)
    scaling = {**shipped("position/scaling", word), "factor": float(multiple)}
    if "original_context" in scaling:
        scaling["original_context"] = cfg.model.context
    position = POSITION.options("rope").model_validate({**cfg.position.model_dump(), "scaling": scaling})
    return cfg.model_copy(update={"position": position})


@torch.no_grad()
def loss_of_last(model: Transformer, stretches: Sequence[Ids], tokens: int, num_targets: int, cfg: Config, device: torch.device) -> float:
    """The mean loss of the last targets of each stretch, predicted from its last `tokens` inputs."""
    batch = max(1, cfg.train.micro_batch_size * cfg.model.context // tokens)  # as many tokens at once as in training
    nats = 0.0
    for start in range(0, len(stretches), batch):
        ids = torch.from_numpy(np.stack(stretches[start : start + batch]).astype(np.int64)).to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=cfg.dtype == "bfloat16"):
            logits_BTV = model(ids[:, -tokens - 1 : -1])
        nats += F.cross_entropy(logits_BTV[:, -num_targets:].flatten(0, 1), ids[:, -num_targets:].flatten(), reduction="sum").item()
    return nats / (len(stretches) * num_targets)
