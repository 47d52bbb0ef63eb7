"""Compiled kernel behind :mod:`smetric_model.analytic.session_reuse`."""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["common_blocks", "found", "order_of", "returns", "sorted_within"]


@njit(cache=True)
def common_blocks(parent, start, leaf, blocks, first, second, out):  # type: ignore[no-untyped-def]
    """Length of the common prefix of pairs of requests [blocks]; 0 where either is negative."""
    for pair in range(first.size):
        a, b = first[pair], second[pair]
        if a < 0 or b < 0:
            out[pair] = 0
            continue
        here, there = leaf[a], leaf[b]
        reach_here, reach_there = blocks[a], blocks[b]
        # a parent has a smaller number than its children: the larger one goes up
        while here != there and here >= 0 and there >= 0:
            if here > there:
                reach_here = start[here]
                here = parent[here]
            else:
                reach_there = start[there]
                there = parent[there]
        out[pair] = min(reach_here, reach_there) if here == there else 0
    return np.int64(first.size)


@njit(cache=True, error_model="numpy")
def found(  # type: ignore[no-untyped-def]
    turns,
    alike,
    expected,
    shared,
    has_home,
    longest,
    parts,
    hot,
    landing,
    nodes,
    shares,
    ages,
    stored_tps,
    window,
    first_token_s,
    per_output_token_s,
    turns_back,
    back,
    edges,
    everywhere,
    leads,
    stay_of,
    home_wins,
    rule,
    stays_alone,
    result,
):
    """Work out what each request finds, averaged over instances of different load.

    ``turns`` (n, turns back, 4): private and own tokens, idle and output tokens in between;
    ``alike`` (n,): turns back up to the last copy that is as long as the latest.
    ``parts``: the shared prefix of each request in segments (tokens, segment, first of each
    request); ``hot`` and ``landing`` (segments, nodes): the chance that an instance holds each, and
    that the one does where the request lands.  ``back`` weighs older copies where it lands;
    ``edges`` (turns back + 1,): turns that each row of ``turns`` stands for.  ``everywhere``: P(a
    prefix counts as held by all | an instance holds it with chance 0, 1/m, … 1).  ``leads`` (n,):
    what a request's home hit is worth, in cells of ``stay_of`` (2, cells): P(stay) if its home has
    the context, and the logarithm of that of turns that find at least as much.  ``home_wins``:
    P(the home is the least loaded of 1 … N holders), numbers in geometric series.  ``rule``: P(an
    older copy wins over the home), stay without context, least hit ratio (-1: none), subtract
    shared, needs own, ties count, block, engine block, instances.
    ``result`` (7, n): stays, whole, part, landed, refused, tie moves, adrift; the parts are sums,
    not means.  With ``stays_alone`` the third is P(leaves for the latest copy elsewhere), where a
    home is left at all often.
    """
    swaps, without, least, subtract, needs_own, looks, block, tie, instances = rule
    tokens, segment, begins = parts
    cells = everywhere.size - 1
    per_place = (home_wins.size - 1) / np.log(max(instances, 2.0))
    start, end = window
    length = max(end - start, 1e-9)
    n, rows, _ = turns.shape
    levels = nodes.size
    older, tied_of = np.zeros(levels), np.zeros(levels)
    chance, lands = np.zeros(levels), np.zeros(levels)
    drains = np.empty(levels)
    for z in range(levels):
        drains[z] = max(nodes[z] * stored_tps, 1e-9)
    for k in range(n):
        private, own, idle = turns[k, 0, 0], turns[k, 0, 1], turns[k, 0, 2]
        for z in range(levels):
            chance[z], lands[z] = 0.0, 0.0
        if shared[k] > 0.0:
            for i in range(begins[k], begins[k + 1]):
                amount = tokens[i] / shared[k]
                for z in range(levels):
                    chance[z] += amount * hot[segment[i], z]
                    lands[z] += amount * landing[segment[i], z]
        # older copies, a look at each for all instances at once
        for z in range(levels):
            older[z] = shared[k] * lands[z]
            tied_of[z] = 0.0
        cell = min(int(leads[k]), stay_of.shape[1] - 2)
        beyond = min(leads[k] - cell, 1.0)
        stay = stay_of[0, cell] + beyond * (stay_of[0, cell + 1] - stay_of[0, cell])
        log_kept = stay_of[1, cell] + beyond * (stay_of[1, cell + 1] - stay_of[1, cell])
        reach = 1.0
        oldest = 0.0
        for z in range(levels):
            oldest = max(oldest, ages[z])
        for r in range(1, alike[k] if stays_alone and stay > 0.95 else rows):
            if turns[k, r, 1] <= 0.0:
                break
            as_long = looks > 0.0 and turns[k, r, 1] >= own - block
            passed = (turns_back[r] - 1.0) * first_token_s
            passed += turns[k, r, 2] + turns[k, r, 3] * per_output_token_s
            if passed > oldest:
                break
            seen = min(max((end - passed) / length, 0.0), 1.0)
            adds = back[r - 1] * turns[k, r, 0] * seen
            last = 0.0
            if as_long and log_kept < 0.0:  # the session has stayed since, but left then
                longer = np.exp(log_kept * (edges[r] - 1.0))
                last = reach - longer
                reach = longer
            for z in range(levels):
                if passed <= ages[z]:
                    older[z] += adds
                    if as_long:
                        tied_of[z] += last * seen
        if not has_home[k]:
            landed = 0.0
            for z in range(levels):
                landed += shares[z] * min(older[z], longest[k])
            result[3, k] = landed
            continue
        prefix = min(own, shared[k])
        full = min(private + prefix, longest[k])
        cold = min(max((end - idle) / length, 0.0), 1.0)
        stays, wholes, part, landed, refused, moves, drifts = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        sought = 0.0
        for z in range(levels):
            share, age = shares[z], ages[z]
            elsewhere, tied = older[z], tied_of[z]
            left = 0.0
            if age > 0.0:
                drain = max(private / drains[z], 1e-9)
                left = min(max(0.5 - (idle - age) / drain, 0.0), 1.0)
            is_whole = cold if left >= 1.0 else 0.0
            left *= cold
            home = private * left + prefix * (1.0 if left > 0.0 else chance[z])
            home = min(home, longest[k])
            common = shared[k] if chance[z] >= 0.9 else 0.0
            keeps = True
            if least >= 0.0:
                if subtract > 0.0:
                    keeps = home - common > least * max(expected[k] - common, 0.0)
                else:
                    keeps = home > least * expected[k]
            # no more than a shared prefix is left: it counts for nothing where all hold it, else
            # whoever holds it ties with the home
            adrift = 0.0
            if keeps and needs_own > 0.0 and private * left <= tie:
                place = min(max(chance[z], 0.0), 1.0) * cells
                low = min(int(place), cells - 1)
                upto = place - low
                adrift = 1.0 - (1.0 - upto) * everywhere[low] - upto * everywhere[low + 1]
                if shared[k] <= 0.0:
                    adrift = 0.0
                keeps = False
            if instances <= 1.0:
                at_home, moved, adrift = 1.0, 0.0, 0.0
            elif keeps:
                moved = swaps * stay * tied if left > 0.0 else 0.0
                at_home = stay - moved
            else:
                at_home, moved = without, 0.0
                if adrift > 0.0 and left > 0.0:
                    holders = 1.0 + (instances - 1.0) * chance[z]
                    # numbers of holders are a geometric series from 1
                    place = np.log(holders) * per_place
                    low = min(int(place), home_wins.size - 2)
                    wins = home_wins[low] + (place - low) * (home_wins[low + 1] - home_wins[low])
                    at_home += adrift * (wins - without)
                # one that drifts finds the prefix where it lands
                elsewhere += adrift * max(shared[k] - elsewhere, 0.0)
            stays += share * at_home
            wholes += share * at_home * is_whole
            part += share * at_home * max(home - is_whole * full, 0.0)
            away = max(1.0 - at_home - moved, 0.0)
            if keeps and private > 0.0:
                worth = (older[z] - shared[k] * lands[z]) / private
                sought += share * away * stay * min(max(worth, 0.0), 1.0)
            landed += share * (away * min(elsewhere, longest[k]) + moved * home)
            if not keeps:
                refused += share
            moves += share * moved
            drifts += share * adrift
        if stays_alone:
            part = sought
        result[0, k], result[1, k], result[2, k], result[3, k] = stays, wholes, part, landed
        result[4, k], result[5, k], result[6, k] = refused, moves, drifts
    return 0


