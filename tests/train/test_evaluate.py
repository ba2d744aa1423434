"""Evaluation: every token of the fixed set once, in nats per token and bits per byte."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from ablate.data import EvalSet
from ablate.train.evaluate import evaluate

VOCABULARY = 7


def uniform(tokens_BT: Tensor) -> Tensor:
    return torch.zeros(*tokens_BT.shape, VOCABULARY)


def knows_the_next(tokens_BT: Tensor) -> Tensor:
    """Sure of token + 1."""
    return 100.0 * torch.nn.functional.one_hot((tokens_BT + 1) % VOCABULARY, VOCABULARY).float()


def counting(*lengths: int) -> EvalSet:
    segments = [np.arange(length + 1) % VOCABULARY for length in lengths]
    return EvalSet(segments, bytes=2 * sum(lengths), tokens=sum(lengths))


@pytest.mark.parametrize("context", [1, 3, 8, 64])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_uniform_model_loses_the_log_of_the_vocabulary_whatever_the_windows(context: int, batch_size: int) -> None:
    found = evaluate(uniform, counting(10, 5, 17), context=context, batch_size=batch_size, device=torch.device("cpu"), grad=False)
    assert found.loss == pytest.approx(math.log(VOCABULARY))
    assert found.bits_per_byte == pytest.approx(math.log2(VOCABULARY) / 2)
    assert found.tokens == 32


def test_a_model_that_knows_the_next_token_loses_nothing() -> None:
    found = evaluate(knows_the_next, counting(10, 5), context=4, batch_size=2, device=torch.device("cpu"), grad=False)
    assert found.loss == pytest.approx(0, abs=1e-6)


def test_bits_per_byte_are_missing_when_the_bytes_are() -> None:
    unknown = EvalSet(counting(10).segments, bytes=None, tokens=10)
    assert evaluate(uniform, unknown, context=4, batch_size=2, device=torch.device("cpu"), grad=False).bits_per_byte is None
