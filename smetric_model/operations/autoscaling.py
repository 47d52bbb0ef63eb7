r"""How many instances a changing rate needs, and what an autoscaler pays for them.

At each moment the cluster needs the fewest instances :math:`n(t)` with the wanted share of the
requests within SLO at the rate of that moment (quasi-static: the interval is long beside a
request).  Since an instance serves only a time ``lead`` after it is ordered (start-up, and warming
its caches), and is kept for ``keep`` after it was last needed, an autoscaler that knows the day
ahead pays for

.. math:: p(t) = \max\Big(\text{minimum}, \max_{t - keep \le u \le t + lead} n(u)\Big),

and one that only sees the present has :math:`r(t) = \max_{t-lead-keep \le u \le t-lead} n(u)`
ready, which is too few wherever the need has grown within ``lead``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smetric_model.errors import SpecError
from smetric_model.operations.findings import Progress, silent
from smetric_model.operations.rate_curve import RateCurve

if TYPE_CHECKING:
    from smetric_model.analytic.demand import Demand
    from smetric_model.scenario import Scenario

__all__ = ["Autoscaler", "Schedule", "instances_at_rates", "schedule"]

IntArray = NDArray[np.int64]

_STEP_S = 60.0  # schedules change at multiples of this, or of an interval where that is shorter


@dataclass(frozen=True)
class Autoscaler:
    """How instances come and go.

    Attributes
    ----------
    startup_s : float, default 300
        From the order until an instance serves: machine, container, weights into GPU memory
        (an assumption; measure yours) [s].
    warm_s : float, default 0
        From there until its caches are as full as the others' [s].
    keep_s : float, default 300
        How long an instance is kept after it was last needed (the default stabilisation window of
        Kubernetes' horizontal pod autoscaler for scaling down) [s].
    minimum_instances : int, default 1
        Never fewer.

    Raises
    ------
    SpecError
        If a time is negative or the minimum below 1.
    """

    startup_s: float = 300.0
    warm_s: float = 0.0
    keep_s: float = 300.0
    minimum_instances: int = 1

    def __post_init__(self) -> None:
        for name in ("startup_s", "warm_s", "keep_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise SpecError(f"{name} = {value!r}: a finite number of at least 0 [s] is needed")
        if self.minimum_instances < 1:
            raise SpecError(f"minimum_instances = {self.minimum_instances!r}: at least 1 is needed")

    @property
    def lead_s(self) -> float:
        """From the order until an instance serves as the others do [s]."""
        return self.startup_s + self.warm_s


class Schedule(NamedTuple):
    """Instances over time, in steps of ``step_s``; arrays of shape (steps,).

    Attributes
    ----------
    step_s : float
        Length of a step [s].
    needed : ndarray of int
        By the rate of the moment.
    ideal : ndarray of int
        Paid for where instances come and go at once, with the minimum.
    paid : ndarray of int
        Paid for by an autoscaler that knows the curve ahead: none is missing.
    reactive_paid, reactive_ready : ndarray of int
        Paid for, and serving, where it sees the present only.
    """

    step_s: float
    needed: IntArray
    ideal: IntArray
    paid: IntArray
    reactive_paid: IntArray
    reactive_ready: IntArray

    @property
    def short_ratio(self) -> float:
        """Share of the time in which the one that sees the present has too few ready."""
        return float((self.reactive_ready < self.needed).mean())

    def ready(self, autoscaler: Autoscaler) -> IntArray:
        """Return the instances that serve, warm or not, where the curve is known ahead.

        Parameters
        ----------
        autoscaler : Autoscaler
            As for the schedule.

        Returns
        -------
        ndarray of int
            Those paid for, less those that still start up.
        """
        late = math.ceil(autoscaler.startup_s / self.step_s - 1e-9)
        kept = self.paid.copy()
        for back in range(1, late + 1):
            kept[back:] = np.minimum(kept[back:], self.paid[:-back])
        return np.maximum(kept, self.needed)


def instances_at_rates(
    scenario: Scenario,
    rates_rps: NDArray[np.float64],
    demand: Demand,
    progress: Progress = silent,
) -> IntArray:
    """Return the fewest instances for each of many rates, in closed form.

    More of a rate never needs fewer instances: rates between two with the same need are not worked
    out.

    Parameters
    ----------
    scenario : Scenario
        The question; its rate and number of instances are not looked at.
    rates_rps : ndarray
        Requests of the cluster [requests/s]; 0 needs none.
    demand : Demand
        Its workload.
    progress : callable, optional
        Told what is worked out.

    Returns
    -------
    ndarray of int
        −1 where no number of instances is enough.
    """
    from smetric_model.tuning.sizing import fewest_instances, with_instances

    rates, place = np.unique(np.asarray(rates_rps, dtype=float), return_inverse=True)
    found = np.zeros(rates.size, np.int64)
    if rates.size == 0:
        return found
    worked = 0

    def work_out(index: int, guess: int) -> int:
        nonlocal worked
        worked += 1
        progress(f"instances for {rates[index]:.3g} requests/s (rate {worked})")
        asked = with_instances(scenario, max(guess, _fewest(scenario)))
        asked = asked.replace(**{"workload.rate_rps": float(rates[index])})
        needed = fewest_instances(asked, demand=demand).instances
        return -1 if needed is None else needed

    first = int(np.searchsorted(rates, 0.0, side="right"))
    if first == rates.size:
        return found[place]
    last = rates.size - 1
    found[last] = work_out(last, scenario.cluster.instances)
    guess = found[last] if found[last] > 0 else scenario.cluster.instances
    if first < last:
        found[first] = work_out(first, max(int(guess * rates[first] / rates[last]), 1))
    spans = [(first, last)]
    while spans:
        low, high = spans.pop()
        if found[low] == found[high]:
            found[low : high + 1] = found[low]
        elif high - low > 1:
            middle = (low + high) // 2
            nearest = found[low] if found[high] < 0 else found[high]
            found[middle] = work_out(middle, int(nearest) if nearest > 0 else 1)
            spans += [(low, middle), (middle, high)]
    return found[place]


def _fewest(scenario: Scenario) -> int:
    return 2 if scenario.cluster.serving == "disaggregated" else 1


def schedule(curve: RateCurve, needed: IntArray, autoscaler: Autoscaler) -> Schedule:
    """Return what autoscalers do along a curve.

    Parameters
    ----------
    curve : RateCurve
        For its intervals; outside a curve that is not periodic the need is that of its ends.
    needed : ndarray of int, shape (intervals,)
        Instances each interval needs, at least 0.
    autoscaler : Autoscaler
        How instances come and go.

    Returns
    -------
    Schedule
    """
    parts = max(round(curve.interval_s / _STEP_S), 1)
    step = curve.interval_s / parts
    need = np.repeat(np.asarray(needed, dtype=np.int64), parts)
    ideal = np.maximum(need, autoscaler.minimum_instances)
    lead = math.ceil(autoscaler.lead_s / step - 1e-9)
    startup = math.ceil(autoscaler.startup_s / step - 1e-9)
    keep = math.ceil(autoscaler.keep_s / step - 1e-9)
    paid = _largest(ideal, -keep, lead, curve.periodic)
    ready = _largest(ideal, -keep - lead, -lead, curve.periodic)
    # paid from the order on; what is ready has been ordered a lead earlier
    ordered = _largest(ideal, -keep - startup, 0, curve.periodic)
    return Schedule(step, need, ideal, paid, np.maximum(ordered, ready), ready)


def _largest(values: IntArray, first: int, last: int, periodic: bool) -> IntArray:
    """Largest of the values from ``first`` to ``last`` steps away, both included."""
    from scipy.ndimage import maximum_filter1d

    size = last - first + 1
    around = max(abs(first), abs(last)) + size
    padded = np.pad(values, around, "wrap") if periodic else np.pad(values, around, "edge")
    # the filter's window is centred: shift so that it covers [first, last]
    filtered = maximum_filter1d(padded, size, mode="nearest")
    centre = first + size // 2
    start = around + centre
    return np.asarray(filtered[start : start + values.size], dtype=np.int64)
