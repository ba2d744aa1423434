"""Mirrors of a run directory: Weights & Biases, TensorBoard or none.

Training imports no tracker. A mirror is a process of its own that follows the directory (`start_mirror`), so a server that is
absent, slow or dead costs a warning and nothing else; what it missed, `ablate sync` replays from the directory.

    variants.py  where rows go        mirror.py  the mirror as training sees it
    follow.py    the mirror process   replay.py  the verb `sync`
"""

from __future__ import annotations

from ablate.trackers.mirror import Mirror, start_mirror
from ablate.trackers.replay import sync
from ablate.trackers.variants import TRACKER

__all__ = ["TRACKER", "Mirror", "start_mirror", "sync"]
