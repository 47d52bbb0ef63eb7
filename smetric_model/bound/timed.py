"""Time-resolved bounds: capacity holds in every window, work moves no further than its SLO allows.

Two questions on the same columns and rows: the least multiple of the capacities that serves all
requests within SLO (``scale_bound`` with time), and the most tokens within SLO at the capacities as
they are (the goodput bound).  Long horizons are cut into blocks that are solved one by one: rows
that reach over a block's end are dropped, which only weakens a bound.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from smetric_model.bound.cells import Cells, make_cells
from smetric_model.bound.certify import (
    Costs,
    Prices,
    goodput_bound,
    scale_bound,
)
from smetric_model.bound.program import LinearProgram, build_program, prices_of
from smetric_model.bound.solvers import SolverOptions, solve
from smetric_model.errors import SolveError, SpecError

if TYPE_CHECKING:
    from smetric_model.bound.problem import Problem

__all__ = ["Timed", "timed_bound", "windows_of"]

FloatArray = NDArray[np.float64]

#: Requests of one block, and bins per factor of e: programs of some thousands of cells, solved in
#: seconds.  The least multiple of the capacities loses more by cutting time, less by merging.
BLOCK_REQUESTS = {"goodput": 10_000, "scale": 25_000}
DETAIL = {"goodput": 1.0, "scale": 0.5}


@dataclass(frozen=True, eq=False)
class Timed:
    """A time-resolved bound and what proves it.

    Attributes
    ----------
    objective : {'goodput', 'scale'}
    bound_tokens, total_within_slo_tps, served_ratio : float
        Most tokens within SLO of the window's requests; the same over the window; the same over
        the tokens offered (``goodput``; NaN else).
    load_multiple : float
        1/θ: no schedule serves this multiple of all requests within SLO (``scale``; NaN else).
        Holds where each session is replaced by copies, not for other ways to raise a rate.
    block_theta : ndarray of float64
        θ of each block (``scale``).
    prices : Prices
        That prove it; in tokens (``goodput``), or such that all capacity is worth 1.
    costs : Costs
        At these prices.
    plan : dict of str to float
        What the program's own solution does: tokens by mode, value served (not a bound).
    interrupted : bool
        Whether an interrupt ended it.
    status : str
        ``optimal``; ``partial`` where some block has no answer and weaker prices stand in.
    objective_tokens : float
        The merged program's own objective, for comparison; NaN where a block has none.
    build_s, solve_s : float
        Wall time, all blocks [s].
    size : tuple of int
        Rows, columns and entries of the largest block.
    notes : list of str
    """

    objective: Literal["goodput", "scale"]
    bound_tokens: float
    total_within_slo_tps: float
    served_ratio: float
    load_multiple: float
    block_theta: FloatArray
    prices: Prices
    costs: Costs
    plan: dict[str, float]
    status: str
    objective_tokens: float
    build_s: float
    solve_s: float
    size: tuple[int, int, int]
    interrupted: bool = False
    notes: list[str] = field(default_factory=list)


def windows_of(problem: Problem, window_s: float) -> FloatArray:
    """Edges of windows: even ones over the problem's window, doubling ones until all is due.

    Parameters
    ----------
    problem : Problem
        Its window and deadlines.
    window_s : float
        Length of a window [s].

    Returns
    -------
    ndarray of float64, shape (windows + 1,)

    Raises
    ------
    SpecError
        If the length is not positive.
    """
    if not 0 < window_s < np.inf:
        raise SpecError(f"window_s = {window_s!r}: a finite number above 0 is needed")
    count = max(1, int(np.ceil(problem.window_s / window_s - 1e-9)))
    edges = np.linspace(problem.start_s, problem.end_s, count + 1)
    last = float(problem.due_s.max(initial=problem.end_s))
    tail: list[float] = []
    width = window_s
    while problem.end_s + sum(tail) < last:
        tail.append(width)
        width *= 2
    return np.concatenate((edges, problem.end_s + np.cumsum(tail)))


def timed_bound(
    problem: Problem,
    options: SolverOptions | None = None,
    *,
    objective: Literal["goodput", "scale"] = "goodput",
    window_s: float = 60.0,
    detail: float | None = None,
    block_requests: float | None = None,
    fallback: Prices | None = None,
    progress: Callable[[str], None] | None = None,
) -> Timed:
    """Bound what any schedule serves within SLO, window by window.

    Parameters
    ----------
    problem : Problem
        Requests and pieces.
    options : SolverOptions, optional
        Solver, tolerances, time limit of each block.
    objective : {'goodput', 'scale'}
        Most tokens within SLO, or least multiple of the capacities that serves all.
    window_s : float, default 60
        Length of a window; work is free inside it [s].
    detail : float, optional
        Merging of columns: bins per factor of e; ``inf``: none.  Default :data:`DETAIL`.
    block_requests : float, optional
        Requests of one block, about; ``inf``: one block.  Default :data:`BLOCK_REQUESTS`.
    fallback : Prices, optional
        Prices over one window (a volume bound's, normalised) for blocks without an answer.
    progress : callable, optional
        Told which block is being solved.

    Returns
    -------
    Timed
        After an interrupt, or where the solver fails or runs out of time, the blocks without an
        answer count with weaker prices: the result is a bound all the same.

    Raises
    ------
    SpecError
        If there is no such solver.
    """
    tell = progress or (lambda _text: None)
    detail = DETAIL[objective] if detail is None else detail
    block_requests = BLOCK_REQUESTS[objective] if block_requests is None else block_requests
    options = options or SolverOptions()
    if objective == "scale" and options.method == "choose":
        options = replace(options, method="ipm")
    rows = _rows_that_bind(problem, fallback)
    edges_s = windows_of(problem, window_s)
    inner = int(np.searchsorted(edges_s, problem.end_s - 1e-9))
    blocks = max(1, min(int(np.ceil(problem.size / block_requests)), inner))
    cuts = np.unique(np.round(np.linspace(0, inner, blocks + 1)).astype(int))
    scale = objective == "scale"
    solved: list[_Block] = []
    notes: list[str] = []
    build_s = solve_s = 0.0
    size = (0, 0, 0)
    stopped = False
    start_weak = _weak_prices(problem, edges_s, fallback, scale)
    for number, (low, high) in enumerate(itertools.pairwise(cuts.tolist())):
        inside = (problem.arrival_s >= edges_s[low]) & (problem.arrival_s < edges_s[high])
        if high == inner:
            inside |= problem.arrival_s >= edges_s[high]
        inside &= problem.hopeful  # the others cost nothing and bring nothing
        part = problem if inside.all() else problem.take(inside)
        if not part.size:
            continue
        reach = int(np.searchsorted(edges_s, part.due_s.max(), side="left"))
        few = replace(part, rows=tuple(part.rows[k] for k in rows))
        local_edges = edges_s[low : max(reach, high) + 1]
        block = _Block(part, low, high, local_edges, None, np.nan, {})
        if not stopped:
            tell(f"block {number + 1} of {blocks}: {part.size:,} requests")
            try:
                start = time.perf_counter()
                capacity_s = np.diff(local_edges)
                cells = make_cells(few, local_edges, detail=detail, by_value=not scale)
                program = build_program(few, cells, local_edges, capacity_s, scale=scale)
                built = time.perf_counter()
                build_s += built - start
                size = max(size, program.size, key=lambda s: s[2])
                solution = solve(program, options)
                solve_s += time.perf_counter() - built
                prices = prices_of(few, program, local_edges, capacity_s, solution.duals)
                block.prices = _with_all_rows(prices, rows, len(part.rows))
                block.objective = solution.objective
                block.plan = _plan(cells, program, solution.x)
            except SolveError as error:
                notes.append(f"block {number + 1} of {blocks}: {error}; weaker prices stand in")
            except KeyboardInterrupt:
                notes.append(
                    f"interrupted at block {number + 1} of {blocks}; weaker prices from there"
                )
                stopped = True
        solved.append(block)
    status = "optimal" if all(b.prices is not None for b in solved) else "partial"
    plan: dict[str, float] = {}
    for block in solved:
        for name, value in block.plan.items():
            plan[name] = plan.get(name, 0.0) + value
    objective_value = sum(b.objective for b in solved)
    if scale:
        result = _scaled(
            problem, solved, start_weak, inner, plan, status, build_s, solve_s, size, notes
        )
        return replace(result, interrupted=stopped)
    # one set of prices for all: each block's own windows at its prices
    prices = _joined(problem, edges_s, solved, start_weak, inner)
    bound, costs = goodput_bound(problem, prices)
    weak, weak_costs = goodput_bound(problem, start_weak)
    if weak < bound:
        bound, costs, prices = weak, weak_costs, start_weak
    if len(solved) > 1:
        apart = sum(_block_goodput(block, start_weak)[0] for block in solved)
        bound = min(bound, apart)
    return Timed(
        objective="goodput",
        bound_tokens=float(bound),
        total_within_slo_tps=float(bound / problem.window_s),
        served_ratio=float(bound / problem.value_tokens.sum()),
        load_multiple=np.nan,
        block_theta=np.zeros(0),
        prices=prices,
        costs=costs,
        plan=plan,
        status=status,
        objective_tokens=-objective_value,
        build_s=build_s,
        solve_s=solve_s,
        size=size,
        interrupted=stopped,
        notes=notes,
    )


def _rows_that_bind(problem: Problem, fallback: Prices | None) -> list[int]:
    """Minorants that the volume bound prices: the others would only make the program larger."""
    if fallback is None or fallback.compute.shape[0] != len(problem.rows):
        return list(range(len(problem.rows)))
    return np.flatnonzero(fallback.compute.any(axis=1)).tolist() or [0]


def _with_all_rows(prices: Prices, rows: list[int], count: int) -> Prices:
    compute = np.zeros((count, prices.capacity_s.size))
    compute[rows] = prices.compute
    return replace(prices, compute=compute)


@dataclass
class _Block:
    problem: Problem
    low: int
    high: int
    edges_s: FloatArray
    prices: Prices | None
    objective: float
    plan: dict[str, float]


def _block_prices(block: _Block, weak: Prices) -> Prices:
    if block.prices is not None:
        return block.prices
    reach = block.low + block.edges_s.size - 1
    return _part(weak, block.low, reach)


def _block_goodput(block: _Block, weak: Prices) -> tuple[float, Costs]:
    return goodput_bound(block.problem, _block_prices(block, weak))


def _part(prices: Prices, low: int, high: int) -> Prices:
    names = ("compute", "decode_compute", "local", "decode_local", "global_", "nic", "pcie")
    return replace(
        prices,
        edges_s=prices.edges_s[low : high + 1],
        capacity_s=prices.capacity_s[low:high],
        **{name: getattr(prices, name)[..., low:high] for name in names},
    )


def _weak_prices(
    problem: Problem, edges_s: FloatArray, fallback: Prices | None, scale: bool
) -> Prices:
    """Prices that do not change over time; for goodput at the level that proves most."""
    capacity_s = np.diff(edges_s)
    prices = Prices.zero(problem, edges_s, capacity_s)
    if fallback is None or not problem.hopeful.any():
        return prices
    names = ("compute", "decode_compute", "local", "decode_local", "global_", "nic", "pcie")
    spread = replace(
        prices,
        **{
            name: np.broadcast_to(
                getattr(fallback, name)[..., :1], getattr(prices, name).shape
            ).copy()
            for name in names
        },
    )
    if scale:
        return spread
    # the bound is convex in the level: try one grid, keep the best
    _, costs = goodput_bound(problem, spread)
    needed = costs.request[problem.hopeful]
    value = problem.value_tokens[problem.hopeful]
    levels = np.quantile(value / np.maximum(needed, 1e-300), [0.05, 0.25, 0.5, 0.75, 0.95])
    best, chosen = np.inf, prices
    for level in levels:
        bound, _ = goodput_bound(problem, spread.scaled(float(level)))
        if bound < best:
            best, chosen = bound, spread.scaled(float(level))
    return chosen


def _joined(
    problem: Problem, edges_s: FloatArray, blocks: list[_Block], weak: Prices, inner: int
) -> Prices:
    result = Prices.zero(problem, edges_s, np.diff(edges_s))
    names = ("compute", "decode_compute", "local", "decode_local", "global_", "nic", "pcie")
    arrays = {name: np.array(getattr(result, name), copy=True) for name in names}
    for block in blocks:
        prices = _block_prices(block, weak)
        upto = block.high if block.high < inner else block.low + prices.capacity_s.size
        for name in names:
            arrays[name][..., block.low : upto] = getattr(prices, name)[..., : upto - block.low]
    return replace(result, **arrays)


def _scaled(
    problem: Problem,
    blocks: list[_Block],
    weak: Prices,
    inner: int,
    plan: dict[str, float],
    status: str,
    build_s: float,
    solve_s: float,
    size: tuple[int, int, int],
    notes: list[str],
) -> Timed:
    """Least multiple over blocks: each is a relaxation of the whole."""
    theta = np.zeros(len(blocks))
    best: tuple[float, Prices, Costs] | None = None
    whole, whole_costs = scale_bound(problem, weak, within_slo=True)
    best = whole, weak, whole_costs
    for k, block in enumerate(blocks):
        prices = _block_prices(block, weak)
        theta[k], costs = scale_bound(block.problem, prices, within_slo=True)
        if theta[k] > best[0]:
            best = theta[k], prices, costs
    if len(blocks) > 1:
        # all blocks together: no block has the windows after its end to itself
        lasting = [block.edges_s[block.high - block.low] - block.edges_s[0] for block in blocks]
        # the busier a block, the more weight; how much more, is tried out
        for power in (0, 4, 16, 64):
            shares = np.array(lasting) * (theta / theta.max()) ** power
            parts = [
                replace(block, prices=_block_prices(block, weak).scaled(float(share)))
                for block, share in zip(blocks, shares / shares.sum(), strict=True)
            ]
            prices = _joined(problem, weak.edges_s, parts, weak, inner)
            together, costs = scale_bound(problem, prices, within_slo=True)
            if together > best[0]:
                best = together, prices, costs
    value, prices, costs = best
    worth = sum(costs.capacity.values())
    return Timed(
        objective="scale",
        bound_tokens=np.nan,
        total_within_slo_tps=np.nan,
        served_ratio=np.nan,
        load_multiple=float(1.0 / value) if value > 0 else np.inf,
        block_theta=theta,
        prices=prices.scaled(1.0 / worth) if worth > 0 else prices,
        costs=costs,
        plan=plan,
        status=status,
        objective_tokens=max((b.objective for b in blocks), default=np.nan),
        build_s=build_s,
        solve_s=solve_s,
        size=size,
        notes=notes,
    )


def _plan(cells: Cells, program: LinearProgram, x: FloatArray) -> dict[str, float]:
    served = x[program.columns["served"]]
    local, fetch = x[program.columns["local"]], x[program.columns["fetch"]]
    tokens = cells.tokens
    return {
        "value_tokens": float(cells.value @ served),
        "prompt_tokens": float(cells.prompt @ served),
        "requests": float(cells.requests @ served),
        "offered_requests": float(cells.requests.sum()),
        "local_tokens": float(tokens @ local),
        "fetched_tokens": float(tokens @ fetch),
    }
