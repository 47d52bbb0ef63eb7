"""Compiled kernels behind :mod:`smetric_model.analytic.mixed_requests`."""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["held_within", "kinds_of", "mixed", "pick"]

_SHIFT = 43  # of the bits of a double: leaves 9 of its fraction, a fifth of a percent
_ONE = 1023 << 9  # 1.0, so shifted


@njit(cache=True)
def held_within(tokens, gap_s, request, reach_s, longest, held):  # type: ignore[no-untyped-def]
    """Sum of the pieces of each request that were touched within a time, no more than ``longest``.

    ``tokens``, ``gap_s``, ``request``: of each piece.
    """
    held[:] = 0.0
    for piece in range(tokens.size):
        if gap_s[piece] <= reach_s:
            held[request[piece]] += tokens[piece]
    for k in range(held.size):
        held[k] = min(held[k], longest[k])
    return held


@njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def kinds_of(prompt, held, stay, whole, found, new, weight):  # type: ignore[no-untyped-def]
    """Uncached tokens and probabilities of what may happen to each request; mean of the former.

    It stays and finds all of its context, stays and finds part, or lands elsewhere: rows of
    ``found`` (3, n), and one after the other in ``new`` and ``weight`` (3 n).
    """
    n = prompt.size
    for kind in range(3):
        hit, into = found[kind], new[kind * n : (kind + 1) * n]
        for k in range(n):
            into[k] = prompt[k] - max(hit[k], held[k])
    first, second, third = weight[:n], weight[n : 2 * n], weight[2 * n :]
    for k in range(n):
        first[k] = whole[k]
    for k in range(n):
        second[k] = stay[k] - whole[k]
    for k in range(n):
        third[k] = 1.0 - stay[k]
    total, mass = 0.0, 0.0
    for k in range(3 * n):
        total += new[k] * weight[k]
        mass += weight[k]
    return total / mass


@njit(cache=True)
def _sort(kinds, start, end, new):  # type: ignore[no-untyped-def]
    """Sort a few kinds by their uncached tokens; equal ones stay as they are."""
    for i in range(start + 1, end):
        kind, value, j = kinds[i], new[kinds[i]], i - 1
        while j >= start and new[kinds[j]] > value:
            kinds[j + 1] = kinds[j]
            j -= 1
        kinds[j + 1] = kind


@njit(cache=True, error_model="numpy")
def _strata(new, weight, strata, stratum):  # type: ignore[no-untyped-def]
    """Fill which of equal strata by uncached tokens each kind belongs to; equal ones by place.

    Kinds are counted in narrow cells, and sorted only in those that a border crosses.
    """
    keys = np.maximum(new, 1.0).view(np.int64)
    total, last = 0.0, 0
    for k in range(new.size):
        total += max(weight[k], 0.0)
        last = max(last, keys[k])
    upto = np.zeros((last >> _SHIFT) - _ONE + 2)
    for k in range(new.size):
        upto[(keys[k] >> _SHIFT) - _ONE + 1] += max(weight[k], 0.0)
    per_weight = strata / total
    cell_stratum = np.empty(upto.size - 1, np.int64)
    crossed = 0
    for cell in range(upto.size - 1):
        upto[cell + 1] += upto[cell]
        low = max(int(upto[cell] * per_weight - 1e-9), 0)
        cell_stratum[cell] = min(low, strata - 1)
        if min(int(upto[cell + 1] * per_weight - 1e-9), strata - 1) > low:
            crossed += 1
            cell_stratum[cell] = -crossed
    cells, sizes = np.empty(crossed + 1, np.int64), np.zeros(crossed + 2, np.int64)
    chosen, found = np.empty(new.size, np.int64), 0
    for k in range(new.size):
        if weight[k] > 0.0:
            cell = (keys[k] >> _SHIFT) - _ONE
            stratum[k] = cell_stratum[cell]
            if stratum[k] < 0:
                cells[-stratum[k]] = cell
                sizes[1 - stratum[k]] += 1
                chosen[found] = k
                found += 1
    begins = np.cumsum(sizes)
    kinds, place = np.empty(found, np.int64), begins.copy()
    for i in range(found):
        cell = -stratum[chosen[i]]
        kinds[place[cell]] = chosen[i]
        place[cell] += 1
    for i in range(1, crossed + 1):
        _sort(kinds, begins[i], begins[i + 1], new)
        passed = upto[cells[i]]
        for j in range(begins[i], begins[i + 1]):
            passed += weight[kinds[j]]
            s = min(max(int(passed * per_weight - 1e-9), 0), strata - 1)
            stratum[kinds[j]] = s
    return total


