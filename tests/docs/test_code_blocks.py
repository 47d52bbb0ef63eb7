"""Every Python block of README and pages runs; what a block shows as answer is what it gives."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest
from sybil.document import Document
from sybil.parsers.markdown import PythonCodeBlockParser

ROOT = Path(__file__).resolve().parents[2]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
PARSER = PythonCodeBlockParser(doctest_optionflags=FLAGS)


#: a block with a title is a file: ```toml title=my-gpu.toml
TITLED = re.compile(r"^```\w+ title=(\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def document(path: Path) -> Document:
    return Document.parse(str(path), PARSER)


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
        example.evaluate()


def test_a_wrong_answer_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\n>>> 1 + 1\n3\n```\n")
    with pytest.raises(Exception, match="Expected"):
        next(iter(document(page).examples())).evaluate()
