"""What makes compared rows unlike, beyond what they are compared by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["notes_of"]


def notes_of(
    rows: pd.DataFrame, names: Sequence[str], by: Sequence[str], conditions: Sequence[str]
) -> list[str]:
    """Say what a reader must know before believing the differences.

    Parameters
    ----------
    rows : DataFrame
        With columns ``_name`` and ``_condition``.
    names : sequence of str
    by, conditions : sequence of str
        Columns that make the names, and those in which rows of one name differ.

    Returns
    -------
    list of str
    """
    notes: list[str] = []
    parts = {name: rows[rows["_name"] == name] for name in names}
    for key, what in (("window_s", "windows"), ("warmup_s", "warm-ups")):
        told = {name: _values(part, key) for name, part in parts.items()}
        if len(set(told.values())) > 1:
            notes.append(f"{what} differ [s]: {_each(told)}")
    every = list(dict.fromkeys(rows["_condition"]))
    for name, part in parts.items():
        missing = [condition for condition in every if condition not in set(part["_condition"])]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            notes.append(f"no row of {name} where {missing[0]}{more}")
    for condition in every:
        chosen = {n: p[p["_condition"] == condition] for n, p in parts.items()}
        where = f" ({condition})" if condition else ""
        rates = _means(chosen, "arrival_rate_rps")
        if rates and max(rates.values()) > 1.01 * min(rates.values()):
            told = {name: f"{rate:.4g}" for name, rate in rates.items()}
            notes.append(f"realised rates differ [requests/s]{where}: {_each(told)}")
        lost = _means(chosen, "unservable_ratio")
        if lost and max(lost.values()) - min(lost.values()) > 1e-3:
            told = {name: f"{share:.2%}" for name, share in lost.items()}
            notes.append(f"unservable shares differ{where}: {_each(told)}")
        seeds = {name: _values(part, "seed") for name, part in chosen.items() if len(part)}
        if len(set(seeds.values())) > 1:
            notes.append(f"seeds differ{where}: {_each(seeds)}; only common ones are paired")
        for name, part in chosen.items():
            if "seed" in part and part["seed"].duplicated().any():
                notes.append(f"{name} has rows of the same seed{where}: they are not paired")
    known = {*by, *conditions}
    if "policy" in known:
        known.add("router.policy")  # the same, as swept
    for swept in (str(k) for k in rows if "." in str(k) and k not in known):
        told = {name: _values(part, swept) for name, part in parts.items()}
        if len(set(told.values())) > 1:
            notes.append(f"{swept} differs: {_each(told)}")
    for name, part in parts.items():
        # rows of a verb's own file have no status: they would not be there
        done = (
            part["status"].isin(["done", ""]) | part["status"].isna() if "status" in part else True
        )
        if not np.all(done):
            kinds = part[~done]["status"].value_counts().to_dict()
            told_kinds = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
            notes.append(f"{name}: of {len(part)} rows {told_kinds}; they have no figures")
        if "valid" in part:
            wrong = part["valid"].map(lambda v: str(v) == "False")
            wrong &= done
            if wrong.any():
                notes.append(f"{name}: {int(wrong.sum())} of {len(part)} rows are not valid")
    verbs = set(map(str, rows["verb"])) if "verb" in rows else set()
    if "bound" in verbs and len(verbs) > 1:
        notes.append("bound says what no router can beat; it is no estimate of what one delivers")
    return notes


def _values(part: pd.DataFrame, key: str) -> str:
    if key not in part:
        return "-"
    values = list(
        dict.fromkeys(part[key].map(lambda v: f"{v:g}" if isinstance(v, float) else str(v)))
    )
    return ", ".join(values[:6]) + (" ..." if len(values) > 6 else "")


def _means(parts: dict[str, pd.DataFrame], key: str) -> dict[str, float]:
    found = {}
    for name, part in parts.items():
        values = part[key].to_numpy(float) if key in part else np.array([])
        values = values[np.isfinite(values)]
        if values.size:
            found[name] = float(values.mean())
    return found


def _each(told: dict[str, str]) -> str:
    return "; ".join(f"{name}: {text}" for name, text in told.items())
