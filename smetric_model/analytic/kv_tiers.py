r"""How long a KV tier keeps what was touched, and what it then serves (characteristic time).

LRU keeps what was touched within some time τ (Che, 2002; Fricker, Robert and Roberts, 2012).
Every part of a prompt lies in the store for ``min(gap, τ)`` until its next use, and what is never
used again lies there for a full τ, so that the store holds

.. math:: \lambda\,E\Big[\sum_i u_i \min(g_i, \tau) + d\,\tau\Big] \text{ tokens},

with ``u`` the tokens reused after a gap ``g`` and ``d`` the tokens of a request that are never
reused.  τ follows from the capacity.  In a stationary workload as many tokens die as are born,
so ``d`` is the request's new prompt tokens plus its output.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["ReuseProfile"]


@dataclass(frozen=True, eq=False)
class ReuseProfile:
    """Reuse of a workload by pieces; means are per request.

    Attributes
    ----------
    tokens, gap_s : ndarray of float, shape (pieces,)
        Tokens reused together, and the time since they were last touched [tokens], [s]; ``inf``
        where it is not known (another session's clock): only a store without limit serves them.
    request : ndarray of int, shape (pieces,)
        Request that reuses them; deeper pieces of a request were never touched later than
        shallower ones.
    requests : int
        Requests of the workload.
    new_tokens : float
        Mean tokens a request adds to a store: uncached prompt and output [tokens].
    """

    tokens: NDArray[np.float64]
    gap_s: NDArray[np.float64]
    request: NDArray[np.int64]
    requests: int
    new_tokens: float

    @cached_property
    def _sorted(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Finite gaps in order; cumulative tokens and token-seconds per request, from 0."""
        finite = np.flatnonzero(np.isfinite(self.gap_s))
        order = finite[np.argsort(self.gap_s[finite], kind="stable")]
        gap, tokens = self.gap_s[order], self.tokens[order] / self.requests
        zero = np.zeros(1)
        return (
            gap,
            np.concatenate((zero, np.cumsum(tokens))),
            np.concatenate((zero, np.cumsum(tokens * gap))),
        )

    @cached_property
    def _content_at_gaps(self) -> NDArray[np.float64]:
        """Token-seconds of a request in stores that keep for each of the gaps."""
        return np.asarray(self.resident_token_s(self._sorted[0]))

    @cached_property
    def reused_tokens(self) -> float:
        """Mean reusable tokens of a request."""
        return float(self.tokens.sum() / self.requests)

    def resident_token_s(self, retention_s: ArrayLike) -> Any:
        """Return the token-seconds a request occupies in a store that keeps for ``retention_s``.

        Parameters
        ----------
        retention_s : array_like of float
            Characteristic time τ [s].

        Returns
        -------
        float or ndarray
            Mean per request; times the arrival rate it is the store's content [tokens · s];
            ``inf`` where τ is.
        """
        gap, tokens, token_s = self._sorted
        tau = np.asarray(retention_s, dtype=float)
        kept = np.searchsorted(gap, tau, side="right")
        rest = self.reused_tokens - tokens[kept] + self.new_tokens
        # a store without limit grows without limit, unless nothing in it ever dies
        with np.errstate(invalid="ignore"):
            result = token_s[kept] + np.where(rest > 0, rest * tau, 0.0)
        return result if result.ndim else float(result)

    def retention_s(self, capacity_tokens: float, rate_rps: float) -> float:
        """Return the characteristic time of a store.

        Parameters
        ----------
        capacity_tokens : float
            What it holds [tokens]; 0 or less keeps nothing.
        rate_rps : float
            Arrival rate of the requests that use it [requests/s].

        Returns
        -------
        float
            τ [s]; ``inf`` without arrivals.
        """
        if capacity_tokens <= 0:
            return 0.0
        if rate_rps <= 0:
            return float("inf")
        target = capacity_tokens / rate_rps
        gap, tokens, _ = self._sorted
        # the content is piecewise linear in τ with kinks at the gaps
        index = int(np.searchsorted(self._content_at_gaps, target))
        start = float(gap[index - 1]) if index else 0.0
        content = float(self._content_at_gaps[index - 1]) if index else 0.0
        slope = self.new_tokens + self.reused_tokens - float(tokens[index])
        if slope <= 1e-12 * (self.new_tokens + self.reused_tokens):
            return float("inf")
        return start + (target - content) / slope

    def hit_ratio(self, retention_s: float) -> float:
        """Return the share of reusable tokens that a store keeping for ``retention_s`` serves."""
        if not self.tokens.size:
            return 0.0
        if retention_s == float("inf"):
            return 1.0
        gap, tokens, _ = self._sorted
        kept = float(tokens[np.searchsorted(gap, retention_s, side="right")])
        return min(kept / self.reused_tokens, 1.0)  # the two sums round differently

    def retention_for(self, ratio: float) -> float:
        """Return the shortest time a store must keep KV to serve a share of the reusable tokens.

        Parameters
        ----------
        ratio : float
            Share in (0, 1].

        Returns
        -------
        float
            τ [s]; 0 where nothing is reusable, ``inf`` where that share has no finite gap.
        """
        if not self.tokens.size:
            return 0.0
        gap, tokens, _ = self._sorted
        index = int(np.searchsorted(tokens[1:], ratio * self.reused_tokens * (1 - 1e-9)))
        return float(gap[index]) if index < gap.size else float("inf")

    def hit_tokens(self, retention_s: float) -> NDArray[np.float64]:
        """Return how many tokens of each request a store keeping for ``retention_s`` serves.

        Parameters
        ----------
        retention_s : float
            Characteristic time τ [s].

        Returns
        -------
        ndarray of float, shape (requests,)
            Hit of each request [tokens].
        """
        kept = self.gap_s <= retention_s
        return np.bincount(self.request[kept], self.tokens[kept], minlength=self.requests).astype(
            float
        )
