r"""Step times in whole picoseconds, so that sums of steps do not depend on how they are added up.

The simulator skips runs of decode steps in closed form.  In floating point the sum of a thousand
steps would differ from the closed form in its last digits, and with it every later event.  In
whole ticks it cannot: a decode step of ``d`` sequences with total context ``S`` takes

.. math:: \max(A_d + B_d S,\; E_d)

ticks (GPU time and gaps, linear in the context between kinks; or the launch by the CPU, where that
is longer), with whole numbers A, B, E from
:func:`smetric_model.analytic.step_time.step_groups`.  Steps with prefill are rounded to a tick.
``B`` is a few thousand ticks at least, so that rounding moves a step by less than 0.1 %.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic import step_time
from smetric_model.analytic.step_time import StepModel, step_groups
from smetric_model.simulate._jit import jit

__all__ = [
    "LONGEST_S",
    "TICKS_PER_S",
    "DecodeTables",
    "decode_tables",
    "run_ticks",
    "step_ticks",
    "to_ticks",
]

#: Ticks of the simulator's clock in a second; int64 then reaches 106 days.
TICKS_PER_S = 1_000_000_000_000

#: Longest time from the start of the warm-up to the drain limit [s]: three such, the moment of a
#: failure, how long it lasts and how long it goes unnoticed, still fit on the clock.
LONGEST_S = 3e6

IntArray = NDArray[np.int64]


def to_ticks(seconds: Any) -> Any:
    """Return times as whole ticks, rounded.

    Parameters
    ----------
    seconds : float or ndarray
        Times [s].  One of more than :data:`LONGEST_S` leads beyond the end of every simulation,
        and counts as this.
    """
    seconds = np.minimum(np.asarray(seconds, dtype=np.float64), LONGEST_S)
    ticks = np.rint(seconds * TICKS_PER_S).astype(np.int64)
    return ticks if ticks.ndim else int(ticks)


@dataclass(frozen=True, eq=False)
class DecodeTables:
    """Decode steps by batch size d = 0, 1, 2 …; all in ticks.

    Attributes
    ----------
    base : ndarray of int64, shape (batches,)
        A: what a step takes at no context.
    per_token : ndarray of int64, shape (batches,)
        B: what each token of context adds.
    least : ndarray of int64, shape (batches,)
        E: what a step takes at least, because the CPU launches its kernels.
    """

    base: IntArray
    per_token: IntArray
    least: IntArray


def decode_tables(model: StepModel, largest_batch: int) -> DecodeTables:
    """Tabulate decode steps.

    Parameters
    ----------
    model : StepModel
        The instance.
    largest_batch : int
        Most sequences that decode at once.

    Returns
    -------
    DecodeTables

    Raises
    ------
    RuntimeError
        If the step time is no longer of the form max(A + B·S, E): then skipping would be wrong.
    """
    d = np.arange(largest_batch + 1, dtype=np.float64)
    far = 1e6

    def parts(context: Any) -> tuple[Any, Any]:
        groups = step_groups(model, 0.0 * d, 0.0 * d, 0.0 * d, d, context, d)
        return sum(groups[:-1]), sum(groups)

    (gpu, _), (gpu_far, _) = parts(0.0 * d), parts(far + 0.0 * d)
    busy = np.minimum(d, 1.0)
    base = to_ticks((gpu + model.gap_s) * busy)
    per_token = np.rint((gpu_far - gpu) / far * TICKS_PER_S).astype(np.int64) * (d > 0)
    eager = np.where(d > model.graph_capture_tokens, model.eager_launch_s, 0.0)
    least = to_ticks(eager * busy)
    tables = DecodeTables(base, per_token.astype(np.int64), least)
    for context in (1.0, 3e3, 1.7e5, 4e6):
        exact = parts(context + 0.0 * d)[1] * TICKS_PER_S
        table = np.maximum(base + per_token * context, least)
        if (np.abs(table - exact)[1:] > 2 + 0.51 * context).any():
            raise RuntimeError(
                "decode steps are not max(A + B·context, E) any more: smetric_model.simulate.steps"
                " must follow smetric_model.analytic.step_time"
            )
    return tables


@jit
def run_ticks(base: int, per_token: int, least: int, batch: int, context: int, steps: int) -> int:
    """Ticks of ``steps`` decode steps in a row, from total context ``context`` on.

    The context grows by ``batch`` a step.  Below the context at which the GPU takes longer than
    the launch, a step takes ``least``.
    """
    flat = 0
    first = base + per_token * context
    if first < least:
        slope = per_token * batch
        if slope == 0:
            return least * steps
        flat = min(steps, (least - first + slope - 1) // slope)
    rest = steps - flat
    before = context + batch * flat
    return (
        least * flat + base * rest + per_token * (before * rest + batch * (rest * (rest - 1) // 2))
    )


@cache
def compiled_groups() -> Any:
    """Compile the step formula: the same code, its helpers compiled beside it."""
    from numba import njit

    helpers = {
        "experts_touched": njit(step_time.experts_touched),
        "padded_rows": njit(step_time.padded_rows),
    }
    return njit(types.FunctionType(step_groups.__code__, {**vars(step_time), **helpers}))


_groups = compiled_groups()


@jit
def step_ticks(
    model: StepModel,
    prefill_tokens: float,
    prefill_pairs: float,
    prefill_keys: float,
    decode_batch: float,
    decode_context_tokens: float,
    sampled: float,
) -> int:
    """Ticks of one step with prefill; arguments as in ``step_groups``.

    Each prompt that ends in it adds what a request costs the engine.
    """
    groups = _groups(
        model,
        prefill_tokens,
        prefill_pairs,
        prefill_keys,
        decode_batch,
        decode_context_tokens,
        sampled,
    )
    seconds = model.request_s * (sampled - decode_batch)
    for part in groups:
        seconds += float(part)
    return max(int(np.rint(seconds * 1e12)), 1)


@jit
def prefill_ticks(model: StepModel, new_tokens: int, cached_tokens: int, token_budget: int) -> int:
    """Ticks to prefill ``new_tokens`` behind ``cached_tokens``, alone, in chunks of the budget."""
    total = 0
    done = 0
    while done < new_tokens:
        p = float(min(token_budget, new_tokens - done))
        c = float(cached_tokens + done)
        sampled = 1.0 if done + token_budget >= new_tokens else 0.0
        total += step_ticks(model, p, p * (c + 0.5 * p), c + p, 0.0, 0.0, sampled)
        done += token_budget
    return total
