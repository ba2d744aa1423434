from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ablate.config import build_model, meta_model
from ablate.model.count import Counts, FlopCounter, count, flops, parameters
from tests.model.conftest import DIFFERENT, changed, quick_first, small

WIDTH, DEPTH, HEADS, CONTEXT, VOCABULARY, FFN_WIDTH = 32, 2, 4, 16, 256, 88


def counted(*choices: str, context: int = CONTEXT) -> Counts:
    return count(meta_model(changed(small(*choices), "model.context", context)), context)


def test_parameters_of_the_baseline_are_those_worked_out_on_paper() -> None:
    layer = 4 * WIDTH**2 + 3 * WIDTH * FFN_WIDTH + 2 * WIDTH
    counts = counted()
    assert counts.parameters == VOCABULARY * WIDTH + DEPTH * layer + WIDTH + WIDTH * VOCABULARY
    assert counts.embedding == VOCABULARY * WIDTH
    assert counts.active == counts.parameters
    assert counts.ffn_width == FFN_WIDTH


@pytest.mark.parametrize(("choice", "kv_width"), [("attention=mha", 32), ("attention=gqa", 16), ("attention=mqa", 8)])
@pytest.mark.parametrize("context", [16, 64])
def test_flops_are_two_for_each_weight_of_a_matrix_and_the_two_products_of_attention(choice: str, kv_width: int, context: int) -> None:
    matrices = DEPTH * (2 * WIDTH**2 + 2 * WIDTH * kv_width + 3 * WIDTH * FFN_WIDTH) + WIDTH * VOCABULARY
    products = DEPTH * 2 * (2 * context * WIDTH)  # scores, then the weighted sum, over the whole square
    assert counted(choice, context=context).flops_per_token == 2 * matrices + products


def test_training_takes_three_times_the_flops_of_the_forward_pass() -> None:
    assert counted().training_flops_per_token == 3 * counted().flops_per_token


@pytest.mark.parametrize("choice", ["norm=rmsnorm", *quick_first(DIFFERENT)])
def test_a_built_model_counts_as_its_model_without_numbers(choice: str) -> None:
    cfg = small(choice)
    assert count(build_model(cfg), CONTEXT) == count(meta_model(cfg), CONTEXT)


@pytest.mark.parametrize("choice", ["norm=rmsnorm", *quick_first(DIFFERENT)])
def test_flops_are_those_of_torchs_own_counter_at_first_and_once_shapes_are_known(choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlopCounter, "known", {})
    model, tokens = meta_model(small(choice)), torch.zeros(1, CONTEXT, dtype=torch.long, device="meta")
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as torchs:
        model(tokens)
    assert flops(model, tokens) == flops(model, tokens) == torchs.get_total_flops() > 0


def made(call: Any) -> list[Tensor]:
    """What a call makes under the counter, when nothing is known of it and again."""
    with FlopCounter():  # type: ignore[no-untyped-call]
        return [call(), call()]


def test_what_a_tensors_numbers_decide_is_found_out_each_time() -> None:
    x, few, many = torch.empty(4, 8, device="meta"), torch.tensor([True, False, False, False]), torch.tensor([True, True, True, False])
    assert [tensor.shape for tensor in made(lambda: x[few])] == [(1, 8)] * 2
    assert [tensor.shape for tensor in made(lambda: x[many])] == [(3, 8)] * 2


def test_equal_numbers_of_other_types_are_other_arguments() -> None:
    found = [made(lambda value=value: torch.full((2,), value, device="meta")) for value in (1, 1.0, True)]  # type: ignore[misc]
    assert [[tensor.dtype for tensor in tensors] for tensors in found] == [[torch.int64] * 2, [torch.float32] * 2, [torch.bool] * 2]


