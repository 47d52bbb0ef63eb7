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
  slope from the linear noise around the fixed point.

``docs/stickiness.md`` derives it and says how far it is from a simulation.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smetric_model.analytic import _arrival_kernels
from smetric_model.analytic._search_kernels import ACCEPTED, MOST_STEPS
from smetric_model.analytic.load_laws import least_loaded_law, least_loaded_over_time
from smetric_model.analytic.returns import return_to_first_ratio
from smetric_model.analytic.routed_cluster import RoutedCluster
from smetric_model.analytic.routing_closure import Closure, LinearNoise, State, saturated
from smetric_model.analytic.routing_shares import (
    follow_up_shares,
    lasting_variation,
    notes_of,
    prefixes_of,
)
from smetric_model.analytic.shared_prefixes import PrefixHolders
from smetric_model.analytic.stick_rules import StickRule
from smetric_model.errors import ConvergenceError, UnstableError

__all__ = ["MOST_STEPS", "LinearNoise", "Stickiness", "least_loaded_law", "stickiness"]

FloatArray = NDArray[np.float64]

_TOLERANCE = 1e-8  # what the accelerated iteration aims at
_THROUGHPUT = 1e-3  # largest relative error of the throughput of an answer
#: steps that are always granted, and pairs of loads that may be compared in further ones
_LEAST_STEPS, _MOST_PAIRS = 60, 1e8
#: shares of the rate from which a rate is tried again that was not solved
_NEARBY = (0.97, 0.9)


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
    follow_up_slope_rps : float
        Follow-ups per second of an instance for one request more present [requests/s].
    noise : LinearNoise
        Fluctuations around the fixed point.
    total_variance : float
        Variance over time of the cluster's total load ÷ N.
    resident_variance : float
        Of the sessions that have an instance as their home, over time.
    lasting_rate_variation, lasting_load_variation : float
        Variance ÷ squared mean over instances of what lasts for longer than windows do, since first
        turns crowd: of the requests an instance serves, and of its load.
    work_factor : float
        Engine work ÷ that without moves.
    residual : float
        Largest change of a probability in the last iteration.
    iterations : int
        Of the fixed point.
    prefixes : PrefixHolders, optional
        Where shared prefixes lie, if the cluster has frameworks.
    notes : tuple of str
        Why figures may be worse than usual.
    stay_of_hits : ndarray, optional
        P(stay) of each follow-up of ``rule.hits``, where the policy weighs hits.
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
    follow_up_slope_rps: float
    noise: LinearNoise
    total_variance: float
    resident_variance: float
    lasting_rate_variation: float
    lasting_load_variation: float
    work_factor: float
    residual: float
    iterations: int
    prefixes: PrefixHolders | None = None
    notes: tuple[str, ...] = ()
    stay_of_hits: FloatArray | None = None
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
    def older_wins(self) -> float:
        """P(another copy as long takes a follow-up from its home), whose load it found.

        The turn before has just left the home: it is less loaded than others.  Equal loads: one
        time in two.
        """
        return self.wins(2)[0]

    def home_wins(self, count: int) -> FloatArray:
        """Return P(a follow-up's home is the least loaded of 1 … N instances), ties shared.

        Parameters
        ----------
        count : int
            Numbers of instances, a geometric series.
        """
        return self.wins(count)[1]

    def wins(self, count: int) -> tuple[float, FloatArray]:
        """Return :attr:`older_wins` and :meth:`home_wins` together.

        Parameters
        ----------
        count : int
            As of :meth:`home_wins`.
        """
        of = float(max(self.cluster.instances, 2))
        older, wins = _arrival_kernels.home_wins(self.load_law, self.follow_up_load_law, of, count)
        return float(older), np.asarray(wins)

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

    @cached_property
    def _over_time(self) -> tuple[FloatArray, float, float]:
        n = self.cluster.instances
        if self.rule.kind != "never":
            largest = float((1 - np.cumsum(self.load_law)[:-1] ** n).sum())
            return self.load_law, largest, largest / self.mean_load
        return least_loaded_over_time(
            self.cluster.rate_per_instance_rps, self.completion_rate_rps, n, self.total_variance
        )

    @property
    def load_law_over_time(self) -> FloatArray:
        """P(load = l) with the cluster's total left free to vary, shape (levels,).

        Differs from ``load_law``, which describes instances at the mean total, under load
        balancing: there loads are a narrow band that rides on the total.
        """
        return self._over_time[0]

    @property
    def largest_load_mean(self) -> float:
        """E[largest load of the N instances] at a time."""
        return self._over_time[1]

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


