"""The verb `extrapolate`: how finished runs do beyond the context they were trained on.

    ablate extrapolate RUN [RUN ...] [--extend yarn] [--figure FILE.png]

A RUN is a run directory, or a results folder with all its finished runs. For each the same targets are predicted from windows of 1, 2 and 4
times the context of training, anew, from its model.safetensors (ablate/train/curves.py says how). Losses of runs are of the same targets
only where data, tokenizer, evaluation set and context are the same.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from rich.table import Table
from safetensors import SafetensorError
from safetensors.torch import load_file

from ablate.composition import compose
from ablate.config import Config, parse
from ablate.errors import ConfigError, Problem
from ablate.files import read_object, read_yaml
from ablate.runs import SCHEMA
from ablate.train.curves import MULTIPLES, length_extrapolation
from ablate.train.launch import data_of, plain_console
from ablate.train.loop import find_device

EXTENSIONS = ("none", "ntk", "yarn")
MARKERS = "osD^vPX*"


class Extrapolation(NamedTuple):
    """One run: `losses` is what `length_extrapolation` gives; `comparable` is the same for runs with the same targets."""

    name: str
    context: int
    comparable: tuple[Any, ...]
    losses: dict[str, Any]

    def lines(self) -> Iterator[tuple[str, list[float | None]]]:
        """Losses at each multiple, as trained and, where that is defined, as extended, which at 1 is the same."""
        yield "", [self.losses[str(multiple)] for multiple in MULTIPLES]
        for word in EXTENSIONS[1:]:
            if any(loss is not None for loss in self.losses.get(word, {}).values()):
                yield word, [self.losses["1"], *(self.losses[word][str(multiple)] for multiple in MULTIPLES[1:])]


def extrapolate(argv: list[str]) -> int:
    """Prints the table of some runs, and draws it with --figure."""
    parser = argparse.ArgumentParser(
        prog="ablate extrapolate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--extend", metavar="WORD", help="none, ntk or yarn; default: eval.extend of each run")
    parser.add_argument("--figure", metavar="FILE", type=Path, help="a file to draw to: .png, .svg, .pdf")
    flags, paths = parser.parse_known_args(argv)
    unknown = [word for word in paths if word.startswith("-")]
    if unknown:
        raise ConfigError.at(unknown[0], "no such flag; allowed: --extend, --figure, --help")
    if flags.extend not in (None, *EXTENSIONS):
        raise ConfigError.at("--extend", f"no such word: {flags.extend!r}; allowed: {', '.join(EXTENSIONS)}")
    if flags.figure is not None and flags.figure.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError.at("--figure", f"must end in .png, .svg or .pdf, got {flags.figure}")
    console = plain_console()
    found = [measure(directory, flags.extend) for directory in run_directories(paths)]
    console.print(table(found))
    for run in found:
        for what, reason in run.losses["reasons"].items():
            console.print(f"{run.name}: {f'{what}x' if what.isdigit() else what}: {reason}")
    if len({run.comparable for run in found}) > 1:
        console.print("warning: these runs differ in data, tokenizer, evaluation set or context: their losses are not of the same targets")
    if flags.figure is not None:
        draw(found, flags.figure)
        console.print(f"figure {flags.figure}")
    return 0


def run_directories(paths: Sequence[str]) -> list[Path]:
    """The finished runs under some paths; ConfigError for a path that has none."""
    if not paths:
        raise ConfigError.at("extrapolate", "needs a run directory or a results folder: python -m ablate extrapolate results")
    found, problems = [], []
    for path in (Path(word).expanduser() for word in paths):
        folders = [path] if (path / "config.yaml").is_file() else sorted(path.glob("runs/*/"))
        done = [folder for folder in folders if (folder / "model.safetensors").is_file()]
        found += done
        if not done:
            problems.append(Problem(str(path), "has no finished run with its weights (model.safetensors: checkpoint.keep_final=true)"))
    if problems:
        raise ConfigError(problems)
    return list(dict.fromkeys(found))


def measure(directory: Path, extend: str | None) -> Extrapolation:
    """Losses of a run at each multiple; ConfigError if its config, data or weights are no longer what they were."""
    cfg = config_of(directory)
    try:
        weights = load_file(directory / "model.safetensors")
    except (OSError, SafetensorError) as error:
        raise ConfigError.at(str(directory / "model.safetensors"), f"cannot be read: {error}") from None
    data = data_of(cfg)
    if data.content_hash != read_object(directory / "identity.json").get("data"):
        raise ConfigError.at(directory.name, f"data={cfg.data.kind} is not what it was when this run was trained")
    device = find_device(cfg.model_copy(update={"device": "auto"}))
    losses = length_extrapolation(cfg, weights, data.eval_set, device, extend or cfg.eval.extend)
    return Extrapolation(label(directory), cfg.model.context, (data.content_hash, cfg.model.context), losses)


def config_of(directory: Path) -> Config:
    """The config of a run. Keys that are younger than the run move no number of it, as its schema says, and are as shipped."""
    if read_object(directory / "identity.json").get("schema") != SCHEMA:
        raise ConfigError.at(directory.name, "was trained by another version, which trained its config differently: train it again")
    own, values = read_yaml(directory / "config.yaml") or {}, compose().model_dump()
    for key, value in own.items():
        section = isinstance(value, dict) and "kind" not in value and isinstance(values.get(key), dict)
        values[key] = {**values[key], **value} if section and key != "layers" else value
    try:
        return parse(values)
    except ConfigError as error:
        raise ConfigError(Problem(f"{directory.name}: {problem.key}", problem.message) for problem in error.problems) from None


def label(directory: Path) -> str:
    """The name of a run without its hash."""
    return re.sub(r"-[0-9a-f]{12}$", "", directory.resolve().name)


def table(runs: Sequence[Extrapolation]) -> Table:
    result = Table(
        title="loss of the same targets, nats per token, by how many times the context of training the model sees",
        caption="– : none, for the reason below" if any(run.losses["reasons"] for run in runs) else None,
        title_justify="left",
        caption_justify="left",
    )
    result.add_column("run", overflow="fold")
    result.add_column("extended")
    for multiple in MULTIPLES:
        result.add_column(f"{multiple}x", justify="right")
    for name in ("context", "targets"):
        result.add_column(name, justify="right")
    for run in runs:
        for word, losses in run.lines():
            cells = ["–" if loss is None else f"{loss:.4f}" for loss in losses]
            result.add_row(run.name if not word else "", word, *cells, str(run.context), str(run.losses["targets"]))
    return result


def draw(runs: Sequence[Extrapolation], path: Path) -> Figure:
    """One line a run, dashed where the rotary embedding was extended; what is not defined is not drawn."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for index, run in enumerate(runs):
        look: dict[str, Any] = {"color": f"C{index}", "marker": MARKERS[index % len(MARKERS)]}
        for word, losses in run.lines():
            points = [(multiple, loss) for multiple, loss in zip(MULTIPLES, losses, strict=True) if loss is not None]
            if points:
                name = f"{run.name} + {word}" if word else run.name
                axes.plot(*zip(*points, strict=True), linestyle="--" if word else "-", label=name, **look)
    axes.set_xscale("log", base=2)
    axes.set_xticks(MULTIPLES, [f"{multiple}×" for multiple in MULTIPLES])
    axes.minorticks_off()
    contexts = sorted({run.context for run in runs})
    axes.set_xlabel(f"context that the model sees, times the context of training ({', '.join(map(str, contexts))} tokens)")
    targets = sorted({run.losses["targets"] for run in runs})
    axes.set_ylabel(f"loss of the same {', '.join(map(str, targets))} targets, nats per token")
    figure.legend(loc="outside upper center", ncols=2, fontsize="small", frameon=False)  # where it covers no point
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return figure
