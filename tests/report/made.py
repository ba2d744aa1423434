"""Made-up run directories and study folders, as training and the sweep write them: tests of reports need no training.

    folder = made.study(tmp_path, {"baseline": {0: 2.0, 1: 2.1}, "layernorm": {0: 2.05, 1: "collapsed"}})

A result is a loss, or a word for a run without one (FAILURES, STATES), or both: ("spiky", 2.1). Curves are made up too, the same ones
each time, and end at the loss.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ablate.shipped import conf_dir, shipped

Result = float | str | tuple[str, float]
"""2.1, "collapsed" or ("spiky", 2.1)."""

FAILURES = {"nan": "non-finite", "collapsed": "collapsed"}
"""Word -> the reason of a run whose state is `failed`."""

STATES = ("running", "stopped", "crashed", "interrupted", "new")
"""Words for runs that have no result yet. `interrupted` was killed, `new` has no directory."""

AXES = {
    "norm": "rmsnorm",
    "placement": "pre",
    "residual": "serial",
    "embedding": "token",
    "position": "rope",
    "attention": "mha",
    "ffn": "swiglu",
    "head": "untied",
    "loss": "cross_entropy",
    "init": "normal",
    "dropout": "none",
}
VOCABULARY_ENTROPY, UNIGRAM_ENTROPY = math.log(256), 3.05
BATCH_TOKENS = 1024
PARAMETERS, FLOPS_PER_TOKEN = 492_384, 3_391_488.0
TIME = 1_796_000_000.0


# --- one run


@cache
def base() -> dict[str, Any]:
    """The identity of the baseline, but for its seeds. Not to be changed: `changed` makes others of it."""
    found: dict[str, Any] = {axis: shipped(axis, word) for axis, word in AXES.items()}
    found["ffn"] |= {"ratio": 4.0, "glu_factor": 2 / 3}
    return {
        "schema": 3,
        **found,
        "layers": {},
        "data": "d" * 64,
        "tokenizer": {"kind": "bytes"},
        "optim": {"kind": "adamw", "lr": 0.004, "betas": [0.9, 0.95]},
        "schedule": {"kind": "cosine", "warmup_fraction": 0.05},
        "model": {"width": 96, "depth": 4, "heads": 4, "context": 128},
        "train": {"tokens": 40 * BATCH_TOKENS, "batch_size": 8},
        "eval": {"num_points": 4},
        "dtype": "float32",
        "device": "auto",
        "compile": "auto",
    }


def changed(identity: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """An identity with overrides: `norm=layernorm` takes the shipped variant, `norm.eps=1e-3` sets a value."""
    found = deepcopy(dict(identity))
    for override in overrides:
        key, _, word = override.partition("=")
        if "." not in key:
            known = (conf_dir() / key / f"{word}.yaml").exists()
            found[key] = shipped(key, word) if known else {"kind": word}
            continue
        *parents, last = key.split(".")
        place = found
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = _value(word)
    return found


def _value(word: str) -> Any:
    """YAML 1.1 reads 1e-3 as a text."""
    try:
        return float(word) if "e-" in word else yaml.safe_load(word)
    except ValueError:
        return word


def digest_of(identity: Mapping[str, Any]) -> str:
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def run(
    runs_dir: Path,
    result: Result,
    overrides: Sequence[str] = (),
    *,
    seed: int = 0,
    data_seed: int | None = None,
    lr: float | None = None,
    steps: int = 40,
    probes: bool = True,
    entropy: float = UNIGRAM_ENTROPY,
    identity: Mapping[str, Any] | None = None,
) -> Path:
    """One run directory; `runs_dir` is the folder of runs. The word "new" writes nothing. Returns where the directory is or would be."""
    identity = changed(identity or base(), overrides)
    identity["train"]["tokens"] = steps * BATCH_TOKENS
    if lr is not None:
        identity["optim"]["lr"] = lr
    identity |= {"init_seed": seed, "data_seed": seed if data_seed is None else data_seed}
    digest = digest_of(identity)
    directory = runs_dir / f"{'-'.join(overrides) or 'baseline'}-s{seed}-{digest}"
    word, loss = (result if isinstance(result, tuple) else (result, math.nan)) if not isinstance(result, float | int) else ("done", result)
    if word == "new":
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    config = {**identity, "arch": "none", "seed": seed, "results_dir": "results", "data": {"kind": "sotu"}, "tracker": {"kind": "none"}}
    _write(directory / "config.yaml", yaml.dump(config, Dumper=yaml.CSafeDumper, sort_keys=False))
    _write(directory / "identity.json", json.dumps(identity))
    _write(directory / "environment.json", json.dumps([environment()]))
    rows = list(curve(word, float(loss), steps, identity, random.Random(digest), probes, entropy))
    _write(directory / "metrics.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))
    last = rows[-1]
    _write(directory / "status.json", json.dumps(status(word, last, steps)))
    if word in ("done", "spiky", "diverged"):
        _write(directory / "summary.json", json.dumps(summary(last["eval/loss"], steps, identity, entropy)))
    return directory


def environment() -> dict[str, Any]:
    return {
        "time": "2026-11-30T04:12:25+0000",
        "argv": ["ablate"],
        "commit": "0123456789ab",
        "host": "here",
        "system": "Linux",
        "python": "3.11.7",
        "versions": {"ablate": "0.1.0", "torch": "2.13.0+cpu", "numpy": "2.4.6"},
        "device": "A CPU",
        "device_type": "cpu",
        "threads": 1,
        "processes": 1,
    }


def status(word: str, last: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """The word of a result as status.json has it; a run that is `interrupted` says that it is running, and nobody owns it."""
    facts = {"time": TIME, "step": last["step"], "steps": steps, "tokens": last["tokens"]}
    if word in FAILURES:
        return {"state": "failed", **facts, "reason": FAILURES[word], "detail": f"at step {last['step']}"}
    if word == "stopped":
        return {"state": "stopped", **facts, "reason": "SIGTERM", "detail": "the same command goes on from here"}
    if word == "crashed":
        return {"state": "crashed", **facts, "reason": "RuntimeError", "detail": "out of memory"}
    return {"state": "running" if word in ("running", "interrupted") else "done", **facts}


def curve(
    word: str, loss: float, steps: int, identity: Mapping[str, Any], chance: random.Random, probes: bool, entropy: float
) -> Iterator[dict[str, Any]]:
    """Rows of metrics.jsonl. A run without a result ends at half its steps."""
    ended = word in ("done", "spiky", "diverged")
    target = {"collapsed": entropy, "diverged": VOCABULARY_ENTROPY + 1.5}.get(word, 2.2) if math.isnan(loss) else loss
    last = steps if ended else max(2, steps // 2)
    points = identity["eval"]["num_points"]
    evaluations = {round(last * (point + 1) / points) for point in range(points)}
    for step in range(1, last + 1):
        now = target + (VOCABULARY_ENTROPY - target) * math.exp(-6.0 * (step - 1) / max(1, last - 1))
        row = {"step": step, "tokens": step * BATCH_TOKENS, "loss": now + (chance.gauss(0, 0.02) if step > 1 else 0.0)}
        if word == "spiky" and step in (round(0.6 * last), round(0.8 * last)):
            row["loss"] += 5 * VOCABULARY_ENTROPY
        if word == "nan" and step == last:
            row["loss"] = math.nan
        row |= {"grad_norm": 1.0 + 4.0 / step, "lr": identity["optim"]["lr"] * min(1.0, step / (0.05 * steps)), "seconds": 0.1}
        row["tokens_per_second"] = BATCH_TOKENS / 0.1
        yield {**row, **(_probes(step, identity, now) if probes and step % max(1, steps // 10) == 0 else {})}
        if step in evaluations and word != "nan":
            seen = target if step == last else now
            yield {"step": step, "tokens": step * BATCH_TOKENS, "eval/loss": seen, "eval/bits_per_byte": seen / math.log(2)}


def _probes(step: int, identity: Mapping[str, Any], loss: float) -> dict[str, float]:
    found = {"probe/log_z": 5.0 + loss}
    for layer in range(identity["model"]["depth"]):
        found[f"probe/residual_rms/{layer}"] = 1.0 + 0.2 * layer
        found[f"probe/max_logit/{layer}"] = 2.0 + 0.01 * step
        found[f"probe/grad_norm/{layer}"] = 0.5 + 1.0 / step
        found[f"probe/update_ratio/{layer}"] = 1e-3
    return found


def summary(loss: float, steps: int, identity: Mapping[str, Any], entropy: float) -> dict[str, Any]:
    tokens = steps * BATCH_TOKENS
    ends = [1, 2, 4, 8, 16, 32, 64, 128]
    return {
        "eval_loss": loss,
        "bits_per_byte": loss / math.log(2),
        "eval_bytes": 65536,
        "eval_tokens": 65536,
        "steps": steps,
        "tokens": tokens,
        "epochs": 0.03,
        "seconds": 0.1 * steps,
        "tokens_per_second": tokens / (0.1 * steps),
        "flop_utilisation": 0.25,
        "parameters": PARAMETERS,
        "training_flops": FLOPS_PER_TOKEN * tokens,
        "ffn_parameter_error": 0.0,
        "match": None,
        "compiled": False,
        "unigram_entropy": entropy,
        "init_seed": identity["init_seed"],
        "data_seed": identity["data_seed"],
        "loss_by_position": [{"from": end // 2 + 1, "to": end, "loss": loss + 0.8 / end, "targets": 128} for end in ends],
        "length_extrapolation": {"1": loss - 0.01, "2": loss + 0.15, "4": None, "targets": 768, "reasons": {"4": "not defined"}},
    }


# --- a study


def study(
    root: Path,
    losses: Mapping[str, Mapping[int, Result]],
    *,
    tuning: Mapping[str, Mapping[float, Sequence[Result]]] | None = None,
    overrides: Mapping[str, Sequence[str]] | None = None,
    levels: Mapping[str, Mapping[str, str]] | None = None,
    baseline: str | None = None,
    blocks: Sequence[int] | None = None,
    tuning_seeds: Sequence[int] = (100, 101),
    rates: Mapping[str, float] | None = None,
    budgets: Mapping[float, Mapping[int, Result]] | None = None,
    bench: Mapping[str, float] | None = None,
    costs: Mapping[str, Mapping[str, float]] | None = None,
    seed_offsets: Mapping[str, int] | None = None,
    margin: Mapping[str, float | None] | None = None,
    match: str = "none",
    looks: Sequence[int] = (),
    design: str = "arms",
    name: str = "made",
    question: str = "Does it matter?",
    steps: int = 40,
    probes: bool = True,
    entropy: float = UNIGRAM_ENTROPY,
    **manifest: Any,
) -> Path:
    """A study folder ROOT/results/NAME with its runs beside it; returns the folder.

    `losses`: arm -> block -> result. The baseline is the first arm unless named. `tuning`: arm -> rate -> a result for each of
    `tuning_seeds`; its best rate is that of the confirmation runs, unless `rates` says another. `overrides`: of an arm, else what its name
    is as a norm. `budgets`: share of the tokens -> block -> result, of the baseline. `bench`: arm -> milliseconds over the baseline's.
    `costs`: arm -> what differs of its costs. `manifest`: more keys of plan.json, such as later or dropped.
    """
    arms = list(losses)
    baseline = baseline or arms[0]
    offsets = dict(seed_offsets or {})
    typed = {arm: list((overrides or {}).get(arm, _overrides(arm, arm == baseline or arm in offsets))) for arm in arms}
    seeds = list(blocks) if blocks is not None else sorted({block for found in losses.values() for block in found})
    tuned = {arm: tuned_of(found, entropy) for arm, found in (tuning or {}).items()}
    rate = {arm: (rates or {}).get(arm) or tuned.get(arm, {}).get("best") for arm in arms}
    runs_dir, cells = root / "results" / "runs", []

    def add(arm: str, stage: str, result: Result, seed: int, lr: float | None, share: float = 1.0) -> None:
        length = round(share * steps)
        seed += offsets.get(arm, 0)
        path = run(runs_dir, result, typed[arm], seed=seed, lr=lr, steps=length, probes=probes, entropy=entropy)
        text = [*typed[arm], *([f"optim.lr={lr}"] if lr else []), f"seed={seed}"]
        cell = {"hash": path.name[-12:], "directory": str(path.absolute()), "arm": arm, "stage": stage, "share": share}
        cells.append({**cell, "lr": lr or base()["optim"]["lr"], "seed": seed, "steps": length, "overrides": text})

    for arm, found in (tuning or {}).items():
        for lr, results in found.items():
            for seed, result in zip(tuning_seeds, results, strict=True):
                add(arm, "tune", result, seed, lr)
    for arm, by_block in losses.items():
        for block, result in by_block.items():
            add(arm, "confirm", result, block, rate[arm])
    for share, by_block in (budgets or {}).items():
        for block, result in by_block.items():
            add(baseline, "budget", result, block, rate[baseline], share)

    folder = root / "results" / name
    folder.mkdir(parents=True, exist_ok=True)
    asked = {
        "question": question,
        "set": [],
        "design": design,
        "arms": {arm: typed[arm] for arm in arms if arm != baseline},
        "seed_offsets": offsets or None,
        "blocks": seeds,
        "tuning": {"lr": sorted({lr for found in tuning.values() for lr in found}), "seeds": [*tuning_seeds]} if tuning else None,
        "match": {"kind": match, "tolerance": None, "solve": None},
        "margin": {"tokens": None, "nats": None, **(margin if margin is not None else {"nats": 0.01})},
        "budgets": sorted(budgets or {}),
        "looks": list(looks),
    }
    command = f"python -m ablate sweep={name}"
    told = {"study": asked, "name": name, "common": ["tracker=none"], "launcher": {"kind": "local"}, "command": command}
    _write(folder / "study.yaml", yaml.dump(told, Dumper=yaml.CSafeDumper, sort_keys=False))
    plan = {
        "study": name,
        "question": question,
        "time": TIME,
        "command": command,
        "commit": "0123456789ab",
        "code": "abc",
        "baseline": baseline,
        "to_run": len(cells),
        "blocks": seeds,
        "later": 0,
        "arms": [
            {
                "name": arm,
                "overrides": typed[arm],
                "levels": dict((levels or {}).get(arm, {"arm": arm})),
                "parameters": PARAMETERS,
                "flops": FLOPS_PER_TOKEN * steps * BATCH_TOKENS,
                "active_parameters": PARAMETERS,
                "training_flops_per_token": FLOPS_PER_TOKEN,
                "kv_bytes_per_token": 1536,
                **(costs or {}).get(arm, {}),
            }
            for arm in arms
        ],
        "tuned": tuned,
        "cells": cells,
        "duplicates": [],
        "dropped": [],
        "notes": [],
        **manifest,
    }
    _write(folder / "plan.json", json.dumps(plan))
    if bench is not None:
        _write(folder / "bench.json", json.dumps(bench_of(bench)))
    return folder


def tuned_of(results: Mapping[float, Sequence[Result]], entropy: float) -> dict[str, Any]:
    """What the sweep finds from the runs of the tuning seeds: the rate with the smallest mean of min(loss, cap)."""
    rates = sorted(results)
    if any(isinstance(result, str) and result in STATES for found in results.values() for result in found):
        return {"rates": rates, "best": None, "edge": None}
    means = [sum(min(_loss(result, entropy), entropy) for result in results[rate]) / len(results[rate]) for rate in rates]
    best = means.index(min(means))
    return {"rates": rates, "best": rates[best], "edge": "low" if best == 0 else "high" if best == len(rates) - 1 else None}


def bench_of(ratios: Mapping[str, float]) -> dict[str, Any]:
    """bench.json with intervals of 2 % on each side and steps of 50 ms of an arm whose ratio is 1."""
    facts = {"device": "A CPU", "device_type": "cpu", "dtype": "float32", "compiled": True, "threads": 1, "rounds": 11}
    arms = {
        arm: {
            "ms": 50.0 * ratio,
            "ratio": ratio,
            "low": 0.98 * ratio,
            "high": 1.02 * ratio,
            "tokens_per_second": BATCH_TOKENS / (0.05 * ratio),
            "peak_memory": None,
        }
        for arm, ratio in ratios.items()
    }
    return {**facts, "time": "2026-11-30T05:00:00+0000", "commit": "0123456789ab", "torch": "2.13.0+cpu", "arms": arms}


def _overrides(arm: str, is_baseline: bool) -> list[str]:
    if is_baseline:
        return []
    return arm.split("+") if "=" in arm else [f"norm={arm}"]


def _loss(result: Result, entropy: float) -> float:
    return entropy if isinstance(result, str) else float(result[1] if isinstance(result, tuple) else result)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
