"""The command line: ``smetric-model turn``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BODY = {
    "messages": [
        {"role": "system", "content": "abcd" * 10},
        {"role": "user", "content": "abcd"},
        {"role": "assistant", "content": "abcd"},
        {"role": "user", "content": "more"},
    ]
}


def run(*arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    code = "from smetric_model.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, "turn", *arguments],
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def body_file(tmp_path: Path) -> Path:
    path = tmp_path / "body.json"
    path.write_text(json.dumps(BODY))
    return path


def test_json_of_a_file_and_of_standard_input(body_file: Path) -> None:
    expected = {"turn": 1, "history_items": 3, "est_hit_tokens": 12}
    from_file = run("--api", "chat", str(body_file), "--json")
    assert (from_file.returncode, from_file.stderr) == (0, "")
    assert json.loads(from_file.stdout) == expected
    from_stdin = run("--api", "chat", "-", "--json", given=json.dumps(BODY))
    assert json.loads(from_stdin.stdout) == expected


def test_a_table_without_json(body_file: Path) -> None:
    done = run("--api", "chat", str(body_file))
    assert done.returncode == 0
    assert "history items" in done.stdout
    assert "12" in done.stdout


def test_errors_are_one_line_with_a_status(body_file: Path, tmp_path: Path) -> None:
    wrong = run("--api", "chat", "-", "--json", given='{"messages": [{"role": 3}]}')
    assert wrong.returncode == 1
    assert wrong.stdout == ""
    assert wrong.stderr == (
        "smetric-model: <stdin>: $.messages[0].role is a number; a string is allowed\n"
    )
    no_json = run("--api", "chat", "-", given="{")
    assert no_json.returncode == 1
    assert no_json.stderr.count("\n") == 1
    no_tokenizer = run("--api", "chat", str(body_file), "--tokenizer", str(tmp_path / "x.json"))
    assert no_tokenizer.returncode == 1
    assert "x.json" in no_tokenizer.stderr
    for arguments in (
        ["--api", "chat", str(tmp_path / "none.json")],
        ["--api", "gemini", str(body_file)],
        [str(body_file)],
        ["--api", "chat", str(body_file), "--image-tokens", "-5"],
    ):
        failed = run(*arguments)
        assert failed.returncode == 2
        assert "Traceback" not in failed.stderr


def test_a_body_of_another_api_is_remarked_on(body_file: Path) -> None:
    done = run("--api", "responses", str(body_file), "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["turn"] == 0
    assert "is --api responses right?" in done.stderr
