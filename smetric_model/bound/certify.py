r"""What prices prove: weak duality on every single request and piece, nothing aggregated.

Let λ ≥ 0 be prices of the capacities over time.  Whatever a schedule does, the capacity it uses is
worth at most Σ λ·capacity, and serving request r within its SLO costs at least

.. math:: c_r(\lambda) = \min_{\text{modes}} \bigl(\text{base} + \sum_{\text{pieces}}
          \min(\text{local}, \text{fetch}, \text{recompute})\bigr),

work being done in the cheapest window between arrival and deadline.  Hence

.. math:: \sum_r v_r y_r \le \sum \lambda\,\mathrm{capacity} + \sum_r \max(0, v_r - c_r(\lambda)),
          \qquad \theta \ge \frac{\sum_r c_r(\lambda)}{\sum\lambda\,\mathrm{capacity}} .

This holds for *any* prices: those of an inexact, aggregated or interrupted solve give a bound that
is weaker, never one that is wrong.  A solver's own objective is not looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numba import njit
from numpy.typing import NDArray

if TYPE_CHECKING:
    from smetric_model.bound.problem import Problem
    from smetric_model.bound.resources import Capacities
    from smetric_model.bound.rows import Row

__all__ = [
    "RESOURCES",
    "Costs",
    "Prices",
    "capacity_of",
    "capacity_value_s",
    "costs_of",
    "goodput_bound",
    "local_price",
    "request_windows",
    "row_capacity",
    "scale_bound",
]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: resources with a capacity and a price; ``compute`` and ``decode_compute`` have several rows
RESOURCES = ("compute", "decode_compute", "local", "decode_local", "global", "nic", "pcie")

#: floating-point sums are trusted to this share of the sum of their terms
_ROUNDING = 1e-10


@dataclass(frozen=True, eq=False)
class Prices:
    """Prices of capacity in each window; per unit of capacity and second.

    Attributes
    ----------
    edges_s : ndarray of float64, shape (windows + 1,)
        Where windows begin and end [s].
    capacity_s : ndarray of float64, shape (windows,)
        Seconds for which each window gives capacity: its length, unless one window stands for a
        steady state [s].
    compute, decode_compute : ndarray of float64, shape (rows, windows)
        Per second of a row: of engines, and of their pools where it counts these too.
    local, decode_local, global_, nic, pcie : ndarray of float64, shape (windows,)
        Per token second; per byte.  ``global_``: of the global tier, or (write-back) of both
        tiers together.
    """

    edges_s: FloatArray
    capacity_s: FloatArray
    compute: FloatArray
    decode_compute: FloatArray
    local: FloatArray
    decode_local: FloatArray
    global_: FloatArray
    nic: FloatArray
    pcie: FloatArray

    @classmethod
    def zero(cls, problem: Problem, edges_s: FloatArray, capacity_s: FloatArray) -> Prices:
        """Prices of nothing: everything is free."""
        none = np.zeros(capacity_s.size)
        return cls(
            edges_s,
            capacity_s,
            np.zeros((len(problem.rows), none.size)),
            np.zeros((len(problem.decode_rows), none.size)),
            none,
            none,
            none,
            none,
            none,
        )

    def scaled(self, factor: float) -> Prices:
        """All prices times a factor."""
        names = ("compute", "decode_compute", "local", "decode_local", "global_", "nic", "pcie")
        return replace(self, **{name: factor * getattr(self, name) for name in names})

    def non_negative(self) -> Prices:
        """Prices below 0, or not finite, set to 0."""
        names = ("compute", "decode_compute", "local", "decode_local", "global_", "nic", "pcie")
        return replace(
            self,
            **{
                name: np.maximum(np.nan_to_num(getattr(self, name), posinf=0.0, neginf=0.0), 0.0)
                for name in names
            },
        )


def capacity_of(capacities: Capacities, write_through: bool, resource: str) -> float:
    """Capacity of a resource of :data:`RESOURCES`; ``inf`` where it does not limit."""
    if resource == "compute":
        return capacities.compute
    if resource == "decode_compute":
        return capacities.decode_compute
    if resource == "local":
        return capacities.local_tokens
    if resource == "decode_local":
        return capacities.decode_local_tokens
    if resource == "global":
        both = 0.0 if write_through else capacities.local_tokens + capacities.decode_local_tokens
        return capacities.global_tokens + both
    return capacities.nic_bytes_per_s if resource == "nic" else capacities.pcie_bytes_per_s


def row_capacity(problem: Problem, resource: str, row: int) -> tuple[float, float]:
    """Capacity of one row, and the part of it that is KV: engines, and their pools beside them."""
    capacity = capacity_of(problem.capacities, problem.write_through, resource)
    if resource != "compute":
        return capacity, 0.0
    weight = problem.rows[row].pool_weight
    pools = weight * problem.capacities.local_tokens / problem.pool_tokens
    return (1.0 - weight) * capacity + pools, pools


def capacity_value_s(problem: Problem, prices: Prices) -> dict[str, FloatArray]:
    """Value of a second of all capacity in each window, by resource that has a price."""
    result: dict[str, FloatArray] = {}
    nothing = np.zeros(prices.capacity_s.size)
    for resource in RESOURCES:
        values = getattr(prices, "global_" if resource == "global" else resource)
        capacity = capacity_of(problem.capacities, problem.write_through, resource)
        if resource == "compute":
            # rows of engine time and pool: each part under its own name
            for row, price in enumerate(values):
                both, pools = row_capacity(problem, resource, row)
                for name, part in (("compute", both - pools), ("local", pools)):
                    if part > 0 and price.any():
                        result[name] = result.get(name, nothing) + price * part
        elif values.any():
            total = values.sum(axis=0) if values.ndim == 2 else values
            result[resource] = result.get(resource, nothing) + total * capacity
    return result


def capacity_value(problem: Problem, prices: Prices) -> dict[str, float]:
    """Value of all capacity at its prices, by resource."""
    values = capacity_value_s(problem, prices)
    return {name: float((value * prices.capacity_s).sum()) for name, value in values.items()}


def local_price(problem: Problem, prices: Prices) -> FloatArray:
    """Price of keeping a token in the local tier in each window, over all rows that charge it."""
    both = 0.0 if problem.write_through else prices.global_
    result = prices.local + both
    for row, price in zip(problem.rows, prices.compute, strict=True):
        if row.pool_weight > 0:
            result = result + price * (row.pool_weight / problem.pool_tokens)
    return np.asarray(result)


@dataclass(frozen=True, eq=False)
class Costs:
    """What serving costs at given prices.

    Attributes
    ----------
    request : ndarray of float64, shape (requests,)
        Least cost of serving each, c_r.
    mode : ndarray of int8, shape (pieces,)
        Cheapest mode: 0 local, 1 fetch, 2 recompute (before the latency cut).
    capacity : dict of str to float
        Value of the capacities, by resource.
    """

    request: FloatArray
    mode: NDArray[np.int8]
    capacity: dict[str, float]


def request_windows(problem: Problem, edges_s: FloatArray) -> tuple[IntArray, IntArray]:
    """First and last window in which each request may be worked on."""
    last = edges_s.size - 2
    first = np.clip(np.searchsorted(edges_s, problem.arrival_s, side="right") - 1, 0, last)
    end = np.clip(np.searchsorted(edges_s, problem.due_s, side="left") - 1, 0, last)
    return first, np.maximum(end, first)


def _cheapest(price: FloatArray, first: IntArray, last: IntArray) -> FloatArray:
    """Least price in windows first … last, by doubling."""
    if price.size == 1 or not price.any():
        return np.full(first.size, price.min())
    table = [price]
    width = 1
    while 2 * width <= price.size:
        below = table[-1]
        table.append(np.minimum(below[:-width], below[width:]))
        width *= 2
    level = np.floor(np.log2(last - first + 1)).astype(np.int64)
    result = np.empty(first.size)
    for k, row in enumerate(table):
        here = level == k
        result[here] = np.minimum(row[first[here]], row[last[here] - (1 << k) + 1])
    return result


def _between(
    price: FloatArray, edges_s: FloatArray, start: FloatArray, end: FloatArray
) -> FloatArray:
    """Integral of a price from start to end, nothing outside the windows."""
    if not price.any():
        return np.zeros(start.size)
    if price.size == 1:
        low, high = edges_s[0], edges_s[1]
        inside = np.maximum(np.clip(end, low, high) - np.clip(start, low, high), 0.0)
        return np.asarray(price[0] * inside)
    total = np.concatenate(([0.0], np.cumsum(price * np.diff(edges_s))))
    return np.asarray(np.interp(end, edges_s, total) - np.interp(start, edges_s, total))


def costs_of(
    problem: Problem, prices: Prices, *, within_slo: bool = True, writes: bool = False
) -> Costs:
    """Work out what serving each request costs at least.

    Parameters
    ----------
    problem : Problem
        Requests and pieces.
    prices : Prices
        Any, not below 0.
    within_slo : bool, default True
        Whether the TTFT SLO limits what may be recomputed.
    writes : bool, default False
        Whether new KV must be written to the other nodes (steady state with write-through).

    Returns
    -------
    Costs
    """
    first, last = request_windows(problem, prices.edges_s)
    request = problem.piece_request
    cost = np.zeros(problem.size)
    recompute = np.zeros(request.size)
    tokens = problem.piece_tokens
    share = problem.pool_share
    for row, price in zip(problem.rows, prices.compute, strict=True):
        if not price.any():
            continue
        unit = _cheapest(price, first, last)
        base = row.prefill_s(problem.base_tokens, problem.base_pairs, share)
        if not problem.decode_rows:
            base = base + _decode_s(problem, row)
        cost += unit * base
        recompute += unit[request] * row.prefill_s(tokens, problem.piece_pairs, share[request])
    for row, price in zip(problem.decode_rows, prices.decode_compute, strict=True):
        if price.any():
            cost += _cheapest(price, first, last) * _decode_s(problem, row)
    alone = problem.fastest_prefill
    base_s = alone.prefill_token_s * problem.base_tokens + alone.prefill_pair_s * problem.base_pairs
    piece_s = alone.prefill_token_s * tokens + alone.prefill_pair_s * problem.piece_pairs
    decode_s = problem.decode_tokens * problem.decode_step_s
    both = np.zeros(prices.local.size) if problem.write_through else prices.global_
    pin = _cheapest(prices.local + both, first, last) * problem.pinned_tokens
    recompute += pin[request] * piece_s
    if problem.decode_rows:
        cost += pin * base_s
        pin = _cheapest(prices.decode_local + both, first, last) * problem.decode_pinned_tokens
        cost += pin * decode_s
    else:
        cost += pin * (base_s + decode_s)
    start, end = problem.gap_start_s, problem.gap_end_s
    local = tokens * _between(local_price(problem, prices), prices.edges_s, start, end)
    nic = _cheapest(prices.nic, first, last)
    pcie = _cheapest(prices.pcie, first, last)
    cost += nic * problem.moved_nic_bytes + pcie * problem.moved_pcie_bytes
    link = nic * problem.nic_work_per_token + pcie * problem.kv_bytes_per_token
    fetch = tokens * (_between(prices.global_, prices.edges_s, start, end) + link[request])
    if problem.capacities.global_tokens == 0:
        fetch = np.full(fetch.shape, np.inf)
    if writes and problem.write_through and problem.capacities.global_tokens > 0:
        cost += nic * problem.nic_work_per_token.min(initial=np.inf) * problem.written_tokens
    hit = np.minimum(local, fetch)
    # what costs the same is kept where it is
    mode = np.where(recompute < hit, 2, np.where(local <= fetch, 0, 1)).astype(np.int8)
    chosen = np.minimum(hit, recompute)
    cost += np.bincount(request, chosen, problem.size)
    if within_slo:
        spent = np.bincount(request, np.where(mode == 2, piece_s, 0.0), problem.size)
        over = np.flatnonzero((spent > problem.slack_s) & problem.hopeful)
        if over.size:
            cost[over] += _forced_hits(
                over, problem.offsets, mode, hit, recompute, piece_s, spent, problem.slack_s
            )
    return Costs(cost, mode, capacity_value(problem, prices))


def _decode_s(problem: Problem, row: Row) -> FloatArray:
    """Weighted time of each request's decode steps in one row, kept for the next call."""
    cache: dict[int, FloatArray] = problem.__dict__.setdefault("_decode_cache", {})
    key = id(row)
    if key not in cache:
        cache[key] = np.asarray(
            row.decode_s(problem.decode_tokens, problem.decode_keys, problem.pool_share)
        )
    return cache[key]


