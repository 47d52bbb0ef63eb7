"""Compiled kernels of local KV tiers: how old what instances hold becomes."""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["tier", "turns_back_law", "visit_s"]


@njit(cache=True, error_model="numpy")
def turns_back_law(stay, instances, edges, out):  # type: ignore[no-untyped-def]
    """Law of how many turns back a session was last here, by rows of turns; ``edges``: theirs."""
    out[:] = 0.0
    if instances <= 1.0 or stay >= 1.0:
        out[0] = 1.0
        return
    out[0] = stay
    again = (1.0 - stay) / (instances - 1.0)
    for row in range(1, out.size):
        out[row] = (1.0 - stay) * (
            (1.0 - again) ** (edges[row - 1] - 1.0) - (1.0 - again) ** (edges[row] - 1.0)
        )


@njit(cache=True, error_model="numpy")
def _cell(x, points):  # type: ignore[no-untyped-def]
    """Cell of increasing points in which a value lies, and where in it; ends hold beyond."""
    last = points.size - 1
    if x >= points[last]:
        return last - 1, 1.0
    low, high = 0, last
    while high - low > 1:
        middle = (low + high) // 2
        if points[middle] <= x:
            low = middle
        else:
            high = middle
    return low, max((x - points[low]) / (points[low + 1] - points[low]), 0.0)


@njit(cache=True, error_model="numpy")
def _at(x, points, values):  # type: ignore[no-untyped-def]
    """Linear interpolation, the ends beyond."""
    low, share = _cell(x, points)
    return values[low] + share * (values[low + 1] - values[low])


@njit(cache=True, error_model="numpy")
def visit_s(age, again, ages, think_within):  # type: ignore[no-untyped-def]
    """Time for which a turn keeps a shared prefix in place at most until the next, on average."""
    visit = again * _at(age, ages, think_within)
    return visit + (1.0 - again) * age if again < 1.0 else visit


@njit(cache=True, error_model="numpy")
def _shared_held(rate_rps, visit_s, part_ratio, unused):  # type: ignore[no-untyped-def]
    """Shared prefixes that an instance holds and no running request uses [tokens]."""
    held = 0.0
    for part in range(part_ratio.size):
        held -= np.expm1(-visit_s * rate_rps * part_ratio[part]) * unused[part]
    return held


@njit(cache=True, error_model="numpy")
def _unused_tokens(  # type: ignore[no-untyped-def]
    rate_rps, running_s, part_ratio, part_size, unused
):
    """Shared prefixes, less what running requests use of them [tokens]."""
    for part in range(part_size.size):
        unused[part] = part_size[part] * np.exp(-rate_rps * part_ratio[part] * running_s)


@njit(cache=True, error_model="numpy")
def _contents(  # type: ignore[no-untyped-def]
    ages, content, reused, weights, turns_back, running_s, table
):
    r"""Add Σ w_d E[u_d min(g_d, τ)] to a table by τ, g_d = idle + service of the turns in between.

    ``content`` (turns back, ages) knows the idle times alone, ``reused`` is E[u_d].
    """
    for row in range(1, weights.size):
        if weights[row] == 0.0 or reused[row] == 0.0:
            continue
        cell, between_s = 0, (turns_back[row] - 1.0) * running_s
        for a in range(ages.size):
            value = reused[row] * min(ages[a], between_s)
            later = ages[a] - between_s
            if later > 0.0:
                while cell < ages.size - 2 and ages[cell + 1] <= later:
                    cell += 1
                upto = (later - ages[cell]) / (ages[cell + 1] - ages[cell])
                value += content[row, cell] + upto * (content[row, cell + 1] - content[row, cell])
            table[a] += weights[row] * value


@njit(cache=True, error_model="numpy")
def _retention_s(  # type: ignore[no-untyped-def]
    room, rate_rps, dead, ages, table, again, think_within, part_ratio, unused
):
    """Characteristic time of an instance with so much room [s].

    What sessions hold is known at all ``ages``, shared prefixes are worked out at every eighth and
    are linear in between.
    """
    if room <= 0.0:
        return 0.0
    step = 8
    low, high = 0, (ages.size - 1) // step
    shared = np.zeros(high + 1)
    for at in (low, high):
        visit = visit_s(ages[at * step], again, ages, think_within)
        shared[at] = _shared_held(rate_rps, visit, part_ratio, unused)
    most = rate_rps * table[high * step] + shared[high]
    if most <= room:
        slope = rate_rps * dead
        return ages[high * step] + (room - most) / slope if slope > 0.0 else np.inf
    while high - low > 1:
        middle = (low + high) // 2
        visit = visit_s(ages[middle * step], again, ages, think_within)
        shared[middle] = _shared_held(rate_rps, visit, part_ratio, unused)
        if rate_rps * table[middle * step] + shared[middle] <= room:
            low = middle
        else:
            high = middle
    start, slope = ages[low * step], shared[high] - shared[low]
    slope /= ages[high * step] - start
    before = rate_rps * table[low * step] + shared[low]
    for a in range(low * step + 1, high * step + 1):
        held = rate_rps * table[a] + shared[low] + slope * (ages[a] - start)
        if held > room:
            upto = (room - before) / (held - before)
            return ages[a - 1] + upto * (ages[a] - ages[a - 1])
        before = held
    return ages[high * step]


@njit(cache=True, error_model="numpy")
def tier(  # type: ignore[no-untyped-def]
    ages,
    content,
    reused,
    think_within,
    kept,
    kept_reused,
    part_ratio,
    part_size,
    turns_back,
    edges,
    nodes,
    retention,
    mean_stay,
    stay,
    instances,
    own_rps,
    pinned,
    pool,
    private,
    running_s,
    again,
):
    """Characteristic times of instances of different load [s]; the mean one's content [tokens].

    ``kept``, ``kept_reused``: the first row of ``content`` and ``reused``, of the follow-ups that
    the router may leave at home, of which ``stay`` stay; ``nodes``: how much more than the mean
    each instance gets.  Fills ``retention``.
    """
    weights, table = np.empty(reused.size), np.empty(ages.size)
    turns_back_law(mean_stay, instances, edges, weights)
    for a in range(ages.size):
        table[a] = stay * kept[a]
    _contents(ages, content, reused, weights, turns_back, running_s, table)
    dead = private - stay * kept_reused
    for row in range(1, weights.size):
        dead -= weights[row] * reused[row]
    dead = max(dead, 0.0)
    for a in range(ages.size):
        table[a] += dead * ages[a]
    unused = np.empty(part_size.size)
    for z in range(nodes.size):
        rate = nodes[z] * own_rps
        _unused_tokens(rate, running_s, part_ratio, part_size, unused)
        room = pool - nodes[z] * pinned
        retention[z] = _retention_s(
            room, rate, dead, ages, table, again, think_within, part_ratio, unused
        )
    middle = retention[nodes.size // 2]
    _unused_tokens(own_rps, running_s, part_ratio, part_size, unused)
    held = own_rps * _at(middle, ages, table)
    visit = visit_s(middle, again, ages, think_within)
    return held + _shared_held(own_rps, visit, part_ratio, unused)
