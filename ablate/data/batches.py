"""Ids to batches: training windows in a keyed order or examples of a task, evaluation windows that score every token once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ablate.data.evaluation import EvalSet
from ablate.data.source import IGNORED, TokenSource
from ablate.data.synthetic import TRAINING, Draws, Task, TaskEvalSet
from ablate.errors import ConfigError


class Batches:
    """Batch t, a function of (data_seed, t) alone: any t at once, in any order, in any process. Windows of ids, or a task's examples."""

    def __init__(self, source: TokenSource | Task, *, context: int, batch_size: int, data_seed: int) -> None:
        sizes = {"context": context, "batch_size": batch_size, "data_seed": data_seed}
        self._made = Examples(source, **sizes) if isinstance(source, Task) else Windows(source, **sizes)

    def __call__(self, t: int) -> tuple[Tensor, Tensor]:
        """inputs_BT, targets_BT: int64; targets of -100 do not count."""
        return self._made(t)

    def epochs(self, t: int) -> float:
        """Epochs seen after t batches; 0 of what has no end."""
        return self._made.epochs(t)


class Examples:
    """The examples of a task, none of them drawn twice but by chance."""

    def __init__(self, task: Task, *, context: int, batch_size: int, data_seed: int) -> None:
        task.check(context)
        self.task, self.context, self.batch_size, self.data_seed = task, context, batch_size, data_seed

    def __call__(self, t: int) -> tuple[Tensor, Tensor]:
        inputs, targets = self.task.examples(self.batch_size, self.context, Draws(self.data_seed, TRAINING, t))
        return torch.from_numpy(inputs), torch.from_numpy(targets)

    def epochs(self, t: int) -> float:
        return 0.0


class Windows:
    """Windows of a sequence of ids.

    An epoch cuts the training ids into windows of context + 1 that do not overlap, from a random phase on, in a random order,
    both keyed by (data_seed, epoch). Batch t is rows t * batch_size ... of the endless sequence of epochs. Every epoch has the
    same number of windows, the one that fits at any phase. Only raw Philox output is used, which NumPy keeps the same across
    versions (NEP 19); its shuffles it does not.
    """

    def __init__(self, source: TokenSource, *, context: int, batch_size: int, data_seed: int) -> None:
        self.source, self.context, self.batch_size, self.data_seed = source, context, batch_size, data_seed
        window = context + 1
        if len(source) < window:
            came = f"the training data has {len(source)} tokens, fewer than one window of context + 1 = {window}"
            raise ConfigError.at("data", f"{came}; use a context of at most {len(source) - 1} or more data")
        self._phases = min(context, len(source) - window) + 1
        self.windows_per_epoch = (len(source) - self._phases + 1) // window
        self._orders: dict[int, NDArray[np.int64]] = {}

    def __call__(self, t: int) -> tuple[Tensor, Tensor]:
        rows = np.arange(t * self.batch_size, (t + 1) * self.batch_size, dtype=np.int64)
        epochs, places = np.divmod(rows, self.windows_per_epoch)
        starts = np.concatenate([self._starts(int(epoch), places[epochs == epoch]) for epoch in np.unique(epochs)])
        windows = torch.from_numpy(self.source.windows(starts, self.context + 1))
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()

    def epochs(self, t: int) -> float:
        return t * self.batch_size / self.windows_per_epoch

    def _starts(self, epoch: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        if epoch not in self._orders:
            while len(self._orders) >= 2:  # a batch spans two epochs at most, unless it is longer than one
                del self._orders[next(iter(self._orders))]
            self._orders[epoch] = self._order(epoch)
        starts: NDArray[np.int64] = self._orders[epoch][places]
        return starts

    def _order(self, epoch: int) -> NDArray[np.int64]:
        """The starts of all windows of an epoch, in the order they are visited."""
        bits = np.random.Philox(np.random.SeedSequence(self.data_seed, spawn_key=(epoch,)))
        phase = int(bits.random_raw() % self._phases)
        order = np.argsort(bits.random_raw(self.windows_per_epoch), kind="stable")
        return order * (self.context + 1) + phase


def eval_batches(eval_set: EvalSet | TaskEvalSet, *, context: int, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """inputs_BT, targets_BT of each batch: every token of every segment is a target exactly once, or every answer of a task.

    A segment is cut into windows of `context` inputs; the last one is padded, with targets -100. The last batch is padded with
    rows without a target, so that all batches have one shape and nothing is compiled twice.
    """
    rows = eval_set.rows(context)
    while batch := list(itertools.islice(rows, batch_size)):
        inputs_BT = np.zeros((batch_size, context), np.int64)
        targets_BT = np.full((batch_size, context), IGNORED, np.int64)
        for place, (inputs, targets) in enumerate(batch):
            inputs_BT[place, : len(inputs)] = inputs
            targets_BT[place, : len(targets)] = targets
        yield torch.from_numpy(inputs_BT), torch.from_numpy(targets_BT)
