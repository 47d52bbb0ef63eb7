"""Which designs come first, and which are worth a simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence

from smetric_model.designing.results import DesignResult, Goal

__all__ = ["candidates", "only", "rank"]

TIER = "global_tier.bytes_per_node"
LINK = "cluster.nic_bytes_per_s"


def rank(results: Sequence[DesignResult], goal: Goal) -> list[DesignResult]:
    """Sort designs that have an answer, the best first.

    Cheapest first (capacity: most requests for the money); between equals the one with less global
    tier and slower links, then the one that changes less, then the larger share within SLO.

    Parameters
    ----------
    results : sequence of DesignResult
    goal : {"instances", "capacity"}

    Returns
    -------
    list of DesignResult
    """
    possible = [r for r in results if r.scenario is not None and r.bill is not None]

    def key(result: DesignResult) -> tuple[float, ...]:
        assert result.bill is not None
        assert result.scenario is not None
        cost = result.bill.total
        if goal == "capacity":
            cost /= max(result.number("rate_rps"), 1e-300)
        section = result.scenario.cluster
        tier = result.scenario.global_tier.bytes_per_node
        line = section.nics_per_node * section.nic_bytes_per_s
        share = result.number("within_slo_ratio")
        return float(f"{cost:.9g}"), tier, line, float(len(result.changes)), -share

    return sorted(possible, key=key)


def only(results: Sequence[DesignResult], key: str) -> list[DesignResult]:
    """Return the designs that differ from the given one in one key alone, in order of its value.

    Parameters
    ----------
    results : sequence of DesignResult
    key : str
    """
    found = [r for r in results if not r.error and [k for k, _ in r.changes] == [key]]
    return sorted(found, key=lambda r: _value(r, key))


def _value(result: DesignResult, key: str) -> float:
    value = dict(result.changes)[key]
    return float(value) if isinstance(value, int | float) else math.nan


def candidates(results: Sequence[DesignResult], goal: Goal, most: int) -> list[DesignResult]:
    """Choose the designs that are simulated.

    The given one; then, as far as ``most`` goes, the first in rank, the best of those that only
    route otherwise, the largest tier and the fastest link of those that change nothing else, and on
    in rank.

    Parameters
    ----------
    results : sequence of DesignResult
        The given one first.
    goal : {"instances", "capacity"}
    most : int
        Beside the given one.

    Returns
    -------
    list of DesignResult
    """
    given = results[0]
    ranked = [r for r in rank(results, goal) if r is not given]
    routed = [r for r in ranked if r.changes and all(k.startswith("router.") for k, _ in r.changes)]
    wanted = [*ranked[:1], *routed[:1]]
    for key in (TIER, LINK):
        wanted += only(ranked, key)[-1:]
    names = dict.fromkeys(r.name for r in (*wanted, *routed[1:2], *ranked))
    chosen = [r for name in list(names)[:most] for r in results if r.name == name]
    return ([given] if given.scenario is not None else []) + chosen
