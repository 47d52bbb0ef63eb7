"""Where a plan's answers come from: sweeps over designs, kept on disk if a folder is given."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from smetric_model.analytic.demand import Demand, demand_of
from smetric_model.designing.closed_form import size_design
from smetric_model.designing.optimum import bound_beside_run, bound_share
from smetric_model.sweeping import sweep
from smetric_model.sweeping.kept import Kept
from smetric_model.sweeping.work import shared_demand

if TYPE_CHECKING:
    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

__all__ = ["Row", "Runs"]

T = TypeVar("T")

#: one answer: what the verb says, ``status`` and ``error``
Row = dict[str, Any]


class Runs:
    """Runs questions of one plan.

    Parameters
    ----------
    trace : Trace or None
        The workload, if it is at hand; then everything runs in this process and nothing is kept.
    folder : Path or None
        Finished answers are kept here and found again.
    jobs : int
        Processes of this machine.
    tell : callable
        Told what is being worked out.
    """

    def __init__(
        self,
        trace: Trace | None,
        folder: Path | None,
        jobs: int,
        tell: Callable[[str], None],
    ):
        self.trace = trace
        self.folder = None if trace is not None else folder
        self.jobs = 1 if trace is not None else jobs
        self.tell = tell
        self._kept = Kept(self.folder)
        self._computed = self._found = 0
        self.seconds: dict[str, float] = {}
        self._demands: dict[tuple[str, ...], Demand] = {}

    @property
    def computed(self) -> int:
        """Answers worked out."""
        return self._computed + self._kept.computed

    @property
    def found(self) -> int:
        """Answers found in the folder."""
        return self._found + self._kept.found

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Count the time that is spent inside.

        Parameters
        ----------
        what : str
            Kind of work.
        """
        started = time.monotonic()
        try:
            yield
        finally:
            spent = time.monotonic() - started
            self.seconds[what] = self.seconds.get(what, 0.0) + spent

    def keep(
        self,
        what: str,
        scenario: Scenario,
        question: Callable[..., Any],
        work: Callable[[], T],
        plain: Callable[[T], Any],
        whole: Callable[[Any], T],
    ) -> T:
        """Return an answer that is no row: found in the folder, or worked out.

        Parameters
        ----------
        what : str
            Kind of work, for its time.
        scenario, question, work, plain, whole
            As of :meth:`smetric_model.sweeping.kept.Kept.answer`.
        """
        with self.timed(what):
            return self._kept.answer(scenario, question, work, plain, whole)

    def size(self, designs: Mapping[str, Scenario], capacity: bool, start: int | None) -> list[Row]:
        """Answer designs in closed form; see :func:`size_design`.

        Parameters
        ----------
        designs : mapping of str to Scenario
            By name.
        capacity, start
            As there.
        """
        verb: Any = partial(size_design, capacity=capacity, start=start)
        if self.trace is not None:
            verb = lambda s: size_design(s, capacity, start, self.demand(s))
        return self._run("closed form", designs, verb)

    def simulate(self, designs: Mapping[str, Scenario], seeds: Sequence[int]) -> list[list[Row]]:
        """Simulate designs with several seeds each.

        Parameters
        ----------
        designs : mapping of str to Scenario
        seeds : sequence of int

        Returns
        -------
        list of list of dict
            By design, by seed.
        """
        verb: Any = "simulate"
        if self.trace is not None:
            from smetric_model.simulate import simulate

            verb = lambda s: simulate(s, self.trace)
        rows = self._run("simulation", designs, verb, seeds)
        each = len(seeds)
        return [rows[k : k + each] for k in range(0, len(rows), each)]

    def bound(self, designs: Mapping[str, Scenario], beside_run: bool) -> list[Row]:
        """Bound designs.

        Parameters
        ----------
        designs : mapping of str to Scenario
        beside_run : bool
            As of :func:`bound_beside_run`, else of :func:`bound_share`.
        """
        answer = bound_beside_run if beside_run else bound_share
        verb: Any = answer
        if self.trace is not None:
            verb = lambda s: answer(s, self.trace)
        return self._run("bound", designs, verb)

    def demand(self, scenario: Scenario) -> Demand:
        """Return what a scenario's workload asks for.

        Parameters
        ----------
        scenario : Scenario
        """
        if self.trace is None:
            return shared_demand(scenario)
        key = (repr(scenario.llm), repr(scenario.engine))
        if key not in self._demands:
            self._demands = {key: demand_of(scenario, self.trace)}
        return self._demands[key]

    def _run(
        self,
        what: str,
        designs: Mapping[str, Scenario],
        verb: Any,
        seeds: Sequence[int] | None = None,
    ) -> list[Row]:
        if not designs:
            return []
        with self.timed(what):
            frame = sweep(
                designs,
                verb=verb,
                seeds=seeds,
                folder=self.folder,
                jobs=min(self.jobs, len(designs) * len(seeds or [0])),
                progress=lambda done, total: self.tell(f"{what}: {done} of {total} done"),
            )
        self._computed += frame.attrs["computed"]
        self._found += frame.attrs["found"]
        rows = frame.astype(object).to_dict("records")
        return [{str(k): _plain(v) for k, v in row.items()} for row in rows]


def _plain(value: Any) -> Any:
    """Return a missing number as None."""
    return None if isinstance(value, float) and math.isnan(value) else value
