"""From a scenario and its workload to the arrays that a simulation reads."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic.demand import cluster_of, instance_of
from smetric_model.analytic.fabric import (
    FetchPath,
    fetch_bytes_per_s,
)
from smetric_model.analytic.latency import host_time_s
from smetric_model.analytic.memory import (
    fixed_state_bytes_per_request,
    kv_bytes_per_token,
)
from smetric_model.analytic.step_model import step_model
from smetric_model.errors import SpecError
from smetric_model.simulate.faults import faults_of
from smetric_model.simulate.inputs import (
    Engine,
    Inputs,
    Requests,
    Signals,
    Window,
)
from smetric_model.simulate.nodes import Nodes, no_nodes, split_nodes
from smetric_model.simulate.prepare_cluster import (
    carried_over,
    clients_of,
    engine_of,
    kinds_of,
    most_request_tokens,
    router_policy,
    tiers_of,
)
from smetric_model.simulate.steps import LONGEST_S, to_ticks

if TYPE_CHECKING:
    from smetric_model.catalog.instance import InstanceSpec
    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

__all__ = ["BIN_S", "Prepared", "check_simulated", "prepare"]

#: Time resolution of what is counted inside the window [s]; the schema's windows are multiples.
BIN_S = 30.0
#: The run goes on after the window for as long again, and at least this long [s].
LEAST_DRAIN_S = 600.0
#: Tries of a client that fail at once, one after the other, take memory and no time.
MOST_RETRIES = 1000

IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Prepared:
    """Inputs of a simulation, and what must be told about them.

    Attributes
    ----------
    inputs : Inputs
        For :func:`smetric_model.simulate.engine.run`.
    trace : Trace
        The workload as replayed, rows as in ``inputs``.
    reasons : tuple of str
        Why a request is unservable, by ``inputs.requests.unservable`` − 1.
    notes : list of str
        For the outcome's ``note``.
    """

    inputs: Inputs
    trace: Trace
    reasons: tuple[str, ...]
    notes: list[str] = field(default_factory=list)


def check_simulated(scenario: Scenario) -> None:
    """Refuse what is not simulated yet, or does not fit on the simulator's clock.

    Raises
    ------
    SpecError
        Names every key, its value and what is simulated.
    """
    refused = (
        (
            "failures with disaggregated serving",
            f"{len(scenario.failures)} tables",
            not scenario.failures or scenario.cluster.serving == "colocated",
            "none",
        ),
        (
            "engine.kv_admission with disaggregated serving",
            scenario.engine.kv_admission,
            scenario.engine.kv_admission == "reserve" or scenario.cluster.serving == "colocated",
            '"reserve"',
        ),
        *(
            (
                f"{key} with failures",
                value,
                not scenario.failures or value in allowed,
                " or ".join(f'"{one}"' if isinstance(one, str) else "false" for one in allowed),
            )
            for key, value, allowed in (
                ("local_tier.eviction", scenario.local_tier.eviction, ("lru", "dead-first")),
                ("global_tier.eviction", scenario.global_tier.eviction, ("lru", "dead-first")),
                ("global_tier.write", scenario.global_tier.write, ("through",)),
                ("global_tier.peer_fetch", scenario.global_tier.peer_fetch, (False,)),
            )
        ),
    )
    problems = [
        f"{key} = {value!r} is not simulated yet; only {allowed}"
        for key, value, simulated, allowed in refused
        if not simulated
    ]
    work, client = scenario.workload, scenario.client
    drain_s = max(work.window_s, LEAST_DRAIN_S)
    if work.warmup_s + work.window_s + drain_s > LONGEST_S:
        problems.append(
            f"workload.warmup_s = {work.warmup_s:g}, workload.window_s = {work.window_s:g}: with as"
            f" long again for what is under way at its end, at most {LONGEST_S:g} s are simulated"
        )
    if client.retries > MOST_RETRIES:
        problems.append(f"client.retries = {client.retries}: at most {MOST_RETRIES} are simulated")
    if problems:
        raise SpecError("\n".join(problems))


def prepare(scenario: Scenario, trace: Trace) -> Prepared:
    """Work out what a simulation reads.

    Parameters
    ----------
    scenario : Scenario
        The question; its workload's rate, start and loop are not looked at again.
    trace : Trace
        The workload at its rate, on one clock that begins at the start of the warm-up; rows in
        order of arrival.

    Returns
    -------
    Prepared

    Raises
    ------
    SpecError
        If the scenario asks for what is not simulated, or the LLM does not fit.
    """
    check_simulated(scenario)
    instances = [instance_of(one) for one in scenario.by_group()]
    notes = carried_over(instances)
    cache_block = int(trace.block_tokens or instances[0].block_tokens)
    engines = [engine_of(scenario, instance, cache_block) for instance in instances]
    prompt, output, unservable, reasons = _lengths(scenario, trace, engines, notes)
    requests, nodes = _requests(scenario, trace, instances, prompt, output, unservable, notes)
    kinds = kinds_of(scenario, instances, engines, requests)
    whole, work = kinds[0], scenario.workload
    drain_s = max(work.window_s, LEAST_DRAIN_S)
    inputs = Inputs(
        requests=requests,
        nodes=nodes,
        engine=whole.engine,
        fabric=whole.fabric,
        window=Window(
            start=to_ticks(work.warmup_s),
            end=to_ticks(work.warmup_s + work.window_s),
            drain_end=to_ticks(work.warmup_s + work.window_s + drain_s),
            bin_ticks=to_ticks(BIN_S),
            bins=math.ceil(work.window_s / BIN_S),
        ),
        model=whole.model,
        decode=whole.decode,
        policy=router_policy(scenario, instances, kinds, cache_block),
        seed=scenario.seed,
        signals=Signals(
            replicas=scenario.router.replicas,
            hit_index=("exact", "delayed", "blind").index(scenario.router.hit_index),
            index_age_ticks=to_ticks(scenario.router.hit_index_age_s),
            scraped=int(scenario.router.load_source == "scraped"),
            load_age_ticks=to_ticks(scenario.router.load_age_s),
            token_load=int(scenario.router.balances_tokens(scenario.cluster.serving)),
        ),
        tiers=tiers_of(scenario, whole.peer_bytes_per_s),
        clients=clients_of(scenario),
        groups=tuple(kinds) if scenario.groups else (),
    )
    return Prepared(
        replace(inputs, faults=faults_of(scenario, inputs.node_of)), trace, reasons, notes
    )


def _lengths(
    scenario: Scenario, trace: Trace, engines: list[Engine], notes: list[str]
) -> tuple[IntArray, IntArray, IntArray, tuple[str, ...]]:
    """Lengths as served, and which requests cannot be: 0, or the number of the reason."""
    prompt = trace.column("prompt_tokens").astype(np.int64)
    output = np.maximum(trace.column("output_tokens").astype(np.int64), 1)
    longest = scenario.engine.max_context_tokens
    # routers do not know pools: what is served must fit into every one
    pool = min(most_request_tokens(engine) for engine in engines)
    of = "the smallest instance's" if len(engines) > 1 else "an instance's"
    reasons = (
        f"longer than max_context_tokens = {longest}",
        f"longer than {of} KV pool = {pool} tokens",
    )
    limit = min(longest, pool)
    too_long = prompt + output > limit
    if too_long.any() and scenario.engine.max_context == "fail":
        first = int(np.flatnonzero(too_long)[0])
        raise SpecError(
            f"{trace.source}: request {first} has {prompt[first]} + {output[first]} tokens, above"
            f" {limit} ({int(too_long.sum())} such requests); engine.max_context = 'fail'"
        )
    if scenario.engine.max_context == "cap":
        can = too_long & (output < limit)
        prompt = np.where(can, limit - output, prompt)
        if can.any():
            notes.append(f"{int(can.sum())} prompts of the trace cut to {limit} tokens with output")
    total = prompt + output
    unservable = np.where(total > longest, 1, np.where(total > pool, 2, 0)).astype(np.int64)
    return prompt, output, unservable, reasons


def _requests(
    scenario: Scenario,
    trace: Trace,
    instances: list[InstanceSpec],
    prompt: IntArray,
    output: IntArray,
    unservable: IntArray,
    notes: list[str],
) -> tuple[Requests, Nodes]:
    session = trace.column("session_id").astype(np.int64)
    rows = np.arange(session.size)
    closed = scenario.workload.loop == "closed"
    by_session = np.lexsort((rows, session))
    same = session[by_session][1:] == session[by_session][:-1]
    previous, following = np.full(rows.size, -1), np.full(rows.size, -1)
    previous[by_session[1:][same]] = by_session[:-1][same]
    following[by_session[:-1][same]] = by_session[1:][same]
    has = previous >= 0
    before = np.maximum(previous, 0)
    history = np.where(has, prompt[before] + output[before], -1)
    if "previous_tokens" in trace.requests:  # the turn before may lie before the run
        history = np.where(has, history, trace.column("previous_tokens"))
    est_hit = np.where(history >= 0, np.minimum(history, prompt), 0)
    host = to_ticks(host_time_s(instances[0], prompt))
    arrival = trace.column("arrival_s").astype(np.float64)
    think = np.zeros(rows.size)
    if closed:
        think = _think_s(scenario, trace, instances, previous, prompt, output, notes)
    turn = trace.column("turn").astype(np.int64)
    known = turn >= 0
    counted = np.zeros(rows.size, np.int64)
    counted[by_session] = np.arange(rows.size) - np.repeat(
        np.flatnonzero(np.append(True, ~same)[: rows.size]),
        np.diff(np.append(np.flatnonzero(np.append(True, ~same)[: rows.size]), rows.size)),
    )
    requests = Requests(
        arrival_tick=np.where(has & closed, -1, to_ticks(arrival)),
        think_ticks=to_ticks(think),
        previous=previous,
        following=following,
        turn=np.where(known, turn, counted),
        prompt_tokens=prompt,
        output_tokens=output,
        est_hit_tokens=est_hit,
        session_key=session.astype(np.uint64),
        host_ticks=host,
        unservable=unservable,
    )
    if trace.tree is None:
        notes.append("the trace carries no block ids: nothing is reused")
        return requests, no_nodes(rows.size)
    tree, block = trace.require_tree()
    blocks = np.minimum(tree.request_blocks, prompt // block)
    blocks = np.where(unservable > 0, 0, blocks)
    return requests, split_nodes(tree, blocks, session, in_order=closed)


def _think_s(
    scenario: Scenario,
    trace: Trace,
    instances: list[InstanceSpec],
    previous: IntArray,
    prompt: IntArray,
    output: IntArray,
    notes: list[str],
) -> NDArray[np.float64]:
    """Think time before each request: as recorded, or from the gap between arrivals."""
    recorded = trace.column("think_time_s").astype(np.float64)
    has = previous >= 0
    unknown = has & np.isnan(recorded)
    if not unknown.any():
        return np.where(has, np.maximum(recorded, 0.0), 0.0)
    before = np.maximum(previous, 0)
    arrival = trace.column("arrival_s").astype(np.float64)
    gap = arrival - arrival[before]
    service = trace.column("e2e_s").astype(np.float64)
    modelled = np.isnan(service)
    if (unknown & modelled[before]).any():
        # in the group in which it would take longest
        alone = np.max(
            [
                _alone_s(trace, instance, prompt, output)
                + _sending_alone_s(scenario, instance, prompt, output)
                for instance in instances
            ],
            axis=0,
        )
        service = np.where(modelled, alone, service)
    think = np.where(unknown, gap - service[before], recorded)
    clipped = unknown & (think < 0)
    if clipped.any():
        share = clipped.sum() / unknown.sum()
        notes.append(
            f"think times: {share:.1%} of the gaps were shorter than the service, set to 0"
        )
    return np.where(has, np.maximum(think, 0.0), 0.0)


def _alone_s(
    trace: Trace, instance: InstanceSpec, prompt: IntArray, output: IntArray
) -> NDArray[np.float64]:
    """Time of each request alone on an idle instance, with ideal reuse."""
    from smetric_model.analytic.latency import decode_time_s, prefill_time_s, usable_hit_tokens
    from smetric_model.workload.reuse import ideal_reuse

    model = step_model(instance)
    hit = np.zeros(prompt.size, np.int64)
    if trace.tree is not None:
        hit = usable_hit_tokens(
            prompt, np.minimum(ideal_reuse(trace), prompt), instance.block_tokens
        )
    prefill = prefill_time_s(model, prompt - hit, hit, instance.token_budget)
    decode = decode_time_s(model, 1, prompt, output) * (output - 1)
    return np.asarray(host_time_s(instance, prompt) + prefill + decode)


def _sending_alone_s(
    scenario: Scenario, instance: InstanceSpec, prompt: IntArray, output: IntArray
) -> NDArray[np.float64]:
    """Time to send each prompt's KV to the decode pool over idle links; 0 where colocated."""
    if scenario.cluster.serving == "colocated":
        return np.zeros(prompt.size)
    clusters = [cluster_of(one) for one in scenario.by_group()]
    cluster = min(clusters, key=lambda one: one.nics_per_node)
    blocks = -(-prompt // instance.block_tokens)
    size = blocks * instance.block_tokens * kv_bytes_per_token(instance)
    size = np.where(output > 1, size + fixed_state_bytes_per_request(instance), 0.0)
    path: FetchPath = "rdma" if sum(one.nodes for one in clusters) > 1 else "dram"
    rate = fetch_bytes_per_s(cluster, instance.gpu, instance.tp, path, size, busy=False)
    return np.asarray(size / rate)
