"""The workload of a scenario, as it is replayed: at its rate, on one clock, from its start."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from smetric_model.analytic.demand import trace_of
from smetric_model.errors import SpecError
from smetric_model.simulate.prepare import LEAST_DRAIN_S

if TYPE_CHECKING:
    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

__all__ = ["replayed_trace"]

#: Sessions of a trace without a clock start early enough for this share of their requests to have
#: been under way before the warm-up.
_HISTORY_QUANTILE = 0.95


def replayed_trace(scenario: Scenario, trace: Trace | None = None) -> tuple[Trace, list[str]]:
    """Bring a scenario's workload to its rate and start.

    Parameters
    ----------
    scenario : Scenario
        Its ``workload`` and ``seed``.
    trace : Trace, optional
        The trace, if it is at hand; else the scenario's is loaded or generated.

    Returns
    -------
    trace : Trace
        Rows in order of arrival; time 0 is the start of the warm-up.  A column
        ``previous_tokens`` holds prompt and output of the session's previous turn, also where
        that came before time 0 (−1: none known).
    notes : list of str
        What a reader must know.

    Raises
    ------
    SpecError
        If the rate cannot be had.
    TraceError
        If the trace cannot be read.
    """
    work = scenario.workload
    notes: list[str] = []
    horizon_s = work.warmup_s + work.window_s
    rate = None if work.rate_rps == "trace" else float(work.rate_rps)
    if trace is None:
        trace = trace_of(scenario, extra_s=max(work.window_s, LEAST_DRAIN_S))
        if work.preset is not None:
            return _from_time_0(trace, 0.0, scenario, notes), notes
    notes += [
        f"loading {trace.source}: {entry.action} {entry.count}: {entry.kind}"
        for entry in trace.report
        if entry.action != "noted"
    ]
    trace = _with_sessions(trace, notes)
    clockless = trace.session_clock != "shared"
    if clockless or work.session_start == "poisson":
        if rate is None and clockless:
            raise SpecError(
                f"workload.rate_rps = 'trace': the sessions of {trace.source} share no clock;"
                " give a number"
            )
        trace, start_s = _poisson(scenario, trace, rate or _rate(trace), horizon_s)
        return _from_time_0(trace, start_s, scenario, notes), notes
    if rate is not None:
        from smetric_model.workload.copy_notes import copies_note
        from smetric_model.workload.synthesis_scaling import scale_to_rate

        many = copies_note(rate, _rate(trace), len(trace), trace.sessions, trace.source)
        notes += [many] if many else []
        trace = scale_to_rate(trace, rate, scenario.seed)
    arrival = trace.column("arrival_s")
    first, last = float(arrival.min()), float(arrival.max())
    start_s = first
    if work.start == "equilibrium":
        spare = max(last - first - horizon_s, 0.0)
        start_s += float(np.random.default_rng([scenario.seed, 1]).random()) * spare
    if last - start_s < horizon_s * 0.99:
        notes.append(
            f"the trace's arrivals end {horizon_s - (last - start_s):.0f} s before the window does"
        )
    return _from_time_0(trace, start_s, scenario, notes), notes


def _rate(trace: Trace) -> float:
    span = float(np.ptp(trace.column("arrival_s")))
    if span == 0:
        raise SpecError(f"{trace.source}: all requests arrive at once; workload.rate_rps needed")
    return (len(trace) - 1) / span


def _with_sessions(trace: Trace, notes: list[str]) -> Trace:
    if trace.sessions is not None:
        return trace
    if trace.tree is None:
        notes.append("the trace names no sessions: every request is a session of its own")
        rows = np.arange(len(trace))
        return replace(trace, requests=trace.requests.assign(session_id=rows, turn=0, parent=-1))
    from smetric_model.workload.sessions import infer_sessions

    notes.append("sessions inferred from prefixes")
    return infer_sessions(trace).trace


def _poisson(
    scenario: Scenario, trace: Trace, rate_rps: float, horizon_s: float
) -> tuple[Trace, float]:
    """Sessions that start at random, enough of them; and when the warm-up begins."""
    from smetric_model.workload.starts import root_sessions, with_poisson_starts

    work = scenario.workload
    session = trace.require_sessions()
    arrival = trace.column("arrival_s")
    history_s = 0.0
    if work.start == "equilibrium":
        began = np.full(int(session.max()) + 1, np.inf)
        np.minimum.at(began, session, arrival)
        began = began[root_sessions(trace)]
        history_s = float(np.quantile(arrival - began[session], _HISTORY_QUANTILE))
    needed_s = history_s + horizon_s + max(work.window_s, LEAST_DRAIN_S)
    roots = np.unique(root_sessions(trace)).size
    session_rate = rate_rps * roots / len(trace)
    copies = math.ceil(needed_s * rate_rps / len(trace))
    if copies > 1:
        from smetric_model.workload.synthesis_scaling import replicate

        trace = replicate(with_poisson_starts(trace, session_rate, scenario.seed), copies)
    return with_poisson_starts(trace, session_rate, scenario.seed), history_s


def _from_time_0(trace: Trace, start_s: float, scenario: Scenario, notes: list[str]) -> Trace:
    """Shift the clock; leave out what came before, and sessions that begin after the run."""
    work = scenario.workload
    session = trace.require_sessions()
    tokens = trace.column("prompt_tokens") + np.maximum(trace.column("output_tokens"), 1)
    by_session = np.lexsort((np.arange(len(trace)), session))
    same = session[by_session][1:] == session[by_session][:-1]
    previous = np.full(len(trace), -1, np.int64)
    previous[by_session[1:][same]] = tokens[by_session[:-1][same]]
    arrival = trace.column("arrival_s") - start_s
    begins = np.full(int(session.max(initial=0)) + 1, np.inf)
    inside = arrival >= 0
    np.minimum.at(begins, session[inside], arrival[inside])
    end_s = work.warmup_s + work.window_s + max(work.window_s, LEAST_DRAIN_S)
    rows = np.flatnonzero(inside & (begins[session] <= end_s))
    if not rows.size:
        raise SpecError(f"{trace.source}: no request arrives in {end_s:g} s")
    requests = trace.requests.assign(arrival_s=arrival, previous_tokens=previous)
    part = replace(trace, requests=requests).take(rows)
    firsts = np.unique(part.column("session_id"), return_index=True)[1]
    earlier = (part.column("previous_tokens") >= 0) | (part.column("turn") > 0)
    under_way = int(earlier[firsts].sum())
    notes.append(f"{under_way} sessions under way at the start of the warm-up")
    return part
