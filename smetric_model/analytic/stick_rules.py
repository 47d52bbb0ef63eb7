r"""From a policy's threshold form to the probability that a follow-up stays home.

The chain of :mod:`smetric_model.analytic.stickiness` knows the load ``l`` of a follow-up's home
and, through the law of one instance, what the others may hold.  A rule turns that into

``stay``
    P(stay | home load l), given that the home still has the context;
``leave_at``
    for rules that compare with other instances, P(a follow-up leaves | least load of the others
    is j): leaving is much likelier where somebody is idle, and the migrant goes just there.

Forms of ``compares_with = "mean"`` are inverted for the mean load at which they let ``l`` stay.
Forms of ``"each other"`` are read on the grid of loads, once a solve; those that need a load scale
(Bailian) are additive in the other's load and homogeneous in all loads, so that one number per
hit, its lead in load scales, says everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from smetric_model.analytic import _routing_kernels as kernels
from smetric_model.analytic.routed_cluster import FollowUpHits, RoutedCluster, Unprefilled
from smetric_model.errors import SpecError
from smetric_model.routing.thresholds import FollowUp, ThresholdForm

__all__ = ["Field", "Stay", "StickRule", "evicted_ratio", "rule_of"]

FloatArray = NDArray[np.float64]
_LEVELS_KEPT = 64  # loads worked out and kept together
_CELLS = 64  # of the law of unprefilled tokens up to the longest hit

Kind = Literal["always", "never", "mean", "each other", "scaled", "slo", "blind"]


class Field(NamedTuple):
    """Law of the loads that a rule sees; arrays over loads 0 … levels - 1.

    Attributes
    ----------
    law : ndarray
        Law of one instance's load.
    at_least : ndarray
        P(load >= l).
    seen : ndarray
        Law of the home's load at the arrival of a follow-up.
    mean, variance : float
        Of ``law``.
    total_variance : float
        Variance of the cluster's total ÷ instances.
    """

    law: FloatArray
    at_least: FloatArray
    seen: FloatArray
    mean: float
    variance: float
    total_variance: float


class Stay(NamedTuple):
    """What a rule answers; see the module."""

    stay: FloatArray
    leave_at: FloatArray | None


def evicted_ratio(cluster: RoutedCluster) -> float:
    """Share of the follow-ups whose home holds too little of their context for the policy.

    For policies without a guard: those of whom no more than the shared prefix is left.
    """
    if cluster.evicted_ratio is not None:
        return cluster.evicted_ratio
    hits = cluster.follow_ups
    if hits is None:
        return 0.0
    return float(np.mean(_evicted(cluster, hits)))


def _evicted(cluster: RoutedCluster, hits: FollowUpHits) -> NDArray[np.bool_]:
    form = cluster.policy.threshold_form
    least = np.asarray(hits.shared_prefix_tokens)
    if form is not None and form.min_hit_tokens is not None:
        least = form.min_hit_tokens(_seen(hits, 0.0))
    return np.asarray(hits.home_hit_tokens <= least)


def _seen(hits: FollowUpHits, other_load: float | FloatArray, **scale: float) -> FollowUp:
    """Follow-ups against another instance that holds the shared prefix; (n, 1) against (j,)."""

    def column(value: object) -> FloatArray:
        array = np.asarray(value, dtype=np.float64)
        return array[:, None] if np.ndim(other_load) else array

    return FollowUp(
        prompt_tokens=column(hits.prompt_tokens),
        home_hit_tokens=column(hits.home_hit_tokens),
        est_hit_tokens=column(hits.est_hit_tokens),
        other_hit_tokens=column(np.minimum(hits.shared_prefix_tokens, hits.prompt_tokens)),
        shared_prefix_tokens=column(hits.shared_prefix_tokens),
        other_load=other_load,
        **scale,
    )


@dataclass(frozen=True, eq=False)
class StickRule:
    """A policy's threshold form, prepared for loads 0 … levels - 1.

    Attributes
    ----------
    kind : str
        Which of the computations applies.
    instances : int
        N.
    evicted : float
        Share of the follow-ups that have no home any more.
    first_turn : {"least load", "same rule", "hash", "blind"}
        How first turns are placed.
    total_needed : ndarray, optional
        ``mean``: least total load of the cluster at which home load l stays.
    stays_against : ndarray, optional
        ``each other``: P(stay | least load of the others j, home load l), shape (j, l).
    leads : ndarray, optional
        ``scaled``: sorted leads of the home's hit, in load scales.
    scale : {"mean", "max", "minmax"}
        ``scaled``: which scale.
    stays : ndarray, optional
        ``slo``: P(stay | home load l), where somebody else is within the SLO.
    within : ndarray, optional
        ``slo``: P(another instance at load j is within the SLO).
    limits : ndarray of int, optional
        ``each other``: largest home load at which each hit stays | least load of the others j,
        shape (hits, j); below 0 where it never does.
    hits : FollowUpHits, optional
        ``each other``, ``scaled``: the follow-ups that have a home, in the order of ``limits`` and
        of ``lead_of_hit``.
    lead_of_hit : ndarray, optional
        ``scaled``: ``leads`` in that order.
    stays_of_hits : ndarray, optional
        ``each other`` where loads are unprefilled tokens: P(stay) of each hit at home load l,
        shape (hits, l).
    """

    kind: Kind
    instances: int
    evicted: float
    first_turn: Literal["least load", "same rule", "hash", "blind"]
    total_needed: FloatArray | None = None
    stays_against: FloatArray | None = None
    leads: FloatArray | None = None
    scale: str = "mean"
    stays: FloatArray | None = None
    within: FloatArray | None = None
    limits: NDArray[np.int64] | None = None
    hits: FollowUpHits | None = None
    lead_of_hit: FloatArray | None = None
    stays_of_hits: FloatArray | None = None

    def stay_of_hits(self, field: Field) -> FloatArray | None:
        """Return the probability to stay of each of ``hits``, whatever their homes' loads are.

        None where all stay alike, or where the loads' scale is the largest load.

        Parameters
        ----------
        field : Field
            Loads.
        """
        if self.hits is None:
            return None
        if self.stays_of_hits is not None:
            return np.asarray(self.stays_of_hits @ field.seen)
        least = self._least_of_others(field)
        if self.limits is not None:
            upto = np.append(0.0, np.cumsum(field.seen))
            return np.asarray(upto[self.limits + 1] @ least)
        if self.scale != "mean" or self.lead_of_hit is None:
            return None
        top = min(int(np.searchsorted(-field.at_least, -1e-9)) + 2, field.law.size)
        total, variance = self._given_home(field)
        return np.asarray(
            kernels.stay_of_leads(
                self.lead_of_hit,
                total[:top] / self.instances,
                np.sqrt(variance) / self.instances,
                self.instances,
                least[:top] / max(float(least[:top].sum()), 1e-300),
                field.seen[:top] / max(float(field.seen[:top].sum()), 1e-300),
            )
        )

    def stay(self, field: Field) -> Stay:
        """Return the probability to stay at each home load, evicted follow-ups aside.

        Parameters
        ----------
        field : Field
            Loads.
        """
        levels = field.law.size
        if self.kind in ("always", "never", "blind"):
            return Stay(np.full(levels, float(self.kind == "always")), None)
        if self.kind == "mean":
            assert self.total_needed is not None
            return Stay(self._against_mean(field, self.total_needed), None)
        least = self._least_of_others(field)
        if self.kind == "slo":
            assert self.stays is not None
            assert self.within is not None
            nobody = float(least @ (1 - self.within))
            return Stay(1 - (1 - self.stays) * (1 - nobody), None)
        if self.kind == "scaled":
            return self._scaled(field, least)
        assert self.stays_against is not None
        return Stay(least @ self.stays_against, 1 - self.stays_against @ field.seen)

    def _least_of_others(self, field: Field) -> FloatArray:
        power = field.at_least ** (self.instances - 1)
        law = power - np.append(power[1:], 0.0)
        return np.asarray(law / law.sum())

    def _given_home(self, field: Field) -> tuple[FloatArray, float]:
        """Mean of the cluster's total given each home load, and its variance."""
        n = self.instances
        pull = float(np.clip(field.total_variance / max(field.variance, 1e-12), 1.0, n))
        loads = np.arange(field.law.size)
        mean = np.asarray(n * field.mean + pull * (loads - field.mean), dtype=np.float64)
        variance = n * field.total_variance - pull * pull * field.variance
        return mean, max(variance, 1e-6)

    def _against_mean(self, field: Field, needed: FloatArray) -> FloatArray:
        total, variance = self._given_home(field)
        loads = np.arange(field.law.size)
        others = np.maximum(total - loads, 1e-9)
        missing = needed - loads
        if variance > 1.0001 * others[0]:
            size = others * others / np.maximum(variance - others, 1e-9)
            chance = np.where(
                variance > 1.0001 * others,
                special.betainc(np.maximum(missing, 1e-9), size, 1 - others / variance),
                special.gammainc(np.maximum(missing, 1e-9), others),
            )
        else:  # narrower than Poisson: N small, or loads far from random
            chance = special.ndtr((others - missing + 0.5) / np.sqrt(variance))
        return np.where(missing <= 0, 1.0, chance)

    def _scaled(self, field: Field, least: FloatArray) -> Stay:
        assert self.leads is not None
        levels = field.law.size
        top = min(int(np.searchsorted(-field.at_least, -1e-12)) + 2, levels)
        if self.scale == "mean":
            total, variance = self._given_home(field)
            part = kernels.stay_against_mean(
                self.leads,
                total[:top] / self.instances,
                np.sqrt(variance) / self.instances,
                self.instances,
                top,
            )
        else:
            part = kernels.stay_against_largest(
                self.leads, field.law[:top], self.instances - 1, self.scale == "minmax", top
            )
        # beyond the loads that occur, the last that does stands in
        busier = float(field.seen[top:].sum())
        at_home, last = least[:top] @ part, part[:, -1]
        stay = np.concatenate((at_home, np.full(levels - top, min(float(at_home[-1]), 1.0))))
        # a home no busier than anybody keeps it
        leave = 1 - np.cumsum(field.seen)
        leave[:top] = 1 - part @ field.seen[:top] - last * busier
        return Stay(stay + float(least[top:].sum()), leave)


