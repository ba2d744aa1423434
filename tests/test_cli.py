"""The command line: both spellings, verbs, Hydra's flags, and a clear message with exit code 2 for what is typed wrongly."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import ablate
from ablate.cli import main
from tests.command import Command

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "ablate", *shlex.split(command)], cwd=cwd, capture_output=True, text=True, timeout=120)


WRONG = {
    "norm=layernorm norm=rmsnorm": ["norm", "chosen twice", "norm=rmsnorm"],
    "placement=[pre,post]": ["placement", "one choice"],
    '"results_dir=/tmp/a(1)"': ["results_dir", "in quotes", "results_dir='/tmp/a(1)'"],
    "ffn.ratio=inf": ["ffn.ratio", "less than"],
    "model.width=1000000000000": ["model", "cannot be built at this size"],
    "bench --rounds 0": ["--rounds", "at least 1"],
    "norm=none placement=post": ["placement", "no effect with norm=none"],
    "data=tokens data.path=x": ["tokenizer", "tokenizer=none"],
    "+nrm=layernorm": ["nrm", "'layernorm'", "did you mean 'norm'"],
    "norm=rmsnrom": ["norm", "'rmsnrom'", "allowed: dyt, ", "layernorm, ", "did you mean 'rmsnorm'"],
    "+norm=rmsnrom": ["did you mean 'rmsnorm'"],
    "norm.epss=1": ["norm.epss", "got 1", "known here: kind, eps", "did you mean 'eps'"],
    "+norm.epss=1": ["norm.epss", "did you mean 'eps'"],
    "norm.eps=abc": ["norm.eps", "valid number", "got 'abc'"],
    "norm.eps=0": ["norm.eps", "greater than 0", "got 0"],
    "norm.eps=nan": ["norm.eps", "NaN"],
    "optim.lr=-1": ["optim.lr", "greater than 0", "got -1"],
    "optim.lr=": ["optim.lr", "valid number"],
    "optim.betas=[0.9]": ["optim.betas", "two numbers", "[0.9]"],
    "model.width=97": ["model.heads", "model.width=97", "4 heads"],
    "model.depth=2.5": ["model.depth", "valid integer", "got 2.5"],
    "model.depth=true": ["model.depth", "valid integer", "got True"],
    "model.depht=2": ["model.depht", "did you mean 'depth'"],
    "attention=gqa attention.kv_heads=4": ["attention.kv_heads", "4 of model.heads=4 is attention=mha"],
    "attention=gqa attention.kv_heads=1": ["attention.kv_heads", "attention=mqa"],
    "results_dir=/proc/nowhere tracker=none": ["results_dir", "cannot write /proc/nowhere"],
    "attention=gqa attention.kv_heads=3": ["attention.kv_heads", "divide model.heads=4", "got 3"],
    "model.width=60 model.heads=4": ["attention.head_dim", "even", "got 15"],
    "norm=prmsnorm norm.fraction=2": ["norm.fraction", "less than or equal to 1", "got 2"],
    "norm.fraction=0.5": ["norm.fraction", "known here: kind, eps"],
    "norm.kind=layernrom": ["norm.kind", "allowed: dyt, layernorm, none, prmsnorm, rmsnorm", "did you mean 'layernorm'"],
    "norm.kind=layernorm": ["norm.bias", "missing"],
    "attention.qk_norm.kind=heads": ["attention.qk_norm.kind", "allowed: full, head, none, per_head", "did you mean 'head'"],
    "attention.sink=learnd": ["attention.sink", "'none', 'learned' or 'zero'", "did you mean 'learned'"],
    "attention.window=5000": ["attention.window", "covers the whole context of 128 tokens"],
    "position/scaling=yarm": ["position/scaling", "did you mean 'yarn'"],
    "position=learned position/scaling=yarn": ["position/scaling", "has no place here"],
    "stability=qk_norm attention=mla": ["attention/qk_norm", "stability=qk_norm"],
    "layers.x.where.every=2": ["layers.x", "set"],
    "++layers.x.where.first=1 ++layers.x.set.attention.windw=4": ["layers.x.set.attention.windw", "did you mean 'window'"],
    "++layers.x.where.first=1 ++layers.x.set.norm.eps=1e-5": ["layers.x.set.norm", "has no effect"],
    "imports=[no_such_module]": ["imports", "'no_such_module' cannot be imported"],
    "attention/qk_norm=head norm@attention.qk_norm.norm=rmsnrom": ["norm@attention.qk_norm.norm", "did you mean 'rmsnorm'"],
    "stability=[qk_norm,z_los]": ["stability", "'z_los'", "did you mean 'z_loss'"],
    "scale=nanoo": ["scale", "124m, 1b, 350m, ", "did you mean 'nano'"],
    "scal=tiny": ["scal", "did you mean 'scale'"],
    "norm={a:1}": ["norm", "no such choice"],
    "norm=": ["norm", "no such choice"],
    "norm=rmsnorm,layernorm": ["norm", "several values", "-m"],
    "seed=0,1": ["seed", "several values", "-m"],
    "seed=-1": ["seed", "greater than or equal to 0"],
    "seed=${foo}": ["seed", "foo"],
    "seed": ["seed", "no such verb"],
    "lr=1 seed": ["seed", "key=value"],
    "~norm": ["norm", "missing"],
    "~nrm": ["nrm"],
    "dtype=bfloat61": ["dtype", "'float32' or 'bfloat16'", "did you mean 'bfloat16'"],
    "compile=yes": ["compile", "'auto', True or False", "got 'yes'"],
    "train.micro_batch_size=5": ["train.micro_batch_size", "divide train.batch_size=8", "got 5"],
    "schedule=wsd schedule.warmup_fraction=0.5 schedule.decay_fraction=0.6": ["schedule.decay_fraction", "at most the whole run"],
    "position=alibi eval.extend=yarn": ["eval.extend", "yarn stretches position=rope, and this is alibi"],
    "position/scaling=ntk eval.extend=yarn": ["eval.extend", "would take the place of position.scaling=ntk"],
    "data=mqar model.context=32 eval.extend=ntk": ["eval.extend", "no effect with data=mqar"],
    "data=mqar model.context=32 data.vocab_size=7": ["1 problem with", "data.vocab_size", "got 7"],
    "ffn=moe ffn.experts_per_token=9": ["1 problem with", "ffn.experts_per_token", "at most ffn.num_experts=8, got 9"],
    "norm=prmsnorm norm.fraction=5/4": ["norm.fraction", "less than or equal to 1", "got '5/4'"],
    "norm=prmsnorm norm.fraction=1/0": ["norm.fraction", "valid number", "got '1/0'"],
    "data=text": ["data.path", "needs a value"],
    "hydra.run.dir=/x": ["hydra.run.dir", "no effect"],
    "cout": ["cout", "did you mean 'count'"],
    "--cfgg job": ["--cfgg", "did you mean '--cfg'"],
    "--cfg jo": ["--cfg", "'jo'"],
    "--config-name confg": ["--config-name", "did you mean 'config'"],
    "--config-dir /no/such/folder": ["--config-dir", "/no/such/folder"],
    "count norm=rmsnrom": ["did you mean 'rmsnorm'"],
    "bench --round 3": ["--round"],
}


@pytest.mark.parametrize("command", WRONG)
def test_a_wrong_word_gets_one_clear_message_and_code_2(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(command)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ablate: ")
    assert "Traceback" not in err
    for words in WRONG[command]:
        assert words in err


def test_all_problems_come_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    command = "+nrm=layernorm norm=rmsnrom norm.epss=1 optim.lr=-1 placement=prre model.depth=0 dtype=fp32 seed"
    assert main(["lr=1", *command.split()]) == 2
    err = capsys.readouterr().err
    for key in ("nrm ", "norm ", "norm.epss", "optim.lr", "placement", "model.depth", "dtype", "seed", "lr "):
        assert f"\n  {key}" in err


def test_a_wrong_command_prints_no_traceback_and_writes_nothing(tmp_path: Path) -> None:
    done = run("+nrm=layernorm", tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert done.returncode == 2
    assert "did you mean 'norm'" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("norm=layernorm", "+norm=layernorm"),
        ("norm=layernorm", "++norm=layernorm"),
        ("seed=3", "+seed=3"),
        ("norm.eps=1e-3", "+norm.eps=1e-3"),
        ("stability=qk_norm", "+stability=[qk_norm]"),
        ("norm@attention.v_norm=layernorm", "+norm@attention.v_norm=layernorm"),
        ("attention/qk_norm=full", "+attention/qk_norm=full"),
        ("ffn.ratio=8/3", "ffn.ratio=16/6"),
    ],
)
def test_both_spellings_are_the_same_config(one: str, other: str) -> None:
    assert ablate.compose([one]) == ablate.compose([other])
    assert ablate.compose([one]) != ablate.compose([])


@pytest.mark.parametrize(
    ("choice", "key", "fraction", "number"),
    [
        ("position=rope", "position.fraction", "1/4", "0.25"),
        ("norm=prmsnorm", "norm.fraction", "1/8", "0.125"),
        ("residual=serial", "residual.branch", "1/2", "0.5"),
        ("loss=multi_token", "loss.weight", "1/3", str(1 / 3)),
        ("loss=cross_entropy", "loss.z_loss", "1/10000", "1e-4"),
        ("schedule=cosine", "schedule.warmup_fraction", "1/8", "0.125"),
        ("optim=adamw", "optim.lr", "1/250", "4e-3"),
        ("optim=adamw", "train.grad_clip", "3/2", "1.5"),
    ],
)
def test_a_number_may_be_written_as_a_fraction(choice: str, key: str, fraction: str, number: str) -> None:
    assert ablate.compose([choice, f"{key}={fraction}"]) == ablate.compose([choice, f"{key}={number}"])


def test_the_command_line_and_compose_give_the_same_config(start: Callable[..., Command]) -> None:
    overrides = ["+norm=prmsnorm", "stability=[qk_norm,z_loss]", "scale=tiny", "seed=5"]
    shown = start("--cfg", "job", "--resolve", *overrides).end()
    assert ablate.parse(yaml.safe_load(shown)) == ablate.compose(overrides)


def test_cfg_refuses_what_training_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cfg", "job", "+nrm=layernorm"]) == 2
    assert "did you mean 'norm'" in capsys.readouterr().err


def test_help_lists_the_axes_and_their_variants(tmp_path: Path) -> None:
    shown = run("--help", tmp_path)
    assert shown.returncode == 0
    assert "norm: dyt, " in shown.stdout
    assert "count" in shown.stdout


def test_info_defaults_shows_the_choice(start: Callable[..., Command]) -> None:
    assert "norm/layernorm" in start("--info", "defaults", "+norm=layernorm").end()


def test_a_foreign_conf_folder_is_never_picked_up(tmp_path: Path) -> None:
    (tmp_path / "conf" / "norm").mkdir(parents=True)
    (tmp_path / "conf" / "__init__.py").touch()
    (tmp_path / "conf" / "config.yaml").write_text("foreign: true\n")
    shown = run("--cfg job", tmp_path)
    assert shown.returncode == 0
    assert "foreign" not in shown.stdout
    assert yaml.safe_load(shown.stdout)["norm"]["kind"] == "rmsnorm"


def test_a_folder_of_the_users_own_adds_choices(tmp_path: Path, start: Callable[..., Command]) -> None:
    (tmp_path / "mine" / "norm").mkdir(parents=True)
    (tmp_path / "mine" / "norm" / "coarse.yaml").write_text("defaults: [rmsnorm, _self_]\neps: 0.1\n")
    assert main(["count", "norm=coarse"]) == 2
    shown = start("--config-dir", "mine", "--cfg", "job", "+norm=coarse").end()
    assert yaml.safe_load(shown)["norm"] == {"kind": "rmsnorm", "eps": 0.1, "weight": "plain"}
    assert ablate.compose(["norm=coarse"], config_dir=str(tmp_path / "mine")).norm.eps == 0.1  # type: ignore[attr-defined]


def test_a_variant_whose_module_was_not_imported_is_told_imports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine" / "norm").mkdir(parents=True)
    (tmp_path / "mine" / "norm" / "wide.yaml").write_text("kind: scalenorm\neps: 0.1\n")
    assert main(["--config-dir", "mine", "norm=wide"]) == 2
    assert "mine/norm/wide.yaml chooses it: import the module of its class with imports=[...]" in capsys.readouterr().err
    assert main(["--config-dir", "mine", "norm.kind=scalenrm"]) == 2
    assert "imports=" not in capsys.readouterr().err


def examples_of_the_readme(language: str, holding: str) -> str:
    """The code block of README.md that holds some words."""
    blocks = re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (found,) = [block for block in blocks if holding in block]
    return str(found)


@pytest.mark.slow
@pytest.mark.parametrize(("axis", "word", "option"), [("norm", "scalenorm", "eps"), ("position", "power", "exponent")])
def test_the_readmes_variants_train_from_outside_the_package_and_are_checked_like_any_other(
    axis: str, word: str, option: str, short: list[str], tmp_path: Path, start: Callable[..., Command]
) -> None:
    (tmp_path / "my_variants.py").write_text(examples_of_the_readme("python", f'@{axis.upper()}.register("{word}")'))
    (tmp_path / "mine" / axis).mkdir(parents=True)
    (tmp_path / "mine" / axis / f"{word}.yaml").write_text(examples_of_the_readme("yaml", f"kind: {word}"))
    mine = ["--config-dir", "mine", f"{axis}={word}", *short]
    trained = start(*mine, "imports=[my_variants]", "train.collapse_after=1")
    assert trained.wait() in (0, 1), trained.output
    assert f"results/runs/{axis}={word}-" in trained.output
    (directory,) = (tmp_path / "results" / "runs").iterdir()
    identity = json.loads((directory / "identity.json").read_text())
    assert identity[axis]["kind"] == word
    assert len((directory / "metrics.jsonl").read_text().splitlines()) >= 20
    assert f"did you mean '{option}'" in start(*mine, "imports=[my_variants]", f"{axis}.{option}x=1").end(2)
    forgotten = start(*mine).end(2)
    assert f"no such variant: '{word}'" in forgotten
    assert "imports=[...]" in forgotten


def test_tab_completion_of_the_console_script_knows_the_variants() -> None:
    script = Path(sys.executable).parent / "ablate"
    env = {**os.environ, "COMP_LINE": "ablate norm=l", "COMP_POINT": "13"}
    done = subprocess.run([str(script), "-sc", "query=bash"], env=env, capture_output=True, text=True, timeout=60)
    assert "norm=layernorm" in done.stdout.split()


def test_count_prints_what_the_model_costs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["count", "norm=layernorm"]) == 0
    assert "493,248" in capsys.readouterr().out


@pytest.mark.parametrize("word", ["rezero", "layerscale", "parallel"])
def test_count_knows_every_residual(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["count", f"residual={word}"]) == 0
    assert re.search(r"norms of the layers +768\n", capsys.readouterr().out)


def test_a_file_of_the_users_own_does_not_hide_behind_a_shipped_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine" / "norm").mkdir(parents=True)
    (tmp_path / "mine" / "norm" / "rmsnorm.yaml").write_text("kind: rmsnorm\neps: 0.5\n")
    assert main(["--config-dir", "mine", "norm=rmsnorm"]) == 2
    assert "has the name of a shipped file" in capsys.readouterr().err


def test_compose_leaves_the_callers_hydra_as_it_was(tmp_path: Path) -> None:
    from hydra import compose, initialize_config_dir

    (tmp_path / "theirs.yaml").write_text("x: 1\n")
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        ablate.compose(["norm=layernorm"])
        assert compose("theirs").x == 1


def test_a_screen_that_is_gone_does_not_end_a_run(short: list[str], tmp_path: Path) -> None:
    command = shlex.join([sys.executable, "-m", "ablate", *short])
    subprocess.run(["bash", "-c", f"{command} | head -1"], cwd=tmp_path, check=True, capture_output=True, timeout=120)
    [status] = (tmp_path / "results" / "runs").glob("*/status.json")
    assert yaml.safe_load(status.read_text())["state"] == "done"
