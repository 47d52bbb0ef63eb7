"""SMetric: balance first turns, keep follow-ups where their context is (paper §4.2, Figure 13).

::

    s = argmax(c)                                              longest hit, ties as in ties.py
    if turn != 0 and l[s] <= OVERLOAD * mean(l)                not_overloaded
                 and c[s] >  HIT_RATIO * est_hit:              session_not_evicted
        s                                                      stick
    else:
        rr_argmin(l)                                           balance

Three variants: :class:`SMetric` with both guards, :class:`SMetricBasic` without them (the paper's
"SMetric (basic)"), :class:`SMetricSlo` whose first guard asks whether the home can still meet the
TTFT SLO.  Where both guards fail the reason given is the eviction: without its context the
instance is no home, so its load did not move anybody.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from smetric_model.routing.policy import (
    BoolVector,
    Decision,
    IntVector,
    Reason,
    RoutingRequest,
    Snapshot,
    TieState,
    check_flag,
    check_range,
)
from smetric_model.routing.thresholds import FollowUp, ThresholdForm
from smetric_model.routing.ties import (
    Affinity,
    TieBreaking,
    balance,
    least_loaded,
    mean_load,
    no_affinity_reason,
    shared_prefix_tokens,
)

__all__ = ["SMetric", "SMetricBasic", "SMetricSlo"]

FloatArray = NDArray[np.float64]

HIT_RATIO_WHY = (
    "assumption (the paper: a constant below one, insensitive from 0 to 0.75); between the drift "
    "of est_hit (blocks, template tokens, dropped reasoning) and a half-evicted context"
)


@dataclass(frozen=True)
class SMetricBasic(TieBreaking):
    """SMetric without guards: a follow-up always goes to the longest hit."""

    name: ClassVar[str] = "smetric-basic"
    source: ClassVar[str] = "SMetric paper, Figure 13 without both guards (its Figures 14 and 24)"

    def _decide(self, request: RoutingRequest, snapshot: Snapshot, ties: TieState) -> Decision:
        if request.turn == 0:
            return balance(snapshot, ties, Reason.FIRST_TURN)
        affinity = self.affinity(snapshot, ties)
        if self.tie_break != "first" and (affinity.hit_tokens == 0 or affinity.shared):
            reason = no_affinity_reason(snapshot, affinity, self.block_tokens, request, 0.0)
            return balance(snapshot, ties, reason)
        return Decision(affinity.home, Reason.STICK, affinity.ties)

    @property
    def threshold_form(self) -> ThresholdForm:
        """Always: no load limit, any hit of the session's own."""
        return ThresholdForm(
            "nothing",
            "least load",
            "the home holds more than the shared prefix",
            lambda seen: np.full(np.shape(seen.home_hit_tokens), np.inf),
            None
            if self.tie_break == "first"
            else lambda seen: np.asarray(seen.shared_prefix_tokens, dtype=np.float64),
        )


@dataclass(frozen=True)
class _Guarded(TieBreaking):
    """What the two guarded variants share: the session_not_evicted guard."""

    hit_ratio: float = field(
        default=0.5, metadata={"unit": "share of est_hit", "why": HIT_RATIO_WHY}
    )
    subtract_shared_prefix: bool = field(
        default=False,
        metadata={
            "unit": "true | false",
            "why": "the paper compares raw lengths; true takes the prefix that nearly all "
            "instances hold off both sides, so that a long system prompt cannot pass for context",
        },
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "hit_ratio", 0, 1)
        check_flag(self, "subtract_shared_prefix")

    def _evicted(
        self, request: RoutingRequest, snapshot: Snapshot, affinity: Affinity
    ) -> Reason | None:
        """Reason why there is no home, or None if session_not_evicted holds."""
        hit, expected = affinity.hit_tokens, request.est_hit_tokens
        if self.subtract_shared_prefix:
            shared = shared_prefix_tokens(snapshot, self.shared_by_ratio)
            hit, expected = hit - shared, max(expected - shared, 0)
        if hit > self.hit_ratio * expected and not affinity.shared:
            return None
        return no_affinity_reason(snapshot, affinity, self.block_tokens, request, self.hit_ratio)

    def _min_hit_tokens(self, seen: FollowUp) -> FloatArray:
        shared = np.asarray(seen.shared_prefix_tokens, dtype=np.float64)
        expected = np.asarray(seen.est_hit_tokens, dtype=np.float64)
        if self.subtract_shared_prefix:
            least = shared + self.hit_ratio * np.maximum(expected - shared, 0.0)
        else:
            least = self.hit_ratio * expected
        return least if self.tie_break == "first" else np.maximum(least, shared)


