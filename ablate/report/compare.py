"""The short comparison that follows a run: this arm against the baseline, in the blocks that both have."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ablate.claim import read_status
from ablate.files import read_object
from ablate.report.statistics import paired_contrast

SEEDS = ("init_seed", "data_seed")
Block = tuple[int, int]


def arm_of(identity: Mapping[str, Any]) -> dict[str, Any]:
    """What the runs of one arm share: all but the seeds."""
    return {key: value for key, value in identity.items() if key not in SEEDS}


def blocks_of(results_dir: str | Path, arm: Mapping[str, Any]) -> dict[Block, tuple[str, float | None]]:
    """The state and evaluation loss of each run of an arm, by its block; the loss of a run that is not done is None."""
    found: dict[Block, tuple[str, float | None]] = {}
    for path in sorted((Path(results_dir).expanduser() / "runs").glob("*/identity.json")):
        identity = read_object(path)
        if not identity or arm_of(identity) != arm:
            continue
        state = str(read_status(path.parent).get("state", "unknown"))
        loss = read_object(path.parent / "summary.json").get("eval_loss") if state == "done" else None
        block = (identity["init_seed"], identity["data_seed"])
        found[block] = (state, float(loss) if isinstance(loss, (int, float)) else None)
    return found


def comparison(results_dir: str | Path, identity: Mapping[str, Any], baseline: Mapping[str, Any], command: str, name: str = "") -> str:
    """One paragraph. `command` runs the baseline of this block, as typed but for the architecture; `name` is what it is, as typed."""
    called = f"the baseline ({name})" if name else "the baseline"
    if arm_of(identity) == arm_of(baseline):
        other = "rmsnorm" if baseline["norm"]["kind"] == "layernorm" else "layernorm"
        return f"This is the baseline of its setting. Change an axis to compare with it: {command} norm={other}"
    ours, theirs = blocks_of(results_dir, arm_of(identity)), blocks_of(results_dir, arm_of(baseline))
    pairs = {block: (ours[block][1], theirs[block][1]) for block in sorted(ours) if block in theirs}
    both = {block: (a, b) for block, (a, b) in pairs.items() if a is not None and b is not None}
    here = _without_baseline(theirs, (identity["init_seed"], identity["data_seed"]), command)
    left_out = _left_out(ours, theirs, {*both, (identity["init_seed"], identity["data_seed"])})
    if not both:
        return "\n".join([here or "Nothing to compare yet.", *left_out])
    difference = paired_contrast([a - b for a, b in both.values()])
    seeds = ", ".join(_name(block) for block in both)
    parts = [f"Against {called}: {difference.mean:+.4f} nats per token of evaluation loss (below 0 is better)"]
    if all(a == b for a, b in both.values()):
        parts[-1] += f", identical at seed {seeds}: the change had no effect there."
    elif difference.n == 1:
        parts[-1] += f", from one seed ({seeds}): screen only, run seeds 0..2 to learn more."
    else:
        parts[-1] += f", 95 % interval {difference.low:+.4f} to {difference.high:+.4f}, {difference.n} paired seeds ({seeds})."
        parts += ["One learning rate for both arms, no correction for many comparisons: a screen, not a verdict."]
    return "\n".join([*([here] if here else []), " ".join([*parts, *left_out])])


def _without_baseline(theirs: Mapping[Block, tuple[str, float | None]], block: Block, command: str) -> str | None:
    """What stands in the way of a baseline for this very block, or None."""
    if block not in theirs:
        return f"No run of the baseline at seed {_name(block)} yet. Run it: {command}"
    state, loss = theirs[block]
    if loss is not None:
        return None
    return f"The baseline at seed {_name(block)} is {state}: there is no difference to give for it."


def _left_out(
    ours: Mapping[Block, tuple[str, float | None]], theirs: Mapping[Block, tuple[str, float | None]], named: Collection[Block]
) -> list[str]:
    """The runs without a pair, by arm: failures are outcomes and are never dropped in silence."""
    said = []
    for arm, blocks in (("this arm", ours), ("the baseline", theirs)):
        states = [f"seed {_name(block)} {state}" for block, (state, _) in sorted(blocks.items()) if block not in named and state != "done"]
        done = [f"seed {_name(block)}" for block, (state, _) in sorted(blocks.items()) if block not in named and state == "done"]
        if states or done:
            said.append(f"Not in it, of {arm}: {', '.join([*states, *(f'{seed} (no pair)' for seed in done)])}.")
    return said


def _name(block: Block) -> str:
    return str(block[0]) if block[0] == block[1] else f"{block[0]}/{block[1]}"
