"""Compiled kernels of local KV tiers: what each request finds where it lands.

Requests lie in blocks of :data:`LANES`, one row of numbers for each figure, all in one array: loops
over the lanes of a block then read and write at fixed distances, which compilers need to know to
work on several lanes at once.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from smetric_model.analytic._tier_kernels import visit_s

__all__ = ["FIGURES", "LANES", "found"]

LANES = 128
#: figures of a request
IDLE, PRIVATE, PER_PRIVATE, PREFIX, LONGEST, EXPECTED, SHARED, HOME = range(8)
FIGURES = 8
# while a block is worked on: what is looked up, what is found on one instance, and sums over those
_STAY, _LOG_KEPT, _SEEN, _PASSED, _ADDS = range(5)
_CHANCE, _DRIFTS, _AT_HOLDER, _PREFIX_ELSEWHERE = range(5, 9)
_STAYS, _WHOLE, _FULL, _PART, _LANDED, _REFUSED, _HIT, _MOVED, _ADRIFT = range(9, 18)
_ROWS = 18
_ALONE = (_STAYS, _MOVED, _PART, _REFUSED)  # what is asked for where only who stays is
_HIDDEN = 0x7FFFFFFFFFFF  # places are not negative: keeps compilers from looking

_FAST = {"contract", "arcp", "nsz"}


@njit(cache=True, error_model="numpy")
def _groups(  # type: ignore[no-untyped-def]
    begin,
    part,
    share,
    shared,
    part_ratio,
    ages,
    think_within,
    nodes,
    retention,
    own_rps,
    instances,
    running_s,
    again,
    latest_s,
    seeks,
    everywhere,
    home_wins,
    without,
):
    """Where shared prefixes are: by instance, then by group of requests with the same prefix.

    P(the instance holds it), what of it is held where the request lands [tokens], P(not all hold
    it: its holders tie), and how much more often than ``without`` a request stays for such a tie.
    """
    levels, groups = nodes.size, shared.size
    result = np.zeros((levels, groups, 4))
    cells = everywhere.size - 1
    per_place = (home_wins.size - 1) / np.log(max(instances, 2.0))
    hot, landing = np.empty(part_ratio.size), np.empty(part_ratio.size)
    for z in range(levels):
        kept = min(retention[z] + running_s, latest_s)
        seen = running_s + visit_s(max(kept - running_s, 0.0), again, ages, think_within)
        for i in range(part_ratio.size):
            hot[i] = -np.expm1(-own_rps * part_ratio[i] * nodes[z] * seen)
            landing[i] = hot[i]
            if seeks:
                landing[i] = -np.expm1(-own_rps * part_ratio[i] * instances * seen)
        for g in range(groups):
            chance, lands = 0.0, 0.0
            for i in range(begin[g], begin[g + 1]):
                chance += share[i] * hot[part[i]]
                lands += share[i] * landing[part[i]]
            result[z, g, 0], result[z, g, 1] = chance, lands * shared[g]
            if instances <= 1.0 or shared[g] <= 0.0:
                continue
            place = min(max(chance, 0.0), 1.0) * cells
            low = min(int(place), cells - 1)
            upto = place - low
            result[z, g, 2] = 1.0 - (1.0 - upto) * everywhere[low] - upto * everywhere[low + 1]
            # numbers of holders are a geometric series from 1
            place = np.log(1.0 + (instances - 1.0) * chance) * per_place
            low = min(int(place), home_wins.size - 2)
            wins = home_wins[low] + (place - low) * (home_wins[low + 1] - home_wins[low])
            result[z, g, 3] = wins - without
    return result


@njit(cache=True, error_model="numpy", fastmath=_FAST)
def _add_older(  # type: ignore[no-untyped-def]
    older, begin, end_at, back, turns_back, pace, window, retention, work, elsewhere
):
    """Add the older copies of a block's requests to what they find elsewhere, by instance."""
    start, end = window
    per_s = 1.0 / max(end - start, 1e-9)
    first_token_s, per_output_token_s = pace
    for row in range((end_at - begin) // (3 * LANES)):
        here = (begin + row * 3 * LANES) & _HIDDEN
        weight, before_s = back[row], turns_back[row + 1] * first_token_s - first_token_s
        for i in range(LANES):
            passed = before_s + older[here + LANES + i]
            passed += older[here + 2 * LANES + i] * per_output_token_s
            seen = min(max((end - passed) * per_s, 0.0), 1.0)
            work[_PASSED * LANES + i] = passed
            work[_ADDS * LANES + i] = weight * older[here + i] * seen
        for z in range(retention.size):
            age, into = retention[z], (z * LANES) & _HIDDEN
            for i in range(LANES):
                adds = work[_ADDS * LANES + i]
                elsewhere[into + i] += adds if work[_PASSED * LANES + i] <= age else 0.0


@njit(cache=True, error_model="numpy")
def _find_ties(  # type: ignore[no-untyped-def]
    alike, block, edges, powers, turns_back, pace, window, retention, work, tied
):
    """P(an older copy as long as the latest is the last turn's that was not at home), by instance.

    The session has stayed since, and left then.  ``powers``: the chance that it has stayed for so
    many rows, if it is the same for all.
    """
    begin, request, rows, idle, between = alike
    start, end = window
    length = max(end - start, 1e-9)
    before, reach = -1, 1.0
    for e in range(begin[block], begin[block + 1]):
        i, row = request[e] - block * LANES, rows[e]
        if i != before:
            before, reach = i, 1.0
        log_kept = work[_LOG_KEPT * LANES + i]
        if not log_kept < 0.0:
            continue
        passed = (turns_back[row] - 1.0) * pace[0] + idle[e] + between[e] * pace[1]
        longer = powers[row] if powers.size else np.exp(log_kept * (edges[row] - 1.0))
        last = (reach - longer) * min(max((end - passed) / length, 0.0), 1.0)
        reach = longer
        for z in range(retention.size):
            if passed <= retention[z]:
                tied[z * LANES + i] += last


@njit(cache=True, error_model="numpy", fastmath=_FAST)
def _on_instance(  # type: ignore[no-untyped-def]
    figures, at, work, elsewhere, tied, z, age, drain_tps, share, rule, needs_own, all_kept, alone
):
    """Add what a block's requests find at homes of one load, weighted by its share."""
    swaps, without, least, subtract, tie = rule
    at &= _HIDDEN
    level = (z * LANES) & _HIDDEN
    for i in range(LANES):
        idle = figures[at + IDLE * LANES + i]
        private = figures[at + PRIVATE * LANES + i]
        per_private = figures[at + PER_PRIVATE * LANES + i]
        prefix = figures[at + PREFIX * LANES + i]
        longest = figures[at + LONGEST * LANES + i]
        expected = figures[at + EXPECTED * LANES + i]
        shared = figures[at + SHARED * LANES + i]
        has_home = figures[at + HOME * LANES + i]
        stay, seen = work[_STAY * LANES + i], work[_SEEN * LANES + i]
        chance, drifts = work[_CHANCE * LANES + i], work[_DRIFTS * LANES + i]
        at_holder = work[_AT_HOLDER * LANES + i]
        on_prefix = work[_PREFIX_ELSEWHERE * LANES + i]
        landing, ties = elsewhere[level + i], tied[level + i]

        # tail first: it shrinks while the instance stores as many tokens
        left = min(max(0.5 - (idle - age) * drain_tps * per_private, 0.0), 1.0)
        is_whole = seen if left >= 1.0 else 0.0
        left *= seen
        mine = private * left
        home = min(mine + prefix * (1.0 if left > 0.0 else chance), longest)
        common = subtract * (shared if chance >= 0.9 else 0.0)
        enough = all_kept | (home - common > least * max(expected - common, 0.0))
        # no more than a shared prefix is left: it counts for nothing where all hold it, else
        # whoever holds it ties with the home
        bare = needs_own & (mine <= tie)
        adrift = has_home * (drifts if enough & bare else 0.0)
        keeps = enough & (not bare)
        moved = has_home * (swaps * stay * ties if keeps & (left > 0.0) else 0.0)
        lost = without + (adrift * at_holder if left > 0.0 else 0.0)
        at_home = has_home * (stay - moved if keeps else lost)
        away = max(1.0 - at_home - moved, 0.0)
        if alone:
            worth = min(max((landing - on_prefix) * per_private, 0.0), 1.0)
            part = away * stay * (worth if keeps else 0.0)
        else:
            whole = min(private + prefix, longest)
            part = at_home * max(home - is_whole * whole, 0.0)
        # one that drifts finds the prefix where it lands
        landing += adrift * max(shared - landing, 0.0)
        work[_STAYS * LANES + i] += share * at_home
        work[_WHOLE * LANES + i] += share * at_home * is_whole
        work[_PART * LANES + i] += share * part
        work[_LANDED * LANES + i] += share * (away * min(landing, longest) + moved * home)
        work[_REFUSED * LANES + i] += has_home * (0.0 if keeps else share)
        work[_MOVED * LANES + i] += share * moved
        work[_ADRIFT * LANES + i] += share * adrift


@njit(cache=True, error_model="numpy", fastmath=_FAST)
def _mean_hits(figures, at, work):  # type: ignore[no-untyped-def]
    """Divide sums of hits by the probabilities; and the mean hit of each request."""
    at &= _HIDDEN
    for i in range(LANES):
        longest = figures[at + LONGEST * LANES + i]
        full = figures[at + PRIVATE * LANES + i] + figures[at + PREFIX * LANES + i]
        full = min(full, longest)
        stays, whole = work[_STAYS * LANES + i], work[_WHOLE * LANES + i]
        part = min(work[_PART * LANES + i] / max(stays - whole, 1e-9), longest)
        landed = min(work[_LANDED * LANES + i] / max(1.0 - stays, 1e-9), longest)
        work[_FULL * LANES + i] = full
        work[_PART * LANES + i], work[_LANDED * LANES + i] = part, landed
        work[_HIT * LANES + i] = whole * full + (stays - whole) * part + (1.0 - stays) * landed


@njit(cache=True, error_model="numpy", fastmath=_FAST)
def _stay_of(leads, order, at, stay_of, work):  # type: ignore[no-untyped-def]
    """P(stay) of a block's requests by their leads, and the logarithm of that of those above."""
    if leads.size == 0:
        for i in range(LANES):
            work[_STAY * LANES + i] = stay_of[0, 0]
            work[_LOG_KEPT * LANES + i] = stay_of[1, 0]
        return
    for i in range(LANES):
        lead = leads[order[at + i]] if at + i < leads.size else 0.0
        cell = min(int(lead), stay_of.shape[1] - 2)
        upto = min(lead - cell, 1.0)
        stay, kept = stay_of[0, cell], stay_of[1, cell]
        work[_STAY * LANES + i] = stay + upto * (stay_of[0, cell + 1] - stay)
        work[_LOG_KEPT * LANES + i] = kept + upto * (stay_of[1, cell + 1] - kept)


@njit(cache=True, error_model="numpy", fastmath=_FAST)
def found(  # type: ignore[no-untyped-def]
    order,
    figures,
    group,
    older_begin,
    older,
    alike,
    group_begin,
    group_part,
    group_share,
    group_shared,
    part_ratio,
    ages,
    think_within,
    nodes,
    shares,
    retention,
    leads,
    stay_of,
    everywhere,
    home_wins,
    turns_back,
    edges,
    back,
    pace,
    window,
    scalars,
    rule,
    switches,
    result,
):
    """Work out what each request finds, averaged over instances of different load.

    ``figures``, ``group``: requests in blocks, in an order, and which shared prefix each has;
    ``older``: private tokens, idle and output tokens in between of copies 1, 2, … rows back,
    from ``older_begin`` on for each block; ``alike``: those as long as the latest, by block (first
    of each; request, row, idle, output in between). ``group_*``: the prefixes in parts, and their
    length. ``leads``: what home hits are worth, in cells of ``stay_of`` (2, cells): P(stay) with
    the context at home, and the logarithm of that of turns that find at least as much; empty where
    all are as the first cell. ``everywhere``: P(a prefix counts as held by all | an instance holds
    it with chance 0, 1/m, … 1); ``home_wins``: P(the home is the least loaded of 1 … N holders),
    numbers in geometric series. ``back`` weighs older copies where a request lands, ``edges`` are
    the turns that each row stands for. ``rule``: P(an older copy wins over the home), stay without
    context, least hit ratio (below 0: none), subtract shared, block.

    Fills ``result`` (7, n): P(stays), P(stays and finds all), hit of such a one, mean hit of others
    that stay, of those that land elsewhere, P(refused), mean hit.  With ``alone`` (4, n): P(stays),
    P(goes to a copy as long), P(leaves for the latest copy elsewhere), P(refused).
    Returns the sums of P(stays) and P(refused) of follow-ups, of P(goes to a copy as long),
    P(refused, and goes to a holder of the prefix), and of mean hits.
    """
    own_rps, instances, running_s, again, stored_tps = scalars
    swaps, without, least, subtract, tie = rule
    seeks, needs_own, alone = switches
    start, end = window
    per_s = 1.0 / max(end - start, 1e-9)
    if instances <= 1.0:
        swaps, without = 0.0, 1.0
    rule = (swaps, without, least, subtract, tie)
    levels, n = nodes.size, result.shape[1]
    look_older = seeks or not alone
    prefixes = _groups(
        group_begin,
        group_part,
        group_share,
        group_shared,
        part_ratio,
        ages,
        think_within,
        nodes,
        retention,
        own_rps,
        instances,
        running_s,
        again,
        0.5 * (start + end),
        seeks,
        everywhere,
        home_wins,
        without,
    )
    powers = np.empty(edges.size if leads.size == 0 else 0)
    for row in range(powers.size):
        powers[row] = np.exp(stay_of[1, 0] * (edges[row] - 1.0))
    work = np.zeros(_ROWS * LANES)
    elsewhere, tied = np.zeros(levels * LANES), np.zeros(levels * LANES)
    stays, refused, moves, adrift, tokens = 0.0, 0.0, 0.0, 0.0, 0.0
    for block in range(older_begin.size - 1):
        at = (block * FIGURES * LANES) & _HIDDEN
        first = block * LANES
        _stay_of(leads, order, first, stay_of, work)
        for i in range(LANES):
            if instances <= 1.0:
                work[_STAY * LANES + i] = 1.0
            age = (end - figures[at + IDLE * LANES + i]) * per_s
            work[_SEEN * LANES + i] = min(max(age, 0.0), 1.0)
        for z in range(levels):
            for i in range(LANES):
                elsewhere[z * LANES + i] = prefixes[z, group[first + i], 1]
        if look_older:
            _add_older(
                older,
                older_begin[block],
                older_begin[block + 1],
                back,
                turns_back,
                pace,
                window,
                retention,
                work,
                elsewhere,
            )
        if needs_own and swaps > 0.0:
            for i in range(tied.size):
                tied[i] = 0.0
            _find_ties(alike, block, edges, powers, turns_back, pace, window, retention, work, tied)
        for i in range(_STAYS * LANES, _ROWS * LANES):
            work[i] = 0.0
        for z in range(levels):
            for i in range(LANES):
                g = group[first + i]
                work[_CHANCE * LANES + i] = prefixes[z, g, 0]
                if alone:
                    work[_PREFIX_ELSEWHERE * LANES + i] = prefixes[z, g, 1]
                if needs_own:
                    work[_DRIFTS * LANES + i] = prefixes[z, g, 2]
                    work[_AT_HOLDER * LANES + i] = prefixes[z, g, 3]
            age = retention[z] if retention[z] > 0.0 else -np.inf
            _on_instance(
                figures,
                at,
                work,
                elsewhere,
                tied,
                z,
                age,
                max(nodes[z] * stored_tps, 1e-9),
                shares[z],
                rule,
                needs_own,
                least < 0.0,
                alone,
            )
        upto = min(LANES, n - first)
        for i in range(LANES):
            stays += work[_STAYS * LANES + i]
            refused += work[_REFUSED * LANES + i]
            moves += work[_MOVED * LANES + i]
            adrift += work[_ADRIFT * LANES + i]
        if not alone:
            _mean_hits(figures, at, work)
            for i in range(upto):
                tokens += work[_HIT * LANES + i]
        for row in range(result.shape[0]):
            at = (_ALONE[row] if alone else _STAYS + row) * LANES
            for i in range(upto):
                result[row, order[first + i]] = work[at + i]
    return stays, refused, moves, adrift, tokens
