"""Where norms stand: every placement against its formula, with sublayers and norms that are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ablate.config import build_model, meta_model, parse
from ablate.errors import ConfigError
from ablate.model.attention import ATTENTION
from ablate.model.placement import PLACEMENT, MakeNorm
from ablate.model.residual import RESIDUAL
from tests.model.conftest import max_difference, options_of, random_model, randomise, small, tokens_of, yaml_of

WORDS = PLACEMENT.words()


class Known(nn.Module):
    """A sublayer y = by * inner(x) + plus, which notes what a placement asks of it."""

    def __init__(self, by: float, plus: float, has_heads: bool) -> None:
        super().__init__()
        self.by, self.plus, self.has_heads = by, plus, has_heads
        self.gain, self.inner, self.heads_normalised = 1.0, nn.Identity(), False

    def scale_init(self, gain: float) -> None:
        self.gain = gain

    def normalise_inner(self, make_norm: MakeNorm) -> None:
        self.inner = make_norm(1)

    def normalise_heads(self, make_norm: MakeNorm) -> bool:
        self.heads_normalised = self.has_heads
        return self.has_heads

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return self.by * self.inner(x) + self.plus, None


class Square(nn.Module):
    """In place of a norm: x^2 / 8, which tells every place apart."""

    def forward(self, x: Tensor) -> Tensor:
        return x * x / 8


def known_block(word: str, layer: int, depth: int) -> nn.Module:
    attention, ffn = Known(2, 1, has_heads=True), Known(3, -1, has_heads=False)
    placed = [PLACEMENT.variant(word)(sublayer, lambda dim: Square(), 1, layer, depth) for sublayer in (attention, ffn)]
    return RESIDUAL.build(options_of(RESIDUAL, "serial"), *placed, 1, 0.0)


def n(x: float) -> float:
    return x * x / 8


def a(x: float) -> float:
    return 2 * x + 1


def f(x: float) -> float:
    return 3 * x - 1


def twice(step: Callable[[float, Callable[[float], float]], float]) -> Callable[[float], float]:
    """Attention, then feed-forward, each placed by the same rule."""
    return lambda x: step(step(x, a), f)


FORMULAS: dict[str, Callable[[float], float]] = {
    "none": twice(lambda x, g: x + g(x)),
    "pre": twice(lambda x, g: x + g(n(x))),
    "post": twice(lambda x, g: n(x + g(x))),
    "sandwich": twice(lambda x, g: x + n(g(n(x)))),
    "output": twice(lambda x, g: x + n(g(x))),
    "deepnorm": twice(lambda x, g: n(2 * x + g(x))),  # of 8 layers: (2 * 8)^(1/4) = 2
    "hybrid": lambda x: n(x + a(x)) + f(n(x + a(x))),
    "ln_scaling": twice(lambda x, g: x + g(n(x) / 2)),  # in layer 4: 1 / sqrt(4)
    "sub_ln": twice(lambda x, g: x + g(n(n(x)))),  # the sublayer's last matrix here is all of it
}


def test_every_placement_has_its_formula_here() -> None:
    assert sorted(FORMULAS) == WORDS


@pytest.mark.parametrize("word", WORDS)
def test_a_block_is_what_the_formula_of_its_placement_gives(word: str) -> None:
    y, _, _ = known_block(word, layer=3, depth=8)(torch.tensor([0.5]))
    assert y.item() == pytest.approx(FORMULAS[word](0.5), rel=1e-6)


def test_no_two_placements_give_the_same_number() -> None:
    assert len({round(formula(0.5), 6) for formula in FORMULAS.values()}) == len(FORMULAS)


@pytest.mark.parametrize("layer", range(6))
def test_ln_scaling_divides_the_normed_input_by_the_root_of_the_number_of_the_layer(layer: int) -> None:
    y, _, _ = known_block("ln_scaling", layer, depth=6)(torch.tensor([0.5]))
    root = math.sqrt(layer + 1)
    x = 0.5 + a(n(0.5) / root)
    assert y.item() == pytest.approx(x + f(n(x) / root), rel=1e-6)


@pytest.mark.parametrize(("depth", "alpha", "beta"), [(2, 2**0.5, 0.5), (8, 2.0, 0.35355339), (32, 2 * 2**0.5, 0.25)])
def test_deepnorm_has_the_alpha_and_the_beta_of_its_depth_and_never_one_alone(depth: int, alpha: float, beta: float) -> None:
    block = known_block("deepnorm", 0, depth)
    for placed in (block.attention, block.ffn):
        assert placed.stream(torch.ones(1)).item() == pytest.approx(alpha)
        assert placed.sublayer.gain == pytest.approx(beta)


@pytest.mark.parametrize(("depth", "gain"), [(1, 0.83255461), (4, 1.44202600), (12, 1.78270943)])
def test_sub_ln_starts_the_square_root_of_the_logarithm_of_twice_the_depth_larger(depth: int, gain: float) -> None:
    block = known_block("sub_ln", 0, depth)
    assert (block.attention.sublayer.gain, block.ffn.sublayer.gain) == pytest.approx((gain, gain))


@pytest.mark.parametrize("word", [word for word in WORDS if word not in ("deepnorm", "sub_ln")])
def test_other_placements_leave_the_start_of_a_sublayer_alone(word: str) -> None:
    block = known_block(word, 2, 6)
    assert (block.attention.sublayer.gain, block.ffn.sublayer.gain) == (1, 1)


# --- in the model


def norms_of(word: str) -> set[str]:
    names = [name for name, _ in meta_model(small(f"placement={word}")).named_parameters()]
    return {name.removesuffix(".weight") for name in names if "norm" in name}


def in_layers(*names: str) -> set[str]:
    return {f"blocks.{layer}.{name}" for layer in range(2) for name in names}


NORMS: dict[str, set[str]] = {
    "none": {"norm"},
    "pre": {"norm", *in_layers("attention.input_norm", "ffn.input_norm")},
    "post": in_layers("attention.residual_norm", "ffn.residual_norm"),
    "sandwich": {"norm", *in_layers("attention.input_norm", "ffn.input_norm", "attention.output_norm", "ffn.output_norm")},
    "output": {"norm", *in_layers("attention.output_norm", "ffn.output_norm")},
    "deepnorm": in_layers("attention.residual_norm", "ffn.residual_norm"),
    "hybrid": {
        "norm",
        *in_layers("attention.residual_norm"),
        *in_layers(*(f"attention.sublayer.{name}" for name in ("qk_norm.q", "qk_norm.k", "v_norm"))),
    },
    "ln_scaling": {"norm", *in_layers("attention.input_norm", "ffn.input_norm")},
    "sub_ln": {
        "norm",
        *in_layers("attention.input_norm", "ffn.input_norm", "attention.sublayer.inner_norm", "ffn.sublayer.inner_norm"),
    },
}


@pytest.mark.parametrize("word", WORDS)
def test_norms_stand_where_the_placement_says_and_before_the_head_unless_the_last_block_ends_with_one(word: str) -> None:
    assert norms_of(word) == NORMS[word]


def silenced(word: str) -> nn.Module:
    """A model whose sublayers give zero, so that norms and stream alone are left."""
    model = random_model(small(f"placement={word}"))
    with torch.no_grad():
        for block in model.blocks:
            block.attention.sublayer.out.weight.zero_()
            block.ffn.sublayer.down.weight.zero_()
    return model


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


@pytest.mark.parametrize("word", ["none", "pre", "sandwich", "output", "ln_scaling", "sub_ln"])
def test_the_stream_reaches_the_head_through_the_final_norm_alone(word: str) -> None:
    model, tokens = silenced(word), tokens_of(small())
    expected = rms(model.embedding.table.weight[tokens], model.norm.weight) @ model.head.unembed.weight.T
    assert max_difference(model(tokens), expected) < 1e-5


@pytest.mark.parametrize(("word", "alpha"), [("post", 1), ("deepnorm", 4**0.25)])
def test_the_stream_of_a_norm_on_the_sum_goes_through_every_one_of_them(word: str, alpha: float) -> None:
    model, tokens = silenced(word), tokens_of(small())
    x = model.embedding.table.weight[tokens]
    for block in model.blocks:
        x = rms(alpha * rms(alpha * x, block.attention.residual_norm.weight), block.ffn.residual_norm.weight)
    assert max_difference(model(tokens), x @ model.head.unembed.weight.T) < 1e-5


def test_hybrid_normalises_queries_keys_and_values_by_head_as_their_own_options_do() -> None:
    rmsnorm = yaml_of("norm", "rmsnorm")
    qk_norm = {"kind": "head", "norm": rmsnorm, "order": "before_rope"}
    hybrid = random_model(small("attention=gqa", "placement=hybrid")).blocks[0].attention
    plain = ATTENTION.build(options_of(ATTENTION, "gqa", qk_norm=qk_norm, v_norm=rmsnorm), 32, 4, 16, 0, 0.0)
    plain.load_state_dict(hybrid.sublayer.state_dict())
    model, x = random_model(small()), torch.randn(1, 9, 32, generator=torch.Generator().manual_seed(0))
    assert isinstance(hybrid.input_norm, nn.Identity)
    assert torch.equal(hybrid.sublayer(x, model.positions[0], None, None)[0], plain(x, model.positions[0], None, None)[0])


def test_sub_ln_normalises_what_attention_read_before_its_output_matrix() -> None:
    placed = random_model(small("placement=sub_ln")).blocks[0].attention.sublayer
    plain = ATTENTION.build(options_of(ATTENTION, "mha"), 32, 4, 16, 0, 0.0)
    randomise(plain)
    plain.load_state_dict({**{k: v for k, v in placed.state_dict().items() if "inner" not in k}, "out.weight": torch.eye(32)})
    x, position = torch.randn(1, 9, 32, generator=torch.Generator().manual_seed(0)), random_model(small()).positions[0]
    expected = rms(plain(x, position, None, None)[0], placed.inner_norm.weight) @ placed.out.weight.T
    assert max_difference(placed(x, position, None, None)[0], expected) < 1e-5


@pytest.mark.parametrize(("word", "gain"), [("deepnorm", 16**-0.25), ("sub_ln", math.sqrt(math.log(4)))])
@pytest.mark.parametrize("attention", ["gqa", "mla"])
@pytest.mark.parametrize("init", ["normal", "fan_in", "gpt2"])
def test_values_outputs_and_feed_forward_matrices_start_larger_or_smaller_and_no_others(
    word: str, gain: float, attention: str, init: str
) -> None:
    """Every matrix has a stream of its own, so the numbers of the two models differ by the factor and nothing else."""
    plain, placed = (
        dict(build_model(small(f"attention={attention}", f"placement={w}", f"init={init}")).named_parameters()) for w in ("pre", word)
    )
    scaled = ("v", "v_up", "out", "up", "down")
    for name, before in plain.items():
        if before.ndim == 2:
            factor = gain if name.startswith("blocks") and name.split(".")[-2] in scaled else 1.0
            assert max_difference(placed[name], factor * before) < 1e-6, name


# --- what cannot be


def problems(*choices: str, v_norm: dict[str, Any] | None = None) -> list[str]:
    values = {**small().model_dump(), **{axis: yaml_of(axis, word) for axis, _, word in (choice.partition("=") for choice in choices)}}
    values["attention"] = {**values["attention"], **({"v_norm": v_norm} if v_norm else {})}
    with pytest.raises(ConfigError) as raised:
        parse(values)
    return [problem.key for problem in raised.value.problems]


@pytest.mark.parametrize("word", [word for word in WORDS if word != "pre"])
def test_a_placement_of_no_norm_is_refused(word: str) -> None:
    assert problems("norm=none", f"placement={word}") == ["placement"]


def test_hybrid_needs_heads_that_have_no_norms_yet() -> None:
    assert problems("placement=hybrid", "attention=mla") == ["placement"]
    assert problems("placement=hybrid", "attention=qwen3") == ["placement"]
    for word in ("rmsnorm", "rmsnorm_no_weight"):
        assert problems("placement=hybrid", v_norm=yaml_of("norm", word)) == ["placement"]
