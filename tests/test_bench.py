"""The bench measures what it says; its figures are printed, never tested."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablate.bench import Contestant, _split, _training, race, table
from ablate.cli import main
from ablate.composition import compose
from tests.model.conftest import QUIET_COMPILER


@pytest.mark.slow
def test_our_loop_is_measured_against_a_bare_one(short: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    settings = [word for word in short if not word.startswith(("tracker", "results_dir"))]
    assert main(["bench", "--rounds", "3", "--seconds", "0.1", *settings]) == 0
    out = capsys.readouterr().out
    for words in ("bare loop", "our loop", "GFLOP/s", "first step", "s after the command", "eager"):
        assert words in out
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
def test_configs_are_measured_against_each_other(short: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--rounds", "3", "--seconds", "0.1", *short, "vs", "norm=layernorm", "vs", "norm=none"]) == 0
    out = capsys.readouterr().out
    assert "norm=layernorm" in out
    assert "norm=none" in out


@pytest.mark.slow
@pytest.mark.filterwarnings(*QUIET_COMPILER)
def test_every_choice_of_a_group_is_measured_against_the_config_and_what_is_refused_is_named(
    short: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["bench", "--every", "placement", "--rounds", "1", "--seconds", "0", *short, "norm=none", "compile=true"]
    assert main(command) == 0
    rows = {line.split("│")[1].strip(): line for line in capsys.readouterr().out.splitlines() if line.startswith("│")}
    assert all("refused" in row for name, row in rows.items() if name not in ("pre", "placement"))
    assert "refused" not in rows["pre"]
    assert {"post", "sandwich"} <= set(rows)


def test_the_words_after_vs_belong_to_one_config_each() -> None:
    assert _split(["a=1", "vs", "b=2", "c=3", "vs", "d=4"]) == [["a=1"], ["b=2", "c=3"], ["d=4"]]


def test_turns_are_interleaved_and_the_ratio_is_within_a_round(short: list[str]) -> None:
    training, order = _training(compose(short)), []
    contestants = [Contestant(name, lambda name=name: order.append(name), training) for name in ("one", "other")]
    peaks = race(contestants, rounds=4, seconds=0)
    turns = order[-8:]
    assert turns == ["one", "other", "other", "one"] * 2
    assert len(peaks) == len(contestants[0].seconds) == len(contestants[1].seconds) == 4
    contestants[0].seconds, contestants[1].seconds = [1.0, 2.0, 4.0, 8.0], [1.5, 3.0, 6.0, 12.0]
    cells = [list(column.cells) for column in table("t", contestants, peaks).columns]
    assert cells[2] == ["1.000", "1.500"]
