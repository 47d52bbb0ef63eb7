"""Small random clusters and workloads that collide: tiny pools, shared prefixes, slow links."""

from __future__ import annotations

import dataclasses

import numpy as np

from smetric_model.analytic.demand import instance_of
from smetric_model.analytic.step_model import step_model
from smetric_model.routing.registry import POLICIES, make_policy
from smetric_model.scenario import Scenario
from smetric_model.simulate.faults import Faults, fault_rows
from smetric_model.simulate.inputs import (
    Clients,
    Engine,
    Fabric,
    Group,
    Inputs,
    Requests,
    Signals,
    Tiers,
    Window,
)
from smetric_model.simulate.nodes import split_nodes
from smetric_model.simulate.steps import decode_tables, to_ticks
from smetric_model.workload.prefix_tree import PrefixTreeBuilder

MODELS = {
    mode: step_model(instance_of(Scenario(engine={"mode": mode}))) for mode in ("graph", "eager")
}
#: of other kinds of instances
OTHERS = [
    step_model(instance_of(Scenario(engine=engine)))
    for engine in ({"gpu": "H100"}, {"gpu": "H100", "mode": "eager"}, {"gpu": "H20", "tp": 2})
]


def random_paths(rng, sessions, block_tokens):
    """Turns of sessions: shared system prompts, growth, and now and then a rewind or a fork."""
    rows = []  # (session, turn, blocks, prompt tokens)
    fresh = iter(range(1000, 10**9))
    systems = [[next(fresh) for _ in range(rng.integers(1, 4))] for _ in range(2)]
    histories: list[list[int]] = []
    for session in range(sessions):
        history = list(systems[rng.integers(2)]) if rng.random() < 0.8 else []
        if histories and rng.random() < 0.15:
            other = histories[rng.integers(len(histories))]
            history = other[: rng.integers(len(other) + 1)]
        for turn in range(rng.integers(1, 6)):
            if turn and rng.random() < 0.15:
                history = history[: rng.integers(len(history) + 1)]
            if not (turn and rng.random() < 0.1):  # else the same prompt again
                history = history + [next(fresh) for _ in range(rng.integers(0, 6))]
            part = int(rng.integers(0, block_tokens)) if rng.random() < 0.7 else 0
            path = history + ([next(fresh)] if part else [])
            prompt = max(1, len(history) * block_tokens + part)
            rows.append((session, turn, path, prompt))
        histories.append(history)
    return rows


def random_faults(random, node_of) -> Faults:
    """Instances and nodes, or their stores alone, that fail, some for good, some twice."""
    instances = node_of.size
    events, free_from = [], dict.fromkeys(range(instances), 0)
    for _ in range(random.integers(1, 5)):
        detection = to_ticks(float(random.choice([0.0, 0.01, 0.2])))
        node = int(random.integers(node_of[-1] + 1)) if random.random() < 0.4 else -1
        failing = [int(random.integers(instances))]
        if node >= 0:
            failing = np.flatnonzero(node_of == node).tolist()
        at = to_ticks(float(random.choice([0.01, 0.1, 1.0])) * random.random())
        at += max(free_from[k] for k in failing)
        if at >= 10**15:
            continue  # it is down already, for good
        down = -1 if random.random() < 0.2 else to_ticks(float(random.random() * 0.3))
        events.append((failing, at, down, detection, node))
        after = at + down + detection + 1 if down >= 0 else 10**15
        free_from |= dict.fromkeys(failing, after)
    stores = random.random() < 0.3  # of the nodes only the store
    rows = []
    for failing, *when, node in events:
        rows += fault_rows([] if stores and node >= 0 else failing, *when, node)
    return Faults.of(rows)


def _tiers(rng, failing: bool) -> Tiers:
    return Tiers(
        local_eviction=int(rng.integers(2 if failing else 3)),
        global_eviction=int(rng.integers(2 if failing else 3)),
        write_back=int(rng.random() < 0.4 and not failing),
        peer_fetch=int(rng.random() < 0.4 and not failing),
        peer_bytes_per_s=float(rng.choice([0.0, 450e9])),
    )


