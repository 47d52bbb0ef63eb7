r"""What stalls the decodes of a loaded instance: TPOT, end-to-end times, and shares within SLO.

:mod:`smetric_model.analytic.loaded` says what stalls a decode and for which interval; here it is
worked out for the requests of a mix in the circumstances that they meet: batch and wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic import _loaded_kernels as kernels
from smetric_model.analytic._stall_kernels import within_slo
from smetric_model.analytic._step_kernels import step_time_s
from smetric_model.analytic.busy_periods import condensed
from smetric_model.analytic.prefill_wait import BIN_EDGES
from smetric_model.analytic.quantiles import spread, turns, unevenly, weighted_quantiles
from smetric_model.analytic.stall_laws import FEWEST_PLACES, NO_STALLS, Stalled, StallLaw

if TYPE_CHECKING:
    from smetric_model.analytic.loaded import LoadedInstance

__all__ = ["DecodeStalls"]

_Array = NDArray[np.float64]

_CONTEXTS = 9  # at which a decode step is worked out
_REQUESTS = 1024  # behind a quantile of the TPOT
_PARTS = 4  # of the requests meet each of the circumstances behind it, in turn
_FEW_ROWS = 64  # so few requests are all met in all circumstances
_E2E_REQUESTS = 512  # requests behind a quantile of the end-to-end time
_E2E_WAITS = 16  # waits told apart in it
_TURNS = 8  # a request meets every eighth of them, others in turn


class DecodeStalls:
    """Decodes of an instance and what stalls them.

    Parameters
    ----------
    loaded : LoadedInstance
        The instance at its rate.
    """

    def __init__(self, loaded: LoadedInstance):
        instance = loaded.instance
        self.instance, self.law, self.wait = instance, loaded.law, loaded.wait
        self.groups, self.prefill_s = loaded.groups, loaded.prefill_s
        self._work_s, self._is_free = loaded.work_s, loaded.is_free
        self._steps = np.maximum(instance.mix.output_tokens - 1.0, 0.0)
        self._decode_s = self._own_decode_s()
        beside_mean = max(instance.pool_tokens - instance.mean_resident_tokens, 1.0)
        left = np.maximum(instance.pool_tokens - loaded.context_tokens, 0.0) / beside_mean
        places = max(instance.max_batch - 1.0, 0.0) * left
        most = places * self._steps / max(instance.mean_output_tokens, 1.0)
        #: prefills that the other places of a full instance allow beside each request
        self._most = np.maximum(most, FEWEST_PLACES)
        self._log_most = np.log(self._most)

    def _own_decode_s(self) -> _Array:
        """Time of each request's own decode steps, by group: at its mean context [s]."""
        instance = self.instance
        batch = self.groups.batch[:, None]
        own = instance.mix.prompt_tokens + 0.5 * instance.mix.output_tokens
        others = (batch - 1.0) * instance.decode_context_tokens
        # linear in the context, but for a kink where launching the step is what takes longest
        first, span = own.min(), max(float(np.ptp(own)), 1e-9)
        some = first + span * np.linspace(0.0, 1.0, _CONTEXTS)
        steps = step_time_s(instance.model, 0, 0, batch, (others + some) / batch)
        place = (own - first) * ((_CONTEXTS - 1) / span)
        low = np.minimum(place.astype(np.int64), _CONTEXTS - 2)
        below = steps[:, low]
        return np.asarray((below + (place - low) * (steps[:, low + 1] - below)) * self._steps)

    @cached_property
    def _arriving(self) -> tuple[_Array, _Array, _Array]:
        """Prefill times that arrivals bring, and weights of them beside a decode and meanwhile.

        Sticky and free requests may arrive more often then, or less, than in all.
        """
        work, is_free, law = self._work_s, self._is_free, self.law
        kinds = np.array((law.beside_kinds, law.busy_kinds))
        if (kinds == 1.0).all() or is_free is None or is_free.all() or not is_free.any():
            values, weights = condensed(work, 20)
            return values, weights, weights
        share = float(is_free.mean())
        kinds = kinds * (1.0 - share, share)
        kinds /= kinds.sum(axis=1, keepdims=True)
        sticky, free = condensed(work[~is_free], 14), condensed(work[is_free], 14)
        beside, busy = (np.concatenate((s * sticky[1], f * free[1])) for s, f in kinds)
        return np.concatenate((sticky[0], free[0])), beside, busy

    @cached_property
    def _behind_ratio(self) -> float:
        """Work that comes in a second while a prefill runs ÷ beside a decode."""
        work, beside, busy = self._arriving
        coming = self.law.beside_rate_rps * float(work @ beside)
        return self.law.busy_rate_rps * float(work @ busy) / coming if coming > 0 else 1.0

    @cached_property
    def _cases(self) -> tuple[NDArray[np.int64], _Array]:
        """Circumstances told apart where TPOT depends on them: group, and the part of its waits.

        Of shape (cases,) and (2, cases); of those blocked all waits are one.
        """
        bins, whole = (BIN_EDGES[:-1], BIN_EDGES[1:]), ([0.0], [1.0])
        blocked = self.groups.blocked
        edges = np.concatenate([whole if alone else bins for alone in blocked], axis=1)
        return np.repeat(np.arange(blocked.size), np.where(blocked, 1, BIN_EDGES.size - 1)), edges

    @cached_property
    def _intervals_s(self) -> _Array:
        """Interval whose arrivals stall each request in each of the circumstances [s]."""
        groups, edges = self._cases
        blocked = self.groups.blocked[groups]
        bins = np.searchsorted(BIN_EDGES, edges[0])
        return np.asarray(
            kernels.stall_intervals(
                self.prefill_s,
                self._decode_s,
                groups,
                np.where(blocked, 0.0, self.wait.bin_wait_s[bins]),
                np.where(blocked, 1.0, self.wait.per_load),
                self.wait.last_step,
                self._behind_ratio,
            )
        )

    @cached_property
    def _log_intervals(self) -> _Array:
        return np.log(self._intervals_s)

    @cached_property
    def _stalls(self) -> StallLaw:
        """Law of stalls over all intervals that occur."""
        several = self._steps > 0
        intervals = self._intervals_s[:, several]
        work, beside, busy = self._arriving
        return StallLaw(
            work,
            beside,
            self.law.beside_rate_rps,
            float(intervals.min()),
            float(intervals.max()),
            self._most[several],
            (work, busy, self.law.busy_rate_rps),
        )

    def within_slo(self, ttft_limit_s: _Array, tpot_limit_s: float) -> _Array:
        """Return P(TTFT within its limit), P(TPOT within its), and P(both) of each request.

        Parameters
        ----------
        ttft_limit_s : ndarray of float, shape (n,)
            Limit of each request [s].
        tpot_limit_s : float
            Limit on the mean time per output token; ``inf`` for none [s].

        Returns
        -------
        ndarray, shape (3, n)
        """
        groups, edges = self._cases
        table = places = NO_STALLS
        limit, intervals = 0.0, np.zeros((groups.size, self._steps.size))
        steps = np.zeros(self._steps.size)
        if self._steps.any() and np.isfinite(tpot_limit_s):
            table, places = self._stalls.arrivals, self._stalls.places
            limit, intervals, steps = tpot_limit_s, self._log_intervals, self._steps
        return np.asarray(
            within_slo(
                self.prefill_s,
                self._decode_s,
                self.groups.blocked,
                self.groups.weight,
                groups,
                edges,
                intervals,
                self._log_most,
                steps,
                ttft_limit_s - self.instance.mix.before_prefill_s,
                limit,
                self.wait.law,
                self.wait.step_s,
                max(self.groups.kv_wait_s, 1e-12),
                self.wait.last_step,
                table,
                places,
            )
        )

    def tpot_quantiles_s(self, shares: Sequence[float]) -> list[float]:
        """Return quantiles of the mean time per output token, over requests with two or more [s].

        Parameters
        ----------
        shares : sequence of float
            Ascending.

        Returns
        -------
        list of float
        """
        several = np.flatnonzero(self._steps > 0)
        if not several.size:
            return [float("nan")] * len(shares)
        rows = spread(several, _REQUESTS)
        parts = _PARTS if rows.size > _FEW_ROWS else 1
        groups, edges = self._cases
        steps, own, weights, log_interval, log_most = kernels.tpot_cases(
            rows,
            turns(rows.size, parts),
            parts,
            self._decode_s,
            self._log_intervals,
            self._log_most,
            self._steps,
            groups,
            self.groups.weight[groups] * (edges[1] - edges[0]),
        )
        alone = np.zeros(own.size, dtype=bool)
        stalled = Stalled(self._stalls, steps, own, weights, log_interval, log_most, alone)
        each = own / steps
        # a request of two tokens may wait for several whole prefills between them
        top = 5 * float(self._work_s.max()) + 20 * float(each.max())
        top /= max(1.0 - self.wait.load, 0.05)
        return stalled.quantiles_s(shares, 0.999 * float(each.min()), top)

    def e2e_quantiles_s(
        self, shares: Sequence[float], after_first_token_s: _Array | None = None
    ) -> list[float]:
        """Return quantiles of the time from arrival to the last token [s].

        Parameters
        ----------
        shares : sequence of float
            Ascending.
        after_first_token_s : ndarray of float, optional
            As in :meth:`~smetric_model.analytic.loaded.LoadedInstance.e2e_quantiles_s`.

        Returns
        -------
        list of float
        """
        rows = unevenly(self._steps.size, _E2E_REQUESTS)
        if after_first_token_s is not None:
            rows = rows[::3]
        groups = self.groups.weight.size
        weights, times, intervals = kernels.e2e_cases(
            rows,
            turns(rows.size, _TURNS),
            _TURNS,
            self.instance.mix.before_prefill_s,
            self.prefill_s,
            self._decode_s,
            self.groups.blocked,
            self.groups.weight,
            *self._waits_s(),
            self.wait.per_load,
            self.wait.last_step,
            self._behind_ratio,
        )
        if after_first_token_s is not None:
            total = times[:, None] + after_first_token_s
            return weighted_quantiles(total, np.broadcast_to(weights[:, None], total.shape), shares)
        met = times.size // (groups * rows.size)
        decode = np.repeat(self._decode_s[:, None, rows], met, axis=1).ravel()
        own = times + decode
        alone = np.tile(self._steps[rows] <= 0, groups * met)  # nobody can stall it
        if alone.all():
            return weighted_quantiles(own, weights, shares)
        log_most = np.tile(self._log_most[rows], groups * met)
        stalled = Stalled(self._stalls, 1.0, own, weights, np.log(intervals), log_most, alone)
        top = float(own.max()) + 20 * float(self._work_s.max())
        top += float(decode.max()) * self.wait.load / max(1.0 - self.wait.load, 0.05) * 3
        return stalled.quantiles_s(shares, 0.999 * float(own.min()), top)

    def _waits_s(self) -> tuple[_Array, _Array]:
        """Equally likely waits for prefill, and for the longer of prefill and KV [s]."""
        waits_s = self.wait.waits_s
        waits = waits_s.reshape(_E2E_WAITS, -1).mean(axis=1)
        if not self.groups.blocked[-1]:
            return waits, waits
        tau = max(self.groups.kv_wait_s, 1e-12)
        grid = np.geomspace(1e-3 * tau, 20 * tau + 2 * waits_s[-1], 256)
        law = self.wait.within(grid) * -np.expm1(-grid / tau)
        return waits, np.interp((np.arange(_E2E_WAITS) + 0.5) / _E2E_WAITS, law, grid)
