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

    ``over``: P(K_j > n); ``meets``: the arrival rate at that moment times it.  Levels beyond those
    that occur are left at 0.
    """
    levels, places = busy_rates.size, weights.size
    arrived = np.zeros((levels, _TOGETHER + 1))
    likely = np.full(levels, -1, np.int64)
    law, new = np.zeros(_QUEUE + 1), np.zeros(_QUEUE + 1)
    most = over.shape[1]
    weights[:] = 0.0
    over[:], meets[:] = 0.0, 0.0
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
                break
            largest = max(largest, weights[j])
        law[:] = 0.0
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
            new[:] = 0.0
            high = 1
            for x in range(1, top + 1):
                if law[x] < 1e-10:
                    continue
                level = min(j + n + x, levels - 1)
                if likely[level] < 0:
                    likely[level] = _arrivals(work, share, busy_rates[level], arrived[level])
                for a in range(likely[level] + 1):
                    chance = law[x] * arrived[level, a]
                    if chance < 1e-12:
                        continue
                    to = min(x - 1 + a, _QUEUE)
                    new[to] += chance
                    if to > high:
                        high = to
            top = high
            for x in range(_QUEUE + 1):
                law[x] = new[x]
            law[0] = 0.0
    return 0


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


@numba.njit(cache=True)
def _during(bursts, table, result):  # type: ignore[no-untyped-def]
    """Sum over bursts from j of ``table[j, l - j]``, for each l."""
    for level in range(result.size):
        total = 0.0
        for j in range(level + 1):
            total += bursts[j] * table[j, level - j]
        result[level] = total
    return 0


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
    mean_work = float(work.mean())
    decode_rate = instance.decode_completion_rps
    places = decode_rate.size
    sample, share = condensed(work)
    present = np.arange(places + _BEYOND + _QUEUE, dtype=float)
    factors = arrivals.at(present + arrivals.delayed)
    busy_factors = arrivals.while_prefilling(present + arrivals.delayed)
    # a full instance prefills for that share of the time
    prefilling = instance.stability_rps * float(instance.prefill_s(instance.max_batch - 1.0).mean())
    share_full = min(prefilling, 1.0)
    over = np.zeros((places, places + _BEYOND))
    meets = np.zeros_like(over)
    weights, stopped, seen_busy = np.zeros(places), np.zeros(places), np.zeros(places)
    scale, before = arrivals.scale, (0.0, 0.0)
    for turn in range(_SCALINGS):
        rates = rate_rps * scale * factors
        _law(
            sample, share, rates, rate_rps * scale * busy_factors, decode_rate, weights, over, meets
        )
        bursts = rates[:places] * weights
        _during(bursts, over, stopped)
        # bursts that fill all places, and what they leave waiting
        missing = places - np.arange(places)
        behind = np.array([float(over[j, m:].sum()) for j, m in enumerate(missing)])
        reach = over[np.arange(places), missing - 1]
        full_rate = (1.0 - share_full) * float(rates[places])
        full_rate += share_full * rate_rps * scale * float(busy_factors[places])
        full_load = min(full_rate * mean_work, 0.995)
        entry = float(bursts @ (reach + (1.0 - full_load) * behind))
        spare = max(instance.stability_rps - full_rate, 1e-6 * instance.stability_rps)
        total = float(weights.sum() + mean_work * stopped.sum() + entry / spare)
        full = entry / spare / total
        served = float(weights[1:] @ decode_rate[:-1]) / total if places > 1 else 0.0
        served += full * instance.stability_rps
        if abs(served / rate_rps - 1.0) < 2e-3:
            break
        # on logarithms, along the last two
        wanted, at = float(np.log(rate_rps / max(served, 1e-12 * rate_rps))), float(np.log(scale))
        rise = 1.0
        if turn > 0 and at != before[0]:
            rise = (before[1] - wanted) / (at - before[0])
        if rise < _HELD:
            break
        before = (at, wanted)
        scale *= float(np.exp(wanted / min(rise, 2.0)))
    stopped = mean_work * stopped
    _during(bursts, meets, seen_busy)
    opened = (weights + stopped) / total
    busy_time = float(stopped.sum())
    busy_rate = mean_work * float(seen_busy.sum()) / busy_time if busy_time > 0 else full_rate
    batches = np.append(0.0, instance.batches[:-1])
    decoding = float(opened @ batches)
    decoding += full * max(instance.max_batch - share_full, 0.0)
    busy_load = min(busy_rate * mean_work, 0.995)
    wait = busy_rate * float((work * work).mean()) / (2 * (1 - busy_load))
    # tokens see a batch as often as it makes them
    step_s = np.append(1.0, instance.decode_step_s[:-1])
    made = weights * batches / step_s
    made_full = min(full * instance.stability_rps / rate_rps, 1.0)
    tokens = made / max(float(made.sum()), 1e-300) * (1.0 - made_full)
    found = (weights * rates[:places] + mean_work * seen_busy) / total
    last = full * full_rate
    norm = max(float(found.sum()) + last, 1e-300)
    # a decode meets arrivals for as long as it runs: longer where its steps are
    running = weights * batches
    met = float(running @ rates[:places]) / max(float(running.sum()), 1e-300)
    beside_kinds, busy_kinds = _kinds(
        arrivals, weights * rates[:places], mean_work * seen_busy, running * rates[:places]
    )
    return BatchLaw(
        present=opened,
        full=full,
        tokens=tokens,
        tokens_full=made_full,
        mean_decoding=decoding,
        mean_running=decoding + min(rate_rps * mean_work, 1.0),
        prefill_wait_s=wait,
        seen=found / norm,
        seen_full=last / norm,
        busy_rate_rps=busy_rate,
        full_rate_rps=full_rate,
        beside_rate_rps=met * (1.0 - made_full) + made_full * full_rate,
        idle=float(weights[0] / total),
        arrival_scale=scale,
        beside_kinds=beside_kinds,
        busy_kinds=busy_kinds,
    )


def _kinds(
    arrivals: Arrivals, idle: FloatArray, busy: FloatArray, beside: FloatArray
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Sticky and free arrivals beside a decode, and while prefills run, ÷ those of all arrivals.

    The arguments weigh arrivals by the number that decode: while none prefills, while one does, and
    as a decoding request meets them.
    """
    decoding = np.arange(float(idle.size)) + arrivals.delayed
    free = arrivals.free_at(decoding)
    free_busy = arrivals.free_at(decoding + 1.0, prefilling=True)
    of_all = float(idle @ free + busy @ free_busy) / max(float(idle.sum() + busy.sum()), 1e-300)
    if not 1e-6 < of_all < 1.0 - 1e-6:
        return (1.0, 1.0), (1.0, 1.0)
    shares = (
        float(weights @ ratio) / max(float(weights.sum()), 1e-300)
        for weights, ratio in ((beside, free), (busy, free_busy))
    )
    first, second = (((1.0 - share) / (1.0 - of_all), share / of_all) for share in shares)
    return first, second
