from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ablate.data.cache import Cache
from ablate.data.split import REPEATED, TRAIN, VALIDATION, Corpus, Document, Split, split_corpus

from .conftest import Prepare, data, sentences


def corpus_of(texts: list[str], groups: list[str] | None = None) -> Corpus:
    documents = [Document(text.encode(), group) for text, group in zip(texts, groups or [""] * len(texts), strict=True)]
    return Corpus("data", repr(documents), lambda: iter(documents), {}, grouped=groups is not None)


def split_of(corpus: Corpus, folder: Path) -> Split:
    return split_corpus(corpus, Cache(folder, lambda message: None))


def sides(texts: list[str], folder: Path) -> NDArray[np.uint8]:
    return split_of(corpus_of(texts), folder).sides


def test_about_a_tenth_of_the_bytes_validates(tmp_path: Path) -> None:
    split = split_of(corpus_of(sentences(1000)), tmp_path)
    share = split.facts["validation_bytes"] / (split.facts["train_bytes"] + split.facts["validation_bytes"])
    assert share == pytest.approx(0.1, abs=0.002)


def test_the_side_of_a_document_does_not_depend_on_its_place(tmp_path: Path) -> None:
    texts = sentences(200)
    forwards = dict(zip(texts, sides(texts, tmp_path), strict=True))
    backwards = dict(zip(reversed(texts), sides(texts[::-1], tmp_path), strict=True))
    assert forwards == backwards
    assert set(Counter(forwards.values())) == {TRAIN, VALIDATION}


def test_validation_is_no_stretch_of_the_corpus(tmp_path: Path) -> None:
    places = np.flatnonzero(sides(sentences(500), tmp_path) == VALIDATION)
    assert places.min() < 100
    assert places.max() > 400


def test_copies_of_a_document_are_on_one_side_and_validate_once(tmp_path: Path) -> None:
    texts = sentences(100) * 3
    corpus = corpus_of(texts)
    split = split_of(corpus, tmp_path)
    parts = list(split.parts(corpus))
    trained, validated = ([text for validates, text in parts if validates is side] for side in (False, True))
    assert not set(trained) & set(validated)
    assert max(Counter(validated).values()) == 1
    assert set(Counter(trained).values()) == {3}
    assert (split.sides == REPEATED).sum() == 2 * len(validated)


def test_documents_of_a_group_stay_together_and_every_tenth_group_validates(tmp_path: Path) -> None:
    groups = [str(1800 + number // 3) for number in range(90)]
    corpus = corpus_of(sentences(90), groups)
    chosen = {group for side, group in zip(split_of(corpus, tmp_path).sides, groups, strict=True) if side == VALIDATION}
    kept = {group for side, group in zip(split_of(corpus, tmp_path).sides, groups, strict=True) if side == TRAIN}
    assert chosen == {"1809", "1819", "1829"}
    assert not chosen & kept


@pytest.mark.parametrize("texts", [["".join(f"Line {n} of a text.\n" for n in range(2000))], ["abcd " * 3000], ["é" * 5000]])
def test_one_document_is_cut_into_pieces_of_which_every_tenth_validates(tmp_path: Path, texts: list[str]) -> None:
    corpus = corpus_of(texts)
    split = split_of(corpus, tmp_path)
    parts = list(split.parts(corpus))
    assert b"".join(text for _, text in parts) == texts[0].encode()
    assert [validates for validates, _ in parts][:4] == [False, True, False, True]
    assert split.facts["validation_bytes"] / len(texts[0].encode()) == pytest.approx(0.1, abs=0.02)
    assert all(text.decode() for _, text in parts)
    assert "the corpus is one document" in split.notices[0]


def test_pieces_end_at_lines(tmp_path: Path) -> None:
    corpus = corpus_of(["".join(f"Line {n} of a text.\n" for n in range(2000))])
    assert all(text.endswith(b"\n") for _, text in split_of(corpus, tmp_path).parts(corpus))


def test_a_corpus_of_three_books_is_cut_into_pieces_too(tmp_path: Path) -> None:
    texts = ["".join(f"{book} line {n}.\n" for n in range(500)) for book in ("First", "Second", "Third")]
    split = split_of(corpus_of(texts), tmp_path)
    assert "3 documents" in split.notices[0]
    assert split.facts["validation_bytes"] / sum(map(len, texts)) == pytest.approx(0.1, abs=0.02)


def test_a_person_is_told_of_a_corpus_of_one_document(tmp_path: Path, prepared: Prepare) -> None:
    (tmp_path / "one.txt").write_text("\n".join(sentences(200)))
    assert any("one document" in notice for notice in prepared(data("text", path=str(tmp_path / "one.txt"))).notices)
