"""The policies as compiled code: the same answers, without Python objects.

:func:`choose` is the twin of :meth:`smetric_model.routing.policy.Policy.choose`, for simulators
(call it from other numba code) and for a live router's hot path.  A policy becomes a record of
numbers by :func:`pack`; the tie state is two integers that go in and come out, so the function
is pure too.  Nothing is checked here: inputs are as :class:`Snapshot` checks them.  The tests hold
the two equal on random inputs, bit for bit.

Compiled code is cached on disk, and numba notices a change only of the file a function stands in.
That is why all of it stands here, and why caches of functions elsewhere that call :func:`choose`
must be removed (``__pycache__``) after this file was edited.

Loops that look for the best instance start at the round-robin pointer and take strictly better
ones only: the first of equals then is the round-robin winner.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from smetric_model.errors import SpecError
from smetric_model.routing.baselines import LOAD_NORMALISATIONS
from smetric_model.routing.policy import (
    BoolVector,
    Decision,
    FloatVector,
    IntVector,
    KeyVector,
    Loads,
    Policy,
    Reason,
    RoutingRequest,
    Snapshot,
    TieState,
)
from smetric_model.routing.registry import POLICIES
from smetric_model.routing.ties import GOLDEN_GAMMA, MIX_1, MIX_2

__all__ = ["PARAMETERS", "POLICY_CODES", "choose", "choose_compiled", "pack"]

F = TypeVar("F", bound=Callable[..., Any])

#: policy name -> code
POLICY_CODES: dict[str, int] = {
    "smetric": 0,
    "smetric-basic": 1,
    "smetric-slo": 2,
    "bailian": 3,
    "lmetric": 4,
    "load-balance": 5,
    "dynamo": 6,
    "bounded-hash": 7,
    "always-sticky": 8,
    "power-of-two": 9,
    "round-robin": 10,
    "random": 11,
}

#: The record :func:`choose` reads; parameters a policy does not have are 0 and never looked at.
PARAMETERS = np.dtype(
    [
        ("code", np.int64),
        ("tie_first", np.int64),
        ("block_tokens", np.int64),
        ("shared_by_ratio", np.float64),
        ("subtract_shared_prefix", np.int64),
        ("overload", np.float64),
        ("overload_floor", np.float64),
        ("hit_ratio", np.float64),
        ("hit_weight", np.float64),
        ("load_normalisation", np.int64),
        ("count_self", np.int64),
        ("ttft_base_s", np.float64),
        ("ttft_per_prompt_token_s", np.float64),
        ("prefill_tokens_per_s", np.float64),
        ("attention_equal_tokens", np.float64),
    ]
)


def pack(policy: Policy) -> NDArray[np.void]:
    """Turn a policy into the record that :func:`choose` reads.

    Parameters
    ----------
    policy : Policy
        Any policy of the registry.

    Returns
    -------
    record of dtype PARAMETERS
        One record; stack several with ``np.array([...], dtype=PARAMETERS)``.

    Raises
    ------
    SpecError
        If the policy has no compiled twin.
    """
    if type(policy) is not POLICIES.get(policy.name):
        raise SpecError(
            f"policy {policy.name!r} of type {type(policy).__name__} has no compiled twin; "
            f"one of {', '.join(POLICIES)}"
        )
    record = np.zeros(1, dtype=PARAMETERS)
    record["code"] = POLICY_CODES[policy.name]
    for name in PARAMETERS.names or ():
        if name == "tie_first":
            record[name] = getattr(policy, "tie_break", None) == "first"
        elif name == "load_normalisation":
            record[name] = LOAD_NORMALISATIONS.index(getattr(policy, name, "mean"))
        elif name != "code":
            record[name] = getattr(policy, name, 0)
    return cast("NDArray[np.void]", record[0])


def choose_compiled(
    policy: Policy,
    request: RoutingRequest,
    hit_tokens: ArrayLike,
    loads: Loads,
    ties: TieState,
    *,
    available: ArrayLike | None = None,
    instance_keys: ArrayLike | None = None,
) -> Decision:
    """Ask the compiled twin with the arguments of :meth:`Policy.choose`, checked the same way."""
    seen = Snapshot.of(request, hit_tokens, loads, available, instance_keys)
    queued = loads.unprefilled_tokens
    if queued is None:
        if policy.needs_unprefilled_tokens:
            return policy.choose(request, hit_tokens, loads, ties)  # raises the error
        queued = loads.values
    instance, reason, next_instance, random_state = choose(
        pack(policy),
        request.prompt_tokens,
        request.turn,
        request.est_hit_tokens,
        np.uint64(request.session_key),
        seen.hit_tokens,
        loads.values,
        queued,
        seen.available,
        seen.instance_keys,
        ties.next_instance,
        np.uint64(ties.random_state),
    )
    return Decision(instance, Reason(reason), TieState(next_instance, int(random_state)))


def _compile(function: F) -> F:
    """Compile with a cache on disk; without the GIL; IEEE division."""
    return cast("F", numba.njit(cache=True, nogil=True, error_model="numpy")(function))


# Codes as module constants: numba freezes them into the code.
_SMETRIC, _BASIC, _SLO = (POLICY_CODES[n] for n in ("smetric", "smetric-basic", "smetric-slo"))
_BAILIAN, _LMETRIC, _BALANCE, _DYNAMO = (
    POLICY_CODES[n] for n in ("bailian", "lmetric", "load-balance", "dynamo")
)
_BOUNDED, _STICKY = (POLICY_CODES[n] for n in ("bounded-hash", "always-sticky"))
_TWO, _ROBIN, _RANDOM = (POLICY_CODES[n] for n in ("power-of-two", "round-robin", "random"))
_MEAN, _MAX, _MINMAX = range(len(LOAD_NORMALISATIONS))

_NO_INSTANCE = int(Reason.NO_INSTANCE)
_FIRST_TURN = int(Reason.FIRST_TURN)
_STICK = int(Reason.STICK)
_OVERLOADED = int(Reason.OVERLOADED)
_EVICTED = int(Reason.EVICTED)
_SHARED_PREFIX = int(Reason.SHARED_PREFIX)
_HOME_DOWN = int(Reason.HOME_DOWN)
_SLO_MISSED = int(Reason.SLO_MISSED)
_OUTWEIGHED = int(Reason.OUTWEIGHED)
_BLIND = int(Reason.BLIND)
_HASHED = int(Reason.HASHED)
_HASH_FULL = int(Reason.HASH_FULL)

_GAMMA = np.uint64(GOLDEN_GAMMA)
_MIX_1 = np.uint64(MIX_1)
_MIX_2 = np.uint64(MIX_2)
_S27, _S30, _S31, _S32 = (np.uint64(n) for n in (27, 30, 31, 32))


@_compile
def _mix(value: np.uint64) -> np.uint64:
    value = (value ^ (value >> _S30)) * _MIX_1
    value = (value ^ (value >> _S27)) * _MIX_2
    return value ^ (value >> _S31)


@_compile
def _draw(bound: int, random_state: np.uint64) -> tuple[int, np.uint64]:
    random_state = random_state + _GAMMA
    return int(((_mix(random_state) >> _S32) * np.uint64(bound)) >> _S32), random_state


@_compile
def _least_loaded(loads: FloatVector, available: BoolVector, start: int) -> int:
    instances = loads.size
    best, lowest = -1, np.inf
    j = start
    for _ in range(instances):
        if available[j] and loads[j] < lowest:
            best, lowest = j, loads[j]
        j = j + 1 if j + 1 < instances else 0
    return best


@_compile
def _nth_available(available: BoolVector, index: int) -> int:
    for j in range(available.size):
        if available[j]:
            if index == 0:
                return j
            index -= 1
    return -1


@_compile
def _load_statistics(loads: FloatVector, available: BoolVector) -> tuple[float, float, float]:
    """Mean (within [min, max]), min and max over the available instances."""
    count, total, least, largest = 0, 0.0, np.inf, 0.0
    for j in range(loads.size):
        if available[j]:
            count += 1
            total += loads[j]
            least = min(least, loads[j])
            largest = max(largest, loads[j])
    return min(max(total / count, least), largest), least, largest


@_compile
def _shared_prefix_tokens(
    hit_tokens: IntVector, available: BoolVector, count: int, shared_by_ratio: float
) -> int:
    if count < 2:
        return 0
    hits = np.empty(count, np.int64)
    k = 0
    for j in range(hit_tokens.size):
        if available[j]:
            hits[k] = hit_tokens[j]
            k += 1
    needed = max(2, math.ceil(shared_by_ratio * count - 1e-9))
    return int(np.partition(hits, count - needed)[count - needed])


@_compile
def _is_shared(
    longest: int, hit_tokens: IntVector, available: BoolVector, count: int, shared_by_ratio: float
) -> bool:
    """Whether enough instances hold ``longest``: the shared prefix is no shorter."""
    if count < 2:
        return longest <= 0
    holders = 0
    for j in range(hit_tokens.size):
        if available[j] and hit_tokens[j] >= longest:
            holders += 1
    return holders >= max(2, math.ceil(shared_by_ratio * count - 1e-9))


@_compile
def _home(
    tie_first: int,
    block_tokens: int,
    longest: int,
    hit_tokens: IntVector,
    loads: FloatVector,
    available: BoolVector,
    start: int,
) -> int:
    instances = hit_tokens.size
    if tie_first:
        for j in range(instances):
            if available[j] and hit_tokens[j] == longest:
                return j
    least_hit = max(longest - block_tokens, 1) if longest > 0 else 0
    best, lowest = -1, np.inf
    j = start
    for _ in range(instances):
        if available[j] and hit_tokens[j] >= least_hit and loads[j] < lowest:
            best, lowest = j, loads[j]
        j = j + 1 if j + 1 < instances else 0
    return best


@_compile
def _no_affinity_reason(
    longest: int,
    shared: bool,
    block_tokens: int,
    expected: float,
    hit_tokens: IntVector,
    available: BoolVector,
) -> int:
    lost = 0
    for j in range(hit_tokens.size):
        if not available[j]:
            lost = max(lost, hit_tokens[j])
    if lost > longest + block_tokens and lost > expected:
        return _HOME_DOWN
    return _SHARED_PREFIX if longest > 0 and shared else _EVICTED


@_compile
def _score(
    parameters: Any,
    prompt_tokens: int,
    hit: int,
    load: float,
    queued: float,
    least: float,
    scale: float,
) -> float:
    code = parameters.code
    if code == _BAILIAN:
        relative = (load - least) / scale if scale > 0 else 0.0
        hit_share = hit / prompt_tokens if prompt_tokens > 0 else 0.0
        weight = parameters.hit_weight
        return float((1.0 - weight) * relative + weight * (1.0 - hit_share))
    if code == _LMETRIC:
        return float(prompt_tokens - hit) * (load + (1.0 if parameters.count_self else 0.0))
    return queued + float(prompt_tokens - hit)


@_compile
def _by_score(
    parameters: Any,
    prompt_tokens: int,
    hit_tokens: IntVector,
    loads: FloatVector,
    queued: FloatVector,
    available: BoolVector,
    start: int,
) -> int:
    mean, least, largest = _load_statistics(loads, available)
    if parameters.load_normalisation == _MEAN:
        least, scale = 0.0, mean
    elif parameters.load_normalisation == _MAX:
        least, scale = 0.0, largest
    else:
        scale = largest - least
    tie_first = parameters.tie_first
    instances = loads.size
    best, lowest, lowest_load = -1, np.inf, np.inf
    j = 0 if tie_first else start
    for _ in range(instances):
        if available[j]:
            score = _score(
                parameters, prompt_tokens, hit_tokens[j], loads[j], queued[j], least, scale
            )
            if (
                best < 0
                or score < lowest
                or (score == lowest and not tie_first and loads[j] < lowest_load)
            ):
                best, lowest, lowest_load = j, score, loads[j]
        j = j + 1 if j + 1 < instances else 0
    return best


@_compile
def _by_hash(
    session_key: np.uint64,
    instance_keys: KeyVector,
    loads: FloatVector,
    available: BoolVector,
    limit: float,
) -> tuple[int, bool]:
    """First instance in the session's order within the limit; whether it is the first at all."""
    best, best_open = -1, -1
    weight, weight_open = np.uint64(0), np.uint64(0)
    for j in range(loads.size):
        if available[j]:
            own = _mix(session_key ^ _mix(instance_keys[j] + _GAMMA))
            if best < 0 or own > weight:
                best, weight = j, own
            if loads[j] <= limit and (best_open < 0 or own > weight_open):
                best_open, weight_open = j, own
    return best_open, best_open == best


