"""The evaluation set: a fixed set of bytes, the same for every tokenizer, context and arm."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ablate.data.source import Ids, Tokens


@dataclass(frozen=True)
class EvalSet:
    """Segments that are scored each by itself: the first id of a segment is context only, every other one is a target."""

    segments: list[Ids]
    """Each: [end-of-text] + ids of one byte segment (token files without a tokenizer: the token before, then the segment)."""
    bytes: int | None
    """Bytes scored, None when they cannot be known."""
    tokens: int
    """Tokens scored: sum(len(segment) - 1)."""

    def rows(self, context: int) -> Iterator[tuple[Ids, Ids]]:
        """The inputs and targets of windows of at most `context` inputs: each segment cut, every token of it a target once."""
        for segment in self.segments:
            for start in range(0, len(segment) - 1, context):
                window = segment[start : start + context + 1]
                yield window[:-1], window[1:]


def text_segments(text: bytes, ends: Sequence[int], *, eval_bytes: int, segment_bytes: int) -> list[bytes]:
    """`eval_bytes` of the validation text as evenly spaced segments of `segment_bytes`; all of a shorter text.

    Cuts stand at UTF-8 boundaries, so that a segment can be a few bytes longer or shorter, and a segment that meets the end
    of a document (`ends`: offsets) is cut there in two: what is before a document says nothing about it.
    """
    total = min(eval_bytes, len(text))
    cuts = [*range(0, total, segment_bytes), total]
    gap = (len(text) - total) / max(len(cuts) - 1, 1)
    segments: list[bytes] = []
    for index, (start, stop) in enumerate(itertools.pairwise(cuts)):
        shift = int(index * gap)
        first, last = boundary(text, start + shift), boundary(text, stop + shift)
        inside = np.searchsorted(ends, [first, last], side="right")
        inner = [int(end) for end in ends[inside[0] : inside[1]] if first < end < last]
        segments += [text[a:b] for a, b in itertools.pairwise([first, *inner, last]) if b > a]
    return segments


def boundary(text: bytes, at: int) -> int:
    """The first place from `at` on where a UTF-8 character begins."""
    while at < len(text) and text[at] & 0xC0 == 0x80:
        at += 1
    return min(at, len(text))


def token_segments(tokens: Tokens, *, eval_tokens: int, segment_tokens: int, end_of_text: int | None) -> list[Ids]:
    """`eval_tokens` of the validation ids as evenly spaced segments, each after the end-of-text id or, without one, the id before it."""
    context = end_of_text is None
    available = len(tokens) - context
    total = min(eval_tokens, available)
    cuts = [*range(0, total, segment_tokens), total]
    gap = (available - total) / max(len(cuts) - 1, 1)
    segments: list[Ids] = []
    for index, (start, stop) in enumerate(itertools.pairwise(cuts)):
        shift = int(index * gap)
        ids = tokens.read(start + shift, stop + shift + context)
        segments.append(ids if end_of_text is None else np.concatenate([[end_of_text], ids]))
    return segments
