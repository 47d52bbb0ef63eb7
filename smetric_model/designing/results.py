"""What a search over designs says: plain, frozen results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from smetric_model.designing.check import Check
from smetric_model.designing.costs import TokenCosts
from smetric_model.designing.prices import Bill, Prices
from smetric_model.designing.sensitivity import Limit, Looser, Sensitivity
from smetric_model.designing.space import DesignSpace
from smetric_model.tuning.sizing import with_instances

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.planning import Plan
    from smetric_model.scenario import Scenario
    from smetric_model.tuning import Tuning

__all__ = ["Answer", "Compared", "DesignPlan", "DesignResult", "Finding", "Marginal", "Optimum"]

Goal = Literal["instances", "capacity"]


class Finding(Protocol):
    """An answer from elsewhere that a plan shows with its own, such as what a lost node costs."""

    @property
    def title(self) -> str:
        """The question in words."""

    @property
    def words(self) -> Sequence[str]:
        """The answer, a sentence each."""

    @property
    def notes(self) -> Sequence[str]:
        """What to know before believing it."""

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""


@dataclass(frozen=True)
class Answer:
    """One question and its answer in words.

    Attributes
    ----------
    question : str
        As a planner would ask it.
    text : str
        The answer, with its numbers.
    source : str
        Who says so: closed form, simulated (how many seeds), bound.
    validity : str
        What it does not cover; may be empty.
    """

    question: str
    text: str
    source: str
    validity: str = ""


@dataclass(frozen=True)
class DesignResult:
    """One design with its answers.

    Attributes
    ----------
    name : str
    changes : tuple of (str, value)
        In which it differs from the given scenario.
    scenario : Scenario or None
        With the closed form's instances (and, for a capacity, its rate); None where there is none.
    error : str
        Why there is no answer; empty where there is one.
    row : dict
        The closed form's answer; :func:`~smetric_model.designing.closed_form.size_design`.
    bill : Bill or None
        Per hour, at :attr:`instances`.
    costs : TokenCosts or None
        Per million tokens.
    closed_form_cost : float
        Per hour at the closed form's instances; NaN without an answer.
    on_front : bool
        Whether by the closed form no other design is at once cheaper and quicker at TTFT P90
        (capacity: cheaper and larger).
    check : Check or None
        What simulation says; None where it was not asked.
    """

    name: str
    changes: tuple[tuple[str, Any], ...]
    scenario: Scenario | None
    error: str
    row: dict[str, Any] = field(repr=False)
    bill: Bill | None = None
    costs: TokenCosts | None = None
    closed_form_cost: float = math.nan
    on_front: bool = False
    check: Check | None = None

    @property
    def closed_form_instances(self) -> int | None:
        """Instances by the closed form."""
        count = self.row.get("instances")
        return None if count is None or self.error else int(count)

    @property
    def instances(self) -> int | None:
        """Instances: those that simulation confirms, where it was asked, else the closed form's."""
        if self.check is not None and self.check.instances is not None:
            return self.check.instances
        return self.closed_form_instances

    @property
    def source(self) -> str:
        """Who says how many instances."""
        if self.check is None:
            return "closed form"
        return "simulated" if self.check.instances is not None else "closed form, not confirmed"

    @property
    def carried_over(self) -> bool:
        """Whether its step times rest on efficiencies that were fitted to another GPU."""
        return "carried over" in str(self.row.get("note") or "")

    @property
    def sized(self) -> Scenario | None:
        """The design at :attr:`instances`; None where it has no answer."""
        if self.scenario is None or self.instances is None:
            return None
        return with_instances(self.scenario, self.instances)

    @property
    def gpus(self) -> int | None:
        """GPUs of its instances."""
        if self.instances is None or self.scenario is None:
            return None
        return self.instances * self.scenario.engine.tp

    def number(self, name: str) -> float:
        """Return a column of the closed form's answer; NaN where missing."""
        value = self.row.get(name)
        return float(value) if isinstance(value, int | float) else math.nan


class Compared(Protocol):
    """Designs beside the given one."""

    @property
    def designs(self) -> tuple[DesignResult, ...]:
        """All, the given one first."""

    @property
    def given(self) -> DesignResult:
        """The scenario's own design."""


@dataclass(frozen=True)
class Marginal:
    """What more of one resource saves, the rest as given.

    Attributes
    ----------
    key : str
        ``global_tier.bytes_per_node`` or ``cluster.nic_bytes_per_s``.
    from_value, to_value : float
        Per node, or per interface.
    from_gpus, to_gpus : float
        GPUs that the rate needs, interpolated between whole instances (capacity: GPUs that the
        given rate would need, in proportion).
    units : float
        TB, or Gbit/s, more in all, at the nodes of the given design's answer (its instances as
        simulated, where they were).
    saved_per_unit : float
        GPUs saved per TB or per Gbit/s.
    cost : float
        Of the addition per hour; NaN without prices.
    worth : float
        Of the GPUs saved per hour; NaN without prices.
    break_even : float
        What a TB hour, or a Gbit/s hour, may cost at most, in GPU-hours.
    """

    key: str
    from_value: float
    to_value: float
    from_gpus: float
    to_gpus: float
    units: float
    saved_per_unit: float
    cost: float
    worth: float
    break_even: float

    @property
    def saved_gpus(self) -> float:
        """GPUs saved."""
        return self.from_gpus - self.to_gpus


