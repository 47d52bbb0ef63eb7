"""What the routing mean field needs to know of a cluster: one frozen specification."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic.returns import TurnLaw
from smetric_model.analytic.think_times import ThinkTime
from smetric_model.errors import SpecError
from smetric_model.routing.policy import Policy

__all__ = ["FollowUpHits", "Frameworks", "RoutedCluster", "Unprefilled"]

FloatArray = NDArray[np.float64]


def _vector(owner: str, name: str, value: object, size: int) -> FloatArray:
    array = np.broadcast_to(np.asarray(value, dtype=float), (size,)).copy()
    if not np.all(np.isfinite(array) & (array >= 0)):
        raise SpecError(f"{owner}: {name} must be finite and >= 0")
    return array


@dataclass(frozen=True, eq=False)
class FollowUpHits:
    """Follow-ups as a router sees them: a representative sample, equally weighted.

    A few dozen are enough; scalars are spread over all.

    Parameters
    ----------
    prompt_tokens : ndarray of float, shape (n,)
        Lengths [tokens], above 0.
    home_hit_tokens : ndarray of float, shape (n,)
        Cached prefix on the instance of the previous turn [tokens]; where the session was evicted,
        what is left.
    est_hit_tokens : ndarray of float, shape (n,), optional
        Hit expected from the request's history [tokens]; the home's hit by default.
    shared_prefix_tokens : ndarray of float, shape (n,), optional
        The part of the hit that other sessions share [tokens]; 0 by default.
    """

    prompt_tokens: FloatArray
    home_hit_tokens: FloatArray
    est_hit_tokens: FloatArray | None = None
    shared_prefix_tokens: FloatArray | float = 0.0

    def __post_init__(self) -> None:
        size = max(np.size(self.prompt_tokens), np.size(self.home_hit_tokens))
        owner = "follow-up hits"
        for name in ("prompt_tokens", "home_hit_tokens", "shared_prefix_tokens"):
            object.__setattr__(self, name, _vector(owner, name, getattr(self, name), size))
        expected = self.home_hit_tokens if self.est_hit_tokens is None else self.est_hit_tokens
        object.__setattr__(self, "est_hit_tokens", _vector(owner, "est_hit_tokens", expected, size))
        if size == 0 or not np.all(self.prompt_tokens > 0):
            raise SpecError(f"{owner}: prompt_tokens must be above 0, one follow-up at least")
        if np.any(self.home_hit_tokens > self.prompt_tokens):
            raise SpecError(f"{owner}: home_hit_tokens exceed prompt_tokens")

    def only(self, which: NDArray[np.bool_]) -> FollowUpHits | None:
        """Return some of the follow-ups; None if there are none.

        Parameters
        ----------
        which : ndarray of bool, shape (n,)
            Which to keep.
        """
        if not which.any():
            return None
        return FollowUpHits(
            np.asarray(self.prompt_tokens)[which],
            np.asarray(self.home_hit_tokens)[which],
            np.asarray(self.est_hit_tokens)[which],
            np.asarray(self.shared_prefix_tokens)[which],
        )


@dataclass(frozen=True, eq=False)
class Frameworks:
    """Agent frameworks: prefixes that sessions share, and the first turns that begin with them.

    Parameters
    ----------
    popularity : ndarray of float, shape (frameworks,)
        Share of the sessions that use each; sums to 1.
    prefix_tokens : ndarray of float, shape (frameworks,)
        System prompt and tool descriptions of each [tokens].
    first_prompt_tokens : ndarray of float, shape (n,)
        Sample of what a first turn's prompt holds *beyond* the prefix [tokens].
    retention_s : float
        How long an instance keeps KV that is not touched, its characteristic time [s].
    observed_s : float
        Time since the cluster was empty [s]; ``inf``: the steady state.  Prefixes spread slowly,
        so that hours after a cold start the two may still differ.
    """

    popularity: FloatArray
    prefix_tokens: FloatArray
    first_prompt_tokens: FloatArray
    retention_s: float
    observed_s: float = float("inf")

    def __post_init__(self) -> None:
        size = np.size(self.popularity)
        for name in ("popularity", "prefix_tokens"):
            object.__setattr__(self, name, _vector("frameworks", name, getattr(self, name), size))
        own = np.atleast_1d(np.asarray(self.first_prompt_tokens, dtype=float))
        object.__setattr__(
            self,
            "first_prompt_tokens",
            _vector("frameworks", "first_prompt_tokens", own, own.size),
        )
        if size == 0 or abs(self.popularity.sum() - 1) > 1e-9:
            raise SpecError("frameworks: popularity must be shares that sum to 1")
        if not self.retention_s >= 0 or not self.observed_s > 0:
            raise SpecError(
                f"frameworks: retention_s = {self.retention_s}, observed_s = {self.observed_s};"
                " times >= 0 and > 0 are needed"
            )


class Unprefilled(NamedTuple):
    """What one request in flight adds to a load in unprefilled tokens.

    Attributes
    ----------
    ratio : float
        Share of its time in flight before its first token: afterwards it adds nothing.
    tokens, weights : ndarray, shape (n,)
        Before, its uncached tokens, and how likely they are: those with more of them are there for
        longer [tokens].
    """

    ratio: float
    tokens: FloatArray
    weights: FloatArray


@dataclass(frozen=True, kw_only=True, eq=False)
class RoutedCluster:
    """N equal instances behind a router, as the mean field sees them.

    Parameters
    ----------
    instances : int
        N.
    arrival_rate_rps : float
        Requests of the whole cluster, first turns and follow-ups [requests/s].
    completion_rate_rps : ndarray of float, shape (b,)
        Total completions per second of an instance with 1, 2, …, b requests present; constant
        beyond.  Not decreasing.
    policy : Policy
        The routing policy.
    turns : TurnLaw
        Number of turns of a session.
    think_time : ThinkTime
        Completion of a turn to arrival of the next.
    follow_ups : FollowUpHits, optional
        Needed by the policies that weigh hits against load; without it no follow-up counts as
        evicted.
    evicted_ratio : float, optional
        Share of the follow-ups whose home lost their context, for the policies that guard against
        it.  By default the share of ``follow_ups`` whose hit the policy's guard refuses.
    evicted_by_class : ndarray of float, shape (classes,), optional
        The same for follow-ups of each class of ``think_time``; by default all are alike.  Those
        who think for long are those who lose it.
    frameworks : Frameworks, optional
        Shared prefixes.  Without them first turns see no hits.
    move_work_ratio : float
        Extra engine work of a follow-up that moved for another reason than eviction, in units of
        the mean work of a request; 0 where its KV is fetched.
    load_unit_tokens : float
        Tokens that one request adds to the load the policy compares, where that is counted in
        tokens [tokens]; 1 for loads in requests.
    unprefilled : Unprefilled, optional
        What a request in flight adds to the load in tokens, where that is all or nothing; by
        default ``load_unit_tokens`` each.
    resource : str
        What saturates when the engines do, for the error.

    Notes
    -----
    What is *present* depends on what the router's load counts: requests in flight, or, for
    policies that look at unprefilled tokens, those waiting for or in prefill; then the completion
    rate is that of prefills and the think time includes the decode.
    """

    instances: int
    arrival_rate_rps: float
    completion_rate_rps: FloatArray
    policy: Policy
    turns: TurnLaw
    think_time: ThinkTime
    follow_ups: FollowUpHits | None = None
    evicted_ratio: float | None = None
    evicted_by_class: FloatArray | None = None
    frameworks: Frameworks | None = None
    move_work_ratio: float = 0.0
    load_unit_tokens: float = 1.0
    unprefilled: Unprefilled | None = None
    resource: str = field(default="engine")

    def __post_init__(self) -> None:
        rates = np.atleast_1d(np.asarray(self.completion_rate_rps, dtype=float))
        object.__setattr__(self, "completion_rate_rps", rates)
        if self.instances < 1 or self.instances != int(self.instances):
            raise SpecError(f"instances = {self.instances}: a whole number >= 1 is needed")
        if not (self.arrival_rate_rps > 0 and np.isfinite(self.arrival_rate_rps)):
            raise SpecError(
                f"arrival_rate_rps = {self.arrival_rate_rps}: a finite number > 0 is needed"
            )
        most = float(rates.max(initial=-1.0))
        if rates.ndim != 1 or not (rates.min(initial=np.inf) > 0 and 0 < most < np.inf):
            raise SpecError("completion_rate_rps: finite rates > 0 for 1, 2, … present are needed")
        if (rates[1:] - rates[:-1]).min(initial=0.0) < -1e-9 * rates[-1]:
            raise SpecError("completion_rate_rps must not decrease with the number present")
        if self.evicted_ratio is not None and not 0 <= self.evicted_ratio <= 1:
            raise SpecError(f"evicted_ratio = {self.evicted_ratio}: it must lie in [0, 1]")
        if self.evicted_by_class is not None:
            lost = np.asarray(self.evicted_by_class, dtype=float)
            if lost.shape != self.think_time.weights.shape or not np.all((lost >= 0) & (lost <= 1)):
                raise SpecError(
                    f"evicted_by_class = {lost}: a share in [0, 1] for each of"
                    f" {self.think_time.weights.size} classes of think time is needed"
                )
            object.__setattr__(self, "evicted_by_class", lost)
        if not self.move_work_ratio >= 0:
            raise SpecError(f"move_work_ratio = {self.move_work_ratio}: it must be >= 0")
        if not self.load_unit_tokens > 0:
            raise SpecError(f"load_unit_tokens = {self.load_unit_tokens}: it must be > 0")

    @property
    def rate_per_instance_rps(self) -> float:
        """Requests per second and instance [requests/s]."""
        return self.arrival_rate_rps / self.instances
