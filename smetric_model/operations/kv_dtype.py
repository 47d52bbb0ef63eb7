"""FP8 KV: what halving the bytes of a token brings, in instances and tokens per second."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from smetric_model.analytic.cluster_capacity import PredictedCapacity, predicted_capacity
from smetric_model.analytic.demand import demand_of, trace_of
from smetric_model.operations.findings import Figure, Finding, Progress, silent, to_rate
from smetric_model.planning.words import number, percent
from smetric_model.scenario_groups import check_equal_instances

if TYPE_CHECKING:
    from smetric_model.analytic.demand import Demand
    from smetric_model.scenario import Scenario
    from smetric_model.tuning.sizing import InstancesNeeded
    from smetric_model.workload.trace import Trace

__all__ = ["kv_cache_dtype"]


def kv_cache_dtype(
    scenario: Scenario,
    kv_dtype: str = "fp8",
    *,
    trace: Trace | None = None,
    progress: Progress = silent,
) -> Finding:
    """Return what another type of the KV cache changes.

    Parameters
    ----------
    scenario : Scenario
        The question, with its own type.
    kv_dtype : str, default "fp8"
        The other type.
    trace : Trace, optional
        The workload, if it is at hand.
    progress : callable, optional
        Told what is worked out.

    Returns
    -------
    Finding

    Raises
    ------
    SpecError
        If there is no such type, or the scenario cannot be resolved.

    Notes
    -----
    A token of half the bytes: twice the tokens in every tier, half the bytes over every link, half
    the KV that a decode step reads.  Attention's arithmetic counts as it was.
    """
    from smetric_model.tuning.sizing import fewest_instances

    check_equal_instances(scenario, "operations kv-dtype")
    started = time.perf_counter()
    trace = trace_of(scenario) if trace is None else trace
    demand = demand_of(scenario, trace)
    asked = to_rate(scenario, demand)
    changes: dict[str, Any] = {"llm.kv_dtype": kv_dtype, "engine.kv_pool_tokens": None}
    other = asked.replace(**changes)
    other_demand = demand_of(other, trace)
    notes = [
        "what another type does to the answers' quality is not in these figures: measure it",
        "efficiencies are those of the fitted type: a kernel that converts may be slower",
    ]
    pool = scenario.engine.kv_pool_tokens
    if pool is not None:
        ratio = demand.kv_bytes_per_token / other_demand.kv_bytes_per_token
        changes["engine.kv_pool_tokens"] = int(pool * ratio)
        other = asked.replace(**changes)
        other_demand = demand_of(other, trace)
        notes.append(f"engine.kv_pool_tokens = {pool} counts as {int(pool * ratio)} of the other")
    figures: list[Figure] = []
    found: dict[str, tuple[PredictedCapacity, InstancesNeeded]] = {}
    names = {"own": demand.instance.kv_dtype, "other": kv_dtype}
    for key, one, work in (("own", asked, demand), ("other", other, other_demand)):
        progress(f"{names[key]} KV: capacity")
        capacity = predicted_capacity(one, demand=work)
        progress(f"{names[key]} KV: instances")
        needed = fewest_instances(one, demand=work)
        found[key] = (capacity, needed)
        figures += _figures(key, names[key] or "", work, capacity, needed)
    own, new = (found[key][1].instances for key in ("own", "other"))
    figures.append(
        Figure("instances_saved", "instances fewer", math.nan if own is None or new is None
               else own - new, "", "closed form")
    )  # fmt: skip
    return Finding(
        question="kv-dtype",
        title=f"KV cache in {kv_dtype}",
        figures=tuple(figures),
        words=_words(asked, names["own"] or "", kv_dtype, figures),
        notes=tuple(notes),
        elapsed_s=time.perf_counter() - started,
    )


def _figures(
    key: str,
    name: str,
    demand: Demand,
    capacity: PredictedCapacity,
    needed: InstancesNeeded,
) -> list[Figure]:
    row = capacity.outcome
    return [
        Figure(f"{key}_kv_bytes_per_token", f"KV of a token, {name}", demand.kv_bytes_per_token,
               "bytes", "closed form"),
        Figure(f"{key}_pool_tokens", f"KV pool of an instance, {name}", demand.pool_tokens,
               "tokens", "closed form"),
        Figure(f"{key}_attainment_rps", f"largest rate within SLO, {name}",
               math.nan if capacity.rate_rps is None else capacity.rate_rps, "requests/s",
               "closed form"),
        Figure(f"{key}_attainment_tps", f"tokens within SLO there, {name}",
               capacity.total_within_slo_tps, "tokens/s", "closed form"),
        Figure(f"{key}_local_ratio", f"prompt tokens found locally there, {name}",
               math.nan if row is None else row.number("local_ratio"), "", "closed form"),
        Figure(f"{key}_global_ratio", f"prompt tokens fetched there, {name}",
               math.nan if row is None else row.number("global_ratio"), "", "closed form"),
        Figure(f"{key}_instances", f"instances for the rate, {name}",
               math.nan if needed.instances is None else needed.instances, "", "closed form"),
    ]  # fmt: skip


def _words(scenario: Scenario, own: str, other: str, figures: list[Figure]) -> tuple[str, ...]:
    value = {figure.name: figure.value for figure in figures}
    rate = number(float(scenario.workload.rate_rps))
    gain = value["other_attainment_rps"] / value["own_attainment_rps"] - 1
    if math.isnan(gain):
        capacity = "No rate is within the SLO with one of the two types."
    else:
        capacity = (
            f"KV in {other} in place of {own}: {number(value['other_kv_bytes_per_token'])} bytes"
            f" a token, not {number(value['own_kv_bytes_per_token'])}; the cluster serves"
            f" {number(value['other_attainment_rps'])} requests/s within the SLO, not"
            f" {number(value['own_attainment_rps'])} ({gain:+.1%})."
        )
    saved = value["instances_saved"]
    if math.isnan(saved):
        return (capacity, f"No number of instances serves {rate} requests/s with one of the two.")
    return (
        capacity,
        f"{rate} requests/s need {value['other_instances']:.0f} instances, with {own}"
        f" {value['own_instances']:.0f}; prompt tokens found locally go from"
        f" {percent(value['own_local_ratio'])} to {percent(value['other_local_ratio'])}.",
    )
