"""What claims ask of a result table: values by seed, peaks, ratios of paired runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Rows", "Value", "ratio"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Value:
    """What a verb says about a claim.

    Attributes
    ----------
    mean, spread : float
        Mean, and standard deviation over the seeds (NaN: one seed).
    low, high : float
        What is held against the claim: the mean, the ends of a range, or 1 and 0 of an ordering.
    note : str
        What stands behind it.
    """

    mean: float = math.nan
    spread: float = math.nan
    low: float = math.nan
    high: float = math.nan
    note: str = ""

    @classmethod
    def of(cls, values: FloatArray, mean: float | None = None, note: str = "") -> Value:
        """Value of one figure by seed.

        Parameters
        ----------
        values : ndarray, shape (seeds,)
        mean : float, optional
            In place of their mean, such as a ratio of means.
        note : str
        """
        known = values[~np.isnan(values)]
        if not known.size:
            return cls(note=note)
        centre = float(known.mean()) if mean is None else mean
        spread = float(known.std(ddof=1)) if known.size > 1 else math.nan
        return cls(centre, spread, centre, centre, note)


class Rows:
    """Part of a result table: one preset and verb.

    Parameters
    ----------
    table : DataFrame
        A result table.
    preset, verb : str
    assumption, variant : str
        Of the sensitivity table; empty: the main run.
    """

    def __init__(
        self, table: pd.DataFrame, preset: str, verb: str, assumption: str = "", variant: str = ""
    ):
        part = table[(table["preset"] == preset) & (table["verb"] == verb)]
        main = part["study"] == "sweep"
        if variant:
            main = (part["assumption"] == assumption) & (part["variant"] == variant)
        sweep = part[main]
        self._sweeps = dict(list(sweep.groupby(["setup", "policy", "tier"])))
        self._none = sweep.iloc[:0]
        self._router = part[part["study"] == "router"]
        self._cache: dict[tuple[str, str, str, str], pd.DataFrame] = {}

    def _sweep(self, setup: str, policy: str, tier: str) -> pd.DataFrame:
        return self._sweeps.get((setup, policy, tier), self._none)

    def curve(self, setup: str, policy: str, tier: str, column: str) -> pd.DataFrame:
        """Return a column over the load.

        Parameters
        ----------
        setup, policy, tier, column : str

        Returns
        -------
        DataFrame
            A row a seed, a column a load; rows that a verb could not answer are NaN.
        """
        key = (setup, policy, tier, column)
        if key not in self._cache:
            self._cache[key] = _pivoted(self._sweep(setup, policy, tier), column)
        return self._cache[key]

    def at(self, setup: str, policy: str, tier: str, column: str, load: float) -> FloatArray:
        """Return a column at a load, by seed; empty where it was not run.

        Parameters
        ----------
        setup, policy, tier, column : str
        load : float
            ``nan``: where the policy's mean goodput peaks.
        """
        if math.isnan(load):
            load = self.peak_load(setup, policy, tier)
        curve = self.curve(setup, policy, tier, column)
        if load not in curve.columns:
            return np.full(max(len(curve), 1), np.nan)
        return curve[load].to_numpy(dtype=np.float64)

    def peak_load(self, setup: str, policy: str, tier: str) -> float:
        """Load of the largest mean goodput; NaN where nothing was run.

        Parameters
        ----------
        setup, policy, tier : str
        """
        means = self.curve(setup, policy, tier, "goodput_tps").mean()
        if not means.notna().any():
            return math.nan
        return float(means.index.to_numpy(dtype=np.float64)[int(np.nanargmax(means.to_numpy()))])

    def router(self, setup: str, key: str) -> dict[str, FloatArray]:
        """Goodput by seed under each value of a router's key that was swept.

        Parameters
        ----------
        setup, key : str

        Returns
        -------
        dict of str to ndarray
            By variant.
        """
        part = self._router
        part = part[(part["setup"] == setup) & (part["assumption"] == key)]
        return {
            str(variant): rows.sort_values("seed")["goodput_tps"].to_numpy(dtype=np.float64)
            for variant, rows in part.groupby("variant")
        }

    def undrained(self, setup: str, policy: str, tier: str, load: float) -> int:
        """How many runs at a load had not served everyone at the drain limit.

        Parameters
        ----------
        setup, policy, tier : str
        load : float
        """
        part = self._sweep(setup, policy, tier)
        part = part[part["load"] == load]
        return int((part["valid"] != True).sum())  # noqa: E712  None counts as not valid


def _pivoted(part: pd.DataFrame, column: str) -> pd.DataFrame:
    """Lay a column out by seed and load, as ``pivot_table`` does, which takes 15 ms a call."""
    import pandas as pd

    seeds, row = np.unique(part["seed"].to_numpy(), return_inverse=True)
    loads, place = np.unique(part["load"].to_numpy(), return_inverse=True)
    values = part[column].to_numpy(dtype=np.float64)
    known = ~np.isnan(values)
    total, count = np.zeros((len(seeds), len(loads))), np.zeros((len(seeds), len(loads)))
    np.add.at(total, (row[known], place[known]), values[known])
    np.add.at(count, (row[known], place[known]), 1)
    with np.errstate(invalid="ignore"):
        mean = total / count
    return pd.DataFrame(mean, index=pd.Index(seeds, name="seed"), columns=loads)


def ratio(one: FloatArray, other: FloatArray) -> Value:
    """Relative difference of paired runs, ``one / other - 1``.

    Parameters
    ----------
    one, other : ndarray, shape (seeds,)

    Returns
    -------
    Value
        Mean: that of the means; spread: of the pairs.
    """
    if one.shape != other.shape or not one.size:
        return Value()
    known = ~np.isnan(one) & ~np.isnan(other) & (other > 0)
    if not known.any():
        return Value()
    mean = float(one[known].mean() / other[known].mean() - 1)
    return Value.of(one[known] / other[known] - 1, mean)
