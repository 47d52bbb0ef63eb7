r"""The closure of the routing mean field: from a law of one instance's load to the next.

:class:`Closure` prepares a cluster's map for :mod:`smetric_model.analytic._field_kernels`, which
looks for its fixed point; :mod:`smetric_model.analytic.stickiness` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic import _chain_kernels, _field_kernels, _search_kernels
from smetric_model.analytic.load_laws import birth_death, dealt_in_turn_law, least_loaded_law
from smetric_model.analytic.routed_cluster import RoutedCluster
from smetric_model.analytic.shared_prefixes import Crowding
from smetric_model.analytic.stick_rules import Field, rule_of
from smetric_model.errors import UnstableError

__all__ = ["Closure", "LinearNoise", "State", "saturated"]

FloatArray = NDArray[np.float64]

_MOST_LEVELS = 3000
_TAIL = 1e-11
_NOBODY = np.zeros(0)
#: of the rate, at which the variance of the total is worked out
_FACTORS = np.append(np.geomspace(0.02, 1.0, 40), [1.05, 1.1])


@dataclass(frozen=True, eq=False)
class LinearNoise:
    r"""Small fluctuations of one instance: thinking sessions by class, then the load.

    Drift and noise of the deviations (m_j thinking in class j, l present), primes being regression
    slopes under the load's law::

        dm_j = -γ_j m_j + α_j (1-q) µ' l
        dl   = s̄ Σ k_j γ_j m_j + (b' - µ') l      b' of the arrivals at fixed thinking

    and the Lyapunov equation ``A Σ + Σ A' + Q = 0``; k_j = P(context at home | class) ÷ its mean.

    Attributes
    ----------
    drift : ndarray, shape (classes + 1, classes + 1)
        Linear drift of the deviations, A [1/s].
    covariance : ndarray, shape (classes + 1, classes + 1)
        Stationary covariance, Σ.
    service_slope : float
        Completions per second for one request more, µ'.
    """

    drift: FloatArray
    covariance: FloatArray
    service_slope: float


@dataclass(frozen=True, eq=False)
class State:
    """The map at one law of the load; arrays over loads.

    Attributes
    ----------
    field : Field
        The law, and what follows from it.
    stay : ndarray
        P(a follow-up that was not evicted stays | load of its home).
    leave : float
        Share of the follow-ups that leave for the load of their home.
    births, completion : ndarray
        Arrivals, and completions with 1, 2, … present [requests/s].
    joined : ndarray
        Free flow at each load ÷ its rate.
    noise : LinearNoise
        Around it.
    new_law : ndarray
        Law that balances arrivals and completions.
    slope, new_slope : float
        Follow-ups per second for one request more: at which the map was evaluated, and its answer
        [requests/s].
    residual : float
        Largest change of a probability.
    steps : int
        Evaluations until then.
    """

    field: Field
    stay: FloatArray
    leave: float
    births: FloatArray
    completion: FloatArray
    joined: FloatArray
    noise: LinearNoise
    new_law: FloatArray
    slope: float
    new_slope: float
    residual: float
    steps: int


class Closure:
    """The map whose fixed point is sought.

    Parameters
    ----------
    cluster : RoutedCluster
        The cluster.
    """

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
        self.rule = rule_of(cluster, self.levels)
        self.evicted = self.rule.evicted
        self.keeps = self._keeps()
        self.crowding: Crowding | None = None
        if cluster.frameworks is not None and self.n > 1 and self.rule.first_turn == "same rule":
            self.crowding = Crowding(cluster, self.levels)
        # work of moves: known beforehand where nobody is meant to stay
        self.is_fixed = self.rule.kind in ("never", "blind")
        if self.is_fixed and cluster.move_work_ratio > 0:
            moved = self.follow_ratio * (1 - 1 / self.n)
            self.base = self.base / (1 + cluster.move_work_ratio * moved)
            if not self.rate < self.base[-1]:
                raise saturated(cluster, float(self.base[-1]))
        self.blind_law = self._blind_law() if self.rule.kind == "blind" else None

    def _level_count(self) -> int:
        most_work = 1 + self.cluster.move_work_ratio * self.follow_ratio
        rate = min(self.rate * most_work, max(self.rate, 0.97 * self.saturation))
        rates = self.cluster.completion_rate_rps
        return int(_chain_kernels.level_count(rate, rates, _TAIL, _MOST_LEVELS))

    def _keeps(self) -> FloatArray:
        """P(context at home | think-time class) ÷ its mean: those who think for long lose it."""
        lost, weights = self.cluster.evicted_by_class, self.cluster.think_time.weights
        kept = np.ones(weights.size) if lost is None else 1.0 - lost
        mean = float(weights @ kept)
        if self.evicted == 0 or mean <= 0:
            return np.ones(weights.size)
        return np.asarray(kept / mean)

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

    @property
    def mode(self) -> int:
        """How the policy closes the chain, as the compiled map knows it."""
        rule = self.rule
        if self.crowding is not None:
            return _field_kernels.PLACED
        if self.blind_law is not None:
            return _field_kernels.BLIND
        if rule.kind == "mean" and rule.first_turn == "hash":
            return _field_kernels.HASH
        if self.n == 1 or rule.first_turn == "hash":
            return _field_kernels.ALONE
        return _field_kernels.NEVER if rule.kind == "never" else _field_kernels.GENERAL

    def _given(self) -> tuple[Any, ...]:
        """Return what the compiled map is given of the cluster."""
        think = self.cluster.think_time
        is_sloped = not (self.is_fixed or self.rule.first_turn == "hash")
        return (
            (self.first_rate, self.follow_rate, self.evicted),
            (float(self.cluster.move_work_ratio), self.is_fixed, is_sloped),
            self.n,
            self.base,
            (think.rates_per_s, think.weights, self.keeps),
        )

    def solve(self, law: FloatArray, slope: float, tolerance: float, most_steps: int) -> State:
        """Find the fixed point by Anderson's acceleration.

        Parameters
        ----------
        law : ndarray, shape (levels,)
            Where to start.
        slope : float
            Follow-ups per second for one request more, there [requests/s].
        tolerance : float
            Residual at which it is found.
        most_steps : int
            Evaluations after which the best so far is taken.

        Returns
        -------
        State
        """
        factors = _FACTORS[_FACTORS * self.rate < 0.9995 * self.saturation]
        if self.crowding is not None:
            return self._solve_crowded(self.crowding, law, slope, factors, tolerance, most_steps)
        flows, works, n, base, thinking = self._given()
        found = _field_kernels.solve(
            law, float(slope), self.mode, self.rule.code, self.rule.tables, flows, works, n, base,
            thinking, factors, self._blind_flow(), (tolerance, most_steps),
        )  # fmt: skip
        return _state(*found)

    def _blind_flow(self) -> FloatArray:
        """Flow at each load ÷ its rate under a policy that does not look at homes, from its law."""
        if self.blind_law is None:
            return _NOBODY
        law = self.blind_law
        if self.cluster.policy.name == "power-of-two" and self.n > 1:
            at_least = np.minimum(np.cumsum(law[::-1])[::-1], 1.0)
            return np.asarray(_chain_kernels.least_loaded_share(at_least, law, 2.0))
        law = np.maximum(law, 1e-300)
        up = np.append(law[1:] * self.base / (law[:-1] * self.rate), 0.0)
        return np.where(law > 1e-250, up, 0.0)

    def _solve_crowded(
        self,
        crowding: Crowding,
        law: FloatArray,
        slope: float,
        factors: FloatArray,
        tolerance: float,
        most_steps: int,
    ) -> State:
        """As :meth:`solve`, with the instances that hold each prefix among what is sought."""
        flows, works, n, base, thinking = self._given()
        size, scale, unit = law.size, 10 * self.rate, 10 * self.n
        rows = np.zeros((_field_kernels.ROWS, size))
        numbers = np.zeros(_field_kernels.NUMBERS)
        weights = np.concatenate(([0.0], np.cumsum(np.log(self.rate / self.base))))
        tilts = (weights, factors, np.full(factors.size, -1.0), np.empty(factors.size))
        # at first everybody holds every prefix
        point = np.concatenate((law, [slope / scale], np.full(crowding.size, self.n / unit)))
        best = np.append(np.inf, point)
        history = np.empty((2, _search_kernels.POINTS, point.size))
        counts = np.zeros(4, np.int64)
        parts = np.array([self.first_rate, self.follow_rate * self.evicted, 0.0])
        said = _search_kernels.GO_ON
        while True:
            law, slope, holders = point[:size].copy(), point[size] * scale, point[size + 1 :] * unit
            _field_kernels.open_field(law, slope, flows, base, tilts, rows, numbers)
            at_least, seen = rows[_field_kernels.AT_LEAST], rows[_field_kernels.SEEN]
            placed = crowding.place(law, at_least, seen, holders)
            stay = np.zeros(size) if self.rule.kind == "never" else placed.stay
            rows[_field_kernels.STAY] = stay
            parts[2] = self.follow_rate * (1 - self.evicted) * max(1 - float(seen @ stay), 0.0)
            flow = parts @ np.stack((placed.first, placed.evicted, placed.moving))
            rows[_field_kernels.JOINED] = flow / parts.sum()
            drift, covariance = _field_kernels.respond(
                self.mode, False, law, flows, works, n, base, thinking, rows, numbers
            )
            if said == _search_kernels.BEST:
                break
            moved = self.evicted + numbers[_field_kernels.LEAVE]
            sojourn_s = numbers[_field_kernels.MEAN] / self.rate
            change = np.concatenate(
                (
                    rows[_field_kernels.NEW_LAW] - law,
                    [(numbers[_field_kernels.NEW_SLOPE] - slope) / scale],
                    (crowding.next_holders(at_least, moved, sojourn_s) - holders) / unit,
                )
            )
            said = _search_kernels.advance(
                point, change, best, (history[0], history[1]), counts, size, 0.1 / self.n,
                tolerance, most_steps,
            )  # fmt: skip
            if said == _search_kernels.FOUND:
                break
        steps = int(counts[_search_kernels.STEPS])
        return _state(law, slope, rows, numbers, drift, covariance, best[0], steps)

    def lost_home_ratio(self, state: State) -> float:
        """Return how often a follow-up whose context is lost comes to its old home all the same.

        That may be the least loaded.  Those who come back at once, to a rewritten history, find
        that one request fewer is there; those who have thought for long find what anybody finds.

        Parameters
        ----------
        state : State
            The fixed point.
        """
        field, noise = state.field, state.noise
        lost, think = self.cluster.evicted_by_class, self.cluster.think_time
        seen, spread = field.seen, noise.covariance[-1, -1]
        lost = np.zeros(think.weights.size) if lost is None else lost
        mean = float(think.weights @ lost)
        if mean > 0 and self.follow_rate > 0 and spread > 0:
            pull = float((think.rates_per_s * lost / mean) @ noise.covariance[:-1, -1]) / spread
            loads = np.arange(self.levels)
            seen = field.law * np.maximum(
                self.follow_rate + pull * (loads - field.mean), 0.05 * self.follow_rate
            )
            seen = seen / seen.sum()
        share = _chain_kernels.least_loaded_share(field.at_least, field.law, float(self.n))
        return min(float(seen @ share) / self.n, 1.0)


def _state(
    law: FloatArray,
    slope: float,
    rows: FloatArray,
    numbers: FloatArray,
    drift: FloatArray,
    covariance: FloatArray,
    residual: float,
    steps: int,
) -> State:
    """Name what the compiled map says."""
    mean, variance, total_variance, leave, service_slope, new_slope = numbers.tolist()
    at_least, _, seen, stay, _, joined, births, completion, new_law = rows
    return State(
        Field(law, at_least, seen, mean, variance, total_variance),
        stay,
        leave,
        births,
        completion[:-1],
        joined,
        LinearNoise(drift, covariance, service_slope),
        new_law,
        slope,
        new_slope,
        residual,
        steps,
    )


def saturated(cluster: RoutedCluster, most_rps: float) -> UnstableError:
    """Return the error of a cluster that moves itself into saturation."""
    return UnstableError(
        f"{cluster.rate_per_instance_rps:.4g} requests/s an instance; with the work of moves it"
        f" completes {most_rps:.4g} at most",
        cluster.resource,
    )
