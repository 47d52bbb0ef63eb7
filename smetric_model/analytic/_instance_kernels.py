r"""Compiled tables of one instance: how its requests fill the KV pool, and how fast it completes.

The formulas are those of :mod:`smetric_model.analytic.batching`, where they are derived.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from smetric_model.analytic._step_kernels import VERSION, one_prefill, one_step

__all__ = ["own_prefills", "residence", "tables"]

_SOLVES = 20  # of the batch that fills the pool
_BATCHES = 6  # at which prefills beside decodes are tabulated
_PREFILLS = 32  # requests that say how decodes shorten the prefills of all


def _kernels(version: int) -> tuple[Any, Any]:
    """Return the kernels kept on disk under a version of the step formulas."""

    @njit(cache=True, error_model="numpy")
    def residence(model, prompt, output, hit, budget, pool, most, fixed):  # type: ignore[no-untyped-def]
        """Prefill time alone, KV and time in a full pool of each request, and their means.

        The pool holds ``pool / mean context`` requests, contexts weighted by how long they stay:
        all prefills of a full batch b, then the own output, ``b w + O T_d(b)``.  Decode steps see
        a context weighted by how long it decodes.
        """
        size = prompt.size if version >= 0 else 0
        alone, context, stay = np.empty(size), np.empty(size), np.empty(size)
        own, outputs, decoded, held, made = 0.0, 0.0, 0.0, 0.0, 0.0
        for i in range(size):
            alone[i] = one_prefill(model, prompt[i] - hit[i], hit[i], budget, 0.0, 0.0)
            mean = prompt[i] + 0.5 * output[i]
            context[i] = mean + fixed
            own += alone[i]
            outputs += output[i]
            decoded += output[i] * mean
            held += context[i]
            made += output[i] * context[i]
        own /= size
        decode_context = decoded / outputs
        batch = min(max(pool * size / held, 1.0), most)
        waits, step, mean_context = 0.0, 0.0, 0.0
        for _ in range(_SOLVES):
            step = one_step(model, 0.0, 0.0, batch, decode_context)
            waits = batch * own
            mean_context = (waits * held + step * made) / (waits * size + step * outputs)
            new = min(max(pool / mean_context, 1.0), most)
            if abs(new - batch) < 1e-3:
                break
            batch = 0.5 * (batch + new)
        for i in range(size):
            stay[i] = waits + output[i] * step
            context[i] = min(context[i], pool)
        return alone, context, stay, decode_context, outputs / size, mean_context

    @njit(cache=True, error_model="numpy")
    def tables(model, new, hit, order, alone, fits, budget, context, mean_output):  # type: ignore[no-untyped-def]
        """Batches, prefills beside decodes, decode steps, and completion rates by number present.

        Marginal prefill times at a few batches d: the steps with the chunks less the steps
        without.  What decodes beside it save of a prefill (weights that are read anyhow) depends on
        its new tokens, not on its hit: of many requests some, by new tokens (``order``), say it for
        all.  With l present an instance completes ``1 / (w(l - 1) + O T_d(l) / l)``
        in mean over how many fit; a larger batch never completes less.
        """
        size = alone.size if version >= 0 else 0
        places = fits.size
        batches = np.empty(places)
        upto = 0.0
        for i in range(places):
            upto += fits[i]
            batches[i] = upto
        top = max(upto - 1.0, 0.0)
        rows = 1 if top <= 0.0 else (1 + _BATCHES if top > 1.0 else 2)
        grid = np.zeros(rows)
        for row in range(1, rows):
            grid[row] = top ** ((row - 1.0) / (_BATCHES - 1)) if top > 1.0 else top
        asked = size if size <= 2 * _PREFILLS else _PREFILLS
        at = np.empty(asked, np.int64)
        for j in range(asked):
            at[j] = int((j + 0.5) * (size / asked))
        table, means = np.empty((rows, size)), np.empty(rows)
        saved = np.zeros(asked)
        for row in range(rows):
            decodes = grid[row]
            idle = one_step(model, 0.0, 0.0, decodes, context)
            chunk = max(budget - decodes, 1.0)
            for j in range(asked if row > 0 else 0):
                i = order[at[j]]
                taken = one_prefill(model, new[i], hit[i], budget, decodes, context)
                taken -= np.ceil(new[i] / chunk) * idle
                saved[j] = alone[i] - taken
            after, total = 0, 0.0
            for place in range(size):
                while after < asked and at[after] <= place:
                    after += 1
                if after == 0 or after == asked:
                    less = saved[min(after, asked - 1)]
                else:
                    share = (place - at[after - 1]) / (at[after] - at[after - 1])
                    less = saved[after - 1] + share * (saved[after] - saved[after - 1])
                i = order[place]
                table[row, i] = max(alone[i] - less, 0.0)
                total += table[row, i]
            means[row] = total / size
        step_s, completion, decoding = np.empty(places), np.empty(places), np.empty(places)
        best, best_decoding, fitting, fitting_decoding = 0.0, 0.0, 0.0, 0.0
        row = 0
        for i in range(places):
            step_s[i] = one_step(model, 0.0, 0.0, batches[i], context)
            while row + 1 < rows and grid[row + 1] < i:
                row += 1
            prefill = means[row]
            if row + 1 < rows:
                share = (i - grid[row]) / (grid[row + 1] - grid[row])
                prefill += share * (means[row + 1] - prefill)
            decode = mean_output * one_step(model, 0.0, 0.0, i + 1.0, context) / (i + 1.0)
            gain = max(1.0 / (prefill + decode) - best, 0.0)
            gain_decoding = max(1.0 / decode - best_decoding, 0.0)
            best += gain
            best_decoding += gain_decoding
            fitting += fits[i] * gain
            fitting_decoding += fits[i] * gain_decoding
            completion[i], decoding[i] = fitting, fitting_decoding
        return batches, grid, table, means, step_s, completion, decoding

    return residence, tables


residence, tables = _kernels(VERSION)


@njit(cache=True, error_model="numpy")
def own_prefills(new, grid, table, batches, without_s, budget):  # type: ignore[no-untyped-def]
    """Time of the steps that carry each request's prefill in batches; shape (batches, n).

    ``without_s``: a step of the others alone.
    """
    times = np.empty((batches.size, new.size))
    for b in range(batches.size):
        decodes = batches[b] - 1.0
        row = 0
        while row + 2 < grid.size and grid[row + 1] < decodes:
            row += 1
        above = min(row + 1, grid.size - 1)
        share = 0.0
        if above > row:
            share = min(max((decodes - grid[row]) / (grid[above] - grid[row]), 0.0), 1.0)
        chunk = max(budget - decodes, 1.0)
        for i in range(new.size):
            marginal = (1.0 - share) * table[row, i] + share * table[above, i]
            times[b, i] = marginal + np.ceil(new[i] / chunk) * without_s[b]
    return times
