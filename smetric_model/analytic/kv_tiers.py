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
        Tokens reused together, and the time since they were last touched [tokens], [s].
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
        """Gaps in order; cumulative tokens and token-seconds per request up to each."""
        order = np.argsort(self.gap_s, kind="stable")
        gap, tokens = self.gap_s[order], self.tokens[order] / self.requests
        known = np.where(np.isfinite(gap), gap, 0.0)  # no finite time reaches the others
        return gap, np.cumsum(tokens), np.cumsum(tokens * known)

    @property
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
        below = np.where(kept > 0, np.concatenate(([0.0], token_s))[kept], 0.0)
        above = (tokens[-1] if tokens.size else 0.0) - np.concatenate(([0.0], tokens))[kept]
        finite = np.where(np.isfinite(tau), tau, 0.0)
        result = np.where(np.isinf(tau), np.inf, below + (above + self.new_tokens) * finite)
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
        gap, _, _ = self._sorted
        # the content is piecewise linear in τ with kinks at the gaps
        at_kinks = np.asarray(self.resident_token_s(gap)) if gap.size else np.empty(0)
        index = int(np.searchsorted(at_kinks, target))
        start = float(gap[index - 1]) if index else 0.0
        content = float(at_kinks[index - 1]) if index else 0.0
        _, tokens, _ = self._sorted
        total = float(tokens[-1]) if tokens.size else 0.0
        slope = self.new_tokens + total - (float(tokens[index - 1]) if index else 0.0)
        if slope <= 0:
            return float("inf")
        return start + (target - content) / slope

    def hit_ratio(self, retention_s: float) -> float:
        """Return the share of reusable tokens that a store keeping for ``retention_s`` serves."""
        gap, tokens, _ = self._sorted
        if not gap.size:
            return 0.0
        kept = int(np.searchsorted(gap, retention_s, side="right"))
        return float(tokens[kept - 1] / tokens[-1]) if kept else 0.0

    def retention_for(self, ratio: float) -> float:
        """Return the shortest time a store must keep KV to serve a share of the reusable tokens.

        Parameters
        ----------
        ratio : float
            Share in (0, 1].

        Returns
        -------
        float
            τ [s]; 0 where nothing is reusable.
        """
        gap, tokens, _ = self._sorted
        if not gap.size:
            return 0.0
        index = int(np.searchsorted(tokens, ratio * tokens[-1] * (1 - 1e-12)))
        return float(gap[min(index, gap.size - 1)])

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
