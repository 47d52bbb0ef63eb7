"""What a plan carries for its plots agrees with the single numbers beside it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smetric_model.analytic.kv_tiers import ReuseProfile
from smetric_model.analytic.step_time import GROUPS
from smetric_model.planning.tiers import _pays

if TYPE_CHECKING:
    from smetric_model.planning import Plan


@pytest.mark.parametrize("name", ["none", "tiers", "ideal"])
def test_the_sweep_holds_what_was_found_in_it(small_plan: Plan, name: str) -> None:
    end = small_plan.ends[name]
    rates, shares = np.array(end.rates_rps), np.array(end.within_slo_ratio)
    good = np.array(end.within_slo_tps)
    assert (np.diff(rates) > 0).all()
    assert rates[-1] < end.saturation_rps
    assert good.max() == end.peak_within_slo_tps
    assert rates[good.argmax()] == end.peak_rps
    assert end.attainment_rps in end.rates_rps
    assert shares[rates <= end.attainment_rps].min() >= small_plan.scenario.slo.attainment - 0.01
    # both SLOs missed independently or not: their union is what is missing at that rate
    missing = 1 - shares[rates == end.attainment_rps][0]
    either = end.ttft_missed_ratio, end.tpot_missed_ratio
    assert max(either) - 1e-9 <= missing <= sum(either) + 1e-9


def test_a_larger_store_serves_more(small_plan: Plan) -> None:
    tiers = small_plan.tiers
    size, ratio = np.array(tiers.curve_bytes), np.array(tiers.curve_ratio)
    assert size.size == ratio.size > 3
    assert (np.diff(size) > 0).all()
    assert (np.diff(ratio) >= 0).all()
    assert ratio[0] > 0
    assert ratio[-1] == pytest.approx(1.0)
    for share, needed in tiers.global_bytes.items():
        wanted = float(share.rstrip("%")) / 100
        assert ratio[size >= needed * (1 - 1e-12)].min() >= wanted - 1e-9
        assert (ratio[size < needed * (1 - 1e-9)] < wanted).all()


def test_the_fetch_curves_pass_through_the_mean_prefix(small_plan: Plan) -> None:
    fetch = small_plan.fetch
    at = np.array(fetch.curve_tokens)
    assert at[0] <= fetch.prefix_tokens <= at[-1]
    for curve, value in (
        (fetch.curve_recompute_s, fetch.recompute_s),
        (fetch.curve_dram_s, fetch.dram_s),
        (fetch.curve_rdma_s, fetch.rdma_s),
    ):
        assert np.interp(fetch.prefix_tokens, at, curve) == pytest.approx(value, rel=0.05)
    assert fetch.break_even_tokens == fetch.rdma_pays_tokens[0][0]
    for ranges, curve in (
        (fetch.rdma_pays_tokens, fetch.curve_rdma_s),
        (fetch.dram_pays_tokens, fetch.curve_dram_s),
    ):
        pays = np.array(curve) < np.array(fetch.curve_recompute_s)
        inside = np.any([(at >= low) & (at <= high) for low, high in ranges], axis=0)
        assert (pays == inside).all()


@given(
    st.lists(st.floats(0.1, 10), min_size=2, max_size=12),
    st.floats(0.01, 100),
)
def test_fetching_pays_inside_its_ranges_and_nowhere_else(fetch: list[float], at: float) -> None:
    """A fetch time that crosses the recomputation any number of times."""
    tokens = np.geomspace(16, 1e5, len(fetch))
    recompute = 1.0 + tokens / 1e4
    times = np.array(fetch) * recompute  # piecewise linear in log-log: gain = -log(fetch)
    ranges = _pays(tokens, times, recompute)
    where = 16 * (1e5 / 16) ** (at / 100)
    gain = np.interp(np.log(where), np.log(tokens), -np.log(fetch))
    if abs(gain) > 1e-6:
        assert (gain > 0) == any(low <= where <= high for low, high in ranges)
    assert list(ranges) == sorted(ranges)


def test_steps_add_up(small_plan: Plan) -> None:
    chunk, decode, full = small_plan.steps
    for step in small_plan.steps:
        assert set(step.groups) == set(GROUPS)
        assert sum(g["time_s"] for g in step.groups.values()) == pytest.approx(step.step_time_s)
        assert sum(g["share_ratio"] for g in step.groups.values()) == pytest.approx(1.0)
    assert chunk.decode_batch == decode.prefill_tokens == 0
    assert (
        1
        <= decode.decode_batch
        <= full.decode_batch
        == pytest.approx(small_plan.ends["tiers"].max_batch, rel=0.05)
    )
    served = small_plan.ends["tiers"].reused_ratio
    mean = small_plan.workload["prompt_tokens_mean"]
    # the tiers keep all of this small trace: what is left of the mean prompt is one chunk
    assert chunk.prefill_tokens == pytest.approx(mean * (1 - served), rel=0.01)


def test_json_keeps_every_field(small_plan: Plan) -> None:
    content = small_plan.to_dict()
    assert content["steps"] == [asdict(step) for step in small_plan.steps]
    assert content["tiers"]["curve_ratio"] == small_plan.tiers.curve_ratio
    assert {"scenario", "workload", "instance", "rate_rps", "ends", "fetch", "notes"} <= set(
        content
    )


def test_reuse_of_unknown_age_needs_no_finite_store(small_plan: Plan) -> None:
    """Sessions on separate clocks: half of the reuse is of an age that is not known."""
    from dataclasses import replace

    from smetric_model.analytic.demand import demand_of
    from smetric_model.analytic.predict import Prediction
    from smetric_model.planning.tiers import tier_demand
    from smetric_model.workload.trace import load_trace

    scenario = small_plan.scenario
    demand = demand_of(scenario, load_trace(scenario.trace_path()))
    known = demand.profile
    ages = np.where(np.arange(known.gap_s.size) % 2, np.inf, known.gap_s)
    profile = ReuseProfile(known.tokens, ages, known.request, known.requests, known.new_tokens)
    tiers = tier_demand(Prediction(scenario, replace(demand, profile=profile), "ideal"), 0.5)
    assert tiers.global_bytes["99%"] == np.inf
    assert np.isfinite(tiers.curve_bytes).all()
    assert max(tiers.curve_ratio) < 0.99
