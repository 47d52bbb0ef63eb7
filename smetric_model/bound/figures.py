"""Figures of bounds: when each resource binds, what more of it would bring, the ladder.

Each function returns a :class:`matplotlib.figure.Figure` of its own; nothing goes through pyplot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smetric_model._figure import ShownFigure
from smetric_model.colours import COLOURS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

#: axis of what one more unit brings, by column of the table
_PER_UNIT = {
    "volume_tps": "more, per unit [tokens/s]",
    "volume_relative": "more, per unit [share of the bound]",
    "goodput_tps": "more within SLO, per unit [tokens/s]",
    "volume_difference_tps": "more, per unit, solved again [tokens/s]",
    "goodput_difference_tps": "more within SLO, per unit, solved again [tokens/s]",
}

__all__ = ["ladder_figure", "price_figure", "window_figure"]

_COLOURS = {
    "compute": COLOURS["tiers"][0],
    "decode_compute": COLOURS["tiers"][1],
    "local": COLOURS["none"][0],
    "decode_local": COLOURS["none"][1],
    "global": COLOURS["ideal"][0],
    "nic": COLOURS["mark"][0],
    "pcie": COLOURS["mark"][1],
}


def window_figure(table: pd.DataFrame, unit: str = "tokens") -> Figure:
    """Draw the value of each resource in each window: when it binds.

    Parameters
    ----------
    table : DataFrame
        From :func:`smetric_model.bound.prices.window_prices`.
    unit : str
        Of the values.

    Returns
    -------
    Figure
        Stacked areas over time.
    """
    figure = ShownFigure(figsize=(6.4, 3.2), layout="constrained")
    axes = figure.subplots()
    edges = np.append(table["start_s"].to_numpy(), table["end_s"].to_numpy()[-1:])
    below = np.zeros(len(table))
    for name in table.columns[2:]:
        value = table[name].to_numpy()
        axes.stairs(
            below + value, edges, baseline=below, fill=True, color=_COLOURS[name], label=name
        )
        below = below + value
    axes.set_xlabel("time [s]")
    axes.set_ylabel(f"value of the capacity [{unit}]")
    if len(table.columns) > 2:
        axes.legend(frameon=False, ncols=3, fontsize=9)
    return figure


def price_figure(table: pd.DataFrame, column: str = "volume_relative") -> Figure:
    """Draw what one more unit of each resource brings.

    Parameters
    ----------
    table : DataFrame
        From :func:`smetric_model.bound.prices.shadow_prices`.
    column : str
        Which of its columns.

    Returns
    -------
    Figure
        One bar a unit, on a logarithmic axis; what brings nothing has none.
    """
    figure = ShownFigure(figsize=(6.4, 0.5 * len(table) + 1.2), layout="constrained")
    axes = figure.subplots()
    values = table[column].to_numpy(dtype=float)
    shown = np.where(values > 0, values, np.nan)
    axes.barh(np.arange(len(table)), shown, color=COLOURS["tiers"][0])
    axes.set_yticks(np.arange(len(table)), table["unit"].tolist())
    axes.invert_yaxis()
    if np.nanmax(shown, initial=0.0) > 0:
        axes.set_xscale("log")
    axes.set_xlabel(_PER_UNIT.get(column, column))
    for place in np.flatnonzero(~(values > 0)):
        axes.annotate("nothing", (0.01, place), xycoords=("axes fraction", "data"), va="center")
    return figure


def ladder_figure(table: pd.DataFrame, column: str = "total_tps") -> Figure:
    """Draw the rungs of the ladder, one bar each.

    Parameters
    ----------
    table : DataFrame
        From :func:`smetric_model.bound.ladder.ladder`.
    column : str
        Which figure.

    Returns
    -------
    Figure
    """
    shown = table[table[column].notna()]
    names = [
        rung if rung != "simulated" else f"{policy}, {eviction}"
        for rung, policy, eviction in zip(
            shown["rung"],
            shown.get("policy", shown["rung"]),
            shown.get("eviction", shown["rung"]),
            strict=True,
        )
    ]
    figure = ShownFigure(figsize=(6.4, 0.32 * len(shown) + 1.2), layout="constrained")
    axes = figure.subplots()
    colours = [COLOURS["tiers" if rung == "simulated" else "mark"][0] for rung in shown["rung"]]
    axes.barh(np.arange(len(shown)), shown[column].to_numpy(dtype=float), color=colours)
    axes.set_yticks(np.arange(len(shown)), names)
    axes.invert_yaxis()
    within = " within SLO" if "within_slo" in column else ""
    axes.set_xlabel(f"most tokens{within}, at the best of the rates [tokens/s]")
    return figure
