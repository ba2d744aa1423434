"""What every registered variant of every axis must hold, unasked: a new variant is tested here without a new line."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn import functional as F

from ablate.config import ARCHITECTURE, AXES, Config, build_model, meta_model
from ablate.errors import ConfigError
from ablate.model.linear import Linear
from ablate.model.transformer import Transformer
from ablate.train.loss import LOSS
from tests.model.conftest import (
    CHOICES,
    DIFFERENT,
    PRESETS,
    QUIET_COMPILER,
    STABILITY,
    changed,
    composed,
    differ,
    gradients_of,
    max_difference,
    quick_first,
    random_model,
    small,
    targets_of,
    tokens_of,
    yaml_of,
    yaml_words,
)

VARIANTS = [(axis, word) for axis, registry in AXES.items() for word in registry.words()]
FILES = [(axis, word) for axis in AXES for word in yaml_words(axis)]
ALL_CHOICES = quick_first([*CHOICES, *STABILITY])
STABILITY_WORDS = [word for word in yaml_words("stability") if word != "none"]
NEEDING_DATA = ("data", "tokenizer")
AS_CHOSEN = [axis for axis in AXES if axis not in (*NEEDING_DATA, "match")]  # match sets values of others: tests/test_matching.py


# --- YAML and signature


@pytest.mark.parametrize(("axis", "word"), VARIANTS)
def test_every_registered_variant_has_a_yaml_of_its_name(axis: str, word: str) -> None:
    assert yaml_of(axis, word)["kind"] == word


@pytest.mark.parametrize(("axis", "word"), FILES)
def test_every_yaml_names_a_registered_variant(axis: str, word: str) -> None:
    assert yaml_of(axis, word)["kind"] in AXES[axis].words()


@pytest.mark.parametrize(("axis", "word"), FILES)
def test_a_yaml_gives_exactly_the_options_of_the_signature(axis: str, word: str) -> None:
    given = yaml_of(axis, word)
    assert set(given) == set(AXES[axis].options(given["kind"]).model_fields)


@pytest.mark.parametrize("row", range(max(len(yaml_words(axis)) for axis in AS_CHOSEN)))
def test_hydra_composes_every_choice_as_its_yaml_says(row: int) -> None:
    chosen = {axis: yaml_words(axis)[row % len(yaml_words(axis))] for axis in AS_CHOSEN}
    choices = [f"{axis}={word}" for axis, word in chosen.items()]
    try:
        cfgs = dict.fromkeys(chosen, composed(*choices))
    except ConfigError:  # some do not go together
        cfgs = {axis: composed(choice) for axis, choice in zip(chosen, choices, strict=True)}
    for axis, word in chosen.items():
        given = yaml_of(axis, word)
        if axis == "optim":
            given["lr"] = composed().optim.lr  # the scale says
        assert getattr(cfgs[axis], axis).model_dump() == AXES[axis].options(given["kind"]).model_validate(given).model_dump(), axis


PAIRS = [(data, "") for data in yaml_words("data")] + [("tokens" if word == "none" else "text", word) for word in yaml_words("tokenizer")]


@pytest.mark.parametrize(("data", "tokenizer"), [(data, word) for data, word in PAIRS if (data, word) != ("text", "task")])
def test_a_choice_of_data_asks_for_exactly_the_values_that_its_yaml_leaves_open(data: str, tokenizer: str) -> None:
    chosen = {"data": data, **({"tokenizer": tokenizer} if tokenizer else {"tokenizer": "none"} if data == "tokens" else {})}
    left_open = {f"{axis}.{key}" for axis, word in chosen.items() for key, value in yaml_of(axis, word).items() if value == "???"}
    found = asked_for([f"{axis}={word}" for axis, word in chosen.items()])
    assert found - {"model.context"} == left_open  # a task may need more than the 16 tokens of here


def asked_for(overrides: list[str]) -> set[str]:
    """The keys that a composition finds wrong."""
    try:
        composed(*overrides)
    except ConfigError as error:
        return {problem.key for problem in error.problems}
    return set()


@pytest.mark.parametrize("word", yaml_words("scale"))
def test_every_scale_composes_with_every_stability_choice_at_once(word: str) -> None:
    cfg = composed(f"scale={word}", f"stability=[{','.join(STABILITY_WORDS)}]")
    assert cfg.attention.qk_norm.kind == "head"
    assert cfg.model.width == 32, "a key of the command line stands above the scale"


# --- shapes, gradients, causality, numbers


@pytest.mark.parametrize("choice", ALL_CHOICES)
def test_logits_are_float32_scores_of_every_vocabulary_entry(choice: str) -> None:
    cfg = small(choice)
    logits = build_model(cfg)(tokens_of(cfg))
    assert (logits.shape, logits.dtype) == ((2, 16, 256), torch.float32)


@pytest.mark.parametrize("choice", ALL_CHOICES)
def test_cross_entropy_starts_near_that_of_a_uniform_guess(choice: str) -> None:
    cfg = small(choice)
    _, parts = LOSS.build(cfg.loss)(build_model(cfg).run(tokens_of(cfg)), targets_of(cfg))
    assert parts["cross_entropy"].item() == pytest.approx(5.545, abs=0.8)  # log 256


@pytest.mark.parametrize("choice", ALL_CHOICES)
def test_every_parameter_has_a_finite_gradient_that_is_not_zero(choice: str) -> None:
    assert_all_parameters_learn(small(choice))


def assert_all_parameters_learn(cfg: Config) -> None:
    for name, gradient in gradients_of(cfg, random_model(cfg)).items():
        assert gradient is not None, f"{name} is not in the graph"
        assert torch.isfinite(gradient).all(), name
        assert gradient.abs().max() > 1e-4, name


@pytest.mark.parametrize("choice", ALL_CHOICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_depend_on_every_token_up_to_their_own_and_on_none_after(choice: str, dtype: torch.dtype) -> None:
    cfg = small(choice)
    influence_TT = influence(random_model(cfg), tokens_of(cfg, sequences=1)[:, :8], dtype)
    assert torch.equal(influence_TT > 0, reached(cfg, tokens=8))


def reached(cfg: Config, tokens: int) -> Tensor:
    """Which tokens can be heard of at which, through all layers: everything up to itself, unless every layer looks less far."""
    t_T, heard_TT = torch.arange(tokens), torch.eye(tokens)
    for attention in meta_model(cfg).attentions:
        heard_TT = attention.reach.sees(t_T[:, None], t_T[None, :]).float() @ heard_TT
    return heard_TT > 0


def influence(model: Transformer, tokens_1T: Tensor, dtype: torch.dtype) -> Tensor:
    """The size of d logits[t] / d embedding[s] at row t, column s."""
    embedded: list[Tensor] = []

    def keep(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[0]

    hook = model.embedding.register_forward_hook(keep)
    torch.manual_seed(0)  # of dropout
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        logits_1TV = model(tokens_1T)
    hook.remove()
    direction_V = torch.linspace(-1, 1, logits_1TV.shape[-1])
    scores_T = (logits_1TV[0] * direction_V).sum(-1)
    return torch.stack([torch.autograd.grad(score, embedded[0], retain_graph=True)[0][0].norm(dim=-1) for score in scores_T])


@pytest.mark.parametrize("choice", ALL_CHOICES)
def test_a_future_token_does_not_move_past_logits(choice: str) -> None:
    cfg = small(choice)
    model, tokens = random_model(cfg), tokens_of(cfg)
    other = tokens.clone()
    other[:, 9] = (other[:, 9] + 1) % 256
    before, after = model(tokens), model(other)
    # Not to the bit: the matrix products of experts are cut at places that depend on all tokens.
    assert max_difference(before[:, :9], after[:, :9]) < 1e-5 * max(1, before.abs().max())
    changed_T = (before[:, 9:] - after[:, 9:]).abs().amax((0, 2)) > 1e-3
    assert torch.equal(changed_T, reached(cfg, tokens=16)[9:, 9])


@pytest.mark.parametrize("choice", ALL_CHOICES)
def test_a_short_sequence_gives_the_first_logits_of_a_long_one(choice: str) -> None:
    cfg = small(choice)
    model, tokens = random_model(cfg), tokens_of(cfg)
    logits = model(tokens)
    assert max_difference(model(tokens[:, :5]), logits[:, :5]) < 1e-5 * max(1, logits.abs().max())


@pytest.mark.parametrize("choice", ALL_CHOICES)
def test_sequences_of_a_batch_do_not_see_each_other(choice: str) -> None:
    cfg = small(choice)
    model, tokens = random_model(cfg), tokens_of(cfg)
    logits = model(tokens)
    assert max_difference(model(tokens[:1]), logits[:1]) < 1e-5 * max(1, logits.abs().max())


@pytest.mark.parametrize("choice", ALL_CHOICES)
def test_bfloat16_autocast_stays_near_float32(choice: str) -> None:
    cfg = small(choice)
    model = random_model(cfg)
    exact, expected = model(tokens_of(cfg)), gradients_of(cfg, model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, gradients = model(tokens_of(cfg)), gradients_of(cfg, model)
    assert logits.dtype == torch.float32
    errors_BT = (logits - exact).norm(dim=-1) / exact.norm(dim=-1)
    assert 0 < errors_BT.median() < 0.04
    assert all(gradient.dtype == torch.float32 and torch.isfinite(gradient).all() for gradient in gradients.values())
    cosines = [F.cosine_similarity(gradient.flatten(), expected[name].flatten(), dim=0).item() for name, gradient in gradients.items()]
    assert statistics.median(cosines) > 0.9


# --- initialisation


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """`torch.empty` gives NaN."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("choice", ALL_CHOICES)
def test_no_parameter_is_left_with_what_was_in_memory(choice: str, poisoned_memory: None) -> None:
    for name, parameter in build_model(small(choice)).named_parameters():
        assert torch.isfinite(parameter).all(), name


