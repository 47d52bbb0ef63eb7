"""The linear programs: rows and columns as sparse matrices, solved through cvxpy or HiGHS itself.

Time is cut into windows; work that may be done between two windows runs through a *chain*: with
cumulative released work A, due work D and service S, D ≤ S ≤ A, written with the backlogs A − S and
S − D, so that a column has two entries a resource however far its windows lie apart.  KV kept over
many windows enters and leaves a running sum likewise.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from smetric_model.bound.certify import RESOURCES, Prices, capacity_of, row_capacity

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from smetric_model.bound.cells import Cells
    from smetric_model.bound.problem import Problem

__all__ = ["LinearProgram", "build_program", "prices_of"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LinearProgram:
    """A linear program, in the form that every solver takes.

    Minimise ``cost @ x`` subject to ``equal @ x = 0``, ``less @ x <= 0``, the capacity rows and
    ``lower <= x <= upper``.  A capacity row is ``limited @ x <= factor · width`` (times θ, the last
    variable, where the least multiple of the capacities is looked for); ``factor`` is 1 for the
    problem's own capacities and a parameter for sweeps.

    Attributes
    ----------
    cost, lower, upper : ndarray of float64, shape (columns,)
    equal, less, limited : csr_array
    width_s : ndarray of float64, shape (capacity rows,)
        Seconds of capacity of each row [s].
    resource : ndarray of int64, shape (capacity rows,)
        Number in ``blocks`` of each row's resource.
    window : ndarray of int64, shape (capacity rows,)
        Window of each row.
    blocks : list of (str, int)
        Resource and number of the row of each block of capacity rows.
    kv_ratio : list of float
        How much of each block's capacity is the local tier's, where it is two resources'.
    scale : bool
        Whether θ is looked for.
    columns : dict of str to slice
        Where the variables stand: ``served``, ``local``, ``fetch``.
    """

    cost: FloatArray
    lower: FloatArray
    upper: FloatArray
    equal: csr_array[Any, Any]
    less: csr_array[Any, Any]
    limited: csr_array[Any, Any]
    width_s: FloatArray
    resource: IntArray
    window: IntArray
    blocks: list[tuple[str, int]]
    kv_ratio: list[float]
    scale: bool
    columns: dict[str, slice] = field(default_factory=dict)

    @property
    def size(self) -> tuple[int, int, int]:
        """Rows, columns, entries."""
        parts = (self.equal, self.less, self.limited)
        return (
            sum(part.shape[0] for part in parts),
            self.cost.size,
            sum(part.nnz for part in parts),
        )

    def factors(self, **changes: float) -> FloatArray:
        """Return the multiples of the capacities by row, all 1 but those given by resource."""
        per_block = np.array(
            [
                (1.0 - kv) * changes.get(name, 1.0) + kv * changes.get("local", 1.0)
                for (name, _), kv in zip(self.blocks, self.kv_ratio, strict=True)
            ]
        )
        return per_block[self.resource] if per_block.size else np.zeros(0)

    def as_inequalities(
        self, factor: FloatArray | None = None
    ) -> tuple[csr_array[Any, Any], FloatArray]:
        """Return the less and capacity rows as ``A @ x <= b``, for solvers that take these."""
        from scipy import sparse

        factor = np.ones(self.width_s.size) if factor is None else factor
        limit = factor * self.width_s
        limited = self.limited
        if self.scale:
            theta = sparse.csr_array(
                (-limit, (np.arange(limit.size), np.full(limit.size, self.cost.size - 1))),
                shape=limited.shape,
            )
            limited = limited + theta
            limit = np.zeros(limit.size)
        rows = sparse.vstack([self.less, limited], format="csr")
        return sparse.csr_array(rows), np.concatenate((np.zeros(self.less.shape[0]), limit))


class _Rows:
    """Entries of a sparse matrix, gathered block by block."""

    def __init__(self) -> None:
        self.entries: list[tuple[IntArray, IntArray, FloatArray]] = []
        self.count = 0

    def block(self, rows: int) -> int:
        first = self.count
        self.count += rows
        return first

    def add(self, rows: Any, columns: Any, values: Any) -> None:
        arrays = np.broadcast_arrays(rows, columns, np.asarray(values, dtype=float))
        keep = arrays[2] != 0
        self.entries.append(
            (
                arrays[0][keep].astype(np.int64),
                arrays[1][keep].astype(np.int64),
                arrays[2][keep].astype(np.float64),
            )
        )

    def matrix(self, columns: int) -> csr_array[Any, Any]:
        from scipy import sparse

        if not self.entries:
            return sparse.csr_array((self.count, columns))
        row, column, value = (np.concatenate(parts) for parts in zip(*self.entries, strict=True))
        return sparse.csr_array((value, (row, column)), shape=(self.count, columns))


def build_program(
    problem: Problem,
    cells: Cells,
    edges_s: FloatArray,
    capacity_s: FloatArray,
    *,
    scale: bool,
    within_slo: bool = True,
    writes: bool = False,
) -> LinearProgram:
    """Write down a linear program.

    Parameters
    ----------
    problem : Problem
        Capacities and what holds for all requests.
    cells : Cells
        Its columns.
    edges_s, capacity_s : ndarray
        Windows, and the seconds of capacity of each [s].
    scale : bool
        Whether the least multiple of the capacities that serves all is looked for (else: most
        tokens within SLO).
    within_slo : bool, default True
        Whether the TTFT SLO limits what may be recomputed.
    writes : bool, default False
        Whether new KV must be written to other nodes.

    Returns
    -------
    LinearProgram
    """
    windows = capacity_s.size
    many, pieces = cells.value.size, cells.owner.size
    served = np.arange(many)
    local = many + np.arange(pieces)
    fetch = local + pieces
    size = many + 2 * pieces
    equal, less, limited = _Rows(), _Rows(), _Rows()
    width: list[FloatArray] = []
    blocks: list[tuple[str, int]] = []

    def capacity(resource: str) -> float:
        return capacity_of(problem.capacities, problem.write_through, resource)

    def chain(parts: list[tuple[Any, Any, Any]]) -> IntArray:
        """Work that runs through a chain: the columns of its service by window.

        ``parts`` are (columns, their request cells, seconds of capacity a unit).
        """
        nonlocal size
        service, waiting, ahead = (size + k * windows + np.arange(windows) for k in range(3))
        size += 3 * windows
        released = equal.block(windows)
        taken = equal.block(windows)
        j = np.arange(windows)
        # backlog of released work: U_j = U_{j-1} + released_j - u_j, and 0 after the last window
        equal.add(released + j, service, 1.0)
        equal.add(released + j[:-1], waiting[:-1], 1.0)
        equal.add(released + j[1:], waiting[:-1], -1.0)
        # work done before it is due: V_j = V_{j-1} + u_j - due_j
        equal.add(taken + j, service, -1.0)
        equal.add(taken + j[:-1], ahead[:-1], 1.0)
        equal.add(taken + j[1:], ahead[:-1], -1.0)
        for columns, owner, amount in parts:
            equal.add(released + cells.release[owner], columns, -amount)
            equal.add(taken + cells.due[owner], columns, amount)
        return service

    def cap(resource: str, row: int) -> int:
        first = limited.block(windows)
        width.append(capacity_s)
        blocks.append((resource, row))
        return first

    window = np.arange(windows)
    owner = cells.owner
    kept_rows: list[tuple[int, float]] = []  # rows that count what is kept in the local tier
    # compute: what is recomputed is what is served and neither local nor fetched
    for name, base, extra in (
        ("compute", cells.compute, cells.recompute),
        ("decode_compute", cells.decode_compute, None),
    ):
        for row in range(base.shape[0]):
            per = 1.0 / row_capacity(problem, name, row)[0]
            demand = base[row].copy()
            parts: list[tuple[Any, Any, Any]] = []
            if extra is not None:
                np.add.at(demand, owner, extra[row])
                parts += [(local, owner, -extra[row] * per), (fetch, owner, -extra[row] * per)]
            parts.append((served, served, demand * per))
            place = cap(name, row)
            limited.add(place + window, chain(parts), 1.0)
            if extra is not None and problem.rows[row].pool_weight > 0:
                kept_rows.append((place, per * problem.rows[row].pool_weight / problem.pool_tokens))
    # KV: kept over intervals, and pinned by running requests
    pinned = cells.pin.copy()
    np.add.at(pinned, owner, cells.recompute_pin)
    pools: dict[str, IntArray] = {}
    per_local = 1.0 / capacity("local")
    pools["local"] = chain(
        [
            (served, served, pinned * per_local),
            (local, owner, -cells.recompute_pin * per_local),
            (fetch, owner, -cells.recompute_pin * per_local),
        ]
    )
    if problem.decode_rows:
        pools["decode_local"] = chain(
            [(served, served, cells.decode_pin / capacity("decode_local"))]
        )

    inner = np.flatnonzero(cells.occupancy_inner > 0)
    lasting: dict[int, IntArray] = {}

    def occupancy(row: int, columns: IntArray, per: float) -> None:
        nonlocal size
        limited.add(row + cells.gap_first, columns, cells.occupancy_first * per)
        limited.add(row + cells.gap_last, columns, cells.occupancy_last * per)
        if not inner.size:
            return
        # tokens kept all through each window, over those of a pool; one sum serves all rows
        key = int(columns[0])
        if key not in lasting:
            kept = lasting[key] = size + np.arange(windows)
            size += windows
            first = equal.block(windows)
            equal.add(first + window, kept, 1.0)
            equal.add(first + window[1:], kept[:-1], -1.0)
            amount = cells.occupancy_inner[inner] * unit
            equal.add(first + cells.gap_first[inner] + 1, columns[inner], -amount)
            equal.add(first + cells.gap_last[inner], columns[inner], amount)
        limited.add(row + window, lasting[key], np.diff(edges_s) * (per / unit))

    unit = per_local
    row = cap("local", 0)
    limited.add(row + window, pools["local"], 1.0)
    occupancy(row, local, per_local)
    for place, per in kept_rows:
        occupancy(place, local, per)
    if "decode_local" in pools:
        limited.add(cap("decode_local", 0) + window, pools["decode_local"], 1.0)
    tier = capacity("global")
    if problem.capacities.global_tokens > 0:
        row = cap("global", 0)
        occupancy(row, fetch, 1.0 / tier)
        if not problem.write_through:
            occupancy(row, local, 1.0 / tier)
            for name, service in pools.items():
                limited.add(row + window, service, capacity(name) / tier)
    for name, amount, moved in (
        ("nic", cells.nic, cells.moved_nic),
        ("pcie", cells.pcie, cells.moved_pcie),
    ):
        if np.isfinite(capacity(name)) and (problem.capacities.global_tokens > 0 or moved.any()):
            per = 1.0 / capacity(name)
            always = moved.copy()
            if name == "nic" and writes and problem.write_through:
                always += cells.written
            parts = [(fetch, owner, amount * per), (served, served, always * per)]
            limited.add(cap(name, 0) + window, chain(parts), 1.0)
    # a piece is local, fetched or recomputed, of what is served
    first = less.block(pieces)
    index = np.arange(pieces)
    less.add(first + index, local, 1.0)
    less.add(first + index, fetch, 1.0)
    less.add(first + index, served[owner], -1.0)
    if within_slo:
        spent = np.bincount(owner, cells.recompute_s, many)
        tight = np.flatnonzero(spent > cells.slack_s)
        number = np.full(many, -1)
        number[tight] = np.arange(tight.size)
        first = less.block(tight.size)
        less.add(first + number[tight], tight, spent[tight] - np.maximum(cells.slack_s[tight], 0.0))
        mine = np.flatnonzero(number[owner] >= 0)
        for columns in (local, fetch):
            less.add(first + number[owner[mine]], columns[mine], -cells.recompute_s[mine])
    lower = np.zeros(size + int(scale))
    upper = np.full(size + int(scale), np.inf)
    upper[:many] = 1.0
    upper[many : many + 2 * pieces] = 1.0
    if problem.capacities.global_tokens == 0:
        upper[fetch] = 0.0
    cost = np.zeros(size + int(scale))
    if scale:
        cost[-1] = 1.0
        lower[:many] = 1.0
    else:
        cost[:many] = -cells.value
    resource = np.repeat(np.arange(len(blocks)), windows)
    return LinearProgram(
        cost=cost,
        lower=lower,
        upper=upper,
        equal=equal.matrix(cost.size),
        less=less.matrix(cost.size),
        limited=limited.matrix(cost.size),
        width_s=np.concatenate(width),
        resource=resource,
        window=np.tile(window, len(blocks)),
        blocks=blocks,
        kv_ratio=[
            pools / both
            for both, pools in (row_capacity(problem, name, row) for name, row in blocks)
        ],
        scale=scale,
        columns={
            "served": slice(0, many),
            "local": slice(many, many + pieces),
            "fetch": slice(many + pieces, many + 2 * pieces),
        },
    )


def prices_of(
    problem: Problem,
    program: LinearProgram,
    edges_s: FloatArray,
    capacity_s: FloatArray,
    duals: FloatArray,
) -> Prices:
    """Prices per unit of capacity and second, from the duals of the capacity rows.

    Parameters
    ----------
    problem, program : Problem, LinearProgram
        What was solved.
    edges_s, capacity_s : ndarray
        Its windows.
    duals : ndarray of float64, shape (capacity rows,)
        Of the capacity rows, per second of normalised capacity.

    Returns
    -------
    Prices
    """
    prices = Prices.zero(problem, edges_s, capacity_s)
    values: dict[str, FloatArray] = {
        name: np.array(getattr(prices, "global_" if name == "global" else name), copy=True)
        for name in RESOURCES
    }
    windows = capacity_s.size
    for number, (resource, row) in enumerate(program.blocks):
        part = duals[number * windows : (number + 1) * windows]
        part = part / row_capacity(problem, resource, row)[0]
        if values[resource].ndim == 2:
            values[resource][row] = part
        else:
            values[resource] = part
    values["global_"] = values.pop("global")
    return replace(prices, **values)
