import json

import pytest
from click.testing import CliRunner

from smetric_model.cli.advantage import command

SCENARIO = "data/scenarios/agents-small.toml"


def run(*arguments):
    return CliRunner().invoke(command, [SCENARIO, *arguments])


def test_json_holds_verdict_rows_and_coordinates():
    done = run("--json", "--baseline", "load-balance")
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["verdict"] in ("win", "tie", "lose")
    assert [row["policy"] for row in answer["rows"]] == ["smetric", "load-balance"]
    assert answer["coordinates"]["load_ratio"] > 0


def test_text_says_who_is_better():
    done = run("--baseline", "bailian")
    assert done.exit_code == 0, done.output
    assert "bailian" in done.stdout
    assert "tokens within SLO" in " ".join(done.stdout.split())


@pytest.mark.parametrize("name", ["smetric", "no-such"])
def test_a_policy_that_cannot_be_compared_is_named(name):
    done = run("--baseline", name)
    assert done.exit_code != 0
    assert name in f"{done.output} {done.exception}"
