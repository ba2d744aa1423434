"""The run directory: the truth about a run. Identity, exclusive claim, state, metrics, summary, and the tolerant reader.

    results/runs/<slug>-<hash>/
        config.yaml        the composed config            status.json       state, step, reason
        environment.json   one entry for each start       metrics.jsonl     a row for each step and evaluation
        summary.json       the result, once there is one  error.txt         the traceback of a crash
        log.txt            what was said                  checkpoint.pt, model.safetensors

Everything is written to a temporary name and renamed, but for the two files that grow, metrics.jsonl and log.txt.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from ablate.claim import Claim, read_status
from ablate.config import AXES, Config
from ablate.files import flat, read_json, read_metrics, read_object, read_yaml, write_json, write_over, write_text
from ablate.model.attention import limit
from ablate.registry import Registry
from ablate.shipped import conf_dir, shipped

SCHEMA = 3
"""Raised when the same config would train differently: old runs then no longer count as done."""

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

State = Literal["running", "done", "failed", "stopped", "crashed"]
MAX_SLUG = 60
HASH_DIGITS = 12


# --- identity


def canonical(cfg: Config, content_hash: str) -> dict[str, Any]:
    """What makes a run this run: every value that can move a number, and the data by content instead of by path."""
    values = {key: value for key, value in cfg.model_dump().items() if key not in Config.not_identity}
    values["data"] = content_hash
    if "path" in values["tokenizer"]:
        del values["tokenizer"]["path"]  # its content is in the content hash
    values["attention"] = _in_tokens(values["attention"], cfg)
    values["layers"] = {  # what layers are, not how rules say it
        str(layer): {group: _in_tokens(getattr(options, group).model_dump(), cfg) for group in change}
        for layer, (change, options) in enumerate(zip(cfg.layer_changes(), cfg.layer_options(), strict=True))
        if change
    }
    del values["eval"]["bytes"], values["eval"]["segment_bytes"]  # so is the evaluation set
    del values["eval"]["extend"]  # after training, on what was trained
    return {"schema": SCHEMA, **values}


def _in_tokens(options: dict[str, Any], cfg: Config) -> dict[str, Any]:
    """Options of attention as numbers, so that 1/2 and 64 of 128 tokens are one run; of other groups, as they are."""
    resolved = dict(options)
    for name in ("window", "chunk"):
        if name in options:
            tokens = limit(name, options[name], cfg.model.context)
            resolved[name] = math.inf if tokens is None else tokens
    if "head_dim" in options and options["head_dim"] is None:
        resolved["head_dim"] = cfg.model.width // cfg.model.heads
    return resolved


def run_hash(identity: Mapping[str, Any]) -> str:
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]


def slug(cfg: Config, baseline: Config) -> str:
    """What a person reads: the architecture, how a run differs from it as it is shipped (`baseline`), and its seed.

    The hash beside it makes it unique. Two arms never share it: a name that is too long is cut and closed with a hash of the whole.
    """
    named = [f"arch={cfg.arch}"] if cfg.arch != "none" else []
    text = re.sub(r"[^A-Za-z0-9.=_-]+", "-", "-".join([*named, *_differences(cfg, baseline)]) or "baseline").strip("-")
    if len(text) > MAX_SLUG:
        text = f"{text[: MAX_SLUG - 7]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
    return f"{text}-s{cfg.init_seed}" if cfg.init_seed == cfg.data_seed else f"{text}-i{cfg.init_seed}-d{cfg.data_seed}"


def _differences(cfg: Config, baseline: Config) -> Iterator[str]:
    """axis=variant and axis.option=value, against the baseline; of a changed variant, the options that are not as it is shipped."""
    ours, theirs = cfg.model_dump(), baseline.model_dump()
    unnamed = {*Config.not_identity, "init_seed", "data_seed"}
    for axis, registry in AXES.items():
        if axis not in unnamed:
            theirs[axis] = _reference(registry, ours[axis], theirs[axis])
    values, usual = flat(ours), flat(theirs)
    for key, value in values.items():
        first, _, rest = key.partition(".")
        if first in unnamed or rest in ("path", "val_path") or value == usual.get(key):
            continue
        name = key.removesuffix(".kind")
        yield f"{name}={_short(value)}" if isinstance(value, float) else f"{name}={value}"


def _short(value: float) -> str:
    """1e6 and 1e-06: a file name has no plus, and without its sign 1e+06 would read as the other."""
    return re.sub(r"e\+0*", "e", f"{value:g}")


def _reference(registry: Registry[Any], ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """What the options of a variant are named against: the baseline's, or those that the variant is shipped with if that is another."""
    kind = ours["kind"]
    reference = theirs if theirs["kind"] == kind else {**_usual(registry, ours), "kind": theirs["kind"]}
    nested = registry.options(kind).nested
    return {**reference, **{option: _reference(inner, ours[option], reference[option]) for option, inner in nested.items()}}


