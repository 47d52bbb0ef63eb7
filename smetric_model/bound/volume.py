r"""Volume bound: time averages only, so that the price of time is the same everywhere.

Largest multiple α of the load, α = 1/θ, with

.. math:: \theta\,\mathrm{capacity}_k\,T \ge \sum_r \mathrm{usage}_{r,k}

for every resource k over the window's length T.  At given prices each piece of reusable prefix is
kept or not by thresholds on its gap (PFOO-L with several resources: Berger, Beckmann,
Harchol-Balter, SIGMETRICS 2018): with ``link`` the price of fetching a token and ``saved`` that of
computing it, local iff gap (π_L − π_G) ≤ link and gap π_L ≤ saved; else fetched iff
gap π_G + link ≤ saved; else recomputed.  The bound is the concave function Σ_r c_r(π) of a handful
of prices at its maximum.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from smetric_model.bound.cells import make_cells
from smetric_model.bound.certify import (
    RESOURCES,
    Costs,
    Prices,
    _decode_s,
    capacity_of,
    local_price,
    row_capacity,
    scale_bound,
)
from smetric_model.bound.program import LinearProgram, build_program, prices_of
from smetric_model.bound.solvers import Solution, SolverOptions, solve
from smetric_model.errors import SolveError

if TYPE_CHECKING:
    from smetric_model.bound.problem import Problem

__all__ = [
    "Thresholds",
    "Volume",
    "steady_window",
    "usage_of",
    "volume_bound",
    "volume_by_thresholds",
    "volume_program",
]

FloatArray = NDArray[np.float64]

#: Merging of alike columns: bins per factor of e.
DETAIL = 4.0


@dataclass(frozen=True)
class Thresholds:
    """Where the cheapest mode changes, at the prices of a volume bound.

    Attributes
    ----------
    local_gap_s : float
        A piece is not kept in the local tier over a longer gap than this where it can be fetched
        [s].
    fetch_gap_s, recompute_gap_s : float
        A token at the middle of the reused tokens is not fetched after a longer gap, or (without a
        global tier) not kept locally [s].
    """

    local_gap_s: float
    fetch_gap_s: float
    recompute_gap_s: float


@dataclass(frozen=True, eq=False)
class Volume:
    """A volume bound and what proves it.

    Attributes
    ----------
    load_multiple : float
        α: no schedule carries more than this multiple of the window's load.
    rate_rps, total_tps : float
        The same as requests and as prompt and output tokens per second of the cluster.
    elasticity : dict of str to float
        d ln α / d ln capacity by resource; they sum to 1.
    prices : Prices
        That prove it.
    costs : Costs
        At these prices.
    thresholds : Thresholds
        When KV is kept where.
    status : str
        ``optimal``; or what happened to the solver, the bound being a weaker one then.
    build_s, solve_s : float
        Wall time of the linear program [s].
    """

    load_multiple: float
    rate_rps: float
    total_tps: float
    elasticity: dict[str, float]
    prices: Prices
    costs: Costs
    thresholds: Thresholds
    status: str
    build_s: float = 0.0
    solve_s: float = 0.0
    notes: list[str] = field(default_factory=list)


def steady_window(problem: Problem) -> tuple[FloatArray, FloatArray]:
    """One window that holds every gap and deadline, with the capacity of the real window."""
    low = min(problem.start_s, float(problem.gap_start_s.min(initial=problem.start_s)))
    high = max(problem.end_s, float(problem.due_s.max(initial=problem.end_s)))
    return np.array([low, high]), np.array([problem.window_s])


def volume_program(
    problem: Problem, *, within_slo: bool = False, detail: float = DETAIL
) -> tuple[LinearProgram, FloatArray, FloatArray]:
    """Write the volume bound as a linear program.

    Parameters
    ----------
    problem : Problem
        Requests and pieces.
    within_slo : bool, default False
        Whether each request must meet its TTFT SLO.
    detail : float
        Merging of columns; ``inf``: none.

    Returns
    -------
    program : LinearProgram
    edges_s, capacity_s : ndarray
        Its one window.
    """
    edges_s, capacity_s = steady_window(problem)
    if within_slo and not problem.hopeful.all() and problem.hopeful.any():
        problem = problem.take(problem.hopeful)
    cells = make_cells(problem, edges_s, detail=detail, by_value=False)
    program = build_program(
        problem, cells, edges_s, capacity_s, scale=True, within_slo=within_slo, writes=True
    )
    return program, edges_s, capacity_s


def volume_bound(
    problem: Problem,
    options: SolverOptions | None = None,
    *,
    within_slo: bool = False,
    detail: float = DETAIL,
    served_ratio: float = 1.0,
) -> Volume:
    """Bound the load that a cluster can carry, on average over time.

    Parameters
    ----------
    problem : Problem
        Requests and pieces.
    options : SolverOptions, optional
        Solver and tolerances.
    within_slo : bool, default False
        Whether each request must meet its TTFT SLO (else any latency will do).
    detail : float
        Merging of columns in the program that proposes the prices.
    served_ratio : float, default 1
        Share of the requests that must be served.

    Returns
    -------
    Volume
        Proved by weak duality on all requests; if the solver fails, a weaker bound, from one
        resource at a time.

    Raises
    ------
    SpecError
        If there is no such solver.
    """
    import time

    start = time.perf_counter()
    program, edges_s, capacity_s = volume_program(problem, within_slo=within_slo, detail=detail)
    built = time.perf_counter()
    notes: list[str] = []
    candidates = single_prices(problem, edges_s, capacity_s)
    status = "optimal"
    try:
        solution: Solution = solve(program, options)
        candidates.append(prices_of(problem, program, edges_s, capacity_s, solution.duals))
        status = solution.status
    except SolveError as error:
        status = "failed"
        notes.append(f"{error}: the bound is that of one resource at a time")
    best = None
    for prices in reversed(candidates):
        theta, costs = scale_bound(
            problem, prices, within_slo=within_slo, writes=True, served_ratio=served_ratio
        )
        if best is None or theta > best[0]:
            best = theta, costs, prices
        if status == "optimal":
            break  # the program's own prices are the best there are
    assert best is not None
    theta, costs, prices = best
    return _volume(problem, theta, costs, prices, status, notes, built - start, time.perf_counter())


def _volume(
    problem: Problem,
    theta: float,
    costs: Costs,
    prices: Prices,
    status: str,
    notes: list[str],
    build_s: float,
    built: float,
) -> Volume:
    import time

    multiple = 1.0 / theta if theta > 0 else np.inf
    value = sum(costs.capacity.values())
    elasticity = {name: part / value for name, part in costs.capacity.items()} if value else {}
    prices = prices.scaled(1.0 / value) if value > 0 else prices
    return Volume(
        load_multiple=float(multiple),
        rate_rps=float(multiple * problem.size / problem.window_s),
        total_tps=float(multiple * problem.value_tokens.sum() / problem.window_s),
        elasticity=elasticity,
        prices=prices,
        costs=costs,
        thresholds=_thresholds(problem, prices),
        status=status,
        build_s=build_s,
        solve_s=time.perf_counter() - built,
        notes=notes,
    )


def single_prices(problem: Problem, edges_s: FloatArray, capacity_s: FloatArray) -> list[Prices]:
    """Prices that are 1 for one resource and 0 for the others: the weakest valid bounds."""
    result = []
    for name in RESOURCES:
        if not 0 < capacity_of(problem.capacities, problem.write_through, name) < np.inf:
            continue
        zero = Prices.zero(problem, edges_s, capacity_s)
        attribute = "global_" if name == "global" else name
        value = getattr(zero, attribute)
        for row in range(value.shape[0] if value.ndim == 2 else 1):
            one = value.copy()
            if one.ndim == 2:
                one[row] = 1.0
            else:
                one[:] = 1.0
            result.append(replace(zero, **{attribute: one}))
    return result


def _thresholds(problem: Problem, prices: Prices) -> Thresholds:
    local, stored = float(local_price(problem, prices)[0]), float(prices.global_[0])
    request = problem.piece_request
    total = problem.piece_tokens.sum()
    if not total > 0:
        return Thresholds(np.nan, np.nan, np.nan)
    work = float((problem.nic_work_per_token[request] * problem.piece_tokens).sum() / total)
    link = float(prices.nic[0]) * work + float(prices.pcie[0]) * problem.kv_bytes_per_token
    saved = 0.0
    held = problem.pool_share[request]
    for row, price in zip(problem.rows, prices.compute[:, 0], strict=True):
        again = row.prefill_s(problem.piece_tokens, problem.piece_pairs, held)
        saved += price * float(again.sum() / total)

    def ratio(above: float, below: float) -> float:
        if below <= 0:
            return float("inf") if above >= 0 else float("-inf")
        return float(above / below)

    has_tier = problem.capacities.global_tokens > 0
    return Thresholds(
        local_gap_s=ratio(link, local - stored) if has_tier else ratio(saved, local),
        fetch_gap_s=ratio(saved - link, stored) if has_tier else 0.0,
        recompute_gap_s=ratio(saved, local),
    )


def usage_of(
    problem: Problem, mode: NDArray[np.int8], writes: bool = True
) -> dict[str, FloatArray]:
    """Capacity that a choice of modes uses in steady state, over the window.

    Parameters
    ----------
    problem : Problem
        Requests and pieces, all served.
    mode : ndarray of int8, shape (pieces,)
        0 local, 1 fetch, 2 recompute.
    writes : bool, default True
        Whether new KV must be written to other nodes.

    Returns
    -------
    dict of str to ndarray
        Seconds of full use of each resource, one a row; for resources that have a limit [s].
    """
    request = problem.piece_request
    tokens, pairs = problem.piece_tokens, problem.piece_pairs
    gap = problem.gap_end_s - problem.gap_start_s
    local, fetch, again = (mode == k for k in range(3))
    alone = problem.fastest_prefill
    base_s = alone.prefill_token_s * problem.base_tokens + alone.prefill_pair_s * problem.base_pairs
    piece_s = alone.prefill_token_s * tokens + alone.prefill_pair_s * pairs
    decode_pin = float(
        (problem.decode_pinned_tokens * problem.decode_tokens * problem.decode_step_s).sum()
    )
    pin = float((problem.pinned_tokens * base_s).sum())
    pin += float((problem.pinned_tokens[request] * piece_s)[again].sum())
    kept_local = float((tokens * gap)[local].sum())
    share = problem.pool_share
    used: dict[str, list[float]] = {
        "compute": [
            float(
                row.prefill_s(problem.base_tokens, problem.base_pairs, share).sum()
                + row.prefill_s(tokens, pairs, share[request])[again].sum()
                + (0.0 if problem.decode_rows else _decode_s(problem, row).sum())
                + row.pool_weight * kept_local / problem.pool_tokens
            )
            for row in problem.rows
        ],
        "decode_compute": [float(_decode_s(problem, row).sum()) for row in problem.decode_rows],
    }
    kept_global = float((tokens * gap)[fetch].sum())
    split = bool(problem.decode_rows)
    used["local"] = [kept_local + pin + (0.0 if split else decode_pin)]
    used["decode_local"] = [decode_pin] if split else []
    both = 0.0 if problem.write_through else used["local"][0] + (decode_pin if split else 0.0)
    used["global"] = [kept_global + both]
    nic = float((tokens * problem.nic_work_per_token[request])[fetch].sum())
    nic += float(problem.moved_nic_bytes.sum())
    if writes and problem.write_through and problem.capacities.global_tokens > 0:
        nic += float(problem.nic_work_per_token.min() * problem.written_tokens.sum())
    used["nic"] = [nic]
    moved = float(tokens[fetch].sum()) * problem.kv_bytes_per_token
    used["pcie"] = [moved + float(problem.moved_pcie_bytes.sum())]
    result = {}
    for name, values in used.items():
        capacity = capacity_of(problem.capacities, problem.write_through, name)
        if values and 0 < capacity < np.inf:
            result[name] = np.array(
                [value / row_capacity(problem, name, row)[0] for row, value in enumerate(values)]
            )
    return result


def volume_by_thresholds(
    problem: Problem, *, tolerance: float = 1e-7, most_cuts: int = 200
) -> tuple[float, float, Volume]:
    """Find the same bound without columns: cutting planes on the few prices.

    At the prices of each round the thresholds say what every piece does; what that uses is a plane
    that bounds the concave dual from above (Kelley 1960).

    Parameters
    ----------
    problem : Problem
        Requests and pieces.
    tolerance : float, default 1e-7
        Relative gap at which to stop.
    most_cuts : int, default 200
        Rounds at most.

    Returns
    -------
    theta_low, theta_high : float
        The least multiple of the capacities lies between the two.
    volume : Volume
        Of the lower one: the certified bound.
    """
    import time

    from scipy.optimize import linprog

    start = time.perf_counter()
    edges_s, capacity_s = steady_window(problem)
    window = float(capacity_s[0])
    starts = single_prices(problem, edges_s, capacity_s)
    cuts: list[FloatArray] = []
    best: tuple[float, Costs, Prices] | None = None
    high = np.inf
    queue = list(starts)
    order: list[tuple[str, int]] = []
    for _ in range(most_cuts):
        if queue:
            prices = queue.pop()
        else:
            # maximise t below all planes, over prices whose capacity is worth 1
            size = cuts[0].size
            rows = np.column_stack([-np.array(cuts), np.ones(len(cuts))])
            found = linprog(
                np.append(np.zeros(size), -1.0),
                A_ub=rows,
                b_ub=np.zeros(len(cuts)),
                A_eq=np.append(np.full(size, window), 0.0)[None, :],
                b_eq=[1.0],
                bounds=[(0, None)] * size + [(None, None)],
                method="highs",
            )
            if found.x is None:
                break
            high = min(high, float(found.x[-1]))
            if best is not None and high - best[0] <= tolerance * high:
                break
            prices = _from_vector(problem, edges_s, capacity_s, order, found.x[:-1])
        theta, costs = scale_bound(problem, prices, writes=True)
        if best is None or theta > best[0]:
            best = theta, costs, prices
        used = usage_of(problem, costs.mode)
        order = [(name, row) for name, values in used.items() for row in range(values.size)]
        cuts.append(np.concatenate(list(used.values())))
    assert best is not None
    theta, costs, prices = best
    volume = _volume(problem, theta, costs, prices, "optimal", [], 0.0, start)
    return theta, high, volume


def _from_vector(
    problem: Problem,
    edges_s: FloatArray,
    capacity_s: FloatArray,
    order: list[tuple[str, int]],
    values: FloatArray,
) -> Prices:
    prices = Prices.zero(problem, edges_s, capacity_s)
    arrays = {
        name: np.array(getattr(prices, "global_" if name == "global" else name), copy=True)
        for name in RESOURCES
    }
    for (name, row), value in zip(order, values.tolist(), strict=True):
        value = value / row_capacity(problem, name, row)[0]
        if arrays[name].ndim == 2:
            arrays[name][row, 0] = value
        else:
            arrays[name][0] = value
    arrays["global_"] = arrays.pop("global")
    return replace(prices, **arrays)
