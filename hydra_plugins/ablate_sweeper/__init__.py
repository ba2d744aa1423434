"""Hydra's way in to ablate.sweep: `hydra/sweeper: ablate`. All of the work is there."""

from __future__ import annotations

import sys
from typing import Any

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from ablate.errors import ConfigError, NotNow, told


class AblateSweeper(Sweeper):
    """Plans a sweep and submits it; ends the process with the exit code of `ablate`."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._config: DictConfig | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._config = config

    def sweep(self, arguments: list[str]) -> None:
        from ablate.sweep.command import asked_of, sweep

        assert self._config is not None
        hydra = self._config.hydra
        paths = {source.provider: source.path for source in hydra.runtime.config_sources}
        launcher = OmegaConf.to_container(hydra.launcher, resolve=True)
        assert isinstance(launcher, dict)
        own = paths.get("command-line")
        values = {
            "overrides": list(arguments),
            "launcher": {str(key): value for key, value in launcher.items()},
            "config_name": str(hydra.job.config_name),
            "config_dir": own,
            **self._options,
        }
        try:
            sys.exit(sweep(asked_of(values)))
        except ConfigError as error:
            print(f"ablate: {error}", file=sys.stderr)
            sys.exit(2)
        except NotNow as error:
            print(f"ablate: {error}", file=sys.stderr)
            sys.exit(75)
        except OSError as error:
            if (said := told(error)) is None:
                raise
            print(f"ablate: {said}", file=sys.stderr)
            sys.exit(1)
