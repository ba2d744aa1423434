"""position/scaling: other frequencies of the rotary embedding, for contexts longer than the original one.

A scaling gives the inverse frequencies in float64 and the factor of cosine and sine; its square multiplies the scores of attention.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ablate.errors import ConfigError
from ablate.model.position.none import Finite, inverse_frequencies
from ablate.registry import Options, PositiveShare, Registry, Size, sized

Frequencies = tuple[NDArray[np.float64], float]

SCALING: Registry[Scaling] = Registry("position/scaling")


@SCALING.register("none")
class Scaling:
    """f_i = theta^(-2i/R) for R rotated features, factor 1 (arXiv 2104.09864)."""

    def frequencies(self, theta: float, width: int, context: int) -> Frequencies:
        """(width/2,) radians a token, and the factor; `context` is model.context, of which shares are taken."""
        return inverse_frequencies(width, theta), 1.0


def scaled_frequencies(options: Options, theta: float, width: int, context: int) -> Frequencies:
    """What the chosen scaling gives. ConfigError if that is what no scaling gives."""
    scaling = SCALING.build(options)
    frequencies, factor = scaling.frequencies(theta, width, context)
    unchanged = factor == 1 and np.allclose(frequencies, inverse_frequencies(width, theta), rtol=1e-9, atol=0)
    if unchanged and type(scaling) is not Scaling:
        raise ConfigError.at("position.scaling", f"changes none of the {width // 2} frequencies: position/scaling=none is the same")
    return frequencies, factor


@SCALING.register("linear")
class LinearScaling(Scaling):
    """f_i / factor: positions are squeezed into the original context (position interpolation, arXiv 2306.15595)."""

    def __init__(self, *, factor: Finite) -> None:
        self.factor = _other_than_one(factor)

    def frequencies(self, theta: float, width: int, context: int) -> Frequencies:
        return inverse_frequencies(width, theta) / self.factor, 1.0


@SCALING.register("ntk")
class NTK(Scaling):
    """theta becomes theta * factor^(R/(R-2)): the slowest pair turns `factor` times slower, the fastest as before (arXiv 2309.00071)."""

    def __init__(self, *, factor: Finite) -> None:
        self.factor = _other_than_one(factor)

    def frequencies(self, theta: float, width: int, context: int) -> Frequencies:
        if width < 4:
            raise ConfigError.at("position.scaling", "ntk keeps the fastest of several pairs: it needs 4 rotated features or more")
        return inverse_frequencies(width, theta * self.factor ** (width / (width - 2))), 1.0


@SCALING.register("llama3")
class Llama3(Scaling):
    """Slow pairs are divided by `factor`, fast ones stay (Llama 3.1, arXiv 2407.21783; the formula is that of its released code).

    A pair turns n_i = C f_i / 2 pi times in the original context C. From n_i <= low (divided) to n_i >= high (as it is) the two are
    mixed by (n_i - low) / (high - low). `original_context` is in tokens, or a share of model.context.
    """

    def __init__(self, *, factor: Finite, low: Finite, high: Finite, original_context: Size) -> None:
        self.factor = _other_than_one(factor)
        if low >= high:
            raise ConfigError.at("position.scaling.high", f"must be above position.scaling.low={low:g}, got {high:g}")
        self.low, self.high, self.original_context = low, high, original_context

    def frequencies(self, theta: float, width: int, context: int) -> Frequencies:
        plain = inverse_frequencies(width, theta)
        turns = sized(self.original_context, context) * plain / (2 * math.pi)
        keep = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
        return plain * (keep + (1 - keep) / self.factor), 1.0


@SCALING.register("yarn")
class Yarn(Scaling):
    """Pairs that turn seldom are divided by `factor`, those that turn often stay, and scores grow (arXiv 2309.00071).

    i(n) = R ln(C / 2 pi n) / (2 ln theta) is the pair that turns n times in the original context C. From i(beta_fast), rounded down if
    `truncate`, to i(beta_slow), rounded up, the division sets in linearly, as in the released code; the paper mixes by n. The factor of
    cosine and sine is `attention_factor`, or 0.1 ln(factor) + 1 if null. `original_context` is in tokens, or a share of model.context.
    """

    def __init__(
        self,
        *,
        factor: Finite,
        original_context: Size,
        beta_fast: Finite,
        beta_slow: Finite,
        truncate: bool,
        attention_factor: Finite | None,
    ) -> None:
        self.factor = _other_than_one(factor)
        if beta_slow >= beta_fast:
            raise ConfigError.at("position.scaling.beta_fast", f"must be above position.scaling.beta_slow={beta_slow:g}, got {beta_fast:g}")
        self.original_context, self.truncate = original_context, truncate
        self.beta_fast, self.beta_slow = beta_fast, beta_slow
        self.attention_factor = attention_factor if attention_factor is not None else 1 + 0.1 * math.log(max(factor, 1))

    def frequencies(self, theta: float, width: int, context: int) -> Frequencies:
        low, high = self._range(theta, width, sized(self.original_context, context))
        divided = np.clip((np.arange(width // 2) - low) / max(high - low, 1e-3), 0, 1)  # 1e-3: a step, as in the released code
        plain = inverse_frequencies(width, theta)
        return plain * (1 - divided) + plain / self.factor * divided, self.attention_factor

    def _range(self, theta: float, width: int, original_context: int) -> tuple[float, float]:
        """The pairs between which the division sets in."""
        if theta <= 1:
            raise ConfigError.at("position.theta", f"position/scaling=yarn needs frequencies that fall: theta above 1, got {theta:g}")
        low, high = (
            width * math.log(original_context / (2 * math.pi * turns)) / (2 * math.log(theta)) for turns in (self.beta_fast, self.beta_slow)
        )
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        # The released code would take a range that ends before it begins, and divide the wrong pairs.
        if high < 0:
            raise ConfigError.at(
                "position.scaling.original_context", f"no pair turns beta_slow={self.beta_slow:g} times in {original_context} tokens"
            )
        if low > width - 1:
            raise ConfigError.at(
                "position.scaling.original_context", f"each pair turns beta_fast={self.beta_fast:g} times in {original_context} tokens"
            )
        return max(low, 0), min(high, width - 1)


@SCALING.register("longrope")
class LongRope(Scaling):
    """f_i / factors_i, each pair with a factor of its own, and scores grow (arXiv 2402.13753).

    A list of another length than the pairs is interpolated linearly over them. The factor of cosine and sine is `attention_factor`, or
    sqrt(1 + ln(context / C) / ln C) if null. The factors are those for contexts above the original context C, in tokens or as a share of
    model.context; the published models have a second list for shorter ones, which is never mixed with this one.
    """

    def __init__(
        self,
        *,
        factors: Annotated[tuple[Finite, ...], Field(min_length=1, strict=False)],  # a YAML list
        original_context: Size,
        attention_factor: Finite | None,
    ) -> None:
        self.factors, self.original_context, self.attention_factor = factors, original_context, attention_factor

    def frequencies(self, theta: float, width: int, context: int) -> Frequencies:
        original = sized(self.original_context, context)
        if not 1 < original < context:
            raise ConfigError.at(
                "position.scaling.original_context",
                f"must be between 1 and model.context={context}, got {original}: factors are for longer",
            )
        pairs = width // 2
        factors = np.interp(np.linspace(0, 1, pairs), np.linspace(0, 1, len(self.factors)), self.factors)
        growth = math.sqrt(1 + math.log(context / original) / math.log(original))
        return inverse_frequencies(width, theta) / factors, self.attention_factor or growth


@SCALING.register("proportional")
class Proportional(Scaling):
    """The fastest pairs, `proportion` of all, turn as they did; the slow ones no longer turn (p-RoPE, arXiv 2410.06205).

    Unlike position.fraction, which squeezes all frequencies into fewer pairs, it leaves the frequencies where they were.
    """

    def __init__(self, *, proportion: PositiveShare) -> None:
        self.proportion = proportion

    def frequencies(self, theta: float, width: int, context: int) -> Frequencies:
        plain = inverse_frequencies(width, theta)
        kept = int(self.proportion * width + 1e-6) // 2
        if kept == 0:
            raise ConfigError.at(
                "position.scaling.proportion", f"{self.proportion:g} of {width} features is no pair to turn: position=none is the same"
            )
        return np.where(np.arange(width // 2) < kept, plain, 0), 1.0


def _other_than_one(factor: float) -> float:
    if factor == 1:
        raise ConfigError.at("position.scaling.factor", "1 scales nothing: position/scaling=none is the same")
    return factor
