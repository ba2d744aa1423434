"""A made-up study with one arm of each kind, on disk and as an Analysis: the page is tested without the statistics.

python -m tests.report.example FOLDER     writes its report there
"""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from scipy.stats import beta, t

from ablate.report.analysis.shapes import Analysis, ArmResult, Banner, Identity, Margin, Noise, Span
from ablate.report.load import Loaded, load_study
from ablate.report.statistics import Contrast, Equivalence, Judgement, Verdict
from tests.report import made

BLOCKS = range(8)
MARGIN = 0.0104
ARMS = {"relu2": ["ffn=relu2"], "layernorm": ["norm=layernorm"], "post": ["placement=post"], "gated": ["ffn=swiglu"]}
SHIFTS = {"relu2": (-0.0205, 0.008), "layernorm": (0.0008, 0.006), "post": (0.062, 0.02), "gated": (-0.004, 0.015)}
WORDS = {
    "relu2": Verdict("BETTER", "clearly"),
    "layernorm": Verdict("EQUIVALENT", ""),
    "post": Verdict("UNSTABLE", "2/8 failed"),
    "gated": Verdict("NOT TUNED", "best rate at the high end"),
}
COLLAPSED = {"post": (5, 7)}
SPEED = {"relu2": 0.99, "layernorm": 1.03, "post": 1.0, "gated": 1.12}
TUNING = {
    "baseline": {1e-3: [2.236, 2.229], 3e-3: [2.118, 2.121], 1e-2: [2.158, 2.171]},
    "relu2": {1e-3: [2.214, 2.209], 3e-3: [2.096, 2.101], 1e-2: [2.149, 2.14]},
    "layernorm": {1e-3: [2.241, 2.228], 3e-3: [2.119, 2.124], 1e-2: [2.162, 2.159]},
    "post": {1e-3: [2.28, 2.29], 3e-3: [2.17, 2.181], 1e-2: ["collapsed", "collapsed"]},
    "gated": {1e-3: [2.251, 2.249], 3e-3: [2.132, 2.129], 1e-2: [2.108, 2.111]},
}
RATES = {**dict.fromkeys(TUNING, 3e-3), "gated": 1e-2}


def losses() -> dict[str, dict[int, float]]:
    """Of the runs that did not fail, arm -> block -> loss."""
    chance = random.Random(5)
    base = {block: 2.11 + chance.gauss(0, 0.012) for block in BLOCKS}
    found = {"baseline": base}
    for arm, (shift, deviation) in SHIFTS.items():
        row = {block: base[block] + shift + chance.gauss(0, deviation) for block in BLOCKS}
        found[arm] = {block: loss for block, loss in row.items() if block not in COLLAPSED.get(arm, ())}
    return found


def study(root: Path) -> Path:
    """Its folder, with all runs."""
    results: dict[str, dict[int, made.Result]] = {arm: dict(row) for arm, row in losses().items()}
    for arm, blocks in COLLAPSED.items():
        results[arm] |= dict.fromkeys(blocks, "collapsed")
    return made.study(
        root, results, tuning=TUNING, rates=RATES, overrides=ARMS, bench={"baseline": 1.0, **SPEED}, question=QUESTION, steps=120
    )


QUESTION = "Which of four changes to the block lowers the loss at equal tokens?"


def contrast(differences: list[float], confidence: float = 0.95) -> Contrast:
    n, mean, sd = len(differences), fmean(differences), stdev(differences)
    se = sd / math.sqrt(n)
    half = float(t.ppf((1 + confidence) / 2, n - 1)) * se
    return Contrast(mean, mean - half, mean + half, n, n - 1, sd, se, 2 * float(t.sf(abs(mean) / se, n - 1)), "paired t")


def judgement(arm: str, differences: list[float]) -> Judgement:
    found, wide, narrow = contrast(differences), contrast(differences, 0.9875), contrast(differences, 0.90)
    assert found.p is not None
    assert narrow.low is not None
    assert narrow.high is not None
    holm_p = min(1.0, 4 * found.p)
    equal = Equivalence(0.012, narrow.low, narrow.high, MARGIN)
    unsure = Verdict("WORSE", "clearly") if arm == "post" else None
    return Judgement(WORDS[arm], found, found, found, holm_p, wide.low, wide.high, equal, 0.024, None, unsure)


def sentence(arm: str, found: Contrast) -> str:
    word, detail = WORDS[arm]
    inside = f"[{found.low:+.4f}, {found.high:+.4f}]"
    text = (
        f"{arm}: {word}"
        + (f" ({detail})" if detail else "")
        + f", {found.mean:+.4f} nats {inside}, {1 / SPEED[arm]:.2f}x speed, {found.n} blocks"
    )
    return text.replace("-", "−")


