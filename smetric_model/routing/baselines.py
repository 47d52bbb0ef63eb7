"""The policies SMetric is compared with.

Scores (lowest wins): :class:`Bailian`, :class:`LMetric`, :class:`LoadBalance`, :class:`Dynamo`.
Hashes: :class:`BoundedHash`, :class:`AlwaysSticky`.  Without looking: :class:`PowerOfTwo`,
:class:`RoundRobin`, :class:`Random`.

A score policy places first turns by the same score, with the shared prefix as hit: that is why
first turns crowd where the system prompt lies (paper §4.1).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from smetric_model.routing.policy import (
    Decision,
    FloatVector,
    Policy,
    Reason,
    RoutingRequest,
    Snapshot,
    TieState,
    check_choice,
    check_flag,
    check_range,
)
from smetric_model.routing.thresholds import FollowUp, ThresholdForm
from smetric_model.routing.ties import (
    TIE_BREAKS,
    TieBreaking,
    balance,
    draw,
    first_of_lowest,
    least_loaded,
    lowest,
    mean_load,
    no_affinity_reason,
    rendezvous_weights,
    round_robin,
)

__all__ = [
    "AlwaysSticky",
    "Bailian",
    "BoundedHash",
    "Dynamo",
    "LMetric",
    "LoadBalance",
    "PowerOfTwo",
    "Random",
    "RoundRobin",
]

FloatArray = NDArray[np.float64]
LOAD_NORMALISATIONS = ("mean", "max", "minmax")


def _array(value: object) -> FloatArray:
    return np.asarray(value, dtype=np.float64)


def _blind(request: RoutingRequest) -> Reason:
    return Reason.FIRST_TURN if request.turn == 0 else Reason.BLIND


@dataclass(frozen=True)
class _Scored(TieBreaking):
    """Lowest score wins; ties go to the least loaded, then round robin (or to the first)."""

    @abstractmethod
    def scores(self, request: RoutingRequest, snapshot: Snapshot) -> FloatVector:
        """Score of every instance; the lowest wins."""

    def _decide(self, request: RoutingRequest, snapshot: Snapshot, ties: TieState) -> Decision:
        scores = self.scores(request, snapshot)
        if self.tie_break == "first":
            winner = first_of_lowest(scores, snapshot.available)
        else:
            best = lowest(scores, snapshot.available)
            winner, ties = least_loaded(best, snapshot.loads.values, ties)
        return Decision(winner, self._reason(request, snapshot, ties, winner), ties)

    def _reason(
        self, request: RoutingRequest, snapshot: Snapshot, ties: TieState, winner: int
    ) -> Reason:
        if request.turn == 0:
            return Reason.FIRST_TURN
        affinity = self.affinity(snapshot, ties)
        if affinity.hit_tokens == 0 or affinity.shared:
            return no_affinity_reason(snapshot, affinity, self.block_tokens, request, 0.0)
        return Reason.STICK if affinity.candidates[winner] else Reason.OUTWEIGHED


@dataclass(frozen=True)
class Bailian(_Scored):
    """Linear score of normalised load and missing hits: f = (1 − w)·l̂ + w·(1 − c/L)."""

    name: ClassVar[str] = "bailian"
    source: ClassVar[str] = "SMetric paper §4.1; the normalisation of the load is not given there"

    hit_weight: float = field(
        default=0.7,
        metadata={
            "unit": "0 to 1",
            "why": "assumption: the paper says that operators set a large weight",
        },
    )
    load_normalisation: str = field(
        default="mean",
        metadata={
            "unit": "mean | max | minmax",
            "why": "assumption: the paper is silent; a multiple of the mean does not saturate, "
            "while on a [0, 1] scale a weight above 1/(1 + c/L) never lets a follow-up go",
        },
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "hit_weight", 0, 1)
        check_choice(self, "load_normalisation", LOAD_NORMALISATIONS)

    def scores(self, request: RoutingRequest, snapshot: Snapshot) -> FloatVector:
        """Return (1 − w)·l̂ + w·(1 − ĉ); a load scale of 0 makes every l̂ 0."""
        up = snapshot.available
        known = snapshot.loads.values[up]
        least = float(known.min()) if self.load_normalisation == "minmax" else 0.0
        scale = self._load_scale(mean_load(snapshot), least, float(known.max()))
        loads = np.where(up, snapshot.loads.values, least)
        relative = (loads - least) / scale if scale > 0 else np.zeros(loads.size)
        length = request.prompt_tokens
        hit_share = snapshot.hit_tokens / length if length else np.zeros(loads.size)
        result: FloatVector = (1.0 - self.hit_weight) * relative + self.hit_weight * (
            1.0 - hit_share
        )
        return result

    def _load_scale(self, mean: float, least: float, largest: float) -> float:
        if self.load_normalisation == "mean":
            return mean
        return largest - least

    @property
    def threshold_form(self) -> ThresholdForm:
        """Limit l_j + scale·w/(1 − w)·(ĉ_home − ĉ_j)."""
        return ThresholdForm(
            "each other",
            "same rule",
            "l_home/s <= l_j/s + w/(1 − w)·(c_home − c_j)/L for every j, s the load scale",
            self._home_load_limit,
        )

    def _home_load_limit(self, seen: FollowUp) -> FloatArray:
        scale = {
            "mean": _array(seen.mean_load),
            "max": _array(seen.max_load),
            "minmax": _array(seen.max_load) - _array(seen.min_load),
        }[self.load_normalisation]
        hit_lead = (_array(seen.home_hit_tokens) - seen.other_hit_tokens) / seen.prompt_tokens
        if self.hit_weight == 1:
            # Only hits count: home iff it has at least the other's; equal hits are a tie.
            shape = np.broadcast(hit_lead, scale, _array(seen.other_load)).shape
            return np.broadcast_to(np.where(hit_lead >= 0, np.inf, -np.inf), shape).copy()
        weight = self.hit_weight / (1.0 - self.hit_weight)
        return np.asarray(_array(seen.other_load) + scale * weight * hit_lead)


@dataclass(frozen=True)
class LMetric(_Scored):
    """Product of new prefill tokens and batch: f = (L − c)·(l + 1), or ·l."""

    name: ClassVar[str] = "lmetric"
    source: ClassVar[str] = "LMetric (arXiv 2603.15202); SMetric paper §4.1 writes (L − c)·l"

    count_self: bool = field(
        default=True,
        metadata={
            "unit": "true | false",
            "why": "l + 1, as in its authors' router: with l every idle instance scores 0 and the "
            "policy becomes load balance",
        },
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flag(self, "count_self")

    def scores(self, request: RoutingRequest, snapshot: Snapshot) -> FloatVector:
        """Return (L − c)·(l + 1), without the 1 unless ``count_self``."""
        new_tokens = (request.prompt_tokens - snapshot.hit_tokens).astype(np.float64)
        return new_tokens * (snapshot.loads.values + (1.0 if self.count_self else 0.0))

    @property
    def threshold_form(self) -> ThresholdForm:
        """Limit (l_j + 1)·(L − c_j)/(L − c_home) − 1."""
        own = "+ 1" if self.count_self else ""
        return ThresholdForm(
            "each other",
            "same rule",
            f"(L − c_home)·(l_home{own}) <= (L − c_j)·(l_j{own}) for every j",
            self._home_load_limit,
        )

    def _home_load_limit(self, seen: FollowUp) -> FloatArray:
        own = 1.0 if self.count_self else 0.0
        other = (_array(seen.prompt_tokens) - seen.other_hit_tokens) * (
            _array(seen.other_load) + own
        )
        home = _array(seen.prompt_tokens) - seen.home_hit_tokens
        with np.errstate(divide="ignore", invalid="ignore"):
            # A complete hit scores 0 at any load: no limit.
            return np.asarray(np.where(home > 0, other / home - own, np.inf))


@dataclass(frozen=True)
class LoadBalance(Policy):
    """Least loaded, blind to hits: f = l."""

    name: ClassVar[str] = "load-balance"
    source: ClassVar[str] = "join the shortest queue; SMetric paper §4.1 (vLLM's default)"

    tie_break: str = field(
        default="least-loaded",
        metadata={
            "unit": "least-loaded | first",
            "why": "equal loads go round robin; 'first' takes the first of them, which piles "
            "requests on low indices when few are in flight",
        },
    )

    def __post_init__(self) -> None:
        check_choice(self, "tie_break", TIE_BREAKS)

    def _decide(self, request: RoutingRequest, snapshot: Snapshot, ties: TieState) -> Decision:
        if self.tie_break == "first":
            winner = first_of_lowest(snapshot.loads.values, snapshot.available)
            return Decision(winner, _blind(request), ties)
        return balance(snapshot, ties, _blind(request))

    @property
    def threshold_form(self) -> ThresholdForm:
        """Limit l_j."""
        return ThresholdForm(
            "each other",
            "least load",
            "l_home <= l_j for every j",
            lambda seen: _array(seen.other_load),
        )


@dataclass(frozen=True)
class Dynamo(_Scored):
    """New prefill tokens, queued and own: f = q + L − c."""

    name: ClassVar[str] = "dynamo"
    source: ClassVar[str] = (
        "NVIDIA Dynamo as the SMetric paper uses it for prefill pools (§5.3): the prefill term of "
        "its cost, without decode blocks, temperature and credit decay"
    )
    needs_unprefilled_tokens: ClassVar[bool] = True

    def scores(self, request: RoutingRequest, snapshot: Snapshot) -> FloatVector:
        """Return queued new tokens plus the request's own."""
        queued = snapshot.loads.unprefilled_tokens
        assert queued is not None  # checked by choose
        return queued + (request.prompt_tokens - snapshot.hit_tokens)

    @property
    def threshold_form(self) -> ThresholdForm:
        """Limit q_j + c_home − c_j, in unprefilled tokens."""
        return ThresholdForm(
            "each other",
            "same rule",
            "q_home − c_home <= q_j − c_j for every j, q in unprefilled tokens",
            lambda seen: (
                _array(seen.other_load) + _array(seen.home_hit_tokens) - seen.other_hit_tokens
            ),
        )


