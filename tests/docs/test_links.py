"""Relative links and anchors of all pages and notebooks lead somewhere."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.anchors import anchors_plugin

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
DOCUMENTS = [*PAGES, *NOTEBOOKS]


def text_of(path: Path) -> str:
    if path.suffix != ".ipynb":
        return path.read_text()
    cells = json.loads(path.read_text())["cells"]
    return "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


@cache
def tokens_of(path: Path) -> list[Token]:
    """All tokens of a page, those of its lines included; headings have the ids of GitHub."""
    markdown = MarkdownIt("commonmark").enable("table").use(anchors_plugin, max_level=6)
    found: list[Token] = []
    for token in markdown.parse(text_of(path)):
        found += [token, *(token.children or ())]
    return found


def links(path: Path) -> list[str]:
    found = [token.attrGet("href") or token.attrGet("src") for token in tokens_of(path)]
    return [str(link) for link in found if link and not re.match(r"[a-z]+:", str(link))]


def anchors(path: Path) -> set[str]:
    return {str(t.attrGet("id")) for t in tokens_of(path) if t.type == "heading_open"}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    broken = []
    for link in links(path):
        file, _, anchor = unquote(link).partition("#")
        target = (path.parent / file).resolve() if file else path
        if not target.exists():
            broken.append(f"{link}: no such file")
        elif anchor and (target.suffix != ".md" or anchor not in anchors(target)):
            broken.append(f"{link}: no such heading")
    assert not broken


def test_the_checker_sees_links_and_anchors():
    readme = ROOT / "README.md"
    assert "docs/scenario.md" in links(readme)
    assert "workload" in anchors(ROOT / "docs" / "scenario.md")  # ## `[workload]`


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_named_in_the_text_exist(path):
    """`docs/…`, `data/…`, `tests/…` in code spans: no file that was renamed or taken away."""
    spans = [t.content for t in tokens_of(path) if t.type == "code_inline"]
    named = re.compile(r"(?:docs|data|tests|benchmarks|notebooks|paper_figures|tools)/[\w./-]+\w")
    files = [s for s in spans if named.fullmatch(s)]
    missing = [s for s in files if not (ROOT / s).exists() and not list(ROOT.glob(f"{s}*"))]
    assert not missing


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_named_in_the_text_exist(path):
    """`bound/volume.py` or `volume.py`: some file of the repository."""
    spans = [t.content for t in tokens_of(path) if t.type == "code_inline"]
    named = [s for s in spans if re.fullmatch(r"[\w./]+\.py", s)]
    assert not [s for s in named if not any(file.endswith(f"/{s}") for file in _python_files())]


@cache
def _python_files() -> tuple[str, ...]:
    folders = ("smetric_model", "tests", "benchmarks", "tools", "paper_figures", "docs")
    return tuple(str(path) for folder in folders for path in (ROOT / folder).rglob("*.py"))
