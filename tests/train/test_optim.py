from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW, Muon, Optimizer

from ablate.config import Config, build_model, meta_model
from ablate.errors import ConfigError
from ablate.model.count import count
from ablate.model.dropout import DROPOUT
from ablate.model.init import INIT
from ablate.model.transformer import Transformer
from ablate.train.distributed import ALONE
from ablate.train.loop import Training, train_step
from ablate.train.loss import LOSS
from ablate.train.optim import OPTIM
from ablate.train.parallel import Objective, Parallel
from ablate.train.schedule import SCHEDULE
from tests.model.conftest import changed, gradients_of, max_difference, options_of, random_model, small, targets_of, tokens_of, yaml_of

RATE = 0.01
OPTIONS = [(word, option) for word in OPTIM.words() for option in OPTIM.options(word).model_fields if option != "kind"]
OTHER_VALUES: dict[str, Any] = {"betas": [0.5, 0.6], "eps": 0.5, "lr": 0.05, "momentum": 0.5, "weight_decay": 5.0, "decay": "all"}


def optimizers(word: str, model: Transformer, init: str = "normal", **options: Any) -> list[Optimizer]:
    """The optimisers of a model, with the options of their YAML but for those given."""
    return OPTIM.build(options_of(OPTIM, word, **{"lr": RATE, **options})).optimizers(model, INIT.build(options_of(INIT, init)))


def model_with_biases() -> Transformer:
    """One parameter of every sort: gains and biases, of norms and of linear layers, and a table of positions."""
    return random_model(small("norm=layernorm", "position=learned", "attention=mha_bias", "ffn=gelu_bias", "head=untied_bias"))


def names_in(groups: list[dict[str, Any]], model: nn.Module) -> list[str]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return sorted(names[id(parameter)] for group in groups for parameter in group["params"])


def step(word: str, model: Transformer, gradients: dict[str, Tensor] | None = None, **options: Any) -> dict[str, Tensor]:
    """What one step adds to every parameter; without gradients given, those of the loss."""
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    gradients_of(small(), model)
    for name, parameter in model.named_parameters():
        if gradients is not None:
            parameter.grad = gradients[name]
    for optimizer in optimizers(word, model, **options):
        optimizer.step()
    return {name: parameter.detach() - before[name] for name, parameter in model.named_parameters()}


def zero_gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}


# --- which parameter goes where


@pytest.mark.parametrize("word", OPTIM.words())
@pytest.mark.parametrize("head", ["untied", "tied"])
def test_every_parameter_is_in_exactly_one_group(word: str, head: str) -> None:
    model = random_model(small(f"head={head}"))
    groups = [group for optimizer in optimizers(word, model) for group in optimizer.param_groups]
    assert names_in(groups, model) == sorted(name for name, _ in model.named_parameters())


@pytest.mark.parametrize("word", OPTIM.words())
def test_weight_decay_shrinks_matrices_alone_and_by_rate_times_decay(word: str) -> None:
    model = model_with_biases()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for name, change in step(word, model, zero_gradients(model), weight_decay=0.5).items():
        expected = -RATE * 0.5 * before[name] if before[name].ndim == 2 else torch.zeros_like(change)
        assert max_difference(change, expected) < 1e-6, name


EVERYTHING = (
    "ffn=moe",
    "attention/qk_norm=per_head",
    "residual=layerscale",
    "position=transformer_xl",
    "norm=layernorm",
    "head=untied_bias",
)
"""With parameters that have two dimensions and are no matrices: gains of each head, biases of each expert, two vectors of each head."""


def model_with_everything() -> Transformer:
    cfg = changed(changed(small(*EVERYTHING), "ffn.expert", yaml_of("ffn", "gelu_bias")), "ffn.router_bias", True)
    return random_model(changed(changed(cfg, "attention.sink", "learned"), "attention.gate", "head"))


MATRICES = ("q", "k", "v", "out", "gate", "router", "up", "down", "table", "unembed", "r")


def is_matrix(name: str) -> bool:
    return name.endswith(".weight") and name.split(".")[-2] in MATRICES and "qk_norm" not in name


