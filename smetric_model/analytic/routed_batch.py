r"""Batch law of an instance whose arrivals depend on how many are present.

As for Poisson arrivals (:mod:`smetric_model.analytic.batching`) prefill goes before decode, so that
decode has a clock of its own on which requests come in bursts, all those that a busy period of the
prefill queue serves.  Here a burst that begins with j decoding comes at the rate of state j, and
grows at the rate of the states it passes through: after n prefills with x more in the queue the
instance has j + n + x requests.  The queue at the ends of prefills is a Markov chain,

.. math:: x' = x - 1 + A, \qquad P(A = a) = E\big[e^{-r w} (r w)^a / a!\big],

with ``r = λ m(j + n + x)``,
and P(K_j > n) is the probability that it has not been empty by then.  The time-average arrival rate
while prefills run, and what arrivals see, follow from the same chain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numba
import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic.busy_periods import condensed
from smetric_model.analytic.loaded import BatchLaw

if TYPE_CHECKING:
    from smetric_model.analytic.arrivals import Arrivals
    from smetric_model.analytic.batching import ColocatedInstance

__all__ = ["routed_batch_law"]

FloatArray = NDArray[np.float64]

_QUEUE = 40  # prefills that wait, at most
_TOGETHER = 16  # arrivals during one prefill, at most
_BEYOND = 40  # prefills of a burst beyond the places that are followed
_SMALL = 1e-7
_NEVER = 1e-12  # weight of a level ÷ the largest below which it and those above do not occur
_SCALINGS = 8  # of the rates, until their mean is right
_HELD = 0.1  # rise of what is served with the scale, in logarithms, below which it holds itself


@numba.njit(cache=True, error_model="numpy")
def _law(work, share, rates, busy_rates, decode_rate, weights, over, meets):  # type: ignore[no-untyped-def]
    """Stationary weights of 0 … b - 1 decoding, by level crossings, and the bursts from each.

    ``over``: P(K_j > n); ``meets``: the arrival rate at that moment times it.  Returns how many
    levels occur; the weights of others are 0, their bursts are not worked out.
    """
    levels, places = busy_rates.size, weights.size
    arrived = np.zeros((levels, _TOGETHER + 1))
    likely = np.full(levels, -1, np.int64)
    law, new = np.zeros(_QUEUE + 1), np.zeros(_QUEUE + _TOGETHER + 1)
    most = over.shape[1]
    weights[:] = 0.0
    weights[0] = 1.0
    largest = 1.0
    for j in range(places):
        if j > 0:
            jumps = 0.0
            for i in range(j):
                jumps += rates[i] * weights[i] * over[i, j - 1 - i]
            weights[j] = jumps / decode_rate[j - 1]
            if weights[j] > 1e200:
                for i in range(j + 1):
                    weights[i] /= weights[j]
                largest = 1.0
            if weights[j] < _NEVER * largest:
                weights[j] = 0.0
                return j
            largest = max(largest, weights[j])
        over[j], meets[j], law[:] = 0.0, 0.0, 0.0
        law[1] = 1.0
        top = 1
        for n in range(most):
            alive, met = 0.0, 0.0
            for x in range(1, top + 1):
                alive += law[x]
                met += law[x] * busy_rates[min(j + n + x, levels - 1)]
            over[j, n] = alive
            meets[j, n] = met
            if alive < _SMALL:
                break
            new[: top + _TOGETHER] = 0.0
            high = 1
            for x in range(1, top + 1):
                if law[x] < 1e-10:
                    continue
                level = min(j + n + x, levels - 1)
                if likely[level] < 0:
                    likely[level] = _arrivals(work, share, busy_rates[level], arrived[level])
                for a in range(likely[level] + 1):
                    new[x - 1 + a] += law[x] * arrived[level, a]
                high = max(high, x - 1 + likely[level])
            for x in range(_QUEUE + 1, high + 1):
                new[_QUEUE] += new[x]
            top = min(high, _QUEUE)
            for x in range(1, top + 1):
                law[x] = new[x]
    return places


@numba.njit(cache=True, error_model="numpy")
def _arrivals(work, share, rate, law):  # type: ignore[no-untyped-def]
    """Law of the arrivals during a prefill, and the largest number that is likely at all."""
    for i in range(work.size):
        mean = rate * work[i]
        left = share[i]
        chance = np.exp(-mean) * left
        for a in range(_TOGETHER):
            law[a] += chance
            left -= chance
            if left < 1e-13:
                left = 0.0
                break
            chance *= mean / (a + 1.0)
        law[_TOGETHER] += max(left, 0.0)
    likely = 0
    for a in range(_TOGETHER + 1):
        if law[a] > 1e-12:
            likely = a
    return likely


@numba.njit(cache=True, error_model="numpy")
def _at(values, level):  # type: ignore[no-untyped-def]
    """Value at a level that need not be whole; the last one holds beyond."""
    last = values.size - 1
    if level >= last:
        return values[last]
    low = int(level)
    return values[low] + (level - low) * (values[low + 1] - values[low])


@numba.njit(cache=True, error_model="numpy")
def _solve(rate, scale, work, engine, by_load, delayed):  # type: ignore[no-untyped-def]
    """Scale the arrival rates until their mean is ``rate``; return the fields of a batch law.

    ``work``: sample of prefill times, weights, mean, mean square; ``engine``: completion rates of
    decode, decode steps and batches by number present, saturation, share of a full instance's time
    that prefills take; ``by_load``: factors of the rate, and shares of free arrivals, each also
    while a prefill runs.
    """
    sample, share, mean_work, square = work
    decode_rate, step_s, batches, saturation, share_full = engine
    factor, busy_factor, free, busy_free = by_load
    places = decode_rate.size
    levels = places + _BEYOND + _QUEUE
    rates, busy_rates = np.empty(levels), np.empty(levels)
    over = np.empty((places, places + _BEYOND))
    meets = np.empty((places, places + _BEYOND))
    weights, stopped, seen_busy = np.zeros(places), np.zeros(places), np.zeros(places)
    occurring, before_at, before_wanted = 0, 0.0, 0.0
    full_rate, full, total = 0.0, 0.0, 1.0
    for turn in range(_SCALINGS):
        for level in range(levels):
            rates[level] = rate * scale * _at(factor, level + delayed)
            busy_rates[level] = rate * scale * _at(busy_factor, level + delayed)
        occurring = _law(sample, share, rates, busy_rates, decode_rate, weights, over, meets)
        full_rate = (1.0 - share_full) * rates[places] + share_full * busy_rates[places]
        spread = 1.0 - min(full_rate * mean_work, 0.995)
        # time stopped by prefills; bursts that fill all places, and what they leave waiting
        entry, served, total = 0.0, 0.0, 0.0
        stopped[:], seen_busy[:] = 0.0, 0.0
        for j in range(occurring):
            bursts, missing = rates[j] * weights[j], places - j
            for n in range(missing):
                stopped[j + n] += bursts * mean_work * over[j, n]
                seen_busy[j + n] += bursts * mean_work * meets[j, n]
            entry += bursts * over[j, missing - 1]
            for n in range(missing, places + _BEYOND):
                if over[j, n] == 0.0:
                    break
                entry += bursts * spread * over[j, n]
            total += weights[j]
            served += weights[j] * decode_rate[j - 1] if j > 0 else 0.0
        for j in range(places):
            total += stopped[j]
        spare = max(saturation - full_rate, 1e-6 * saturation)
        total += entry / spare
        full = entry / spare / total
        served = served / total + full * saturation
        if abs(served / rate - 1.0) < 2e-3:
            break
        # on logarithms, along the last two
        wanted, at = np.log(rate / max(served, 1e-12 * rate)), np.log(scale)
        rise = 1.0
        if turn > 0 and at != before_at:
            rise = (before_wanted - wanted) / (at - before_at)
        if rise < _HELD:
            break
        before_at, before_wanted = at, wanted
        scale *= np.exp(wanted / min(rise, 2.0))
    present, tokens, seen = np.empty(places), np.zeros(places), np.empty(places)
    made_full = min(full * saturation / rate, 1.0)
    last, busy_time, busy_met, decoding, made = full * full_rate, 0.0, 0.0, 0.0, 0.0
    running_met, running, found = 0.0, 0.0, 0.0
    # arrivals while nothing prefills, while something does, as a decode meets them; free ones
    idle_free, busy_free_met, beside_free = 0.0, 0.0, 0.0
    for j in range(places):
        present[j] = (weights[j] + stopped[j]) / total
        idle = weights[j] * rates[j]
        seen[j] = (idle + seen_busy[j]) / total
        found += seen[j]
        busy_time += stopped[j]
        busy_met += seen_busy[j]
        share_free = _at(free, j + delayed)
        idle_free += idle * share_free
        busy_free_met += seen_busy[j] * _at(busy_free, j + delayed + 1.0)
        if j > 0:
            decoding += present[j] * batches[j - 1]
            # tokens see a batch as often as it makes them
            tokens[j] = weights[j] * batches[j - 1] / step_s[j - 1]
            made += tokens[j]
            # a decode meets arrivals for as long as it runs: longer where its steps are
            running += weights[j] * batches[j - 1]
            running_met += idle * batches[j - 1]
            beside_free += idle * batches[j - 1] * share_free
    norm = max(found + last, 1e-300)
    for j in range(places):
        seen[j] /= norm
        tokens[j] *= (1.0 - made_full) / max(made, 1e-300)
    decoding += full * max(batches[places - 1] - share_full, 0.0)
    busy_rate = busy_met / busy_time if busy_time > 0.0 else full_rate
    busy_load = min(busy_rate * mean_work, 0.995)
    of_all = (idle_free + busy_free_met) / max(found * total, 1e-300)
    beside_kinds, busy_kinds = (1.0, 1.0), (1.0, 1.0)
    if 1e-6 < of_all < 1.0 - 1e-6:
        near = beside_free / max(running_met, 1e-300)
        beside_kinds = ((1.0 - near) / (1.0 - of_all), near / of_all)
        near = busy_free_met / max(busy_met, 1e-300)
        busy_kinds = ((1.0 - near) / (1.0 - of_all), near / of_all)
    return (
        present,
        full,
        tokens,
        made_full,
        decoding,
        decoding + min(rate * mean_work, 1.0),
        busy_rate * square / (2.0 * (1.0 - busy_load)),
        seen,
        last / norm,
        busy_rate,
        full_rate,
        running_met / max(running, 1e-300) * (1.0 - made_full) + made_full * full_rate,
        weights[0] / total,
        beside_kinds,
        busy_kinds,
        scale,
    )


_ALL_FREE = np.ones(1)


def routed_batch_law(
    instance: ColocatedInstance, rate_rps: float, arrivals: Arrivals, beside: float
) -> BatchLaw:
    """Return the batch law of an instance behind a router.

    Parameters
    ----------
    instance : ColocatedInstance
        The instance.
    rate_rps : float
        Mean arrival rate, below saturation [requests/s].
    arrivals : Arrivals
        How the rate depends on the load; scaled so that its mean is ``rate_rps``.
    beside : float
        Decodes beside a prefill, for its marginal time.

    Returns
    -------
    BatchLaw
    """
    work = instance.prefill_s(beside)
    saturation = instance.stability_rps
    # a full instance prefills for that share of the time
    share_full = min(saturation * instance.mean_prefill_s(instance.max_batch - 1.0), 1.0)
    free, busy_free = arrivals.free_ratio, arrivals.busy_free_ratio
    factor, busy_factor = arrivals.factor, arrivals.busy_factor
    return BatchLaw(
        *_solve(
            rate_rps,
            arrivals.scale,
            (*condensed(work), float(work.mean()), float(work @ work) / work.size),
            (
                instance.decode_completion_rps,
                instance.decode_step_s,
                instance.batches,
                saturation,
                share_full,
            ),
            (
                factor,
                factor if busy_factor is None else busy_factor,
                _ALL_FREE if free is None else free,
                _ALL_FREE if busy_free is None else busy_free,
            ),
            arrivals.delayed,
        )
    )
