"""A toy cluster behind a real router, event by event: the reference of the routing mean field.

What is toy: requests have exponential work and share their instance, which completes µ(l) per
second with l present; a session's KV lies where its last turn was served and never gets lost
(unless a coin says so); a shared prefix lies where it was used in the last ``retention_s``.  What
is not: the policy is the library's own compiled one, sessions have any law of turns, gaps and
weights, and instances and their ties are finite and real.

Used by ``tests/analytic`` and by ``benchmarks/routing_mean_field.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from smetric_model.routing.compiled import choose, pack
from smetric_model.routing.policy import Policy

FloatArray = NDArray[np.float64]
CAUSES = (1, 2, 3)  # overload, evicted, other


@dataclass(frozen=True, eq=False)
class ToyRun:
    """What a run counted after its warm-up."""

    requests: int
    follow_ups: int
    migrated: FloatArray  # by cause: overload, evicted, other; ÷ follow-ups
    return_to_first: float
    load_law: FloatArray  # time-averaged, over instances
    mean_maximum: float  # E[max over instances of the load]
    arrival_rate: float
    follow_up_ratio: float
    resident_variance: float  # variance over time of sessions at home on an instance
    sojourns: FloatArray
    windows: dict[str, FloatArray]  # quantity -> (windows, instances)
    first_turns: NDArray[np.int64]  # (frameworks, instances)
    holders: FloatArray  # time-averaged instances that hold each prefix

    def max_over_mean(self, quantity: str) -> FloatArray:
        table = self.windows[quantity]
        table = table[table.mean(axis=1) > 0]
        return table.max(axis=1) / table.mean(axis=1)


@njit(cache=True)
def _push(times, items, count, time, item):
    times[count], items[count] = time, item
    child = count
    while child > 0:
        parent = (child - 1) >> 1
        if times[parent] <= times[child]:
            break
        times[parent], times[child] = times[child], times[parent]
        items[parent], items[child] = items[child], items[parent]
        child = parent


@njit(cache=True)
def _pop(times, items, count):
    item = items[0]
    count -= 1
    times[0], items[0] = times[count], items[count]
    parent = 0
    while True:
        child = 2 * parent + 1
        if child >= count:
            break
        if child + 1 < count and times[child + 1] < times[child]:
            child += 1
        if times[parent] <= times[child]:
            break
        times[parent], times[child] = times[child], times[parent]
        items[parent], items[child] = items[child], items[parent]
        parent = child
    return item


@njit(cache=True)
def _run(
    rng, policy, instances, session_rate, rates, turns, gaps, weights, hits,
    evict, shares, prefixes, first_own, retention, warmup, until, window,
):  # fmt: skip
    frameworks = shares.size
    space = 1 << 17
    home = np.zeros(space, np.int64)
    first = np.zeros(space, np.int64)
    left = np.zeros(space, np.int64)
    done = np.zeros(space, np.int64)
    kind = np.zeros(space, np.int64)
    weight = np.zeros(space)
    entered = np.zeros(space)
    spare = np.arange(space - 1, -1, -1)
    spare_count = space
    times = np.empty(space)
    items = np.zeros(space, np.int64)
    thinking = 0
    room = 4096
    present = np.zeros((instances, room), np.int64)
    loads = np.zeros(instances)
    resident = np.zeros(instances)
    queued = np.zeros(instances)
    available = np.ones(instances, np.bool_)
    keys = np.arange(instances).astype(np.uint64)
    hit = np.zeros(instances, np.int64)
    used = np.full((frameworks, instances), -1e30)
    levels = rates.size
    law = np.zeros(levels + 1)
    law_time, maximum = 0.0, 0.0
    resident_sum, resident_square = 0.0, 0.0
    migrated = np.zeros(4)
    back = 0
    requests = follow_ups = 0
    windows = int((until - warmup) / window) + 1
    inflight = np.zeros((windows, instances))
    processed = np.zeros((windows, instances))
    weighted = np.zeros((windows, instances))
    carried = np.zeros(instances)
    sojourns = np.empty(1 << 20)
    sojourn_count = 0
    first_turns = np.zeros((frameworks, instances), np.int64)
    held = np.zeros(frameworks)
    samples = 0
    next_sample = warmup
    next_instance, random_state = 0, np.uint64(1)
    now = 0.0
    next_session = -np.log(rng.random()) / session_rate
    total_rate = 0.0
    while now < until:
        due = now + (-np.log(rng.random()) / total_rate if total_rate > 0 else 1e30)
        event, at = 0, due
        if next_session < at:
            event, at = 1, next_session
        if thinking > 0 and times[0] < at:
            event, at = 2, times[0]
        if now >= warmup:
            span = at - now
            law_time += span
            most = 0.0
            slot = int((now - warmup) / window)
            last = int((at - warmup) / window)
            for i in range(instances):
                law[min(int(loads[i]), levels)] += span
                most = max(most, loads[i])
                resident_sum += resident[i] * span
                resident_square += resident[i] * resident[i] * span
            begin = now
            for s in range(slot, min(last, windows - 1) + 1):
                end = min(at, warmup + (s + 1) * window)
                for i in range(instances):
                    inflight[s, i] += loads[i] * (end - begin)
                    weighted[s, i] += carried[i] * (end - begin)
                begin = end
            maximum += most * span
        now = at
        while next_sample < now:
            samples += 1
            for f in range(frameworks):
                for i in range(instances):
                    if next_sample - used[f, i] <= retention:
                        held[f] += 1
            next_sample += window
        if event == 0:
            mark = rng.random() * total_rate
            i = 0
            while i < instances - 1:
                rate = rates[min(int(loads[i]), levels) - 1] if loads[i] > 0 else 0.0
                if mark < rate:
                    break
                mark -= rate
                i += 1
            while loads[i] == 0:
                i -= 1
            which = rng.integers(0, int(loads[i]))
            s = present[i, which]
            loads[i] -= 1
            present[i, which] = present[i, int(loads[i])]
            carried[i] -= weight[s]
            used[kind[s], i] = now
            if now >= warmup:
                slot = int((now - warmup) / window)
                if slot < windows:
                    processed[slot, i] += weight[s]
                if sojourn_count < sojourns.size:
                    sojourns[sojourn_count] = now - entered[s]
                    sojourn_count += 1
            left[s] -= 1
            done[s] += 1
            if left[s] == 0:
                resident[i] -= 1
                spare[spare_count] = s
                spare_count += 1
            else:
                _push(times, items, thinking, now + gaps[rng.integers(0, gaps.size)], s)
                thinking += 1
        else:
            if event == 1:
                next_session = now - np.log(rng.random()) / session_rate
                spare_count -= 1
                s = spare[spare_count]
                left[s] = turns[rng.integers(0, turns.size)]
                done[s] = 0
                weight[s] = weights[rng.integers(0, weights.size)]
                mark = rng.random()
                f = 0
                while f < frameworks - 1 and mark >= shares[f]:
                    mark -= shares[f]
                    f += 1
                kind[s] = f
            else:
                s = _pop(times, items, thinking)
                thinking -= 1
            f = kind[s]
            for i in range(instances):
                hit[i] = prefixes[f] if now - used[f, i] <= retention else 0
            if event == 1:
                prompt = prefixes[f] + first_own[rng.integers(0, first_own.size)]
                expected = 0
            else:
                pick = rng.integers(0, hits.shape[0])
                prompt, expected = hits[pick, 0], hits[pick, 1]
                if evict == 0.0 or rng.random() >= evict:
                    hit[home[s]] = expected
            chosen, reason, next_instance, random_state = choose(
                policy, prompt, done[s], expected, np.uint64(s * 7919 + 1), hit, loads, queued,
                available, keys, next_instance, random_state,
            )  # fmt: skip
            counted = now >= warmup
            requests += counted
            if event == 1:
                first[s] = chosen
                resident[chosen] += 1
                if counted:
                    first_turns[f, chosen] += 1
            else:
                if counted:
                    follow_ups += 1
                    back += chosen == first[s]
                    if chosen != home[s]:
                        if reason == 2 or reason == 6 or reason == 7 or reason == 10:
                            migrated[1] += 1
                        elif reason == 3 or reason == 4:
                            migrated[2] += 1
                        else:
                            migrated[3] += 1
                if chosen != home[s]:
                    resident[home[s]] -= 1
                    resident[chosen] += 1
            home[s] = chosen
            present[chosen, int(loads[chosen])] = s
            loads[chosen] += 1
            carried[chosen] += weight[s]
            entered[s] = now
            used[f, chosen] = now
        total_rate = 0.0
        for i in range(instances):
            if loads[i] > 0:
                total_rate += rates[min(int(loads[i]), levels) - 1]
    mean = resident_sum / law_time / instances
    return (
        requests, follow_ups, migrated, back, law / law_time / instances, maximum / law_time,
        resident_square / law_time / instances - mean * mean, sojourns[:sojourn_count],
        inflight, processed, weighted, first_turns, held / max(samples, 1), law_time,
    )  # fmt: skip


def run_toy(
    policy: Policy,
    instances: int,
    rate_rps: float,
    completion_rate_rps: FloatArray,
    turns: NDArray[np.int64],
    gaps_s: FloatArray,
    *,
    hits: NDArray[np.int64] | None = None,
    evicted_ratio: float = 0.0,
    weights: FloatArray | None = None,
    popularity: FloatArray | None = None,
    prefix_tokens: NDArray[np.int64] | None = None,
    first_own_tokens: NDArray[np.int64] | None = None,
    retention_s: float = float("inf"),
    warmup_s: float = 5000.0,
    requests: int = 200_000,
    window_s: float = 60.0,
    seed: int = 1,
) -> ToyRun:
    """Simulate the toy.

    Parameters
    ----------
    policy : Policy
        From :func:`smetric_model.routing.make_policy`.
    instances : int
        N.
    rate_rps : float
        Requests of the cluster [requests/s].
    completion_rate_rps : ndarray, shape (b,)
        Completions of an instance with 1, 2, … present; constant beyond.
    turns, gaps_s : ndarray
        Samples that sessions draw from: turns of a session, think times [s].
    hits : ndarray, shape (n, 2), optional
        Prompt and home hit of follow-ups [tokens].
    evicted_ratio : float
        Share of follow-ups whose home forgot all of their own context.
    weights : ndarray, optional
        Sample of the tokens of a session's requests; 1 by default.
    popularity, prefix_tokens, first_own_tokens, retention_s
        Shared prefixes.
    warmup_s, requests, window_s, seed
        Of the run.
    """
    record = np.array([pack(policy)])[0]
    until = warmup_s + requests / rate_rps
    out = _run(
        np.random.default_rng(seed),
        record,
        instances,
        rate_rps / float(turns.mean()),
        np.asarray(completion_rate_rps, float),
        np.asarray(turns, np.int64),
        np.asarray(gaps_s, float),
        np.ones(1) if weights is None else np.asarray(weights, float),
        np.array([[1000, 900]]) if hits is None else np.asarray(hits, np.int64),
        evicted_ratio,
        np.ones(1) if popularity is None else np.asarray(popularity, float),
        np.zeros(1, np.int64) if prefix_tokens is None else np.asarray(prefix_tokens, np.int64),
        np.ones(1, np.int64) if first_own_tokens is None else np.asarray(first_own_tokens),
        float(retention_s),
        warmup_s,
        until,
        window_s,
    )
    whole = slice(0, int((until - warmup_s) / window_s))
    return ToyRun(
        requests=out[0],
        follow_ups=out[1],
        migrated=out[2][1:] / max(out[1], 1),
        return_to_first=out[3] / max(out[1], 1),
        load_law=out[4],
        mean_maximum=out[5],
        arrival_rate=out[0] / out[13],
        follow_up_ratio=out[1] / max(out[0], 1),
        resident_variance=out[6],
        sojourns=out[7],
        windows={
            "requests": out[8][whole] / window_s,
            "processed_tokens": out[9][whole],
            "inflight_tokens": out[10][whole] / window_s,
        },
        first_turns=out[11],
        holders=out[12],
    )
