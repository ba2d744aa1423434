"""shapes: what a report prints, as numbers and short texts. Page, text and drawings read these and compute nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ablate.report.statistics import Judgement, PowerLaw


class Span(NamedTuple):
    """A number and its 95 % interval; None where it is not known."""

    mean: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class ArmResult:
    """One arm against the baseline of its size. Of a baseline itself, and of an arm without a block in common, judgement is None."""

    name: str
    overrides: tuple[str, ...]
    is_baseline: bool
    judgement: Judgement | None
    sentence: str  # the whole sentence of the first screen, in the words of verdicts
    losses: dict[int, float]  # block -> final loss of runs that are ok
    differences: dict[int, float]  # block -> arm less baseline
    outcomes: dict[int, str]  # block -> outcome of its confirmation run
    mean: float | None
    sd: float | None
    bits_per_byte: float | None  # mean over ok blocks
    bits_difference: Span  # bits per byte
    lr: float | None  # chosen
    lr_edge: str | None  # "low" or "high"
    tuning: dict[float, list[float | None]]  # rate -> loss of each tuning seed (failed: None)
    tuning_outcomes: dict[float, list[str]]
    sensitivity: Span | None  # learning-rate sensitivity over tuning seeds
    usable_decades: float | None
    failed: int
    ended: int  # confirmation runs that have ended
    failure_interval: tuple[float, float] | None
    rho: float | None  # correlation with the baseline over blocks
    pair_sd: float | None  # deviation of a paired difference
    token_gain: Span  # ratio of training tokens the baseline would need; 1.05 = 5 % more
    time_gain: Span
    flips: dict[int, str]  # block -> the word without it, where it differs
    sign_flip_p: float | None
    half_margin: str | None  # word at half the margin
    double_margin: str | None  # and at twice
    parameters: int | None
    active_parameters: int | None
    flops_per_token: float | None
    kv_bytes_per_token: int | None
    match_error: float | None  # relative, in what the study matches
    changes: list[str]  # key: what the baseline has -> what this arm has
    speed_ratio: Span  # tokens a second over the baseline's, from the bench; above 1 is faster
    speed_differs: bool  # beyond its interval and beyond what two copies of the baseline do
    tokens_per_second: float | None  # from the bench
    peak_memory: int | None
    extrapolation: dict[int, float]  # 1, 2, 4 -> mean loss of the same targets over ok blocks


@dataclass(frozen=True)
class Margin:
    """The smallest difference worth acting on."""

    nats: float | None
    tokens: float | None  # share of the training tokens
    deviations: float | None  # in deviations of a pair
    told: str  # how it came about, in one clause
    slope: float | None  # |dL/dln D|
    given: bool = False  # in place of the study's


@dataclass(frozen=True)
class Banner:
    """A guard that is violated; `severity` is "red" for what forbids a conclusion, "amber" for what qualifies it."""

    severity: str
    text: str


@dataclass(frozen=True)
class Effect:
    """Of a factorial study: what an axis, or two together, do."""

    name: str  # norm=layernorm, or norm=layernorm x placement=post
    kind: str  # "main" or "interaction"
    mean: float
    low: float | None
    high: float | None
    p: float | None
    holm_p: float | None  # over all effects of the study


@dataclass(frozen=True)
class Noise:
    """Section 8: what chance does here, and what the design could find."""

    seed_sd: dict[str, float]  # arm -> deviation of its losses over blocks
    pair_sd: float | None  # pooled
    pair_df: int
    detectable: float | None  # smallest difference in nats with 80 % power, first Holm step
    certifiable: float | None  # smallest margin that this design can certify with 80 % power
    blocks_table: list[tuple[float, int | None, int | None]]  # difference in nats, blocks to find it, blocks to certify it
    again: list[str]  # sentences of A/A arms
    rho: float | None


@dataclass(frozen=True)
class Step:
    """Of a ladder: from one arm to the next."""

    name: str
    mean: float
    low: float | None
    high: float | None
    total: float  # from the start of the ladder


@dataclass(frozen=True)
class Scale:
    """Of a study at several sizes: whether small runs predict large ones."""

    names: list[str]  # smallest first
    flops: list[float]  # of training a run of the baseline
    losses: dict[str, list[float | None]]  # what an arm changes -> mean loss at each size
    differences: dict[str, dict[str, Span]]  # what an arm changes -> size -> difference from the baseline there
    stability: list[tuple[str, str, Span, float]]  # two sizes, Kendall's tau, share of pairs of arms that they order alike
    curves: dict[str, PowerLaw]  # what an arm changes -> its loss over training FLOPs, where four sizes are known


@dataclass(frozen=True)
class Identity:
    """The strip of the first screen, as (label, value) pairs, and what a reader needs to do it again."""

    strip: list[tuple[str, str]]
    reproduce: list[tuple[str, str]]


@dataclass(frozen=True)
class Analysis:
    """A whole report in numbers and short texts."""

    study: str
    question: str
    answer: str  # one sentence over all arms
    metric: str  # "nats per token" or "nats per byte"
    baseline: ArmResult
    arms: list[ArmResult]  # without the baseline, by effect, best first; arms without an effect last
    margin: Margin
    banners: list[Banner]
    stage: str  # "final", or at which look
    noise: Noise
    effects: list[Effect] = field(default_factory=list)
    aliased: list[tuple[str, str]] = field(default_factory=list)  # pairs of axes that the design cannot tell from the rest
    ladder: list[Step] = field(default_factory=list)
    scale: Scale | None = None
    identity: Identity = field(default_factory=lambda: Identity([], []))
    method: list[str] = field(default_factory=list)  # paragraphs: the registered plan, deviations, limits
    missing: list[str] = field(default_factory=list)  # runs without a result, each with its state