def test_a_known_operator_makes_what_it_made_before() -> None:
    x = torch.empty(3, 4, device="meta").t()
    for call in (lambda: x + 1, lambda: x.mean(0, keepdim=True), lambda: torch.cat([x, x]), lambda: x > 0, lambda: x.sort()[1]):
        first, again = made(call)
        assert first is not again
        assert (first.shape, first.stride(), first.dtype, first.device) == (again.shape, again.stride(), again.dtype, again.device)


def test_views_and_what_is_written_in_place_stay_the_same_tensor() -> None:
    x = torch.empty(3, 4, device="meta")
    assert all(tensor is x for tensor in made(lambda: x.add_(1)))
    assert all(tensor._base is x for tensor in made(lambda: x.view(12)))


def test_a_soft_cap_costs_no_flops_of_matrices() -> None:
    capped = changed(small(), "attention.soft_cap", 10.0)
    assert count(meta_model(capped), CONTEXT).flops_per_token == counted().flops_per_token


def test_a_tied_head_works_as_hard_as_an_untied_one() -> None:
    assert counted("head=tied").flops_per_token == counted().flops_per_token
    assert counted().parameters - counted("head=tied").parameters == VOCABULARY * WIDTH


@pytest.mark.parametrize(("choice", "kv_heads"), [("attention=mha", 4), ("attention=gqa", 2), ("attention=mqa", 1)])
def test_the_cache_keeps_a_key_and_a_value_of_each_key_head_and_layer(choice: str, kv_heads: int) -> None:
    counts = counted(choice)
    assert counts.kv_elements_per_token == DEPTH * 2 * kv_heads * WIDTH // HEADS
    assert counts.kv_bytes_per_token() == 2 * counts.kv_elements_per_token
    assert counts.kv_bytes_per_token(4) == 4 * counts.kv_elements_per_token


def test_the_cache_of_latent_attention_keeps_the_latent_and_one_rotated_key_a_layer() -> None:
    latent, rotated = WIDTH // 4, WIDTH // HEADS // 2
    assert counted("attention=mla").kv_elements_per_token == DEPTH * (latent + rotated)


def test_the_cache_adds_up_layers_that_differ() -> None:
    rules = {"wide": {"where": {"layers": [1]}, "set": {"attention": {"head_dim": 16}}}}
    counts = count(meta_model(changed(small("attention=mqa"), "layers", rules)), CONTEXT)
    assert counts.kv_elements_per_token == 2 * 8 + 2 * 16


def test_cache_bytes_grow_linearly_with_the_context() -> None:
    sizes = [context * counted("attention=gqa", context=context).kv_bytes_per_token() for context in (16, 32, 64, 128)]
    assert [size / sizes[0] for size in sizes] == [1, 2, 4, 8]


@pytest.mark.parametrize(
    ("limits", "kept"),
    [({}, 16), ({"window": 5}, 5), ({"chunk": 6}, 6), ({"window": 3, "chunk": 6}, 3), ({"window": "1/4"}, 4)],
)
def test_the_cache_of_a_whole_context_keeps_no_more_than_a_layer_sees(limits: dict[str, Any], kept: int) -> None:
    rules = {"local": {"where": {"layers": [1]}, "set": {"attention": limits}}}
    cfg = changed(small(), "layers", rules) if limits else small()
    assert count(meta_model(cfg), CONTEXT).kv_elements == 2 * WIDTH * (CONTEXT + kept)
    assert count(meta_model(cfg), CONTEXT).kv_bytes() == 4 * WIDTH * (CONTEXT + kept)


def test_layers_that_training_alone_needs_are_in_no_cache() -> None:
    assert counted("loss=multi_token").kv_elements_per_token == counted().kv_elements_per_token


def test_training_flops_have_those_of_the_layers_for_further_tokens() -> None:
    """Each is a layer, the matrix that joins state and embedding, and the head once more."""
    layer = 2 * (4 * WIDTH**2 + 3 * WIDTH * FFN_WIDTH) + 2 * (2 * CONTEXT * WIDTH)
    more = layer + 2 * (2 * WIDTH * WIDTH) + 2 * WIDTH * VOCABULARY
    assert counted("loss=multi_token").training_flops_per_token - counted().training_flops_per_token == pytest.approx(3 * more)


