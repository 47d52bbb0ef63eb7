"""How soon KV is reused, and how much of it is alive at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from smetric_model.errors import SpecError
from smetric_model.workload.reuse import Touches, last_touches

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.workload.trace import Trace

__all__ = ["reuse_intervals", "share_within", "window_index", "working_set"]

#: More windows than this mean a time stamp far off, or a window chosen too short.
MAX_WINDOWS = 10_000_000


def reuse_intervals(trace: Trace, touches: Touches | None = None) -> pd.DataFrame:
    """Time between consecutive touches of each reused piece of a prefix.

    Parameters
    ----------
    trace : Trace
        A trace with block ids.  Sessions without a common clock are fine as long as they share no
        blocks.
    touches : Touches, optional
        Result of :func:`~smetric_model.workload.reuse.last_touches`, if at hand.

    Returns
    -------
    DataFrame
        One row a piece: ``request``, ``toucher`` (rows of the trace), ``tokens``,
        ``start_to_start_s`` (arrival to arrival) and ``interval_s`` (from the toucher's completion
        to the request's arrival, at least 0; NaN where the trace tells no completion).

    Raises
    ------
    TraceError
        If the trace carries no block ids.

    References
    ----------
    The paper's Figure 6 ("from when a request completes until its KV$ is next reused").
    """
    import pandas as pd

    touches = last_touches(trace) if touches is None else touches
    arrival_s = trace.column("arrival_s")
    since = arrival_s[touches.request] - arrival_s[touches.toucher]
    e2e_s = trace.column("e2e_s")[touches.toucher]
    return pd.DataFrame(
        {
            "request": touches.request,
            "toucher": touches.toucher,
            "tokens": touches.tokens,
            "start_to_start_s": since,
            "interval_s": np.maximum(since - e2e_s, 0.0),
        }
    )


def share_within(
    times_s: npt.ArrayLike, weights: npt.ArrayLike, limits_s: npt.ArrayLike
) -> npt.NDArray[np.float64]:
    """Weighted share of times that are no longer than each limit; unknown times left out.

    Parameters
    ----------
    times_s : array_like
        Times [s]; NaN where unknown.
    weights : array_like
        Weight of each, such as tokens.
    limits_s : array_like
        Limits [s].

    Returns
    -------
    ndarray of float64, shape of limits_s
        Shares in [0, 1]; NaN where no time is known.
    """
    times = np.asarray(times_s, dtype=np.float64)
    weight = np.asarray(weights, dtype=np.float64)
    known = ~np.isnan(times)
    times, weight = times[known], weight[known]
    order = np.argsort(times, kind="stable")
    sums = np.concatenate(([0.0], np.cumsum(weight[order])))
    limits = np.asarray(limits_s, dtype=np.float64)
    if not sums[-1] > 0:
        return np.full(limits.shape, np.nan)
    result: npt.NDArray[np.float64] = (
        sums[np.searchsorted(times[order], limits, side="right")] / sums[-1]
    )
    return result


def window_index(times_s: npt.NDArray[np.float64], window_s: float) -> npt.NDArray[np.int64]:
    """Window in which each time falls, counted from the first.

    Raises
    ------
    SpecError
        If the window is not positive, or there would be more than :data:`MAX_WINDOWS`.
    """
    if not 0 < window_s < np.inf:
        raise SpecError(f"window_s is {window_s}; a number above 0 is needed")
    offset = times_s - times_s.min()
    if offset.max() / window_s >= MAX_WINDOWS:
        raise SpecError(
            f"{offset.max():,.0f} s make more than {MAX_WINDOWS:,} windows of {window_s} s; "
            "choose a longer window_s, or look for a wrong time stamp"
        )
    result: npt.NDArray[np.int64] = (offset // window_s).astype(np.int64)
    return result


def working_set(
    trace: Trace, window_s: float = 60.0, touches: Touches | None = None
) -> pd.DataFrame:
    """Distinct KV touched, and KV still to be reused, over time.

    Parameters
    ----------
    trace : Trace
        A trace with block ids and one clock.
    window_s : float, default 60
        Length of a window [s].
    touches : Touches, optional
        Result of :func:`~smetric_model.workload.reuse.last_touches`, if at hand.

    Returns
    -------
    DataFrame
        One row a window: ``start_s``; ``requests``; ``prompt_tokens`` looked up;
        ``touched_tokens``, distinct tokens touched in the window; ``new_tokens`` of these seen for
        the first time; ``total_tokens`` seen so far; ``live_tokens`` at the window's end, seen and
        touched again later (what an omniscient store would have to hold to lose nothing), and
        ``live_tokens_max``, the most of them after any request of the window.

    Raises
    ------
    TraceError
        If the trace carries no block ids, or its sessions share no clock.
    SpecError
        If the window is not positive or far too short.

    Notes
    -----
    Partly filled last blocks count with their own tokens.
    """
    import pandas as pd

    trace.require_shared_clock()
    touches = last_touches(trace) if touches is None else touches
    arrival_s = trace.column("arrival_s")
    window = window_index(arrival_s, window_s)
    count = int(window.max()) + 1
    prompt = trace.column("prompt_tokens")
    reused = np.zeros(len(trace), np.int64)
    np.add.at(reused, touches.request, touches.tokens)
    new = np.bincount(window, weights=prompt - reused, minlength=count)
    # A reused piece counts once a window: where its last toucher came in an earlier one.
    now, before = window[touches.request], window[touches.toucher]
    again = np.bincount(now, weights=np.where(before < now, touches.tokens, 0), minlength=count)
    live = np.bincount(before, weights=touches.tokens, minlength=count) - np.bincount(
        now, weights=touches.tokens, minlength=count
    )
    live = np.cumsum(live)
    # what a window begins with counts for its maximum: it is live until the first request
    most = np.maximum(live, np.concatenate(([0.0], live[:-1])))
    after = np.cumsum(
        np.bincount(touches.toucher, weights=touches.tokens, minlength=len(trace))
        - np.bincount(touches.request, weights=touches.tokens, minlength=len(trace))
    )
    np.maximum.at(most, window, after)
    return pd.DataFrame(
        {
            "start_s": arrival_s.min() + window_s * np.arange(count),
            "requests": np.bincount(window, minlength=count),
            "prompt_tokens": np.bincount(window, weights=prompt, minlength=count),
            "touched_tokens": new + again,
            "new_tokens": new,
            "total_tokens": np.cumsum(new),
            "live_tokens": live,
            "live_tokens_max": most,
        }
    )