@njit(cache=True, error_model="numpy")
def pick(new, by_output, output_rank, weight, strata, targets, kinds, scale):  # type: ignore[no-untyped-def]
    """Pick kinds from equal strata of uncached tokens, in each at even steps through its outputs.

    ``by_output``: order of the kinds by ``output_rank``, equal ones by place; they are gone through
    by their uncached tokens.  ``targets``: in ascending order in (0, 1).  Fills ``kinds``, and
    ``scale``: the mean of each one's stratum ÷ that of those picked from it.  Returns the mean of
    all.
    """
    stratum = np.empty(new.size, np.int64)
    total = _strata(new, weight, strata, stratum)
    size, mean = np.zeros(strata), np.zeros(strata)
    for k in range(new.size):
        if weight[k] > 0.0:
            size[stratum[k]] += weight[k]
            mean[stratum[k]] += weight[k] * new[k]
    # the steps that fall into each stratum, and how far through it they are
    ends, following = np.empty(strata, np.int64), np.empty(strata, np.int64)
    reached, latest = np.empty(strata), np.zeros(strata, np.int64)
    step, passed = 0, 0.0
    for s in range(strata):
        following[s], reached[s] = step, passed
        passed += size[s]
        while step < targets.size and (targets[step] * total <= passed or s == strata - 1):
            step += 1
        ends[s] = step
    alike = np.empty(new.size, np.int64)
    start = 0
    while start < new.size:
        end, count = start, 0
        while end < new.size and output_rank[by_output[end]] == output_rank[by_output[start]]:
            if weight[by_output[end]] > 0.0:
                alike[count] = by_output[end]
                count += 1
            end += 1
        start = end
        _sort(alike, 0, count, new)
        for k in alike[:count]:
            s = stratum[k]
            reached[s] += weight[k]
            latest[s] = k
            while following[s] < ends[s] and targets[following[s]] * total <= reached[s]:
                kinds[following[s]] = k
                following[s] += 1
    first, tokens = 0, 0.0
    for s in range(strata):
        for step in range(following[s], ends[s]):  # sums round differently
            kinds[step] = latest[s]
        tokens += mean[s]
        taken = 0.0
        for step in range(first, ends[s]):
            taken += new[kinds[step]]
        ratio = 1.0
        if taken > 0.0:
            ratio = mean[s] / max(size[s], 1e-300) * (ends[s] - first) / taken
        for step in range(first, ends[s]):
            scale[step] = ratio
        first = ends[s]
    return tokens / total


@njit(cache=True, error_model="numpy")
def mixed(  # type: ignore[no-untyped-def]
    kinds, scale, new, prompts, outputs, mean_output, held, longest, found, block, result
):
    """Work out requests of some kinds as the engines get them, and whether any could fetch.

    Fills ``result`` (5, kinds): prompt, output, hit in the instance's own memory, what could be
    fetched, what is missing from the global tier [tokens].
    """
    n = prompts.size
    output = 0.0
    for kind in kinds:
        output += outputs[kind % n]
    # strata keep their means: of what is computed, and of what is generated
    stretch = mean_output * kinds.size / output
    fetches = False
    for i in range(kinds.size):
        k = kinds[i] % n
        prompt = prompts[k]
        computed = min(max(new[kinds[i]] * scale[i], 1.0), prompt)
        total = min(prompt - computed, longest[k])
        missing = held[k] - found[kinds[i] // n, k]
        potential = min(max(missing, 0.0), total) if missing >= block else 0.0
        fetches |= potential > 0.0
        result[0, i], result[1, i] = prompt, max(outputs[k] * stretch, 1.0)
        result[2, i], result[3, i] = total - potential, potential
        result[4, i] = max(prompt - held[k], 0.0)
    return fetches
