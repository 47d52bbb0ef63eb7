"""What a scenario asks of a cluster: instance, cluster, servable requests and their reuse."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic.kv_tiers import ReuseProfile
from smetric_model.analytic.latency import usable_hit_tokens
from smetric_model.analytic.memory import (
    fixed_state_bytes_per_request,
    kv_bytes_per_token,
    local_tier,
    min_tp,
    missing_bytes,
)
from smetric_model.catalog.cluster import Cluster
from smetric_model.catalog.gpu import get_gpu
from smetric_model.catalog.instance import InstanceSpec
from smetric_model.catalog.llm import get_llm
from smetric_model.errors import SpecError
from smetric_model.scenario_groups import check_equal_instances
from smetric_model.units import GIB
from smetric_model.workload.copy_notes import copies_note

if TYPE_CHECKING:
    from smetric_model.analytic.session_reuse import SessionReuse
    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

__all__ = ["Demand", "cluster_of", "copies_of", "demand_of", "instance_of", "trace_of"]

#: requests kept for per-request probabilities; longer traces are thinned
MAX_REQUESTS = 4_096


def instance_of(scenario: Scenario) -> InstanceSpec:
    """Return the instance a scenario describes, resolved against the catalog.

    Parameters
    ----------
    scenario : Scenario
        Its ``llm`` and ``engine`` sections.

    Raises
    ------
    SpecError
        For unknown names, or an LLM that does not fit: how much is missing, and the smallest TP
        that fits.
    """
    check_equal_instances(scenario, "this")
    llm = get_llm(str(scenario.llm_config_path() or scenario.llm.name))
    engine = scenario.engine
    instance = InstanceSpec(
        llm=llm,
        gpu=get_gpu(scenario.gpu_name()),
        tp=engine.tp,
        ep=engine.ep,
        engine=engine.name,
        mode=engine.mode,
        weight_dtype=scenario.llm.weight_dtype,
        kv_dtype=scenario.llm.kv_dtype,
        memory_utilisation=engine.memory_utilisation,
        token_budget=engine.token_budget,
        max_running_requests=engine.max_running_requests,
        block_tokens=engine.block_tokens,
        max_context_tokens=engine.max_context_tokens,
        kv_pool_tokens=engine.kv_pool_tokens,
    )
    lacking = 0.0 if engine.kv_pool_tokens else missing_bytes(instance)
    if lacking > 0:
        smallest = min_tp(instance)
        advice = f"the smallest tp that fits is {smallest}" if smallest else "no tp fits"
        raise SpecError(
            f"{llm.name} does not fit {engine.tp} x {engine.gpu}: {lacking / GIB:.2f} GiB are "
            f"missing at memory_utilisation = {engine.memory_utilisation}; {advice}"
        )
    return instance


def cluster_of(scenario: Scenario) -> Cluster:
    """Return the cluster a scenario describes.

    Parameters
    ----------
    scenario : Scenario
        Its ``cluster`` section, and ``engine.tp``.
    """
    check_equal_instances(scenario, "this")
    section = scenario.cluster
    return Cluster(
        instances=section.instances,
        gpus_per_instance=scenario.engine.tp,
        gpus_per_node=section.gpus_per_node,
        nics_per_node=section.nics_per_node,
        nic_bytes_per_s=section.nic_bytes_per_s,
        nic_efficiency=section.nic_efficiency,
        dram_bytes_per_node=section.dram_bytes_per_node,
        serving=section.serving,
        prefill_instances=section.prefill_instances or 0,
        decode_instances=section.decode_instances or 0,
    )


@dataclass(frozen=True, eq=False)
class Demand:
    """Servable requests of a workload on an instance; arrays of shape (n,).

    Attributes
    ----------
    instance : InstanceSpec
        What serves them.
    pool_tokens : float
        KV pool of an instance [tokens].
    kv_bytes_per_token : float
        Of the whole instance [bytes].
    fixed_state_tokens : float
        Fixed state of a running request, in tokens of the pool.
    prompt_tokens, output_tokens, reusable_tokens : ndarray of float
        Lengths and ideal reuse [tokens].
    profile : ReuseProfile
        Reuse by pieces and gaps.
    requests : int
        Requests of the whole trace.
    unservable : dict of str to int
        Requests left out, by reason.
    capped : int
        Requests whose prompt was cut to the longest context.
    trace_rate_rps : float
        Rate of the trace itself; ``nan`` where its sessions share no clock [requests/s].
    sessions : int or None
        Sessions of the trace, where it names them.
    source : str
        The trace's name.
    trace : Trace
        The servable requests.
    """

    instance: InstanceSpec
    pool_tokens: float
    kv_bytes_per_token: float
    fixed_state_tokens: float
    prompt_tokens: NDArray[np.float64]
    output_tokens: NDArray[np.float64]
    reusable_tokens: NDArray[np.float64]
    profile: ReuseProfile
    requests: int
    unservable: dict[str, int]
    capped: int
    trace_rate_rps: float
    sessions: int | None
    source: str
    trace: Trace

    @cached_property
    def session_reuse(self) -> SessionReuse:
        """What each request could reuse where; worked out once."""
        from smetric_model.analytic.session_reuse import session_reuse

        return session_reuse(self.trace, self.prompt_tokens)

    @cached_property
    def kept(self) -> dict[Any, Any]:
        """What closed forms have worked out of this workload, kept for the next scenario."""
        return {}

    @cached_property
    def representatives(self) -> NDArray[np.int64]:
        """Rows that stand for all requests where there are more than :data:`MAX_REQUESTS`."""
        order = np.lexsort((self.prompt_tokens, self.prompt_tokens - self.reusable_tokens))
        # the middles of equal strata
        strata = (np.arange(MAX_REQUESTS) + 0.5) * (order.size / MAX_REQUESTS)
        return np.sort(order[strata.astype(int)])

    @property
    def unservable_ratio(self) -> float:
        """Share of the trace's requests that cannot be served."""
        return sum(self.unservable.values()) / self.requests


