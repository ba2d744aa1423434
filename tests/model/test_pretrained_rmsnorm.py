"""What config.json says in its several spellings, and what our model cannot hold. That the models are the published ones, parity shows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    CONFIG_MAPPING,
    Gemma3TextConfig,
    Gemma4TextConfig,
    GlmConfig,
    LlamaConfig,
    MistralConfig,
    Olmo3Config,
    Phi3Config,
    PreTrainedConfig,
    Qwen2Config,
)

from ablate.composition import compose
from ablate.errors import ConfigError
from ablate.pretrained import dense, family_of, gemma, rmsnorm
from ablate.pretrained.tables import convert

SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
}
FACTORS = {"short_factor": [1.0] * 8, "long_factor": [float(pair) for pair in range(1, 9)]}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
YARN = {"factor": 8.0, "original_max_position_embeddings": 16, "beta_fast": 32.0, "beta_slow": 1.0}

ON_THE_HUB: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "llama": (LlamaConfig, {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}}),
    "llama, older": (LlamaConfig, {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0}}),
    "mistral": (MistralConfig, {"rope_theta": 1e6, "sliding_window": None, "tie_word_embeddings": True}),
    "qwen2": (Qwen2Config, {"rope_theta": 1e6, "use_sliding_window": False, "sliding_window": 32, "max_window_layers": 6}),
    "qwen2 with a window": (Qwen2Config, {"rope_theta": 1e6, "use_sliding_window": True, "sliding_window": 32, "max_window_layers": 6}),
    "glm": (GlmConfig, {"rope_theta": 1e4, "partial_rotary_factor": 0.5, "head_dim": 16, "attention_bias": True}),
    "phi3": (
        Phi3Config,
        {"rope_theta": 1e4, "original_max_position_embeddings": 16, "rope_scaling": {"type": "longrope", **FACTORS}},
    ),
    "gemma3": (
        Gemma3TextConfig,
        {
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "sliding_window": 32,
            "sliding_window_pattern": 6,
            "query_pre_attn_scalar": 168,
            "head_dim": 16,
        },
    ),
    "olmo3": (
        Olmo3Config,
        {
            "rope_theta": 5e5,
            "rope_scaling": {"rope_type": "yarn", **YARN},
            "sliding_window": 32,
            "tie_word_embeddings": False,
        },
    ),
    "gemma4": (
        Gemma4TextConfig,
        {
            "global_head_dim": 32,
            "num_global_key_value_heads": 2,
            "attention_k_eq_v": True,
            "head_dim": 16,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "sliding_window": 32,
            "hidden_size_per_layer_input": 0,
        },
    ),
}


def hub_config(name: str) -> dict[str, Any]:
    """config.json as the hub has it: only what differs from the defaults of its class, in the spelling of its time."""
    config, options = ON_THE_HUB[name]
    return {"model_type": config.model_type, **SIZES, **options}


def overrides(config: dict[str, Any]) -> list[str]:
    return family_of(config).all_overrides(config)


@pytest.mark.parametrize("name", ON_THE_HUB)
def test_config_on_the_hub_means_what_transformers_reads_from_it(name: str) -> None:
    given = hub_config(name)
    written_anew = ON_THE_HUB[name][0](**given).to_dict()
    assert overrides(given) == overrides(written_anew)


FAMILIES = {family.model_type: family for module in (rmsnorm, dense, gemma) for family in module.FAMILIES}
NEEDED = {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings", "vocab_size"}
NEEDED_BY_T5 = {"d_model", "d_kv", "d_ff", "num_heads", "num_layers", "vocab_size"}


@pytest.mark.parametrize("name", FAMILIES)
def test_key_that_config_json_leaves_out_means_what_transformers_takes(name: str) -> None:
    full = CONFIG_MAPPING[name]().to_dict() | ({"hidden_size_per_layer_input": 0} if name == "gemma4_text" else {})
    needed = {"model_type", "hidden_size_per_layer_input"} | (NEEDED_BY_T5 if name == "t5" else NEEDED)
    assert overrides({key: value for key, value in full.items() if key in needed}) == overrides(full)


REFUSED: list[tuple[str, str, dict[str, Any]]] = [
    ("hidden_act", "llama", {"hidden_act": "gelu"}),
    ("rope_parameters", "llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}),
    ("swin_norm", "chameleon", {"swin_norm": True}),
    ("use_sliding_window", "smollm3", {"use_sliding_window": True, "sliding_window": 8}),
    ("layer_types", "gemma2", {"layer_types": ["chunked_attention"] * 12}),
    ("use_bidirectional_attention", "gemma3_text", {"use_bidirectional_attention": True}),
    ("hidden_size_per_layer_input", "gemma4_text", {}),
    ("num_kv_shared_layers", "gemma4_text", {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 2}),
    ("enable_moe_block", "gemma4_text", {"hidden_size_per_layer_input": 0, "enable_moe_block": True}),
]


@pytest.mark.parametrize(("key", "family", "options"), REFUSED, ids=[f"{family} {key}" for key, family, _ in REFUSED])
def test_what_our_model_cannot_hold_is_refused_by_its_key(key: str, family: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        overrides({"model_type": family, **SIZES, **options})
    assert [problem.key for problem in error.value.problems] == [f"config.json: {key}"]


def test_layer_scalar_of_gemma4_may_be_left_out_only_while_it_is_one() -> None:
    config = hub_config("gemma4")
    one, two = ({"model.layers.3.layer_scalar": torch.tensor([value])} for value in (1.0, 2.0))
    assert convert(family_of(config), config, one) == {}
    with pytest.raises(ConfigError, match="layer_scalar"):
        convert(family_of(config), config, two)


def test_fixed_alpha_of_hunyuan_is_another_theta() -> None:
    """theta alpha^(H / (H - 2)), H = 16, which its config calls dynamic."""
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 1000.0}
    (theta,) = [word for word in overrides({"model_type": "hunyuan_v1_dense", **SIZES, "rope_parameters": rope}) if "theta" in word]
    assert float(theta.partition("=")[2]) == pytest.approx(1e4 * 1000.0 ** (16 / 14))


def test_pattern_that_the_arch_has_leaves_its_rule_as_it_is() -> None:
    config = {"model_type": "gemma2", **SIZES, "layer_types": ["sliding_attention", "full_attention"] * 6, "sliding_window": 8}
    assert [word for word in overrides(config) if "layers" in word] == ["layers.local.set.attention.window=8"]


def test_gpt_oss_small_has_the_numbers_of_the_founding_document() -> None:
    cfg: Any = compose(["arch=gpt_oss_small", "scale=gpt_oss_small", "tracker=none"])
    assert (cfg.model.width, cfg.model.depth, cfg.model.heads, cfg.model.context) == (256, 4, 4, 4096)
    assert (cfg.attention.kv_heads, cfg.attention.window, cfg.layers) == (2, float("inf"), {})
    assert (cfg.position.theta, cfg.position.scaling.kind) == (10000.0, "yarn")
    assert (cfg.ffn.num_experts, cfg.ffn.experts_per_token, cfg.ffn.expert.kind, cfg.ffn.expert.limit) == (16, 2, "swiglu_clamped", 7.0)
    assert cfg.ffn.expert.ratio * cfg.ffn.expert.glu_factor * 256 == 256
    assert (cfg.norm.kind, cfg.norm.eps, cfg.placement.kind, cfg.tokenizer.vocab_size) == ("rmsnorm", 1e-5, "pre", 8000)
