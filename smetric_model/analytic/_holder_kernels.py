"""Compiled kernels behind :mod:`smetric_model.analytic.prefix_holders`."""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["follow", "holders", "stays_present", "stays_present_each", "tilted_to"]

_TILTS = 56  # laws of loads told apart by their mean
_NODES = 8  # numbers of holders at which placements are worked out
_STEPS = 32  # of time, growing


@njit(cache=True, error_model="numpy")
def stays_present(mean, start=0.0):  # type: ignore[no-untyped-def]
    """ρ of an M/G/∞ queue that has ``mean`` customers while it is busy: ρ/(1 - e^-ρ) = mean.

    Newton's method, from ``start`` where that is known to be near; mean - 1 < ρ < mean.
    """
    if mean <= 1.0 + 1e-6:
        return 0.0
    rho = mean
    if start > 0.0:
        rho = min(max(start, mean - 1.0), mean)
    for _ in range(30):
        idle = np.exp(-rho)
        step = (rho - mean * (1.0 - idle)) / (1.0 - mean * idle)
        rho = min(rho - step, mean)
        if abs(step) < 1e-5 * rho:  # the error is about its square
            break
    return min(rho, 600.0)


@njit(cache=True, error_model="numpy")
def stays_present_each(means):  # type: ignore[no-untyped-def]
    """As :func:`stays_present`, of each."""
    result = np.empty(means.size)
    for i in range(means.size):
        result[i] = stays_present(means[i])
    return result


@njit(cache=True, error_model="numpy")
def _loss(present, held, start):  # type: ignore[no-untyped-def]
    """Rate at which a holder is lost × the time of a visit, how it grows with the holders, and ρ.

    ρ/(e^ρ - 1), of ``present`` visits on ``held`` holders.
    """
    rho = stays_present(present / held, start)
    if rho < 1e-6:
        return 1.0, 0.0, 0.0
    idle = np.exp(-rho)
    busy = 1.0 - idle
    bent = (idle * (busy - rho)) / (busy * busy)
    wider = (busy - rho * idle) / (busy * busy)
    return rho * idle / busy, -bent / wider * present / (held * held), rho


@njit(cache=True, error_model="numpy")
def _tilted(law, means, laws, tails):  # type: ignore[no-untyped-def]
    """Laws p_l θ^l of other mean loads, and their tails: an instance that gets θ times as many."""
    levels = law.size
    for k in range(_TILTS):
        log = -7.0 + 12.0 * k / (_TILTS - 1)
        top = 0.0 if log <= 0.0 else log * (levels - 1)
        total, mean = 0.0, 0.0
        for load in range(levels):
            value = law[load] * np.exp(log * load - top)
            laws[k, load] = value
            total += value
            mean += value * load
        means[k] = mean / total
        above = 0.0
        for load in range(levels - 1, -1, -1):
            laws[k, load] /= total
            above += laws[k, load]
            tails[k, load] = above


@njit(cache=True, error_model="numpy")
def tilted_to(law, mean):  # type: ignore[no-untyped-def]
    """Return the law p_l θ^l that has a mean, or comes as near as its loads let it."""
    low, high = -12.0, 6.0
    result = np.empty(law.size)
    for _ in range(40):
        log = 0.5 * (low + high)
        top = 0.0 if log <= 0.0 else log * (law.size - 1)
        total, sums = 0.0, 0.0
        for load in range(law.size):
            result[load] = law[load] * np.exp(log * load - top)
            total += result[load]
            sums += result[load] * load
        result /= total
        if sums < mean * total:
            low = log
        else:
            high = log
        if high - low < 1e-6:
            break
    return result


@njit(cache=True, error_model="numpy")
def _place(value, points):  # type: ignore[no-untyped-def]
    """Cell and place in it of a value among increasing points, held within them."""
    low, high = 0, points.size - 1
    if value <= points[0]:
        return 0, 0.0
    if value >= points[high]:
        return high - 1, 1.0
    while high - low > 1:
        middle = (low + high) // 2
        if points[middle] <= value:
            low = middle
        else:
            high = middle
    return low, (value - points[low]) / (points[high] - points[low])