@dataclass(frozen=True)
class AlwaysSticky(Policy):
    """A session stays on the instance its hash names, whatever the load."""

    name: ClassVar[str] = "always-sticky"
    source: ClassVar[str] = "session affinity of common proxies; rendezvous hash"

    def _decide(self, request: RoutingRequest, snapshot: Snapshot, ties: TieState) -> Decision:
        weights = rendezvous_weights(request.session_key, snapshot.instance_keys)
        order = np.where(snapshot.available, weights, np.uint64(0))
        winner = int(np.argmax(order))
        if not snapshot.available[winner]:  # every available weight is 0: practically never
            winner = int(np.argmax(snapshot.available))
        reason = Reason.FIRST_TURN if request.turn == 0 else Reason.HASHED
        return Decision(winner, reason, ties)

    @property
    def threshold_form(self) -> ThresholdForm:
        """Always."""
        return ThresholdForm(
            "nothing",
            "hash",
            "always",
            lambda seen: np.full(np.shape(seen.home_hit_tokens), np.inf),
        )


@dataclass(frozen=True)
class BoundedHash(Policy):
    """Consistent hash with bounded loads: the session's first instance not over the bound.

    Order by rendezvous weight, so that only sessions of a full or absent instance move.
    """

    name: ClassVar[str] = "bounded-hash"
    source: ClassVar[str] = (
        "Mirrokni, Thorup, Zadimoghaddam, SODA 2018 (arXiv 1608.01350); there the bound counts "
        "the request being placed and is rounded up, here it is l <= OVERLOAD·mean without it, "
        "as for SMetric, and holds for loads in tokens too"
    )

    overload: float = field(
        default=2.0,
        metadata={
            "unit": "× mean load, 1 + ε",
            "why": "the scenario's OVERLOAD, so that this policy differs from SMetric only in "
            "where first turns go; proxies use 1.25 to 2",
        },
    )

    def __post_init__(self) -> None:
        # Below 1 every instance may be over the bound at once.
        check_range(self, "overload", 1, math.inf)

    def _decide(self, request: RoutingRequest, snapshot: Snapshot, ties: TieState) -> Decision:
        weights = rendezvous_weights(request.session_key, snapshot.instance_keys)
        limit = math.inf if math.isinf(self.overload) else self.overload * mean_load(snapshot)
        order = np.flatnonzero(snapshot.available)
        order = order[np.argsort(~weights[order], kind="stable")]
        open_ = order[snapshot.loads.values[order] <= limit]
        winner = int(open_[0])
        if request.turn == 0:
            reason = Reason.FIRST_TURN
        else:
            reason = Reason.HASHED if winner == order[0] else Reason.HASH_FULL
        return Decision(winner, reason, ties)

    @property
    def threshold_form(self) -> ThresholdForm:
        """Limit (1 + ε)·mean."""
        return ThresholdForm(
            "mean", "hash", "l_home <= (1 + ε)·mean(l), 1 + ε = OVERLOAD", self._home_load_limit
        )

    def _home_load_limit(self, seen: FollowUp) -> FloatArray:
        mean = _array(seen.mean_load)
        return np.full(mean.shape, np.inf) if math.isinf(self.overload) else self.overload * mean


