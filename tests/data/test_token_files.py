"""Each format is written here byte by byte from its published layout and read back."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
from collections import Counter
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from ablate.data import Dataset, prepare
from ablate.errors import ConfigError

from .conftest import Prepare, data, sentences, tokenizer
from .test_tokenizers import gpt2_like, ranks_file

IDS = (np.arange(5000) * 7919) % 1000


def header(magic: int, version: int, tokens: int) -> bytes:
    return np.array([magic, version, tokens] + [0] * 253, "<i4").tobytes()


def megatron_index(lengths: list[int], code: int, width: int) -> bytes:
    offsets = np.cumsum([0, *lengths[:-1]]) * width
    documents = np.arange(len(lengths) + 1)
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(lengths), len(documents))
    return head + np.array(lengths, "<i4").tobytes() + offsets.astype("<i8").tobytes() + documents.astype("<i8").tobytes()


def write(folder: Path, format: str, ids: Any = IDS) -> Path:
    """One file of a format; what is returned is what a person names."""
    folder.mkdir(exist_ok=True)
    if format == "nanogpt":
        (file := folder / "data.bin").write_bytes(ids.astype("<u2").tobytes())
    elif format == "llmc":
        (file := folder / "data.bin").write_bytes(header(20240520, 1, len(ids)) + ids.astype("<u2").tobytes())
    elif format == "llmc llama 3":
        (file := folder / "data.bin").write_bytes(header(20240801, 7, len(ids)) + ids.astype("<u4").tobytes())
    elif format == "megatron":
        file = folder / "data"
        lengths = [1000, 1, len(ids) - 1001]
        (folder / "data.bin").write_bytes(ids.astype("<i4").tobytes())
        (folder / "data.idx").write_bytes(megatron_index(lengths, 4, 4))
    elif format == "megatron uint16":
        (file := folder / "data.bin").write_bytes(ids.astype("<u2").tobytes())
        (folder / "data.idx").write_bytes(megatron_index([len(ids)], 8, 2) + b"\0")
    elif format == "datatrove":
        (file := folder / "data.ds").write_bytes(ids.astype("<u4").tobytes())
        (folder / "data.ds.index").write_bytes(struct.pack("<QQ", 100, len(ids)))
        (folder / "data.ds.metadata").write_text(f"gpt2|4\n{len(ids)}\n5.0 kT")
    elif format == "datatrove uint16":
        (file := folder / "data.ds").write_bytes(ids.astype("<u2").tobytes())
    elif format == "olmo":
        (file := folder / "data.npy").write_bytes(ids.astype("<u2").tobytes())
    else:
        np.save(file := folder / "data.npy", ids.astype(np.int64).reshape(50, -1))
    return file


FORMATS = ["nanogpt", "llmc", "llmc llama 3", "megatron", "megatron uint16", "datatrove", "datatrove uint16", "olmo", "npy"]


def read(dataset: Dataset) -> list[int]:
    return list(dataset.train.windows(np.array([0]), len(dataset.train))[0].tolist())


def none(size: int = 1000) -> Any:
    return tokenizer("none", vocab_size=size)


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_written_is_read(tmp_path: Path, prepared: Prepare, format: str) -> None:
    train, validation = write(tmp_path / "train", format), write(tmp_path / "heldout", format, IDS[:600])
    dataset = prepared(data("tokens", path=str(train), val_path=str(validation)), none(), eval_bytes=10**6)
    assert read(dataset) == IDS.tolist()
    assert np.concatenate([segment[1:] for segment in dataset.eval_set.segments]).tolist() == IDS[1:600].tolist()
    assert dataset.eval_set.tokens == 599
    assert dataset.eval_set.bytes is None


@pytest.mark.parametrize("format", FORMATS)
def test_a_folder_of_a_format_is_found(tmp_path: Path, prepared: Prepare, format: str) -> None:
    write(tmp_path / "set", format)
    dataset = prepared(data("tokens", path=str(tmp_path / "set")), none())
    assert len(dataset.train) == 4500


def test_every_format_of_the_same_ids_is_memory_mapped(tmp_path: Path, prepared: Prepare) -> None:
    dataset: Any = prepared(data("tokens", path=str(write(tmp_path / "set", "llmc"))), none())
    for part in dataset.train.parts:
        while isinstance(part, np.ndarray):
            part = part.base
        assert isinstance(part, mmap.mmap)


def test_held_out_stretches_are_evenly_spaced_and_not_trained_on(tmp_path: Path, prepared: Prepare) -> None:
    places = np.arange(50_000)
    file = write(tmp_path / "set", "llmc llama 3", places)
    dataset = prepared(data("tokens", path=str(file)), none(50_000), eval_bytes=10**6, segment_bytes=400)
    trained, scored = set(read(dataset)), {int(id) for segment in dataset.eval_set.segments for id in segment}
    assert not trained & scored
    assert trained | scored == set(range(50_000))
    assert len(scored) == pytest.approx(5000, abs=64)
    stretches = np.split(held := np.array(sorted(scored)), np.flatnonzero(np.diff(held) > 1) + 1)
    middles = [float(stretch.mean()) for stretch in stretches]
    assert len(stretches) > 10
    assert np.diff(middles) == pytest.approx(np.diff(middles).mean(), rel=0.01)


def test_files_of_a_folder_that_are_named_val_validate(tmp_path: Path, prepared: Prepare) -> None:
    for name, ids in {"fineweb_train_000001.bin": IDS, "fineweb_train_000002.bin": IDS[::-1], "fineweb_val_000000.bin": IDS[:700]}.items():
        (tmp_path / name).write_bytes(header(20240520, 1, len(ids)) + ids.astype("<u2").tobytes())
    dataset = prepared(data("tokens", path=str(tmp_path)), none(), eval_bytes=10**6)
    assert (len(dataset.train), dataset.eval_set.tokens) == (10_000, 699)
    assert any("fineweb_val_000000.bin" in notice for notice in dataset.notices)


def test_shards_are_one_sequence_whatever_their_names(tmp_path: Path, prepared: Prepare) -> None:
    first, second = write(tmp_path / "a", "nanogpt"), write(tmp_path / "b", "nanogpt", IDS[::-1])
    dataset = prepared(data("tokens", path=[str(first), str(second)]), none())
    shutil.copytree(tmp_path / "a", tmp_path / "z")
    again = prepared(data("tokens", path=[str(second), str(tmp_path / "z" / "data.bin")]), none())
    assert again.content_hash == dataset.content_hash
    assert read(again) == read(dataset)
    assert len(dataset.train) == pytest.approx(9000, abs=10)


def test_one_changed_id_moves_the_content_hash(tmp_path: Path, prepared: Prepare) -> None:
    ids = IDS.copy()
    before = prepared(data("tokens", path=str(write(tmp_path / "set", "nanogpt", ids))), none()).content_hash
    ids[17] += 1
    assert prepared(data("tokens", path=str(write(tmp_path / "set", "nanogpt", ids))), none()).content_hash != before


def test_the_unigram_entropy_of_token_files_is_what_a_counter_says(tmp_path: Path, prepared: Prepare) -> None:
    ids = np.minimum(np.random.default_rng(0).geometric(0.05, 5000), 999)
    dataset = prepared(data("tokens", path=str(write(tmp_path / "set", "nanogpt", ids))), none())
    counts = Counter(read(dataset)).values()
    total = sum(counts)
    assert dataset.unigram_entropy == pytest.approx(-sum(count / total * log(count / total) for count in counts), rel=1e-12)


# --- bytes


def test_with_the_tokenizer_file_the_bytes_of_token_files_are_known(tmp_path: Path, prepared: Prepare) -> None:
    made: Tokenizer = gpt2_like()
    made.save(str(tmp_path / "tokenizer.json"))
    texts = [text + " é<|endoftext|>" for text in sentences(100)]
    ids = np.concatenate([made.encode(text).ids for text in texts])
    write(tmp_path / "train", "nanogpt", ids)
    chosen = data("tokens", path=str(tmp_path / "train"), val_path=str(write(tmp_path / "heldout", "llmc", ids)))
    dataset = prepared(chosen, tokenizer("file", path=str(tmp_path / "tokenizer.json"), end_of_text=None), eval_bytes=10**6)
    expected = len("".join(texts).replace("<|endoftext|>", "").encode())
    assert (dataset.train_bytes, dataset.eval_set.bytes) == (expected, expected)
    assert dataset.eval_set.tokens == len(ids)
    assert {int(segment[0]) for segment in dataset.eval_set.segments} == {made.token_to_id("<|endoftext|>")}


def test_with_a_ranks_file_the_bytes_of_token_files_are_known(tmp_path: Path, prepared: Prepare) -> None:
    ranks = ranks_file(tmp_path / "mine.tiktoken", [b"en", b"and"])
    ids = np.array([ord("a"), 256, 257, 258] * 1000)
    chosen = data("tokens", path=str(write(tmp_path / "set", "nanogpt", ids)))
    dataset = prepared(chosen, tokenizer("tiktoken", path=str(ranks), pattern="gpt2", end_of_text=None))
    assert dataset.description["bytes_per_token"] == pytest.approx((1 + 2 + 3 + 0) / 4, rel=0.01)


# --- bad input


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_token_files_with_a_text_tokenizer_are_refused_with_both_cures(tmp_path: Path, prepared: Prepare, kind: str) -> None:
    options = {"vocab_size": 4096} if kind == "bpe" else {}
    with pytest.raises(ConfigError, match=r"tokenizer=none tokenizer\.vocab_size=\.\.\., or tokenizer=file or tiktoken.*bits per byte"):
        prepared(data("tokens", path=str(write(tmp_path / "set", "nanogpt"))), tokenizer(kind, **options))


def test_an_id_outside_the_vocabulary_is_refused(tmp_path: Path, prepared: Prepare) -> None:
    with pytest.raises(ConfigError, match="has ids from 0 to 999; the vocabulary of 999 allows 0 to 998"):
        prepared(data("tokens", path=str(write(tmp_path / "set", "nanogpt"))), none(999))


def test_a_negative_id_is_refused(tmp_path: Path, prepared: Prepare) -> None:
    with pytest.raises(ConfigError, match="has ids from -1 to"):
        prepared(data("tokens", path=str(write(tmp_path / "set", "megatron", IDS - 1))), none())


def test_uint32_ids_read_as_uint16_are_seen(tmp_path: Path, prepared: Prepare) -> None:
    file = tmp_path / "data.bin"
    file.write_bytes(IDS.astype("<u4").tobytes())
    with pytest.raises(ConfigError, match=r"data\.dtype.*every second id .* is 0.*say data\.dtype=uint32"):
        prepared(data("tokens", path=str(file)), none())
    assert len(prepared(data("tokens", path=str(file), dtype="uint32"), none()).train) == 4500


@pytest.mark.parametrize(
    ("format", "name", "message"),
    [
        ("nanogpt", "data.bin", "not a multiple of 2"),
        ("llmc", "data.bin", "its header promises 5000 tokens of uint16, 10000 bytes, after the header come 9999"),
        ("llmc llama 3", "data.bin", "its header promises 5000 tokens of uint32"),
        ("megatron", "data.bin", "data.idx promises 5000 tokens of int32, 20000 bytes, it has 19999"),
        ("megatron", "data.idx", "idx' is not whole: 3 sequences and 4 documents need 102 bytes, it has 101"),
        ("datatrove", "data.ds", "not a multiple of 4"),
        ("olmo", "data.npy", "not a multiple of 2"),
        ("npy", "data.npy", "not a whole .npy file"),
    ],
)
def test_a_file_cut_short_is_one_clear_problem(tmp_path: Path, prepared: Prepare, format: str, name: str, message: str) -> None:
    named = write(tmp_path / "set", format)
    file = tmp_path / "set" / name
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ConfigError, match=message) as caught:
        prepared(data("tokens", path=str(named)), none())
    assert len(caught.value.problems) == 1


def test_a_datatrove_file_of_other_length_than_its_index_is_refused(tmp_path: Path, prepared: Prepare) -> None:
    file = write(tmp_path / "set", "datatrove")
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(ConfigError, match=r"data\.ds\.index promises 5000 tokens, it has 4999"):
        prepared(data("tokens", path=str(file)), none())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header(20240522, 1, 5) + bytes(10), "llm.c evaluation file"),
        (header(20240520, 2, 5) + bytes(10), "has version 2 of magic 20240520; known: 1"),
        (header(20240520, 1, 0), "holds no tokens"),
        (b"", "is empty"),
    ],
)
def test_other_llmc_files_are_refused(tmp_path: Path, prepared: Prepare, content: bytes, message: str) -> None:
    (tmp_path / "data.bin").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        prepared(data("tokens", path=str(tmp_path / "data.bin")), none())


def test_a_fork_of_llmc_with_byte_ids_is_read(tmp_path: Path, prepared: Prepare) -> None:
    ids = IDS % 256
    (tmp_path / "data.bin").write_bytes(header(20240520, 1, len(ids)) + ids.astype(np.uint8).tobytes())
    dataset = prepared(data("tokens", path=str(tmp_path / "data.bin")), none())
    assert read(dataset)[:2000] == ids[:2000].tolist()


def test_a_megatron_set_of_floats_and_one_without_an_index_are_refused(tmp_path: Path, prepared: Prepare) -> None:
    write(tmp_path / "set", "megatron")
    index = tmp_path / "set" / "data.idx"
    index.write_bytes(index.read_bytes()[:17] + b"\x07" + index.read_bytes()[18:])
    with pytest.raises(ConfigError, match="has dtype code 7"):
        prepared(data("tokens", path=str(index)), none())
    index.unlink()
    with pytest.raises(ConfigError, match=r"is missing beside 'data\.bin'"):
        prepared(data("tokens", path=str(tmp_path / "set" / "data.bin"), format="megatron"), none())


def test_a_format_that_a_file_does_not_have_is_refused(tmp_path: Path, prepared: Prepare) -> None:
    with pytest.raises(ConfigError, match=r"has no llm\.c header"):
        prepared(data("tokens", path=str(write(tmp_path / "set", "nanogpt")), format="llmc"), none())


def test_floats_in_a_npy_file_are_refused(tmp_path: Path, prepared: Prepare) -> None:
    np.save(tmp_path / "data.npy", np.zeros(100))
    with pytest.raises(ConfigError, match="holds float64, not little-endian integers"):
        prepared(data("tokens", path=str(tmp_path / "data.npy")), none())


def test_too_few_tokens_and_validation_of_everything_are_refused(tmp_path: Path, prepared: Prepare) -> None:
    file = str(write(tmp_path / "set", "nanogpt", IDS[:15]))
    with pytest.raises(ConfigError, match="only 15 tokens: too few"):
        prepared(data("tokens", path=file), none())
    with pytest.raises(ConfigError, match=r"data\.val_path.*nothing is left to train on"):
        prepared(data("tokens", path=file, val_path=file), none())


def test_scanning_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "set", "nanogpt", np.tile(IDS, 200))
    os.utime(file, (1, 1))
    chosen, settings = data("tokens", path=str(file)), {"eval_bytes": 400, "segment_bytes": 100, "cache_dir": tmp_path / "cache"}
    first = prepare(chosen, none(), **settings)
    monkeypatch.setattr("ablate.data.token_files._scan", lambda ids: pytest.fail("scanned twice"))
    monkeypatch.setattr("ablate.data.dataset.counts_of", lambda *arguments: pytest.fail("counted twice"))
    assert prepare(chosen, none(), **settings).content_hash == first.content_hash