@pytest.mark.parametrize("choice", quick_first([choice for choice in DIFFERENT if not choice.startswith("init=")]))
def test_parameters_shared_with_the_baseline_start_from_the_same_numbers(choice: str) -> None:
    baseline = dict(build_model(small()).named_parameters())
    model = build_model(small(choice))
    gains = {f"{name}.weight": module.gain for name, module in model.named_modules() if isinstance(module, Linear)}
    shared = {n: p for n, p in model.named_parameters() if n in baseline and p.shape == baseline[n].shape and "norm" not in n}
    assert len(shared) > len(baseline) / 3
    for name, parameter in shared.items():
        gain = gains.get(name, 1.0)  # deepnorm and sub_ln make some larger or smaller, by one factor
        assert torch.allclose(parameter, gain * baseline[name], rtol=1e-6, atol=0), name


# --- no switch is dead


@pytest.mark.parametrize("choice", [choice for choice in DIFFERENT if choice not in PRESETS])
def test_a_choice_changes_parameters_or_loss(choice: str) -> None:
    assert differ(small(), small(choice))


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(STABILITY_WORDS, 2)))
def test_two_stability_choices_combine_and_both_do_something(first: str, second: str) -> None:
    both = composed(f"stability=[{first},{second}]")
    assert differ(both, small(f"stability={first}"))
    assert differ(both, small(f"stability={second}"))


