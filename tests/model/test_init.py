from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ablate.config import build_model, meta_model
from ablate.errors import ConfigError
from ablate.model.init import INIT
from ablate.train.optim import OPTIM
from tests.model.conftest import CHOICES, changed, max_difference, quick_first, small


def parameters(*choices: str, seed: int = 0, **sizes: int) -> dict[str, Tensor]:
    cfg = changed(small(*choices), "init_seed", seed)
    for name, value in sizes.items():
        cfg = changed(cfg, f"model.{name}", value)
    return {name: parameter.detach() for name, parameter in build_model(cfg).named_parameters()}


MATRIX = "blocks.1.attention.sublayer.q.weight"
RECORDED = [0.00138021, -0.01103584, -0.01418539, 0.00859851]


def by_role(name: str) -> str:
    """embedding, head, writes (onto the residual stream) or hidden, from the name alone."""
    if name.startswith(("embedding.table", "positions.")):
        return "embedding"
    if name.startswith("head.unembed"):
        return "head"
    return "writes" if name.split(".")[-2] in ("out", "down") else "hidden"


def layer_of(name: str) -> int:
    return int(name.split(".")[1]) if name.startswith("blocks") else 0


def assert_ratios(word: str, expected: Callable[[str, Tensor], float], *choices: str, **sizes: int) -> None:
    """Every tensor has a random stream of its own, so it is that of init=normal times the ratio of standard deviations, exactly."""
    plain, ours = parameters(*choices, **sizes), parameters(f"init={word}", *choices, **sizes)
    for name, tensor in ours.items():
        if tensor.ndim > 1:
            assert max_difference(tensor, plain[name] * expected(name, tensor) / 0.02) < 1e-6 * tensor.abs().max(), name
        else:
            assert torch.equal(tensor, plain[name]), name


def test_the_same_seed_gives_the_same_numbers() -> None:
    first, second = parameters(seed=3), parameters(seed=3)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_another_seed_gives_every_matrix_other_numbers() -> None:
    first, second = parameters(seed=3), parameters(seed=4)
    assert all((first[name] != second[name]).float().mean() > 0.99 for name in first if first[name].ndim == 2)


def test_matrices_of_one_shape_start_from_different_numbers() -> None:
    square = [tensor for tensor in parameters().values() if tensor.shape == (32, 32)]
    assert len(square) == 8
    correlations = torch.corrcoef(torch.stack([tensor.flatten() for tensor in square]))
    assert (correlations - torch.eye(8)).abs().max() < 0.15  # 32 * 32 numbers: a standard error of 0.03


def test_more_layers_leave_the_first_ones_as_they_are() -> None:
    two, three = parameters(depth=2), parameters(depth=3)
    assert set(two) < set(three)
    assert all(torch.equal(tensor, three[name]) for name, tensor in two.items())


def test_seed_0_gives_the_numbers_that_it_always_gave() -> None:
    """A change here makes every earlier run incomparable."""
    assert parameters(seed=0)[MATRIX][0, :4].tolist() == pytest.approx(RECORDED, abs=1e-7)


@pytest.mark.parametrize("std", [0.02, 0.3])
def test_normal_gives_every_matrix_its_standard_deviation(std: float) -> None:
    cfg = changed(changed(small(), "init.std", std), "model.width", 128)
    for name, parameter in build_model(cfg).named_parameters():
        if parameter.ndim == 2:
            assert parameter.std().item() == pytest.approx(std, rel=0.03), name
            assert abs(parameter.mean().item()) < 0.03 * std, name


@pytest.mark.parametrize(
    "choices", [(), ("attention=mla",), ("ffn=moe",), ("position=learned", "attention=mha_bias", "embedding=factorised")]
)
def test_gpt2_divides_what_writes_to_the_residual_stream_by_the_root_of_twice_the_depth(choices: tuple[str, ...]) -> None:
    assert_ratios("gpt2", lambda name, tensor: 0.02 / math.sqrt(2 * 2) if by_role(name) == "writes" else 0.02, *choices)
    assert_ratios("gpt2", lambda name, tensor: 0.02 / math.sqrt(2 * 5) if by_role(name) == "writes" else 0.02, *choices, depth=5)


def test_depth_scaled_divides_what_writes_by_the_root_of_twice_the_number_of_its_layer() -> None:
    stds = [0.02 / math.sqrt(2), 0.02 / 2, 0.02 / math.sqrt(6), 0.02 / math.sqrt(8)]
    assert_ratios("depth_scaled", lambda name, tensor: stds[layer_of(name)] if by_role(name) == "writes" else 0.02, depth=4)


def test_small_is_the_root_of_two_over_five_widths_and_two_over_depth_and_root_of_width_where_it_writes() -> None:
    hidden, writes = math.sqrt(2 / (5 * 32)), 2 / (4 * math.sqrt(32))
    assert (hidden, writes) == pytest.approx((0.1118034, 0.0883883))
    assert_ratios("small", lambda name, tensor: writes if by_role(name) == "writes" else hidden, depth=4)