@dataclass(frozen=True)
class PowerOfTwo(Policy):
    """The less loaded of two different instances drawn at random; the first drawn if equal."""

    name: ClassVar[str] = "power-of-two"
    source: ClassVar[str] = "Mitzenmacher, IEEE TPDS 12(10), 2001"

    def _decide(self, request: RoutingRequest, snapshot: Snapshot, ties: TieState) -> Decision:
        up = np.flatnonzero(snapshot.available)
        first, ties = draw(up.size, ties)
        winner = int(up[first])
        if up.size > 1:
            second, ties = draw(up.size - 1, ties)
            other = int(up[second + (second >= first)])
            if snapshot.loads.values[other] < snapshot.loads.values[winner]:
                winner = other
        return Decision(winner, _blind(request), ties)

    @property
    def threshold_form(self) -> None:
        """None: the choice is random."""
        return None


@dataclass(frozen=True)
class RoundRobin(Policy):
    """The next available instance in turn."""

    name: ClassVar[str] = "round-robin"
    source: ClassVar[str] = "folklore"

    def _decide(self, request: RoutingRequest, snapshot: Snapshot, ties: TieState) -> Decision:
        winner, ties = round_robin(snapshot.available, ties)
        return Decision(winner, _blind(request), ties)

    @property
    def threshold_form(self) -> None:
        """None: the load is not looked at."""
        return None


@dataclass(frozen=True)
class Random(Policy):
    """An available instance drawn at random."""

    name: ClassVar[str] = "random"
    source: ClassVar[str] = "folklore"

    def _decide(self, request: RoutingRequest, snapshot: Snapshot, ties: TieState) -> Decision:
        up = np.flatnonzero(snapshot.available)
        index, ties = draw(up.size, ties)
        return Decision(int(up[index]), _blind(request), ties)

    @property
    def threshold_form(self) -> None:
        """None: the choice is random."""
        return None
