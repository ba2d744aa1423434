from __future__ import annotations

import base64
import math
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from ablate.data import TOKENIZER, prepare, vocab_size
from ablate.data.cache import Cache
from ablate.data.corpora import Sotu, package_folder
from ablate.data.tokenizers import PATTERNS, BytePairs, Bytes, Encoder, Ranks, TrainingText
from ablate.errors import ConfigError

from .conftest import Prepare, data, sentences, tokenizer

HARD = [
    "",
    " ",
    "\n\n  \t tabs  and\u00a0blanks   ",
    "It's we'll I'D don't '",
    "naïve café Ελληνικά 中文字 ½ ² 12345 e\u0301 \u200b\ufeff",
    "🙂👩‍👩‍👧 \U0001f1e9\U0001f1ea",
    "<|endoftext|> is text",
    "\x01\x7f\x1c",
    "a" * 5000,
]


def training(texts: list[str]) -> TrainingText:
    def documents() -> Iterator[bytes]:
        return (text.encode() for text in texts)

    return TrainingText(repr(texts), sum(len(text.encode()) for text in texts), documents)


def trained(texts: list[str], size: int, folder: Path) -> Encoder:
    return BytePairs(vocab_size=size).fit(training(texts), Cache(folder, lambda message: None))


def oracle(folder: Path) -> tokenizers.Tokenizer:
    """The trained tokenizer as the package that trained it loads it."""
    [file] = folder.glob("bpe-*/tokenizer.json")
    loaded = tokenizers.Tokenizer.from_file(str(file))
    loaded.encode_special_tokens = True
    return loaded


@pytest.fixture(scope="module")
def part_of_sotu() -> list[str]:
    """Every twelfth address."""
    return [path.read_text(encoding="utf-8") for path in sorted((package_folder("sotu", "") / "data" / "speeches").glob("*.txt"))[::12]]


@pytest.fixture(scope="module")
def bpe_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bpe")


@pytest.fixture(scope="module")
def fast(part_of_sotu: list[str], bpe_folder: Path) -> Encoder:
    """4,096 entries of real text."""
    return trained(part_of_sotu[::3], 4096, bpe_folder)


def test_bytes_are_their_own_ids() -> None:
    text = "café".encode()
    assert Bytes().encode(text).tolist() == list(text)


@pytest.mark.parametrize("text", HARD)
def test_bytes_and_bpe_give_back_what_they_encode(tmp_path: Path, text: str) -> None:
    for encoder in (Bytes(), trained(sentences(50), 320, tmp_path)):
        ids = encoder.encode(text.encode())
        assert encoder.decode(ids) == text.encode()
        lengths = encoder.byte_lengths()
        assert lengths is not None
        assert lengths[ids].sum() == len(text.encode())


def test_bpe_merges_what_is_frequent_first(tmp_path: Path) -> None:
    encoder = trained(["ababab ababab abab"], 260, tmp_path)
    assert encoder.decode(np.array([257])) == b"ab"
    assert len(encoder.encode(b"abab")) == 1
    assert encoder.end_of_text == 0


def test_bpe_trained_twice_is_the_same(tmp_path: Path) -> None:
    texts = sentences(300)
    assert trained(texts, 500, tmp_path / "a").content == trained(texts, 500, tmp_path / "b").content
    assert trained(texts, 400, tmp_path / "a").content != trained(texts, 500, tmp_path / "a").content


def test_a_text_too_short_for_the_vocabulary_is_told(tmp_path: Path) -> None:
    encoder = trained(["abab"], 1000, tmp_path)
    assert encoder.vocab_size == 1000
    assert "only 25" in encoder.notices[0]


def test_fast_ids_equal_those_of_the_package_tokenizers_on_sotu(fast: Encoder, bpe_folder: Path, part_of_sotu: list[str]) -> None:
    slow = oracle(bpe_folder)
    assert slow.get_vocab_size() == 4096
    for text in part_of_sotu:
        assert fast.encode(text.encode()).tolist() == slow.encode(text, add_special_tokens=False).ids


