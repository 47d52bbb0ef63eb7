from __future__ import annotations

import json
import re

import click
import pandas as pd
import pytest
from click.testing import CliRunner

from smetric_model.cli.sweep import command, parse_values
from smetric_model.datafiles import data_dir
from smetric_model.errors import SpecError

SHIPPED = str(data_dir() / "scenarios" / "agents-small.toml")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a.b=2:12:2", [2, 4, 6, 8, 10, 12]),
        ("a.b=0:1:0.1", [k / 10 for k in range(11)]),
        ("a.b=1:2:0.4", [1.0, 1.4, 1.8]),
        ("a.b=smetric, bailian", ["smetric", "bailian"]),
        ("a.b=true,false", [True, False]),
        ("a.b=1,2.5,1e3", [1, 2.5, 1000.0]),
        ('a.b=["x,y", "2"]', ["x,y", "2"]),
        ("a.b=C:/traces/x.jsonl", ["C:/traces/x.jsonl"]),
    ],
)
def test_values(text, values):
    assert parse_values(text) == ("a.b", values)


@pytest.mark.parametrize(
    "text", ["a.b", "=1", "a.b=", "a=1,,2", "a=2:3", "a=3:2:1", "a=[1", "a=1:2:0"]
)
def test_no_values(text):
    with pytest.raises(click.UsageError):
        parse_values(text)


def test_rows_and_files(tmp_path):
    options = ["--set", "workload.rate_rps=2,1e5", "--set", "router.policy=smetric,bailian"]
    result = CliRunner().invoke(command, [SHIPPED, *options, "--out", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["found"], told["computed"]) == (0, 4)
    assert [row["status"] for row in told["rows"]] == ["done", "done", "unstable", "unstable"]
    kept = pd.read_parquet(tmp_path / "rows.parquet")
    assert kept["router.policy"].tolist() == ["smetric", "bailian"] * 2
    again = CliRunner().invoke(command, [SHIPPED, *options, "--out", str(tmp_path)])
    assert "4 found, 0 computed" in again.stderr
    # rows of one reason share a line
    counts = re.findall(r"(\d+) unstable: UnstableError", again.stdout.replace("\n", " "))
    assert sum(map(int, counts)) == 2


def test_mistakes_are_one_line():
    result = CliRunner().invoke(command, [SHIPPED, "--set", "router.polcy=smetric"])
    assert isinstance(result.exception, SpecError)  # the group prints it
    assert "router.policy" in str(result.exception)
    for options in (["--jobs", "0"], ["--set", "x"], ["--set", "seed=1", "--set", "seed=2"]):
        assert CliRunner().invoke(command, [SHIPPED, *options]).exit_code == 2
    assert CliRunner().invoke(command, ["nowhere.toml"]).exit_code == 2
