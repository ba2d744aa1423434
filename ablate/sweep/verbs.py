"""The verbs on a study: status, wait, logs, cancel, retry. A study is named as its folder under results/, or by the path of its folder."""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from ablate.claim import Claim, Owned, owner_of, read_status
from ablate.errors import ConfigError, did_you_mean
from ablate.files import find_study, metric_rows, read_object
from ablate.sweep import slurm
from ablate.sweep.board import Board, Entry, is_at_work, is_controlled, read_board
from ablate.sweep.control import Control, opened
from ablate.sweep.errors import class_of, last_words, logs_of
from ablate.sweep.launchers import Local, Slurm
from ablate.sweep.local import CANCEL, POLL_SECONDS
from ablate.sweep.plan import ENDED
from ablate.sweep.show import shown_state, sum_of_states
from ablate.train.launch import plain_console

FAILED = ("oom", "crash", "node", "all")
LIVE_SECONDS = 5.0
TAIL_BYTES = 65536
LOG_LINES = 40
MOST_ROWS = 40
"""Of a table with runs that are done."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong as everything here does."""

    def error(self, message: str) -> Any:
        raise ConfigError.at(self.prog.rpartition(" ")[2], f"{message}; {chr(32).join(self.format_usage().split())}")


def _parser(verb: str) -> _Parser:
    parser = _Parser(prog=f"ablate {verb}", allow_abbrev=False)
    parser.add_argument("name", metavar="RUN" if verb == "logs" else "STUDY")
    parser.add_argument("--results-dir", default="results", help="where the study lies (results)")
    return parser


def status(argv: Sequence[str]) -> int:
    """Prints the runs of a study; with --live again and again until nothing is left to do, or nobody does it."""
    parser = _parser("status")
    parser.add_argument("--live", action="store_true", help=f"again every {LIVE_SECONDS:.0f} seconds")
    parser.add_argument("--all", action="store_true", help="runs that are done too, however many")
    flags = parser.parse_args(argv)
    study_dir = find_study(flags.name, flags.results_dir)
    if not flags.live:
        plain_console().print(_view(read_board(study_dir), flags.all)[0])
        return 0
    with Live(console=Console(), auto_refresh=False) as live:
        while True:
            at_work = is_at_work(study_dir)  # before the look, so that the last one shows how all ended
            board = read_board(study_dir)
            view, left = _view(board, flags.all)
            live.update(view, refresh=True)
            if not left or not (at_work or isinstance(board.launcher, Slurm)):
                return 0
            time.sleep(LIVE_SECONDS)


def _view(board: Board, all_runs: bool) -> tuple[Group, bool]:
    """What Slurm does not say, a table of runs, and the totals, with one call of squeue; and whether anything is left to do."""
    queued, lines = queue_of(board)
    directories = board.states()
    batches = [batch for batch in slurm.batches(board.study_dir) if batch["launcher"] == "slurm"]  # what waits in a local pool is not lost
    submitted = {digest for batch in batches for digest in batch["cells"]}
    known = {digest: "lost" if state == "new" and digest in submitted else state for digest, state in directories.items()}
    states = {digest: shown_state(state, queued.get(digest)) for digest, state in known.items()}
    table = Table(box=None, pad_edge=False, header_style="bold")
    numbers = ("progress", "loss", "evaluation", "tokens/s", "beat")
    for name in ("arm", "lr", "seed", "run", "state", *numbers, "slurm", "error"):
        table.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    for entry in board.entries:
        if all_runs or len(board.entries) <= MOST_ROWS or states[entry.digest] != "done":
            table.add_row(*_row(board, entry, states[entry.digest], queued.get(entry.digest)))
    total = sum_of_states(list(states.values()), board.num_arms, board.num_blocks, board.later)
    left = board.later > 0 or any(state not in ENDED for state in directories.values())
    return Group(*lines, table, total), left


def queue_of(board: Board) -> tuple[dict[str, slurm.Queued], list[str]]:
    """The queue as Slurm tells it, and a warning where it does not."""
    if not isinstance(board.launcher, Slurm):
        return {}, []
    try:
        return slurm.queue(board.study_dir), []
    except slurm.SlurmError as error:
        return {}, [f"{error}; the queue is not known, the states below are those of the directories"]


def _row(board: Board, entry: Entry, state: str, place: slurm.Queued | None) -> list[str]:
    last = _last_metrics(entry.directory)
    step, speed = last.get("step", 0), last.get("tokens_per_second")
    result = read_object(entry.directory / "summary.json").get("eval_loss") if state == "done" else last.get("eval/loss")
    claim = entry.directory / "claim"
    kind = class_of(entry.directory, board.study_dir, entry.digest)
    status = read_status(entry.directory)
    why = kind or (str(status.get("reason", "")) if state in ("failed", "stopped") else "")
    reason = f" ({place.reason})" if place and place.reason not in ("None", "") else ""
    return [
        entry.arm,
        f"{entry.rate:g}",
        str(entry.seed),
        entry.digest[:8],
        state,
        f"{min(step / entry.steps, 1):.0%}" if step else "",
        *(f"{value:.4f}" if isinstance(value, int | float) else "" for value in (last.get("loss"), result)),
        f"{speed:,.0f}" if isinstance(speed, int | float) and state == "running" else "",
        f"{max(0.0, time.time() - claim.stat().st_mtime):.0f} s" if state == "running" and claim.exists() else "",
        f"{place.job} {place.state.lower()}{reason}" if place else "",
        why,
    ]


