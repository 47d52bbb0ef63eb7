"""tune: closed form and sweep agree with the cluster they are read off."""

from __future__ import annotations

import contextlib
import json
import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from smetric_model import Scenario, tune
from smetric_model.analytic.demand import Demand, demand_of
from smetric_model.errors import SpecError, UnstableError
from smetric_model.tuning import GridPoint, Situation, closed_form, needs_of
from smetric_model.tuning.words import advice, needs_words, threshold
from smetric_model.workload.synthesis import generate, preset_parameters
from smetric_model.workload.trace import Trace, write_trace

RATE = 1.2


@cache
def trace() -> Trace:
    return generate(preset_parameters("bailian-trace-1-medium"), rate_rps=RATE, window_s=2400.0)


@cache
def demand() -> Demand:
    return demand_of(scenario(), trace())


def scenario(**changes: Any) -> Scenario:
    return Scenario(
        cluster={"instances": 8, "gpus_per_node": 4},
        global_tier={"bytes_per_node": 400e9},
        workload={"rate_rps": RATE, "warmup_s": 600.0, "window_s": 1800.0, "start": "cold"},
    ).replace(**changes)


@cache
def situation(items: tuple[tuple[str, Any], ...] = ()) -> Situation:
    return closed_form(scenario(**dict(items)), demand())


def test_situation_is_consistent() -> None:
    s = situation()
    assert 0 <= s.receiver_load <= s.service.mean_load
    assert 0 < s.moved_tokens <= s.prompt_tokens
    # what a move fetches and computes again is what home would have hit
    assert s.fetched_tokens + s.recomputed_tokens == pytest.approx(s.moved_tokens, rel=1e-6)
    assert s.cost.social_s >= s.cost.private_s > 0
    assert s.social_overload >= 1.25
    assert 0 <= s.social_hit_ratio <= 1
    assert 0 <= s.evicted_ratio <= 1
    assert 0 <= s.rewritten_ratio <= 1


def test_without_a_global_tier_moves_recompute_and_cost_more() -> None:
    with_tier, without = situation(), situation((("global_tier.bytes_per_node", 0.0),))
    assert without.cost.fetch_s == without.fetched_tokens == 0
    assert without.cost.recompute_s > with_tier.cost.recompute_s
    assert without.cost.social_s > with_tier.cost.social_s
    assert without.social_balance > with_tier.social_balance


def test_balance_falls_with_link_speed() -> None:
    slow, fast = (
        situation(
            (
                ("cluster.nic_bytes_per_s", speed),
                ("global_tier.recompute_if_faster", False),
            )
        )
        for speed in (5e9, 50e9)
    )
    assert slow.cost.fetch_s > fast.cost.fetch_s
    assert slow.cost.link_s > fast.cost.link_s
    assert slow.social_balance > fast.social_balance


@cache
def tuned() -> Any:
    return tune(
        scenario(),
        demand=demand(),
        loss=None,
        overloads=(1.0, 2.0, math.inf),
        hit_ratios=(0.0, 0.5),
    )


def test_advice_is_a_pair_of_the_grid_near_the_best() -> None:
    result = tuned()
    assert len(result.grid) == 6
    values = {(p.overload, p.hit_ratio): p.total_within_slo_tps for p in result.grid}
    chosen = values[result.overload, result.hit_ratio]
    assert chosen >= (1 - result.choice_ratio) * max(values.values())
    assert result.matters == (
        min(values.values()) < (1 - result.plateau_ratio) * max(values.values())
    )
    assert 0 < result.hit_weight <= 1
    assert result.advice == advice(result)
    assert result.needs is None


def test_prediction_at_a_pair_is_predicts_own() -> None:
    from smetric_model import predict

    point = next(p for p in tuned().grid if (p.overload, p.hit_ratio) == (2.0, 0.5))
    asked = scenario(
        **{"router.policy": "smetric", "router.overload": 2.0, "router.hit_ratio": 0.5}
    )
    outcome = predict(asked, demand=demand())
    assert point.total_within_slo_tps == outcome.number("total_within_slo_tps")


