"""What the compiled simulator reads: the inputs, as tables of records."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from smetric_model.analytic.step_time import StepModel
from smetric_model.routing.compiled import pack
from smetric_model.simulate.inputs import CLAIRVOYANT, DEAD_FIRST, Inputs, Tiers
from smetric_model.simulate.plans import next_uses, session_roots

__all__ = ["BUSY", "IDLE", "World", "has", "in_pieces", "new_world", "record", "repeats", "table"]

#: rows of ``World.nic_work`` and ``transfer_work``: is the instance computing?
IDLE, BUSY = range(2)


def record(kinds: dict[str, str]) -> np.dtype[np.void]:
    return np.dtype(
        [(name, kind) for kind, names in kinds.items() for name in names.split()], align=True
    )


def table(dtype: np.dtype[np.void], size: int, **values: Any) -> npt.NDArray[np.void]:
    made = np.zeros(size, dtype)
    for name, value in values.items():
        made[name] = value
    return made


_REQUEST_INPUT = record(
    {
        "i8": "arrival_tick think_ticks following turn prompt_tokens output_tokens est_hit_tokens"
        " host_ticks unservable leaf blocks",
        "u8": "session_key",
    }
)
_NODE = record({"i8": "parent start end"})
_DECODE = record({"i8": "base per_token least"})
_MODEL = record({"f8": " ".join(StepModel._fields)})
#: what an instance is, and what its node's links are: those of its kind
_OF_INSTANCE = record(
    {
        "i8": "kind node decode pool_tokens fixed_state_tokens token_budget max_running_requests"
        " fixed_fetch_ticks",
        "f8": "pcie_bytes_per_s peer_bytes_per_s block_bytes",
    }
)
_OF_NODE = record({"f8": "slowness flow_nic_bytes_per_s"})
_FAULT = record({"i8": "tick what where"})


class Caching(NamedTuple):
    """``Tiers``, and whether the global tier is that of ``_pieces.py``."""

    local_eviction: int
    global_eviction: int
    write_back: int
    peer_fetch: int
    pieces: int


class CompiledEngine(NamedTuple):
    """What ``Engine`` says of all instances."""

    block_tokens: int
    cache_block_tokens: int
    preempt: int


class CompiledFabric(NamedTuple):
    """What ``Fabric`` says of the whole cluster, and the rate of the first node's links."""

    instances: int
    prefill_instances: int
    nodes: int
    node_nic_bytes_per_s: float
    global_blocks: int
    stall: int
    recompute_if_faster: int


class World(NamedTuple):
    """What does not change: ``inputs`` as tables of records."""

    requests: Any  # (requests,)
    nodes: Any  # (nodes,) of the radix tree
    engine: Any
    fabric: Any
    instance: Any  # (instances,)
    interface: Any  # (nodes of the cluster,)
    model: Any  # (kinds,)
    decode: Any  # by batch size, kind by kind; ``instance.decode`` says where it begins
    nic_work: Any  # (kinds, 2, sizes) bytes, see IDLE
    transfer_work: Any  # the same; empty where no KV goes from one node to another
    host: Any  # (kinds, requests) ticks; empty where all kinds take the requests' own
    window: Any
    policy: Any
    signals: Any
    tiers: Any
    root: Any  # (requests,) first row of the session, where sessions matter
    use_first: Any  # (nodes + 1,) where a node's uses begin, where the future matters
    uses: Any  # requests that use a node, in order
    clients: Any
    faults: Any  # (faults,)


class CompiledClients(NamedTuple):
    """``Clients``, and whether a request may be worked on more than once."""

    timeout_ticks: int
    retries: int
    backoff_ticks: int
    active: int


