"""The axis tokenizer: text in UTF-8 -> ids.

Plainest first. A variant knows its vocabulary size without any data; `fit` gives the encoder, for which `bpe` needs the training text.
"""

from __future__ import annotations

import base64
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ablate.data.cache import Cache, hash_of
from ablate.data.source import Ids
from ablate.errors import ConfigError, did_you_mean
from ablate.registry import Count, Registry

END_OF_TEXT = "<|endoftext|>"
BPE_VERSION = 1
LONG_BLANK = r"(\s{4096})"
MAX_BPE_TRAINING_BYTES = 100 << 20
"""A longer training text is sampled evenly: more text hardly moves the merges and the trainer keeps every word in memory."""
PATTERNS = {
    "gpt2": r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""",
    "cl100k": r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s""",
    "o200k": "|".join(
        [
            r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
            r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
            r"""\p{N}{1,3}""",
            r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""",
            r"""\s*[\r\n]+""",
            r"""\s+(?!\S)""",
            r"""\s+""",
        ]
    ),
}
"""How text is cut into words before merging; gpt2 is also what byte-level BPE of the package tokenizers does (tiktoken's openai_public)."""


@dataclass(frozen=True)
class TrainingText:
    """The training side of a corpus, for a tokenizer that is trained on it."""

    content: str
    num_bytes: int
    documents: Callable[[], Iterator[bytes]]


class Encoder(ABC):
    """Text to ids and back."""

    vocab_size: int
    end_of_text: int
    """The id that stands before every document and every evaluation segment."""
    content: str
    """Hash of all that decides the ids."""
    notices: Sequence[str] = ()

    @abstractmethod
    def encode(self, text: bytes) -> Ids:
        """The ids of a UTF-8 text; text that looks like a special token is plain text."""

    @abstractmethod
    def decode(self, ids: Ids) -> bytes:
        """The text of ids; the end-of-text id stands for nothing."""

    def byte_lengths(self) -> NDArray[np.int64] | None:
        """Bytes of text that each id stands for (special tokens: 0), None when that depends on the ids around it."""
        return None


class Tokenizer(ABC):
    """A variant of tokenizer."""

    @abstractmethod
    def size(self) -> int:
        """The vocabulary size a model needs, known without any data."""

    @abstractmethod
    def fit(self, training: TrainingText, cache: Cache) -> Encoder:
        """The encoder, trained on the training text if it is of that kind."""

    def encoder(self) -> Encoder | None:
        """The encoder when it needs no training text, for token files that were made with it."""
        return None


TOKENIZER: Registry[Tokenizer] = Registry("tokenizer")


@TOKENIZER.register("bytes")
class Bytes(Tokenizer, Encoder):
    """Every byte is an id: 256 of them. Id 0 (NUL, which no text holds) is the end of text."""

    vocab_size = 256
    end_of_text = 0
    content = "bytes"

    def __init__(self) -> None: ...

    def size(self) -> int:
        return self.vocab_size

    def fit(self, training: TrainingText, cache: Cache) -> Encoder:
        return self

    def byte_lengths(self) -> NDArray[np.int64]:
        lengths = np.ones(self.vocab_size, np.int64)
        lengths[self.end_of_text] = 0
        return lengths

    def encode(self, text: bytes) -> Ids:
        return np.frombuffer(text, np.uint8)

    def decode(self, ids: Ids) -> bytes:
        return ids.astype(np.uint8).tobytes().replace(b"\0", b"")


@TOKENIZER.register("bpe")
class BytePairs(Tokenizer):
    """Byte-level BPE of `vocab_size` entries, trained once on the training text and kept in the cache.

    GPT-2's (byte alphabet, GPT-2's words), min_frequency 2, with one special token, `<|endoftext|>`, as id 0. The package
    tokenizers trains it (deterministic for one version of it); tiktoken encodes with the same merges, ten times as fast.
    """

    def __init__(self, *, vocab_size: Annotated[int, Field(ge=257)]) -> None:
        self._size = vocab_size

    def size(self) -> int:
        return self._size

    def fit(self, training: TrainingText, cache: Cache) -> Encoder:
        key = hash_of("bpe", BPE_VERSION, training.content, self._size)
        folder = cache.entry(f"bpe-{key[:32]}", lambda folder: self._train(training, folder / "tokenizer.json", cache))
        written = (folder / "tokenizer.json").read_bytes()
        vocab: dict[str, int] = json.loads(written)["model"]["vocab"]
        ranks = {_bytes_of(token): rank for token, rank in vocab.items() if token != END_OF_TEXT}
        content = hash_of("bpe", written)
        notices = []
        if len(vocab) < self._size:
            notices.append(f"the training text gives only {len(vocab)} of the {self._size} vocabulary entries; the rest are never used")
        return Ranks(ranks, PATTERNS["gpt2"], vocab[END_OF_TEXT], self._size, content, notices)

    def _train(self, training: TrainingText, target: Path, cache: Cache) -> None:
        from tokenizers import Tokenizer as Trained
        from tokenizers import decoders, models, pre_tokenizers, trainers

        cache.say(f"training a byte-level BPE tokenizer of {self._size} entries (once)")
        trained = Trained(models.BPE())
        trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trained.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=self._size,
            min_frequency=2,
            special_tokens=[END_OF_TEXT],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        every = -(-training.num_bytes // MAX_BPE_TRAINING_BYTES)
        sample = (text.decode("utf-8") for number, text in enumerate(training.documents()) if number % every == 0)
        trained.train_from_iterator(sample, trainer)
        trained.save(str(target), pretty=False)


class Ranks(Encoder):
    """Byte-level BPE in tiktoken's form: of all neighbours whose join has a rank, the lowest rank merges first."""

    def __init__(
        self, ranks: Mapping[bytes, int], pattern: str, end_of_text: int, vocab_size: int, content: str, notices: Sequence[str] = ()
    ) -> None:
        from tiktoken import Encoding

        self.end_of_text, self.vocab_size, self.content, self.notices = end_of_text, vocab_size, content, notices
        self._ranks = ranks
        self._encoding = Encoding(content[:12], pat_str=pattern, mergeable_ranks=dict(ranks), special_tokens={END_OF_TEXT: end_of_text})

    def encode(self, text: bytes) -> Ids:
        decoded = text.decode("utf-8")
        try:
            return self._encoding.encode_to_numpy(decoded, disallowed_special=())
        except ValueError:  # tiktoken's regular expression gives up on very long blanks: those are cut
            parts = re.split(LONG_BLANK, decoded)
            return np.concatenate([self._encoding.encode_to_numpy(part, disallowed_special=()) for part in parts])

    def decode(self, ids: Ids) -> bytes:
        return self._encoding.decode_bytes([int(id) for id in ids if id != self.end_of_text])

    def byte_lengths(self) -> NDArray[np.int64]:
        lengths = np.zeros(self.vocab_size, np.int64)
        for token, rank in self._ranks.items():
            lengths[rank] = len(token)
        return lengths


@TOKENIZER.register("file")
class TokenizerFile(Tokenizer):
    """A tokenizer.json of the package tokenizers. `end_of_text` names its end-of-text token; null looks for one of the usual names."""

    USUAL = (END_OF_TEXT, "<|end_of_text|>", "<|begin_of_text|>", "</s>", "<eos>", "<|eos|>", "[SEP]")

    def __init__(self, *, path: str, end_of_text: str | None) -> None:
        self.path, self.name = path, end_of_text

    def size(self) -> int:
        return self.encoder().vocab_size

    def fit(self, training: TrainingText, cache: Cache) -> Encoder:
        return self.encoder()

    def encoder(self) -> FileEncoder:
        from tokenizers import Tokenizer as Loaded

        written = read_named_file("tokenizer.path", self.path)
        try:
            loaded = Loaded.from_str(written.decode("utf-8"))
        except Exception as error:  # tokenizers raises bare Exception
            cure = "name a tokenizer.json as the package tokenizers saves it"
            raise ConfigError.at("tokenizer.path", f"{self.path!r} is not a tokenizer ({error}); {cure}") from None
        return FileEncoder(loaded, self._end_of_text(loaded), hash_of("file", written, self.name), json.loads(written))

    def _end_of_text(self, loaded: Any) -> int:
        vocab: dict[str, int] = loaded.get_vocab(with_added_tokens=True)
        specials = sorted(token.content for token in loaded.get_added_tokens_decoder().values() if token.special)
        wanted = [self.name] if self.name is not None else self.USUAL
        for name in wanted:
            if name in vocab:
                return vocab[name]
        allowed = f"its special tokens: {', '.join(specials) or 'none'}"
        if self.name is None:
            raise ConfigError.at("tokenizer.end_of_text", f"name it: {self.path!r} has none of the usual names; {allowed}")
        near = did_you_mean(self.name, vocab)
        raise ConfigError.at("tokenizer.end_of_text", f"{self.name!r} is not in the vocabulary of {self.path!r}; {allowed}{near}")


class FileEncoder(Encoder):
    """A loaded tokenizer.json, without the special tokens that it would put around a text."""

    def __init__(self, loaded: Any, end_of_text: int, content: str, written: dict[str, Any]) -> None:
        self._loaded = loaded
        self._loaded.encode_special_tokens = True
        self._loaded.no_truncation()
        self._loaded.no_padding()
        self._byte_level = "ByteLevel" in _decoder_types(written)
        self.vocab = loaded.get_vocab(with_added_tokens=True)
        self.vocab_size = max(self.vocab.values()) + 1
        self.end_of_text, self.content = end_of_text, content

    def encode(self, text: bytes) -> Ids:
        return np.array(self._loaded.encode_batch_fast([text.decode("utf-8")], add_special_tokens=False)[0].ids, np.uint32)

    def decode(self, ids: Ids) -> bytes:
        kept = [int(id) for id in ids if id != self.end_of_text]
        return str(self._loaded.decode(kept, skip_special_tokens=False)).encode("utf-8")

    def byte_lengths(self) -> NDArray[np.int64] | None:
        """In byte-level BPE each character of an entry is one byte of text; added tokens are themselves."""
        if not self._byte_level:
            return None
        lengths = np.zeros(self.vocab_size, np.int64)
        for token, id in self.vocab.items():
            lengths[id] = len(token)
        for id, token in self._loaded.get_added_tokens_decoder().items():
            lengths[id] = 0 if token.special else len(token.content.encode("utf-8"))
        lengths[self.end_of_text] = 0
        return lengths


@TOKENIZER.register("tiktoken")
class TiktokenFile(Tokenizer):
    """A ranks file of tiktoken (base64 token, space, rank). `pattern`: gpt2, cl100k, o200k or a regular expression.

    `end_of_text` is the id of the end-of-text token; null: the first id after the ranks (true of GPT-2; cl100k_base has 100257).
    """

    def __init__(self, *, path: str, pattern: str, end_of_text: Annotated[int, Field(ge=0)] | None) -> None:
        self.path, self.pattern, self.end_of_text = path, pattern, end_of_text

    def size(self) -> int:
        ranks, end_of_text = self._read()[1:]
        return max(*ranks.values(), end_of_text) + 1

    def fit(self, training: TrainingText, cache: Cache) -> Encoder:
        return self.encoder()

    def encoder(self) -> Ranks:
        written, ranks, end_of_text = self._read()
        pattern = PATTERNS.get(self.pattern, self.pattern)
        size = max(*ranks.values(), end_of_text) + 1
        try:
            return Ranks(ranks, pattern, end_of_text, size, hash_of("tiktoken", written, pattern, end_of_text))
        except ValueError as error:
            message = f"{self.pattern!r} is not one of {', '.join(PATTERNS)} or a regular expression ({error})"
            raise ConfigError.at("tokenizer.pattern", message + did_you_mean(self.pattern, PATTERNS)) from None

    def _read(self) -> tuple[bytes, dict[bytes, int], int]:
        written = read_named_file("tokenizer.path", self.path)
        ranks: dict[bytes, int] = {}
        for number, line in enumerate(written.splitlines(), 1):
            try:
                token, rank = line.split()
                ranks[base64.b64decode(token, validate=True)] = int(rank)
            except ValueError:
                what = f"line {number} of {self.path!r} is not `base64 rank`"
                raise ConfigError.at("tokenizer.path", f"{what}; name a ranks file of tiktoken (*.tiktoken)") from None
        missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
        if missing:
            raise ConfigError.at("tokenizer.path", f"{self.path!r} has no rank for {len(missing)} of the 256 bytes; is it whole?")
        end_of_text = self.end_of_text if self.end_of_text is not None else max(ranks.values()) + 1
        if end_of_text in ranks.values():
            allowed = f"allowed: {max(ranks.values()) + 1} or more"
            raise ConfigError.at("tokenizer.end_of_text", f"{end_of_text} is the id of a piece of text; {allowed}")
        return written, ranks, end_of_text


@TOKENIZER.register("none")
class NoTokenizer(Tokenizer):
    """Ids of `vocab_size` kinds and nothing known about them: for token files. Losses are then per token, not per byte."""

    def __init__(self, *, vocab_size: Count) -> None:
        self._size = vocab_size

    def size(self) -> int:
        return self._size

    def fit(self, training: TrainingText, cache: Cache) -> Encoder:
        raise ConfigError.at("tokenizer", "none cannot encode text; allowed for text: bytes, bpe, file, tiktoken")


def read_named_file(key: str, name: str) -> bytes:
    """The bytes of a file that a person named."""
    path = Path(name).expanduser()
    try:
        return path.read_bytes()
    except OSError as error:
        siblings = [child.name for child in path.parent.iterdir()] if path.parent.is_dir() else []
        raise ConfigError.at(key, f"{name!r} cannot be read ({error.strerror}){did_you_mean(path.name, siblings)}") from None


def _decoder_types(written: dict[str, Any]) -> set[str]:
    decoder = written.get("decoder") or {}
    return {decoder.get("type", ""), *(inner.get("type", "") for inner in decoder.get("decoders", []))}


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable character for each byte: itself where it is printable Latin-1, else the next from U+0100 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("\u00a1"), ord("\u00ac") + 1), *range(ord("\u00ae"), ord("\u00ff") + 1)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


def _bytes_of(token: str) -> bytes:
    return bytes(_ALPHABET[character] for character in token)
