"""Synthetic tasks as data: examples drawn anew for every batch, of ids that stand for nothing, with an answer at some positions.

Plainest first. A task is a class under `DATA.register` with `examples`, and its YAML, which also chooses `tokenizer: task`, the
vocabulary that the task names. An example is as long as the context; the model sees inputs_BT, and only answers are scored: at
every other position the target is -100. Every example of a task has equally many answers, so that the mean over a batch is the
mean over its parts, and each answer follows from the inputs up to its position.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ablate.data.corpora import DATA
from ablate.data.source import IGNORED, Ids
from ablate.errors import ConfigError
from ablate.registry import Count, Positive

TRAINING, EVALUATION = 0, 1
"""First part of the key of a stream of draws, so that no seed trains on the draws that are evaluated."""
EVALUATION_SEED = 0

Examples = tuple[NDArray[np.int64], NDArray[np.int64]]
"""inputs_BT, targets_BT"""


class Draws:
    """Random numbers by key. Only raw Philox output is used, which NumPy keeps the same across versions (NEP 19)."""

    def __init__(self, seed: int, *key: int) -> None:
        self._bits = np.random.Philox(np.random.SeedSequence(seed, spawn_key=key))

    def raw(self, *shape: int) -> NDArray[np.uint64]:
        """Uniform 64-bit numbers."""
        numbers: NDArray[np.uint64] = self._bits.random_raw(math.prod(shape)).reshape(shape)
        return numbers

    def below(self, limit: int, *shape: int) -> NDArray[np.int64]:
        """Uniform in 0 .. limit - 1, to within limit / 2^64."""
        return (self.raw(*shape) % np.uint64(limit)).astype(np.int64)

    def share(self, *shape: int) -> NDArray[np.float64]:
        """Uniform between 0 and 1, neither of them included."""
        return ((self.raw(*shape) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53

    def distinct(self, limit: int, rows: int, count: int) -> NDArray[np.int64]:
        """In each row `count` different numbers of 0 .. limit - 1, in random order: [rows, count].

        R. W. Floyd's sampling (CACM 30(9), 1987): its cost depends on `count`, not on `limit`.
        """
        chosen = np.empty((rows, count), np.int64)
        for place, last in enumerate(range(limit - count, limit)):
            drawn = self.below(last + 1, rows)
            taken = (chosen[:, :place] == drawn[:, None]).any(1)
            chosen[:, place] = np.where(taken, last, drawn)
        return np.take_along_axis(chosen, np.argsort(self.raw(rows, count), axis=1, kind="stable"), 1)


class Task(ABC):
    """A variant of data: a rule that makes examples and their answers."""

    version = 1
    """Raised when the same options come to mean other examples: old runs then no longer count as done."""
    vocab_size: int
    num_answers: int
    """Ids that can be an answer; over all examples each is one equally often."""

    @abstractmethod
    def check(self, context: int) -> None:
        """ConfigError when no example has `context` positions."""

    @abstractmethod
    def examples(self, rows: int, context: int, draws: Draws) -> Examples:
        """Examples that follow from the draws alone."""


@dataclass(frozen=True)
class TaskEvalSet:
    """Fixed examples of a task, the same for every arm and seed of one context: as many as `asked` tokens have room for."""

    task: Task
    asked: int
    bytes: None = None

    def rows(self, context: int) -> Iterator[tuple[Ids, Ids]]:
        """The inputs and targets of each example."""
        self.task.check(context)
        rows = max(self.asked // context, 1)
        return zip(*self.task.examples(rows, context, Draws(EVALUATION_SEED, EVALUATION)), strict=True)


def at_least(key: str, came: int, needed: int, why: str) -> None:
    """ConfigError when an option is too small."""
    if came < needed:
        raise ConfigError.at(key, f"{why} needs at least {needed}, got {came}")


def even(task: str, context: int) -> None:
    """ConfigError when a task of two halves meets an odd context."""
    if context % 2:
        raise ConfigError.at("model.context", f"data={task} needs an even number, got {context}; use {context + 1}")


@DATA.register("copy")
class Copy(Task):
    """Random symbols, a separator, and the symbols again (arXiv 2402.01032): s_1 ... s_n 0 s_1 ... s_(n-1), answers s_1 ... s_n.

    n is half the context. Symbols 1 .. vocab_size - 1 repeat at will, so that an answer is found by its place, n positions back,
    and not by what stands before it; data=induction is the other way round.
    """

    def __init__(self, *, vocab_size: Count) -> None:
        at_least("data.vocab_size", vocab_size, 3, "data=copy (a separator and the symbols)")
        self.vocab_size, self.num_answers = vocab_size, vocab_size - 1

    def check(self, context: int) -> None:
        even("copy", context)

    def examples(self, rows: int, context: int, draws: Draws) -> Examples:
        symbols = 1 + draws.below(self.vocab_size - 1, rows, context // 2)
        separator = np.zeros((rows, 1), np.int64)
        return np.hstack([symbols, separator, symbols[:, :-1]]), np.hstack([np.full_like(symbols, IGNORED), symbols])


@DATA.register("induction")
class Induction(Task):
    """A block of random tokens over and over (repeated random tokens, arXiv 2209.11895): ... A B ... A -> B.

    The length of the block is drawn for each example, from a quarter to half of the context, so that no fixed distance gives the
    answer; its tokens are all different, so that the token after the last A does. Answers: the next token, in the second half.
    """

    def __init__(self, *, vocab_size: Count) -> None:
        at_least("data.vocab_size", vocab_size, 2, "data=induction")
        self.vocab_size = self.num_answers = vocab_size

    def check(self, context: int) -> None:
        at_least("model.context", context, 4, "data=induction (a block of a quarter of it)")
        if context // 2 > self.vocab_size:
            cure = f"use data.vocab_size={context // 2} or more, or model.context={2 * self.vocab_size} or less"
            raise ConfigError.at(
                "model.context", f"half of {context} tokens cannot all differ with data.vocab_size={self.vocab_size}: {cure}"
            )

    def examples(self, rows: int, context: int, draws: Draws) -> Examples:
        longest = context // 2
        blocks = draws.distinct(self.vocab_size, rows, longest)
        lengths = context // 4 + draws.below(longest - context // 4 + 1, rows)
        tokens = np.take_along_axis(blocks, np.arange(context + 1) % lengths[:, None], 1)
        targets = tokens[:, 1:].copy()
        targets[:, :longest] = IGNORED
        return tokens[:, :-1], targets


@DATA.register("mqar")
class MultiQueryRecall(Task):
    """Multi-query associative recall (arXiv 2312.04927): k_1 v_1 ... k_K v_K, then each key once more, where its value is the answer.

    Keys are K different ids of 1 .. V/2 - 1, values K different ones of V/2 .. V - 1. Key i is asked for at position 2K + 2 g_i, where
    the g_i are different numbers of 0 .. (context - 2K)/2 - 1, drawn one after the other with weights (g + 1)^(power - 1). All other
    positions hold random ids but the example's keys: by chance a key would come once more, with another id than its value after it.
    The answer is not shown after the question. The paper has V = 8192, K of 4 to 64, contexts of 64 to 512, power 0.01.
    """

    def __init__(self, *, vocab_size: Count, num_pairs: Count, power: Positive) -> None:
        half = vocab_size // 2
        if vocab_size % 2 or num_pairs > half - 1:
            needed = f"an even number of at least {2 * num_pairs + 2} for data.num_pairs={num_pairs} (keys are 1 .. V/2 - 1)"
            raise ConfigError.at("data.vocab_size", f"data=mqar needs {needed}, got {vocab_size}")
        self.vocab_size, self.num_answers, self.num_pairs, self.power = vocab_size, half, num_pairs, power

    def check(self, context: int) -> None:
        pairs = self.num_pairs
        if context % 2 or context < 4 * pairs:
            cure = f"use model.context={4 * pairs} or more" + (f", or data.num_pairs={context // 4} or less" if context >= 4 else "")
            came = f"an even number of at least 4 data.num_pairs = {4 * pairs}, got {context}"
            raise ConfigError.at("model.context", f"data=mqar needs {came}; {cure}")

    def examples(self, rows: int, context: int, draws: Draws) -> Examples:
        half, pairs = self.vocab_size // 2, self.num_pairs
        keys, values = 1 + draws.distinct(half - 1, rows, pairs), half + draws.distinct(half, rows, pairs)
        asked = 2 * pairs + 2 * self._gaps(rows, (context - 2 * pairs) // 2, draws)
        inputs = _without(draws.below(self.vocab_size - pairs, rows, context), keys)
        inputs[:, 0 : 2 * pairs : 2], inputs[:, 1 : 2 * pairs : 2] = keys, values
        np.put_along_axis(inputs, asked, keys, 1)
        targets = np.full((rows, context), IGNORED, np.int64)
        np.put_along_axis(targets, asked, values, 1)
        return inputs, targets

    def _gaps(self, rows: int, choices: int, draws: Draws) -> NDArray[np.int64]:
        """Weighted draws without replacement: in the order of exponential waiting times of these rates."""
        waits = -np.log(draws.share(rows, choices)) / np.arange(1, choices + 1) ** (self.power - 1)
        return np.argsort(waits, axis=1, kind="stable")[:, : self.num_pairs]


def _without(ranks: NDArray[np.int64], excluded: NDArray[np.int64]) -> NDArray[np.int64]:
    """The id of each rank among the ids that are not excluded from its row."""
    ids = ranks.copy()
    for smallest_first in np.sort(excluded, axis=1).T:
        ids += ids >= smallest_first[:, None]
    return ids


@DATA.register("dyck")
class Dyck(Task):
    """Well-bracketed words of k kinds of brackets, at most `max_depth` open at once: Dyck-(k, m) (arXiv 2010.07515, 2105.11115).

    Ids 0 .. k - 1 open, k .. 2k - 1 close; k is half of vocab_size. Each example is a whole word, as long as the context, drawn
    uniformly from the shapes of that depth; kinds are uniform. Answers: the closing brackets, each at the position before it.
    Whether the next bracket closes is chance and not scored: only which kind does.
    """

    def __init__(self, *, vocab_size: Count, max_depth: Count) -> None:
        if vocab_size % 2 or vocab_size < 4:
            needed = "an even number of at least 4 (two kinds of brackets)"
            raise ConfigError.at("data.vocab_size", f"data=dyck needs {needed}, got {vocab_size}")
        self.vocab_size, self.num_answers, self.max_depth = vocab_size, vocab_size // 2, max_depth
        self._chances: dict[int, NDArray[np.float64]] = {}

    def check(self, context: int) -> None:
        even("dyck", context)

    def examples(self, rows: int, context: int, draws: Draws) -> Examples:
        if context not in self._chances:
            self._chances[context] = chances_to_open(context, self.max_depth)
        depth, row = np.zeros(rows, np.int64), np.arange(rows)
        open_kinds = np.zeros((rows, self.max_depth + 1), np.int64)
        words, closes = np.empty((context, rows), np.int64), np.empty((context, rows), np.bool_)
        drawn = zip(draws.share(context, rows), draws.below(self.num_answers, context, rows), self._chances[context], strict=True)
        for place, (share, kind, chances) in enumerate(drawn):
            closing = share >= chances[depth]
            depth -= closing
            kind = np.where(closing, open_kinds[row, depth], kind)
            open_kinds[row, depth] = kind
            words[place], closes[place] = kind + self.num_answers * closing, closing
            depth += ~closing
        targets = np.full((rows, context), IGNORED, np.int64)
        targets[:, :-1] = np.where(closes[1:], words[1:], IGNORED).T
        return np.ascontiguousarray(words.T), targets


def chances_to_open(length: int, max_depth: int) -> NDArray[np.float64]:
    """[length, max_depth + 1]: the share that opens a bracket, of the ways from a place and a depth to depth 0 at the end."""
    ways = np.zeros(max_depth + 3)  # by depth, with a closed border on both sides
    ways[1] = 1.0
    chances = np.zeros((length, max_depth + 1))
    for place in reversed(range(length)):
        up, down = ways[2:], ways[:-2]
        total = up + down
        np.divide(up, total, out=chances[place], where=total > 0)
        ways[1:-1] = total / total.max()  # only proportions count, and the numbers themselves would overflow
    return chances


def describe(task: Task, kind: str) -> dict[str, Any]:
    """What the record says of a task."""
    return {"source": f"task {kind}, drawn anew for every batch", "licence": "none needed", "chance_accuracy": 1 / task.num_answers}
