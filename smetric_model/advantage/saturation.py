"""At which rate a policy's cluster saturates: quick estimates from one round of its fixed point.

The fixed point of a cluster that has no steady state takes ten times as long as another.  One
round, begun where things stand well (sessions stay as the policy would have it, little KV is
pinned, links are free), says what the engines could complete at best; begun where things stand as
they do near saturation (half of the pool pinned, engines computing), about what they complete.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from smetric_model.analytic.cluster import engine_resource

if TYPE_CHECKING:
    from smetric_model.analytic.cluster import ColocatedCluster

__all__ = ["rough_capacity_rps", "surely_saturates"]

_MARGIN = 1.05
_WELL = (0.1, 0.0)  # share of the pool that is pinned, share of the time in which GPUs compute
_LOADED = (0.5, 1.0)
_STEPS = 8


def _completed_rps(
    cluster: ColocatedCluster, rate_rps: float, state: tuple[float, float]
) -> tuple[float, str]:
    """Rate that engines and links complete with the hits of a rate, and what limits them."""
    cluster._begin()
    pinned, computing = state
    guess = cluster._first_guess(rate_rps)._replace(
        pinned=pinned * cluster.demand.pool_tokens, computing=computing
    )
    if guess.rule.stay > 0.5:
        guess = guess._replace(rule=replace(guess.rule, stay=1.0))
    hits = cluster.work.local.hits(
        guess.rule,
        rate_rps,
        cluster.instances,
        guess.pinned,
        cluster.work.window_s,
        guess.pace,
    )
    mixed, fetches, _ = cluster._mix(rate_rps, guess, hits)
    instance = cluster._instance(mixed)
    engines = float(instance.stability_rps) * cluster.instances
    links = rate_rps / max(fetches.nic_utilisation, fetches.pcie_utilisation, 1e-9)
    if links < engines:
        return links, "nic_in" if fetches.nic_utilisation >= fetches.pcie_utilisation else "pcie"
    return engines, engine_resource(instance)


def surely_saturates(cluster: ColocatedCluster, rate_rps: float) -> str:
    """Return what saturates at a rate in any case.

    Parameters
    ----------
    cluster : ColocatedCluster
        Closed form of a scenario.
    rate_rps : float
        Servable requests of the cluster [requests/s].

    Returns
    -------
    str
        ``compute``, ``kv``, ``nic_in`` or ``pcie`` where the rate is 5 % above what a first,
        favourable round completes; empty where only the fixed point can tell.
    """
    completed, resource = _completed_rps(cluster, rate_rps, _WELL)
    return resource if rate_rps > _MARGIN * completed else ""


def rough_capacity_rps(cluster: ColocatedCluster) -> float:
    """Return about the rate at which a cluster saturates.

    Parameters
    ----------
    cluster : ColocatedCluster
        Closed form of a scenario.

    Returns
    -------
    float
        Servable requests of the cluster [requests/s]: the rate that equals what engines and links
        complete with the hits of that rate, half of the KV pool being pinned.
    """
    low, high = 0.0, 1.0
    while _completed_rps(cluster, high, _LOADED)[0] > high and high < 1e9:
        low, high = high, 2.0 * high
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        if _completed_rps(cluster, middle, _LOADED)[0] > middle:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)
