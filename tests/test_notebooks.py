"""The notebooks of analysis/: each runs from nothing, and is shipped as it ran.

`python -m tests.test_notebooks [NAME ...]` executes them in place.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
import pytest
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parents[1] / "analysis"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MOST_BYTES = 200_000
CELL_SECONDS = 1800
"""A cell that trains, on a machine that does other things as well."""
OF_A_MACHINE = re.compile(r"(?<![\w.:/])/(work|tmp|root|home|Users|private|var|opt|mnt|usr)\b", re.IGNORECASE)
"""What a reader elsewhere has not: folders, and who was at work there."""


class ThisInterpreter(AsyncKernelManager):
    """A kernel of the interpreter that asks, whichever are installed."""

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(**get_kernel_dict())


def executed(path: Path, folder: Path) -> NotebookNode:
    """A notebook run in an empty folder, with its results in `folder`/results and nothing of W&B; raises where a cell does."""
    book = nbformat.read(path, as_version=4)
    settings = {
        "ABLATE_RESULTS": str(folder / "results"),
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(folder / "jupyter"),
        "WANDB_MODE": "offline",
    }
    kept = {key: value for key, value in os.environ.items() if key not in ("ABLATE_WANDB", "COLUMNS", "MPLBACKEND")}
    place = folder / path.stem
    place.mkdir()
    client = NotebookClient(book, timeout=CELL_SECONDS, startup_timeout=300, record_timing=False)
    client.kernel_manager_class = ThisInterpreter
    client.resources = {"metadata": {"path": str(place)}}
    client.execute(env={**kept, **settings})
    book.metadata.language_info = {"name": "python"}  # its version is that of a machine
    return book


def code_cells(path: Path) -> list[NotebookNode]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of all notebooks: what one of them has trained, the next does not train again."""
    return tmp_path_factory.mktemp("notebooks")


@pytest.mark.slow
@pytest.mark.xdist_group("notebooks")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_nothing_to_a_sentence_with_an_interval(
    path: Path, folder: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_dir))
    last = [cell for cell in executed(path, folder).cells if cell.cell_type == "code"][-1]
    said = "".join(output.text for output in last.outputs if output.output_type == "stream")  # which may come in pieces
    assert re.search(r"\[.?\d+\.\d+, .?\d+\.\d+\]", said)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_shipped_as_it_ran(path: Path) -> None:
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert {output.name for output in outputs if output.output_type == "stream"} == {"stdout"}
    assert any("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_knows_no_machine(path: Path) -> None:
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    assert path.stat().st_size < MOST_BYTES
    assert book.metadata.kernelspec.name == "python3"
    for output in (output for cell in book.cells for output in cell.get("outputs", [])):
        output.get("data", {}).pop("image/png", None)  # letters at random
    assert OF_A_MACHINE.search(nbformat.writes(book)) is None


def test_all_notebooks_are_told_in_the_readme() -> None:
    told = re.findall(r"`(\w+\.ipynb)`", (FOLDER / "README.md").read_text(encoding="utf-8"))
    assert sorted(told) == [path.name for path in NOTEBOOKS]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        for found in [path for path in NOTEBOOKS if path.stem in sys.argv[1:] or len(sys.argv) == 1]:
            nbformat.write(executed(found, Path(scratch)), found)
            print(f"{found.name}  {found.stat().st_size:,} bytes", flush=True)
