"""The page is what its generator makes of the shipped rows."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location(
        "reproduction_page", ROOT / "tools" / "reproduction_page.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_as_made(tool):
    page = tool.PAGE.read_text(encoding="utf-8")
    made = tool.parts()
    # a whole table each, not an empty one
    assert made["score"].count("\n") == 8
    assert made["claims"].count("| C") > 50
    assert made["deciding"].count("| C") > 20
    assert tool.filled(page, made) == page


def test_what_stands_around_the_parts_is_kept(tool):
    page = "a\n<!-- made: one -->\nold\n<!-- made -->\nb\n<!-- made: two -->\n<!-- made -->\nc\n"
    new = tool.filled(page, {"one": "1\n", "two": "2\n"})
    assert new == (
        "a\n<!-- made: one -->\n\n1\n\n<!-- made -->\n"
        "b\n<!-- made: two -->\n\n2\n\n<!-- made -->\nc\n"
    )
    assert tool.filled(new, {"one": "1\n", "two": "2\n"}) == new
    with pytest.raises(ValueError, match="marks for"):
        tool.filled(page, {"one": "1\n"})


def test_loads_are_those_of_the_rows(tool):
    table = pd.DataFrame(
        {
            "setup": ["s", "s", "s"],
            "preset": ["p-short", "p-short", "p-short"],
            "study": ["sweep", "sweep", "sensitivity"],
            "rate_rps": [2.0, 4.0, 3.0],
            "load": [1.0, 2.0, 1.0],
        }
    )
    assert tool.loads_markdown(table, ("p-short",)).splitlines()[-1] == "| s | 2 | 3 |"
