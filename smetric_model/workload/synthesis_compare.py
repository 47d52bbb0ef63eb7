"""How far two traces are apart: marginals and reuse."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.workload.trace import Trace

__all__ = ["compare", "ks_distance", "marginals"]

FloatArray = npt.NDArray[np.float64]


def ks_distance(
    one: npt.ArrayLike,
    two: npt.ArrayLike,
    one_weights: npt.ArrayLike | None = None,
    two_weights: npt.ArrayLike | None = None,
) -> float:
    """Largest vertical distance between two (weighted) empirical distribution functions.

    Parameters
    ----------
    one, two : array_like
        Values.
    one_weights, two_weights : array_like, optional
        Weight of each value, at least 0; equal by default.

    Returns
    -------
    float
        Kolmogorov-Smirnov distance in [0, 1]; NaN where either side has no value or no weight.
    """
    sides = []
    for values, weights in ((one, one_weights), (two, two_weights)):
        x = np.asarray(values, dtype=np.float64)
        w = np.ones(x.size) if weights is None else np.asarray(weights, dtype=np.float64)
        if not w.sum() > 0:
            return float("nan")
        order = np.argsort(x, kind="stable")
        sides.append((x[order], np.concatenate(([0.0], np.cumsum(w[order]) / w.sum()))))
    at = np.concatenate([x for x, _ in sides])
    below = [total[np.searchsorted(x, at, side="right")] for x, total in sides]
    return float(np.abs(below[0] - below[1]).max())


def marginals(trace: Trace) -> dict[str, tuple[FloatArray, FloatArray]]:
    """Values and weights of the quantities by which traces are compared.

    Parameters
    ----------
    trace : Trace
        A trace with block ids and sessions.

    Returns
    -------
    dict of str to (values, weights)
        ``turns`` (one a session); ``prompt_tokens``, ``output_tokens`` (one a request);
        ``first_prompt_tokens`` (turn 0); ``new_tokens``, what ideal reuse leaves to compute on
        later turns; ``think_time_s``; ``e2e_s``; ``reuse_interval_s``, from the last toucher's
        completion, weighted by tokens.  Unknown times are left out.
    """
    from smetric_model.workload.intervals import reuse_intervals
    from smetric_model.workload.reuse import last_touches

    touches = last_touches(trace)
    reused = np.zeros(len(trace))
    np.add.at(reused, touches.request, touches.tokens)
    prompt = trace.column("prompt_tokens").astype(np.float64)
    first = trace.column("turn") == 0
    intervals = reuse_intervals(trace, touches)
    values = {
        "turns": np.bincount(trace.require_sessions()).astype(np.float64),
        "first_prompt_tokens": prompt[first],
        "prompt_tokens": prompt,
        "new_tokens": (prompt - reused)[~first],
        "output_tokens": trace.column("output_tokens").astype(np.float64),
        "think_time_s": trace.column("think_time_s").astype(np.float64),
        "e2e_s": trace.column("e2e_s").astype(np.float64),
        "reuse_interval_s": intervals["interval_s"].to_numpy(dtype=np.float64),
    }
    result = {}
    for name, x in values.items():
        weights = np.ones(x.size)
        if name == "reuse_interval_s":
            weights = intervals["tokens"].to_numpy(dtype=np.float64)
        known = ~np.isnan(x)
        result[name] = (x[known], weights[known])
    return result


def compare(trace: Trace, generated: Trace) -> pd.DataFrame:
    """Compare two traces quantity by quantity.

    Parameters
    ----------
    trace, generated : Trace
        Traces with block ids and sessions.

    Returns
    -------
    DataFrame
        Rows: the quantities of :func:`marginals`, with ``ks`` and, for each of the two, ``mean``,
        ``p50`` and ``p90`` (weighted alike); then the ratios of
        :func:`~smetric_model.workload.synthesis_statistics.traffic_statistics`, with ``mean`` only
        and the difference in place of ``ks``.
    """
    import pandas as pd

    from smetric_model.workload.synthesis_statistics import traffic_statistics

    rows = {}
    ours = marginals(generated)
    for name, (x, w) in marginals(trace).items():
        y, v = ours[name]
        rows[name] = {"ks": ks_distance(x, y, w, v)}
        for label, values, weights in (("trace", x, w), ("generated", y, v)):
            rows[name] |= {
                f"{label}_mean": float(np.average(values, weights=weights))
                if weights.sum() > 0
                else float("nan"),
                f"{label}_p50": _quantile(values, weights, 0.5),
                f"{label}_p90": _quantile(values, weights, 0.9),
            }
    one, two = traffic_statistics(trace), traffic_statistics(generated)
    for name, value in one.items():
        if name.endswith("_ratio"):
            rows[name] = {
                "ks": abs(two[name] - value),
                "trace_mean": value,
                "generated_mean": two[name],
            }
    frame = pd.DataFrame.from_dict(rows, orient="index")
    frame.index.name = "quantity"
    return frame


def _quantile(values: FloatArray, weights: FloatArray, share: float) -> float:
    if not weights.sum() > 0:
        return float("nan")
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    place = int(np.searchsorted(total, share * total[-1]))
    return float(values[order][min(place, values.size - 1)])