def trace_of(scenario: Scenario, extra_s: float = 0.0) -> Trace:
    """Return the workload of a scenario: its trace file, or a trace drawn from its preset.

    A preset is drawn at the scenario's rate over warm-up and window, from its seed.

    Parameters
    ----------
    scenario : Scenario
        Its ``workload`` section.
    extra_s : float, default 0
        For how long a preset goes on after the window [s].

    Returns
    -------
    Trace

    Raises
    ------
    SpecError
        If the file is not found, or there is no such preset.
    TraceError
        If the file cannot be read.
    """
    workload = scenario.workload
    if workload.preset is None:
        from smetric_model.workload.trace import load_trace

        return load_trace(scenario.trace_path())
    from smetric_model.workload.synthesis import load_preset

    options: dict[str, Any] = {
        "window_s": workload.warmup_s + workload.window_s + extra_s,
        "seed": scenario.seed,
        "start": workload.start,
    }
    if workload.rate_rps != "trace":
        options["rate_rps"] = workload.rate_rps
    return load_preset(workload.preset, **options)


def demand_of(scenario: Scenario, trace: Trace) -> Demand:
    """Work out what a trace asks of the scenario's instances.

    A request longer than the longest context, or than a whole KV pool, is unservable: it is
    counted by reason and left out (``engine.max_context = "cap"`` cuts its prompt instead, and
    ``"fail"`` raises).  An output of no tokens counts as one: the engine samples at least one.

    Parameters
    ----------
    scenario : Scenario
        LLM, engine, cluster.
    trace : Trace
        The workload.

    Returns
    -------
    Demand

    Raises
    ------
    SpecError
        If the LLM does not fit, or no request can be served.
    """
    instance = instance_of(scenario)
    per_token = kv_bytes_per_token(instance)
    pool = float(local_tier(instance).tokens)
    state = fixed_state_bytes_per_request(instance) / per_token
    prompt = trace.column("prompt_tokens").astype(float)
    output = np.maximum(trace.column("output_tokens").astype(float), 1.0)

    longest = float(scenario.engine.max_context_tokens)
    reasons = {
        f"longer than max_context_tokens = {longest:.0f}": longest,
        f"longer than an instance's KV pool = {pool - state:.0f} tokens": pool - state,
    }
    limit = min(reasons.values())
    too_long = prompt + output > limit
    capped = 0
    unservable: dict[str, int] = {}
    if too_long.any() and scenario.engine.max_context == "fail":
        first = int(np.flatnonzero(too_long)[0])
        raise SpecError(
            f"{trace.source}: request {first} has {prompt[first]:.0f} + {output[first]:.0f} tokens,"
            f" above {limit:.0f} ({int(too_long.sum())} such requests); engine.max_context = 'fail'"
        )
    if scenario.engine.max_context == "cap":
        # the prompt is cut; an output as long as the context leaves nothing to cut
        capped = int(too_long.sum())
        prompt = np.where(too_long, limit - output, prompt)
        too_long = prompt < 1
        capped -= int(too_long.sum())
    total = prompt + output
    left = too_long.copy()
    for reason, bound in sorted(reasons.items(), key=lambda item: item[1], reverse=True):
        hit = left & (total > bound)
        if hit.any():
            unservable[reason] = int(hit.sum())
        left &= ~hit
    if left.any():
        unservable["output alone is longer than the context"] = int(left.sum())
    kept = np.flatnonzero(~too_long)
    if kept.size == 0:
        raise SpecError(
            f"{trace.source}: none of its {len(trace)} requests can be served: "
            + "; ".join(f"{count} {reason}" for reason, count in unservable.items())
        )
    pieces = _pieces(trace, kept, prompt)
    block = instance.block_tokens
    reusable = np.bincount(pieces[2], pieces[0], minlength=kept.size)
    prompt, output = prompt[kept], output[kept]
    profile = ReuseProfile(
        tokens=pieces[0],
        gap_s=pieces[1],
        request=pieces[2],
        requests=kept.size,
        new_tokens=float((prompt - reusable + output).mean()),
    )
    arrival = trace.column("arrival_s")
    span = float(arrival.max() - arrival.min()) if len(trace) else 0.0
    shared = trace.session_clock == "shared" and span > 0
    return Demand(
        instance=instance,
        pool_tokens=pool,
        kv_bytes_per_token=per_token,
        fixed_state_tokens=state,
        prompt_tokens=prompt,
        output_tokens=output,
        reusable_tokens=usable_hit_tokens(prompt, reusable, block).astype(float),
        profile=profile,
        requests=len(trace),
        unservable=unservable,
        capped=capped,
        trace_rate_rps=(len(trace) - 1) / span if shared else float("nan"),
        sessions=trace.sessions,
        source=trace.source,
        trace=trace if kept.size == len(trace) else trace.take(kept),
    )