@njit(cache=True)
def returns(order, session, stay, tied, sought, instances, out):  # type: ignore[no-untyped-def]
    """P(each request is served where its session's first turn was), along each session.

    A turn stays with ``stay``, goes to another copy as long with ``tied``, to the latest other
    instance of its session with ``sought``, else anywhere.  Of moves between two copies every other
    one is undone by the next, so that half of them lead away for good; one that is sought leads
    from the first instance to another as often as back.  ``order``: rows by session, then time.
    """
    at_first, before = 1.0, 0.0  # here; not here, but this was the instance before
    others = max(instances - 1.0, 1.0)
    for i in range(order.size):
        row = order[i]
        if i == 0 or session[row] != session[order[i - 1]]:
            at_first, before = 1.0, 0.0
        else:
            kept = min(stay[row] + 0.5 * tied[row], 1.0)
            leave = 1.0 - kept
            back = min(sought[row], leave)
            anywhere = (leave - back) / others
            far = max(1.0 - at_first - before, 0.0)
            came = before * back + (before + far) * anywhere
            left = at_first * leave
            before = before * kept + left
            at_first = at_first * kept + came
        out[row] = at_first
    return 0


@njit(cache=True)
def order_of(values):  # type: ignore[no-untyped-def]
    """Order of values (n,) >= 0, equal ones by place: a radix sort of their bits."""
    n = values.size
    keys = values.view(np.int64)
    order, other = np.arange(n), np.empty(n, np.int64)
    place = np.empty(2049, np.int64)
    for shift in (0, 11, 22, 33, 44, 55):
        place[:] = 0
        for i in range(n):
            place[((keys[i] >> shift) & 2047) + 1] += 1
        for j in range(2048):
            place[j + 1] += place[j]
        for i in range(n):
            k = order[i]
            digit = (keys[k] >> shift) & 2047
            other[place[digit]] = k
            place[digit] += 1
        order, other = other, order
    return order


@njit(cache=True)
def sorted_within(rank, group, ranks, groups):  # type: ignore[no-untyped-def]
    """Order by group, then by rank, then by place: two stable sorts by counting.

    ``rank`` and ``group`` (n,) lie in [0, ``ranks``) and [0, ``groups``).
    """
    n = rank.size
    first, order = np.empty(n, np.int64), np.empty(n, np.int64)
    place = np.zeros(ranks + 1, np.int64)
    for i in range(n):
        place[rank[i] + 1] += 1
    for j in range(ranks):
        place[j + 1] += place[j]
    for i in range(n):
        first[place[rank[i]]] = i
        place[rank[i]] += 1
    place = np.zeros(groups + 1, np.int64)
    for i in range(n):
        place[group[i] + 1] += 1
    for j in range(groups):
        place[j + 1] += place[j]
    for i in range(n):
        k = first[i]
        order[place[group[k]]] = k
        place[group[k]] += 1
    return order
