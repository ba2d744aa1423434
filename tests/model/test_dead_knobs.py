"""Every option of every architecture variant does something: another value of it changes parameters, first numbers or loss."""

from __future__ import annotations

from typing import Any

import pytest

from ablate.config import ARCHITECTURE, Config
from ablate.errors import ConfigError
from ablate.registry import Options
from tests.model.conftest import changed, differ, small, yaml_of

OPTIONS = [
    (axis, word, option)
    for axis, registry in ARCHITECTURE.items()
    for word in registry.words()
    for option in registry.options(word).model_fields
    if option != "kind"
]
QK_NORM_OPTIONS = [(word, option) for axis, word, option in OPTIONS if axis == "norm"]


def other_values(value: Any) -> list[Any]:
    """Values to try instead of one, the first that is valid counts. An option for which none is needs a line here."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, Options):
        return [yaml_of("norm", "rmsnorm")]
    if isinstance(value, int):
        return [3 * value, 2 * value, 1]
    if isinstance(value, float):
        return [0.5, 2 * value]
    return [16]  # a width that is left open


def with_another_value(cfg: Config, axis: str, option: str) -> Config:
    section: Any = cfg
    for part in axis.split("."):
        section = getattr(section, part)
    value = getattr(section, option)
    for other in other_values(value):
        if other != value:
            try:
                return changed(cfg, f"{axis}.{option}", other)
            except ConfigError:
                continue
    raise AssertionError(f"no second valid value is known for {axis}.{option}={value!r}")


@pytest.mark.parametrize(("axis", "word", "option"), OPTIONS)
def test_an_option_changes_parameters_or_loss(axis: str, word: str, option: str) -> None:
    cfg = small(f"{axis}={word}", "model.heads=8")  # room for key heads between one and all
    assert differ(cfg, with_another_value(cfg, axis, option))


@pytest.mark.parametrize(("word", "option"), QK_NORM_OPTIONS)
def test_an_option_of_the_norm_of_queries_and_keys_changes_parameters_or_loss(word: str, option: str) -> None:
    cfg = changed(small(), "attention.qk_norm", yaml_of("norm", word))
    assert differ(cfg, with_another_value(cfg, "attention.qk_norm", option))
