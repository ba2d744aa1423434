"""ablate: decide between architecture choices of language models, and know whether to believe the decision.

In a notebook:

    cfg = ablate.compose(["norm=layernorm"])     # the config that `python -m ablate norm=layernorm` trains
    model = ablate.build_model(cfg)              # its model, initialised
    runs, curves = ablate.load_runs("results")   # all runs as pandas frames
    study = ablate.load_study("norm")            # the frames of a study
    ablate.analyse(study).answer                 # all numbers of its report; drawn by ablate.report.drawings
    cfg, model = ablate.load_pretrained("folder")  # a local checkpoint of a published architecture
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Config", "ConfigError", "analyse", "build_model", "compose", "load_pretrained", "load_runs", "load_study", "parse"]

if TYPE_CHECKING:
    from ablate.composition import compose
    from ablate.config import Config, build_model, parse
    from ablate.errors import ConfigError
    from ablate.pretrained import load_pretrained
    from ablate.report.analysis import analyse
    from ablate.report.load import load_study
    from ablate.runs import load_runs

_HOME = {
    "Config": "ablate.config",
    "ConfigError": "ablate.errors",
    "analyse": "ablate.report.analysis",
    "build_model": "ablate.config",
    "compose": "ablate.composition",
    "load_pretrained": "ablate.pretrained",
    "load_runs": "ablate.runs",
    "load_study": "ablate.report.load",
    "parse": "ablate.config",
}


def __getattr__(name: str) -> Any:
    """Imported when first used: the command line must not pay for what it does not need."""
    if name not in _HOME:
        raise AttributeError(f"module 'ablate' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOME[name]), name)
