"""What all tests share: few threads, one cache of prepared data, and no word to any W&B account."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: many small tests, run side by side
os.environ["WANDB_MODE"] = "offline"

SHORT = ["train.tokens=8192", "train.batch_size=4", "model.width=32", "model.depth=2", "model.context=64", "model.heads=2"]
SHORT += ["eval.bytes=4096", "eval.segment_bytes=1024", "eval.num_points=4", "progress=false", "tracker=none"]
SHORT += ["init=fan_in", "optim.lr=2e-2"]
"""Overrides of a run of 32 steps, which takes about a second."""


@pytest.fixture
def cache_dir(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """One cache for the whole session: the corpus is prepared once."""
    root = tmp_path_factory.getbasetemp()
    return (root if worker_id == "master" else root.parent) / "cache"


@pytest.fixture
def short(cache_dir: Path, tmp_path: Path) -> list[str]:
    """Overrides of a short run whose results lie in this test's folder."""
    return [*SHORT, f"results_dir={tmp_path / 'results'}", f"cache_dir={cache_dir}"]
