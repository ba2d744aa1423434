"""Checkpoint folders as transformers writes them, and what is wrong with folders, said as one error."""

from __future__ import annotations

import json
import math
import re
import shutil
import warnings
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig

import ablate
from ablate.composition import compose
from ablate.config import Config
from ablate.errors import ConfigError
from ablate.pretrained import FAMILIES, load_pretrained, read_config, read_tensors
from ablate.pretrained.tables import (
    Family,
    HfConfig,
    Operation,
    alternate,
    chain,
    convert,
    each,
    fold,
    halved,
    only_first,
    pair_order,
    per_head,
    reordered,
    rope,
    rope_parameters,
    rows,
    rule,
    scaled,
    shaped,
    skip,
    tied,
    transpose,
    without_first,
)
from tests.model import parity_layernorm
from tests.model.parity import Case, their_model, tokens_of

CASES: dict[str, Case] = {case.name: case for case in parity_layernorm.CASES}


def save(name: str, folder: Path, dtype: torch.dtype = torch.float32, **options: Any) -> nn.Module:
    """A row's tiny model, written by transformers."""
    model: Any = their_model(CASES[name]).to(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder, **options)
    return model


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change_tensors(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    path = folder / "model.safetensors"
    save_file({name: tensor.clone().contiguous() for name, tensor in change(load_file(path)).items()}, path)


def problems(folder: Path) -> dict[str, str]:
    """What load_pretrained says."""
    with pytest.raises(ConfigError) as caught:
        load_pretrained(folder)
    return {problem.key: problem.message for problem in caught.value.problems}


@torch.no_grad()
def agree(folder: Path, theirs: nn.Module) -> bool:
    _, ours = load_pretrained(folder)
    expected = theirs(tokens_of(0), use_cache=False).logits
    return torch.allclose(ours.eval()(tokens_of(0)), expected, rtol=0, atol=1e-5 * max(1.0, expected.abs().max().item()))


@pytest.fixture(scope="module")
def saved_gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt2")
    save("gpt2", folder)
    return folder


@pytest.fixture
def gpt2(saved_gpt2: Path, tmp_path: Path) -> Path:
    """A folder that a test may spoil."""
    shutil.copytree(saved_gpt2, tmp_path, dirs_exist_ok=True)
    return tmp_path


# --- what loads


def test_a_saved_folder_gives_the_config_of_its_arch_and_the_model(tmp_path: Path) -> None:
    theirs = save("gpt2", tmp_path)
    cfg, ours = load_pretrained(tmp_path)
    assert (cfg.arch, cfg.model.width, cfg.model.depth, cfg.norm.kind, cfg.position.kind) == ("gpt2", 64, 4, "layernorm", "learned")
    assert sum(parameter.numel() for parameter in ours.parameters()) == sum(parameter.numel() for parameter in theirs.parameters())
    assert agree(tmp_path, theirs)


def test_a_sharded_folder_gives_the_same_model(tmp_path: Path) -> None:
    theirs = save("stablelm", tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert agree(tmp_path, theirs)


def test_weights_of_bfloat16_are_held_in_float32(tmp_path: Path) -> None:
    theirs = save("gpt_neox", tmp_path, dtype=torch.bfloat16)
    _, ours = load_pretrained(tmp_path)
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.float32}
    assert agree(tmp_path, theirs.float())


def test_the_package_offers_it() -> None:
    assert ablate.load_pretrained is load_pretrained


def test_names_without_a_prefix_and_old_buffers_load(gpt2: Path) -> None:
    """As the first GPT-2 checkpoints are: no `transformer.`, and the causal mask under the name of a bias."""
    before = load_pretrained(gpt2)[1].state_dict()

    def as_of_old(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
        return {**bare, "h.0.attn.bias": torch.ones(1, 1, 24, 24).tril(), "h.0.attn.masked_bias": torch.tensor(-1e4)}

    change_tensors(gpt2, as_of_old)
    after = load_pretrained(gpt2)[1].state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_head_may_be_stored_beside_the_embedding_it_is_tied_to(gpt2: Path) -> None:
    change_tensors(gpt2, lambda tensors: {**tensors, "lm_head.weight": tensors["transformer.wte.weight"]})
    load_pretrained(gpt2)


def test_the_head_may_be_stored_in_place_of_the_embedding_it_is_tied_to(gpt2: Path) -> None:
    before = load_pretrained(gpt2)[1].state_dict()
    change_tensors(gpt2, lambda t: {"lm_head.weight" if name == "transformer.wte.weight" else name: x for name, x in t.items()})
    assert torch.equal(load_pretrained(gpt2)[1].state_dict()["embedding.table.weight"], before["embedding.table.weight"])


def test_both_spellings_of_rotation_mean_the_same() -> None:
    old = {"rope_theta": 5000.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    new = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0}}
    assert rope_parameters(HfConfig(old)) == rope_parameters(HfConfig(new))


def test_gpt_neox_reads_the_old_spelling_of_its_rotation(tmp_path: Path) -> None:
    theirs = save("gpt_neox", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps({**config, "rotary_pct": 0.25, "rotary_emb_base": 10000}))
    assert agree(tmp_path, theirs)


# --- what does not


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "no such folder" in problems(tmp_path / "absent")["path"]


def test_a_folder_without_config_json_is_named(tmp_path: Path) -> None:
    assert problems(tmp_path) == {str(tmp_path / "config.json"): "cannot be read: No such file or directory"}


def test_a_broken_config_json_is_named(gpt2: Path) -> None:
    (gpt2 / "config.json").write_text("{")
    assert "is no JSON" in problems(gpt2)[str(gpt2 / "config.json")]


def test_another_family_lists_those_that_load(gpt2: Path) -> None:
    change_config(gpt2, model_type="gpt_neoxx")
    message = problems(gpt2)["config.json: model_type"]
    assert "no family that can be loaded: 'gpt_neoxx'" in message
    assert all(word in message for word in FAMILIES)
    assert "did you mean 'gpt_neox'" in message


def test_quantised_weights_are_refused(gpt2: Path) -> None:
    change_config(gpt2, quantization_config={"bits": 4})
    assert "full precision" in problems(gpt2)[str(gpt2 / "config.json")]


def test_everything_that_the_model_cannot_hold_is_said_at_once(gpt2: Path) -> None:
    change_config(gpt2, scale_attn_by_inverse_layer_idx=True, activation_function="mish")
    found = problems(gpt2)
    assert set(found) == {"config.json: scale_attn_by_inverse_layer_idx", "config.json: activation_function"}
    assert "can be: " in found["config.json: activation_function"]


def test_an_unknown_scaling_of_rotation_is_refused(tmp_path: Path) -> None:
    save("gpt_neox", tmp_path)
    change_config(tmp_path, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0})
    assert "'dynamic'" in problems(tmp_path)["config.json: rope_parameters"]


