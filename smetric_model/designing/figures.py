"""Figures of a search over designs: cost against latency or rate, and what moves the answer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from smetric_model.designing.worth import needed_instances
from smetric_model.plots import dressed, legend, light, new_figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

    from smetric_model.designing.results import DesignPlan
    from smetric_model.designing.sensitivity import Sensitivity

__all__ = ["designs_figure", "sensitivity_figure"]

_BARS = 9  # parameters shown
_MOST = 100.0  # per cent beyond which a bar is cut
_NOTHING = 1e-3  # change below which a bar is none


def designs_figure(plan: DesignPlan) -> Figure:
    """Cost of each design against its TTFT P90 (capacity: against the rate it attains).

    Parameters
    ----------
    plan : DesignPlan

    Returns
    -------
    Figure
        Closed form; the front joined by a line, the given design a diamond, and joined to where
        simulation puts it if that is elsewhere.
    """
    capacity = plan.goal == "capacity"
    column = "rate_rps" if capacity else "ttft_p90_s"
    figure = new_figure(3.6)
    axes = figure.subplots()
    points = [
        (d.closed_form_cost, d.number(column), d)
        for d in plan.designs
        if not d.error and math.isfinite(d.closed_form_cost) and math.isfinite(d.number(column))
    ]
    handles: list[Any] = []
    kinds: dict[str, tuple[list[Any], dict[str, Any]]] = {
        "design": (
            [p for p in points if not p[2].on_front and p[2] is not plan.given],
            {"marker": "o", "color": light("muted"), "markersize": 6},
        ),
        "on the front": (
            [p for p in points if p[2].on_front and p[2] is not plan.given],
            {"marker": "o", "color": light("tiers"), "markersize": 8},
        ),
        "as given": (
            [p for p in points if p[2] is plan.given],
            {"marker": "D", "color": light("none"), "markersize": 8},
        ),
    }
    front = sorted((x, y) for x, y, d in points if d.on_front)
    if len(front) > 1:
        axes.plot(*zip(*front, strict=True), color=light("tiers"), linewidth=1.4, zorder=1.8)
    for label, (chosen, look) in kinds.items():
        if chosen:
            axes.plot(
                [x for x, _, _ in chosen], [y for _, y, _ in chosen], linestyle="none", **look
            )
            handles.append(Line2D([], [], linestyle="none", label=label, **look))
    confirmed = _simulated_point(plan)
    given = next(((x, y) for x, y, d in points if d is plan.given), None)
    if confirmed is not None and given is not None and confirmed[0] != given[0]:
        look = {"marker": "D", "color": light("none"), "markersize": 8, "markerfacecolor": "none"}
        axes.plot(*zip(given, confirmed, strict=True), color=light("none"), linewidth=1.0,
                  linestyle=":", zorder=1.8)  # fmt: skip
        axes.plot(*confirmed, linestyle="none", **look)
        handles.append(Line2D([], [], linestyle="none", label="as given, simulated", **look))
    axes.set_xlabel(f"cost [{plan.prices.unit} an hour]" if plan.prices.given else "GPUs")
    if not plan.prices.given:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    axes.set_ylabel("rate attained [requests/s]" if capacity else "TTFT P90 [s]")
    axes.margins(0.08)
    dressed(axes)
    legend(figure, handles, 2)  # four in a row are wider than the figure
    return figure


def _simulated_point(plan: DesignPlan) -> tuple[float, float] | None:
    """Cost and TTFT P90 of the given design at the instances that simulation confirms."""
    given = plan.given
    if plan.goal == "capacity" or given.check is None or given.check.instances is None:
        return None
    at = given.check.at
    if at is None or given.bill is None or not math.isfinite(at.ttft_p90_s):
        return None
    return given.bill.total, at.ttft_p90_s


def sensitivity_figure(plan: DesignPlan) -> Figure:
    """Instances needed with one assumption changed, against those of the answer.

    Parameters
    ----------
    plan : DesignPlan

    Returns
    -------
    Figure
        A pair of bars a parameter, what moves the answer most on top.
    """
    needed = needed_instances(plan)
    keys = list(dict.fromkeys(move.key for move in plan.sensitivities))[:_BARS]
    figure = new_figure(0.9 + 0.42 * len(keys))
    axes = figure.subplots()
    for row, key in enumerate(keys):
        for move in plan.sensitivities:
            if move.key != key:
                continue
            change = 100 * (move.instances / needed - 1)
            shown = max(min(change, _MOST), -_MOST) if math.isfinite(change) else _MOST
            # a bar that is 0 has its label on the side away from its partner's
            more = _to_the_right(move, needed, [m for m in plan.sensitivities if m.key == key])
            axes.barh(row, shown, color=light("none" if more else "tiers"), height=0.62)
            # the label says the direction of the change; its bar the size of the answer's
            axes.annotate(
                move.label,
                (shown, row),
                xytext=(4 if more else -4, 0),
                textcoords="offset points",
                ha="left" if more else "right",
                va="center",
                fontsize=8,
                color=light("ink"),
                annotation_clip=False,
            )
    axes.axvline(0, color=light("muted"), linewidth=1.0)
    axes.set_ylim(len(keys) - 0.4, -0.6)
    axes.set_yticks([])
    axes.margins(x=0.55)
    axes.set_xlabel("instances needed, change [%]")
    dressed(axes)
    axes.grid(False, axis="y")
    axes.spines["left"].set_visible(False)
    return figure


def _to_the_right(move: Sensitivity, needed: float, pair: Sequence[Sensitivity]) -> bool:
    """Whether a bar and its label stand to the right of 0; of a pair of bars one does."""
    if move.instances != needed and abs(move.instances / needed - 1) >= _NOTHING:
        return move.instances > needed
    others = [m for m in pair if m is not move]
    if not others:
        return True
    other = others[0]
    if abs(other.instances / needed - 1) >= _NOTHING:
        return other.instances < needed
    return pair.index(move) > 0
