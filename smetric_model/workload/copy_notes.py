"""What to know of a workload that is many times its trace."""

from __future__ import annotations

import math

__all__ = ["MANY_COPIES", "copies_note"]

#: times a trace's own rate from which on it is said that copies make it up
MANY_COPIES = 2.0


def copies_note(
    rate_rps: float,
    trace_rate_rps: float,
    requests: int,
    sessions: int | None,
    source: str,
) -> str:
    """Say that a rate is reached with copies of a trace, and what that means.

    Parameters
    ----------
    rate_rps : float
        Wanted [requests/s].
    trace_rate_rps : float
        The trace's own; NaN where its sessions share no clock [requests/s].
    requests : int
        Of the trace.
    sessions : int or None
        Of the trace; None where it names none.
    source : str
        The trace's name.

    Returns
    -------
    str
        Empty below :data:`MANY_COPIES` times the trace's rate, and where it has none.
    """
    times = rate_rps / trace_rate_rps
    if not (math.isfinite(times) and times >= MANY_COPIES):
        return ""
    minutes = requests / trace_rate_rps / 60
    held = f"{requests:,} requests in {minutes:.3g} min"
    if sessions is not None:
        held = f"{sessions:,} sessions, {held}"
    copies = math.ceil(times - 1e-9)
    return (
        f"{rate_rps:.3g} requests/s are {times:.3g} times the rate of {source} ({held}):"
        f" {copies} copies of it are laid over each other, each at its own time, so that every"
        " session comes that often, and what all users do together (a busy hour, a common"
        " burst) is evened out (session_start = 'poisson' starts sessions at random, fit and"
        " synthesise draw new ones, rate_rps = 'trace' takes the trace as it is:"
        " docs/synthesis.md)"
    )
