"""What the thresholds weigh, read off a cluster's closed form: loads, saving, cost of a move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic.latency import prefill_time_s
from smetric_model.analytic.thresholds import (
    MoveCost,
    ServiceLine,
    hit_ratio_optimum,
    overload_optimum,
    persistence_s,
    recompute_delay_s,
    service_line,
    shared_link_delay_s,
    transfer_time_s,
)

if TYPE_CHECKING:
    from smetric_model.analytic.cluster import ClusterState, ColocatedCluster
    from smetric_model.analytic.cluster_tiers import LocalHits

__all__ = ["Situation", "situation_of"]

FloatArray = NDArray[np.float64]

_PROBE = 0.05  # share of the pool by which the local tier is made smaller to price a dead copy


@dataclass(frozen=True)
class Situation:
    """A cluster as a follow-up meets it, under SMetric at some thresholds.

    Attributes
    ----------
    overload, hit_ratio : float
        Thresholds at which it was looked at.
    service : ServiceLine
        Sojourn at an instance over its load.
    persistence_s : float
        For how long a load difference and a request moved across it count together [s].
    receiver_load : float
        Mean load that free requests find where they go, l_r.
    home_load : float
        Mean home load of the follow-ups that stay, l_h.
    cost : MoveCost
        Of a mean move [request-seconds].
    moved_tokens, fetched_tokens, recomputed_tokens : float
        What a mean follow-up hits at home beyond what it would hit elsewhere, and where that
        comes from if it moves [tokens].
    prompt_tokens : float
        Mean prompt of follow-ups [tokens].
    local_retention_s, global_retention_s : float
        Characteristic times [s].
    migrated_ratio : float
        Follow-ups that do not return to the previous instance ÷ follow-ups.
    evicted_ratio, rewritten_ratio : float
        Follow-ups that HIT_RATIO sends away ÷ follow-ups: because home has lost their context,
        and because their history was rewritten, so that no instance has what was expected.  Both
        depend on ``hit_ratio``; the latter on nothing else but the trace.
    estimate_drift : float
        Share of the expected hit that block rounding takes off where nothing was lost.
    follow_up_ratio : float
        Follow-ups ÷ requests.
    """

    overload: float
    hit_ratio: float
    service: ServiceLine
    persistence_s: float
    receiver_load: float
    home_load: float
    cost: MoveCost
    moved_tokens: float
    fetched_tokens: float
    recomputed_tokens: float
    prompt_tokens: float
    local_retention_s: float
    global_retention_s: float
    migrated_ratio: float
    evicted_ratio: float
    rewritten_ratio: float
    estimate_drift: float
    follow_up_ratio: float

    @property
    def home_hit_share(self) -> float:
        """Share of its prompt that a follow-up hits at home beyond what it hits elsewhere."""
        return self.moved_tokens / self.prompt_tokens if self.prompt_tokens > 0 else 0.0

    @property
    def saving_s(self) -> float:
        """What all are spared by joining one request fewer [request-seconds]."""
        return self.service.saving_s(self.persistence_s)

    @property
    def social_balance(self) -> float:
        """OVERLOAD at which a move of the cluster's breaks even, without the floor of OVERLOAD*."""
        return float(
            overload_optimum(
                self.cost.social_s,
                self.saving_s,
                self.receiver_load,
                self.service.mean_load,
                least=0.0,
            )
        )

    @property
    def social_overload(self) -> float:
        """OVERLOAD* of the cluster."""
        return float(
            overload_optimum(
                self.cost.social_s,
                self.saving_s,
                self.receiver_load,
                self.service.mean_load,
            )
        )

    @property
    def private_overload(self) -> float:
        """OVERLOAD* of the request that decides."""
        return float(
            overload_optimum(
                self.cost.private_s,
                self.service.own_saving_s,
                self.receiver_load,
                self.service.mean_load,
            )
        )

    @property
    def social_hit_ratio(self) -> float:
        """HIT_RATIO* of the cluster."""
        return float(
            hit_ratio_optimum(
                self.cost.social_s,
                self.saving_s,
                self.receiver_load,
                self.home_load,
                self.estimate_drift,
            )
        )

    @property
    def private_hit_ratio(self) -> float:
        """HIT_RATIO* of the request that decides."""
        return float(
            hit_ratio_optimum(
                self.cost.private_s,
                self.service.own_saving_s,
                self.receiver_load,
                self.home_load,
                self.estimate_drift,
            )
        )


def situation_of(cluster: ColocatedCluster, state: ClusterState) -> Situation:
    """Read off a cluster's fixed point what the thresholds weigh.

    Parameters
    ----------
    cluster : ColocatedCluster
        Under SMetric.
    state : ClusterState
        At its rate.

    Returns
    -------
    Situation
    """
    router = cluster.scenario.router
    routed, hits, local = state.routed, state.hits, cluster.work.local
    law, stay = routed.follow_up_load_law, routed.stay_given_load
    loads = np.arange(law.size, dtype=float)
    staying = law * stay
    home_load = float(staying @ loads / staying.sum()) if staying.sum() > 0 else 0.0
    service = service_line(routed.completion_rate_rps, max(routed.mean_load, 1e-6))

    # follow-ups whose home has more of their prompt than another instance would
    moved = np.maximum(_stayed_tokens(hits) - hits.landed_tokens, 0.0)
    rows = np.flatnonzero(local.has_home & (moved > 0))
    weight = hits.stay[rows]
    cost, fetched, recomputed = _cost(cluster, state, rows, weight)
    expected = np.maximum(local.expected, 1.0)
    follow = local.has_home
    rewritten = _rewritten(local.own[0], expected, follow, router.hit_ratio)
    mean = _weighted(moved[rows], weight)
    return Situation(
        overload=float(router.overload),
        hit_ratio=float(router.hit_ratio),
        service=service,
        persistence_s=persistence_s(routed.noise.drift, routed.noise.covariance),
        receiver_load=routed.joined_load_mean,
        home_load=home_load,
        cost=cost,
        moved_tokens=mean,
        fetched_tokens=fetched,
        recomputed_tokens=recomputed,
        prompt_tokens=_weighted(local.prompt[rows], weight),
        local_retention_s=hits.retention_s,
        global_retention_s=state.reach_s,
        migrated_ratio=routed.migrated_ratio if cluster.work.follow_up_ratio else 0.0,
        evicted_ratio=max(hits.refused - rewritten, 0.0),
        rewritten_ratio=rewritten,
        estimate_drift=float(
            np.mean(np.minimum(local.block / expected[follow], 1.0)) if follow.any() else 0.0
        ),
        follow_up_ratio=cluster.work.follow_up_ratio,
    )


