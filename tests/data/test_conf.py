from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ablate.data import DATA, TOKENIZER
from ablate.registry import Registry

CONF = Path(__file__).parents[2] / "conf"
AXES: dict[str, Registry[Any]] = {"data": DATA, "tokenizer": TOKENIZER}
FILLED = {"path": "some.txt", "name": "some/set", "vocab_size": 1000}


@pytest.mark.parametrize(("axis", "word"), [(axis, word) for axis, registry in AXES.items() for word in registry.words()])
def test_the_yaml_of_a_variant_has_its_word_and_a_value_for_each_option(axis: str, word: str) -> None:
    values = yaml.safe_load((CONF / axis / f"{word}.yaml").read_text())
    values.pop("defaults", None)
    filled = {key: FILLED[key] if value == "???" else value for key, value in values.items()}
    options = AXES[axis].options(word)(**filled)
    assert options.kind == word


@pytest.mark.parametrize("path", sorted([*CONF.glob("data/*.yaml"), *CONF.glob("tokenizer/*.yaml")]), ids=lambda path: path.stem)
def test_every_yaml_names_a_variant(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["kind"] in AXES[path.parent.name].words()
