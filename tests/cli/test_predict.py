from __future__ import annotations

import json

from click.testing import CliRunner

from smetric_model.cli.predict import command
from smetric_model.errors import UnstableError


def test_json_is_a_row_of_the_schema():
    result = CliRunner().invoke(command, ["--rate", "2", "--policy", "bailian", "--json"])
    assert result.exit_code == 0, result.output
    row = json.loads(result.stdout)
    assert row["verb"] == "predict"
    assert row["policy"] == "bailian"
    assert row["valid"] is True
    assert row["arrival_rate_rps"] == 2.0


def test_tables_for_people():
    result = CliRunner().invoke(command, ["--rate", "2", "--instances", "16"])
    assert result.exit_code == 0, result.output
    assert "within SLO" in result.stdout
    assert "limited by" in result.stdout


def test_perfect_placement_on_demand():
    result = CliRunner().invoke(command, ["--rate", "2", "--reuse", "ideal", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["policy"] == "perfect placement (ideal)"


def test_what_only_a_simulation_understands_is_refused():
    result = CliRunner().invoke(command, ["--check"])
    assert result.exit_code == 2


def test_too_much_is_one_line():
    result = CliRunner().invoke(command, ["--rate", "1000"])
    assert isinstance(result.exception, UnstableError)  # the group prints it
    assert str(result.exception).count("\n") == 0
    assert "saturates" in str(result.exception)


def test_an_answer_that_leaves_too_much_out_says_so():
    result = CliRunner().invoke(command, ["--rate", "2", "--timeout", "3"])
    assert result.exit_code == 0, result.output
    assert "not valid: see the notes" in result.stdout
    assert "client.timeout_s" in result.stdout


def test_the_other_way_round():
    answers = {}
    for find in ("capacity", "instances"):
        result = CliRunner().invoke(command, ["--rate", "2", "--find", find, "--json"])
        assert result.exit_code == 0, result.output
        answers[find] = json.loads(result.stdout)
    capacity, needed = answers["capacity"], answers["instances"]
    assert capacity["rate_rps"] < capacity["saturation_rps"]
    assert capacity["outcome"]["arrival_rate_rps"] == capacity["rate_rps"]
    assert needed["outcome"]["arrival_rate_rps"] == 2.0
    assert needed["within_slo_ratio"] >= needed["attainment"]
    text = CliRunner().invoke(command, ["--rate", "2", "--find", "instances"])
    assert f"{needed['instances']} instances are the fewest" in text.stdout
    wrong = CliRunner().invoke(command, ["--find", "capacity", "--reuse", "ideal"])
    assert wrong.exit_code == 2
    assert "--find" in wrong.stderr
