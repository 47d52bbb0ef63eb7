"""A whole validation with stand-ins for the engines and the real router; and what may go wrong."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time

import numpy as np
import pytest
from click.testing import CliRunner

from smetric_model.cli.output import print_table
from smetric_model.datafiles import data_dir
from smetric_model.errors import LiveError, SpecError
from smetric_model.live.compare import QUANTITIES, comparison, speed_ratios, speed_table, verdict
from smetric_model.live.rig import Rig
from smetric_model.live.validation import Validation
from smetric_model.live.validation_report import (
    narrow_rows,
    speed_sentence,
    write_validation_report,
)
from smetric_model.live.validation_spec import ValidationSpec, build_workload


def spec(python, **changes):
    content = {
        "policies": ["always-sticky"],
        "repeats": 1,
        "calibration_repeats": 1,
        "simulations": 3,
        "timeout_s": 10.0,
        "engines": {
            "python": str(python),
            "blocks": 512,
            "block_tokens": 64,
            "max_context_tokens": 6016,
            "ready_s": 20.0,
        },
        "workload": {
            "parameters": "data/live/agents-tiny.toml",
            "rate_rps": 8.0,
            "warmup_s": 1.0,
            "window_s": 3.0,
        },
    }
    return ValidationSpec(**{**content, **changes})


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    from fake_environment import make_environment

    folder = tmp_path_factory.mktemp("validation")
    python = make_environment(folder / "environment")
    validation = Validation(spec(python), folder / "run")
    validation.run()
    return validation


def test_everything_is_there_and_nothing_runs(done):
    assert done.rig.processes == []
    page = write_validation_report(done).read_text()
    assert "Comparison" in page
    assert "<svg" in page
    for name in ("gpu.toml", "predictions.json", "predictions.sha256", "requests.parquet"):
        assert (done.folder / name).exists()


def test_predictions_are_older_than_the_replay(done):
    written = json.loads((done.folder / "predictions.json").read_text())["written"]
    assert all(written < result.summary["written"] for result in done.results())


def test_the_measured_outcome(done):
    (result,) = done.results()
    outcome = result.summary["outcome"]
    assert outcome["verb"] == "measure"
    assert outcome["valid"]
    assert outcome["requests"] > 5
    ratios = [outcome[f"{name}_ratio"] for name in ("local", "global", "peer", "recomputed")]
    assert sum(ratios) == pytest.approx(1)
    assert outcome["total_tps"] == pytest.approx(outcome["prompt_tps"] + outcome["output_tps"])
    # the engines' own counters, over nearly the same requests
    counted = result.summary["counters"]
    share = counted["prefix_cache_hits_total"] / counted["prefix_cache_queries_total"]
    assert share == pytest.approx(outcome["local_ratio"], abs=0.15)
    assert set(result.summary["cpu_s"]) == {"v0", "v1", "router", "replayer", "others"}
    assert result.summary["cpu_s"]["others"] >= 0
    assert result.summary["stolen_s"] >= 0


def test_measure_replays_a_scenario_by_itself(done, tmp_path):
    from smetric_model import measure

    scenario = done._scenario("always-sticky")
    told: list[str] = []
    outcome = measure(scenario, done.spec.engines, tmp_path, timeout_s=10.0, progress=told.append)
    (before,) = done.results()
    assert outcome["verb"] == "measure"
    assert outcome["valid"]
    assert outcome["scenario_id"] == scenario.scenario_id
    # the same sessions: of those near an edge of the window one more or less is inside
    assert outcome.number("requests") == pytest.approx(before.summary["outcome"]["requests"], abs=4)
    assert outcome.requests is not None
    assert len(outcome.requests) == outcome["requests"]
    written = json.loads((tmp_path / "run.json").read_text())
    assert written["outcome"] == outcome.to_dict()
    assert not Rig.found(tmp_path / "engines")
    assert told[0] == "preparing the workload"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cluster.instances": 3}, "cluster.instances = 3: the engines are 2"),
        ({"engine.block_tokens": 16}, "block_tokens = 16: the engines' are 64"),
        ({"engine.max_context_tokens": 7000}, "= 7000: the engines take at most 6016"),
        ({"failures": [{"instance": 0, "at_s": 1.0}]}, "1 tables; none are brought about"),
    ],
)
def test_measure_refuses_what_the_engines_are_not(done, tmp_path, changes, message):
    from smetric_model import measure

    scenario = done._scenario("always-sticky").replace(**changes)
    with pytest.raises(SpecError, match=message):
        measure(scenario, done.spec.engines, tmp_path)


def test_simulated_hits_are_those_measured(done):
    # the stand-in's times are not the model's form, its cache is; all contexts fit, and a hash
    # places them
    table = comparison(done).set_index("quantity")
    assert abs(table.loc["recomputed_ratio", "simulated_error"]) < 0.08
    assert abs(table.loc["total_tps", "simulated_error"]) < 0.2


def test_what_is_there_is_not_run_again(done):
    before = {path: path.stat().st_mtime_ns for path in done.folder.rglob("run.json")}
    again = Validation(done.spec, done.folder)
    again.run()
    assert {path: path.stat().st_mtime_ns for path in done.folder.rglob("run.json")} == before


def test_another_specification_needs_another_folder(done):
    other = spec(done.spec.engines.python, seed=5)
    with pytest.raises(SpecError, match="other seed"):
        Validation(other, done.folder)


def _killed(done, tmp_path, kill, asked=None):
    """Run one more replay in a copy of a validation, with engines killed in its window."""
    import shutil

    shutil.copytree(done.folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "runs")
    if asked is not None:
        (tmp_path / "run" / "spec.json").unlink()
        (tmp_path / "run" / "predictions.json").unlink()
    validation = Validation(asked or done.spec, tmp_path / "run")

    def killer():
        end = time.monotonic() + 60
        while not (tmp_path / "run" / "runs").exists() and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(3.5)  # the router starts, the window has begun
        kill(validation.rig.processes)

    thread = threading.Thread(target=killer)
    thread.start()
    try:
        with pytest.raises(LiveError, match="ended during the replay"):
            validation.run()
    finally:
        thread.join()
    return validation


def test_an_engine_killed_within_the_replay(done, tmp_path):
    def kill(processes):
        os.kill(next(one.pid for one in processes if one.name == "v1"), signal.SIGKILL)

    validation = _killed(done, tmp_path, kill)
    (result,) = validation.results()
    assert not result.summary["outcome"]["valid"]
    assert "v1 ended during the replay" in result.summary["outcome"]["note"]
    assert "v1 ended" in write_validation_report(validation).read_text()
    assert validation.rig.processes == []
    assert comparison(validation).empty  # what met a smaller cluster is not compared


def test_the_tier_killed_within_the_replay(done, tmp_path):
    from fake_environment import make_environment

    python = make_environment(tmp_path / "environment", ("vllm", "lmcache"))
    engines = {"python": str(python), "tier": {"kind": "lmcache"}}
    asked = spec(python, engines={**done.spec.engines.model_dump(), **engines})

    def kill(processes):
        os.kill(next(one.pid for one in processes if one.name == "tier"), signal.SIGKILL)

    validation = _killed(done, tmp_path, kill, asked)
    (result,) = validation.results()
    assert "tier ended during the replay" in result.summary["outcome"]["note"]
    assert "tier ended" in write_validation_report(validation).read_text()
    # the engines went on
    assert (result.summary["outcome"]["failed_ratio"] or 0) == 0
    assert validation.rig.processes == []


def test_engines_that_fail_after_the_last_replay_leave_a_whole_validation(
    done, tmp_path, monkeypatch
):
    import shutil

    from smetric_model.live import validation as module

    shutil.copytree(done.folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "runs")
    told, calls, real = [], [], module.microbenchmark

    def microbenchmark(*args, **options):
        calls.append(1)
        if len(calls) > 1:  # the first is before the replay
            raise LiveError("v1: answer: HTTP 500")
        return real(*args, **options)

    monkeypatch.setattr(module, "microbenchmark", microbenchmark)
    validation = Validation(done.spec, tmp_path / "run", told.append)
    validation.run()
    assert len(calls) == 2
    assert "could not be measured again: v1: answer: HTTP 500" in told[-1]
    (result,) = validation.results()
    assert result.summary["outcome"]["valid"]
    assert validation.rig.processes == []


def test_speeds_of_calibration_and_later(done):
    ratios = speed_ratios(done)
    assert set(ratios) == {"ttft_p50_s", "tpot_p50_s"}
    speeds = speed_table(done)
    np.testing.assert_allclose(speeds["ratio"], speeds["later_s"] / speeds["calibration_s"])
    # the stand-in has one speed, in milliseconds; the machine may be busy at one of the two times
    assert all(0.1 < ratio < 10 for ratio in ratios.values())
    table = comparison(done).set_index("quantity")
    line = table.loc["tpot_p50_s"]
    scaled = (1 + line["simulated_error"]) * ratios["tpot_p50_s"] ** 0.5 - 1
    assert line["simulated_error_at_speed"] == pytest.approx(scaled)
    assert math.isnan(table.loc["local_ratio", "simulated_error_at_speed"])
    assert "prefill took" in speed_sentence(done)


def test_tables_fit_a_terminal(done, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    print_table("smetric", *narrow_rows(comparison(done), "always-sticky"), frame=False)
    lines = capsys.readouterr().out.splitlines()
    assert sum("–" in line or "%" in line for line in lines) == len(QUANTITIES), lines
    assert len(lines) <= len(QUANTITIES) + 5, lines  # no cell is broken in two
    assert max(len(line) for line in lines) <= 80
    assert "…" not in "".join(lines)


@pytest.mark.parametrize(
    ("kind", "values", "model", "word"),
    [
        ("tps", [100.0, 101.0, 99.0], 108.0, "within"),
        ("tps", [100.0, 101.0, 99.0], 112.0, "outside"),
        ("tps", [100.0, 150.0, 60.0], 100.0, "too noisy"),
        ("ratio", [0.01, 0.02, 0.0], 0.025, "within"),
        ("ratio", [0.50, 0.51, 0.50], 0.55, "outside"),
        ("latency", [1.0], 1.1, "one repeat"),
        ("latency", [], 1.1, "no answer"),
        ("tps", [100.0, 101.0], float("nan"), "no answer"),
    ],
)
def test_verdicts(kind, values, model, word):
    target = {"tps": 0.1, "ratio": 0.02, "latency": 0.15}[kind]
    assert verdict(kind, values, model, target, 0.1)[2] == word


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"policies": ["lmetrc"]}, 'policies = "lmetrc": allowed is .*did you mean "lmetric"'),
        ({"policies": 3}, "policies = 3: a list is needed"),
        ({"engines": {"cores": [-1]}}, "engines.cores = -1: allowed is integer >= 0"),
        ({"engines": {"endpoints": ["a"]}}, "a list of tables is needed"),
        ({"workload": {}}, "exactly one of them"),
        ({"polices": []}, "did you mean policies"),
    ],
)
def test_wrong_specifications(changes, words):
    with pytest.raises(SpecError, match=words):
        spec("python", **changes)


def test_a_trace_of_ones_own(tmp_path):
    path = tmp_path / "spec.toml"
    path.write_text('[workload]\ntrace = "conversation.jsonl"\nrate_rps = 1.0\n')
    with pytest.raises(SpecError, match="no such file beside the specification; --trace FILE"):
        ValidationSpec.from_toml(path)
    lines = []
    for turn in range(40):  # four conversations without names, told by their prefixes
        talk, k = turn % 4, turn // 4
        blocks = [1000 * talk + block for block in range(2 * k + 2)]
        stamp, length = 700 * turn, 512 * len(blocks)
        lines.append({"timestamp": stamp, "input_length": length, "output_length": 80})
        lines[-1]["hash_ids"] = blocks
    mine = tmp_path / "mine.jsonl"
    mine.write_text("\n".join(json.dumps(line) for line in lines))
    asked = ValidationSpec.from_toml(path, mine)
    trace = build_workload(asked, tmp_path / "workload.parquet")
    # blocks of 512 tokens have become the engines' 32, outputs likewise
    assert set(trace.column("output_tokens")) == {5}
    assert set(trace.column("prompt_tokens") % 64) == {0}
    assert trace.sessions is not None
    assert 0 < len(trace) <= 40


def test_nothing_to_report(tmp_path):
    from smetric_model.cli.validate import command

    path = tmp_path / "spec.toml"
    path.write_text(f'[workload]\nparameters = "{data_dir() / "live" / "agents-tiny.toml"}"\n')
    asked = [str(path), "--out", str(tmp_path / "out"), "--report-only"]
    result = CliRunner().invoke(command, asked)
    assert isinstance(result.exception, LiveError)
    assert "is there to report" in str(result.exception)