def test_overload_beyond_the_number_of_instances_never_lets_go() -> None:
    from smetric_model import predict
    from smetric_model.tuning import sweep

    few = scenario(**{"cluster.instances": 4, "workload.rate_rps": 0.6})
    points = sweep(few, demand(), (4.0, 6.0, math.inf), (0.5,))
    assert len({p.total_within_slo_tps for p in points}) == 1
    for overload in (4.0, math.inf):  # and that is what predict says of each
        asked = few.replace(
            **{
                "router.policy": "smetric",
                "router.overload": overload,
                "router.hit_ratio": 0.5,
            }
        )
        own = predict(asked, demand=demand()).number("total_within_slo_tps")
        assert own == pytest.approx(points[0].total_within_slo_tps, rel=1e-9)


def test_rates_count_what_cannot_be_served_too(tmp_path: Any) -> None:
    from smetric_model.cli.tune import command

    trace_path = tmp_path / "t.parquet"
    write_trace(trace(), trace_path)
    short = scenario(**{"engine.max_context_tokens": 40_000})
    few = demand_of(short, trace())
    lost = few.unservable_ratio
    assert lost > 0.1
    pair = {"overloads": (2.0,), "hit_ratios": (0.5,)}
    result = tune(short, demand=few, loss=0.1, **pair)
    assert result.rate_rps == RATE
    assert result.unservable_ratio == lost
    unservable = [note for note in result.notes if note.startswith("unservable: ")]
    assert len(unservable) == 1
    assert f"{sum(few.unservable.values()):,} of {few.requests:,} requests" in unservable[0]
    # loss, and so the largest rate, are of a scenario whose rate counts all
    assert result.needs is not None
    most = result.needs.largest_rate_rps
    assert most is not None
    own = tune(short.replace(**{"workload.rate_rps": most}), demand=few, loss=None, **pair)
    assert own.rate_rps == most
    assert own.best.total_within_slo_tps > result.best.total_within_slo_tps
    # the trace's own rate counts all as well
    trace_rate = tune(
        short.replace(**{"workload.rate_rps": "trace"}), demand=few, loss=None, **pair
    )
    state = closed_form(short.replace(**{"workload.rate_rps": trace_rate.rate_rps}), few)
    assert state.social_overload == pytest.approx(trace_rate.social_overload, rel=1e-6)
    file = tmp_path / "s.toml"
    file.write_text(short.replace(**{"workload.trace": str(trace_path)}).to_toml())
    said = CliRunner().invoke(
        command, [str(file), "--overload", "2", "--hit-ratio", "0.5", "--loss", "10"]
    )
    assert said.exit_code == 0, said.output
    text = " ".join(said.stdout.split())
    assert f"thresholds at {RATE:g} requests/s, of which {1 - lost:.0%} can be served" in text
    assert f"Fewest instances for {RATE:g} requests/s" in text
    assert "note: unservable: " in text


def test_words_say_when_nothing_depends_on_the_thresholds() -> None:
    from dataclasses import replace

    flat = tuple(GridPoint(o, 0.5, 100.0 + o) for o in (1.0, 1.5, 2.0))
    same = replace(tuned(), grid=flat, plateau=flat, matters=False)
    assert "do not matter here" in advice(same)[0]
    steep = tuple(GridPoint(o, 0.5, 100.0 * o) for o in (1.0, 1.5, 2.0))
    varied = replace(tuned(), grid=steep, plateau=steep[2:], matters=True)
    assert "loses 50" in advice(varied)[0]
    for kept in (same, varied):  # the usual pair lies on both plateaus
        assert advice(kept)[0].startswith("Keep the usual pair, OVERLOAD 2, HIT_RATIO 0.5")
        assert kept.advised == (2.0, 0.5)
    falling = tuple(GridPoint(o, 0.5, 100.0 / o) for o in (1.0, 1.5, 2.0))
    other = replace(tuned(), grid=falling, plateau=falling[:1], overload=1.0, matters=True)
    assert not other.keeps_usual
    assert other.advised == (1.0, other.hit_ratio)
    assert advice(other)[0].startswith("OVERLOAD 1, ")
    assert any(
        line == "The usual pair, OVERLOAD 2, HIT_RATIO 0.5, loses 50.0%." for line in advice(other)
    )
    none = tuple(GridPoint(o, 0.5, 0.0) for o in (1.0, 2.0))
    assert "no pair" in advice(replace(tuned(), grid=none, plateau=none, matters=False))[0]