def new_world(inputs: Inputs) -> World:
    """Return the inputs as the compiled code reads them."""
    requests, nodes = inputs.requests, inputs.nodes
    size = requests.turn.size
    names = [name for name in _REQUEST_INPUT.names or () if name not in ("leaf", "blocks")]
    root = np.zeros(0, np.int32)
    if has(inputs.tiers, DEAD_FIRST):
        root = session_roots(requests.previous)
    use_first, uses = np.zeros(0, np.int64), np.zeros(0, np.int32)
    if has(inputs.tiers, CLAIRVOYANT):
        use_first, uses = next_uses(nodes)
    return World(
        requests=table(
            _REQUEST_INPUT,
            size,
            leaf=nodes.leaf,
            blocks=nodes.blocks,
            **{name: getattr(requests, name) for name in names},
        ),
        nodes=table(
            _NODE, nodes.parent.size, parent=nodes.parent, start=nodes.start, end=nodes.end
        ),
        engine=_part(CompiledEngine, inputs.engine),
        fabric=_part(CompiledFabric, inputs.fabric),
        **_kinds(inputs),
        window=inputs.window,
        policy=pack(inputs.policy),
        signals=inputs.signals,
        tiers=Caching(
            inputs.tiers.local_eviction,
            inputs.tiers.global_eviction,
            inputs.tiers.write_back,
            inputs.tiers.peer_fetch,
            pieces=in_pieces(inputs.tiers),
        ),
        root=root,
        use_first=use_first,
        uses=uses,
        clients=CompiledClients(*inputs.clients, active=int(repeats(inputs))),
        faults=table(_FAULT, inputs.faults.tick.size, **inputs.faults._asdict()),
    )


def _part(kind: Any, whole: Any) -> Any:
    """Return the fields of a named tuple that another has."""
    return kind(**{name: getattr(whole, name) for name in kind._fields})


def _kinds(inputs: Inputs) -> dict[str, Any]:
    """Return the tables of instances, of the cluster's nodes, and of kinds of instances."""
    kinds, first = inputs.kinds, inputs.fabric

    def each(part: str, names: str) -> dict[str, Any]:
        return {name: inputs.of_instances(f"{part}.{name}") for name in names.split()}

    model = np.array([tuple(map(float, kind.model)) for kind in kinds], _MODEL)
    sizes = [kind.decode.base.size for kind in kinds]
    decode = table(
        _DECODE,
        sum(sizes),
        **{
            name: np.concatenate([getattr(kind.decode, name) for kind in kinds])
            for name in _DECODE.names or ()
        },
    )
    own_host = any(kind.host_ticks is not inputs.requests.host_ticks for kind in kinds)
    host = [kind.host_ticks for kind in kinds] if own_host else []
    return {
        "instance": table(
            _OF_INSTANCE,
            first.instances,
            kind=inputs.kind_of,
            node=inputs.node_of,
            decode=(np.cumsum(sizes) - sizes)[inputs.kind_of],
            peer_bytes_per_s=inputs.of_instances("peer_bytes_per_s"),
            **each("engine", "pool_tokens fixed_state_tokens token_budget max_running_requests"),
            **each("fabric", "fixed_fetch_ticks pcie_bytes_per_s block_bytes"),
        ),
        "interface": table(
            _OF_NODE,
            first.nodes,
            slowness=first.node_nic_bytes_per_s / inputs.of_nodes("fabric.node_nic_bytes_per_s"),
            flow_nic_bytes_per_s=inputs.of_nodes("fabric.flow_nic_bytes_per_s"),
        ),
        "model": model,
        "decode": decode,
        "nic_work": _works([(k.fabric.nic_work_idle, k.fabric.nic_work_busy) for k in kinds]),
        "transfer_work": _works(
            [(k.fabric.transfer_work_idle, k.fabric.transfer_work_busy) for k in kinds]
        ),
        "host": np.array(host, np.int64).reshape(len(host), -1 if host else 0),
    }


def _works(pairs: list[tuple[Any, Any]]) -> Any:
    """Line capacity by kind, IDLE or BUSY, and size."""
    work = np.zeros((len(pairs), 2, max(idle.size for idle, _ in pairs)))
    for row, (idle, busy) in zip(work, pairs, strict=True):
        row[IDLE, : idle.size], row[BUSY, : busy.size] = idle, busy
    return work


def repeats(inputs: Inputs) -> bool:
    """Whether a request may have to be worked on more than once, so that tables may fill up."""
    failing = inputs.clients.timeout_ticks >= 0 or inputs.faults.tick.size > 0
    return failing or bool(inputs.engine.preempt)


def has(tiers: Tiers, eviction: int) -> bool:
    return eviction in (tiers.local_eviction, tiers.global_eviction)


def in_pieces(tiers: Tiers) -> int:
    """Whether the global tier may hold other than whole prefixes, or not in order of use."""
    return int(tiers.global_eviction == CLAIRVOYANT or tiers.write_back)
