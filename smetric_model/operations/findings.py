"""What an operational question is answered with: figures with their source, and words."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from smetric_model.errors import SpecError
from smetric_model.planning.words import duration, number, percent

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.analytic.demand import Demand
    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

__all__ = [
    "Figure",
    "Finding",
    "Progress",
    "Source",
    "demand_for",
    "from_record",
    "gpu_hours",
    "silent",
    "to_rate",
    "to_record",
]

#: How a figure was found: an equation, engine steps, or a limit that nothing can pass.
Source = Literal["closed form", "simulated", "bound", "given"]

#: Told in a few words what is being worked out.
Progress = Callable[[str], None]


def silent(_text: str) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class Figure:
    """One number of an answer.

    Attributes
    ----------
    name : str
        Key, with the unit as its suffix as in the schema.
    label : str
        What it is, in words.
    value : float
        NaN where it does not exist.
    unit : str
        ``""`` for a ratio or a count.
    source : {"closed form", "simulated", "bound", "given"}
        Who says so; ``given``: an assumption of the asker's.
    validity : str
        Where it holds, or what is left out of it; empty where the method's own page says all.
    """

    name: str
    label: str
    value: float
    unit: str
    source: Source
    validity: str = ""

    @property
    def text(self) -> str:
        """Value for people: rounded, with its unit; times that are none in words."""
        if self.unit == "s":
            if self.name.endswith("_recovered_s") and self.value == 0:
                return "never below"
            if self.name.endswith("_recovered_s") and self.value == math.inf:
                return "not in this time"
            return "at once" if self.value == 0 else duration(self.value)
        if self.name.endswith("_ratio") and not self.name.startswith("peak_to_mean"):
            return percent(self.value)
        return " ".join((number(self.value), self.unit)).strip()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; what is not finite is None.

        Returns
        -------
        dict
        """
        value = self.value if math.isfinite(self.value) else None
        return {
            "name": self.name,
            "label": self.label,
            "value": value,
            "unit": self.unit,
            "source": self.source,
            "validity": self.validity,
        }


@dataclass(frozen=True, eq=False)
class Finding:
    """Answer to one operational question.

    Attributes
    ----------
    question : str
        Key of the question, such as ``"node-loss"``.
    title : str
        The question in words.
    figures : tuple of Figure
        Every number, each with its source.
    words : tuple of str
        What they say, a sentence each, the answer first.
    notes : tuple of str
        What a reader must know before believing it.
    tables : dict of str to DataFrame
        Curves behind it, tidy, units in the columns' names.
    elapsed_s : float
        How long the answer took [s].
    """

    question: str
    title: str
    figures: tuple[Figure, ...]
    words: tuple[str, ...]
    notes: tuple[str, ...] = ()
    tables: dict[str, pd.DataFrame] = field(default_factory=dict, repr=False)
    elapsed_s: float = math.nan

    def __getitem__(self, name: str) -> float:
        """Value of a figure by its name.

        Raises
        ------
        KeyError
            If there is none of this name.
        """
        for figure in self.figures:
            if figure.name == name:
                return figure.value
        raise KeyError(f"{self.question} has no figure {name!r}; {', '.join(self.names)}")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the figures."""
        return tuple(figure.name for figure in self.figures)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON; tables as lists of rows.

        Returns
        -------
        dict
        """
        return {
            "question": self.question,
            "title": self.title,
            "words": list(self.words),
            "figures": [figure.to_dict() for figure in self.figures],
            "notes": list(self.notes),
            "tables": {name: table.to_dict("records") for name, table in self.tables.items()},
            "elapsed_s": self.elapsed_s,
        }


def to_record(finding: Finding) -> dict[str, Any]:
    """Return a finding as values ready for Python's JSON, which has NaN and infinities.

    Parameters
    ----------
    finding : Finding
    """
    tables = {}
    for name, table in finding.tables.items():
        columns = {str(key): [_item(v) for v in values] for key, values in table.items()}
        tables[name] = columns
    return {
        "question": finding.question,
        "title": finding.title,
        "figures": [vars(figure) for figure in finding.figures],
        "words": list(finding.words),
        "notes": list(finding.notes),
        "tables": tables,
        "elapsed_s": finding.elapsed_s,
    }


def _item(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def from_record(record: dict[str, Any]) -> Finding:
    """Return the finding of :func:`to_record`.

    Parameters
    ----------
    record : dict

    Raises
    ------
    LookupError, TypeError
        If it is no such record.
    """
    import pandas as pd

    return Finding(
        question=record["question"],
        title=record["title"],
        figures=tuple(Figure(**figure) for figure in record["figures"]),
        words=tuple(record["words"]),
        notes=tuple(record["notes"]),
        tables={name: pd.DataFrame(columns) for name, columns in record["tables"].items()},
        elapsed_s=record["elapsed_s"],
    )


def demand_for(
    scenario: Scenario, trace: Trace | None = None, demand: Demand | None = None
) -> Demand:
    """Return what the scenario's workload asks for, unless it is at hand.

    Parameters
    ----------
    scenario : Scenario
        The question.
    trace : Trace, optional
        Its workload, if it is at hand.
    demand : Demand, optional
        Returned as it is, if given.

    Returns
    -------
    Demand

    Raises
    ------
    SpecError
        If the scenario cannot be resolved.
    """
    from smetric_model.analytic.demand import demand_of, trace_of

    if demand is not None:
        return demand
    return demand_of(scenario, trace_of(scenario) if trace is None else trace)


def to_rate(scenario: Scenario, demand: Demand) -> Scenario:
    """Return the scenario with its rate as a number: the trace's own where it asks for that.

    Parameters
    ----------
    scenario : Scenario
        The question.
    demand : Demand
        Its workload.

    Returns
    -------
    Scenario

    Raises
    ------
    SpecError
        If the rate is the trace's, and its sessions share no clock.
    """
    if scenario.workload.rate_rps != "trace":
        return scenario
    if not math.isfinite(demand.trace_rate_rps):
        raise SpecError(
            f"workload.rate_rps = 'trace': the sessions of {demand.source} share no clock;"
            " give a number"
        )
    return scenario.replace(**{"workload.rate_rps": demand.trace_rate_rps})


def gpu_hours(scenario: Scenario, instance_s: float) -> float:
    """Return GPU-hours of so many instance-seconds.

    Parameters
    ----------
    scenario : Scenario
        For the GPUs of an instance.
    instance_s : float
        [s].

    Returns
    -------
    float
        [h].
    """
    return instance_s * scenario.engine.tp / 3600
