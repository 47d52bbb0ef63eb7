"""What the compiled simulator writes: tables of records, and how they begin."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from smetric_model.simulate._world import has, in_pieces, record, repeats, table
from smetric_model.simulate.inputs import (
    BLIND,
    CLAIRVOYANT,
    DEAD_FIRST,
    DELAYED,
    HANDOVER,
    FailedTries,
    Inputs,
    Replay,
)
from smetric_model.simulate.plans import next_uses, session_roots

__all__ = ["State", "grown_state", "new_state", "replay_of"]

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
    NIC_NOW,
    RUNS,
    INDEX_NEXT,
    INDEX_END,
    LOAD_NEXT,
    LOAD_END,
    POOL_FIRST,
    POOL_LAST,
    POOL_NEXT,
    TRANSFERS,
    TRIES,
    EXPIRY_NEXT,
    EXPIRY_END,
    FAILED,
    STALE,
    FULL,
    NOW,
    FIXED_NEXT,
    ADMITTED,
    FAULT_NEXT,
    AVAILABLE,
    NODES_UP,
    GLOBAL_CAPACITY,
    INSERTED,
    GLOBAL_DEAD,
    GLOBAL_WRITTEN,
    GLOBAL_EVICTED,
    PIECE_FREE,
    PIECE_END,
    STORE_HEAP,
    VICTIMS,
    RELEASED,
) = range(42)
_COUNTS = 48

#: where a request is: ``State.request.stage``
NOWHERE, UNSENT, HOST, WAITING, PREFILL, DECODE = range(6)

#: places in State.room: counts above which a table must grow before the next event
ROOM_STALE, ROOM_FAILED, ROOM_EXPIRY, ROOM_LOAD, ROOM_INDEX = range(5)
_ROOMY = 2**62
_LEAST_GROWTH = 1024


_REQUEST = record(
    {
        "i8": "finish_at due",
        "i4": "todo at found private chunk next_waiting expiry made replica writing rank",
        "i1": "stage legs",
        "?": "fetching",
    }
)
_OUT = record(
    {
        "i8": "arrival placed ready admitted fetch_start fetch_done first_step first_token done"
        " gave_up instance reason local_tokens fetched_tokens",
        "i4": "charge failed_tries preemptions repeated_tokens",
    }
)
#: results that are −1 where something did not happen
_ABSENT = (_OUT.names or ())[:12]
#: which instance a request fetches from and how many blocks; and which one counts
_READING = record({"i4": "source pinned peer"})
_INSTANCE = record(
    {
        "i8": "free evictable oldest newest waiting last_waiting prefilling_count decoding_count"
        " decode_steps context step_start run_steps held held_since busy_ticks coming last_dead"
        " unused",
        "f8": "held_token_ticks pcie_bytes",
        "i1": "down",
        "?": "step_is_run",
    }
)
_SLOT = record({"i4": "node held pins older newer"})
_STORE = record({"i4": "stored older newer"})
_PIECE = record({"i4": "node low high older newer above dead"})
_VICTIM = record({"i4": "node low high"})
_LINK = record({"f8": "served rate passing", "i8": "flows first_flow now"})
_HANDOVER = record({"i8": " ".join(HANDOVER)})
_TRANSFER = record({"i8": "request source target", "f8": "left rate"})
_TIMER = record({"i8": "tick code place"})
_EVENT = record({"i8": "tick code"})
_LOAD_CHANGE = record({"i8": "tick replica instance", "f8": "requests tokens"})
_EXPIRY = record({"i8": "tick request"})
_FAILED = record({"i8": " ".join(FailedTries._fields)})
_INDEX_CHANGE = record({"i8": "tick key", "i4": "held"})


class State(NamedTuple):
    """What changes, and the results."""

    count: Any  # single numbers, see above
    nic_work: Any  # (4, nodes) float: reads, writes, KV in, KV out
    random: Any  # (replicas,) uint64
    next_instance: Any  # (replicas,)
    request: Any  # (requests,)
    out: Any  # (requests,)
    order: Any  # (requests,) rows in order of arrival
    instance: Any  # (instances,)
    prefilling: Any  # (instances, max running), in order of admission, those that fetch included
    decoding: Any  # (instances, max running)
    handover: Any  # (requests,) results of disaggregated serving
    transfer: Any  # KV between nodes on its way to the decode pool, in order of its start
    loads: Any  # (replicas, prefill instances) float, as the routers see them
    unprefilled: Any
    load_log: Any  # changes of loads not yet seen
    seen: Any  # (replicas · nodes · prefill instances) blocks, where the index is not exact
    index_log: Any  # changes of caches not yet seen
    computed_tokens: Any  # (instances, bins)
    reused_tokens: Any
    generated_tokens: Any
    slot: Any  # (nodes · prefill instances); −1 where nothing is cached or pinned
    slots: Any
    unused_heap: Any  # (prefill instances, slots), where the local tier is clairvoyant
    place: Any  # (slots,)
    dead: Any  # (slots,) demoted
    users: Any  # (nodes,) requests of sessions under way
    left: Any  # (requests,) requests of a session that are not done, at its first row
    next_use: Any  # (nodes,) request
    use_at: Any  # (nodes,) its place among the uses
    passed: Any  # (requests,) admitted
    store: Any  # (nodes,) the global tier
    store_dead: Any  # (nodes,)
    piece: Any  # the global tier in pieces, see _pieces.py
    first_piece: Any  # (nodes,)
    store_heap: Any  # (nodes,)
    store_place: Any
    victim: Any  # pieces evicted at an admission
    reading: Any  # (requests,) where KV may come from other instances
    link: Any  # class 2·node (reads), 2·node + 1 (writes), then PCIe by instance
    tag: Any  # (3, requests): reads, writes, PCIe
    next_flow: Any  # (3, requests)
    timer: Any  # instances' steps, instances' PCIe, NICs
    timer_heap: Any
    timer_size: Any  # (1,)
    event: Any  # a heap: one a request, and those of tries that have ended
    expiry: Any  # tries in order of arrival, where clients do not wait for ever
    failed: Any  # tries that came to nothing
    room: Any  # counts above which a table must grow, see above
    path: Any  # scratch
    hits: Any
    active: Any
    available: Any
    intact: Any  # scratch
    keys: Any


def new_state(inputs: Inputs) -> State:
    """Return the state at time 0."""
    engine, fabric = inputs.engine, inputs.fabric
    instances, requests = fabric.instances, inputs.requests.turn.size
    prefill = fabric.prefill_instances
    pools = prefill < instances
    nodes = inputs.nodes.parent.size
    # a node that is cached or pinned has a block in the pool; at an admission the path's nodes are
    # pinned before others are evicted
    pool_tokens = max(kind.engine.pool_tokens for kind in inputs.kinds)
    running = max(kind.engine.max_running_requests for kind in inputs.kinds)
    most = pool_tokens // engine.cache_block_tokens + 1 + inputs.nodes.longest_path()
    slots = min(prefill * most, max(nodes, 1) * prefill)
    free_slots = np.arange(1, slots + 1)
    free_slots[-1] = -1

    def ints(*shape: int, value: int = 0) -> Any:
        return np.full(shape, value, np.int64)

    signals = inputs.signals
    # each request changes loads three times; what is cached of a node changes when it is computed,
    # when it is evicted, and once an admission when it is evicted in part
    load_changes = 3 * requests if signals.load_age_ticks else 0
    seen = index_changes = 0
    if signals.hit_index == BLIND:
        seen = signals.replicas * nodes * prefill
    elif signals.hit_index == DELAYED:
        seen = nodes * prefill
        index_changes = 2 * inputs.nodes.path_sum() + requests
    tiers, world_nodes = inputs.tiers, inputs.nodes
    by_future, by_session = has(tiers, CLAIRVOYANT), has(tiers, DEAD_FIRST)
    lines = slots if tiers.local_eviction == CLAIRVOYANT else 0
    pieced = bool(in_pieces(tiers))
    pieces = 0
    if pieced:
        blocks = int((world_nodes.end - world_nodes.start).sum())
        pieces = min(blocks, fabric.global_blocks + pool_tokens) + 2
    left = ints(0)
    if by_session:
        left = np.bincount(session_roots(inputs.requests.previous), minlength=requests)
    next_use, use_at = np.zeros(0, np.int32), ints(0)
    if by_future:
        use_first, uses = next_uses(world_nodes)
        use_at = use_first[:-1].copy()
        next_use = np.append(uses, requests)[use_at].astype(np.int32)
        next_use[use_first[1:] == use_first[:-1]] = requests
    events, expiries, failed = requests + 1, 0, 0
    room = ints(5, value=_ROOMY)
    if repeats(inputs):
        # tables that may have to grow; ``grown_state`` knows by how much an event fills them
        events, failed = 3 * requests + 1, 2 * requests
        expiries = 2 * requests if inputs.clients.timeout_ticks >= 0 else 0
        load_changes = 2 * load_changes
    count = ints(_COUNTS)
    count[[GLOBAL_HEAD, GLOBAL_TAIL, GLOBAL_DEAD, PIECE_FREE, POOL_FIRST, POOL_LAST]] = -1
    count[AVAILABLE], count[NODES_UP] = prefill, fabric.nodes
    count[GLOBAL_CAPACITY] = fabric.global_blocks
    transfers = (instances - prefill) * running
    if tiers.peer_fetch:
        transfers += prefill * running
    victims = slots // prefill if tiers.write_back else 0  # each slot of an instance once
    state = State(
        count=count,
        nic_work=np.zeros((4, fabric.nodes)),
        random=(inputs.seed + np.arange(signals.replicas)).astype(np.uint64),
        next_instance=ints(signals.replicas),
        request=table(_REQUEST, requests, next_waiting=-1, due=-1, expiry=-1, writing=-1),
        reading=table(_READING, requests if tiers.peer_fetch else 0, source=-1, peer=-1),
        out=table(_OUT, requests, **dict.fromkeys(_ABSENT, -1)),
        order=ints(requests),
        instance=table(
            _INSTANCE,
            instances,
            free=inputs.of_instances("engine.pool_tokens"),
            oldest=-1,
            newest=-1,
            last_dead=-1,
            waiting=-1,
            last_waiting=-1,
            step_start=-1,
        ),
        prefilling=ints(instances, running),
        decoding=ints(instances, running),
        handover=table(_HANDOVER, requests * pools, **dict.fromkeys(HANDOVER, -1)),
        transfer=table(_TRANSFER, transfers),
        loads=np.zeros((signals.replicas, prefill)),
        unprefilled=np.zeros((signals.replicas, prefill)),
        load_log=table(_LOAD_CHANGE, load_changes),
        seen=np.zeros(seen, np.int32),
        index_log=table(_INDEX_CHANGE, index_changes),
        computed_tokens=ints(instances, inputs.window.bins),
        reused_tokens=ints(instances, inputs.window.bins),
        generated_tokens=ints(instances, inputs.window.bins),
        slot=np.full(nodes * prefill, -1, np.int32),
        slots=table(_SLOT, slots, older=-1, newer=free_slots),
        unused_heap=np.zeros((prefill, lines // prefill), np.int32),
        place=np.zeros(lines, np.int32),
        dead=np.zeros(slots if tiers.local_eviction == DEAD_FIRST else 0, np.bool_),
        users=np.zeros(nodes if by_session else 0, np.int32),
        left=left.astype(np.int32),
        next_use=next_use,
        use_at=use_at,
        passed=np.zeros(requests if by_future else 0, np.bool_),
        store=table(_STORE, 0 if pieced else nodes, older=-1, newer=-1),
        store_dead=np.zeros(nodes if tiers.global_eviction == DEAD_FIRST else 0, np.bool_),
        piece=table(_PIECE, pieces),
        first_piece=np.full(nodes if pieced else 0, -1, np.int32),
        store_heap=np.zeros(nodes if pieced else 0, np.int32),
        store_place=np.zeros(nodes if pieced else 0, np.int32),
        victim=table(_VICTIM, victims),
        link=table(_LINK, 2 * fabric.nodes + instances, first_flow=-1),
        tag=np.zeros((3, requests)),
        next_flow=ints(3, requests, value=-1),
        timer=table(_TIMER, 2 * instances + 1, place=-1),
        timer_heap=ints(2 * instances + 1),
        timer_size=ints(1),
        event=table(_EVENT, events),
        expiry=table(_EXPIRY, expiries),
        failed=table(_FAILED, failed),
        room=room,
        path=ints(inputs.nodes.longest_path() + 1),
        hits=ints(prefill),
        active=ints(prefill),
        intact=np.zeros(nodes if inputs.faults.tick.size else 0, np.bool_),
        available=np.ones(prefill, np.bool_),
        keys=np.arange(prefill, dtype=np.uint64),
    )
    if repeats(inputs):
        _set_room(inputs, state)
    return state


def _set_room(inputs: Inputs, state: State) -> None:
    """Set how full a table may be before an event, so that what the event adds fits.

    At most, an event ends the tries of all requests, changes loads twice for each, and changes
    what one instance caches of each node of its pool twice.
    """
    requests = inputs.requests.turn.size
    changes = max(
        2 * (kind.pool_tokens // kind.cache_block_tokens + kind.max_running_requests)
        for kind in (group.engine for group in inputs.kinds)
    )
    state.room[ROOM_STALE] = state.event.size - 2 * requests - 1
    state.room[ROOM_FAILED] = state.failed.size - requests
    state.room[ROOM_EXPIRY] = state.expiry.size - 1 if state.expiry.size else _ROOMY
    state.room[ROOM_LOAD] = state.load_log.size - 2 * requests if state.load_log.size else _ROOMY
    state.room[ROOM_INDEX] = state.index_log.size - changes if state.index_log.size else _ROOMY


def grown_state(inputs: Inputs, state: State) -> State:
    """Return the state with more room in the tables that have too little."""

    def larger(table: Any) -> Any:
        more: Any = np.zeros(table.size + max(table.size, _LEAST_GROWTH), table.dtype)
        more[: table.size] = table
        return more

    count, room = state.count, state.room
    tables = (
        ("event", STALE, ROOM_STALE),
        ("failed", FAILED, ROOM_FAILED),
        ("expiry", EXPIRY_END, ROOM_EXPIRY),
        ("load_log", LOAD_END, ROOM_LOAD),
        ("index_log", INDEX_END, ROOM_INDEX),
    )
    full = [name for name, filled, limit in tables if count[filled] > room[limit]]
    state = state._replace(**{name: larger(getattr(state, name)) for name in full})
    _set_room(inputs, state)
    return state


def replay_of(inputs: Inputs, state: State, now: int, caches: bool) -> Replay:
    """Return the results, with what the caches hold at the end where asked for."""
    count = state.count
    nodes, instances = inputs.nodes.parent.size, inputs.fabric.prefill_instances
    held = np.zeros((0, instances), np.int64)
    if caches:
        slot = state.slot.reshape(nodes, instances)
        held = np.where(slot >= 0, state.slots["held"][slot], 0).astype(np.int64)
    return Replay(
        **{name: state.out[name].astype(np.int64) for name in _OUT.names or ()},
        failed=FailedTries(
            *(
                np.ascontiguousarray(state.failed[name][: count[FAILED]])
                for name in FailedTries._fields
            )
        ),
        loads_end=state.loads.sum(axis=0),
        unprefilled_end=state.unprefilled.sum(axis=0),
        **{name: np.ascontiguousarray(state.handover[name]) for name in HANDOVER},
        order=state.order[: count[ARRIVED]],
        computed_tokens=state.computed_tokens,
        reused_tokens=state.reused_tokens,
        generated_tokens=state.generated_tokens,
        busy_ticks=np.ascontiguousarray(state.instance["busy_ticks"]),
        held_token_ticks=np.ascontiguousarray(state.instance["held_token_ticks"]),
        pcie_bytes=np.ascontiguousarray(state.instance["pcie_bytes"]),
        nic_work_bytes=state.nic_work,
        held_blocks=held,
        global_held_blocks=_stored(inputs, state),
        peer=_peers(inputs, state),
        counts={
            "events": int(count[EVENTS]),
            "steps": int(count[STEPS]),
            "runs": int(count[RUNS]),
            "inserted_blocks": int(count[INSERTED]),
            "evicted_blocks": int(count[EVICTED]),
            "global_written_blocks": int(count[GLOBAL_WRITTEN]),
            "global_evicted_blocks": int(count[GLOBAL_EVICTED]),
        },
        end_tick=int(now),
    )


def _stored(inputs: Inputs, state: State) -> npt.NDArray[np.int64]:
    """Blocks of each node in the global tier."""
    if not in_pieces(inputs.tiers):
        return np.asarray(state.store["stored"], np.int64)
    stored = np.zeros(inputs.nodes.parent.size, np.int64)
    for node in np.flatnonzero(state.first_piece >= 0).tolist():
        piece = int(state.first_piece[node])
        while piece >= 0:
            stored[node] += state.piece["high"][piece] - state.piece["low"][piece]
            piece = int(state.piece["above"][piece])
    return stored


def _peers(inputs: Inputs, state: State) -> npt.NDArray[np.int64]:
    """Which other instance each request's KV came from."""
    if not inputs.tiers.peer_fetch:
        return np.full(inputs.requests.turn.size, -1, np.int64)
    return np.asarray(state.reading["peer"], np.int64)