def random_inputs(seed: int, unequal: bool = True) -> Inputs:
    rng = np.random.default_rng(seed)
    engine_block = int(rng.choice([4, 16]))
    block = engine_block * int(rng.choice([1, 2, 4]))
    closed = bool(rng.random() < 0.6)
    rows = random_paths(rng, int(rng.integers(1, 12)), block)
    span = float(rng.choice([0.0, 0.5, 5.0]))
    starts = np.round(rng.random(1 + max(row[0] for row in rows)) * span, 3)
    arrival = np.array([starts[s] + 0.4 * t * rng.random() for s, t, _, _ in rows])
    for k in range(1, len(rows)):
        if rows[k][0] == rows[k - 1][0]:
            arrival[k] = max(arrival[k], arrival[k - 1])
    order = np.argsort(arrival, kind="stable")
    rows, arrival = [rows[k] for k in order], arrival[order]
    n = len(rows)
    builder = PrefixTreeBuilder()
    root = builder.root(None)
    for _, _, path, _ in rows:
        builder.add_ids([root], np.array(path, dtype=np.int64), [0, len(path)])
    session = np.array([row[0] for row in rows])
    prompt = np.array([row[3] for row in rows])
    output = rng.integers(1, 40, n)
    extra = np.random.default_rng([seed, 2])  # clients, preemption
    preempt = bool(extra.random() < 0.5)
    if preempt:  # with outputs that are long beside the pool
        output *= int(extra.choice([1, 3, 10]))
    previous, following, last = np.full(n, -1), np.full(n, -1), {}
    for k in range(n):
        if session[k] in last:
            previous[k] = last[session[k]]
            following[previous[k]] = k
        last[session[k]] = k
    before = np.maximum(previous, 0)
    longest = int(np.max(prompt + output)) + engine_block
    pool = int(longest * rng.choice([1.0, 1.5, 4.0])) // engine_block * engine_block
    state = int(rng.choice([0, 0, 7]))
    pool += engine_block + state
    unservable = (rng.random(n) < 0.05).astype(np.int64)
    blocks = np.where(unservable > 0, 0, np.minimum([len(row[2]) for row in rows], prompt // block))
    nodes = split_nodes(builder.build(), blocks, session, in_order=closed)
    model = MODELS["graph" if rng.random() < 0.5 else "eager"]
    engine = np.random.default_rng([seed, 3])  # what a request costs the engine's own processor
    model = model._replace(
        request_s=float(engine.choice([0.0, 0.0, 0.004])),
        wait_steps=float(engine.choice([0.0, 0.0, 1.0, 2.5])),
    )
    per_node = int(rng.integers(1, 4))
    pools = np.random.default_rng([seed, 1])  # of disaggregated serving, half of them
    instances = prefill = int(rng.integers(1, 6))
    if pools.random() < 0.5:
        instances += int(pools.integers(1, 5))
    if preempt and extra.random() < 0.7:  # all of them meet in one pool
        instances = prefill = 1
    fabric_nodes = -(-instances // per_node)
    size = np.arange(max(longest, pool) // engine_block + 2, dtype=float)
    block_bytes = float(rng.choice([1e5, 1e7, 1e9]))
    running = int(rng.choice([2, 4, 64]))
    policy = rng.choice(list(POLICIES))
    settings = {"block_tokens": block} if hasattr(POLICIES[policy], "block_tokens") else {}
    timeout = float(extra.choice([-1.0, -1.0, -1.0, 0.005, 0.03, 0.1, 0.5, 5.0]))
    clients = Clients(
        timeout_ticks=-1 if timeout < 0 else to_ticks(timeout),
        retries=int(extra.choice([0, 1, 3])),
        backoff_ticks=to_ticks(float(extra.choice([0.0, 0.0, 0.01, 0.3]))),
    )
    failing = bool(prefill == instances and extra.random() < 0.5)
    warmup, window = float(rng.choice([0.0, 0.3])), float(rng.choice([1.0, 5.0, 1000.0]))
    inputs = Inputs(
        requests=Requests(
            arrival_tick=np.where((previous >= 0) & closed, -1, to_ticks(arrival)),
            think_ticks=to_ticks(np.round(rng.random(n) * rng.choice([0.0, 0.2]), 2)),
            previous=previous,
            following=following,
            turn=np.array([row[1] for row in rows]),
            prompt_tokens=prompt,
            output_tokens=output,
            est_hit_tokens=np.where(
                previous >= 0, np.minimum(prompt[before] + output[before], prompt), 0
            ),
            session_key=session.astype(np.uint64),
            host_ticks=to_ticks(rng.choice([0.0, 0.01]) + 1e-6 * prompt),
            unservable=unservable,
        ),
        nodes=nodes,
        engine=Engine(
            pool_tokens=pool,
            fixed_state_tokens=state,
            token_budget=int(rng.choice([3, 32, 8192])),
            max_running_requests=running,
            block_tokens=engine_block,
            cache_block_tokens=block,
            preempt=int(preempt and prefill == instances),
        ),
        fabric=Fabric(
            instances=instances,
            prefill_instances=prefill,
            instances_per_node=per_node,
            nodes=fabric_nodes,
            node_nic_bytes_per_s=float(rng.choice([1.0, 2.0])) * 25e9,
            flow_nic_bytes_per_s=25e9,
            pcie_bytes_per_s=54e9,
            block_bytes=block_bytes,
            nic_work_idle=size * block_bytes * 1.7 * (fabric_nodes - 1) / fabric_nodes,
            nic_work_busy=size * block_bytes * 3.1 * (fabric_nodes - 1) / fabric_nodes,
            transfer_work_idle=size * block_bytes * 1.9,
            transfer_work_busy=size * block_bytes * 3.3,
            fixed_fetch_ticks=int(rng.choice([0, 10**9])),
            global_blocks=int(rng.choice([0, 5, 40, 10_000])),
            stall=int(rng.random() < 0.3),
            recompute_if_faster=int(rng.random() < 0.4),
        ),
        window=Window(
            start=to_ticks(warmup),
            end=to_ticks(warmup + window),
            drain_end=to_ticks(warmup + window + float(rng.choice([0.2, 600.0]))),
            bin_ticks=to_ticks(float(rng.choice([0.05, 0.4, 30.0]))),
            bins=int(np.ceil(window / 0.05)),
        ),
        model=model,
        decode=decode_tables(model, running),
        policy=make_policy(str(policy), settings),
        seed=int(rng.integers(100)),
        signals=Signals(
            replicas=int(rng.choice([1, 1, 3])),
            hit_index=int(rng.integers(3)),
            index_age_ticks=to_ticks(float(rng.choice([0.0, 0.3]))),
            scraped=int(rng.random() < 0.3),
            load_age_ticks=to_ticks(float(rng.choice([0.0, 0.0, 0.2]))),
            token_load=int(pools.random() < 0.5),
        ),
        tiers=_tiers(rng, failing),
        clients=clients,
    )
    kinds = np.random.default_rng([seed, 4])
    if unequal and kinds.random() < 0.5:
        inputs = with_groups(inputs, kinds, longest)
    if failing:
        inputs = dataclasses.replace(inputs, faults=random_faults(extra, inputs.node_of))
    return inputs


def with_groups(inputs: Inputs, rng, longest: int) -> Inputs:
    """The same cluster of two or three kinds of instances, where it has so many instances."""
    instances = inputs.fabric.instances
    cuts = np.unique(rng.integers(1, instances, 2)) if instances > 1 else []
    groups = []
    for count in np.diff([0, *cuts, instances]).tolist():
        first, fabric = inputs.engine, inputs.fabric
        pool = int(longest * rng.choice([1.0, 1.5, 4.0])) // first.block_tokens * first.block_tokens
        state = int(rng.choice([0, 0, 7]))
        engine = first._replace(
            pool_tokens=pool + first.block_tokens + state,
            fixed_state_tokens=state,
            token_budget=int(rng.choice([3, 32, 8192])),
            max_running_requests=int(rng.choice([2, 4, 64])),
        )
        model = OTHERS[rng.integers(len(OTHERS))] if rng.random() < 0.7 else inputs.model
        model = model._replace(
            request_s=float(rng.choice([0.0, 0.004])), wait_steps=float(rng.choice([0.0, 2.5]))
        )
        block_bytes = float(rng.choice([1e5, 1e7, 1e9]))
        host = inputs.requests.host_ticks
        links = float(rng.choice([1.0, 4.0]))
        fabric = fabric._replace(
            instances_per_node=int(rng.integers(1, 4)),
            node_nic_bytes_per_s=links * 25e9,
            flow_nic_bytes_per_s=float(rng.choice([1.0, links])) * 25e9,
            pcie_bytes_per_s=float(rng.choice([25e9, 54e9])),
            block_bytes=block_bytes,
            fixed_fetch_ticks=int(rng.choice([0, 10**9])),
        )
        size = np.arange(max(longest, pool) // first.block_tokens + 3) * block_bytes
        groups.append(
            Group(
                count,
                engine,
                model,
                decode_tables(model, engine.max_running_requests),
                fabric._replace(transfer_work_idle=size * 1.9, transfer_work_busy=size * 3.3),
                float(rng.choice([0.0, 450e9])),
                host if rng.random() < 0.5 else host // 2,
            )
        )
    nodes = sum(-(-g.instances // g.fabric.instances_per_node) for g in groups)
    for k, group in enumerate(groups):
        size = group.fabric.transfer_work_idle / 1.9 * (nodes - 1) / nodes
        fabric = group.fabric._replace(
            nodes=nodes, nic_work_idle=size * 1.7, nic_work_busy=size * 3.1
        )
        groups[k] = group._replace(fabric=fabric)
    first = groups[0]
    return dataclasses.replace(
        inputs,
        groups=tuple(groups),
        engine=first.engine,
        model=first.model,
        decode=first.decode,
        fabric=first.fabric,
        requests=inputs.requests._replace(host_ticks=first.host_ticks),
        tiers=inputs.tiers._replace(peer_bytes_per_s=first.peer_bytes_per_s),
    )
