"""``simulate``: the answer to a scenario from every engine step of its cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smetric_model.errors import SolveError

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.outcome import Outcome
    from smetric_model.scenario import Scenario
    from smetric_model.simulate.inputs import Replay
    from smetric_model.simulate.prepare import Prepared
    from smetric_model.workload.trace import Trace

__all__ = ["Simulation", "simulate", "simulate_in_detail"]


@dataclass(frozen=True, eq=False)
class Simulation:
    """A simulated scenario, with all that is known of it.

    Attributes
    ----------
    scenario : Scenario
        The question.
    outcome : Outcome
        With the tables ``requests`` and ``instances``.
    prepared : Prepared
        What was simulated.
    replay : Replay
        What happened: all times of all requests, the warm-up's included.
    """

    scenario: Scenario
    outcome: Outcome
    prepared: Prepared
    replay: Replay

    def series(self) -> pd.DataFrame:
        """Return what each instance did over time; see ``series_table``."""
        from smetric_model.simulate.tables import series_table

        return series_table(self.prepared, self.replay)

    def groups(self) -> pd.DataFrame:
        """Return what each group of instances did; see ``group_table``."""
        from smetric_model.simulate.group_table import group_table

        requests, instances = self.outcome.requests, self.outcome.instances
        assert requests is not None  # a simulation has both
        assert instances is not None
        return group_table(self.scenario, requests, instances)


def simulate(
    scenario: Scenario,
    trace: Trace | None = None,
    check: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Outcome:
    """Simulate a scenario, engine step by engine step.

    Parameters
    ----------
    scenario : Scenario
        The question.
    trace : Trace, optional
        Its workload, if it is at hand (before the scenario's rate and start are applied); else it
        is loaded, or generated from the preset.
    check : bool, default False
        Whether to check the laws of :mod:`smetric_model.simulate.checks` and the identities of
        every outcome, and to simulate again without skipping; takes about ten times as long.
    progress : callable, optional
        Told what is being done.

    Returns
    -------
    Outcome
        With the tables ``requests`` and ``instances``.

    Raises
    ------
    SpecError
        If the scenario cannot be resolved, or asks for what is not simulated.
    TraceError
        If the trace cannot be read.
    SolveError
        If ``check`` finds a law broken: a defect of the simulator.

    Notes
    -----
    The rules are in ``docs/simulate.md``.  Equal scenarios give equal outcomes, in any process.

    Examples
    --------
    >>> from smetric_model import Scenario, simulate
    >>> scenario = Scenario.from_toml("data/scenarios/agents-small.toml").replace(
    ...     **{"workload.warmup_s": 120.0, "workload.window_s": 120.0}
    ... )
    >>> outcome = simulate(scenario)
    >>> outcome["requests"] == sum(outcome.requests["arrival_s"] >= 120)  # those of the window
    True
    >>> simulate(scenario) == outcome  # the same seed, the same run
    True
    """
    return simulate_in_detail(scenario, trace, check, progress).outcome


def simulate_in_detail(
    scenario: Scenario,
    trace: Trace | None = None,
    check: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Simulation:
    """Simulate a scenario and keep everything; arguments and errors as of :func:`simulate`.

    Parameters
    ----------
    scenario, trace, check, progress
        See :func:`simulate`.

    Returns
    -------
    Simulation
    """
    from smetric_model.simulate import engine
    from smetric_model.simulate.checks import broken_laws
    from smetric_model.simulate.outcome_row import outcome_of
    from smetric_model.simulate.prepare import check_simulated, prepare
    from smetric_model.simulate.workload import replayed_trace

    tell = progress or (lambda _text: None)
    check_simulated(scenario)
    tell("preparing the workload")
    replayed, notes = replayed_trace(scenario, trace)
    prepared = prepare(scenario, replayed)
    prepared.notes[:0] = notes
    tell("simulating")
    replay = engine.run(prepared.inputs, progress=tell)
    tell("working out the tables")
    outcome = outcome_of(scenario, prepared, replay)
    if check:
        tell("checking")
        problems = broken_laws(prepared.inputs, replay, outcome)
        if problems:
            raise SolveError("simulation: " + "; ".join(str(problem) for problem in problems))
    return Simulation(scenario, outcome, prepared, replay)
