"""Mirrors of a run directory: Weights & Biases, TensorBoard or none. Training imports neither; see `start_mirror`."""

from __future__ import annotations

from ablate.trackers.variants import TRACKER

__all__ = ["TRACKER"]