def test_a_missing_key_of_the_config_is_named(gpt2: Path) -> None:
    change_config(gpt2, n_embd=None)
    assert problems(gpt2) == {"config.json: n_embd": "is missing"}


def test_a_missing_tensor_is_named_in_both_languages(gpt2: Path) -> None:
    change_tensors(gpt2, lambda tensors: {name: t for name, t in tensors.items() if "h.2.attn.c_attn.weight" not in name})
    found = problems(gpt2)
    assert set(found) == {f"blocks.2.attention.sublayer.{part}.weight" for part in "qkv"}
    assert "h.2.attn.c_attn.weight" in found["blocks.2.attention.sublayer.q.weight"]


def test_an_unknown_tensor_is_named(gpt2: Path) -> None:
    change_tensors(gpt2, lambda tensors: {**tensors, "transformer.h.0.adapter.weight": torch.ones(2)})
    assert problems(gpt2) == {"transformer.h.0.adapter.weight": "no tensor that a gpt2 model of this config.json has"}


def test_layers_beyond_the_depth_are_named(gpt2: Path) -> None:
    change_config(gpt2, n_layer=3)
    found = problems(gpt2)
    assert found
    assert all(name.startswith("blocks.3.") for name in found)


def test_a_tensor_of_another_shape_is_named(gpt2: Path) -> None:
    change_tensors(gpt2, lambda tensors: {**tensors, "transformer.ln_f.weight": torch.ones(63)})
    assert problems(gpt2) == {"norm.weight": "has another shape: (63,) in the checkpoint, (64,) by its config.json"}


def test_a_tensor_that_cannot_be_cut_is_named(gpt2: Path) -> None:
    change_tensors(gpt2, lambda tensors: {**tensors, "transformer.h.0.attn.c_attn.weight": torch.ones(64, 191)})
    assert "(64, 191)" in problems(gpt2)["transformer.h.0.attn.c_attn.weight"]


def test_a_head_that_differs_from_the_embedding_it_is_tied_to_is_refused(gpt2: Path) -> None:
    change_tensors(gpt2, lambda tensors: {**tensors, "lm_head.weight": tensors["transformer.wte.weight"] + 1})
    assert "differs from the embedding.table.weight" in problems(gpt2)["lm_head.weight"]