@_compile
def _slo_choice(
    parameters: Any,
    home: int,
    prompt_tokens: int,
    hit_tokens: IntVector,
    loads: FloatVector,
    queued: FloatVector,
    available: BoolVector,
    start: int,
) -> int:
    """Take the home if it meets the SLO or nobody does, else the least loaded that does."""
    slo_s = parameters.ttft_base_s + parameters.ttft_per_prompt_token_s * prompt_tokens
    instances = loads.size
    best, lowest = -1, np.inf
    j = start
    for _ in range(instances):
        if available[j]:
            new = float(prompt_tokens - hit_tokens[j])
            cost = new + new * (prompt_tokens - new / 2) / parameters.attention_equal_tokens
            if (queued[j] + cost) / parameters.prefill_tokens_per_s <= slo_s:
                if j == home:
                    return home
                if loads[j] < lowest:
                    best, lowest = j, loads[j]
        j = j + 1 if j + 1 < instances else 0
    return home if best < 0 else best


@_compile
def choose(
    parameters: Any,
    prompt_tokens: int,
    turn: int,
    est_hit_tokens: int,
    session_key: np.uint64,
    hit_tokens: IntVector,
    loads: FloatVector,
    unprefilled_tokens: FloatVector,
    available: BoolVector,
    instance_keys: KeyVector,
    next_instance: int,
    random_state: np.uint64,
) -> tuple[int, int, int, np.uint64]:
    """Choose an instance; compiled twin of every policy's ``choose``.

    Parameters
    ----------
    parameters : record of dtype PARAMETERS
        From :func:`pack`.
    prompt_tokens, turn, est_hit_tokens : int
        As in :class:`RoutingRequest`.
    session_key : uint64
        As in :class:`RoutingRequest`.
    hit_tokens : (instances,) int64
        Longest cached prefix [tokens].
    loads : (instances,) float64
        Load without the request being placed.
    unprefilled_tokens : (instances,) float64
        For ``dynamo`` and ``smetric-slo``; others ignore it (pass ``loads``).
    available : (instances,) bool
        Instances that may take requests.
    instance_keys : (instances,) uint64
        Names for the hash policies; others ignore them.
    next_instance : int
        Round-robin pointer of the tie state.
    random_state : uint64
        Generator state of the tie state.

    Returns
    -------
    tuple
        Instance (−1 if none is available), reason code, next pointer, next generator state.
    """
    code = parameters.code
    instances = loads.size
    start = next_instance % instances
    count = 0
    for j in range(instances):
        if available[j]:
            count += 1
    if count == 0:
        return -1, _NO_INSTANCE, next_instance, random_state

    blind = _FIRST_TURN if turn == 0 else _BLIND
    if code == _RANDOM:
        index, random_state = _draw(count, random_state)
        return _nth_available(available, index), blind, next_instance, random_state
    if code == _TWO:
        first, random_state = _draw(count, random_state)
        winner = _nth_available(available, first)
        if count > 1:
            second, random_state = _draw(count - 1, random_state)
            other = _nth_available(available, second + (1 if second >= first else 0))
            if loads[other] < loads[winner]:
                winner = other
        return winner, blind, next_instance, random_state
    if code == _ROBIN:
        winner = start
        while not available[winner]:
            winner = winner + 1 if winner + 1 < instances else 0
        return winner, blind, (winner + 1) % instances, random_state
    if code in (_STICKY, _BOUNDED):
        limit = np.inf
        if code == _BOUNDED and parameters.overload < np.inf:
            limit = parameters.overload * _load_statistics(loads, available)[0]
        winner, is_first = _by_hash(session_key, instance_keys, loads, available, limit)
        reason = _HASHED if is_first else _HASH_FULL
        return winner, _FIRST_TURN if turn == 0 else reason, next_instance, random_state
    if code == _BALANCE:
        if parameters.tie_first:
            return _least_loaded(loads, available, 0), blind, next_instance, random_state
        winner = _least_loaded(loads, available, start)
        return winner, blind, (winner + 1) % instances, random_state

    balanced_first = code in (_SMETRIC, _BASIC, _SLO)
    if balanced_first and turn == 0:
        winner = _least_loaded(loads, available, start)
        return winner, _FIRST_TURN, (winner + 1) % instances, random_state

    tie_first = parameters.tie_first
    longest = 0
    for j in range(instances):
        if available[j]:
            longest = max(longest, hit_tokens[j])
    shared = False
    if not tie_first:
        shared = _is_shared(longest, hit_tokens, available, count, parameters.shared_by_ratio)
    block_tokens = parameters.block_tokens

    if not balanced_first:
        winner = _by_score(
            parameters, prompt_tokens, hit_tokens, loads, unprefilled_tokens, available, start
        )
        if not tie_first:
            next_instance = (winner + 1) % instances
        if turn == 0:
            reason = _FIRST_TURN
        elif longest == 0 or shared:
            reason = _no_affinity_reason(longest, shared, block_tokens, 0.0, hit_tokens, available)
        else:
            least_hit = longest if tie_first else max(longest - block_tokens, 1)
            reason = _STICK if hit_tokens[winner] >= least_hit else _OUTWEIGHED
        return winner, reason, next_instance, random_state

    ratio = 0.0
    if code == _BASIC:
        evicted = not tie_first and (longest == 0 or shared)
    else:
        ratio = parameters.hit_ratio
        hit, expected = longest, est_hit_tokens
        if parameters.subtract_shared_prefix:
            prefix = _shared_prefix_tokens(hit_tokens, available, count, parameters.shared_by_ratio)
            hit, expected = hit - prefix, max(expected - prefix, 0)
        evicted = shared or not hit > ratio * expected
    if evicted:
        reason = _no_affinity_reason(
            longest, shared, block_tokens, ratio * est_hit_tokens, hit_tokens, available
        )
        winner = _least_loaded(loads, available, start)
        return winner, reason, (winner + 1) % instances, random_state

    home = _home(tie_first, block_tokens, longest, hit_tokens, loads, available, start)
    if code == _SMETRIC and parameters.overload < np.inf:
        mean = _load_statistics(loads, available)[0]
        floor = parameters.overload_floor
        if not (
            loads[home] <= parameters.overload * mean or (floor > 0 and loads[home] <= mean + floor)
        ):
            winner = _least_loaded(loads, available, start)
            return winner, _OVERLOADED, (winner + 1) % instances, random_state
    if code == _SLO:
        winner = _slo_choice(
            parameters, home, prompt_tokens, hit_tokens, loads, unprefilled_tokens, available, start
        )
        if winner != home:
            return winner, _SLO_MISSED, (winner + 1) % instances, random_state
    if not tie_first:
        next_instance = (home + 1) % instances
    return home, _STICK, next_instance, random_state
