"""Checkpoint folders of models with experts, as they are published: each expert by itself."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ablate.errors import ConfigError
from ablate.pretrained import config_of, load_pretrained
from tests.model.parity import Case, their_model, tokens_of
from tests.model.parity_moe import CASES as ALL_CASES

CASES: dict[str, Case] = {case.name: case for case in ALL_CASES}


def save(name: str, folder: Path) -> Any:
    """A row's tiny model, written by transformers."""
    model = their_model(CASES[name])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder)
    return model


def change_tensors(folder: Path, changes: dict[str, Tensor], without: str | None = None) -> None:
    path = folder / "model.safetensors"
    tensors = {**load_file(path), **changes}
    save_file({name: tensor for name, tensor in tensors.items() if name != without}, path)


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def problems(folder: Path) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        load_pretrained(folder)
    return {problem.key: problem.message for problem in caught.value.problems}


QUICK = ("mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3")
"""One of each way to store experts."""
FOLDERS = [pytest.param(case.name, marks=() if case.name in QUICK else (pytest.mark.slow,)) for case in ALL_CASES if case.quick]


@pytest.mark.parametrize("name", FOLDERS)
@torch.no_grad()
def test_a_saved_folder_gives_the_model(name: str, tmp_path: Path) -> None:
    theirs = save(name, tmp_path)
    _, ours = load_pretrained(tmp_path)
    expected = theirs(tokens_of(0), use_cache=False).logits
    assert torch.allclose(ours.eval()(tokens_of(0)), expected, rtol=0, atol=1e-5 * max(1.0, expected.abs().max().item()))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mixtral", "model.layers.0.block_sparse_moe.experts.7.w3.weight"),
        ("qwen3_moe", "model.layers.0.mlp.experts.7.up_proj.weight"),
        ("deepseek_v3", "model.layers.1.mlp.experts.7.up_proj.weight"),
    ],
)
def test_the_folders_of_these_tests_hold_experts_by_themselves(name: str, expected: str, tmp_path: Path) -> None:
    save(name, tmp_path)
    assert expected in load_file(tmp_path / "model.safetensors")


def test_the_layer_of_a_second_prediction_is_left_out(tmp_path: Path) -> None:
    save("deepseek_v3", tmp_path)
    before = load_pretrained(tmp_path)[1].state_dict()
    change_tensors(
        tmp_path, {"model.layers.4.eh_proj.weight": torch.ones(64, 128), "model.layers.4.self_attn.o_proj.weight": torch.ones(2, 2)}
    )
    after = load_pretrained(tmp_path)[1].state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    save("qwen3_moe", tmp_path)
    change_tensors(tmp_path, {}, without="model.layers.2.mlp.experts.3.up_proj.weight")
    assert problems(tmp_path) == {"blocks.2.ffn.sublayer.experts.up.weight": "slice 3 is missing"}


def test_experts_beyond_those_of_the_config_are_named(tmp_path: Path) -> None:
    save("qwen3_moe", tmp_path)
    change_config(tmp_path, num_experts=7, num_local_experts=7)
    found = problems(tmp_path)
    assert (
        found["blocks.0.ffn.sublayer.experts.up.weight"]
        == "has another shape: (8, 32, 64) in the checkpoint, (7, 32, 64) by its config.json"
    )
    assert "blocks.0.ffn.sublayer.router.weight" in found


@pytest.mark.parametrize(
    ("name", "changes", "key"),
    [
        ("qwen3_next(full attention)", {"layer_types": ["linear_attention"] * 3 + ["full_attention"]}, "layer_types"),
        ("qwen2_moe", {"use_sliding_window": True}, "use_sliding_window"),
        ("mixtral", {"router_jitter_noise": 0.1}, "router_jitter_noise"),
        ("mixtral", {"hidden_act": "gelu"}, "hidden_act"),
        ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method"),
        ("deepseek_v3", {"attention_bias": True}, "attention_bias"),
        ("deepseek_v3", {"num_key_value_heads": 2}, "num_key_value_heads"),
        ("gpt_oss", {"attention_bias": False}, "attention_bias"),
        ("llama4", {"layer_types": ["full_attention"] * 4}, "layer_types"),
    ],
)
def test_what_our_model_cannot_hold_is_refused_by_its_key(name: str, changes: dict[str, Any], key: str) -> None:
    config = {**their_model(CASES[name]).config.to_dict(), **changes}
    with pytest.raises(ConfigError, match=rf"config.json: {re.escape(key)} "):
        config_of(config)


@pytest.mark.parametrize(
    ("changes", "groups"),
    [
        ({}, {"num": 4, "kept": 2, "score": "top2"}),
        ({"topk_group": 4}, None),
        ({"n_group": 1, "topk_group": 1}, None),
    ],
)
def test_groups_that_limit_nothing_are_no_groups(changes: dict[str, int], groups: dict[str, Any] | None) -> None:
    config = {**their_model(CASES["deepseek_v3"]).config.to_dict(), **changes}
    found = config_of(config).ffn.model_dump()["groups"]
    assert found == groups
