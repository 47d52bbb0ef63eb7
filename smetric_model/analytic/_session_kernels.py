"""Compiled kernel behind :mod:`smetric_model.analytic.session_reuse`."""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["common_blocks"]


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


@njit(cache=True)
def found(  # type: ignore[no-untyped-def]
    own,
    private,
    idle,
    between,
    expected,
    shared,
    has_home,
    longest,
    chance,
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
    ties,
    rule,
    result,
):
    """Work out what each request finds, averaged over instances of different load.

    ``own``, ``private``, ``idle``, ``between`` are (turns back, n), ``chance`` and ``landing``
    (nodes, n): the share of its shared prefix that an instance holds by chance, and the one where
    the request lands.  ``back`` weighs older copies where it lands, ``ties`` the latest turn that
    was elsewhere.  ``rule``: stay, stay without context, least hit ratio (-1: none), subtract
    shared, needs own, ties count, block, one instance only.  ``result`` (6, n): stays, whole, part,
    landed, refused, tie moves; the parts are sums, not means.
    """
    stay, without, least, subtract, needs_own, looks, block, alone = rule
    start, end = window
    length = max(end - start, 1e-9)
    rows, n = own.shape
    for k in range(n):
        full = min(private[0, k] + min(own[0, k], shared[k]), longest[k])
        cold = 0.0
        if has_home[k]:
            cold = min(max((end - idle[0, k]) / length, 0.0), 1.0)
        for z in range(nodes.size):
            share, age = shares[z], ages[z]
            elsewhere = shared[k] * landing[z, k]
            tied = 0.0
            for r in range(rows - 1):
                if own[r + 1, k] <= 0.0:
                    break
                passed = (turns_back[r + 1] - 1.0) * first_token_s
                passed += idle[r + 1, k] + between[r + 1, k] * per_output_token_s
                if passed > age:
                    break
                seen = min(max((end - passed) / length, 0.0), 1.0)
                elsewhere += back[r] * private[r + 1, k] * seen
                if looks > 0.0 and own[r + 1, k] >= own[0, k] - block:
                    tied += ties[r] * seen
            if not has_home[k]:
                result[3, k] += share * min(elsewhere, longest[k])
                continue
            left = 0.0
            if age > 0.0:
                drain = max(private[0, k] / max(nodes[z] * stored_tps, 1e-9), 1e-9)
                left = min(max(0.5 - (idle[0, k] - age) / drain, 0.0), 1.0)
            is_whole = cold if left >= 1.0 else 0.0
            left *= cold
            prefix = min(own[0, k], shared[k])
            home = private[0, k] * left + prefix * (1.0 if left > 0.0 else chance[z, k])
            home = min(home, longest[k])
            common = shared[k] if chance[z, k] >= 0.9 else 0.0
            keeps = True
            if least >= 0.0:
                if subtract > 0.0:
                    keeps = home - common > least * max(expected[k] - common, 0.0)
                else:
                    keeps = home > least * expected[k]
            if needs_own > 0.0 and home <= min(common, own[0, k]):
                keeps = False
            if alone > 0.0:
                at_home, moved = 1.0, 0.0
            elif keeps:
                moved = 0.5 * stay * tied if left > 0.0 else 0.0
                at_home = stay - moved
            else:
                at_home, moved = without, 0.0
            result[0, k] += share * at_home
            result[1, k] += share * at_home * is_whole
            result[2, k] += share * at_home * max(home - is_whole * full, 0.0)
            away = max(1.0 - at_home - moved, 0.0)
            result[3, k] += share * (away * min(elsewhere, longest[k]) + moved * home)
            if not keeps:
                result[4, k] += share
            result[5, k] += share * moved
    return 0


@njit(cache=True)
def returns(order, session, stay, tied, instances, out):  # type: ignore[no-untyped-def]
    """P(each request is served where its session's first turn was), along each session.

    A turn stays with ``stay``, goes to an earlier instance of its session with ``tied``, else
    anywhere.  ``order``: rows by session, then time.
    """
    at_first = 1.0
    for i in range(order.size):
        row = order[i]
        if i == 0 or session[row] != session[order[i - 1]]:
            at_first = 1.0
        else:
            away = 1.0 - at_first
            anywhere = max(1.0 - stay[row] - tied[row], 0.0) / max(instances - 1.0, 1.0)
            at_first = at_first * stay[row] + away * (anywhere + tied[row] * at_first)
        out[row] = at_first
    return 0
