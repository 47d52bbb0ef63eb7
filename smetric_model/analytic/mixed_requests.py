"""Kinds of request as the engines get them: a few that are equally likely stand for all.

A request stays and finds all of its context, stays and finds part of it, or lands elsewhere, each
with its own probability: three kinds for every request of the sample.  They are reduced to strata
of uncached tokens, and within each of outputs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic import _mix_kernels as kernels

__all__ = ["Mixed", "Picked", "pick"]

FloatArray = NDArray[np.float64]

_PICKED = 512  # kinds of request behind the engine's laws
_STRATA = 64  # of uncached tokens among them
_GOLDEN = 0.6180339887498949  # its multiples fill [0, 1) evenly
_STEPS = np.arange(_PICKED)
#: not the middles: kinds of one request lie side by side and weigh 1 together, so that equal steps
#: would always meet the same kind
_TARGETS = (_STEPS + (_STEPS * _GOLDEN) % 1.0) / _PICKED


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

    kinds: NDArray[np.int64]
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
        taken = float(new @ self.scale)
        if not taken > 0:
            return self
        return Picked(self.kinds, self.scale * (mean * new.size / taken))


def pick(
    new: FloatArray,
    output_rank: NDArray[np.int64],
    weight: FloatArray,
    by_output: NDArray[np.int64] | None = None,
) -> Picked:
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
    by_output : ndarray of int, shape (n,), optional
        Order of the kinds by ``output_rank``, equal ones by place; worked out if not given.

    Returns
    -------
    Picked
    """
    if by_output is None:
        by_output = np.argsort(output_rank, kind="stable")
    kinds, scale = np.empty(_PICKED, np.int64), np.empty(_PICKED)
    given = (new, by_output, output_rank, weight, _STRATA, _TARGETS)
    mean = kernels.pick(*given, kinds, scale)
    # (the last kind of a stratum may reach into the next, so that not all are met alike often)
    return Picked(kinds, scale).with_mean(new[kinds], mean)
