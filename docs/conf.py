"""Sphinx configuration of the site that ``make docs`` builds into ``out/docs``.

The source folder is the repository's top, so that links between README, ``docs/`` and notebooks are
the same on the site and in the repository.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import smetric_model

project = "smetric_model"
version = release = smetric_model.__version__
author = "smetric_model's authors"
copyright = "smetric_model's authors, Apache-2.0"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
]
root_doc = "docs/index"
include_patterns = ["README.md", "CHANGELOG.md", "docs/**", "notebooks/*.ipynb"]
exclude_patterns = [".*", "out", "tests", "benchmarks", "data", "smetric_model", "tools"]
templates_path = ["_templates"]

myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 4
# Notebooks are kept without outputs. `make docs NOTEBOOKS=execute` runs them; else a note says so.
EXECUTE = os.environ.get("SMETRIC_DOCS_NOTEBOOKS", "") == "execute"
nb_execution_mode = "auto" if EXECUTE else "off"
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_merge_streams = True
os.environ.pop("MPLBACKEND", None)  # kernels draw for the page

autodoc_typehints = "none"  # the docstrings name types, shapes and units
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
add_module_names = False
suppress_warnings = ["ref.python"]  # a name that several modules re-export

highlight_language = "text"  # command lines and their output
html_theme = "furo"
html_title = "smetric_model"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_additional_pages = {"index": "start.html"}
html_theme_options = {"navigation_with_keys": True}

NOTE = """```{{note}}
This page shows the notebook's text and code, not what its cells answer. To see tables and
figures, run it: `jupyter lab notebooks/{name}.ipynb`; or build this site with
`make docs NOTEBOOKS=execute`.
```"""


def _say_that_it_was_not_run(_app: Sphinx, docname: str, source: list[str]) -> None:
    """Put a note below the title of a notebook that is shown without its outputs."""
    if EXECUTE or not docname.startswith("notebooks/"):
        return
    notebook = json.loads(source[0])
    note = NOTE.format(name=docname.partition("/")[2])
    cell = {"cell_type": "markdown", "id": "not-run", "metadata": {}, "source": note}
    notebook["cells"].insert(1, cell)
    source[0] = json.dumps(notebook)


def setup(app: Sphinx) -> None:
    """Connect what this site does to its pages."""
    app.connect("source-read", _say_that_it_was_not_run)