def copies_of(scenario: Scenario, demand: Demand, rate_rps: float | None = None) -> list[str]:
    """Return what to know where a rate takes copies of the trace: one note, or none.

    Parameters
    ----------
    scenario : Scenario
        For how its sessions start.
    demand : Demand
        Its workload.
    rate_rps : float, optional
        Of the cluster; by default the scenario's [requests/s].
    """
    work = scenario.workload
    rate = work.rate_rps if rate_rps is None else rate_rps
    if work.preset is not None or work.session_start == "poisson" or rate == "trace":
        return []
    note = copies_note(
        float(rate), demand.trace_rate_rps, demand.requests, demand.sessions, demand.source
    )
    return [note] if note else []


def _pieces(
    trace: Trace, kept: NDArray[np.intp], prompt: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Tokens, gaps and (renumbered) requests of the reusable pieces of the kept requests."""
    from smetric_model.workload.reuse import last_touches

    if trace.tree is None:
        empty = np.empty(0)
        return empty, empty, np.empty(0, np.int64)
    # a request that is not served leaves nothing to reuse
    part = trace if kept.size == len(trace) else trace.take(kept)
    touches = last_touches(part)
    arrival = part.column("arrival_s")
    gap = np.maximum(arrival[touches.request] - arrival[touches.toucher], 0.0)
    tokens = touches.tokens.astype(float)
    if trace.session_clock == "per-session":
        # pieces touched by another session have no meaningful gap on separate clocks
        session = part.column("session_id")
        same = session[touches.request] == session[touches.toucher]
        gap = np.where(same, gap, np.inf)
    # a capped prompt reuses no more than it has
    start = touches.first_block * float(part.block_tokens or 1)
    tokens = np.clip(prompt[kept][touches.request] - start, 0.0, tokens)
    return tokens, gap, touches.request.astype(np.int64)


def thinned(demand: Demand, *arrays: Any) -> tuple[Any, ...]:
    """Return the arrays at no more than :data:`MAX_REQUESTS` representative requests.

    Every k-th request in order of its uncached tokens, so that the law of what costs most is kept
    far better than by a random sample.

    Parameters
    ----------
    demand : Demand
        Whose requests they belong to.
    *arrays : ndarray
        Arrays of shape (n,).

    Returns
    -------
    tuple of ndarray
    """
    n = demand.prompt_tokens.size
    if n <= MAX_REQUESTS:
        return arrays
    return tuple(array[demand.representatives] for array in arrays)
