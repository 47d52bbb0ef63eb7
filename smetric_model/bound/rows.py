r"""Rows of the compute resource: engine time, and the share of the KV pool in use beside it.

At any moment an instance has one engine and one pool, and running and cached KV share the pool.
With σ the share that running requests hold and c the share that is cached, for any weight v in
[0, 1],

.. math:: \int \bigl[(1 - v)\,\mathrm{busy} + v\,(\sigma + c)\bigr]\,dt \le T .

A step of length t adds (1 − v + vσ) t to the left-hand side.  v = 0 is engine time alone, in which
the batch may fill the pool; the larger v, the dearer a large batch, which holds KV that could be
cached.  That one row charges both is more than two rows that charge each at its own best batch.

*Sharing out.*  With a minorant t ≥ β p + a (pairs + τ p) + g(d) + κ Σ context_r
(:mod:`smetric_model.bound.minorant`), ρ_r the share that sequence r holds, and σ ≥ Σ ρ_r over all
sequences of the step,

.. math:: (1 - v + v\sigma)\,t \ge \sum_{\mathrm{prefilling}} (1 - v + v\rho_r)\,\mathrm{prefill}_r
          + (1 - v)\,\kappa \sum_{\mathrm{decoding}} \mathrm{context}_r + f(d, \sigma_d),

.. math:: f(d, \sigma) = (1 - v + v\sigma)\,g(d) + v\,\sigma\,\kappa\,(\sigma P - d F)^+ ,

P the pool and F the fixed state of a sequence [tokens], since contexts are at least what is held.
(Products of one request's KV with another's prefill are dropped.)  Let c be concave with

.. math:: c(\rho) \le m(\rho) = \min_{d \le D,\ d\rho \le 1} f(d, d\rho)/d .

Then Σ c(ρ_r) ≤ d c(σ/d) ≤ f(d, σ) by Jensen's inequality, for every batch that fits: σ ≤ 1,
d ≤ D.  So a token of sequence r costs at least c(ρ_r).  Of all such c, a small linear program takes
the one that charges a workload most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smetric_model.bound.minorant import Minorant

__all__ = ["Row", "Workload", "fit_row", "least_token_s"]

FloatArray = NDArray[np.float64]

#: points of the table of c between no share and all of the pool
_POINTS = 120


@dataclass(frozen=True, eq=False)
class Row:
    """One additive row; see the module.

    Attributes
    ----------
    minorant : Minorant
        Of the step time.
    pool_weight : float
        v.
    share, token_s : ndarray of float64, shape (points,)
        c as a table: shares of the pool, from 0 to 1, and least weighted time of a token [s].
    """

    minorant: Minorant
    pool_weight: float
    share: FloatArray
    token_s: FloatArray

    @property
    def label(self) -> str:
        """Which row this is."""
        return f"{self.minorant.label}, pool {self.pool_weight:g}"

    def prefill_s(self, tokens: ArrayLike, pairs: ArrayLike, pool_share: ArrayLike) -> Any:
        """Return the weighted time of prefill.

        Parameters
        ----------
        tokens, pairs : array_like of float
            Prefilled tokens and (query, key) pairs.
        pool_share : array_like of float
            Share of the pool that the request holds meanwhile.

        Returns
        -------
        ndarray or float
            Seconds [s].
        """
        time = self.minorant.prefill_token_s * np.asarray(tokens)
        time = time + self.minorant.prefill_pair_s * np.asarray(pairs)
        return (1.0 - self.pool_weight + self.pool_weight * np.asarray(pool_share)) * time

    def decode_s(self, tokens: ArrayLike, keys: ArrayLike, pool_share: ArrayLike) -> Any:
        """Return the least weighted time of decode steps.

        Parameters
        ----------
        tokens, keys : array_like of float
            Decode steps, and the sum of the contexts that they read [tokens].
        pool_share : array_like of float
            Share of the pool that the request holds, in [0, 1].

        Returns
        -------
        ndarray or float
            Seconds [s].
        """
        own = np.interp(np.asarray(pool_share), self.share, self.token_s) * np.asarray(tokens)
        return own + (1.0 - self.pool_weight) * self.minorant.decode_key_s * np.asarray(keys)


@dataclass(frozen=True, eq=False)
class Workload:
    """What a row is fitted to.

    Attributes
    ----------
    pool_tokens, fixed_tokens : float
        P and F [tokens].
    share, decode_tokens : ndarray of float64, shape (requests,)
        Share of the pool that each request holds, and its decode steps.
    """

    pool_tokens: float
    fixed_tokens: float
    share: FloatArray
    decode_tokens: FloatArray


def _grid(places: int) -> FloatArray:
    """Shares at which c is tabulated; where a batch stops to fit, c may bend."""
    few = 1.0 / np.arange(1.0, min(places, 24) + 1)
    even = np.geomspace(0.25 / places, 1.0, _POINTS)
    return np.unique(np.concatenate(([0.0], even, few)))


def _batches(
    minorant: Minorant,
    pool_weight: float,
    pool_tokens: float,
    fixed_tokens: float,
    share: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """f(d, dρ)/d and its derivative by ρ; shape (shares, batches)."""
    batch = np.arange(1.0, minorant.batch_s.size + 1)
    rho, v = share[:, None], pool_weight
    above = np.maximum(rho * pool_tokens - fixed_tokens, 0.0)
    value = (1.0 - v + v * batch * rho) * minorant.batch_s / batch
    value = value + v * minorant.decode_key_s * batch * rho * above
    slope = v * minorant.batch_s + v * minorant.decode_key_s * batch * (
        above + rho * pool_tokens * (above > 0)
    )
    return value, slope


def least_token_s(
    minorant: Minorant,
    pool_weight: float,
    pool_tokens: float,
    fixed_tokens: float,
    share: FloatArray,
) -> FloatArray:
    """Return m: the least weighted time of a token in a batch of equal sequences.

    Parameters
    ----------
    minorant : Minorant
        Of the step time.
    pool_weight : float
        v.
    pool_tokens, fixed_tokens : float
        P and F [tokens].
    share : ndarray of float64, shape (n,)
        Share of the pool of each sequence, in [0, 1].

    Returns
    -------
    ndarray of float64, shape (n,)
        [s].
    """
    value, _ = _batches(minorant, pool_weight, pool_tokens, fixed_tokens, share)
    batch = np.arange(1.0, minorant.batch_s.size + 1)
    fits = batch * share[:, None] <= 1.0 + 1e-12
    return np.asarray(np.where(fits, value, np.inf).min(axis=1))


def _ceiling(
    minorant: Minorant,
    pool_weight: float,
    pool_tokens: float,
    fixed_tokens: float,
    grid: FloatArray,
) -> FloatArray:
    """Values at the grid such that the chords between lower ones are nowhere above m.

    f(d, dρ)/d is convex in ρ for each d: a chord that is below its tangent at the left end of an
    interval, at both ends, is below it all along.
    """
    least = least_token_s(minorant, pool_weight, pool_tokens, fixed_tokens, grid)
    value, slope = _batches(minorant, pool_weight, pool_tokens, fixed_tokens, grid[:-1])
    tangent = value + slope * np.diff(grid)[:, None]
    batch = np.arange(1.0, minorant.batch_s.size + 1)
    fits = batch * grid[:-1, None] < 1.0 - 1e-12
    after = np.where(fits, tangent, np.inf).min(axis=1)
    return np.minimum(least, np.concatenate(([np.inf], after)))


def fit_row(minorant: Minorant, pool_weight: float, workload: Workload) -> Row:
    """Return the row that charges a workload most.

    Parameters
    ----------
    minorant : Minorant
        Of the step time.
    pool_weight : float
        v.
    workload : Workload
        What the row is fitted to; it is valid for any.

    Returns
    -------
    Row
    """
    from scipy import sparse
    from scipy.optimize import linprog

    grid = _grid(minorant.batch_s.size)
    ceiling = _ceiling(minorant, pool_weight, workload.pool_tokens, workload.fixed_tokens, grid)
    share = np.clip(workload.share, 0.0, 1.0)
    left = np.clip(np.searchsorted(grid, share, side="right") - 1, 0, grid.size - 2)
    part = (share - grid[left]) / (grid[left + 1] - grid[left])
    weight = np.bincount(left, workload.decode_tokens * (1 - part), grid.size)
    weight += np.bincount(left + 1, workload.decode_tokens * part, grid.size)
    unit = float(ceiling.max())
    if not unit > 0 or not weight.sum() > 0:
        return Row(minorant, pool_weight, grid, _concave(grid, ceiling, ceiling))
    width = np.diff(grid)
    inner = np.arange(1, grid.size - 1)
    # concave: slopes fall
    before, after = 1.0 / width[inner - 1], 1.0 / width[inner]
    scale = np.minimum(width[inner - 1], width[inner])
    bend = sparse.csr_array(
        (
            np.concatenate((before * scale, -(before + after) * scale, after * scale)),
            (np.tile(inner - 1, 3), np.concatenate((inner - 1, inner, inner + 1))),
        ),
        shape=(inner.size, grid.size),
    )
    found = linprog(
        -weight / weight.sum(),
        A_ub=bend.toarray(),
        b_ub=np.zeros(inner.size),
        bounds=[(0.0, float(most)) for most in ceiling / unit],
        method="highs",
    )
    wanted = ceiling if found.x is None else found.x * unit
    return Row(minorant, pool_weight, grid, _concave(grid, wanted, ceiling))


def _concave(grid: FloatArray, wanted: FloatArray, ceiling: FloatArray) -> FloatArray:
    """Least concave function above ``wanted``, scaled down to lie below ``ceiling``.

    Whatever a solver returns, this is valid; at an exact solution it changes nothing.
    """
    hull: list[int] = []
    for k in range(grid.size):
        while len(hull) > 1:
            i, j = hull[-2], hull[-1]
            rise = (wanted[j] - wanted[i]) * (grid[k] - grid[i])
            if rise > (wanted[k] - wanted[i]) * (grid[j] - grid[i]):
                break
            hull.pop()
        hull.append(k)
    result = np.interp(grid, grid[hull], wanted[hull])
    positive = result > 0
    factor = float((ceiling[positive] / result[positive]).min(initial=1.0))
    return np.asarray(result * factor)
