"""The trackers: where a mirror sends the rows of a run. Each starts from nothing or from what its receiver has, and imports late."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import Field

from ablate.files import flat
from ablate.registry import Count, Number, Registry

Row = Mapping[str, Any]
Seconds = Annotated[Number, Field(gt=0, le=86400)]

ARCHITECTURE = (
    "norm", "placement", "residual", "embedding", "position", "attention", "ffn", "head", "loss", "init", "dropout"
)  # fmt: skip
"""`ablate.config.ARCHITECTURE` in words; importing it would cost every mirror an import of torch. A test compares the two."""

FINISH_SHARE = 0.75
"""Of finish_timeout_seconds, for the upload; the rest is for seeing the end of the run, the last rows and leaving."""

DELAY = "ABLATE_TRACKER_DELAY_SECONDS"
"""Set by a sweep, another for each run: hundreds that begin together do not all knock on the W&B server in one second."""

INIT_SECONDS = 30.0
"""For an answer of the W&B server, unless WANDB_INIT_TIMEOUT says otherwise. W&B waits 90 s."""


class TrackerError(Exception):
    """A tracker that cannot be used, and the cure in its message."""


class Context(NamedTuple):
    """What a tracker knows of its run."""

    directory: Path
    fresh: bool  # there was no row when the run started: nothing of an earlier run with this id is kept
    warn: Callable[[str], None]


class Tracker:
    """Gets rows in rising order of step. This one drops them."""

    last_step = -1
    """The last step that the receiver has already."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def open(self) -> str:
        """Returns where the rows go; raises TrackerError."""
        return "nowhere"

    def log(self, row: Row) -> None:
        """A row has `step`."""

    def finish(self, summary: Row, exit_code: int) -> None:
        """After the last row; `summary` is flat."""


TRACKER: Registry[Tracker] = Registry("tracker")


@TRACKER.register("none")
class NoTracker(Tracker):
    """The run directory alone."""


