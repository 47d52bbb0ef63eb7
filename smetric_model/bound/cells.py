"""Columns of a linear program: requests and pieces, alike ones merged into cells.

A cell holds the sums of what it merges.  The merged program only *proposes prices*; what the
prices prove is worked out on every request and piece (:mod:`smetric_model.bound.certify`), so
merging can weaken a bound and never break it.  With ``detail = inf`` nothing is merged and the
program is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from smetric_model.bound.certify import _decode_s, request_windows

if TYPE_CHECKING:
    from smetric_model.bound.problem import Problem

__all__ = ["Cells", "make_cells"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Cells:
    """Sums over merged requests and pieces.

    Request cells have a first and last window and sums of value and of the demands that no cache
    saves; piece cells belong to a request cell and have sums of what each mode costs.
    ``occupancy_first``, ``occupancy_last`` are token seconds in the first and last window of the
    interval, ``occupancy_inner`` the tokens kept all through the windows between.
    """

    release: IntArray
    due: IntArray
    value: FloatArray
    prompt: FloatArray
    requests: FloatArray
    slack_s: FloatArray
    compute: FloatArray  # (rows, request cells)
    decode_compute: FloatArray
    pin: FloatArray
    decode_pin: FloatArray
    written: FloatArray
    moved_nic: FloatArray
    moved_pcie: FloatArray
    owner: IntArray
    tokens: FloatArray
    gap_first: IntArray
    gap_last: IntArray
    occupancy_first: FloatArray
    occupancy_inner: FloatArray
    occupancy_last: FloatArray
    recompute: FloatArray  # (rows, piece cells)
    recompute_pin: FloatArray
    recompute_s: FloatArray
    nic: FloatArray
    pcie: FloatArray


def _bins(values: FloatArray, per_e: float) -> IntArray:
    """Logarithmic bins, ``per_e`` of them for each factor of e; 0 has a bin of its own."""
    positive = values > 0
    logs = np.floor(np.log(np.where(positive, values, 1.0)) * per_e)
    return np.where(positive, logs.astype(np.int64) - int(logs.min(initial=0)) + 1, 0)


def _codes(*keys: IntArray) -> tuple[IntArray, int]:
    """Return the number of each distinct combination, counted from 0."""
    if not keys[0].size:
        return np.zeros(0, np.int64), 0
    combined = np.zeros(keys[0].size, np.int64)
    for key in keys:
        low = int(key.min())
        span = int(key.max()) - low + 1
        combined = combined * span + (key - low)
        if combined.max() > 2**40:
            combined = np.unique(combined, return_inverse=True)[1]
    span = int(combined.max()) + 1
    if span <= 4 * combined.size + 1_000_000:  # counting is much faster than sorting
        used = np.zeros(span, np.bool_)
        used[combined] = True
        rank = np.cumsum(used) - 1
        return rank[combined], int(rank[-1]) + 1
    distinct, codes = np.unique(combined, return_inverse=True)
    return codes.astype(np.int64), int(distinct.size)


def make_cells(problem: Problem, edges_s: FloatArray, *, detail: float, by_value: bool) -> Cells:
    """Merge the columns of a problem.

    Parameters
    ----------
    problem : Problem
        Requests and pieces.
    edges_s : ndarray of float64, shape (windows + 1,)
        The windows [s].
    detail : float
        Logarithmic bins per factor of e; ``inf``: nothing is merged.
    by_value : bool
        Whether requests must also be alike in value per work (where some may be refused).

    Returns
    -------
    Cells
    """
    first, last = request_windows(problem, edges_s)
    exact = math.isinf(detail)
    rows = problem.rows
    base_s = np.array(
        [
            row.prefill_s(problem.base_tokens, problem.base_pairs, problem.pool_share)
            + (0.0 if problem.decode_rows else _decode_s(problem, row))
            for row in rows
        ]
    )
    request = problem.piece_request
    if exact:
        code, count = np.arange(problem.size), problem.size
    else:
        keys = [first, last]
        if by_value:
            tokens = np.bincount(request, problem.piece_tokens, problem.size)
            density = problem.value_tokens / np.maximum(base_s[0], 1e-9)
            keys += [
                _bins(density, detail),
                _bins(tokens / problem.value_tokens, detail),
            ]
        code, count = _codes(*keys)

    def total(values: FloatArray) -> FloatArray:
        return np.asarray(np.bincount(code, values, count), dtype=np.float64)

    def representative(values: IntArray, codes: IntArray, size: int) -> IntArray:
        result = np.zeros(size, np.int64)
        result[codes] = values
        return result

    alone = problem.fastest_prefill
    prefill_s = alone.prefill_token_s * problem.base_tokens
    prefill_s = prefill_s + alone.prefill_pair_s * problem.base_pairs
    decode_s = problem.decode_tokens * problem.decode_step_s
    split = bool(problem.decode_rows)
    pin = problem.pinned_tokens * (prefill_s if split else prefill_s + decode_s)
    decode_pin = problem.decode_pinned_tokens * decode_s if split else np.zeros(problem.size)
    least_nic = problem.nic_work_per_token.min(initial=np.inf)

    piece = _piece_cells(problem, edges_s, code, detail)
    return Cells(
        release=representative(first, code, count),
        due=representative(last, code, count),
        value=total(problem.value_tokens),
        prompt=total(problem.prompt_tokens),
        requests=total(np.ones(problem.size)),
        slack_s=total(problem.slack_s),
        compute=np.array([total(row) for row in base_s]),
        decode_compute=np.array(
            [total(_decode_s(problem, row)) for row in problem.decode_rows]
        ).reshape(len(problem.decode_rows), count),
        pin=total(pin),
        decode_pin=total(decode_pin),
        written=total(problem.written_tokens * least_nic),
        moved_nic=total(problem.moved_nic_bytes),
        moved_pcie=total(problem.moved_pcie_bytes),
        **piece,
    )


def _piece_cells(
    problem: Problem, edges_s: FloatArray, owner: IntArray, detail: float
) -> dict[str, Any]:
    windows = edges_s.size - 1
    start = np.clip(problem.gap_start_s, edges_s[0], edges_s[-1])
    end = np.clip(problem.gap_end_s, edges_s[0], edges_s[-1])
    first = np.clip(np.searchsorted(edges_s, start, side="right") - 1, 0, windows - 1)
    last = np.clip(np.searchsorted(edges_s, end, side="left") - 1, 0, windows - 1)
    last = np.maximum(last, first)
    same = first == last
    length_first = np.where(same, end - start, edges_s[first + 1] - start)
    length_last = np.where(same, 0.0, end - edges_s[last])
    tokens = problem.piece_tokens
    request = problem.piece_request
    share = problem.pool_share[request]
    saved = np.array([row.prefill_s(tokens, problem.piece_pairs, share) for row in problem.rows])
    alone = problem.fastest_prefill
    alone_s = alone.prefill_token_s * tokens + alone.prefill_pair_s * problem.piece_pairs
    if math.isinf(detail):
        code, count = np.arange(tokens.size), tokens.size
    else:
        per_token = saved[0] / np.maximum(tokens, 1e-9)
        code, count = _codes(
            owner[request],
            first,
            last,
            _bins(length_first, detail),
            _bins(length_last, detail),
            _bins(per_token, 2 * detail),
        )

    def total(values: FloatArray) -> FloatArray:
        return np.asarray(np.bincount(code, values, count), dtype=np.float64)

    def representative(values: IntArray) -> IntArray:
        result = np.zeros(count, np.int64)
        result[code] = values
        return result

    return {
        "owner": representative(owner[request]),
        "tokens": total(tokens),
        "gap_first": representative(first),
        "gap_last": representative(last),
        "occupancy_first": total(tokens * length_first),
        "occupancy_inner": total(tokens * (last - first > 1)),
        "occupancy_last": total(tokens * length_last),
        "recompute": np.array([total(row) for row in saved]).reshape(len(problem.rows), count),
        "recompute_pin": total(problem.pinned_tokens[request] * alone_s),
        "recompute_s": total(alone_s),
        "nic": total(tokens * problem.nic_work_per_token[request]),
        "pcie": total(tokens * problem.kv_bytes_per_token),
    }
