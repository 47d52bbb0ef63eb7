"""The few figures by which agent traffic is compared: reuse, its origin and its pace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from smetric_model.workload.trace import Trace

__all__ = ["traffic_statistics"]

#: The paper's Figure 6 reads the share of reuse within this time [s].
SOON_S = 100.0


def traffic_statistics(trace: Trace) -> dict[str, float]:
    """Reuse of a trace, where it comes from and how soon it happens.

    Parameters
    ----------
    trace : Trace
        A trace with block ids and sessions.

    Returns
    -------
    dict of str to float
        ``requests``, ``sessions``; ``rate_rps``, requests over the span of arrivals (NaN where the
        sessions share no clock); ``prompt_tokens_mean``, ``output_tokens_mean``;
        ``ideal_reuse_ratio`` (÷ prompt tokens); ``intra_reuse_ratio``, ``system_reuse_ratio``,
        ``other_reuse_ratio`` (÷ reused tokens, by the session that produced them first);
        ``first_turn_ratio`` (÷ requests); ``soon_reuse_ratio``, share of reused tokens whose
        interval from the last toucher's completion is at most 100 s, and
        ``soon_reuse_ratio_by_piece``, the same with every piece of a prefix counted once; NaN where
        the trace tells no completions.

    Raises
    ------
    TraceError
        If the trace carries no block ids or names no sessions.

    References
    ----------
    The paper's Figures 5, 6 and 8; claims C01 to C06.
    """
    from smetric_model.workload.intervals import reuse_intervals, share_within
    from smetric_model.workload.origin import origin_shares, reuse_origin
    from smetric_model.workload.reuse import last_touches

    touches = last_touches(trace)
    prompt = trace.column("prompt_tokens")
    shares = origin_shares(reuse_origin(trace, touches=touches), int(prompt.sum()))
    origin = dict(zip(shares.index, shares["reuse_ratio"].to_numpy(dtype=np.float64), strict=True))
    intervals = reuse_intervals(trace, touches)
    times, weights = intervals["interval_s"].to_numpy(), intervals["tokens"].to_numpy()
    span_s = float(np.ptp(trace.column("arrival_s")))
    shared = trace.session_clock == "shared" and span_s > 0
    return {
        "requests": float(len(trace)),
        "sessions": float(trace.sessions or 0),
        "rate_rps": (len(trace) - 1) / span_s if shared else float("nan"),
        "prompt_tokens_mean": float(prompt.mean()),
        "output_tokens_mean": float(trace.column("output_tokens").mean()),
        "ideal_reuse_ratio": float(touches.tokens.sum() / prompt.sum()),
        "intra_reuse_ratio": float(origin["intra"]),
        "system_reuse_ratio": float(origin["system"]),
        "other_reuse_ratio": float(origin["other"]),
        "first_turn_ratio": float((trace.column("turn") == 0).mean()),
        "soon_reuse_ratio": float(share_within(times, weights, [SOON_S])[0]),
        "soon_reuse_ratio_by_piece": float(share_within(times, np.ones(times.size), [SOON_S])[0]),
    }
