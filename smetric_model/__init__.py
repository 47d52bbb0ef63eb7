"""How many tokens per second can an LLM serving cluster deliver within its SLO, and why.

The public names below load on first use, so that ``import smetric_model`` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES: dict[str, str] = {
    "Outcome": "smetric_model.outcome",
    "Scenario": "smetric_model.scenario",
    "advantage": "smetric_model.advantage",
    "bound": "smetric_model.bound",
    "capacity": "smetric_model.capacity",
    "compare": "smetric_model.comparison",
    "fewest_instances": "smetric_model.tuning.sizing",
    "load_trace": "smetric_model.workload.trace",
    "measure": "smetric_model.live.measured_run",
    "plan": "smetric_model.designing",
    "predict": "smetric_model.analytic.predict",
    "predict_at_rates": "smetric_model.analytic.cluster_capacity",
    "predicted_capacity": "smetric_model.analytic.cluster_capacity",
    "simulate": "smetric_model.simulate",
    "sweep": "smetric_model.sweeping",
    "tune": "smetric_model.tuning",
}

__all__ = ["__version__", *sorted(_HOMES)]

if TYPE_CHECKING:
    from smetric_model.advantage import advantage as advantage
    from smetric_model.analytic.cluster_capacity import predict_at_rates as predict_at_rates
    from smetric_model.analytic.cluster_capacity import predicted_capacity as predicted_capacity
    from smetric_model.analytic.predict import predict as predict
    from smetric_model.bound import bound as bound
    from smetric_model.capacity import capacity as capacity
    from smetric_model.comparison import compare as compare
    from smetric_model.designing import plan as plan
    from smetric_model.live.measured_run import measure as measure
    from smetric_model.outcome import Outcome as Outcome
    from smetric_model.scenario import Scenario as Scenario
    from smetric_model.simulate import simulate as simulate
    from smetric_model.sweeping import sweep as sweep
    from smetric_model.tuning import fewest_instances as fewest_instances
    from smetric_model.tuning import tune as tune
    from smetric_model.workload.trace import load_trace as load_trace


def __getattr__(name: str) -> Any:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
