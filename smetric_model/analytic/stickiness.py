r"""The mean field of routing: how loaded instances are, and how often sessions leave their home.

One instance of N is followed.  With ``l`` requests present it completes at µ(l); follow-ups whose
home it is arrive at ``r_l`` and stay with probability ``s_l``; first turns and those that left
elsewhere join it at ``φ_l``.  Its load is a birth-death chain,

.. math:: p_l (r_l s_l + \phi_l) = p_{l+1}\,\mu(l+1),

closed by the law of the other instances, which is the same ``p``:

* *free requests* join the least loaded of N, so that a tagged instance at load l receives them at
  :math:`x^{(N)}_l = (G_l^N - G_{l+1}^N)/p_l` times their rate per instance, ``G_l = P(load >= l)``;
* *s* comes from the policy's threshold form (:mod:`smetric_model.analytic.stick_rules`);
* sessions think between turns, and many think where few are served: ``r_l`` is linear in l with a
  slope from the linear noise around the fixed point (:func:`_linear_noise`).

``docs/stickiness.md`` derives it and says how far it is from a simulation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smetric_model.analytic import _routing_kernels as kernels
from smetric_model.analytic.queueing import state_dependent_queue
from smetric_model.analytic.returns import return_to_first_ratio
from smetric_model.analytic.routed_cluster import RoutedCluster
from smetric_model.analytic.stick_rules import Field, StickRule, rule_of
from smetric_model.errors import ConvergenceError, UnstableError

__all__ = ["LinearNoise", "Stickiness", "stickiness"]

FloatArray = NDArray[np.float64]

_MOST_LEVELS = 3000
_TAIL = 1e-11
_TOLERANCE = 1e-8  # what the accelerated iteration aims at
_ACCEPTED = 1e-5  # largest residual of an answer
_THROUGHPUT = 1e-3  # largest relative error of the throughput of an answer
_MEMORY = 5
#: Length of a step towards the map's answer, and how many such steps are tried.
_ATTEMPTS = ((0.5, 40), (0.2, 60), (0.08, 100), (0.03, 400))


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


@dataclass(frozen=True, eq=False)
class Stickiness:
    """How a router loads its instances and moves sessions; the answer of :func:`stickiness`.

    Arrays of shape (levels,) are over the loads 0, 1, … of one instance.

    Attributes
    ----------
    cluster : RoutedCluster
        The question.
    load_law : ndarray, shape (levels,)
        P(load = l), requests present at an instance at any time.
    follow_up_load_law : ndarray, shape (levels,)
        The same as a follow-up finds its home, itself not counted.
    joined_load_law : ndarray, shape (levels,)
        The same as free requests (first turns, and those that leave their home) find the instance
        they join.
    stay_given_load : ndarray, shape (levels,)
        P(a follow-up that was not evicted stays | load of its home).
    birth_rate_rps : ndarray, shape (levels,)
        Arrivals at an instance at each load [requests/s].
    completion_rate_rps : ndarray, shape (levels - 1,)
        Completions with 1, 2, … present, extra work of moves included [requests/s].
    return_to_first_ratio, return_to_previous_ratio : float
        Shares of the follow-ups; ``nan`` without follow-ups.
    migrated_overload_ratio, migrated_evicted_ratio, migrated_other_ratio : float
        Follow-ups that did not return to the previous instance, by cause, ÷ follow-ups.
    overloaded_ratio : float
        P(load over the policy's limit) of an instance at any time.
    noise : LinearNoise
        Fluctuations around the fixed point.
    resident_mean, resident_variance : float
        Sessions that have an instance as their home: mean, and variance over time.
    work_factor : float
        Engine work ÷ that without moves.
    residual : float
        Largest change of a probability in the last iteration.
    iterations : int
        Of the fixed point.
    notes : tuple of str
        Why figures may be worse than usual.
    """

    cluster: RoutedCluster
    load_law: FloatArray
    follow_up_load_law: FloatArray
    joined_load_law: FloatArray
    stay_given_load: FloatArray
    birth_rate_rps: FloatArray
    completion_rate_rps: FloatArray
    return_to_first_ratio: float
    return_to_previous_ratio: float
    migrated_overload_ratio: float
    migrated_evicted_ratio: float
    migrated_other_ratio: float
    overloaded_ratio: float
    noise: LinearNoise
    resident_mean: float
    resident_variance: float
    work_factor: float
    residual: float
    iterations: int
    notes: tuple[str, ...] = ()
    rule: StickRule = field(repr=False, default=None)  # type: ignore[assignment]

    @cached_property
    def _loads(self) -> FloatArray:
        return np.arange(self.load_law.size, dtype=float)

    @property
    def mean_load(self) -> float:
        """Mean requests present at an instance."""
        return float(self.load_law @ self._loads)

    @property
    def load_variance(self) -> float:
        """Variance of the requests present at an instance."""
        return float(self.load_law @ (self._loads - self.mean_load) ** 2)

    @property
    def sojourn_s(self) -> float:
        """Mean time of a request at its instance, by Little's law [s]."""
        return self.mean_load / self.cluster.rate_per_instance_rps

    @property
    def home_load_mean(self) -> float:
        """Mean load a follow-up finds at its home."""
        return float(self.follow_up_load_law @ self._loads)

    @property
    def joined_load_mean(self) -> float:
        """Mean load that free requests find where they go."""
        return float(self.joined_load_law @ self._loads)

    @property
    def migrated_ratio(self) -> float:
        """Follow-ups that did not return to the previous instance ÷ follow-ups."""
        return (
            self.migrated_overload_ratio + self.migrated_evicted_ratio + self.migrated_other_ratio
        )

    def sojourn_survival(self, time_s: ArrayLike) -> FloatArray:
        r"""Return P(time at the instance > t).

        A request that joins at load ``l`` (found with probability ``p_l b_l / λ``) is one of
        ``l + 1``; the others come and go as before, it leaves at ``µ(l)/l``: all present share the
        engine alike, also those that wait for KV.  The chain of the load seen by the tagged
        request is reversible, hence a symmetric tridiagonal matrix.

        Parameters
        ----------
        time_s : array_like of float
            t [s].

        Returns
        -------
        ndarray
            Of the shape of ``time_s``.
        """
        from scipy.linalg import eigh_tridiagonal

        law, births = self.load_law, self.birth_rate_rps
        keep = max(int(np.searchsorted(-np.cumsum(law[::-1])[::-1], -1e-9)), 2)
        start = law[: keep - 1] * births[: keep - 1]
        start = start / start.sum()
        present = np.arange(1, keep)
        up = np.append(births[1 : keep - 1], 0.0)
        rate = self.completion_rate_rps[: keep - 1]
        down = rate * (present - 1) / present
        side = np.sqrt(up[:-1] * down[1:])
        # weights of the reversible law, in logarithms
        log_pi = np.concatenate(
            ([0.0], np.cumsum(np.log(np.maximum(up[:-1], 1e-300) / np.maximum(down[1:], 1e-300))))
        )
        values, vectors = eigh_tridiagonal(-(up + down + rate / present), side)
        root = np.exp(0.5 * (log_pi - log_pi.max()))
        usable = root > 1e-130
        left = (np.where(usable, start / np.where(usable, root, 1.0), 0.0)) @ vectors
        right = vectors.T @ root
        t = np.asarray(time_s, dtype=float)
        survival = np.exp(np.minimum(values, 0.0) * t[..., None]) @ (left * right)
        return np.asarray(np.clip(survival, 0.0, 1.0))


@dataclass
class _State:
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


class _Closure:
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
        # work of moves: known beforehand where nobody is meant to stay
        self.fixed_work: float | None = None
        if self.rule.kind in ("never", "blind"):
            moved = self.follow_ratio * (1 - 1 / self.n)
            self.fixed_work = 1 + cluster.move_work_ratio * moved
            self.base = self.base / self.fixed_work
            if not self.rate < self.base[-1]:
                raise saturated(cluster, float(self.base[-1]))
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

    def start(self) -> FloatArray:
        """Law under load balancing: narrow, as a fixed point of two should be approached."""
        if self.blind_law is not None:
            return self.blind_law
        return least_loaded_law(self.rate, self.base, self.n)

    def _blind_law(self) -> FloatArray:
        """Law under a policy that does not look at homes; a cluster of one has no choice."""
        name = self.cluster.policy.name
        if self.n == 1 or name == "random":
            return _birth_death(np.full(self.levels, self.rate), self.base)
        if name == "round-robin":
            return dealt_in_turn_law(self.rate, self.base, self.n)
        return least_loaded_law(self.rate, self.base, 2)

    def sink(self, at_least: FloatArray, law: FloatArray, of: int) -> FloatArray:
        """Share of a flow to the least loaded of ``of`` that each load receives, per instance."""
        share = np.clip(law / np.maximum(at_least, 1e-300), 0.0, 1.0)
        small = share < 1e-9
        with np.errstate(divide="ignore", invalid="ignore"):
            exact = at_least**of * -np.expm1(of * np.log1p(-share)) / law
        return np.where(small, of * at_least ** (of - 1), exact)

    def evaluate(self, law: FloatArray, slope: float) -> _State:
        """Apply the map once."""
        loads, rule = self.loads, self.rule
        at_least = np.minimum(np.cumsum(law[::-1])[::-1], 1.0)
        mean = float(law @ loads)
        deviation = loads - mean
        variance = max(float(law @ deviation**2), 1e-12)
        arrivals = np.maximum(
            self.follow_rate + slope * deviation, 0.05 * max(self.follow_rate, 1e-300)
        )
        arrivals *= self.follow_rate / float(law @ arrivals) if self.follow_rate > 0 else 0.0
        seen = law * (arrivals / self.follow_rate if self.follow_rate > 0 else 1.0)
        served = np.append(0.0, self.base)
        service_slope = float((law * deviation) @ served) / variance
        field = Field(
            law,
            at_least,
            seen,
            mean,
            variance,
            self.total_variance(mean, variance, service_slope),
        )
        if self.n == 1:
            stay, leave_at = np.ones(self.levels), None
        else:
            stay, leave_at = rule.stay(field)
        kept = float(seen @ stay)
        leave = (1 - self.evicted) * (1 - kept)
        sticking = (1 - self.evicted) * stay
        joined = self._joined(field, stay, leave_at, leave)
        free_rate = self.first_rate + self.follow_rate * (self.evicted + leave)
        if rule.kind == "never":
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
        new_law = self._next_law(field, arrivals * sticking, leave_at, leave, births, completion)
        noise, new_slope = self._linear_noise(field, sticking, births, arrivals, completion)
        return _State(
            law, slope, field, stay, leave, births, joined, completion, noise, new_law, new_slope
        )

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
            return _birth_death(births, completion)
        fixed = self.first_rate + self.follow_rate * self.evicted
        moving = np.full(self.levels, self.follow_rate * leave)
        if leave_at is not None:
            moving = self.follow_rate * (1 - self.evicted) * leave_at
        at_least = kernels.balance_free_flow(own, fixed, self.n, moving, completion, field.at_least)
        # the law again from its births, exact also where it is tiny
        law = np.maximum(at_least - np.append(at_least[1:], 0.0), 1e-300)
        free = fixed * self.sink(at_least, law, self.n)
        free += moving * self.sink(at_least, law, self.n - 1)
        return _birth_death(own + free, completion)

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
            dl   = s̄ Σ γ_j m_j + (b' - µ') l          b' of the arrivals at fixed thinking

        and the Lyapunov equation ``A Σ + Σ A' + Q = 0``; slope = Σ_j γ_j Cov(m_j, l) / Var l.
        """
        law, loads = field.law, self.loads
        deviation = (loads - field.mean) * law
        think = self.cluster.think_time
        gamma, alpha = think.rates_per_s, think.weights
        rate, follow = self.rate, self.follow_rate
        served = np.append(0.0, completion)
        service = float(deviation @ served) / field.variance
        # what depends on the load while the thinking sessions are as they are
        free = births - arrivals * sticking
        own = float(deviation @ (follow * sticking + free)) / field.variance
        kept = float(field.seen @ sticking)
        size = gamma.size
        drift = np.zeros((size + 1, size + 1))
        drift[:size, :size] = -np.diag(gamma)
        drift[:size, size] = alpha * self.follow_ratio * service
        drift[size, :size] = kept * gamma
        drift[size, size] = own - service
        noise = np.zeros((size + 1, size + 1))
        noise[:size, :size] = np.diag(2 * follow * alpha)
        noise[:size, size] = noise[size, :size] = -follow * alpha * (1 + kept)
        noise[size, size] = 2 * rate
        eye = np.eye(size + 1)
        system = np.kron(drift, eye) + np.kron(eye, drift)
        try:
            covariance = np.linalg.solve(system, -noise.ravel())
        except np.linalg.LinAlgError:  # on the way to the fixed point: any answer will do
            covariance = np.linalg.lstsq(system, -noise.ravel())[0]
        covariance = covariance.reshape(size + 1, size + 1)
        covariance = 0.5 * (covariance + covariance.T)
        spread = covariance[size, size]
        slope = float(gamma @ covariance[:size, size]) / spread if spread > 0 else 0.0
        if self.rule.kind in ("never", "blind") or self.rule.first_turn == "hash":
            slope = 0.0
        limit = follow / max(field.mean, 1e-9)
        return LinearNoise(drift, covariance, service), float(np.clip(slope, -20 * limit, limit))


def saturated(cluster: RoutedCluster, most_rps: float) -> UnstableError:
    """Return the error of a cluster that moves itself into saturation."""
    return UnstableError(
        f"{cluster.rate_per_instance_rps:.4g} requests/s an instance; with the work of moves it"
        f" completes {most_rps:.4g} at most",
        cluster.resource,
    )


def least_loaded_law(rate: float, completion: FloatArray, instances: int) -> FloatArray:
    """Return the law of an instance's load when every request joins the least loaded of N.

    Parameters
    ----------
    rate : float
        Requests per second and instance [requests/s].
    completion : ndarray, shape (levels - 1,)
        Completions per second with 1, 2, … present [requests/s].
    instances : int
        N.

    Returns
    -------
    ndarray, shape (levels,)
    """
    if instances == 1:
        return _birth_death(np.full(completion.size + 1, rate), completion)
    enough = int(np.searchsorted(completion, rate)) + 1
    top = min(completion.size, enough + int(600 / np.log(instances)))
    return np.asarray(kernels.join_least_loaded(rate, completion, instances, top))


def dealt_in_turn_law(rate: float, completion: FloatArray, instances: int) -> FloatArray:
    r"""Return the law of an instance's load when requests are dealt out in turn.

    Of a Poisson stream every N-th comes here: Erlang gaps of N phases at the cluster's rate Λ.
    Between two arrivals completions are a pure death process Q, so that the load before arrivals
    is a Markov chain: one up, then ``(I - Q/Λ)^{-N}``; level crossing turns its law into that over
    time, ``p_{l+1} µ(l+1) = rate × P(l before an arrival)``.

    Parameters
    ----------
    rate, completion, instances
        See :func:`least_loaded_law`.

    Returns
    -------
    ndarray, shape (levels,)
    """
    size = completion.size + 1
    death = np.append(0.0, completion)
    phase = np.diag(1 + death / (rate * instances)) - np.diag(completion / (rate * instances), -1)
    step = np.linalg.matrix_power(np.linalg.inv(phase), instances)
    chain = np.vstack((step[1:], step[-1:]))  # an arrival at the top finds no room
    system = chain.T - np.eye(size)
    system[-1] = 1.0
    before = np.linalg.solve(system, np.append(np.zeros(size - 1), 1.0))
    law = np.maximum(rate * before[:-1] / completion, 0.0)
    return np.append(max(1 - law.sum(), 0.0), law)


def _birth_death(births: FloatArray, completion: FloatArray) -> FloatArray:
    steps = np.log(np.maximum(births[:-1], 1e-290)) - np.log(completion)
    weights = np.concatenate(([0.0], np.cumsum(steps)))
    law = np.exp(weights - weights.max())
    return np.asarray(law / law.sum())


def _solve(closure: _Closure, law: FloatArray, slope: float) -> tuple[_State, float, int]:
    """Find the fixed point by Anderson acceleration; also its residual and the steps taken.

    The map has a slow mode (the mean load) and, where many compare with the same few levels, fast
    ones that overshoot: shorter and shorter steps are tried, each from the best point so far.
    """
    scale = max(closure.follow_rate, closure.rate) * 10
    x = np.append(law, slope / scale)
    best: tuple[float, _State] | None = None
    steps = 0
    for mixing, most in _ATTEMPTS:
        points: list[FloatArray] = []
        changes: list[FloatArray] = []
        if best is not None:
            x = np.append(best[1].law, best[1].slope / scale)
        for _ in range(most):
            steps += 1
            state = closure.evaluate(x[:-1], float(x[-1]) * scale)
            change = np.append(state.new_law - state.law, (state.new_slope - state.slope) / scale)
            size = float(np.abs(change).max())
            if best is None or size < best[0]:
                best = (size, state)
            if size < _TOLERANCE:
                return state, size, steps
            if size > 5 * best[0]:  # the history misleads: forget it
                points, changes = [], []
            points, changes = [*points[-_MEMORY:], x], [*changes[-_MEMORY:], change]
            x = x + mixing * change
            if len(points) > 1:
                moved = np.diff(np.array(points), axis=0).T
                turned = np.diff(np.array(changes), axis=0).T
                gram = turned.T @ turned
                ridge = 1e-12 * float(np.trace(gram))
                if ridge > 0:
                    gram += ridge * np.eye(gram.shape[0])
                    x = x - (moved + mixing * turned) @ np.linalg.solve(gram, turned.T @ change)
            x[:-1] = np.maximum(x[:-1], 0.0)
            x[:-1] /= x[:-1].sum()
        assert best is not None
        if best[0] < 0.1 * _ACCEPTED:
            break
    assert best is not None
    return best[1], best[0], steps


def stickiness(cluster: RoutedCluster, start: Stickiness | None = None) -> Stickiness:
    """Solve the mean field of routing.

    Parameters
    ----------
    cluster : RoutedCluster
        The cluster and its policy.
    start : Stickiness, optional
        Answer for a similar cluster (the previous point of a sweep), to start from.

    Returns
    -------
    Stickiness

    Raises
    ------
    UnstableError
        If arrivals exceed what the instances complete, extra work of moves included; the
        resource is the cluster's ``resource``.
    ConvergenceError
        If no fixed point was found though a steady state may exist.
    SpecError
        If the policy needs hit lengths that the cluster does not state.
    """
    rate = cluster.rate_per_instance_rps
    saturation = float(cluster.completion_rate_rps[-1])
    if not rate < saturation:
        raise UnstableError(
            f"{rate:.4g} requests/s an instance; it completes {saturation:.4g} at most",
            cluster.resource,
        )
    closure = _Closure(cluster)
    law, slope = closure.start(), 0.0
    if start is not None:
        law = np.zeros(closure.levels)
        kept = min(law.size, start.load_law.size)
        law[:kept] = start.load_law[:kept]
        law /= law.sum()
    state, residual, steps = _solve(closure, law, slope)
    served = float(state.law[1:] @ state.completion)
    if state.law[-1] > 1e-6 or not rate < state.completion[-1]:
        raise saturated(cluster, float(state.completion[-1]))
    if residual > _ACCEPTED or abs(served - rate) > _THROUGHPUT * rate:
        raise ConvergenceError(
            f"routing mean field of {cluster.policy.name!r} at {rate:.4g} requests/s an instance:"
            f" residual {residual:.1e} after {steps} steps, throughput off by"
            f" {abs(served / rate - 1):.1e}; {_ACCEPTED:.0e} and {_THROUGHPUT:.0e} are accepted"
        )
    return _answer(closure, state, residual, steps)


def _answer(closure: _Closure, state: _State, residual: float, steps: int) -> Stickiness:
    cluster, rule, field = closure.cluster, closure.rule, state.field
    n = closure.n
    shares = _shares(closure, state)
    think = cluster.think_time
    covariance = state.noise.covariance
    lasting = float(covariance.sum())
    resident = field.mean + closure.follow_rate * think.mean_s
    spread = lasting + (closure.follow_rate * think.mean_s + field.total_variance - lasting) / n
    joined = field.law * state.joined
    return Stickiness(
        cluster=cluster,
        load_law=field.law,
        follow_up_load_law=field.seen,
        joined_load_law=joined / joined.sum(),
        stay_given_load=state.stay,
        birth_rate_rps=state.births,
        completion_rate_rps=state.completion,
        overloaded_ratio=float(field.law @ (1 - state.stay)),
        noise=state.noise,
        resident_mean=resident,
        resident_variance=spread,
        work_factor=float(cluster.completion_rate_rps[0] / state.completion[0]),
        residual=residual,
        iterations=steps,
        notes=_notes(closure, state),
        rule=rule,
        **shares,
    )


def _shares(closure: _Closure, state: _State) -> dict[str, float]:
    """Where follow-ups go, by cause."""
    cluster, rule, n = closure.cluster, closure.rule, closure.n
    names = ("overload", "evicted", "other")
    if closure.follow_rate == 0:
        nothing = float("nan")
        return {f"migrated_{name}_ratio": nothing for name in names} | {
            "return_to_first_ratio": nothing,
            "return_to_previous_ratio": nothing,
        }
    moved = dict.fromkeys(names, 0.0)
    if n > 1 and rule.kind in ("never", "blind"):
        moved["other"] = 1 - 1 / n
    elif n > 1 and rule.kind == "mean" and rule.first_turn == "hash":
        # π_i = h (1-h)^i: the i-th choice of the session's hash serves
        at_home = 1 - state.leave
        again = at_home / (2 - at_home)
        back = at_home * (1 - at_home)  # from another choice to the first
        moved["overload"], moved["other"] = 1 - again - back, back
        return {f"migrated_{name}_ratio": value for name, value in moved.items()} | {
            "return_to_first_ratio": again,
            "return_to_previous_ratio": again,
        }
    elif n > 1:
        field = state.field
        # an evicted follow-up may find its old home the least loaded
        home = field.seen @ closure.sink(field.at_least, field.law, n) / n
        moved["evicted"] = closure.evicted * (1 - min(float(home), 1.0))
        moved["overload"] = state.leave
    moved = {name: max(value, 0.0) for name, value in moved.items()}
    stay = 1 - sum(moved.values())
    return {f"migrated_{name}_ratio": value for name, value in moved.items()} | {
        "return_to_previous_ratio": stay,
        "return_to_first_ratio": return_to_first_ratio(stay, n, cluster.turns),
    }


def _notes(closure: _Closure, state: _State) -> tuple[str, ...]:
    notes = []
    cluster = closure.cluster
    if 1 < cluster.instances < 8:
        notes.append("fewer than 8 instances: each sees the others as independent, they are not")
    overload: Any = getattr(cluster.policy, "overload", None)
    if overload is not None and overload < 1.25 and closure.rule.kind == "mean":
        notes.append("OVERLOAD below 1.25: migration is about 7 % low at 1")
    if closure.rate > 0.9 * float(state.completion[-1]):
        notes.append("above 0.9 of saturation")
    if getattr(cluster.policy, "tie_break", "least-loaded") == "first":
        notes.append("ties by index are not modelled")
    return tuple(notes)
