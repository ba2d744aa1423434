"""control: a study on disk, and what takes it further: plan, submit what is missing, and again when that has ended.

All that is known about a study is its folder and the directories of its runs; whoever asks for it next goes on from there.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.table import Table
from typing_extensions import Self

from ablate.environment import git_commit
from ablate.errors import ConfigError, told
from ablate.files import read_object, read_yaml, write_json, write_text
from ablate.runs import canonical
from ablate.sweep import slurm
from ablate.sweep.composer import Composer
from ablate.sweep.errors import class_of, last_words
from ablate.sweep.launchers import Launcher, Local, Slurm, launcher_of
from ablate.sweep.local import Interrupted, Pool, here, slots
from ablate.sweep.outlook import finished_runs, labels, measured_seconds, noise_of, power_of, seconds_at_hand
from ablate.sweep.plan import ENDED, Cell, Plan, Planner, check_arms, state_of
from ablate.sweep.show import launch_lines, match_lines, show_plan, shown_state, totals
from ablate.sweep.snapshot import OWN_CONF, snapshot
from ablate.sweep.study import parse_study

OF_ARMS = ("set", "design", "baseline", "arms", "axes", "changes", "ladder")
"""Keys of a study that make its arms what they are."""

DONE, SOME_FAILED, COME_BACK, INTERRUPTED = 0, 1, 75, 130
POLL_SECONDS = 10.0
LOCK_SECONDS = 600.0
"""For another controller to finish submitting."""
PROBE_SECONDS = 2.0
"""Longer than a look at whether a study is held takes."""
PATIENCE_SECONDS = 1800.0
"""For Slurm to answer the job that goes on with a study."""


@dataclass(frozen=True)
class Told:
    """What was asked for, whole: study.yaml."""

    study: dict[str, Any]
    name: str
    common: list[str]
    launcher: dict[str, Any]
    config_name: str
    config_dir: str | None
    cwd: str
    command: str


def as_read(override: str) -> str:
    """The text that an override stands for, as Hydra reads it; raises ConfigError for what is no text."""
    parsed = OverridesParser.create().parse_override(override)
    value = OmegaConf.create({"value": parsed.value()}).value
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = override.partition("=")[2]
    if not isinstance(value, str) or not value:
        raise ConfigError.at(parsed.key_or_group, f"must be a text, got {override.partition('=')[2]!r}")
    return value


class Control:
    """One controller of a study. A context: what is composed stays open."""

    def __init__(self, told: Told, console: Console, config_dir: str | None = None) -> None:
        """`config_dir`: where the folder of --config-dir lies now, if that is not where it was told to be."""
        self.told, self._console = told, console
        self._config_dir = config_dir or told.config_dir
        self.hours: float | None = None
        self._stack = ExitStack()
        self.launcher: Launcher = launcher_of(told.launcher)

    def __enter__(self) -> Self:
        told, common = self.told, self._common()  # what is wrong there shows before anything is open
        composer = self._stack.enter_context(Composer(told.config_name, self._config_dir))
        self._planner = Planner(parse_study(told.study, told.name), composer, common, self._say, self._config_dir)
        first = self._planner.first
        self.results_dir = Path(first.results_dir).expanduser().absolute()
        self.study_dir = self.results_dir / told.name
        self._imports = list(first.imports)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _common(self) -> list[str]:
        """Overrides of every run; where results go does not depend on where a worker stands."""
        own = [text for text in self.told.common if not text.startswith(("results_dir=", "progress="))]
        place = next((as_read(text) for text in self.told.common if text.startswith("results_dir=")), "results")
        folder = json.dumps(str(Path(self.told.cwd, Path(place).expanduser())), ensure_ascii=False)
        return [*own, f"results_dir={folder}", "progress=false"]

    def _say(self, text: str) -> None:
        self._console.print(text)

    # --- looking

    def plan(self) -> Plan:
        plan = self._planner.plan()
        check_arms(plan)
        return plan

    def queued(self) -> Mapping[str, slurm.Queued]:
        """The runs in the queue; raises SlurmError when Slurm does not say."""
        return slurm.queue(self.study_dir) if isinstance(self.launcher, Slurm) else {}

    def show(self, measure: bool) -> Plan:
        """Prints the plan, and finds the hours that it will take."""
        plan = self.plan()
        self._refuse_another(plan)
        if self._changed():
            self._say("note: this study has changed since it was last asked for; what it was stays on record beside it")
        runs = finished_runs(self.results_dir)
        firsts = {cell.arm: cell for cell in reversed(plan.cells)}
        identities = {
            arm.name: canonical(firsts[arm.name].cfg, self._planner.content_hash(firsts[arm.name].cfg))
            for arm in plan.arms.arms
            if arm.name in firsts
        }
        known = seconds_at_hand(runs, identities)
        if measure:
            known = {name: measured_seconds(cell.cfg, self._planner.data(cell.cfg)) for name, cell in firsts.items()}
        self.hours = self._hours(plan, known)
        noise = noise_of(runs, labels(identities[plan.arms.baseline])[0]) if plan.arms.baseline in identities else None
        show_plan(plan, self._console, hours=self.hours, power=power_of(plan, noise), noise=noise, queued=self._queued_if_known())
        for line in [*match_lines(plan), *launch_lines(self.launcher, len(plan.unfinished()))]:
            self._say(line)
        return plan

    def _refuse_another(self, plan: Plan) -> None:
        """A name whose runs, of which some have ended, are all of other arms: to go on would take their report away. Seeds may differ."""
        cells = read_object(self.study_dir / "plan.json").get("cells", [])
        before = {
            str(cell["hash"]): Path(str(cell["directory"])) for cell in cells if isinstance(cell, dict) and {"hash", "directory"} <= {*cell}
        }
        if before.keys() & {cell.digest for cell in plan.cells} or not any(state_of(path) in ENDED for path in before.values()):
            return
        now, then = self._studies()
        if all(now.get(key) == then.get(key) for key in OF_ARMS):
            return
        message = f"{self.told.name!r} is the name of another study, none of whose {len(before)} runs is one of these"
        raise ConfigError.at("study", f"{message}: study=NAME gives this one a name of its own ({self.study_dir})")

    def _changed(self) -> bool:
        now, then = self._studies()
        return bool(then) and now != then

    def _studies(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The study that is asked for, and the one that is on disk; empty where there is none."""
        before = (read_yaml(self.study_dir / "study.yaml") or {}).get("study")
        return yaml.safe_load(yaml.safe_dump(self.told.study)), before if isinstance(before, dict) else {}

    def _hours(self, plan: Plan, seconds: Mapping[str, float]) -> float | None:
        todo = plan.unfinished()
        known = all(cell.arm in seconds for cell in todo)
        return sum(seconds[cell.arm] * cell.share for cell in todo) / 3600 if known else None

    def _queued_if_known(self) -> Mapping[str, slurm.Queued]:
        try:
            return self.queued()
        except slurm.SlurmError:
            return {}

    # --- going on

    def go(self, *, by_person: bool, wait: bool, only: Collection[str] | None = None) -> int:
        """Runs or submits what is missing. `only`: hashes of runs that are taken up again, and no others."""
        try:
            self.study_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if told(error):
                raise
            raise ConfigError.at("results_dir", f"{self.study_dir} cannot be made: {error.strerror}") from None
        if isinstance(self.launcher, Local):
            return self._go_here(only)
        code = self._submit(by_person, only)
        return self.wait() if wait and code == DONE else code

    @contextmanager
    def _alone(self, seconds: float) -> Iterator[bool]:
        """One controller at a time; gives False when another one has the study."""
        lock = FileLock(self.study_dir / "lock", timeout=seconds)
        try:
            lock.acquire()
        except Timeout:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    def _record(self, plan: Plan, code: Path, todo: int) -> None:
        """The study, the manifest, and the config of every run, before anything is started."""
        self._keep_earlier()
        write_text(self.study_dir / "study.yaml", yaml.safe_dump(asdict(self.told), sort_keys=False))
        folder = self.study_dir / "cells"
        folder.mkdir(exist_ok=True)
        for cell in plan.cells:
            path = folder / f"{cell.digest}.yaml"
            if plan.states[cell.digest] not in ENDED or not path.exists():  # another tracker this time
                write_text(path, yaml.dump(self._of_cell(cell), Dumper=yaml.CSafeDumper, sort_keys=False))
        write_json(self.study_dir / "plan.json", self._manifest(plan, code, todo))

    def _keep_earlier(self) -> None:
        """A study that is asked for otherwise than before was changed, perhaps after its results were seen: what it was stays on record."""
        if self._changed():
            path = self.study_dir / "study.yaml"
            kept = path.with_name(f"study-{time.strftime('%Y%m%d-%H%M%S')}.yaml")
            write_text(kept, path.read_text(encoding="utf-8"))  # the new one takes its place once it is written

    def _of_cell(self, cell: Cell) -> dict[str, Any]:
        config = cell.cfg.model_dump()
        if config["tracker"].get("group", "") is None:
            config["tracker"]["group"] = self.told.name
        return {
            "hash": cell.digest,
            "directory": str(cell.directory),
            "cwd": self.told.cwd,
            "overrides": list(cell.overrides),
            "config": config,
        }

    def _manifest(self, plan: Plan, code: Path, todo: int) -> dict[str, Any]:
        return {
            "study": self.told.name,
            "question": plan.study.question,
            "time": time.time(),
            "command": self.told.command,
            "commit": git_commit(),
            "code": code.name,
            "baseline": plan.arms.baseline,
            "to_run": todo,
            "blocks": plan.study.blocks,
            "later": plan.later,
            "arms": [
                {"name": arm.name, "overrides": list(arm.overrides), "levels": arm.levels, **plan.costs[arm.name]._asdict()}
                for arm in plan.arms.arms
            ],
            "tuned": {name: tuned._asdict() for name, tuned in plan.tuned.items()},
            "cells": [
                {
                    "hash": cell.digest,
                    "directory": str(cell.directory),
                    "arm": cell.arm,
                    "stage": cell.stage,
                    "share": cell.share,
                    "lr": cell.rate,
                    "seed": cell.seed,
                    "steps": cell.cfg.steps,
                    "overrides": list(cell.overrides),
                }
                for cell in plan.cells
            ],
            "duplicates": [list(pair) for pair in plan.duplicates],
            "dropped": [{"overrides": list(overrides), "reason": reason} for overrides, reason in plan.arms.dropped],
            "notes": list(plan.arms.notes),
        }

    def _snapshot(self) -> Path:
        return snapshot(self.study_dir, self._imports, self._config_dir)

    # --- on this machine

    def _go_here(self, only: Collection[str] | None) -> int:
        assert isinstance(self.launcher, Local)
        with self._alone(PROBE_SECONDS) as alone:
            if not alone:
                self._say(f"study {self.told.name} is being run by another process: nothing was started")
                return COME_BACK
            return self._pool(self.launcher, only)

    def _pool(self, options: Local, only: Collection[str] | None) -> int:
        tried: set[str] = set()
        code = self._snapshot()
        places = slots(options, *here())
        while True:
            plan = self.plan()
            todo = [cell for cell in self._missing(plan, {}, only) if cell.digest not in tried]
            self._record(plan, code, len(todo))
            if not todo:
                break
            what = f"{places[0].threads} thread{'s' if places[0].threads > 1 else ''}{' on a GPU' if places[0].gpu else ''}"
            self._say(f"{len(todo)} runs, {len(places)} at once, each with {what}")
            tried |= {cell.digest for cell in todo}
            batch = self.study_dir / "batches" / f"local-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
            write_batch(batch.with_name(f"{batch.name}.json"), [cell.digest for cell in todo])
            try:
                Pool(self.study_dir, code, places, self._say).run(todo, batch, options.fail_fast)
            except Interrupted:
                return INTERRUPTED
            if options.fail_fast and any(self.plan().states[cell.digest] not in ENDED for cell in todo):
                break
        return self.report(plan)

    def _missing(self, plan: Plan, queued: Mapping[str, Any], only: Collection[str] | None) -> list[Cell]:
        """Runs without a result that nobody is at."""
        return [
            cell
            for cell in plan.unfinished()
            if cell.digest not in queued and plan.states[cell.digest] != "running" and (only is None or cell.digest in only)
        ]

    # --- on Slurm

    def _submit(self, by_person: bool, only: Collection[str] | None = None) -> int:
        """Submits what is neither done nor in the queue, and a job that comes back here when that has ended."""
        assert isinstance(self.launcher, Slurm)
        with self._alone(LOCK_SECONDS) as alone:
            if not alone:
                self._say(f"study {self.told.name} is held by another process for over {LOCK_SECONDS:.0f} s: nothing was submitted")
                return COME_BACK
            code, plan, queued = self._snapshot(), self.plan(), self.queued()
            todo = self._missing(plan, queued, only)
            if not by_person:
                todo = [cell for cell in todo if self._may_try_again(cell)]
            self._record(plan, code, len(todo))
            jobs = slurm.submit(self.study_dir, code, [cell.digest for cell in todo], self.launcher) if todo else []
            submitted = self.queued() if jobs else queued
            waiting = [place.job.partition("_")[0] for digest, place in submitted.items() if digest != slurm.NEXT]
            # A run that trains outside of the queue, on a node that Slurm has given up, may still die there.
            outside = any(plan.states[cell.digest] == "running" and cell.digest not in submitted for cell in plan.cells)
            if self.launcher.follow and (waiting or outside) and (jobs or not slurm.will_follow(queued)):
                slurm.follow(self.study_dir, code, sorted({*jobs, *waiting}), self.launcher, GoOn(str(self.study_dir)))
        left = len(todo) - sum(cell.digest in submitted for cell in todo)
        self._say(f"submitted {len(todo) - left} runs{f' as jobs {chr(44).join(jobs)}' if jobs else ''}" if todo else "nothing to submit")
        if not todo:
            self._verdicts(plan)
        if left > 0:
            self._say(f"{left} runs wait for room in the queue" + ("; they follow by themselves" if self.launcher.follow else ""))
        self._say(f"python -m ablate status {self.told.name}")
        return DONE

    def _may_try_again(self, cell: Cell) -> bool:
        """By itself a study goes on with what was lost, stopped or killed, some times; an error or too little memory waits for a person."""
        assert isinstance(self.launcher, Slurm)
        if class_of(cell.directory, self.study_dir, cell.digest) in ("crash", "oom"):
            return False
        return sum(cell.digest in batch["cells"] for batch in slurm.batches(self.study_dir)) < self.launcher.attempts

    def wait(self) -> int:
        """Until every run has ended or nothing more can be done; on the way it does what the following job would."""
        said = ""
        while True:
            try:
                plan, queued = self.plan(), self.queued()
            except slurm.SlurmError as error:
                self._say(f"{error}: asking again")
                time.sleep(POLL_SECONDS)
                continue
            line = totals(plan, queued)
            if line != said:
                self._say(f"{time.strftime('%H:%M:%S')} {line}")
                said = line
            busy = any(
                shown_state(plan.states[cell.digest], queued.get(cell.digest)) in ("queued", "starting", "running", "held")
                for cell in plan.cells
            )
            if not busy and slurm.NEXT not in queued:
                before = len(slurm.batches(self.study_dir))
                if not plan.complete and isinstance(self.launcher, Slurm):
                    self._submit(by_person=False)
                if plan.complete or len(slurm.batches(self.study_dir)) == before:
                    return self.report(plan)
            time.sleep(POLL_SECONDS)

    # --- at the end

    def report(self, plan: Plan) -> int:
        """What has no result, each with its reason; the exit code."""
        bad = [cell for cell in plan.cells if plan.states[cell.digest] != "done"]
        if bad:
            table = Table(box=None, pad_edge=False, header_style="bold")
            for name in ("run", "state", "why"):
                table.add_column(name, overflow="fold")
            for cell in bad:
                table.add_row(cell.directory.name, plan.states[cell.digest], last_words(cell.directory, self.study_dir, cell.digest))
            self._console.print(table)
        counts = Counter(plan.states[cell.digest] for cell in plan.cells)
        self._say(f"{counts['done']} of {len(plan.cells)} runs are done" + (f"; {totals(plan, {})}" if bad or plan.later else ""))
        self._verdicts(plan)
        return SOME_FAILED if bad else DONE

    def _verdicts(self, plan: Plan) -> None:
        """The report of a study of which every run has ended, with its first screen; the runs are safe whatever becomes of it."""
        if not plan.complete:
            return
        from ablate.report.command import write_report
        from ablate.report.load import load_study

        try:
            page = write_report(load_study(str(self.study_dir), self.results_dir), self.study_dir, self._console)
        except (ConfigError, OSError) as error:
            self._say(f"no report was written: {error}")
            return
        self._say(f"report: {page}")


