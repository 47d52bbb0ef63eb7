"""What 1.0x load is: fixed by where SMetric's goodput with the full tier peaks."""

from __future__ import annotations

import math

from smetric_model.errors import SolveError
from smetric_model.reproduction.parameters import Experiments, Setup
from smetric_model.reproduction.points import Group, Point

__all__ = ["anchor_rate"]

#: a rate at which no cluster of today is busy: where the search begins [requests/s an instance]
_START_RPS_PER_INSTANCE = 0.04
_LONGEST_WALK = 60


def anchor_rate(parameters: Experiments, setup: Setup, preset: str) -> float:
    """Rate of the cluster at 1.0x.

    Rates rise by ``anchor_coarse_ratio`` (first seed) until goodput has fallen twice, then the
    two steps around the best are taken at ``anchor_fine_ratio`` with all seeds.

    Parameters
    ----------
    parameters : Experiments
    setup : Setup
    preset : str

    Returns
    -------
    float
        Rate of the best mean goodput over ``parameters.anchor`` [requests/s].

    Raises
    ------
    SolveError
        If goodput keeps rising.
    """
    coarse, fine = parameters.anchor_coarse_ratio, parameters.anchor_fine_ratio

    def goodput(rate: float, seed: int) -> float:
        from smetric_model.reproduction.runner import group_rows

        point = Point("anchor", "smetric", "full")
        group = Group(setup.name, preset, math.nan, rate, seed, (point,))
        (row,) = group_rows(setup, {"full": "full"}, group)
        return float(row.get("goodput_tps") or 0.0)

    start = _START_RPS_PER_INSTANCE * setup.scenario.cluster.instances
    rate = coarse ** round(math.log(start, coarse))
    best, best_rate, falls = -1.0, rate, 0
    for _ in range(_LONGEST_WALK):
        value = goodput(rate, parameters.seeds[0])
        if value > best:
            best, best_rate, falls = value, rate, 0
        else:
            falls += 1
            if falls == 2:
                break
        rate *= coarse
    else:
        raise SolveError(
            f"{setup.name}, {preset}: goodput still rises at {rate / coarse:.3g} requests/s"
        )
    steps = math.floor(math.log(coarse, fine))
    rates = [best_rate * fine**k for k in range(-steps, steps + 1)]
    means = [sum(goodput(r, seed) for seed in parameters.seeds) for r in rates]
    return rates[means.index(max(means))] / parameters.anchor