def test_cache_bytes_of_a_token_do_not_depend_on_the_context() -> None:
    assert counted(context=16).kv_bytes_per_token() == counted(context=128).kv_bytes_per_token()


def test_feed_forward_error_is_that_of_the_whole_model() -> None:
    assert counted().ffn_parameter_error == pytest.approx(3 * WIDTH * FFN_WIDTH / (8 * WIDTH**2) - 1)
    assert counted("ffn=relu").ffn_parameter_error == 0


PARAMETERS = {
    "attention=mha_bias": DEPTH * 4 * WIDTH,
    "attention/qk_norm=head": DEPTH * 2 * 8,
    "attention/qk_norm=full": DEPTH * 2 * WIDTH,
    "attention/qk_norm=per_head": DEPTH * 2 * WIDTH,
    "norm=layernorm": (2 * DEPTH + 1) * WIDTH,
    "norm=rmsnorm_no_weight": -(2 * DEPTH + 1) * WIDTH,
    "norm=dyt": (2 * DEPTH + 1) * (WIDTH + 1),
    "placement=sandwich": DEPTH * 2 * WIDTH,
    "placement=post": -WIDTH,
    "placement=none": -DEPTH * 2 * WIDTH,
    "placement=hybrid": DEPTH * (WIDTH + 3 * 8 - 2 * WIDTH),
    "placement=sub_ln": DEPTH * (WIDTH + FFN_WIDTH),
    "residual=parallel_shared": -DEPTH * WIDTH,
    "residual=layerscale": DEPTH * 2 * WIDTH,
    "residual=rezero": DEPTH * 2,
    "embedding=factorised": 8 * (VOCABULARY + WIDTH) - VOCABULARY * WIDTH,
    "embedding=normed": 2 * WIDTH,
    "head=untied_bias": VOCABULARY,
    "head/transform=dense": WIDTH**2 + 3 * WIDTH,
    "position=learned": CONTEXT * WIDTH,
    "loss=multi_token": 4 * WIDTH**2 + 3 * WIDTH * FFN_WIDTH + 2 * WIDTH + 2 * WIDTH + 2 * WIDTH**2,
}


@pytest.mark.parametrize(("choice", "more"), PARAMETERS.items())
def test_a_choice_costs_the_parameters_worked_out_on_paper(choice: str, more: int) -> None:
    assert parameters(meta_model(small(choice))) - parameters(meta_model(small())) == more


OPTIONS: dict[tuple[str, Any], int] = {
    ("attention.sink", "learned"): DEPTH * HEADS,
    ("attention.sink", "zero"): 0,
    ("attention.gate", "head"): DEPTH * HEADS * WIDTH,
    ("attention.gate", "element"): DEPTH * WIDTH**2,
    ("attention.value_residual", "average"): 0,
    ("attention.value_residual", "learned"): (DEPTH - 1) * 2,
    ("attention.k_eq_v", True): -DEPTH * WIDTH**2,
    ("attention.window", 4): 0,
    ("attention.soft_cap", 5.0): 0,
    ("attention.head_dim", 16): DEPTH * 4 * WIDTH**2,
}


@pytest.mark.parametrize(("key", "value", "more"), [(key, value, more) for (key, value), more in OPTIONS.items()])
def test_an_option_costs_the_parameters_worked_out_on_paper(key: str, value: Any, more: int) -> None:
    assert parameters(meta_model(changed(small(), key, value))) - parameters(meta_model(small())) == more


def test_learned_positions_count_as_embedding() -> None:
    assert counted("position=learned").embedding - counted().embedding == CONTEXT * WIDTH


def test_counting_leaves_the_model_as_it_was() -> None:
    model = build_model(small())
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    count(model, CONTEXT)
    assert all(parameter.equal(before[name]) and parameter.grad is None for name, parameter in model.named_parameters())
    assert isinstance(model, nn.Module)
    assert model.training
