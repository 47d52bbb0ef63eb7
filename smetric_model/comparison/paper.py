"""The paper's figures beside what is compared."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from smetric_model.errors import SpecError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["paper_table"]

_COLUMNS = [
    *("condition", "name", "policy", "quantity", "claim", "figure", "setting"),
    *("paper", "unit", "tolerance", "mean", "agrees"),
]
_AGREES = {True: "yes", False: "no", None: ""}


def paper_table(rows: pd.DataFrame, setup: str) -> pd.DataFrame:
    """Hold rows against the SMetric paper's figures for one of its clusters.

    Parameters
    ----------
    rows : DataFrame
        Rows of the schema with columns ``_name`` and ``_condition``.
    setup : str
        Whose figures: a set-up of ``data/reproduction.toml``.

    Returns
    -------
    DataFrame
        One line a name, condition and claim about a column that is there under the row's policy:
        ``paper`` (as the paper has it), ``mean`` over the rows, ``agrees`` (yes, no; empty where a
        claim is of context).  Whether the rows are of the paper's cluster, load and tier
        (``setting``) is the caller's to know.

    Raises
    ------
    SpecError
        If there is no such set-up, or the rows name no policy.
    """
    import pandas as pd

    from smetric_model.reproduction.claims import load_claims
    from smetric_model.reproduction.estimates import LEVELS

    setups = sorted({level.setup for level in LEVELS.values()})
    if setup not in setups:
        raise SpecError(f"compare: paper = {setup!r}: one of {', '.join(setups)}")
    if "policy" not in rows:
        raise SpecError("compare: the paper's figures are by policy; the rows have no such column")
    lines = []
    parts = rows.groupby(["_condition", "_name", "policy"], sort=False)
    for (condition, name, policy), part in parts:
        for claim in load_claims():
            level = LEVELS.get(claim.id)
            if level is None or (level.setup, level.policy) != (setup, policy):
                continue
            mean = float(part[level.column].mean()) if level.column in part else math.nan
            if math.isnan(mean):
                continue
            agrees = None
            if claim.use != "context":
                agrees = claim.tolerance.agrees(claim.value, mean)
            lines.append(
                {
                    "condition": condition,
                    "name": name,
                    "policy": policy,
                    "quantity": level.column,
                    "claim": claim.id,
                    "figure": claim.figure,
                    "setting": claim.setting,
                    "paper": claim.text,
                    "unit": claim.unit,
                    "tolerance": claim.tolerance_text,
                    "mean": mean,
                    "agrees": _AGREES[agrees],
                }
            )
    return pd.DataFrame(lines, columns=_COLUMNS)
