"""Files of token ids in the formats people have them in. They stay where they are, memory-mapped.

Layouts (all little-endian): nanoGPT .bin and OLMo .npy have no header; llm.c and modded-nanogpt .bin have 256 int32 (magic, version,
number of tokens); Megatron has a .bin without a header and an .idx beside it; datatrove .ds has no header, .ds.index holds document ends.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ablate.data.cache import Cache, hash_of
from ablate.data.corpora import DATA
from ablate.data.source import Ids, Tokens
from ablate.data.text_files import find_files
from ablate.errors import ConfigError

SUFFIXES = (".bin", ".ds", ".npy")
KEY = "data.path"
LLMC_HEADER_BYTES = 1024
LLMC_MAGICS = {20240520: (1, "uint16"), 20240801: (7, "uint32")}
"""Magic: (version, dtype)."""
LLMC_EVAL_MAGIC = 20240522
MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
MEGATRON_HEADER_BYTES = 34
MEGATRON_DTYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
CHUNK_TOKENS = 1 << 22
VALIDATION_SHARE = 10
MAX_VALIDATION_TOKENS = 8 << 20
MAX_HELD_OUT_CHUNKS = 64
MIN_CHUNK_TOKENS = 256
VALIDATION_NAME = re.compile(r"(^|[^a-z])(val|valid|validation)([^a-z]|$)")

Format = Literal["auto", "raw", "llmc", "megatron", "datatrove", "npy"]
Dtype = Literal["auto", "uint8", "uint16", "int32", "uint32", "int64"]


@dataclass(frozen=True)
class Layout:
    """Where the ids of a file are and how they are written."""

    format: str
    dtype: str
    offset: int
    tokens: int

    def ids(self, file: Path) -> Ids:
        """The ids, memory-mapped."""
        return np.memmap(file, np.dtype(self.dtype).newbyteorder("<"), mode="r", offset=self.offset, shape=(self.tokens,))


@dataclass(frozen=True)
class TokenCorpus:
    """Training and validation ids and what is known about them."""

    content: str
    train: Tokens
    validation: Tokens
    facts: dict[str, Any]
    notices: list[str]


@DATA.register("tokens")
class TokenFiles:
    """Files of token ids: nanoGPT, llm.c, modded-nanogpt, Megatron, datatrove, OLMo, NumPy; one, several, a folder or a glob.

    `format` and `dtype` are found out where the file says them (auto); a file without a header is read as uint16 when the
    vocabulary has at most 65,536 ids, else uint32. `val_path` names the validation files; null holds out evenly spaced stretches of
    the tokens, or, in a folder, the files that have the word val in their names.
    """

    def __init__(self, *, path: str | list[str], val_path: str | list[str] | None, format: Format, dtype: Dtype) -> None:
        self.path, self.val_path, self.format, self.dtype = path, val_path, format, dtype

    def corpus(self, vocab_size: int, cache: Cache) -> TokenCorpus:
        """The ids, split; ConfigError for a file that is not whole or does not fit the vocabulary."""
        train_files, val_files, notices = self._files()
        train, train_hash, layouts = self._read(train_files, vocab_size, cache)
        facts: dict[str, Any] = {
            "source": f"{len(train_files) + len(val_files)} token files",
            "formats": sorted({layout.format for layout in layouts}),
        }
        if val_files:
            validation, val_hash, _ = self._read(val_files, vocab_size, cache)
            if len(validation) < 2:
                raise ConfigError.at("data.val_path", "holds a single token: too few to validate on")
            return TokenCorpus(hash_of("token files", train_hash, val_hash), train, validation, facts, notices)
        held_out, kept = _held_out(len(train))
        content = hash_of("held out", train_hash, VALIDATION_SHARE, MAX_VALIDATION_TOKENS, MAX_HELD_OUT_CHUNKS, MIN_CHUNK_TOKENS)
        facts["held_out_stretches"] = len(held_out)
        return TokenCorpus(content, train.slices(kept), train.slices(held_out), facts, notices)

    def _files(self) -> tuple[list[Path], list[Path], list[str]]:
        found = _data_files(KEY, self.path)
        if self.val_path is not None:
            validation = _data_files("data.val_path", self.val_path)
            known = {file.resolve() for file in validation}
            train = [file for file in found if file.resolve() not in known]
            if not train:
                raise ConfigError.at("data.val_path", "names all the files of data.path: nothing is left to train on")
            return train, validation, []
        validation = [file for file in found if VALIDATION_NAME.search(file.name.lower())]
        if not validation or len(validation) == len(found):
            return found, [], []
        names = ", ".join(file.name for file in validation[:3])
        notice = f"{len(validation)} of {len(found)} token files validate, by their names ({names}); data.val_path says otherwise"
        return [file for file in found if file not in validation], validation, [notice]

    def _read(self, files: list[Path], vocab_size: int, cache: Cache) -> tuple[Tokens, str, list[Layout]]:
        """The shards in the order of the hashes of their ids."""
        shards = []
        for number, file in enumerate(files):
            layout = layout_of(file, self.format, self.dtype, vocab_size)
            if len(files) > 1 and file.stat().st_size > 1 << 28:
                cache.say(f"token file {number + 1} of {len(files)}: {file.name}")
            scan = cache.remember(file, f"tokens {layout}", lambda file, layout=layout: _scan(layout.ids(file)))  # type: ignore[misc]
            _check_range(file, layout, scan, vocab_size)
            if self.dtype == "auto" and layout.dtype == "uint16" and scan["every_second_is_zero"]:
                came = f"every second id of {str(file)!r} is 0: it looks like uint32 read as uint16"
                raise ConfigError.at("data.dtype", f"{came}; say data.dtype=uint32 (or uint16, if it is so)")
            shards.append((str(scan["sha256"]), layout, file))
        shards.sort(key=lambda shard: shard[0])
        tokens = Tokens([layout.ids(file) for _, layout, file in shards])
        return tokens, hash_of(*(digest for digest, _, _ in shards)), [layout for _, layout, _ in shards]


def _data_files(key: str, paths: str | list[str]) -> list[Path]:
    """The files of ids: a Megatron set may be named by its prefix or its .idx, and sidecars are left out."""
    named = [paths] if isinstance(paths, str) else paths
    resolved = [_megatron_bin(name) for name in named]
    found = find_files(key, resolved, SUFFIXES)
    return [file for file in found if not file.name.endswith((".idx", ".ds.index", ".ds.metadata", ".ds.loss"))]


def _megatron_bin(name: str) -> str:
    path = Path(name).expanduser()
    if path.suffix == ".idx":
        return str(path.with_suffix(".bin"))
    if not path.exists() and Path(f"{path}.idx").exists():
        return f"{path}.bin"
    return name


def layout_of(file: Path, format: Format, dtype: Dtype, vocab_size: int) -> Layout:
    """The layout of one file, as it says itself or as the person says; ConfigError when its size does not fit."""
    chosen = detect(file) if format == "auto" else format
    layout = LAYOUTS[chosen](file, "" if dtype == "auto" else dtype, vocab_size)
    if layout.tokens <= 0:
        raise ConfigError.at(KEY, f"{str(file)!r} holds no tokens")
    return layout


def detect(file: Path) -> str:
    """The format's word, from the file beside it, its first bytes and its suffix."""
    index = file.with_suffix(".idx")
    if file.suffix == ".bin" and index.exists() and _head(index, len(MEGATRON_MAGIC)) == MEGATRON_MAGIC:
        return "megatron"
    head = _head(file, 6)
    if file.suffix == ".bin" and int.from_bytes(head[:4], "little") in {*LLMC_MAGICS, LLMC_EVAL_MAGIC}:
        return "llmc"
    if file.suffix == ".ds":
        return "datatrove"
    return "npy" if head == b"\x93NUMPY" else "raw"


