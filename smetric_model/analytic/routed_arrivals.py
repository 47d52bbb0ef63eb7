"""What a router makes of a Poisson stream at one instance, read off the routing mean field."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainc

from smetric_model.analytic.arrivals import Arrivals
from smetric_model.analytic.busy_periods import condensed

if TYPE_CHECKING:
    from smetric_model.analytic.batching import ColocatedInstance
    from smetric_model.analytic.cluster_demand import ClusterDemand
    from smetric_model.analytic.stickiness import Stickiness

__all__ = ["arrivals_of"]

FloatArray = NDArray[np.float64]

_TURNS = 8  # rounds of ties in which an instance that has just got a request may get the next
_RARE = 1e-9  # loads less likely than this say nothing about the rate


def arrivals_of(
    routed: Stickiness,
    instance: ColocatedInstance,
    is_free: NDArray[np.bool_],
    work: ClusterDemand,
    scale: float = 1.0,
) -> Arrivals:
    """Return the arrivals at an instance by its load.

    Parameters
    ----------
    routed : Stickiness
        The mean field.
    instance : ColocatedInstance
        The instance.
    is_free : ndarray of bool, shape (n,)
        Which requests of its mix could have gone anywhere.
    work : ClusterDemand
        What is asked of the cluster.
    scale : float
        Factor by which rates are expected to be scaled so that their mean is right.

    Returns
    -------
    Arrivals
    """
    own = routed.cluster.rate_per_instance_rps
    # loads that do not occur say nothing about the rate
    last = int(np.flatnonzero(routed.load_law > _RARE)[-1])
    factor = routed.birth_rate_rps[: last + 1] / own
    free = _free_ratio(routed, work)[: last + 1]
    sticky, other = _avoided(routed, instance, work)
    busy = (1 - free) * sticky + free * other
    return Arrivals(
        factor,
        own * float(instance.mix.before_prefill_s.mean()),
        factor * busy,
        free,
        free * other / np.maximum(busy, 1e-300),
        is_free,
        scale,
    )


def _free_ratio(routed: Stickiness, work: ClusterDemand) -> FloatArray:
    """Of the arrivals at each load, those that were free to go anywhere."""
    rule, law = routed.rule, np.maximum(routed.load_law, 1e-300)
    if rule.kind in ("never", "blind"):
        return np.ones(law.size)
    if rule.first_turn == "hash":
        return np.zeros(law.size)
    follow = work.follow_up_ratio
    kept = float(routed.follow_up_load_law @ routed.stay_given_load) * (1 - rule.evicted)
    free = (1 - follow * kept) * routed.joined_load_law / law
    births = np.maximum(routed.birth_rate_rps / routed.cluster.rate_per_instance_rps, 1e-300)
    return np.clip(free / births, 0.0, 1.0)


def _avoided(
    routed: Stickiness, instance: ColocatedInstance, work: ClusterDemand
) -> tuple[float, float]:
    """How much less arrives while a prefill runs: of follow-ups at home, and of free requests.

    Least-load ties are round robin: an instance that has just got a request is the last in
    turn of the k that are as loaded, and its next free one is the k-th.  Policies that look at
    unprefilled tokens see the prefill itself.
    """
    n, name = routed.cluster.instances, routed.cluster.policy.name
    prefill_s, share = condensed(instance.prefill_s(0.0))
    sticky = routed.cluster.think_time.met_ratio(prefill_s, share)
    if n == 1 or routed.rule.first_turn == "hash":
        follow = work.follow_up_ratio
        sticky = follow * sticky + 1.0 - follow
        return sticky, sticky
    if name in ("random", "power-of-two"):
        return sticky, 1.0
    own = routed.cluster.rate_per_instance_rps
    if name == "dynamo":
        # the home's charge against what its hit is worth
        worth = work.private_at_home
        mix = instance.mix
        new = mix.prompt_tokens - mix.hit_tokens
        less = np.searchsorted(worth, new, side="left") / max(worth.size, 1)
        weight = instance.prefill_s(0.0)
        sticky *= 1.0 - float(weight @ less) / max(float(weight.sum()), 1e-300)
        busy = min(own * float(prefill_s @ share), 1.0)
        return sticky, busy ** (n - 1)
    free = own * float(routed.load_law @ (_free_ratio(routed, work) * routed.birth_rate_rps))
    free = free / max(float(routed.load_law @ routed.birth_rate_rps), 1e-300)
    tied = max(n * float(routed.joined_load_law @ routed.load_law), 1.0)
    if name == "round-robin":
        free, tied = own, float(n)
    met = n * free * prefill_s
    times = sum(gammainc(turn * tied, met) for turn in range(1, _TURNS + 1))
    plain = float(share @ met) / tied
    return sticky, min(float(share @ times) / plain, 1.0) if plain > 0 else 1.0