@pytest.mark.parametrize("word", ARCHITECTURE["attention"].words())
def test_stability_works_on_every_attention(word: str) -> None:
    words = [stability for stability in STABILITY_WORDS if (word, stability) != ("mla", "qk_norm")]
    plain = small(f"attention={word}").attention
    cfg = composed(f"attention={word}", f"stability=[{','.join(words)}]")
    changed_by_them = {"qk_norm", "soft_cap"}
    assert cfg.attention.model_dump(exclude=changed_by_them) == plain.model_dump(exclude=changed_by_them)
    assert_all_parameters_learn(cfg)


@pytest.mark.parametrize("word", ARCHITECTURE["norm"].words())
def test_every_norm_can_be_the_norm_of_queries_and_keys(word: str) -> None:
    if word == "none":
        with pytest.raises(ConfigError, match="choose attention/qk_norm=none"):
            changed(small("attention/qk_norm=head"), "attention.qk_norm.norm", {"kind": "none"})
        return
    cfg = changed(small("attention/qk_norm=head"), "attention.qk_norm.norm", yaml_of("norm", word))
    assert_all_parameters_learn(cfg)
    assert differ(cfg, small())


# --- compiling


@pytest.mark.parametrize("stability", ["none", ",".join(STABILITY_WORDS)])
@pytest.mark.filterwarnings(*QUIET_COMPILER)
def test_all_layers_are_captured_as_one_graph_and_the_head_as_another(stability: str) -> None:
    cfg = composed(f"stability=[{stability}]", "model.depth=4")
    model = random_model(cfg)
    expected = model(tokens_of(cfg))
    torch.compiler.reset()
    counters.clear()
    for module in [*model.blocks, model.head]:
        module.compile(fullgraph=True, dynamic=False, backend="eager")
    assert max_difference(model(tokens_of(cfg)), expected) < 1e-5 * max(1, expected.abs().max())
    assert counters["stats"]["unique_graphs"] == 2


