"""A comparison in words and numbers for people."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.comparison.run import Comparison

__all__ = ["cell", "number", "paper_lines", "reading"]

_SIGNS = {"higher": " ▲", "lower": " ▼"}


def reading(found: Comparison) -> list[str]:
    """Say how the cells are read.

    Parameters
    ----------
    found : Comparison

    Returns
    -------
    list of str
    """
    lines = [
        f"baseline: {found.baseline}; ± half of the {found.confidence:.0%} interval over seeds;"
        " differences of shares in points, of all else relative"
    ]
    if found.table["verdict"].isin(["tie", "higher", "lower"]).any():
        lines.append(
            f"▲ ▼: differs; = tie: below noise ({found.confidence:.0%}, Holm's correction over the"
            " quantities of each name); no sign: not tested, fewer than two seeds"
        )
    else:
        lines.append("nothing is tested: that needs two seeds or more of each")
    if found.paper is not None and len(found.paper):
        lines.append(
            "the paper's figures hold for its own cluster, load and tier (setting); agrees: within"
            " the tolerance that was fixed before our first comparison"
        )
    return lines


def cell(line: Mapping[Any, Any] | None, unit: str) -> str:
    """Write a line of a comparison's table as one cell.

    Parameters
    ----------
    line : mapping or None
        A row of ``Comparison.table``; None where there is none.
    unit : str
        Of its quantity.

    Returns
    -------
    str
        Mean, half of the interval, difference to the baseline and verdict.
    """
    if line is None or not line["count"]:
        return "-"
    text = number(line["mean"])
    if not math.isnan(line["low"]):
        text += f" ±{number((line['high'] - line['low']) / 2)}"
    if line["verdict"] == "baseline" or math.isnan(line["difference"]):
        return text
    if line["verdict"] == "tie":
        return f"{text}  ="
    if unit == "ratio" and not str(line["quantity"]).startswith("imbalance"):
        away = f"{100 * line['difference']:+.2f} pt"
    elif math.isnan(line["relative_difference"]):
        away = f"{line['difference']:+.3g}"
    else:
        away = f"{line['relative_difference']:+.1%}"
    return f"{text}  {away}{_SIGNS.get(line['verdict'], '')}"


def paper_lines(paper: pd.DataFrame) -> tuple[list[str], list[dict[str, Any]]]:
    """Lay the conditions of a paper's table side by side.

    Parameters
    ----------
    paper : DataFrame
        Of :func:`~smetric_model.comparison.paper.paper_table`.

    Returns
    -------
    conditions : list of str
    lines : list of dict
        One a claim and name: the table's columns, and ``here``, pairs of a figure and whether it
        agrees, one a condition.
    """
    conditions = [str(condition) for condition in dict.fromkeys(paper["condition"])]
    lines: list[dict[str, Any]] = []
    for _, part in paper.groupby(["claim", "name", "policy"], sort=False):
        rows = {row["condition"]: row for row in part.to_dict("records")}
        here = [
            (number(rows[c]["mean"]), rows[c]["agrees"]) if c in rows else ("-", "")
            for c in conditions
        ]
        head = next(iter(rows.values()))
        lines.append({str(key): value for key, value in head.items()} | {"here": here})
    return conditions, lines


def number(value: float) -> str:
    """Write a number with three digits, or whole where it is 1,000 or more."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
