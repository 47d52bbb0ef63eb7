"""Session starts for traces whose sessions share no clock."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from smetric_model.errors import SpecError

if TYPE_CHECKING:
    from smetric_model.workload.trace import Trace

__all__ = ["root_sessions", "with_poisson_starts"]


def root_sessions(trace: Trace) -> npt.NDArray[np.int64]:
    """Session that started each session: itself, or the one whose request spawned it.

    Parameters
    ----------
    trace : Trace
        A trace that names its sessions.

    Returns
    -------
    ndarray of int64, shape (sessions,)

    Raises
    ------
    TraceError
        If the trace names no sessions.
    """
    session = trace.require_sessions()
    parent = trace.column("parent")
    _, firsts = np.unique(session, return_index=True)
    root = np.arange(firsts.size)
    spawned = parent[firsts]
    for code in np.argsort(firsts, kind="stable"):  # by arrival: a spawning session comes first
        if spawned[code] >= 0:
            root[code] = root[session[spawned[code]]]
    return root


def with_poisson_starts(trace: Trace, session_rate_rps: float, seed: int = 0) -> Trace:
    """Lay sessions on one clock, starting as a Poisson process.

    Parameters
    ----------
    trace : Trace
        A trace that names its sessions.
    session_rate_rps : float
        Starts of sessions per second [1/s]; subagents keep their time from their session's start.
    seed : int, default 0
        Of the starts and of the order in which the sessions start.

    Returns
    -------
    Trace
        The same requests, sorted anew; ``session_clock`` is ``shared``.

    Raises
    ------
    SpecError
        If the rate is not positive.
    TraceError
        If the trace names no sessions.
    """
    if not (session_rate_rps > 0 and np.isfinite(session_rate_rps)):
        raise SpecError(f"session_rate_rps is {session_rate_rps}; a number above 0 is needed")
    session = trace.require_sessions()
    root = root_sessions(trace)
    roots = np.unique(root)
    rng = np.random.default_rng(seed)
    starts = np.zeros(root.size)
    starts[rng.permutation(roots)] = np.cumsum(rng.exponential(1 / session_rate_rps, roots.size))
    arrival_s = trace.column("arrival_s")
    # A session that was cut at its beginning starts with its first request.
    first_s = np.full(root.size, np.inf)
    np.minimum.at(first_s, root[session], arrival_s)
    shifted = arrival_s + (starts - np.where(np.isfinite(first_s), first_s, 0.0))[root[session]]
    order = np.argsort(shifted, kind="stable")
    moved = replace(
        trace, requests=trace.requests.assign(arrival_s=shifted), session_clock="shared"
    )
    return moved.take(order)
