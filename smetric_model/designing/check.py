"""Designs checked by simulation: the number of instances is what simulation confirms.

At each number tried the scenario is simulated with the same seeds.  A number is *confirmed* where
the mean share within SLO over the seeds reaches the wanted one, there and at every larger number
tried, and not with one instance less.
Around it stand the numbers at which the interval of the mean over seeds still, and already, allows
the other answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from smetric_model.designing.runs import Row, Runs
from smetric_model.searches import fewest_steps
from smetric_model.tuning.sizing import with_instances

if TYPE_CHECKING:
    from smetric_model.scenario import Scenario

__all__ = ["Check", "Try", "check_capacity", "check_instances"]

#: numbers of instances that are tried for one design, beyond those for its range
MOST_TRIES = 14
#: numbers on either side of the confirmed one that are tried for its range
REACH = 3
_CONFIDENCE = 0.95
_LARGEST = 1 << 20


@dataclass(frozen=True)
class Try:
    """One number of instances, simulated with several seeds.

    Attributes
    ----------
    instances : int
    shares : tuple of float
        Share of the requests within SLO, a seed each; NaN where it could not be simulated.
    mean, half_width : float
        Their mean, and half the 95 % interval of it (Student's t over seeds).
    total_within_slo_tps, total_tps, ttft_p90_s, tpot_p90_s : float
        Means over the seeds.
    arrival_rate_rps : float
        Requests per second that arrived in the windows, mean over the seeds; NaN where unknown.
    error : str
        Why a seed has no answer.
    """

    instances: int
    shares: tuple[float, ...]
    mean: float
    half_width: float
    total_within_slo_tps: float
    total_tps: float
    ttft_p90_s: float
    tpot_p90_s: float
    error: str = ""
    arrival_rate_rps: float = math.nan


@dataclass(frozen=True)
class Check:
    """What simulation says of a design.

    Attributes
    ----------
    instances : int or None
        Fewest of those tried from which on all tried reach the share; None where none does.
    low, high : int or None
        Fewest instances at which the upper, and the lower, end of the interval over seeds reaches
        the wanted share; None where no number tried does.
    closed_form : int
        What the closed form had said.
    tries : tuple of Try
        In order of instances.
    complete : bool
        Whether the tries settle it: one instance less was tried, and misses the share (or cannot
        be).  If not, the search ran out of tries or time.
    """

    instances: int | None
    low: int | None
    high: int | None
    closed_form: int
    tries: tuple[Try, ...] = field(repr=False)
    complete: bool = True

    @property
    def at(self) -> Try | None:
        """The try at the confirmed number, else the best one."""
        if not self.tries:
            return None
        for tried in self.tries:
            if tried.instances == self.instances:
                return tried
        return max(self.tries, key=lambda t: -1.0 if math.isnan(t.mean) else t.mean)

    @property
    def refuted(self) -> int | None:
        """Most instances below the answer that were tried, and miss the share; None: none were."""
        if self.instances is None:
            return None
        return max((t.instances for t in self.tries if t.instances < self.instances), default=None)

    def tried(self, instances: int) -> Try | None:
        """Return the try at a number of instances, or None."""
        return next((t for t in self.tries if t.instances == instances), None)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        return asdict(self)


def check_instances(
    runs: Runs,
    designs: Mapping[str, Scenario],
    starts: Mapping[str, int],
    seeds: Sequence[int],
    range_of: Callable[[Mapping[str, Check]], Sequence[str]],
    deadline: float = math.inf,
) -> dict[str, Check]:
    """Find by simulation how many instances designs need.

    Parameters
    ----------
    runs : Runs
        Where simulations are run.
    designs : mapping of str to Scenario
        By name.
    starts : mapping of str to int
        What the closed form says.
    seeds : sequence of int
        The same for all.
    range_of : callable
        Given all checks: names of the designs whose range is worked out as well.
    deadline : float
        Of ``time.monotonic``; after it no new round is begun.

    Returns
    -------
    dict of str to Check
    """
    tries: dict[str, dict[int, Try]] = {name: {} for name in designs}
    searches: dict[str, Generator[int, bool, int | None]] = {}
    asked: dict[str, int] = {}
    for name, scenario in designs.items():
        least = 2 if scenario.cluster.serving == "disaggregated" else 1
        searches[name] = fewest_steps(starts[name], least, _LARGEST)
        asked[name] = next(searches[name])
    while asked:
        if time.monotonic() > deadline:
            break
        _try(runs, {(name, count): designs[name] for name, count in asked.items()}, seeds, tries)
        for name in list(asked):
            if tries[name][asked[name]].error:
                del asked[name]  # no number of instances makes it answer
                continue
            good = _reaches(tries[name][asked[name]], designs[name], 0.0)
            try:
                asked[name] = searches[name].send(good)
            except StopIteration:
                del asked[name]
                continue
            if len(tries[name]) >= MOST_TRIES:
                del asked[name]

    def checks() -> dict[str, Check]:
        # from all tries, so that those for a range count too
        return {name: _check(designs[name], starts[name], tries[name]) for name in designs}

    for name in range_of(checks()):
        centre = None
        # where the search was cut short, the first range may find fewer
        while (found := checks()[name].instances) != centre:
            _range(runs, name, designs[name], found, seeds, tries, deadline)
            centre = found
    return checks()


def _range(
    runs: Runs,
    name: str,
    scenario: Scenario,
    centre: int | None,
    seeds: Sequence[int],
    tries: dict[str, dict[int, Try]],
    deadline: float,
) -> None:
    """Try around the confirmed number until the interval over seeds is on one side."""
    if centre is None:
        return
    least = 2 if scenario.cluster.serving == "disaggregated" else 1
    for way, sign in ((1, -1.0), (-1, 1.0)):
        for step in range(REACH + 1):
            count = centre + way * step
            if count < least or time.monotonic() > deadline:
                break
            if count not in tries[name]:
                _try(runs, {(name, count): scenario}, seeds, tries)
            # upwards until the lower end reaches the share, downwards until the upper does not
            if _reaches(tries[name][count], scenario, sign) == (way == 1):
                break


def _try(
    runs: Runs,
    wanted: Mapping[tuple[str, int], Scenario],
    seeds: Sequence[int],
    tries: dict[str, dict[int, Try]],
) -> None:
    asked = {
        f"{name}, {count} instances": with_instances(scenario, count)
        for (name, count), scenario in wanted.items()
    }
    for (name, count), rows in zip(wanted, runs.simulate(asked, seeds), strict=True):
        tries[name][count] = _summary(count, rows)


def _summary(instances: int, rows: Sequence[Row]) -> Try:
    from scipy.special import stdtrit  # Student's t, without the second that scipy.stats takes

    def values(column: str) -> list[float]:
        return [math.nan if row.get(column) is None else float(row[column]) for row in rows]

    shares = values("within_slo_ratio")
    count = len(shares)
    mean = sum(shares) / count
    half = math.inf
    if count > 1:
        variance = sum((share - mean) ** 2 for share in shares) / (count - 1)
        half = float(stdtrit(count - 1, 0.5 + _CONFIDENCE / 2)) * math.sqrt(variance / count)

    def average(column: str) -> float:
        return sum(values(column)) / count

    return Try(
        instances=instances,
        shares=tuple(shares),
        mean=mean,
        half_width=half,
        total_within_slo_tps=average("total_within_slo_tps"),
        total_tps=average("total_tps"),
        ttft_p90_s=average("ttft_p90_s"),
        tpot_p90_s=average("tpot_p90_s"),
        arrival_rate_rps=average("arrival_rate_rps"),
        error=next((str(row["error"]) for row in rows if row.get("error")), ""),
    )


def _reaches(tried: Try, scenario: Scenario, side: float) -> bool:
    """Whether the mean (side 0), or an end of its interval (-1, 1), reaches the wanted share."""
    shift = side * tried.half_width if side else 0.0
    return bool(tried.mean + shift >= scenario.slo.attainment)


def _check(scenario: Scenario, closed_form: int, tries: Mapping[int, Try]) -> Check:
    """Return what the tries say, whichever search they come from."""
    ordered = sorted(tries)
    found = None
    for count in reversed(ordered):
        if not _reaches(tries[count], scenario, 0.0):
            break
        found = count
    if found is None:  # by noise the largest misses what a smaller one reaches
        found = min((n for n in ordered if _reaches(tries[n], scenario, 0.0)), default=None)
    least = 2 if scenario.cluster.serving == "disaggregated" else 1
    low = next((n for n in ordered if _reaches(tries[n], scenario, 1.0)), None)
    high = next(
        (n for n in ordered if _reaches(tries[n], scenario, -1.0) and (found or 0) <= n), None
    )
    if found is not None and low is not None:
        low = min(low, found)
    complete = found is not None and (found - 1 in tries or found <= least)
    return Check(found, low, high, closed_form, tuple(tries[n] for n in ordered), complete)


def check_capacity(
    runs: Runs, designs: Mapping[str, Scenario], seeds: Sequence[int]
) -> dict[str, Check]:
    """Simulate designs at their own instances and rate.

    Parameters
    ----------
    runs, designs, seeds
        As of :func:`check_instances`; each design's rate is what the closed form says it attains.

    Returns
    -------
    dict of str to Check
        ``instances`` is None where the share is missed at that rate.
    """
    checks = {}
    for (name, scenario), rows in zip(designs.items(), runs.simulate(designs, seeds), strict=True):
        count = scenario.cluster.instances
        tried = _summary(count, rows)
        # one number was asked for: there is nothing to search
        checks[name] = replace(_check(scenario, count, {count: tried}), complete=True)
    return checks
