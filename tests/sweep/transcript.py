"""A sweep of 24 runs on a real Slurm with four fake GPUs a node, of which one is preempted, one killed and one raises.

    python -m tests.sweep.transcript

prints what a person at the keyboard would type and see. Needs root and Debian's slurmctld slurmd slurm-client munge, as the tests do.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.cluster import Cluster, missing

REPOSITORY = Path(__file__).resolve().parents[2]

MODULE = '''
import os, time
from pathlib import Path
from ablate.model.norm import NORM, RMSNorm
from ablate.registry import Positive

@NORM.register("slow")
class Slow(RMSNorm):
    """RMSNorm that takes its time, so that something can happen to its run; until `repaired` is there, task 5 raises."""

    def __init__(self, dim: int, *, eps: Positive, seconds: Positive) -> None:
        super().__init__(dim, eps=eps, weight="plain")
        self.seconds = seconds

    def forward(self, x_D):
        if os.environ.get("SLURM_ARRAY_TASK_ID") == "5" and not Path(os.environ["HERE"], "repaired").exists():
            raise RuntimeError("this node has a broken driver")
        if x_D.device.type != "meta":
            time.sleep(self.seconds)
        return super().forward(x_D)
'''

SMALL = "model.width=32 model.depth=2 model.context=64 model.heads=2 train.tokens=40960 train.batch_size=4 init=fan_in eval.bytes=4096"
SMALL += " eval.segment_bytes=1024 eval.num_points=2 checkpoint.every_seconds=5 tracker=none"
SWEEP = (
    f"-m placement=pre,sandwich,output optim.lr=1e-2,2e-2 seed=0,1,2,3 norm=slow --config-dir mine imports=[slow_norms] {SMALL} study=demo"
)
SWEEP += " hydra/launcher=slurm hydra.launcher.partition=low hydra.launcher.gpus_per_node=1 hydra.launcher.timeout_min=20"


class Keyboard:
    """Types commands in a folder and shows what they say."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder, self.cluster = folder, cluster
        self.environment = {**os.environ, **cluster.environment, "HERE": str(folder), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}

    def ablate(self, words: str) -> str:
        print(f"\n$ python -m ablate {words}", flush=True)
        start = time.monotonic()
        command = [sys.executable, "-m", "ablate", *words.split()]
        done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        print(f"{done.stdout}{done.stderr}[exit {done.returncode}, {time.monotonic() - start:.0f} s]", flush=True)
        return done.stdout

    def states(self) -> Counter[str]:
        found = [json.loads(path.read_text())["state"] for path in self.folder.glob("results/runs/*/status.json")]
        return Counter(found)


def main() -> int:
    if reason := missing():
        print(reason)
        return 2
    with tempfile.TemporaryDirectory() as folder, Cluster(grace_time=20) as cluster:
        demo = Keyboard(Path(folder), cluster)
        (demo.folder / "slow_norms.py").write_text(MODULE)
        (demo.folder / "mine" / "norm").mkdir(parents=True)
        (demo.folder / "mine" / "norm" / "slow.yaml").write_text("kind: slow\neps: 1e-5\nseconds: 0.01\n")
        demo.ablate(SWEEP)
        disturb(demo)
        demo.ablate("status demo")
        demo.ablate("wait demo")
        (demo.folder / "repaired").touch()
        print("\n# the cause is removed")
        demo.ablate("retry demo --failed crash")
        demo.ablate("wait demo")
        demo.ablate(SWEEP)
        print(f"\nSlurm's own account: {Counter(job.state for job in cluster.jobs())}; runs: {dict(demo.states())}")
        return 0 if demo.states() == {"done": 24} else 1


def disturb(demo: Keyboard) -> None:
    """Once runs train: a job of higher rank takes a GPU, and a worker is killed."""

    def training() -> list[dict[str, object]]:
        claims = [path for path in demo.folder.glob("results/runs/*/claim") if (path.parent / "metrics.jsonl").exists()]
        return [json.loads(path.read_text()) for path in claims]

    deadline = time.monotonic() + 240
    while len(training()) < 7 and time.monotonic() < deadline:
        time.sleep(0.5)
    print("\n$ sbatch --partition=high --gres=gpu:1 --wrap='sleep 20'   # preempts a run")
    demo.cluster.submit("sleep 20", "--partition=high", "--gres=gpu:1")
    victim = training()[0]
    print(f"$ kill -9 {victim['pid']}   # a worker")
    os.kill(int(str(victim["pid"])), signal.SIGKILL)
    time.sleep(10)


if __name__ == "__main__":
    sys.exit(main())