@dataclass(frozen=True)
class Optimum:
    """How far a design is from what no router can beat.

    Attributes
    ----------
    design : str
        Its name.
    instances : int
        With which it is compared.
    goodput_share : float
        Simulated tokens within SLO over the bound, on the same requests.
    wanted_ratio : float
        Share of the tokens that the simulated cluster serves within SLO.
    fewest_instances : int or None
        Below this no router serves that share; None where it was not worked out.
    fewest_by_volume : int or None
        Below this no router carries the load, at any latency; None where it was not worked out.
    volume_load_multiple : float
        Times this load any router could carry at any latency.
    binding : str
        What limits that.
    exact : bool
        Whether the solver proved its optima; the bounds hold either way.
    """

    design: str
    instances: int
    goodput_share: float
    wanted_ratio: float
    fewest_instances: int | None
    volume_load_multiple: float
    binding: str
    exact: bool
    fewest_by_volume: int | None = None

    @property
    def fewest(self) -> int | None:
        """Below this no router does as much: the larger of the two bounds."""
        both = [n for n in (self.fewest_instances, self.fewest_by_volume) if n is not None]
        return max(both, default=None)


@dataclass(frozen=True)
class DesignPlan:
    """A capacity plan: the answers, and every design behind them.

    Attributes
    ----------
    scenario : Scenario
        The question.
    goal : {"instances", "capacity"}
        Whether a rate is to be served by the fewest instances, or instances are given.
    placement : Plan
        Capacity under perfect placement at three assumptions about reuse, KV tiers, links, steps:
        of the recommended design at its instances.
    space : DesignSpace
    prices : Prices
    designs : tuple of DesignResult
        The given one first.
    recommended : str
        Name of the design to build: the given one unless another is cheaper, or does what the given
        one cannot, by a difference that shows (:mod:`~smetric_model.designing.recommended`).
    cheapest : str
        Name of the cheapest that holds, by however little; empty where none does.
    rate_rps : float or None
        Rate to serve; None where there is none [requests/s].
    tuning : Tuning or None
        OVERLOAD and HIT_RATIO for the given design.
    marginals : tuple of Marginal
    optimum : Optimum or None
        Of the recommended design.
    limit : Limit or None
        What ends the capacity of the recommended design, in closed form.
    looser : Looser or None
        Which SLO could be met; None where the given design has an answer.
    sensitivities : tuple of Sensitivity
        Of the recommended design.
    answers : tuple of Answer
        In words, the most wanted first.
    findings : tuple of Finding
        Answers of other parts of the library.
    notes : tuple of str
        What to know before believing the numbers.
    seeds : tuple of int
        Of the simulations; empty without any.
    elapsed_s : float
    seconds : dict of str to float
        The same by kind of work; they add up to it [s].
    computed, found : int
        Answers worked out now, and found on disk.
    """

    scenario: Scenario
    goal: Goal
    placement: Plan = field(repr=False)
    space: DesignSpace
    prices: Prices
    designs: tuple[DesignResult, ...] = field(repr=False)
    recommended: str
    cheapest: str
    rate_rps: float | None
    tuning: Tuning | None = field(repr=False)
    marginals: tuple[Marginal, ...]
    optimum: Optimum | None
    limit: Limit | None
    looser: Looser | None
    sensitivities: tuple[Sensitivity, ...]
    answers: tuple[Answer, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    seeds: tuple[int, ...]
    elapsed_s: float
    seconds: dict[str, float]
    computed: int = 0
    found: int = 0

    def __getitem__(self, name: str) -> DesignResult:
        """Design by its name.

        Raises
        ------
        KeyError
            If there is none.
        """
        for design in self.designs:
            if design.name == name:
                return design
        raise KeyError(f"no design {name!r}; {', '.join(d.name for d in self.designs)}")

    @property
    def given(self) -> DesignResult:
        """The scenario's own design."""
        return self.designs[0]

    @property
    def ends(self) -> dict[str, Any]:
        """Capacity under perfect placement, by assumption about reuse; empty for two pools."""
        return self.placement.ends

    @property
    def advised(self) -> DesignResult:
        """The recommended design."""
        return self[self.recommended]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to know before believing any answer; :mod:`~smetric_model.designing.beware`."""
        from smetric_model.designing.beware import warnings

        return warnings(self)

    def with_findings(self, findings: Sequence[Finding]) -> DesignPlan:
        """Return the plan with answers of other parts of the library.

        Parameters
        ----------
        findings : sequence of Finding
        """
        return replace(self, findings=(*self.findings, *findings))

    def with_time(self, what: str, seconds: float) -> DesignPlan:
        """Return the plan with the time of more work, such as writing its report.

        Parameters
        ----------
        what : str
            Kind of work.
        seconds : float
            [s].
        """
        spent = self.seconds | {what: self.seconds.get(what, 0.0) + seconds}
        return replace(self, seconds=spent, elapsed_s=self.elapsed_s + seconds)

    def frame(self) -> pd.DataFrame:
        """Return all designs, one tidy row each.

        Returns
        -------
        DataFrame
            ``design``, a column for each key of the space, ``error``, ``instances`` and where they
            come from, what the closed form, the simulation and the bill say.
        """
        from smetric_model.designing.table import designs_frame

        return designs_frame(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, ready for JSON."""
        from smetric_model.designing.table import plan_dict

        return plan_dict(self)
