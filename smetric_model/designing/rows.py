"""Cells, rows and numbers of a search over designs, for tables and sentences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from smetric_model.planning.words import duration, number, percent, rate_unit

if TYPE_CHECKING:
    from smetric_model.designing.check import Try
    from smetric_model.designing.prices import Prices
    from smetric_model.designing.results import DesignPlan, DesignResult

__all__ = [
    "balance_note",
    "cost_text",
    "counted",
    "counted_units",
    "design_caption",
    "design_cells",
    "design_columns",
    "design_order",
    "price_rows",
    "rate_text",
    "spent_text",
    "tried_text",
    "try_rows",
]


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural where it is not one."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def counted_units(value: float, noun: str, digits: int = 3) -> str:
    """Return a number that need not be whole with its noun, in the plural where it does not read 1.

    Parameters
    ----------
    value : float
    noun : str
    digits : int
    """
    text = number(value, digits)
    return f"{text} {noun}" if text == "1" else f"{text} {noun}s"


def rate_text(rate_rps: float | None) -> str:
    """Return a rate of requests with its unit.

    Parameters
    ----------
    rate_rps : float or None
    """
    text = number(rate_rps)
    return f"{text} request/s" if text == "1" else f"{text} requests/s"


def spent_text(plan: DesignPlan) -> str:
    """Return how long a plan took, and with what: parts that add up to the whole, as shown.

    Parameters
    ----------
    plan : DesignPlan
    """
    # in tenths of a second, cut off, so that what is left over is never negative
    whole = round(10 * plan.elapsed_s)
    parts = {what: int(10 * seconds) for what, seconds in plan.seconds.items() if what != "rest"}
    parts["rest"] = whole - sum(parts.values())
    shown = ", ".join(f"{what} {tenths / 10:.1f} s" for what, tenths in parts.items() if tenths)
    return f"{whole / 10:.1f} s ({shown})" if shown else f"{whole / 10:.1f} s"


def tried_text(tried: Try, wanted: float | None = None) -> str:
    """Return a simulated share with its interval.

    Parameters
    ----------
    tried : Try
    wanted : float, optional
        A share beside which it must not be rounded to the other side.
    """
    if math.isnan(tried.mean):
        return "could not be simulated"
    digits = 1
    if wanted is not None:
        # 94.98 % is not yet 95 %
        while digits < 4 and (round(tried.mean, digits + 2) >= wanted) != (tried.mean >= wanted):
            digits += 1
    return f"{percent(tried.mean, digits)} ± {percent(tried.half_width)}"


def cost_text(plan: DesignPlan, cost: float, digits: int = 3) -> str:
    """Return a cost with its unit.

    Parameters
    ----------
    plan : DesignPlan
        For its prices.
    cost : float
    digits : int
    """
    return f"{number(cost, digits)} {plan.prices.unit}"


def design_columns(plan: DesignPlan) -> list[str]:
    """Return the columns of the table of designs, after the name.

    Parameters
    ----------
    plan : DesignPlan
    """
    first = "closed form" if plan.goal == "instances" else "requests/s"
    cost = ["cost/h"] if plan.prices.given else ["GPUs"]
    simulated = ["simulated"] if plan.seeds else []
    return [first, *simulated, *cost, "per M tokens", "TTFT P90"]


def design_caption(plan: DesignPlan) -> str:
    """Return how the table of designs is to be read.

    Parameters
    ----------
    plan : DesignPlan
    """
    unit = plan.prices.unit
    if plan.goal == "capacity":
        return f"costs in {unit}; requests/s and TTFT by the closed form"
    by = "by the closed form and simulated" if plan.seeds else "by the closed form"
    text = f"instances {by}; costs in {unit}; TTFT by the closed form at its instances"
    if plan.seeds:
        text += "; (in brackets) at the closed form's instances: compare with the others' column"
        text += " of the closed form, not with their costs"
    return text


def balance_note(plan: DesignPlan) -> str:
    """Return why the tables of placement show less than the answer; empty where they do not.

    Parameters
    ----------
    plan : DesignPlan
    """
    ends, rate = plan.placement.ends, plan.placement.rate_rps
    if not ends or plan.advised.instances is None or rate is None:
        return ""
    attained = ends["tiers"].attainment_rps or 0.0
    lost = float(plan.placement.workload["unservable_ratio"])
    rate *= 1 - lost  # the table counts those that can be served
    if attained >= rate:
        return ""
    return (
        f"The recommended router serves {number(rate)} {rate_unit(plan.placement)} within the SLO"
        " here, more than this table has: it balances the load"
    )


def design_order(plan: DesignPlan, design: DesignResult) -> tuple[bool, float]:
    """Return what designs are sorted by in a table: those with a simulated number first, by cost.

    Parameters
    ----------
    plan : DesignPlan
    design : DesignResult
    """
    apart = bool(plan.seeds) and plan.goal == "instances" and design.source != "simulated"
    return apart, math.inf if design.bill is None else design.bill.total


def design_cells(plan: DesignPlan, design: DesignResult) -> list[str]:
    """Return the cells of a design in the table of designs, after its name.

    Parameters
    ----------
    plan : DesignPlan
    design : DesignResult
    """
    if design.error or design.scenario is None:
        return ["–" for _ in design_columns(plan)]
    simulated = "–"
    if design.check is not None:
        count = design.check.instances
        simulated = "none" if count is None else f"{count:,}"
        if plan.goal == "capacity" and design.check.at is not None:
            simulated = tried_text(design.check.at)
    first = (
        f"{design.closed_form_instances:,}"
        if plan.goal == "instances"
        else f"{number(design.number('rate_rps'))}"
    )
    cost = "–" if design.bill is None else number(design.bill.total)
    tokens = "–" if design.costs is None else number(design.costs.total)
    if plan.seeds and plan.goal == "instances" and design.source != "simulated":
        # at the closed form's number: not to be held against costs at simulated ones
        cost, tokens = (text if text == "–" else f"({text})" for text in (cost, tokens))
    return [
        first,
        *([simulated] if plan.seeds else []),
        cost,
        tokens,
        duration(design.number("ttft_p90_s")),
    ]


def try_rows(plan: DesignPlan) -> list[tuple[str, str, str, str]]:
    """Return what was simulated: design, instances, share within SLO, shares by seed.

    Parameters
    ----------
    plan : DesignPlan
    """
    return [
        (
            design.name,
            f"{tried.instances:,}",
            tried_text(tried),
            ", ".join(percent(share) for share in tried.shares),
        )
        for design in plan.designs
        if design.check is not None
        for tried in design.check.tries
    ]


def price_rows(prices: Prices) -> list[tuple[str, str]]:
    """Return the prices that were given, one a row; none without any.

    Parameters
    ----------
    prices : Prices
    """
    if not prices.given:
        return []
    rows = [(f"{gpu}, an hour", number(price)) for gpu, price in prices.gpu_hour.items()]
    return [
        *rows,
        ("GB of global tier, an hour", number(prices.host_memory_gb_hour)),
        ("Gbit/s of NICs, an hour", number(prices.nic_gbps_hour)),
        ("node, an hour", number(prices.node_hour)),
    ]
