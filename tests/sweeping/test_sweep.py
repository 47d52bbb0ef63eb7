from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal

from smetric_model import Scenario, predict, sweep
from smetric_model.errors import SpecError
from smetric_model.sweeping.store import point_digest

sys.path.insert(0, str(Path(__file__).parent))
import functions

SHIPPED = Path(__file__).parents[2] / "data" / "scenarios" / "agents-small.toml"
INSTANCES = {"cluster.instances": [1, 2, 3, 4, 5]}


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    """Workers are spawned: they find the module of verbs by the path."""
    folder = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", folder + os.pathsep + os.environ.get("PYTHONPATH", ""))


@pytest.fixture(scope="module")
def base(small_trace) -> Scenario:
    return Scenario.from_dict(
        {
            "workload": {"trace": str(small_trace), "rate_rps": 0.4},
            "cluster": {"instances": 2, "gpus_per_node": 1},
        }
    )


def rows_bytes(frame: pd.DataFrame) -> bytes:
    return frame.to_csv(index=False).encode()


def test_a_row_is_what_the_verb_answers(base):
    frame = sweep(base, {"workload.rate_rps": [0.2, 0.4], "router.policy": ["smetric", "bailian"]})
    assert list(frame["workload.rate_rps"]) == [0.2, 0.2, 0.4, 0.4]
    for _, row in frame.iterrows():
        keys = ["workload.rate_rps", "router.policy"]
        outcome = predict(base.replace(**{key: row[key] for key in keys}))
        for name, value in outcome.items():
            same = row[name] == value or (pd.isna(row[name]) and pd.isna(value))
            assert same, (name, row[name], value)


def test_two_processes_give_the_same_rows_in_the_same_order(tmp_path):
    over = {"cluster.instances": [1, 2, 3, 4]}
    base = Scenario.from_toml(SHIPPED)
    alone = sweep(base, over, functions.slow_first)
    both = sweep(base, over, functions.slow_first, jobs=2, folder=tmp_path)
    assert list(alone["twice"]) == [2.0, 4.0, 6.0, 8.0]
    assert rows_bytes(alone) == rows_bytes(both)
    assert_frame_equal(alone, both)


def test_what_is_there_is_found_whatever_was_there_before(base, tmp_path):
    over = {"workload.rate_rps": [0.2, 0.3, 0.4]}
    whole = sweep(base, over, folder=tmp_path)
    assert (whole.attrs["found"], whole.attrs["computed"]) == (0, 3)
    points = sorted((tmp_path / "points").rglob("*.json"))
    assert len(points) == 3
    random.Random(1).choice(points).unlink()
    points[0].write_text("{")  # cut short by something else than this library
    again = sweep(base, over, folder=tmp_path)
    assert again.attrs["found"] in (1, 2)
    assert again.attrs["found"] + again.attrs["computed"] == 3
    assert_frame_equal(whole, again)
    assert sweep(base.replace(name="other"), over, folder=tmp_path).attrs["found"] == 3
    more = sweep(base, {"workload.rate_rps": [0.4, 0.5, 0.2]}, folder=tmp_path)
    assert more.attrs["found"] == 2
    assert not list(tmp_path.rglob(".*"))  # nothing half-written is left


def test_failures_are_rows(tmp_path):
    base = Scenario.from_toml(SHIPPED)
    frame = sweep(base, INSTANCES, functions.breaks_at_two, folder=tmp_path)
    assert list(frame["status"]) == ["done", "failed", "unstable", "failed", "done"]
    assert list(frame["error_class"]) == ["", "KeyError", "UnstableError", "SpecError", ""]
    assert frame["binding_resource"][2] == "compute"
    assert math.isinf(frame["infinite"][0])
    # an error that the library did not raise on purpose is tried again, the others are kept
    again = sweep(base, INSTANCES, functions.breaks_at_two, folder=tmp_path)
    assert again.attrs["computed"] == 1
    assert_frame_equal(frame, again)


