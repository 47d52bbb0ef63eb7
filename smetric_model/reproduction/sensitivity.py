"""Which assumption decides a claim: one at a time, at other values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from smetric_model.reproduction.claims import load_claims
from smetric_model.reproduction.estimates import ESTIMATES
from smetric_model.reproduction.evaluate import verdict
from smetric_model.reproduction.rows import Rows

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["deciding", "sensitivity_figure", "sensitivity_table"]


def sensitivity_table(table: pd.DataFrame, preset: str, operating: float = 1.5) -> pd.DataFrame:
    """Every claim under every variant, beside the main run at the same loads and seeds.

    Parameters
    ----------
    table : DataFrame
        A result table.
    preset : str
    operating : float, default 1.5
        Load of figures that name none.

    Returns
    -------
    DataFrame
        One row a claim and variant: ``claim``, ``assumption``, ``variant``, ``value`` and
        ``agrees``, and of the main run ``base`` and ``base_agrees``.  Empty, if the table has
        no variants.
    """
    import pandas as pd

    variants = table[(table["study"] == "sensitivity") & (table["preset"] == preset)]
    keys = ["setup", "policy", "tier", "load", "seed"]
    common = table.merge(variants[keys].drop_duplicates(), on=keys)
    base_rows = Rows(common, preset, "simulate")
    pairs = variants[["assumption", "variant"]].drop_duplicates().itertuples(index=False)
    others = [(a, v, Rows(table, preset, "simulate", str(a), str(v))) for a, v in pairs]
    lines = []
    for claim in load_claims():
        estimate = ESTIMATES.get(claim.id)
        if claim.use != "predict" or estimate is None:
            continue
        base = estimate(base_rows, operating)
        for assumption, variant, rows in others:
            value = estimate(rows, operating)
            if math.isnan(value.mean):
                continue
            lines.append(
                {
                    "claim": claim.id,
                    "assumption": assumption,
                    "variant": variant,
                    "value": value.mean,
                    "agrees": verdict(claim, value),
                    "base": base.mean,
                    "base_agrees": verdict(claim, base),
                }
            )
    columns = ["claim", "assumption", "variant", "value", "agrees", "base", "base_agrees"]
    return pd.DataFrame(lines, columns=columns)


def deciding(sensitivity: pd.DataFrame) -> pd.DataFrame:
    """Pick, for each claim that disagrees, the variant that brings most.

    Parameters
    ----------
    sensitivity : DataFrame
        Of :func:`sensitivity_table`.

    Returns
    -------
    DataFrame
        One row a claim: ``claim``, ``base``, ``flips`` (the variants under which it agrees, with
        their values), and ``largest`` (the variant that moves it furthest, with its value).
    """
    import pandas as pd

    lines = []
    wrong = sensitivity[sensitivity["base_agrees"] == "no"]
    for claim, part in wrong.groupby("claim"):
        flips = part[part["agrees"] == "yes"]
        rows = part.to_dict("records")
        far = max(rows, key=lambda row: abs(row["value"] - row["base"]))
        lines.append(
            {
                "claim": claim,
                "base": float(part["base"].iloc[0]),
                "flips": "; ".join(f"{r.variant}: {r.value:.3g}" for r in flips.itertuples()),
                "largest": f"{far['variant']}: {far['value']:.3g}",
            }
        )
    return pd.DataFrame(lines, columns=["claim", "base", "flips", "largest"])


def sensitivity_figure(sensitivity: pd.DataFrame) -> Figure:
    """Draw how far each assumption moves the claims that disagree.

    Parameters
    ----------
    sensitivity : DataFrame
        Of :func:`sensitivity_table`.

    Returns
    -------
    Figure
        A cell a claim and variant: value less that of the main run, over the size of the latter;
        a dot where the claim then agrees.
    """
    import numpy as np

    from smetric_model._figure import ShownFigure

    wrong = sensitivity[sensitivity["base_agrees"] == "no"]
    change = (wrong["value"] - wrong["base"]) / wrong["base"].abs()
    cells = wrong.assign(change=change).pivot_table(
        index="claim", columns="variant", values="change", sort=False
    )
    dots = wrong[wrong["agrees"] == "yes"]
    size = (2 + 0.3 * len(cells.columns), 4 + 0.2 * len(cells))
    figure = ShownFigure(figsize=size, layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(
        np.clip(cells.to_numpy(dtype=np.float64), -1, 1),
        cmap="PuOr",
        vmin=-1,
        vmax=1,
        aspect="auto",
    )
    axes.set_xticks(range(len(cells.columns)), cells.columns, rotation=90, fontsize=7)
    axes.set_yticks(range(len(cells)), cells.index, fontsize=7)
    axes.plot(
        [list(cells.columns).index(v) for v in dots["variant"]],
        [list(cells.index).index(c) for c in dots["claim"]],
        "o",
        markersize=4,
        markerfacecolor="white",
        markeredgecolor="black",
    )
    figure.colorbar(image, ax=axes, label="change against the main run, of its size")
    return figure