@njit(cache=True)
def _forced_hits(  # type: ignore[no-untyped-def]
    over, offsets, mode, hit, recompute, piece_s, spent, slack_s
):
    """Least extra cost of recomputing no longer than the SLO allows: a fractional knapsack."""
    extra = np.zeros(over.size)
    for k in range(over.size):
        request = over[k]
        excess = spent[request] - slack_s[request]
        low, high = offsets[request], offsets[request + 1]
        taken = np.zeros(high - low, np.bool_)
        while excess > 0:
            best, at = np.inf, -1
            for piece in range(low, high):
                if mode[piece] == 2 and not taken[piece - low] and piece_s[piece] > 0:
                    rate = (hit[piece] - recompute[piece]) / piece_s[piece]
                    if rate < best or at < 0:
                        best, at = rate, piece
            if at < 0:
                break
            taken[at - low] = True
            part = min(1.0, excess / piece_s[at])
            extra[k] += part * max(hit[at] - recompute[at], 0.0)
            excess -= piece_s[at]
    return extra


def goodput_bound(problem: Problem, prices: Prices) -> tuple[float, Costs]:
    """Most tokens within SLO that any schedule can serve, proved by the prices.

    Parameters
    ----------
    problem : Problem
        Requests and pieces.
    prices : Prices
        Any.

    Returns
    -------
    bound_tokens : float
        Tokens of requests within SLO, rounded up [tokens].
    costs : Costs
    """
    prices = prices.non_negative()
    costs = costs_of(problem, prices)
    gain = np.where(problem.hopeful, problem.value_tokens - costs.request, 0.0)
    terms = [float(np.maximum(gain, 0.0).sum()), *costs.capacity.values()]
    scale = float(np.abs(problem.value_tokens).sum()) + sum(costs.capacity.values())
    bound = min(sum(terms) + _ROUNDING * scale, float(problem.value_tokens[problem.hopeful].sum()))
    return bound, costs


