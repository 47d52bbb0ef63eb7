"""Figure of a comparison: points with intervals, or curves over the one key that was swept."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.ticker import FuncFormatter, MaxNLocator

from smetric_model._figure import ShownFigure
from smetric_model.errors import SpecError
from smetric_model.plots import COLOURS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from smetric_model.comparison.run import Comparison

__all__ = ["comparison_figure"]

#: Okabe and Ito's colours, dark enough on white; names differ in marker and line as well
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#8a3c78", "#111111", "#7a5c00")
_MARKERS = ("o", "s", "^", "D", "v", "P")
_LINES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))
_CURVES = ("total_within_slo_tps", "within_slo_ratio", "ttft_p90_s", "tpot_p90_s")


def comparison_figure(comparison: Comparison) -> Figure:
    """Draw a comparison.

    Parameters
    ----------
    comparison : Comparison

    Returns
    -------
    Figure
        One panel a group of quantities and unit, means with their intervals; where rows of each
        name differ in one numeric key, one panel a quantity and one curve a name over that key.

    Raises
    ------
    SpecError
        If rows of a name differ in several keys, or in one that is no number.
    """
    if not comparison.conditions:
        return _points(comparison)
    key = comparison.conditions[0]
    texts = comparison.table["condition"].str.removeprefix(f"{key} = ")
    if len(comparison.conditions) > 1 or not texts.map(_is_number).all():
        raise SpecError(
            "compare: a figure needs rows of a name to differ in one numeric key, not in"
            f" {', '.join(comparison.conditions)}; say --by"
        )
    return _curves(comparison, key, comparison.table.assign(_x=texts.astype(float)))


def _points(comparison: Comparison) -> Figure:
    table = comparison.table
    # TPOT is milliseconds where end-to-end times are minutes: each latency has an axis of its own
    family = table["group"].where(
        table["group"] != "latency", table["quantity"].str.partition("_")[0].str.upper()
    )
    panels = list(table.assign(_family=family).groupby(["_family", "unit"], sort=False))
    heights = [len(set(panel["quantity"])) + 1.2 for _, panel in panels]
    height = 0.24 * max(len(comparison.names), 2) * sum(heights) * 0.55 + 0.9
    figure = ShownFigure(figsize=(7.0, height), layout="constrained", facecolor="white")
    rows = np.atleast_1d(figure.subplots(len(panels), 1, height_ratios=heights))
    for axes, ((group, unit), panel) in zip(rows, panels, strict=True):
        quantities = list(dict.fromkeys(panel["quantity"]))
        for k, name in enumerate(comparison.names):
            part = panel[panel["name"] == name].set_index("quantity").reindex(quantities)
            offset = (k - (len(comparison.names) - 1) / 2) * 0.7 / len(comparison.names)
            y = np.arange(len(quantities)) + offset
            _intervals(axes, part, y, k, name, horizontal=True)
        axes.set_yticks(range(len(quantities)), quantities)
        axes.set_ylim(len(quantities) - 0.5, -0.5)
        axes.set_xlabel(f"{group} [{unit}]" if unit else str(group))
        _dress(axes)
    _legend(figure, rows[0], len(comparison.names))
    return figure


def _curves(comparison: Comparison, key: str, table: pd.DataFrame) -> Figure:
    found = list(dict.fromkeys(table["quantity"]))
    quantities = [name for name in _CURVES if name in found] or found[:4]
    figure = ShownFigure(
        figsize=(7.0, 2.1 * len(quantities) + 0.6), layout="constrained", facecolor="white"
    )
    rows = np.atleast_1d(figure.subplots(len(quantities), 1, sharex=True))
    for axes, quantity in zip(rows, quantities, strict=True):
        panel = table[table["quantity"] == quantity]
        for k, name in enumerate(comparison.names):
            part = panel[panel["name"] == name].sort_values("_x")
            # side by side, by so little that it is no other value: intervals would hide each other
            aside = 0.006 * np.ptp(table["_x"]) * (k - (len(comparison.names) - 1) / 2)
            _intervals(axes, part, part["_x"].to_numpy(float) + aside, k, name, horizontal=False)
        axes.set_ylabel(f"{quantity}\n[{panel['unit'].iloc[0]}]", fontsize=9)
        if panel["unit"].iloc[0] != "ratio":
            axes.set_ylim(bottom=0)
        _dress(axes)
    rows[-1].set_xlabel(key)
    _legend(figure, rows[0], len(comparison.names))
    return figure


def _intervals(
    axes: Axes, part: pd.DataFrame, place: Any, k: int, name: str, horizontal: bool
) -> None:
    mean = part["mean"].to_numpy(float)
    away = np.abs(np.array([mean - part["low"], part["high"] - mean], float))
    away = np.nan_to_num(away)
    style: dict[str, Any] = {
        "color": _COLOURS[k % len(_COLOURS)],
        "marker": _MARKERS[k % len(_MARKERS)],
        "markersize": 4.5,
        "capsize": 2.5,
        "elinewidth": 1.2,
        "label": name,
    }
    if horizontal:
        axes.errorbar(mean, place, xerr=away, linestyle="none", **style)
    else:
        line = next(itertools.islice(itertools.cycle(_LINES), k, None))
        axes.errorbar(place, mean, yerr=away, linestyle=line, linewidth=1.6, **style)


def _dress(axes: Axes) -> None:
    axes.grid(True, color=COLOURS["line"][0], linewidth=0.7)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(COLOURS["muted"][0])
    axes.tick_params(labelsize=8.5, colors=COLOURS["muted"][0], labelcolor=COLOURS["ink"][0])
    for axis in (axes.xaxis, axes.yaxis):
        low, high = axis.get_view_interval()
        if max(abs(low), abs(high)) >= 1000:
            axis.set_major_locator(MaxNLocator(6))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _legend(figure: Figure, axes: Axes, names: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper left", ncols=min(names, 4), frameon=False, fontsize=9
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
