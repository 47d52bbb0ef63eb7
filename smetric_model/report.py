"""A plan as a page: one HTML file that needs nothing else; JSON and CSV beside it."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smetric_model.planning import words

if TYPE_CHECKING:
    from smetric_model.designing import DesignPlan
    from smetric_model.planning import Plan
    from smetric_model.scenario import Scenario

__all__ = ["plan_page", "write_plan_report"]

_ASSUMPTIONS = (
    "Reuse under a router lies between none and ideal; what it gains by balancing the load is not"
    " in these three.",
    "Requests arrive at each instance as a Poisson process; prefill is served first come, first"
    " served; KV tiers are LRU.",
    "Each step's time is a roofline by operator group, with efficiencies fitted to published"
    " measurements (below); tokens choose experts uniformly and independently.",
    "Tokens/s count prompt and output tokens of the whole cluster. TPOT is a request's mean time"
    " per output token after the first.",
)
_DISTRIBUTIONS = ("smetric-model", "numpy", "scipy", "pandas", "matplotlib")


@dataclass(frozen=True)
class _Plot:
    title: str
    reading: str
    svg: Any  # markupsafe.Markup, or None where there is nothing to draw


def write_plan_report(plan: Plan | DesignPlan, out_dir: str | Path) -> Path:
    """Write ``plan.html``, ``plan.json`` and, where designs were compared, ``designs.csv``.

    Parameters
    ----------
    plan : Plan or DesignPlan
        What to report.
    out_dir : str or Path
        Folder; made if it is not there.  Files of these names are replaced.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    OSError
        If the folder cannot be written.
    """
    import orjson

    folder = Path(out_dir)
    page = plan_page(plan)
    # orjson writes NaN and infinities as null
    content = orjson.dumps(
        plan.to_dict(),
        option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE,
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_bytes(content)
    search = _search(plan)
    if search is not None:
        search.frame().to_csv(folder / "designs.csv", index=False)
    path = folder / "plan.html"
    path.write_text(page, encoding="utf-8")
    return path


def _search(plan: Plan | DesignPlan) -> DesignPlan | None:
    from smetric_model.designing import DesignPlan

    return plan if isinstance(plan, DesignPlan) else None


def plan_page(plan: Plan | DesignPlan) -> str:
    """Return the page of a plan.

    Parameters
    ----------
    plan : Plan or DesignPlan
        What to report.

    Returns
    -------
    str
        HTML that loads nothing, runs nothing, and follows the reader's light or dark setting.
        Whatever comes from files is escaped.
    """
    from smetric_model.pages import filled_page
    from smetric_model.plots import GROUP_COLOURS

    search = _search(plan)
    placement: Plan = plan if search is None else search.placement  # type: ignore[assignment]
    notes = placement.notes if search is None else (*search.notes, *placement.notes)
    return filled_page(
        "plan.html.j2",
        plan=placement,
        search=None if search is None else _searched(search),
        words=words,
        notes=[_sentence(note) for note in notes],
        group_colours=GROUP_COLOURS,
        plots=_plots(placement) if placement.ends else [],
        slo=words.slo(placement),
        steps=_steps(placement) if placement.steps else [],
        asked=plan.scenario,
        scenario=_scenario(plan.scenario),
        assumptions=_ASSUMPTIONS if placement.ends else _ASSUMPTIONS[1:],
        efficiencies=_efficiencies(placement),
        versions={"Python": platform.python_version()}
        | {name: version(name) for name in _DISTRIBUTIONS},
        written=datetime.now(UTC),
        elapsed_s=plan.elapsed_s,
    )


# --- search over designs ------------------------------------------------------------------------


def _searched(search: DesignPlan) -> dict[str, Any]:
    """Return what the page shows of a search over designs."""
    from smetric_model.designing import rows as designs
    from smetric_model.designing.hardware import advice
    from smetric_model.designing.pools import far_more, limited_by

    done = [d for d in search.designs if not d.error]
    ordered = [*done[:1], *sorted(done[1:], key=lambda d: designs.design_order(search, d))]
    reasons: dict[str, list[str]] = {}
    for design in search.designs:
        if design.error:
            reasons.setdefault(design.error.splitlines()[0], []).append(design.name)
    return {
        "warnings": [_sentence(text) for text in search.warnings],
        "answers": search.answers,
        "advice": advice(search),
        "serves": search.advised.instances is not None,
        "balance": designs.balance_note(search),
        "given_instances": search.scenario.cluster.instances,
        "findings": search.findings,
        "columns": [*designs.design_columns(search), "limited by"],
        "caption": designs.design_caption(search),
        "rows": [
            {
                "name": d.name,
                "cells": [*designs.design_cells(search, d), limited_by(d)],
                "on_front": d.on_front,
                "given": d is search.given,
            }
            for d in ordered
        ],
        "far_more": far_more(search),
        "impossible": [(", ".join(names), reason) for reason, names in reasons.items()],
        "prices": designs.price_rows(search.prices),
        "tries": designs.try_rows(search),
        "plots": _search_plots(search),
        "spent": designs.spent_text(search),
    }


def _search_plots(search: DesignPlan) -> list[_Plot]:
    from markupsafe import Markup

    from smetric_model.designing import figures
    from smetric_model.plots import svg

    drawn = []
    if sum(not d.error for d in search.designs) > 1:
        aim = "more requests/s" if search.goal == "capacity" else "a shorter TTFT"
        drawn.append(
            (
                "designs",
                "What is worth its price",
                "A point a design, by the closed form; hollow: where simulation puts the given"
                f" one, if elsewhere. The line joins the front: {aim} than"
                " there costs more. The table below names the designs.",
                figures.designs_figure,
            )
        )
    if search.sensitivities:
        drawn.append(
            (
                "sensitivities",
                "What moves the answer",
                "Instances needed when one assumption changes, the others as they are: to the"
                " right more, to the left fewer.",
                figures.sensitivity_figure,
            )
        )
    return [
        _Plot(title, reading, Markup(svg(draw(search), name, title)))
        for name, title, reading, draw in drawn
    ]


# --- plots --------------------------------------------------------------------------------------


def _plots(plan: Plan) -> list[_Plot]:
    from markupsafe import Markup

    from smetric_model import plots

    reuse = plan.tiers is not None and bool(plan.tiers.curve_bytes)
    fetch = plan.fetch is not None
    drawn = (
        ("capacity", "Tokens/s within SLO against load", _capacity(plan), plots.capacity_figure),
        (
            "tiers",
            "How large the global tier has to be",
            _tier_size(plan),
            plots.tier_size_figure if reuse else None,
        ),
        ("fetch", "Load or recompute", _fetch(plan), plots.fetch_figure if fetch else None),
        ("steps", "Where a step's time goes", _step_sentence(plan), plots.step_figure),
    )
    return [
        _Plot(title, reading, Markup(plots.svg(draw(plan), name, title)) if draw else None)
        for name, title, reading, draw in drawn
    ]


def _capacity(plan: Plan) -> str:
    best = max(plan.ends.values(), key=lambda end: end.peak_within_slo_tps)
    ratio = best.within_slo_ratio[best.rates_rps.index(best.peak_rps)]
    wanted = words.percent(plan.scenario.slo.attainment, 0)
    if best.peak_within_slo_tps == 0:
        return "No request meets the SLO at any rate, whatever is reused: the curves lie at zero."
    text = (
        f"Read upwards from a rate: what is served within the SLO, for each assumption about reuse."
        f" The most is {words.number(best.peak_within_slo_tps)} tokens/s at"
        f" {words.number(best.peak_rps)} {words.rate_unit(plan)}"
        f" ({words.END_NAMES[best.reuse]}), where {words.percent(ratio, 0)} of requests meet the"
        " SLO"
    )
    return f"{text}; the diamonds are as far as {wanted} do."


def _tier_size(plan: Plan) -> str:
    tiers = plan.tiers
    if tiers is None or not tiers.curve_bytes:
        return "Nothing in this workload is reusable: no global tier of any size would serve a hit."
    needed = tiers.global_bytes["95%"]
    text = (
        f"At {words.number(tiers.rate_rps)} {words.rate_unit(plan)} a store shared by all"
        f" instances needs {words.byte_size(needed)} to serve 95% of the reusable tokens; past the"
        " bend, more bytes bring little. "
    )
    if tiers.provisioned_bytes > 0:
        return text + (
            f"The {words.byte_size(tiers.provisioned_bytes)} provisioned serve"
            f" {words.percent(tiers.provisioned_serves_ratio)}."
        )
    return text + "No global tier is provisioned."


def _fetch(plan: Plan) -> str:
    fetch = plan.fetch
    if fetch is None:
        return "Nothing in this workload is reusable: there is nothing to load or recompute."
    nodes = ""
    if plan.tiers is not None and plan.tiers.link_bytes_per_s_per_node == 0:
        nodes = " (On one node nothing travels over RDMA.)"
    return (
        "Fetching pays where its line lies below the prefill line (over RDMA:"
        f" {words.pays(plan, fetch.rdma_pays_tokens)}; from the node's own memory:"
        f" {words.pays(plan, fetch.dram_pays_tokens)}). Below"
        f" {words.number(fetch.break_even_bytes_per_s / 1e9)} GB/s a link would not be worth using"
        f" for the mean prefix of {words.number(fetch.prefix_tokens)} tokens.{nodes}"
    )


def _step_sentence(plan: Plan) -> str:
    parts = []
    for step in plan.steps:
        group = max(step.groups, key=lambda g: float(step.groups[g]["time_s"]))
        bound = step.groups[group]["bound_by"]
        parts.append(
            f"{step.name} {words.duration(step.step_time_s)},"
            f" {words.percent(step.groups[group]['share_ratio'], 0)} of it"
            f" {group.replace('_', ' ')}" + ("" if bound == group else f" (bound by {bound})")
        )
    start = "The widest piece is what a faster kernel or GPU would have to speed up: "
    return start + "; ".join(parts) + "."


# --- tables -------------------------------------------------------------------------------------


def _steps(plan: Plan) -> list[dict[str, Any]]:
    """Operator groups as rows, a column for each step."""
    groups = [g for g in plan.steps[0].groups if any(s.groups[g]["time_s"] > 0 for s in plan.steps)]
    return [
        {
            "key": group,
            "name": group.replace("_", " "),
            "cells": [
                (words.duration(s.groups[group]["time_s"]), s.groups[group]["bound_by"])
                if s.groups[group]["time_s"] > 0
                else ("–", "")
                for s in plan.steps
            ],
        }
        for group in groups
    ]


def _scenario(scenario: Scenario) -> list[tuple[str, list[tuple[str, str, str, bool]]]]:
    """Every key of the scenario by section: name, value, meaning, whether it is the default."""
    from pydantic import BaseModel

    top: list[tuple[str, str, str, bool]] = []
    sections = [("", top)]
    for key, field in type(scenario).model_fields.items():
        value = getattr(scenario, key)
        if isinstance(value, BaseModel):
            rows = []
            for name, inner in type(value).model_fields.items():
                held = getattr(value, name)
                rows.append((name, _value(held), _meaning(inner), held == inner.default))
            sections.append((key, rows))
        elif value != ():
            top.append((key, _value(value), _meaning(field), value == field.default))
    return sections


def _sentence(note: str) -> str:
    # the name of a key keeps its small letter
    return (note[:1].upper() + note[1:] if note.partition(" ")[0].isalpha() else note) + "."


def _value(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _float(value)
    return str(value)


def _float(value: float) -> str:
    """Write as scenario files do: ``25e9``, not ``25000000000``."""
    text = f"{value:.12g}"
    for exponent in (12, 9, 6):
        short = f"{value / 10**exponent:.12g}e{exponent}"
        if abs(value) >= 10**exponent and len(short) < len(text) and float(short) == value:
            return short
    return text


def _meaning(field: Any) -> str:
    return str(field.description or "").replace("`", "")


def _efficiencies(plan: Plan) -> dict[str, Any]:
    from smetric_model.analytic.efficiencies import get_efficiencies

    fitted = get_efficiencies(plan.instance["gpu"], plan.instance["engine"])
    return {
        "fitted_for": fitted.fitted_for,
        "carried_over": fitted.carried_over,
        "provenance": dict(sorted(fitted.provenance.items())),
    }
