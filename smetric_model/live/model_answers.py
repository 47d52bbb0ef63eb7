"""What the model says of a replay before it is made: simulated, predicted and bound."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from smetric_model.errors import SolveError, SpecError, UnstableError
from smetric_model.live.compare import QUANTITIES
from smetric_model.live.validation_spec import ValidationSpec, jittered

if TYPE_CHECKING:
    from smetric_model.outcome import Outcome
    from smetric_model.scenario import Scenario
    from smetric_model.simulate.run import Simulation
    from smetric_model.workload.trace import Trace

__all__ = ["model_answers"]


def model_answers(
    spec: ValidationSpec, scenario: Scenario, trace: Trace, simulation: Simulation
) -> dict[str, Any]:
    """Return the model's answers for one policy, for the file of predictions.

    Parameters
    ----------
    spec : ValidationSpec
        How many simulations, and by how much each is moved.
    scenario : Scenario
        The question.
    trace : Trace
        What will be replayed.
    simulation : Simulation
        Of that, unmoved: the first of the simulations.

    Returns
    -------
    dict
        ``simulate`` (means of :data:`~smetric_model.live.compare.QUANTITIES` over
        ``simulations``), ``predict`` and ``bound`` (outcomes; where there is no answer, ``note``).
    """
    import numpy as np

    from smetric_model.analytic.predict import predict
    from smetric_model.bound import BoundOptions, bound
    from smetric_model.simulate import simulate

    runs = [simulation.outcome]
    for number in range(1, spec.simulations):
        moved = jittered(trace, spec.jitter_s, number)
        runs.append(simulate(scenario.replace(seed=number), moved))
    several = {name: [run.number(name) for run in runs] for name in QUANTITIES}
    answers: dict[str, Any] = {
        "scenario_id": scenario.scenario_id,
        "first_simulation": simulation.outcome.to_dict(),
        "simulate": {name: float(np.nanmean(values)) for name, values in several.items()},
        "simulations": several,
    }
    asks: dict[str, Callable[[], Outcome]] = {
        "predict": partial(predict, scenario, trace=trace),
        "bound": partial(bound, scenario, trace, BoundOptions(timed=False), simulation=simulation),
    }
    for verb, ask in asks.items():
        try:
            answers[verb] = ask().to_dict()
        except (SpecError, UnstableError, SolveError) as error:
            answers[verb] = {"note": f"no answer: {error}"}
    return answers
