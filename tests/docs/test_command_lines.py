"""Command lines of README and pages: the commands, arguments and options are those that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from markdown_it import MarkdownIt

from smetric_model.cli import _COMMANDS, _root

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND = re.compile(r"^(?:\$ )?(?:\.venv/bin/)?smetric-model ")
#: [--optional], alternatives|like|these, FILE: a synopsis, not a line to type
SYNOPSIS = re.compile(r"[\[|…<]|\b[A-Z]{3,}\b")


def commands_of(path: Path) -> list[tuple[Path, str, bool]]:
    """Lines of code blocks, joined where they go on (True), and code spans of the text (False)."""
    found = []
    for token in MarkdownIt("commonmark").enable("table").parse(path.read_text()):
        if token.type in ("fence", "code_block") and token.info.strip() in ("", "sh", "console"):
            joined = re.sub(r"\\\n\s*", "", token.content)
            lines = [line.strip() for line in joined.splitlines()]
            found += [(line, True) for line in lines if COMMAND.match(line)]
        for child in token.children or ():
            if child.type == "code_inline" and COMMAND.match(child.content):
                found.append((child.content, False))
    return [(path, COMMAND.sub("", line), block) for line, block in found]


FOUND = [entry for path in PAGES for entry in commands_of(path)]
LINES = [(path, line) for path, line, _ in FOUND]
LABELS = [f"{path.name}: {line}" for path, line in LINES]


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command, or the subcommand, and the words behind it."""
    with click.Context(_root) as context:
        group: click.Command = _root
        while isinstance(group, click.Group) and words and re.match("[a-z]", words[0]):
            names = words[0].split("|")
            found = [group.get_command(context, name) for name in names]
            assert all(found), f"no such command: {words[0]}"
            group, words = found[0], words[1:]
    assert group is not None
    return group, words


def options_of(command: click.Command) -> set[str]:
    return {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help", "-h"}


@pytest.mark.parametrize(("path", "line"), LINES, ids=LABELS)
def test_options_exist(path, line):
    command, words = command_of(shlex.split(line, comments=True))
    asked = {re.match(r"--[a-z-]+", w.strip("[](),")) for w in words}
    missing = {m.group() for m in asked if m} - options_of(command) - {"--version"}
    assert not missing, path


TYPED = [
    (path, line)
    for path, line, block in FOUND
    if block and not SYNOPSIS.search(line.partition("#")[0])
]


@pytest.mark.usefixtures("at_workplace")
@pytest.mark.parametrize(("path", "line"), TYPED, ids=lambda value: str(value)[-60:])
def test_lines_to_type_are_understood(path, line):
    command, words = command_of(shlex.split(line, comments=True))
    if isinstance(command, click.Group):
        return
    command.make_context(command.name or "", list(words))


def test_lines_were_found():
    assert len(LINES) > 40
    assert len(TYPED) > 20
    named = {command for path, line in LINES for command in [line.split()[0]]}
    assert {"plan", "simulate", "sweep", "kv", "route"} <= named


def test_readme_lists_every_command():
    rows = re.findall(r"^\| `([a-z-]+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(_COMMANDS)
