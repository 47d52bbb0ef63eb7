"""The errors this package raises on purpose.

::

    Exception
    ├── ValueError
    │   ├── SpecError       a scenario, a catalog entry or an option is wrong
    │   ├── TraceError      a trace file is wrong (names file and line)
    │   └── UnstableError   the scenario has no steady state (names the resource that saturates)
    └── RuntimeError
        ├── SolveError      a solver failed, or gave an answer that cannot be trusted
        │   └── ConvergenceError   a fixed point was not reached
        └── LiveError       a live engine or router failed

Every message says what is wrong, the value, what is allowed and where.  Scalar calls raise;
functions of arrays return ``nan`` or ``inf`` outside their domain.
"""

from __future__ import annotations

from pathlib import Path

__all__ = [
    "ConvergenceError",
    "LiveError",
    "SolveError",
    "SpecError",
    "TraceError",
    "UnstableError",
]


class SpecError(ValueError):
    """A scenario, a catalog entry or an option is wrong."""


class TraceError(ValueError):
    """A trace file is wrong.

    Parameters
    ----------
    message : str
        What is wrong, the value, and what is allowed.
    path : str or Path, optional
        The file.
    line : int, optional
        Line in the file, counted from 1 (row, for a columnar file).
    """

    def __init__(self, message: str, path: str | Path | None = None, line: int | None = None):
        self.path = None if path is None else Path(path)
        self.line = line
        where = ""
        if path is not None:
            where = f"{path}:{line}: " if line is not None else f"{path}: "
        super().__init__(where + message)


class UnstableError(ValueError):
    """The scenario has no steady state.

    Parameters
    ----------
    message : str
        What saturates and by how much.
    resource : str
        The resource that saturates (``compute``, ``kv``, ``nic_out`` …).
    """

    def __init__(self, message: str, resource: str):
        self.resource = resource
        super().__init__(message)


class SolveError(RuntimeError):
    """A solver failed, or gave an answer that cannot be trusted."""


class ConvergenceError(SolveError):
    """A fixed point was not reached, though a steady state may exist.

    Parameters
    ----------
    message : str
        What was looked for, and how near it came.
    steps : int
        Steps taken.
    """

    def __init__(self, message: str, steps: int = 0):
        super().__init__(message)
        self.steps = steps


class LiveError(RuntimeError):
    """A live engine or router failed."""
