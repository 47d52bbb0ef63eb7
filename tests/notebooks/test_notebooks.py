"""Notebooks run from top to bottom in their own folder, draw, and are kept without outputs."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
#: what draws: pyplot, a figure of one's own, or a function of the library that returns one
DRAWS = re.compile(r"plt\.show\(\)|display\(figure\)|^\w+_figure\(", re.MULTILINE)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_outputs_are_stripped(path):
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            assert not cell.outputs
            assert cell.execution_count is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_runs_from_top_to_bottom_and_shows_its_figures(path, monkeypatch):
    monkeypatch.delenv("MPLBACKEND", raising=False)  # as in a reader's Jupyter
    notebook = nbformat.read(path, as_version=4)
    folder = str(path.parent)  # where Jupyter starts the kernel
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}}).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    drawing = [cell for cell in code if DRAWS.search(cell.source)]
    assert drawing  # every notebook has figures
    for cell in drawing:
        drawn = [output for output in cell.outputs if "image/png" in output.get("data", {})]
        assert drawn, f"no figure from:\n{cell.source}"
