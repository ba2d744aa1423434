"""checkpoint: everything that a run needs to go on, in one file that is whole or absent."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from ablate.errors import ConfigError
from ablate.train.parallel import Parallel


def save(path: Path, *, step: int, model: nn.Module, optimizers: list[Optimizer], facts: dict[str, Any], parallel: Parallel) -> None:
    """Writes beside the old checkpoint, flushes to the disk, then takes its place. All processes of a run must ask; the first writes."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    state = {"step": step, "model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers], "facts": facts}
    state = parallel.collected(state)
    if not parallel.world.first:
        return
    try:
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load(path: Path, *, model: nn.Module, optimizers: list[Optimizer], parallel: Parallel) -> tuple[int, dict[str, Any]]:
    """Restores model and optimisers in place; gives the number of steps done and the facts saved with them."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, OSError, ValueError, UnpicklingError) as error:
        message = f"cannot be read ({str(error).partition(chr(10))[0]}): rerun=true starts again from the first step"
        raise ConfigError.at(str(path), message) from None
    ours = model.state_dict()
    model.load_state_dict({name: parallel.part(value, ours.get(name, value)) for name, value in state["model"].items()})
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for number, values in saved["state"].items():
            saved["state"][number] = {name: parallel.part(value, parameters[number]) for name, value in values.items()}
        optimizer.load_state_dict(saved)
    return state["step"], state["facts"]


def save_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """The trained weights alone, as safetensors."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        save_file({name: tensor.contiguous().cpu() for name, tensor in weights.items()}, temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
