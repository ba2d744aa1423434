"""The verbs report and compare, and what they say in the terminal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from ablate.cli import main
from ablate.report.text import WIDTH, first_screen, forest
from tests.report import example, made

LOSSES: dict[str, dict[int, made.Result]] = {
    "baseline": {0: 2.10, 1: 2.11, 2: 2.09, 3: 2.105},
    "layernorm": {0: 2.151, 1: 2.159, 2: 2.142, 3: 2.154},
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to type commands in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def typed(*words: str) -> int:
    return main(list(words))


def test_a_study_is_reported_into_its_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made.study(here, LOSSES, steps=8)
    assert typed("report", "made") == 0
    said = capsys.readouterr().out
    assert "layernorm: WORSE" in said
    assert said.rstrip().endswith("results/made/report.html")
    assert {"report.html", "report.md", "runs.csv", "contrasts.csv", "figures"} <= {path.name for path in folder.iterdir()}


def test_runs_are_reported_into_a_folder_of_choice(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made.study(here, LOSSES, steps=8)
    assert typed("report", "results/runs", "--out", "elsewhere") == 0
    assert "norm=layernorm: " in capsys.readouterr().out
    assert (here / "elsewhere" / "report.html").is_file()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["report", "mad"], "did you mean 'made'?"),
        (["report"], "the following arguments are required"),
        (["report", "made", "--baseline", "layrnorm"], "did you mean 'layernorm'?"),
        *(
            (["report", "made", "--margin", word], "must be a number of nats above 0")
            for word in ("small", "0", "-1", "nan", "inf", "1e300")
        ),
        (["report", "made", "--out", "results/made/study.yaml"], "is no folder that can be written into"),
        (["compare", "made", "mad"], "is no run, and no folder of runs"),
        (["compare", "made"], "the following arguments are required"),
        (["compare", "made", "results/runs"], "compare two runs, or two studies"),
        (["compare", "results/runs", "results/runs"], "stands for 8 runs: name one of them"),
    ],
)
def test_what_is_typed_wrongly_is_one_message(words: list[str], hint: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made.study(here, LOSSES, steps=8)
    assert typed(*words) == 2
    assert hint in capsys.readouterr().err


def test_a_study_that_still_tunes_is_reported_as_far_as_it_is(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuning = {arm: {1e-3: [2.2, 2.2], 2e-3: ["running", 2.1], 4e-3: [2.3, 2.3]} for arm in ("baseline", "layernorm")}
    made.study(here, {"baseline": {}, "layernorm": {}}, tuning=tuning, blocks=[0, 1], rates={"baseline": 2e-3, "layernorm": 2e-3}, steps=8)
    assert typed("report", "made") == 0
    assert "Nothing can be said yet" in capsys.readouterr().out


def test_figures_of_an_earlier_report_go_and_other_files_stay(here: Path) -> None:
    folder = made.study(here, LOSSES, steps=8)
    (folder / "figures").mkdir()
    for name in ("learning-rates.png", "interaction-a-b.svg", "mine.png"):
        (folder / "figures" / name).write_text("old")
    assert typed("report", "made") == 0
    left = {path.name for path in (folder / "figures").iterdir()}
    assert "forest.png" in left
    assert "mine.png" in left
    assert not left & {"learning-rates.png", "interaction-a-b.svg"}


def test_runs_of_two_sizes_are_compared_where_the_two_were_asked_for(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = {"shallow": ["model.depth=2"], "deep": ["model.depth=4"]}
    made.study(here, {"shallow": LOSSES["baseline"], "deep": LOSSES["layernorm"]}, overrides=overrides, steps=8)
    names = sorted(path.name for path in Path("results/runs").iterdir())
    pair = [next(name for name in names if f"depth={depth}" in name) for depth in (2, 4)]
    assert typed("compare", *pair) == 0
    assert "model.depth=4: WORSE" in capsys.readouterr().out


def test_two_runs_are_compared_by_all_runs_of_their_arms(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made.study(here, LOSSES, steps=8)
    a, b = (next((here / "results" / "runs").glob(f"{name}-s0-*")) for name in ("baseline", "norm=layernorm"))
    assert typed("compare", a.name, b.name) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines if line.startswith("norm.kind")] == [["norm.kind", "rmsnorm", "layernorm"]]
    assert not any(line.startswith(("init_seed", "model.")) for line in lines)
    assert any("WORSE" in line and "+0.050" in line and "4 blocks" in line for line in lines)


def test_two_seeds_of_an_arm_are_no_comparison(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made.study(here, LOSSES, steps=8)
    a, b = (next((here / "results" / "runs").glob(f"baseline-s{seed}-*")) for seed in (0, 1))
    assert typed("compare", str(a), b.name.rpartition("-")[2]) == 0
    said = capsys.readouterr().out
    assert "The same arm" in said
    assert "init_seed" in said


def test_of_two_studies_only_what_changed_is_shown(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = {**LOSSES, "prmsnorm": {0: 2.101, 1: 2.109, 2: 2.091, 3: 2.104}}
    made.study(here, more, steps=8, name="before")
    made.study(here / "later", {**more, "layernorm": {0: 2.06, 1: 2.069, 2: 2.05, 3: 2.066}}, steps=8, name="after")
    assert typed("compare", "before", "later/results/after") == 0
    lines = capsys.readouterr().out.splitlines()
    [row] = [line for line in lines if line.startswith("layernorm")]
    assert row.index("WORSE") < row.index("BETTER")
    assert not any(line.startswith("prmsnorm") for line in lines)
    assert lines[-1] == "1 arms as before, 1 changed"


def screen(console_width: int = 160) -> str:
    console = Console(width=console_width, record=True, markup=False, highlight=False, emoji=False, soft_wrap=True)
    with console.capture() as captured:
        first_screen(example.analysis(), console)
    return captured.get()


def test_the_first_screen_has_every_sentence_and_every_warning() -> None:
    said, analysis = screen(), example.analysis()
    assert analysis.question in said
    assert analysis.answer in said
    for arm in analysis.arms:
        assert arm.sentence in said
    assert said.index("Stop: ") < said.index("Note: ")


def test_brackets_in_a_name_are_no_markup() -> None:
    analysis = example.analysis()
    named = replace(analysis.arms[0], name="[red]x[/red]", sentence="[red]x[/red]: BETTER")
    console = Console(width=160, markup=False, highlight=False, emoji=False, soft_wrap=True)
    with console.capture() as captured:
        first_screen(replace(analysis, arms=[named]), console)
    assert "[red]x[/red]: BETTER" in captured.get()


def test_intervals_are_drawn_about_zero_in_one_scale() -> None:
    analysis = example.analysis()
    lines = forest(analysis.arms, analysis.margin.nats, analysis.metric)
    start = max(len(arm.name) for arm in analysis.arms) + 2
    bars = {line.split()[0]: line[start : start + WIDTH] for line in lines[:-1]}
    middle = WIDTH // 2
    assert max(place for place, sign in enumerate(bars["relu2"]) if sign in "━●") < middle
    assert min(place for place, sign in enumerate(bars["post"]) if sign in "━●") > middle
    assert all(bar[middle] in "│━●" for bar in bars.values())
    assert forest([], None, "nats per token") == []