def test_fast_ids_equal_those_of_the_package_tokenizers_on_hard_text(fast: Encoder, bpe_folder: Path) -> None:
    slow = oracle(bpe_folder)
    chance = random.Random(0)
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    strange = ["".join(chance.choice(characters) for _ in range(40)) for _ in range(300)]
    likely = ["".join(chance.choice(" \n\t'sretal.,1é") for _ in range(60)) for _ in range(300)]
    for text in [*HARD, *strange, *likely]:
        assert fast.encode(text.encode()).tolist() == slow.encode(text, add_special_tokens=False).ids, repr(text)


@pytest.mark.parametrize("blank", [" ", "\n"])
def test_a_long_run_of_blanks_are_encoded(fast: Encoder, blank: str) -> None:
    text = f"before{blank * 1_000_000}after".encode()
    assert fast.decode(fast.encode(text)) == text


@pytest.mark.slow
def test_bpe_of_sotu_has_the_measured_bytes_per_token(sotu_cache: Path) -> None:
    dataset = prepare(data("sotu"), tokenizer("bpe", vocab_size=4096), eval_bytes=10**7, segment_bytes=10**6, cache_dir=sotu_cache)
    assert dataset.description["bytes_per_token"] == pytest.approx(4.25, abs=0.01)
    assert dataset.eval_set.bytes is not None
    assert dataset.eval_set.bytes / dataset.eval_set.tokens == pytest.approx(4.306, abs=0.01)
    assert dataset.unigram_entropy == pytest.approx(6.618, abs=0.01)


@pytest.mark.slow
def test_unigram_and_token_count_of_the_facts_page_come_out(tmp_path: Path) -> None:
    """Measured independently: every tenth document held out, 8,000 entries: 2,319,369 training tokens, 6.679 nats a token."""
    texts = [document.text for document in Sotu().corpus(Cache(tmp_path, lambda message: None)).documents()]
    train, held_out = [text for n, text in enumerate(texts) if n % 10 != 9], [text for n, text in enumerate(texts) if n % 10 == 9]
    text = TrainingText("facts", sum(map(len, train)), lambda: iter(train))
    encoder = BytePairs(vocab_size=8000).fit(text, Cache(tmp_path, lambda message: None))
    ids = [encoder.encode(text) for text in train]
    assert sum(map(len, ids)) == 2_319_369
    counts = np.bincount(np.concatenate(ids), minlength=8000) + 1
    scored = np.concatenate([encoder.encode(text) for text in held_out])
    nats = float(-np.log(counts / counts.sum())[scored].mean())
    assert nats == pytest.approx(6.679, abs=0.01)
    assert nats * len(scored) / sum(map(len, held_out)) / math.log(2) == pytest.approx(2.029, abs=0.01)


# --- files


def gpt2_like(size: int = 400) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(sentences(200), trainer)
    return made


def test_a_tokenizer_file_gives_the_ids_of_the_package(tmp_path: Path, folder: Path, prepared: Prepare) -> None:
    made = gpt2_like()
    made.save(str(tmp_path / "tokenizer.json"))
    chosen = tokenizer("file", path=str(tmp_path / "tokenizer.json"), end_of_text=None)
    dataset = prepared(data("text", path=str(folder)), chosen)
    assert dataset.vocab_size == vocab_size(chosen) == made.get_vocab_size()
    for segment in dataset.eval_set.segments:
        assert segment[0] == made.token_to_id("<|endoftext|>")
        assert segment[1:].tolist() == made.encode(made.decode(segment[1:].tolist())).ids


def test_text_that_looks_like_a_special_token_is_plain_text_to_a_tokenizer_file(tmp_path: Path) -> None:
    gpt2_like().save(str(tmp_path / "tokenizer.json"))
    encoder = TOKENIZER.build(tokenizer("file", path=str(tmp_path / "tokenizer.json"), end_of_text=None)).encoder()
    assert encoder is not None
    ids = encoder.encode(b"a<|endoftext|>b")
    assert encoder.end_of_text not in ids.tolist()
    assert encoder.decode(ids) == b"a<|endoftext|>b"


def test_a_tokenizer_file_that_changes_the_text_is_told(tmp_path: Path, folder: Path, prepared: Prepare) -> None:
    made = gpt2_like()
    made.normalizer = normalizers.Lowercase()
    made.save(str(tmp_path / "tokenizer.json"))
    dataset = prepared(data("text", path=str(folder)), tokenizer("file", path=str(tmp_path / "tokenizer.json"), end_of_text=None))
    assert any("does not give back the text" in notice for notice in dataset.notices)