def stickiness(
    cluster: RoutedCluster,
    start: Stickiness | None = None,
    tolerance: float = _TOLERANCE,
    most_steps: int = MOST_STEPS,
) -> Stickiness:
    """Solve the mean field of routing.

    Parameters
    ----------
    cluster : RoutedCluster
        The cluster and its policy.
    start : Stickiness, optional
        Answer for a similar cluster (the previous point of a sweep), to start from.
    tolerance : float
        Largest change of a probability in one step at which it ends.
    most_steps : int
        Steps after which it is given up.

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
    closure = Closure(cluster)
    slope = 0.0
    if start is None:
        law = closure.start()
    else:
        law = _resized(start.load_law, closure.levels)
        slope = start.follow_up_slope_rps
    if closure.rule.kind == "scaled":  # every load against every other, in every step
        most_steps = min(most_steps, int(_LEAST_STEPS + _MOST_PAIRS / closure.levels**2))
    state = closure.solve(law, slope, tolerance, most_steps)
    steps, accepted = state.steps, max(tolerance, ACCEPTED)
    for share in _NEARBY if state.residual > accepted and start is None else ():
        # near saturation the first guess can be too far: come from a rate that is easier
        near = Closure(replace(cluster, arrival_rate_rps=share * cluster.arrival_rate_rps))
        easier = near.solve(near.start(), 0.0, tolerance, most_steps)
        law = _resized(easier.field.law, closure.levels)
        found = closure.solve(law, easier.slope, tolerance, most_steps)
        steps += found.steps
        if found.residual < state.residual:
            state = found
        if state.residual <= accepted:
            break
    served = float(state.field.law[1:] @ state.completion)
    if state.field.law[-1] > 1e-6 or not rate < state.completion[-1]:
        raise saturated(cluster, float(state.completion[-1]))
    throughput = _THROUGHPUT * accepted / ACCEPTED
    if state.residual > accepted or abs(served - rate) > throughput * rate:
        raise ConvergenceError(
            f"routing mean field of {cluster.policy.name!r} at {rate:.4g} requests/s an instance:"
            f" residual {state.residual:.1e} after {steps} steps, throughput off by"
            f" {abs(served / rate - 1):.1e}; {accepted:.0e} and {throughput:.0e} are accepted",
            steps,
        )
    return _answer(closure, state, steps)


def _resized(law: FloatArray, levels: int) -> FloatArray:
    """Return a law for another number of loads."""
    kept = min(law.size, levels)
    result = np.append(law[:kept], np.zeros(levels - kept))
    return np.asarray(result / result.sum())


def _answer(closure: Closure, state: State, steps: int) -> Stickiness:
    cluster, rule, field = closure.cluster, closure.rule, state.field
    n = closure.n
    shares = follow_up_shares(closure, state)
    prefixes = prefixes_of(closure, state, shares)
    lasting = (0.0, 0.0)
    if prefixes is not None and closure.crowding is not None:
        assert cluster.frameworks is not None
        popularity = cluster.frameworks.popularity
        lasting = lasting_variation(closure, state, prefixes)
        session_s = cluster.turns.mean_turns * (
            cluster.think_time.mean_s + field.mean / closure.rate
        )
        shares["return_to_first_ratio"] = float(
            popularity
            @ [
                return_to_first_ratio(shares["return_to_previous_ratio"], m, cluster.turns)
                for m in prefixes.receiving_instances(session_s)
            ]
        )
    think = cluster.think_time
    covariance = state.noise.covariance
    kept = float(covariance.sum())
    spread = kept + (closure.follow_rate * think.mean_s + field.total_variance - kept) / n
    joined = field.law * state.joined
    return Stickiness(
        cluster=cluster,
        load_law=field.law,
        follow_up_load_law=field.seen,
        joined_load_law=joined / joined.sum(),
        stay_given_load=state.stay,
        birth_rate_rps=state.births,
        completion_rate_rps=state.completion,
        follow_up_slope_rps=state.new_slope,
        noise=state.noise,
        total_variance=field.total_variance,
        resident_variance=spread,
        work_factor=float(cluster.completion_rate_rps[0] / state.completion[0]),
        residual=state.residual,
        iterations=steps,
        prefixes=prefixes,
        lasting_rate_variation=lasting[0],
        lasting_load_variation=lasting[1],
        notes=notes_of(closure, state),
        stay_of_hits=rule.stay_of_hits(field) if n > 1 else None,
        rule=rule,
        **shares,
    )
