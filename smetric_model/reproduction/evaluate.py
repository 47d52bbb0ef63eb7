"""The claims held against a result table, and the score."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from smetric_model.reproduction.claims import USES, Claim, load_claims
from smetric_model.reproduction.estimates import ESTIMATES, workload_estimate
from smetric_model.reproduction.rows import Rows, Value

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["claims_table", "score", "verdict"]

_VERDICTS = {True: "yes", False: "no", None: "not comparable"}


def verdict(claim: Claim, value: Value) -> str:
    """Say whether a value agrees with a claim.

    Parameters
    ----------
    claim : Claim
    value : Value

    Returns
    -------
    str
        ``yes``, ``no``, ``not comparable`` (no value), or nothing (a claim of context).
    """
    if claim.use == "context":
        return ""
    return _VERDICTS[claim.tolerance.agrees(claim.value, value.low, value.high)]


def claims_table(
    table: pd.DataFrame,
    workload: pd.DataFrame | None = None,
    operating: float = 1.5,
    claims: Iterable[Claim] | None = None,
    presets: Iterable[str] | None = None,
) -> pd.DataFrame:
    """Hold every claim against a result table.

    Parameters
    ----------
    table : DataFrame
        A result table.
    workload : DataFrame, optional
        Figures of the traces (:mod:`smetric_model.reproduction.workload`).
    operating : float, default 1.5
        Load of figures that name none.
    claims : iterable of Claim, optional
        By default the shipped ones.
    presets : iterable of str, optional
        By default all of the table.

    Returns
    -------
    DataFrame
        One row a preset and claim: the claim's columns, ``simulated`` with ``spread`` over the
        seeds and the ends ``low`` and ``high`` of what is held against it, ``agrees``,
        ``predicted`` by the closed form and ``predicted_agrees``, and a ``note``.
    """
    import pandas as pd

    known = tuple(load_claims() if claims is None else claims)
    figures = pd.DataFrame() if workload is None else workload
    lines = []
    for preset in sorted(table["preset"].unique()) if presets is None else presets:
        simulated = Rows(table, preset, "simulate")
        predicted = Rows(table, preset, "predict")
        for claim in known:
            of_trace = workload_estimate(claim.id, figures, preset)
            estimate = ESTIMATES.get(claim.id)
            value = closed = Value()
            if of_trace is not None:
                value = of_trace
            elif estimate is not None:
                value = estimate(simulated, operating)
                closed = estimate(predicted, operating)
            lines.append(
                {
                    "preset": preset,
                    "claim": claim.id,
                    "use": claim.use,
                    "figure": claim.figure,
                    "setting": claim.setting,
                    "quantity": claim.quantity,
                    "policy": claim.policy,
                    "paper": claim.text,
                    "unit": claim.unit,
                    "tolerance": claim.tolerance_text,
                    "simulated": value.mean,
                    "spread": value.spread,
                    "low": value.low,
                    "high": value.high,
                    "agrees": verdict(claim, value),
                    "predicted": closed.mean,
                    "predicted_agrees": verdict(claim, closed),
                    "note": value.note,
                }
            )
    return pd.DataFrame(lines)


def score(claims: pd.DataFrame) -> pd.DataFrame:
    """Count the claims that agree, by preset and use.

    Parameters
    ----------
    claims : DataFrame
        Of :func:`claims_table`.

    Returns
    -------
    DataFrame
        One row a preset and use (calibrate, predict): ``claims``; ``agree``, ``comparable`` of the
        simulation; ``predicted_agree``, ``predicted_comparable`` of the closed form; and
        ``agree_ratio``, agreeing over comparable (NaN: none).
    """
    import pandas as pd

    lines = []
    for preset, part in claims.groupby("preset", sort=False):
        for use in USES[:2]:
            rows = part[part["use"] == use]
            comparable = int(rows["agrees"].isin(("yes", "no")).sum())
            agree = int((rows["agrees"] == "yes").sum())
            lines.append(
                {
                    "preset": preset,
                    "use": use,
                    "claims": len(rows),
                    "comparable": comparable,
                    "agree": agree,
                    "agree_ratio": agree / comparable if comparable else math.nan,
                    "predicted_comparable": int(rows["predicted_agrees"].isin(("yes", "no")).sum()),
                    "predicted_agree": int((rows["predicted_agrees"] == "yes").sum()),
                }
            )
    return pd.DataFrame(lines)
