"""Figures of findings: instances over a day, recovery curves, routers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smetric_model.plots import COLOURS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from smetric_model.operations.findings import Finding

__all__ = ["finding_figure"]

_RUNS = {
    "reused_ratio": ("tiers", "reuse"),
    "within_slo_ratio": ("ideal", "within SLO"),
    "local_ratio": ("mark", "found locally"),
}


def finding_figure(finding: Finding) -> Figure | None:
    """Draw a finding, if it has curves.

    Parameters
    ----------
    finding : Finding
        Any.

    Returns
    -------
    Figure or None
        None where there is nothing to draw.
    """
    if "replicas" in finding.tables:
        return _replicas(finding)
    if "closed_form" in finding.tables:
        return _recovery(finding)
    if finding.question == "node-loss" and "simulated" in finding.tables:
        return _node_loss(finding)
    if "routers" in finding.tables and "lost_ratio" in finding.tables["routers"]:
        return _routers(finding)
    return None


def _colour(role: str) -> str:
    return COLOURS[role][0]


def _new(height: float, rows: int) -> tuple[Figure, list[Axes]]:
    from smetric_model._figure import ShownFigure

    figure = ShownFigure(figsize=(7.2, height), layout="constrained")
    figure.patch.set_alpha(0.0)
    grid = figure.subplots(rows, 1, sharex=True, squeeze=False)
    axes = [grid[row, 0] for row in range(rows)]
    for one in axes:
        one.set_facecolor("none")
        one.grid(True, color=_colour("line"), linewidth=0.7)
        one.set_axisbelow(True)
        one.spines[["top", "right"]].set_visible(False)
        one.tick_params(colors=_colour("muted"), labelcolor=_colour("ink"), labelsize=9)
    return figure, axes


def _legend(axes: Axes) -> None:
    axes.legend(frameon=False, fontsize=9)


def _replicas(finding: Finding) -> Figure:
    table = finding.tables["replicas"]
    simulated = finding.tables.get("simulated")
    figure, axes = _new(5.6 if simulated is None else 7.4, 2 if simulated is None else 3)
    hours = table["start_s"].to_numpy() / 3600
    axes[0].plot(hours, table["rate_rps"], color=_colour("ink"), drawstyle="steps-post")
    axes[0].set_ylabel("requests/s")
    axes[0].set_ylim(bottom=0)
    lower = axes[1]
    peak = int(table["ideal"].max())
    lower.axhline(peak, color=_colour("muted"), linewidth=1.2, linestyle=":", label="always peak")
    lower.plot(hours, table["paid"], color=_colour("tiers"), drawstyle="steps-post",
               label="ordered ahead", linestyle=(0, (5, 2.5)))  # fmt: skip
    lower.plot(hours, table["reactive_ready"], color=_colour("none"), drawstyle="steps-post",
               label="ready, sees the present only", linestyle=(0, (1, 1.7)))  # fmt: skip
    lower.plot(hours, table["needed"], color=_colour("ideal"), drawstyle="steps-post",
               label="needed")  # fmt: skip
    lower.set_ylabel("instances")
    lower.set_ylim(bottom=0)
    _legend(lower)
    if simulated is not None:
        at = simulated["start_s"].to_numpy() / 3600
        axes[2].plot(at, 100 * simulated["within_slo_ratio"], color=_colour("tiers"),
                     drawstyle="steps-post", label="as scheduled")  # fmt: skip
        axes[2].plot(at, 100 * simulated["static_within_slo_ratio"], color=_colour("muted"),
                     drawstyle="steps-post", linestyle=":", label="always peak")  # fmt: skip
        axes[2].set_ylabel("simulated, % within SLO")
        _legend(axes[2])
    axes[-1].set_xlabel("hours")
    return figure


def _recovery(finding: Finding) -> Figure:
    curve = finding.tables["closed_form"]
    simulated = finding.tables.get("simulated")
    scale_out = "scale-out" in finding.question
    columns = [] if scale_out else ["reused_ratio", "within_slo_ratio"]
    emptied = simulated is not None and (simulated["instances"] == "emptied").any()
    if emptied or scale_out:
        columns.append("local_ratio")
    figure, axes = _new(1.2 + 2.1 * len(columns), len(columns))
    for one, column in zip(axes, columns, strict=True):
        role, label = _RUNS[column]
        own = column == "local_ratio"
        one.plot(curve["age_s"], 100 * curve["instance_local_ratio" if own else column],
                 color=_colour(role), label="closed form")  # fmt: skip
        if simulated is not None:
            rows = simulated[simulated["instances"] == ("emptied" if own else "all")]
            _runs(one, rows, column, role)
        one.set_ylabel(f"{label}{', cold instances' if own else ''}, %")
        _legend(one)
    axes[-1].set_xlabel("seconds since the caches were emptied")
    return figure


def _runs(axes: Axes, rows: pd.DataFrame, column: str, role: str) -> None:
    for run, style, label in (
        ("with", "o", "simulated"),
        ("without", ":", "simulated, nothing happens"),
    ):
        part = rows[rows["run"] == run].sort_values("age_s")
        axes.plot(part["age_s"], 100 * part[column], style, markersize=3.2,
                  color=_colour(role if run == "with" else "muted"), label=label)  # fmt: skip


def _node_loss(finding: Finding) -> Figure:
    table = finding.tables["simulated"]
    sizes = sorted(table["size"].unique())
    figure, axes = _new(1.2 + 2.3 * len(sizes), len(sizes))
    for one, size in zip(axes, sizes, strict=True):
        _runs(one, table[table["size"] == size], "within_slo_ratio", "ideal")
        one.set_ylabel(f"{size} instances, % within SLO")
        _legend(one)
    axes[-1].set_xlabel("seconds since the node was lost")
    return figure


def _routers(finding: Finding) -> Figure:
    table = finding.tables["routers"]
    figure, axes = _new(5.4, 2)
    for age in table["load_age_s"].unique().tolist():
        rows = table[table["load_age_s"] == age]
        label = f"loads {age:g} s old" if age else "loads of this moment"
        axes[0].errorbar(rows["replicas"], 100 * rows["lost_ratio"],
                         yerr=100 * np.nan_to_num(rows["lost_error_ratio"]), marker="o",
                         label=label)  # fmt: skip
        axes[1].plot(rows["replicas"], 100 * rows["migrated_overload_ratio"], "o", label=label)
    known = table[table["seen_overloaded_ratio"].notna()]
    axes[1].plot(known["replicas"], 100 * known["seen_overloaded_ratio"], color=_colour("muted"),
                 label="closed form")  # fmt: skip
    axes[0].set_ylabel("tokens within SLO lost, %")
    axes[1].set_ylabel("moved for overload, %")
    axes[1].set_xlabel("routers")
    counts = sorted(table["replicas"].unique())
    axes[1].set_xscale("log", base=2)
    axes[1].set_xticks(counts, [str(count) for count in counts])
    for one in axes:
        _legend(one)
    return figure
