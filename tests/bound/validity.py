"""One run under one policy against its bounds; used by the tests and the benchmark."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smetric_model.bound.problem import Problem, make_problem, realised_timeline
from smetric_model.bound.realised import least_multiple, realised_columns
from smetric_model.bound.solvers import SolverOptions
from smetric_model.bound.timed import timed_bound, windows_of
from smetric_model.bound.volume import volume_bound
from smetric_model.simulate.run import simulate_in_detail

DIRECT = SolverOptions("highs-direct")


@dataclass
class Verdict:
    """What a run did and what its bounds say."""

    requests: int
    within_slo_ratio: float
    simulated_tokens: float
    bound_tokens: float
    least_multiples: dict[float, float]  #: by window length; at most 1 if the run fits
    elasticity: dict[str, float]
    load_multiple: float
    problem: Problem

    @property
    def holds(self) -> bool:
        """Whether the run fits into the program and below the bound."""
        fits = all(value <= 1 + 1e-7 for value in self.least_multiples.values())
        return fits and self.simulated_tokens <= self.bound_tokens * (1 + 1e-12)


def judge(scenario, trace, windows=(20.0, 60.0, 1e4)) -> Verdict:
    """Simulate a scenario and hold it against the bounds on its own realised requests."""
    run = simulate_in_detail(scenario, trace)
    inputs, replay = run.prepared.inputs, run.replay
    problem = make_problem(scenario, inputs, realised_timeline(scenario, inputs, replay))
    table = run.outcome.requests
    within = np.zeros(inputs.requests.turn.size, dtype=bool)
    within[table["request_id"]] = table["within_slo"]
    from_peer = np.where(replay.peer >= 0, replay.fetched_tokens, 0)
    realised = realised_columns(
        problem, within, replay.local_tokens + from_peer, replay.fetched_tokens - from_peer
    )
    multiples = {
        window: least_multiple(problem, windows_of(problem, window), realised, DIRECT)
        for window in windows
    }
    volume = volume_bound(problem, DIRECT)
    goodput = timed_bound(problem, DIRECT, window_s=windows[0], fallback=volume.prices)
    return Verdict(
        len(table),
        float(table["within_slo"].mean()),
        run.outcome.number("total_within_slo_tps") * problem.window_s,
        goodput.bound_tokens,
        multiples,
        volume.elasticity,
        volume.load_multiple,
        problem,
    )
