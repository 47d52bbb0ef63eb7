"""The commands ``synthesise`` and ``fit``, in process and through the entry point."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from smetric_model.cli.fit import command as fit
from smetric_model.cli.synthesise import command as synthesise
from smetric_model.workload import load_trace
from smetric_model.workload.synthesis import WorkloadParameters, preset_names

SMALL = ["bailian-trace-2-short", "--rate", "1", "--window", "600"]


def run(command, *arguments: str):
    return CliRunner().invoke(command, arguments, catch_exceptions=False)


def test_a_trace_is_written_and_described(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    result = run(synthesise, *SMALL, "--seed", "4", "--out", str(path), "--json")
    assert result.exit_code == 0
    values = json.loads(result.stdout)
    assert str(path) in result.stderr
    trace = load_trace(path)
    assert values["requests"] == len(trace)
    assert values["sessions"] == trace.sessions
    assert values["parameters"] == "bailian-trace-2-short"
    shares = [values[f"{kind}_reuse_ratio"] for kind in ("intra", "system", "other")]
    assert sum(shares) == pytest.approx(1)
    again = run(synthesise, *SMALL, "--seed", "4", "--json")
    assert json.loads(again.stdout) == values
    assert "ideal_reuse_ratio" in run(synthesise, *SMALL).stdout


def test_sessions_and_whole_sessions() -> None:
    result = run(
        synthesise,
        "bailian-trace-1-short",
        *("--sessions", "40", "--rate", "1", "--start", "cold", "--ends", "whole", "--json"),
    )
    values = json.loads(result.stdout)
    assert values["first_turn_ratio"] == pytest.approx(values["sessions"] / values["requests"])


def test_presets_are_listed() -> None:
    listed = json.loads(run(synthesise, "--list", "--json").stdout)
    assert tuple(sorted(listed)) == preset_names()
    for name, content in listed.items():
        assert WorkloadParameters.from_dict(content).name == name
    assert "bailian-trace-1-long" in run(synthesise, "--list").stdout
    assert run(synthesise).exit_code == 2


def test_a_fit_can_be_generated_from(tmp_path: Path) -> None:
    trace, parameters = tmp_path / "t.parquet", tmp_path / "p.toml"
    assert run(synthesise, *SMALL, "--out", str(trace)).exit_code == 0
    result = run(fit, str(trace), "--out", str(parameters), "--json")
    assert result.exit_code == 0
    values = json.loads(result.stdout)
    assert values["parameters"]["name"] == "t"
    assert 0 <= values["distances"]["think_time_s"]["ks"] < 0.2
    assert WorkloadParameters.from_toml(parameters).to_dict() == values["parameters"]
    assert run(synthesise, str(parameters)).exit_code == 0
    shown = run(fit, str(trace), "--name", "mine")
    assert "mine (trace)" in shown.stdout
    assert "note:" in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["synthesise", "bailian"], "preset = 'bailian'"),
        (["synthesise", "none.toml"], "none.toml: no such parameter file"),
        (["synthesise", *SMALL, "--sessions", "3"], "any two of them"),
        (["synthesise", "bailian-trace-1-short", "--rate", "-1"], "rate_rps = -1.0"),
        (["synthesise", *SMALL, "--out", "t.csv"], "'.csv'"),
        (["fit", "none.parquet"], "none.parquet"),
    ],
)
def test_errors_are_one_line(tmp_path: Path, arguments, message) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from smetric_model.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