def test_words_tell_eviction_from_rewritten_histories() -> None:
    from dataclasses import replace

    s = tuned().situation
    for evicted, rewritten, word in (
        (0.3, 0.01, "means eviction"),
        (0.01, 0.3, "means a rewritten history"),
        (0.2, 0.2, "may mean either"),
        (0.0, 0.0, "are rare here"),
    ):
        other = replace(s, evicted_ratio=evicted, rewritten_ratio=rewritten)
        assert word in advice(replace(tuned(), at_advice=other))[-1]


def test_rewritten_share_is_the_traces_own_at_any_rate() -> None:
    light, full = (
        tune(
            scenario(**{"workload.rate_rps": rate}),
            demand=demand(),
            loss=None,
            overloads=(2.0,),
            hit_ratios=(0.5,),
        )
        for rate in (0.25 * RATE, RATE)
    )
    assert light.at_advice.hit_ratio == full.at_advice.hit_ratio == 0.5
    assert light.at_advice.rewritten_ratio == full.at_advice.rewritten_ratio
    assert light.at_advice.evicted_ratio < full.at_advice.evicted_ratio
    assert "at HIT_RATIO" not in full.advice[0]
    assert "HIT_RATIO 0.5 because their history" in full.advice[-1] or "rare" in full.advice[-1]


def test_loads_are_told_in_good_english() -> None:
    from dataclasses import replace

    s = tuned().at_advice
    one = replace(s, service=replace(s.service, mean_load=1.004), receiver_load=0.0)
    line = next(x for x in advice(replace(tuned(), at_advice=one)) if "under way" in x)
    assert "has 1 request under way" in line
    assert "goes to an idle one" in line
    two = replace(one, receiver_load=0.4)
    assert any("one that has 0.4 requests" in x for x in advice(replace(tuned(), at_advice=two)))


def test_needs_name_their_cluster_and_what_is_lost() -> None:
    from smetric_model import predict
    from smetric_model.analytic.cluster_demand import with_sessions
    from smetric_model.analytic.predict import cluster_form

    asked = scenario(
        **{"router.policy": "smetric", "cluster.instances": 24, "workload.rate_rps": 0.6}
    )
    needs = needs_of(asked, demand(), 0.05)
    assert needs.fewest_instances is not None
    assert needs.fewest_instances < needs.instances == 24
    assert needs.least_nic_bytes_per_s == needs.least_global_bytes_per_node == 0
    given, few = needs.without_tier
    bare = predict(asked.replace(**{"global_tier.bytes_per_node": 0.0}), demand=demand())
    share = bare.number("total_within_slo_tps") / bare.number("total_tps")
    assert given.least_ratio == pytest.approx(share, rel=1e-9)
    assert 0 <= given.lost_ratio <= 0.05
    assert few.instances == needs.fewest_instances
    assert few.lost_ratio > given.lost_ratio
    # reused KV and new KV, of the prompts, the share that lies on other nodes
    outcome = predict(asked, demand=demand())
    new = outcome.number("recomputed_ratio")
    fetched = outcome.number("global_ratio")
    token = cluster_form(asked, with_sessions(demand())).links.bytes_per_token
    moved = (fetched + new) * outcome.number("prompt_tps") * token * 5 / 6 / 6
    assert needs.nic_traffic_bytes_per_s == pytest.approx(moved, rel=0.1)
    tier, link = needs_words(needs, 0.6)[2:]
    for line in (tier, link):
        assert line.startswith("With the given 24 instances (")
        assert f"with {needs.fewest_instances} (" in line
    assert "Gbit/s on average" in link


