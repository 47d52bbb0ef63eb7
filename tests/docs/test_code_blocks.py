"""Every Python block of README and pages runs; what a block shows as answer is what it gives."""

from __future__ import annotations

import ast
import contextlib
import doctest
import re
from pathlib import Path
from unittest import SkipTest

import pytest
from sybil.document import Document
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

ROOT = Path(__file__).resolve().parents[2]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
PARSER = PythonCodeBlockParser(doctest_optionflags=FLAGS)


#: a block that is not run, with the reason
SKIPPED = re.compile(r"<!-- skip: next(?: \"(.+?)\")? -->\n+```python\n(.*?)```", re.DOTALL)
#: a block with a title is a file: ```toml title=my-gpu.toml
TITLED = re.compile(r"^```\w+ title=(\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def document(path: Path) -> Document:
    return Document.parse(str(path), PARSER, SkipParser())


PAGES = [
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if "```python" in path.read_text()
]


@pytest.mark.usefixtures("at_workplace")
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_blocks_run(path):
    examples = list(document(path).examples())
    assert examples
    for name, content in TITLED.findall(path.read_text()):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(content)
    for example in examples:
        with contextlib.suppress(SkipTest):  # <!-- skip: next "why" -->
            example.evaluate()


def test_what_is_skipped_can_be_imported():
    """Blocks that need engines or hours are read, and their imports tried."""
    for path in PAGES:
        for reason, code in SKIPPED.findall(path.read_text()):
            assert reason, path
            imports = [
                n for n in ast.parse(code).body if isinstance(n, ast.Import | ast.ImportFrom)
            ]
            assert imports, path
            exec(compile(ast.Module(imports, []), str(path), "exec"), {})


def test_a_wrong_answer_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\n>>> 1 + 1\n3\n```\n")
    with pytest.raises(Exception, match="Expected"):
        next(iter(document(page).examples())).evaluate()