def rule_of(cluster: RoutedCluster, levels: int) -> StickRule:
    """Prepare a cluster's policy for loads 0 … levels - 1.

    Parameters
    ----------
    cluster : RoutedCluster
        The cluster.
    levels : int
        Loads told apart.

    Returns
    -------
    StickRule

    Raises
    ------
    SpecError
        If the policy weighs hits and the cluster says nothing of them.
    """
    policy, n = cluster.policy, cluster.instances
    form = policy.threshold_form
    if form is None:
        return StickRule("blind", n, 0.0, "blind")
    evicted = evicted_ratio(cluster)
    if form.first_turn == "hash" or policy.name == "load-balance":
        evicted = 0.0  # they do not look at hits
    if policy.name == "load-balance":
        return StickRule("never", n, evicted, form.first_turn)
    if form.compares_with == "nothing":
        return StickRule("always", n, evicted, form.first_turn)
    if form.compares_with == "mean":
        needed = _total_needed(form, n, levels, cluster.load_unit_tokens)
        return StickRule("mean", n, evicted, form.first_turn, total_needed=needed)
    hits = cluster.follow_ups
    if hits is None:
        raise SpecError(
            f"policy {policy.name!r} weighs hits against load, and nothing says how long hits are"
            " (a trace without block ids; from Python: follow_ups)"
        )
    kept = hits.only(~_evicted(cluster, hits))
    if kept is None:
        return StickRule("never", n, 1.0, form.first_turn)
    if form.compares_with == "slo":
        return _slo_rule(cluster, form, kept, evicted, levels)
    return _each_other_rule(cluster, form, kept, evicted, levels)


