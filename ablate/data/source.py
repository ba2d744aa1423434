"""Token ids that lie in files, seen as one long sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[Any]

IGNORED = -100
"""The target that torch's cross-entropy leaves out."""


class TokenSource(Protocol):
    """A sequence of token ids."""

    def __len__(self) -> int: ...

    def windows(self, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """The ids `[start, start + length)` of each start: [n, length]."""
        ...


class Tokens:
    """Arrays of ids (memory-mapped shards, or slices of them) one after the other, without a copy."""

    def __init__(self, parts: Sequence[Ids]) -> None:
        self.parts = [np.asarray(part) for part in parts if len(part)]
        self._ends = np.cumsum([len(part) for part in self.parts], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if self.parts else 0

    def windows(self, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """The ids `[start, start + length)` of each start, across the seams between parts: [n, length]."""
        rows = np.empty((len(starts), length), np.int64)
        for row, start, part in zip(rows, starts, np.searchsorted(self._ends, starts, side="right"), strict=True):
            self._copy(row, int(start), int(part))
        return rows

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """The ids from start to stop."""
        ids: NDArray[np.int64] = self.windows(np.array([start]), stop - start)[0]
        return ids

    def slices(self, bounds: Sequence[tuple[int, int]]) -> Tokens:
        """The given stretches, in that order, as a sequence of their own."""
        parts: list[Ids] = []
        for start, stop in bounds:
            for part, end in zip(self.parts, self._ends, strict=True):
                first = int(end) - len(part)
                parts.append(part[max(start - first, 0) : max(stop - first, 0)])
        return Tokens(parts)

    def _copy(self, row: NDArray[np.int64], start: int, part: int) -> None:
        assert 0 <= start <= len(self) - len(row), "a window outside the sequence"
        done = 0
        while done < len(row):
            offset = start + done - (int(self._ends[part]) - len(self.parts[part]))
            ids = self.parts[part][offset : offset + len(row) - done]
            row[done : done + len(ids)] = ids
            done += len(ids)
            part += 1
