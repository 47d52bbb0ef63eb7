"""``smetric-model reproduce`` from end to end, on the smallest set-up."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import orjson
import pytest
from click.testing import CliRunner

from smetric_model.cli.reproduce import command
from smetric_model.reproduction import load_parameters, read_results

MAIN = "from smetric_model.cli import main; main()"
ARGUMENTS = ["--quick", "--preset", "bailian-trace-1-long", "--setup", "colocated-235b"]


def run(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-c", MAIN, "reproduce", *arguments],
        capture_output=True, text=True, cwd=cwd, timeout=300, check=False,
    )  # fmt: skip


@pytest.fixture
def few_loads(monkeypatch):
    """Two of the seven loads, and a coarse search for the anchor: a third of the work."""
    few = dataclasses.replace(load_parameters(), loads=(1.0, 1.5), anchor_fine_ratio=1.25)
    monkeypatch.setattr("smetric_model.reproduction.load_parameters", lambda: few)


@pytest.mark.usefixtures("few_loads")
def test_quick_run_and_its_claims(tmp_path):
    def quick(*more):
        done = CliRunner().invoke(command, [*ARGUMENTS, "--out", str(tmp_path / "r"), *more])
        assert done.exit_code == 0, done.output
        return done

    first = quick("--json")
    found = orjson.loads(first.stdout)
    claims = {claim["claim"]: claim for claim in found["claims"]}
    assert len(claims) == 70
    assert claims["C01"]["agrees"] == "yes"
    assert claims["C40"]["agrees"] in ("yes", "no")
    assert claims["C13"]["agrees"] == "not comparable"  # of another set-up
    assert claims["C39"]["agrees"] == ""
    by_use = {row["use"]: row for row in found["score"]}
    assert by_use["predict"]["claims"] == 58
    assert found["rows"] == len(read_results(tmp_path / "r" / "results.parquet"))
    assert (tmp_path / "r" / "claims.csv").is_file()
    assert "rows computed in" in first.stderr

    # what is there is not run again; the table is for people
    again = quick()
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
