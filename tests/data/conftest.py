"""What the data tests share: options by word, a quick `prepare`, files of text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ablate.data import DATA, TOKENIZER, Dataset, prepare
from ablate.registry import Options


def data(kind: str, **options: Any) -> Options:
    """The options of a data variant, the rest as a typical YAML has them."""
    usual = {
        "text": {"text_key": "text"},
        "tokens": {"val_path": None, "format": "auto", "dtype": "auto"},
        "hf": {"config": None, "split": "train", "revision": None, "text_key": "text", "max_documents": None},
    }
    return DATA.options(kind)(kind=kind, **{**usual.get(kind, {}), **options})


def tokenizer(kind: str, **options: Any) -> Options:
    """The options of a tokenizer variant."""
    return TOKENIZER.options(kind)(kind=kind, **options)


Prepare = Callable[..., Dataset]


@pytest.fixture
def prepared(tmp_path: Path) -> Prepare:
    """`prepare` with a cache of its own and a small evaluation set; the tokenizer is bytes unless given."""

    def call(chosen: Options, encoder: Options | None = None, **settings: Any) -> Dataset:
        settings = {"eval_bytes": 400, "segment_bytes": 100, "cache_dir": tmp_path / "cache", **settings}
        return prepare(chosen, encoder or tokenizer("bytes"), **settings)

    return call


@pytest.fixture(scope="session")
def sotu_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all tests that read the default corpus."""
    return tmp_path_factory.mktemp("sotu-cache")


def sentences(count: int, word: str = "word") -> list[str]:
    """Different documents of about 40 bytes."""
    return [f"Document {number} says {word} {number * number}.\nAnd ends." for number in range(count)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with 100 small text files."""
    texts = tmp_path / "texts"
    texts.mkdir()
    for number, text in enumerate(sentences(100)):
        (texts / f"{number:03}.txt").write_text(text)
    return texts
