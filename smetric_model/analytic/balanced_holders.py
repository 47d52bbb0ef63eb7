r"""Who holds a framework's prefix under routers that place first turns by load alone (SMetric).

First turns, and follow-ups that an overloaded or evicted home sends away, go to the least loaded
instance, whatever it holds: b of the requests.  What is left of a follow-up's context may be no
more than the framework's prefix; where that passes the router's guard, and not nearly all
instances hold it, one of its m holders serves the follow-up.  Such moves make no holders:

.. math:: \frac{dm}{dt} = r\, b\, \Bigl(1 - \frac mM\Bigr) - m\, \delta(m),

r requests of the framework a second, δ as in :mod:`smetric_model.analytic.prefix_holders`, which
then follows the sessions.  So they come back to a former home with :math:`1/(m - 1)`.

**Instances in use.**  Ties of the least load go to the first instance after the last that served,
and a follow-up that stays is served, too.  A cold cluster is thus used from one end: M instances,
of which one at most joins at a time, when all between the last home and the end are busy.  With
:math:`p_0(M)` the probability that one of those in use is idle, and homes evenly among them,

.. math:: \frac{dM}{dF} = \frac1M \sum_{k<M} (1 - p_0)^k = \frac{1 - (1 - p_0)^M}{M p_0},

F placements by load alone so far: about :math:`M = \sqrt{2F/p_0}`, until it is N.  The load of
those in use is N/M times the mean, more while sessions compute their whole context.  Large
clusters at low rates are not used whole for hours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smetric_model.analytic import _balanced_kernels
from smetric_model.analytic.prefix_holders import PrefixHolding

if TYPE_CHECKING:
    from smetric_model.analytic.cluster_demand import ClusterDemand
    from smetric_model.analytic.cluster_tiers import LocalHits
    from smetric_model.analytic.prefix_holders import ColdCluster
    from smetric_model.analytic.stay_rule import Pace, StayRule
    from smetric_model.analytic.stickiness import Stickiness

__all__ = ["balanced_holding_of"]


def balanced_holding_of(
    work: ClusterDemand,
    routed: Stickiness,
    rule: StayRule,
    hits: LocalHits,
    pace: Pace,
    cold: ColdCluster,
) -> PrefixHolding:
    """Return who holds each prefix in the middle of the window, and how many are in use.

    Parameters
    ----------
    work : ClusterDemand
        The workload.
    routed : Stickiness
        The mean field, of a policy that sticks and places by load otherwise.
    rule, hits, pace
        Of the local tier, at its fixed point.
    cold : ColdCluster
        The cluster before anything is cached.
    """
    cluster, prefixes, local = routed.cluster, work.prefixes, work.local
    n, rate_rps = float(cluster.instances), cluster.arrival_rate_rps
    end_s = 0.5 * (work.window_s[0] + work.window_s[1])
    think = np.stack((cluster.think_time.weights, cluster.think_time.means_s))
    follow = work.follow_up_ratio
    moving = max(routed.migrated_overload_ratio, 0.0) + max(hits.refused - hits.adrift, 0.0)
    # of all requests: placed by load alone, and more of them while nobody has a home
    placed = float(local.first.mean()) + follow * min(moving, 1.0)
    later = local.has_home & ~local.passes_prefix(rule)
    placed_cold = float(later.mean())
    running_s = pace.first_token_s + pace.per_output_token_s * work.mean_output
    used = n
    literal = getattr(cluster.policy, "tie_break", "first") == "first"
    if cluster.unprefilled is None and not literal:
        cold_s = cold.prefill_s + pace.per_output_token_s * work.mean_output
        cold_load = max(cluster.rate_per_instance_rps * cold_s, routed.mean_load)
        used = _balanced_kernels.instances_in_use(
            np.maximum(routed.load_law, 1e-300),
            (routed.mean_load, cold_load),
            think,
            (n, rate_rps * placed, rate_rps * placed_cold),
            end_s,
        )
    again = hits.mean_stay * follow
    turn_s = running_s + local.visit_s(min(hits.retention_s, 1e12), again)
    visits = max(1.0 - again, 1e-6)
    out = np.empty((4, prefixes.share.size))
    _balanced_kernels.balanced_holders(
        prefixes.share,
        think,
        (used, rate_rps, placed, placed_cold),
        (visits, turn_s / visits),
        cold.chunk_s,
        end_s,
        out,
    )
    return PrefixHolding(out[0], out[1] * out[3], out[2], used / n)
