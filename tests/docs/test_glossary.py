"""The glossary explains every column of the schema, and names no other."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path

from smetric_model.schema import load_schema

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "glossary.md").read_text()
ENTRY = re.compile(r"^- (.*?): ", re.MULTILINE | re.DOTALL)


def patterns() -> list[str]:
    families = PAGE.partition("## Column families")[2]
    return [p for entry in ENTRY.findall(families) for p in re.findall(r"`([^`]+)`", entry)]


def columns() -> list[str]:
    return list(load_schema())


def test_every_column_is_explained():
    asked = patterns()
    missing = [c for c in columns() if not any(fnmatch.fnmatchcase(c, p) for p in asked)]
    assert not missing


def test_no_column_is_invented():
    names = columns()
    assert not [p for p in patterns() if not any(fnmatch.fnmatchcase(c, p) for c in names)]


def test_entries_are_one_sentence_with_a_link():
    entries = re.split(r"\n(?=- |\n|#)", PAGE)
    bullets = [entry for entry in entries if entry.startswith("- ")]
    assert len(bullets) > 80
    assert not [entry for entry in bullets if not re.search(r"\]\([\w./#-]+\)\)\.$", entry.strip())]


def test_terms_stand_once():
    terms = re.findall(r"\*\*(.+?)\*\*", PAGE)
    assert len(terms) == len(set(terms))
