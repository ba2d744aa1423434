"""The schema, and parse(): the one door from YAML to typed values. What comes out is checked whole and is no DictConfig."""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

import torch
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, Field, TypeAdapter, ValidationError, create_model

from ablate.data import DATA, TOKENIZER, Task, check_pair, vocab_size
from ablate.errors import ConfigError, Problem, asked_for, did_you_mean
from ablate.matching import MATCH
from ablate.model.attention import ATTENTION
from ablate.model.dropout import DROPOUT
from ablate.model.embedding import EMBEDDING
from ablate.model.ffn import FFN
from ablate.model.head import HEAD
from ablate.model.init import INIT, initialise
from ablate.model.layers import LAYERED, Rule, chosen_layers, merged, overrides
from ablate.model.norm import NORM
from ablate.model.placement import PLACEMENT
from ablate.model.position import POSITION
from ablate.model.residual import RESIDUAL
from ablate.model.transformer import Transformer
from ablate.registry import Count, Limit, LimitOrNone, Options, Registry, Section, Share
from ablate.trackers import TRACKER
from ablate.train.loss import LOSS
from ablate.train.optim import OPTIM
from ablate.train.schedule import SCHEDULE

ARCHITECTURE: dict[str, Registry[Any]] = {
    "norm": NORM,
    "placement": PLACEMENT,
    "residual": RESIDUAL,
    "embedding": EMBEDDING,
    "position": POSITION,
    "attention": ATTENTION,
    "ffn": FFN,
    "head": HEAD,
    "loss": LOSS,
    "init": INIT,
    "dropout": DROPOUT,
}
"""The axes that a comparison with the baseline is about."""

AXES: dict[str, Registry[Any]] = {
    **ARCHITECTURE,
    "data": DATA,
    "tokenizer": TOKENIZER,
    "optim": OPTIM,
    "schedule": SCHEDULE,
    "tracker": TRACKER,
    "match": MATCH,
}

OVERLAYS = ("stability", "scale")
"""Groups that set keys of others and leave none of their own. `arch` is one that leaves its name."""

Seed = Annotated[int, Field(ge=0, lt=2**63)]


class LayerOptions(NamedTuple):
    """The choices of one layer."""

    norm: Options
    placement: Options
    residual: Options
    position: Options
    attention: Options
    ffn: Options


class ModelConfig(Section):
    width: Count
    depth: Count
    heads: Count
    context: Count  # tokens


class TrainConfig(Section):
    tokens: Count
    batch_size: Count  # sequences in one step
    micro_batch_size: Count
    grad_clip: Limit
    collapse_after: Share


class EvalConfig(Section):
    num_points: Count
    bytes: Count
    segment_bytes: Annotated[int, Field(ge=16)]
    extend: Literal["none", "ntk", "yarn"]


class ProbesConfig(Section):
    every_steps: LimitOrNone


class CheckpointConfig(Section):
    every_seconds: Limit
    keep_final: bool


class Config(Section):
    """One run, typed. `parse()` makes a subclass of it whose axes hold the registered variants."""

    not_identity: ClassVar[frozenset[str]] = frozenset(
        {
            "arch",
            "imports",
            "seed",
            "results_dir",
            "cache_dir",
            "threads",
            "rerun",
            "progress",
            "checkpoint",
            "tracker",
            "match",
            "probes",
            "parallel",
        }
    )
    """Keys that move no number of a run (`seed` only fills init_seed and data_seed, `arch` names what it chose, as `match` does)."""

    arch: str
    norm: Options
    placement: Options
    residual: Options
    embedding: Options
    position: Options
    attention: Options
    ffn: Options
    head: Options
    loss: Options
    init: Options
    dropout: Options
    layers: dict[str, Rule]
    data: Options
    tokenizer: Options
    optim: Options
    schedule: Options
    tracker: Options
    match: Options
    model: ModelConfig
    train: TrainConfig
    eval: EvalConfig
    probes: ProbesConfig
    seed: Seed
    init_seed: Seed
    data_seed: Seed
    dtype: Literal["float32", "bfloat16"]
    device: Literal["auto", "cpu", "cuda"]
    compile: Literal["auto", True, False]
    parallel: Literal["ddp", "fsdp"]
    imports: list[str]
    results_dir: str
    cache_dir: str | None
    threads: Count | None
    rerun: bool
    progress: bool
    checkpoint: CheckpointConfig

    @property
    def steps(self) -> int:
        """Optimiser steps: the token budget, rounded up to whole batches."""
        return math.ceil(self.train.tokens / self.batch_tokens)

    @property
    def batch_tokens(self) -> int:
        return self.train.batch_size * self.model.context

    @property
    def num_future(self) -> int:
        """Tokens beyond the next one that the loss wants predicted."""
        return LOSS.build(self.loss).num_future

    def layer_changes(self) -> list[dict[str, dict[str, Any]]]:
        """For each layer, by group, the values that rules change; groups that stay as they are do not appear."""
        return overrides(self.layers, self.model.depth)

    def layer_options(self) -> list[LayerOptions]:
        """The choices of every layer, rules applied; raises ConfigError for a rule that is wrong or changes nothing."""
        base = LayerOptions(*(getattr(self, group) for group in LAYERED))
        return [base._replace(**_changed_options(self, layer, change)) for layer, change in enumerate(self.layer_changes())]


