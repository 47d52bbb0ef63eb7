"""Solving a linear program, with its status checked and named errors."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from smetric_model.errors import SolveError, SpecError

if TYPE_CHECKING:
    from smetric_model.bound.program import LinearProgram

__all__ = [
    "InfeasibleError",
    "Solution",
    "SolverOptions",
    "Sweep",
    "TimeLimitError",
    "UnboundedError",
    "solve",
]

FloatArray = NDArray[np.float64]


class InfeasibleError(SolveError):
    """No schedule meets the rows of the program."""


class UnboundedError(SolveError):
    """The program has no finite optimum."""


class TimeLimitError(SolveError):
    """The solver stopped at its time limit without an answer."""


@dataclass(frozen=True)
class SolverOptions:
    """Which solver, and how exact.

    Attributes
    ----------
    solver : str
        A solver of cvxpy by name (``"HIGHS"``, ``"CLARABEL"``, ``"SCIPY"`` …), or
        ``"highs-direct"``: HiGHS without cvxpy, which can be interrupted and restarts sweeps from
        the last basis.
    tolerance : float
        Feasibility and optimality tolerance.
    time_limit_s : float
        Of one solve; ``inf``: none [s].
    method : {'choose', 'simplex', 'ipm'}
        Of ``"highs-direct"``: what HiGHS chooses (simplex, which restarts from a basis), or its
        interior point, which takes half as long for the least multiple of the capacities.
    """

    solver: str = "HIGHS"
    tolerance: float = 1e-7
    time_limit_s: float = float("inf")
    method: Literal["choose", "simplex", "ipm"] = "choose"

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < 1:
            raise SpecError(f"tolerance = {self.tolerance!r}: a number between 0 and 1 is needed")
        if not self.time_limit_s > 0:
            raise SpecError(f"time_limit_s = {self.time_limit_s!r}: a number above 0 is needed")
        if self.method not in ("choose", "simplex", "ipm"):
            raise SpecError(f"method = {self.method!r}; one of choose, simplex, ipm")


@dataclass(frozen=True, eq=False)
class Solution:
    """What a solver answered.

    Attributes
    ----------
    status : str
        ``optimal`` or ``inexact``; anything else is an error.
    objective : float
        The solver's own; never a bound by itself.
    x : ndarray of float64
        Values of the columns.
    duals : ndarray of float64, shape (capacity rows,)
        Prices of the capacity rows.
    build_s, solve_s : float
        Wall time of cvxpy's (or HiGHS's) set-up, and of the solve [s].
    """

    status: str
    objective: float
    x: FloatArray
    duals: FloatArray
    build_s: float
    solve_s: float


@cache
def _highs_without_banner() -> None:
    """Let HiGHS greet once, unheard: its first instance in a process writes to stdout."""
    highspy: Any = importlib.import_module("highspy")
    sys.stdout.flush()
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        highspy.Highs()
        ctypes.CDLL(None).fflush(None)
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def solve(
    program: LinearProgram, options: SolverOptions | None = None, **factors: float
) -> Solution:
    """Solve a program once.

    Parameters
    ----------
    program : LinearProgram
        What to solve.
    options : SolverOptions, optional
        Solver and tolerances.
    **factors
        Multiples of capacities by resource, such as ``nic=2.0``.

    Returns
    -------
    Solution

    Raises
    ------
    InfeasibleError, UnboundedError, TimeLimitError
        If that is what the solver found.
    SolveError
        If it failed otherwise.
    SpecError
        If there is no such solver.
    """
    return Sweep(program, options).solve(**factors)


class Sweep:
    """A program that is solved again and again for other capacities, and built once.

    Parameters
    ----------
    program : LinearProgram
        What to solve.
    options : SolverOptions, optional
        Solver and tolerances.
    """

    def __init__(self, program: LinearProgram, options: SolverOptions | None = None):
        self.program = program
        self.options = options or SolverOptions()
        self._built: Any = None

    def solve(self, **factors: float) -> Solution:
        """Solve for multiples of the capacities by resource; errors as of :func:`solve`."""
        factor = self.program.factors(**factors)
        if "HIGHS" in self.options.solver.upper():
            _highs_without_banner()
        if self.options.solver == "highs-direct":
            return self._solve_highs(factor)
        return self._solve_cvxpy(factor)

    def _solve_cvxpy(self, factor: FloatArray) -> Solution:
        cp: Any = importlib.import_module("cvxpy")
        options, program = self.options, self.program
        start = time.perf_counter()
        if options.solver not in cp.installed_solvers():
            raise SpecError(
                f"solver = {options.solver!r}: not installed; one of "
                f"{', '.join([*cp.installed_solvers(), 'highs-direct'])}"
            )
        if self._built is None:
            self._built = self._cvxpy_problem()
        problem, x, parameter, limited = self._built
        parameter.value = factor * program.width_s
        built = time.perf_counter()
        try:
            _run_interruptibly(
                lambda: problem.solve(
                    solver=options.solver, warm_start=True, **self._cvxpy_options()
                )
            )
        except cp.SolverError as error:
            raise SolveError(f"{options.solver} failed: {error}") from None
        done = time.perf_counter()
        status = _named(problem.status, options)
        return Solution(
            status,
            float(problem.value),
            np.asarray(x.value, dtype=float),
            np.asarray(limited.dual_value, dtype=float),
            built - start,
            done - built,
        )

    def _cvxpy_problem(self) -> tuple[Any, Any, Any, Any]:
        cp: Any = importlib.import_module("cvxpy")
        program = self.program
        x = cp.Variable(program.cost.size, bounds=[program.lower, program.upper])
        parameter = cp.Parameter(program.width_s.size, nonneg=True)
        limit = x[-1] * parameter if program.scale else parameter
        limited = program.limited @ x <= limit
        constraints = [limited]
        if program.equal.shape[0]:
            constraints.append(program.equal @ x == 0)
        if program.less.shape[0]:
            constraints.append(program.less @ x <= 0)
        return cp.Problem(cp.Minimize(program.cost @ x), constraints), x, parameter, limited

    def _cvxpy_options(self) -> dict[str, Any]:
        options = self.options
        finite = np.isfinite(options.time_limit_s)
        if options.solver == "HIGHS":
            given: dict[str, Any] = {
                "primal_feasibility_tolerance": max(options.tolerance, 1e-10),
                "dual_feasibility_tolerance": max(options.tolerance, 1e-10),
            }
            if finite:
                given["time_limit"] = options.time_limit_s
            return given
        if options.solver == "CLARABEL":
            given = {"tol_gap_rel": options.tolerance, "tol_feas": options.tolerance}
            return given | ({"time_limit": options.time_limit_s} if finite else {})
        return {}

    def _solve_highs(self, factor: FloatArray) -> Solution:
        highspy: Any = importlib.import_module("highspy")
        program = self.program
        start = time.perf_counter()
        if self._built is None:
            self._built = self._highs_model(factor)
        else:
            self._change_highs(factor)
        model = self._built
        for name, value in (
            ("primal_feasibility_tolerance", max(self.options.tolerance, 1e-10)),
            ("dual_feasibility_tolerance", max(self.options.tolerance, 1e-10)),
            ("time_limit", min(self.options.time_limit_s, 1e9)),
            ("solver", self.options.method),
        ):
            if model.setOptionValue(name, value) != highspy.HighsStatus.kOk:
                raise SolveError(f"HiGHS does not take {name} = {value!r}")
        built = time.perf_counter()
        _run_interruptibly(model.run, model.cancelSolve)
        done = time.perf_counter()
        found = model.getModelStatus()
        names = {
            highspy.HighsModelStatus.kOptimal: "optimal",
            highspy.HighsModelStatus.kInfeasible: "infeasible",
            highspy.HighsModelStatus.kUnbounded: "unbounded",
            highspy.HighsModelStatus.kUnboundedOrInfeasible: "infeasible_or_unbounded",
            highspy.HighsModelStatus.kTimeLimit: "user_limit",
        }
        status = _named(names.get(found, str(found)), self.options)
        solution = model.getSolution()
        first = program.equal.shape[0] + program.less.shape[0]
        return Solution(
            status,
            float(model.getObjectiveValue()),
            np.asarray(solution.col_value),
            -np.asarray(solution.row_dual)[first:],
            built - start,
            done - built,
        )

    def _highs_model(self, factor: FloatArray) -> Any:
        from scipy import sparse

        highspy: Any = importlib.import_module("highspy")
        program = self.program
        inequalities, upper = program.as_inequalities(factor)
        equal = program.equal.shape[0]
        matrix = sparse.csc_array(sparse.vstack([program.equal, inequalities], format="csc"))
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = program.cost.size, matrix.shape[0]
        lp.col_cost_, lp.col_lower_, lp.col_upper_ = program.cost, program.lower, program.upper
        lp.row_lower_ = np.concatenate((np.zeros(equal), np.full(upper.size, -np.inf)))
        lp.row_upper_ = np.concatenate((np.zeros(equal), upper))
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_ = matrix.indptr
        lp.a_matrix_.index_ = matrix.indices
        lp.a_matrix_.value_ = matrix.data
        model = highspy.Highs()
        model.silent()
        if model.passModel(lp) == highspy.HighsStatus.kError:
            raise SolveError("HiGHS does not take the model")
        return model

    def _change_highs(self, factor: FloatArray) -> None:
        program, model = self.program, self._built
        limit = factor * program.width_s
        first = program.equal.shape[0] + program.less.shape[0]
        if program.scale:
            theta = program.cost.size - 1
            for row, value in enumerate(limit.tolist()):
                model.changeCoeff(first + row, theta, -value)
        else:
            rows = np.arange(first, first + limit.size, dtype=np.int32)
            model.changeRowsBounds(rows.size, rows, np.full(limit.size, -np.inf), limit)


def _run_interruptibly(work: Callable[[], Any], cancel: Callable[[], Any] | None = None) -> None:
    """Solve in a thread, so that an interrupt is heard at once and raised here.

    A solver that cannot be cancelled works on unheard, until its time limit or the program's end.
    """
    problems: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # handed to the caller
            problems.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.1)
    except KeyboardInterrupt:
        if cancel is not None:
            cancel()
            thread.join(10.0)
        raise
    if problems:
        raise problems[0]


def _named(status: str, options: SolverOptions) -> str:
    if status == "optimal":
        return "optimal"
    if status == "optimal_inaccurate":
        return "inexact"
    if status == "user_limit":
        raise TimeLimitError(
            f"{options.solver} found no answer within time_limit_s = {options.time_limit_s:g}"
        )
    if status.startswith("infeasible"):
        raise InfeasibleError(f"{options.solver}: the program is {status.replace('_', ' ')}")
    if status.startswith("unbounded"):
        raise UnboundedError(f"{options.solver}: the program is {status.replace('_', ' ')}")
    raise SolveError(f"{options.solver} ended with status {status!r}")