@njit(cache=True, error_model="numpy")
def _spills(limits, mean, holding, missing, count, instances, means, tails, all_above, out):  # type: ignore[no-untyped-def]
    """P(no holder takes it) of each of some requests, ``limits`` (requests, loads).

    A holder is preferred to another instance of load j while its load is below ``limits[:, j]``.
    The least loaded of ``count`` holders against the least loaded of the others, whose mean loads
    are ``holding`` and ``missing`` times ``mean``.
    """
    requests, levels = limits.shape
    here, beyond = _place(holding * mean, means)
    there, further = _place(missing * mean, means)
    others = instances - count
    out[:] = 0.0
    known = 0  # P(least of the holders >= load), of loads so far
    all_above[levels] = 0.0
    before = 1.0
    for load in range(levels):
        upper = 0.0
        if load + 1 < levels:
            tail = (1.0 - further) * tails[there, load + 1] + further * tails[there + 1, load + 1]
            upper = tail**others
        least = before - upper
        before = upper
        if least > 1e-9:
            for row in range(requests):
                limit = limits[row, load]
                while known <= limit and known < levels:
                    tail = (1.0 - beyond) * tails[here, known] + beyond * tails[here + 1, known]
                    all_above[known] = tail**count if tail > 1e-9 else 0.0
                    known += 1
                out[row] += least * all_above[limit]
        if before < 1e-9:
            break


@njit(cache=True, error_model="numpy")
def _all_busy(servers, offered):  # type: ignore[no-untyped-def]
    """P(all of ``servers`` are busy), Erlang's B at ``offered`` busy ones; need not be whole."""
    whole = int(servers)
    blocked = (offered / (1.0 + offered)) ** (servers - whole)
    at = servers - whole
    for _ in range(whole):
        at += 1.0
        blocked = offered * blocked / (at + offered * blocked)
    return blocked