def test_needs_are_where_the_loss_is_met() -> None:
    from smetric_model.tuning.search import loss_outside_slo

    asked = scenario(**{"router.policy": "smetric"})
    needs = needs_of(asked, demand(), 0.1)
    assert needs.largest_rate_rps is not None
    assert needs.fewest_instances is not None
    below = asked.replace(**{"workload.rate_rps": 0.97 * needs.largest_rate_rps})
    above = asked.replace(**{"workload.rate_rps": 1.04 * needs.largest_rate_rps})
    assert loss_outside_slo(below, demand()) <= 0.11
    assert loss_outside_slo(above, demand()) > 0.09
    enough = asked.replace(**{"cluster.instances": needs.fewest_instances})
    assert loss_outside_slo(enough, demand()) <= 0.1
    lines = needs_words(needs, RATE)
    assert len(lines) == 4
    assert str(needs.fewest_instances) in lines[1]


def test_wrong_arguments_and_hopeless_rates_are_named_errors() -> None:
    with pytest.raises(SpecError, match="loss"):
        tune(scenario(), demand=demand(), loss=1.5)
    with pytest.raises(SpecError, match="overloads"):
        tune(scenario(), demand=demand(), overloads=())
    with pytest.raises(UnstableError):
        tune(scenario(**{"workload.rate_rps": 100.0}), demand=demand(), loss=None)


def test_result_as_dict_is_json() -> None:
    text = json.dumps(tuned().to_dict(), default=float)
    back = json.loads(text)
    assert {p["overload"] for p in back["grid"]} == {1.0, 2.0, "inf"}
    assert back["situation"]["cost"]["social_s"] == pytest.approx(tuned().situation.cost.social_s)
    assert np.isfinite(back["spread_ratio"])


def test_threshold_words() -> None:
    assert threshold(math.inf) == "inf (never)"
    assert threshold(1.5) == "1.5"
    assert threshold(2.0) == "2"


def test_command(tmp_path: Any) -> None:
    from smetric_model.cli.tune import command

    trace_path = tmp_path / "t.parquet"
    write_trace(trace(), trace_path)
    file = tmp_path / "s.toml"
    file.write_text(scenario(**{"workload.trace": str(trace_path)}).to_toml())
    result = CliRunner().invoke(
        command, [str(file), "--no-needs", "--overload", "2", "--hit-ratio", "0.5", "--json"]
    )
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["needs"] is None
    wrong = CliRunner().invoke(command, [str(file), "--loss", "0"])
    assert wrong.exit_code == 2
    assert "--loss" in wrong.stderr


def test_two_pools_are_tuned_and_sized_together() -> None:
    pools = scenario(
        **{
            "cluster.serving": "disaggregated",
            "cluster.instances": None,
            "cluster.prefill_instances": 6,
            "cluster.decode_instances": 6,
            "slo.tpot_s": 1.0,
        }
    )
    needs = needs_of(pools, demand(), 0.2)
    assert needs.fewest_instances is not None
    assert needs.fewest_instances >= 2


def test_what_is_left_out_is_said() -> None:
    asked = scenario(**{"router.replicas": 4, "client.timeout_s": 30.0})
    result = tune(asked, demand=demand(), loss=None, overloads=[2.0], hit_ratios=[0.5])
    (note,) = result.notes
    assert "router.replicas" in note
    assert "client.timeout_s" in note
    assert result.to_dict()["notes"] == [note]