def write_batch(path: Path, digests: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    name = f"{path.stem}"
    write_json(
        path,
        {"id": name, "time": time.time(), "launcher": "local", "cells": digests, "job": None, "name": name, "host": socket.gethostname()},
    )


class GoOn:
    """The job that goes on with a study after the others. Importable, so that a pickle of it holds no code."""

    def __init__(self, study_dir: str) -> None:
        self.study_dir = study_dir

    def __call__(self) -> None:
        with opened(Path(self.study_dir)) as control:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while True:
                try:
                    control.go(by_person=False, wait=False)
                    return
                except slurm.SlurmError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(POLL_SECONDS)

    def checkpoint(self) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


@contextmanager
def opened(study_dir: Path, console: Console | None = None) -> Iterator[Control]:
    """The controller of a study that is on disk."""
    from ablate.train.launch import plain_console

    values = read_yaml(study_dir / "study.yaml")
    if values is None:
        raise ConfigError.at(str(study_dir), "is no study: it has no study.yaml")
    try:
        told = TypeAdapter(Told).validate_python(values)
    except ValidationError:
        raise ConfigError.at(str(study_dir / "study.yaml"), "cannot be read: the command that made the study writes it anew") from None
    own = Path(__file__).resolve().parents[2] / OWN_CONF  # beside the package, in a snapshot
    if Path(told.cwd).is_dir():
        os.chdir(told.cwd)
    with Control(told, console or plain_console(), str(own) if told.config_dir and own.is_dir() else None) as control:
        yield control
