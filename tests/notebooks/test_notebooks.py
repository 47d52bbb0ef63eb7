"""Notebooks run from top to bottom in their own folder, and are kept without their outputs."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_outputs_are_stripped(path):
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            assert not cell.outputs
            assert cell.execution_count is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_runs_from_top_to_bottom(path):
    notebook = nbformat.read(path, as_version=4)
    folder = str(path.parent)  # where Jupyter starts the kernel
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}}).execute()
    assert any(cell.get("outputs") for cell in notebook.cells)
