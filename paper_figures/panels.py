"""Panels that several of Figures 11 to 25 are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import common
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from common import PAPER, POLICIES
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

TIERS = ("none", "0.8x", "1.6x", "3.2x", "full")


def canvas(width: float, height: float) -> Figure:
    """Return a figure in the common style, without axes yet."""
    made, _ = common.figure()
    plt.close(made)
    return plt.figure(figsize=(width, height), layout="constrained")


def legend(figure: Figure, policies: Iterable[str], extra: Iterable[object] = ()) -> None:
    """Draw one legend of policies above a figure."""
    handles = [
        Line2D([], [], color=POLICIES[p].color, marker=POLICIES[p].marker,
               linestyle=POLICIES[p].line, markersize=5, label=POLICIES[p].name)
        for p in policies
    ]  # fmt: skip
    handles += list(extra)
    figure.legend(
        handles=handles, loc="outside upper center", ncols=min(len(handles), 5), frameon=False,
        fontsize=8.5, columnspacing=1.3, handlelength=2.6,
    )  # fmt: skip


def paper_mark(label: str = "paper") -> Line2D:
    """Return the legend's entry of what the paper states."""
    return Line2D([], [], color=PAPER, marker="_", linestyle="none", markersize=11,
                  markeredgewidth=2, label=label)  # fmt: skip


def _spread(table: pd.DataFrame, by: str, value: str) -> pd.DataFrame:
    grouped = table.groupby(by)[value]
    return pd.DataFrame({"mean": grouped.mean(), "low": grouped.min(), "high": grouped.max()})


def sweep(axis: Axes, table: pd.DataFrame, policies: Iterable[str], what: str) -> None:
    """Tokens within SLO against offered load: mean over seeds, band from least to most."""
    for policy in policies:
        look = POLICIES[policy]
        rows = _spread(table[table["policy"] == policy], "load", "goodput_tps") / 1e3
        axis.fill_between(rows.index, rows["low"], rows["high"], color=look.color, alpha=0.15, lw=0)
        axis.plot(rows.index, rows["mean"], color=look.color, marker=look.marker,
                  linestyle=look.line, markersize=4.5, linewidth=1.6)  # fmt: skip
    axis.set_ylim(bottom=0)
    axis.set_xlabel("offered load [multiple of 1.0×]")
    axis.set_ylabel(f"{what} within SLO [1000 tokens/s]")


def gains(axis: Axes, table: pd.DataFrame, marks: Mapping[float, float]) -> None:
    """SMetric's gain over the best of the others at each load, the paper's as marks."""
    means = table.pivot_table(index="load", columns="policy", values="goodput_tps")
    best = means.drop(columns="smetric").max(axis=1)
    axis.plot(means.index, 100 * (means["smetric"] / best - 1), color=POLICIES["smetric"].color,
              marker="o", markersize=4, linewidth=1.4)  # fmt: skip
    axis.axhline(0, color="black", linewidth=0.8)
    for load, value in marks.items():
        axis.plot(load, 100 * value, "_", color=PAPER, markersize=14, markeredgewidth=2.4)
    axis.set_xlabel("offered load [multiple of 1.0×]")
    axis.set_ylabel("SMetric over best other [%]")


def peaks_by_tier(axis: Axes, table: pd.DataFrame, policies: Iterable[str], what: str) -> None:
    """Bars: the most tokens within SLO over all loads, by global tier; whiskers over seeds."""
    policies = list(policies)
    tiers = [tier for tier in TIERS if (table["tier"] == tier).any()]
    width = 0.82 / len(policies)
    for place, policy in enumerate(policies):
        look = POLICIES[policy]
        rows = table[table["policy"] == policy]
        # the load of the best mean, the same for all seeds
        means = rows.groupby(["tier", "load"])["goodput_tps"].mean()
        for index, tier in enumerate(tiers):
            if tier not in means.index:
                continue
            load = means[tier].idxmax()
            seeds = rows[(rows["tier"] == tier) & (rows["load"] == load)]["goodput_tps"] / 1e3
            x = index + (place - (len(policies) - 1) / 2) * width
            axis.bar(x, seeds.mean(), width * 0.94, color=look.color, hatch=look.hatch,
                     edgecolor="white", linewidth=0)  # fmt: skip
            axis.plot([x, x], [seeds.min(), seeds.max()], color="black", linewidth=0.9)
    ratio = table.groupby("tier")["tier_ratio"].first()
    names = ["none" if t == "none" else f"{ratio[t]:.2g}×" + ("\n(full)" if t == "full" else "")
             for t in tiers]  # fmt: skip
    axis.set_xticks(range(len(tiers)), names)
    axis.grid(axis="x", visible=False)
    axis.set_xlabel("global tier ÷ local tiers")
    axis.set_ylabel(f"max {what} within SLO [1000 tokens/s]")


def bars_legend(axis: Axes, policies: Iterable[str]) -> None:
    """Legend of bars."""
    axis.legend(
        handles=[
            Patch(facecolor=POLICIES[p].color, hatch=POLICIES[p].hatch, edgecolor="white",
                  label=POLICIES[p].name) for p in policies
        ],
        loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=4, frameon=False, fontsize=8,
        columnspacing=1.0, handlelength=1.6,
    )  # fmt: skip


