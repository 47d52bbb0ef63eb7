"""Compiled step and prefill times, from the formulas of :mod:`smetric_model.analytic.step_time`.

The formulas are compiled as they stand there, so that they have one home; results differ from the
vectorised ones by rounding alone.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any
from zlib import crc32

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from smetric_model.analytic import step_time

__all__ = ["VERSION", "one_prefill", "one_step", "prefill_time_s", "step_time_s"]

FloatArray = NDArray[np.float64]


def _compiled(function: Any, **using: Any) -> Any:
    """Compile a formula, with compiled ones in place of those that it calls."""
    names = {**function.__globals__, **using}
    copy = FunctionType(function.__code__, names, function.__name__)
    return njit(copy, error_model="numpy")


_groups = _compiled(
    step_time.step_groups,
    experts_touched=_compiled(step_time.experts_touched),
    padded_rows=_compiled(step_time.padded_rows),
)


@njit(error_model="numpy")
def one_step(model: Any, p: float, c: float, d: float, context: float) -> Any:
    """Time of one engine step; nan for a negative input [s]."""
    if not (p >= 0.0 and c >= 0.0 and d >= 0.0 and context >= 0.0):
        return np.nan
    chunk = min(p, 1.0)
    total = 0.0
    for seconds in _groups(model, p, p * (c + 0.5 * p), (c + p) * chunk, d, d * context, d + chunk):
        total += seconds
    return total


@njit(error_model="numpy")
def one_prefill(model: Any, new: float, c: float, budget: float, d: float, context: float) -> Any:
    """Time of the steps that prefill a prompt, chunk by chunk [s]."""
    chunk = max(budget - d, 1.0)
    done, index = 0.0, 0
    total = model.request_s if new > 0.0 else 0.0
    while new > done:
        total += one_step(model, min(chunk, new - done), c + done, d, context)
        index += 1
        done = index * chunk
    return total


_FORMULAS = (
    *(step_time.step_groups, step_time.experts_touched, step_time.padded_rows),
    *(one_step.py_func, one_prefill.py_func),
)
#: kernels that call a formula are kept on disk under it (see :func:`_kernels`)
VERSION = crc32(
    repr(
        [(f.__code__.co_code, f.__code__.co_consts, f.__code__.co_names) for f in _FORMULAS]
    ).encode()
)


def _kernels(version: int) -> tuple[Any, Any, Any]:
    """Return the kernels kept on disk under a version of the formulas.

    A change of a formula is none of this file, by which compiled code is otherwise kept.
    """

    @njit(cache=True, error_model="numpy")
    def single(model, p, c, d, context):  # type: ignore[no-untyped-def]
        return one_step(model, p, c, d, context) if version >= 0 else np.nan

    @njit(cache=True, error_model="numpy")
    def steps(model, p, c, d, context):  # type: ignore[no-untyped-def]
        result = np.empty(p.size if version >= 0 else 0)
        for i in range(p.size):
            result[i] = one_step(model, p[i], c[i], d[i], context[i])
        return result

    @njit(cache=True, error_model="numpy")
    def prefills(model, new, c, budget, d, context):  # type: ignore[no-untyped-def]
        result = np.empty(new.size if version >= 0 else 0)
        for i in range(new.size):
            result[i] = one_prefill(model, new[i], c[i], budget, d[i], context[i])
        return result

    return single, steps, prefills


_single, _steps, _prefills = _kernels(VERSION)


def step_time_s(
    model: step_time.StepModel,
    prefill_tokens: ArrayLike = 0,
    prefill_context_tokens: ArrayLike = 0,
    decode_batch: ArrayLike = 0,
    decode_context_tokens: ArrayLike = 0,
) -> Any:
    """As :func:`smetric_model.analytic.step_time.step_time_s`, compiled."""
    given = (prefill_tokens, prefill_context_tokens, decode_batch, decode_context_tokens)
    if not any(isinstance(value, np.ndarray) and value.ndim for value in given):
        return float(_single(model, *map(float, given)))  # type: ignore[arg-type]
    shape, arrays = _aligned(given)
    return np.asarray(_steps(model, *arrays).reshape(shape))


def prefill_time_s(
    model: step_time.StepModel,
    new_tokens: ArrayLike,
    context_tokens: ArrayLike,
    token_budget: int,
    decode_batch: ArrayLike = 0,
    decode_context_tokens: ArrayLike = 0,
) -> Any:
    """As :func:`smetric_model.analytic.latency.prefill_time_s`, compiled."""
    given = (new_tokens, context_tokens, decode_batch, decode_context_tokens)
    shape, (new, context, batch, decode_context) = _aligned(given)
    found = _prefills(model, new, context, float(token_budget), batch, decode_context)
    return found.reshape(shape)


def _aligned(given: tuple[ArrayLike, ...]) -> tuple[tuple[int, ...], list[FloatArray]]:
    """Return the shape to which values broadcast, and each in that shape, flat."""
    arrays = [np.asarray(value, dtype=float) for value in given]
    shape = np.broadcast(*arrays).shape
    same = (a if a.shape == shape else np.full(shape, a) for a in arrays)
    return shape, [a.reshape(-1) for a in same]
