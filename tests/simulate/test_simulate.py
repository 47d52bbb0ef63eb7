"""``simulate``: outcomes, workloads, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from smetric_model.errors import SpecError
from smetric_model.identities import check_identities
from smetric_model.scenario import Scenario
from smetric_model.schema import load_schema
from smetric_model.simulate import simulate, simulate_in_detail
from smetric_model.simulate.checks import replay_violations
from smetric_model.simulate.loads import fixed_length_trace, with_fixed_load
from smetric_model.simulate.steps import decode_tables, run_ticks, step_ticks, to_ticks
from smetric_model.simulate.workload import replayed_trace
from smetric_model.workload.trace import load_trace


def scenario(small_trace, **changes):
    content = {
        "workload": {
            "trace": str(small_trace),
            "rate_rps": "trace",
            "warmup_s": 20.0,
            "window_s": 150.0,
            "start": "cold",
        },
        "cluster": {"instances": 4, "gpus_per_node": 2},
    }
    return Scenario.from_dict(content).replace(**changes)


@pytest.mark.parametrize("policy", ["smetric", "bailian", "lmetric", "load-balance", "dynamo"])
def test_outcome_keeps_all_laws(small_trace, policy):
    outcome = simulate(scenario(small_trace, **{"router.policy": policy}), check=True)
    assert check_identities(outcome) == ()
    assert outcome["valid"] is True
    assert outcome["requests"] == len(outcome.requests)
    for name, column in load_schema().items():
        if "simulate" not in column.verbs or column.group == "pools":
            continue
        if column.kind == "number":
            assert not math.isnan(outcome.number(name)), name
        else:
            assert outcome[name] not in (None, ""), name


def test_tables_have_the_schemas_columns(small_trace):
    outcome = simulate(scenario(small_trace))
    for table in ("requests", "instances"):
        assert set(load_schema(table)) <= set(getattr(outcome, table).columns)
    requests, instances = outcome.requests, outcome.instances
    assert instances["requests"].sum() == (requests["instance"] >= 0).sum()
    for tokens in ("prompt", "computed_prompt", "reused_prompt", "output", "total"):
        assert outcome.number(f"{tokens}_tps") == pytest.approx(instances[f"{tokens}_tps"].sum())


def test_empty_window_is_not_valid(small_trace):
    outcome = simulate(scenario(small_trace, **{"workload.window_s": 1e-3}))
    assert outcome["requests"] == 0
    assert outcome["valid"] is False
    assert "no request arrives" in str(outcome["note"])
    assert check_identities(outcome) == ()


def test_series_add_up_to_the_outcome(small_trace):
    result = simulate_in_detail(scenario(small_trace))
    series, outcome = result.series(), result.outcome
    seconds = outcome.number("window_s")
    for tokens in ("prompt", "computed_prompt", "reused_prompt", "output", "total"):
        assert series[f"{tokens}_tokens"].sum() / seconds == pytest.approx(
            outcome.number(f"{tokens}_tps")
        )
    mean = (series["inflight_requests"] * series["length_s"]).sum() / seconds
    assert mean == pytest.approx(outcome.number("inflight_requests_mean"))
    assert series["start_s"].min() == 20.0


def test_router_signals_change_placements(small_trace):
    """An index that never learns of evictions, old loads, and routers that do not talk."""
    tiny = {"engine.memory_utilisation": 0.72}
    base = scenario(small_trace, **tiny)
    asked = {
        "router.hit_index": "blind",
        "router.load_source": "scraped",
        "router.load_age_s": 5.0,
        "router.replicas": 3,
    }
    placed = simulate(base).requests["instance"]
    for key, value in asked.items():
        outcome = simulate(base.replace(**{key: value}), check=True)
        assert outcome["valid"] is True
    other = simulate(base.replace(**asked), check=True).requests["instance"]
    assert not placed.equals(other)


def test_unservable_requests_are_counted_and_named(small_trace):
    outcome = simulate(scenario(small_trace, **{"workload.window_s": 400.0}))
    lost = outcome.requests[outcome.requests["status"] == "unservable"]
    assert len(lost) == 1  # 512 x 600 tokens
    assert "max_context_tokens" in lost["reason"].iloc[0]
    assert "1 requests longer than max_context_tokens" in str(outcome["note"])
    assert outcome.number("unservable_ratio") == pytest.approx(1 / len(outcome.requests))


def test_think_time_follows_completion_in_a_closed_loop(small_trace):
    trace = load_trace(small_trace)
    closed = simulate(scenario(small_trace, **{"workload.rate_rps": "trace"}), trace)
    opened = simulate(scenario(small_trace, **{"workload.loop": "open"}), trace)
    recorded = trace.column("arrival_s")
    rows = opened.requests["request_id"].to_numpy()
    first = recorded.min()
    np.testing.assert_allclose(opened.requests["arrival_s"], recorded[rows] - first, atol=1e-9)
    assert len(closed.requests) > 0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("local_tier.eviction", "clairvoyant"),
        ("global_tier.eviction", "clairvoyant"),
        ("global_tier.write", "back"),
        ("global_tier.peer_fetch", True),
    ],
)
def test_what_is_not_simulated_is_refused(small_trace, key, value):
    failing = scenario(small_trace).replace(failures=[{"instance": 0, "at_s": 10.0}])
    with pytest.raises(SpecError, match=key.replace(".", r"\.") + " with failures"):
        simulate(failing.replace(**{key: value}))


def test_knowing_the_future_hits_more_than_the_last_use():
    base = Scenario(
        workload={"rate_rps": 0.6, "window_s": 600.0, "warmup_s": 600.0},
        cluster={"instances": 4},
        global_tier={"bytes_per_node": 20e9},
    )
    hits = {}
    for eviction in ("lru", "dead-first", "clairvoyant"):
        asked = {"local_tier.eviction": eviction, "global_tier.eviction": eviction}
        found = simulate_in_detail(base.replace(**asked))
        assert replay_violations(found.prepared.inputs, found.replay) == []
        outcome = found.outcome
        assert outcome["valid"] is True
        hits[eviction] = 1 - outcome.number("recomputed_ratio")
    assert hits["lru"] < hits["dead-first"] < hits["clairvoyant"]


def test_rate_is_reached_by_whole_sessions():
    asked = Scenario(
        workload={"rate_rps": 1.5, "window_s": 900.0, "warmup_s": 600.0}, cluster={"instances": 8}
    )
    trace, notes = replayed_trace(asked)
    arrival = trace.column("arrival_s")
    assert arrival.min() >= 0
    assert any("under way" in note for note in notes)
    inside = (arrival >= 600) & (arrival < 1500)
    assert inside.sum() / 900 == pytest.approx(1.5, rel=0.5)  # bursty, and in a random place


def test_preset_starts_with_sessions_under_way():
    asked = Scenario(
        workload={
            "preset": "bailian-trace-1-short",
            "rate_rps": 2.0,
            "window_s": 120.0,
            "warmup_s": 60.0,
        }
    )
    outcome = simulate(asked)
    assert outcome.number("arrival_rate_rps") == pytest.approx(2.0, rel=0.5)
    assert (outcome.requests["turn"] > 0).any()


def test_equal_seeds_give_equal_outcomes_and_others_do_not():
    asked = Scenario(
        workload={
            "preset": "bailian-trace-1-short",
            "rate_rps": 2.0,
            "window_s": 60.0,
            "warmup_s": 30.0,
        },
        cluster={"instances": 8},
        router={"policy": "power-of-two"},
    )
    one, two = simulate(asked), simulate(asked)
    assert one.to_json() == two.to_json()
    assert one.requests.equals(two.requests)
    assert simulate(asked.replace(seed=1)).to_json() != one.to_json()


def test_fixed_load_alone_takes_the_step_models_time():
    from smetric_model.analytic.demand import instance_of
    from smetric_model.analytic.latency import request_latency

    asked = Scenario(cluster={"instances": 1})
    trace = fixed_length_trace(5000, 100, 5, 0.01, arrivals="uniform")
    outcome = simulate(with_fixed_load(asked, trace), trace)
    alone = request_latency(instance_of(asked), 5000, 100)
    assert outcome.number("ttft_p50_s") == pytest.approx(alone.ttft_s, rel=1e-9)
    assert outcome.number("tpot_p50_s") == pytest.approx(alone.tpot_s, rel=1e-4)


def test_compiled_step_is_the_step_model():
    from smetric_model.analytic.demand import instance_of
    from smetric_model.analytic.step_model import step_model
    from smetric_model.analytic.step_time import step_time_s

    for mode in ("graph", "eager"):
        model = step_model(instance_of(Scenario(engine={"mode": mode})))
        tables = decode_tables(model, 64)
        for batch, context in ((1, 5_000), (7, 30_000), (64, 2_000)):
            one = run_ticks(
                int(tables.base[batch]),
                int(tables.per_token[batch]),
                int(tables.least[batch]),
                batch,
                batch * context,
                1,
            )
            exact = step_time_s(model, 0, 0, batch, context)
            assert one / 1e12 == pytest.approx(exact, rel=1e-4)
        p, c = 3_000.0, 20_000.0
        ticks = step_ticks(model, p, p * (c + p / 2), c + p, 4.0, 4e4, 5.0)
        assert abs(ticks - to_ticks(step_time_s(model, p, c, 4, 1e4))) <= 1


@pytest.mark.parametrize("least", [0, 50_000])
def test_run_of_steps_is_the_sum_of_its_steps(least):
    total, context = 0, 1_000
    for steps in range(1, 60):
        total += run_ticks(10_000, 33, least, 3, context + 3 * (steps - 1), 1)
        assert run_ticks(10_000, 33, least, 3, context, steps) == total


@pytest.mark.shared
def test_published_open_loop_medians(shared_dir):
    """4,096 + 256 tokens at 0.5/s on one H20; the rows do not state the arrival process."""
    import pandas as pd

    rows = pd.read_csv(shared_dir / "measurements" / "h20.csv").set_index("id")["value"]

    def error(outcome, quantity):
        measured = rows[f"KVC-ct-r0.5-{quantity}_p50"] / 1e3
        return abs(outcome.number(f"{quantity}_p50_s") / measured - 1)

    asked = Scenario(cluster={"instances": 1}, router={"policy": "load-balance"})
    results = {}
    for arrivals in ("poisson", "uniform"):
        trace = fixed_length_trace(4096, 256, 3000, 0.5, 0, arrivals)
        results[arrivals] = simulate(with_fixed_load(asked, trace), trace)
    assert error(results["poisson"], "ttft") < 0.15
    # Poisson arrivals overlap more than the measured medians allow (docs/simulate.md)
    for quantity in ("ttft", "tpot", "e2e"):
        assert error(results["uniform"], quantity) < 0.15


def test_sessions_that_wait_for_answers_ask_for_less_and_it_is_said():
    base = Scenario(
        workload={
            "preset": "bailian-trace-1-short",
            "rate_rps": 3.0,
            "warmup_s": 300.0,
            "window_s": 400.0,
        },
        cluster={"instances": 1},
    )
    slow = simulate(base)
    assert slow.number("arrival_rate_rps") < 0.9 * 3.0
    assert "answers come late" in slow["note"]
    enough = simulate(base.replace(**{"cluster.instances": 16}))
    assert enough.number("arrival_rate_rps") > 0.9 * 3.0
    assert "answers come late" not in enough["note"]
