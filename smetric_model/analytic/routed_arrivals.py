"""What a router makes of a Poisson stream at one instance, read off the routing mean field."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic import _arrival_kernels as kernels
from smetric_model.analytic.arrivals import Arrivals
from smetric_model.analytic.busy_periods import condensed

if TYPE_CHECKING:
    from smetric_model.analytic.batching import ColocatedInstance
    from smetric_model.analytic.cluster_demand import ClusterDemand
    from smetric_model.analytic.stickiness import Stickiness

__all__ = ["arrivals_of"]

_RARE = 1e-9  # loads that do not occur say nothing about the rate
_WHICH = {"never": kernels.ALL, "blind": kernels.ALL}


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
    factor, free, free_ratio = kernels.by_load(
        routed.load_law,
        routed.birth_rate_rps,
        routed.joined_load_law,
        own,
        _stuck(routed, work),
        _WHICH.get(routed.rule.kind, kernels.NONE if _is_hashed(routed) else kernels.SOME),
        _RARE,
    )
    sticky, other = _avoided(routed, instance, work, own * free_ratio)
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


def _is_hashed(routed: Stickiness) -> bool:
    return routed.rule.first_turn == "hash"


def _stuck(routed: Stickiness, work: ClusterDemand) -> float:
    """Share of all requests that stay at their home."""
    kept = float(routed.follow_up_load_law @ routed.stay_given_load)
    return work.follow_up_ratio * kept * (1 - routed.rule.evicted)


def _avoided(
    routed: Stickiness, instance: ColocatedInstance, work: ClusterDemand, free_rps: float
) -> tuple[float, float]:
    """How much less arrives while a prefill runs: of follow-ups at home, and of free requests.

    Least-load ties are round robin: an instance that has just got a request is the last in
    turn of the k that are as loaded, and its next free one is the k-th.  Policies that look at
    unprefilled tokens see the prefill itself.
    """
    n, name = routed.cluster.instances, routed.cluster.policy.name
    each_s = instance.prefill_s(0.0)
    prefill_s, share = condensed(each_s)
    sticky = routed.cluster.think_time.met_ratio(prefill_s, share)
    if n == 1 or _is_hashed(routed):
        follow = work.follow_up_ratio
        sticky = follow * sticky + 1.0 - follow
        return sticky, sticky
    if name in ("random", "power-of-two"):
        return sticky, 1.0
    own = routed.cluster.rate_per_instance_rps
    if name == "dynamo":
        # the home's charge against what its hit is worth
        worth = work.private_at_home
        new = instance.mix.prompt_tokens - instance.mix.hit_tokens
        less = np.searchsorted(worth, new, side="left") / max(worth.size, 1)
        sticky *= 1.0 - float(each_s @ less) / max(float(each_s.sum()), 1e-300)
        busy = min(own * float(prefill_s @ share), 1.0)
        return sticky, busy ** (n - 1)
    tied = max(n * float(routed.joined_load_law @ routed.load_law), 1.0)
    if name == "round-robin":
        free_rps, tied = own, float(n)
    return sticky, float(kernels.next_in_turn(prefill_s, share, n * free_rps, tied))
