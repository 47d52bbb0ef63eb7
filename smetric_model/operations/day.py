"""A day simulated: a workload whose rate changes, on instances that come and go."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from smetric_model.errors import SpecError
from smetric_model.operations.findings import Progress, silent
from smetric_model.operations.rate_curve import RateCurve, through_sessions

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.scenario import Scenario
    from smetric_model.workload.synthesis_parameters import WorkloadParameters
    from smetric_model.workload.trace import Trace

__all__ = ["absences", "diurnal_parameters", "simulated_day"]

#: A request that is on an instance when it is taken away is tried again at once, so often.
_RETRIES = 3


def diurnal_parameters(
    parameters: WorkloadParameters,
    amplitude_ratio: float,
    peak_s: float,
    period_s: float,
    seed: int = 0,
) -> WorkloadParameters:
    """Return parameters whose *requests* follow a sine: that of session starts is higher, earlier.

    Parameters
    ----------
    parameters : WorkloadParameters
        The workload.
    amplitude_ratio : float
        Height of the requests' sine ÷ mean, in [0, 1].
    peak_s, period_s : float
        When the requests' rate is highest, and the period [s].
    seed : int, default 0
        Of the sessions drawn to learn when their requests come.

    Returns
    -------
    WorkloadParameters

    Raises
    ------
    SpecError
        If sessions are too long for so high a sine.
    """
    left, delay_s = through_sessions(parameters, period_s, seed)
    if not amplitude_ratio <= left:
        raise SpecError(
            f"amplitude_ratio = {amplitude_ratio:g}: sessions of {parameters.name} leave"
            f" {left:.3g} of a sine of their starts with period {period_s:g} s; at most that is"
            " needed"
        )
    arrivals = dataclasses.replace(
        parameters.arrivals,
        kind="diurnal",
        amplitude_ratio=amplitude_ratio / left,
        period_s=period_s,
        peak_s=peak_s - delay_s,
    )
    return parameters.replace(arrivals=arrivals)


def absences(
    instances: NDArray[np.int64], step_s: float, length_s: float, drain_s: float = 0.0
) -> list[dict[str, Any]]:
    """Return when each instance is not there, as ``failures`` of a scenario.

    Parameters
    ----------
    instances : ndarray of int, shape (steps,)
        How many are there; the last come last and go first.
    step_s : float
        Length of a step [s].
    length_s : float
        An absence that lasts beyond this never ends [s].
    drain_s : float, default 0
        For how long before it goes an instance gets nothing new [s].

    Returns
    -------
    list of dict
        Tables ``instance``, ``at_s``, ``down_s`` and, if asked, ``drain_s``.
    """
    drained = {"drain_s": drain_s} if drain_s > 0 else {}
    tables = []
    for number in range(int(instances.max())):
        away = np.concatenate(([False], instances <= number, [False]))
        edges = np.flatnonzero(np.diff(away.astype(np.int8)))
        for first, after in edges.reshape(-1, 2):
            at, back = first * step_s, after * step_s
            down = math.inf if back >= length_s else back - at
            tables.append({"instance": number, "at_s": float(at), "down_s": float(down)} | drained)
    return tables


def simulated_day(
    scenario: Scenario,
    curve: RateCurve,
    instances: NDArray[np.int64],
    step_s: float,
    trace: Trace,
    progress: Progress = silent,
    drain_s: float = 0.0,
) -> pd.DataFrame:
    """Simulate a workload of changing rate on instances that come and go.

    Parameters
    ----------
    scenario : Scenario
        LLM, engines, tiers, router, SLO.
    curve : RateCurve
        Of the trace: its intervals are the table's lines.
    instances : ndarray of int, shape (steps,)
        How many serve in each step.
    step_s : float
        Length of a step [s].
    trace : Trace
        The workload, at its own rate, from its first arrival.
    progress : callable, optional
        Told what is simulated.
    drain_s : float, default 0
        For how long before it goes an instance gets nothing new and finishes what it has [s].

    Returns
    -------
    DataFrame
        One line an interval: ``start_s``, ``requests``, ``within_slo_ratio``, ``failed``.

    Raises
    ------
    SpecError
        If the scenario asks for what is not simulated.
    TraceError
        If its sessions share no clock.

    Notes
    -----
    An instance that goes loses the requests that it has not finished, which are tried again, and
    its cache; the global tier is that of the whole cluster all the time.
    """
    from smetric_model.operations.after_event import binned
    from smetric_model.simulate import simulate
    from smetric_model.tuning.sizing import with_instances

    trace.require_shared_clock()
    progress(f"simulating {curve.length_s / 3600:.3g} h of {len(trace):,} requests")
    whole = with_instances(scenario, int(instances.max()))
    asked = whole.replace(
        **{
            "workload.rate_rps": "trace",
            "workload.session_start": "trace",
            "workload.start": "cold",
            "workload.warmup_s": 0.0,
            "workload.window_s": curve.length_s,
            "router.detection_s": 0.0,
            "client.retries": max(scenario.client.retries, _RETRIES),
            "failures": absences(instances, step_s, curve.length_s, drain_s) or None,
        }
    )
    outcome = simulate(asked, trace)
    requests = outcome.requests
    assert requests is not None
    sums = binned(requests, 0.0, curve.interval_s).reindex(range(curve.rate_rps.size), fill_value=0)
    share: pd.Series[float] = sums["within_slo"] / np.maximum(sums["requests"], 1)
    return sums.assign(
        start_s=np.arange(curve.rate_rps.size) * curve.interval_s,
        within_slo_ratio=share.where(sums["requests"] > 0),
    )[["start_s", "requests", "within_slo_ratio", "failed"]].reset_index(drop=True)