@njit(cache=True, error_model="numpy")
def holders(law, share, limits, cold_limits, within, firsts, think, rates, cold, times, out):  # type: ignore[no-untyped-def]
    """Instances that hold each prefix so long after a cold start; see the module.

    ``law`` (levels,): of the loads.  ``share`` (F,): of the requests that use each prefix.
    ``limits``, ``cold_limits`` (F, requests, levels): first load at which a holder loses against
    another instance of load j, for some first turns (``firsts`` of them) and some requests; in a
    cold cluster.  ``within`` (F, levels): instead, P(unprefilled tokens at a load are no more than
    the prefix), for routers that compare those.  ``think`` (2, classes): weights and means of the
    think times.  ``rates``: N, requests/s, share of first turns, share of all requests that are
    follow-ups placed by the prefix, visits ÷ request, time that a visit keeps the prefix in place.
    ``cold``: mean load of a cold cluster, share of time in which an instance of one prefills, time
    of a cold prefill and of its first chunk.  ``times``: mean load, time since the start.
    ``out`` (4, F): holders, rate at which one is lost with so many, share that spills, how much
    more often one is lost since their number varies.
    """
    instances, rate_rps, first, placed, visits, visit_s = rates
    cold_load, cold_busy, cold_s, chunk_s = cold
    mean, end_s = times
    levels = law.size
    by_tokens = within.size > 0
    means, laws = np.empty(_TILTS), np.empty((_TILTS, levels))
    tails = np.empty((_TILTS, levels))
    _tilted(law, means, laws, tails)
    ends, share_cold = np.empty(_STEPS), np.empty(_STEPS)
    for k in range(_STEPS):
        ends[k] = 0.25 * (end_s / 0.25) ** (k / (_STEPS - 1.0))
        middle = 0.5 * (ends[k] + (ends[k - 1] if k > 0 else 0.0))
        # sessions come for the first time when the think time is over that they are in
        recent = 0.0
        for c in range(think.shape[1]):
            late = np.exp(-middle / think[1, c])
            early = np.exp(-max(middle - cold_s, 0.0) / think[1, c])
            recent += think[0, c] * think[1, c] * (early - late)
        share_cold[k] = min(recent / max(cold_s, 1e-9), 1.0)
    nodes, chances = np.empty(_NODES), np.empty((3, _NODES))
    some, all_above = np.empty(limits.shape[1]), np.empty(levels + 1)
    busy = np.empty(_TILTS)
    for f in range(share.size):
        rate = rate_rps * share[f]
        out[0, f], out[1, f], out[2, f], out[3, f] = 1.0, 0.0, 0.0, 1.0
        if rate <= 0.0:
            continue
        stays_rps = rate * visits
        present = stays_rps * visit_s
        if by_tokens:
            for k in range(_TILTS):
                busy[k] = 1.0
                for load in range(levels):
                    busy[k] -= laws[k, load] * within[f, load]
                busy[k] = max(busy[k], 0.0)
        for i in range(_NODES):
            nodes[i] = instances ** (i / (_NODES - 1.0))
            count = min(nodes[i], instances - 0.5)
            holding = 1.0 + share[f] * (instances / count - 1.0)
            if by_tokens:
                at, beyond = _place(holding * mean, means)
                chances[0, i] = (1.0 - beyond) * busy[at] + beyond * busy[at + 1]
                continue
            missing = 1.0 - share[f]
            size = (count, instances, means, tails, all_above, some)
            _spills(limits[f], mean, holding, missing, *size)
            early, late = some[:firsts].mean(), some[firsts:].mean()
            chances[0, i] = np.log(max(first * early + placed * late, 1e-30))
            chances[2, i] = np.log(max(late, 1e-30))
            _spills(cold_limits[f], cold_load, holding, missing, *size)
            chances[1, i] = np.log(max(some[firsts:].mean(), late, 1e-30))
        held = min(1.0 + rate * chunk_s, instances)
        lost, spill, rho, now = 0.0, 0.0, 0.0, 0.0
        births, bent, steep = 0.0, 0.0, 0.0
        for k in range(_STEPS):
            step, now = ends[k] - now, ends[k]
            at, beyond = _place(held, nodes)
            c = share_cold[k]
            if by_tokens:
                used = (1.0 - beyond) * chances[0, at] + beyond * chances[0, at + 1]
                slope = (chances[0, at + 1] - chances[0, at]) / (nodes[at + 1] - nodes[at])
                part = c + (1.0 - c) * (first + placed)
                own = c * cold_busy
                offered = held * (
                    own * (1.0 + share[f] * (instances / held - 1.0)) + (1.0 - c) * used
                )
                more = held + 0.02 * max(held, 1.0)
                offered_more = more * (
                    own * (1.0 + share[f] * (instances / more - 1.0))
                    + (1.0 - c) * (used + slope * (more - held))
                )
                births = rate * part * _all_busy(held, offered)
                bent = (rate * part * _all_busy(more, offered_more) - births) / (more - held)
                spill = _all_busy(held, held * used)
            else:
                warm = (1.0 - beyond) * chances[0, at] + beyond * chances[0, at + 1]
                early = (1.0 - beyond) * chances[1, at] + beyond * chances[1, at + 1]
                births = rate * np.exp((1.0 - c) * warm + c * early)
                rise = (1.0 - c) * (chances[0, at + 1] - chances[0, at])
                rise += c * (chances[1, at + 1] - chances[1, at])
                bent = births * rise / (nodes[at + 1] - nodes[at])
                spill = np.exp((1.0 - beyond) * chances[2, at] + beyond * chances[2, at + 1])
            lost, more, rho = _loss(present, held, rho)
            steep = 1.0 / held + more / lost if lost > 1e-290 else 0.0
            bent -= (lost + held * more) / visit_s
            lost /= visit_s
            deaths = held * lost
            # an implicit step, linear in what changes
            held += step * (births - deaths) / (1.0 + step * max(-bent, 0.0))
            held = min(max(held, 1.0), instances)
        # the number varies by births ÷ slope, and losses grow steeply with it
        varies = min(births / max(-bent, 1e-290), held * held)
        out[0, f], out[1, f], out[2, f] = held, lost, spill
        out[3, f] = np.exp(min(0.5 * varies * steep * steep, 3.0))


@njit(cache=True, error_model="numpy")
def _left(x):  # type: ignore[no-untyped-def]
    """e^-x, most often of next to nothing or of very much."""
    if x < 1e-5:
        return 1.0
    return np.exp(-x) if x < 30.0 else 0.0


