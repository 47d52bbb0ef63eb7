"""Designs checked by simulation: the number of instances is what simulation confirms.

At each number tried the scenario is simulated with the same seeds.  A number is *confirmed* where
the mean share within SLO over the seeds reaches the wanted one, and not with one instance less.
Around it stand the numbers at which the interval of the mean over seeds still, and already, allows
the other answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from smetric_model.designing.runs import Row, Runs
from smetric_model.searches import fewest_steps
from smetric_model.tuning.sizing import with_instances

if TYPE_CHECKING:
    from smetric_model.scenario import Scenario

__all__ = ["Check", "Try", "check_capacity", "check_instances"]

#: numbers of instances that are tried for one design, beyond those for its range
MOST_TRIES = 8
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


@dataclass(frozen=True)
class Check:
    """What simulation says of a design.

    Attributes
    ----------
    instances : int or None
        Confirmed number; None where none of those tried reaches the share.
    low, high : int or None
        Fewest instances at which the upper, and the lower, end of the interval over seeds reaches
        the wanted share; None where no number tried does.
    closed_form : int
        What the closed form had said.
    tries : tuple of Try
        In order of instances.
    complete : bool
        Whether the search came to its end (not out of tries or time).
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
    found: dict[str, int | None] = {}
    cut: set[str] = set()
    for name, scenario in designs.items():
        least = 2 if scenario.cluster.serving == "disaggregated" else 1
        searches[name] = fewest_steps(starts[name], least, _LARGEST)
        asked[name] = next(searches[name])
    while asked:
        if time.monotonic() > deadline:
            cut |= set(asked)
            break
        _try(runs, {(name, count): designs[name] for name, count in asked.items()}, seeds, tries)
        for name in list(asked):
            if tries[name][asked[name]].error:
                cut.add(name)  # no number of instances makes it answer
                del asked[name]
                continue
            good = _reaches(tries[name][asked[name]], designs[name], 0.0)
            try:
                asked[name] = searches[name].send(good)
            except StopIteration as end:
                found[name] = end.value
                del asked[name]
                continue
            if len(tries[name]) >= MOST_TRIES:
                cut.add(name)
                del asked[name]
    for name in cut:
        passed = [n for n, t in tries[name].items() if _reaches(t, designs[name], 0.0)]
        found[name] = min(passed, default=None)

    def checks() -> dict[str, Check]:
        return {
            name: _check(designs[name], starts[name], found[name], tries[name], name not in cut)
            for name in designs
        }

    for name in range_of(checks()):
        _range(runs, name, designs[name], found[name], seeds, tries, deadline)
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
        error=next((str(row["error"]) for row in rows if row.get("error")), ""),
    )


def _reaches(tried: Try, scenario: Scenario, side: float) -> bool:
    """Whether the mean (side 0), or an end of its interval (-1, 1), reaches the wanted share."""
    shift = side * tried.half_width if side else 0.0
    return bool(tried.mean + shift >= scenario.slo.attainment)


def _check(
    scenario: Scenario,
    closed_form: int,
    found: int | None,
    tries: Mapping[int, Try],
    complete: bool,
) -> Check:
    ordered = sorted(tries)
    low = next((n for n in ordered if _reaches(tries[n], scenario, 1.0)), None)
    high = next(
        (n for n in ordered if _reaches(tries[n], scenario, -1.0) and (found or 0) <= n), None
    )
    if found is not None and low is not None:
        low = min(low, found)
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
        found = count if _reaches(tried, scenario, 0.0) else None
        checks[name] = _check(scenario, count, found, {count: tried}, True)
    return checks
