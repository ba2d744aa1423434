from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.library import opcheck
from torch.utils.flop_counter import FlopCounterMode
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from ablate.errors import ConfigError
from ablate.model.ffn import DENSE, FFN
from ablate.model.grouped import grouped_product
from ablate.model.linear import ExpertLinear
from ablate.model.moe import GroupLimit, MoE, RouterStats, router_loss_weights, router_losses, update_selection_bias, within_best_groups
from tests.model.conftest import QUIET_COMPILER, max_difference, randomise, yaml_of

DIM, TOKENS = 16, 24

SETTINGS: dict[str, dict[str, Any]] = {
    "mixtral": {},
    "renormalised not": {"renormalise": False},
    "sigmoid": {"score": "sigmoid"},
    "sigmoid, not renormalised, scaled": {"score": "sigmoid", "renormalise": False, "output_scale": 2.5},
    "one expert": {"experts_per_token": 1, "renormalise": False},
    "all experts": {"experts_per_token": 8, "balance_loss": 0, "renormalise": False},
    "router bias": {"router_bias": True},
    "selection bias": {"score": "sigmoid", "selection_bias_rate": 0.1},
    "groups by max": {"experts_per_token": 3, "groups": {"num": 4, "kept": 2, "score": "max"}},
    "groups by two": {"score": "sigmoid", "selection_bias_rate": 0.1, "groups": {"num": 4, "kept": 2, "score": "top2"}},
    "weight on the input": {"score": "sigmoid", "renormalise": False, "weight_on": "input"},
    "shared expert": {"shared_ratio": 0.5},
    "shared expert with a gate": {"shared_ratio": 0.5, "shared_gate": True},
}


def moe(dim: int = DIM, expert: dict[str, Any] | None = None, **options: Any) -> MoE:
    values = yaml_of("ffn", "moe")
    values["expert"] = {**(yaml_of("ffn", "swiglu") if "kind" not in (expert or {}) else {}), "ratio": 1, **(expert or {})}
    module = FFN.build(FFN.options("moe").model_validate({**values, **options}), dim)
    assert isinstance(module, MoE)
    return module


def random_moe(dim: int = DIM, **options: Any) -> MoE:
    module = moe(dim, **options)
    randomise(module)
    if module.selection_bias is not None:
        module.selection_bias += torch.randn(module.num_experts, generator=torch.Generator().manual_seed(5)) / 4
    return module


