"""The steps policies share: least loaded, longest hit, shared prefix, who wins a tie.

Why ties matter: hits come in whole blocks and loads in whole requests, so ties are the usual
case.  Broken by index they send every evicted session to instance 0.  The rules:

* least load: ties go round robin, the search starts after the last winner;
* longest hit: hits within one block of the longest tie, and go to the least loaded of them;
  an instance that holds nothing never ties with one that holds something;
* a longest hit no longer than the prefix that nearly all instances hold (by default 90 %) is no
  affinity: it says nothing about where the session has been.

``tie_break = "first"`` is the literal ``argmax`` of the paper's Figure 13 instead: first index,
no block tolerance, no shared-prefix rule.  The least-load step is round robin in either variant
(``rr_argmin`` in the figure).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from smetric_model.routing.policy import (
    BoolVector,
    Decision,
    FloatVector,
    KeyVector,
    Policy,
    Reason,
    RoutingRequest,
    Snapshot,
    TieState,
    check_choice,
    check_range,
)

__all__ = [
    "TIE_BREAKS",
    "Affinity",
    "TieBreaking",
    "balance",
    "draw",
    "least_loaded",
    "mean_load",
    "no_affinity_reason",
    "rendezvous_weights",
    "shared_prefix_tokens",
]

TIE_BREAKS = ("least-loaded", "first")

_MASK = (1 << 64) - 1
#: Constants of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
GOLDEN_GAMMA = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB


def round_robin(candidates: BoolVector, ties: TieState) -> tuple[int, TieState]:
    """Return the first candidate from ``ties.next_instance`` on, cyclically."""
    instances = candidates.size
    rotated = (np.arange(instances) + ties.next_instance) % instances
    winner = int(rotated[np.argmax(candidates[rotated])])
    return winner, replace(ties, next_instance=(winner + 1) % instances)


def least_loaded(
    candidates: BoolVector, loads: FloatVector, ties: TieState
) -> tuple[int, TieState]:
    """Return the candidate with the least load; ties round robin."""
    lowest = loads[candidates].min()
    return round_robin(candidates & (loads == lowest), ties)


def balance(snapshot: Snapshot, ties: TieState, reason: Reason) -> Decision:
    """Place by load alone: line 13 of the paper's Figure 13."""
    winner, ties = least_loaded(snapshot.available, snapshot.loads.values, ties)
    return Decision(winner, reason, ties)


def mean_load(snapshot: Snapshot) -> float:
    """Mean load of the available instances.

    Kept within [min, max] against rounding, so that equal loads are never above their mean.
    """
    loads = snapshot.loads.values[snapshot.available]
    mean = float(np.add.accumulate(loads)[-1]) / loads.size
    return min(max(mean, float(loads.min())), float(loads.max()))


def shared_prefix_tokens(snapshot: Snapshot, shared_by_ratio: float) -> int:
    """Longest prefix that at least ``shared_by_ratio`` of the available instances hold [tokens].

    0 for a single instance: nobody to share with.
    """
    hits = np.sort(snapshot.hit_tokens[snapshot.available])[::-1]
    if hits.size < 2:
        return 0
    return int(hits[holders_needed(hits.size, shared_by_ratio) - 1])


def holders_needed(instances: int, shared_by_ratio: float) -> int:
    """Smallest whole number of instances that is at least ``shared_by_ratio`` of them.

    At least 2: what one instance alone holds is not shared.
    """
    return max(2, math.ceil(shared_by_ratio * instances - 1e-9))


@dataclass(frozen=True)
class Affinity:
    """Where a request's context is cached, if anywhere.

    Parameters
    ----------
    home : int
        Instance with the longest hit, ties broken.
    hit_tokens : int
        The longest hit [tokens].
    shared : bool
        Whether that hit is no longer than the prefix nearly everybody holds.
    candidates : (instances,) bool
        Instances whose hit is as good as the home's.
    ties : TieState
        Tie state if the request goes home.
    """

    home: int
    hit_tokens: int
    shared: bool
    candidates: BoolVector
    ties: TieState


