r"""Which instances hold a framework's prefix, and where sessions that leave their home go.

Routers that weigh hits place a first turn, and a follow-up that lost its context, on an instance
that holds its framework's prefix, the least loaded of ``m`` holders, unless one of the other
``N - m`` wins by the policy's own threshold form: a *spill*, which makes it a holder, too.  A
holder is lost when nothing has touched the prefix for the retention time τ.  Hence

.. math:: \frac{dm}{dt} = r\, s(m) - m\, \delta(m), \qquad m(0) = 1 + r\, t_1,

with r placements of the framework a second.  δ is the rate at which the busy period of an M/G/∞
queue ends (:mod:`smetric_model.analytic.shared_prefixes`): the visits of sessions keep a prefix in
place as customers keep a queue busy.

The number varies about this mean, by :math:`σ^2 = r s/(\partial_m(m δ) - r \partial_m s)` (linear
noise of births and deaths), and a holder is lost :math:`\exp(σ^2 (\partial_m \ln mδ)^2/2)` times as
often as at the mean.

**Spills.**  A framework with the share π of the requests is served by its holders alone: they get
:math:`1 + π(N/m - 1)` times the mean rate, others :math:`1 - π`.  The load of an instance that gets
θ times as many requests has the law :math:`p_l θ^l`, scaled, of the mean field's p (births of the
chain times θ).  Where loads are requests, s is the probability that the least of m loads of the one
kind loses against the least of N - m of the other.  Where loads are unprefilled tokens, a holder
loses while it has more of them than the prefix is long, others have none, and m holders that hand
requests to whoever is free lose together with Erlang's loss probability :math:`B(m, mβ)`, β the
share of time in which one has so many.

**Cold start.**  With rare spills and a prefix that is never lost, m stays for hours what the first
seconds made of it.  The run starts with empty caches: until the first chunk of a prompt is
computed, :math:`t_1`, nobody holds the prefix, and sessions that come for the first time compute
their whole context, a share :math:`c(t) = P(\text{think} > t)` of the arrivals.  Over the time of
such a prefill, mean c̄: the logarithm of s lies between that of the warm and of the cold cluster,
whose loads are those of whole contexts; β likewise.

**Sessions** are followed from turn to turn (:func:`_holder_kernels.follow`).  One that lost its
context at home goes to one of the m holders, its home among them if that is so still, and stays if
that is the least loaded.  One that leaves finds the *session's first* instance with
:math:`1/(m - 1)` while that holds the prefix.  A former instance loses it at the rate δ and gets it
again at δ m/(N - m).  Where nine tenths of the instances hold it, it counts for nothing, and
anybody may serve the request.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic import _holder_kernels
from smetric_model.analytic._step_kernels import prefill_time_s
from smetric_model.analytic.cluster_tiers import held_by_all
from smetric_model.analytic.routed_stays import with_stays
from smetric_model.analytic.stick_rules import Field, stays_against_bursts
from smetric_model.routing.thresholds import FollowUp

if TYPE_CHECKING:
    from smetric_model.analytic.cluster_demand import ClusterDemand
    from smetric_model.analytic.cluster_tiers import LocalHits
    from smetric_model.analytic.stay_rule import Pace, StayRule
    from smetric_model.analytic.step_time import StepModel
    from smetric_model.analytic.stickiness import Stickiness
    from smetric_model.routing.thresholds import ThresholdForm

__all__ = [
    "ColdCluster",
    "PrefixHolding",
    "Prefixes",
    "Returns",
    "holding_of",
    "in_use",
    "returns_of",
]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_SAMPLE = 4  # first turns, and requests, that stand for all
_COLD_SAMPLE = 64  # prompts whose cold prefill is worked out
_MOST_LEVELS = 160  # loads told apart
_NO_TABLE = np.zeros((0, 0))
_NO_LIMITS = np.zeros((0, 0, 0), np.int64)


class Prefixes(NamedTuple):
    """Prefixes that sessions share, by the longest that each request begins with.

    Attributes
    ----------
    of_request : ndarray of int, shape (requests,)
        Which prefix; the number of prefixes where there is none.
    share : ndarray, shape (prefixes,)
        Of the requests that count.
    tokens : ndarray, shape (prefixes,)
        Its length [tokens].
    first_prompts, prompts : ndarray
        Prompts of some first turns, and of some requests, that stand for all [tokens].
    """

    of_request: IntArray
    share: FloatArray
    tokens: FloatArray
    first_prompts: FloatArray
    prompts: FloatArray

    @classmethod
    def of(cls, work: ClusterDemand) -> Prefixes:
        """Return the prefixes of a workload.

        Parameters
        ----------
        work : ClusterDemand
            The workload as its cluster sees it.
        """
        reuse, rows = work.demand.session_reuse, work.rows
        deepest = np.full(reuse.session.size, -1, np.int64)
        # the part that begins last: prefixes lie in each other, the whole prefix names it
        of_part = np.zeros(reuse.part_size_tokens.size)
        np.maximum.at(of_part, reuse.part, reuse.shared_tokens[reuse.part_request])
        order = np.argsort(of_part[reuse.part], kind="stable")[::-1]
        deepest[reuse.part_request[order]] = reuse.part[order]
        known, of_request = np.unique(deepest, return_inverse=True)
        of_request = np.asarray(of_request, np.int64).reshape(-1)
        if known.size and known[0] < 0:
            of_request = np.where(of_request == 0, known.size - 1, of_request - 1)
            known = known[1:]
        size = known.size
        counts = np.bincount(of_request[rows], minlength=size + 1)[:size]
        sums = np.bincount(of_request[rows], reuse.shared_tokens[rows], minlength=size + 1)[:size]
        prompt = work.local.prompt
        return cls(
            of_request,
            counts / max(rows.size, 1),
            sums / np.maximum(counts, 1),
            _middles(prompt[work.local.first] if work.local.first.any() else prompt),
            _middles(prompt),
        )


def _middles(values: FloatArray) -> FloatArray:
    """Middles of equal parts of a sample."""
    shares = (np.arange(_SAMPLE) + 0.5) / _SAMPLE
    return np.asarray(np.quantile(values, shares))


class ColdCluster(NamedTuple):
    """A cluster whose sessions compute their whole context.

    Attributes
    ----------
    prefill_s : float
        Mean time of a prompt's prefill [s].
    chunk_s : float
        Of its first chunk [s].
    """

    prefill_s: float
    chunk_s: float

    @classmethod
    def of(cls, work: ClusterDemand, model: StepModel) -> ColdCluster:
        """Return it for a workload.

        Parameters
        ----------
        work : ClusterDemand
            The workload.
        model : StepModel
            The engine.
        """
        prompt = work.local.prompt
        some = np.ascontiguousarray(prompt[:: max(prompt.size // _COLD_SAMPLE, 1)])
        budget = work.demand.instance.token_budget
        nothing = np.zeros(some.size)
        whole = prefill_time_s(model, some, nothing, budget)
        chunk = prefill_time_s(model, np.minimum(some, float(budget)), nothing, budget)
        return cls(float(whole.mean()), float(chunk.mean()))


@dataclass(frozen=True, eq=False)
class PrefixHolding:
    """Instances that hold each prefix; arrays of shape (prefixes,).

    Attributes
    ----------
    holders : ndarray
        Number of them, m.
    loss_rate_per_s : ndarray
        Rate at which one loses it [1/s].
    spill_ratio : ndarray
        Share of the requests placed by their prefix that go to an instance without it.
    used_ratio : float
        Share of the instances that hold any prefix; others stay idle.
    """

    holders: FloatArray
    loss_rate_per_s: FloatArray
    spill_ratio: FloatArray
    used_ratio: float = 1.0


class Returns(NamedTuple):
    """Where follow-ups go, ÷ follow-ups.

    Attributes
    ----------
    first_ratio, previous_ratio : float
        Served where the session's first turn was, where the previous one was.
    evicted_ratio : float
        Moved since no more was left of their context than what nearly all instances hold.
    other_ratio : float
        Moved to another holder of what was left, or to a copy as long.
    """

    first_ratio: float
    previous_ratio: float
    evicted_ratio: float
    other_ratio: float

    @property
    def overload_ratio(self) -> float:
        """Moved since another instance was less loaded."""
        rest = 1.0 - self.previous_ratio - self.evicted_ratio - self.other_ratio
        return max(rest, 0.0)


def holding_of(
    work: ClusterDemand, routed: Stickiness, hits: LocalHits, pace: Pace, cold: ColdCluster
) -> PrefixHolding:
    """Return the instances that hold each prefix in the middle of the window.

    Parameters
    ----------
    work : ClusterDemand
        The workload.
    routed : Stickiness
        The mean field, of a policy that compares instances.
    hits : LocalHits
        The local tiers.
    pace : Pace
        How long requests take.
    cold : ColdCluster
        The cluster before anything is cached.
    """
    cluster, prefixes = routed.cluster, work.prefixes
    n, own_rps = cluster.instances, cluster.rate_per_instance_rps
    out = np.empty((4, prefixes.share.size))
    decode_s = pace.per_output_token_s * work.mean_output
    # a cold cluster has not built up its queues yet
    cold_load = max(own_rps * (cold.prefill_s + decode_s), routed.mean_load)
    levels = min(routed.load_law.size, _MOST_LEVELS)
    law = np.maximum(routed.load_law[:levels], 1e-300)
    limits = cold_limits = _NO_LIMITS
    within = _NO_TABLE
    if cluster.unprefilled is not None:
        within = stays_against_bursts(cluster.unprefilled, prefixes.tokens, levels)
    else:
        form = cluster.policy.threshold_form
        assert form is not None  # as it compares instances
        unit = cluster.load_unit_tokens
        limits = _limits(form, prefixes, law, unit, n, routed.mean_load)
        cold_limits = _limits(form, prefixes, law, unit, n, cold_load)
    follow = work.follow_up_ratio
    again = hits.mean_stay * follow
    running_s = pace.first_token_s + decode_s
    # visits of sessions to an instance, and how long each keeps the prefix there
    turn_s = running_s + work.local.visit_s(min(hits.retention_s, 1e12), again)
    visits = max(1.0 - again, 1e-6)
    moving = min(hits.refused + max(routed.migrated_overload_ratio, 0.0), 1.0)
    think = np.stack((cluster.think_time.weights, cluster.think_time.means_s))
    _holder_kernels.holders(
        law,
        prefixes.share,
        limits,
        cold_limits,
        within,
        _SAMPLE,
        think,
        (
            float(n),
            cluster.arrival_rate_rps,
            1.0 - follow,
            follow * moving,
            visits,
            turn_s / visits,
        ),
        (cold_load, own_rps * cold.prefill_s, cold.prefill_s, cold.chunk_s),
        (routed.mean_load, 0.5 * (work.window_s[0] + work.window_s[1])),
        out,
    )
    used = _used_ratio(prefixes.share, out[0], n, within.size > 0)
    return PrefixHolding(out[0], out[1] * out[3], out[2], used)


def _used_ratio(share: FloatArray, holders: FloatArray, instances: int, by_tokens: bool) -> float:
    """Share of the instances that requests come to.

    Where loads are requests the least loaded, to which prefixes spread, are those that hold none;
    where they are unprefilled tokens any may be.
    """
    if share.sum() < 0.999:  # requests without a prefix come to all
        return 1.0
    chance = holders / instances
    used = -np.expm1(np.log1p(-np.minimum(chance, 1 - 1e-12)).sum()) if by_tokens else chance.sum()
    return float(min(max(used, 1 / instances), 1.0))


def _limits(
    form: ThresholdForm,
    prefixes: Prefixes,
    law: FloatArray,
    unit: float,
    instances: int,
    mean_load: float,
) -> IntArray:
    """First load at which a holder loses against another instance of load j.

    Shape (prefixes, requests, loads), some first turns before some requests.
    """
    levels = law.size
    at_least = np.cumsum(law[::-1])[::-1]
    prompt = np.concatenate((prefixes.first_prompts, prefixes.prompts))
    prefix = prefixes.tokens[:, None, None]
    seen = FollowUp(
        prompt_tokens=np.maximum(prompt[None, :, None], prefix + 1.0),
        home_hit_tokens=prefix,
        other_load=np.arange(levels, dtype=float)[None, None, :] * unit,
        mean_load=mean_load * unit,
        max_load=float((1.0 - (1.0 - at_least[1:]) ** instances).sum()) * unit,
        min_load=float((at_least[1:] ** instances).sum()) * unit,
    )
    limit = np.floor(np.asarray(form.home_load_limit(seen)) / unit + 1e-9) + 1.0
    return np.clip(limit, 0.0, float(levels)).astype(np.int64)


def in_use(
    rule: StayRule, hits: LocalHits, routed: Stickiness, used_ratio: float
) -> tuple[StayRule, LocalHits]:
    """Return rule and tiers of the instances in use, where others stay idle.

    They get 1 ÷ ``used_ratio`` times the mean rate: homes are busier by as much (the law p_l θ^l
    of that mean), and forget sooner, as the tiers' busier instances do.

    Parameters
    ----------
    rule, hits : StayRule, LocalHits
        Of the local tier, at its fixed point.
    routed : Stickiness
        The mean field.
    used_ratio : float
        Share of the instances in use.
    """
    busier = 1.0 / used_ratio
    spread = hits.spread
    if busier < 1.01:
        return rule, hits
    log_rate, log_age = np.log(spread.nodes), np.log(np.maximum(spread.ages, 1e-6))
    at = log_rate + np.log(busier)
    slope = (log_age[-1] - log_age[0]) / max(log_rate[-1] - log_rate[0], 1e-9)
    beyond = np.maximum(at - log_rate[-1], 0.0) * slope
    if np.isfinite(log_age).all():
        ages = np.exp(np.interp(at, log_rate, log_age) + beyond)
        hits = replace(hits, spread=spread._replace(nodes=spread.nodes * busier, ages=ages))
    seen = routed.follow_up_load_law
    mean = float(seen @ np.arange(seen.size))
    field = Field(
        routed.load_law,
        np.cumsum(routed.load_law[::-1])[::-1],
        _holder_kernels.tilted_to(np.maximum(seen, 1e-300), busier * mean),
        routed.mean_load,
        routed.load_variance,
        routed.total_variance,
    )
    stays = routed.rule.stay_of_hits(field) if routed.rule.hits is not None else None
    return (rule if stays is None else with_stays(rule, routed, stays)), hits


def returns_of(
    work: ClusterDemand,
    holding: PrefixHolding,
    rule: StayRule,
    hits: LocalHits,
    routed: Stickiness,
    pace: Pace,
) -> Returns:
    """Return where follow-ups go under a router that looks at hits.

    Parameters
    ----------
    work : ClusterDemand
        The workload.
    holding : PrefixHolding
        Who holds the prefixes.
    rule, hits, pace
        Of the local tier, at its fixed point.
    routed : Stickiness
        The mean field.
    """
    tier = work.everyone
    instances, own_rps = routed.cluster.instances, routed.cluster.rate_per_instance_rps
    rule, hits = in_use(rule, hits, routed, holding.used_ratio)
    only = rule.context_only()
    if not rule.seeks_hits:
        # routers that compare hits alone call those a block of the trace apart ties
        only = replace(only, tie_tokens=tier.cache_block)
    stays = tier.stays_alone(only, hits, instances, own_rps, work.window_s, pace)
    n, of_row = float(instances), work.prefix_of_everyone
    if not rule.seeks_hits:
        # whose context is lost is placed by load alone where the guard does not pass the prefix
        stays[2] = 0.0
        n = max(n * holding.used_ratio, 1.0 + 1e-9)
        of_row = np.where(tier.passes_prefix(rule), of_row, holding.holders.size)
    held = np.empty((5, holding.holders.size + 1))
    held[:3, :-1] = holding.holders, holding.loss_rate_per_s, holding.spill_ratio
    held[:3, -1] = n, 0.0, 0.0
    held[3] = rule.home_wins_of(held[0], instances)
    table = held_by_all(instances)
    chance = (held[0] - 1.0) / max(instances - 1.0, 1.0)
    held[4] = np.interp(chance, np.linspace(0.0, 1.0, table.size), table)
    held[4, -1] = 1.0
    out = np.empty(4)
    number = _holder_kernels.follow(
        work.by_session,
        work.session_of_everyone,
        of_row,
        work.counted,
        work.idle_of_everyone,
        stays,
        held,
        (
            n,
            hits.retention_s,
            pace.first_token_s + pace.per_output_token_s * tier.mean_output,
            rule.stay_without,
            rule.seeks_hits,
        ),
        out,
    )
    return Returns(*(out if number else np.full(4, np.nan)).tolist())