def tokens(dim: int = DIM, num: int = TOKENS, seed: int = 0) -> Tensor:
    return torch.randn(2, num // 2, dim, generator=torch.Generator().manual_seed(seed))


# --- the layer against loops


def slow_moe(module: MoE, x_D: Tensor, options: dict[str, Any]) -> Tensor:
    """One token in float64, as the papers write it, with Python's own sorting."""
    logit = module.router.weight.double() @ x_D + (0 if module.router.bias is None else module.router.bias.double())
    if options.get("score") == "sigmoid":
        score = [1 / (1 + math.exp(-z)) for z in logit.tolist()]
    else:
        score = [math.exp(z) / sum(math.exp(other) for other in logit.tolist()) for z in logit.tolist()]
    bias = [0.0] * len(score) if module.selection_bias is None else module.selection_bias.tolist()
    wish = [value + extra for value, extra in zip(score, bias, strict=True)]
    chosen = sorted(allowed(wish, options), key=lambda expert: -wish[expert])[: module.experts_per_token]
    total = sum(score[expert] for expert in chosen) if options.get("renormalise", True) else 1.0
    y_D = torch.zeros_like(x_D)
    for expert in chosen:
        weight = options.get("output_scale", 1.0) * score[expert] / total
        if options.get("weight_on") == "input":
            y_D += one_expert(module, expert, weight * x_D)
        else:
            y_D += weight * one_expert(module, expert, x_D)
    if module.shared is not None:
        gate = 1 if module.shared_gate is None else torch.sigmoid(module.shared_gate.weight.double() @ x_D)
        y_D += gate * module.shared.double()(x_D)[0]
    return y_D


def allowed(wish: list[float], options: dict[str, Any]) -> set[int]:
    """The experts of the groups that a token may use."""
    groups = options.get("groups")
    if groups is None:
        return set(range(len(wish)))
    size = len(wish) // groups["num"]
    members = [list(range(group * size, (group + 1) * size)) for group in range(groups["num"])]
    best = 1 if groups["score"] == "max" else 2
    value = [sum(sorted((wish[expert] for expert in group), reverse=True)[:best]) for group in members]
    kept = sorted(range(groups["num"]), key=lambda group: -value[group])[: groups["kept"]]
    return {expert for group in kept for expert in members[group]}


def one_expert(module: MoE, expert: int, x_D: Tensor) -> Tensor:
    gate, up, down = (getattr(module.experts, name).weight[expert].double() for name in ("gate", "up", "down"))
    g_F, u_F = gate @ x_D, up @ x_D
    return down @ (g_F / (1 + torch.exp(-g_F)) * u_F)


@pytest.mark.parametrize("name", SETTINGS)
@torch.no_grad()
def test_each_token_gets_what_a_loop_over_its_experts_gives(name: str) -> None:
    options = SETTINGS[name]
    module, x_BTD = random_moe(**options), tokens()
    y_BTD = module(x_BTD)[0]
    expected = torch.stack([slow_moe(module, x_D, options) for x_D in x_BTD.double().flatten(0, 1)])
    assert max_difference(y_BTD.flatten(0, 1), expected) < 1e-5 * max(1, expected.abs().max())


@pytest.mark.parametrize("word", DENSE.words())
def test_equal_experts_whose_weights_sum_to_one_are_one_dense_layer(word: str) -> None:
    module = random_moe(expert={**yaml_of("ffn", word), "ratio": 1, "up_bias": True, "down_bias": True})
    dense = DENSE.build(DENSE.options(word).model_validate({**yaml_of("ffn", word), "ratio": 1, "up_bias": True, "down_bias": True}), DIM)
    dense.load_state_dict({name: stacked[0] if stacked.ndim else stacked for name, stacked in module.experts.state_dict().items()})
    with torch.no_grad():
        for stacked in module.experts.parameters():
            stacked.copy_(stacked[:1].expand_as(stacked) if stacked.ndim else stacked)
    expected = dense(tokens())[0]
    assert max_difference(module(tokens())[0], expected) < 1e-5 * max(1, expected.abs().max())


def test_a_token_does_not_see_another() -> None:
    module, x_BTD = random_moe(), tokens()
    other = x_BTD.clone()
    other[0, 3] += 1
    before, after = module(x_BTD)[0], module(other)[0]
    moved_BT = (before - after).abs().amax(-1) > 1e-6
    assert moved_BT.nonzero().tolist() == [[0, 3]]


def test_gradients_are_those_of_a_dense_product_with_a_mask() -> None:
    """Every expert on every token, times a weight that is 0 where it was not chosen: another way to the same function."""
    module, x_BTD = random_moe(expert={"up_bias": True, "down_bias": True}), tokens()
    parameters = dict(module.named_parameters())
    direction = torch.randn(x_BTD.shape, generator=torch.Generator().manual_seed(9))
    found = torch.autograd.grad((module(x_BTD)[0] * direction).sum(), list(parameters.values()))
    score_NE = (x_BTD.flatten(0, 1) @ module.router.weight.T).softmax(-1)
    kept_NE = torch.zeros_like(score_NE).scatter(1, score_NE.topk(2).indices, 1.0)
    weight_NE = score_NE * kept_NE / (score_NE * kept_NE).sum(-1, keepdim=True)

    def every(name: str, x: Tensor) -> Tensor:
        matrix = getattr(module.experts, name)
        return torch.einsum("...i,eoi->e...o", x, matrix.weight) if x.ndim == 2 else torch.einsum("eni,eoi->eno", x, matrix.weight)

    x_ND = x_BTD.flatten(0, 1)
    gate, up, down = module.experts.gate, module.experts.up, module.experts.down
    hidden_ENF = nn.functional.silu(every("gate", x_ND) + gate.bias[:, None]) * (every("up", x_ND) + up.bias[:, None])
    y_END = every("down", hidden_ENF) + down.bias[:, None]
    y_ND = (y_END * weight_NE.T[..., None]).sum(0)
    expected = torch.autograd.grad((y_ND * direction.flatten(0, 1)).sum(), list(parameters.values()))
    for name, ours, theirs in zip(parameters, found, expected, strict=True):
        assert max_difference(ours, theirs) < 1e-4 * theirs.abs().max(), name


@pytest.mark.parametrize("name", SETTINGS)
def test_the_router_learns_from_the_output(name: str) -> None:
    module = random_moe(**SETTINGS[name])
    module(tokens())[0].square().sum().backward()
    assert module.router.weight.grad is not None
    assert module.router.weight.grad.abs().max() > 1e-4


# --- choice


def test_the_selection_bias_moves_the_choice_and_not_the_weights() -> None:
    module = moe(selection_bias_rate=0.1, score="sigmoid", renormalise=False)
    score_NE = torch.rand(50, 8, generator=torch.Generator().manual_seed(0))
    assert module.selection_bias is not None
    module.selection_bias[3] = 10.0
    expert_NK, weight_NK = module.choose(score_NE)
    assert (expert_NK == 3).any(-1).all()
    assert torch.equal(weight_NK, score_NE.gather(1, expert_NK))
    module.selection_bias.zero_()
    assert not (module.choose(score_NE)[0] == 3).any(-1).all()


def test_the_selection_bias_rises_for_an_idle_expert_and_falls_for_a_busy_one() -> None:
    model = nn.ModuleList([moe(num_experts=4, selection_bias_rate=0.25), moe(num_experts=4)])
    update_selection_bias(model, [torch.tensor([0, 5, 5, 10]), torch.tensor([20, 0, 0, 0])])
    update_selection_bias(model, [torch.tensor([5, 5, 4, 6]), torch.tensor([20, 0, 0, 0])])
    assert model[0].selection_bias.tolist() == [0.25, 0, 0.25, -0.5]
    assert model[1].selection_bias is None


def test_the_selection_bias_balances_a_router_that_prefers_one_expert() -> None:
    module, x_BTD = random_moe(num_experts=4, score="sigmoid", selection_bias_rate=0.05, router_bias=True), tokens(num=400)
    module.selection_bias.zero_()
    nn.init.constant_(module.router.bias[:1], 3.0)
    loads = []
    for _ in range(60):
        loads.append(module(x_BTD)[1].load_E)
        update_selection_bias(nn.ModuleList([module]), [loads[-1]])
    assert loads[0].max() > 350
    assert (loads[-1] - 200).abs().max() < 25


def test_the_selection_bias_is_kept_in_the_state_of_the_model_and_only_where_it_is_used() -> None:
    module = random_moe(selection_bias_rate=0.1)
    assert torch.equal(module.state_dict()["selection_bias"], module.selection_bias)
    assert "selection_bias" not in moe().state_dict()
    assert "selection_bias" not in dict(module.named_parameters())


@pytest.mark.parametrize("score", ["max", "top2"])
def test_groups_are_kept_as_a_loop_keeps_them(score: str) -> None:
    groups = {"num": 4, "kept": 2, "score": score}
    score_NE = torch.rand(200, 12, generator=torch.Generator().manual_seed(0))
    limited = within_best_groups(score_NE, GroupLimit.model_validate(groups))
    for before, after in zip(score_NE.tolist(), limited.tolist(), strict=True):
        expected = allowed(before, {"groups": groups})
        assert after == [value if expert in expected else -math.inf for expert, value in enumerate(before)]


def test_groups_by_their_best_and_by_their_two_best_are_not_the_same() -> None:
    score_NE = torch.tensor([[0.9, 0.0, 0.5, 0.5]])
    kept = {name: within_best_groups(score_NE, GroupLimit(num=2, kept=1, score=name)).isfinite().tolist() for name in ("max", "top2")}
    assert kept == {"max": [[True, True, False, False]], "top2": [[False, False, True, True]]}


def test_the_router_works_in_float32_under_autocast() -> None:
    module, x_BTD = random_moe(), tokens()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits_NE = module.logits(x_BTD.flatten(0, 1))
        y_BTD, stats = module(x_BTD)
    assert torch.equal(logits_NE, module.logits(x_BTD.flatten(0, 1)))
    assert torch.equal(stats.load_E, module(x_BTD)[1].load_E)
    assert (y_BTD.dtype, stats.probability_E.dtype) == (torch.bfloat16, torch.float32)
    assert max_difference(y_BTD, module(x_BTD)[0]) < 0.02 * y_BTD.abs().max()


# --- statistics and losses


def stats_of(logits_NE: Tensor, experts_per_token: int) -> RouterStats:
    """What a layer reports whose router gives these logits: its router is the identity."""
    num_experts = logits_NE.shape[1]
    module = moe(num_experts, num_experts=num_experts, experts_per_token=experts_per_token)
    with torch.no_grad():
        module.router.weight.copy_(torch.eye(num_experts))
        for matrix in module.experts.parameters():
            matrix.zero_()
    stats = module(logits_NE.unsqueeze(0))[1]
    assert isinstance(stats, RouterStats)
    return stats


def test_the_balance_loss_is_that_of_mixtral_pooled_over_layers() -> None:
    logits = [torch.randn(40, 8, generator=torch.Generator().manual_seed(seed)) * 2 for seed in range(4)]
    stats = [stats_of(layer, 2) for layer in logits]
    theirs = load_balancing_loss_func(tuple(logits), num_experts=8, top_k=2)
    assert router_losses(stats)["router_balance"].item() == pytest.approx(theirs.item(), rel=1e-6)


def test_the_balance_loss_is_not_the_mean_of_the_losses_of_the_layers() -> None:
    """Layers that each prefer another expert are balanced as a whole."""
    logits = [torch.randn(40, 8, generator=torch.Generator().manual_seed(seed)) + 2 * torch.eye(8)[seed] for seed in range(4)]
    stats = [stats_of(layer, 2) for layer in logits]
    mean = sum(router_losses([layer])["router_balance"].item() for layer in stats) / 4
    assert mean > 1.2 * router_losses(stats)["router_balance"].item()


def test_layers_with_other_numbers_of_experts_are_averaged_on_their_own() -> None:
    of_8 = [stats_of(torch.randn(40, 8, generator=torch.Generator().manual_seed(seed)), 2) for seed in range(2)]
    of_4 = [stats_of(torch.randn(40, 4, generator=torch.Generator().manual_seed(7)), 2)]
    parts = [router_losses(stats)["router_balance"].item() for stats in (of_8, of_4)]
    assert router_losses([*of_8, *of_4])["router_balance"].item() == pytest.approx((2 * parts[0] + parts[1]) / 3)


def test_a_balanced_router_has_a_balance_loss_of_its_experts_per_token() -> None:
    logits_NE = torch.eye(8).repeat(5, 1) + 0.5 * torch.eye(8).roll(1, 0).repeat(5, 1)
    stats = stats_of(logits_NE, 2)
    assert stats.load_E.tolist() == [10] * 8
    assert router_losses([stats])["router_balance"].item() == pytest.approx(2)


def test_the_z_loss_is_the_mean_square_of_log_z_over_tokens_and_layers() -> None:
    logits = [torch.randn(40, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    by_hand = [math.log(sum(math.exp(z) for z in token)) ** 2 for layer in logits for token in layer.tolist()]
    assert router_losses([stats_of(layer, 2) for layer in logits])["router_z"].item() == pytest.approx(sum(by_hand) / 80, rel=1e-5)


@pytest.mark.parametrize("part", ["router_balance", "router_z"])
@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_a_router_loss_falls_along_its_gradient(part: str, score: str) -> None:
    module, x_BTD = random_moe(score=score), tokens(num=200)
    before = router_losses([module(x_BTD)[1]])[part]
    before.backward()
    with torch.no_grad():
        gradient = module.router.weight.grad
        assert gradient is not None
        module.router.weight -= 0.1 * gradient / gradient.norm()
    assert router_losses([module(x_BTD)[1]])[part] < before


def test_loads_count_every_token_once_for_each_of_its_experts() -> None:
    module = random_moe(num_experts=5, experts_per_token=3)
    stats = module(tokens())[1]
    score_NE = module.logits(tokens().flatten(0, 1))
    assert stats.load_E.tolist() == torch.bincount(score_NE.topk(3).indices.flatten(), minlength=5).tolist()
    assert stats.fraction_E.sum().item() == pytest.approx(3)
    assert stats.probability_E.sum().item() == pytest.approx(1)


def test_weights_of_the_router_losses_are_those_of_the_config_and_one_for_all_layers() -> None:
    first, second = moe(balance_loss=0.5, router_z_loss=0.25), moe(balance_loss=0.5, router_z_loss=0.125)
    assert router_loss_weights(nn.ModuleList([first, first])) == {"router_balance": 0.5, "router_z": 0.25}
    assert router_loss_weights(nn.ModuleList()) == {}
    with pytest.raises(ConfigError, match=r"ffn.router_z_loss .*\[0.125, 0.25\]"):
        router_loss_weights(nn.ModuleList([first, second]))


# --- parameters and FLOPs


def test_parameters_that_do_not_work_on_a_token_are_those_of_the_experts_it_does_not_use() -> None:
    module = moe(num_experts=8, experts_per_token=2, shared_ratio=1, shared_gate=True, expert={"up_bias": True, "down_bias": True})
    width = module.width
    expert = 3 * DIM * width + 2 * width + DIM
    assert sum(p.numel() for p in module.parameters()) == 9 * expert + 8 * DIM + DIM
    assert module.inactive_parameters == 6 * expert
    assert FFN.build(FFN.options("relu").model_validate(yaml_of("ffn", "relu")), DIM).inactive_parameters == 0


def test_one_pair_of_learned_numbers_serves_all_experts() -> None:
    values = {**yaml_of("ffn", "moe"), "expert": yaml_of("ffn", "xielu")}
    module = FFN.build(FFN.options("moe").model_validate(values), DIM)
    assert module.inactive_parameters == 6 * 2 * DIM * module.width


def test_two_of_eight_experts_of_half_the_ratio_work_as_hard_as_the_dense_layer() -> None:
    values = yaml_of("ffn", "moe")
    values["expert"]["ratio"] = 2
    module = FFN.build(FFN.options("moe").model_validate(values), 96)
    active = sum(p.numel() for p in module.parameters()) - module.inactive_parameters
    assert active == 8 * 96**2 + 8 * 96  # and the router
    assert module.parameter_error == pytest.approx(8 * 96 / (4 * 8 * 96**2))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_flops_are_two_for_each_active_weight_on_every_device(device: str) -> None:
    module = moe(shared_ratio=1).to(device)
    active = sum(p.numel() for p in module.parameters()) - module.inactive_parameters
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(tokens().to(device))
    assert counter.get_total_flops() == 2 * active * TOKENS


def test_flops_of_the_backward_pass_are_twice_those_of_the_forward_pass() -> None:
    module, x_BTD = random_moe(), tokens().requires_grad_()
    with FlopCounterMode(display=False) as counter:
        y_BTD = module(x_BTD)[0]
        forward = counter.get_total_flops()
        y_BTD.sum().backward()
    assert counter.get_total_flops() == 3 * forward


# --- the product of sorted rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("ends", [[2, 2, 7, 10], [0, 0, 10, 10], [10, 10, 10, 10]])
def test_grouped_product_and_its_gradients_are_those_of_a_loop(dtype: torch.dtype, ends: list[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    x_RI = torch.randn(10, 6, generator=generator).to(dtype).requires_grad_()
    matrix_GIO = torch.randn(4, 6, 5, generator=generator).to(dtype).requires_grad_()
    y_RO = grouped_product(x_RI, matrix_GIO, torch.tensor(ends, dtype=torch.int32))
    parts = [x_RI[start:end] @ matrix for start, end, matrix in zip([0, *ends], ends, matrix_GIO, strict=False)]
    expected_RO = torch.cat(parts)
    direction = torch.randn(10, 5, generator=generator).to(dtype)
    tolerance = 0.05 if dtype == torch.bfloat16 else 1e-5
    assert max_difference(y_RO, expected_RO) < tolerance
    for ours, theirs in zip(
        torch.autograd.grad(y_RO, [x_RI, matrix_GIO], direction),
        torch.autograd.grad(expected_RO, [x_RI, matrix_GIO], direction),
        strict=True,
    ):
        assert ours.dtype == dtype
        assert max_difference(ours, theirs) < tolerance


def test_grouped_product_takes_a_gradient_of_any_layout() -> None:
    x_RI, matrix_GIO = torch.randn(10, 6), torch.randn(2, 6, 5, requires_grad=True)
    grouped_product(x_RI, matrix_GIO, torch.tensor([4, 10], dtype=torch.int32)).sum().backward()
    assert matrix_GIO.grad is not None
    expected = torch.stack([x_RI[:4].sum(0), x_RI[4:].sum(0)])[..., None].expand(2, 6, 5)
    assert max_difference(matrix_GIO.grad, expected) < 1e-5


def test_grouped_product_keeps_the_rules_of_an_operator_of_pytorch() -> None:
    """Shapes without numbers, gradients, tracing."""
    x_RI, matrix_GIO = torch.randn(10, 16, requires_grad=True), torch.randn(3, 16, 8, requires_grad=True)
    opcheck(torch.ops.ablate.rows_by_matrices.default, (x_RI, matrix_GIO, torch.tensor([3, 3, 10], dtype=torch.int32)))


def test_stacked_matrices_start_empty_and_say_what_they_are() -> None:
    matrix = ExpertLinear(3, 4, 5, bias=True, writes=True)
    assert (matrix.weight.shape, matrix.in_features, matrix.out_features, matrix.writes, matrix.gain) == ((3, 5, 4), 4, 5, True, 1.0)
    assert matrix.bias is not None
    assert matrix.bias.shape == (3, 5)


# --- options that cannot be or do nothing


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("ffn.num_experts", {"num_experts": 1, "experts_per_token": 1, "renormalise": False, "balance_loss": 0}),
        ("ffn.experts_per_token", {"experts_per_token": 9}),
        ("ffn.balance_loss", {"experts_per_token": 8, "renormalise": False}),
        ("ffn.renormalise", {"experts_per_token": 8, "balance_loss": 0}),
        ("ffn.selection_bias_rate", {"experts_per_token": 8, "balance_loss": 0, "renormalise": False, "selection_bias_rate": 0.1}),
        ("ffn.renormalise", {"experts_per_token": 1}),
        ("ffn.shared_gate", {"shared_gate": True}),
        ("ffn.groups.num", {"groups": {"num": 3, "kept": 2, "score": "top2"}}),
        ("ffn.groups.num", {"groups": {"num": 8, "kept": 2, "score": "top2"}}),
        ("ffn.groups.kept", {"groups": {"num": 4, "kept": 4, "score": "top2"}}),
        ("ffn.groups.kept", {"groups": {"num": 4, "kept": 1, "score": "top2"}, "experts_per_token": 3}),
        ("ffn.groups.kept", {"groups": {"num": 4, "kept": 2, "score": "max"}}),
        ("ffn.expert", {"expert": {**yaml_of("ffn", "swiglu_clamped"), "limit": math.inf, "alpha": 1, "up_offset": 0}}),
        ("ffn.expert.alpha_n", {"expert": {**yaml_of("ffn", "xielu"), "alpha_n": 0.1}}),
    ],
)
def test_what_cannot_be_or_does_nothing_is_refused_by_its_key(key: str, options: dict[str, Any]) -> None:
    values = {**yaml_of("ffn", "moe"), **options}
    with pytest.raises(ConfigError) as caught:
        FFN.build(FFN.options("moe").model_validate(values), DIM)
    assert [problem.key for problem in caught.value.problems] == [key]


def test_enough_groups_for_the_best_experts_limit_nothing() -> None:
    """Why groups by max that are as many as the experts of a token are refused."""
    score_NE = torch.rand(500, 12, generator=torch.Generator().manual_seed(0))
    limited = within_best_groups(score_NE, GroupLimit(num=4, kept=2, score="max"))
    assert torch.equal(limited.topk(2).indices, score_NE.topk(2).indices)
    assert not torch.equal(limited.topk(3).indices, score_NE.topk(3).indices)


# --- compiling


@pytest.mark.filterwarnings(*QUIET_COMPILER)
@pytest.mark.parametrize("name", ["groups by two", "shared expert with a gate"])
def test_the_layer_is_captured_as_one_graph(name: str) -> None:
    module, x_BTD = random_moe(**SETTINGS[name]), tokens()
    expected = module(x_BTD)[0]
    torch.compiler.reset()
    module.compile(fullgraph=True, dynamic=False, backend="aot_eager")
    y_BTD = module(x_BTD)[0]
    y_BTD.square().sum().backward()
    assert max_difference(y_BTD, expected) < 1e-5 * max(1, expected.abs().max())
