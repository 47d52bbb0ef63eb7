"""Largest share of the requests that any router can serve within SLO at a scenario's rate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from smetric_model.bound.run import BINDING
from smetric_model.bound.solvers import SolverOptions

if TYPE_CHECKING:
    from smetric_model.outcome import Outcome
    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

__all__ = ["attainment_bound"]


def attainment_bound(
    scenario: Scenario,
    trace: Trace | None = None,
    options: SolverOptions | None = None,
    window_s: float = 60.0,
    progress: Callable[[str], None] | None = None,
) -> Outcome:
    """Bound the share of a scenario's servable requests that meet their SLO.

    The goodput bound with every request worth one, whatever its length.

    Parameters
    ----------
    scenario : Scenario
        The question; its router does not matter.
    trace : Trace, optional
        Its workload, if at hand.
    options : SolverOptions, optional
        Solver and tolerances.
    window_s : float, default 60
        Windows inside which work is free [s].
    progress : callable, optional
        Told what is being done.

    Returns
    -------
    Outcome
        ``within_slo_ratio`` is the bound; no other figure of it is one, tokens are missing.

    Raises
    ------
    SpecError
        If the scenario cannot be resolved, or no servable request arrives in the window.
    TraceError
        If the trace cannot be read.

    Notes
    -----
    Closed loop: on the arrivals of requests served as fast as they can be (``docs/bound.md``).
    """
    from smetric_model.bound.problem import problem_of
    from smetric_model.bound.timed import timed_bound
    from smetric_model.bound.volume import volume_bound
    from smetric_model.outcome import Outcome

    tell = progress or (lambda _text: None)
    options = options or SolverOptions()
    tell("preparing the workload")
    problem, _ = problem_of(scenario, trace)
    counted = replace(problem, value_tokens=np.ones(problem.size))
    tell("volume bound")
    volume = volume_bound(counted, options, within_slo=True)
    found = timed_bound(
        counted,
        options,
        objective="goodput",
        window_s=window_s,
        fallback=volume.prices,
        progress=lambda text: tell(f"share of the requests, {text}"),
    )
    most = max(volume.elasticity, key=lambda name: volume.elasticity[name], default="")
    requests = problem.size + problem.unservable
    return Outcome(
        {
            "scenario_id": scenario.scenario_id,
            "verb": "bound",
            "policy": "attainment",
            "seed": scenario.seed,
            "arrival_rate_rps": requests / problem.window_s,
            "warmup_s": scenario.workload.warmup_s,
            "window_s": problem.window_s,
            "requests": requests,
            "unservable_ratio": problem.unservable / requests,
            "within_slo_ratio": min(1.0, found.served_ratio),
            "binding_resource": BINDING.get(most, ""),
            "valid": True,
            "note": "; ".join([*problem.notes, *found.notes]),
        }
    )