@dataclass(frozen=True)
class TieBreaking(Policy):
    """Parameters of the policies that look at hits."""

    tie_break: str = field(
        default="least-loaded",
        metadata={
            "unit": "least-loaded | first",
            "why": "by index, all evicted sessions run to instance 0 and throughput falls; 'first' "
            "is the literal reading of Figure 13, kept for comparison",
        },
    )
    block_tokens: int = field(
        default=16,
        metadata={
            "unit": "tokens",
            "why": "the block of the scenario's engine (vLLM's default); hits come in whole "
            "blocks, one block more or less is no reason to prefer an instance",
        },
    )
    shared_by_ratio: float = field(
        default=0.9,
        metadata={
            "unit": "share of instances",
            "why": "assumption: a system prompt is on nearly, not exactly, every instance; a few "
            "that restarted must not turn the others into homes",
        },
    )

    def __post_init__(self) -> None:
        check_choice(self, "tie_break", TIE_BREAKS)
        check_range(self, "block_tokens", 0, math.inf)
        check_range(self, "shared_by_ratio", 0, 1, open_low=True)

    def affinity(self, snapshot: Snapshot, ties: TieState) -> Affinity:
        """Find the instance with the longest hit (line 5 of Figure 13) under the tie rule."""
        up, hits = snapshot.available, snapshot.hit_tokens
        longest = int(hits[up].max())
        if self.tie_break == "first":
            candidates = up & (hits == longest)
            return Affinity(int(np.argmax(candidates)), longest, False, candidates, ties)
        candidates = up & (hits >= longest - self.block_tokens) & (hits > 0)
        if longest == 0:
            candidates = up
        shared = longest <= shared_prefix_tokens(snapshot, self.shared_by_ratio)
        home, after = least_loaded(candidates, snapshot.loads.values, ties)
        return Affinity(home, longest, shared, candidates, after)


def no_affinity_reason(
    snapshot: Snapshot,
    affinity: Affinity,
    block_tokens: int,
    request: RoutingRequest,
    hit_ratio: float,
) -> Reason:
    """Why there is no instance to stick to: it is down, only a common prefix is left, or nothing.

    An unavailable instance counts as the home if its hit would have passed the guard and beats
    every available one by more than a block.
    """
    down = snapshot.hit_tokens[~snapshot.available]
    if down.size:
        lost = int(down.max())
        if lost > affinity.hit_tokens + block_tokens and lost > hit_ratio * request.est_hit_tokens:
            return Reason.HOME_DOWN
    if affinity.hit_tokens > 0 and affinity.shared:
        return Reason.SHARED_PREFIX
    return Reason.EVICTED


def mix(value: int) -> int:
    """Finaliser of SplitMix64: a bijection of 64-bit integers that looks random."""
    value = ((value ^ (value >> 30)) * MIX_1) & _MASK
    value = ((value ^ (value >> 27)) * MIX_2) & _MASK
    return value ^ (value >> 31)


def draw(bound: int, ties: TieState) -> tuple[int, TieState]:
    """Draw an integer below ``bound`` (bias below bound/2**32) from the tie state."""
    state = (ties.random_state + GOLDEN_GAMMA) & _MASK
    return ((mix(state) >> 32) * bound) >> 32, replace(ties, random_state=state)


def rendezvous_weights(session_key: int, instance_keys: KeyVector) -> KeyVector:
    """Weight of every instance for a session: the largest wins (Thaler & Ravishankar 1998).

    Removing an instance moves only the sessions it had; no ring and no table are needed.
    """
    return _mix_vector(
        np.uint64(session_key) ^ _mix_vector(instance_keys + np.uint64(GOLDEN_GAMMA))
    )


def _mix_vector(values: KeyVector) -> KeyVector:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(MIX_1)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(MIX_2)
    return values ^ (values >> np.uint64(31))


def first_of_lowest(scores: FloatVector, available: BoolVector) -> int:
    """Index of the lowest score among the available; the first of equals."""
    return int(np.argmin(np.where(available, scores, np.inf)))


def lowest(scores: FloatVector, available: BoolVector) -> BoolVector:
    """Mark the available instances that share the lowest score."""
    best: BoolVector = available & (scores == scores[available].min())
    return best