def test_no_steady_state_is_a_flagged_row(base):
    frame = sweep(base, {"workload.rate_rps": [0.2, 1e4]})
    assert list(frame["status"]) == ["done", "unstable"]
    assert frame["valid"][1] is False
    assert frame["binding_resource"][1]
    assert math.isnan(frame["total_tps"][1])
    assert frame["arrival_rate_rps"][1] == 1e4


def test_a_process_that_dies_fails_its_own_point_only():
    base = Scenario.from_toml(SHIPPED)
    frame = sweep(base, {"cluster.instances": [1, 2, 3]}, functions.dies_at_two, jobs=2)
    assert list(frame["status"]) == ["done", "failed", "done"]
    assert frame["error_class"][1] == "ProcessDied"


def test_of_many_sent_at_once_one_that_dies_fails_alone():
    base = Scenario.from_toml(SHIPPED)
    counts = list(range(1, 101))
    progress = []
    frame = sweep(
        base,
        {"cluster.instances": counts},
        functions.dies_late,
        jobs=2,
        progress=lambda done, _: progress.append(done),
    )
    assert list(frame["status"] == "failed") == [count == 57 for count in counts]
    assert frame["error_class"][56] == "ProcessDied"
    assert list(frame["count"].drop(56)) == [count for count in counts if count != 57]
    assert frame["process"].nunique() >= 3  # two, and those that ran alone or took over
    assert progress == list(range(len(counts) + 1))


@given(st.sampled_from(["seed", "cluster.instances", "slo.tpot_s", "router.overload"]))
def test_the_digest_changes_with_every_key(key):
    base = Scenario.from_toml(SHIPPED)
    value = (
        base.seed
        if key == "seed"
        else getattr(getattr(base, key[: key.index(".")]), key[key.index(".") + 1 :])
    )
    other = base.replace(**{key: value + 1})
    digest = point_digest(base, "predict")
    assert digest != point_digest(other, "predict")
    assert digest != point_digest(base, "simulate")
    assert digest == point_digest(base.replace(**{key: value}), "predict")


def test_the_digest_follows_what_the_trace_holds(base, small_trace, tmp_path):
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(small_trace.read_bytes())
    digest = point_digest(base, "predict")
    moved = base.replace(**{"workload.trace": str(copy)})
    assert point_digest(moved, "predict") == digest
    copy.write_bytes(
        small_trace.read_bytes().replace(b'"output_length": 40', b'"output_length": 41')
    )
    assert point_digest(moved, "predict") != digest


def test_the_digest_of_a_function_follows_its_arguments():
    base = Scenario.from_toml(SHIPPED)
    one, two = (point_digest(base, partial(pow, exp=k)) for k in (1, 2))
    assert one != two
    with pytest.raises(SpecError, match="top of a module"):
        point_digest(base, lambda scenario: {})


@pytest.mark.parametrize(
    ("over", "options", "words"),
    [
        ({"router.polcy": ["smetric"]}, {}, "router.policy"),
        ({"rooter.policy": ["smetric"]}, {}, "did you mean router.policy"),
        ({"router": ["smetric"]}, {}, "not a key"),
        ({"router.policy": ["smetric", "best"]}, {}, "allowed is"),
        ({"router.policy": "smetric"}, {}, "a list of values"),
        ({"router.policy": []}, {}, "no values"),
        ({"cluster.instances": [8, 8]}, {}, "twice"),
        ({"workload.trace": ["nowhere.jsonl"]}, {}, "no such file"),
        ({"cluster.instances": [8, 9], "seed": [1]}, {"design": "zip"}, "equal lengths"),
        ({"seed": [1]}, {"seeds": 2}, "one of them"),
        ({}, {"seeds": 0}, "at least one"),
        ({}, {"seeds": []}, "at least one"),
        ({}, {"verb": "guess"}, "predict, simulate"),
        ({}, {"verb": []}, "no point"),
        ({}, {"jobs": 0}, "at least 1"),
        ({}, {"design": "grid"}, "product, zip"),
        (pd.DataFrame({"cluster.instances": []}), {}, "no point"),
        ({"engine.tp": [9]}, {}, "no point can be run"),
    ],
)
def test_mistakes_are_told_before_anything_runs(over, options, words):
    with pytest.raises(SpecError, match=words):
        sweep(Scenario.from_toml(SHIPPED), over, **{"verb": _never, **options})


