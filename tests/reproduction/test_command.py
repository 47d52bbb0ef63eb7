"""``smetric-model reproduce`` from end to end, on the smallest set-up."""

from __future__ import annotations

import subprocess
import sys

import orjson
import pytest

from smetric_model.reproduction import read_results

MAIN = "from smetric_model.cli import main; main()"
ARGUMENTS = ["--quick", "--preset", "bailian-trace-1-long", "--setup", "colocated-235b"]


def run(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-c", MAIN, "reproduce", *arguments],
        capture_output=True, text=True, cwd=cwd, timeout=300, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("reproduce")


def test_quick_run_and_its_claims(folder):
    first = run(*ARGUMENTS, "--json", "--out", "r", cwd=folder)
    assert first.returncode == 0, first.stderr
    found = orjson.loads(first.stdout)
    claims = {claim["claim"]: claim for claim in found["claims"]}
    assert len(claims) == 70
    assert claims["C01"]["agrees"] == "yes"
    assert claims["C40"]["agrees"] in ("yes", "no")
    assert claims["C13"]["agrees"] == "not comparable"  # of another set-up
    assert claims["C39"]["agrees"] == ""
    by_use = {row["use"]: row for row in found["score"]}
    assert by_use["predict"]["claims"] == 58
    assert found["rows"] == len(read_results(folder / "r" / "results.parquet"))
    assert (folder / "r" / "claims.csv").is_file()
    assert "rows computed in" in first.stderr

    # what is there is not run again; the table is for people
    again = run(*ARGUMENTS, "--out", "r", cwd=folder)
    assert again.returncode == 0, again.stderr
    assert "0 rows computed" in again.stderr
    assert "Claims that agree" in again.stdout
    assert "quick: two seeds" in again.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "tiny"], "preset = 'tiny': one of"),
        (["--setup", "gpu"], "setup = 'gpu': one of"),
        (["--processes", "0"], "0 is not in the range"),
    ],
)
def test_wrong_options_are_one_line(arguments, message, tmp_path):
    done = run("--quick", *arguments, cwd=tmp_path)
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
