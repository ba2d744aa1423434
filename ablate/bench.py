"""The verb `bench`: how fast steps are, measured in one process, interleaved, as medians of ratios within a round.

    ablate bench scale=small compile=true                      # our loop against a bare loop, and the peak of matrix products
    ablate bench scale=tiny compile=true vs norm=layernorm vs norm=none    # configs against each other
    ablate bench --every arch --rounds 3 scale=small compile=true          # every choice of a group, each against the config
    ablate bench --study norm                                              # every arm of a study against its baseline

A machine is shared and noisy; a ratio within a round is not. On a CPU compare the speed of variants compiled: eager, an operator that
has a fused kernel beats one that has none, which says nothing about the variants.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from rich.table import Table
from torch import nn
from torch._dynamo.utils import counters

from ablate.composition import compose
from ablate.config import Config, ProbesConfig, meta_model
from ablate.environment import DTYPES, environment, matmul_peak
from ablate.errors import ConfigError
from ablate.files import find_study, read_object, read_yaml, write_json
from ablate.model.count import count
from ablate.registry import sized
from ablate.runs import Run, canonical
from ablate.shipped import conf_dir
from ablate.sweep.study import over
from ablate.trackers import start_mirror
from ablate.train.launch import data_of, plain_console
from ablate.train.loop import Stop, Training, build, find_device, restore, run_steps, should_compile, train_step

FOREVER_TOKENS = 10**15
WARM_UP_STEPS = 3


@dataclass
class Contestant:
    """Something whose steps are timed; what `around` does is done while it has the machine."""

    name: str
    step: Callable[[], object]
    training: Training
    around: Callable[[], object] = field(default=lambda: _Nothing())
    seconds: list[float] = field(default_factory=list)


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


def bench(argv: list[str]) -> int:
    """Prints the table of steps, and for a single config also its start-up time."""
    parser = argparse.ArgumentParser(
        prog="ablate bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--rounds", type=int, default=11, help="rounds, in each of which every contestant has its turn (default 11)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a turn (default 2)")
    parser.add_argument("--study", metavar="NAME", help="every arm of a study against its baseline, for the cost columns of its report")
    parser.add_argument("--results-dir", default="results", help="where studies are (default results)")
    parser.add_argument("--every", metavar="GROUP", help="every choice of a group (arch, norm, ...) against the config, one after another")
    flags, rest = parser.parse_known_args(argv)
    unknown = [word for word in rest if word.startswith("-")]
    if unknown:
        raise ConfigError.at(unknown[0], "no such flag; allowed: --rounds, --seconds, --every, --study, --results-dir, --help")
    if flags.rounds < 1 or flags.seconds < 0:
        raise ConfigError.at("--rounds, --seconds", f"at least 1 round of at least 0 seconds, got {flags.rounds} and {flags.seconds}")
    console = plain_console()
    first, *others = _split(rest)
    if flags.study:
        return arms_of_study(flags.study, flags.results_dir, rest, flags.rounds, flags.seconds, console.print)
    if flags.every:
        console.print(every(first, flags.every, flags.rounds, flags.seconds, console.print))
        return 0
    if others:
        contenders = [_variant(first, [])] + [_variant(first, other) for other in others]
        peaks = race(contenders, flags.rounds, flags.seconds)
        console.print(table("steps of configs, interleaved", contenders, peaks))
        return 0
    with tempfile.TemporaryDirectory() as folder, loop_against_bare(first, Path(folder)) as contenders:
        peaks = race(contenders, flags.rounds, flags.seconds)
        console.print(table("our loop (every step logged, W&B mirror on) against a bare loop of the same model", contenders, peaks))
        console.print(cost_of_probes(contenders[0].training, compose(first), flags.rounds, flags.seconds))
    console.print(first_step(first))
    return 0


def every(common: list[str], group: str, rounds: int, seconds: float, say: Callable[[str], object]) -> Table:
    """Each choice of a group against the config without it, interleaved in pairs: memory holds two models at a time.

    It takes a while where it compiles; `say` is told each ratio when it is known.
    """
    words = sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))
    if not words:
        raise ConfigError.at("--every", f"no such group: {group!r}")
    training = _variant(common, []).training
    result = Table(
        title=f"every choice of {group} against {' '.join(common) or 'the baseline'}",
        caption=f"{training.device.type}, {training.cfg.dtype}, {'compiled' if training.compiled else 'eager'}, "
        f"{torch.get_num_threads()} threads; {rounds} rounds of pairs; graphs: compiled for the choice, blocks, head and loss together",
        title_justify="left",
        caption_justify="left",
    )
    columns = ("ms a step", "ratio", "ratio, middle half", "parameters, ratio", "FLOPs a token, ratio", "graphs")
    result.add_column(group)
    for column in columns:
        result.add_column(column, justify="right")
    for word in words:
        try:
            pair = _against(common, [*common, f"{group}={word}"], rounds, seconds)
            result.add_row(
                word,
                f"{1000 * pair.seconds:.1f}",
                f"{pair.ratio:.3f}",
                f"{pair.low:.3f} to {pair.high:.3f}",
                f"{pair.parameters:.3f}",
                f"{pair.flops:.3f}",
                str(pair.graphs),
            )
            say(f"{group}={word}: {pair.ratio:.3f} of the time")
        except ConfigError as error:
            result.add_row(word, f"refused: {error.problems[0].key}")
    return result


class Paired(NamedTuple):
    """A config against another, by turns: medians, and the middle half of the ratios of their times."""

    seconds: float  # a step
    theirs: float  # a step of the other config
    ratios: list[float]  # of the rounds, sorted
    ratio: float
    low: float
    high: float
    parameters: float  # ratio
    flops: float  # ratio, of a token
    graphs: int
    tokens_per_second: float
    peak_memory: int | None  # bytes, of the config alone; None on a CPU


def _against(baseline: list[str], other: list[str], rounds: int, seconds: float, config_dir: str | None = None) -> Paired:
    torch.compiler.reset()  # or each pair would look through what was compiled for those before it
    theirs = _variant(baseline, [], config_dir)
    _warm(theirs)
    graphs, device = counters["stats"]["unique_graphs"], theirs.training.device
    on_cuda = device.type == "cuda"
    held = torch.cuda.memory_allocated(device) if on_cuda else 0
    if on_cuda:
        torch.cuda.reset_peak_memory_stats(device)
    ours = _variant(other, [], config_dir)
    _warm(ours)
    peak = torch.cuda.max_memory_allocated(device) - held if on_cuda else None
    race([theirs, ours], rounds, seconds)
    ratios = sorted(one / two for one, two in zip(ours.seconds, theirs.seconds, strict=True))
    counts, reference = ours.training.counts, theirs.training.counts
    return Paired(
        seconds=median(ours.seconds),
        theirs=median(theirs.seconds),
        ratios=ratios,
        ratio=median(ratios),
        low=ratios[len(ratios) // 4],
        high=ratios[-1 - len(ratios) // 4],
        parameters=counts.parameters / reference.parameters,
        flops=counts.training_flops_per_token / reference.training_flops_per_token,
        graphs=counters["stats"]["unique_graphs"] - graphs,
        tokens_per_second=ours.training.cfg.batch_tokens / median(ours.seconds),
        peak_memory=peak,
    )


def arms_of_study(name: str, results_dir: str, extra: list[str], rounds: int, seconds: float, say: Callable[[str], object]) -> int:
    """Every arm of a study against its baseline, compiled unless `extra` says otherwise; the report reads what this writes, bench.json.

    An arm's milliseconds are its ratio times those of the baseline over all pairs, since pairs differ by what else the machine did. The
    ratio of the baseline itself is that of two copies of it: what chance does.
    """
    study_dir = find_study(name, results_dir)
    manifest, told = read_object(study_dir / "plan.json"), read_yaml(study_dir / "study.yaml") or {}
    commands: dict[str, list[str]] = {}
    for cell in manifest["cells"]:
        commands.setdefault(cell["arm"], over(cell["overrides"], ["compile=true", *extra]))
    baseline = commands[manifest["baseline"]]
    training = _variant(baseline, [], told.get("config_dir")).training
    pairs: dict[str, Paired] = {}
    for arm, command in commands.items():
        pair = pairs[arm] = _against(baseline, command, rounds, seconds, told.get("config_dir"))
        say(f"{arm}: {pair.ratio:.3f} of the time of a step of {manifest['baseline']} (middle half {pair.low:.3f} to {pair.high:.3f})")
    step = median(pair.theirs for pair in pairs.values())
    arms = {arm: _entry(pair, step if arm == manifest["baseline"] else step * pair.ratio) for arm, pair in pairs.items()}
    facts = environment(training.device)
    about = {key: facts[key] for key in ("time", "device", "device_type", "threads", "commit")}
    settings = {"torch": torch.__version__, "dtype": training.cfg.dtype, "compiled": training.compiled, "rounds": rounds}
    write_json(study_dir / "bench.json", {**about, **settings, "arms": arms})
    say(f"written to {study_dir / 'bench.json'}; `python -m ablate report {name}` reads it")
    return 0


def _entry(pair: Paired, seconds: float) -> dict[str, Any]:
    """`low` and `high`: the 95 % interval of the median over rounds, by order statistics; None of fewer than six rounds."""
    from scipy.stats import quantile_test

    tokens = pair.tokens_per_second * pair.seconds  # of a step
    found: Any = quantile_test(pair.ratios)
    low, high = found.confidence_interval(0.95)
    return {
        "ms": 1000 * seconds,
        "ratio": pair.ratio,
        "low": float(low) if math.isfinite(low) else None,
        "high": float(high) if math.isfinite(high) else None,
        "tokens_per_second": tokens / seconds,
        "peak_memory": pair.peak_memory,
    }


def _split(words: list[str]) -> list[list[str]]:
    groups: list[list[str]] = [[]]
    for word in words:
        if word == "vs":
            groups.append([])
        else:
            groups[-1].append(word)
    return groups


def _endless(overrides: list[str], config_dir: str | None = None) -> Config:
    """The config of a run that neither evaluates nor saves while it is timed, compiled if the real one would be."""
    real = compose(overrides, config_dir=config_dir)
    compiled = should_compile(real, find_device(real), count(meta_model(real), real.model.context))
    endless = [f"train.tokens={FOREVER_TOKENS}", "eval.num_points=1", "checkpoint.every_seconds=.inf", f"compile={compiled}"]
    return compose(over(overrides, endless), config_dir=config_dir)


def _training(cfg: Config) -> Training:
    data = data_of(cfg)
    return build(cfg, data)


def _variant(common: list[str], extra: list[str], config_dir: str | None = None) -> Contestant:
    training = _training(_endless([*common, *extra], config_dir))
    return Contestant(" ".join(extra) or " ".join(common) or "baseline", lambda: train_step(training), training)


@contextmanager
def loop_against_bare(overrides: list[str], folder: Path) -> Iterator[list[Contestant]]:
    """Our loop with its run directory and W&B mirror, and the shortest loop that trains the same model on the same batches.

    The mirror is a process of its own and would slow whoever has the machine: it is stopped while the bare loop has its turn, so
    that all its work falls on ours.
    """
    cfg = _endless([*overrides, "tracker=wandb", "tracker.mode=offline", f"results_dir={json.dumps(str(folder))}"])
    ours, bare = _training(cfg), _training(cfg)
    run = Run.open(folder / "runs" / "bench-000000000000")
    run.set_state("running")
    run.record_start(cfg, canonical(cfg, ours.data.content_hash), environment(ours.device))
    restore(ours, run)
    mirror = start_mirror(run.directory, cfg.tracker)
    steps = run_steps(ours, run, Stop())

    @contextmanager
    def mirror_on() -> Iterator[None]:
        _signal(mirror.pid, signal.SIGCONT)
        try:
            yield
        finally:
            _signal(mirror.pid, signal.SIGSTOP)

    try:
        yield [
            Contestant("bare loop", bare_loop(bare), bare),
            Contestant("our loop", lambda: next(steps), ours, around=mirror_on),
        ]
    finally:
        _signal(mirror.pid, signal.SIGCONT)
        run.set_state("stopped", reason="bench", detail="the bench is over")
        mirror.finish()
        run.close()


def _signal(group: int | None, number: int) -> None:
    if group is not None:
        with suppress(ProcessLookupError):
            os.killpg(group, number)


def bare_loop(training: Training) -> Callable[[], None]:
    """What one would write by hand: forward, cross-entropy, backward, clip, step; nothing is measured, logged or checked."""
    cfg, model = training.cfg, training.model
    parameters = list(model.parameters())
    t = 0

    def step() -> None:
        nonlocal t
        inputs, targets = training.batches(t)
        with torch.autocast(training.device.type, dtype=torch.bfloat16, enabled=cfg.dtype == "bfloat16"):
            loss, *_ = training.objective(inputs.to(training.device), targets.to(training.device))
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, cfg.train.grad_clip, foreach=True)
        for optimizer in training.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        t += 1

    return step


def cost_of_probes(training: Training, real: Config, rounds: int, seconds: float) -> str:
    """What probes add to the steps of the `real` config: steps of one model of which each or none is looked at, interleaved."""
    interval = real.probes.every_steps
    if math.isinf(interval):
        return "probes: off"
    interval = sized(interval, real.steps)
    probing, plain = (
        replace(training, cfg=training.cfg.model_copy(update={"probes": ProbesConfig(every_steps=steps)})) for steps in (1, math.inf)
    )
    contestants = [Contestant("plain", lambda: train_step(plain), plain), Contestant("probing", lambda: train_step(probing), probing)]
    race(contestants, rounds, seconds)
    extra = sorted(ours / theirs - 1 for theirs, ours in zip(*(contestant.seconds for contestant in contestants), strict=True))
    low, high = extra[len(extra) // 4], extra[-1 - len(extra) // 4]
    share = f"{median(extra) / interval:.2%} of step time at one in {interval} steps"
    return f"probes: {share} (a probe takes as long as {median(extra):.2f} steps, middle half {low:.2f} to {high:.2f})"


def race(contestants: list[Contestant], rounds: int, seconds: float) -> list[float]:
    """Times turns of each contestant, in turn; gives the matrix-product peaks that were measured between them."""
    repeats = []
    for contestant in contestants:
        _warm(contestant)
        repeats.append(max(1, round(seconds / _time(contestant, 1))))
    turn = max(1, round(median(repeats)))
    peaks = []
    for index in range(rounds):
        order = contestants if index % 2 == 0 else contestants[::-1]
        for contestant in order:
            with contestant.around():  # type: ignore[attr-defined]
                contestant.seconds.append(_time(contestant, turn))
        training = contestants[0].training
        peaks.append(matmul_peak(training.device, DTYPES[training.cfg.dtype]))
    return peaks


def _warm(contestant: Contestant) -> None:
    for _ in range(WARM_UP_STEPS):
        contestant.step()


def _time(contestant: Contestant, repeats: int) -> float:
    """Seconds a step."""
    device = contestant.training.device
    start = time.perf_counter()
    for _ in range(repeats):
        contestant.step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - start) / repeats


def table(title: str, contestants: list[Contestant], peaks: list[float]) -> Table:
    first = contestants[0]
    training = first.training
    peak = median(peaks)
    compiled = "compiled" if training.compiled else "eager"
    caption = (
        f"{training.device.type}, {training.cfg.dtype}, {compiled}, {torch.get_num_threads()} threads; {len(peaks)} rounds; "
        f"peak of a matrix product {peak / 1e9:,.1f} GFLOP/s"
    )
    result = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    for name, justify in (("", "left"), ("ms a step", "right"), ("ratio", "right"), ("ratio, middle half", "right"), ("tokens/s", "right")):
        result.add_column(name, justify=justify)  # type: ignore[arg-type]
    result.add_column("of the peak", justify="right")
    for contestant in contestants:
        cfg = contestant.training.cfg
        ratios = sorted(ours / theirs for ours, theirs in zip(contestant.seconds, first.seconds, strict=True))
        rate = cfg.batch_tokens / median(contestant.seconds)
        flops = cfg.batch_tokens * contestant.training.counts.training_flops_per_token
        shares = [flops / seconds / top for seconds, top in zip(contestant.seconds, peaks, strict=True)]
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        result.add_row(
            contestant.name,
            f"{1000 * median(contestant.seconds):.1f}",
            f"{median(ratios):.3f}",
            "" if contestant is first else f"{low:.3f} to {high:.3f}",
            f"{rate:,.0f}",
            f"{median(shares):.0%}",
        )
    return result


def first_step(overrides: list[str]) -> str:
    """Seconds from the command to its first row of metrics, in a process of its own, without compiling."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "ablate", *overrides, "compile=false", f"results_dir={json.dumps(folder)}"]
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            while process.poll() is None:
                if any(path.stat().st_size for path in Path(folder).glob("runs/*/metrics.jsonl")):
                    return f"first step {time.perf_counter() - start:.1f} s after the command, without compile"
                time.sleep(0.02)
            return f"first step: the command ended early\n{process.stderr.read() if process.stderr else ''}"
        finally:
            process.terminate()
            process.communicate()
