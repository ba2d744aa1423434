from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ablate.data import EvalSet
from ablate.data.batches import Batches, Windows, eval_batches
from ablate.data.source import Tokens
from ablate.errors import ConfigError


def counting(size: int) -> Tokens:
    """Ids that are their own places, so that a batch tells where it was taken."""
    return Tokens([np.arange(size, dtype=np.uint32)])


def batches(size: int = 1000, *, context: int = 9, batch_size: int = 4, data_seed: int = 0) -> Windows:
    return Windows(counting(size), context=context, batch_size=batch_size, data_seed=data_seed)


def test_targets_are_the_next_inputs() -> None:
    inputs_BT, targets_BT = batches()(3)
    assert inputs_BT.shape == targets_BT.shape == (4, 9)
    assert inputs_BT.dtype == targets_BT.dtype == torch.int64
    assert torch.equal(targets_BT, inputs_BT + 1)


def test_a_batch_is_the_same_from_a_fresh_object_and_in_any_order() -> None:
    forwards, backwards = batches(), batches()
    steps = [0, 1, 24, 25, 26, 60, 500]
    first = {t: forwards(t)[0] for t in steps}
    for t in reversed(steps):
        assert torch.equal(backwards(t)[0], first[t])
        assert torch.equal(batches()(t)[0], first[t])


def test_the_first_batch_of_a_seed_never_changes() -> None:
    """Recorded: Philox output is the same on every machine and NumPy, and with it every run ever made."""
    assert batches()(0)[0][:, 0].tolist() == [841, 1, 861, 741]
    assert batches()(0)[0].ne(batches(data_seed=1)(0)[0]).any()


def test_each_window_of_an_epoch_is_visited_once_and_none_overlap() -> None:
    taken = batches(batch_size=3)
    rows = torch.cat([taken(t)[0][:, 0] for t in range(taken.windows_per_epoch)])[: taken.windows_per_epoch]
    starts = np.sort(rows.numpy())
    assert (np.diff(starts) == 10).all()
    assert starts[0] <= 9
    assert len(starts) == taken.windows_per_epoch == 99


def test_epochs_differ_in_order_and_phase() -> None:
    taken = batches(batch_size=99)
    epochs = [taken(t)[0][:, 0] for t in range(8)]
    assert len({int(starts.min()) % 10 for starts in epochs}) > 2
    assert all(not torch.equal(epochs[0] // 10, starts // 10) for starts in epochs[1:])


def test_epochs_are_counted() -> None:
    taken = batches(batch_size=33)
    assert [taken.epochs(t) for t in (0, 3, 4)] == [0, 1, pytest.approx(4 / 3)]


def test_a_batch_may_be_longer_than_an_epoch() -> None:
    taken = Windows(counting(25), context=9, batch_size=7, data_seed=0)
    inputs_BT, targets_BT = taken(5)
    assert inputs_BT.shape == (7, 9)
    assert int(targets_BT.max()) < 25
    assert len(taken._orders) <= 2


def test_data_of_one_window_is_enough_and_one_token_less_is_not() -> None:
    assert Batches(counting(10), context=9, batch_size=1, data_seed=0)(7)[0][0].tolist() == list(range(9))
    with pytest.raises(ConfigError, match=r"9 tokens, fewer than one window of context \+ 1 = 10; use a context of at most 8"):
        Batches(counting(9), context=9, batch_size=1, data_seed=0)


def test_windows_across_shards_are_those_of_one_long_shard() -> None:
    whole = np.arange(1000)
    shards = Tokens(np.split(whole, [1, 2, 2, 100, 517]))
    starts = np.arange(0, 980)
    assert np.array_equal(shards.windows(starts, 20), Tokens([whole]).windows(starts, 20))
    assert shards.windows(starts, 20)[37].tolist() == list(range(37, 57))
    assert shards.slices([(0, 3), (90, 110)]).read(0, 23).tolist() == [0, 1, 2, *range(90, 110)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(1, 33), st.integers(1, 7))
def test_every_token_of_every_segment_is_scored_once(lengths: list[int], context: int, batch_size: int) -> None:
    segments = [np.arange(length + 1) + 1000 * place for place, length in enumerate(lengths)]
    scored = []
    for inputs_BT, targets_BT in eval_batches(EvalSet(list(segments), None, sum(lengths)), context=context, batch_size=batch_size):
        assert inputs_BT.shape == targets_BT.shape == (batch_size, context)
        kept = targets_BT != -100
        assert torch.equal(inputs_BT[kept] + 1, targets_BT[kept])
        scored += targets_BT[kept].tolist()
    assert sorted(scored) == sorted(id for segment in segments for id in segment[1:].tolist())


def test_evaluation_makes_as_few_batches_as_it_needs() -> None:
    eval_set = EvalSet([np.arange(101), np.arange(51)], None, 150)
    assert len(list(eval_batches(eval_set, context=50, batch_size=2))) == math.ceil(3 / 2)
