"""Study files: what is shipped reads, what a person writes wrongly is said by name, and a study survives being written down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ablate.errors import ConfigError
from ablate.shipped import sweeps_dir
from ablate.sweep.study import MAY, NEEDS, Study, as_text, load_study, over, parse_study, place_of, shipped_studies

ARMS: dict[str, Any] = {"question": "Which norm?", "design": "arms", "arms": {"layer": ["norm=layernorm"]}, "blocks": 3}
OF_DESIGN: dict[str, dict[str, Any]] = {
    "arms": {"arms": {"layer": ["norm=layernorm"]}},
    "grid": {"axes": {"norm": ["rmsnorm", "layernorm"]}},
    "one_at_a_time": {"axes": {"norm": ["rmsnorm", "layernorm"]}},
    "add_one": {"changes": {"norm": ["norm=layernorm"], "ffn": ["ffn=gelu"]}},
    "leave_one_out": {"changes": {"norm": ["norm=layernorm"], "ffn": ["ffn=gelu"]}},
    "ladder": {"ladder": {"from": "gpt2", "to": "llama"}},
    "fractional": {"axes": {"norm": ["rmsnorm", "layernorm"], "ffn": ["swiglu", "gelu"], "head": ["untied", "tied"]}},
}
"""The least that each design needs."""


def of_design(design: str) -> dict[str, Any]:
    return {"question": "Which?", "design": design, "blocks": 3, **OF_DESIGN[design]}


def problems(values: dict[str, Any], where: str = "") -> dict[str, str]:
    """key -> message of everything that is wrong."""
    with pytest.raises(ConfigError) as caught:
        parse_study(values, "mine", where)
    return {problem.key: problem.message for problem in caught.value.problems}


def with_tuning(**changed: Any) -> dict[str, Any]:
    return {**ARMS, "tuning": {"lr": [1e-3, 2e-3, 4e-3], "seeds": [100, 101], **changed}}


@pytest.mark.parametrize("name", shipped_studies())
def test_shipped_study_reads(name: str) -> None:
    study = load_study(name)
    assert study.name == name
    assert study.question.endswith("?") or study.question.endswith(".") or ")?" in study.question


def test_studies_that_the_documentation_names_are_shipped() -> None:
    named = {"norm", "placement", "position", "ffn", "stability", "attention", "prmsnorm_fraction", "warmup", "gpt2_to_llama3", "aa"}
    assert named <= set(shipped_studies())


@pytest.mark.parametrize("name", shipped_studies())
def test_tuned_rates_of_shipped_studies_lie_around_the_shipped_one(name: str) -> None:
    tuning = load_study(name).tuning
    if tuning is not None:
        shipped = yaml.safe_load((sweeps_dir().parent / "conf/scale/nano.yaml").read_text())["optim"]["lr"]
        assert tuning.lr[0] < float(shipped) < tuning.lr[-1]


@pytest.mark.parametrize("values", [*map(of_design, NEEDS), with_tuning(), {**ARMS, "match": {"kind": "params"}, "margin": {"nats": 0.01}}])
def test_study_written_down_is_the_same_study(values: dict[str, Any]) -> None:
    study = parse_study(values, "mine")
    assert parse_study(json.loads(json.dumps(study.model_dump())), "mine") == study
    assert parse_study(yaml.safe_load(yaml.safe_dump(study.model_dump())), "mine") == study


def test_number_of_blocks_is_that_many_seeds_from_0_on() -> None:
    assert parse_study({**ARMS, "blocks": 4}, "mine") == parse_study({**ARMS, "blocks": [0, 1, 2, 3]}, "mine")


def test_what_is_left_out_is_3_percent_of_tokens_no_match_no_tuning() -> None:
    study = parse_study(ARMS, "mine")
    assert study.margin.tokens == 0.03
    assert study.match.kind == "none"
    assert study.tuning is None


@pytest.mark.parametrize("design", NEEDS)
def test_design_without_its_keys_names_them(design: str) -> None:
    [key] = NEEDS[design]
    found = problems({"question": "Which?", "design": design, "blocks": 3})
    assert list(found) == [key]
    assert f"design={design}" in found[key]


KEYS_OF_DESIGNS: dict[str, Any] = {
    "arms": {"a": ["norm=layernorm"]},
    "axes": {"norm": ["rmsnorm", "layernorm"]},
    "changes": {"a": ["norm=layernorm"], "b": ["ffn=gelu"]},
    "ladder": {"from": "gpt2", "to": "llama"},
    "baseline": ["ffn=gelu"],
    "resolution": "IV",
    "seed_offsets": {"a": 1000},
}


UNREAD = [(design, key) for design in NEEDS for key in KEYS_OF_DESIGNS if key not in (*NEEDS[design], *MAY[design])]


@pytest.mark.parametrize(("design", "key"), UNREAD)
def test_key_that_a_design_does_not_read_is_refused_by_name(design: str, key: str) -> None:
    found = problems({**of_design(design), key: KEYS_OF_DESIGNS[key]})
    assert f"has no effect with design={design}" in found[key]


@pytest.mark.parametrize(
    ("override", "cure"),
    [
        ("seed=3", "blocks"),
        ("init_seed=3", "blocks"),
        ("++data_seed=3", "blocks"),
        ("match=params", "match"),
        ("match.tolerance=0.1", "match"),
        ("optim.lr=1e-3", "tuning.lr"),
        ("results_dir=out", "command line"),
        ("rerun=true", "retry"),
    ],
)
@pytest.mark.parametrize("place", ["set", "baseline", "arms"])
def test_override_that_the_study_sets_itself_is_refused_with_the_key_that_does(override: str, cure: str, place: str) -> None:
    here = {"layer": [override]} if place == "arms" else [override]
    found = problems({**with_tuning(), place: here})
    message = found["arms.layer" if place == "arms" else place]
    assert override in message
    assert cure in message


def test_learning_rate_may_be_set_where_none_is_tuned() -> None:
    study = parse_study({**ARMS, "set": ["optim.lr=1e-3"]}, "mine")
    assert study.set == ["optim.lr=1e-3"]


def test_arm_of_keys_that_move_no_number_is_refused() -> None:
    found = problems({**ARMS, "arms": {"quiet": ["tracker=none"]}})
    assert "set" in found["arms.quiet"]
    assert parse_study({**ARMS, "set": ["tracker=none"]}, "mine").set == ["tracker=none"]


@pytest.mark.parametrize(
    ("values", "key", "said"),
    [
        (with_tuning(seeds=[2, 100]), "tuning.seeds", "2 is in blocks too"),
        (with_tuning(lr=[1e-3, 2e-3]), "tuning.lr", "at least 3"),
        (with_tuning(lr=[1e-3, 4e-3, 2e-3]), "tuning.lr", "must rise"),
        (with_tuning(lr=[1e-3, 1e-3, 2e-3]), "tuning.lr", "must rise"),
        (with_tuning(extend=3), "tuning.extend", "less than or equal to 2"),
        ({**ARMS, "blocks": [1, 2, 1]}, "blocks", "1 is there twice"),
        ({**ARMS, "blocks": 0}, "blocks", "how many"),
        ({**ARMS, "blocks": [-1]}, "blocks.0", "greater than or equal to 0"),
        ({**ARMS, "margin": {"tokens": 0.03, "nats": 0.01}}, "margin", "one of"),
        ({**ARMS, "margin": {}}, "margin", "one of"),
        ({**ARMS, "match": {"kind": "none", "solve": "depth"}}, "match.solve", "has no effect"),
        ({**ARMS, "match": {"kind": "param"}}, "match.kind", "did you mean 'params'?"),
        ({**ARMS, "desing": "arms"}, "desing", "did you mean 'design'?"),
        ({**ARMS, "design": "girds"}, "design", "did you mean 'grid'?"),
        ({**ARMS, "arms": {"a/b": ["norm=layernorm"]}}, "arms.a/b", "file name"),
        ({**ARMS, "arms": {"baseline": ["norm=layernorm"]}}, "arms.baseline", "take another"),
        ({**ARMS, "arms": {"A": ["norm=layernorm"], "a": ["norm=dyt"]}}, "arms.a", "same file name"),
        ({**ARMS, "arms": {"a": ["norm=dyt"], "b": ["norm=dyt"]}}, "arms.b", "the same as a"),
        ({**ARMS, "arms": {"a": []}}, "arms.a", "seed_offsets: {a: 1000}"),
        ({**ARMS, "arms": {}}, "arms", "empty"),
        ({**ARMS, "set": ["norm"]}, "set.0", "key=value"),
        ({**of_design("grid"), "axes": {"norm": ["dyt"]}}, "axes.norm", "write it under set"),
        ({**of_design("grid"), "axes": {"norm": ["dyt", "dyt"]}}, "axes.norm", "dyt is there twice"),
        ({**of_design("grid"), "set": ["norm=dyt"]}, "set", "norm is an axis"),
        ({**of_design("grid"), "axes": {"seed": [0, 1]}}, "axes.seed", "blocks"),
        ({**of_design("fractional"), "axes": {"norm": ["a", "b", "c"], "ffn": [1, 2], "head": [1, 2]}}, "axes.norm", "two values"),
        ({**of_design("fractional"), "axes": {"norm": ["a", "b"], "ffn": [1, 2]}}, "axes", "three axes"),
        ({**of_design("add_one"), "changes": {"a": ["norm=dyt"]}}, "changes", "two changes"),
        ({**of_design("add_one"), "changes": {"a": ["norm=dyt"], "b": ["norm=glm"]}}, "changes.b", "sets norm, as a does"),
        ({**of_design("add_one"), "changes": {"all": ["norm=dyt"], "b": ["ffn=gelu"]}}, "changes.all", "take another"),
        ({**of_design("ladder"), "ladder": {"from": "gpt2", "to": "llama", "order": ["nrm"]}}, "ladder.order", "did you mean 'norm'?"),
        ({**of_design("ladder"), "ladder": {"from": "gpt2"}}, "ladder.to", "missing"),
        ({**of_design("ladder"), "set": ["norm=dyt"]}, "set", "what the ladder changes"),
    ],
)
def test_what_is_wrong_is_said_at_its_key(values: dict[str, Any], key: str, said: str) -> None:
    found = problems(values)
    assert set(found) == {key}
    assert said in found[key]


def test_all_that_is_wrong_comes_at_once_behind_the_name_of_the_file() -> None:
    found = problems({**with_tuning(lr=[1, 1, 1]), "desing": 1, "blocks": 0, "axes": {}, "set": ["seed=1"]}, "my/study.yaml")
    assert set(found) == {f"my/study.yaml: {key}" for key in ("tuning.lr", "desing", "blocks", "axes", "set")}


AGAIN = {**ARMS, "arms": {"again": [], "other": []}}


@pytest.mark.parametrize("offset", [1, 2, 99, 100])
def test_fresh_seeds_that_are_not_fresh_are_refused(offset: int) -> None:
    values = {**with_tuning(), "arms": AGAIN["arms"], "blocks": 3, "seed_offsets": {"again": offset, "other": 5000}}
    assert set(problems(values)) == {"seed_offsets.again"}


def test_two_arms_do_not_share_their_fresh_seeds() -> None:
    assert set(problems({**AGAIN, "seed_offsets": {"again": 1000, "other": 1002}})) == {"seed_offsets.other"}
    assert parse_study({**AGAIN, "seed_offsets": {"again": 1000, "other": 1003}}, "mine").seed_offsets == {"again": 1000, "other": 1003}


def test_fresh_seeds_are_for_arms_that_are_the_baseline() -> None:
    assert "compared on the same seeds" in problems({**ARMS, "seed_offsets": {"layer": 1000}})["seed_offsets.layer"]


def test_fresh_seeds_of_an_arm_that_is_not_there_name_the_nearest() -> None:
    assert "did you mean 'layer'?" in problems({**ARMS, "seed_offsets": {"layers": 1000}})["seed_offsets.layers"]


def test_unknown_study_lists_what_is_shipped() -> None:
    with pytest.raises(ConfigError) as caught:
        load_study("norms")
    assert all(name in str(caught.value) for name in shipped_studies())
    assert "did you mean 'norm'?" in str(caught.value)


def test_study_of_ones_own_is_read_from_its_path_and_named_by_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "question: Which?\ndesign: arms\narms: {layer: [norm=layernorm]}\nblocks: 2\ntuning: {lr: [1e-3, 2e-3, 4e-3], seeds: [9]}\n"
    )
    study = load_study(str(path))
    assert study.name == "mine"
    assert study.tuning is not None
    assert study.tuning.lr == [0.001, 0.002, 0.004]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("question: [", "cannot be read as YAML"),
        ("question: a\nquestion: b\n", "duplicate key"),
        ("- question\n", "must be a mapping"),
        ("", "must be a mapping"),
        ("3", "cannot be read as YAML"),
        ("name: other\nquestion: Which?\n", "is that of the file"),
    ],
)
def test_file_that_is_no_study_is_one_problem(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_study(str(path))
    [problem] = caught.value.problems
    assert problem.key.startswith(str(path))
    assert said in problem.message


def test_path_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_study(str(tmp_path / "none.yaml"))


def test_name_of_a_file_must_do_as_the_name_of_a_study(tmp_path: Path) -> None:
    path = tmp_path / "my study.yaml"
    path.write_text(yaml.safe_dump(ARMS))
    with pytest.raises(ConfigError, match="usable as a file name"):
        load_study(str(path))


@pytest.mark.parametrize(
    ("override", "place"),
    [
        ("norm=dyt", "norm"),
        ("++norm.fraction=1/2", "norm.fraction"),
        ("+attention/qk_norm=head", "attention.qk_norm"),
        ("norm@embedding.norm=dyt", "embedding.norm"),
        ("~layers.local", "layers.local"),
        ("match.reference='norm=dyt ffn=gelu'", "match.reference"),
    ],
)
def test_place_of_an_override(override: str, place: str) -> None:
    assert place_of(override) == place


@pytest.mark.parametrize(
    ("below", "above", "both"),
    [
        (["norm=dyt", "ffn=gelu"], ["norm=glm"], ["ffn=gelu", "norm=glm"]),
        (["norm=prmsnorm", "norm.fraction=1/2"], ["norm=dyt"], ["norm=dyt"]),
        (["norm=prmsnorm"], ["norm.fraction=1/2"], ["norm=prmsnorm", "norm.fraction=1/2"]),
        (["attention.qk_norm.norm.eps=1"], ["attention/qk_norm=none"], ["attention/qk_norm=none"]),
        (["normal.x=1"], ["norm=dyt"], ["normal.x=1", "norm=dyt"]),
        (["a=1"], [], ["a=1"]),
    ],
)
def test_overrides_over_others(below: list[str], above: list[str], both: list[str]) -> None:
    assert over(below, above) == both


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (0.5, "0.5"),
        (8, "8"),
        ("8/3", "8/3"),
        (["qk_norm", "z_loss"], "[qk_norm,z_loss]"),
        ({"floor": 0.25, "beta": None}, "{floor:0.25,beta:null}"),
    ],
)
def test_value_of_an_axis_as_an_override_has_it(value: Any, text: str) -> None:
    assert as_text(value) == text


def test_every_key_of_a_study_stands_in_the_table_of_sweeps() -> None:
    rows = {line.split("|")[1].strip() for line in (sweeps_dir() / "README.md").read_text().splitlines() if line.startswith("| ")}
    assert rows - {"key"} == set(Study.model_fields) - {"name"}
