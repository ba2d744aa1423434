"""How the model is wired, and published numbers: Qwen2 0.5B. (That it computes what published models compute is in test_parity.py.)"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ablate.composition import compose
from ablate.config import build_model, meta_model
from ablate.errors import ConfigError
from ablate.model.attention import Attention
from ablate.model.ffn import FeedForward
from ablate.model.placement import PLACEMENT
from tests.model.conftest import changed, max_difference, random_model, small, tokens_of, yaml_of


@pytest.fixture(scope="module")
def qwen2_half_billion() -> nn.Module:
    sizes = ["model.width=896", "model.depth=24", "model.heads=14", "model.context=128", "tokenizer=bpe", "tokenizer.vocab_size=151936"]
    return meta_model(compose(["arch=qwen2", *sizes, "head=tied", "ffn.ratio=4864/896", "ffn.glu_factor=1"]))


def size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_attention_of_qwen2_half_billion_has_1_836_160_parameters(qwen2_half_billion: nn.Module) -> None:
    assert {size(module) for module in qwen2_half_billion.modules() if isinstance(module, Attention)} == {1_836_160}


def test_swiglu_of_qwen2_half_billion_has_13_074_432_parameters(qwen2_half_billion: nn.Module) -> None:
    layers = [module for module in qwen2_half_billion.modules() if isinstance(module, FeedForward)]
    assert {(layer.width, size(layer)) for layer in layers} == {(4864, 13_074_432)}


def test_norms_of_qwen2_half_billion_have_1_792_parameters_a_layer_and_43_008_in_all(qwen2_half_billion: nn.Module) -> None:
    layers = [size(block.attention.input_norm) + size(block.ffn.input_norm) for block in qwen2_half_billion.blocks]
    assert set(layers) == {1_792}
    assert sum(layers) == 43_008


def test_qwen2_half_billion_has_494_032_768_parameters(qwen2_half_billion: nn.Module) -> None:
    """As its model card says: 0.49 billion, 0.36 of them no embedding."""
    assert size(qwen2_half_billion) == 494_032_768
    assert size(qwen2_half_billion) - 151_936 * 896 == 357_898_112


# --- wiring


@pytest.mark.parametrize("word", PLACEMENT.words())
def test_a_model_is_embedding_blocks_in_order_norm_and_head(word: str) -> None:
    model, tokens = random_model(small(f"placement={word}")), tokens_of(small())
    x = model.embedding(tokens)
    for block in model.blocks:
        x, _, _ = block(x, model.positions[0], None, None)
    assert torch.equal(model(tokens), model.head(model.norm(x), model.embedding.table.weight))


@pytest.mark.parametrize("choice", ["ffn=swiglu", "ffn=moe", "loss=multi_token"])
def test_what_training_runs_scores_the_next_token_as_evaluation_does(choice: str) -> None:
    model, tokens = random_model(small(choice)), tokens_of(small())
    assert torch.equal(model.run(tokens).logits_BTV, model(tokens))


def test_a_sequence_longer_than_the_tables_is_an_error_that_says_both_lengths() -> None:
    with pytest.raises(ValueError, match="17 tokens, and the model was built for 16"):
        random_model(small())(torch.zeros(1, 17, dtype=torch.long))


@pytest.mark.parametrize("position", ["rope", "alibi", "t5", "sinusoidal", "none"])
@pytest.mark.parametrize("limits", [{}, {"window": "1/4"}, {"chunk": 0.5}])
def test_a_model_with_longer_tables_goes_on_where_that_of_training_ends(position: str, limits: dict[str, Any]) -> None:
    """Shares are of the context of training, so a window of a quarter is 4 tokens in both."""
    cfg = small(f"position={position}")
    cfg = changed(cfg, "attention", {**cfg.attention.model_dump(), **limits})
    longer = build_model(cfg, max_tokens=40).eval()
    longer.load_state_dict(random_model(cfg).state_dict())
    tokens = torch.randint(0, 256, (1, 40), generator=torch.Generator().manual_seed(0))
    logits = longer(tokens)
    assert logits.shape == (1, 40, 256)
    assert max_difference(logits[:, :16], random_model(cfg)(tokens[:, :16])) < 1e-5 * max(1, logits.abs().max())


def test_a_position_that_is_learned_ends_where_training_does() -> None:
    with pytest.raises(ConfigError) as raised:
        meta_model(small("position=learned"), max_tokens=17)
    assert [problem.key for problem in raised.value.problems] == ["position"]


def test_without_a_router_or_further_tokens_there_is_nothing_beside_the_logits() -> None:
    outputs = random_model(small()).run(tokens_of(small()))
    assert (outputs.auxiliary, outputs.future, outputs.found) == ([], [], [])


def test_losses_of_routers_come_with_their_names_and_weights() -> None:
    cfg = changed(changed(small("ffn=moe"), "ffn.balance_loss", 0.25), "ffn.router_z_loss", 0.5)
    outputs = random_model(cfg).run(tokens_of(cfg))
    assert [(auxiliary.name, auxiliary.weight) for auxiliary in outputs.auxiliary] == [("router_balance", 0.25), ("router_z", 0.5)]
    assert len(outputs.found) == 2, "one a layer"


# --- further tokens


def further(num_future: int, *choices: str) -> Any:
    return changed(small("loss=multi_token", *choices), "loss.num_future", num_future)


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


@pytest.mark.parametrize("num_future", [1, 3])
def test_further_tokens_are_predicted_one_after_the_other_from_state_and_embedding(num_future: int) -> None:
    """arXiv 2412.19437, eq. 21 to 23: h_t^k = block(W [norm(h_t^(k-1)); norm(embedding of token t + k)])."""
    model, tokens = random_model(further(num_future)), tokens_of(small())
    outputs = model.run(tokens)
    assert len(outputs.future) == num_future
    h_BTD = model.states(tokens)[0]
    for k, module in enumerate(model.future, start=1):
        ahead = torch.stack([model.embedding.table.weight[tokens[:, min(t + k, 15)]] for t in range(16)], dim=1)
        both = torch.cat([rms(h_BTD, module.state_norm.weight), rms(ahead, module.token_norm.weight)], dim=-1)
        h_BTD, _, _ = module.block(both @ module.join.weight.T, model.positions[0], None, None)
        known = 16 - k  # the tokens after the end of a sequence are not known, and their targets do not count
        expected = rms(h_BTD, model.norm.weight) @ model.head.unembed.weight.T
        assert max_difference(outputs.future[k - 1][:, :known], expected[:, :known]) < 1e-4


def test_further_scores_do_not_see_past_the_token_before_the_one_they_predict() -> None:
    """At t the k-th of them predicts token t + 1 + k and has seen tokens up to t + k."""
    model, tokens = random_model(further(2)), tokens_of(small())
    other = tokens.clone()
    other[:, 9] = (other[:, 9] + 1) % 256
    for k, (before, after) in enumerate(zip(model.run(tokens).future, model.run(other).future, strict=True), start=1):
        assert max_difference(before[:, : 9 - k], after[:, : 9 - k]) < 1e-5
        assert (before[:, 9 - k] - after[:, 9 - k]).abs().amax(-1).min() > 1e-3


@pytest.mark.parametrize("choice", ["ffn=moe", "attention=mla", "position=alibi", "residual=parallel", "placement=hybrid"])
def test_layers_for_further_tokens_are_layers_like_any_other(choice: str) -> None:
    cfg = further(1, choice)
    model = random_model(cfg)
    blocks = {name.removeprefix("blocks.1."): tuple(tensor.shape) for name, tensor in model.named_parameters() if "blocks.1." in name}
    ahead = {name.removeprefix("future.0.block."): tuple(tensor.shape) for name, tensor in model.named_parameters() if "0.block." in name}
    assert blocks == ahead
    assert torch.isfinite(model.run(tokens_of(cfg)).future[0]).all()


def test_layers_for_further_tokens_follow_the_rules_of_the_last_layer() -> None:
    rules = {"narrow": {"where": {"last": 1}, "set": {"attention": {"window": 3}, "ffn": yaml_of("ffn", "relu")}}}
    block = build_model(changed(further(1), "layers", rules)).future[0].block
    assert block.attention.sublayer.reach.window == 3
    assert type(block.ffn.sublayer).__name__ == "Relu"