@pytest.mark.parametrize("word", OPTIM.words())
def test_gains_of_heads_and_biases_of_experts_are_no_matrices(word: str) -> None:
    model = model_with_everything()
    shapes = {name: parameter.ndim for name, parameter in model.named_parameters()}
    assert sorted({name.split(".", 2)[2] for name, ndim in shapes.items() if ndim > 1 and not is_matrix(name) and "blocks.0" in name}) == [
        "attention.sublayer.qk_norm.k.weight",
        "attention.sublayer.qk_norm.q.weight",
        "ffn.sublayer.experts.down.bias",
        "ffn.sublayer.experts.up.bias",
    ]
    groups = [group for optimizer in optimizers(word, model, weight_decay=0.5) for group in optimizer.param_groups]
    decayed = names_in([group for group in groups if group["weight_decay"]], model)
    assert decayed == sorted(name for name in shapes if is_matrix(name))
    assert names_in(groups, model) == sorted(shapes)


@pytest.mark.parametrize("word", OPTIM.words())
def test_decay_of_all_shrinks_gains_and_biases_too(word: str) -> None:
    model = model_with_everything()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    made = optimizers(word, model, weight_decay=0.5, decay="all")
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for optimizer in made:
        optimizer.step()
    for name, parameter in model.named_parameters():
        assert max_difference(parameter.detach() - before[name], -RATE * 0.5 * before[name]) < 1e-6, name


@pytest.mark.parametrize("word", OPTIM.words())
def test_decay_of_all_without_a_weight_decay_is_refused(word: str) -> None:
    with pytest.raises(ConfigError) as raised:
        optimizers(word, random_model(small()), weight_decay=0.0, decay="all")
    assert [problem.key for problem in raised.value.problems] == ["optim.decay"]


def test_a_plain_gain_decays_to_zero_and_a_zero_centred_one_to_one() -> None:
    """The one difference between the two: after a step without a gradient the gain of one has shrunk, that of the other has moved to 1."""
    shrinking, centring = (random_model(small(f"norm={word}")) for word in ("rmsnorm", "rmsnorm_zero_centred"))
    with torch.no_grad():
        shrinking.norm.weight.fill_(3.0)
        centring.norm.weight.fill_(2.0)
    for model in (shrinking, centring):
        step("adamw", model, zero_gradients(model), weight_decay=0.5, decay="all")
    assert shrinking.norm.gain()[0].item() == pytest.approx(3 * (1 - RATE / 2))
    assert centring.norm.gain()[0].item() == pytest.approx(1 + 2 * (1 - RATE / 2))


@pytest.mark.parametrize("word", OPTIM.words())
def test_stacks_of_experts_are_left_to_adamw(word: str) -> None:
    model = model_with_everything()
    adamw = optimizers(word, model)[-1]
    assert isinstance(adamw, AdamW)
    stacks = [name for name, parameter in model.named_parameters() if parameter.ndim == 3]
    assert len(stacks) == 2 * 2
    assert set(stacks) <= set(names_in(adamw.param_groups, model))


@pytest.mark.parametrize("decay", ["matrices", "all"])
def test_rate_and_decay_of_a_group_are_each_their_own(decay: str) -> None:
    """mup: three groups of matrices and gains, whatever the decay."""
    model = random_model(small())
    [adamw] = optimizers("adamw", model, init="mup", weight_decay=0.5, decay=decay)
    found = {(group["rate"], group["weight_decay"]): names_in([group], model) for group in adamw.param_groups}
    gains = sorted(name for name, parameter in model.named_parameters() if parameter.ndim == 1)
    table = ["embedding.table.weight"]
    hidden = sorted(set(dict(model.named_parameters())) - {*gains, *table})
    if decay == "matrices":
        assert found == {(1.0, 0.5): table, (1.0, 0.0): gains, (2.0, 0.5): hidden}  # 64 / 32
    else:
        assert found == {(1.0, 0.5): sorted([*table, *gains]), (2.0, 0.5): hidden}


@pytest.mark.parametrize("word", OPTIM.words())
def test_without_weight_decay_a_zero_gradient_moves_nothing(word: str) -> None:
    model = model_with_biases()
    assert all((change == 0).all() for change in step(word, model, zero_gradients(model), weight_decay=0.0).values())


def test_muon_takes_the_matrices_of_the_blocks_and_adamw_the_rest() -> None:
    model = model_with_biases()
    muon, adamw = optimizers("muon", model)
    assert isinstance(muon, Muon)
    assert isinstance(adamw, AdamW)
    matrices = [name for name, parameter in model.named_parameters() if name.startswith("blocks.") and parameter.ndim == 2]
    assert len(matrices) == 2 * 6
    assert names_in(muon.param_groups, model) == sorted(matrices)
    assert "embedding.table.weight" in names_in(adamw.param_groups, model)
    assert "head.unembed.weight" in names_in(adamw.param_groups, model)