def scale_bound(
    problem: Problem,
    prices: Prices,
    *,
    within_slo: bool = False,
    writes: bool = False,
    served_ratio: float = 1.0,
) -> tuple[float, Costs]:
    """Least multiple of the capacities that serves the requests, proved by the prices.

    Parameters
    ----------
    problem : Problem
        Requests and pieces.
    prices : Prices
        Any.
    within_slo, writes : bool
        As in :func:`costs_of`.
    served_ratio : float, default 1
        Share of the requests that must be served; the dearest are left out.

    Returns
    -------
    theta : float
        Rounded down; 1/θ is a bound on the multiple of the load that the cluster can carry.
    costs : Costs
    """
    prices = prices.non_negative()
    costs = costs_of(problem, prices, within_slo=within_slo, writes=writes)
    value = sum(costs.capacity.values())
    if not value > 0:
        return 0.0, costs
    if np.isinf(value):  # a price on capacity without end proves nothing
        return 0.0, costs
    needed = costs.request
    if within_slo:
        needed = np.where(problem.hopeful, needed, 0.0)
    if served_ratio < 1:
        count = int(np.ceil(served_ratio * problem.size - 1e-9))
        needed = np.partition(needed, max(count - 1, 0))[:count]
    total = float(needed.sum())
    return max(total / value * (1.0 - _ROUNDING), 0.0), costs
