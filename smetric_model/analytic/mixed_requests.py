"""Kinds of request as the engines get them: a few that are equally likely stand for all.

A request stays and finds all of its context, stays and finds part of it, or lands elsewhere, each
with its own probability: three kinds for every request of the sample.  They are reduced to strata
of uncached tokens, and within each of outputs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic import _session_kernels

__all__ = ["Mixed", "Picked", "pick"]

FloatArray = NDArray[np.float64]

_PICKED = 512  # kinds of request behind the engine's laws
_STRATA = 64  # of uncached tokens among them
_GOLDEN = 0.6180339887498949  # its multiples fill [0, 1) evenly


class Mixed(NamedTuple):
    """Requests as the engines get them: equally likely kinds of request; arrays of one length.

    Attributes
    ----------
    prompt, output : ndarray
        Lengths [tokens].
    local, fetched, potential : ndarray
        Hit in the instance's own memory; fetched; what could have been fetched [tokens].
    fetch_s : ndarray
        Time of each fetch [s].
    is_free : ndarray of bool
        Whether it lands elsewhere than at a home.
    """

    prompt: FloatArray
    output: FloatArray
    local: FloatArray
    fetched: FloatArray
    potential: FloatArray
    fetch_s: FloatArray
    is_free: NDArray[np.bool_]


class Picked(NamedTuple):
    """Kinds of request that stand for all.

    Attributes
    ----------
    kinds : ndarray of int
        Which.
    scale : ndarray
        What each computes on behalf of its stratum ÷ what it computes itself.
    """

    kinds: NDArray[np.intp]
    scale: FloatArray

    def with_mean(self, new: FloatArray, mean: float) -> Picked:
        """Return the same kinds, which now compute other amounts.

        Parameters
        ----------
        new : ndarray
            Uncached tokens of these kinds [tokens].
        mean : float
            Their mean over all kinds [tokens].
        """
        taken = float((new * self.scale).mean())
        return self._replace(scale=self.scale * (mean / taken)) if taken > 0 else self


def pick(new: FloatArray, output_rank: NDArray[np.int64], weight: FloatArray) -> Picked:
    """Pick kinds of request that stand for all, and by how much to scale what they compute.

    Equal strata of uncached tokens, and within each of the outputs; the scale restores the mean
    of each stratum, and of all.

    Parameters
    ----------
    new : ndarray, shape (n,)
        Uncached tokens of each kind [tokens].
    output_rank : ndarray of int, shape (n,)
        Rank of its output, equal ones alike.
    weight : ndarray, shape (n,)
        Probability; need not sum to 1.

    Returns
    -------
    Picked
    """
    order = _session_kernels.order_of(np.maximum(new, 0.0))
    order = order[weight[order] > 0]
    upto = np.cumsum(weight[order])
    stratum = np.minimum((upto * (_STRATA / upto[-1]) - 1e-9).astype(np.int64), _STRATA - 1)
    share = weight[order]
    sums = np.bincount(stratum, share, minlength=_STRATA)
    means = np.bincount(stratum, share * new[order], minlength=_STRATA) / np.maximum(sums, 1e-300)
    ranks = int(output_rank.max()) + 1
    inner = _session_kernels.sorted_within(output_rank[order], stratum, ranks, _STRATA)
    upto = np.cumsum(share[inner])
    # not the middles: kinds of one request lie side by side and weigh 1 together, so that equal
    # steps would always meet the same kind
    steps = np.arange(_PICKED)
    at = np.searchsorted(upto, (steps + (steps * _GOLDEN) % 1.0) * (upto[-1] / _PICKED))
    at = inner[np.minimum(at, inner.size - 1)]
    kinds, group = order[at], stratum[at]
    counts = np.bincount(group, minlength=_STRATA)
    taken = np.bincount(group, new[kinds], minlength=_STRATA) / np.maximum(counts, 1)
    scale = np.where(taken > 0, means / np.maximum(taken, 1e-300), 1.0)
    # (the last kind of a stratum may reach into the next, so that not all are met alike often)
    return Picked(kinds, scale[group]).with_mean(
        new[kinds], float(new[order] @ share) / float(upto[-1])
    )
