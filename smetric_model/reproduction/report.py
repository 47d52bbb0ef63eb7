"""Claims and score as Markdown, for ``docs/reproduction.md``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["claims_markdown", "deciding_markdown", "score_markdown"]


def score_markdown(scores: pd.DataFrame) -> str:
    """Write the score as a table.

    Parameters
    ----------
    scores : DataFrame
        Of :func:`~smetric_model.reproduction.evaluate.score`.
    """
    lines = ["| preset | use | simulated | closed form |", "|---|---|---|---|"]
    lines += [
        f"| {row['preset']} | {row['use']} | {row['agree']} of {row['comparable']}"
        f" | {row['predicted_agree']} of {row['predicted_comparable']} |"
        for row in scores.to_dict("records")
    ]
    return "\n".join(lines) + "\n"


def claims_markdown(claims: pd.DataFrame) -> str:
    """Write the claims as one table, the presets side by side.

    Parameters
    ----------
    claims : DataFrame
        Of :func:`~smetric_model.reproduction.evaluate.claims_table`.
    """
    presets = list(claims["preset"].unique())
    short = [name.rsplit("-", 1)[-1] for name in presets]
    lines = [
        "| claim | what | paper | tolerance | " + " | ".join(short) + " | closed form |",
        "|---|---|---|---|" + "---|" * (len(presets) + 1),
    ]
    for claim, part in claims[claims["use"] != "context"].groupby("claim", sort=False):
        rows = {row["preset"]: row for row in part.to_dict("records")}
        head = rows[presets[0]]
        who = "" if head["policy"] in ("-", "all") else f", {head['policy']}"
        cells = [_cell(rows[p]["simulated"], rows[p]["spread"], rows[p]["agrees"]) for p in presets]
        closed = [
            _cell(rows[p]["predicted"], math.nan, rows[p]["predicted_agrees"]) for p in presets
        ]
        tolerance = head["tolerance"].split(" (")[0]
        lines.append(
            f"| {claim} {head['use'][0]} | {head['quantity']}{who}; {head['setting']}"
            f" | {head['paper']} | {tolerance} | "
            + " | ".join(cells)
            + " | "
            + ", ".join(closed)
            + " |"
        )
    return "\n".join(lines) + "\n"


def deciding_markdown(decisive: pd.DataFrame) -> str:
    """Write which assumption would decide each claim that disagrees.

    Parameters
    ----------
    decisive : DataFrame
        Of :func:`~smetric_model.reproduction.sensitivity.deciding`.
    """
    lines = [
        "| claim | main run | agrees under | moved furthest by |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row['claim']} | {row['base']:.3g} | {row['flips'] or '–'} | {row['largest']} |"
        for row in decisive.to_dict("records")
    ]
    return "\n".join(lines) + "\n"


def _cell(mean: float, spread: float, agrees: str) -> str:
    if math.isnan(mean):
        return "–"
    text = f"{mean:.3g}" + ("" if math.isnan(spread) else f" ± {spread:.1g}")
    return f"**{text}**" if agrees == "yes" else text
