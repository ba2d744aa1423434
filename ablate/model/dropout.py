"""dropout: which activations are set to zero at random while a model trains. The zeros of step t are a function of (seed, t)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ablate.errors import ConfigError
from ablate.registry import Number, Registry

Rate = Annotated[Number, Field(ge=0, lt=1)]


class Dropout:
    """The probability of a zero on attention weights, on what a sublayer adds to the stream, and on embedded tokens."""

    def __init__(self, attention: float = 0.0, residual: float = 0.0, embedding: float = 0.0) -> None:
        self.attention, self.residual, self.embedding = attention, residual, embedding

    @property
    def active(self) -> bool:
        return bool(self.attention or self.residual or self.embedding)


DROPOUT: Registry[Dropout] = Registry("dropout")


@DROPOUT.register("none")
class NoDropout(Dropout):
    """Nothing is dropped, as when every token is seen once or a few times."""

    def __init__(self) -> None:
        super().__init__()


@DROPOUT.register("dropout")
class StandardDropout(Dropout):
    """Zeros with the given probabilities, and the rest scaled by 1 / (1 - p) (arXiv 1207.0580; the three places of GPT-2)."""

    def __init__(self, *, attention: Rate, residual: Rate, embedding: Rate) -> None:
        super().__init__(attention, residual, embedding)
        if not self.active:
            raise ConfigError.at("dropout", "with all rates 0 it has no effect: choose dropout=none")