@dataclass(frozen=True)
class SMetric(_Guarded):
    """SMetric with both guards (default policy)."""

    name: ClassVar[str] = "smetric"
    source: ClassVar[str] = "SMetric paper, Figure 13; overload_floor is ours"

    overload: float = field(
        default=2.0,
        metadata={
            "unit": "× mean load",
            "why": "the paper's Figure 14; insensitive within 6 % from 1 to infinity (Figure 25)",
        },
    )
    overload_floor: float = field(
        default=0.0,
        metadata={
            "unit": "load above the mean",
            "why": "0 is off, the paper's guard as it stands; with few requests in flight that "
            "guard moves about a quarter of the follow-ups for nothing, and a floor of 2 "
            "requests stops it",
        },
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "overload", 0, math.inf, open_low=True)
        check_range(self, "overload_floor", 0, math.inf)

    def _decide(self, request: RoutingRequest, snapshot: Snapshot, ties: TieState) -> Decision:
        if request.turn == 0:
            return balance(snapshot, ties, Reason.FIRST_TURN)
        affinity = self.affinity(snapshot, ties)
        reason = self._evicted(request, snapshot, affinity)
        if reason is not None:
            return balance(snapshot, ties, reason)
        if not self._not_overloaded(float(snapshot.loads.values[affinity.home]), snapshot):
            return balance(snapshot, ties, Reason.OVERLOADED)
        return Decision(affinity.home, Reason.STICK, affinity.ties)

    def _not_overloaded(self, home_load: float, snapshot: Snapshot) -> bool:
        if math.isinf(self.overload):
            return True
        mean = mean_load(snapshot)
        if home_load <= self.overload * mean:
            return True
        # A floor of 0 means none, also where OVERLOAD < 1.
        return self.overload_floor > 0 and home_load <= mean + self.overload_floor

    @property
    def threshold_form(self) -> ThresholdForm:
        """Limit OVERLOAD·mean (or mean + floor), and a hit above HIT_RATIO·est_hit."""
        return ThresholdForm(
            "mean",
            "least load",
            "l_home <= OVERLOAD·mean(l) (or <= mean(l) + floor) and c_home > HIT_RATIO·est_hit",
            self._home_load_limit,
            self._min_hit_tokens,
        )

    def _home_load_limit(self, seen: FollowUp) -> FloatArray:
        mean = np.asarray(seen.mean_load, dtype=np.float64)
        if math.isinf(self.overload):
            return np.full(mean.shape, np.inf)
        if self.overload_floor > 0:
            return np.maximum(self.overload * mean, mean + self.overload_floor)
        return np.asarray(self.overload * mean)


