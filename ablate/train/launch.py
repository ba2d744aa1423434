"""One run from a config: its data, its identity, its directory, the loop, and what is said at the end."""

from __future__ import annotations

import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from ablate.claim import ClaimLost, Owned, read_status
from ablate.composition import OF_ARCHITECTURE, compose, without
from ablate.config import ARCHITECTURE, Config, same_architecture
from ablate.data import Dataset, prepare
from ablate.environment import environment
from ablate.errors import ConfigError
from ablate.files import read_object, write_text
from ablate.matching import as_asked, match_line
from ablate.report.compare import comparison
from ablate.runs import Run, canonical, run_directory, run_hash
from ablate.train.distributed import EndedElsewhere, Onlooker, World, check
from ablate.train.loop import Stop, Training, Update, build, find_device, restore, run_steps

RESULT_KEYS = {"eval_loss", "bits_per_byte", "tokens", "seconds", "tokens_per_second", "flop_utilisation"}
SUCCESS, FAILURE, COME_BACK = 0, 1, 75
"""Exit codes: done; failed or crashed; stopped, or owned by another process (EX_TEMPFAIL: the same command goes on later)."""


PIPE_SIZE = (160, 50)
"""Columns and rows of a screen that is a file or another program."""


def launch(cfg: Config, overrides: list[str], config_dir: str | None = None, directory: Path | None = None) -> int:
    """Trains the run of a config unless it is done, and prints its result. Returns the exit code, the same in all its processes.

    A run of a study has its `directory` from the plan, and its comparison from the report of the study.
    """
    world = World.from_environment()
    check(cfg, world)
    console = plain_console(quiet=not world.first)
    device = find_device(cfg, world)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_dir(cfg) / "inductor"))  # one cache of compiled code for all runs
    data = data_of(cfg, console.print)
    identity = canonical(cfg, data.content_hash)
    if directory is not None and run_hash(identity) != directory.name.rpartition("-")[2]:
        raise ConfigError.at("data", f"has changed since {directory.name} was planned: the same command plans anew")
    if directory is not None and read_status(directory).get("state") == "lost":  # a study needs its result; a person is told
        cfg = cfg.model_copy(update={"rerun": True})
    shipped = None if directory else compose([f"arch={cfg.arch}"], config_dir=config_dir)
    place = directory if shipped is None else run_directory(cfg, identity, shipped)
    assert place is not None
    try:
        with world.joined(device):
            return train(cfg, data, identity, place, world, console)
    except EndedElsewhere as elsewhere:
        return elsewhere.code
    finally:
        if world.first and shipped is not None and read_status(place).get("state") == "done":
            if cfg.arch != "none" and same_architecture(as_asked(cfg), shipped):  # the published one itself: against our baseline
                shipped, overrides = compose(), [text for text in overrides if text.lstrip("+") != f"arch={cfg.arch}"]
            folder = ["--config-dir", config_dir] if config_dir else []
            name = f"arch={shipped.arch}" if cfg.arch != "none" else ""
            baseline = baseline_identity(cfg, shipped, data)
            console.print(comparison(cfg.results_dir, identity, baseline, baseline_command([*folder, *overrides]), name))


def train(cfg: Config, data: Dataset, identity: Mapping[str, Any], directory: Path, world: World, console: Console) -> int:
    """Trains a run unless it has ended or another process owns it; the first process looks and claims for all."""

    def left_to_do() -> int | None:
        return None if cfg.rerun else ended(directory, console, cfg.eval.extend)

    code, digest = world.from_first(lambda: (left_to_do(), run_hash(identity)))
    if digest != run_hash(identity):
        raise ConfigError.at("data", "is not the same for all processes of this run: they read files of different content")
    if code is not None:
        return code
    training = build(cfg, data, world)  # what is wrong shows before anything is written
    run: Run = Onlooker(directory)

    def claim() -> int | None:
        nonlocal run
        try:
            run = Run.open(directory)
        except Owned as owned:
            console.print(
                f"{directory.name} is being run by process {owned.owner.get('pid')} on {owned.owner.get('host')}: nothing was done"
            )
            return COME_BACK
        except OSError as error:
            raise ConfigError.at("results_dir", f"cannot write {directory}: {error.strerror}") from None
        if (code := left_to_do()) is None and cfg.rerun:  # it may have ended while we waited
            run.clear()
        return code

    try:
        if (code := world.from_first(claim)) is not None:
            return code
        return carry_out(training, run, identity, console)
    finally:
        run.close()


