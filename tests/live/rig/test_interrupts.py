"""Ctrl-C and SIGTERM in every phase of a validation, with stand-ins for the engines."""

from __future__ import annotations

import json
import signal

import pandas as pd
import pytest
from interrupting import Run, nothing_runs, routers_below

SPEC = """
policies = ["always-sticky"]
repeats = 2
calibration_repeats = 2
recheck_repeats = 1
simulations = 2
timeout_s = 10.0
[engines]
blocks = 512
block_tokens = 64
max_context_tokens = 6016
ready_s = 30.0
[workload]
parameters = "agents-tiny.toml"
rate_rps = 8.0
warmup_s = 1.0
window_s = 3.0
"""


@pytest.fixture
def spec(tmp_path):
    from smetric_model.datafiles import data_dir

    path = tmp_path / "spec.toml"
    parameters = data_dir() / "live" / "agents-tiny.toml"
    path.write_text(SPEC.replace("agents-tiny.toml", str(parameters)))
    return path


def interrupted(spec, out, python, words, number):
    run = Run(spec, out, python)
    try:
        run.told(words, 90.0)
        processes = run.processes()
        assert run.end(number, 40.0) == 130, "\n".join(run.lines)
    finally:
        if run.child.poll() is None:
            run.child.kill()
    assert nothing_runs(processes)
    assert routers_below(out) == []
    assert not (out / "engines" / "engines.json").exists()
    return processes


def test_in_every_phase_and_on_to_the_end(spec, tmp_path, fake_python):
    out = tmp_path / "out"
    interrupted(spec, out, fake_python, "starting the engines", signal.SIGINT)
    assert not (out / "calibration.parquet").exists()

    assert interrupted(spec, out, fake_python, "measuring the engines, 2 of 2", signal.SIGTERM)
    rows = pd.read_parquet(out / "calibration.parquet")
    assert set(rows["repeat"]) == {0}

    assert interrupted(spec, out, fake_python, "always-sticky, replay 2 of 2", signal.SIGINT)
    again = pd.read_parquet(out / "calibration.parquet")
    assert set(again["repeat"]) == {0, 1}
    pd.testing.assert_frame_equal(again[again["repeat"] == 0], rows)  # kept, not measured again
    first = (out / "runs" / "always-sticky-0" / "run.json").read_text()
    predicted = (out / "predictions.json").read_text()

    run = Run(spec, out, fake_python)
    assert run.end(None, 90.0) == 0, "\n".join(run.lines)
    assert (out / "runs" / "always-sticky-0" / "run.json").read_text() == first
    assert (out / "predictions.json").read_text() == predicted
    runs = [json.loads(path.read_text()) for path in (out / "runs").glob("*/run.json")]
    assert sorted(one["repeat"] for one in runs) == [0, 1]
    assert all(one["outcome"]["valid"] for one in runs)
    # once when it went on, once after the replays
    assert pd.read_parquet(out / "rechecks.parquet")["written"].nunique() == 2
