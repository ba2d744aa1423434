"""Probes: numbers from within the model, that are what they say and move no number of the run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import ablate.model.attention as attention_module
from ablate.bench import _endless, _training, cost_of_probes
from ablate.cli import main
from ablate.composition import compose
from ablate.config import build_model
from ablate.model.mask import Visible
from ablate.model.transformer import Transformer
from ablate.runs import read_json, read_metrics
from ablate.train import probes
from ablate.train.loop import Training, train_step

VOLATILE = {"seconds", "tokens_per_second", "flop_utilisation"}

MIXED = ["ffn=moe", "ffn.num_experts=4", "ffn.experts_per_token=2", "dropout=dropout"]
KINDS = [
    ["norm=layernorm", "placement=post"],
    ["position=alibi", "attention=gqa", "model.heads=4", "attention.kv_heads=2"],
    ["position=t5", "attention.soft_cap=2.0", "residual=parallel"],
    ["position=transformer_xl", "attention.window=1/4"],
    ["position=learned", "attention.value_residual=learned", "residual=rezero"],
    ["attention=mla", "embedding=factorised", "head=tied"],
    ["embedding=normed", "position=learned"],
    ["attention.temperature={floor: 4, beta: 0.5, shift: 1}", "attention.sink=learned", "attention.gate=head"],
    MIXED,
]


def tokens(rows: int = 2, context: int = 64) -> Tensor:
    return torch.randint(0, 256, (rows, context), generator=torch.Generator().manual_seed(0))


def trained(short: list[str], *overrides: str, steps: int = 3) -> Training:
    training = _training(compose([*short, *overrides]))
    for _ in range(steps):
        train_step(training)
    return training


def rows(results: Path) -> list[dict[str, Any]]:
    [directory] = (results / "runs").iterdir()
    return [{k: v for k, v in row.items() if k not in VOLATILE} for row in read_metrics(directory / "metrics.jsonl")]


def without_probes(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if not key.startswith("probe/")} for row in rows]


@pytest.mark.parametrize("overrides", [[], MIXED], ids=["plain", "experts and dropout"])
def test_probes_move_no_number_of_a_run(overrides: list[str], short: list[str], tmp_path: Path) -> None:
    found = {}
    for every_steps in ("1", ".inf"):
        results = tmp_path / f"every {every_steps}"
        assert main([*short, *overrides, f"probes.every_steps={every_steps}", f"results_dir='{results}'"]) == 0
        found[every_steps] = rows(results)
    assert without_probes(found["1"]) == found[".inf"]
    assert all("probe/log_z" in row for row in found["1"] if "loss" in row)
    names = [{path.name for path in (tmp_path / f"every {steps}" / "runs").iterdir()} for steps in ("1", ".inf")]
    assert names[0] == names[1], "the interval of probes is no part of a run's identity"


def test_only_every_so_many_steps_are_looked_at(short: list[str], tmp_path: Path) -> None:
    assert main([*short, "probes.every_steps=1/4"]) == 0
    assert [row["step"] for row in rows(tmp_path / "results") if "probe/log_z" in row] == [8, 16, 24, 32]


@pytest.mark.parametrize("kind", KINDS, ids=" ".join)
def test_the_second_forward_pass_is_that_of_the_model(kind: list[str], short: list[str]) -> None:
    model = build_model(compose([*short, *kind]))
    found = probes.look(model, tokens())
    model.eval()
    with torch.no_grad():
        expected = model(tokens()).logsumexp(-1).mean()
    torch.testing.assert_close(found["log_z"], expected)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "ffn=moe" not in kind], ids=" ".join)
def test_the_largest_logit_is_that_of_the_scores_which_attention_works_with(
    kind: list[str], short: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_model(compose([*short, *kind])).eval()
    largest: list[float] = []

    def recording(q: Tensor, k: Tensor, v: Tensor, visible: Visible, *, bias: Tensor | None, scale: float, **rest: Any) -> Tensor:
        scores = torch.full((*q.shape[:-1], q.shape[-2]), -math.inf, dtype=torch.float64)
        added = torch.zeros_like(scores) if bias is None else bias.double().expand(scores.shape)
        for query in range(q.shape[-2]):
            for key in range(query + 1):
                if not isinstance(visible, Tensor) or visible[query, key]:
                    product = (q[..., query, :].double() * k[..., key, :].double()).sum(-1)
                    scores[..., query, key] = scale * product + added[..., query, key]
        largest.append(scores.max().item())
        return original(q, k, v, visible, bias=bias, scale=scale, **rest)

    original = attention_module.attend
    with monkeypatch.context() as patched, torch.no_grad():
        patched.setattr(attention_module, "attend", recording)
        model(tokens(1, 16))
    found = probes.look(model, tokens(1, 16))
    assert [found[f"max_logit/{layer}"].item() for layer in range(2)] == pytest.approx(largest, rel=1e-5)


def test_the_residual_stream_is_measured_after_each_layer(short: list[str]) -> None:
    model = build_model(compose(short)).eval()
    streams = []
    for block in model.blocks:
        block.register_forward_hook(lambda module, inputs, output: streams.append((inputs[0], output[0])))
    with torch.no_grad():
        model(tokens())
    found = probes.look(model, tokens())
    states = [streams[0][0], *(output for _, output in streams)]
    expected = [math.sqrt(sum(x**2 for x in state.double().flatten().tolist()) / state.numel()) for state in states]
    assert [found[f"residual_rms/{name}"].item() for name in ("embedding", 0, 1)] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("overrides", [[], ["head=tied"], ["position=learned", "loss=multi_token"]], ids=["untied", "tied", "more parts"])
def test_gradient_norms_of_the_parts_add_up_to_that_of_the_model(overrides: list[str], short: list[str]) -> None:
    row = train_step(trained(short, *overrides, "probes.every_steps=1"))
    squares = [value**2 for key, value in row.items() if key.startswith("probe/grad_norm/")]
    assert math.sqrt(sum(squares)) == pytest.approx(row["grad_norm"], rel=1e-5)


def test_update_ratios_are_those_of_the_weights_before_and_after(short: list[str]) -> None:
    training = trained(short, "probes.every_steps=1")
    before = {name: parameter.detach().clone() for name, parameter in training.model.named_parameters()}
    row = train_step(training)
    for prefix, part in (("blocks.1.", "1"), ("embedding.", "embedding"), ("head.", "head")):
        names = [name for name in before if name.startswith(prefix)]
        now = dict(training.model.named_parameters())
        moved = sum(float((now[name].detach() - before[name]).double().square().sum()) for name in names)
        weights = sum(float(before[name].double().square().sum()) for name in names)
        assert row[f"probe/update_ratio/{part}"] == pytest.approx(math.sqrt(moved / weights), rel=1e-4)


def test_an_update_of_weights_that_were_zero_has_no_ratio(short: list[str]) -> None:
    row = train_step(trained(short, "norm=rmsnorm_zero_centred", "probes.every_steps=1", steps=0))
    assert "probe/update_ratio/norm" not in row
    assert row["probe/update_ratio/1"] > 0
    assert all(math.isfinite(value) for key, value in row.items() if key.startswith("probe/"))


def test_the_shares_of_load_are_those_of_the_whole_step(short: list[str]) -> None:
    overrides = ["ffn=moe", "ffn.num_experts=4", "ffn.experts_per_token=2", "probes.every_steps=1", "train.micro_batch_size=2"]
    training = trained(short, *overrides)
    inputs, _ = training.batches(training.step)
    with torch.no_grad():
        loads = [stats.load_E.double() for stats in training.model.run(inputs).found]
    row = train_step(training)
    for layer, load_E in enumerate(loads):
        assert row[f"probe/max_load/{layer}"] == pytest.approx(float(load_E.max() / load_E.sum()))
        assert row[f"probe/min_load/{layer}"] == pytest.approx(float(load_E.min() / load_E.sum()))


def test_the_time_of_probes_is_no_time_of_steps(short: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    look = probes.look

    def slow(model: Transformer, tokens_BT: Tensor) -> probes.Found:
        time.sleep(2)
        return look(model, tokens_BT)

    monkeypatch.setattr(probes, "look", slow)
    training = trained(short, "probes.every_steps=1", steps=1)
    assert training.seconds < 2


@pytest.mark.parametrize(("interval", "said"), [("4", "one in 4 steps"), ("1/4", "one in 8 steps"), (".inf", "probes: off")])
def test_the_bench_says_what_probes_cost(interval: str, said: str, short: list[str]) -> None:
    overrides = [*short, f"probes.every_steps={interval}"]
    assert said in cost_of_probes(_training(_endless(overrides)), compose(overrides), rounds=2, seconds=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside torch.compile
def test_probes_compile_nothing_anew_and_move_no_number_of_a_compiled_run(short: list[str], cache_dir: Path) -> None:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    losses = {}
    for every_steps in (".inf", "2"):
        torch._dynamo.reset()
        training = _training(compose([*short, "compile=true", f"probes.every_steps={every_steps}"]))
        losses[every_steps] = [train_step(training)["loss"]]
        graphs = counters["stats"]["unique_graphs"]
        losses[every_steps] += [train_step(training)["loss"] for _ in range(5)]
        assert counters["stats"]["unique_graphs"] == graphs
    assert losses[".inf"] == losses["2"]


def test_a_run_without_probes_has_none(short: list[str], tmp_path: Path) -> None:
    assert main([*short, "probes.every_steps=.inf"]) == 0
    assert not any(key.startswith("probe/") for row in rows(tmp_path / "results") for key in row)
    [directory] = (tmp_path / "results" / "runs").iterdir()
    assert read_json(directory / "status.json")["state"] == "done"


def test_the_probed_model_trains_on_with_its_dropout(short: list[str]) -> None:
    training = trained(short, "dropout=dropout", "probes.every_steps=1", steps=1)
    assert all(module.training for module in training.model.modules())
