"""Synthetic tasks: every answer follows from the inputs before it, and training on them goes through the whole of a run."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from ablate import compose
from ablate.cli import main
from ablate.data import DATA, Task, TaskEvalSet, check_pair, prepare
from ablate.data.batches import Batches, eval_batches
from ablate.data.synthetic import TRAINING, Draws, MultiQueryRecall, _without
from ablate.errors import ConfigError
from ablate.train.evaluate import evaluate

from .conftest import Prepare, tokenizer

SOLVED_BY_CHANCE_ONCE_IN = 10_000
"""A test of frequencies fails this rarely when they are right (its seed is fixed, so once and for all)."""

SMALL: dict[str, dict[str, Any]] = {
    "copy": {"vocab_size": 5},
    "induction": {"vocab_size": 20},
    "mqar": {"vocab_size": 16, "num_pairs": 3, "power": 0.01},
    "dyck": {"vocab_size": 6, "max_depth": 3},
}
KINDS = sorted(SMALL)
CONTEXT = 24


def task(kind: str, **options: Any) -> Task:
    built: Task = DATA.build(options_of(kind, **options))
    return built


def options_of(kind: str, **options: Any) -> Any:
    return DATA.options(kind)(kind=kind, **{**SMALL[kind], **options})


def batch(kind: str, t: int = 0, *, data_seed: int = 0, rows: int = 40, context: int = CONTEXT, **options: Any) -> tuple[Any, Any]:
    made = Batches(task(kind, **options), context=context, batch_size=rows, data_seed=data_seed)(t)
    return made[0], made[1]


# --- slow solvers: each is given the inputs up to an answer's position and nothing else


def solve_copy(seen: list[int]) -> int:
    """Where the separator stands says how long the text is; so many places back is what comes next."""
    return seen[len(seen) - 1 - seen.index(0)]


def solve_induction(seen: list[int]) -> int:
    """What came after this token when it came last."""
    *before, now = seen
    last = max(place for place, token in enumerate(before) if token == now)
    return seen[last + 1]


def solve_mqar(seen: list[int]) -> int:
    """What the list at the beginning says."""
    listed = seen[: 2 * SMALL["mqar"]["num_pairs"]]
    return dict(zip(listed[::2], listed[1::2], strict=True))[seen[-1]]


def solve_dyck(seen: list[int]) -> int:
    """What closes the last bracket that is still open."""
    kinds = SMALL["dyck"]["vocab_size"] // 2
    still_open: list[int] = []
    for token in seen:
        if token < kinds:
            still_open.append(token)
        else:
            assert still_open.pop() == token - kinds
    return kinds + still_open[-1]


SOLVERS: dict[str, Callable[[list[int]], int]] = {
    "copy": solve_copy,
    "induction": solve_induction,
    "mqar": solve_mqar,
    "dyck": solve_dyck,
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**63 - 1), t=st.integers(0, 10**7))
def test_every_answer_follows_from_the_inputs_up_to_its_position(kind: str, seed: int, t: int) -> None:
    inputs_BT, targets_BT = batch(kind, t, data_seed=seed, rows=4)
    for inputs, targets in zip(inputs_BT.tolist(), targets_BT.tolist(), strict=True):
        answers = {place: target for place, target in enumerate(targets) if target != -100}
        assert answers == {place: SOLVERS[kind](inputs[: place + 1]) for place in answers}


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_a_function_of_seed_and_step(kind: str) -> None:
    made = Batches(task(kind), context=CONTEXT, batch_size=8, data_seed=3)
    forwards = [made(t) for t in range(5)]
    fresh = Batches(task(kind), context=CONTEXT, batch_size=8, data_seed=3)
    for t in (4, 0, 2):
        assert all(torch.equal(a, b) for a, b in zip(fresh(t), forwards[t], strict=True))
    assert len({inputs.numpy().tobytes() for inputs, _ in forwards}) == 5
    assert not torch.equal(batch(kind, data_seed=4, rows=8)[0], batch(kind, data_seed=3, rows=8)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_whole_numbers_of_the_vocabulary_in_the_shape_of_the_context(kind: str) -> None:
    inputs_BT, targets_BT = batch(kind)
    vocab_size = SMALL[kind]["vocab_size"]
    assert inputs_BT.shape == targets_BT.shape == (40, CONTEXT)
    assert inputs_BT.dtype == targets_BT.dtype == torch.int64
    assert 0 <= int(inputs_BT.min()) <= int(inputs_BT.max()) < vocab_size
    assert set(targets_BT.unique().tolist()) <= {-100, *range(vocab_size)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("context", [12, 24, 36])
def test_every_example_has_equally_many_answers(kind: str, context: int) -> None:
    """Or the mean over micro-batches would not be the mean over the batch."""
    counts = (batch(kind, context=context)[1] != -100).sum(1).unique()
    assert counts.tolist() == [SMALL[kind].get("num_pairs", context // 2)]


@pytest.mark.parametrize("kind", KINDS)
def test_all_answers_are_equally_frequent_so_that_chance_is_the_entropy_that_is_recorded(kind: str, tmp_path: Path) -> None:
    targets_BT = batch(kind, rows=4000)[1]
    counts = Counter(targets_BT[targets_BT != -100].tolist())
    total = sum(counts.values())
    measured = -sum(count / total * math.log(count / total) for count in counts.values())
    dataset = prepare(options_of(kind), vocabulary(kind), eval_bytes=400, segment_bytes=100, cache_dir=tmp_path)
    assert measured == pytest.approx(dataset.unigram_entropy, abs=2e-3)
    assert dataset.unigram_entropy == pytest.approx(-math.log(dataset.description["chance_accuracy"]))


# --- numbers worked by hand, or recorded


def drawn(kind: str, context: int, **options: Any) -> tuple[list[int], list[int]]:
    inputs, targets = task(kind, **options).examples(1, context, Draws(0, TRAINING, 0))
    return inputs[0].tolist(), targets[0].tolist()


N = -100


def test_copying_by_hand() -> None:
    inputs, targets = drawn("copy", 10)
    assert inputs == [4, 4, 3, 3, 4, 0, 4, 4, 3, 3]
    assert targets == [N, N, N, N, N, 4, 4, 3, 3, 4]


def test_induction_by_hand() -> None:
    """A block of six, twice; the last answer is the block's first token once more."""
    inputs, targets = drawn("induction", 12, vocab_size=9)
    assert inputs == [2, 4, 3, 5, 7, 1, 2, 4, 3, 5, 7, 1]
    assert targets == [N, N, N, N, N, N, 4, 3, 5, 7, 1, 2]


