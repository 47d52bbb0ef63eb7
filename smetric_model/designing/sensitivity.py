r"""What moves the answer: the closed form with one assumption changed at a time.

With the instances of the answer, the largest rate :math:`R` that still attains the share within
SLO is found again under each change.  :math:`R_0/R` is how many times the instances the same rate
then needs where capacity grows in proportion to them, and

.. math:: \varepsilon = \ln(R/R_0) / \ln(x/x_0)

the elasticity of capacity to a parameter that goes from :math:`x_0` to :math:`x`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smetric_model.analytic.cluster_demand import with_efficiencies
from smetric_model.analytic.demand import Demand, demand_of
from smetric_model.analytic.efficiencies import Efficiencies, get_efficiencies
from smetric_model.analytic.predict import predict
from smetric_model.errors import SolveError, SpecError, UnstableError

if TYPE_CHECKING:
    from smetric_model.scenario import Scenario

__all__ = [
    "Attained",
    "Limit",
    "Looser",
    "Sensitivity",
    "attained",
    "looser_slo",
    "sensitivities",
    "with_outputs",
]

_TOLERANCE = 0.008  # relative width at which the search for a rate ends
_STEPS = 14
_IDLE = 0.02  # of a rate: nothing waits
_LOOSEST = 1024.0  # times an SLO


@dataclass(frozen=True)
class Sensitivity:
    """Answer with one assumption changed.

    Attributes
    ----------
    key : str
        What is changed.
    parameter, change : str
        In words: what, and by how much.
    factor : float
        Times the assumed value; NaN where that is no number (a share).
    capacity_ratio : float
        Largest rate that attains the share, over that of the answer; NaN where no rate does.
    elasticity : float
        Of capacity to the parameter; NaN without a factor.
    instances : float
        Instances that the asked rate then needs, in proportion to capacity (a fraction).
    """

    key: str
    parameter: str
    change: str
    factor: float
    capacity_ratio: float
    elasticity: float
    instances: float

    @property
    def label(self) -> str:
        """Parameter and change."""
        return f"{self.parameter} {self.change}"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Limit:
    """What ends the capacity of the answer's cluster.

    Attributes
    ----------
    rate_rps : float
        Largest rate that attains the share within SLO [requests/s].
    within_slo_ratio : float
        Share within SLO there.
    idle_within_slo_ratio : float
        Share within SLO where nothing waits.
    saturated : bool
        Whether beyond it there is no steady state, rather than too small a share within SLO.
    """

    rate_rps: float
    within_slo_ratio: float
    idle_within_slo_ratio: float
    saturated: bool


@dataclass(frozen=True)
class Looser:
    """Which SLO could be met where no number of instances meets the one given.

    Attributes
    ----------
    idle_within_slo_ratio : float
        Share within SLO where nothing waits.
    ttft_factor, tpot_factor : float or None
        Times the TTFT, and the TPOT, SLO at which the wanted share is within SLO where nothing
        waits, the other SLO as given; None where none is.
    both_factor : float or None
        Times both.
    """

    idle_within_slo_ratio: float
    ttft_factor: float | None
    tpot_factor: float | None
    both_factor: float | None


class Attained(NamedTuple):
    """Largest rate that attains a share within SLO.

    Attributes
    ----------
    rate_rps : float
        0 where none was found [requests/s].
    within_slo_ratio : float
        Share there; NaN where none was found.
    saturated : bool
        Whether what ends it is that there is no steady state.
    """

    rate_rps: float
    within_slo_ratio: float
    saturated: bool


def attained(scenario: Scenario, demand: Demand, start_rps: float) -> Attained:
    """Return the largest rate at which a scenario's share is within SLO, in closed form.

    Parameters
    ----------
    scenario : Scenario
        Its rate is not looked at.
    demand : Demand
        Its workload.
    start_rps : float
        Where the search begins [requests/s].

    Returns
    -------
    Attained
        None is found where none is down to a hundredth of ``start_rps``.
    """
    wanted = scenario.slo.attainment

    def surplus(rate: float) -> float:
        return _share(scenario, demand, rate) - wanted

    low = high = start_rps
    at = surplus(start_rps)
    below = above = at
    step = 1.08
    while below < 0:
        high, above = low, below
        low = low / step
        if low < 0.01 * start_rps:
            return Attained(0.0, math.nan, above <= -wanted)
        below, step = surplus(low), step**1.5
    while above >= 0:
        low, below = high, above
        high = high * step
        if high > 100 * start_rps:
            return Attained(high, above + wanted, False)
        above, step = surplus(high), step**1.5
    for _ in range(_STEPS):
        if high / low - 1 <= _TOLERANCE:
            break
        # false position, kept off the ends; a rate without a steady state only says "too much"
        share = 0.5 if above <= -wanted else below / (below - above)
        middle = low * (high / low) ** min(max(share, 0.15), 0.85)
        value = surplus(middle)
        if value >= 0:
            low, below = middle, value
        else:
            high, above = middle, value
    return Attained(low, below + wanted, above <= -wanted)


def _share(scenario: Scenario, demand: Demand, rate_rps: float) -> float:
    """Share within SLO at a rate; 0 without a steady state."""
    try:
        row = predict(scenario.replace(**{"workload.rate_rps": rate_rps}), demand=demand)
    except (UnstableError, SolveError):
        return 0.0
    return row.number("within_slo_ratio")


def looser_slo(scenario: Scenario, demand: Demand) -> Looser:
    """Find the SLO that a cluster could meet, where it does not meet its own however large it is.

    Parameters
    ----------
    scenario : Scenario
        With so many instances that nothing waits.
    demand : Demand
        Its workload.

    Returns
    -------
    Looser
    """
    slo = scenario.slo

    def share(ttft: float, tpot: float) -> float:
        asked = scenario.replace(
            **{
                "slo.ttft_base_s": slo.ttft_base_s * ttft,
                "slo.ttft_per_prompt_token_s": slo.ttft_per_prompt_token_s * ttft,
                "slo.tpot_s": slo.tpot_s * tpot,
            }
        )
        try:
            return predict(asked, demand=demand).number("within_slo_ratio")
        except (UnstableError, SolveError):
            return 0.0

    def least(of: Callable[[float], float]) -> float | None:
        """Return the smallest factor with the wanted share, to two per cent."""
        if of(_LOOSEST) < slo.attainment:
            return None
        low, high = 1.0, 2.0
        while of(high) < slo.attainment:
            low, high = high, 2 * high
        while high / low > 1.02:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if of(middle) >= slo.attainment else (middle, high)
        return high

    ttft, tpot = least(lambda f: share(f, 1.0)), least(lambda f: share(1.0, f))
    both = least(lambda f: share(f, f)) if ttft is None and tpot is None else None
    return Looser(share(1.0, 1.0), ttft, tpot, both)


def sensitivities(
    scenario: Scenario,
    demand: Demand,
    rate_rps: float,
    tell: Callable[[str], None] = lambda _text: None,
) -> tuple[Limit | None, tuple[Sensitivity, ...]]:
    """Change the assumptions behind an answer one at a time.

    Parameters
    ----------
    scenario : Scenario
        The answer's design, with its instances.
    demand : Demand
        Its workload.
    rate_rps : float
        Rate that it is to serve [requests/s].
    tell : callable
        Told what is being worked out.

    Returns
    -------
    Limit or None
        None where no rate attains the share.
    tuple of Sensitivity
        What moves the answer most comes first.
    """
    cases = _cases(scenario, demand)
    edge = attained(scenario, demand, rate_rps)
    base = edge.rate_rps
    if base <= 0:
        return None, ()
    idle = _share(scenario, demand, _IDLE * base)
    limit = Limit(base, edge.within_slo_ratio, idle, edge.saturated)
    instances = scenario.cluster.instances
    needed = instances * rate_rps / base
    found = [
        Sensitivity(
            "workload.rate_rps",
            "requests/s",
            _signed(factor),
            factor,
            1.0,
            math.nan,
            needed * factor,
        )
        for factor in (0.8, 1.2)
    ]
    for number, (key, parameter, change, factor, question) in enumerate(cases):
        tell(f"sensitivities: {number} of {len(cases)} done")
        try:
            asked, work = question()
            rate = attained(asked, work, base).rate_rps
        except SpecError:
            continue  # what the change asks for cannot be: nothing to say
        ratio = rate / base if rate > 0 else math.nan
        found.append(
            Sensitivity(
                key,
                parameter,
                change,
                factor,
                ratio,
                math.log(ratio) / math.log(factor) if factor > 0 and ratio > 0 else math.nan,
                needed / ratio if ratio > 0 else math.inf,
            )
        )
    return limit, tuple(sorted(found, key=lambda s: -abs(s.instances - needed)))


def _signed(factor: float) -> str:
    return f"{100 * (factor - 1):+.0f}%".replace("-", "−")


_Case = tuple[str, str, str, float, Callable[[], tuple["Scenario", Demand]]]


def _cases(scenario: Scenario, demand: Demand) -> list[_Case]:
    slo = scenario.slo
    cases: list[_Case] = []

    def keys(key: str, parameter: str, change: str, factor: float, **changes: float) -> None:
        asked = {name.replace("__", "."): value for name, value in changes.items()}
        cases.append((key, parameter, change, factor, lambda: (scenario.replace(**asked), demand)))

    def outputs(factor: float) -> None:
        cases.append(
            (
                "output_tokens",
                "outputs",
                _signed(factor),
                factor,
                lambda: (scenario, with_outputs(scenario, demand, factor)),
            )
        )

    def efficiency(ending: str, parameter: str, factor: float) -> None:
        other = with_efficiencies(demand, _scaled(fitted, ending, factor))
        cases.append(
            (
                f"efficiencies.*{ending}",
                parameter,
                _signed(factor),
                factor,
                lambda: (scenario, other),
            )
        )

    for factor in (0.8, 1.25):
        sign = _signed(factor)
        outputs(factor)
        if math.isfinite(slo.ttft_base_s):
            keys(
                "slo.ttft",
                "TTFT SLO",
                sign,
                factor,
                slo__ttft_base_s=slo.ttft_base_s * factor,
                slo__ttft_per_prompt_token_s=slo.ttft_per_prompt_token_s * factor,
            )
        if math.isfinite(slo.tpot_s):
            keys("slo.tpot_s", "TPOT SLO", sign, factor, slo__tpot_s=slo.tpot_s * factor)
    for share in (0.9, 0.99):
        if abs(share - slo.attainment) > 1e-9:
            keys(
                "slo.attainment",
                "share within SLO",
                f"{share:.0%}",
                math.nan,
                slo__attainment=share,
            )
    fitted = get_efficiencies(demand.instance.gpu.name, demand.instance.engine)
    for factor in (0.9, 1.1):
        efficiency("_compute", "compute efficiencies", factor)
        efficiency("_bandwidth", "bandwidth efficiencies", factor)
    return cases


def with_outputs(scenario: Scenario, demand: Demand, factor: float) -> Demand:
    """Return a workload with longer or shorter outputs, prompts and reuse as they are.

    Parameters
    ----------
    scenario : Scenario
        Its question.
    demand : Demand
        The workload.
    factor : float
        Times its outputs; none becomes shorter than a token.

    Returns
    -------
    Demand
        Of the same requests: what could not be served before still counts among them, so that a
        rate means as many servable requests as before (less those that become too long).
    """
    trace = demand.trace
    output = np.maximum(np.rint(trace.column("output_tokens") * factor), 1.0)
    longer = trace.requests.assign(output_tokens=output.astype(np.int64))
    other = demand_of(scenario, replace(trace, requests=longer))
    unservable = dict(demand.unservable)
    for reason, count in other.unservable.items():
        unservable[reason] = unservable.get(reason, 0) + count
    return replace(
        other,
        requests=demand.requests,
        unservable=unservable,
        trace_rate_rps=demand.trace_rate_rps,
        sessions=demand.sessions,
    )


def _scaled(fitted: Efficiencies, ending: str, factor: float) -> Efficiencies:
    """Efficiencies of one kind times a factor, none above 1."""
    changes: dict[str, Any] = {}
    for name in vars(fitted):
        if not name.endswith(ending) or name == "all_reduce_bandwidth":
            continue
        value = getattr(fitted, name)
        if isinstance(value, Mapping):
            changes[name] = {key: min(v * factor, 1.0) for key, v in value.items()}
        else:
            changes[name] = min(value * factor, 1.0)
    return replace(fitted, **changes)
