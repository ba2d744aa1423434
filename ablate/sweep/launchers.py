"""launchers: the options of hydra.launcher, typed. conf/hydra/launcher/*.yaml has their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from ablate.errors import ConfigError, Problem, asked_for, did_you_mean
from ablate.registry import Count, Section

OURS = ("local", "slurm")

Minutes = Annotated[int, Field(ge=1)]


class Local(Section):
    """A bounded pool of processes on this machine."""

    kind: Literal["local"]
    workers: Count | None  # null: as many as the cores or the GPUs carry
    threads: Count | None  # of each worker; null: 1 on a CPU, a fair share of the cores beside a GPU
    runs_per_gpu: Count
    fail_fast: bool


class Slurm(Section):
    """What submitit and sbatch are told, by the names of Hydra's own submitit launcher, and three options of ours."""

    kind: Literal["slurm"]
    timeout_min: Minutes
    partition: str | None
    account: str | None
    qos: str | None
    nodes: Count
    tasks_per_node: Count
    gpus_per_node: Annotated[int, Field(ge=0)] | None
    gpus_per_task: Annotated[int, Field(ge=0)] | None
    cpus_per_task: Count | None
    cpus_per_gpu: Count | None
    gres: str | None
    mem_gb: Annotated[float, Field(gt=0)] | None
    mem_per_gpu: str | None
    mem_per_cpu: str | None
    constraint: str | None
    exclude: str | None
    nodelist: str | None
    exclusive: bool | str | None
    dependency: str | None
    comment: str | None
    mail_type: str | None
    mail_user: str | None
    signal_delay_s: Annotated[int, Field(ge=1)]
    stderr_to_stdout: bool
    array_parallelism: Count
    setup: list[str]
    teardown: list[str]
    srun_args: list[str]
    additional_parameters: dict[str, Any]
    max_queued: Count | None  # jobs of yours in the queue at once; null: as many as Slurm allows
    attempts: Count  # submissions of a run that is lost or killed again and again, before it is left to a person
    follow: bool  # a small job after the others goes on with the study, so that nobody has to be logged in
    follow_parameters: dict[str, Any]  # of that job, over what is above: partition, timeout_min, ...


Launcher = Local | Slurm


def launcher_of(values: Mapping[str, Any]) -> Launcher:
    """The typed options of hydra.launcher; raises ConfigError with every problem."""
    if "kind" not in values:
        raise not_ours(str(values.get("_target_", "?")))
    model: type[Launcher] = Slurm if values["kind"] == "slurm" else Local
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(_problem(detail, model) for detail in error.errors()) from None


def not_ours(name: str) -> ConfigError:
    message = (
        f"{name} waits until all jobs have ended and loses results when one dies: use hydra/launcher=slurm, which takes the same options"
    )
    if "submitit" not in name:
        message = f"{name} cannot be used here; allowed: {', '.join(OURS)}{did_you_mean(name, OURS)}"
    return ConfigError.at("hydra/launcher", message)


def _problem(detail: Any, model: type[Launcher]) -> Problem:
    path = [str(part) for part in detail["loc"]]
    key = f"hydra.launcher.{path[0]}"
    if detail["type"] == "extra_forbidden":
        known = list(model.model_fields)
        return Problem(key, f"no such option of this launcher; known: {', '.join(known)}{did_you_mean(path[0], known)}")
    return Problem(key, f"{asked_for(detail)}, got {detail['input']!r}")