def _raw(file: Path, dtype: str, vocab_size: int) -> Layout:
    dtype = dtype or ("uint16" if vocab_size <= 1 << 16 else "uint32")
    size, width = file.stat().st_size, np.dtype(dtype).itemsize
    if size % width:
        cure = "it is cut short, or data.dtype is another"
        raise ConfigError.at(KEY, f"{str(file)!r} has {size} bytes, not a multiple of {width} ({dtype}): {cure}")
    return Layout("raw", dtype, 0, size // width)


def _llmc(file: Path, dtype: str, vocab_size: int) -> Layout:
    header = np.frombuffer(_head(file, LLMC_HEADER_BYTES).ljust(LLMC_HEADER_BYTES, b"\0"), "<i4")
    magic, version, tokens = (int(value) for value in header[:3])
    if magic == LLMC_EVAL_MAGIC:
        raise ConfigError.at(KEY, f"{str(file)!r} is an llm.c evaluation file (multiple choice), no stream of tokens; name a training .bin")
    if magic not in LLMC_MAGICS:
        raise ConfigError.at(KEY, f"{str(file)!r} has no llm.c header: magic {magic}, allowed {', '.join(map(str, LLMC_MAGICS))}")
    expected_version, written = LLMC_MAGICS[magic]
    if version != expected_version:
        raise ConfigError.at(KEY, f"{str(file)!r} has version {version} of magic {magic}; known: {expected_version}")
    payload = file.stat().st_size - LLMC_HEADER_BYTES
    written = dtype or written
    if payload == tokens and not dtype:  # some forks keep the magic and write bytes
        written = "uint8"
    if payload != tokens * np.dtype(written).itemsize:
        promised = f"its header promises {tokens} tokens of {written}, {tokens * np.dtype(written).itemsize} bytes"
        raise ConfigError.at(KEY, f"{str(file)!r} is not whole: {promised}, after the header come {payload}; copy it again")
    return Layout("llmc", written, LLMC_HEADER_BYTES, tokens)


def _megatron(file: Path, dtype: str, vocab_size: int) -> Layout:
    index = file.with_suffix(".idx")
    if not index.exists():
        raise ConfigError.at(KEY, f"{str(index)!r} is missing beside {file.name!r}; a Megatron set is a .bin and an .idx")
    head = _head(index, MEGATRON_HEADER_BYTES)
    if len(head) < MEGATRON_HEADER_BYTES or head[:9] != MEGATRON_MAGIC or int.from_bytes(head[9:17], "little") != 1:
        raise ConfigError.at(KEY, f"{str(index)!r} is not a Megatron index of version 1; write the set again")
    code, sequences, documents = head[17], int.from_bytes(head[18:26], "little"), int.from_bytes(head[26:34], "little")
    if code not in MEGATRON_DTYPES:
        raise ConfigError.at(KEY, f"{str(index)!r} has dtype code {code}; allowed for token ids: {MEGATRON_DTYPES}")
    written, size = MEGATRON_DTYPES[code], index.stat().st_size
    whole = MEGATRON_HEADER_BYTES + 12 * sequences + 8 * documents
    if size not in (whole, whole + sequences):  # with one mode byte for each sequence in multimodal sets
        promised = f"{sequences} sequences and {documents} documents need {whole} bytes"
        raise ConfigError.at(KEY, f"{str(index)!r} is not whole: {promised}, it has {size}; copy it again")
    lengths = np.memmap(index, "<i4", mode="r", offset=MEGATRON_HEADER_BYTES, shape=(sequences,)) if sequences else np.zeros(0, np.int32)
    tokens, width = int(lengths.sum(dtype=np.int64)), np.dtype(written).itemsize
    if file.stat().st_size != tokens * width:
        promised = f"{index.name} promises {tokens} tokens of {written}, {tokens * width} bytes"
        raise ConfigError.at(KEY, f"{str(file)!r} is not whole: {promised}, it has {file.stat().st_size}; copy it again")
    return Layout("megatron", written, 0, tokens)


def _datatrove(file: Path, dtype: str, vocab_size: int) -> Layout:
    metadata, index = Path(f"{file}.metadata"), Path(f"{file}.index")
    if not dtype and metadata.exists():
        width = metadata.read_text(encoding="utf-8").split("\n", 1)[0].rpartition("|")[2].strip()
        dtype = {"2": "uint16", "4": "uint32"}.get(width, "")
    layout = _raw(file, dtype, vocab_size)
    if index.exists():
        ends = np.fromfile(index, "<u8")
        if len(ends) and int(ends[-1]) != layout.tokens:
            found = f"it has {layout.tokens} tokens of {layout.dtype}"
            raise ConfigError.at(KEY, f"{str(file)!r} is not whole: {index.name} promises {int(ends[-1])} tokens, {found}; copy it again")
    return Layout("datatrove", layout.dtype, 0, layout.tokens)


def _npy(file: Path, dtype: str, vocab_size: int) -> Layout:
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        cure = "copy it again, or say data.format=raw for OLMo's .npy without a header"
        raise ConfigError.at(KEY, f"{str(file)!r} is not a whole .npy file ({error}); {cure}") from None
    if not isinstance(array, np.memmap) or array.dtype.kind not in "iu" or array.dtype.byteorder == ">":
        raise ConfigError.at(KEY, f"{str(file)!r} holds {array.dtype}, not little-endian integers")
    if array.ndim > 1 and not array.flags.c_contiguous:
        raise ConfigError.at(KEY, f"{str(file)!r} is in Fortran order; save it with numpy.ascontiguousarray")
    return Layout("npy", array.dtype.name, array.offset, array.size)


LAYOUTS: dict[str, Callable[[Path, str, int], Layout]] = {
    "raw": _raw,
    "llmc": _llmc,
    "megatron": _megatron,
    "datatrove": _datatrove,
    "npy": _npy,
}


def _head(file: Path, size: int) -> bytes:
    with file.open("rb") as opened:
        return opened.read(size)


def chunks(ids: Ids) -> Iterator[Ids]:
    """The ids in pieces that fit into memory."""
    return (ids[start : start + CHUNK_TOKENS] for start in range(0, len(ids), CHUNK_TOKENS))


def _scan(ids: Ids) -> dict[str, Any]:
    """One pass: hash, smallest and largest id, and whether every second id is 0 (uint32 ids read as uint16 look so)."""
    digest, lowest, highest, odd = hashlib.sha256(ids.dtype.str.encode()), [], [], False
    for chunk in chunks(ids):
        digest.update(chunk.tobytes())
        lowest.append(int(chunk.min()))
        highest.append(int(chunk.max()))
        odd = odd or bool(chunk[1::2].any())
    return {"sha256": digest.hexdigest(), "min": min(lowest), "max": max(highest), "every_second_is_zero": not odd and len(ids) > 64}


def _check_range(file: Path, layout: Layout, scan: dict[str, Any], vocab_size: int) -> None:
    if scan["max"] >= vocab_size or scan["min"] < 0:
        came = f"{str(file)!r} (read as {layout.format}, {layout.dtype}) has ids from {scan['min']} to {scan['max']}"
        cure = "name the tokenizer that made the file, or the right data.dtype"
        raise ConfigError.at(KEY, f"{came}; the vocabulary of {vocab_size} allows 0 to {vocab_size - 1}: {cure}")


def _held_out(tokens: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(stretches that validate, stretches that train): at most 64 evenly spaced ones, a tenth of the tokens (at most 8 Mi) in all."""
    total = min(tokens // VALIDATION_SHARE, MAX_VALIDATION_TOKENS)
    if total < 2:
        raise ConfigError.at(KEY, f"only {tokens} tokens: too few to train and validate on; name more, or data.val_path")
    count = min(max(total // MIN_CHUNK_TOKENS, 1), MAX_HELD_OUT_CHUNKS)
    length = total // count
    starts = [round((place + 0.5) * tokens / count) - length // 2 for place in range(count)]
    held_out = [(start, start + length) for start in starts]
    borders = [0, *(border for stretch in held_out for border in stretch), tokens]
    return held_out, list(zip(borders[0::2], borders[1::2], strict=True))


def counts_of(tokens: Tokens, vocab_size: int) -> NDArray[np.int64]:
    """How often each id comes."""
    counts = np.zeros(vocab_size, np.int64)
    for part in tokens.parts:
        for chunk in chunks(part):
            counts += np.bincount(chunk, minlength=vocab_size)
    return counts
