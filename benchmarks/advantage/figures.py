"""Figures of the map."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import pandas as pd
from design import LINES

COLORS = {"win": "#0072B2", "tie": "#999999", "lose": "#D55E00", "none": "#DDDDDD"}
MARKS = {"win": "^", "tie": "o", "lose": "v", "none": "x"}
NAMES = {
    "load": "load [rate ÷ rough capacity]",
    "instances": "instances",
    "think_factor": "think times [× reference]",
    "context_factor": "context lengths [× reference]",
    "median_turns": "median turns of a session",
    "turns_sigma": "sigma of the turns",
    "frameworks": "frameworks (system prompts)",
    "system_factor": "system prompt length [× reference]",
    "edit_ratio": "rewritten turns [share]",
    "output_factor": "output lengths [× reference]",
    "tier_ratio": "global tier ÷ local tiers",
    "nic_bytes_per_s": "NIC of a node [GB/s]",
    "tpot_s": "TPOT limit [ms]",
}
_SCALE = {"nic_bytes_per_s": 1e-9, "tpot_s": 1e3}
_LINEAR = {"load", "edit_ratio", "turns_sigma", "tier_ratio"}


def _style() -> None:
    plt.rcParams.update(
        {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
         "grid.color": "#e0e0e0", "grid.linewidth": 0.6, "axes.axisbelow": True}
    )  # fmt: skip


def lines(found: pd.DataFrame, path: Path) -> None:
    """Advantage along each parameter from the reference: simulated and predicted."""
    part = found[found["kind"] == "lines"]
    if part.empty:
        return
    names = [name for name in LINES if (part["line"] == name).any()]
    rows = -(-len(names) // 3)
    figure, axes = plt.subplots(rows, 3, figsize=(9.6, 2.35 * rows), sharey=True, squeeze=False,
                                layout="constrained")  # fmt: skip
    for axis, name in zip(axes.flat, names, strict=False):
        here = part[part["line"].isin([name, "reference"])]
        for verb, color, mark, label in (
            ("simulate", "#0072B2", "o", "simulated (bars: 2 standard errors)"),
            ("predict", "#D55E00", "s", "closed form"),
        ):
            line = here[here["verb"] == verb].sort_values(name)
            x = line[name] * _SCALE.get(name, 1.0)
            y = 100 * line["advantage_ratio"]
            if verb == "simulate":
                axis.errorbar(x, y, 200 * line["noise_ratio"], color=color, marker=mark,
                              markersize=4, linewidth=1.3, capsize=2, label=label)  # fmt: skip
            else:
                axis.plot(x, y, color=color, marker=mark, markersize=4, linestyle="--",
                          linewidth=1.2, label=label)  # fmt: skip
        axis.axhspan(-2, 2, color="#999999", alpha=0.18, linewidth=0)
        axis.axhline(0, color="black", linewidth=0.7)
        if name not in _LINEAR:
            axis.set_xscale("log")
            axis.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda v, _: f"{v:g}"))
            axis.xaxis.set_minor_formatter(mpl.ticker.NullFormatter())
            values = sorted(here[name].unique() * _SCALE.get(name, 1.0))
            axis.set_xticks(values)
            axis.minorticks_off()
        axis.set_xlabel(NAMES[name])
        axis.set_ylim(-14, 8)
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel("advantage [%]")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(path, dpi=140)
    plt.close(figure)


def plane(found: pd.DataFrame, path: Path) -> None:
    """Verdicts of the simulated points over four pairs of coordinates."""
    space = found[(found["kind"] == "space") & (found["verb"] == "simulate")]
    planes = (("load", "tier_ratio"), ("load", "context_factor"), ("think_factor", "tpot_s"),
              ("edit_ratio", "output_factor"))  # fmt: skip
    figure, axes = plt.subplots(2, 2, figsize=(9, 7), layout="constrained")
    for axis, (x, y) in zip(axes.flat, planes, strict=True):
        for name in ("none", "tie", "win", "lose"):
            part = space[space["verdict"] == name]
            gain = part["advantage_ratio"].abs().fillna(0).clip(0.0, 0.5)
            size = 14 + 220 * gain if name in ("win", "lose") else 14
            xs = part[x].where(part["history"] != "append", 0.0) if x == "edit_ratio" else part[x]
            axis.scatter(xs * _SCALE.get(x, 1), part[y] * _SCALE.get(y, 1), s=size,
                         color=COLORS[name], marker=MARKS[name], label=f"{name} ({len(part)})",
                         alpha=0.75, linewidths=0.8 if name == "none" else 0)  # fmt: skip
        for which, name in (("x", x), ("y", y)):
            getattr(axis, f"set_{which}label")(NAMES[name])
            if name not in _LINEAR:
                getattr(axis, f"set_{which}scale")("log")
                side = getattr(axis, f"{which}axis")
                side.set_major_locator(mpl.ticker.LogLocator(subs=(1.0, 2.0, 5.0), numticks=20))
                side.set_major_formatter(mpl.ticker.FuncFormatter(lambda v, _: f"{v:g}"))
                side.set_minor_formatter(mpl.ticker.NullFormatter())
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)
    figure.savefig(path, dpi=140)
    plt.close(figure)


def agreement(wrong: pd.DataFrame, path: Path) -> None:
    """Advantage predicted against simulated, on the same trace."""
    figure, axis = plt.subplots(figsize=(5.2, 4.6), layout="constrained")
    high = wrong["load"] > 0.9
    for part, color, mark, label in (
        (wrong[~high], "#0072B2", "o", "load up to 0.9"),
        (wrong[high], "#D55E00", "^", "above"),
    ):
        x, y = (100 * part[verb].clip(-1, 1.5) for verb in ("simulate", "predict"))
        axis.scatter(x, y, s=16, color=color, marker=mark, alpha=0.6, lw=0, label=label)
    axis.plot([-100, 150], [-100, 150], color="black", linewidth=0.7)
    axis.set_xscale("symlog", linthresh=5)
    axis.set_yscale("symlog", linthresh=5)
    ticks = [-100, -30, -10, -5, 0, 5, 10, 30, 100]
    axis.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axis.set_yticks(ticks, [f"{t:g}" for t in ticks])
    axis.minorticks_off()
    axis.set_xlabel("advantage, simulated [%]")
    axis.set_ylabel("advantage, closed form [%]")
    axis.legend(frameon=False)
    figure.savefig(path, dpi=140)
    plt.close(figure)


def draw(found: pd.DataFrame, wrong: pd.DataFrame, folder: Path) -> None:
    """Draw all figures."""
    _style()
    lines(found, folder / "map-lines.png")
    plane(found, folder / "map-planes.png")
    agreement(wrong, folder / "map-agreement.png")
