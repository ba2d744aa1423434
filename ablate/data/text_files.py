"""Files of text as a stream of documents: .txt, JSON lines, Parquet."""

from __future__ import annotations

import contextlib
import difflib
import glob
import gzip
import importlib
import io
import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

from ablate.data.cache import Cache, hash_of
from ablate.data.split import Document, line_end
from ablate.errors import ConfigError, did_you_mean

SEPARATOR = b"<|endoftext|>"
"""Separates documents in a .txt file, as TinyStories does."""
BLOCK_BYTES = 1 << 22
LONG_DOCUMENT_BYTES = 64 << 20
"""A longer document of a .txt file is cut at line ends into documents of LONG_PIECE_BYTES, so that it need not fit into memory."""
LONG_PIECE_BYTES = 1 << 20
TEXT_SUFFIXES = (".txt", ".txt.gz", ".txt.zst", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")


def find_files(key: str, paths: str | Sequence[str], suffixes: Sequence[str]) -> list[Path]:
    """The files that paths, folders (with all below) and globs name, each once; ConfigError when one names nothing.

    A file named directly or by a glob is taken whatever its suffix; in folders, those with one of `suffixes` that are not hidden.
    """
    named = [paths] if isinstance(paths, str) else list(paths)
    if not named:
        raise ConfigError.at(key, "an empty list; name at least one file, folder or glob")
    found: dict[Path, Path] = {}
    for name in named:
        for path in _expand(key, name, suffixes):
            found.setdefault(path.resolve(), path)
    for path in found.values():
        if not path.stat().st_size:
            raise ConfigError.at(key, f"{str(path)!r} is empty (0 bytes); remove it or write it again")
    return list(found.values())


def _expand(key: str, name: str, suffixes: Sequence[str]) -> list[Path]:
    path = Path(name).expanduser()
    if path.is_dir():
        files = sorted(file for file in _below(path) if file.name.endswith(tuple(suffixes)))
        if not files:
            raise ConfigError.at(key, f"the folder {name!r} holds no {', '.join(suffixes)} file")
        return files
    if path.exists():
        return [path]
    if glob.has_magic(name):
        files = sorted(Path(found) for found in glob.glob(str(path), recursive=True) if Path(found).is_file())
        if not files:
            raise ConfigError.at(key, f"no file matches {name!r}; the folder is {str(_nearest_folder(path))!r}")
        return files
    raise ConfigError.at(key, f"there is no file or folder {name!r}{_near(path)}")


def _below(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent, name) for name in files if not name.startswith("."))


def _nearest_folder(path: Path) -> Path:
    return next((parent for parent in path.absolute().parents if parent.is_dir()), Path("/"))


def _near(path: Path) -> str:
    folder = _nearest_folder(path)
    if folder != path.absolute().parent:
        return f"; {str(folder)!r} is there, but nothing below it by that name"
    return did_you_mean(path.name, (child.name for child in folder.iterdir())) or f"; it is looked for in {str(folder)!r}"


