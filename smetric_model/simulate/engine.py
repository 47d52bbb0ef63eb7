"""The compiled simulator: the reference's answers, a thousand times sooner."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from smetric_model.routing.compiled import pack
from smetric_model.simulate import _state
from smetric_model.simulate._jit import fingerprint, source_files
from smetric_model.simulate._loop import loop
from smetric_model.simulate.inputs import Inputs, Replay
from smetric_model.simulate.steps import DecodeTables

__all__ = ["is_compiled", "run"]


class _Out(NamedTuple):
    """The arrays of a :class:`Replay` that the compiled code fills in."""

    arrival: Any
    ready: Any
    admitted: Any
    fetch_start: Any
    fetch_done: Any
    first_step: Any
    first_token: Any
    done: Any
    instance: Any
    reason: Any
    local_tokens: Any
    fetched_tokens: Any
    charge: Any
    order: Any
    computed_tokens: Any
    reused_tokens: Any
    generated_tokens: Any
    busy_ticks: Any
    held_token_ticks: Any
    pcie_bytes: Any


class _Nodes(NamedTuple):
    parent: Any
    start: Any
    end: Any
    leaf: Any
    blocks: Any


class _Decode(NamedTuple):
    base: Any
    per_token: Any
    least: Any


@cache
def _compiled() -> Any:
    """Compile the loop, or load it from disk, where its key holds the sources' checksum."""
    from numba import njit

    mark = fingerprint()

    def simulator_loop(  # type: ignore[no-untyped-def]
        s, out, requests, nodes, engine, fabric, window, model, decode, policy, first, skip
    ):
        if mark < 0:
            return 0
        return loop(
            s, out, requests, nodes, engine, fabric, window, model, decode, policy, first, skip
        )

    return njit(cache=True)(simulator_loop)


def is_compiled() -> bool:
    """Whether the compiled loop is likely to be on disk; compiling takes a minute, once."""
    folder = Path(_compiled().stats.cache_path)
    newest = max(path.stat().st_mtime for path in source_files())
    indices = folder.glob("engine._compiled.*.nbi")
    return any(index.stat().st_mtime >= newest for index in indices)


def run(inputs: Inputs, *, skip: bool = True, progress: Callable[[str], None] | None = None) -> Replay:
    """Simulate.

    Parameters
    ----------
    inputs : Inputs
        From :func:`smetric_model.simulate.prepare.prepare`.
    skip : bool, default True
        Whether runs of decode steps are taken in closed form; the answer is the same.
    progress : callable, optional
        Told that the simulator is being compiled, where it is.

    Returns
    -------
    Replay
    """
    if progress is not None and not is_compiled():
        progress("compiling the simulator (once; about a minute)")
    out = Replay.empty(inputs)
    out.order = np.zeros(inputs.requests.turn.size, np.int64)
    state = _state.new_state(inputs)
    fixed = np.flatnonzero(inputs.requests.arrival_tick >= 0)
    first = fixed[np.argsort(inputs.requests.arrival_tick[fixed], kind="stable")]
    decode: DecodeTables = inputs.decode
    nodes = inputs.nodes
    now = _compiled()(
        state,
        _Out(*(getattr(out, name) for name in _Out._fields)),
        inputs.requests,
        _Nodes(nodes.parent, nodes.start, nodes.end, nodes.leaf, nodes.blocks),
        inputs.engine,
        inputs.fabric,
        inputs.window,
        inputs.model,
        _Decode(decode.base, decode.per_token, decode.least),
        pack(inputs.policy),
        first,
        skip,
    )
    out.end_tick = int(now)
    out.nic_work_bytes = float(state.nic_work[0])
    count = state.count
    out.order = out.order[: count[_state.ARRIVED]]
    out.counts = {
        "events": int(count[_state.EVENTS]),
        "steps": int(count[_state.STEPS]),
        "runs": int(count[_state.RUNS]),
        "evicted_blocks": int(count[_state.EVICTED]),
    }
    out.held_blocks = _held(state, nodes.parent.size, inputs.fabric.instances)
    out.global_held_blocks = state.stored.astype(np.int64)
    return out


def _held(state: _state.State, nodes: int, instances: int) -> Any:
    """Blocks that each instance holds of each node; empty where that would be a large table."""
    if nodes * instances > 10_000_000:
        return np.zeros((0, instances), np.int64)
    slot = state.slot.reshape(nodes, instances)
    return np.where(slot >= 0, state.slot_held[slot], 0).astype(np.int64)
