"""Compiled kernels behind :mod:`smetric_model.analytic.balanced_holders`."""

from __future__ import annotations

import numpy as np
from numba import njit

from smetric_model.analytic._holder_kernels import _TILTS, _loss, _place, _tilted

__all__ = ["balanced_holders", "instances_in_use"]

_STEPS = 20  # of time, growing; nothing is decided in the first seconds
_FRONT_STEPS = 64


@njit(cache=True, error_model="numpy")
def instances_in_use(law, load, think, rates, end_s):  # type: ignore[no-untyped-def]
    """Instances that served anybody so long after a cold start, of policies that stick; a number.

    Ties of the least load go to the first instance after the last that served, follow-ups
    included: see :mod:`smetric_model.analytic.balanced_holders`.  ``law`` (levels,): of the loads.
    ``load``: mean load of an instance, and of a cold one.  ``think`` (2, classes): weights and
    means.  ``rates``: N, placements by load alone a second, more of them while sessions come for
    the first time.  The square of the number grows nearly evenly.
    """
    instances, placed_rps, cold_rps = rates
    if 1.0 + 2.0 * placed_rps * end_s >= instances * instances:  # they grow at least so fast
        return instances
    means, laws = np.empty(_TILTS), np.empty((_TILTS, law.size))
    tails = np.empty((_TILTS, law.size))
    _tilted(law, means, laws, tails)
    square, now = 1.0, 0.0
    for k in range(_FRONT_STEPS):
        end = 0.25 * (end_s / 0.25) ** (k / (_FRONT_STEPS - 1.0))
        middle = 0.5 * (now + end)
        cold = 0.0
        for c in range(think.shape[1]):
            cold += think[0, c] * np.exp(-middle / think[1, c])
        used = np.sqrt(square)
        mean = (load[0] + cold * (load[1] - load[0])) * instances / used
        at, beyond = _place(mean, means)
        idle = (1.0 - beyond) * laws[at, 0] + beyond * laws[at + 1, 0]
        onward = -np.expm1(used * np.log1p(-idle)) / idle if 1e-9 < idle < 1.0 else 1.0
        if idle <= 1e-9:
            onward = used
        square += 2.0 * (placed_rps + cold * cold_rps) * (end - now) * onward
        now = end
        if square >= instances * instances:
            return instances
    return np.sqrt(square)


@njit(cache=True, error_model="numpy")
def balanced_holders(share, think, rates, visits, chunk_s, end_s, out):  # type: ignore[no-untyped-def]
    """Instances that hold each prefix where requests are placed by load alone, not by hits.

    ``share`` (F,): of the requests that use each prefix.  ``think`` (2, classes): weights and means
    of the think times.  ``rates``: instances in use, requests/s, share of the requests placed by
    load alone, share of them that is more while sessions come for the first time.  ``visits``: per
    request, and the time that one keeps the prefix in place.  ``chunk_s``: until anybody holds it.
    ``out`` (4, F): as of :func:`_holder_kernels.holders`.
    """
    instances, rate_rps, placed, placed_cold = rates
    steps, each = np.empty(_STEPS), np.empty(_STEPS)
    now = 0.0
    for k in range(_STEPS):
        end = end_s * 400.0 ** (k / (_STEPS - 1.0) - 1.0)
        steps[k], middle, now = end - now, 0.5 * (end + now), end
        cold = 0.0
        for c in range(think.shape[1]):
            cold += think[0, c] * np.exp(-middle / think[1, c])
        each[k] = (placed + cold * placed_cold) / instances
    for f in range(share.size):
        rate = rate_rps * share[f]
        out[0, f], out[1, f], out[2, f], out[3, f] = 1.0, 0.0, 0.0, 1.0
        if rate <= 0.0:
            continue
        present = rate * visits[0] * visits[1]
        held = min(1.0 + rate * chunk_s, instances)
        lost, rho, births, bent, steep = 0.0, 0.0, 0.0, 0.0, 0.0
        for k in range(_STEPS):
            births = rate * each[k] * (instances - held)
            lost, more, rho = _loss(present, held, rho)
            steep = 1.0 / held + more / lost if lost > 1e-290 else 0.0
            bent = -rate * each[k] - (lost + held * more) / visits[1]
            lost /= visits[1]
            held += steps[k] * (births - held * lost) / (1.0 + steps[k] * max(-bent, 0.0))
            held = min(max(held, 1.0), instances)
        varies = min(births / max(-bent, 1e-290), held * held)
        out[0, f], out[1, f] = held, lost
        out[3, f] = np.exp(min(0.5 * varies * steep * steep, 3.0))
