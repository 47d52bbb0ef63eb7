"""The routing mean field of a cluster, asked once a round of its fixed point.

A round knows an instance (how fast it completes with so many present) and what follow-ups find at
home; :class:`RoutingField` makes of these the question that
:mod:`~smetric_model.analytic.stickiness` answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic.routed_cluster import RoutedCluster, Unprefilled
from smetric_model.analytic.stickiness import MOST_STEPS, Stickiness, stickiness
from smetric_model.errors import ConvergenceError

if TYPE_CHECKING:
    from smetric_model.analytic.batching import ColocatedInstance
    from smetric_model.analytic.cluster_demand import ClusterDemand
    from smetric_model.analytic.cluster_tiers import LocalHits
    from smetric_model.analytic.think_times import ThinkTime
    from smetric_model.routing.policy import Policy
    from smetric_model.scenario import Scenario

__all__ = ["STEPS_OF_ROUNDS", "RoutingField"]

FloatArray = NDArray[np.float64]

STEPS_OF_ROUNDS = 3_000  #: of the mean field, all rounds together
#: change of a probability at which the mean field has come to rest, and in the first rounds
_ROUTED, _ROUGHLY = 1e-6, 1e-4
#: shares of a rate at which the mean field is sought that was not found there
_LOWER = (0.97, 0.9, 0.8)


class RoutingField:
    """Mean field of a cluster's router in the rounds of one fixed point.

    Parameters
    ----------
    scenario : Scenario
        Its router.
    policy : Policy
        The same, as it decides.
    work : ClusterDemand
        What is asked of the cluster.
    instances : int
        Instances that the router chooses from, N.

    Attributes
    ----------
    before_token_ratio : float
        Share of a request's time at its instance for which its prompt counts as unprefilled.
    first_token_s : float
        Mean time to first token in the last round [s].
    steps_left : int
        Steps that further rounds may take.
    """

    def __init__(self, scenario: Scenario, policy: Policy, work: ClusterDemand, instances: int):
        self.policy, self.work, self.instances = policy, work, instances
        self.before_token_ratio, self.first_token_s = 0.3, 0.0
        self.steps_left = STEPS_OF_ROUNDS
        self._in_tokens = policy.needs_unprefilled_tokens or scenario.router.balances_tokens(
            scenario.cluster.serving
        )

    def route(
        self,
        rate_rps: float,
        instance: ColocatedInstance,
        hits: LocalHits,
        think_time: ThinkTime,
        start: Stickiness | None = None,
        roughly: bool = False,
    ) -> Stickiness:
        """Return the mean field of a round; its steps count against those of all rounds.

        Parameters
        ----------
        rate_rps : float
            Of the cluster [requests/s].
        instance : ColocatedInstance
            One of its instances.
        hits : LocalHits
            What follow-ups find at home.
        think_time : ThinkTime
            Completion of a turn on its instance to arrival of the next.
        start : Stickiness, optional
            That of the round before, to start from.
        roughly : bool
            Whether further rounds follow whose answer will differ.

        Raises
        ------
        UnstableError, ConvergenceError
            As :func:`~smetric_model.analytic.stickiness.stickiness`.
        """
        question = self._question(rate_rps, instance, hits, think_time)
        exactness = _ROUGHLY if roughly else _ROUTED
        try:
            routed = stickiness(
                question, start, exactness, max(min(MOST_STEPS, self.steps_left), 1)
            )
        except ConvergenceError as error:
            self.steps_left -= error.steps
            raise
        self.steps_left -= routed.iterations
        return routed

    def route_below(
        self,
        rate_rps: float,
        instance: ColocatedInstance,
        hits: LocalHits,
        think_time: ThinkTime,
        roughly: bool = False,
    ) -> Stickiness | None:
        """Return the mean field a little below a rate at which it was not found.

        Parameters
        ----------
        rate_rps, instance, hits, think_time, roughly
            As of :meth:`route`.
        """
        for share in _LOWER:
            try:
                return self.route(share * rate_rps, instance, hits, think_time, None, roughly)
            except ConvergenceError:
                continue
        return None

    def _question(
        self, rate_rps: float, instance: ColocatedInstance, hits: LocalHits, think: ThinkTime
    ) -> RoutedCluster:
        """Return the round as the mean field sees it."""
        unit = 1.0
        if self._in_tokens:
            # tokens not yet prefilled of a request in flight, on average over its stay
            new = float((instance.mix.prompt_tokens - instance.mix.hit_tokens).mean())
            unit = max(new * self.before_token_ratio, 1.0)
        added = self._unprefilled(instance) if self.policy.needs_unprefilled_tokens else None
        follow = None
        evicted = lost = None
        if self.policy.threshold_form is not None and self.work.follow_up_ratio > 0:
            follow = self.work.follow_ups
            evicted = min(hits.refused, 1.0)  # a sum of shares
            lost = self._lost_by_class(hits)
        return RoutedCluster(
            instances=self.instances,
            arrival_rate_rps=rate_rps,
            completion_rate_rps=with_delay(
                instance.completion_rate_rps, float(instance.mix.before_prefill_s.mean())
            ),
            policy=self.policy,
            turns=self.work.turns,
            think_time=think,
            follow_ups=follow,
            evicted_ratio=evicted,
            evicted_by_class=lost,
            load_unit_tokens=unit,
            unprefilled=added,
            resource="engine",
        )

    def _unprefilled(self, instance: ColocatedInstance) -> Unprefilled:
        """Return what a request in flight adds to a load in tokens, until its first token."""
        work = instance.prefill_s(0.0)
        # all wait alike; their own prefill comes on top
        rest = max(self.first_token_s - float(work.mean()), 0.0)
        new = instance.mix.prompt_tokens - instance.mix.hit_tokens
        return Unprefilled(self.before_token_ratio, new, work + rest)

    def _lost_by_class(self, hits: LocalHits) -> FloatArray:
        """Share of the follow-ups of each class of think time that the router refuses."""
        lost = self.work.think_class_weights @ hits.refused_each
        return np.asarray(np.clip(lost, 0.0, 1.0))


def with_delay(rates_rps: FloatArray, delay_s: float) -> FloatArray:
    """Return completion rates with so many present, of whom some are with the host or fetch.

    With ``n`` in the engine it completes µ(n), so that µ(n)·delay are on their way.

    Parameters
    ----------
    rates_rps : ndarray, shape (b,)
        Completions of the engine with 1, 2, …, b in it, µ [requests/s].
    delay_s : float
        Time before they come to the engine [s].

    Returns
    -------
    ndarray
        Completions with 1, 2, … present in either [requests/s].
    """
    if delay_s <= 0:
        return rates_rps
    engine = np.arange(1.0, rates_rps.size + 1)
    present = np.append(0.0, engine + rates_rps * delay_s)
    upto = int(np.ceil(present[-1]))
    return np.maximum.accumulate(
        np.interp(np.arange(1.0, upto + 1), present, np.append(0.0, rates_rps))
    )
