"""Loss by position and loss of the same targets at longer contexts: what is measured, of which targets, and what is not defined."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor
from torch.nn import functional as F

from ablate.cli import main
from ablate.composition import compose
from ablate.config import Config, build_model
from ablate.data import EvalSet
from ablate.errors import ConfigError
from ablate.extrapolation import Extrapolation, draw, measure
from ablate.runs import read_json
from ablate.train.curves import MAX_SPANS, LossByPosition, extended, length_extrapolation, longer, loss_by_position, spans

CPU = torch.device("cpu")
CONTEXT = 64


def text(*lengths: int, seed: int = 0) -> EvalSet:
    """Segments of random ids."""
    drawn = np.random.default_rng(seed)
    segments = [drawn.integers(0, 256, length + 1).astype(np.uint16) for length in lengths]
    return EvalSet(segments, bytes=None, tokens=sum(lengths))


def extrapolation(cfg: Config, eval_set: EvalSet, extend: str = "none") -> dict[str, Any]:
    return length_extrapolation(cfg, build_model(cfg).state_dict(), eval_set, CPU, extend)


def by_position(logits_of: Callable[[Tensor], Tensor], eval_set: EvalSet, context: int, batch_size: int = 2) -> LossByPosition:
    return loss_by_position(logits_of, eval_set, context=context, batch_size=batch_size, device=CPU, grad=False)


# --- loss by position


def loses_its_position(inputs_BT: Tensor) -> Tensor:
    """Scores of two words with a loss of ln(1 + e^t) at place t for word 0, the only target there is."""
    places_BT = torch.arange(inputs_BT.shape[1], dtype=torch.float64).expand(inputs_BT.shape)
    return torch.stack([torch.zeros_like(places_BT), places_BT], dim=-1)


@pytest.mark.parametrize("context", [1, 2, 3, 8, 12, 64])
def test_each_place_of_the_context_has_its_own_loss(context: int) -> None:
    zeros = EvalSet([np.zeros(3 * context + 1 + context // 2, np.uint16)] * 2, bytes=None, tokens=0)
    found = by_position(loses_its_position, zeros, context)
    assert found.curve() == pytest.approx([math.log1p(math.exp(place)) for place in range(context)])


def test_buckets_double_and_cover_every_place_once() -> None:
    for context, edges in {
        1: [(1, 1)],
        3: [(1, 1), (2, 2), (3, 3)],
        8: [(1, 1), (2, 2), (3, 4), (5, 8)],
        12: [(1, 1), (2, 2), (3, 4), (5, 8), (9, 12)],
    }.items():
        nats, targets = torch.arange(context).double() * 2, torch.full((context,), 2.0)
        rows = LossByPosition(nats, targets).buckets()
        assert [(row["from"], row["to"]) for row in rows] == edges
        assert [row["loss"] for row in rows] == [(first - 1 + last - 1) / 2 for first, last in edges]


def test_a_bucket_without_a_target_has_no_loss() -> None:
    rows = LossByPosition(torch.tensor([0.0, 3.0]), torch.tensor([0, 2])).buckets()
    assert [row["loss"] for row in rows] == [None, 1.5]


def test_all_places_together_have_the_loss_of_the_evaluation(plain: Path) -> None:
    summary = read_json(plain / "summary.json")
    curve, rows = summary["loss_at_position"], summary["loss_by_position"]
    assert len(curve) == CONTEXT
    assert sum(curve) / CONTEXT == pytest.approx(summary["eval_loss"], rel=1e-6), "4096 bytes are whole windows, and fewer than are sampled"
    widths = [row["to"] - row["from"] + 1 for row in rows]
    weighted = sum(width * row["loss"] for width, row in zip(widths, rows, strict=True))
    assert weighted / CONTEXT == pytest.approx(summary["eval_loss"], rel=1e-6)


# --- the same targets at longer contexts


def test_stretches_lie_in_one_segment_and_share_no_target() -> None:
    segments = [np.arange(start, start + length + 1) for start, length in ((0, 31), (1000, 9), (2000, 8), (3000, 7))]
    found = spans(EvalSet(segments, bytes=None, tokens=0), 8)
    assert [(int(span[0]), int(span[-1])) for span in found] == [(0, 8), (8, 16), (16, 24), (1000, 1008), (2000, 2008)]


@pytest.mark.parametrize("kind", [[], ["position=alibi"], ["position=none", "attention.window=1/4"]], ids=["rope", "alibi", "window"])
def test_the_same_targets_are_predicted_from_windows_that_end_with_them(kind: list[str], short: list[str]) -> None:
    cfg, eval_set = compose([*short, *kind]), text(4 * CONTEXT, 9 * CONTEXT)
    found = extrapolation(cfg, eval_set)
    assert found["targets"] == 3 * CONTEXT // 8
    model = build_model(cfg, 4 * CONTEXT).eval()
    starts = [(eval_set.segments[0], 0), (eval_set.segments[1], 0), (eval_set.segments[1], 4 * CONTEXT)]
    for multiple in (1, 2, 4):
        losses = []
        for segment, start in starts:
            ids = torch.tensor(segment[start : start + 4 * CONTEXT + 1].astype(np.int64))
            with torch.no_grad():
                logits = model(ids[None, (4 - multiple) * CONTEXT : 4 * CONTEXT])[0]
            for back in range(CONTEXT // 8):
                losses.append(-F.log_softmax(logits[-1 - back].double(), -1)[ids[-1 - back]].item())
        assert found[str(multiple)] == pytest.approx(sum(losses) / len(losses), rel=1e-6)


def test_a_model_that_cannot_see_further_gains_nothing_from_more_context(short: list[str]) -> None:
    """Two layers that see 4 tokens each reach 7 tokens back: all of it is in every window."""
    found = extrapolation(compose([*short, "position=none", "attention.window=4"]), text(9 * CONTEXT))
    assert found["2"] == pytest.approx(found["1"], rel=1e-5)
    assert found["4"] == pytest.approx(found["1"], rel=1e-5)
    plain = extrapolation(compose([*short, "position=none"]), text(9 * CONTEXT))
    assert plain["4"] != pytest.approx(plain["1"], rel=1e-5)


def test_more_text_gives_no_more_targets_than_are_affordable(short: list[str]) -> None:
    found = extrapolation(compose(short), text(4 * CONTEXT * (MAX_SPANS + 9)))
    assert found["targets"] == MAX_SPANS * CONTEXT // 8


def test_learned_positions_are_not_defined_beyond_the_context(short: list[str]) -> None:
    found = extrapolation(compose([*short, "position=learned"]), text(4 * CONTEXT))
    assert found["1"] > 0
    assert (found["2"], found["4"]) == (None, None)
    assert found["reasons"].keys() == {"2", "4"}
    assert found["reasons"]["4"].startswith("not defined: learned is not defined beyond model.context=64")


def test_too_short_segments_are_a_reason_and_no_crash(short: list[str]) -> None:
    found = extrapolation(compose(short), text(4 * CONTEXT - 1))
    assert (found["1"], found["2"], found["4"], found["targets"]) == (None, None, None, 0)
    assert "256 tokens of text in one piece are needed, and the longest has 255" in found["reasons"]["targets"]


def test_a_run_on_a_task_ends_without_longer_contexts(short: list[str], tmp_path: Path) -> None:
    assert main([*short, "data=copy"]) == 0
    [directory] = (tmp_path / "results" / "runs").iterdir()
    summary = read_json(directory / "summary.json")
    assert summary["length_extrapolation"]["4"] is None
    assert "task" in summary["length_extrapolation"]["reasons"]["targets"]
    assert summary["loss_at_position"][0] is None, "only the second half of a copy is scored"
    assert summary["loss_by_position"][-1]["loss"] > 0


@pytest.mark.parametrize("word", ["ntk", "yarn"])
def test_an_extension_turns_slower_and_is_another_number(word: str, short: list[str]) -> None:
    cfg, eval_set = compose(short), text(9 * CONTEXT)
    found = extrapolation(cfg, eval_set, word)
    assert found.keys() == {"1", "2", "4", word, "targets", "reasons"}
    plain = extrapolation(cfg, eval_set)
    for multiple in ("2", "4"):
        assert found[multiple] == plain[multiple]
        assert found[word][multiple] != pytest.approx(found[multiple], rel=1e-6)


def test_the_extension_is_the_variant_of_that_name_with_the_multiple_as_its_factor(short: list[str]) -> None:
    chosen = [*short, "position/scaling=yarn", "position.scaling.factor=2.0", f"position.scaling.original_context={CONTEXT}"]
    assert extended(compose(short), "yarn", 2).position.model_dump() == compose(chosen).position.model_dump()
    chosen = [*short, "position/scaling=ntk", "position.scaling.factor=4.0"]
    assert extended(compose(short), "ntk", 4).position.model_dump() == compose(chosen).position.model_dump()


@pytest.mark.parametrize(("kind", "reason"), [("position=alibi", "this is alibi"), ("position/scaling=linear", "position.scaling=linear")])
def test_what_cannot_be_extended_says_so(kind: str, reason: str, short: list[str]) -> None:
    found = extrapolation(compose([*short, kind]), text(4 * CONTEXT), "yarn")
    assert found["yarn"] == {"2": None, "4": None}
    assert found["4"] > 0
    assert reason in found["reasons"]["yarn"]


def test_a_longer_model_is_the_trained_one_within_the_context(short: list[str]) -> None:
    cfg = compose(short)
    model = build_model(cfg)
    tokens = torch.randint(0, 256, (2, CONTEXT), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(longer(cfg, model.state_dict(), 4 * CONTEXT, CPU)(tokens), model.eval()(tokens))


# --- the verb


def test_the_verb_gives_the_numbers_of_the_run_again(short: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for chosen in (["position=rope", "eval.extend=yarn"], ["position=learned"]):
        assert main([*short, *chosen]) == 0
    directories = sorted((tmp_path / "results" / "runs").iterdir())
    for directory in directories:
        assert measure(directory, None).losses == read_json(directory / "summary.json")["length_extrapolation"]
    capsys.readouterr()
    figure = tmp_path / "figure.png"
    assert main(["extrapolate", str(tmp_path / "results"), "--figure", str(figure)]) == 0
    out = capsys.readouterr().out
    assert "learned is not defined beyond" in out
    assert "warning" not in out
    assert f"{read_json(directories[-1] / 'summary.json')['length_extrapolation']['1']:.4f}" in out
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_a_run_from_before_a_key_was_there_can_still_be_measured(plain: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(plain, tmp_path / plain.name)
    config = yaml.safe_load((directory / "config.yaml").read_text())
    del config["probes"], config["eval"]["extend"]
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    assert measure(directory, None).losses == read_json(directory / "summary.json")["length_extrapolation"]
    identity = read_json(directory / "identity.json")
    (directory / "identity.json").write_text(json.dumps({**identity, "schema": 0}))
    with pytest.raises(ConfigError, match="another version"):
        measure(directory, None)


def test_runs_with_other_targets_are_not_compared_in_silence(short: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for context in (32, 64):
        assert main([*short, f"model.context={context}"]) == 0
    capsys.readouterr()
    assert main(["extrapolate", str(tmp_path / "results")]) == 0
    assert "not of the same targets" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "needs a run directory or a results folder"),
        (["nowhere"], "has no finished run"),
        (["nowhere", "--extend", "magic"], "allowed: none, ntk, yarn"),
        (["nowhere", "--figure", "plot.xls"], "must end in .png"),
        (["nowhere", "--fig", "x.png"], "no such flag"),
    ],
)
def test_what_was_typed_wrongly_is_one_message(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["extrapolate", *words]) == 2
    assert message in capsys.readouterr().err


def test_what_is_not_defined_is_not_drawn(tmp_path: Path) -> None:
    losses = {"1": 2.0, "2": None, "4": None, "yarn": {"2": 1.5, "4": None}, "targets": 8, "reasons": {}}
    figure = draw([Extrapolation("one", 64, (), losses)], tmp_path / "figure.svg")
    [axes] = figure.axes
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines] == [([1], [2.0]), ([1, 2], [2.0, 1.5])]
