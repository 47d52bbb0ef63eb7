from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from smetric_model.cli.bound import command
from smetric_model.errors import SpecError


@pytest.fixture(scope="module")
def scenario_file(small_trace, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("bound") / "small.toml"
    path.write_text(
        f"""
[engine]
max_running_requests = 32
[cluster]
instances = 2
gpus_per_node = 1
[workload]
trace = "{small_trace}"
rate_rps = "trace"
warmup_s = 30.0
window_s = 120.0
start = "cold"
"""
    )
    return path


def _run(*arguments: str):
    result = CliRunner().invoke(command, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def test_json_is_one_object_with_bounds(scenario_file):
    answer = json.loads(_run(str(scenario_file), "--json").stdout)
    assert answer["verb"] == "bound"
    assert answer["policy"] == "timed"
    assert answer["valid"] is True
    assert answer["total_within_slo_tps"] > 0
    assert answer["detail"]["volume"]["load_multiple"] > 1
    assert sum(answer["detail"]["volume"]["elasticity"].values()) == pytest.approx(1)
    assert answer["detail"]["goodput"]["served_ratio"] <= 1


def test_tables_for_people(scenario_file):
    output = _run(str(scenario_file), "--only-volume", "--solver", "highs-direct").stdout
    assert "No schedule carries more than" in output
    assert "within SLO: at most" not in output


def test_prices(scenario_file):
    answer = json.loads(_run(str(scenario_file), "--only-volume", "--prices", "--json").stdout)
    prices = answer["detail"]["prices"]
    assert prices["instance"]["volume_tps"] > 0
    assert prices["instance"]["break_even_by_volume"] == pytest.approx(1)
    assert "one more unit" in _run(str(scenario_file), "--only-volume", "--prices").stdout


def test_a_router_beside_its_bound(scenario_file):
    answer = json.loads(_run(str(scenario_file), "--simulate", "--json").stdout)
    assert answer["detail"]["simulated"]["policy"] == "smetric"
    simulated = answer["detail"]["simulated"]["total_within_slo_tps"]
    assert 0 < simulated <= answer["total_within_slo_tps"]


def test_wrong_values_are_refused(scenario_file):
    runner = CliRunner()
    assert runner.invoke(command, [str(scenario_file), "--tolerance", "2"]).exit_code == 2
    with pytest.raises(SpecError, match="not installed"):
        runner.invoke(command, [str(scenario_file), "--solver", "NONE"], catch_exceptions=False)


def test_nothing_but_the_answer_on_stdout(scenario_file):
    code = "from smetric_model.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "bound", str(scenario_file), "--only-volume", "--json"],
        capture_output=True,
        check=True,
    )
    json.loads(done.stdout)


def test_an_interrupt_ends_with_a_bound():
    """Ctrl-C during the time-resolved bounds: exit 0, a valid bound that says it is partial."""
    code = """
import smetric_model.bound.timed as timed, time
real = timed.solve
def slow(program, options):
    print("solving", file=__import__("sys").stderr, flush=True)
    time.sleep(30)
    return real(program, options)
timed.solve = slow
from smetric_model.cli import main
main()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, "bound", "--warmup", "10", "--window", "60", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        # a shell starts its background jobs with interrupts ignored, and children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    for line in process.stderr:
        if b"solving" in line:
            break
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    answer = json.loads(out)
    assert "interrupted" in answer["note"]
    assert answer["total_within_slo_tps"] > 0
