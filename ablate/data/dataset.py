"""From the chosen data and tokenizer to ids on disk, once, and the evaluation set."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ablate.data.cache import Cache, hash_of
from ablate.data.corpora import DATA, Source
from ablate.data.evaluation import EvalSet, text_segments, token_segments
from ablate.data.source import Ids, Tokens, TokenSource
from ablate.data.split import Corpus, Split, split_corpus
from ablate.data.synthetic import Task, TaskEvalSet, describe
from ablate.data.token_files import TokenCorpus, TokenFiles, counts_of
from ablate.data.tokenizers import TOKENIZER, Encoder, TrainingText
from ablate.errors import ConfigError
from ablate.registry import Options

FORMAT_VERSION = 1
"""Of what the cache holds: raise it when the same words come to mean other ids."""
BYTES_PER_TOKEN = 4
"""Of token files and tasks: how many tokens stand for a number of bytes asked for."""
BLOCK_BYTES = 4 << 20
SAY_EVERY_BYTES = 256 << 20


@dataclass(frozen=True)
class Dataset:
    """All that training needs to know about its data."""

    train: TokenSource | Task
    eval_set: EvalSet | TaskEvalSet
    vocab_size: int
    content_hash: str
    """sha256 over the corpus, its split, the tokenizer and the evaluation set (a task: its options); it depends on no path or file name."""
    unigram_entropy: float
    """Nats per token of the training tokens (of a task's answers): what a model that knows their frequencies only would lose on them."""
    train_bytes: int | None
    description: dict[str, Any]
    """Documents, bytes, tokens, source, licence: JSON-able, for the record."""
    notices: list[str]
    """What a person should be told."""

    @property
    def collapse_loss(self) -> float:
        """From this evaluation loss on a model that trained long has collapsed. On a task there is none: to be at chance, for long
        and then no more, is how tasks are learned, and to stay there is a result."""
        return math.inf if isinstance(self.train, Task) else self.unigram_entropy


def _silent(message: str) -> None:
    """Says nothing."""


def prepare(
    data: Options, tokenizer: Options, *, eval_bytes: int, segment_bytes: int, cache_dir: Path, say: Callable[[str], None] = _silent
) -> Dataset:
    """The data set of two choices. What is costly is made once and kept in `cache_dir`; any number of processes may ask at once.

    Raises ConfigError for what a person can put right: a missing or broken file, a tokenizer that does not go with the data.
    """
    check_pair(data, tokenizer)
    cache = Cache(cache_dir, say)
    source = DATA.build(data)
    if isinstance(source, Task):
        return _of_task(source, data, max(eval_bytes // BYTES_PER_TOKEN, 1))
    if isinstance(source, Source):
        return _of_text(source, tokenizer, eval_bytes, segment_bytes, cache)
    return _of_tokens(source, tokenizer, eval_bytes, segment_bytes, cache)


def check_pair(data: Options, tokenizer: Options) -> None:
    """ConfigError when the tokenizer does not go with the data, or a task's options not with each other; nothing is read."""
    source = DATA.build(data)
    if isinstance(source, Task):
        _check_vocabulary(source, data.kind, tokenizer)
    elif data.kind == "tokens" and tokenizer.kind in ("bytes", "bpe"):
        cure = "add tokenizer=none tokenizer.vocab_size=..., or tokenizer=file or tiktoken of these ids, which also gives bits per byte"
        raise ConfigError.at("tokenizer", f"{tokenizer.kind} encodes text, but data=tokens is ids already; {cure}")
    elif data.kind != "tokens" and tokenizer.kind == "none":
        raise ConfigError.at("tokenizer", f"none encodes no text, but data={data.kind} is text; allowed: bytes, bpe, file, tiktoken")


def _check_vocabulary(task: Task, kind: str, tokenizer: Options) -> None:
    if tokenizer.kind != "none":
        raise ConfigError.at("tokenizer", f"{tokenizer.kind} encodes text, but data={kind} draws ids: leave tokenizer={tokenizer.kind} out")
    if vocab_size(tokenizer) != task.vocab_size:
        came = f"{vocab_size(tokenizer)} is not the {task.vocab_size} of data={kind}"
        raise ConfigError.at("tokenizer.vocab_size", f"{came}: leave it out, and set data.vocab_size (tokenizer=task follows)")


def vocab_size(tokenizer: Options) -> int:
    """The vocabulary size of a tokenizer, without any data."""
    return TOKENIZER.build(tokenizer).size()


def _of_task(task: Task, chosen: Options, eval_tokens: int) -> Dataset:
    """Nothing is prepared: examples are drawn when they are asked for."""
    options = json.dumps(chosen.model_dump(), sort_keys=True)
    return Dataset(
        train=task,
        eval_set=TaskEvalSet(task, eval_tokens),
        vocab_size=task.vocab_size,
        content_hash=hash_of("task", task.version, options, eval_tokens),
        unigram_entropy=math.log(task.num_answers),
        train_bytes=None,
        description=describe(task, chosen.kind),
        notices=[f"{chosen.kind} is drawn anew for every batch (no epochs); loss and accuracy are those of its answers"],
    )


def _of_text(source: Source, tokenizer: Options, eval_bytes: int, segment_bytes: int, cache: Cache) -> Dataset:
    chosen = TOKENIZER.build(tokenizer)
    corpus = source.corpus(cache)
    split = split_corpus(corpus, cache)
    encoder = chosen.fit(TrainingText(split.content, split.facts["train_bytes"], lambda: split.training(corpus)), cache)
    content = hash_of("encoded", FORMAT_VERSION, split.content, encoder.content)
    folder = cache.entry(f"tokens-{content[:32]}", lambda folder: _encode(corpus, split, encoder, folder, cache.say))
    facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    train = Tokens([np.memmap(folder / "train.bin", _dtype(encoder.vocab_size), mode="r")])
    validation, ends = (folder / "validation.txt").read_bytes(), np.load(folder / "validation_ends.npy")
    texts = text_segments(validation, ends, eval_bytes=eval_bytes, segment_bytes=segment_bytes)
    eval_set = _encoded_segments(texts, encoder)
    notices = [*split.notices, *encoder.notices, *_eval_notices(texts, len(validation), eval_bytes, encoder)]
    return Dataset(
        train=train,
        eval_set=eval_set,
        vocab_size=encoder.vocab_size,
        content_hash=hash_of(content, *texts),
        unigram_entropy=facts["unigram_entropy"],
        train_bytes=split.facts["train_bytes"],
        description={
            **corpus.facts,
            **split.facts,
            "train_tokens": len(train),
            "bytes_per_token": split.facts["train_bytes"] / len(train),
            "eval_bytes": eval_set.bytes,
            "eval_tokens": eval_set.tokens,
        },
        notices=notices,
    )


def _encode(corpus: Corpus, split: Split, encoder: Encoder, folder: Path, say: Callable[[str], None]) -> None:
    """Training ids to train.bin, each document after an end-of-text id; validation text as it is."""
    counts, ends = np.zeros(encoder.vocab_size, np.int64), [0]
    with (folder / "train.bin").open("wb") as train, (folder / "validation.txt").open("wb") as validation:

        def held_in() -> Iterator[bytes]:
            for validates, text in split.parts(corpus):
                if validates:
                    validation.write(text)
                    ends.append(ends[-1] + len(text))
                else:
                    yield text

        for ids in _blocks(held_in(), encoder, split.facts["train_bytes"], say):
            counts += np.bincount(ids, minlength=encoder.vocab_size)
            train.write(ids.tobytes())
    np.save(folder / "validation_ends.npy", np.array(ends[1:], np.int64))
    (folder / "facts.json").write_text(json.dumps({"unigram_entropy": entropy(counts)}), encoding="utf-8")


def _blocks(texts: Iterable[bytes], encoder: Encoder, total: int, say: Callable[[str], None]) -> Iterator[Ids]:
    """The ids of the texts, each after an end-of-text id, in blocks of many texts."""
    dtype = _dtype(encoder.vocab_size)
    separator = np.array([encoder.end_of_text], dtype)
    waiting: list[Ids] = []
    done, given, said = 0, 0, 0
    for text in texts:
        waiting += [separator, encoder.encode(text).astype(dtype)]
        done += len(text)
        if done - given >= BLOCK_BYTES:
            yield np.concatenate(waiting)
            waiting, given = [], done
        if done - said >= SAY_EVERY_BYTES:
            say(f"encoded {done / total:.0%} of the training text")
            said = done
    if waiting:
        yield np.concatenate(waiting)


def entropy(counts: NDArray[np.int64]) -> float:
    """-sum p log p in nats, of frequencies p = counts / sum."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def _encoded_segments(texts: list[bytes], encoder: Encoder) -> EvalSet:
    dtype = _dtype(encoder.vocab_size)
    separator = np.array([encoder.end_of_text], dtype)
    segments: list[Ids] = [np.concatenate([separator, encoder.encode(text).astype(dtype)]) for text in texts]
    return EvalSet(segments, bytes=sum(map(len, texts)), tokens=sum(len(segment) - 1 for segment in segments))


def _of_tokens(files: TokenFiles, tokenizer: Options, eval_bytes: int, segment_bytes: int, cache: Cache) -> Dataset:
    chosen = TOKENIZER.build(tokenizer)
    encoder = chosen.encoder()
    corpus = files.corpus(chosen.size(), cache)
    segments = token_segments(
        corpus.validation,
        eval_tokens=max(eval_bytes // BYTES_PER_TOKEN, 1),
        segment_tokens=max(segment_bytes // BYTES_PER_TOKEN, 1),
        end_of_text=None if encoder is None else encoder.end_of_text,
    )
    lengths = None if encoder is None else encoder.byte_lengths()
    scored = None if lengths is None else int(sum(lengths[segment[1:]].sum() for segment in segments))
    eval_set = EvalSet(segments, bytes=scored, tokens=sum(len(segment) - 1 for segment in segments))
    counts = _counts(corpus, chosen.size(), cache)
    train_bytes = None if lengths is None else int(lengths @ counts)
    tokens = {"train_tokens": len(corpus.train), "validation_tokens": len(corpus.validation), "train_bytes": train_bytes}
    return Dataset(
        train=corpus.train,
        eval_set=eval_set,
        vocab_size=chosen.size(),
        content_hash=hash_of(FORMAT_VERSION, corpus.content, tokenizer.kind, encoder.content if encoder else chosen.size(), *segments),
        unigram_entropy=entropy(counts),
        train_bytes=train_bytes,
        description={
            **corpus.facts,
            **tokens,
            "bytes_per_token": None if train_bytes is None else train_bytes / len(corpus.train),
            "eval_bytes": eval_set.bytes,
            "eval_tokens": eval_set.tokens,
        },
        notices=[*corpus.notices, *_token_notices(encoder, scored, eval_set.tokens, eval_bytes // BYTES_PER_TOKEN)],
    )


def _counts(corpus: TokenCorpus, vocab_size: int, cache: Cache) -> NDArray[np.int64]:
    name = f"counts-{hash_of(corpus.content, vocab_size)[:32]}"
    folder = cache.entry(name, lambda folder: np.save(folder / "counts.npy", counts_of(corpus.train, vocab_size)))
    counts: NDArray[np.int64] = np.load(folder / "counts.npy")
    return counts


def _token_notices(encoder: Encoder | None, scored: int | None, tokens: int, asked: int) -> Iterator[str]:
    if tokens < asked:
        yield f"there are only {tokens} validation tokens of the {asked} asked for evaluation: all of them are scored"
    if encoder is None:
        yield "losses are per token, not per byte, without the tokenizer of these ids: name it (tokenizer=file or tiktoken)"
    elif scored is None:
        yield "the bytes of single ids of this tokenizer are not known, so losses are per token, not per byte"


def _eval_notices(texts: list[bytes], available: int, asked: int, encoder: Encoder) -> Iterator[str]:
    if available < asked:
        yield f"the validation text has only {available} of the {asked} bytes asked for evaluation: all of it is scored"
    if encoder.decode(encoder.encode(texts[0])) != texts[0]:
        yield "the tokenizer does not give back the text it encodes: its bits per byte are of a changed text and do not compare with others"


def _dtype(vocab_size: int) -> type[np.unsignedinteger[Any]]:
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32
