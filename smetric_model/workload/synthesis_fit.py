"""Parameters of the generator from a real trace, and how far what they generate is from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smetric_model.workload._synthesis_estimates import (
    Facts,
    describe,
    digits,
    estimate_execution,
    estimate_forks,
    estimate_frameworks,
    estimate_sessions_and_history,
    estimate_think_times,
)
from smetric_model.workload.synthesis_compare import compare
from smetric_model.workload.synthesis_parameters import WorkloadParameters

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.workload.trace import Trace

__all__ = ["Fit", "describe", "fit", "fit_parameters"]

#: Requests from which on a trace has a rate.
_REQUESTS = 100
#: History before a generated window, in windows, unless the parameters' default is shorter: nothing
#: in the trace tells of sessions that live longer.
_HISTORY_WINDOWS = 20.0
#: Sessions generated to compare with a trace whose sessions share no clock, at least.
_SESSIONS = 2_000


@dataclass(frozen=True, eq=False)
class Fit:
    """Parameters of a trace and what they generate.

    Attributes
    ----------
    parameters : WorkloadParameters
    generated : Trace
        A trace generated from them, of the same kind (window cut or whole sessions).
    distances : DataFrame
        See :func:`~smetric_model.workload.synthesis_compare.compare`.
    notes : tuple of str
        What the trace does not tell, and what was taken instead.
    """

    parameters: WorkloadParameters
    generated: Trace
    distances: pd.DataFrame
    notes: tuple[str, ...]


def fit(trace: Trace, *, name: str = "fitted", seed: int = 0) -> Fit:
    """Set the generator's parameters from a trace, generate, and compare.

    Parameters
    ----------
    trace : Trace
        A trace with block ids and sessions (recorded, or from
        :func:`~smetric_model.workload.sessions.infer_sessions`).
    name : str, default 'fitted'
        Name of the parameter set.
    seed : int, default 0
        Of the generated trace.

    Returns
    -------
    Fit

    Raises
    ------
    TraceError
        If the trace carries no block ids or names no sessions.

    Notes
    -----
    Every parameter is a direct statistic of the trace; nothing is searched for.  Session starts are
    taken as a Poisson process.  What is generated is a window of the trace's length, in equilibrium
    when it opens; where the trace has no rate (sessions without a common clock, a handful of
    requests), whole sessions.
    """
    from smetric_model.workload.synthesis_build import generate

    parameters, notes = fit_parameters(trace, name)
    if _has_rate(trace):
        generated = generate(parameters, seed=seed)
    else:
        generated = generate(
            parameters,
            sessions=max(trace.sessions or 0, _SESSIONS),
            seed=seed,
            start="cold",
            ends="whole",
        )
    return Fit(parameters, generated, compare(trace, generated), notes)


def _has_rate(trace: Trace) -> bool:
    """Whether a window of the trace's length and rate would hold some requests."""
    span = float(np.ptp(trace.column("arrival_s")))
    return trace.session_clock == "shared" and span >= 1.0 and len(trace) >= _REQUESTS


def fit_parameters(trace: Trace, name: str) -> tuple[WorkloadParameters, tuple[str, ...]]:
    """Parameters of a trace, and notes on what it does not tell.

    Parameters
    ----------
    trace : Trace
    name : str

    Returns
    -------
    parameters : WorkloadParameters
    notes : tuple of str
    """
    notes: list[str] = ["tenants: not told by a trace; one, unsalted"]
    facts = Facts.of(trace)
    execution = estimate_execution(facts, notes)
    span = float(np.ptp(trace.column("arrival_s")))
    rate = _has_rate(trace)
    if not rate:
        notes.append(
            "rate_rps, window_s: sessions share no clock, or requests are few; 1 request/s and 2 h "
            "stand in"
        )
    frameworks, prefix = estimate_frameworks(facts)
    sessions, history = estimate_sessions_and_history(facts, prefix, notes)
    return (
        WorkloadParameters(
            name=name,
            description=f"Fitted to {trace.source}.",
            assumptions=tuple(notes),
            block_tokens=facts.block_tokens,
            rate_rps=digits(len(trace) / span) if rate else 1.0,
            window_s=digits(span) if rate else 7_200.0,
            history_s=min(_HISTORY_WINDOWS * span, WorkloadParameters().history_s)
            if rate
            else WorkloadParameters().history_s,
            frameworks=frameworks,
            sessions=sessions,
            think=estimate_think_times(facts, execution, notes),
            history=history,
            forks=estimate_forks(facts, prefix),
            execution=execution,
        ),
        tuple(notes),
    )
