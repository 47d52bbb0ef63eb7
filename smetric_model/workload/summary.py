"""A trace in a few numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from smetric_model.workload.trace import Trace

__all__ = ["summarise"]


def summarise(trace: Trace) -> dict[str, Any]:
    """Totals, quantiles and ideal reuse of a trace.

    Parameters
    ----------
    trace : Trace
        Any trace.

    Returns
    -------
    dict
        ``requests``; ``sessions`` (None while unknown); ``prompt_tokens``, ``output_tokens``
        (totals); ``first_turn_ratio`` (÷ requests; None while sessions are unknown);
        ``ideal_reuse_ratio`` (÷ prompt tokens; None without block ids); ``fully_cached_requests``;
        ``repaired``, ``dropped`` (counts) and ``report`` (by kind); ``prompt_tokens_p50`` …;
        ``span_s``; ``format``, ``session_clock``, ``block_tokens``.
    """
    from smetric_model.workload.reuse import ideal_reuse

    prompt = trace.column("prompt_tokens")
    output = trace.column("output_tokens")
    result: dict[str, Any] = {
        "source": trace.source,
        "format": trace.format,
        "requests": len(trace),
        "sessions": trace.sessions,
        "prompt_tokens": int(prompt.sum()),
        "output_tokens": int(output.sum()),
        "first_turn_ratio": None,
        "ideal_reuse_ratio": None,
        "fully_cached_requests": None,
        "repaired": trace.report.repaired,
        "dropped": trace.report.dropped,
        "block_tokens": trace.block_tokens,
        "session_clock": trace.session_clock,
        "span_s": float(np.ptp(trace.column("arrival_s"))),
    }
    if trace.sessions is not None:
        result["first_turn_ratio"] = float((trace.column("turn") == 0).mean())
    if trace.tree is not None:
        reused = ideal_reuse(trace)
        result["ideal_reuse_ratio"] = float(reused.sum() / prompt.sum())
        result["fully_cached_requests"] = int((reused == prompt).sum())
    for name, values in (("prompt_tokens", prompt), ("output_tokens", output)):
        for percent in (50, 90, 99):
            result[f"{name}_p{percent}"] = float(np.percentile(values, percent))
    result["report"] = [
        {"action": e.action, "kind": e.kind, "count": e.count, "lines": e.lines}
        for e in trace.report
    ]
    return result
