r"""From a policy's threshold form to the probability that a follow-up stays home.

The chain of :mod:`smetric_model.analytic.stickiness` knows the load ``l`` of a follow-up's home
and, through the law of one instance, what the others may hold.  A rule turns that into

``stay``
    P(stay | home load l), given that the home still has the context;
``leave_at``
    for rules that compare with other instances, P(a follow-up leaves | least load of the others
    is j): leaving is much likelier where somebody is idle, and the migrant goes just there.

Forms of ``compares_with = "mean"`` are inverted for the mean load at which they let ``l`` stay.
Forms of ``"each other"`` are read on the grid of loads, once a policy and workload; those that need
a load scale (Bailian) are additive in the other's load and homogeneous in all loads, so that one
number per hit, its lead in load scales, says everything.  :class:`StickRule` holds the tables,
:func:`smetric_model.analytic._routing_kernels.stays` answers from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic import _routing_kernels, _stay_kernels
from smetric_model.analytic.routed_cluster import FollowUpHits, RoutedCluster, Unprefilled
from smetric_model.errors import SpecError
from smetric_model.routing.policy import Policy
from smetric_model.routing.thresholds import FollowUp, ThresholdForm

__all__ = ["Field", "StickRule", "evicted_ratio", "rule_of", "stays_against_bursts"]

FloatArray = NDArray[np.float64]
_LEVELS_KEPT = 64  # loads worked out and kept together
_BLOCKS_KEPT = 4  # of so many loads: tables of more are not kept
_CELLS = 64  # of the law of unprefilled tokens up to the longest hit
_NONE, _NO_TABLE = np.zeros(0), np.zeros((0, 0))

Kind = Literal["always", "never", "mean", "each other", "scaled", "slo", "blind"]
_Tables = tuple[FloatArray, FloatArray, FloatArray]
_NO_TABLES: _Tables = (_NONE, _NONE, _NO_TABLE)


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


def evicted_ratio(cluster: RoutedCluster) -> float:
    """Share of the follow-ups whose home holds too little of their context for the policy.

    For policies without a guard: those of whom no more than the shared prefix is left.
    """
    if cluster.evicted_ratio is not None:
        return cluster.evicted_ratio
    hits = cluster.follow_ups
    if hits is None:
        return 0.0
    return float(np.mean(_evicted(cluster.policy, hits)))


def _evicted(policy: Policy, hits: FollowUpHits) -> NDArray[np.bool_]:
    form = policy.threshold_form
    least = np.asarray(hits.shared_prefix_tokens)
    if form is not None and form.min_hit_tokens is not None:
        least = form.min_hit_tokens(_seen(hits, 0.0))
    return np.asarray(hits.home_hit_tokens <= least)


@lru_cache(maxsize=64)
def _with_home(policy: Policy, hits: FollowUpHits) -> FollowUpHits | None:
    """Return the follow-ups whose home holds enough; one object for equal questions."""
    return hits.only(~_evicted(policy, hits))


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
    tables : tuple of ndarray
        Two vectors and a table, at least as long as there are loads, as of
        :func:`~smetric_model.analytic._routing_kernels.stays`.
    scale : {"mean", "max", "minmax"}
        ``scaled``: which load scale leads are multiples of.
    hits : FollowUpHits, optional
        ``each other``, ``scaled``: the follow-ups that have a home.
    limits : ndarray of int, optional
        ``each other``: largest home load at which each of ``hits`` stays | least load of the others
        j, shape (hits, j); below 0 where it never does.
    lead_of_hit : ndarray, optional
        ``scaled``: lead of each of ``hits``, in load scales.
    stays_of_hits : ndarray, optional
        ``each other`` where loads are unprefilled tokens: P(stay) of each hit at home load l,
        shape (hits, l).
    """

    kind: Kind
    instances: int
    evicted: float
    first_turn: Literal["least load", "same rule", "hash", "blind"]
    tables: _Tables = _NO_TABLES
    scale: str = "mean"
    hits: FollowUpHits | None = None
    limits: NDArray[np.int64] | None = None
    lead_of_hit: FloatArray | None = None
    stays_of_hits: FloatArray | None = None

    @property
    def code(self) -> int:
        """How the compiled rules know it; a blind policy never asks whether one stays."""
        name = {"scaled": f"scaled by {self.scale}", "blind": "never"}.get(self.kind, self.kind)
        return _routing_kernels.KINDS[name]

    def stay_of_hits(self, field: Field) -> FloatArray | None:
        """Return the probability to stay of each of ``hits``, whatever their homes' loads are.

        None where all stay alike, or where the loads' scale is the largest load.

        Parameters
        ----------
        field : Field
            Loads.
        """
        n = self.instances
        if self.stays_of_hits is not None:
            return np.asarray(self.stays_of_hits @ field.seen)
        if self.limits is not None:
            return np.asarray(
                _stay_kernels.stay_of_limits(self.limits, field.at_least, field.seen, n - 1)
            )
        if self.scale != "mean" or self.lead_of_hit is None:
            return None
        return np.asarray(
            _stay_kernels.stay_of_each_lead(
                self.lead_of_hit,
                n,
                (field.at_least, field.seen),
                (field.mean, field.variance, field.total_variance),
            )
        )


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
    unit = cluster.load_unit_tokens
    if form.compares_with == "mean":
        needed = _total_needed(policy, n, -(-levels // _LEVELS_KEPT), unit)
        return StickRule("mean", n, evicted, form.first_turn, (needed, _NONE, _NO_TABLE))
    if cluster.follow_ups is None:
        raise SpecError(
            f"policy {policy.name!r} weighs hits against load, and nothing says how long hits are"
            " (a trace without block ids; from Python: follow_ups)"
        )
    hits = _with_home(policy, cluster.follow_ups)
    if hits is None:
        return StickRule("never", n, 1.0, form.first_turn)
    if form.compares_with == "slo":
        at = np.arange(levels) * unit
        stays, within = (
            1.0 - np.searchsorted(limits, at) / limits.size for limits in _slo_limits(policy, hits)
        )
        return StickRule("slo", n, evicted, form.first_turn, (stays, within, _NO_TABLE))
    if cluster.unprefilled is not None:
        of_hits = stays_against_bursts(cluster.unprefilled, _token_leads(policy, hits), levels)
        # some other instance has nothing to prefill: it makes no difference which
        table = of_hits.mean(axis=0)[None, :]
        return StickRule(
            "each other", n, evicted, form.first_turn, (_NONE, _NONE, table), hits=hits,
            stays_of_hits=of_hits,
        )  # fmt: skip
    read = _limits_upto(policy, hits, -(-levels // _LEVELS_KEPT), unit)
    if read is not None:
        limits, table = read
        return StickRule(
            "each other", n, evicted, form.first_turn, (_NONE, _NONE, table), hits=hits,
            limits=limits,
        )  # fmt: skip
    scale, leads, ordered = _leads(policy, hits)
    return StickRule(
        "scaled", n, evicted, form.first_turn, (ordered, _NONE, _NO_TABLE), scale, hits,
        lead_of_hit=leads,
    )  # fmt: skip


def _form(policy: Policy) -> ThresholdForm:
    form = policy.threshold_form
    assert form is not None
    return form


@lru_cache(maxsize=64)
def _total_needed(policy: Policy, instances: int, blocks: int, unit: float) -> FloatArray:
    """Least whole total of the cluster at which each home load may stay; ``inf`` if none does."""
    levels = blocks * _LEVELS_KEPT
    loads = np.arange(levels, dtype=float)
    form = _form(policy)

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


def _limits_upto(
    policy: Policy, hits: FollowUpHits, blocks: int, unit: float
) -> tuple[NDArray[np.int64], FloatArray] | None:
    """Return what an ``each other`` rule needs of so many blocks of loads; None if it has a scale.

    Largest home load at which each hit stays, by the other's; share of the hits that stay, by the
    other's load and the home's.
    """
    kept = _read_limits if blocks <= _BLOCKS_KEPT else _read_limits.__wrapped__
    return kept(policy, hits, blocks, unit)


@lru_cache(maxsize=32)
def _read_limits(
    policy: Policy, hits: FollowUpHits, blocks: int, unit: float
) -> tuple[NDArray[np.int64], FloatArray] | None:
    levels = blocks * _LEVELS_KEPT
    loads = np.arange(levels, dtype=float)
    # without a scale the form answers; with one it answers nan
    limit = np.asarray(_form(policy).home_load_limit(_seen(hits, loads * unit))) / unit
    limit = np.broadcast_to(limit, (hits.prompt_tokens.size, levels))  # it may not look at hits
    if np.any(np.isnan(limit)):
        return None
    allowed = np.clip(np.floor(limit * (1 + 1e-12) + 1e-9), -1, levels - 1).astype(np.int64)
    # allowed >= l for each hit, counted for all l at once
    counts = np.zeros((levels, levels + 1))
    np.add.at(counts, (np.arange(levels)[None, :], allowed + 1), 1.0)
    stays = np.cumsum(counts[:, ::-1], axis=1)[:, ::-1][:, 1:]
    return allowed, np.ascontiguousarray(stays / hits.prompt_tokens.size)


@lru_cache(maxsize=64)
def _token_leads(policy: Policy, hits: FollowUpHits) -> FloatArray:
    """Unprefilled tokens up to which each hit stays, where some other instance has none."""
    return np.asarray(_form(policy).home_load_limit(_seen(hits, 0.0)), dtype=float)


def stays_against_bursts(added: Unprefilled, leads: FloatArray, levels: int) -> FloatArray:
    """Return P(unprefilled tokens of l requests in flight <= lead), shape (leads, levels).

    Some other instance has nothing to prefill.

    Parameters
    ----------
    added : Unprefilled
        What a request in flight adds.
    leads : ndarray
        What a home's hit is worth [tokens].
    levels : int
        Loads 0, …, levels - 1.
    """
    return np.asarray(
        _stay_kernels.stay_under_bursts(
            np.asarray(added.tokens, dtype=float), added.weights, added.ratio, leads, levels, _CELLS
        )
    )


@lru_cache(maxsize=64)
def _leads(policy: Policy, hits: FollowUpHits) -> tuple[str, FloatArray, FloatArray]:
    """Which load scale a form divides by, how many of them each home hit is worth, and sorted."""
    scales: dict[str, dict[str, float]] = {
        "mean": {"mean_load": 1.0},
        "max": {"max_load": 1.0},
        "minmax": {"max_load": 1.0, "min_load": 0.0},
    }
    form = _form(policy)
    for name, known in scales.items():
        leads = form.home_load_limit(_seen(hits, 0.0, **known))
        if not np.any(np.isnan(leads)):
            each = np.broadcast_to(np.asarray(leads, float), hits.prompt_tokens.shape).copy()
            return name, each, np.sort(each)
    raise SpecError(f"threshold form {form.statement!r} depends on something else than loads")


@lru_cache(maxsize=64)
def _slo_limits(policy: Policy, hits: FollowUpHits) -> tuple[FloatArray, FloatArray]:
    """Sorted unprefilled tokens at which each hit is within its SLO: at home, and elsewhere."""
    form = _form(policy)
    bare = FollowUpHits(
        hits.prompt_tokens, np.minimum(hits.shared_prefix_tokens, hits.prompt_tokens)
    )
    home, other = (np.sort(form.home_load_limit(_seen(which, 0.0))) for which in (hits, bare))
    return home, other
