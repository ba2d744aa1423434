"""Which documents validate: decided by what they say, never by where they stand."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ablate.data.cache import Cache, hash_of
from ablate.data.evaluation import boundary
from ablate.errors import ConfigError

SPLIT_VERSION = 1
VALIDATION_SHARE = 10
"""One part in ten validates."""
MAX_VALIDATION_BYTES = 32 << 20
SAY_EVERY_BYTES = 1 << 30
PIECES = 100
"""A corpus that is one document is cut into this many pieces."""
TRAIN, VALIDATION, REPEATED = 0, 1, 2
"""A document's side; REPEATED is a copy of a validation document, which is scored once and never trained on."""


class Document(NamedTuple):
    """One text in UTF-8; documents of one group stay on one side."""

    text: bytes
    group: str = ""


@dataclass(frozen=True)
class Corpus:
    """Documents that can be streamed again and again, always in the same order."""

    key: str
    """The config key that chose it, for messages."""
    content: str
    """Hash of what the documents say, in order; it does not depend on the names of files."""
    documents: Callable[[], Iterator[Document]]
    facts: dict[str, Any]
    """source, licence: for the record."""
    grouped: bool = False


@dataclass(frozen=True)
class Split:
    """The side of each document and, when there are too few documents to choose among, the size of the pieces to cut."""

    content: str
    sides: NDArray[np.uint8]
    piece_bytes: int
    facts: dict[str, int]
    notices: list[str]

    def parts(self, corpus: Corpus) -> Iterator[tuple[bool, bytes]]:
        """The corpus once: (does it validate, text)."""
        for side, document in zip(self.sides, _without_nul(corpus.documents()), strict=True):
            if self.piece_bytes:
                yield from _pieces(document.text, self.piece_bytes)
            elif side != REPEATED:
                yield bool(side == VALIDATION), document.text

    def training(self, corpus: Corpus) -> Iterator[bytes]:
        """The training documents."""
        return (text for validates, text in self.parts(corpus) if not validates)


def split_corpus(corpus: Corpus, cache: Cache) -> Split:
    """The split of a corpus, worked out once and kept in the cache."""
    content = hash_of("split", SPLIT_VERSION, corpus.content)
    folder = cache.entry(f"split-{content[:32]}", lambda folder: _save(folder, *_decide(corpus, cache.say)))
    saved = json.loads((folder / "split.json").read_text(encoding="utf-8"))
    return Split(content=content, sides=np.load(folder / "sides.npy"), **saved)


def _save(folder: Path, sides: NDArray[np.uint8], saved: dict[str, Any]) -> None:
    np.save(folder / "sides.npy", sides)
    (folder / "split.json").write_text(json.dumps(saved), encoding="utf-8")


