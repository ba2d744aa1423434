"""One run across processes: who there is, what they tell each other, and what each of them works on.

The first process (rank 0) alone owns the run directory, writes and speaks. Each step all of them agree on what to do next, so that a
signal, a lost claim or a number that is not finite ends all of them at the same step.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from itertools import count
from math import gcd
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed
from torch.distributed.rendezvous import rendezvous

from ablate.config import Config
from ablate.errors import ConfigError, Problem
from ablate.model.dropout import DROPOUT
from ablate.model.moe import MoE
from ablate.model.transformer import Transformer
from ablate.runs import Run

T = TypeVar("T")

PATIENCE = timedelta(minutes=30)
"""For how long a process waits for the others in a step. One that has died is seen at once where its connection closes."""

BEFORE_HANGING_UP = timedelta(seconds=5)
LONGEST_PAUSE = 0.2
"""Seconds between two looks at what the first process has told."""


class EndedElsewhere(Exception):
    """The first process ended in what it alone does, and says why; `code` is the exit code of all."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__("the first process of this run ended, and says why")


@dataclass
class World:
    """The processes of a run, as torchrun counts them in RANK, WORLD_SIZE and LOCAL_RANK. One alone never talks to anyone."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    told: int = 0  # times that the first has told something
    store: Any = field(default=None, repr=False)

    @classmethod
    def from_environment(cls) -> World:
        try:
            size = int(os.environ.get("WORLD_SIZE", "1"))
            if size == 1:
                return cls()
            return cls(rank=int(os.environ["RANK"]), size=size, local_rank=int(os.environ["LOCAL_RANK"]))
        except (KeyError, ValueError) as error:
            message = f"WORLD_SIZE={os.environ['WORLD_SIZE']} needs RANK and LOCAL_RANK, whole numbers, as torchrun sets them ({error})"
            raise ConfigError.at("WORLD_SIZE", message) from None

    @property
    def first(self) -> bool:
        return self.rank == 0

    @contextmanager
    def joined(self, device: torch.device) -> Iterator[None]:
        """Meets the others. After an error nothing is waited for: the connections close with the process, which the others see."""
        if self.size == 1:
            yield
            return
        if device.type == "cuda":
            torch.cuda.set_device(device)
        self.store = _new_store()
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        distributed.init_process_group(backend, store=self.store, rank=self.rank, world_size=self.size, timeout=PATIENCE)
        yield
        self.largest(0.0)  # nobody hangs up before all have heard everything
        distributed.destroy_process_group()

    def from_first(self, decide: Callable[[], T]) -> T:
        """What the first process does and finds, told to all. They wait without a limit, but not for one that is gone."""
        if self.size == 1:
            return decide()
        self.told += 1
        key = f"told/{self.told}"
        if not self.first:
            found, value = pickle.loads(self._told(key))
            if not found:
                self.store.set(f"{key}/heard/{self.rank}", b"")
                raise EndedElsewhere(value)
            return value
        try:
            value = decide()
        except BaseException as error:
            self.store.set(key, pickle.dumps((False, 2 if isinstance(error, ConfigError) else 1)))
            with suppress(distributed.DistError):
                self.store.wait([f"{key}/heard/{rank}" for rank in range(1, self.size)], BEFORE_HANGING_UP)
            raise
        self.store.set(key, pickle.dumps((True, value)))
        return value

    def _told(self, key: str) -> bytes:
        pause = 0.005
        while not self.store.check([key]):
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        return self.store.get(key)

    def largest(self, *values: float) -> list[float]:
        """The largest of each value over all processes: what they agree on."""
        if self.size == 1:
            return list(values)
        all_values = torch.tensor(values, dtype=torch.float64)
        distributed.all_reduce(all_values, distributed.ReduceOp.MAX)
        return all_values.tolist()

    def total(self, *values: float) -> list[float]:
        """The sum of each value over all processes."""
        return self.sum([torch.tensor(values, dtype=torch.float64)])[0].tolist()

    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sum of each tensor over all processes, in one message, as float64."""
        if self.size == 1:
            return list(tensors)
        flat = torch.cat([tensor.detach().flatten().double() for tensor in tensors])
        distributed.all_reduce(flat)
        parts = flat.split([tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]

    def share(self, items: Sequence[T]) -> Iterator[tuple[int, T]]:
        """This process's items with their places: every `size`-th."""
        for place in range(self.rank, len(items), self.size):
            yield place, items[place]


ALONE = World()


@cache
def _meeting_place() -> Any:
    """The store at MASTER_ADDR and MASTER_PORT, for as long as this process lives."""
    store, _, _ = next(iter(rendezvous("env://", timeout=PATIENCE)))
    return store


def _new_store() -> Any:
    """A store without any key of a run that these processes worked on before."""
    return distributed.PrefixStore(f"ablate/{next(_meetings)}", _meeting_place())  # type: ignore[attr-defined]


_meetings = count()


def export_slurm_tasks() -> None:
    """Brings the tasks of a Slurm step into the variables of torchrun. Nothing to do for one task, or under torchrun itself."""
    if "WORLD_SIZE" in os.environ or int(os.environ.get("SLURM_NTASKS", "1")) == 1:
        return
    from submitit.helpers import TorchDistributedEnvironment

    TorchDistributedEnvironment().export(set_cuda_visible_devices=False)


def check(cfg: Config, world: World) -> None:
    """ConfigError for what does not go with this number of processes."""
    problems = []
    if cfg.parallel == "fsdp" and world.size == 1:
        message = (
            "fsdp divides a model among processes, and this is one, so that it has no effect: torchrun --nproc-per-node=2 -m ablate ..."
        )
        problems.append(Problem("parallel", message))
    rows = cfg.train.batch_size
    if rows % world.size:
        problems.append(Problem("train.batch_size", f"{rows} sequences cannot be shared evenly by {world.size} processes"))
    if problems:
        raise ConfigError(problems)


def rows_at_once(cfg: Config, model: Transformer, world: World) -> int:
    """Sequences in one forward pass here: a micro-batch, or an even part of one where there are too few for all processes.

    A part gives the very gradient of the whole but for rounding, unless experts are balanced or numbers dropped over all its sequences.
    """
    micro = cfg.train.micro_batch_size
    num = cfg.train.batch_size // micro
    pieces = world.size // gcd(num, world.size)
    if pieces == 1:
        return micro
    cannot = [
        *(["experts are balanced over a micro-batch"] if any(isinstance(module, MoE) for module in model.modules()) else []),
        *(["dropout draws its numbers for a micro-batch"] if DROPOUT.build(cfg.dropout).active else []),
    ]
    if not cannot:
        return micro // pieces
    rows = cfg.train.batch_size // world.size
    allowed = ", ".join(str(size) for size in range(rows, 0, -1) if rows % size == 0)
    message = f"{num} times {micro} sequences cannot be shared evenly by {world.size} processes ({'; '.join(cannot)}); allowed: {allowed}"
    raise ConfigError.at("train.micro_batch_size", message)


class Onlooker(Run):
    """The run as all processes but the first see it: they read its checkpoint, and leave no trace."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def check_owned(self) -> None: ...

    def close(self) -> None: ...

    def clear(self) -> None: ...

    def set_state(self, state: str, **facts: Any) -> None: ...

    def record_start(self, cfg: Config, identity: Mapping[str, Any], environment: Mapping[str, Any]) -> None: ...

    def open_metrics(self, last_step: int) -> None: ...

    def log(self, row: Mapping[str, float | int]) -> None: ...

    def note(self, text: str) -> None: ...
