"""Figures of a plan.

Each function takes a plan and returns a :class:`matplotlib.figure.Figure` of its own; nothing goes
through pyplot, and no backend or setting is changed.  :func:`svg` turns a figure into SVG that can
stand inside a page: its colours become CSS variables, so that the page can have a dark side.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter, PercentFormatter

from smetric_model._figure import ShownFigure
from smetric_model.colours import COLOURS
from smetric_model.planning.words import END_NAMES, byte_size, number
from smetric_model.units import GB, MS_PER_S

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from smetric_model.planning import Plan

__all__ = [
    "COLOURS",
    "GROUP_COLOURS",
    "capacity_figure",
    "dressed",
    "fetch_figure",
    "legend",
    "light",
    "new_figure",
    "step_figure",
    "svg",
    "tier_size_figure",
]

#: operator group -> colour; light enough for dark text in both themes
GROUP_COLOURS = {
    "dense": "#7fb0e3",
    "experts": "#f2b264",
    "attention_prefill": "#7fcba8",
    "attention_decode": "#f09db8",
    "linear_attention": "#bba6e4",
    "lm_head": "#b9c4cf",
    "all_reduce": "#dccf67",
    "launch": "#d2a78d",
}
_ON_GROUP = "#14181c"
_STYLES: dict[str, Any] = {
    "ideal": {"linestyle": "-", "linewidth": 2.0, "zorder": 2.0},
    "tiers": {"linestyle": (0, (5, 2.5)), "linewidth": 2.0, "zorder": 2.1},
    "none": {"linestyle": (0, (1, 1.7)), "linewidth": 2.4, "zorder": 2.2},
}
_SMALLEST_GB = 1e-3  # what takes no room at all stands here on a logarithmic axis
_WIDTH = 5.1  # inches; at 72 units an inch about a phone's width, so that text keeps its size


def light(role: str) -> str:
    """Colour of a role in the light theme, in which figures are drawn."""
    return COLOURS[role][0]


def _thousands(value: float, _position: int | None = None) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def dressed(axes: Axes) -> Axes:
    """Give axes the look of the figures here, and return them."""
    axes.set_facecolor("none")
    axes.grid(True, color=light("line"), linewidth=0.7)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(light("muted"))
    axes.tick_params(which="both", colors=light("muted"), labelcolor=light("ink"), labelsize=9)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(light("ink"))
        label.set_fontsize(9.5)
    return axes


def new_figure(height: float) -> Figure:
    """Return an empty figure as wide as a phone, of a height in inches."""
    return ShownFigure(figsize=(_WIDTH, height), layout="constrained", facecolor="none")


def legend(figure: Figure, handles: list[Any], columns: int) -> None:
    """Put a legend above a figure."""
    figure.legend(
        handles=handles,
        loc="outside upper left",
        ncols=columns,
        frameon=False,
        fontsize=9,
        labelcolor=light("ink"),
        handlelength=2.4,
        columnspacing=1.4,
    )


def _vertical(axes: Axes, x: float, colour: str, style: Any = (0, (1, 2))) -> None:
    axes.axvline(x, color=light(colour), linewidth=1.3, linestyle=style, zorder=1.5)


def capacity_figure(plan: Plan) -> Figure:
    """Tokens/s within SLO, and the share of requests within SLO, against the request rate.

    Parameters
    ----------
    plan : Plan
        Its three ends.

    Returns
    -------
    Figure
        Two panels.  A disc marks the peak, a diamond the attainment capacity, a vertical line the
        plan's rate; each curve ends where it saturates.
    """
    figure = new_figure(5.4)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    servable = 1.0 - plan.workload["unservable_ratio"]
    wanted = plan.scenario.slo.attainment
    handles = []
    for name, title in END_NAMES.items():
        end, colour = plan.ends[name], light(name)
        rates = np.array([*end.rates_rps, end.saturation_rps])
        good = np.array([*end.within_slo_tps, np.nan])
        shares = np.array([*end.within_slo_ratio, np.nan])
        style = _STYLES[name] | {"color": colour}
        upper.plot(rates, good, **style)
        lower.plot(rates, shares, **style)
        # beyond saturation there is no steady state: a drop, not a measured slope
        last, at = float(rates[-2]), end.saturation_rps
        for axes, values in ((upper, good), (lower, shares)):
            axes.plot([last, at], [values[-2], 0], color=colour, linewidth=0.8, alpha=0.6)
        if end.peak_within_slo_tps > 0:
            upper.plot(end.peak_rps, end.peak_within_slo_tps, "o", color=colour, markersize=7)
        if end.attainment_rps is not None:
            y = float(np.interp(end.attainment_rps, rates[:-1], good[:-1]))
            diamond = {"color": colour, "markersize": 8, "markeredgecolor": light("paper")}
            upper.plot(end.attainment_rps, y, "D", **diamond)
            lower.plot(end.attainment_rps, wanted, "D", **diamond)
        handles.append(Line2D([], [], label=title, **style))
    grey = light("muted")
    point = {"linestyle": "none", "color": grey, "markersize": 7}
    marks: dict[str, dict[str, Any]] = {
        "peak": {"marker": "o"} | point,
        f"{100 * wanted:.3g}% within SLO": {"marker": "D"} | point,
    }
    if plan.rate_rps is not None:
        for axes in (upper, lower):
            _vertical(axes, plan.rate_rps * servable, "mark", (0, (3, 1.5, 1, 1.5)))
        marks["rate asked for"] = {
            "color": light("mark"),
            "linewidth": 1.3,
            "linestyle": (0, (3, 1.5, 1, 1.5)),
        }
    handles += [Line2D([], [], label=label, **look) for label, look in marks.items()]
    lower.axhline(wanted, color=grey, linewidth=0.9)
    upper.set_ylabel("within SLO [tokens/s]")
    upper.yaxis.set_major_formatter(FuncFormatter(_thousands))
    lower.set_ylabel("requests within SLO [%]")
    lower.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=""))
    lower.set_ylim(-0.03, 1.05)
    lower.set_xlabel("request rate of the cluster [servable requests/s]")
    top = max(end.peak_within_slo_tps for end in plan.ends.values())
    upper.set_ylim(0, 1.06 * top if top > 0 else 1.0)
    upper.set_xlim(left=0)
    for axes in (upper, lower):
        dressed(axes)
    legend(figure, handles, 3)
    return figure


def tier_size_figure(plan: Plan) -> Figure:
    """Share of the reuse that a shared store serves, against its size.

    Parameters
    ----------
    plan : Plan
        Its ``tiers``.

    Returns
    -------
    Figure
        The curve, with the sizes for 50, 90, 95 and 99 %, the provisioned global tier and what
        running requests leave of the KV pools.

    Raises
    ------
    ValueError
        If nothing is reusable (there is no curve).
    """
    tiers = plan.tiers
    if tiers is None or not tiers.curve_bytes:
        raise ValueError("nothing is reusable: there is no curve of the global tier's size")
    figure = new_figure(3.5)
    axes = figure.subplots()
    size = np.array(tiers.curve_bytes) / GB
    ratio = np.array(tiers.curve_ratio)
    shown = size > 0 if (size > 0).any() else size == 0
    size, ratio = np.maximum(size[shown], _SMALLEST_GB), ratio[shown]
    # below the first size less is served: the curve rises from the axis, also where all reuse has
    # one age and the curve is a step
    size, ratio = np.append(size[:1], size), np.append(0.0, ratio)
    axes.plot(size, ratio, color=light("tiers"), linewidth=2)
    handles = [Line2D([], [], color=light("tiers"), linewidth=2, label="shared store")]
    points = [
        (needed / GB, float(share.rstrip("%")) / 100)
        for share, needed in tiers.global_bytes.items()
        if np.isfinite(needed) and needed > 0
    ]
    if points:
        axes.plot(*zip(*points, strict=True), "o", color=light("tiers"), markersize=6)
        # the last ones crowd at the top: labels go below and above the curve in turn
        for index, (x, y) in enumerate(points):
            below = index % 2 == 0
            axes.annotate(
                f"{100 * y:.0f}%",
                (x, y),
                xytext=(6, -11) if below else (-5, 3),
                ha="left" if below else "right",
                textcoords="offset points",
                fontsize=8.5,
                color=light("ink"),
                bbox={"facecolor": light("paper"), "edgecolor": "none", "pad": 0.6},
            )
    free = max(tiers.local_bytes - tiers.pinned_bytes, 0.0) / GB
    marks: tuple[tuple[float, str, Any, str], ...] = (
        (
            tiers.provisioned_bytes / GB,
            "mark",
            "-",
            f"provisioned, {byte_size(tiers.provisioned_bytes)}",
        ),
        (free, "muted", (0, (3, 1.5)), f"free in KV pools, {byte_size(free * GB)}"),
    )
    for value, colour, style, label in marks:
        if value > 0:
            _vertical(axes, value, colour, style)
            handles.append(
                Line2D([], [], color=light(colour), linewidth=1.3, linestyle=style, label=label)
            )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(_thousands))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("size of the store [GB]")
    axes.set_ylabel("reuse served [% of reusable tokens]")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=""))
    axes.set_ylim(0, 1.1)
    dressed(axes)
    legend(figure, handles, 2)
    return figure


def _time(value: float, _position: int | None = None) -> str:
    return _thousands(value * MS_PER_S)


def fetch_figure(plan: Plan) -> Figure:
    """Time to prefill a prefix against time to fetch it, over its length.

    Parameters
    ----------
    plan : Plan
        Its ``fetch``.

    Returns
    -------
    Figure
        Three curves; a diamond wherever fetching starts or stops to pay, and a vertical line at
        the workload's mean reusable prefix.

    Raises
    ------
    ValueError
        If nothing is reusable (nothing to load or recompute).
    """
    fetch = plan.fetch
    if fetch is None:
        raise ValueError("nothing is reusable: nothing to load or recompute")
    figure = new_figure(3.6)
    axes = figure.subplots()
    tokens = np.array(fetch.curve_tokens)
    handles = []
    for values, role, like, label in (
        (fetch.curve_recompute_s, "none", "ideal", "prefill (recompute)"),
        (fetch.curve_rdma_s, "tiers", "tiers", "fetch over RDMA"),
        (fetch.curve_dram_s, "ideal", "none", "fetch from own DRAM"),
    ):
        style = _STYLES[like] | {"color": light(role)}
        axes.plot(tokens, values, **style)
        handles.append(Line2D([], [], label=label, **style))
    for ranges, times, role, label in (
        (fetch.rdma_pays_tokens, fetch.curve_rdma_s, "tiers", "break-even, RDMA"),
        (fetch.dram_pays_tokens, fetch.curve_dram_s, "ideal", "break-even, DRAM"),
    ):
        x = [end for pair in ranges for end in pair if tokens[0] < end < tokens[-1]]
        if not x:
            continue
        y = np.exp(np.interp(np.log(x), np.log(tokens), np.log(times)))
        mark: dict[str, Any] = {
            "marker": "D",
            "color": light(role),
            "markersize": 7,
            "markeredgecolor": light("paper"),
            "linestyle": "none",
        }
        axes.plot(x, y, **mark)
        handles.append(Line2D([], [], label=label, **mark))
    mean = (0, (3, 1.5, 1, 1.5))
    _vertical(axes, fetch.prefix_tokens, "mark", mean)
    handles.append(
        Line2D(
            [],
            [],
            color=light("mark"),
            linewidth=1.3,
            linestyle=mean,
            label=f"mean prefix, {number(fetch.prefix_tokens)}",
        )
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis, form in ((axes.xaxis, _thousands), (axes.yaxis, _time)):
        axis.set_major_formatter(FuncFormatter(form))
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("length of the prefix [tokens]")
    axes.set_ylabel("time [ms]")
    dressed(axes)
    legend(figure, handles, 2)
    return figure


def step_figure(plan: Plan) -> Figure:
    """Where a step's time goes, by operator group: one stacked bar a step.

    Parameters
    ----------
    plan : Plan
        Its ``steps``.

    Returns
    -------
    Figure
        Horizontal bars that add up to 100 %, each with the step's time.
    """
    figure = new_figure(1.35 + 0.62 * len(plan.steps))
    axes = figure.subplots()
    used = [g for g in GROUP_COLOURS if any(s.groups[g]["time_s"] > 0 for s in plan.steps)]
    left = np.zeros(len(plan.steps))
    rows = np.arange(len(plan.steps))[::-1]
    for group in used:
        share = np.array([step.groups[group]["share_ratio"] for step in plan.steps])
        axes.barh(
            rows,
            share,
            left=left,
            height=0.62,
            color=GROUP_COLOURS[group],
            edgecolor=light("paper"),
            linewidth=0.8,
            label=group.replace("_", " "),
        )
        for row, start, width in zip(rows, left, share, strict=True):
            if width >= 0.07:
                axes.text(
                    start + width / 2,
                    row,
                    f"{100 * width:.0f}",
                    ha="center",
                    va="center",
                    fontsize=8.5,
                    color=_ON_GROUP,
                )
        left += share
    axes.set_yticks(
        rows,
        [f"{step.name}\n{number(step.step_time_s * MS_PER_S)} ms" for step in plan.steps],
    )
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=""))
    axes.set_xlabel("share of the step's time [%]")
    dressed(axes)
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    legend(figure, axes.get_legend_handles_labels()[0], 3)
    return figure


# --- for a page ---------------------------------------------------------------------------------

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "{http://www.w3.org/1999/xlink}href"
_VARIABLES = {light: f"var(--{role})" for role, (light, _dark) in COLOURS.items()}
_COLOUR = re.compile("|".join(_VARIABLES), re.IGNORECASE)
_REFERENCE = re.compile(r"url\(#([^)]+)\)")


def svg(figure: Figure, name: str, title: str) -> str:
    """Return a figure as an SVG element to stand inside a page.

    Parameters
    ----------
    figure : Figure
        Drawn in the light colours of :data:`COLOURS`, which become ``var(--role)``.
    name : str
        Prefix of its ids, unique on the page.
    title : str
        What it shows, for those who cannot see it.

    Returns
    -------
    str
        ``<svg …>…</svg>``: text stays text, width and height are left to the page, no style sheet
        and no metadata.  The same figure gives the same text.
    """
    buffer = io.BytesIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(buffer.getvalue())
    _drop(root, lambda tag: tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"))
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        attributes = element.attrib
        if _XLINK in attributes:
            attributes["href"] = f"#{name}-{attributes.pop(_XLINK).lstrip('#')}"
        if "id" in attributes:
            attributes["id"] = f"{name}-{attributes['id']}"
        for key, value in attributes.items():
            value = _REFERENCE.sub(rf"url(#{name}-\1)", value)
            if key == "style":
                value = _COLOUR.sub(lambda m: _VARIABLES[m.group().lower()], value)
                # Fonts of the page; the size alone is the figure's.
                value = re.sub(r"font: ([\d.]+px)[^;]*", r"font-size: \1", value)
            attributes[key] = value
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.attrib |= {"role": "img", "aria-labelledby": f"{name}-title"}
    heading = ElementTree.Element("title", {"id": f"{name}-title"})
    heading.text = title
    root.insert(0, heading)
    return ElementTree.tostring(root, encoding="unicode")


def _drop(parent: ElementTree.Element, unwanted: Callable[[str], bool]) -> None:
    for child in list(parent):
        if unwanted(child.tag):
            parent.remove(child)
        else:
            _drop(child, unwanted)