def _decide(corpus: Corpus, say: Callable[[str], None]) -> tuple[NDArray[np.uint8], dict[str, Any]]:
    index = _index(corpus, say)
    if not len(index.lengths):
        raise ConfigError.at(corpus.key, "there is no text in it: every document is empty; name a file with text")
    sides = _by_group(index) if corpus.grouped else _by_content(index)
    notices = []
    if index.nul_documents:
        notices.append(f"{index.nul_documents} documents held NUL characters; they are left out (NUL separates documents)")
    piece_bytes = 0
    if not (sides == VALIDATION).any():
        piece_bytes = max(1, -(-int(index.lengths.sum()) // PIECES))
        unique = len(np.unique(index.keys))
        notices.append(_few_documents(unique, piece_bytes))
    facts = _piece_facts(corpus, sides, piece_bytes) if piece_bytes else _facts(index.lengths, sides)
    for side in ("train", "validation"):
        if not facts[f"{side}_bytes"]:
            came = f"only {int(index.lengths.sum())} bytes of text: too short to train and validate on"
            raise ConfigError.at(corpus.key, f"{came}; name a longer text")
    say(f"split {facts['documents']} documents: {facts['train_bytes']} bytes to train on, {facts['validation_bytes']} to validate")
    return sides, {"piece_bytes": piece_bytes, "facts": facts, "notices": notices}


def _few_documents(unique: int, piece_bytes: int) -> str:
    what = "the corpus is one document" if unique == 1 else f"the corpus is {unique} documents, each more than a seventh of it"
    return (
        f"{what}: it is cut at line ends into pieces of about {piece_bytes} bytes and every tenth piece validates, so training and "
        "validation text are neighbours; separate documents by files, JSON lines or <|endoftext|> for a cleaner split"
    )


def _facts(lengths: NDArray[np.int64], sides: NDArray[np.uint8]) -> dict[str, int]:
    facts = {"documents": len(sides)}
    for name, side in (("train", TRAIN), ("validation", VALIDATION)):
        facts[f"{name}_documents"] = int((sides == side).sum())
        facts[f"{name}_bytes"] = int(lengths[sides == side].sum())
    return facts


def _piece_facts(corpus: Corpus, sides: NDArray[np.uint8], piece_bytes: int) -> dict[str, int]:
    parts = [(validates, len(text)) for validates, text in Split("", sides, piece_bytes, {}, []).parts(corpus)]
    validates, lengths = (np.array(column) for column in zip(*parts, strict=True))
    return {**_facts(lengths, np.where(validates, VALIDATION, TRAIN).astype(np.uint8)), "documents": len(sides)}


class _Index(NamedTuple):
    keys: NDArray[np.uint64]
    lengths: NDArray[np.int64]
    groups: list[str]
    nul_documents: int


def _index(corpus: Corpus, say: Callable[[str], None]) -> _Index:
    """The first pass: the first 64 bits of each document's sha256, its length and its group."""
    keys, lengths, groups, nul_documents, read = array("Q"), array("q"), [], 0, 0
    for document in corpus.documents():
        text = document.text.replace(b"\0", b"")
        nul_documents += len(text) != len(document.text)
        if text:
            keys.append(int.from_bytes(hashlib.sha256(text).digest()[:8], "big"))
            lengths.append(len(text))
            if corpus.grouped:
                groups.append(document.group)
        if read // SAY_EVERY_BYTES != (read + len(text)) // SAY_EVERY_BYTES:
            say(f"read {len(lengths)} documents, {read + len(text)} bytes")
        read += len(text)
    return _Index(np.array(keys, np.uint64), np.array(lengths, np.int64), groups, nul_documents)


def _without_nul(documents: Iterator[Document]) -> Iterator[Document]:
    for document in documents:
        text = document.text.replace(b"\0", b"")
        if text:
            yield Document(text, document.group)


def _by_group(index: _Index) -> NDArray[np.uint8]:
    """Every tenth of the sorted groups validates: the tenth, the twentieth, ..."""
    chosen = sorted(set(index.groups))[VALIDATION_SHARE - 1 :: VALIDATION_SHARE]
    return np.isin(np.array(index.groups), chosen).astype(np.uint8)


def _by_content(index: _Index) -> NDArray[np.uint8]:
    """In the order of their hashes, unique documents validate until a tenth of the bytes (at most 32 MiB) is reached.

    A document that would overshoot that by half is passed over; if that leaves none, nothing is marked.
    """
    keys, first, inverse = np.unique(index.keys, return_index=True, return_inverse=True)
    lengths = index.lengths[first]
    target = min(int(lengths.sum()) // VALIDATION_SHARE, MAX_VALIDATION_BYTES)
    validates = np.zeros(len(keys), bool)
    taken = 0
    for place, length in enumerate(lengths):
        if taken >= target:
            break
        if taken + length <= target * 1.5:
            validates[place] = True
            taken += int(length)
    sides = np.where(validates[inverse], REPEATED, TRAIN).astype(np.uint8)
    sides[first[validates]] = VALIDATION
    return sides


def _pieces(text: bytes, piece_bytes: int) -> Iterator[tuple[bool, bytes]]:
    """Every tenth piece validates; the pieces between two of them stay together as one training text."""
    start, number, train_start = 0, 0, 0
    while start < len(text):
        stop = line_end(text, start, piece_bytes)
        if number % VALIDATION_SHARE == VALIDATION_SHARE - 1:
            if start > train_start:
                yield False, text[train_start:start]
            yield True, text[start:stop]
            train_start = stop
        start, number = stop, number + 1
    if train_start < len(text):
        yield False, text[train_start:]


def line_end(text: bytes, start: int, size: int) -> int:
    """Where a piece of about `size` bytes from `start` ends: after the last paragraph, line or word in it, or where a character does."""
    stop = min(start + size, len(text))
    if stop == len(text):
        return stop
    for mark in (b"\n\n", b"\n", b" "):
        found = text.rfind(mark, start + size // 2, stop)
        if found >= 0:
            return found + len(mark)
    return boundary(text, stop)