@dataclass(frozen=True)
class SMetricSlo(_Guarded):
    """SMetric whose home must be able to meet the TTFT SLO, unless nobody can.

    Expected TTFT on instance j, from its unprefilled tokens q_j and the new tokens n = L − c_j::

        (q_j + n + n·(L − n/2)/attention_equal_tokens) / prefill_tokens_per_s

    A request that leaves goes to the least loaded of the instances that can meet the SLO.
    """

    name: ClassVar[str] = "smetric-slo"
    source: ClassVar[str] = (
        "later versions of the SMetric paper and of its routers gate on the TTFT SLO in place of "
        "OVERLOAD; restricting the move to instances that can meet it is ours"
    )
    needs_unprefilled_tokens: ClassVar[bool] = True

    ttft_base_s: float = field(
        default=2.0,
        metadata={"unit": "s", "why": "the scenario's SLO: an idle instance's overheads and waits"},
    )
    ttft_per_prompt_token_s: float = field(
        default=0.0005,
        metadata={"unit": "s/token", "why": "the scenario's SLO: linear in prompt length"},
    )
    prefill_tokens_per_s: float = field(
        default=math.inf,
        metadata={
            "unit": "tokens/s",
            "why": "measured or modelled by the caller; infinite while unknown, then the gate "
            "passes",
        },
    )
    attention_equal_tokens: float = field(
        default=math.inf,
        metadata={
            "unit": "tokens",
            "why": "context length at which a token's attention costs as much as its weights, "
            "P_active/(2·layers·heads·head_dim); infinite: prefill cost linear in new tokens",
        },
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "ttft_base_s", 0, math.inf)
        check_range(self, "ttft_per_prompt_token_s", 0, math.inf)
        check_range(self, "prefill_tokens_per_s", 0, math.inf, open_low=True)
        check_range(self, "attention_equal_tokens", 0, math.inf, open_low=True)

    def _decide(self, request: RoutingRequest, snapshot: Snapshot, ties: TieState) -> Decision:
        if request.turn == 0:
            return balance(snapshot, ties, Reason.FIRST_TURN)
        affinity = self.affinity(snapshot, ties)
        reason = self._evicted(request, snapshot, affinity)
        if reason is not None:
            return balance(snapshot, ties, reason)
        within = self._within_slo(request, snapshot)
        if within[affinity.home] or not within.any():
            return Decision(affinity.home, Reason.STICK, affinity.ties)
        winner, ties = least_loaded(within, snapshot.loads.values, ties)
        return Decision(winner, Reason.SLO_MISSED, ties)

    def _within_slo(self, request: RoutingRequest, snapshot: Snapshot) -> BoolVector:
        queued = snapshot.loads.unprefilled_tokens
        assert queued is not None  # checked by choose
        cost = self._prefill_cost_tokens(request.prompt_tokens, snapshot.hit_tokens)
        within: BoolVector = snapshot.available & (
            (queued + cost) / self.prefill_tokens_per_s <= self._slo_s(request.prompt_tokens)
        )
        return within

    def _slo_s(self, prompt_tokens: int | FloatArray) -> float | FloatArray:
        return self.ttft_base_s + self.ttft_per_prompt_token_s * prompt_tokens

    def _prefill_cost_tokens(
        self, prompt_tokens: int | FloatArray, hit_tokens: FloatArray | IntVector
    ) -> FloatArray:
        new = np.asarray(prompt_tokens - hit_tokens, dtype=np.float64)
        return new + new * (prompt_tokens - new / 2) / self.attention_equal_tokens

    @property
    def threshold_form(self) -> ThresholdForm:
        """Limit on the home's unprefilled tokens: what the SLO leaves after the own prefill."""
        return ThresholdForm(
            "slo",
            "least load",
            "q_home <= rate·SLO(L) − cost(L, c_home) (waived if nobody is within), and "
            "c_home > HIT_RATIO·est_hit",
            self._home_load_limit,
            self._min_hit_tokens,
        )

    def _home_load_limit(self, seen: FollowUp) -> FloatArray:
        prompt = np.asarray(seen.prompt_tokens, dtype=np.float64)
        hit = np.asarray(seen.home_hit_tokens, dtype=np.float64)
        if math.isinf(self.prefill_tokens_per_s):
            return np.full(np.broadcast(prompt, hit).shape, np.inf)
        budget = self.prefill_tokens_per_s * self._slo_s(prompt)
        return np.asarray(budget - self._prefill_cost_tokens(prompt, hit))
