from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from smetric_model.analytic.cluster_capacity import predict_at_rates, predicted_capacity
from smetric_model.analytic.demand import demand_of
from smetric_model.errors import SpecError
from smetric_model.outcome import outcomes_frame
from smetric_model.scenario import Scenario
from smetric_model.workload.trace import load_trace

DATA = Path(__file__).parents[2] / "data"
BASE = Scenario.from_toml(DATA / "scenarios" / "agents-small.toml")
TRACE = load_trace(DATA / "traces" / "agents-small.parquet")


@cache
def demand():
    return demand_of(BASE, TRACE)


def test_a_sweep_flags_what_is_not_stable():
    rows = predict_at_rates(BASE, [2.0, 6.0, 60.0], demand=demand())
    assert [row["valid"] for row in rows] == [True, True, False]
    assert rows[2]["binding_resource"] in ("compute", "kv")
    assert "saturates" in str(rows[2]["note"])
    assert np.isnan(rows[2].number("ttft_p50_s"))
    assert len(outcomes_frame(rows)) == 3


def test_the_two_capacities():
    wanted = predicted_capacity(BASE, "attainment", demand=demand())
    peak = predicted_capacity(BASE, "peak_goodput", demand=demand())
    assert wanted.rate_rps is not None
    assert wanted.within_slo_ratio >= BASE.slo.attainment
    above = predict_at_rates(BASE, [1.1 * wanted.rate_rps], demand=demand())[0]
    assert above["valid"] is not True or above.number("within_slo_ratio") < BASE.slo.attainment
    assert peak.rate_rps is not None
    assert peak.total_within_slo_tps >= wanted.total_within_slo_tps
    assert wanted.rate_rps <= wanted.saturation_rps * (1 + 1e-9)
    assert peak.resource in ("compute", "kv")


def test_no_rate_attains_an_impossible_slo():
    impossible = BASE.replace(**{"slo.tpot_s": 1e-4})
    found = predicted_capacity(impossible, "attainment", demand=demand())
    assert found.rate_rps is None
    assert found.within_slo_ratio < 0.5
    with pytest.raises(SpecError, match="criterion"):
        predicted_capacity(BASE, "best", demand=demand())


@pytest.mark.parametrize("rate_rps", [1.16, 10.0])
def test_a_capacity_is_the_same_whatever_rate_is_asked_for(rate_rps):
    wanted = predicted_capacity(BASE, "attainment", demand=demand())
    other = predicted_capacity(
        BASE.replace(**{"workload.rate_rps": rate_rps}), "attainment", demand=demand()
    )
    assert (other.rate_rps, other.saturation_rps) == pytest.approx(
        (wanted.rate_rps, wanted.saturation_rps), rel=1e-9
    )
