"""One point of a sweep, in whichever process: the verb's answer, or why there is none, as a record.

Traces, and what ``predict`` works out of them, are kept for the next point of the same process.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from smetric_model.errors import SolveError, SpecError, TraceError, UnstableError
from smetric_model.outcome import Outcome, unstable_outcome
from smetric_model.scenario import Scenario
from smetric_model.sweeping.store import Record, Verb

if TYPE_CHECKING:
    from smetric_model.analytic.demand import Demand
    from smetric_model.planning import Plan
    from smetric_model.workload.trace import Trace

__all__ = [
    "VERBS",
    "Task",
    "failed",
    "run_task",
    "run_tasks",
    "shared_demand",
    "shared_trace",
]

#: errors that the same question raises again; any other is tried again by the next run
_LASTING = (SpecError, TraceError, UnstableError, SolveError)


@dataclass(frozen=True, slots=True)
class Task:
    """What goes to a worker.

    Parameters
    ----------
    scenario : Scenario
        With the paths of its files resolved.
    verb : str or callable
    """

    scenario: Scenario
    verb: Verb


def run_task(task: Task) -> Record:
    """Answer a point; an error is an answer, too.

    Parameters
    ----------
    task : Task

    Returns
    -------
    dict
        Ready for JSON: ``status`` (done, unstable or failed), ``error_class``, ``error``,
        ``values``, ``lasting``.
    """
    try:
        if isinstance(task.verb, str):
            values = VERBS[task.verb](task.scenario)
        else:
            values = _plain_row(task.verb(task.scenario))
    except UnstableError as error:
        return failed(error, "unstable") | {"values": _flags(task, error)}
    except Exception as error:
        return failed(error)
    return {"status": "done", "error_class": "", "error": "", "values": values, "lasting": True}


def run_tasks(tasks: Sequence[Task]) -> tuple[list[Record], float]:
    """Answer several points.

    Parameters
    ----------
    tasks : sequence of Task

    Returns
    -------
    list of dict
        As of :func:`run_task`, in their order.
    float
        Time that it took [s].
    """
    started = time.perf_counter()
    return [run_task(task) for task in tasks], time.perf_counter() - started


def failed(error: BaseException, status: str = "failed") -> Record:
    """Make the record of a point without an answer.

    Parameters
    ----------
    error : exception
    status : str
    """
    return {
        "status": status,
        "error_class": type(error).__name__,
        "error": str(error),
        "values": {},
        "lasting": isinstance(error, _LASTING),
    }


def _flags(task: Task, error: UnstableError) -> dict[str, Any]:
    verb = task.verb if task.verb in ("predict", "simulate", "bound") else ""
    return _plain_row(unstable_outcome(task.scenario, str(verb), error))


def _plain_row(result: Any) -> dict[str, Any]:
    """Flat row, ready for JSON, of whatever a verb returned; missing values left out."""
    if isinstance(result, Outcome):
        return {k: v for k, v in result.to_dict().items() if v is not None and v != ""}
    if not isinstance(result, Mapping):
        raise SpecError(
            "a verb returns an Outcome or a mapping of names to values, not"
            f" {type(result).__name__}"
        )
    plain = {}
    for key, given in result.items():
        is_scalar = hasattr(given, "item") and not isinstance(given, str)
        value = given.item() if is_scalar else given
        if isinstance(value, float) and not math.isfinite(value):
            value = None if math.isnan(value) else ("inf" if value > 0 else "-inf")
        if not (value is None or isinstance(value, str | bool | int | float)):
            raise SpecError(
                f"a verb's {key!r} is a {type(value).__name__}: no number, text or bool"
            )
        if value is not None and value != "":
            plain[str(key)] = value
    return plain


def _predict(scenario: Scenario) -> dict[str, Any]:
    from smetric_model.analytic.predict import predict

    return _plain_row(predict(scenario, demand=shared_demand(scenario)))


def shared_demand(scenario: Scenario) -> Demand:
    """Return what a scenario's workload asks for, kept for the next point that asks for the same.

    Parameters
    ----------
    scenario : Scenario
    """
    return _demand(_demand_key(scenario), _Held(scenario))


def _simulate(scenario: Scenario) -> dict[str, Any]:
    from smetric_model.simulate.run import simulate

    return _plain_row(simulate(scenario, shared_trace(scenario)))


def _bound(scenario: Scenario) -> dict[str, Any]:
    from smetric_model.bound.run import bound

    return _plain_row(bound(scenario, shared_trace(scenario)))


def _plan(scenario: Scenario) -> dict[str, Any]:
    from smetric_model.planning.build import plan

    return _plan_row(plan(scenario, shared_trace(scenario)))


def _plan_row(result: Plan) -> dict[str, Any]:
    """Scalars of a plan: ``tiers_attainment_rps``, ``none_peak_rps`` and so on."""
    row: dict[str, Any] = {
        "scenario_id": result.scenario.scenario_id,
        "rate_rps": result.rate_rps,
        "note": "; ".join(result.notes),
    }
    for name, end in result.ends.items():
        for field in dataclasses.fields(end):
            value = getattr(end, field.name)
            if field.name != "reuse" and not isinstance(value, tuple):
                row[f"{name}_{field.name}"] = value
    return _plain_row(row)


#: verb -> what answers it
VERBS: dict[str, Callable[[Scenario], dict[str, Any]]] = {
    "predict": _predict,
    "simulate": _simulate,
    "bound": _bound,
    "plan": _plan,
}


class _Held:
    """A scenario beside its key in a cache: all that have the same key are equal to it."""

    def __init__(self, scenario: Scenario):
        self.scenario = scenario

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held)

    def __hash__(self) -> int:
        return 0


def _demand_key(scenario: Scenario) -> tuple[Hashable, ...]:
    """Everything that the demand depends on: not the router, and of a trace not the rate."""
    if scenario.workload.preset is not None:
        return scenario.llm, scenario.engine, scenario.workload, scenario.seed
    return scenario.llm, scenario.engine, _file_state(scenario)


@lru_cache(maxsize=2)
def _demand(_key: tuple[Hashable, ...], held: _Held) -> Demand:
    from smetric_model.analytic.demand import demand_of, trace_of

    scenario = held.scenario
    trace = shared_trace(scenario)
    return demand_of(scenario, trace_of(scenario) if trace is None else trace)


def shared_trace(scenario: Scenario) -> Trace | None:
    """Trace of a scenario's file, kept for the next; None for a preset, which each draws anew.

    Parameters
    ----------
    scenario : Scenario
    """
    if scenario.workload.preset is not None:
        return None
    return _read_trace(_file_state(scenario), _Held(scenario))


@lru_cache(maxsize=1)
def _read_trace(_key: tuple[str, int, int], held: _Held) -> Trace:
    from smetric_model.workload.trace import load_trace

    return load_trace(held.scenario.trace_path())


def _file_state(scenario: Scenario) -> tuple[str, int, int]:
    path = scenario.trace_path().absolute()
    state = path.stat()
    return str(path), state.st_size, state.st_mtime_ns