@TRACKER.register("tensorboard")
class TensorBoard(Tracker):
    """Event files under RUN_DIR/tensorboard/, written anew from the first row by every mirror; `summary/*` at the last step."""

    def __init__(self, context: Context, *, every_steps: Count, finish_timeout_seconds: Seconds) -> None:
        super().__init__(context)
        self._step = 0
        self._writer: Any = None

    def open(self) -> str:
        _need("tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        path = self.context.directory / "tensorboard"
        shutil.rmtree(path, ignore_errors=True)
        self._writer = SummaryWriter(str(path), flush_secs=10)
        return str(path)

    def log(self, row: Row) -> None:
        self._step = row["step"]
        for key, value in _numbers(row):
            if key != "step":
                self._writer.add_scalar(key, value, self._step)

    def finish(self, summary: Row, exit_code: int) -> None:
        for key, value in _numbers(summary):
            self._writer.add_scalar(f"summary/{key}", value, self._step)
        self._writer.close()


@TRACKER.register("wandb")
class Wandb(Tracker):
    """A W&B run whose id is the run's hash; online it goes on after the server's last step, offline it is written anew, whole.

    `step` and `tokens` are metrics, never W&B's own step, which may not go back. What the server has is asked of the server:
    no file here can know what arrived.
    """

    def __init__(
        self,
        context: Context,
        *,
        project: str,
        entity: str | None,
        mode: Literal["auto", "online", "offline"],
        group: str | None,
        tags: list[str],
        every_steps: Count,
        finish_timeout_seconds: Seconds,
    ) -> None:
        super().__init__(context)
        self._mode = mode
        self._finish_seconds = FINISH_SHARE * finish_timeout_seconds
        slug, _, self._id = context.directory.name.rpartition("-")
        config = yaml.safe_load((context.directory / "config.yaml").read_text(encoding="utf-8"))
        variants = [f"arch:{config['arch']}"] if config.get("arch", "none") != "none" else []
        variants += [f"{axis}:{config[axis]['kind']}" for axis in ARCHITECTURE if axis in config]
        self._about: dict[str, Any] = {
            "project": _clean(project),
            "entity": entity,
            "id": _clean(self._id),
            "name": _clean(slug) or self._id,
            "group": _clean(group or re.sub(r"-(s\d+|i\d+-d\d+)$", "", slug)) or None,
            "tags": list(dict.fromkeys(_clean(tag, 64) for tag in [*variants, *tags] if tag)),
            "job_type": "train",
            "config": flat(config),
        }
        self._run: Any = None

    def open(self) -> str:
        _need("wandb")
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # reports about W&B itself: teardown waits for them
        import wandb

        wandb.setup(wandb.Settings(silent=True, quiet=True))
        mode = self._choose_mode()
        if mode == "disabled":
            raise TrackerError("W&B is disabled by WANDB_MODE")
        if mode == "online":
            time.sleep(float(os.environ.get(DELAY, 0)))
        try:
            self._run = self._init(mode)
        except Exception as error:  # whatever W&B raises, the run has its offline copy
            if mode == "offline":
                raise
            self.context.warn(f"W&B online is not possible ({_line(error)}); the run is mirrored offline")
            wandb.teardown()  # else the id is "in use"
            self._run = self._init("offline")
        self._run.define_metric("*", step_metric="step")
        if not self._run.offline:
            self.last_step = int(self._run.summary.get("step", -1))
        return str(self._run.url or self._run.settings.sync_dir)

    def _choose_mode(self) -> Any:
        """`auto`: what WANDB_MODE says, else online where a key is found (WANDB_API_KEY, netrc, W&B's settings), else offline."""
        import wandb

        if self._mode != "auto":
            return self._mode
        if os.environ.get("WANDB_MODE"):
            return str(wandb.setup().settings.mode)
        return "online" if wandb.api.api_key or os.environ.get("WANDB_IDENTITY_TOKEN_FILE") else "offline"

    def _init(self, mode: Literal["online", "offline"]) -> Any:
        import wandb

        for path in (self.context.directory / "wandb").glob(f"*run-*-{self._id}*"):
            shutil.rmtree(path, ignore_errors=True)  # a part of what is now sent whole
        settings = wandb.Settings(
            init_timeout=float(os.environ.get("WANDB_INIT_TIMEOUT", INIT_SECONDS)),
            finish_timeout=self._finish_seconds,
            finish_timeout_raises=True,
            reinit="create_new",
            silent=True,
            quiet=True,
            console="off",
            symlink=False,
            disable_git=True,
            disable_code=True,
            save_code=False,
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )
        resume: Literal["allow"] | None = "allow" if mode == "online" and not self.context.fresh else None
        return wandb.init(mode=mode, dir=str(self.context.directory), resume=resume, settings=settings, **self._about)

    def log(self, row: Row) -> None:
        self._run.log(dict(row))

    def finish(self, summary: Row, exit_code: int) -> None:
        self._run.summary.update({key: value for key, value in summary.items() if key != "step"})
        try:
            self._run.finish(exit_code=exit_code)
        except TimeoutError:
            raise TrackerError(f"the W&B server did not take everything within {self._finish_seconds:g} s") from None


def _numbers(row: Row) -> Iterator[tuple[str, float]]:
    return ((key, value) for key, value in row.items() if isinstance(value, int | float) and not isinstance(value, bool))


def _need(package: str) -> None:
    try:
        found = importlib.import_module(package).__file__  # a folder of that name in the working directory has none
    except ImportError:
        found = None
    if found is None:
        raise TrackerError(f"{package} is not installed: `pip install {package}`")


def _clean(text: str, length: int = 128) -> str:
    """As W&B allows it in ids, projects and tags."""
    return re.sub(r"[/\\#?%:\s]+" if length > 64 else r"\s+", "-", text).strip("-")[:length]


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
