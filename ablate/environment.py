"""Where a run ran: versions, commit, machine, threads, and what its matrix products can do."""

from __future__ import annotations

import platform
import socket
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import torch

LONG_ENOUGH_SECONDS = 0.005
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def environment(device: torch.device) -> dict[str, Any]:
    """One entry of environment.json: what a reader needs to judge or repeat a start of a run."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "argv": sys.argv,
        "commit": git_commit(),
        "host": socket.gethostname(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("ablate", "torch", "numpy", "hydra-core", "tokenizers")},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else processor(),
        "device_type": device.type,
        "threads": torch.get_num_threads(),
    }


def processor() -> str:
    """The name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())


def git_commit() -> str | None:
    """The commit of this code, `-dirty` with changes; of a study's snapshot, that of its source; None outside a checkout of ours."""
    noted = Path(__file__).resolve().parent / "COMMIT"
    if noted.is_file():
        return noted.read_text(encoding="utf-8").strip()
    top = Path(__file__).resolve().parents[1]
    if not (top / ".git").exists():
        return None
    try:
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=top, capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return commit.stdout.strip() or None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def matmul_peak(device: torch.device, dtype: torch.dtype, repeats: int = 5) -> float:
    """FLOP/s of a square matrix product, the median of a few: the yardstick of FLOP utilisation, measured where the run runs.

    The product grows until it takes a few milliseconds: a processor without bfloat16 is a hundred times slower at it.
    """
    size, largest = 256, 8192 if device.type == "cuda" else 1024
    seconds = _product_seconds(device, dtype, size)
    while seconds < LONG_ENOUGH_SECONDS and size < largest:
        size *= 2
        seconds = _product_seconds(device, dtype, size)
    return 2 * size**3 / median([seconds, *(_product_seconds(device, dtype, size) for _ in range(repeats - 1))])


def _product_seconds(device: torch.device, dtype: torch.dtype, size: int) -> float:
    a, b = torch.randn(2, size, size, device=device).to(dtype)
    a @ b
    _synchronize(device)
    start = time.perf_counter()
    a @ b
    _synchronize(device)
    return time.perf_counter() - start


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