def _total_needed(form: ThresholdForm, instances: int, levels: int, unit: float) -> FloatArray:
    """Least whole total of the cluster at which each home load may stay; ``inf`` if none does."""
    return _total_needed_upto(form, instances, -(-levels // _LEVELS_KEPT), unit)[:levels]


@lru_cache(maxsize=64)
def _total_needed_upto(form: ThresholdForm, instances: int, blocks: int, unit: float) -> FloatArray:
    """As :func:`_total_needed`, for whole blocks of loads: all rounds ask for much the same."""
    levels = blocks * _LEVELS_KEPT
    loads = np.arange(levels, dtype=float)

    def allowed(mean: FloatArray) -> NDArray[np.bool_]:
        seen = FollowUp(prompt_tokens=1.0, home_hit_tokens=1.0, mean_load=mean * unit)
        return np.asarray(form.home_load_limit(seen) >= loads * unit * (1 - 1e-12))

    low, high = np.zeros(levels), np.full(levels, 1e6)
    never = ~allowed(high)
    for _ in range(64):
        middle = 0.5 * (low + high)
        passes = allowed(middle)
        high, low = np.where(passes, middle, high), np.where(passes, low, middle)
    needed = np.ceil(instances * high - 1e-6)
    return np.where(never, np.inf, np.where(allowed(np.zeros(levels)), 0.0, needed))


def _each_other_rule(
    cluster: RoutedCluster,
    form: ThresholdForm,
    hits: FollowUpHits,
    evicted: float,
    levels: int,
) -> StickRule:
    unit = cluster.load_unit_tokens
    loads = np.arange(levels, dtype=float)
    if cluster.unprefilled is not None:
        leads = np.asarray(form.home_load_limit(_seen(hits, 0.0)), dtype=float)
        of_hits = _stays_against_bursts(cluster.unprefilled, leads, levels)
        everybody = np.tile(of_hits.mean(axis=0), (levels, 1))
        return StickRule(
            "each other",
            cluster.instances,
            evicted,
            form.first_turn,
            stays_against=everybody,
            hits=hits,
            stays_of_hits=of_hits,
        )
    # without a scale the form answers; with one it answers nan
    limit = np.asarray(form.home_load_limit(_seen(hits, loads * unit))) / unit
    limit = np.broadcast_to(limit, (hits.prompt_tokens.size, levels))  # it may not look at hits
    if not np.any(np.isnan(limit)):
        allowed = np.clip(np.floor(limit * (1 + 1e-12) + 1e-9), -1, levels - 1).astype(int)
        # allowed >= l for each hit, counted for all l at once
        counts = np.zeros((levels, levels + 1))
        np.add.at(counts, (np.arange(levels)[None, :], allowed + 1), 1.0)
        stays = np.cumsum(counts[:, ::-1], axis=1)[:, ::-1][:, 1:]
        return StickRule(
            "each other",
            cluster.instances,
            evicted,
            form.first_turn,
            stays_against=stays / hits.prompt_tokens.size,
            limits=allowed,
            hits=hits,
        )
    scale, leads = _leads(form, hits)
    return StickRule(
        "scaled",
        cluster.instances,
        evicted,
        form.first_turn,
        leads=np.sort(leads),
        scale=scale,
        hits=hits,
        lead_of_hit=np.asarray(leads, dtype=float),
    )


def _stays_against_bursts(added: Unprefilled, leads: FloatArray, levels: int) -> FloatArray:
    """P(unprefilled tokens of l requests in flight <= lead) for each lead and l, (leads, levels).

    Each adds all of its uncached tokens or nothing: a compound binomial law, on a grid.  Some other
    instance has nothing to prefill.
    """
    step = max(float(leads.max()), 1.0) / (_CELLS - 2)
    place = np.minimum(added.tokens / step, _CELLS - 1.0)
    low = place.astype(np.int64)
    upper = place - low
    amounts = np.bincount(low, added.weights * (1.0 - upper), minlength=_CELLS + 1)
    amounts = amounts + np.bincount(low + 1, added.weights * upper, minlength=_CELLS + 1)
    one = amounts[:_CELLS] * (added.ratio / max(float(added.weights.sum()), 1e-300))
    one[0] += 1.0 - added.ratio
    law = np.zeros(_CELLS)
    law[0] = 1.0
    at = np.maximum(leads, 0.0) / step
    below = at.astype(np.int64)
    part = at - below
    result = np.empty((leads.size, levels))
    for load in range(levels):
        upto = np.cumsum(law)
        result[:, load] = upto[below] + part * law[np.minimum(below + 1, _CELLS - 1)]
        law = np.convolve(law, one)[:_CELLS]
    result[leads < 0] = 0.0
    return np.minimum(result, 1.0)


def _leads(form: ThresholdForm, hits: FollowUpHits) -> tuple[str, FloatArray]:
    """Which load scale a form divides by, and how many of them each home hit is worth."""
    scales: dict[str, dict[str, float]] = {
        "mean": {"mean_load": 1.0},
        "max": {"max_load": 1.0},
        "minmax": {"max_load": 1.0, "min_load": 0.0},
    }
    for name, known in scales.items():
        leads = form.home_load_limit(_seen(hits, 0.0, **known))
        if not np.any(np.isnan(leads)):
            return name, np.broadcast_to(np.asarray(leads, float), hits.prompt_tokens.shape)
    raise SpecError(f"threshold form {form.statement!r} depends on something else than loads")


def _slo_rule(
    cluster: RoutedCluster,
    form: ThresholdForm,
    hits: FollowUpHits,
    evicted: float,
    levels: int,
) -> StickRule:
    unit = cluster.load_unit_tokens
    loads = np.arange(levels, dtype=float)[None, :]
    home = form.home_load_limit(_seen(hits, 0.0))
    bare = FollowUpHits(
        hits.prompt_tokens, np.minimum(hits.shared_prefix_tokens, hits.prompt_tokens)
    )
    other = form.home_load_limit(_seen(bare, 0.0))
    return StickRule(
        "slo",
        cluster.instances,
        evicted,
        form.first_turn,
        stays=(loads * unit <= home[:, None]).mean(axis=0),
        within=(loads * unit <= other[:, None]).mean(axis=0),
    )