def plain_console(quiet: bool = False) -> Console:
    """A console that prints what it is given: brackets in a path or an override are no markup."""
    width, height = (None, None) if sys.stdout.isatty() or os.environ.get("COLUMNS") else PIPE_SIZE
    return Screen(
        width=width,
        height=height,
        soft_wrap=True,
        highlight=False,
        markup=False,
        emoji=False,
        quiet=quiet,
        force_terminal=False if quiet else None,
    )


class Screen(Console):
    """A screen that is gone (`| head`) or full never decides a run: what cannot be shown is not."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains again at its end

    def print(self, *objects: Any, **how: Any) -> None:
        try:
            super().print(*objects, **how)
        except OSError:
            self.quiet = True


def data_of(cfg: Config, say: Callable[[str], None] = lambda text: None) -> Dataset:
    """The data of a config, prepared if it is not in the cache."""
    return prepare(
        cfg.data,
        cfg.tokenizer,
        eval_bytes=cfg.eval.bytes,
        segment_bytes=cfg.eval.segment_bytes,
        cache_dir=cache_dir(cfg),
        say=say,
    )


def cache_dir(cfg: Config) -> Path:
    """Where prepared data and compiled code are kept for all runs."""
    if cfg.cache_dir:
        return Path(cfg.cache_dir).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ablate"


def ended(directory: Path, console: Console, extend: str) -> int | None:
    """Says how a run has ended and gives the exit code, or None when there is something left to do; `extend` is asked for now."""
    status = read_status(directory)
    if status.get("state") == "done":
        console.print(f"already done: {directory}  (rerun=true does it again)")
        console.print(result(directory))
        if extend != "none" and extend not in (read_object(directory / "summary.json").get("length_extrapolation") or {}):
            verb = f"python -m ablate extrapolate {shlex.quote(str(directory))} --extend {extend}"
            console.print(f"eval.extend={extend} was not asked for when it was trained: {verb}")
        return SUCCESS
    if status.get("state") == "lost":
        console.print(f"done before: {directory}\nits summary.json is broken: rerun=true does it again")
        return FAILURE
    if status.get("state") == "failed":
        console.print(
            f"failed before: {directory}\n{status.get('reason')}: {status.get('detail')}  (a result, not a crash; rerun=true does it again)"
        )
        return FAILURE
    return None


def carry_out(training: Training, run: Run, identity: Mapping[str, Any], console: Console) -> int:
    """Trains, with the tracker beside it; every way out leaves the state on disk. All processes of a run do this, the first on record."""
    from ablate.trackers import start_mirror

    cfg, world = training.cfg, training.world

    def say(text: str) -> None:
        console.print(text)
        run.note(text)

    stop = Stop()
    stop.listen()
    mirror = None
    try:
        run.set_state("running")
        run.record_start(cfg, identity, {**environment(training.device), "processes": world.size})
        restore(training, run)
        if world.first:
            mirror = start_mirror(run.directory, cfg.tracker)
        introduce(training, run, say)
        for update in shown(run_steps(training, run, stop), training, console):
            if mirror is not None and update.step % 50 == 0 and (problem := mirror.problem()):
                say(f"warning: {problem}")
        return world.from_first(lambda: say_ending(run.directory, say))
    except ClaimLost as lost:  # the directory is another process's now: not a word into it
        console.print(str(lost))
        return COME_BACK
    except BaseException as error:
        if world.first:
            run.set_state("crashed", reason=type(error).__name__, detail=str(error).partition("\n")[0])
            write_text(run.directory / "error.txt", traceback.format_exc())
        raise
    finally:
        if mirror is not None and (problem := mirror.finish()):
            say(f"warning: {problem}")


def say_ending(directory: Path, say: Callable[[str], None]) -> int:
    status = read_status(directory)
    if status["state"] == "done":
        say(result(directory))
        return SUCCESS
    say(f"{status['state']} ({status['reason']}): {status['detail']}")
    return COME_BACK if status["state"] == "stopped" else FAILURE


def introduce(training: Training, run: Run, say: Callable[[str], None]) -> None:
    cfg, counts = training.cfg, training.counts
    say(f"run {run.directory}")
    if training.step:
        say(f"resumed at step {training.step} of {cfg.steps}")
    corpus = training.data.description.get("name", cfg.data.kind)
    epochs = training.batches.epochs(cfg.steps)
    seen = f"{epochs:.2f} epochs of {corpus}" if epochs else corpus
    say(
        f"{counts.parameters:,} parameters, {cfg.steps:,} steps of {cfg.batch_tokens:,} tokens ({seen}), "
        f"{training.device.type} {cfg.dtype}{' compiled' if training.compiled else ''}{several(training)}"
    )
    if abs(counts.ffn_parameter_error) > 1e-4:
        say(f"feed-forward width {counts.ffn_width}: {counts.ffn_parameter_error:+.2%} parameters against the plain MLP of its ratio")
    if line := match_line(cfg):
        say(line)
    for notice in training.data.notices:
        say(f"note: {notice}")


def several(training: Training) -> str:
    """How many processes share the work, if more than one."""
    return f", {training.world.size} processes ({training.cfg.parallel})" if training.world.size > 1 else ""


def shown(updates: Iterator[Update], training: Training, console: Console) -> Iterator[Update]:
    """Passes updates on and draws them: a bar on a terminal, a line for each evaluation elsewhere."""
    with bar(training, console) as draw:
        for update in updates:
            draw(update)
            yield update


@contextmanager
def bar(training: Training, console: Console) -> Iterator[Callable[[Update], None]]:
    steps = training.cfg.steps
    if not (training.cfg.progress and console.is_terminal):

        def line(update: Update) -> None:
            if update.evaluation:
                console.print(
                    f"step {update.step}/{steps}  loss {update.loss:.4f}  {measured(update)}  {update.tokens_per_second:,.0f} tokens/s"
                )

        yield line
        return
    columns = [BarColumn(bar_width=20), TaskProgressColumn(), TimeRemainingColumn(), TextColumn("{task.fields[facts]}")]
    with Progress(*columns, console=console, refresh_per_second=4) as progress:
        task = progress.add_task("training", total=steps, completed=training.step, facts="")
        last = ""

        def move(update: Update) -> None:
            nonlocal last
            last = f"  evaluation {update.evaluation.loss:.3f}" if update.evaluation else last
            facts = f"loss {update.loss:.3f}{last}  {update.tokens_per_second:,.0f} tok/s"
            progress.update(task, completed=update.step, facts=facts)

        yield move


def measured(update: Update) -> str:
    assert update.evaluation
    per_byte = update.evaluation.bits_per_byte
    accuracy = update.evaluation.accuracy
    facts = [f"{per_byte:.4f} bits per byte"] if per_byte is not None else []
    facts += [f"{accuracy:.1%} right"] if accuracy is not None else []
    return f"evaluation {update.evaluation.loss:.4f}" + (f" ({', '.join(facts)})" if facts else "")


def result(directory: Path) -> str:
    """The result of a finished run in one line."""
    found = read_object(directory / "summary.json")
    if not set(found) >= RESULT_KEYS:
        return "its summary.json is broken: rerun=true does it again"
    per_byte = f", {found['bits_per_byte']:.4f} bits per byte" if found["bits_per_byte"] is not None else ""
    right = f", {found['eval_accuracy']:.1%} of answers right" if found.get("eval_accuracy") is not None else ""
    loss = f"evaluation loss {found['eval_loss']:.4f} nats per token{per_byte}{right}"
    work = f"{found['tokens']:,} tokens in {found['seconds']:.0f} s of steps, {found['tokens_per_second']:,.0f} tokens/s"
    return f"{loss}; {work}, {found['flop_utilisation']:.0%} of the FLOPs of a matrix product"


def baseline_identity(cfg: Config, baseline: Config, data: Dataset) -> dict[str, Any]:
    """The identity of this run with every architecture axis at the baseline's, and all else as it was asked for."""
    changes = {axis: getattr(baseline, axis) for axis in (*ARCHITECTURE, "layers")}
    return canonical(as_asked(cfg).model_copy(update=changes), data.content_hash)


def baseline_command(overrides: list[str]) -> str:
    """The command of the baseline: what was typed, less the choices of architecture."""
    kept = [text.lstrip("+") for text in without(overrides, {*OF_ARCHITECTURE, "rerun"})]
    return " ".join(["python -m ablate", *map(shlex.quote, kept)])
