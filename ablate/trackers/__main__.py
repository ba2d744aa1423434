"""`python -m ablate.trackers RUN_DIR JOB`: the mirror process; `start_mirror` starts it."""

from __future__ import annotations

import sys

from ablate.trackers.follow import main

if __name__ == "__main__":
    main(sys.argv[1:])
