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
    bits = new.view(np.int64)
    total, last = 0.0, _ONE << _SHIFT
    for k in range(new.size):
        total += max(weight[k], 0.0)
        last = max(last, bits[k])
    upto = np.zeros((last >> _SHIFT) - _ONE + 2)
    for k in range(new.size):
        upto[max((bits[k] >> _SHIFT) - _ONE, 0) + 1] += max(weight[k], 0.0)
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
        cell = max((bits[k] >> _SHIFT) - _ONE, 0)
        stratum[k] = cell_stratum[cell]
        if stratum[k] < 0:
            cells[-stratum[k]] = cell
            sizes[1 - stratum[k]] += 1
            chosen[found] = k
            found += 1
    for i in range(crossed + 1):
        sizes[i + 1] += sizes[i]
    kinds, ends = np.empty(found, np.int64), sizes
    for i in range(found):
        cell = -stratum[chosen[i]]
        kinds[ends[cell]] = chosen[i]
        ends[cell] += 1
    start = 0
    for i in range(1, crossed + 1):
        _sort(kinds, start, ends[i], new)
        passed = upto[cells[i]]
        for j in range(start, ends[i]):
            passed += weight[kinds[j]]
            s = min(max(int(passed * per_weight - 1e-9), 0), strata - 1)
            stratum[kinds[j]] = s
        start = ends[i]
    return total


@njit(cache=True, error_model="numpy")
def pick(  # type: ignore[no-untyped-def]
    new, by_output, output_rank, weight, strata, targets, kinds, scale
):
    """Pick kinds from equal strata of uncached tokens, in each at even steps through its outputs.

    ``by_output``: order of the kinds by ``output_rank``, equal ones by place; those of a stratum
    are gone through by their uncached tokens.  ``targets``: in ascending order in (0, 1).  Fills
    ``kinds``, and ``scale``: the mean of each one's stratum ÷ that of those picked from it.
    Returns the mean of all.
    """
    stratum = np.empty(new.size, np.int64)
    total = _strata(new, weight, strata, stratum)
    place = np.zeros(strata + 1, np.int64)
    size, mean = np.zeros(strata), np.zeros(strata)
    happen, count = np.empty(new.size + 1, np.int64), 0
    for k in by_output:  # those that do not occur are written over
        happen[count] = k
        count += 1 if weight[k] > 0.0 else 0
    tokens = 0.0
    for i in range(count):
        k = happen[i]
        s = stratum[k]
        place[s + 1] += 1
        size[s] += weight[k]
        mean[s] += weight[k] * new[k]
    for s in range(strata):
        place[s + 1] += place[s]
        tokens += mean[s]
    order = np.empty(count, np.int64)
    for i in range(count):
        k = happen[i]
        order[place[stratum[k]]] = k
        place[stratum[k]] += 1
    passed, step, start = 0.0, 0, 0
    while start < count and step < targets.size:
        s, rank, end = stratum[order[start]], output_rank[order[start]], start + 1
        while end < count and output_rank[order[end]] == rank and stratum[order[end]] == s:
            end += 1
        _sort(order, start, end, new)
        for i in range(start, end):
            passed += weight[order[i]]
            while step < targets.size and targets[step] * total <= passed:
                kinds[step] = order[i]
                step += 1
        start = end
    for i in range(step, targets.size):  # sums round differently
        kinds[i] = order[count - 1]
    taken, found = np.zeros(strata), np.zeros(strata)
    for i in range(targets.size):
        taken[stratum[kinds[i]]] += new[kinds[i]]
        found[stratum[kinds[i]]] += 1.0
    for i in range(targets.size):
        s = stratum[kinds[i]]
        scale[i] = 1.0 if taken[s] <= 0.0 else mean[s] / size[s] * found[s] / taken[s]
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
