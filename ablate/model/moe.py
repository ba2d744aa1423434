"""ffn=moe: each token is worked on by a few experts that a router chooses. Any dense word of ablate/model/ffn.py can be the expert.

Further shapes: E experts, of which K work on a token; N = B T tokens; R = N K rows, one for each token and expert
of it; G groups of S experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn
from torch.nn import functional as F

from ablate.errors import ConfigError, Problem
from ablate.model.ffn import DENSE, FFN, Dense, FeedForward, MakeNorm
from ablate.model.linear import ExpertLinear, Linear, Rows
from ablate.registry import Count, NonNegative, Options, Positive, Ratio

AnyDense = Annotated[Options, DENSE]


class GroupLimit(BaseModel):
    """Experts in `num` groups of neighbours, of which a token may use `kept`: those of the best expert (`max`: DeepSeek-V2,
    arXiv 2405.04434, section 2.2.2) or of the largest sum of two (`top2`: DeepSeek-V3, arXiv 2412.19437, section 2.1.2)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    num: Count
    kept: Count
    score: Literal["max", "top2"]


class RouterStats(NamedTuple):
    """What a router found out about the tokens of a batch. `load_E` counts the tokens of each expert, `fraction_E` is load / tokens
    (its sum is K), `probability_E` the mean share of the scores, `squared_log_z` the mean of (log sum exp logits)^2."""

    fraction_E: Tensor
    probability_E: Tensor
    squared_log_z: Tensor
    load_E: Tensor