def arm_result(arm: str, row: dict[int, float], base: dict[int, float]) -> ArmResult:
    is_base = arm == "baseline"
    differences = {} if is_base else {block: loss - base[block] for block, loss in row.items()}
    judged = None if is_base else judgement(arm, list(differences.values()))
    found = judged.contrast if judged else None
    failed = len(COLLAPSED.get(arm, ()))
    ratio = 1 / SPEED[arm] if not is_base else None
    gain = (
        [math.exp(-value / 0.35) for value in (found.mean, found.high, found.low)]
        if found and found.high is not None and found.low is not None
        else None
    )
    values: dict[str, Any] = {
        "outcomes": {block: "collapsed" if block in COLLAPSED.get(arm, ()) else "ok" for block in BLOCKS},
        "tuning": {lr: [None if value == "collapsed" else value for value in found_at] for lr, found_at in TUNING[arm].items()},
        "tuning_outcomes": {
            lr: ["collapsed" if value == "collapsed" else "ok" for value in found_at] for lr, found_at in TUNING[arm].items()
        },
        "token_gain": Span(*gain) if gain else Span(None),
        "time_gain": Span(*(value * (ratio or 1) for value in gain)) if gain else Span(None),
        "speed_ratio": Span(ratio, ratio * 0.98, ratio * 1.02) if ratio else Span(None),
        "speed_differs": ratio is not None and abs(math.log(ratio)) > 0.02,
        "changes": [] if is_base else ["norm.kind: rmsnorm \N{RIGHTWARDS ARROW} " + arm],
    }
    return ArmResult(
        name=arm,
        overrides=tuple(ARMS.get(arm, ())),
        is_baseline=is_base,
        judgement=judged,
        sentence=sentence(arm, found) if found else "baseline: the baseline",
        losses=row,
        differences=differences,
        mean=fmean(row.values()),
        sd=stdev(row.values()),
        bits_per_byte=fmean(row.values()) / math.log(2),
        bits_difference=Span(*(value / math.log(2) for value in found[:3] if value is not None)) if found else Span(None),
        lr=RATES[arm],
        lr_edge="high" if arm == "gated" else None,
        sensitivity=Span(0.062),
        usable_decades=0.61,
        failed=failed,
        ended=len(BLOCKS),
        failure_interval=(float(beta.ppf(0.025, failed, 9 - failed)) if failed else 0.0, float(beta.ppf(0.975, failed + 1, 8 - failed))),
        rho=None if is_base else 0.78,
        pair_sd=found.sd if found else None,
        flips={2: "INCONCLUSIVE"} if arm == "layernorm" else {},
        sign_flip_p=None if is_base else 0.0078,
        half_margin=None if is_base else WORDS[arm].word,
        double_margin=None if is_base else WORDS[arm].word,
        parameters=made.PARAMETERS,
        active_parameters=made.PARAMETERS,
        flops_per_token=made.FLOPS_PER_TOKEN * (1.02 if arm == "gated" else 1.0),
        kv_bytes_per_token=1536,
        match_error=0.0 if not is_base else None,
        tokens_per_second=20480.0 * (ratio or 1.0),
        peak_memory=None,
        extrapolation={},
        **values,
    )


def analysis(question: str = QUESTION) -> Analysis:
    """What `analyse` would make of it, but for the numbers that say so little that any will do."""
    found = losses()
    arms = [arm_result(arm, row, found["baseline"]) for arm, row in found.items()]
    others = sorted(arms[1:], key=lambda arm: arm.judgement.contrast.mean)  # type: ignore[union-attr]
    table = [(0.005, 24, 26), (MARGIN, 8, 9), (0.02, 5, 5)]
    deviation = fmean(arm.pair_sd for arm in others if arm.pair_sd is not None)
    seed_sd = {arm.name: arm.sd for arm in arms if arm.sd is not None}
    return Analysis(
        study="made",
        question=question,
        answer="Better than baseline: relu2; equivalent to baseline within the margin: layernorm; unstable: post; not tuned: gated.",
        metric="nats per token",
        baseline=arms[0],
        arms=others,
        margin=Margin(MARGIN, 0.03, MARGIN / deviation, "what 3 % of the training tokens are worth to the baseline", 0.352),
        banners=[
            Banner("amber", "runs failed at the chosen learning rate: post 2/8; failures are outcomes and in no mean"),
            Banner("red", "the best learning rate is at an end of the grid, so a better one may lie beyond it: gated (0.01, the high end)"),
        ],
        stage="final",
        noise=Noise(seed_sd, deviation, 26, 0.0133, 0.0131, table, [], 0.78),
        identity=Identity(
            [
                ("baseline", "baseline"),
                ("budget", "122,880 tokens a run"),
                ("blocks", "8"),
                ("learning rates", "3 rates, 0.001 to 0.01, on 2 seeds"),
                ("match", "none asked for"),
                ("margin", f"{MARGIN} nats, 3 % of the tokens, 0.8 sd"),
                ("data", "d" * 12),
                ("commit", "0123456789ab"),
                ("date", "2026-11-30"),
                ("training", "5 minutes in 70 runs"),
            ],
            [("command", "python -m ablate sweep=made"), ("torch", "2.13.0+cpu"), ("seeds", "0, 1, 2, 3, 4, 5, 6, 7")],
        ),
        method=["Estimand: the mean over blocks of the evaluation loss of an arm less that of the baseline.", "Limits: this scale alone."],
    )


def loaded(root: Path) -> Loaded:
    return load_study(study(root))


if __name__ == "__main__":
    from ablate.report.drawings import figures_of
    from ablate.report.page import write_page

    folder, what = Path(sys.argv[1]), analysis()
    runs = loaded(folder)
    print(write_page(what, figures_of(what, runs), runs, folder / "results" / "made"))
