r"""The rate of requests over a day: counted in a trace, read from a file, or of parameters.

Sessions start at a rate that changes; their requests come later, spread over the session's life.
With ``D`` the time from a session's start to a request (any request, of any session alike), a
sine of session starts of relative height ``A`` makes a sine of requests of height
:math:`A\,|E\,e^{-i\omega D}|`, later by :math:`\arg(E\,e^{i\omega D})/\omega`: long sessions
flatten a day's peak and move it back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from smetric_model.errors import SpecError

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.workload.synthesis_parameters import WorkloadParameters
    from smetric_model.workload.trace import Trace

__all__ = [
    "DAY_S",
    "RateCurve",
    "diurnal_curve",
    "file_curve",
    "parameter_curve",
    "through_sessions",
    "trace_curve",
]

FloatArray = NDArray[np.float64]

DAY_S = 86_400.0
_NEARLY = 0.02  # of an interval may be missing at the end
_SESSIONS = 3_000  # drawn to learn when a session's requests come


@dataclass(frozen=True, eq=False)
class RateCurve:
    """Rate of requests by interval.

    Attributes
    ----------
    interval_s : float
        Length of each interval [s].
    rate_rps : ndarray, shape (intervals,)
        Mean rate in each [requests/s].
    source : str
        Where it comes from.
    periodic : bool
        Whether the first interval follows the last (a day like every other).
    counted : bool
        Whether requests were counted: rates then carry the noise of the counts.

    Raises
    ------
    SpecError
        If there is no interval, or a rate is negative or none is above 0.
    """

    interval_s: float
    rate_rps: FloatArray
    source: str
    periodic: bool = False
    counted: bool = False

    def __post_init__(self) -> None:
        rates = np.asarray(self.rate_rps, dtype=float)
        if not (math.isfinite(self.interval_s) and self.interval_s > 0):
            raise SpecError(
                f"interval_s = {self.interval_s!r}: a finite number above 0 [s] is needed"
            )
        if rates.ndim != 1 or not rates.size:
            raise SpecError(f"{self.source}: a rate for at least one interval is needed")
        if not np.isfinite(rates).all() or (rates < 0).any() or not (rates > 0).any():
            raise SpecError(f"{self.source}: rates must be numbers >= 0, one of them above 0")
        object.__setattr__(self, "rate_rps", rates)

    @property
    def mean_rps(self) -> float:
        """Mean rate [requests/s]."""
        return float(self.rate_rps.mean())

    @property
    def peak_rps(self) -> float:
        """Rate of the busiest interval [requests/s]."""
        return float(self.rate_rps.max())

    @property
    def peak_to_mean_ratio(self) -> float:
        """Busiest interval ÷ mean."""
        return self.peak_rps / self.mean_rps

    @property
    def length_s(self) -> float:
        """What the intervals cover together [s]."""
        return self.interval_s * self.rate_rps.size

    def with_mean(self, mean_rps: float) -> RateCurve:
        """Return the same shape at another mean rate.

        Parameters
        ----------
        mean_rps : float
            Above 0 [requests/s].

        Returns
        -------
        RateCurve

        Raises
        ------
        SpecError
            If it is not.
        """
        if not (math.isfinite(mean_rps) and mean_rps > 0):
            raise SpecError(f"mean rate = {mean_rps!r}: a finite number above 0 is needed")
        scaled = self.rate_rps * (mean_rps / self.mean_rps)
        return RateCurve(self.interval_s, scaled, self.source, self.periodic, self.counted)


def trace_curve(trace: Trace, interval_s: float) -> RateCurve:
    """Count a trace's requests by interval, from its first arrival; the cut-off end is left out.

    Parameters
    ----------
    trace : Trace
        One clock for all sessions.
    interval_s : float
        [s].

    Returns
    -------
    RateCurve
        Periodic where it covers whole days.

    Raises
    ------
    SpecError
        If the trace is shorter than an interval.
    TraceError
        If its sessions share no clock.
    """
    trace.require_shared_clock()
    _check_interval(interval_s)
    arrival = trace.column("arrival_s").astype(float)
    arrival = arrival - arrival.min()
    span = float(arrival.max())
    # first and last arrival lie a gap inside what was recorded
    intervals = int(span / interval_s + _NEARLY)
    if intervals < 1:
        raise SpecError(
            f"interval_s = {interval_s:g}: {trace.source} covers only {span:g} s; a shorter"
            " interval is needed"
        )
    counts = np.bincount((arrival / interval_s).astype(np.int64), minlength=intervals)
    days = intervals * interval_s / DAY_S
    whole_days = days >= 0.999 and abs(days - round(days)) < 0.01
    return RateCurve(
        interval_s, counts[:intervals] / interval_s, trace.source, whole_days, counted=True
    )


def diurnal_curve(
    mean_rps: float,
    amplitude_ratio: float,
    interval_s: float,
    *,
    period_s: float = DAY_S,
    peak_s: float = 0.5 * DAY_S,
    source: str = "sine",
) -> RateCurve:
    """Return a sine of requests: mean · (1 + amplitude · cos(2π (t − peak)/period)).

    Parameters
    ----------
    mean_rps : float
        [requests/s].
    amplitude_ratio : float
        Height ÷ mean, in [0, 1].
    interval_s : float
        Divides the period (else the last interval is shorter, and counted as whole) [s].
    period_s, peak_s : float
        Period, and when the rate is highest [s].
    source : str
        What it stands for.

    Returns
    -------
    RateCurve
        One period; rates are means of the intervals.

    Raises
    ------
    SpecError
        If a value is not allowed.
    """
    _check_interval(interval_s)
    if not (math.isfinite(mean_rps) and mean_rps > 0):
        raise SpecError(f"mean rate = {mean_rps!r}: a finite number above 0 is needed")
    if not 0 <= amplitude_ratio <= 1:
        raise SpecError(f"amplitude_ratio = {amplitude_ratio!r}: a number in [0, 1] is needed")
    if not (math.isfinite(period_s) and period_s >= interval_s):
        raise SpecError(
            f"period_s = {period_s!r}: a finite number, at least interval_s = {interval_s:g}, is"
            " needed"
        )
    intervals = max(round(period_s / interval_s), 1)
    edges = np.arange(intervals + 1) * interval_s
    turn = 2 * math.pi / period_s
    wave = np.sin(turn * (edges - peak_s)) / turn
    rates = mean_rps * (1 + amplitude_ratio * np.diff(wave) / interval_s)
    return RateCurve(interval_s, np.maximum(rates, 0.0), source, periodic=True)


def parameter_curve(
    parameters: WorkloadParameters,
    interval_s: float,
    rate_rps: float | None = None,
    seed: int = 0,
) -> RateCurve:
    """Return the curve of requests that a parameter set's session starts make.

    Parameters
    ----------
    parameters : WorkloadParameters
        ``arrivals.kind`` is ``poisson`` (a constant) or ``diurnal``.
    interval_s : float
        [s].
    rate_rps : float, optional
        Mean rate; by default that of the parameters [requests/s].
    seed : int, default 0
        Of the sessions drawn to learn when their requests come.

    Returns
    -------
    RateCurve
        One period of a diurnal set, one day of a constant one.

    Raises
    ------
    SpecError
        If the arrivals are of another kind: their rate is random.
    """
    arrivals = parameters.arrivals
    mean = parameters.rate_rps if rate_rps is None else rate_rps
    if arrivals.kind == "poisson":
        return diurnal_curve(mean, 0.0, interval_s, source=f"{parameters.name}: constant rate")
    if arrivals.kind != "diurnal":
        raise SpecError(
            f"{parameters.name}: arrivals.kind = {arrivals.kind!r} is a random rate; a curve is"
            " known for poisson and diurnal, else generate a trace and give that"
        )
    amplitude, delay_s = through_sessions(parameters, arrivals.period_s, seed)
    return diurnal_curve(
        mean,
        arrivals.amplitude_ratio * amplitude,
        interval_s,
        period_s=arrivals.period_s,
        peak_s=arrivals.peak_s + delay_s,
        source=f"{parameters.name}: sine of session starts, height {arrivals.amplitude_ratio:g};"
        f" of requests {arrivals.amplitude_ratio * amplitude:.3g}, {delay_s / 60:.0f} min later",
    )


def through_sessions(
    parameters: WorkloadParameters, period_s: float, seed: int = 0
) -> tuple[float, float]:
    """Return how much of a sine of session starts is left in the requests, and how much later.

    Parameters
    ----------
    parameters : WorkloadParameters
        The workload.
    period_s : float
        Of the sine [s].
    seed : int, default 0
        Of the sessions that are drawn.

    Returns
    -------
    left : float
        Height of the requests' sine ÷ that of the starts'.
    delay_s : float
        [s].
    """
    from smetric_model.workload.starts import root_sessions
    from smetric_model.workload.synthesis import generate

    # a few sessions, from their first turn to their last
    trace = generate(
        parameters.replace(**{"arrivals.kind": "poisson"}),
        sessions=_SESSIONS,
        window_s=3600.0,
        seed=seed,
        start="cold",
        ends="whole",
    )
    arrival = trace.column("arrival_s").astype(float)
    root = root_sessions(trace)[trace.require_sessions()]
    began = np.full(int(root.max()) + 1, np.inf)
    np.minimum.at(began, root, arrival)
    offset = arrival - began[root]
    turn = 2 * math.pi / period_s
    factor = complex(np.exp(-1j * turn * offset).mean())
    return abs(factor), -math.atan2(factor.imag, factor.real) / turn


def file_curve(path: str | Path) -> RateCurve:
    """Read a curve from a CSV file with the columns ``start_s`` and ``rate_rps``.

    Parameters
    ----------
    path : str or Path
        ``start_s`` grows by equal steps [s]; ``rate_rps`` is the mean rate from there to the next
        line [requests/s].

    Returns
    -------
    RateCurve
        Periodic where it covers whole days.

    Raises
    ------
    SpecError
        If the file cannot be read as that: names the line.
    """
    import pandas as pd

    path = Path(path)
    try:
        table = pd.read_csv(path)
    except FileNotFoundError:
        raise SpecError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise SpecError(f"{path}: not read as CSV: {error}") from None
    missing = {"start_s", "rate_rps"} - set(table.columns)
    if missing:
        raise SpecError(
            f"{path}: columns start_s and rate_rps are needed; there are"
            f" {', '.join(map(str, table.columns))}"
        )
    start, rate = _numbers(path, table, "start_s"), _numbers(path, table, "rate_rps")
    if start.size < 2:
        raise SpecError(f"{path}: at least two lines are needed, to know how long one is")
    steps = np.diff(start)
    odd = np.flatnonzero(~np.isclose(steps, steps[0], rtol=1e-6) | (steps <= 0))
    if odd.size:
        line = int(odd[0]) + 3  # the heading, and lines count from 1
        raise SpecError(
            f"{path}, line {line}: start_s = {start[odd[0] + 1]:g} comes {steps[odd[0]]:g} s after"
            f" the line before; equal steps of {steps[0]:g} s are needed"
        )
    if (rate < 0).any():
        line = int(np.flatnonzero(rate < 0)[0]) + 2
        raise SpecError(f"{path}, line {line}: rate_rps must be at least 0")
    days = steps[0] * rate.size / DAY_S
    return RateCurve(
        float(steps[0]), rate, path.name, days >= 0.999 and abs(days - round(days)) < 0.01
    )


def _numbers(path: Path, table: pd.DataFrame, name: str) -> FloatArray:
    import pandas as pd

    values: Any = pd.to_numeric(table[name], errors="coerce").to_numpy(dtype=float)
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        held = table[name].iloc[int(bad[0])]
        raise SpecError(f"{path}, line {int(bad[0]) + 2}: {name} = {held!r} is no finite number")
    return np.asarray(values)


def _check_interval(interval_s: float) -> None:
    if not (math.isfinite(interval_s) and interval_s > 0):
        raise SpecError(f"interval_s = {interval_s!r}: a finite number above 0 [s] is needed")