def _never(scenario):
    raise AssertionError("nothing may run")


def test_contradictions_of_some_points_are_rows():
    over = {"engine.tp": [1, 9]}
    frame = sweep(Scenario.from_toml(SHIPPED), over, functions.slow_first)
    assert list(frame["status"]) == ["done", "failed"]
    assert "gpus_per_node" in frame["error"][1]


def test_designs():
    base = Scenario.from_toml(SHIPPED)
    over = {"cluster.instances": [4, 5], "router.policy": ["smetric", "bailian"]}
    zipped = sweep(base, over, functions.slow_first, design="zip")
    assert list(zipped["label"]) == ["smetric", "bailian"]
    lines = pd.DataFrame(over)
    listed = sweep(base, lines, functions.slow_first)
    assert_frame_equal(zipped, listed)
    seeds = sweep({"a": base, "b": base}, {}, functions.slow_first, seeds=2)
    assert list(seeds["scenario"]) == ["a", "a", "b", "b"]
    assert list(seeds["seed"]) == [0, 1, 0, 1]


def test_plan_has_a_row_of_its_own(base):
    frame = sweep(base, {"cluster.instances": [2]}, ["plan", "predict"])
    assert frame["tiers_attainment_rps"][0] > 0
    assert math.isnan(frame["tiers_attainment_rps"][1])
    assert frame["verb"].tolist() == ["plan", "predict"]
    assert frame["seed"].tolist() == [0, 0]


def test_relative_paths_reach_the_workers(small_trace, tmp_path, monkeypatch):
    (tmp_path / "t.jsonl").write_bytes(small_trace.read_bytes())
    toml = '[workload]\ntrace = "t.jsonl"\nrate_rps = 0.2\n[cluster]\ninstances = 2\n'
    (tmp_path / "s.toml").write_text(toml)
    scenario = Scenario.from_toml(tmp_path / "s.toml")
    frame = sweep(scenario, {"workload.rate_rps": [0.2, 0.3]}, jobs=2)
    assert list(frame["status"]) == ["done", "done"]
    expected = [scenario.replace(**{"workload.rate_rps": r}).scenario_id for r in (0.2, 0.3)]
    assert list(frame["scenario_id"]) == expected


def test_an_interrupt_keeps_what_is_done(tmp_path):
    command = [
        *(sys.executable, "-c", "from smetric_model.cli import main; main()", "sweep"),
        *(str(SHIPPED), "--set", "workload.rate_rps=1:4:0.1", "--out", str(tmp_path)),
        *("--jobs", "2"),
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        start_new_session=True,
    )
    until = time.monotonic() + 120
    while not list(tmp_path.glob("points/*/*.json")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: workers get it, too
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert b"Traceback" not in told
    kept = len(list(tmp_path.glob("points/*/*.json")))
    assert 0 < kept < 31
    frame = sweep(SHIPPED, {"workload.rate_rps": [1 + k / 10 for k in range(5)]}, folder=tmp_path)
    assert frame.attrs["found"] > 0


def test_a_dask_cluster_gives_the_same_bytes(base, tmp_path):
    distributed = pytest.importorskip("distributed")
    over = {"workload.rate_rps": [0.2, 0.3, 0.4], "router.policy": ["smetric", "bailian"]}
    alone = sweep(base, over)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, local_directory=str(tmp_path)
    ) as cluster:
        spread = sweep(base, over, scheduler=cluster.scheduler_address, folder=tmp_path / "kept")
    assert spread.attrs["computed"] == 6
    assert rows_bytes(alone) == rows_bytes(spread)
    assert_frame_equal(alone, spread)