@FFN.register("moe")
class MoE(FeedForward):
    """y = sum over the K chosen experts of w_e expert_e(x), + shared(x) (arXiv 1701.06538; DeepSeekMoE, arXiv 2401.06066). Drops no token.

    s = score(W_router x) in float32, softmax or sigmoid; the K largest of s + selection_bias are chosen, within `groups` if there are any;
    w = output_scale * s_e, divided by the sum of the chosen s if `renormalise` (softmax then is a softmax over the chosen logits).
    `weight_on: input` gives expert_e(w_e x) instead (Llama 4). `shared_ratio` is the ratio of a shared expert that works on every token
    (null: none), times sigmoid(w x) with `shared_gate` (Qwen2-MoE). `expert` holds the options of one expert: its own ratio.

    `selection_bias_rate` above 0 balances without a loss (DeepSeek-V3, section 2.1.2): after each optimiser step the bias of an expert
    moves by it, up when the load was below the mean. `balance_loss` and `router_z_loss` weigh what `router_losses` gives.
    """

    def __init__(
        self,
        dim: int,
        *,
        expert: AnyDense,
        num_experts: Count,
        experts_per_token: Count,
        score: Literal["softmax", "sigmoid"],
        renormalise: bool,
        router_bias: bool,
        selection_bias_rate: NonNegative,
        groups: GroupLimit | None,
        output_scale: Positive,
        weight_on: Literal["output", "input"],
        shared_ratio: Ratio | None,
        shared_gate: bool,
        balance_loss: NonNegative,
        router_z_loss: NonNegative,
    ) -> None:
        super().__init__()
        problems = [
            *_problems_of_choice(num_experts, experts_per_token, score, renormalise, selection_bias_rate, balance_loss),
            *_problems_of_groups(groups, num_experts, experts_per_token),
        ]
        if shared_gate and shared_ratio is None:
            problems.append(Problem("ffn.shared_gate", "has no effect without a shared expert: set ffn.shared_ratio"))
        if problems:
            raise ConfigError(problems)
        self.num_experts, self.experts_per_token, self.groups = num_experts, experts_per_token, groups
        self.score = torch.sigmoid if score == "sigmoid" else partial(torch.softmax, dim=-1)
        self.renormalise, self.output_scale, self.weight_on_input = renormalise, output_scale, weight_on == "input"
        self.selection_bias_rate = selection_bias_rate
        self.loss_weights = {"router_balance": balance_loss, "router_z": router_z_loss}

        self.router = Linear(dim, num_experts, bias=router_bias)
        self.register_buffer("selection_bias", torch.zeros(num_experts) if selection_bias_rate else None)
        self.selection_bias: Tensor | None
        self.experts = _expert(expert, dim, partial(ExpertLinear, num_experts))
        self.shared = None if shared_ratio is None else _expert(expert.model_copy(update={"ratio": shared_ratio}), dim, Linear)
        self.shared_gate = Linear(dim, 1, bias=False) if shared_gate else None
        self.width = self.experts.width
        self.target_parameters = sum(layer.target_parameters * copies for layer, copies in self._layers())
        stacked = sum(p.numel() for matrix in self.experts.modules() if isinstance(matrix, ExpertLinear) for p in matrix.parameters())
        self.inactive_parameters = stacked // num_experts * (num_experts - experts_per_token)

    def _layers(self) -> list[tuple[Dense, int]]:
        """The dense layers within, and how many of each there are."""
        return [(self.experts, self.num_experts), *([] if self.shared is None else [(self.shared, 1)])]

    def scale_init(self, gain: float) -> None:
        for layer, _ in self._layers():
            layer.scale_init(gain)

    def normalise_inner(self, make_norm: MakeNorm) -> None:
        """One norm for all routed experts, one for the shared expert, which has another width."""
        for layer, _ in self._layers():
            layer.normalise_inner(make_norm)

    def forward(self, x_BTD: Tensor) -> tuple[Tensor, RouterStats]:
        x_ND = x_BTD.flatten(0, 1)
        logits_NE = self.logits(x_ND)
        score_NE = self.score(logits_NE)
        expert_NK, weight_NK = self.choose(score_NE)
        y_ND, load_E = self.work(x_ND, expert_NK, weight_NK)
        if self.shared is not None:
            shared_ND = self.shared.transform(x_ND)
            y_ND = y_ND + (shared_ND if self.shared_gate is None else self.shared_gate(x_ND).sigmoid() * shared_ND)
        stats = RouterStats(
            fraction_E=load_E / x_ND.shape[0],
            probability_E=(score_NE / score_NE.sum(-1, keepdim=True)).mean(0),
            squared_log_z=logits_NE.logsumexp(-1).square().mean(),
            load_E=load_E,
        )
        return y_ND.view_as(x_BTD), stats

    def logits(self, x_ND: Tensor) -> Tensor:
        """In float32, under autocast too: rounding here changes which experts are chosen (arXiv 2101.03961, section 2.4)."""
        bias = None if self.router.bias is None else self.router.bias.float()
        with torch.autocast("cuda" if x_ND.is_cuda else "cpu", enabled=False):
            return F.linear(x_ND.float(), self.router.weight.float(), bias)

    def choose(self, score_NE: Tensor) -> tuple[Tensor, Tensor]:
        """The experts of each token and their weights; the selection bias moves the choice and not the weights."""
        selection_NE = score_NE.detach() if self.selection_bias is None else score_NE.detach() + self.selection_bias
        if self.groups is not None:
            selection_NE = within_best_groups(selection_NE, self.groups)
        expert_NK = selection_NE.topk(self.experts_per_token, dim=-1).indices
        weight_NK = score_NE.gather(1, expert_NK)
        if self.renormalise:
            weight_NK = weight_NK / (weight_NK.sum(-1, keepdim=True) + 1e-20)  # sigmoids may all be 0
        return expert_NK, weight_NK * self.output_scale

    def work(self, x_ND: Tensor, expert_NK: Tensor, weight_NK: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted sum of the chosen experts, and the load of each. All shapes are known before: nothing waits for the device."""
        expert_R, order_R = expert_NK.flatten().sort(stable=True)
        every_expert_E = torch.arange(self.num_experts, device=x_ND.device)
        ends_E = torch.searchsorted(expert_R, every_expert_E, right=True, out_int32=True)
        load_E = ends_E.diff(prepend=ends_E.new_zeros(1))
        x_NKD = x_ND.unsqueeze(1).expand(-1, self.experts_per_token, -1)
        if self.weight_on_input:
            x_NKD = (x_NKD * weight_NK.unsqueeze(-1)).type_as(x_ND)
        # Both gathers are permutations, so that their gradients add nothing up in an order that changes from run to run.
        y_RD = self.experts.transform(x_NKD.flatten(0, 1).index_select(0, order_R), Rows(expert_R, ends_E))
        y_NKD = y_RD.index_select(0, order_R.argsort()).view(*expert_NK.shape, -1)
        if self.weight_on_input:
            return y_NKD.sum(1), load_E
        return (y_NKD * weight_NK.unsqueeze(-1)).sum(1).type_as(y_RD), load_E


def within_best_groups(score_NE: Tensor, groups: GroupLimit) -> Tensor:
    """The scores, minus infinity outside the groups that a token may use."""
    score_NGS = score_NE.unflatten(-1, (groups.num, -1))
    best_NG = score_NGS.topk(1 if groups.score == "max" else 2, dim=-1).values.sum(-1)
    kept_NG = torch.zeros_like(best_NG, dtype=torch.bool).scatter(1, best_NG.topk(groups.kept, dim=-1).indices, True)
    return score_NGS.masked_fill(~kept_NG.unsqueeze(-1), -torch.inf).flatten(1)


def router_losses(stats: Sequence[RouterStats]) -> dict[str, Tensor]:
    """`router_balance`: E sum_e f_e p_e (arXiv 2101.03961, eq. 4), f the fraction of tokens and p the mean probability of an expert, both
    averaged over all layers before the product, as Mixtral's code has it; K when balanced. `router_z`: the mean over tokens and layers of
    (log Z)^2 (arXiv 2202.08906, eq. 5). One entry of `stats` a layer; layers of another number of experts are averaged on their own.
    """
    if not stats:
        return {}
    pools: dict[int, list[RouterStats]] = {}
    for found in stats:
        pools.setdefault(found.fraction_E.numel(), []).append(found)
    balance = [
        len(pool) * num * (_mean(s.fraction_E for s in pool) * _mean(s.probability_E for s in pool)).sum() for num, pool in pools.items()
    ]
    return {"router_balance": torch.stack(balance).sum() / len(stats), "router_z": _mean(s.squared_log_z for s in stats)}


def router_loss_weights(model: nn.Module) -> dict[str, float]:
    """The weights of `router_losses` in the sum that training minimises; {} without a router. Layers must agree, as they are one loss."""
    weights = [layer.loss_weights for layer in model.modules() if isinstance(layer, MoE)]
    problems = [
        Problem(f"ffn.{option}", f"is one loss over all layers, so that all need the same value; got {sorted({w[name] for w in weights})}")
        for name, option in (("router_balance", "balance_loss"), ("router_z", "router_z_loss"))
        if len({w[name] for w in weights}) > 1
    ]
    if problems:
        raise ConfigError(problems)
    return weights[0] if weights else {}


@torch.no_grad()
def update_selection_bias(model: nn.Module, loads: Sequence[Tensor]) -> None:
    """After an optimiser step: bias_e += rate * sign(mean load - load_e). `loads`: one load_E a layer, summed over the step's batches."""
    layers = [layer for layer in model.modules() if isinstance(layer, MoE)]
    for layer, load_E in zip(layers, loads, strict=True):
        if layer.selection_bias is not None:
            load = load_E.float()
            layer.selection_bias += layer.selection_bias_rate * torch.sign(load.mean() - load)


def _mean(tensors: Any) -> Tensor:
    return torch.stack(list(tensors)).mean(0)


def _expert(options: Options, dim: int, matrix: Any) -> Dense:
    try:
        return DENSE.build(options, dim, matrix)
    except ConfigError as error:
        raise ConfigError(Problem(problem.key.replace("ffn", "ffn.expert", 1), problem.message) for problem in error.problems) from None


def _problems_of_choice(
    num_experts: int, experts_per_token: int, score: str, renormalise: bool, selection_bias_rate: float, balance_loss: float
) -> list[Problem]:
    """Numbers that cannot be, and options that would have no effect."""
    problems = []
    if num_experts == 1:
        problems.append(Problem("ffn.num_experts", "1 leaves nothing to choose: choose the word of ffn.expert itself"))
    elif experts_per_token > num_experts:
        problems.append(Problem("ffn.experts_per_token", f"must be at most ffn.num_experts={num_experts}, got {experts_per_token}"))
    if experts_per_token == num_experts:
        for option, value in (("selection_bias_rate", selection_bias_rate), ("balance_loss", balance_loss)):
            if value:
                problems.append(Problem(f"ffn.{option}", "has no effect when every expert works on every token"))
        if score == "softmax" and renormalise:
            problems.append(Problem("ffn.renormalise", "has no effect when every expert works on every token: softmax sums to 1; false"))
    elif experts_per_token == 1 and renormalise:
        problems.append(Problem("ffn.renormalise", "with one expert a token its weight is always 1, and the router learns nothing: false"))
    return problems


def _problems_of_groups(groups: GroupLimit | None, num_experts: int, experts_per_token: int) -> list[Problem]:
    if groups is None:
        return []
    size, rest = divmod(num_experts, groups.num)
    if rest:
        return [Problem("ffn.groups.num", f"must divide ffn.num_experts={num_experts}, got {groups.num}")]
    if groups.kept >= groups.num:
        return [Problem("ffn.groups.kept", f"must be below ffn.groups.num={groups.num}, got {groups.kept}; for no limit: ffn.groups=null")]
    if size == 1:
        return [Problem("ffn.groups.num", "groups of one expert limit nothing: ffn.groups=null")]
    if groups.kept * size < experts_per_token:
        message = f"{groups.kept} groups of {size} experts are too few for ffn.experts_per_token={experts_per_token}"
        return [Problem("ffn.groups.kept", message)]
    if groups.score == "max" and groups.kept >= experts_per_token:
        message = f"{groups.kept} groups always hold the best {experts_per_token} experts, so that the limit has no effect: ffn.groups=null"
        return [Problem("ffn.groups.kept", message)]
    return []