def schema() -> type[Config]:
    """The config class over all variants registered by now."""
    return _schema(tuple((axis, *registry.words()) for axis, registry in AXES.items()))


@cache
def _schema(words: tuple[tuple[str, ...], ...]) -> type[Config]:
    fields: dict[str, Any] = {axis: (AXES[axis].choice(), ...) for axis, *_ in words}
    return create_model("Config", __base__=Config, **fields)


def _changed_options(cfg: Config, layer: int, change: Mapping[str, Mapping[str, Any]]) -> dict[str, Options]:
    """The options of the groups that rules change in a layer."""
    result: dict[str, Options] = {}
    for group, values in change.items():
        options = getattr(cfg, group)
        after = merged(options.model_dump(), values)
        try:
            result[group] = _adapter(group, tuple(ARCHITECTURE[group].words())).validate_python(after)
        except ValidationError as error:
            rule = next(n for n, r in cfg.layers.items() if group in r.set and layer in chosen_layers(n, r.where, cfg.model.depth))
            found = [_problem({**detail, "loc": (group, *detail["loc"])}, {group: after}) for detail in error.errors()]
            hint = f" (~layers.{rule}.set.{group} leaves it out)"
            raise ConfigError([Problem(f"layers.{rule}.set.{problem.key}", problem.message + hint) for problem in found]) from None
    return result


@cache
def _adapter(group: str, words: tuple[str, ...]) -> TypeAdapter[Any]:
    return TypeAdapter(ARCHITECTURE[group].choice())


def parse(raw: DictConfig | Mapping[str, Any]) -> Config:
    """Checks everything and gives typed values; raises one ConfigError with every problem that was found."""
    values = container(raw)
    import_all(values.get("imports"))
    problems = [Problem(key, f"needs a value: {key}=...") for key in _missing(values)]
    try:
        cfg = schema().model_validate(values)
    except ValidationError as error:
        missing = {problem.key for problem in problems}
        found = [_problem(detail, values) for detail in error.errors()]
        raise ConfigError(problems + _one_a_key(problem for problem in found if problem.key not in missing)) from None
    if problems:
        raise ConfigError(problems)
    _check_together(cfg)
    return cfg


def import_all(modules: Any) -> None:
    """Imports the modules of `imports`, in which a person registers variants of their own; the working directory is searched too."""
    for module in modules if isinstance(modules, list) else []:
        if os.getcwd() not in sys.path and "" not in sys.path:
            sys.path.append(os.getcwd())
        try:
            importlib.import_module(str(module))
        except Exception as error:  # whatever a person's own module raises
            raise ConfigError.at("imports", f"{module!r} cannot be imported: {type(error).__name__}: {error}") from error


def _one_a_key(problems: Iterator[Problem]) -> list[Problem]:
    """A value that may be of several types is wrong once for each: that is one problem."""
    messages: dict[str, list[str]] = {}
    for problem in problems:
        messages.setdefault(problem.key, []).append(problem.message)
    return [
        Problem(key, " or ".join([*(m.rpartition(", got ")[0] or m for m in several[:-1]), several[-1]]))
        for key, several in messages.items()
    ]


