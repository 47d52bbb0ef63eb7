r"""Through what one policy serves more tokens within SLO than another, in closed form.

The closed form of a cluster under a policy (:mod:`smetric_model.analytic.cluster`) ends with one
instance that is given three things, and only these depend on the policy:

========== =====================================================================================
``hits``   prompt, output and reused tokens of each kind of request, and the KV pool that is left
``fetch``  how long each request waits for KV from the global tier
``load``   the arrival rate of an instance with l requests present
========== =====================================================================================

Tokens within SLO are a function :math:`V(\text{hits}, \text{fetch}, \text{load})`.  With each of
the three taken from either policy there are eight clusters; ``V(own, own, own)`` is the one
policy's prediction and ``V(other, other, other)`` the other's.  What an ingredient contributes is
its Shapley value: the mean, over the six orders in which the three are exchanged one after the
other, of the change that its exchange makes (Shapley, 1953).  The contributions add up to the
difference of the two predictions.  A mixed cluster without a steady state serves nothing within
SLO.

Kinds of request are drawn for each policy apart.  Fetch times change hands by rank: kinds of both
are ordered by prompt, equal ones by what is fetched.

The ``hits`` part is called *local hits* where the difference in recomputed tokens comes from the
local tier, *global tier* where it comes from what is fetched (or no longer fetched).
"""

from __future__ import annotations

from itertools import permutations, product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from smetric_model.errors import SpecError

if TYPE_CHECKING:
    from smetric_model.analytic.cluster import ClusterState, ColocatedCluster
    from smetric_model.analytic.mixed_requests import Mixed

__all__ = ["MECHANISMS", "Solved", "mechanisms", "values_of_mixtures"]

_INGREDIENTS = ("hits", "fetch", "load")
#: Keys of :func:`mechanisms`.
MECHANISMS = ("local_hits", "global_tier", "fetch", "balance")
#: Like the fixed point's own bound (``analytic/cluster.py``)
_STABLE = 0.999


class Solved(NamedTuple):
    """A cluster under a policy, and its fixed point at a rate."""

    cluster: ColocatedCluster
    state: ClusterState


def mechanisms(own: Solved, other: Solved) -> dict[str, float]:
    """Return what each ingredient contributes to the tokens within SLO that ``own`` has more.

    Parameters
    ----------
    own, other : Solved
        Colocated clusters that differ in their policy only, at one rate.

    Returns
    -------
    dict of str to float
        ``local_hits``, ``global_tier`` (one of the two is 0), ``fetch`` and ``balance``
        [tokens/s]; positive: in favour of ``own``.  They add up to the difference.

    Raises
    ------
    SpecError
        If the clusters are disaggregated, or the rates differ.
    """
    values = values_of_mixtures(own, other)
    share = dict.fromkeys(_INGREDIENTS, 0.0)
    orders = list(permutations(range(3)))
    for order in orders:
        chosen = [False, False, False]  # all of the other policy
        for ingredient in order:
            before = values[tuple(chosen)]
            chosen[ingredient] = True
            share[_INGREDIENTS[ingredient]] += (values[tuple(chosen)] - before) / len(orders)
    local = own.state.local_ratio - other.state.local_ratio
    fetched = own.state.global_ratio - other.state.global_ratio
    from_local = abs(local) >= abs(fetched) if local * fetched >= 0 else local * share["hits"] > 0
    return {
        "local_hits": share["hits"] if from_local else 0.0,
        "global_tier": 0.0 if from_local else share["hits"],
        "fetch": share["fetch"],
        "balance": share["load"],
    }


def values_of_mixtures(own: Solved, other: Solved) -> dict[tuple[bool, ...], float]:
    """Return the tokens within SLO of the eight clusters.

    Parameters
    ----------
    own, other : Solved
        See :func:`mechanisms`.

    Returns
    -------
    dict of (bool, bool, bool) to float
        Whether hits, fetch times and arrivals by load are ``own``'s, and tokens/s within SLO.
    """
    for solved in (own, other):
        if solved.cluster.scenario.cluster.serving != "colocated":
            raise SpecError(
                f"cluster.serving = {solved.cluster.scenario.cluster.serving!r}: mechanisms are"
                " told apart for colocated serving only"
            )
    if not np.isclose(own.state.rate_rps, other.state.rate_rps):
        raise SpecError(
            f"rates {own.state.rate_rps:g} and {other.state.rate_rps:g} requests/s: one is needed"
        )
    pick = {True: own, False: other}
    return {
        choice: _value(*(pick[mine] for mine in choice))
        for choice in product((False, True), repeat=3)
    }


def _value(hits: Solved, fetch: Solved, load: Solved) -> float:
    """Tokens/s within SLO of a cluster put together."""
    cluster, rate = hits.cluster, hits.state.rate_rps
    mixed = hits.state.mixed
    if fetch is not hits:
        mixed = _with_fetch_times(mixed, fetch.state.mixed)
    instance = cluster._instance(mixed)
    own = rate / cluster.instances
    if own >= _STABLE * instance.stability_rps:
        return 0.0
    slo = cluster.scenario.slo
    loaded = instance.at_rate(
        own,
        np.asarray(slo.ttft_s(mixed.prompt), dtype=float),
        slo.tpot_s,
        load.cluster._arrivals(load.state.routed, instance, mixed.is_free),
    )
    both = loaded.slo_probability().both
    rows, demand = cluster.work.rows, cluster.demand
    total = 0.0
    for picked, everyone in (
        (mixed.prompt, demand.prompt_tokens[rows]),
        (mixed.output, demand.output_tokens[rows]),
    ):
        total += float(everyone.mean()) * float(picked @ both) / float(picked.sum())
    return rate * total


def _with_fetch_times(mixed: Mixed, other: Mixed) -> Mixed:
    """Give requests the fetch times of others, the longest prompts those of the longest."""
    mine = np.lexsort((mixed.fetch_s, mixed.prompt))
    theirs = np.lexsort((other.fetch_s, other.prompt))
    times = np.empty_like(mixed.fetch_s)
    at = np.linspace(0, theirs.size - 1, mine.size).round().astype(int)
    times[mine] = other.fetch_s[theirs[at]]
    return mixed._replace(fetch_s=times)
