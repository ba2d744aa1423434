"""Named rules that change the choices of some layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ablate.config import Config, build_model, meta_model
from ablate.errors import ConfigError
from ablate.model.layers import LAYERED, chosen_layers, merged
from ablate.runs import canonical, run_hash
from tests.model.conftest import changed, composed, max_difference, random_model, small, tokens_of, yaml_of

Rules = dict[str, dict[str, Any]]
DEPTH = 6


def base(*choices: str) -> Config:
    return changed(small(*choices), "model.depth", DEPTH)


def with_rules(rules: Rules, *choices: str) -> Config:
    return changed(base(*choices), "layers", rules)


def rule(where: dict[str, Any], **groups: Any) -> dict[str, Any]:
    return {"where": where, "set": groups}


WINDOW = {"window": 4}


def windows(cfg: Config) -> list[float]:
    return [options.attention.window for options in cfg.layer_options()]


# --- where


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"every": 2, "at": [0]}, [0, 2, 4]),
        ({"every": 2, "at": [1]}, [1, 3, 5]),
        ({"every": 4, "at": [3]}, [3]),
        ({"every": 4, "at": [1, 0]}, [0, 1, 4, 5]),
        ({"every": 3, "except": [2]}, [0, 1, 3, 4]),
        ({"every": 4, "except": [0, 3]}, [1, 2, 5]),
        ({"every": 6, "except": [5]}, [0, 1, 2, 3, 4]),
        ({"every": 1, "at": [0]}, [0, 1, 2, 3, 4, 5]),
        ({"every": 100, "at": [2]}, [2]),
        ({"first": 1}, [0]),
        ({"first": 4}, [0, 1, 2, 3]),
        ({"first": 9}, [0, 1, 2, 3, 4, 5]),
        ({"last": 1}, [5]),
        ({"last": 2}, [4, 5]),
        ({"layers": [4]}, [4]),
        ({"layers": [5, 0, 5]}, [0, 5]),
    ],
)
def test_every_form_of_where_names_its_layers(where: dict[str, Any], expected: list[int]) -> None:
    assert chosen_layers("a", where, DEPTH) == expected
    changes = with_rules({"a": rule(where, attention=WINDOW)}).layer_changes()
    assert [layer for layer, change in enumerate(changes) if change] == expected


@pytest.mark.parametrize(
    ("where", "key"),
    [
        ({}, "where"),
        ({"every": 2}, "where"),
        ({"at": [1]}, "where"),
        ({"every": 2, "at": [0], "except": [1]}, "where"),
        ({"first": 1, "last": 1}, "where"),
        ({"frist": 1}, "where"),
        ({"first": 0}, "where.first"),
        ({"last": -1}, "where.last"),
        ({"first": [1]}, "where.first"),
        ({"every": 0, "at": [0]}, "where.every"),
        ({"every": [2], "at": [0]}, "where.every"),
        ({"every": 2, "at": 0}, "where.at"),
        ({"every": 2, "at": [2]}, "where.at"),
        ({"every": 2, "at": [-1]}, "where.at"),
        ({"every": 2, "except": [2]}, "where.except"),
        ({"layers": [6]}, "where.layers"),
        ({"layers": 1}, "where.layers"),
        ({"first": "all"}, "where.first"),
        ({"first": 1.5}, "where.first"),
        ({"first": True}, "where.first"),
    ],
)
def test_a_where_that_says_nothing_clear_is_refused_by_its_key(where: dict[str, Any], key: str) -> None:
    assert f"layers.a.{key}" in problems({"a": rule(where, attention=WINDOW)})


@pytest.mark.parametrize("where", [{"every": 9, "at": [7]}, {"layers": []}, {"every": 1, "except": [0]}, {"every": 3, "at": []}])
def test_a_rule_for_no_layer_is_refused(where: dict[str, Any]) -> None:
    assert problems({"a": rule(where, attention=WINDOW)}) == {"layers.a.where"}


def problems(rules: Rules, *choices: str) -> set[str]:
    with pytest.raises(ConfigError) as raised:
        with_rules(rules, *choices)
    return {problem.key for problem in raised.value.problems}


# --- set


def test_a_rule_changes_its_layers_and_no_others() -> None:
    cfg = with_rules({"local": rule({"every": 3, "except": [2]}, attention=WINDOW)})
    assert windows(cfg) == [4, 4, float("inf"), 4, 4, float("inf")]
    assert [attention.reach.window for attention in build_model(cfg).attentions] == [4, 4, None, 4, 4, None]


def test_a_deep_override_keeps_the_other_options() -> None:
    cfg = with_rules({"a": rule({"last": 1}, position={"theta": 7.0}, ffn={"ratio": 2.0})})
    plain = base()
    assert cfg.layer_options()[5].position.model_dump() == {**plain.position.model_dump(), "theta": 7.0}
    assert cfg.layer_options()[5].ffn.model_dump() == {**plain.ffn.model_dump(), "ratio": 2.0}
    assert cfg.layer_options()[4] == plain.layer_options()[4]


def test_a_deep_override_reaches_nested_variants() -> None:
    cfg = with_rules({"a": rule({"first": 2}, attention={"qk_norm": {"norm": {"eps": 0.5}}})}, "attention/qk_norm=head")
    assert [options.attention.qk_norm.norm.eps for options in cfg.layer_options()] == [0.5, 0.5, 1e-5, 1e-5, 1e-5, 1e-5]
    assert cfg.layer_options()[0].attention.qk_norm.order == "before_rope"


def test_a_kind_takes_the_place_of_the_whole_variant() -> None:
    other = {"position": "none", "attention": "gqa", "ffn": "gelu", "norm": "layernorm", "residual": "layerscale", "placement": "sandwich"}
    assert set(other) == set(LAYERED)
    cfg = with_rules({"a": rule({"layers": [2]}, **{group: yaml_of(group, word) for group, word in other.items()})})
    changed_layer, plain = cfg.layer_options()[2], base().layer_options()[2]
    assert {group: getattr(changed_layer, group).kind for group in LAYERED} == other
    assert cfg.layer_options()[1] == plain
    block = build_model(cfg).blocks[2]
    assert type(block).__name__ == "LayerScale"
    assert block.attention.sublayer.k.out_features == 16
    assert block.attention.output_norm.bias is not None


def test_the_kind_that_is_there_already_is_a_deep_override() -> None:
    cfg = with_rules({"a": rule({"first": 1}, attention={"kind": "mha", **WINDOW})})
    assert windows(cfg)[:2] == [4, float("inf")]


def test_a_swap_inside_a_variant_needs_all_its_options() -> None:
    rmsnorm = yaml_of("norm", "rmsnorm")
    cfg = with_rules({"a": rule({"first": 1}, attention={"v_norm": rmsnorm})})
    assert cfg.layer_options()[0].attention.v_norm.kind == "rmsnorm"
    assert problems({"a": rule({"first": 1}, attention={"v_norm": {"kind": "rmsnorm", "eps": 1.0}})}) == {
        "layers.a.set.attention.v_norm.weight"
    }


def test_two_rules_may_change_two_options_of_one_layer() -> None:
    cfg = with_rules({"a": rule({"first": 3}, attention=WINDOW), "b": rule({"last": 4}, attention={"soft_cap": 5.0})})
    assert [(o.attention.window, o.attention.soft_cap) for o in cfg.layer_options()[1:4]] == [
        (4, float("inf")),
        (4, 5.0),
        (float("inf"), 5.0),
    ]


def test_merging_is_deep_unless_the_kind_changes() -> None:
    tree = {"kind": "x", "a": 1, "b": {"kind": "y", "c": 2, "d": 3}}
    assert merged(tree, {"b": {"c": 5}}) == {"kind": "x", "a": 1, "b": {"kind": "y", "c": 5, "d": 3}}
    assert merged(tree, {"b": {"kind": "z", "e": 1}}) == {"kind": "x", "a": 1, "b": {"kind": "z", "e": 1}}
    assert merged(tree, {"kind": "w", "a": 2}) == {"kind": "w", "a": 2}
    assert tree["b"] == {"kind": "y", "c": 2, "d": 3}


# --- in the model


def test_layers_that_differ_in_position_have_a_module_for_each_and_share_it_otherwise() -> None:
    nope = rule({"every": 3, "at": [2]}, position=yaml_of("position", "none"))
    slow = rule({"layers": [0, 4]}, position={"theta": 7.0})
    model = build_model(with_rules({"nope": nope, "slow": slow}))
    assert model.position_of == [0, 1, 2, 1, 0, 2]
    assert [type(position).__name__ for position in model.positions] == ["Rope", "Rope", "Position"]


def test_heads_of_other_widths_have_tables_of_their_own() -> None:
    model = build_model(with_rules({"wide": rule({"last": 1}, attention={"head_dim": 16})}))
    assert model.position_of == [0] * 5 + [1]
    assert [position.cos_TH.shape[1] for position in model.positions] == [8, 16]


def test_rules_for_every_layer_are_the_same_as_the_choice_itself() -> None:
    chosen = {"attention": {**WINDOW, "soft_cap": 3.0}, "position": {"theta": 7.0}, "norm": {"eps": 0.1}}
    plain = base()
    for group, values in chosen.items():
        for option, value in values.items():
            plain = changed(plain, f"{group}.{option}", value)
    by_rule = with_rules({"all": rule({"first": DEPTH}, **chosen)})
    tokens = tokens_of(plain)
    # A rule reaches the blocks; the norm before the head is of none of them.
    ours, theirs = random_model(by_rule), random_model(plain)
    ours.norm, theirs.norm = torch.nn.Identity(), torch.nn.Identity()
    assert torch.equal(ours(tokens), theirs(tokens))


@pytest.mark.parametrize("group", LAYERED)
def test_a_rule_for_any_group_moves_the_logits(group: str) -> None:
    values = {
        "norm": {"eps": 0.5},
        "placement": yaml_of("placement", "sandwich"),
        "residual": {"branch": 0.5},
        "position": {"theta": 7.0},
        "attention": WINDOW,
        "ffn": yaml_of("ffn", "geglu"),
    }[group]
    cfg = with_rules({"a": rule({"layers": [3]}, **{group: values})})
    assert max_difference(random_model(cfg)(tokens_of(cfg)), random_model(base())(tokens_of(cfg))) > 1e-3


def test_an_infinite_window_sets_a_layer_free() -> None:
    cfg = changed(changed(base(), "attention.window", 4), "layers", {"global": rule({"last": 1}, attention={"window": ".inf"})})
    assert windows(cfg) == [4, 4, 4, 4, 4, float("inf")]


# --- what cannot be


def test_two_rules_that_disagree_about_a_layer_are_refused_with_both_names() -> None:
    rules = {"a": rule({"first": 3}, attention=WINDOW), "b": rule({"layers": [2, 5]}, attention={"window": 8})}
    with pytest.raises(ConfigError, match=r"8 in layer 2, where layers\.a sets 4") as raised:
        with_rules(rules)
    assert "layers.b.set.attention.window" in {problem.key for problem in raised.value.problems}


def test_two_rules_that_agree_about_a_layer_are_no_conflict() -> None:
    rules = {"a": rule({"first": 3}, attention=WINDOW), "b": rule({"layers": [2, 5]}, attention=WINDOW)}
    assert windows(with_rules(rules)) == [4, 4, 4, float("inf"), float("inf"), 4]


def test_a_rule_that_sets_what_all_layers_have_is_refused() -> None:
    assert problems({"a": rule({"first": 1}, attention={"window": float("inf")})}) == {"layers.a.set.attention"}
    assert problems({"a": rule({"first": 1}, attention=WINDOW, position=yaml_of("position", "rope"))}) == {"layers.a.set.position"}


def test_a_number_written_otherwise_is_still_what_all_layers_have() -> None:
    assert problems({"a": rule({"first": 1}, position={"theta": 10000})}) == {"layers.a.set.position"}


def test_an_empty_rule_is_refused() -> None:
    assert problems({"a": rule({"first": 1})}) == {"layers.a.set"}


@pytest.mark.parametrize("group", ["head", "embedding", "init", "data", "optim"])
def test_what_cannot_differ_by_layer_is_refused(group: str) -> None:
    assert f"layers.a.set.{group}" in problems({"a": rule({"first": 1}, **{group: {"kind": "none"}})})


def test_an_unknown_group_is_refused_with_the_nearest_right_one() -> None:
    with pytest.raises(ConfigError, match="did you mean 'attention'") as raised:
        with_rules({"a": rule({"first": 1}, atention=WINDOW)})
    assert {problem.key for problem in raised.value.problems} == {"layers.a.set.atention"}


def test_an_unknown_option_is_refused_with_the_nearest_right_one() -> None:
    with pytest.raises(ConfigError, match="did you mean 'window'") as raised:
        with_rules({"a": rule({"last": 2}, attention={"windw": 4})})
    assert {problem.key for problem in raised.value.problems} == {"layers.a.set.attention.windw"}


@pytest.mark.parametrize(
    ("groups", "key"),
    [
        ({"attention": {"window": "wide"}}, "attention.window"),
        ({"attention": {"sink": "lerned"}}, "attention.sink"),
        ({"attention": {"qk_norm": {"kind": "nne"}}}, "attention.qk_norm.kind"),
        ({"attention": {"kind": "mlaa"}}, "attention.kind"),
        ({"position": {"scaling": {"factor": 3.0}}}, "position.scaling.factor"),
        ({"ffn": {"ratio": -1}}, "ffn.ratio"),
        ({"residual": {"kind": "layerscale"}}, "residual.init"),
    ],
)
def test_a_wrong_value_in_a_rule_is_refused_by_its_whole_key(groups: dict[str, Any], key: str) -> None:
    assert problems({"a": rule({"first": 1}, **groups)}) == {f"layers.a.set.{key}"}


@pytest.mark.parametrize("word", ["learned", "sinusoidal"])
def test_a_position_on_the_embedded_tokens_is_one_for_all_layers(word: str) -> None:
    assert problems({"a": rule({"last": 1}, position=yaml_of("position", "none"))}, f"position={word}") == {"layers"}
    assert problems({"a": rule({"last": 1}, position=yaml_of("position", word))}) == {"layers"}


# --- identity


def identity(cfg: Config) -> str:
    return run_hash(canonical(cfg, "c" * 64))


SAME: list[Rules] = [
    {"a": rule({"every": 2, "at": [1]}, attention=WINDOW, position={"theta": 7.0})},
    {"b": rule({"layers": [1, 3, 5]}, position={"theta": 7.0}, attention=WINDOW)},
    {"x": rule({"every": 2, "except": [0]}, attention=WINDOW), "y": rule({"layers": [5, 3, 1]}, position={"theta": 7.0})},
    {
        "x": rule({"layers": [1, 3]}, attention=WINDOW, position={"theta": 7.0}),
        "y": rule({"last": 1}, attention=WINDOW, position={"theta": 7.0}),
    },
]


@pytest.mark.parametrize("rules", SAME[1:])
def test_two_spellings_of_the_same_rules_are_one_run(rules: Rules) -> None:
    assert identity(with_rules(rules)) == identity(with_rules(SAME[0]))
    assert with_rules(rules).layer_options() == with_rules(SAME[0]).layer_options()


def test_a_value_written_otherwise_is_the_same_run() -> None:
    shares = [with_rules({"a": rule({"first": 1}, attention={"window": window})}) for window in ("1/4", 0.25)]
    assert identity(shares[0]) == identity(shares[1])


def test_other_rules_are_another_run() -> None:
    ways = [base(), with_rules(SAME[0]), with_rules({"a": rule({"every": 2, "at": [0]}, attention=WINDOW, position={"theta": 7.0})})]
    ways += [with_rules({"a": rule({"every": 2, "at": [1]}, attention=WINDOW)}), with_rules({"a": rule({"last": 3}, attention=WINDOW)})]
    assert len({identity(cfg) for cfg in ways}) == len(ways)


# --- as it is typed


def test_a_command_line_reaches_into_a_named_rule() -> None:
    cfg = composed("model.depth=6", "layers=gemma2", "layers.local.where.every=3", "layers.local.set.attention.window=4")
    assert windows(cfg) == [4, float("inf"), float("inf"), 4, float("inf"), float("inf")]


def test_a_shipped_rule_may_swap_a_variant_whole() -> None:
    cfg = composed("model.depth=8", "layers=smollm3")
    assert [options.position.kind for options in cfg.layer_options()] == ["rope", "rope", "rope", "none"] * 2
    assert len(list(meta_model(cfg).positions)) == 2