def test_weights_that_are_no_safetensors_are_named(gpt2: Path) -> None:
    (gpt2 / "model.safetensors").rename(gpt2 / "pytorch_model.bin")
    assert "found: pytorch_model.bin" in problems(gpt2)[str(gpt2)]


def test_a_broken_shard_is_named(gpt2: Path) -> None:
    (gpt2 / "model.safetensors").write_bytes(b"no tensors here")
    assert "cannot be read" in problems(gpt2)[str(gpt2 / "model.safetensors")]


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    save("gpt2", tmp_path, max_shard_size="100KB")
    shard = sorted(tmp_path.glob("model-*.safetensors"))[0]
    shard.unlink()
    assert shard.name in problems(tmp_path)[str(tmp_path / "model.safetensors.index.json")]


def test_a_broken_index_is_named(tmp_path: Path) -> None:
    save("gpt2", tmp_path, max_shard_size="100KB")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text("[]")
    assert "is no index of shards" in problems(tmp_path)[str(index)]


def test_a_tensor_in_two_shards_is_named(tmp_path: Path) -> None:
    save("gpt2", tmp_path, max_shard_size="100KB")
    first, second = sorted(tmp_path.glob("model-*.safetensors"))[:2]
    save_file({**load_file(first), **load_file(second)}, second)
    assert "another shard" in problems(tmp_path)[str(second)]


# --- the parts of a table


def family(*rules: Any) -> Family:
    return Family("test", "none", lambda hf: [], lambda hf: list(rules))


ROW = torch.arange(24.0).reshape(12, 2)

OPERATIONS: dict[str, tuple[Operation, Tensor]] = {
    "transpose": (transpose, ROW),
    "rows": (rows(2, 4, 6), ROW),
    "per_head": (per_head(3, 1, 2, 1), ROW),
    "alternate": (alternate(2), ROW),
    "halved": (halved(2, 6, 4, 1), ROW),
    "reordered": (reordered(torch.tensor([1, 0]), 1), ROW),
    "chain": (chain(transpose, rows(1, 1)), ROW),
    "each": (each(rows(6, 6), halved(1, 6), shaped(2, 6)), ROW),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_layout_operation_keeps_every_number_once(name: str) -> None:
    operation, tensor = OPERATIONS[name]
    pieces = operation.weight(tensor)
    assert sorted(torch.cat([piece.flatten() for piece in pieces]).tolist()) == sorted(tensor.flatten().tolist())
    assert all(torch.equal(a, b) for a, b in zip(pieces, operation.gradient(tensor), strict=True))


def test_rows_of_each_head_are_gathered_by_kind() -> None:
    query, key, value = per_head(2, 2, 1, 1).weight(torch.arange(8)[:, None])
    assert (query.flatten().tolist(), key.flatten().tolist(), value.flatten().tolist()) == ([0, 1, 4, 5], [2, 6], [3, 7])


def test_pairs_side_by_side_become_halves_within_the_rotated_features() -> None:
    assert pair_order(8, rotary=4, offset=2).tolist() == [0, 1, 2, 4, 3, 5, 6, 7]
    assert halved(2, 4).weight(torch.arange(8)[:, None])[0].flatten().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_the_gradient_of_a_scaled_weight_is_divided() -> None:
    assert scaled(4.0).weight(torch.tensor(2.0))[0] == 8
    assert scaled(4.0).gradient(torch.tensor(2.0))[0] == 0.5


def test_rows_can_be_left_out_at_either_end() -> None:
    assert torch.equal(without_first(2).weight(ROW)[0], ROW[2:])
    assert torch.equal(only_first(2).weight(ROW)[0], ROW[:2])


def test_slices_are_stacked_by_their_index_and_not_by_their_name() -> None:
    tensors = {f"e.{index}.w": torch.full((2,), float(index)) for index in (10, 9, *range(9))}
    stack = convert(family(rule(r"e\.(\d+)\.w", r"experts[\1]")), {}, tensors)["experts"]
    assert stack[:, 0].tolist() == list(range(11))


def test_a_missing_slice_is_named() -> None:
    with pytest.raises(ConfigError, match="slice 1 is missing"):
        convert(family(rule(r"e\.(\d+)\.w", r"experts[\1]")), {}, {"e.0.w": torch.ones(2), "e.2.w": torch.ones(2)})


def test_a_folded_tensor_is_added_to_weights_and_left_out_of_gradients() -> None:
    rules = family(rule("table", "a"), fold("types", "a", only_first(1)), skip("mask"), tied("again", "a"))
    tensors = {"table": ROW, "types": torch.ones(2, 2), "mask": ROW, "again": ROW}
    assert torch.equal(convert(rules, {}, tensors)["a"], ROW + 1)
    assert torch.equal(convert(rules, {}, tensors, gradients=True)["a"], ROW)


# --- an arch alone has the published numbers

PUBLISHED: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "openai-gpt": {},
    "opt": {},
    "bert": {"is_decoder": True},
    "gpt_neo": {},
    "gptj": {},
    "gpt_neox": {},
    "falcon": {},
    "bloom": {},
    "mpt": {},
    "phi": {},
    "cohere": {"use_qk_norm": True},
    "cohere2": {},
    "olmo": {"clip_qkv": 8.0},
    "stablelm": {"use_qkv_bias": True, "qk_layernorm": True},
    "starcoder2": {"rope_parameters": {"rope_theta": 1e6}, "sliding_window": 4096, "max_position_embeddings": 16384},
    "nemotron": {},
}
"""What published checkpoints have beyond the defaults of transformers."""

