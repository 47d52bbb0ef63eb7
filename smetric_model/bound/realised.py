"""A run of a real schedule as a point of the linear program: what it did, and that it fits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from smetric_model.bound.cells import make_cells
from smetric_model.bound.program import build_program
from smetric_model.bound.solvers import SolverOptions, solve

if TYPE_CHECKING:
    from smetric_model.bound.problem import Problem

__all__ = ["Realised", "least_multiple", "realised_columns"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Realised:
    """What a run did with the requests and pieces of a problem.

    Attributes
    ----------
    served : ndarray of float64, shape (requests,)
        1 for requests within SLO, else 0.
    local, fetch : ndarray of float64, shape (pieces,)
        Share of each piece that was hit in the local tier, and fetched; 0 for requests that missed
        their SLO.
    """

    served: FloatArray
    local: FloatArray
    fetch: FloatArray

    def tokens(self, problem: Problem) -> float:
        """Tokens of the requests within SLO [tokens]."""
        return float(problem.value_tokens @ self.served)


def realised_columns(
    problem: Problem,
    within_slo: NDArray[np.bool_],
    local_tokens: NDArray[np.int64],
    fetched_tokens: NDArray[np.int64],
) -> Realised:
    """Turn a run into columns.

    Parameters
    ----------
    problem : Problem
        On the run's own timeline.
    within_slo : ndarray of bool, shape (requests of the trace,)
        By row of the trace.
    local_tokens, fetched_tokens : ndarray of int64, shape (requests of the trace,)
        Tokens hit in the local tier (or a peer's), and after them those fetched from the global
        tier.

    Returns
    -------
    Realised
        A hit of a prompt is a prefix, so it covers the first pieces.
    """
    served = within_slo[problem.row].astype(float)
    request = problem.piece_request
    tokens = problem.piece_tokens
    ends = np.cumsum(tokens)
    before = np.concatenate(([0.0], ends))[problem.offsets[:-1]]
    first = (ends - tokens) - before[request]  # tokens of the request's earlier pieces
    local = local_tokens[problem.row].astype(float)[request]
    hit = local + fetched_tokens[problem.row].astype(float)[request]
    share = np.where(served[request] > 0, 1.0, 0.0) / np.maximum(tokens, 1e-300)
    in_local = np.clip(local - first, 0.0, tokens)
    in_hit = np.clip(hit - first, 0.0, tokens)
    return Realised(served, in_local * share, (in_hit - in_local) * share)


def least_multiple(
    problem: Problem,
    edges_s: FloatArray,
    realised: Realised,
    options: SolverOptions | None = None,
) -> float:
    """Least multiple of the capacities at which a run fits into the program; at most 1 if valid.

    Parameters
    ----------
    problem : Problem
        On the run's own timeline.
    edges_s : ndarray of float64
        Windows [s].
    realised : Realised
        The run.
    options : SolverOptions, optional
        Solver and tolerances.

    Returns
    -------
    float

    Raises
    ------
    InfeasibleError
        If it fits at no multiple: a row other than a capacity is broken.
    """
    cells = make_cells(problem, edges_s, detail=np.inf, by_value=False)
    program = build_program(problem, cells, edges_s, np.diff(edges_s), scale=True)
    lower, upper = program.lower.copy(), program.upper.copy()
    for name, values in (
        ("served", realised.served),
        ("local", realised.local),
        ("fetch", realised.fetch),
    ):
        lower[program.columns[name]] = upper[program.columns[name]] = values
    return solve(replace(program, lower=lower, upper=upper), options).objective
