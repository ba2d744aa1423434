"""match: solves the feed-forward width, or the depth, of an arm so that it costs as much as a reference: parameters or FLOPs.

Costs are counted from models that are built without numbers; no formula of an architecture stands here. The solved value is a plain
number of the config (ffn.ratio, ffn.expert.ratio or model.depth): to give it by hand is the same run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import BaseModel, BeforeValidator

from ablate.data import vocab_size
from ablate.errors import ConfigError
from ablate.model.count import active_parameters, count, parameters
from ablate.model.ffn import FFN
from ablate.model.transformer import Transformer
from ablate.registry import Registry, Section, Share

if TYPE_CHECKING:
    from ablate.config import Config


class Achieved(Section):
    """What was solved, and how near it came: error = reached / target - 1. `key` of the config went from `before` to `after`."""

    key: str
    before: int | float
    after: int | float
    target: int | float
    reached: int | float
    error: float


def _words(value: object) -> object:
    """'norm=layernorm ffn=gelu' or '[norm=layernorm,ffn=gelu]' -> a list: on the command line only a text may hold an equals sign."""
    if not isinstance(value, str):
        return value
    return [word.strip() for word in value[1:-1].split(",")] if value.startswith("[") else value.split()


Overrides = Annotated[list[str], BeforeValidator(_words)]


class Match:
    """What an arm is made equal to: here to nothing."""

    reference: list[str] | None = None
    achieved: Achieved | None = None


MATCH: Registry[Match] = Registry("match")


@MATCH.register("none")
class Unmatched(Match):
    """Every arm is as large as it is chosen."""

    def __init__(self) -> None: ...


class Equal(Match):
    """`reference`: the overrides that make of the shipped baseline what the arm shall equal, at this command's own scale and data; []: what
    the run is compared with. `tolerance` is of the relative error. `achieved` is written when it is solved, and not chosen."""

    def __init__(self, *, solve: Literal["ffn_width", "depth"], reference: Overrides, tolerance: Share, achieved: Achieved | None) -> None:
        self.solve, self.reference, self.tolerance, self.achieved = solve, reference, tolerance, achieved

    def cost(self, model: Transformer, context: int) -> float:
        raise NotImplementedError


@MATCH.register("params")
class Parameters(Equal):
    """As many parameters, embeddings too."""

    def cost(self, model: Transformer, context: int) -> float:
        return parameters(model)


@MATCH.register("active_params")
class ActiveParameters(Equal):
    """As many parameters that work on a token: of experts those that a token is given to."""

    def cost(self, model: Transformer, context: int) -> float:
        return active_parameters(model)


@MATCH.register("flops")
class Flops(Equal):
    """As many FLOPs of training a token, at the context of training; attention is counted over the whole square, window or not."""

    def cost(self, model: Transformer, context: int) -> float:
        return count(model, context).training_flops_per_token


@dataclass(frozen=True)
class Dial:
    """The number that is solved: `key` of the config at `value(n)`, n = 1, 2, ...; people know it as `step * n`, called `name`."""

    key: str
    name: str
    step: int
    start: int
    value: Callable[[int], int | float]
    finer: str  # what makes its steps smaller
    cure: str


def ffn_width(cfg: Config) -> Dial:
    """The width of the feed-forward layer, of an expert for a mixture; layers whose rule sets their own ratio keep it."""
    key, options = "ffn", cfg.ffn.model_dump()
    if "expert" in options:
        key, options = "ffn.expert", options["expert"]
    with torch.device("meta"):
        width = FFN.build(cfg.ffn, cfg.model.width).width
    step, before = options["multiple_of"], options["ratio"]

    def ratio(n: int) -> float:
        """Ten digits of what `ratio` means, width / (glu_factor D); the arm's own where the width is."""
        exact = n * step / (options.get("glu_factor", 1) * cfg.model.width)
        return before if n == width // step else float(f"{exact:.10g}")

    finer = f"{key}.multiple_of=1 (now {step}), " if step > 1 else ""
    return Dial(f"{key}.ratio", "feed-forward width", step, width // step, ratio, finer, "a larger match.tolerance or match.solve=depth")


def depth(cfg: Config) -> Dial:
    return Dial("model.depth", "depth", 1, cfg.model.depth, lambda n: n, "", "a larger match.tolerance or match.solve=ffn_width")


DIALS = {"ffn_width": ffn_width, "depth": depth}


def matched(cfg: Config, reference: Config) -> Config:
    """The arm, solved to cost what the reference does; raises ConfigError with the nearest values if it cannot within the tolerance.

    What is nearest is chosen, and an arm that is nearest as it is stays as it is.
    """
    rule = MATCH.build(cfg.match)
    assert isinstance(rule, Equal)
    if rule.achieved is not None:
        raise ConfigError.at("match.achieved", "is what was found out, and not chosen: leave it at null")
    dial = DIALS[rule.solve](cfg)

    def cost_of(config: Config) -> float:
        with torch.device("meta"):
            return rule.cost(Transformer(config, vocab_size(config.tokenizer)), config.model.context)

    @cache
    def cost(n: int) -> float:
        try:
            return cost_of(_changed(cfg, dial.key.split("."), dial.value(n)))
        except ConfigError:  # too few layers for the rules for layers
            if n >= dial.start:
                raise
            return -math.inf

    target = cost_of(reference)
    errors = {n: cost(n) / target - 1 for n in around(cost, target, dial.start) if n and math.isfinite(cost(n))}
    best = min(errors, key=lambda n: (abs(errors[n]), n != dial.start))
    if abs(errors[best]) > rule.tolerance:
        raise ConfigError.at("match", _refusal(cfg, rule, dial, target, errors, cost))
    achieved = Achieved(
        key=dial.key, before=dial.value(dial.start), after=dial.value(best), target=target, reached=cost(best), error=errors[best]
    )
    return _changed(_changed(cfg, dial.key.split("."), dial.value(best)), ["match", "achieved"], achieved)


def around(cost: Callable[[int], float], target: float, start: int) -> tuple[int, int]:
    """n and m = n + 1 with cost(n) <= target < cost(m), for a cost that rises with n; n is 0 if all cost more, n = m if no n changes it."""
    low = high = start
    while cost(high) <= target:
        low, high = high, 2 * high
        if cost(high) == cost(low):
            return low, low
    while low and cost(low) > target:
        low, high = low // 2, low
    while high - low > 1:
        share = (target - cost(low)) / (cost(high) - cost(low)) if low and math.isfinite(cost(low)) else 0.5
        middle = min(max(low + int(share * (high - low)), low + 1), high - 1)
        low, high = (middle, high) if cost(middle) <= target else (low, middle)
    return low, high


def _refusal(cfg: Config, rule: Equal, dial: Dial, target: float, errors: dict[int, float], cost: Callable[[int], float]) -> str:
    start = f"{cfg.match.kind} cannot be met within {rule.tolerance:.2%}: the reference has {target:,.0f}"
    other = _changed(cfg, dial.key.split("."), dial.value(dial.start + 1))
    if rule.solve == "ffn_width" and [layer.ffn for layer in cfg.layer_options()] == [layer.ffn for layer in other.layer_options()]:
        return f"{start}, this arm {errors[dial.start]:+.2%}, and rules of layers set {dial.key} in every layer; cure: match.solve=depth"
    found = ", ".join(f"{dial.name} {n * dial.step} gives {error:+.2%}" for n, error in errors.items())
    if len(errors) > 1:
        return f"{start}, {found}; cure: {dial.finer}{dial.cure}"
    least = cost(1) - (cost(2) - cost(1)) * (1 - 1 / dial.step)  # about what a width of 1 costs
    finer = dial.finer if least <= target * (1 + rule.tolerance) else ""
    return f"{start}, even {found}; cure: {finer}{dial.cure}"


def _changed(section: Any, path: list[str], value: Any) -> Any:
    """A copy with another value; nothing is checked, which parse() does."""
    first, *rest = path
    assert isinstance(section, BaseModel)
    return section.model_copy(update={first: _changed(getattr(section, first), rest, value) if rest else value})


def as_asked(cfg: Config) -> Config:
    """The config before anything was solved."""
    achieved = MATCH.build(cfg.match).achieved
    return cfg if achieved is None else _changed(cfg, achieved.key.split("."), achieved.before)


def solved_overrides(cfg: Config) -> list[str]:
    """What was solved as Hydra takes it."""
    achieved = MATCH.build(cfg.match).achieved
    return [] if achieved is None else [f"++{achieved.key}={achieved.after}"]


def match_line(cfg: Config) -> str | None:
    """What a person reads: the achieved error and what was solved; None for an arm that was not matched."""
    found = MATCH.build(cfg.match).achieved
    if found is None:
        return None
    stays = found.after == found.before
    solved = f"{found.key} stays {found.before:g}" if stays else f"solved {found.key}={found.after} (was {found.before:g})"
    return f"match={cfg.match.kind}: {found.reached:,.0f} against {found.target:,.0f} of the reference, {found.error:+.2%}; {solved}"
