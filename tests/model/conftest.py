"""What the tests of the model share: small configs, models whose every parameter is random, what a model computes."""

from __future__ import annotations

import math
from copy import deepcopy
from functools import cache, reduce
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from ablate.composition import compose
from ablate.config import ARCHITECTURE, AXES, Config, build_model, parse
from ablate.model.transformer import Transformer
from ablate.registry import Options, Registry
from ablate.shipped import conf_dir, shipped
from ablate.train.loss import LOSS

QUIET_COMPILER = ("ignore:The .grad attribute of a Tensor:UserWarning", "ignore:`torch.jit:DeprecationWarning")
"""Warnings of torch about torch, which Python shows only when warnings are errors."""


def yaml_words(group: str) -> list[str]:
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


_shipped = cache(shipped)


def yaml_of(group: str, word: str) -> dict[str, Any]:
    """What a YAML gives its group, nested variants and inherited values too."""
    return deepcopy(_shipped(group, word))


@cache
def _model_of(registry: Registry[Any], word: str) -> type[Options]:
    return registry.options(word)


def options_of(registry: Registry[Any], word: str, **options: Any) -> Options:
    """The options of a variant as its YAML gives them, but for those given."""
    return _model_of(registry, word).model_validate({**yaml_of(registry.axis, word), **options})


@cache
def composed(*overrides: str) -> Config:
    """A small config by Hydra, with what a test chooses. Takes a third of a second."""
    size = ["model.width=32", "model.depth=2", "model.heads=4", "model.context=16"]
    tracker = [] if any(word.startswith("tracker=") for word in overrides) else ["tracker=none"]
    return compose([*size, *tracker, *overrides])


@cache
def small(*choices: str) -> Config:
    """The same at once: `axis=word` puts that YAML in its place, `axis/nested=word` too, as Hydra does (a test compares the two)."""
    at_once = [choice for choice in choices if choice.partition("=")[0].partition("/")[0] in AXES]
    values = composed(*(choice for choice in choices if choice not in at_once)).model_dump()
    for place, _, word in (choice.partition("=") for choice in at_once):
        *path, last = place.split("/")
        reduce(lambda section, part: section[part], path, values)[last] = yaml_of(place, word)
    return parse(values)


def changed(cfg: Config, key: str, value: object) -> Config:
    """The config with another value, checked like any other."""
    values = cfg.model_dump()
    *path, last = key.split(".")
    reduce(lambda section, part: section[part], path, values)[last] = value
    return parse(values)


def nested_groups() -> list[str]:
    """Groups within axes, as attention/qk_norm."""
    return sorted(str(path.relative_to(conf_dir())) for axis in ARCHITECTURE for path in (conf_dir() / axis).iterdir() if path.is_dir())


CHOICES = [f"{group}={word}" for group in [*ARCHITECTURE, *nested_groups()] for word in yaml_words(group)]
"""Every choice on every architecture axis, found in conf/ without being asked."""

PRESETS = [choice for choice in CHOICES if yaml_of(*choice.split("="))["kind"] != choice.partition("=")[2]]
"""Choices that are a registered variant with other options: the parity rows test them too, so here most of their tests are slow."""

STABILITY = [f"stability={word}" for word in yaml_words("stability")]

BASELINE = [
    f"{group}={words[0] if isinstance(words, list) else words}"
    for item in OmegaConf.to_container(OmegaConf.load(conf_dir() / "config.yaml"))["defaults"]
    if isinstance(item, dict)
    for group, words in item.items()
]

DIFFERENT = [choice for choice in [*CHOICES, *STABILITY] if choice not in [*BASELINE, *(f"{group}=none" for group in nested_groups())]]
"""The choices that are not the baseline's own."""


def quick_first(choices: list[str]) -> list[Any]:
    """Parameters for a test: presets are slow."""
    return [pytest.param(choice, marks=pytest.mark.slow) if choice in PRESETS else choice for choice in choices]


def tokens_of(cfg: Config, sequences: int = 2, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (sequences, cfg.model.context), generator=torch.Generator().manual_seed(seed))


def targets_of(cfg: Config, sequences: int = 2) -> Tensor:
    return tokens_of(cfg, sequences, seed=1)


@torch.no_grad()
def randomise(module: nn.Module, seed: int = 0) -> None:
    """Fills every parameter, gains and biases too, as a function of its name: ones, zeros and a std of 0.02 hide errors."""
    for name, parameter in module.named_parameters():
        number = int.from_bytes(f"{seed}/{name}".encode(), "big") % (2**31 - 1)
        noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
        if parameter.ndim > 1:
            parameter.copy_(noise / math.sqrt(parameter.shape[1]) * 1.5)
        else:
            parameter.copy_(noise / 2 + (1 if name.endswith("weight") else 0))


def random_model(cfg: Config, seed: int = 0) -> Transformer:
    """With random parameters, as it is evaluated: nothing is dropped out."""
    model = build_model(cfg)
    randomise(model, seed)
    return model.eval()


def loss_of(cfg: Config, model: Transformer) -> Tensor:
    """What training would minimise on the tokens of `tokens_of`."""
    torch.manual_seed(0)  # of dropout
    total, _ = LOSS.build(cfg.loss)(model.run(tokens_of(cfg)), targets_of(cfg))
    return total


def gradients_of(cfg: Config, model: Transformer) -> dict[str, Tensor | None]:
    """A gradient for each parameter, by name; None where there is none."""
    model.zero_grad(set_to_none=True)
    loss_of(cfg, model).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def max_difference(first: Tensor, second: Tensor) -> float:
    return (first.double() - second.double()).abs().max().item()


def differ(first: Config, second: Config) -> bool:
    """Other parameters, other initial numbers, or another loss from the same numbers."""
    return change_of(first, second) is not None


def change_of(first: Config, second: Config) -> str | None:
    """What differs between the models of two configs, in words; None when nothing does."""
    models = [build_model(cfg) for cfg in (first, second)]
    shapes = [{name: tensor.shape for name, tensor in model.state_dict().items()} for model in models]
    if shapes[0] != shapes[1]:
        sizes = [sum(parameter.numel() for parameter in model.parameters()) for model in models]
        return f"parameters: {sizes[0]:,} to {sizes[1]:,}" if sizes[0] != sizes[1] else "shapes or names of tensors"
    initial = [dict(model.named_parameters()) for model in models]
    moved = max(max_difference(initial[0][name].detach(), initial[1][name].detach()) for name in initial[0])
    if moved > 1e-3:
        return f"first numbers: by up to {moved:.3f}"
    losses = [loss_of(cfg, random_model(cfg).train()).item() for cfg in (first, second)]
    apart = abs(losses[0] - losses[1])
    return f"loss: {losses[0]:.4f} to {losses[1]:.4f}" if apart > 1e-4 else None
