"""Mean, interval and difference of a quantity over seeds.

Where both sides have the same seeds the differences of each seed are tested (the traces are the
same, so that most of the noise is common); else the two samples.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["Difference", "Test", "difference", "holm", "interval"]

Test = Literal["t", "wilcoxon"]


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference of means to a baseline.

    Parameters
    ----------
    mean : float
        Over the seeds that are compared.
    low, high : float
        Interval of the difference; NaN where there are too few seeds.
    p_value : float
        NaN where nothing was tested.
    test : str
        ``paired t``, ``Welch``, ``Wilcoxon``, ``Mann-Whitney``; empty where none was made.
    pairs : int
        Seeds on both sides, where the test is paired.
    """

    mean: float
    low: float = math.nan
    high: float = math.nan
    p_value: float = math.nan
    test: str = ""
    pairs: int = 0


def interval(values: NDArray[np.float64], confidence: float) -> tuple[float, float]:
    """Student's interval of a mean; NaN for fewer than two values.

    Parameters
    ----------
    values : ndarray, shape (n,)
    confidence : float

    Returns
    -------
    low, high : float
    """
    from scipy import stats

    if values.size < 2:
        return math.nan, math.nan
    mean, error = float(values.mean()), float(values.std(ddof=1)) / math.sqrt(values.size)
    reach = float(stats.t.ppf((1 + confidence) / 2, values.size - 1)) * error
    return mean - reach, mean + reach


def difference(
    left: dict[Hashable, float], right: dict[Hashable, float], confidence: float, test: Test
) -> Difference:
    """Difference right − left, by seed.

    Parameters
    ----------
    left, right : dict
        Value by seed, of the baseline and of what is compared with it; by a key of that side
        alone where nothing is to be paired.
    confidence : float
    test : {"t", "wilcoxon"}

    Returns
    -------
    Difference
    """
    from scipy import stats

    common = [seed for seed in left if seed in right]
    if len(common) >= 2:
        away = np.array([right[seed] - left[seed] for seed in common])
        low, high = interval(away, confidence)
        mean, pairs = float(away.mean()), len(common)
        scale = max(max(abs(left[seed]), abs(right[seed])) for seed in common)
        if np.ptp(away) <= 1e-12 * scale:  # the same for every seed: no noise to test against
            p_value = 1.0 if abs(mean) <= 1e-12 * scale else 0.0
            return Difference(mean, mean, mean, p_value, "no noise", pairs)
        if test == "wilcoxon":
            return Difference(
                mean,
                low,
                high,
                float(stats.wilcoxon(away / np.abs(away).max()).pvalue),
                "Wilcoxon",
                pairs,
            )
        # of any unit the same: squares of tiny differences would vanish
        p_value = float(stats.ttest_1samp(away / np.abs(away).max(), 0.0).pvalue)
        return Difference(mean, low, high, p_value, "paired t", pairs)
    a, b = np.array(list(left.values())), np.array(list(right.values()))
    mean = float(b.mean() - a.mean())
    if a.size < 2 or b.size < 2:
        return Difference(mean)
    if np.ptp(a) == 0 and np.ptp(b) == 0:
        return Difference(mean, mean, mean, 1.0 if mean == 0 else 0.0, "no noise")
    result = stats.ttest_ind(b, a, equal_var=False)
    around = result.confidence_interval(confidence)
    p_value, name = float(result.pvalue), "Welch"
    if test == "wilcoxon":
        p_value, name = float(stats.mannwhitneyu(b, a).pvalue), "Mann-Whitney"
    return Difference(mean, float(around.low), float(around.high), p_value, name)


def holm(p_values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Holm's correction for many tests; NaN (not tested) counts as none.

    Parameters
    ----------
    p_values : ndarray, shape (n,)

    Returns
    -------
    ndarray, shape (n,)
    """
    adjusted = np.full(p_values.shape, np.nan)
    tested = np.flatnonzero(~np.isnan(p_values))
    order = tested[np.argsort(p_values[tested], kind="stable")]
    factors = np.arange(order.size, 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(p_values[order] * factors), 1.0)
    return adjusted
