"""How the KV tiers see a router: which follow-ups stay, read off the routing mean field."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic.stay_rule import HOLDERS, LEADS, Lead, StayRule, lead_of

if TYPE_CHECKING:
    from smetric_model.analytic.cluster_tiers import LocalHits
    from smetric_model.analytic.routed_cluster import FollowUpHits
    from smetric_model.analytic.stickiness import Stickiness
    from smetric_model.scenario_sections import RouterSection

__all__ = ["stay_rule", "tier_rule", "with_stays"]

FloatArray = NDArray[np.float64]

#: what policies that weigh hits compare
_LEADS: dict[str, Lead] = {"bailian": "share", "lmetric": "ratio", "dynamo": "tokens"}


def tier_rule(router: RouterSection, instances: int, stay: float) -> StayRule:
    """Return how the tiers see a policy, given how often a follow-up with a good home stays.

    Parameters
    ----------
    router : RouterSection
        The scenario's section.
    instances : int
        N.
    stay : float
        Of follow-ups whose home has their context.
    """
    anywhere, name = 1 / instances, router.policy
    if name in ("smetric", "smetric-slo"):
        return StayRule(
            stay, router.hit_ratio, router.subtract_shared_prefix, True, stay_without=anywhere
        )
    if name == "smetric-basic":
        return StayRule(stay, needs_own=True, stay_without=anywhere)
    if name in ("bailian", "lmetric", "dynamo"):
        return StayRule(stay, needs_own=True, stay_without=anywhere, seeks_hits=True)
    return StayRule(stay, stay_without=stay)


def stay_rule(router: RouterSection, routed: Stickiness, hits: LocalHits) -> StayRule:
    """Return how the tiers see the policy: who stays how often.

    Parameters
    ----------
    router : RouterSection
        The scenario's section.
    routed : Stickiness
        The mean field.
    hits : LocalHits
        What follow-ups found at home.
    """
    n = routed.cluster.instances
    rule = tier_rule(router, n, _stay(routed))
    without = _stay_without(rule, routed, hits)
    if routed.rule.kind in ("never", "blind") or n == 1:
        return replace(rule, stay_without=without)
    older, wins = routed.wins(HOLDERS)
    if rule.seeks_hits:
        without = float(wins[-1])
    kind = _LEADS.get(router.policy)
    if routed.stay_of_hits is None or routed.rule.hits is None or kind is None:
        return replace(rule, stay_without=without, older_wins=older, home_wins=wins)
    return replace(
        rule,
        stay_without=without,
        older_wins=older,
        home_wins=wins,
        **_stays_by_lead(kind, routed.rule.hits, routed.stay_of_hits),
    )


def with_stays(rule: StayRule, routed: Stickiness, stay_of_hits: FloatArray) -> StayRule:
    """Return a rule whose follow-ups stay as often as said.

    Parameters
    ----------
    rule : StayRule
        Its ``lead`` says what counts.
    routed : Stickiness
        The mean field, for the hits.
    stay_of_hits : ndarray
        How often each of the mean field's hits stays.
    """
    seen = routed.rule.hits
    return rule if seen is None else replace(rule, **_stays_by_lead(rule.lead, seen, stay_of_hits))


def _stays_by_lead(kind: Lead, seen: FollowUpHits, stay_of_hits: FloatArray) -> dict[str, Any]:
    """Return what a rule says of those with much of their prompt at home."""
    order, lead, at = _ordered_leads(kind, seen)
    stays = stay_of_hits[order]
    above = np.cumsum(stays[::-1])[::-1] / np.arange(stays.size, 0.0, -1.0)
    return {
        "stay_of_leads": np.interp(at, lead, stays),
        "stay_above_leads": np.interp(at, lead, above),
        "lead": kind,
        "longest_lead": float(at[-1]),
    }


@lru_cache(maxsize=32)
def _ordered_leads(
    kind: Lead, hits: FollowUpHits
) -> tuple[NDArray[np.intp], FloatArray, FloatArray]:
    """Order of hits by lead, their leads in it, and the leads told apart."""
    lead = lead_of(
        kind,
        np.asarray(hits.prompt_tokens, dtype=float),
        np.asarray(hits.home_hit_tokens, dtype=float),
        np.asarray(hits.shared_prefix_tokens, dtype=float),
    )
    order = np.argsort(lead, kind="stable")
    lead = lead[order]
    return order, lead, np.linspace(0.0, max(float(lead[-1]), 1e-9), LEADS)


def _stay_without(rule: StayRule, routed: Stickiness, hits: LocalHits) -> float:
    """How often a follow-up without a home goes there all the same."""
    lost = min(hits.refused, 1.0)
    guards = rule.needs_own or rule.least_hit_ratio is not None
    if not guards or routed.cluster.instances == 1 or not lost > 1e-6 or rule.seeks_hits:
        return rule.stay_without
    back = 1.0 - routed.migrated_evicted_ratio / lost
    return min(max(back, 0.0), 1.0) if math.isfinite(back) else rule.stay_without


def _stay(routed: Stickiness) -> float:
    """How often a follow-up stays whose home has its context."""
    if routed.cluster.instances == 1:
        return 1.0
    previous = routed.return_to_previous_ratio
    if not np.isfinite(previous):
        return 0.0
    if routed.rule.kind in ("never", "blind") or routed.rule.first_turn == "hash":
        return float(previous)
    return float(routed.follow_up_load_law @ routed.stay_given_load)