def test_recall_by_hand() -> None:
    """5 -> 11, 4 -> 8; then 4 is asked for at position 4 and 5 at position 6."""
    inputs, targets = drawn("mqar", 12, vocab_size=12, num_pairs=2)
    assert inputs == [5, 11, 4, 8, 4, 6, 5, 11, 7, 10, 6, 1]
    assert targets == [N, N, N, N, 8, N, 11, N, N, N, N, N]


def test_brackets_by_hand() -> None:
    """[ ] ( [ ] ) ( [ ] ) ( ), with ( = 0, [ = 1, ) = 2, ] = 3: each closing one is the target of the position before it."""
    inputs, targets = drawn("dyck", 12, vocab_size=4, max_depth=2)
    assert inputs == [1, 3, 0, 1, 3, 2, 0, 1, 3, 2, 0, 2]
    assert targets == [3, N, N, 3, 2, N, N, 3, 2, N, 2, N]


# --- what each task promises beside


def test_a_copy_is_asked_for_whole_and_in_its_place() -> None:
    inputs_BT, targets_BT = batch("copy")
    half = CONTEXT // 2
    assert (inputs_BT[:, half] == 0).all()
    assert (inputs_BT == 0).sum() == len(inputs_BT)
    assert torch.equal(targets_BT[:, half:], inputs_BT[:, :half])


