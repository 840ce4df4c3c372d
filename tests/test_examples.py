"""The notebooks of examples/ run from the first cell to the last, in a kernel and a folder of their own."""

import ast
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
RUN = """
import sys
import nbformat
from nbclient import NotebookClient

book = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(book, timeout=300, kernel_name="python3", resources={"metadata": {"path": sys.argv[2]}}).execute()
nbformat.write(book, sys.argv[3])
"""


def executed(notebook: Path, folder: Path) -> list[dict[str, Any]]:
    """The notebook's code cells after a run whose home, settings and temporary files are in the folder."""
    (folder / "work").mkdir()
    at_home = {
        "HOME": folder,
        "TMPDIR": folder,
        "IPYTHONDIR": folder,
        "JUPYTER_RUNTIME_DIR": folder / "run",
    }
    environment = {
        **os.environ,
        **{name: str(path) for name, path in at_home.items()},
        "OMP_NUM_THREADS": "1",
    }
    command = [
        sys.executable,
        "-c",
        RUN,
        str(notebook),
        str(folder / "work"),
        str(folder / "out.ipynb"),
    ]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert not list((folder / "work").iterdir()), "a notebook writes to its temporary folder alone"
    cells = json.loads((folder / "out.ipynb").read_text("utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def kinds(cell: dict[str, Any]) -> set[str]:
    """The kinds of what a cell shows."""
    return {kind for output in cell["outputs"] for kind in output.get("data", {})}


def text_of(cells: list[dict[str, Any]]) -> str:
    return json.dumps([cell["outputs"] for cell in cells])


def test_there_are_three_without_outputs_that_import_what_exists() -> None:
    assert [n.stem for n in NOTEBOOKS] == [
        "comparing_and_explaining",
        "own_table",
        "two_stages_and_serving",
    ]
    for notebook in NOTEBOOKS:
        for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
            if cell["cell_type"] == "markdown":
                continue
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            for node in ast.walk(ast.parse("".join(cell["source"]))):
                if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fieldwise"):
                    module = importlib.import_module(str(node.module))
                    assert all(hasattr(module, alias.name) for alias in node.names), notebook.name


@pytest.mark.slow
def test_own_table(tmp_path: Path) -> None:
    cells = executed(EXAMPLES / "own_table.ipynb", tmp_path)
    shown = [kinds(cell) for cell in cells]
    assert text_of(cells).count("prefers-color-scheme") == 2, "two charts"
    # tables of pandas, the schema, the run, the bundle
    assert sum("text/html" in result for result in shown) >= 7
    training = next(cell for cell in cells if "recommender.fit" in "".join(cell["source"]))
    assert training["outputs"][0]["output_type"] == "display_data", (
        "the bar is one output of the cell"
    )
    assert "FM epoch 6/6: train loss" in "".join(training["outputs"][0]["data"]["text/plain"])
    assert len(training["outputs"]) == 2


@pytest.mark.slow
def test_comparing_and_explaining(tmp_path: Path) -> None:
    cells = executed(EXAMPLES / "comparing_and_explaining.ipynb", tmp_path)
    assert text_of(cells).count("<svg ") == 4
    assert "simulated/afm" in text_of(cells)
    assert "baseline" in text_of(cells)


@pytest.mark.slow
def test_two_stages_and_serving(tmp_path: Path) -> None:
    cells = executed(EXAMPLES / "two_stages_and_serving.ipynb", tmp_path)
    assert "handed on: recall" in text_of(cells)
    assert "fieldwise serve" in text_of(cells)
