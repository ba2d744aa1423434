"""schedule: the learning rate over a run, as a factor of the peak rate."""

from __future__ import annotations

import math

from ablate.errors import ConfigError
from ablate.registry import PositiveShare, Registry, Share


class Schedule:
    """step, total steps -> factor. Warm-up rises linearly to 1 at its last step, whatever follows."""

    def __init__(self, warmup_fraction: float) -> None:
        self.warmup_fraction = warmup_fraction

    def warmup_steps(self, total: int) -> int:
        return round(self.warmup_fraction * total)

    def factor(self, step: int, total: int) -> float:
        """The factor of the update that makes step `step`, counted from 0."""
        warmup = self.warmup_steps(total)
        if step < warmup:
            return (step + 1) / warmup
        return self.after(step - warmup + 1, total - warmup)

    def after(self, step: int, total: int) -> float:
        """The factor `step` updates after warm-up, 1 <= step <= total."""
        raise NotImplementedError


SCHEDULE: Registry[Schedule] = Registry("schedule")


@SCHEDULE.register("constant")
class Constant(Schedule):
    """1 after warm-up."""

    def __init__(self, *, warmup_fraction: Share) -> None:
        super().__init__(warmup_fraction)

    def after(self, step: int, total: int) -> float:
        return 1.0


@SCHEDULE.register("linear")
class Linear(Schedule):
    """A straight line from 1 to `final_fraction` at the last step."""

    def __init__(self, *, warmup_fraction: Share, final_fraction: Share) -> None:
        super().__init__(warmup_fraction)
        self.final_fraction = final_fraction

    def after(self, step: int, total: int) -> float:
        return 1 + (self.final_fraction - 1) * step / total


@SCHEDULE.register("cosine")
class Cosine(Schedule):
    """Half a cosine from 1 to `final_fraction` at the last step (arXiv 1608.03983, eq. 5, without restarts)."""

    def __init__(self, *, warmup_fraction: Share, final_fraction: Share) -> None:
        super().__init__(warmup_fraction)
        self.final_fraction = final_fraction

    def after(self, step: int, total: int) -> float:
        return self.final_fraction + (1 - self.final_fraction) * (1 + math.cos(math.pi * step / total)) / 2


@SCHEDULE.register("wsd")
class WarmupStableDecay(Schedule):
    """1, then a straight line to `final_fraction` over the last `decay_fraction` of the run (arXiv 2404.06395, section 4)."""

    def __init__(self, *, warmup_fraction: Share, decay_fraction: PositiveShare, final_fraction: Share) -> None:
        super().__init__(warmup_fraction)
        if warmup_fraction + decay_fraction > 1:
            raise ConfigError.at(
                "schedule.decay_fraction",
                f"warm-up and decay are at most the whole run, got warmup_fraction={warmup_fraction} + decay_fraction={decay_fraction}",
            )
        self.decay_fraction = decay_fraction
        self.final_fraction = final_fraction

    def after(self, step: int, total: int) -> float:
        decay = round(self.decay_fraction * total / (1 - self.warmup_fraction)) if self.warmup_fraction < 1 else 0
        left = total - step
        if left >= decay:
            return 1.0
        return self.final_fraction + (1 - self.final_fraction) * left / decay