@njit(cache=True, error_model="numpy")
def follow(order, session, framework, counted, idle, stays, held, pace, out):  # type: ignore[no-untyped-def]
    """Follow sessions from turn to turn among the holders of their prefixes; see the module.

    ``order``: rows by session, then time.  ``idle`` (n,): time since the previous turn ended.
    ``stays`` (4, n): P(stays with its context there), P(goes to another copy as long), P(leaves for
    the latest copy elsewhere), P(home lost it).  ``held`` (5, F + 1), the last for no prefix:
    holders, rate at which one is lost, share that spills, P(a home that holds the prefix wins among
    its holders), P(a prefix held by so many counts as held by all).  ``pace``: N, retention, time
    that a turn runs, P(the home is the least loaded of all), whether those that leave a context
    for the load look for another holder, too.
    ``out`` (4,), means of the follow-ups ``counted``: served where the session's first turn was,
    where the previous turn was, moved since all hold no more than the prefix, moved among holders
    or to a copy as long.
    """
    instances, retention_s, running_s, home_anyway, seeks = pace
    others = max(instances - 1.0, 1.0)
    kinds = np.empty((held.shape[1], 5))
    for f in range(held.shape[1]):
        holders, lost, spill = held[0, f], held[1, f], held[2, f]
        even = holders / instances
        # of the instances besides home and first: holders, and whether there are any of each kind
        third = (holders - 1.0) / others * (instances - 2.0)
        some, rest = min(third, 1.0), min(max(instances - 2.0 - third, 0.0), 1.0)
        kinds[f, 0] = even
        kinds[f, 1] = lost / max(1.0 - even, 1e-9) if holders < instances - 0.01 else 1e9
        kinds[f, 2] = min((1.0 - spill * rest) / max(holders - 1.0, 1.0), 1.0)
        kinds[f, 3] = min((1.0 - (1.0 - spill) * some) / max(others - third, 1.0), 1.0)
        kinds[f, 4] = held[4, f] * (1.0 - home_anyway)
    number = 0.0
    first, previous, evicted, moved = 0.0, 0.0, 0.0, 0.0
    # P(at the first instance); elsewhere, this being the instance before or not, and it holds the
    # prefix or not
    here, left, left_lost, far, far_lost = 1.0, 0.0, 0.0, 0.0, 0.0
    before = np.int64(-1)
    for i in range(order.size):
        row = order[i]
        f = framework[row]
        even, rate, to_holder, to_other, lost_to_all = kinds[f]
        at_home = 1.0
        if idle[row] > retention_s:
            at_home = even + (1.0 - even) * _left(rate * (idle[row] - retention_s))
        gone, tied = stays[3, row], stays[1, row]
        away = gone * lost_to_all
        moves = gone * (1.0 - held[4, f]) * (1.0 - at_home * held[3, f])
        stay = stays[0, row] + gone - away - moves
        if session[row] != before:
            here, left, left_lost, far, far_lost = 1.0, 0.0, 0.0, 0.0, 0.0
            before = session[row]
        else:
            if here < 1.0 - 1e-9:
                still = _left(rate * (idle[row] + running_s))
                gained = even * (1.0 - still)
                whole = left + left_lost
                left = left * still + whole * gained
                left_lost = whole - left
                whole = far + far_lost
                far = far * still + whole * gained
                far_lost = whole - far
            kept = min(stay + 0.5 * tied, 1.0)
            leave = 1.0 - kept
            back = min(stays[2, row], leave)
            anywhere = away
            if not seeks:
                anywhere += max(1.0 - stays[0, row] - gone - tied, 0.0)
            anywhere = min(anywhere, leave - back)
            seeking = leave - back - anywhere
            anywhere /= others
            holding = anywhere + seeking * to_holder
            missing = anywhere + seeking * to_other
            came = (left + left_lost) * back + (left + far) * holding
            came += (left_lost + far_lost) * missing
            now_left = here * leave
            far += left * (leave - back - holding) - far * holding
            far_lost += left_lost * (leave - back - missing) - far_lost * missing
            left = left * kept + now_left * at_home
            left_lost = left_lost * kept + now_left * (1.0 - at_home)
            here = here * kept + came
        if counted[row]:
            number += 1.0
            first += here
            previous += stay
            evicted += away
            moved += moves + tied
    out[0], out[1], out[2], out[3] = first, previous, evicted, moved
    out /= max(number, 1.0)
    return number
