"""How long a study takes to load: `python -m tests.report.speed [RUNS] [STEPS]` makes one, loads it a few times and prints the seconds.

On a machine that is shared, the processor's seconds tell more than those of the clock.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from ablate.report.load import load_study, tidy
from tests.report import made


def main(runs: int = 100, steps: int = 2000) -> None:
    blocks = range(runs // 4)
    with tempfile.TemporaryDirectory() as folder:
        losses = {arm: {block: 2.0 + 0.01 * block for block in blocks} for arm in ("baseline", "layernorm", "dyt", "prmsnorm")}
        study = made.study(Path(folder), losses, steps=steps)
        size = sum(path.stat().st_size for path in (study.parent / "runs").glob("*/metrics.jsonl"))
        print(f"{4 * len(blocks)} runs of {steps} steps, {size / 1e6:.0f} MB of metrics")
        for _ in range(3):
            wall, processor = time.perf_counter(), time.process_time()
            loaded = load_study(study)
            wall, processor = time.perf_counter() - wall, time.process_time() - processor
            start = time.perf_counter()
            tidy(loaded)
            tidied = time.perf_counter() - start
            print(f"load {wall:.2f} s ({processor:.2f} s of a processor), {len(loaded.curves):,} rows; tidy {tidied:.3f} s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