@pytest.mark.parametrize("word", OPTIM.words())
def test_every_group_starts_at_the_one_rate(word: str) -> None:
    groups = [group for optimizer in optimizers(word, model_with_biases()) for group in optimizer.param_groups]
    assert {group["lr"] for group in groups} == {RATE}


# --- how large a step is


def test_adamw_is_the_published_update() -> None:
    model = model_with_biases()
    gradients = {name: gradient for name, gradient in gradients_of(small(), model).items() if gradient is not None}
    options = {"betas": [0.8, 0.9], "eps": 0.01, "weight_decay": 0.0}
    [optimizer] = optimizers("adamw", model, **options)
    expected = {name: parameter.detach().double().clone() for name, parameter in model.named_parameters()}
    for t in (1, 2):
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name] * t
        optimizer.step()
    for name, gradient in gradients.items():
        mean, square = torch.zeros_like(expected[name]), torch.zeros_like(expected[name])
        for t in (1, 2):
            g = gradient.double() * t
            mean, square = 0.8 * mean + 0.2 * g, 0.9 * square + 0.1 * g**2
            expected[name] -= RATE * (mean / (1 - 0.8**t)) / ((square / (1 - 0.9**t)).sqrt() + 0.01)
    assert all(max_difference(parameter, expected[name]) < 1e-6 for name, parameter in model.named_parameters())


def test_the_first_adamw_step_moves_every_number_by_the_rate() -> None:
    for name, change in step("adamw", random_model(small()), weight_decay=0.0, eps=1e-20).items():
        moved = change.abs()[change != 0]
        assert moved.numel() > 0, name
        assert max_difference(moved, torch.full_like(moved, RATE)) < 1e-4, name


def test_root_mean_square_of_a_muon_update_is_about_a_fifth_of_the_rate_for_every_shape() -> None:
    changes = step("muon", random_model(small("attention=mqa")), weight_decay=0.0)
    blocks = {name: change for name, change in changes.items() if name.startswith("blocks.") and change.ndim == 2}
    assert len({tuple(change.shape) for change in blocks.values()}) == 4
    for name, change in blocks.items():
        assert change.square().mean().sqrt().item() / RATE == pytest.approx(0.2, rel=0.2), name


def test_a_muon_update_is_the_orthogonal_factor_of_the_gradient_whatever_its_scale() -> None:
    name = "blocks.0.ffn.sublayer.up.weight"
    u, _, v = torch.linalg.svd(torch.randn(88, 32, generator=torch.Generator().manual_seed(0)), full_matrices=False)
    for scale in (1e-3, 1.0, 1e3):
        model = random_model(small())
        gradients = zero_gradients(model) | {name: u @ torch.diag(torch.linspace(1, 5, 32)) @ v * scale}
        change = step("muon", model, gradients, weight_decay=0.0)[name]
        assert F.cosine_similarity(-change.flatten(), (u @ v).flatten(), dim=0) > 0.98


@pytest.mark.parametrize(("word", "option"), OPTIONS)
def test_an_option_changes_the_second_step(word: str, option: str) -> None:
    ends = []
    for options in ({}, {option: OTHER_VALUES[option]}):
        model = random_model(small())
        made = optimizers(word, model, **options)
        for seed in (0, 1):
            for name, parameter in model.named_parameters():
                noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed + len(name)))
                parameter.grad = noise
            for optimizer in made:
                optimizer.step()
        ends.append({name: parameter.detach() for name, parameter in model.named_parameters()})
    assert max(max_difference(ends[0][name], ends[1][name]) for name in ends[0]) > 1e-5


@pytest.mark.parametrize("betas", [[0.9], [0.9, 0.95, 0.99], [0.9, 1.0]])
def test_betas_are_two_numbers_below_one(betas: list[float]) -> None:
    with pytest.raises(ConfigError) as raised:
        optimizers("adamw", random_model(small()), betas=betas)
    assert [problem.key for problem in raised.value.problems] == ["optim.betas"]


# --- in the training loop


def training(cfg: Config) -> Training:
    """Training on the same four sequences at every step."""
    model = build_model(cfg)
    optim = OPTIM.build(cfg.optim)
    return Training(
        cfg=cfg,
        device=torch.device("cpu"),
        model=model,
        counts=count(meta_model(cfg), cfg.model.context),
        compiled=False,
        peak_flops=1.0,
        world=ALONE,
        parallel=Parallel(ALONE),
        objective=Objective(model, LOSS.build(cfg.loss)),
        rows=cfg.train.micro_batch_size,
        lr=optim.lr,
        optimizers=optim.optimizers(model, INIT.build(cfg.init)),
        schedule=SCHEDULE.build(cfg.schedule),
        batches=lambda step: (tokens_of(cfg, 4), targets_of(cfg, 4)),
        data=None,
        drops=DROPOUT.build(cfg.dropout).active,
    )


