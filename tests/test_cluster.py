"""The cluster that tests start themselves does what a cluster does, also when it fails."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import Cluster, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("slurm")]

LONG_AT_FIRST = 'echo "$SLURMD_NODENAME"; [ -n "$SLURM_RESTART_COUNT" ] || sleep 300'
"""A job that only a second try ends."""

EVERYTHING = ("--nodes=2", "--gres=gpu:4")


def test_jobs_at_the_same_time_see_a_gpu_each(cluster: Cluster) -> None:
    together = "touch started.$SLURM_JOB_ID; until [ $(ls started.* | wc -l) = 4 ]; do sleep 0.1; done; echo $CUDA_VISIBLE_DEVICES"
    ids = [cluster.submit(together, "--gres=gpu:1", "--nodelist=n1") for _ in range(4)]
    cluster.wait_until_idle()
    assert sorted(cluster.output(id) for id in ids) == ["0\n", "1\n", "2\n", "3\n"]


def test_each_element_of_an_array_runs_with_its_own_index(cluster: Cluster) -> None:
    array = cluster.submit("touch element.$SLURM_ARRAY_TASK_ID", "--array=0-9", "--gres=gpu:1")
    cluster.wait_until_idle()
    assert {path.name for path in cluster.directory.glob("element.*")} == {f"element.{index}" for index in range(10)}
    assert {cluster.job(f"{array}_{index}").state for index in range(10)} == {"COMPLETED"}


def test_an_array_that_is_too_long_is_refused(cluster_with: Callable[..., Cluster]) -> None:
    cluster = cluster_with(max_array_size=20, nodes=1)
    assert cluster.submit("true", "--array=0-19")
    with pytest.raises(RuntimeError, match="Invalid job array specification"):
        cluster.submit("true", "--array=0-20")


def test_two_clusters_know_nothing_of_each_other(cluster: Cluster, cluster_with: Callable[..., Cluster]) -> None:
    other = cluster_with(nodes=1)
    id = cluster.submit("sleep 300")
    cluster.wait_for_state(id, "RUNNING")
    assert other.jobs() == []
    other.stop()
    assert cluster.job(id).state == "RUNNING"
    assert not other.directory.exists()


def test_stopping_ends_what_a_job_left_behind(cluster_with: Callable[..., Cluster]) -> None:
    cluster = cluster_with(nodes=1)
    cluster.submit("setsid sleep 300 & echo")
    cluster.wait_until_idle()
    left = cluster.processes("n1")
    assert left
    cluster.stop()
    assert not cluster.processes("n1")


def test_a_cluster_ends_with_its_process(slurm_is_here: None) -> None:
    program = "import os; from tests.cluster import Cluster; cluster = Cluster(nodes=1); cluster.start(); cluster.submit('sleep 300')\n"
    program += "print(cluster.directory, flush=True); os.kill(os.getpid(), 9)"
    killed = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True)
    assert killed.returncode == -9
    directory = Path(killed.stdout.strip())
    wait_for(lambda: not directory.exists(), 20, "the guard, which deletes the folder last")


def test_the_job_of_a_crashed_node_starts_again_on_the_other_and_ends(cluster: Cluster) -> None:
    id = cluster.submit(LONG_AT_FIRST, "--gres=gpu:1", "--open-mode=append")
    first = cluster.wait_for_state(id, "RUNNING").nodes
    wait_for(lambda: cluster.output(id), 10, "the first try's output")
    cluster.crash_node(first)
    assert not cluster.processes(first)
    job = cluster.wait_for_state(id, "COMPLETED", timeout=90)
    assert job.restarts == 1
    [other] = set(cluster.nodes) - {first}
    assert cluster.output(id) == f"{first}\n{other}\n"


def test_the_job_of_a_hung_node_goes_on(cluster: Cluster) -> None:
    id = cluster.submit("while sleep 0.1; do echo; done")
    node = cluster.wait_for_state(id, "RUNNING").nodes
    cluster.hang_node(node)
    length = len(cluster.output(id))
    wait_for(lambda: len(cluster.output(id)) > length + 5, 10, "more output")


def test_a_controller_that_dies_8_s_after_the_last_job_came_loses_none(cluster: Cluster) -> None:
    running = cluster.submit("sleep 12", *EVERYTHING)
    pending = cluster.submit("true", *EVERYTHING)
    cluster.wait_for_state(running, "RUNNING")
    time.sleep(8)
    cluster.crash_controller()
    assert cluster.run("squeue").returncode != 0
    cluster.start_controller()
    assert [cluster.job(id).state for id in (running, pending)] == ["RUNNING", "PENDING"]
    cluster.wait_until_idle()
    for id in (running, pending):
        assert (cluster.job(id).state, cluster.job(id).restarts) == ("COMPLETED", 0)


def test_a_more_important_job_signals_another_and_takes_its_place_until_it_ends(cluster_with: Callable[..., Cluster]) -> None:
    cluster = cluster_with(grace_time=3)
    caught = f"trap 'touch caught' USR1; {LONG_AT_FIRST} & wait; wait"
    low = cluster.submit(caught, *EVERYTHING, "--signal=B:USR1@10", "--open-mode=append")
    cluster.wait_for_state(low, "RUNNING")
    high = cluster.submit("true", "--partition=high", "--gres=gpu:1")
    cluster.wait_for_state(high, "COMPLETED")
    assert (cluster.directory / "caught").exists()
    assert cluster.wait_for_state(low, "COMPLETED", timeout=90).restarts == 1


def test_a_job_that_needs_more_memory_than_it_asked_for_is_killed(cluster: Cluster) -> None:
    greedy = "python3 -c 'import time; block = b\"1\" * 300_000_000; time.sleep(5); print(len(block))'"
    honest, sly = (cluster.submit(greedy, f"--mem={megabytes}") for megabytes in (1000, 100))
    cluster.wait_until_idle()
    assert cluster.output(honest) == "300000000\n"
    assert cluster.job(sly).state == "FAILED"
    assert "memory limit" in cluster.output(sly)
