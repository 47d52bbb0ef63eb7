"""Sphinx configuration of the site that ``make docs`` builds into ``out/docs``.

The source folder is the repository's top, so that links between README, ``docs/`` and notebooks are
the same on the site and in the repository.
"""

from __future__ import annotations

import sys
from pathlib import Path

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
# Notebooks are kept without outputs, and executed by the tests; here they are to read.
nb_execution_mode = "off"

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
html_static_path: list[str] = []
html_additional_pages = {"index": "start.html"}
html_theme_options = {"navigation_with_keys": True}
