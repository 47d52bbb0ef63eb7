"""Short windows, and times as long as a float can say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from smetric_model.datafiles import data_dir
from smetric_model.errors import SpecError
from smetric_model.identities import check_identities
from smetric_model.scenario import Scenario
from smetric_model.simulate import simulate, simulate_in_detail
from smetric_model.simulate.checks import broken_laws
from smetric_model.simulate.steps import LONGEST_S, TICKS_PER_S, to_ticks

POOLS = {
    "cluster.serving": "disaggregated",
    "cluster.instances": None,
    "cluster.prefill_instances": 1,
    "cluster.decode_instances": 1,
    "workload.rate_rps": 0.1,
}
GIVE_UP = {"client.timeout_s": 4.0, "client.retries": 2, "client.backoff_s": 1.0}
ALL_FAIL = {
    "client.retries": 2,
    "failures": [{"instance": n, "at_s": 50.0 + n, "down_s": 40.0} for n in range(32)],
}


def shipped(**changes):
    short = {"workload.warmup_s": 120.0, "workload.window_s": 120.0}
    path = data_dir() / "scenarios" / "agents-small.toml"
    return Scenario.from_toml(path).replace(**{**short, **changes})


@pytest.mark.parametrize("window_s", [7.3, 30.0, 120.0])
@pytest.mark.parametrize("changes", [{}, POOLS, GIVE_UP, ALL_FAIL], ids=["", "pools", "up", "fail"])
def test_laws_hold_in_short_windows(window_s, changes):
    # at 120 s requests in flight are 9 % more than arrivals times their time: the past's share
    simulate(shipped(**changes, **{"workload.window_s": window_s}), check=True)


def test_what_the_window_cuts_is_told_apart_from_what_is_wrong():
    result = simulate_in_detail(shipped())
    outcome = result.outcome
    inputs, replay = result.prepared.inputs, result.replay
    assert broken_laws(inputs, replay, outcome) == []
    assert check_identities(outcome) == ()
    flying = outcome.number("inflight_requests_mean")
    wrong = outcome.replace(inflight_requests_mean=flying * 1.0001)
    found = " ".join(str(problem) for problem in broken_laws(inputs, replay, wrong))
    assert "Little" in found
    assert "time of all tries" in found
    # nobody but the simulator knows what was carried in, but it was not less than nothing
    e2e_s = outcome.requests["e2e_s"].to_numpy()
    end_s = 240.0 - outcome.requests["arrival_s"].to_numpy()
    own = np.minimum(e2e_s, end_s).sum() / 120.0
    (violation,) = check_identities(outcome.replace(inflight_requests_mean=own * 0.999))
    assert "Little" in violation.identity


def test_output_within_slo_may_come_after_the_window_but_not_before():
    outcome = simulate(shipped(**POOLS))
    assert outcome.number("output_within_slo_tps") > 1.02 * outcome.number("output_tps")
    assert check_identities(outcome) == ()
    fewer = {name: outcome.number(name) * 0.8 for name in ("output_tps", "prompt_tps", "total_tps")}
    found = [violation.identity for violation in check_identities(outcome.replace(**fewer))]
    assert "output_within_slo_tps <= output_tps" in found


def test_long_times_stay_on_the_clock():
    assert to_ticks(1e300) == to_ticks(math.inf) == int(LONGEST_S) * TICKS_PER_S
    assert 3 * to_ticks(math.inf) < np.iinfo(np.int64).max
    with pytest.raises(SpecError, match=r"workload\.window_s = 1e\+08"):
        simulate(shipped(**{"workload.window_s": 1e8}))
    with pytest.raises(SpecError, match=r"client\.retries = 1001"):
        simulate(shipped(**{"client.retries": 1001}))


def test_a_back_off_without_end_is_a_retry_that_never_comes():
    often = {"client.timeout_s": 4.0, "client.retries": 1}
    outcome = simulate(shipped(**often, **{"client.backoff_s": 1e300}), check=True)
    assert outcome["valid"] is False
    assert set(outcome.requests["status"]) == {"served", "unfinished"}
    assert (outcome.requests["retries"] <= 1).all()


def test_a_timeout_without_end_is_none():
    patient = simulate(shipped(**{"client.timeout_s": 1e300}))
    patient_for_ever = simulate(shipped())
    assert patient.requests.equals(patient_for_ever.requests)