def test_an_unknown_end_of_text_lists_the_special_tokens(tmp_path: Path) -> None:
    gpt2_like().save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match=r"tokenizer\.end_of_text.*its special tokens: <\|endoftext\|>.*did you mean"):
        vocab_size(tokenizer("file", path=str(tmp_path / "tokenizer.json"), end_of_text="<|endoftxt|>"))


def test_a_file_that_is_no_tokenizer_and_one_that_is_missing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="is not a tokenizer"):
        vocab_size(tokenizer("file", path=str(tmp_path / "tokenizer.json"), end_of_text=None))
    with pytest.raises(ConfigError, match=r"cannot be read.*did you mean 'tokenizer\.json'"):
        vocab_size(tokenizer("file", path=str(tmp_path / "tokeniser.json"), end_of_text=None))


def ranks_file(path: Path, extra: list[bytes] | None = None, missing: int = 0) -> Path:
    tokens = [bytes([byte]) for byte in range(256 - missing)] + (extra or [])
    path.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)))
    return path


def test_a_ranks_file_merges_by_rank(tmp_path: Path, folder: Path, prepared: Prepare) -> None:
    file = ranks_file(tmp_path / "mine.tiktoken", [b"en", b"nd", b"ends"])
    chosen = tokenizer("tiktoken", path=str(file), pattern="gpt2", end_of_text=None)
    dataset = prepared(data("text", path=str(folder)), chosen)
    assert dataset.vocab_size == vocab_size(chosen) == 260
    encoder = TOKENIZER.build(chosen).encoder()
    assert encoder is not None
    assert encoder.end_of_text == 259
    assert encoder.encode(b"endsx").tolist() == [256, *b"dsx"]  # en wins over nd, and from "en" no merge leads to "ends"
    assert encoder.encode(b"ends").tolist() == [258]  # a whole word with a rank is that rank
    assert encoder.encode("é".encode()).tolist() == [0xC3, 0xA9]


@pytest.mark.parametrize("pattern", sorted(PATTERNS))
def test_every_pattern_covers_every_character(pattern: str) -> None:
    encoder = Ranks({bytes([byte]): byte for byte in range(256)}, PATTERNS[pattern], 256, 257, "every byte")
    text = "".join(HARD).encode()
    assert encoder.encode(text).tolist() == list(text)


def test_broken_ranks_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.tiktoken").write_text("hello there you\n")
    ranks_file(tmp_path / "short.tiktoken", missing=3)
    whole = str(ranks_file(tmp_path / "whole.tiktoken"))
    wrong = {
        "is not `base64 rank`": {"path": str(tmp_path / "text.tiktoken"), "pattern": "gpt2", "end_of_text": None},
        "no rank for 3 of the 256": {"path": str(tmp_path / "short.tiktoken"), "pattern": "gpt2", "end_of_text": None},
        "is the id of a piece of text": {"path": whole, "pattern": "gpt2", "end_of_text": 7},
        "not one of gpt2, cl100k, o200k": {"path": whole, "pattern": "(gpt2", "end_of_text": None},
    }
    for message, options in wrong.items():
        with pytest.raises(ConfigError, match=message):
            TOKENIZER.build(tokenizer("tiktoken", **options)).encoder()


def test_vocabulary_sizes_are_known_without_data() -> None:
    assert vocab_size(tokenizer("bytes")) == 256
    assert vocab_size(tokenizer("bpe", vocab_size=8000)) == 8000
    assert vocab_size(tokenizer("none", vocab_size=50304)) == 50304


def test_a_vocabulary_smaller_than_the_bytes_is_no_option_of_bpe() -> None:
    with pytest.raises(ValueError, match="greater than or equal to 257"):
        tokenizer("bpe", vocab_size=256)


def test_training_text_and_tokenizer_move_the_content_hash(folder: Path, prepared: Prepare) -> None:
    text = data("text", path=str(folder))
    hashes = [prepared(text, tokenizer("bpe", vocab_size=size)).content_hash for size in (300, 310, 300)]
    assert len({*hashes, prepared(text).content_hash}) == 3
    assert Counter(hashes).most_common(1)[0][1] == 2
