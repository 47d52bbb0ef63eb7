"""Examples in docstrings run, and show what they say."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import smetric_model

ROOT = Path(__file__).resolve().parents[2]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "smetric_model").rglob("*.py")
    if ">>> " in path.read_text()
)
#: public names whose documentation begins with an example
WITH_EXAMPLE = [name for name in smetric_model.__all__ if name != "__version__"]


@pytest.mark.usefixtures("at_workplace")
@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    result = doctest.testmod(import_module(name), optionflags=FLAGS, verbose=False)
    assert result.attempted
    assert not result.failed


@pytest.mark.parametrize("name", WITH_EXAMPLE)
def test_public_names_have_an_example(name):
    home = import_module(smetric_model._HOMES[name])
    assert ">>> " in (getattr(home, name).__doc__ or "")