MUP = [("attention=mha",), ("attention=gqa", "ffn=gelu"), ("position=learned",), ("ffn=moe",)]


@pytest.mark.parametrize("choices", MUP)
@pytest.mark.parametrize(("width", "growth"), [(32, 0.5), (128, 2), (192, 3)])
def test_mup_shrinks_hidden_matrices_by_the_root_of_the_growth_of_the_width_and_the_head_by_all_of_it(
    width: int, growth: float, choices: tuple[str, ...]
) -> None:
    """conf/init/mup.yaml has a base width of 64."""
    stds = {"embedding": 0.02, "hidden": 0.02 / math.sqrt(growth), "writes": 0.02 / math.sqrt(growth), "head": 0.02 / growth}
    assert_ratios("mup", lambda name, tensor: stds[by_role(name)], *choices, width=width)


@pytest.mark.parametrize("choices", MUP)
@pytest.mark.parametrize(("width", "growth"), [(32, 0.5), (128, 2), (192, 3)])
def test_mup_divides_the_rate_of_matrices_but_embeddings_by_the_growth_of_the_width(
    width: int, growth: float, choices: tuple[str, ...]
) -> None:
    cfg = changed(changed(small("init=mup", *choices), "model.width", width), "optim.weight_decay", 0.1)
    model = meta_model(cfg)
    [optimizer] = OPTIM.build(cfg.optim).optimizers(model, INIT.build(cfg.init))
    rates = {id(parameter): group["rate"] for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in model.named_parameters():
        whole = parameter.ndim == 1 or by_role(name) == "embedding"
        assert rates[id(parameter)] == pytest.approx(1 if whole else 1 / growth), name


@pytest.mark.parametrize("word", [word for word in INIT.words() if word != "mup"])
def test_every_other_init_leaves_all_rates_as_they_are(word: str) -> None:
    cfg = small(f"init={word}")
    optimizers = OPTIM.build(cfg.optim).optimizers(meta_model(cfg), INIT.build(cfg.init))
    assert {group["rate"] for optimizer in optimizers for group in optimizer.param_groups} == {1.0}


@pytest.mark.parametrize(
    ("word", "option"), [(word, o) for word in INIT.words() for o in INIT.options(word).model_fields if o.endswith("std")]
)
def test_an_infinite_standard_deviation_is_refused(word: str, option: str) -> None:
    with pytest.raises(ConfigError) as raised:
        changed(small(f"init={word}"), f"init.{option}", math.inf)
    assert {problem.key for problem in raised.value.problems} == {f"init.{option}"}


def test_fan_in_gives_linear_layers_one_over_the_root_of_their_inputs_and_embeddings_their_own() -> None:
    assert_ratios("fan_in", lambda name, tensor: 0.02 if by_role(name) == "embedding" else 1 / math.sqrt(tensor.shape[-1]), "ffn=moe")
    other = changed(small("init=fan_in"), "init.embedding_std", 0.07)
    plain, ours = parameters("init=fan_in"), dict(build_model(other).named_parameters())
    for name, tensor in plain.items():
        assert max_difference(ours[name], tensor * (3.5 if name == "embedding.table.weight" else 1)) < 1e-6, name


@pytest.mark.parametrize("word", INIT.words())
def test_gains_start_at_one_and_biases_at_zero(word: str) -> None:
    cfg = changed(changed(small(f"init={word}", "norm=layernorm"), "attention.qkv_bias", True), "attention.out_bias", True)
    for name, parameter in build_model(cfg).named_parameters():
        if parameter.ndim == 1:
            assert (parameter == (1 if name.endswith("weight") else 0)).all(), name


@pytest.mark.parametrize("choice", quick_first(CHOICES))
def test_building_a_model_does_not_touch_the_generator_of_torch(choice: str) -> None:
    cfg = small(choice)
    before = torch.get_rng_state()
    build_model(cfg)
    assert torch.equal(torch.get_rng_state(), before)


def test_numbers_do_not_depend_on_the_generator_of_torch() -> None:
    torch.manual_seed(1)
    first = parameters()
    torch.manual_seed(2)
    second = parameters()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_model_on_the_meta_device_has_the_names_and_shapes_of_the_real_one() -> None:
    meta = {name: parameter.shape for name, parameter in meta_model(small()).named_parameters()}
    assert meta == {name: tensor.shape for name, tensor in parameters().items()}
    assert all(tensor.is_meta for tensor in [*meta_model(small()).parameters(), *meta_model(small()).buffers()])


def test_mup_at_its_base_width_would_be_init_normal_and_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"init\.base_width.*64 is model\.width"):
        changed(small("init=mup"), "model.width", 64)