class TextFiles:
    """Text files as one corpus, in the order of the hashes of their contents: names and places make no difference."""

    def __init__(self, key: str, files: Sequence[Path], text_key: str, cache: Cache) -> None:
        self.key, self.text_key = key, text_key
        if sum(file.stat().st_size for file in files) > 1 << 30:
            cache.say(f"hashing {len(files)} files (once)")
        hashes = [(cache.file_hash(file), _form(file)) for file in files]
        self.files = [file for _, file in sorted(zip(hashes, files, strict=True), key=lambda pair: pair[0])]
        records = any(form != "txt" for _, form in hashes)
        self.content = hash_of("text files", LONG_PIECE_BYTES, text_key if records else "", sorted(hashes))
        self.licence = "not known"

    def documents(self) -> Iterator[Document]:
        """Every document of every file; ConfigError with the file and the place where one cannot be read."""
        for file in self.files:
            for text in READERS[_form(file)](self, file):
                yield Document(text)

    def plain(self, file: Path) -> Iterator[bytes]:
        """The documents of a .txt file: what stands between separators, else all of it."""
        with self._opened(file) as opened:
            start = 0
            for text, cut in _separated(opened):
                self._check_utf8(file, text, start)
                yield text.strip(b"\r\n") if cut else text
                start += len(text) + len(cut)

    def _check_utf8(self, file: Path, text: bytes, start: int) -> None:
        cure = "convert it to UTF-8 text, or use data=tokens for a file of token ids"
        zero = text.find(b"\0")
        if zero >= 0:
            raise ConfigError.at(self.key, f"{str(file)!r} is a binary file, not text (NUL at byte {start + zero}); {cure}")
        try:
            text.decode("utf-8")
        except UnicodeDecodeError as error:
            place = f"byte {start + error.start} (0x{text[error.start]:02x})"
            raise ConfigError.at(self.key, f"{str(file)!r} is not UTF-8 at {place}: {error.reason}; {cure}") from None

    def lines(self, file: Path) -> Iterator[bytes]:
        """The text of each JSON line."""
        with self._opened(file) as opened:
            for number, line in enumerate(opened, 1):
                if line.strip():
                    yield self._text_of(line, f"{file}:{number}")

    def _text_of(self, line: bytes, place: str) -> bytes:
        try:
            record = json.loads(line)
        except ValueError as error:
            raise ConfigError.at(self.key, f"{place} is not JSON ({error}); each line must be one JSON object") from None
        if not isinstance(record, dict):
            raise ConfigError.at(self.key, f"{place} is a JSON {type(record).__name__}; each line must be one JSON object")
        return text_of_record(self.key, record, self.text_key, place)

    def table(self, file: Path) -> Iterator[bytes]:
        """The text column of a Parquet file; rows without a text are left out."""
        parquet = cast(Any, needed("pyarrow.parquet", self.key, f"to read {file.name!r}", "pyarrow"))
        try:
            opened = parquet.ParquetFile(file)
        except (OSError, ValueError) as error:
            raise ConfigError.at(self.key, f"{str(file)!r} is not a whole Parquet file ({error}); write it again") from None
        with opened:
            columns = opened.schema_arrow.names
            if self.text_key not in columns:
                raise ConfigError.at(key_beside(self.key), _no_key(self.text_key, columns, str(file)))
            for batch in opened.iter_batches(batch_size=1024, columns=[self.text_key]):
                for value in batch.column(0).to_pylist():
                    if value is not None:
                        yield text_of_record(self.key, {self.text_key: value}, self.text_key, str(file))

    @contextlib.contextmanager
    def _opened(self, file: Path) -> Iterator[IO[bytes]]:
        """The file's bytes, decompressed."""
        broken: tuple[type[Exception], ...] = ()
        with file.open("rb") as raw:
            source: Any = raw
            if file.suffix == ".zst":
                zstandard = cast(Any, needed("zstandard", self.key, f"to read {file.name!r}", "zstandard"))
                broken = (zstandard.ZstdError, EOFError)
                source = io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True), BLOCK_BYTES)
            elif file.suffix == ".gz":
                broken = (OSError, EOFError, zlib.error)
                source = gzip.GzipFile(fileobj=raw)
            try:
                yield source
            except broken as error:
                raise ConfigError.at(self.key, f"{str(file)!r} cannot be decompressed ({error}); copy it again") from error


READERS: dict[str, Callable[[TextFiles, Path], Iterator[bytes]]] = {
    "txt": TextFiles.plain,
    "jsonl": TextFiles.lines,
    "parquet": TextFiles.table,
}


def _form(file: Path) -> str:
    """How a file is read: by its suffix, and as plain text when it has none of the known ones (enwik8)."""
    name = file.name.removesuffix(".gz").removesuffix(".zst")
    return next((form for form in READERS if name.endswith(f".{form}")), "txt")


def text_of_record(key: str, record: dict[str, Any], text_key: str, place: str) -> bytes:
    """The text of one record in UTF-8; a lone surrogate, which JSON can hold and UTF-8 cannot, becomes a question mark."""
    if text_key not in record:
        raise ConfigError.at(key_beside(key), _no_key(text_key, list(record), place))
    value = record[text_key]
    if not isinstance(value, str):
        raise ConfigError.at(key_beside(key), f"{place}: {text_key!r} is a {type(value).__name__}, not a string")
    return value.encode("utf-8", errors="replace")


def key_beside(key: str) -> str:
    """data.path -> data.text_key."""
    return f"{key.rpartition('.')[0]}.text_key"


def _no_key(text_key: str, keys: Sequence[str], place: str) -> str:
    near = difflib.get_close_matches(text_key, keys, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{place} has no {text_key!r}; it has {', '.join(map(repr, keys)) or 'nothing'}{hint}"


def needed(module: str, key: str, why: str, package: str) -> object:
    """An optional package, or a ConfigError that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ConfigError.at(key, f"{package} is needed {why}: pip install {package}") from None


def _separated(opened: IO[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """(text, what ended it) of each document of a .txt file: the separator or nothing."""
    buffer, separated, long = b"", False, False
    while block := opened.read(BLOCK_BYTES):
        *whole, buffer = _split_from(buffer, block)
        for text in whole:
            yield text, SEPARATOR
            separated, long = True, False
        long = long or len(buffer) > LONG_DOCUMENT_BYTES
        if long:
            start = 0
            while len(buffer) - start > LONG_PIECE_BYTES + len(SEPARATOR):
                stop = line_end(buffer, start, LONG_PIECE_BYTES)
                yield buffer[start:stop], b""
                start = stop
            buffer = buffer[start:]
    if buffer:
        yield buffer, SEPARATOR if separated else b""


def _split_from(buffer: bytes, block: bytes) -> list[bytes]:
    """(buffer + block) at the separators, searched for in the new part only: one can lie across the seam."""
    start = max(len(buffer) - len(SEPARATOR) + 1, 0)
    first, *others = (buffer[start:] + block).split(SEPARATOR)
    return [buffer[:start] + first, *others]