def config(**values: Any) -> Config:
    cfg = changed(changed(changed(small(), "optim.eps", 0.01), "train.micro_batch_size", 4), "train.batch_size", 4)
    for key, value in values.items():
        cfg = changed(cfg, key.replace("__", "."), value)
    return cfg


@pytest.mark.parametrize("micro_batch_size", [1, 2])
@pytest.mark.parametrize("z_loss", [0.0, 0.1])
def test_gradients_of_micro_batches_add_up_to_those_of_the_batch(micro_batch_size: int, z_loss: float) -> None:
    whole, parts = (training(config(train__micro_batch_size=size, loss__z_loss=z_loss)) for size in (4, micro_batch_size))
    for _ in range(3):
        one, many = train_step(whole), train_step(parts)
        for key in {"loss", "z_loss", "grad_norm", "lr"} & set(one):
            assert many[key] == pytest.approx(one[key], rel=1e-5), key
    theirs = dict(parts.model.named_parameters())
    assert all(max_difference(parameter, theirs[name]) < 1e-6 for name, parameter in whole.model.named_parameters())


def test_the_loss_of_a_row_is_cross_entropy_and_z_loss_stands_beside_it() -> None:
    plain, summed = train_step(training(config())), train_step(training(config(loss__z_loss=0.5)))
    assert summed["loss"] == plain["loss"]
    assert summed["z_loss"] > 1
    assert "z_loss" not in plain
    assert summed["grad_norm"] != plain["grad_norm"]


@pytest.mark.parametrize("word", OPTIM.words())
def test_twenty_steps_on_one_batch_halve_its_loss(word: str) -> None:
    run = training(config(optim={**yaml_of("optim", word), "lr": RATE}, train__tokens=20 * 64))
    losses = [train_step(run)["loss"] for _ in range(20)]
    assert losses[-1] < losses[0] / 2


def test_the_rate_of_a_step_is_the_peak_times_the_factor_of_the_schedule() -> None:
    run = training(config(optim__lr=0.5, schedule__warmup_fraction=0.5))
    expected = [0.5 * run.schedule.factor(step, run.cfg.steps) for step in range(3)]
    assert [train_step(run)["lr"] for _ in range(3)] == pytest.approx(expected)
    assert {group["lr"] for optimizer in run.optimizers for group in optimizer.param_groups} == {expected[-1]}


def test_a_gradient_above_the_limit_is_clipped_to_it_and_the_row_has_its_true_norm() -> None:
    free, clipped = training(config(train__grad_clip=float("inf"))), training(config(train__grad_clip=1e-3))
    norms = [train_step(run)["grad_norm"] for run in (free, clipped)]
    assert norms[0] == norms[1] > 0.1
    moved = [
        sum((p - q).norm() for p, q in zip(run.model.parameters(), build_model(run.cfg).parameters(), strict=True))
        for run in (free, clipped)
    ]
    assert moved[1] < 0.5 * moved[0]


def test_a_step_moves_each_group_by_the_rate_of_the_schedule_times_its_own() -> None:
    run = training(config(init=yaml_of("init", "mup"), optim__weight_decay=0.0, optim__eps=1e-20))
    before = {name: parameter.detach().clone() for name, parameter in run.model.named_parameters()}
    lr = train_step(run)["lr"]
    rates = {group["rate"]: group["lr"] for optimizer in run.optimizers for group in optimizer.param_groups}
    assert rates == pytest.approx({1.0: lr, 2.0: 2 * lr})
    for name, parameter in run.model.named_parameters():
        moved = (parameter.detach() - before[name]).abs().max().item()
        own = 1 if parameter.ndim == 1 or name == "embedding.table.weight" else 2
        assert moved == pytest.approx(own * lr, rel=1e-3), name


def test_a_step_drops_the_same_again_and_the_next_one_something_else() -> None:
    """So a resumed run drops what an unbroken one drops."""
    cfg = config(dropout=yaml_of("dropout", "dropout"), optim__lr=1e-12, optim__weight_decay=0.0)
    first, again = training(cfg), training(cfg)
    torch.manual_seed(1)
    losses = [train_step(first)["loss"] for _ in range(3)]
    torch.manual_seed(2)
    again.step = 1
    assert [train_step(again)["loss"] for _ in range(2)] == losses[1:]
    assert len(set(losses)) == 3, "the same batch, and no step to speak of"