def test_blocks_of_induction_have_all_lengths_from_a_quarter_to_half_of_the_context() -> None:
    inputs_BT, targets_BT = batch("induction", rows=400)
    lengths = [row.index(row[0], 1) for row in inputs_BT.tolist()]
    assert set(lengths) == set(range(CONTEXT // 4, CONTEXT // 2 + 1))
    for row, length in zip(inputs_BT.tolist(), lengths, strict=True):
        assert len(set(row[:length])) == length
        assert row == [row[place % length] for place in range(CONTEXT)]
    assert torch.equal(targets_BT[:, CONTEXT // 2 : -1], inputs_BT[:, CONTEXT // 2 + 1 :])


@settings(max_examples=50, deadline=None)
@given(pairs=st.integers(1, 6), spare=st.integers(0, 10), wider=st.integers(0, 8), seed=st.integers(0, 1000))
def test_recall_lists_pairs_asks_for_each_once_and_shows_no_key_elsewhere(pairs: int, spare: int, wider: int, seed: int) -> None:
    vocab_size, context = 2 * (pairs + 1 + wider), 4 * pairs + 2 * spare
    inputs_BT, targets_BT = batch("mqar", data_seed=seed, rows=5, context=context, vocab_size=vocab_size, num_pairs=pairs)
    for inputs, targets in zip(inputs_BT.tolist(), targets_BT.tolist(), strict=True):
        keys, values = inputs[: 2 * pairs : 2], inputs[1 : 2 * pairs : 2]
        assert len(set(keys)) == len(set(values)) == pairs
        assert set(keys) <= set(range(1, vocab_size // 2))
        assert set(values) <= set(range(vocab_size // 2, vocab_size))
        asked = [place for place, target in enumerate(targets) if target != -100]
        assert sorted(inputs[place] for place in asked) == sorted(keys)
        assert all(place >= 2 * pairs and place % 2 == 0 for place in asked)
        rest = [id for place, id in enumerate(inputs) if place >= 2 * pairs and place not in asked]
        assert not set(rest) & set(keys)


def test_the_distances_of_recall_follow_the_power_law_of_the_paper_without_replacement() -> None:
    """The second of two draws is compared with sum_i p_i p_j / (1 - p_i)."""
    made = MultiQueryRecall(vocab_size=64, num_pairs=2, power=0.01)
    gaps = made._gaps(40_000, 10, Draws(0, 7))
    weights = np.arange(1, 11) ** (0.01 - 1.0)
    first = weights / weights.sum()
    second = [sum(first[i] * first[j] / (1 - first[i]) for i in range(10) if i != j) for j in range(10)]
    for column, expected in ((0, first), (1, second)):
        counts = np.bincount(gaps[:, column], minlength=10)
        assert chisquare(counts, np.array(expected) * len(gaps)).pvalue > 1 / SOLVED_BY_CHANCE_ONCE_IN


def test_an_id_that_is_left_out_is_passed_over() -> None:
    ranks, excluded = np.array([[0, 1, 2, 3], [0, 1, 2, 3]]), np.array([[5, 1], [0, 1]])
    assert _without(ranks, excluded).tolist() == [[0, 2, 3, 4], [2, 3, 4, 5]]


def test_brackets_are_whole_words_no_deeper_than_they_may_be_and_each_closing_one_is_asked_for() -> None:
    inputs_BT, targets_BT = batch("dyck", rows=300)
    deepest = set()
    for inputs, targets in zip(inputs_BT.tolist(), targets_BT.tolist(), strict=True):
        depths = np.cumsum([1 if id < 3 else -1 for id in inputs])
        assert depths.min() >= 0
        assert depths[-1] == 0
        deepest.add(int(depths.max()))
        assert [target if target != -100 else None for target in targets] == [id if id >= 3 else None for id in inputs[1:]] + [None]
    assert max(deepest) == 3
    assert len(deepest) > 1


@pytest.mark.parametrize(("length", "max_depth"), [(8, 2), (8, 3), (10, 99)])
def test_all_shapes_of_brackets_are_equally_likely(length: int, max_depth: int) -> None:
    words = [""]
    for _ in range(length):
        words = [word + step for word in words for step in "()"]
    balanced = {word for word in words if word.count("(") * 2 == length and _heights(word)[0] >= 0 and _heights(word)[1] <= max_depth}
    inputs_BT, _ = batch("dyck", rows=20_000, context=length, max_depth=max_depth)
    counts = Counter("".join("(" if id < 3 else ")" for id in row) for row in inputs_BT.tolist())
    assert counts.keys() == balanced
    assert chisquare(list(counts.values())).pvalue > 1 / SOLVED_BY_CHANCE_ONCE_IN


def _heights(word: str) -> tuple[int, int]:
    heights = [word[: place + 1].count("(") - word[: place + 1].count(")") for place in range(len(word))]
    return min(heights), max(heights)


def test_very_long_words_stay_in_range() -> None:
    """Their number is beyond any float: 2^4000 and more."""
    inputs_BT, targets_BT = batch("dyck", rows=2, context=4096, max_depth=50)
    assert int((inputs_BT < 3).sum()) == int((targets_BT != -100).sum()) == 4096  # two rows, half of each


def test_distinct_numbers_come_in_every_order_equally_often() -> None:
    pairs = Counter(map(tuple, Draws(1, 2).distinct(4, 24_000, 2).tolist()))
    assert len(pairs) == 12
    assert chisquare(list(pairs.values())).pvalue > 1 / SOLVED_BY_CHANCE_ONCE_IN
    assert sorted(Draws(1, 3).distinct(6, 1, 6)[0].tolist()) == list(range(6))


# --- the evaluation set


@pytest.mark.parametrize("kind", KINDS)
def test_the_evaluation_set_is_fixed_and_is_none_of_the_training_batches(kind: str) -> None:
    eval_set = TaskEvalSet(task(kind), asked=10 * CONTEXT + 5)
    first = list(eval_batches(eval_set, context=CONTEXT, batch_size=4))
    assert len(first) == 3
    again = list(eval_batches(TaskEvalSet(task(kind), asked=10 * CONTEXT + 5), context=CONTEXT, batch_size=4))
    assert all(torch.equal(a, b) for one, other in zip(first, again, strict=True) for a, b in zip(one, other, strict=True))
    assert all(inputs_BT.shape == targets_BT.shape == (4, CONTEXT) for inputs_BT, targets_BT in first)
    assert (first[2][1][2:] == -100).all()
    scored = torch.cat([inputs_BT for inputs_BT, _ in first])[:10]
    for seed in range(5):
        assert not any(torch.equal(scored, batch(kind, t, data_seed=seed, rows=10)[0]) for t in range(5))


def test_evaluation_examples_do_not_depend_on_the_batch_size() -> None:
    eval_set = TaskEvalSet(task("mqar"), asked=10 * CONTEXT)
    by_size = [torch.cat([x for x, _ in eval_batches(eval_set, context=CONTEXT, batch_size=size)])[:10] for size in (1, 3, 10)]
    assert torch.equal(by_size[0], by_size[1])
    assert torch.equal(by_size[0], by_size[2])


def test_accuracy_is_the_share_of_answers_that_are_put_first() -> None:
    """A model that copies the token half a context back is always right; one that knows only even symbols, in two of four."""
    eval_set, half = TaskEvalSet(task("copy"), asked=2000 * CONTEXT), CONTEXT // 2

    def knows(tokens_BT: torch.Tensor) -> torch.Tensor:
        return 9.0 * torch.nn.functional.one_hot(torch.roll(tokens_BT, half, dims=1), 5).float()

    def knows_even(tokens_BT: torch.Tensor) -> torch.Tensor:
        return knows(tokens_BT) * torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0]) + torch.tensor([0.5, 0.0, 0.0, 0.0, 0.0])

    found = [
        evaluate(model, eval_set, context=CONTEXT, batch_size=64, device=torch.device("cpu"), grad=False) for model in (knows, knows_even)
    ]
    assert found[0].accuracy == 1
    assert found[1].accuracy == pytest.approx(0.5, abs=0.01)
    assert found[0].tokens == found[1].tokens == 2000 * half
    assert found[0].bits_per_byte is None


# --- options and contexts that do not go together


def vocabulary(kind: str, **options: Any) -> Any:
    return tokenizer("none", vocab_size=options.get("vocab_size", SMALL[kind]["vocab_size"]))


@pytest.mark.parametrize(
    ("kind", "context", "message"),
    [
        ("mqar", 10, r"model.context .*at least 4 data.num_pairs = 12, got 10; use model.context=12 or more, or data.num_pairs=2 or less"),
        ("mqar", 13, "model.context .*an even number"),
        ("mqar", 2, "model.context .*use model.context=12 or more$"),
        ("copy", 7, "model.context .*needs an even number, got 7; use 8"),
        ("dyck", 7, "model.context .*needs an even number, got 7; use 8"),
        ("induction", 3, "model.context .*needs at least 4, got 3"),
        ("induction", 64, r"half of 64 tokens cannot all differ.*data.vocab_size=32 or more, or model.context=40 or less"),
    ],
)
def test_a_context_that_no_example_has_is_an_error_with_its_cure(kind: str, context: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        batch(kind, context=context)
    with pytest.raises(ConfigError, match=message):
        list(eval_batches(TaskEvalSet(task(kind), 1), context=context, batch_size=1))


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("mqar", {"num_pairs": 8}, r"data.vocab_size .*an even number of at least 18 for data.num_pairs=8.*got 16"),
        ("mqar", {"vocab_size": 17}, "data.vocab_size .*an even number"),
        ("copy", {"vocab_size": 2}, "data.vocab_size .*at least 3, got 2"),
        ("induction", {"vocab_size": 1}, "data.vocab_size .*at least 2, got 1"),
        ("dyck", {"vocab_size": 5}, "data.vocab_size .*an even number of at least 4"),
        ("dyck", {"vocab_size": 2}, "data.vocab_size .*an even number of at least 4"),
    ],
)
def test_options_that_no_example_has_are_an_error_before_anything_runs(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_pair(options_of(kind, **options), vocabulary(kind, **options))


def test_the_least_options_that_are_allowed_work() -> None:
    batch("mqar", vocab_size=8, num_pairs=3, context=12)
    batch("copy", vocab_size=3, context=2)
    batch("induction", vocab_size=2, context=4)
    batch("dyck", vocab_size=4, max_depth=1, context=2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_of_text_or_of_another_size_is_an_error(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"bytes encodes text, but data={kind} draws ids: leave tokenizer=bytes out"):
        check_pair(options_of(kind), tokenizer("bytes"))
    with pytest.raises(ConfigError, match=rf"tokenizer.vocab_size  99 is not the \d+ of data={kind}: leave it out"):
        check_pair(options_of(kind), tokenizer("none", vocab_size=99))
    check_pair(options_of(kind), vocabulary(kind))


def test_every_option_and_the_size_of_the_evaluation_set_are_in_the_identity(prepared: Prepare) -> None:
    variants = [
        *((kind, {}) for kind in KINDS),
        ("copy", {"vocab_size": 6}),
        ("induction", {"vocab_size": 21}),
        ("mqar", {"vocab_size": 18}),
        ("mqar", {"num_pairs": 4}),
        ("mqar", {"power": 0.5}),
        ("dyck", {"vocab_size": 8}),
        ("dyck", {"max_depth": 4}),
    ]
    hashes = [prepared(options_of(kind, **options), vocabulary(kind, **options)).content_hash for kind, options in variants]
    assert len(set(hashes)) == len(variants)
    assert prepared(options_of("copy"), vocabulary("copy")).content_hash == hashes[0]
    assert prepared(options_of("copy"), vocabulary("copy"), eval_bytes=800).content_hash != hashes[0]


def test_a_task_is_never_collapsed_and_text_at_its_unigram_entropy_is(prepared: Prepare, folder: Path) -> None:
    dataset = prepared(options_of("mqar"), vocabulary("mqar"))
    assert dataset.unigram_entropy == pytest.approx(math.log(8))
    assert dataset.collapse_loss == math.inf
    assert json.dumps(dataset.description)
    text = prepared(DATA.options("text")(kind="text", path=str(folder), text_key="text"))
    assert text.collapse_loss == text.unigram_entropy


# --- whole runs


def test_choosing_a_task_chooses_its_vocabulary_at_any_scale() -> None:
    for overrides in (["data=mqar"], ["scale=small", "data=mqar"], ["data=mqar", "scale=124m"]):
        assert compose(overrides).tokenizer.model_dump() == {"kind": "none", "vocab_size": 64}
    assert compose(["data=mqar", "data.vocab_size=8192"]).tokenizer.model_dump() == {"kind": "none", "vocab_size": 8192}
    assert compose(["scale=small"]).tokenizer.kind == "bpe"
    with pytest.raises(ConfigError, match="bpe encodes text, but data=mqar draws ids: leave tokenizer=bpe out"):
        compose(["data=mqar", "tokenizer=bpe"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_on_a_task_ends_with_its_accuracy_and_stops_at_no_plateau(kind: str, short: list[str], tmp_path: Path) -> None:
    never_learns = ["optim.lr=1e-9", "train.collapse_after=0", "train.tokens=2560"]
    assert main([f"data={kind}", *[text for text in short if not text.startswith(("optim.lr", "train.tokens"))], *never_learns]) == 0
    [directory] = (tmp_path / "results" / "runs").iterdir()
    summary = json.loads((directory / "summary.json").read_text())
    assert f"data={kind}-" in directory.name
    assert 0 <= summary["eval_accuracy"] < 0.5
    assert summary["bits_per_byte"] is None
    assert summary["epochs"] == 0
    assert summary["eval_loss"] == pytest.approx(summary["unigram_entropy"], abs=4)
    answers = {"mqar": 8}.get(kind, 32)
    assert summary["eval_tokens"] == 4096 // 4 // 64 * answers


def test_a_run_on_text_has_no_accuracy(short: list[str], tmp_path: Path) -> None:
    assert main(short) == 0
    [directory] = (tmp_path / "results" / "runs").iterdir()
    assert "eval_accuracy" not in json.loads((directory / "summary.json").read_text())


@pytest.mark.slow
def test_a_small_model_learns_induction_far_above_chance(short: list[str], tmp_path: Path) -> None:
    """250 steps of a model of two layers, 1/16 being chance."""
    sizes = ["model.width=64", "model.depth=2", "model.heads=2", "model.context=32", "train.batch_size=32", "train.tokens=256000"]
    kept = [text for text in short if text.split("=")[0] in ("progress", "tracker", "results_dir", "cache_dir")]
    assert main(["data=induction", "data.vocab_size=16", *sizes, *kept]) == 0
    [directory] = (tmp_path / "results" / "runs").iterdir()
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["eval_accuracy"] > 0.9
