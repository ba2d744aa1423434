"""Published checkpoints in our model: a local folder of transformers (config.json, *.safetensors) becomes a config and a model.

    cfg, model = ablate.load_pretrained("Qwen3-0.6B")      # the config is `arch=qwen3` and the checkpoint's numbers
    logits_BTV = model(tokens_BT)

Nothing is fetched, and transformers is not needed. Weights are held in float32. The vocabulary stands in the config as that of a
`tokenizer=bpe` of this size; token ids are those of the checkpoint's own tokenizer. A family is a table in tables.py's words.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ablate.composition import compose
from ablate.config import Config
from ablate.data import vocab_size
from ablate.errors import ConfigError, Problem, did_you_mean
from ablate.model.transformer import Transformer
from ablate.pretrained import dense, gemma, gpt, layernorm, moe, parallel, rmsnorm
from ablate.pretrained.tables import Family, convert, sources

MODULES = (gpt, parallel, layernorm, rmsnorm, dense, gemma, moe)
FAMILIES: dict[str, Family] = {family.model_type: family for module in MODULES for family in module.FAMILIES}
"""The families that can be loaded, by the model_type of config.json."""


def load_pretrained(path: str | Path) -> tuple[Config, Transformer]:
    """The config and the model of a checkpoint folder. What is wrong with it is one ConfigError with every problem found."""
    folder = Path(path).expanduser()
    config = read_config(folder)
    cfg = config_of(config)  # what cannot be held is said before gigabytes are read
    return cfg, model_of(cfg, config, read_tensors(folder))


def config_of(config: Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    """Our config of a config.json; `overrides` come after the checkpoint's own."""
    family = family_of(config)
    old, new = config.get("rope_scaling"), config.get("rope_parameters")
    if old and new and old != new:
        raise ConfigError.at("config.json: rope_scaling", f"{old} says otherwise than rope_parameters, {new}: leave one of them")
    try:
        theirs = family.all_overrides(config)
    except (TypeError, ValueError, KeyError, ArithmeticError) as error:
        message = f"holds a value that cannot be used: {type(error).__name__}: {error}"
        raise ConfigError.at("config.json", message) from None
    return compose([*theirs, "tracker=none", *overrides])


def model_of(cfg: Config, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Transformer:
    """The model of our config with a checkpoint's tensors."""
    model = Transformer(cfg, vocab_size(cfg.tokenizer))
    fill(model, family_of(config), config, tensors)
    return model


def family_of(config: Mapping[str, Any]) -> Family:
    """The family that config.json names."""
    word = config.get("model_type")
    if not isinstance(word, str) or word not in FAMILIES:
        known = sorted(FAMILIES)
        message = f"no family that can be loaded: {word!r}; can be: {', '.join(known)}{did_you_mean(str(word), known)}"
        raise ConfigError.at("config.json: model_type", message)
    return FAMILIES[word]


def fill(model: Transformer, family: Family, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Puts a checkpoint's tensors into the model: each of theirs has a place, each of ours a value."""
    ours = convert(family, config, tensors)
    expected = model.state_dict()
    missing, beyond = [name for name in expected if name not in ours], [name for name in ours if name not in expected]
    problems = [Problem(name, f"has no value in the checkpoint; it comes from {sources(family, config, name)}") for name in missing]
    problems += [Problem(name, "is in the checkpoint, and a model of its config.json has no such tensor") for name in beyond]
    problems += [Problem(name, "is not finite in the checkpoint") for name in ours if not ours[name].isfinite().all()]
    whole = [name for name in ours if not ours[name].is_floating_point()]
    problems += [Problem(name, f"is of {ours[name].dtype} in the checkpoint, and must be a floating-point number") for name in whole]
    for name in ours.keys() & expected.keys():
        if ours[name].shape != expected[name].shape:
            shapes = f"{tuple(ours[name].shape)} in the checkpoint, {tuple(expected[name].shape)} by its config.json"
            problems.append(Problem(name, f"has another shape: {shapes}"))
    if problems:
        raise ConfigError(sorted(problems, key=lambda problem: problem.key))
    model.load_state_dict(ours)


def read_config(folder: Path) -> dict[str, Any]:
    """config.json as it stands."""
    path = folder / "config.json"
    if not folder.is_dir():
        raise ConfigError.at("path", f"no such folder: {folder} (a checkpoint is a local folder; nothing is downloaded)")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError.at(str(path), f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError.at(str(path), f"is no JSON: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError.at(str(path), "must be an object")
    if config.get("quantization_config"):
        raise ConfigError.at(str(path), "quantization_config: quantised weights cannot be loaded; use the checkpoint of full precision")
    return config


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor of every shard, in float32."""
    tensors: dict[str, Tensor] = {}
    for path in shards(folder):
        for name, tensor in tensors_of(path):
            if name in tensors:
                raise ConfigError.at(str(path), f"{name} stands in another shard too")
            tensors[name] = tensor
    return tensors


def shards(folder: Path) -> list[Path]:
    """The files that the index names, or the single file."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if single.exists():
        return [single]
    if index.exists():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ConfigError.at(str(index), f"is no index of shards: {error!r}") from None
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise ConfigError.at(str(index), f"names shards that are not there: {', '.join(missing)}")
        return [folder / name for name in names]
    found = sorted(path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth", ".safetensors", ".gguf"))
    message = f"has neither model.safetensors nor model.safetensors.index.json (found: {', '.join(found) or 'no weights'})"
    raise ConfigError.at(str(folder), message)


def tensors_of(path: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of one file."""
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (it is no mapping)
                tensor = file.get_tensor(name)
                yield name, tensor.to(torch.float32) if tensor.is_floating_point() else tensor
    except (SafetensorError, OSError) as error:
        raise ConfigError.at(str(path), f"cannot be read: {error}") from None
