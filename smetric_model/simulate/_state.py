"""State of the compiled simulator: arrays in a named tuple, and how they begin."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from smetric_model.simulate.inputs import Inputs

__all__ = ["State", "new_state"]

# places in State.count
(
    PENDING,
    EVICTED,
    STEPS,
    EVENTS,
    ARRIVED,
    FREE_SLOT,
    QUEUE,
    GLOBAL_HEAD,
    GLOBAL_TAIL,
    GLOBAL_USED,
    NEXT_INSTANCE,
    NIC_NOW,
    RUNS,
) = range(13)


class State(NamedTuple):
    """All arrays; sizes N instances, n requests, m nodes, k link classes."""

    count: Any  # single numbers, see above
    nic_work: Any  # (1,) float
    random: Any  # (1,) uint64

    # requests
    todo: Any
    at: Any
    finish_at: Any  # decode step of its instance with which it is complete
    private: Any
    legs: Any
    fetching: Any
    chunk: Any
    next_waiting: Any

    # instances
    free: Any
    evictable: Any
    oldest: Any
    newest: Any
    waiting: Any
    last_waiting: Any
    prefilling: Any  # (N, max running)
    prefilling_count: Any
    decoding: Any
    decoding_count: Any
    decode_steps: Any
    context: Any
    loads: Any  # float64, for the policies
    unprefilled: Any  # float64
    step_start: Any  # −1: none under way
    step_is_run: Any
    run_steps: Any
    held: Any
    held_since: Any

    # local tiers: slots
    slot: Any  # (m · N) int32; −1: nothing cached or pinned
    slot_node: Any
    slot_held: Any
    slot_pins: Any
    slot_older: Any
    slot_newer: Any

    # global tier: nodes
    stored: Any
    older: Any
    newer: Any

    # links: class 2·node (reads), 2·node + 1 (writes), then PCIe by instance
    served: Any
    rate: Any
    flows: Any
    first_flow: Any
    link_now: Any  # PCIe's clocks; NICs share one
    tag: Any  # (3, n): reads, writes, PCIe
    next_flow: Any  # (3, n)

    # timers, an indexed heap: N steps, N PCIe, 1 NICs
    timer_tick: Any
    timer_code: Any
    timer_heap: Any
    timer_place: Any
    timer_size: Any

    # requests' events, a heap
    event_tick: Any
    event_code: Any

    # scratch
    path: Any
    hits: Any
    active: Any
    available: Any
    keys: Any


def new_state(inputs: Inputs) -> State:
    """Return the state at time 0."""
    instances = inputs.fabric.instances
    requests = inputs.requests.turn.size
    nodes = inputs.nodes.parent.size
    running = inputs.engine.max_running_requests
    links = 2 * inputs.fabric.nodes + instances
    # a node that is cached or pinned has a block in the pool
    most = inputs.engine.pool_tokens // inputs.engine.cache_block_tokens + 1
    slots = min(instances * most, max(nodes * instances, 1))

    def ints(*shape: int, value: int = 0) -> Any:
        return np.full(shape, value, np.int64)

    count = ints(13)
    count[[GLOBAL_HEAD, GLOBAL_TAIL]] = -1
    free_slots = np.arange(1, slots + 1, dtype=np.int32)
    free_slots[-1] = -1
    return State(
        count=count,
        nic_work=np.zeros(1),
        random=np.full(1, inputs.seed, np.uint64),
        todo=ints(requests),
        at=ints(requests),
        finish_at=ints(requests),
        private=ints(requests),
        legs=np.zeros(requests, np.int8),
        fetching=np.zeros(requests, np.bool_),
        chunk=ints(requests),
        next_waiting=ints(requests, value=-1),
        free=ints(instances, value=inputs.engine.pool_tokens),
        evictable=ints(instances),
        oldest=np.full(instances, -1, np.int32),
        newest=np.full(instances, -1, np.int32),
        waiting=ints(instances, value=-1),
        last_waiting=ints(instances, value=-1),
        prefilling=ints(instances, running),
        prefilling_count=ints(instances),
        decoding=ints(instances, running),
        decoding_count=ints(instances),
        decode_steps=ints(instances),
        context=ints(instances),
        loads=np.zeros(instances),
        unprefilled=np.zeros(instances),
        step_start=ints(instances, value=-1),
        step_is_run=np.zeros(instances, np.bool_),
        run_steps=ints(instances),
        held=ints(instances),
        held_since=ints(instances),
        slot=np.full(nodes * instances, -1, np.int32),
        slot_node=np.zeros(slots, np.int32),
        slot_held=np.zeros(slots, np.int32),
        slot_pins=np.zeros(slots, np.int32),
        slot_older=np.full(slots, -1, np.int32),
        slot_newer=free_slots,
        stored=np.zeros(nodes, np.int32),
        older=np.full(nodes, -1, np.int32),
        newer=np.full(nodes, -1, np.int32),
        served=np.zeros(links),
        rate=np.zeros(links),
        flows=ints(links),
        first_flow=ints(links, value=-1),
        link_now=ints(links),
        tag=np.zeros((3, requests)),
        next_flow=ints(3, requests, value=-1),
        timer_tick=ints(2 * instances + 1),
        timer_code=ints(2 * instances + 1),
        timer_heap=ints(2 * instances + 1),
        timer_place=ints(2 * instances + 1, value=-1),
        timer_size=ints(1),
        event_tick=ints(requests + 1),
        event_code=ints(requests + 1),
        path=ints(inputs.nodes.longest_path() + 1),
        hits=ints(instances),
        active=ints(instances),
        available=np.ones(instances, np.bool_),
        keys=np.arange(instances, dtype=np.uint64),
    )
