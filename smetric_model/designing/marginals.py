"""What a larger tier and a faster link save, against what they cost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from smetric_model.analytic.demand import cluster_of
from smetric_model.designing.candidates import LINK, TIER, only
from smetric_model.designing.prices import Prices
from smetric_model.designing.results import DesignResult, Goal, Marginal
from smetric_model.tuning.sizing import with_instances
from smetric_model.units import GB, GBPS_BYTES_PER_S

__all__ = ["marginals"]

_TB = 1000 * GB


def marginals(results: Sequence[DesignResult], goal: Goal, prices: Prices) -> tuple[Marginal, ...]:
    """Compare the designs that differ in the tier's size, or the link's rate, alone.

    GPUs are the closed form's, interpolated between whole instances: what a resource brings is
    usually less than an instance.

    Parameters
    ----------
    results : sequence of DesignResult
        The given design first.
    goal : {"instances", "capacity"}
    prices : Prices

    Returns
    -------
    tuple of Marginal
        From each value to the next larger one.
    """
    given = results[0]
    if given.scenario is None:
        return ()
    nodes = _nodes(given, goal)
    found = []
    for key, unit in ((TIER, _TB), (LINK, GBPS_BYTES_PER_S)):
        own = (
            given.scenario.global_tier.bytes_per_node
            if key == TIER
            else given.scenario.cluster.nic_bytes_per_s
        )
        each = nodes if key == TIER else nodes * given.scenario.cluster.nics_per_node
        points = [(own, given)]
        points += [(float(dict(r.changes)[key]), r) for r in only(results, key)]
        points.sort(key=lambda point: point[0])
        for (low, less), (high, more) in itertools.pairwise(points):
            gpus = [_gpus(r, given, goal) for r in (less, more)]
            if not all(map(math.isfinite, gpus)):
                continue
            units = (high - low) * each / unit
            saved = gpus[0] - gpus[1]
            found.append(
                Marginal(
                    key,
                    low,
                    high,
                    gpus[0],
                    gpus[1],
                    units,
                    saved / units,
                    _cost(key, units, prices),
                    _worth(saved, given, prices),
                    saved / units,
                )
            )
    return tuple(found)


def _nodes(given: DesignResult, goal: Goal) -> int:
    """Return the nodes of the given design's answer: those that simulation confirms, if asked."""
    assert given.scenario is not None
    count = given.instances
    if goal == "capacity" or count is None:
        return cluster_of(given.scenario).nodes
    return cluster_of(with_instances(given.scenario, count)).nodes


def _gpus(result: DesignResult, given: DesignResult, goal: Goal) -> float:
    if result.scenario is None:
        return math.nan
    tp = result.scenario.engine.tp
    if goal == "capacity":
        # the given rate on this design, in proportion
        count = result.number("instances")
        return tp * count * given.number("rate_rps") / result.number("rate_rps")
    exact = result.number("instances_exact")
    return tp * (exact if math.isfinite(exact) else result.number("instances"))


def _cost(key: str, units: float, prices: Prices) -> float:
    if not prices.given:
        return math.nan
    if key == TIER:
        return units * _TB / GB * prices.host_memory_gb_hour
    return units * prices.nic_gbps_hour


def _worth(saved: float, given: DesignResult, prices: Prices) -> float:
    if not prices.given or given.scenario is None:
        return math.nan
    return saved * prices.gpu_hour[given.scenario.engine.gpu]
