from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from smetric_model.cli.operations import command

PRESET = ["--preset", "bailian-trace-1-short", "--rate", "4", "--instances", "16"]


def test_json_names_the_source_of_every_figure():
    result = CliRunner().invoke(command, ["kv-dtype", *PRESET, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["question"] == "kv-dtype"
    assert len(found["figures"]) > 5
    assert all(figure["source"] == "closed form" for figure in found["figures"])


def test_a_finding_is_written(tmp_path: Path):
    options = ["replicas", *PRESET, "--amplitude", "0.5", "--interval", "21600", "--warm", "0"]
    result = CliRunner().invoke(command, [*options, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "GPU-hours" in result.stdout
    assert "closed form" in result.stdout
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"replicas.json", "replicas-replicas.csv", "replicas.svg"}
    with (tmp_path / "replicas-replicas.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 1440
    assert max(float(row["rate_rps"]) for row in rows) == pytest.approx(
        json.loads((tmp_path / "replicas.json").read_text())["figures"][1]["value"]
    )
    assert 'xmlns="http://www.w3.org/2000/svg"' in (tmp_path / "replicas.svg").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["replicas", *PRESET], "a preset's rate is constant"),
        (["replicas", "--amplitude", "0.5", "--simulate", "--rate", "2"], "needs a --preset"),
        (["recovery", "--event", "rack"], "'rack' is not one of"),
        (["mixed", "--group", "H20", "2", "--instances", "2"], "exclude each other"),
        (["tenants", "--tenants", "0"], "--tenants"),
        (["node-loss", "--trace", ".", *PRESET], "exclude each other"),
        (["nothing"], "No such command"),
    ],
)
def test_wrong_options_are_told(options: list[str], message: str):
    result = CliRunner().invoke(command, options)
    assert result.exit_code == 2
    assert message in result.output