@pytest.mark.parametrize("rate", [RATE, 2 * RATE])
def test_recomputation_costs_what_the_cluster_waits_for_one_more_token(rate: float) -> None:
    """Finite difference: a little less of every hit, all else as it is."""
    from smetric_model.analytic.cluster_demand import with_sessions
    from smetric_model.analytic.latency import prefill_time_s
    from smetric_model.analytic.predict import cluster_form
    from smetric_model.analytic.thresholds import recompute_delay_s

    asked = scenario(**{"router.policy": "smetric"})
    cluster = cluster_form(asked, with_sessions(demand()))
    state = cluster.at(rate)
    own = rate / cluster.instances
    mixed, budget = state.mixed, demand().instance.token_budget

    def with_less(tokens: float) -> tuple[float, float, float]:
        here = np.maximum(mixed.local - tokens, 0.0)
        instance = cluster._instance(mixed._replace(local=here))
        routed = cluster.field.route(
            rate, instance, state.hits, cluster.work.think_time, state.routed
        )
        loaded = instance.at_rate(
            own,
            np.asarray(asked.slo.ttft_s(mixed.prompt), dtype=float),
            asked.slo.tpot_s,
            cluster._arrivals(routed, instance, mixed.is_free),
        )
        hit = here + mixed.fetched
        work = float(prefill_time_s(cluster.model, mixed.prompt - hit, hit, budget).mean())
        waits = own * (loaded.mean_ttft_s() + loaded.mean_decode_s())
        return work, routed.mean_load, waits

    (work, load, waits), (more, new_load, new_waits) = with_less(0.0), with_less(50.0)
    added = own * (more - work)
    noise = state.routed.noise
    formula = 1.0 + recompute_delay_s(1.0, own, noise.service_slope)  # the request itself waits
    assert (new_load - load) / added == pytest.approx(formula, rel=0.15)
    # the instance's own queue holds more than the mean field's chain says
    assert (new_waits - waits) / added == pytest.approx(formula, rel=0.5)


def test_fewest_instances_are_enough_and_one_less_is_not() -> None:
    from smetric_model import fewest_instances, predict

    asked = scenario(**{"slo.attainment": 0.8})
    needed = fewest_instances(asked, demand=demand())
    assert needed.instances is not None
    assert needed.prefill_instances is None
    assert needed.outcome is not None
    assert needed.outcome.number("within_slo_ratio") == needed.within_slo_ratio >= 0.8
    fewer = asked.replace(**{"cluster.instances": needed.instances - 1})
    with contextlib.suppress(UnstableError):
        assert predict(fewer, demand=demand()).number("within_slo_ratio") < 0.8
    stricter = fewest_instances(asked, 0.9, demand=demand())
    assert stricter.instances is None or stricter.instances >= needed.instances
    with pytest.raises(SpecError, match="attainment"):
        fewest_instances(asked, 0.0, demand=demand())


def test_fewest_instances_of_two_pools_keep_their_proportion() -> None:
    from smetric_model import fewest_instances

    pools = scenario(
        **{
            "cluster.serving": "disaggregated",
            "cluster.instances": None,
            "cluster.prefill_instances": 6,
            "cluster.decode_instances": 6,
            "slo.tpot_s": 1.0,
        }
    )
    needed = fewest_instances(pools, 0.5, demand=demand())
    assert needed.instances is not None
    assert needed.prefill_instances is not None
    assert needed.decode_instances is not None
    assert needed.prefill_instances + needed.decode_instances == needed.instances
    assert abs(needed.prefill_instances - needed.decode_instances) <= 1
    never = fewest_instances(pools.replace(**{"slo.tpot_s": 1e-6}), 0.99, demand=demand())
    assert never.instances is None
    assert never.outcome is None
    assert never.within_slo_ratio < 0.99


def test_public_face_answers_the_inverse_questions() -> None:
    import smetric_model

    for name in ("fewest_instances", "predict_at_rates", "predicted_capacity"):
        assert name in smetric_model.__all__
        assert callable(getattr(smetric_model, name))
