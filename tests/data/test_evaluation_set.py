from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ablate.data.evaluation import text_segments, token_segments
from ablate.data.source import Tokens

from .conftest import Prepare, data, sentences, tokenizer


def test_bytes_and_bpe_score_the_same_bytes(tmp_path: Path, prepared: Prepare) -> None:
    (tmp_path / "one.txt").write_text("\n<|endoftext|>\n".join(text + " Ünd é." for text in sentences(2000)), encoding="utf-8")
    chosen, settings = data("text", path=str(tmp_path / "one.txt")), {"eval_bytes": 5000, "segment_bytes": 130}
    by_bytes, by_bpe = (prepared(chosen, encoder, **settings) for encoder in (tokenizer("bytes"), tokenizer("bpe", vocab_size=400)))
    assert by_bytes.eval_set.bytes == by_bpe.eval_set.bytes == by_bytes.eval_set.tokens == pytest.approx(5000, abs=100)
    assert by_bpe.eval_set.tokens == sum(len(segment) - 1 for segment in by_bpe.eval_set.segments) < 2500
    assert {int(segment[0]) for segment in [*by_bytes.eval_set.segments, *by_bpe.eval_set.segments]} == {0}
    vocab = json.loads(next((tmp_path / "cache").glob("bpe-*/tokenizer.json")).read_text())["model"]["vocab"]
    bytes_of = {id: len(token) for token, id in vocab.items()}
    assert [sum(bytes_of[int(id)] for id in segment[1:]) for segment in by_bpe.eval_set.segments] == [
        len(segment) - 1 for segment in by_bytes.eval_set.segments
    ]


def test_segments_are_evenly_spaced_over_the_validation_text() -> None:
    text = b"".join(b"%09d\n" % place for place in range(0, 10_000, 10))
    segments = text_segments(text, [len(text)], eval_bytes=1000, segment_bytes=100)
    assert [int(segment[:9]) for segment in segments] == list(range(0, 10_000, 1000))
    assert {len(segment) for segment in segments} == {100}


def test_a_segment_is_cut_where_a_document_ends() -> None:
    assert text_segments(b"aaaabbbbcc", [4, 8, 10], eval_bytes=100, segment_bytes=6) == [b"aaaa", b"bb", b"bb", b"cc"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=40), min_size=1, max_size=6), st.integers(1, 300), st.integers(1, 50))
def test_segments_are_whole_characters_of_about_the_bytes_asked_for(documents: list[str], eval_bytes: int, segment_bytes: int) -> None:
    text = "".join(documents).encode()
    ends = np.cumsum([len(document.encode()) for document in documents]).tolist()
    segments = text_segments(text, ends, eval_bytes=eval_bytes, segment_bytes=segment_bytes)
    asked = min(eval_bytes, len(text))
    assert all(segment.decode() for segment in segments)
    assert abs(sum(map(len, segments)) - asked) <= 3 * (-(-asked // segment_bytes))
    if asked == len(text):
        assert b"".join(segments) == text


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 300), st.integers(1, 400), st.integers(1, 50), st.booleans())
def test_token_segments_score_each_chosen_token_once(size: int, eval_tokens: int, segment_tokens: int, separated: bool) -> None:
    tokens = Tokens([np.arange(size)])
    segments = token_segments(tokens, eval_tokens=eval_tokens, segment_tokens=segment_tokens, end_of_text=999 if separated else None)
    scored = [int(id) for segment in segments for id in segment[1:]]
    assert len(scored) == len(set(scored)) == min(eval_tokens, size if separated else size - 1)
    assert all(segment[0] == (999 if separated else segment[1] - 1) for segment in segments)


def test_a_short_validation_text_is_scored_whole_and_told(folder: Path, prepared: Prepare) -> None:
    dataset = prepared(data("text", path=str(folder)), eval_bytes=10**6)
    assert dataset.eval_set.bytes == dataset.description["validation_bytes"]
    assert any("only" in notice and "all of it is scored" in notice for notice in dataset.notices)


def test_the_evaluation_set_is_part_of_the_content_hash(folder: Path, prepared: Prepare) -> None:
    text = data("text", path=str(folder))
    assert prepared(text, segment_bytes=100).content_hash != prepared(text, segment_bytes=50).content_hash
    assert prepared(text, eval_bytes=400).content_hash != prepared(text, eval_bytes=300).content_hash
