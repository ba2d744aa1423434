"""The trackers: where a mirror sends the rows of a run."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ablate.registry import Count, Number, Registry

TRACKER: Registry[Any] = Registry("tracker")

Seconds = Annotated[Number, Field(gt=0, le=86400)]


@TRACKER.register("none")
class NoTracker:
    """The run directory alone."""


@TRACKER.register("tensorboard")
class TensorBoard:
    def __init__(self, *, every_steps: Count, finish_timeout_seconds: Seconds) -> None: ...


@TRACKER.register("wandb")
class Wandb:
    def __init__(
        self,
        *,
        project: str,
        entity: str | None,
        mode: Literal["auto", "online", "offline"],
        group: str | None,
        tags: list[str],
        every_steps: Count,
        finish_timeout_seconds: Seconds,
    ) -> None: ...
