"""The short comparison that follows a run: this arm against the baseline, in the blocks that both have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ablate.files import read_json
from ablate.report.statistics import paired_difference
from ablate.runs import read_status

SEEDS = ("init_seed", "data_seed")
Block = tuple[int, int]


def arm_of(identity: Mapping[str, Any]) -> dict[str, Any]:
    """What the runs of one arm share: all but the seeds."""
    return {key: value for key, value in identity.items() if key not in SEEDS}


def blocks_of(results_dir: str | Path, arm: Mapping[str, Any]) -> dict[Block, tuple[str, float | None]]:
    """The state and evaluation loss of each run of an arm, by its block."""
    found: dict[Block, tuple[str, float | None]] = {}
    for path in sorted((Path(results_dir).expanduser() / "runs").glob("*/identity.json")):
        identity = read_json(path)
        if not identity or arm_of(identity) != arm:
            continue
        state = read_status(path.parent).get("state", "unknown")
        summary = read_json(path.parent / "summary.json") if state == "done" else None
        block = (identity["init_seed"], identity["data_seed"])
        found[block] = (state, summary["eval_loss"] if summary else None)
    return found


def comparison(results_dir: str | Path, identity: Mapping[str, Any], baseline: Mapping[str, Any], command: str) -> str:
    """One paragraph. `command` runs the baseline of this block, for when it has not been run."""
    if arm_of(identity) == arm_of(baseline):
        return "This is the baseline of its setting. Change an axis to compare with it: python -m ablate norm=layernorm"
    ours, theirs = blocks_of(results_dir, arm_of(identity)), blocks_of(results_dir, arm_of(baseline))
    both = [b for b in ours if b in theirs and ours[b][1] is not None and theirs[b][1] is not None]
    failed = _failures(ours, "this arm") + _failures(theirs, "the baseline")
    if not both:
        return " ".join([*failed, f"No finished run of the baseline in this block to compare with. Run it: {command}"])
    arm = [value for b in both if (value := ours[b][1]) is not None]
    base = [value for b in both if (value := theirs[b][1]) is not None]
    difference = paired_difference(arm, base)
    lead = f"Against the baseline: {difference.mean:+.4f} nats per token of evaluation loss (below 0 is better)"
    if difference.n == 1:
        return " ".join([f"{lead}, from one seed: screen only, run seeds 0..2 to learn more.", *failed])
    reach = f"95 % interval {difference.low:+.4f} to {difference.high:+.4f}, {difference.n} paired seeds"
    caveat = "One learning rate for both arms, no correction for many comparisons: a screen, not a verdict."
    return " ".join([f"{lead}, {reach}.", caveat, *failed])


def _failures(blocks: Mapping[Block, tuple[str, float | None]], name: str) -> list[str]:
    failed = sum(state == "failed" for state, _ in blocks.values())
    return [f"{failed} of {len(blocks)} runs of {name} failed."] if failed else []