def in_few_configs(choices: list[str]) -> list[list[str]]:
    """All of the choices, a list for each config: one that does not go together with those before it goes into the next."""
    configs: list[list[str]] = []
    for choice in choices:
        for config in configs:
            if go_together(*config, choice):
                config.append(choice)
                break
        else:
            configs.append([choice])
    return configs


def go_together(*choices: str) -> bool:
    try:
        small(*choices)
    except ConfigError:
        return False
    return True


def words_in_turn() -> list[list[str]]:
    """The first choice of every group, then the second of every group that has so many, until there are none; stability comes at once."""
    groups = itertools.groupby((choice for choice in CHOICES if choice not in PRESETS), key=lambda choice: choice.partition("=")[0])
    rows = itertools.zip_longest(*(list(choices) for _, choices in groups))
    return [[f"stability=[{','.join(STABILITY_WORDS)}]"], *([choice for choice in row if choice] for row in rows)]


@pytest.mark.slow
@pytest.mark.parametrize("choices", words_in_turn(), ids=lambda choices: choices[-1])
@pytest.mark.filterwarnings(*QUIET_COMPILER)
def test_a_compiled_model_gives_the_logits_and_gradients_of_the_plain_one_in_two_graphs(choices: list[str]) -> None:
    """Of every choice, in as few models as have them all: compilers take most of the time."""
    for together in in_few_configs(choices):
        assert_compiled_is_as_plain(small(*together), " ".join(together))


def assert_compiled_is_as_plain(cfg: Config, name: str) -> None:
    model = random_model(cfg)
    logits, gradients = model(tokens_of(cfg)), gradients_of(cfg, model)
    torch.compiler.reset()
    counters.clear()
    model.compile_blocks()
    assert max_difference(model(tokens_of(cfg)), logits) < 1e-5 * max(1, logits.abs().max()), name
    largest = max(gradient.abs().max() for gradient in gradients.values() if gradient is not None)
    for parameter, gradient in gradients_of(cfg, model).items():
        expected = gradients[parameter]
        assert gradient is not None
        assert expected is not None
        assert max_difference(gradient, expected) < 1e-4 * max(expected.abs().max(), 1e-3 * largest), (name, parameter)
    assert counters["stats"]["unique_graphs"] == 2, name