def _stayed_tokens(hits: LocalHits) -> FloatArray:
    """Mean hit of each request where it stays [tokens]."""
    found = hits.whole * hits.whole_tokens + (hits.stay - hits.whole) * hits.part_tokens
    return np.asarray(found / np.maximum(hits.stay, 1e-12))


def _weighted(values: FloatArray, weight: FloatArray) -> float:
    total = float(weight.sum())
    return float(values @ weight) / total if total > 0 else 0.0


def _rewritten(
    own: FloatArray, expected: FloatArray, follow: FloatArray, hit_ratio: float
) -> float:
    """Share of follow-ups that HIT_RATIO would send away from a home that lost nothing."""
    if not follow.any():
        return 0.0
    return float(np.mean(own[follow] <= hit_ratio * expected[follow]))


def _cost(
    cluster: ColocatedCluster,
    state: ClusterState,
    rows: NDArray[np.intp],
    weight: FloatArray,
) -> tuple[MoveCost, float, float]:
    """Cost of a mean move, and the tokens it fetches and computes again."""
    if not rows.size or weight.sum() <= 0:
        return MoveCost(), 0.0, 0.0
    hits, local, links = state.hits, cluster.work.local, cluster.links
    stayed, landed = _stayed_tokens(hits)[rows], hits.landed_tokens[rows]
    stayed = np.maximum(stayed, landed)
    prompt = local.prompt[rows]
    held = np.zeros(rows.size)
    if cluster.has_global:
        held = np.minimum(cluster.work.within(state.reach_s)[rows], stayed)
    fetch = np.maximum(held - landed, 0.0)

    used = min(state.fetches.nic_utilisation, 0.99)
    streams = max(round(links.streams), 1)
    alone = links.nic_s(fetch, state.computing)
    pcie = fetch * links.bytes_per_token / links.pcie
    wire = np.asarray(transfer_time_s(alone, used, streams))
    fetch_s = np.where(fetch > 0, links.fixed_s + np.maximum(wire, pcie), 0.0)

    def work_s(computed: FloatArray, hit: FloatArray) -> FloatArray:
        budget = cluster.demand.instance.token_budget
        return np.asarray(prefill_time_s(cluster.model, np.maximum(computed, 1.0), hit, budget))

    at_home = work_s(prompt - stayed, stayed)
    if cluster.scenario.global_tier.recompute_if_faster:
        again = work_s(prompt - landed, landed) - work_s(prompt - landed - fetch, landed + fetch)
        # behind writes that lag without bound nothing is fetched
        pays = (fetch > 0) & (fetch_s < again) & (state.fetches.write_utilisation < 1)
        fetch, fetch_s, alone = (np.where(pays, v, 0.0) for v in (fetch, fetch_s, alone))
    again = np.maximum(work_s(prompt - landed - fetch, landed + fetch) - at_home, 0.0)
    recomputed = stayed - landed - fetch

    work = _weighted(again, weight)
    link = _weighted(np.asarray(shared_link_delay_s(alone, used, streams)), weight)
    routed = state.routed
    others = recompute_delay_s(
        work, routed.cluster.rate_per_instance_rps, routed.noise.service_slope
    )
    direct = MoveCost(
        fetch_s=_weighted(fetch_s, weight),
        recompute_s=work,
        link_s=link,
        others_recompute_s=float(others),
    )
    moved = _weighted(stayed - landed, weight)
    lost = _lost_hits(cluster, state, _weighted(local.private[0][rows], weight))
    dead = direct.social_s * lost / moved if moved > 0 else 0.0
    cost = MoveCost(
        direct.fetch_s, direct.recompute_s, direct.link_s, direct.others_recompute_s, dead
    )
    return cost, _weighted(fetch, weight), _weighted(recomputed, weight)


def _lost_hits(cluster: ColocatedCluster, state: ClusterState, copy_tokens: float) -> float:
    """Local hits that a copy left behind costs others, by the slope of the hit curve [tokens].

    The copy lies dead for the tier's retention τ; an instance that loses C tokens of room serves
    ``slope · C`` tokens less of each request.
    """
    retention = state.hits.retention_s
    window = cluster.work.window_s
    if not np.isfinite(retention) or retention <= 0:
        return 0.0
    retention = min(retention, window[1])
    local, n = cluster.work.local, cluster.instances
    step = _PROBE * cluster.demand.pool_tokens
    rule, pace = state.stay_rule, state.pace
    now, less = (
        float(
            local.hits(
                rule, state.rate_rps, n, state.pinned_tokens + taken, window, pace
            ).tokens.mean()
        )
        for taken in (0.0, step)
    )
    slope = max(now - less, 0.0) / step
    lost = state.rate_rps / n * slope * copy_tokens * retention
    # it cannot displace more than its own size of what would all have been hit
    return min(lost, copy_tokens)
