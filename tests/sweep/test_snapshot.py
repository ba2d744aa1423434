"""Snapshots: a run is trained by the code as it was when it was asked for, whatever becomes of it later."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ablate.errors import ConfigError
from ablate.sweep.snapshot import OWN_CONF, snapshot


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's own: a module, a package, a conf folder."""
    folder = tmp_path / "mine"
    (folder / "my_package").mkdir(parents=True)
    (folder / "conf" / "norm").mkdir(parents=True)
    (folder / "my_module.py").write_text("WORD = 'as it was'\n")
    (folder / "my_package" / "__init__.py").write_text("")
    (folder / "my_package" / "inner.py").write_text("WORD = 'within'\n")
    (folder / "conf" / "norm" / "coarse.yaml").write_text("defaults: [rmsnorm, _self_]\neps: 0.1\n")
    monkeypatch.syspath_prepend(str(folder))
    return folder


def taken(study: Path, mine: Path) -> Path:
    return snapshot(study, ["my_module", "my_package.inner"], str(mine / "conf"))


def python(code: Path, script: str, cwd: Path) -> str:
    """What a script prints whose modules come from a snapshot, as those of a worker do."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"PYTHONPATH": str(code)}
    done = subprocess.run([sys.executable, "-c", script], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_same_content_is_one_folder_made_once(tmp_path: Path, mine: Path) -> None:
    first = taken(tmp_path, mine)
    (first / "mark").touch()
    (mine / "my_module.py").touch()
    assert taken(tmp_path, mine) == first
    assert (first / "mark").exists()
    assert [path.name for path in (tmp_path / "code").iterdir()] == [first.name]


@pytest.mark.parametrize("changed", ["my_module.py", "my_package/inner.py", "conf/norm/coarse.yaml"])
def test_what_changes_makes_another_folder_and_leaves_the_first_as_it_was(tmp_path: Path, mine: Path, changed: str) -> None:
    first = taken(tmp_path, mine)
    content = {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}
    (mine / changed).write_text("# changed\n")
    second = taken(tmp_path, mine)
    assert second != first
    assert {path: path.read_bytes() for path in first.rglob("*") if path.is_file()} == content


def test_a_new_file_of_a_package_makes_another_folder(tmp_path: Path, mine: Path) -> None:
    first = taken(tmp_path, mine)
    (mine / "my_package" / "new.py").write_text("")
    assert taken(tmp_path, mine) != first


def test_package_conf_studies_and_what_is_the_users_are_all_there(tmp_path: Path, mine: Path) -> None:
    code = taken(tmp_path, mine)
    for place in ("ablate/__main__.py", "ablate/sweep/worker.py", "ablate/conf/config.yaml", "ablate/conf/norm/rmsnorm.yaml"):
        assert (code / place).is_file()
    for place in ("ablate/sweeps/norm.yaml", "my_module.py", "my_package/inner.py", f"{OWN_CONF}/norm/coarse.yaml", "ablate/COMMIT"):
        assert (code / place).is_file()
    assert not list(tmp_path.glob("code/.*"))


def test_code_conf_and_modules_are_those_of_the_snapshot_and_not_of_where_one_stands(tmp_path: Path, mine: Path) -> None:
    code = taken(tmp_path, mine)
    (mine / "my_module.py").write_text("WORD = 'as it is now'\n")
    (mine / "ablate").mkdir()
    (mine / "ablate" / "__init__.py").write_text("raise ImportError('not the one')\n")
    script = "import sys; sys.path.pop(0); import ablate, ablate.shipped as s, my_module, my_package.inner as i\n"
    script += "print(ablate.__file__, s.conf_dir(), s.sweeps_dir(), my_module.WORD, i.WORD, sep='|')"
    assert python(code, script, mine).strip().split("|") == [
        str(code / "ablate" / "__init__.py"),
        str(code / "ablate" / "conf"),
        str(code / "ablate" / "sweeps"),
        "as it was",
        "within",
    ]


def test_a_snapshot_of_a_snapshot_is_the_same_code(tmp_path: Path, mine: Path) -> None:
    """A job that goes on with a study runs from the snapshot, and what it submits is the same code."""
    code = taken(tmp_path, mine)
    script = "import sys; from pathlib import Path; from ablate.sweep.snapshot import snapshot\n"
    script += f"print(snapshot(Path({str(tmp_path / 'again')!r}), ['my_module', 'my_package.inner'], {str(code / OWN_CONF)!r}).name)"
    assert python(code, script, tmp_path).strip() == code.name


def test_the_commit_is_in_it(tmp_path: Path) -> None:
    from ablate.environment import git_commit

    assert (snapshot(tmp_path, [], None) / "ablate" / "COMMIT").read_text().strip() == (git_commit() or "unknown")


def test_installed_modules_stay_where_they_are(tmp_path: Path) -> None:
    assert not (snapshot(tmp_path, ["yaml", "filelock"], None) / "yaml").exists()


def test_a_module_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'no_such_module' cannot be found"):
        snapshot(tmp_path, ["no_such_module"], None)
