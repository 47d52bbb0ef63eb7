"""Putting a capacity plan together."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from smetric_model.analytic.coverage import notes_left_out
from smetric_model.analytic.demand import Demand, demand_of, instance_of, trace_of
from smetric_model.analytic.efficiencies import get_efficiencies
from smetric_model.analytic.predict import Prediction
from smetric_model.analytic.step_time import step_breakdown
from smetric_model.planning.capacity import capacity
from smetric_model.planning.results import ENDS, EndPlan, Plan, StepShare
from smetric_model.planning.tiers import fetch_advice, tier_demand
from smetric_model.scenario_groups import check_equal_instances

if TYPE_CHECKING:
    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

__all__ = ["no_rate_note", "plan", "rate_of", "without_placement"]

_PERFECT = (
    "perfect placement: sessions where their KV is, Poisson arrivals at each instance; neither what"
    " a router loses in hits nor what it gains by balancing the load is in these numbers"
)
_TWO_POOLS = (
    "two pools (cluster.serving = 'disaggregated'): what reuse is worth, what KV tiers and links"
    " are asked for, load or recompute, and engine steps are left out: these are worked out for"
    " perfect placement, which is for colocated serving only"
)


def plan(
    scenario: Scenario,
    trace: Trace | None = None,
    progress: Callable[[str], None] | None = None,
    demand: Demand | None = None,
) -> Plan:
    """Plan the capacity of a scenario.

    Parameters
    ----------
    scenario : Scenario
        The question.  ``workload.rate_rps`` is the rate to serve; ``"trace"`` means the trace's
        own, and none where its sessions share no clock (capacity only).
    trace : Trace, optional
        The workload, if it is at hand; else it is loaded.
    progress : callable, optional
        Told what is being worked out.
    demand : Demand, optional
        What the workload asks for, if it is at hand.

    Returns
    -------
    Plan

    Raises
    ------
    SpecError
        If the scenario cannot be resolved, or the LLM does not fit.
    TraceError
        If the trace cannot be read.

    Examples
    --------
    >>> from smetric_model import Scenario
    >>> from smetric_model.planning import plan
    >>> found = plan(Scenario.from_toml("data/scenarios/agents-small.toml"))
    >>> none, ideal = found.ends["none"], found.ends["ideal"]
    >>> none.attainment_rps < ideal.attainment_rps  # reuse is worth a multiple of the rate
    True
    """
    check_equal_instances(scenario, "plan")
    started = time.perf_counter()
    tell = progress or (lambda _text: None)
    instance_of(scenario)  # what cannot run is told before a long trace is read
    if trace is None:
        tell("loading the trace")
        trace = trace_of(scenario)
    if demand is None:
        tell("reuse of the trace")
        demand = demand_of(scenario, trace)
    rate = rate_of(scenario, demand)
    servable = None if rate is None else rate * (1 - demand.unservable_ratio)
    ends: dict[str, EndPlan] = {}
    predictions: dict[str, Prediction] = {}
    for reuse in ENDS:
        tell(f"capacity, reuse = {reuse}")
        predictions[reuse] = Prediction(scenario, demand, reuse)
        ends[reuse] = capacity(predictions[reuse], servable, tell)
    ideal = predictions["ideal"]
    at = servable or ends["ideal"].attainment_rps or 0.5 * ends["ideal"].saturation_rps
    return Plan(
        scenario=scenario,
        workload=_workload(demand, trace),
        instance=_instance(demand),
        rate_rps=rate,
        ends=ends,
        tiers=tier_demand(ideal, at),
        fetch=fetch_advice(ideal),
        steps=_steps(predictions["tiers"], at),
        notes=(_PERFECT, *notes_left_out(scenario, policy=""), *_notes(demand, rate, trace)),
        elapsed_s=time.perf_counter() - started,
    )


def without_placement(scenario: Scenario, trace: Trace, demand: Demand) -> Plan:
    """Return the plan of two pools, of which perfect placement says nothing: workload and notes.

    Parameters
    ----------
    scenario : Scenario
        The question.
    trace : Trace
        The workload.
    demand : Demand
        What it asks for.

    Returns
    -------
    Plan
        Without ends, tiers, fetch and steps.
    """
    started = time.perf_counter()
    rate = rate_of(scenario, demand)
    return Plan(
        scenario=scenario,
        workload=_workload(demand, trace),
        instance=_instance(demand),
        rate_rps=rate,
        ends={},
        tiers=None,
        fetch=None,
        steps=(),
        notes=(_TWO_POOLS, *notes_left_out(scenario, policy=""), *_notes(demand, rate, trace)),
        elapsed_s=time.perf_counter() - started,
    )


def rate_of(scenario: Scenario, demand: Demand) -> float | None:
    """Return the rate that a scenario asks for; None where neither it nor its trace has one.

    Parameters
    ----------
    scenario : Scenario
    demand : Demand
        Its workload.

    Returns
    -------
    float or None
        Requests of the cluster [requests/s].
    """
    rate = scenario.workload.rate_rps
    if rate != "trace":
        return rate
    return demand.trace_rate_rps if np.isfinite(demand.trace_rate_rps) else None


def _steps(prediction: Prediction, rate_rps: float) -> tuple[StepShare, ...]:
    """Break down typical steps: a chunk in the middle of the mean uncached part, and decodes."""
    instance, hits = prediction.instance_at(rate_rps)
    own = min(rate_rps / prediction.cluster.instances, 0.999 * instance.stability_rps)
    hit = float((hits.local + hits.fetched).mean())
    new = float(prediction.prompt_tokens.mean()) - hit
    chunk = min(new, float(instance.token_budget))
    context = instance.decode_context_tokens
    kinds = {
        "prefill chunk": (chunk, hit + 0.5 * (new - chunk), 0.0, 0.0),
        "decode step": (0.0, 0.0, max(instance.mean_batch(own), 1.0), context),
        "full decode step": (0.0, 0.0, instance.max_batch, context),
    }
    steps = []
    for name, work in kinds.items():
        step = step_breakdown(prediction.model, *work)
        steps.append(StepShare(name, *work, step.step_time_s, step.bound_by, step.groups))
    return tuple(steps)


def _workload(demand: Demand, trace: Trace) -> dict[str, Any]:
    prompt = float(demand.prompt_tokens.sum())
    return {
        "source": demand.source,
        "format": trace.format,
        "requests": demand.requests,
        "sessions": demand.sessions,
        "unservable": dict(demand.unservable),
        "unservable_ratio": demand.unservable_ratio,
        "capped": demand.capped,
        "prompt_tokens_mean": float(demand.prompt_tokens.mean()),
        "output_tokens_mean": float(demand.output_tokens.mean()),
        "ideal_reuse_ratio": (
            None if trace.tree is None else float(demand.reusable_tokens.sum()) / prompt
        ),
        "trace_rate_rps": demand.trace_rate_rps,
        "beyond_context": _beyond_context(demand),
    }


def _beyond_context(demand: Demand) -> str:
    """Say how many requests count as served that the LLM was not made for; empty for none."""
    longest = demand.instance.llm.max_context_tokens
    served = demand.instance.max_context_tokens or longest
    beyond = int((demand.prompt_tokens + demand.output_tokens > longest).sum())
    if served <= longest or beyond == 0:
        return ""
    return (
        f"{beyond:,} of {demand.requests:,} requests count as served although they are longer than"
        f" the {longest:,} tokens {demand.instance.llm.name} was made for"
        f" (engine.max_context_tokens = {served:,}): an engine refuses them unless its context is"
        f" extended (such as by YaRN); engine.max_context_tokens = {longest} counts them as"
        " unservable"
    )


def _instance(demand: Demand) -> dict[str, Any]:
    instance = demand.instance
    return {
        "llm": instance.llm.name,
        "gpu": instance.gpu.name,
        "tp": instance.tp,
        "ep": instance.ep,
        "engine": instance.engine,
        "weight_dtype": instance.weight_dtype,
        "kv_dtype": instance.kv_dtype,
        "kv_bytes_per_token": demand.kv_bytes_per_token,
        "local_tier_tokens": demand.pool_tokens,
    }


def no_rate_note(trace: Trace) -> str:
    """Return why a trace has no rate of its own.

    Parameters
    ----------
    trace : Trace
    """
    why = (
        "its requests all arrive at once"
        if trace.session_clock == "shared"
        else "its sessions share no clock"
    )
    return f"the trace has no rate: {why}; capacity only (give --rate for more)"


def _notes(demand: Demand, rate: float | None, trace: Trace) -> tuple[str, ...]:
    notes = []
    if rate is None:
        notes.append(no_rate_note(trace))
    if trace.tree is None:
        notes.append(
            f"{demand.source} carries no block ids: its reuse is unknown, and counted as none"
        )
    notes += [
        f"loading {demand.source}: {entry.action} {entry.count}: {entry.kind}"
        for entry in trace.report
    ]
    if demand.capped:
        notes.append(f"{demand.capped} prompts were cut to the longest context")
    fitted = get_efficiencies(demand.instance.gpu.name, demand.instance.engine)
    if fitted.carried_over:
        notes.append(
            f"no fit for {demand.instance.engine} on {demand.instance.gpu.name}: efficiencies of"
            f" {fitted.fitted_for} carried over, expect tens of per cent"
        )
    return tuple(notes)
