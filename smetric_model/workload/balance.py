"""How evenly a workload can be spread: least in-flight tokens, the paper's Figure 9."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from smetric_model.errors import SpecError
from smetric_model.workload.intervals import window_index

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.workload.trace import Trace

__all__ = ["dispatch_balance", "service_times"]

FloatArray = npt.NDArray[np.float64]

#: Cells of the table of windows by instances that is kept in memory.
_MAX_CELLS = 50_000_000
#: Stated where a trace records no service times (see :func:`service_times`).
SECONDS_PER_NEW_TOKEN = 1e-4
SECONDS_PER_OUTPUT_TOKEN = 0.025


def service_times(
    trace: Trace,
    *,
    seconds_per_new_token: float = SECONDS_PER_NEW_TOKEN,
    seconds_per_output_token: float = SECONDS_PER_OUTPUT_TOKEN,
) -> tuple[FloatArray, float]:
    """Give each request its execution time: recorded, else a stated linear form.

    Parameters
    ----------
    trace : Trace
        Any trace.
    seconds_per_new_token, seconds_per_output_token : float
        Used where the trace records no time: seconds for each prompt token that ideal reuse leaves
        to compute (every prompt token without block ids), and for each output token [s].

    Returns
    -------
    service_s : ndarray of float64, shape (requests,)
        Times [s].
    recorded_ratio : float
        Share of the requests whose time the trace records.

    Raises
    ------
    SpecError
        If a factor is negative or not finite.
    """
    from smetric_model.workload.reuse import ideal_reuse

    for name, value in (
        ("seconds_per_new_token", seconds_per_new_token),
        ("seconds_per_output_token", seconds_per_output_token),
    ):
        if not (0 <= value < np.inf):
            raise SpecError(f"{name} is {value}; a number of at least 0 is needed")
    recorded = trace.column("e2e_s")
    known = ~np.isnan(recorded)
    new = trace.column("prompt_tokens").astype(np.float64)
    if trace.tree is not None and not known.all():
        new = new - ideal_reuse(trace)
    stated = new * seconds_per_new_token + trace.column("output_tokens") * seconds_per_output_token
    return np.where(known, recorded, stated), float(known.mean())


def dispatch_balance(
    trace: Trace,
    instances: int,
    *,
    window_s: float = 60.0,
    service_s: npt.ArrayLike | None = None,
) -> pd.DataFrame:
    """Per-window imbalance when each request goes to the instance with the fewest tokens in flight.

    Requests arrive as in the trace, stay for their service time whatever else runs, and count with
    all their tokens (prompt and output) while they stay.  Ties are broken round robin.

    Parameters
    ----------
    trace : Trace
        A trace with one clock.
    instances : int
        Number of instances.
    window_s : float, default 60
        Length of a window [s].
    service_s : array_like, shape (requests,), optional
        Service times [s]; default: :func:`service_times`.

    Returns
    -------
    DataFrame
        One row a window: ``start_s``; ``requests``; ``requests_per_instance``;
        ``imbalance_processed_tokens``, max ÷ mean over the instances of the tokens of the requests
        dispatched in the window; ``imbalance_inflight_tokens``, the same of the time average of
        tokens in flight.  NaN where a window has none.

    Raises
    ------
    TraceError
        If the sessions of the trace share no clock.
    SpecError
        If ``instances`` or ``window_s`` is not positive, or windows times instances are too many.

    References
    ----------
    The paper's Figure 9; it does not say which of the two token loads it means.
    """
    import pandas as pd

    from smetric_model.workload import _balance_kernels

    trace.require_shared_clock()
    if instances < 1:
        raise SpecError(f"instances is {instances}; at least 1 is needed")
    arrival_s = trace.column("arrival_s").astype(np.float64)
    service = np.asarray(
        service_times(trace)[0] if service_s is None else service_s, dtype=np.float64
    )
    if service.shape != arrival_s.shape or not (service >= 0).all():
        raise SpecError("service_s must hold one number of at least 0 for each request")
    window = window_index(arrival_s, window_s)
    count = int(window.max()) + 1
    if count * instances > _MAX_CELLS:
        raise SpecError(
            f"{count:,} windows times {instances:,} instances are more than {_MAX_CELLS:,}; "
            "choose a longer window_s"
        )
    tokens = (trace.column("prompt_tokens") + trace.column("output_tokens")).astype(np.float64)
    processed = np.zeros((count, instances))
    inflight = np.zeros((count, instances))
    _balance_kernels.least_inflight(
        arrival_s - arrival_s.min(), service, tokens, window, window_s, processed, inflight
    )
    requests = np.bincount(window, minlength=count)
    return pd.DataFrame(
        {
            "start_s": arrival_s.min() + window_s * np.arange(count),
            "requests": requests,
            "requests_per_instance": requests / instances,
            "imbalance_processed_tokens": _imbalance(processed),
            "imbalance_inflight_tokens": _imbalance(inflight),
        }
    )


def _imbalance(load: FloatArray) -> FloatArray:
    mean = load.mean(axis=1)
    result: FloatArray = np.full(mean.shape, np.nan)
    np.divide(load.max(axis=1), mean, out=result, where=mean > 0)
    return result
