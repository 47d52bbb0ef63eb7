r"""The closure of the routing mean field: from a law of one instance's load to the next.

:mod:`smetric_model.analytic.stickiness` looks for its fixed point.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic import _chain_kernels as kernels
from smetric_model.analytic.load_laws import birth_death, dealt_in_turn_law, least_loaded_law
from smetric_model.analytic.queueing import state_dependent_queue
from smetric_model.analytic.routed_cluster import RoutedCluster
from smetric_model.analytic.shared_prefixes import Crowding
from smetric_model.analytic.stick_rules import Field, rule_of
from smetric_model.errors import UnstableError

__all__ = ["Closure", "LinearNoise", "State", "saturated"]

FloatArray = NDArray[np.float64]

_MOST_LEVELS = 3000
_TAIL = 1e-11
_NOBODY = np.zeros(0)
_EVERYBODY = 1 - 1e-13  # a share that falls short of 1 by rounding alone


@dataclass(frozen=True, eq=False)
class LinearNoise:
    """Small fluctuations of one instance: thinking sessions by class, then the load.

    Attributes
    ----------
    drift : ndarray, shape (classes + 1, classes + 1)
        Linear drift of the deviations [1/s].
    covariance : ndarray, shape (classes + 1, classes + 1)
        Stationary covariance.
    service_slope : float
        Completions per second for one request more.
    """

    drift: FloatArray
    covariance: FloatArray
    service_slope: float


@dataclass
class State:
    """One evaluation of the closure, at a law and a slope."""

    law: FloatArray
    slope: float
    field: Field
    stay: FloatArray  # not evicted
    leave: float  # share of follow-ups that leave for the overload of their home
    births: FloatArray
    joined: FloatArray  # free flow at each load ÷ its rate
    completion: FloatArray
    noise: LinearNoise
    new_law: FloatArray
    new_slope: float
    holders: FloatArray
    new_holders: FloatArray

    def point(self, scale: float, instances: int) -> FloatArray:
        """Return the point at which the map was evaluated, in comparable units."""
        return np.concatenate((self.law, [self.slope / scale], self.holders / (10 * instances)))

    def change(self, scale: float, instances: int) -> FloatArray:
        """Return what the map changes, in the same units."""
        return np.concatenate(
            (
                self.new_law - self.law,
                [(self.new_slope - self.slope) / scale],
                (self.new_holders - self.holders) / (10 * instances),
            )
        )


class Closure:
    """The map whose fixed point is sought."""

    def __init__(self, cluster: RoutedCluster):
        self.cluster = cluster
        self.n = cluster.instances
        self.rate = cluster.rate_per_instance_rps
        self.follow_ratio = cluster.turns.follow_up_ratio
        self.follow_rate = self.rate * self.follow_ratio
        self.first_rate = self.rate - self.follow_rate
        self.saturation = float(cluster.completion_rate_rps[-1])
        self.levels = self._level_count()
        given = cluster.completion_rate_rps
        self.base = np.full(self.levels - 1, self.saturation)
        kept = min(given.size, self.levels - 1)
        self.base[:kept] = given[:kept]
        self.loads = np.arange(self.levels, dtype=float)
        self.rule = rule_of(cluster, self.levels)
        self.evicted = self.rule.evicted
        self.keeps = self._keeps()
        self.crowding: Crowding | None = None
        if cluster.frameworks is not None and self.n > 1 and self.rule.first_turn == "same rule":
            self.crowding = Crowding(cluster, self.levels)
        # work of moves: known beforehand where nobody is meant to stay
        self.fixed_work: float | None = None
        if self.rule.kind in ("never", "blind"):
            moved = self.follow_ratio * (1 - 1 / self.n)
            self.fixed_work = 1 + cluster.move_work_ratio * moved
            self.base = self.base / self.fixed_work
            if not self.rate < self.base[-1]:
                raise saturated(cluster, float(self.base[-1]))
        self._thinking = cluster.think_time.rates_per_s
        self._tilts = self._tilted()
        self.blind_law = self._blind_law() if self.rule.kind == "blind" else None

    def _level_count(self) -> int:
        most_work = 1 + self.cluster.move_work_ratio * self.follow_ratio
        rate = min(self.rate * most_work, max(self.rate, 0.97 * self.saturation))
        law, ratio = state_dependent_queue(rate, self.cluster.completion_rate_rps)
        beyond = float(law[-1]) * ratio / (1 - ratio)
        if beyond > _TAIL:
            extra = int(np.ceil(np.log(_TAIL / beyond) / np.log(ratio)))
            return min(law.size + extra, _MOST_LEVELS)
        tail = np.cumsum(law[::-1])[::-1]
        return max(int(np.searchsorted(-tail, -_TAIL)) + 2, 8)

    def _tilted(self) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of the product-form law at many rates, for :meth:`total_variance`."""
        factor = np.append(np.geomspace(0.02, 1.0, 40), [1.05, 1.1])
        factor = factor[factor * self.rate < 0.9995 * self.saturation]
        weights = np.concatenate(([0.0], np.cumsum(np.log(self.rate / self.base))))
        log = weights + np.log(factor)[:, None] * self.loads
        law = np.exp(log - log.max(axis=1, keepdims=True))
        law /= law.sum(axis=1, keepdims=True)
        mean = law @ self.loads
        return mean, np.asarray(law @ self.loads**2 - mean**2)

    def total_variance(self, mean: float, variance: float, slope: float) -> float:
        """Variance of the cluster's total load ÷ N.

        That of the product form with the mean load, but no more than the linear noise of a
        balanced cluster, rate ÷ slope of the completion rate: with KV-bound instances the former
        grows without limit while balanced ones stay below their bound.
        """
        means, variances = self._tilts
        tilted = float(np.interp(mean, means, variances / means)) * mean
        linear = self.rate / slope if slope > 0 else np.inf
        return max(min(tilted, linear), 1e-9)

    def _keeps(self) -> FloatArray:
        """P(context at home | think-time class) ÷ its mean: those who think for long lose it."""
        lost, weights = self.cluster.evicted_by_class, self.cluster.think_time.weights
        kept = np.ones(weights.size) if lost is None else 1.0 - lost
        mean = float(weights @ kept)
        if self.evicted == 0 or mean <= 0:
            return np.ones(weights.size)
        return np.asarray(kept / mean)

    def seen_by_evicted(self, field: Field, noise: LinearNoise) -> FloatArray:
        """Law of the home's load at the arrival of a follow-up whose context is lost.

        Those who come back at once, to a rewritten history, find that one request fewer is there;
        those who have thought for long find what anybody finds.
        """
        lost, think = self.cluster.evicted_by_class, self.cluster.think_time
        spread = noise.covariance[-1, -1]
        if lost is None or self.follow_rate <= 0 or spread <= 0:
            return field.seen
        mean = float(think.weights @ lost)
        if mean <= 0:
            return field.seen
        pull = float((think.rates_per_s * lost / mean) @ noise.covariance[:-1, -1]) / spread
        rate = np.maximum(
            self.follow_rate + pull * (self.loads - field.mean), 0.05 * self.follow_rate
        )
        law = field.law * rate
        return np.asarray(law / law.sum())

    def start(self) -> FloatArray:
        """Law under load balancing: narrow, as a fixed point of two should be approached."""
        if self.blind_law is not None:
            return self.blind_law
        return least_loaded_law(self.rate, self.base, self.n)

    def _blind_law(self) -> FloatArray:
        """Law under a policy that does not look at homes; a cluster of one has no choice."""
        name = self.cluster.policy.name
        if self.n == 1 or name == "random":
            return birth_death(np.full(self.levels, self.rate), self.base)
        if name == "round-robin":
            return dealt_in_turn_law(self.rate, self.base, self.n)
        return least_loaded_law(self.rate, self.base, 2)

    def sink(self, at_least: FloatArray, law: FloatArray, of: int) -> FloatArray:
        """Share of a flow to the least loaded of ``of`` that each load receives, per instance."""
        return kernels.least_loaded_share(at_least, law, float(of))

    def start_holders(self) -> FloatArray:
        """Everybody holds every prefix."""
        return np.full(self.crowding.size if self.crowding else 0, float(self.n))

    def evaluate(self, law: FloatArray, slope: float, holders: FloatArray) -> State:
        """Apply the map once."""
        rule = self.rule
        at_least, arrivals, seen, mean, variance, service_slope = kernels.load_field(
            law, float(slope), self.follow_rate, self.base
        )
        field = Field(
            law,
            at_least,
            seen,
            mean,
            variance,
            self.total_variance(mean, variance, service_slope),
        )
        placed = None
        if self.n == 1:
            stay, leave_at = np.ones(self.levels), None
        elif self.crowding is not None:
            placed = self.crowding.place(law, at_least, seen, holders)
            stay, leave_at = placed.stay, None
            if self.rule.kind == "never":
                stay = np.zeros(self.levels)
        else:
            stay, leave_at = rule.stay(field)
        kept = float(seen @ stay)
        leave = (1 - self.evicted) * (1 - kept) if kept < _EVERYBODY else 0.0
        if placed is None and self.blind_law is None:
            compiled = self._compiled(field, slope, holders, arrivals, stay, leave_at, leave)
            if compiled is not None:
                return compiled
        new_holders = holders
        if self.crowding is not None:
            moved = self.evicted + leave
            new_holders = self.crowding.next_holders(at_least, moved, mean / self.rate)
        sticking = (1 - self.evicted) * stay
        if placed is None:
            joined = self._joined(field, stay, leave_at, leave)
        else:
            parts = (self.first_rate, self.follow_rate * self.evicted, self.follow_rate * leave)
            flows = np.stack((placed.first, placed.evicted, placed.moving))
            joined = np.asarray(np.array(parts) @ flows / sum(parts))
        free_rate = self.first_rate + self.follow_rate * (self.evicted + leave)
        if rule.kind == "never" and placed is None:
            sticking, free_rate = np.zeros(self.levels), self.rate
        elif rule.kind == "mean" and rule.first_turn == "hash":
            # every request asks its hash first; the rest is dealt out among those below the bound
            kept_all = float(law @ stay)
            births = self.rate * stay / max(kept_all, 1e-12)
            joined = stay / max(kept_all, 1e-12)
            leave = 1 - kept_all
            seen = law
        if not (rule.kind == "mean" and rule.first_turn == "hash"):
            births = arrivals * sticking + free_rate * joined
        work = 1 + self.cluster.move_work_ratio * self.follow_ratio * leave
        if self.fixed_work is not None:
            work = 1.0
        completion = self.base / work
        if placed is not None:
            new_law = birth_death(births, completion)
        else:
            own = arrivals * sticking
            new_law = self._next_law(field, own, leave_at, leave, births, completion)
        noise, new_slope = self._linear_noise(field, sticking, births, arrivals, completion)
        return State(
            law, slope, field, stay, leave, births, joined, completion, noise, new_law, new_slope,
            holders, new_holders,
        )  # fmt: skip

    def _compiled(
        self,
        field: Field,
        slope: float,
        holders: FloatArray,
        arrivals: FloatArray,
        stay: FloatArray,
        leave_at: FloatArray | None,
        leave: float,
    ) -> State | None:
        """Apply the rest of the map in one go; None where the noise is singular on the way."""
        rule = self.rule
        mode = kernels.GENERAL
        if rule.kind == "mean" and rule.first_turn == "hash":
            mode = kernels.HASH
        elif self.n == 1 or rule.first_turn == "hash":
            mode = kernels.ALONE
        elif rule.kind == "never":
            mode = kernels.NEVER
        think = self.cluster.think_time
        try:
            joined, births, completion, new_law, drift, covariance, service, leave = (
                kernels.respond(
                    mode,
                    field.law,
                    field.at_least,
                    field.seen,
                    arrivals,
                    stay,
                    _NOBODY if leave_at is None else leave_at,
                    self.base,
                    (self.first_rate, self.follow_rate, self.evicted, leave),
                    (self.cluster.move_work_ratio, float(self.fixed_work is not None)),
                    self.n,
                    (self._thinking, think.weights, self.keeps),
                    (field.mean, field.variance),
                )
            )
        except np.linalg.LinAlgError:
            return None
        noise = LinearNoise(drift, covariance, service)
        return State(
            field.law, slope, field, stay, leave, births, joined, completion,
            noise, new_law, self._slope(noise, field.mean), holders, holders,
        )  # fmt: skip

    def _slope(self, noise: LinearNoise, mean: float) -> float:
        """Follow-ups per second for one request more, from the linear noise."""
        if self.rule.kind in ("never", "blind") or self.rule.first_turn == "hash":
            return 0.0
        size = self._thinking.size
        spread = noise.covariance[size, size]
        if not spread > 0:
            return 0.0
        slope = float((self._thinking * self.keeps) @ noise.covariance[:size, size]) / float(spread)
        limit = self.follow_rate / max(mean, 1e-9)
        return min(max(slope, -20 * limit), limit)

    def _next_law(
        self,
        field: Field,
        own: FloatArray,
        leave_at: FloatArray | None,
        leave: float,
        births: FloatArray,
        completion: FloatArray,
    ) -> FloatArray:
        """Law that balances, the flow to the least loaded solved for rather than iterated."""
        rule = self.rule
        if self.blind_law is not None:
            return self.blind_law
        if self.n == 1 or rule.first_turn == "hash" or rule.kind == "never":
            return birth_death(births, completion)
        fixed = self.first_rate + self.follow_rate * self.evicted
        moving = np.full(self.levels, self.follow_rate * leave)
        if leave_at is not None:
            moving = self.follow_rate * (1 - self.evicted) * leave_at
        at_least = kernels.balance_free_flow(own, fixed, self.n, moving, completion, field.at_least)
        # the law again from its births, exact also where it is tiny
        law = np.maximum(at_least - np.append(at_least[1:], 0.0), 1e-300)
        free = fixed * self.sink(at_least, law, self.n)
        free += moving * self.sink(at_least, law, self.n - 1)
        return birth_death(own + free, completion)

    def _joined(
        self, field: Field, stay: FloatArray, leave_at: FloatArray | None, leave: float
    ) -> FloatArray:
        """Free flow received at each load ÷ its rate per instance; its mean over the law is 1."""
        if self.cluster.policy.name == "power-of-two" and self.n > 1:
            return self.sink(field.at_least, field.law, 2)
        if self.blind_law is not None:
            law = np.maximum(self.blind_law, 1e-300)
            up = np.append(law[1:] * self.base / (law[:-1] * self.rate), 0.0)
            return np.where(law > 1e-250, up, 0.0)
        if self.n == 1 or self.rule.first_turn == "hash":
            return np.ones(self.levels)
        everybody = self.sink(field.at_least, field.law, self.n)
        moving = self.follow_rate * leave
        if moving <= 0 or self.rule.kind == "never":
            return everybody
        others = self.sink(field.at_least, field.law, self.n - 1)
        if leave_at is not None:
            # those who leave do so when somebody is idle, and go there
            norm = float(field.law @ (leave_at * others))
            others = leave_at * others / norm if norm > 0 else others
        fixed = self.first_rate + self.follow_rate * self.evicted
        return (fixed * everybody + moving * others) / (fixed + moving)

    def _linear_noise(
        self,
        field: Field,
        sticking: FloatArray,
        births: FloatArray,
        arrivals: FloatArray,
        completion: FloatArray,
    ) -> tuple[LinearNoise, float]:
        r"""Fluctuations of thinking sessions and load, and the slope of follow-ups in the load.

        Drift and noise of the deviations (m_j thinking in class j, l present), primes being
        regression slopes under the load's law::

            dm_j = -γ_j m_j + α_j (1-q) µ' l
            dl   = s̄ Σ k_j γ_j m_j + (b' - µ') l      b' of the arrivals at fixed thinking

        and the Lyapunov equation ``A Σ + Σ A' + Q = 0``; slope = Σ_j k_j γ_j Cov(m_j, l) / Var l,
        k_j from :meth:`_keeps`.
        """
        think, follow, gamma = self.cluster.think_time, self.follow_rate, self._thinking
        drift, noise, service = kernels.fluctuations(
            field.law,
            field.seen,
            sticking,
            births,
            arrivals,
            completion,
            (gamma, think.weights, self.keeps),
            (field.mean, field.variance),
            (self.rate, follow),
        )
        size = gamma.size
        try:
            covariance: FloatArray = kernels.stationary_covariance(drift, noise)
        except np.linalg.LinAlgError:  # on the way to the fixed point: any answer will do
            eye = np.eye(size + 1)
            system = np.kron(drift, eye) + np.kron(eye, drift)
            found = np.linalg.lstsq(system, -noise.ravel())[0].reshape(drift.shape)
            covariance = np.asarray(0.5 * (found + found.T), dtype=np.float64)
        found_noise = LinearNoise(drift, covariance, service)
        return found_noise, self._slope(found_noise, field.mean)


def saturated(cluster: RoutedCluster, most_rps: float) -> UnstableError:
    """Return the error of a cluster that moves itself into saturation."""
    return UnstableError(
        f"{cluster.rate_per_instance_rps:.4g} requests/s an instance; with the work of moves it"
        f" completes {most_rps:.4g} at most",
        cluster.resource,
    )
