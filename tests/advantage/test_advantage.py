import numpy as np
import pytest

from smetric_model import Scenario, advantage, predict
from smetric_model.advantage import BASELINES, COORDINATES, MECHANISMS, mechanisms
from smetric_model.advantage.mechanisms import Solved, values_of_mixtures
from smetric_model.advantage.saturation import rough_capacity_rps, surely_saturates
from smetric_model.analytic.demand import demand_of
from smetric_model.analytic.predict import cluster_form, steady_rate_rps
from smetric_model.errors import SpecError, UnstableError
from smetric_model.workload.synthesis import generate, preset_parameters

TIMES = {"warmup_s": 600.0, "window_s": 1200.0}


@pytest.fixture(scope="module")
def trace():
    return generate(
        preset_parameters("bailian-trace-1-medium"), rate_rps=1.7, window_s=2400.0, seed=3
    )


@pytest.fixture(scope="module")
def scenario():
    return Scenario(
        cluster={"instances": 8, "gpus_per_node": 4, "nic_bytes_per_s": 12e9},
        global_tier={"bytes_per_node": 1280e9},
        workload={"rate_rps": "trace", "start": "cold", **TIMES},
    )


@pytest.fixture(scope="module")
def demand(scenario, trace):
    return demand_of(scenario, trace)


@pytest.fixture(scope="module")
def found(scenario, demand):
    return advantage(scenario, demand=demand)


def solve(scenario, demand, policy):
    cluster = cluster_form(scenario.replace(**{"router.policy": policy}), demand)
    return Solved(cluster, cluster.at(steady_rate_rps(cluster)))


def test_rows_are_those_of_predict(scenario, demand, found):
    rows = found.rows.set_index("policy")
    assert list(rows.index) == ["smetric", *BASELINES]
    for policy in rows.index:
        alone = predict(scenario.replace(**{"router.policy": policy}), demand=demand)
        for name in ("total_within_slo_tps", "local_ratio", "fetch_mean_s"):
            assert rows.loc[policy, name] == pytest.approx(alone[name], nan_ok=True)


def test_the_best_baseline_is_the_one_with_most_tokens_within_slo(found):
    rows = found.rows.set_index("policy")["total_within_slo_tps"]
    assert rows[found.baseline] == rows[list(BASELINES)].max()
    difference = rows["smetric"] - rows[found.baseline]
    assert found.advantage_ratio == pytest.approx(difference / rows[found.baseline])


def test_what_several_policies_say_is_said_once(scenario, demand):
    # crowding is a matter of these two; copies of the trace are one of all
    asked = scenario.replace(
        **{
            "cluster.instances": 24,
            "workload.preset": None,
            "workload.trace": "medium.parquet",
            "workload.rate_rps": 2.5 * demand.trace_rate_rps,
        }
    )
    note = advantage(asked, ("bailian", "lmetric"), demand=demand).note
    for words in ("are laid over each other", "first turns that crowd"):
        assert note.count(words) == 1, note
    assert "bailian, lmetric: first turns that crowd" in note


def test_coordinates_are_those_of_the_table_and_finite(found):
    assert list(found.coordinates) == list(COORDINATES)
    assert np.isfinite(list(found.coordinates.values())).all()
    assert 0 < found.coordinates["load_ratio"] < 2


def test_mechanisms_add_up_and_turn_with_the_sides(scenario, demand):
    own, other = solve(scenario, demand, "smetric"), solve(scenario, demand, "load-balance")
    values = values_of_mixtures(own, other)
    parts = mechanisms(own, other)
    assert list(parts) == list(MECHANISMS)
    whole = values[True, True, True] - values[False, False, False]
    assert sum(parts.values()) == pytest.approx(whole)
    back = mechanisms(other, own)
    assert back["fetch"] == pytest.approx(-parts["fetch"])
    assert back["balance"] == pytest.approx(-parts["balance"])
    hits = parts["local_hits"] + parts["global_tier"]
    assert back["local_hits"] + back["global_tier"] == pytest.approx(-hits)


def test_pure_mixtures_are_the_predictions(scenario, demand):
    own, other = solve(scenario, demand, "smetric"), solve(scenario, demand, "load-balance")
    values = values_of_mixtures(own, other)
    for solved, choice in ((own, (True,) * 3), (other, (False,) * 3)):
        policy = solved.cluster.scenario.router.policy
        whole = predict(scenario.replace(**{"router.policy": policy}), demand=demand)
        assert values[choice] == pytest.approx(whole["total_within_slo_tps"], rel=0.02)


def test_a_policy_against_itself_has_no_mechanism(scenario, demand):
    own = solve(scenario, demand, "smetric")
    assert all(abs(value) < 1e-6 for value in mechanisms(own, own).values())


def test_on_slow_links_load_balance_loses_by_what_it_fetches(scenario, demand):
    slow = scenario.replace(**{"cluster.nic_bytes_per_s": 3e9})
    result = advantage(slow, ["load-balance"], demand=demand)
    assert result.verdict == "win"
    assert result.mechanism in ("fetch", "global_tier", "local_hits", "saturates: compute")
    assert result.advantage_ratio > 0.02


def test_a_policy_without_a_steady_state_serves_nothing(scenario, demand):
    alone = scenario.replace(**{"global_tier.bytes_per_node": 0.0})
    many = alone.replace(**{"workload.rate_rps": 40.0})
    result = advantage(many, demand=demand)
    assert result.verdict == "none"
    assert not result.rows["steady"].any()
    assert (result.rows["total_within_slo_tps"] == 0).all()


def test_what_surely_saturates_has_no_fixed_point(scenario, demand):
    for policy in ("smetric", "load-balance"):
        cluster = cluster_form(scenario.replace(**{"router.policy": policy}), demand)
        rate = 1.4 * rough_capacity_rps(cluster)
        assert surely_saturates(cluster, rate)
        with pytest.raises(UnstableError):
            cluster.at(rate)
        assert not surely_saturates(cluster, 0.5 * rate)


def test_simulated_seeds_are_paired(scenario, trace):
    result = advantage(scenario, ["load-balance"], verb="simulate", seeds=2, trace=trace)
    rates = result.rows.pivot_table(index="seed", columns="policy", values="arrival_rate_rps")
    assert len(result.rows) == 4
    # one trace under both: what arrives differs by what a closed loop delays alone
    np.testing.assert_allclose(rates["smetric"], rates["load-balance"], rtol=0.05)
    assert result.noise_ratio >= 0
    assert not result.mechanisms


@pytest.mark.parametrize(
    ("baselines", "options", "text"),
    [
        ([], {}, "one or more"),
        (["smetric"], {}, "itself"),
        (["bailian", "bailian"], {}, "each once"),
        (["bailian"], {"verb": "bound"}, "verb"),
        (["bailian"], {"verb": "simulate", "seeds": 0}, "at least 1"),
        (["no-such"], {}, "no-such"),
    ],
)
def test_what_cannot_be_compared_is_refused(scenario, demand, baselines, options, text):
    with pytest.raises(SpecError, match=text):
        advantage(scenario, baselines, demand=demand, **options)


def test_disaggregated_clusters_are_compared_without_mechanisms(scenario, demand):
    pools = {"serving": "disaggregated", "prefill_instances": 8, "decode_instances": 8}
    pools["nics_per_node"] = 4
    result = advantage(scenario.replace(cluster=pools), ["dynamo"], demand=demand)
    assert result.verdict in ("win", "tie", "lose")
    assert not result.mechanisms
    assert not result.coordinates