OF_SCALE = ("model.", "tokenizer", "ffn.ratio", "ffn.multiple_of", "ffn.glu_factor", "attention.head_dim", "attention.kv_heads")


GROUPED_BY_SCALE = ("attention.kind", "~attention.kv_heads")
"""Our grouped rows have two key heads at any scale."""


def number(value: object) -> float:
    """'1/2', '.inf' and what YAML reads as a number."""
    return float(Fraction(text)) if "/" in (text := str(value)) else float(text.removeprefix(".") if "inf" in text else text)


def holds(cfg: Config, override: str, context: int) -> bool:
    """Whether a config has by itself what an override would set; a window is a share of the context."""
    key, _, value = override.partition("=")
    found: Any = cfg.model_dump()
    for part in key.split("."):
        found = found[part]
    if value in ("true", "false", "null") or not re.fullmatch(r"[-+.\w/]*\d[-+.\w/]*|\.inf", value):
        return str(found).lower().replace("none", "null") == value
    whole = context if key.endswith("window") and number(found) < 1 else 1
    return math.isclose(number(found) * whole, number(value))


@pytest.mark.slow
@pytest.mark.parametrize("word", PUBLISHED)
def test_an_arch_has_by_itself_what_its_published_config_asks_for(word: str) -> None:
    config = {**AutoConfig.for_model(word).to_dict(), **PUBLISHED[word]}
    arch, *asked = FAMILIES[word].all_overrides(config)
    chosen = [o for o in asked if not o.startswith((*OF_SCALE, *GROUPED_BY_SCALE)) and "/" not in o.partition("=")[0]]
    assert chosen
    cfg = compose([arch, "tracker=none"])
    assert [override for override in chosen if not holds(cfg, override, config.get("max_position_embeddings", 0))] == []


def test_every_arch_that_a_family_names_is_shipped() -> None:
    folder = Path(__file__).parents[2] / "conf" / "arch"
    words = {family.arch for family in FAMILIES.values() if isinstance(family.arch, str)}
    assert {word for word in words if not (folder / f"{word}.yaml").exists()} == set()


def test_rope_overrides_name_the_scaling() -> None:
    hf = HfConfig({"rope_theta": 5000.0, "rope_scaling": {"type": "linear", "factor": 2.0}})
    assert rope(hf, rope_parameters(hf)) == ["position.theta=5000.0", "position/scaling=linear", "position.scaling.factor=2.0"]


def test_reading_is_of_the_folder_alone(gpt2: Path) -> None:
    assert read_config(gpt2)["model_type"] == "gpt2"
    assert all(tensor.dtype == torch.float32 for tensor in read_tensors(gpt2).values())


@pytest.mark.parametrize(
    ("spoil", "said"), [(lambda weight: weight * math.nan, "not finite"), (lambda weight: weight.to(torch.int32), "int32")]
)
def test_weights_that_are_no_numbers_are_named(spoil: Callable[[Tensor], Tensor], said: str, gpt2: Path) -> None:
    name = "transformer.h.1.mlp.c_fc.weight"
    change_tensors(gpt2, lambda tensors: {**tensors, name: spoil(tensors[name])})
    assert said in problems(gpt2)["blocks.1.ffn.sublayer.up.weight"]


@pytest.mark.parametrize("value", ["x", [1], {}, 0])
def test_a_number_of_config_json_that_is_none_is_one_error(value: Any, gpt2: Path) -> None:
    change_config(gpt2, n_head=value)
    assert problems(gpt2)


def test_two_spellings_of_a_stretched_context_that_disagree_are_refused(gpt2: Path) -> None:
    change_config(gpt2, rope_scaling={"rope_type": "linear", "factor": 4.0}, rope_parameters={"rope_type": "default"})
    assert "rope_parameters" in problems(gpt2)["config.json: rope_scaling"]