def _usual(registry: Registry[Any], options: dict[str, Any]) -> dict[str, Any]:
    """The options of a variant as its own YAML gives them, typed; what that leaves open counts as usual."""
    kind = options["kind"]
    if not (conf_dir() / registry.axis / f"{kind}.yaml").exists():  # a variant of the user's own
        return options
    given = {name: options[name] if value == "???" or "${" in str(value) else value for name, value in shipped(registry.axis, kind).items()}
    typed: dict[str, Any] = registry.options(kind).model_validate(given).model_dump()
    return {name: options[name] if value is None else value for name, value in typed.items()}


# --- one run


class Run:
    """A run directory that this process owns."""

    def __init__(self, directory: Path, claim: Claim) -> None:
        self.directory = directory
        self._claim = claim
        self._metrics: Any = None

    @classmethod
    def open(cls, directory: Path) -> Run:
        """Claims the directory for this process; raises `Owned` when another process has it."""
        directory.mkdir(parents=True, exist_ok=True)
        claim = Claim.take(directory / "claim")
        for leftover in directory.glob(".*.tmp"):  # of a process that was killed while it wrote
            leftover.unlink(missing_ok=True)
        return cls(directory, claim)

    def check_owned(self) -> None:
        """Raises `ClaimLost` if another process took the run over, as after a long suspension."""
        self._claim.check()

    def close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        self._claim.release()

    def clear(self) -> None:
        """Forgets all results, for `rerun=true`."""
        for path in self.directory.iterdir():
            if path.is_file() and path.name not in ("claim", "claim.lock"):
                path.unlink()

    def set_state(self, state: State, **facts: Any) -> None:
        path, status = self.directory / "status.json", {"state": state, "time": time.time(), **facts}
        try:
            write_json(path, status)
        except OSError as error:
            if error.errno not in NO_ROOM or not path.exists():
                raise
            write_over(path, json.dumps(status) + "\n")  # a run that ends for want of room must be able to say so

    def record_start(self, cfg: Config, identity: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
        write_text(self.directory / "config.yaml", yaml.safe_dump(cfg.model_dump(), sort_keys=False))
        write_json(self.directory / "identity.json", identity)
        (self.directory / "error.txt").unlink(missing_ok=True)  # of an earlier start
        before = read_json(self.directory / "environment.json")
        starts = [*(before if isinstance(before, list) else []), environment]
        write_json(self.directory / "environment.json", starts)

    def open_metrics(self, last_step: int) -> None:
        """Keeps the rows up to `last_step`, the step of the checkpoint, so that a resumed run has each step once."""
        path = self.directory / "metrics.jsonl"
        if path.exists():
            kept = [json.dumps(row) for row in read_metrics(path) if row["step"] <= last_step]
            write_text(path, "".join(f"{line}\n" for line in kept))
        self._metrics = path.open("a", buffering=1, encoding="utf-8")

    def log(self, row: Mapping[str, float | int]) -> None:
        self._metrics.write(json.dumps(row) + "\n")

    def note(self, text: str) -> None:
        with open(self.directory / "log.txt", "a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")


def run_directory(cfg: Config, identity: Mapping[str, Any], baseline: Config) -> Path:
    """The directory of a run; one that exists under another slug (an older baseline) is found by its hash."""
    digest = run_hash(identity)
    return find_run(cfg.results_dir, digest) or Path(cfg.results_dir).expanduser() / "runs" / f"{slug(cfg, baseline)}-{digest}"


def find_run(results_dir: str | Path, digest: str) -> Path | None:
    return next(iter(sorted((Path(results_dir).expanduser() / "runs").glob(f"*-{digest}"))), None)


# --- reading


class Frames(NamedTuple):
    """`runs`: a row a run, with dotted config keys. `curves`: a row a run and step, long in nothing but time."""

    runs: Any
    curves: Any


def load_runs(results_dir: str | Path = "results", *, curves: bool = True) -> Frames:
    """All runs under a results folder as two pandas frames; a run cut short or half-written is read as far as it goes.

    `runs` has `run`, `hash`, `state`, the config as dotted columns and the summary as `summary.*`; `curves` has `run`, `step`,
    `tokens` and the metrics, the last row a step winning. A value that is missing is NaN.
    """
    import pandas as pd

    rows, tables = [], []
    for directory in sorted((Path(results_dir).expanduser() / "runs").glob("*/")):
        config = read_yaml(directory / "config.yaml")
        if config is None:
            continue
        status = read_status(directory)
        summary = read_object(directory / "summary.json")
        row = {
            "run": directory.name,
            "hash": directory.name.rpartition("-")[2],
            "state": status.get("state"),
            "reason": status.get("reason"),
        }
        rows.append({**row, **flat(config), **flat(summary, "summary.")})
        if curves:
            by_step: dict[int, dict[str, Any]] = {}
            for metrics in read_metrics(directory / "metrics.jsonl"):
                by_step.setdefault(metrics["step"], {}).update(metrics)
            tables.append(pd.DataFrame([{"run": directory.name, **by_step[step]} for step in sorted(by_step)]))
    frame = pd.DataFrame(rows, columns=None if rows else ["run", "hash", "state", "reason"])
    tables = [table for table in tables if len(table)]
    return Frames(frame, pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=["run", "step", "tokens"]))
