"""What all tests share: few threads, one cache of prepared data, a Slurm when one is asked for, no word to any W&B account."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ablate.cli import main
from tests.cluster import Cluster, missing
from tests.command import Command

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: many small tests, run side by side
os.environ["WANDB_MODE"] = "offline"
os.environ.pop("COLUMNS", None)  # of the terminal that the tests are started on, which xdist hands to its workers

SHORT = ["train.tokens=8192", "train.batch_size=4", "model.width=32", "model.depth=2", "model.context=64", "model.heads=2"]
SHORT += ["eval.bytes=4096", "eval.segment_bytes=1024", "eval.num_points=4", "progress=false", "tracker=none"]
SHORT += ["init=fan_in", "optim.lr=2e-2"]
"""Overrides of a run of 32 steps, which takes about a second."""


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """One cache for the whole session: the corpus is prepared once."""
    root = tmp_path_factory.getbasetemp()
    return (root if worker_id == "master" else root.parent) / "cache"


@pytest.fixture
def short(cache_dir: Path, tmp_path: Path) -> list[str]:
    """Overrides of a short run whose results lie in this test's folder."""
    return [*SHORT, f"results_dir={tmp_path / 'results'}", f"cache_dir={cache_dir}"]


@pytest.fixture(scope="session")
def plain(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run of `short` and nothing else, which no test may change."""
    results = tmp_path_factory.mktemp("plain")
    assert main([*SHORT, f"results_dir={results}", f"cache_dir={cache_dir}"]) == 0
    [directory] = (results / "runs").iterdir()
    return directory


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """`start(*overrides)`: an `ablate` in a process of its own, which does not outlive the test."""
    commands: list[Command] = []

    def start(*words: str, folder: Path | None = None, environment: Mapping[str, str] = os.environ) -> Command:
        commands.append(Command(words, folder or Path.cwd(), environment, tmp_path / f"command{len(commands)}.txt"))
        return commands[-1]

    yield start
    for command in commands:
        command.kill()


@pytest.fixture(scope="session")
def slurm_is_here() -> None:
    """What needs Slurm is skipped where Slurm cannot be; not in CI, where nobody would see it."""
    if reason := missing():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


@pytest.fixture(scope="session")
def shared_cluster(slurm_is_here: None) -> Iterator[Cluster]:
    """One for all tests of `@pytest.mark.xdist_group("slurm")`, which then run in one process (`--dist loadgroup`)."""
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    """The shared cluster; the next test finds its nodes up again and its queue empty."""
    yield shared_cluster
    shared_cluster.clear()


@pytest.fixture
def cluster_with(slurm_is_here: None) -> Iterator[Callable[..., Cluster]]:
    """`cluster_with(max_array_size=20)`: a cluster with other options (tests/cluster.py), for one test."""
    with ExitStack() as clusters:

        def start(**options: Any) -> Cluster:
            return clusters.enter_context(Cluster(**options))

        yield start
