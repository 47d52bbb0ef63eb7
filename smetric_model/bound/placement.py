r"""Placement: what it costs that a session's work must lie on some instance.

The bounds let all instances share all work.  A placement gives each session an instance; it loses

.. math:: \frac{\sum_j \max_i \mathrm{load}_{ij}}{\sum_j \mathrm{mean}_i \mathrm{load}_{ij}}

over windows j: by how much the busiest instance exceeds the mean.  Any placement, also one that
moves sessions between windows, has at least max(mean, largest item, largest pair that must share)
in every window; a clairvoyant assignment that keeps each session where it is shows what can be had.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from smetric_model.errors import SpecError

if TYPE_CHECKING:
    from smetric_model.bound.problem import Problem

__all__ = ["Placement", "exact_placement", "placement_bracket", "session_work", "work_bracket"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Placement:
    """Bracket of the loss by placement.

    Attributes
    ----------
    lower_ratio : float
        No placement has less, moves between windows allowed; at least 1.
    upper_ratio : float
        Of the assignment.
    instance : ndarray of int64, shape (sessions,)
        The assignment.
    window_lower, window_upper : ndarray of float64, shape (windows,)
        Least and achieved work of the busiest instance.
    mean : ndarray of float64, shape (windows,)
        Mean work of an instance.
    """

    lower_ratio: float
    upper_ratio: float
    instance: IntArray
    window_lower: FloatArray
    window_upper: FloatArray
    mean: FloatArray


def session_work(problem: Problem, window_s: float) -> FloatArray:
    """Return the engine time that each session's requests need, by the window of their arrival.

    Parameters
    ----------
    problem : Problem
        Requests; every reusable prefix counts as hit.
    window_s : float
        Length of a window [s].

    Returns
    -------
    ndarray of float64, shape (sessions, windows)
        [s]
    """
    from smetric_model.bound.certify import _decode_s

    if not 0 < window_s < np.inf:
        raise SpecError(f"window_s = {window_s!r}: a finite number above 0 is needed")
    row = next(row for row in problem.rows if row.pool_weight == 0)
    work = row.prefill_s(problem.base_tokens, problem.base_pairs, problem.pool_share)
    if not problem.decode_rows:
        work = work + _decode_s(problem, row)
    session = np.unique(problem.session, return_inverse=True)[1]
    windows = max(1, int(np.ceil(problem.window_s / window_s - 1e-9)))
    at = np.minimum(((problem.arrival_s - problem.start_s) // window_s).astype(int), windows - 1)
    result = np.zeros((int(session.max()) + 1, windows))
    np.add.at(result, (session, at), work)
    return result


def placement_bracket(problem: Problem, window_s: float = 60.0, rounds: int = 20) -> Placement:
    """Bracket what placement costs on a problem's requests.

    Parameters
    ----------
    problem : Problem
        Requests.
    window_s : float, default 60
        Length of a window [s].
    rounds : int, default 20
        Rounds of local search at most.

    Returns
    -------
    Placement
    """
    return work_bracket(
        session_work(problem, window_s), round(problem.capacities.compute), rounds=rounds
    )


def work_bracket(work: FloatArray, instances: int, rounds: int = 20) -> Placement:
    """Bracket what placement costs.

    Parameters
    ----------
    work : ndarray of float64, shape (sessions, windows)
        Work of each session.
    instances : int
        Where it may lie.
    rounds : int, default 20
        Rounds of local search at most.

    Returns
    -------
    Placement

    Raises
    ------
    SpecError
        If there is no instance or no work.
    """
    if instances < 1:
        raise SpecError(f"instances = {instances!r}: at least 1 is needed")
    if not work.sum() > 0:
        raise SpecError("placement: there is no work")
    mean = work.sum(axis=0) / instances
    lower = np.maximum(mean, work.max(axis=0))
    if work.shape[0] > instances:
        # of the N + 1 largest items, two share an instance
        top = -np.sort(-work, axis=0)
        lower = np.maximum(lower, top[instances - 1] + top[instances])
    order = np.argsort(-work.sum(axis=1), kind="stable")
    load = np.zeros((instances, work.shape[1]))
    instance = np.zeros(work.shape[0], np.int64)
    starts, windows, values = _sparse(work)
    _largest_first(order, starts, windows, values, load, instance)
    _local_search(starts, windows, values, load, instance, rounds)
    upper = load.max(axis=0)
    total = float(mean.sum())
    return Placement(
        float(lower.sum()) / total, float(upper.sum()) / total, instance, lower, upper, mean
    )


def _sparse(work: FloatArray) -> tuple[IntArray, IntArray, FloatArray]:
    session, window = np.nonzero(work)
    starts = np.searchsorted(session, np.arange(work.shape[0] + 1))
    return starts.astype(np.int64), window.astype(np.int64), work[session, window]


@njit(cache=True)
def _largest_first(order, starts, windows, values, load, instance):  # type: ignore[no-untyped-def]
    """Each session where the squares of the loads grow least, largest session first."""
    for session in order:
        best, chosen = np.inf, 0
        for i in range(load.shape[0]):
            cost = 0.0
            for k in range(starts[session], starts[session + 1]):
                cost += values[k] * load[i, windows[k]]
            if cost < best:
                best, chosen = cost, i
        instance[session] = chosen
        for k in range(starts[session], starts[session + 1]):
            load[chosen, windows[k]] += values[k]


@njit(cache=True)
def _local_search(starts, windows, values, load, instance, rounds):  # type: ignore[no-untyped-def]
    """Move sessions one by one while the sum over windows of the largest load falls."""
    instances, count = load.shape
    # the three largest loads of each window, and whose they are
    top = np.empty((count, 3))
    whose = np.empty((count, 3), np.int64)

    def refresh(j: int) -> None:
        for rank in range(3):
            top[j, rank] = -1.0
            whose[j, rank] = -1
        for i in range(instances):
            value = load[i, j]
            for rank in range(3):
                if value > top[j, rank]:
                    for later in range(2, rank, -1):
                        top[j, later] = top[j, later - 1]
                        whose[j, later] = whose[j, later - 1]
                    top[j, rank] = value
                    whose[j, rank] = i
                    break

    for j in range(count):
        refresh(j)
    for _ in range(rounds):
        moved = 0
        for session in range(starts.size - 1):
            first, last = starts[session], starts[session + 1]
            here = instance[session]
            relevant = False
            for k in range(first, last):
                if whose[windows[k], 0] == here:
                    relevant = True
            if not relevant:
                continue
            best, chosen = -1e-12, here
            for i in range(instances):
                if i == here:
                    continue
                change = 0.0
                for k in range(first, last):
                    j, value = windows[k], values[k]
                    others = 0.0
                    for rank in range(3):
                        if whose[j, rank] >= 0 and whose[j, rank] != here and whose[j, rank] != i:
                            others = top[j, rank]
                            break
                    after = max(others, load[here, j] - value, load[i, j] + value)
                    change += after - top[j, 0]
                if change < best:
                    best, chosen = change, i
            if chosen != here:
                for k in range(first, last):
                    load[here, windows[k]] -= values[k]
                    load[chosen, windows[k]] += values[k]
                    refresh(windows[k])
                instance[session] = chosen
                moved += 1
        if moved == 0:
            break


def exact_placement(
    work: FloatArray, instances: int, time_limit_s: float = 60.0
) -> tuple[float, bool]:
    """Find the best assignment of sessions to instances by integer programming: small cases only.

    Parameters
    ----------
    work : ndarray of float64, shape (sessions, windows)
        Work of each session.
    instances : int
        Where it may lie.
    time_limit_s : float, default 60
        After which the best proved lower end is returned [s].

    Returns
    -------
    ratio : float
        Sum of the windows' largest loads over the sum of the means: the optimum; or, where time
        ran out, what is proved to be no more than it.
    optimal : bool
        Whether it is the optimum.
    """
    import importlib

    from smetric_model.bound.solvers import _highs_without_banner

    cp: Any = importlib.import_module("cvxpy")
    _highs_without_banner()
    sessions, windows = work.shape
    place = cp.Variable((sessions, instances), boolean=True)
    most = cp.Variable(windows)
    constraints = [cp.sum(place, axis=1) == 1]
    constraints += [work[:, j] @ place <= most[j] for j in range(windows)]
    # instances are alike: session k may only go to the first k + 1
    for session in range(min(sessions, instances)):
        if session + 1 < instances:
            constraints.append(place[session, session + 1 :] == 0)
    problem = cp.Problem(cp.Minimize(cp.sum(most)), constraints)
    problem.solve(solver="HIGHS", time_limit=time_limit_s)
    mean = work.sum() / instances
    optimal = problem.status == "optimal"
    if optimal:
        return float(problem.value / mean), True
    return 1.0, False