def container(raw: DictConfig | Mapping[str, Any]) -> dict[str, Any]:
    """Plain values, interpolations resolved."""
    if not isinstance(raw, DictConfig):
        return dict(raw)
    try:
        values = OmegaConf.to_container(raw, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError.at(str(getattr(error, "full_key", "") or "config"), str(error).splitlines()[0]) from None
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def _missing(values: Any, path: str = "") -> Iterator[str]:
    """Keys that a YAML leaves to the person: `path: ???`."""
    if isinstance(values, dict):
        for key, value in values.items():
            yield from _missing(value, f"{path}.{key}" if path else str(key))
    elif values == "???":
        yield path


def _problem(detail: Any, values: dict[str, Any]) -> Problem:
    """One pydantic error in our words: the key as it is typed, what came, what is allowed, the nearest right spelling."""
    path = _path(detail["loc"], values)
    key, kind, got = ".".join(map(str, path)), detail["type"], detail.get("input")
    context = detail.get("ctx", {})
    if kind == "extra_forbidden":
        known = _known_keys(path[:-1], values)
        return Problem(key, f"unknown key (got {_show(got)}); known here: {', '.join(known)}{did_you_mean(str(path[-1]), known)}")
    if kind == "missing":
        return Problem(key, "missing: it needs a value")
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return Problem(*_wrong_variant(path, values, got))
    if kind == "literal_error":
        if path[-1] == "kind":
            return Problem(*_wrong_variant(path[:-1], values, {"kind": got}))
        return Problem(key, f"must be {context['expected']}, got {_show(got)}{did_you_mean(str(got), _quoted(context['expected']))}")
    return Problem(key, f"{asked_for(detail)}, got {_show(got)}")


def _wrong_variant(path: list[int | str], values: Any, got: Any) -> tuple[str, str]:
    axis, registry = ".".join(map(str, path)), _registry_at(path, values)
    words = registry.words() if registry else []
    if isinstance(got, dict) and got.get("kind") is not None:
        word = str(got["kind"])
        return f"{axis}.kind", f"no such variant: {word!r}; allowed: {', '.join(words)}{did_you_mean(word, words)}"
    return axis, f"must be one of the variants {', '.join(words)}, got {_show(got)}"


def _registry_at(path: list[int | str], values: Any) -> Registry[Any] | None:
    """The axis, of the config or nested in another, whose variant stands at a path."""
    if len(path) == 1:
        return AXES.get(str(path[0]))
    model = _model_at(path[:-1], values)
    return _nested(model, str(path[-1]))


def _model_at(path: list[int | str], values: Any) -> type[BaseModel] | None:
    """The model of the mapping that stands at a path."""
    model: type[BaseModel] | None = schema()
    for depth, part in enumerate(path):
        values = values.get(part) if isinstance(values, dict) else None
        registry = AXES.get(str(part)) if depth == 0 else _nested(model, str(part))
        if registry is not None:
            kind = values.get("kind") if isinstance(values, dict) else None
            model = registry.options(str(kind)) if kind in registry.words() else None
        elif model is not None and part in model.model_fields:
            hint = model.model_fields[str(part)].annotation
            model = next((h for h in (hint, *get_args(hint)) if isinstance(h, type) and issubclass(h, BaseModel)), None)
        else:
            return None
    return model


def _nested(model: type[BaseModel] | None, option: str) -> Registry[Any] | None:
    return model.nested.get(option) if model is not None and issubclass(model, Options) else None


def _path(loc: tuple[int | str, ...], values: Any) -> list[int | str]:
    """The key of an error without the tags that pydantic adds for unions."""
    path: list[int | str] = []
    for index, part in enumerate(loc):
        if not isinstance(values, (dict, list)) and path:
            break
        tag = isinstance(values, dict) and part == values.get("kind") and part not in values and index < len(loc) - 1
        if tag:
            continue
        path.append(part)
        values = values.get(part) if isinstance(values, dict) else values[part] if isinstance(part, int) and part < len(values) else None
    return path


def _known_keys(path: list[int | str], values: Any) -> list[str]:
    model = _model_at(path, values)
    return [*(model.model_fields if model else ()), *(() if path else OVERLAYS)]


def _quoted(expected: str) -> list[str]:
    return [word for word in expected.split("'") if word.isidentifier() and word != "or"]


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _check_together(cfg: Config) -> None:
    """What only shows when parts meet. The model is built on the meta device: shapes are proved, no memory is used."""
    problems: list[Problem] = []

    def check(build: Any) -> None:
        try:
            build()
        except ConfigError as error:
            problems.extend(problem for problem in error.problems if problem not in problems)  # one thing may be built for several checks
        except (TypeError, RuntimeError, MemoryError, OverflowError) as error:
            problems.append(Problem("model", f"cannot be built at this size: {str(error).partition(chr(10))[0]}"))

    if cfg.train.batch_size % cfg.train.micro_batch_size:
        message = f"must divide train.batch_size={cfg.train.batch_size}, got {cfg.train.micro_batch_size}"
        problems.append(Problem("train.micro_batch_size", message))
    check(lambda: _check_layers(cfg))
    if cfg.norm.kind == "none" and cfg.placement.kind != "pre":
        problems.append(
            Problem("placement", f"{cfg.placement.kind} has no effect with norm=none, which leaves nothing to place: leave it at pre")
        )
    kv_heads = getattr(cfg.attention, "kv_heads", None)
    if kv_heads in (1, cfg.model.heads):
        same = "mqa" if kv_heads == 1 else "mha"
        problems.append(Problem("attention.kv_heads", f"{kv_heads} of model.heads={cfg.model.heads} is attention={same}: choose that"))
    if getattr(cfg.loss, "num_future", 0) >= cfg.model.context:
        message = f"must be below model.context={cfg.model.context}, the length of a sequence"
        problems.append(Problem("loss.num_future", message))
    check(lambda: check_pair(cfg.data, cfg.tokenizer))
    check(lambda: _check_task(cfg))
    check(lambda: _check_extend(cfg))
    check(lambda: INIT.build(cfg.init).check(cfg.model.width))
    check(lambda: OPTIM.build(cfg.optim))
    check(lambda: SCHEDULE.build(cfg.schedule))
    check(lambda: meta_model(cfg))
    if problems:
        raise ConfigError(problems)


def _check_task(cfg: Config) -> None:
    """A synthetic task has examples of this length, and its answers are those of the next token."""
    source = DATA.build(cfg.data)
    if isinstance(source, Task):
        source.check(cfg.model.context)
        if cfg.num_future:
            raise ConfigError.at("loss", f"{cfg.loss.kind} asks for tokens further on, and data={cfg.data.kind} has one answer a question")


def _check_extend(cfg: Config) -> None:
    """What is to be stretched after training is there, and its losses are measured."""
    if cfg.eval.extend == "none":
        return
    check_stretch(cfg.position, cfg.eval.extend)
    if isinstance(DATA.build(cfg.data), Task):
        raise ConfigError.at("eval.extend", f"has no effect with data={cfg.data.kind}: an example of a task is as long as the context")


def check_stretch(position: Options, word: str) -> None:
    """ConfigError when the position has no rotary embedding that `word` (ntk, yarn) could stretch for longer contexts."""
    if position.kind != "rope":
        raise ConfigError.at("eval.extend", f"{word} stretches position=rope, and this is {position.kind}")
    scaling = position.model_dump()["scaling"]["kind"]
    if scaling != "none":
        raise ConfigError.at("eval.extend", f"{word} would take the place of position.scaling={scaling}")


def _check_layers(cfg: Config) -> None:
    """Each rule for layers changes something."""
    for name, rule in cfg.layers.items():
        for group, values in rule.set.items():
            if group in LAYERED and _is_what_all_have(cfg, group, values):
                raise ConfigError.at(f"layers.{name}.set.{group}", f"has no effect: {values} is what all layers have")
        if not rule.set:
            raise ConfigError.at(f"layers.{name}.set", "is empty: the rule has no effect")


def _is_what_all_have(cfg: Config, group: str, values: Mapping[str, Any]) -> bool:
    """Compared typed: 1/2 is 0.5, and 10000 is 1e4."""
    base = getattr(cfg, group).model_dump()
    try:
        after = _adapter(group, tuple(ARCHITECTURE[group].words())).validate_python(merged(base, values))
    except ValidationError:  # said with its whole key by layer_options
        return False
    return bool(after.model_dump() == base)


def same_architecture(cfg: Config, other: Config) -> bool:
    """Whether two configs choose alike on every axis of architecture."""
    return all(getattr(cfg, axis) == getattr(other, axis) for axis in (*ARCHITECTURE, "layers"))


def meta_model(cfg: Config, max_tokens: int | None = None) -> Transformer:
    """The model of a config without its numbers."""
    with torch.device("meta"):
        return Transformer(cfg, vocab_size(cfg.tokenizer), max_tokens)


def build_model(cfg: Config, max_tokens: int | None = None) -> Transformer:
    """The initialised model of a config, on the CPU; with tables for sequences of `max_tokens`, or for the context of training."""
    model = Transformer(cfg, vocab_size(cfg.tokenizer), max_tokens)
    initialise(model, INIT.build(cfg.init), cfg.init_seed, depth=cfg.model.depth, width=cfg.model.width)
    return model
