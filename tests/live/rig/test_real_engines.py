"""Real vLLM engines and LMCache on CPUs: one killed, the tier killed, Ctrl-C in every phase.

Not part of the usual run (five minutes, 4 GB): ``pytest -m engines tests/live/rig`` with
``SMETRIC_LIVE_PYTHON`` naming the interpreter of ``make live-environment``.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pandas as pd
import pytest
from interrupting import Run, nothing_runs, routers_below

from smetric_model.datafiles import data_dir
from smetric_model.live.validation_spec import ValidationSpec

pytestmark = pytest.mark.engines

SPEC = """
name = "faults"
policies = ["smetric"]
repeats = {repeats}
calibration_repeats = 2
recheck_repeats = 1
simulations = 2
timeout_s = {timeout_s}
[engines]
blocks = 192
block_tokens = 64
max_context_tokens = 8192
token_budget = 2048
cores = {cores}
[engines.tier]
kind = "lmcache"
bytes = 256000000
[workload]
parameters = "{parameters}"
rate_rps = 3.0
warmup_s = 5.0
window_s = {window_s}
"""


@pytest.fixture(scope="module")
def python():
    found = os.environ.get("SMETRIC_LIVE_PYTHON", "")
    if not found:
        pytest.skip("needs SMETRIC_LIVE_PYTHON, the Python of an environment with vLLM and LMCache")
    return Path(found)


def write_spec(path, repeats=1, window_s=15, timeout_s=60):
    parameters = data_dir() / "live" / "agents-tiny.toml"
    cores = sorted(os.sched_getaffinity(0))[:2]
    path.write_text(SPEC.format(**locals()))
    ValidationSpec.from_toml(path)
    return path


@pytest.fixture(scope="module")
def interrupted(python, tmp_path_factory):
    """A validation that Ctrl-C has ended in each phase, and what was seen."""
    folder = tmp_path_factory.mktemp("interrupted")
    spec, out = write_spec(folder / "spec.toml"), folder / "out"
    seen = {}
    for words, pause_s in (
        ("starting the engines", 8.0),
        ("measuring the engines, 2 of 2", 1.0),
        ("smetric, replay 1 of 1", 12.0),
    ):
        run = Run(spec, out, python)
        try:
            run.told(words, 300.0)
            time.sleep(pause_s)
            processes = run.processes()
            began = time.monotonic()
            status = run.end(signal.SIGINT, 60.0)
            seen[words] = {
                "status": status,
                "ended_s": time.monotonic() - began,
                "started": len(processes),
                "nothing_runs": nothing_runs(processes) and not routers_below(out),
                "repeats": sorted(set(pd.read_parquet(out / "calibration.parquet")["repeat"]))
                if (out / "calibration.parquet").exists()
                else [],
                "predictions": (out / "predictions.json").exists(),
            }
            print(words, seen[words])
        finally:
            if run.child.poll() is None:
                run.child.kill()
    return out, spec, seen


def test_interrupts_leave_nothing_and_keep_what_was_measured(interrupted):
    _, _, seen = interrupted
    assert all(one["status"] == 130 for one in seen.values())
    assert all(one["started"] == 3 for one in seen.values())  # two engines and the tier
    assert all(one["nothing_runs"] for one in seen.values())
    repeats = [one["repeats"] for one in seen.values()]
    assert repeats == [[], [0], [0, 1]]
    assert [one["predictions"] for one in seen.values()] == [False, False, True]


def test_it_goes_on_to_the_end(interrupted, python):
    out, spec, _ = interrupted
    calibrated = (out / "gpu.toml").read_text()
    run = Run(spec, out, python)
    assert run.end(None, 300.0) == 0, "\n".join(run.lines)
    assert (out / "gpu.toml").read_text() == calibrated
    (path,) = (out / "runs").glob("*/run.json")
    assert json.loads(path.read_text())["outcome"]["valid"]
    assert (out / "report.html").exists()


@pytest.mark.parametrize("victim", ["v1", "tier"])
def test_killed_within_a_replay(interrupted, python, tmp_path, victim):
    out, _, _ = interrupted
    killed = tmp_path / "out"
    shutil.copytree(out, killed)
    for name in ("runs", "spec.json", "predictions.json", "rechecks.parquet"):
        path = killed / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    spec = write_spec(tmp_path / "spec.toml", window_s=20)
    (killed / "workload.parquet").unlink()
    run = Run(spec, killed, python)
    processes: list = []

    def kill():
        processes.extend(run.processes())
        os.kill(next(one.pid for one in processes if one.name == victim), signal.SIGKILL)

    try:
        run.told("smetric, replay 1 of 1", 300.0)
        timer = threading.Timer(14.0, kill)  # the router starts; five seconds of warm-up
        timer.start()
        began = time.monotonic()
        status = run.end(None, 200.0)
        timer.join()
    finally:
        if run.child.poll() is None:
            run.child.kill()
    lines = "\n".join(run.lines)
    assert status == 1, lines
    assert f"{victim} ended during the replay" in lines
    assert nothing_runs(processes)
    assert routers_below(killed) == []
    (path,) = (killed / "runs").glob("*/run.json")
    outcome = json.loads(path.read_text())["outcome"]
    assert not outcome["valid"]
    assert f"{victim} ended during the replay" in outcome["note"]
    assert f"{victim} ended" in (killed / "report.html").read_text()
    requests = pd.read_parquet(path.parent / "requests.parquet")
    print(
        f"{victim} killed, exit status {status} after {time.monotonic() - began:.0f} s:"
        f" {len(requests)} requests, {(requests['error'] != '').sum()} failed; slowest first token"
        f" {requests['ttft_s'].max():.1f} s; note: {outcome['note'][:300]}"
    )