def _last_metrics(directory: Path) -> dict[str, Any]:
    """The last whole row of training with the last evaluation, without reading the whole file."""
    try:
        with open(directory / "metrics.jsonl", "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            rows = list(metric_rows(file.read().splitlines()))
    except OSError:
        return {}
    steps, evaluations = ([row for row in rows if key in row] for key in ("loss", "eval/loss"))
    return {**(steps[-1] if steps else {}), **({"eval/loss": evaluations[-1]["eval/loss"]} if evaluations else {})}


def wait(argv: Sequence[str]) -> int:
    """Stays until every run of a study has ended; the exit code is 0 if all are done."""
    flags = _parser("wait").parse_args(argv)
    while is_at_work(find_study(flags.name, flags.results_dir)):
        time.sleep(LIVE_SECONDS)
    with _opened(flags) as control:
        return control.wait() if isinstance(control.launcher, Slurm) else control.report(control.plan())


def logs(argv: Sequence[str]) -> int:
    """Prints the end of what a run has said: its own log, its error, and the screen of its last process."""
    parser = _parser("logs")
    parser.add_argument("--lines", "-n", type=_lines, default=LOG_LINES, help=f"of each ({LOG_LINES})")
    flags = parser.parse_args(argv)
    console = plain_console()
    directory = _run(flags.name, Path(flags.results_dir))
    digest = directory.name.rpartition("-")[2]
    screens = [path for study in sorted(Path(flags.results_dir).glob("*/study.yaml")) for path in logs_of(study.parent, digest)]
    for path in [directory / "log.txt", directory / "error.txt", *screens[-1:]]:
        if path.is_file():
            console.print(f"== {path}")
            console.print("\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-flags.lines :]))
    return 0


def _lines(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text}")
    return int(text)


def _run(name: str, results_dir: Path) -> Path:
    """A run by its path, its name, or the start of its hash."""
    if (Path(name) / "status.json").is_file():
        return Path(name)
    names = sorted(path.name for path in (results_dir / "runs").glob("*/"))
    found = [other for other in names if other == name or other.rpartition("-")[2].startswith(name)]
    if len(found) == 1:
        return results_dir / "runs" / found[0]
    several = (
        f"is the start of several: {', '.join(found)}" if found else f"no such run in {results_dir / 'runs'}{did_you_mean(name, names)}"
    )
    raise ConfigError.at(name, several)


def cancel(argv: Sequence[str]) -> int:
    """Takes what waits out of the queue and asks what runs to save and stop. The same sweep command goes on with it later."""
    flags = _parser("cancel").parse_args(argv)
    board = read_board(find_study(flags.name, flags.results_dir))
    queued = slurm.queue(board.study_dir) if isinstance(board.launcher, Slurm) else {}
    slurm.cancel(list(queued.values()))
    pool = isinstance(board.launcher, Local) and is_controlled(board.study_dir)
    with _no_more_starts(board.study_dir) if pool else nullcontext():
        stopped = _stop([entry for entry in board.entries if entry.digest not in queued])
        who = " and so is the process that starts them, which ends when they have" if pool else ""
        plain_console().print(f"{len(queued)} jobs cancelled, {stopped} runs on this machine asked to stop{who}")
        while pool and is_controlled(board.study_dir):
            time.sleep(POLL_SECONDS)
    return 0


@contextmanager
def _no_more_starts(study_dir: Path) -> Iterator[None]:
    """Holds what the pool of the study looks for, wherever it is. A claim: one that a killed process left stops nobody later."""
    try:
        claim = Claim.take(study_dir / CANCEL)
    except Owned:  # the same verb at the same time
        yield
        return
    try:
        yield
    finally:
        claim.release()


def _stop(entries: Sequence[Entry]) -> int:
    """Asks what runs on this machine to save and stop; gives how many do."""
    stopped = 0
    for entry in entries:
        owner = owner_of(entry.directory / "claim")
        if owner is not None and owner.get("host") == os.uname().nodename:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(int(owner["pid"]), signal.SIGTERM)
                stopped += 1
    return stopped


def retry(argv: Sequence[str]) -> int:
    """Runs again what has no result, by the class of its end; a failed run has one, and is left."""
    parser = _parser("retry")
    parser.add_argument("--failed", choices=FAILED, default="all", help="only runs that ended so; all: whatever has no result (all)")
    flags = parser.parse_args(argv)
    with _opened(flags) as control:
        console = plain_console()
        chosen = []
        for cell in control.plan().unfinished():
            kind = class_of(cell.directory, control.study_dir, cell.digest)
            if flags.failed == "all" or kind == flags.failed:
                chosen.append(cell)
                if kind:
                    console.print(f"{cell.directory.name}  {last_words(cell.directory, control.study_dir, cell.digest)}")
        if not chosen:
            console.print(f"nothing to retry{f' of class {flags.failed}' if flags.failed != 'all' else ''}")
            return 0
        return control.go(by_person=True, wait=False, only={cell.digest for cell in chosen})


@contextmanager
def _opened(flags: argparse.Namespace) -> Iterator[Control]:
    with opened(read_board(find_study(flags.name, flags.results_dir)).study_dir) as control:
        yield control