def reuse(
    axis: Axes,
    table: pd.DataFrame,
    policies: Iterable[str],
    marks: Mapping[tuple[str, str], float],
    totals: Mapping[tuple[str, str], tuple[float, float]] | None = None,
) -> None:
    """Bars: reuse by tier, local solid and global hatched; without and with the full tier.

    ``marks``: local share that the paper states by (tier, policy); ``totals``: its total, a range.
    """
    policies = list(policies)
    means = table.groupby(["tier", "policy"])[["local_ratio", "global_ratio"]].mean()
    ticks, names = [], []
    x = 0.0
    for tier in ("none", "full"):
        start = x
        for policy in policies:
            if (tier, policy) not in means.index:
                continue
            look, row = POLICIES[policy], means.loc[(tier, policy)]
            axis.bar(x, row["local_ratio"], 0.8, color=look.color)
            axis.bar(x, row["global_ratio"], 0.8, bottom=row["local_ratio"], color="white",
                     edgecolor=look.color, hatch="////", linewidth=0.8)  # fmt: skip
            if (tier, policy) in marks:
                axis.plot(x, marks[tier, policy], "_", color="black", markersize=16,
                          markeredgewidth=3.4)  # fmt: skip
                axis.plot(x, marks[tier, policy], "_", color="white", markersize=13,
                          markeredgewidth=1.4)  # fmt: skip
            low, high = (totals or {}).get((tier, policy), (np.nan, np.nan))
            if np.isfinite(low):
                axis.add_patch(
                    plt.Rectangle((x - 0.47, low - 0.004), 0.94, high - low + 0.008, fill=False,
                                  edgecolor="black", linewidth=1.1, zorder=5)
                )  # fmt: skip
            ticks.append(x)
            names.append(look.name.replace(" ", "\n"))
            x += 1
        axis.text((start + x - 1) / 2, 1.0, "no global tier" if tier == "none" else "full tier",
                  ha="center", fontsize=8.5)  # fmt: skip
        x += 0.6
    axis.set_xticks(ticks, names, fontsize=7.5, rotation=35, ha="right", rotation_mode="anchor")
    axis.set_ylim(0, 1.08)
    axis.grid(axis="x", visible=False)
    axis.set_ylabel("reused ÷ prompt tokens")
    axis.legend(
        handles=[
            Patch(facecolor="#888888", label="local"),
            Patch(facecolor="white", edgecolor="#888888", hatch="////", label="global"),
            Line2D([], [], color="black", marker="_", linestyle="none", markersize=11,
                   markeredgewidth=2.4, label="paper"),
        ],
        loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=3, frameon=False, fontsize=8,
        columnspacing=1.0, handlelength=1.6,
    )  # fmt: skip


def heatmaps(
    figure: Figure,
    axes: Iterable[Axes],
    profile: pd.DataFrame,
    policies: Iterable[str],
    ratios: Mapping[str, float],
    paper: Mapping[str, float],
    label: str,
    own_scale: bool,
) -> None:
    """Instance × minute maps; the ratio max ÷ mean (all seeds) and the paper's above each."""
    policies = list(policies)
    tables = {
        policy: profile[profile["policy"] == policy]
        .pivot_table(index="at", columns="minute", values="value")
        .to_numpy()
        for policy in policies
    }
    top = max(float(np.quantile(t, 0.99)) for t in tables.values())
    last = None
    for axis, policy in zip(axes, policies, strict=True):
        values = tables[policy]
        scale = float(np.quantile(values, 0.99)) if own_scale else top
        last = axis.imshow(values / scale, aspect="auto", cmap="cividis_r", vmin=0, vmax=1,
                           interpolation="nearest", origin="lower")  # fmt: skip
        axis.grid(visible=False)
        stated = paper.get(policy, np.nan)
        said = f", paper {stated:.1f}" if np.isfinite(stated) else ""
        axis.set_title(f"{POLICIES[policy].name}\n{ratios[policy]:.2f}{said}", fontsize=8.5)
        axis.set_xlabel("minute")
        axis.set_xticks(range(0, values.shape[1], 3), range(1, values.shape[1] + 1, 3))
    first = next(iter(axes))
    first.set_ylabel("instance")
    bar = figure.colorbar(last, ax=list(axes), pad=0.01, aspect=30)
    bar.set_label(label, fontsize=8)


def distributions(
    axis: Axes,
    profile: pd.DataFrame,
    policies: Iterable[str],
    scale: float,
    label: str,
    *,
    tail: bool = False,
    marks: Iterable[tuple[float, float]] = (),
) -> None:
    """Distribution functions, or log-scaled tails; marks (value, share) of the paper."""
    for policy in policies:
        rows = profile[profile["policy"] == policy].sort_values("at")
        look = POLICIES[policy]
        share = 1 - rows["at"] if tail else rows["at"]
        axis.plot(rows["value"] * scale, share, color=look.color, linestyle=look.line,
                  linewidth=1.6, marker=look.marker, markersize=4, markevery=0.12)  # fmt: skip
    for value, share in marks:
        axis.plot(value * scale, 1 - share if tail else share, "X", color=PAPER, markersize=8,
                  markeredgecolor="white", zorder=5)  # fmt: skip
    axis.set_xlabel(label)
    if tail:
        axis.set_yscale("log")
        axis.set_ylim(0.005, 1)
        axis.set_ylabel("share of requests that take longer")
    else:
        axis.set_ylim(0, 1.01)
        axis.set_ylabel("share of requests")


def logarithmic(axis: Axes) -> None:
    """Make the horizontal axis logarithmic, with plain numbers at 1, 2 and 5 of each decade."""
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=20))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


def paper_cross(label: str = "paper, SMetric") -> Line2D:
    """Return the legend's entry of the paper's quantiles."""
    return Line2D([], [], color=PAPER, marker="X", linestyle="none", markersize=8,
                  markeredgecolor="white", label=label)  # fmt: skip
