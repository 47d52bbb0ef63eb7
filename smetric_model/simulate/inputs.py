"""What a simulation reads, and what it writes: plain arrays, for both implementations."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic.step_time import StepModel
from smetric_model.simulate.faults import Faults
from smetric_model.simulate.nodes import Nodes
from smetric_model.simulate.steps import DecodeTables

if TYPE_CHECKING:
    from smetric_model.routing.policy import Policy

__all__ = [
    "HANDOVER",
    "Clients",
    "Engine",
    "Fabric",
    "FailedTries",
    "Group",
    "Inputs",
    "Replay",
    "Requests",
    "Signals",
    "Tiers",
    "Window",
]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class Requests(NamedTuple):
    """Requests in order of the trace; arrays of shape (requests,).

    ``arrival_tick`` is −1 where the arrival follows the completion of ``previous`` by
    ``think_ticks``.  ``previous`` and ``following`` are rows of the same session, −1 for none.
    ``unservable`` is 0, or the number of a reason.
    """

    arrival_tick: IntArray
    think_ticks: IntArray
    previous: IntArray
    following: IntArray
    turn: IntArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    est_hit_tokens: IntArray
    session_key: NDArray[np.uint64]
    host_ticks: IntArray
    unservable: IntArray


class Engine(NamedTuple):
    """One instance.

    ``block_tokens`` is the engine's block, ``cache_block_tokens`` the trace's, by which hits are
    counted [tokens].  With ``preempt`` a request is admitted with KV for its prompt, and takes more
    as its output grows; else with KV for both.
    """

    pool_tokens: int
    fixed_state_tokens: int
    token_budget: int
    max_running_requests: int
    block_tokens: int
    cache_block_tokens: int
    preempt: int = 0


class Fabric(NamedTuple):
    """Instances on nodes, and the links between them.

    The first ``prefill_instances`` instances take requests from the routers; where that is not all
    of them, the others only decode.  ``nic_work_idle`` and ``nic_work_busy`` [bytes of line
    capacity] are what the remote share of a fetch or write takes, by its size in engine blocks;
    ``transfer_work_idle`` and ``transfer_work_busy`` what KV takes from one node to another.
    """

    instances: int
    prefill_instances: int
    instances_per_node: int
    nodes: int
    node_nic_bytes_per_s: float
    flow_nic_bytes_per_s: float
    pcie_bytes_per_s: float
    block_bytes: float
    nic_work_idle: FloatArray
    nic_work_busy: FloatArray
    transfer_work_idle: FloatArray
    transfer_work_busy: FloatArray
    fixed_fetch_ticks: int
    global_blocks: int
    stall: int
    recompute_if_faster: int


class Group(NamedTuple):
    """Equal instances, where a cluster has several kinds: numbered in a row, on nodes of their own.

    Of ``engine`` the blocks and ``preempt``, and of ``fabric`` what is neither of an instance nor
    of a node, are those of the whole cluster.  ``host_ticks`` is in place of the requests' own.
    """

    instances: int
    engine: Engine
    model: StepModel
    decode: DecodeTables
    fabric: Fabric
    peer_bytes_per_s: float
    host_ticks: IntArray


#: Results of a replay that disaggregated serving adds.
HANDOVER = ("transfer_start", "transfer_done", "decode_start", "decode_instance")

#: What a router knows of the caches: ``Signals.hit_index``.
EXACT, DELAYED, BLIND = range(3)


class Signals(NamedTuple):
    """What the routers know, and how old it is.

    ``hit_index`` is EXACT, DELAYED (by ``index_age_ticks``) or BLIND (what this router placed
    there, evictions unknown).  Loads are the router's own counters, or (``scraped``) those of the
    engines, either ``load_age_ticks`` old; ``token_load``: what policies balance are unprefilled
    tokens, not requests.
    """

    replicas: int = 1
    hit_index: int = EXACT
    index_age_ticks: int = 0
    scraped: int = 0
    load_age_ticks: int = 0
    token_load: int = 0


class Clients(NamedTuple):
    """What a client does whose request takes too long, or is answered with an error.

    ``timeout_ticks`` is −1 where it waits for ever.
    """

    timeout_ticks: int = -1
    retries: int = 0
    backoff_ticks: int = 0


#: Why a try came to nothing: ``FailedTries.cause``.
TIMED_OUT, FAILED = 1, 2


class FailedTries(NamedTuple):
    """Tries that came to nothing, in order of their end; arrays of shape (tries,).

    Times are in ticks, −1 where something did not happen.  ``until`` is the end of the engine step
    that was under way.  Tokens are those processed for the try: ``reused_tokens`` and
    ``computed_tokens`` of the prompt, ``generated_tokens`` of the output; ``charge`` is what the
    router counted as unprefilled until the first token.  ``transfer_done``, ``decode_start`` and
    ``decode_instance`` as in :class:`Replay`, with disaggregated serving.
    """

    request: IntArray
    instance: IntArray
    cause: IntArray
    placed: IntArray
    first_step: IntArray
    first_token: IntArray
    end: IntArray
    until: IntArray
    charge: IntArray
    reused_tokens: IntArray
    computed_tokens: IntArray
    generated_tokens: IntArray
    transfer_done: IntArray
    decode_start: IntArray
    decode_instance: IntArray

    @classmethod
    def none(cls) -> FailedTries:
        """No tries."""
        return cls(*(np.zeros(0, np.int64) for _ in cls._fields))


#: What a tier evicts first: ``Tiers.local_eviction`` and ``global_eviction``.
LRU, DEAD_FIRST, CLAIRVOYANT = range(3)


class Tiers(NamedTuple):
    """What the tiers evict first: LRU, DEAD_FIRST (of finished sessions) or CLAIRVOYANT.

    ``write_back`` is whether the global tier takes what instances evict, in place of what they
    compute; ``peer_fetch`` whether KV may come from another instance, inside a node at
    ``peer_bytes_per_s`` (0: over PCIe).
    """

    local_eviction: int = LRU
    global_eviction: int = LRU
    write_back: int = 0
    peer_fetch: int = 0
    peer_bytes_per_s: float = 0.0


class Window(NamedTuple):
    """Times of the run [ticks]: window, bins inside it, and the drain limit."""

    start: int
    end: int
    drain_end: int
    bin_ticks: int
    bins: int


@dataclass(frozen=True, eq=False)
class Inputs:
    """Everything a simulation reads.

    Attributes
    ----------
    requests, nodes, fabric, window
        See there.
    engine : Engine
        An instance.
    model : StepModel
        Coefficients of its step time.
    decode : DecodeTables
        Its decode steps, in ticks.
    policy : Policy
        The router's policy.
    seed : int
        Of the router's ties.
    signals : Signals
        What the routers know.
    tiers : Tiers
        What the tiers evict.
    clients : Clients
        How long they wait, and what they do then.
    faults : Faults
        What fails, and when.
    groups : tuple of Group
        Where instances are unequal; then ``engine``, ``model``, ``decode`` and what ``fabric`` and
        ``tiers`` say of an instance or a node are those of the first group.
    """

    requests: Requests
    nodes: Nodes
    engine: Engine
    fabric: Fabric
    window: Window
    model: StepModel
    decode: DecodeTables
    policy: Policy
    seed: int = 0
    signals: Signals = field(default_factory=Signals)
    tiers: Tiers = field(default_factory=Tiers)
    clients: Clients = field(default_factory=Clients)
    faults: Faults = field(default_factory=Faults.none)
    groups: tuple[Group, ...] = ()

    @property
    def kinds(self) -> tuple[Group, ...]:
        """The groups; one of all instances, where they are equal."""
        if self.groups:
            return self.groups
        return (
            Group(
                self.fabric.instances,
                self.engine,
                self.model,
                self.decode,
                self.fabric,
                self.tiers.peer_bytes_per_s,
                self.requests.host_ticks,
            ),
        )

    @property
    def kind_of(self) -> IntArray:
        """Number of each instance's kind, shape (instances,)."""
        counts = [kind.instances for kind in self.kinds]
        return np.repeat(np.arange(len(counts)), counts)

    @property
    def node_of(self) -> IntArray:
        """Node of each instance, shape (instances,): each kind fills nodes of its own in order."""
        nodes, first = [], 0
        for kind in self.kinds:
            nodes.append(first + np.arange(kind.instances) // kind.fabric.instances_per_node)
            first = int(nodes[-1][-1]) + 1
        return np.concatenate(nodes)

    def of_instances(self, name: str) -> NDArray[Any]:
        """Return what each instance has, such as ``engine.pool_tokens``; shape (instances,)."""
        get = attrgetter(name)
        return np.array([get(kind) for kind in self.kinds])[self.kind_of]

    def of_nodes(self, name: str) -> NDArray[Any]:
        """Return what each node has, such as ``fabric.node_nic_bytes_per_s``; shape (nodes,)."""
        first = np.unique(self.node_of, return_index=True)[1]
        return self.of_instances(name)[first]


@dataclass(eq=False)
class Replay:
    """What a simulation writes; ticks are −1 where something did not happen.

    Attributes
    ----------
    arrival, placed, ready, admitted, fetch_start, fetch_done, first_step, first_token, done
        Times of each request [ticks]: of its first try's arrival, and of its last try, if that
        one did not come to nothing.
    gave_up : ndarray
        When its client gave it up after the last try.
    failed_tries : ndarray
        Tries that came to nothing.
    failed : FailedTries
        Those tries.
    preemptions, repeated_tokens : ndarray
        How often the request was preempted, in all its tries, and tokens that were computed again
        for it because of that.
    loads_end, unprefilled_end : ndarray of float64, shape (instances,)
        What all routers together count at the end: requests, and unprefilled tokens.
    instance, reason : ndarray
        Where the router placed it (−1: not placed), and why.
    local_tokens, fetched_tokens : ndarray
        Prompt tokens found in the instance's cache, and fetched.
    peer : ndarray
        Instance that they were fetched from; −1: from the global tier, or not at all.
    charge : ndarray
        Unprefilled tokens charged to the instance at placement.
    order : ndarray
        Rows in order of arrival, of the requests that arrived.
    computed_tokens, reused_tokens, generated_tokens : ndarray of int64, shape (instances, bins)
        By the bin in which they count.
    busy_ticks : ndarray of int64, shape (instances,)
        Time in steps, inside the window.
    held_token_ticks, pcie_bytes : ndarray of float64, shape (instances,)
        KV of running requests over time, and bytes over PCIe, inside the window.
    nic_work_bytes : ndarray of float64, shape (4, nodes)
        Line capacity that transfers took inside the window: reads of each node, writes of it, KV
        into it and KV out of it (disaggregated serving).
    transfer_start, transfer_done, decode_start, decode_instance : ndarray
        Disaggregated serving (else empty): when KV for the request was reserved in the decode pool
        and its transfer began, when it was there, when its first decode step began [ticks], and
        where; −1 also for requests of one output token.
    held_blocks : ndarray of int64, shape (nodes, prefill instances)
        Cached blocks of each node at the end (for tests; empty where not asked for).
    global_held_blocks : ndarray of int64, shape (nodes,)
        The same of the global tier.
    counts : dict of str to int
        Events, steps, decode steps, evicted blocks …
    end_tick : int
        When the run stopped.
    """

    arrival: IntArray
    placed: IntArray
    ready: IntArray
    admitted: IntArray
    fetch_start: IntArray
    fetch_done: IntArray
    first_step: IntArray
    first_token: IntArray
    done: IntArray
    gave_up: IntArray
    instance: IntArray
    reason: IntArray
    local_tokens: IntArray
    fetched_tokens: IntArray
    peer: IntArray
    charge: IntArray
    failed_tries: IntArray
    preemptions: IntArray
    repeated_tokens: IntArray
    failed: FailedTries
    order: IntArray
    computed_tokens: IntArray
    reused_tokens: IntArray
    generated_tokens: IntArray
    busy_ticks: IntArray
    held_token_ticks: FloatArray
    pcie_bytes: FloatArray
    nic_work_bytes: FloatArray
    loads_end: FloatArray
    unprefilled_end: FloatArray
    transfer_start: IntArray
    transfer_done: IntArray
    decode_start: IntArray
    decode_instance: IntArray
    held_blocks: IntArray
    global_held_blocks: IntArray
    counts: dict[str, int] = field(default_factory=dict)
    end_tick: int = 0

    @classmethod
    def empty(cls, inputs: Inputs) -> Replay:
        """Arrays of the right shapes."""
        n = inputs.requests.turn.size
        instances, bins = inputs.fabric.instances, inputs.window.bins
        times: dict[str, Any] = {
            name: np.full(n, -1, np.int64)
            for name in (
                "arrival",
                "placed",
                "ready",
                "admitted",
                "fetch_start",
                "fetch_done",
                "first_step",
                "first_token",
                "done",
                "gave_up",
                "instance",
                "reason",
                "peer",
            )
        }
        tokens: dict[str, Any] = {
            name: np.zeros(n, np.int64)
            for name in (
                *("local_tokens", "fetched_tokens", "charge", "failed_tries"),
                *("preemptions", "repeated_tokens"),
            )
        }
        pools = inputs.fabric.prefill_instances < instances
        times |= {name: np.full(n if pools else 0, -1, np.int64) for name in HANDOVER}
        binned: dict[str, Any] = {
            name: np.zeros((instances, bins), np.int64)
            for name in ("computed_tokens", "reused_tokens", "generated_tokens")
        }
        return cls(
            **times,
            **tokens,
            **binned,
            failed=FailedTries.none(),
            order=np.zeros(0, np.int64),
            busy_ticks=np.zeros(instances, np.int64),
            held_token_ticks=np.zeros(instances),
            pcie_bytes=np.zeros(instances),
            nic_work_bytes=np.zeros((4, inputs.fabric.nodes)),
            loads_end=np.zeros(inputs.fabric.prefill_instances),
            unprefilled_end=np.zeros(inputs.fabric.prefill_instances),
            held_blocks=np.zeros((0, inputs.fabric.prefill_instances), np.int64),
            global_held_blocks=np.zeros(0, np.int64),
        )
