r"""Latency laws of one colocated instance at one request rate: TTFT, TPOT, shares within SLO.

**Wait for prefill.**  Prefills are served first come, first served and before decode, so that the
marginal work ahead follows M/G/1 with the mix's own law of ``w``, heavy tails included.  It is
worked off in steps that carry the decodes along, which stretches it by
``1 + T_d / t_chunk`` (``t_chunk``: marginal time of a full token budget).  Two effects of steps
come on top.  With ``ρ = λ E[w]`` and prompts short against the budget, all who arrive during a
step run in the next one and leave together at its end: the cycle ``C`` obeys
``C' = T_d + Σ_{arrivals in C} w``, hence

.. math::

   \frac{E[C^2]}{2 E[C]} = \frac{T_d}{2 (1 - ρ)} + \frac{λ E[w^2]}{2 (1 - ρ^2)}, \qquad
   E[\mathrm{TTFT}] = T_d + w + (1 + 2ρ) \frac{E[C^2]}{2 E[C]}.

That is the M/G/1 wait ``W`` times ``(1 + 2ρ)/(1 + ρ)`` plus ``(1 + 2ρ) T_d / (2 (1 - ρ))`` for the
step under way.  The surplus ``e = ρ W/(1 + ρ)`` is the work of later arrivals that share the last
step; it cannot exceed what is left of the budget, half of it on average, and for a prompt of more
than one chunk later arrivals are those during all chunks but the last.

**Wait for KV space.**  An arrival that finds ``l`` present is blocked with P(N <= l), N being the
number of contexts that fit.  Its wait is exponential with the mean of the number ahead over the
completion rate, times ``(1 + cv^2)/2`` for the variability of a request's engine time (as for
M/G/c: Lee and Longton, 1959).  While it waits so does the prefill queue: the longer of the two
counts, not the sum.

**Stalls.**  A decoding request waits for every prefill that enters a step beside it: those that
arrived while it waited for its own first token (less the surplus ``e``, which is over by then),
those that arrive during its own steps, and those that arrive during either of these prefills.
With own steps of ``y`` seconds in all that is a compound Poisson number of *busy periods* of the
prefill queue, at rate λ over ``W + own prefill + y``.  A full instance stalls it less: a prefill
needs a free place, and each of the other ``N - 1`` places is refilled once per mean output, so
that a request of O tokens meets no more than about ``(N - 1) O / E[O]`` prefills.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic import _loaded_kernels as kernels
from smetric_model.analytic import _quantile_kernels
from smetric_model.analytic._stall_kernels import within_slo
from smetric_model.analytic._step_kernels import step_time_s
from smetric_model.analytic.arrivals import POISSON, Arrivals
from smetric_model.analytic.busy_periods import condensed
from smetric_model.analytic.prefill_wait import BIN_EDGES, PrefillWait
from smetric_model.analytic.quantiles import spread, turns, unevenly, weighted_quantiles
from smetric_model.analytic.stall_laws import FEWEST_PLACES, NO_STALLS, Stalled, StallLaw

if TYPE_CHECKING:
    from smetric_model.analytic.batching import ColocatedInstance

__all__ = ["BatchLaw", "LoadedInstance", "SloProbability"]

_Array = NDArray[np.float64]

_GROUPS = 4  # batch sizes told apart
_RARE = 1e-7  # so few arrivals that are blocked are left out
_CONTEXTS = 9  # at which a decode step is worked out
_REQUESTS = 1024  # behind a quantile
#: waits told apart in the time to the first step: usual quantiles lie amid one, not between two
_QUEUE_EDGES = np.array(
    [0, 10, 20, 30, 40, 46, 54, 60, 70, 80, 85, 88.5, 91.5, 94, 96, 97.5, 98.5, 99.5, 100]
)
_QUEUE_EDGES /= 100
_QUEUE_PARTS = 4  # times before the queue, and parts of a step or of a wait for KV, told apart
_E2E_WAITS = 16  # waits told apart in the end-to-end time
_E2E_REQUESTS = 512  # requests behind its quantiles
_PARTS = 4  # of the requests meet each of the circumstances behind the TPOT, in turn
_FEW_ROWS = 64  # so few requests are all met in all circumstances
_TURNS = 8  # a request meets every eighth of the circumstances behind a quantile, others in turn


@dataclass(frozen=True)
class SloProbability:
    """How likely each request meets its SLOs at one rate; arrays of shape (n,).

    Attributes
    ----------
    ttft, tpot, both : ndarray of float
        Probabilities.
    """

    ttft: _Array
    tpot: _Array
    both: _Array


class BatchLaw(NamedTuple):
    """Stationary law of an instance's batch.

    Attributes
    ----------
    present : ndarray, shape (b,)
        P(l decoding or waiting for KV), l = 0 … b - 1.
    full : float
        P(all b places taken): with ``present`` it sums to 1.
    tokens : ndarray, shape (b,)
        Share of the output tokens made with l present; index as ``present``.
    tokens_full : float
        Share made with all places taken.
    mean_decoding, mean_running : float
        Mean sequences that decode; prefills included.
    prefill_wait_s : float
        M/G/1 wait of the marginal prefill times [s].
    seen : ndarray, shape (b,)
        ``present`` as an arrival finds it.
    seen_full : float
        ``full`` as an arrival finds it.
    busy_rate_rps, full_rate_rps, beside_rate_rps : float
        Arrival rate while prefills run, while all places are taken, and while a request decodes;
        all equal for Poisson arrivals [requests/s].
    idle : float
        P(the engine has nothing to do).
    beside_kinds, busy_kinds : tuple of float
        Share of sticky, and of free, requests among the arrivals beside a decode, and while
        prefills run, each ÷ their share of all arrivals; 1 where they are not told apart.
    arrival_scale : float
        Factor by which arrival rates by load were scaled so that their mean is the rate.
    """

    present: _Array
    full: float
    tokens: _Array
    tokens_full: float
    mean_decoding: float
    mean_running: float
    prefill_wait_s: float
    seen: _Array
    seen_full: float
    busy_rate_rps: float
    full_rate_rps: float
    beside_rate_rps: float
    idle: float
    beside_kinds: tuple[float, float] = (1.0, 1.0)
    busy_kinds: tuple[float, float] = (1.0, 1.0)
    arrival_scale: float = 1.0


class LoadedInstance:
    """A :class:`~smetric_model.analytic.batching.ColocatedInstance` at one rate.

    Parameters
    ----------
    instance : ColocatedInstance
        The instance.
    rate_rps, ttft_limit_s, tpot_limit_s, arrivals
        As in :meth:`~smetric_model.analytic.batching.ColocatedInstance.at_rate`.

    Attributes
    ----------
    law : BatchLaw
        Stationary law of the batch.
    mean_batch : float
        Mean number that run.
    wait : PrefillWait
        Wait for prefill.
    kv_wait_s : float
        Mean wait for KV space of those that wait for it [s].
    """

    def __init__(
        self,
        instance: ColocatedInstance,
        rate_rps: float,
        ttft_limit_s: _Array,
        tpot_limit_s: float,
        arrivals: Arrivals = POISSON,
    ):
        self.instance = instance
        self.rate_rps = rate_rps
        self.ttft_limit_s = ttft_limit_s
        self.tpot_limit_s = tpot_limit_s
        mix = instance.mix
        self.law = instance.batch_law(rate_rps, arrivals)
        self.mean_batch = self.law.mean_running
        self._is_free = arrivals.is_free
        self._work_s = instance.prefill_s(max(self.mean_batch - 1.0, 0.0))
        new = mix.prompt_tokens - mix.hit_tokens
        chunk = max(instance.token_budget - self.mean_batch, 1.0)
        self.wait = PrefillWait(
            self._work_s,
            self.law.busy_rate_rps,
            float(self._work_s.sum() / new.sum()) * chunk,
            self._step_s(max(self.mean_batch, 1.0)) * (1.0 - float(self.law.seen[0])),
            instance.model.wait_steps,
        )
        #: arrivals that will run in about the same batch; those blocked last
        self._weights, self._batches, self._blocked, self.kv_wait_s = self._groups()
        #: time of the steps that carry each request's own prefill, by group [s]
        self._prefill_s = np.empty((self._weights.size, new.size))
        for group, batch in enumerate(self._batches):
            steps = np.ceil(new / max(instance.token_budget - batch + 1.0, 1.0))
            steps *= self._step_s(batch - 1.0)
            np.add(instance.prefill_s(batch - 1.0), steps, out=self._prefill_s[group])

    # --- states -----------------------------------------------------------------------------

    def _groups(self) -> tuple[_Array, _Array, NDArray[np.bool_], float]:
        """Weights and batches of the groups, which are blocked, and the mean wait for KV [s]."""
        instance, law = self.instance, self.law
        weights, batches, wait = kernels.groups(
            law.seen,
            law.tokens,
            instance.batches,
            instance.fits_ratio,
            instance.completion_rate_rps,
            law.seen_full,
            law.full_rate_rps,
            _GROUPS,
        )
        kept = weights > 0
        blocked = kept[-1] = weights[-1] > _RARE or not kept[:-1].any()
        if blocked:
            # what a full pool is short of is KV x time: the variability of a request's share of it
            full, mix = float(batches[-1]), instance.mix
            stay = full * float(self._work_s.mean()) + mix.output_tokens * self._step_s(full)
            held = stay * self._context_tokens
            wait *= 0.5 * (1.0 + float(held.var() / held.mean() ** 2))
        is_blocked = np.zeros(int(kept.sum()), dtype=bool)
        is_blocked[-1] = blocked
        return weights[kept], batches[kept], is_blocked, wait if blocked else 0.0

    @property
    def _context_tokens(self) -> _Array:
        """KV of each request in mean while it decodes [tokens]."""
        mix = self.instance.mix
        return np.asarray(
            mix.prompt_tokens + 0.5 * mix.output_tokens + self.instance.fixed_state_tokens
        )

    def _step_s(self, batch: float) -> float:
        instance = self.instance
        if batch <= 0:
            return 0.0
        return float(step_time_s(instance.model, 0, 0, batch, instance.decode_context_tokens))

    @cached_property
    def _steps(self) -> _Array:
        """Decode steps of each request."""
        return np.maximum(self.instance.mix.output_tokens - 1.0, 0.0)

    @cached_property
    def _decode_s(self) -> _Array:
        """Time of each request's own decode steps, by group: at its mean context [s]."""
        instance = self.instance
        own = instance.mix.prompt_tokens + 0.5 * instance.mix.output_tokens
        ends = np.array([own.min(), own.max()])
        others = instance.decode_context_tokens
        decode = np.empty(self._prefill_s.shape)
        for group, batch in enumerate(self._batches):
            # linear in the context, but for a kink where launching the step is what takes longest
            low, high = ((batch - 1.0) * others + ends) / batch
            some = np.linspace(low, high, _CONTEXTS)
            context = ((batch - 1.0) * others + own) / batch
            step = step_time_s(instance.model, 0, 0, float(batch), some)
            decode[group] = self._steps * np.interp(context, some, step)
        return decode

    @cached_property
    def _log_most(self) -> _Array:
        """Logarithm of the prefills that the other places of a full instance allow beside each."""
        instance = self.instance
        beside_mean = max(instance.pool_tokens - instance.mean_resident_tokens, 1.0)
        left = np.maximum(instance.pool_tokens - self._context_tokens, 0.0) / beside_mean
        places = max(instance.max_batch - 1.0, 0.0) * left
        most = places * self._steps / max(instance.mean_output_tokens, 1.0)
        return np.log(np.maximum(most, FEWEST_PLACES))

    @property
    def stretched_prefill_s(self) -> float:
        """Mean time that the engine is busy with a request's prefill, decodes beside it [s]."""
        return self.wait.stretched_prefill_s

    @property
    def prefill_load(self) -> float:
        """Share of time that arrivals at the busy rate would keep the engine in prefill."""
        return self.wait.load

    # --- wait and TTFT ----------------------------------------------------------------------

    def mean_wait_s(self) -> float:
        """Return the mean wait for KV space, prefill work ahead and the step under way [s]."""
        return self._means[1]

    def mean_ttft_s(self) -> float:
        """Return the mean time to first token [s]."""
        return float(self.instance.mix.before_prefill_s.mean()) + sum(self._means)

    @cached_property
    def _means(self) -> tuple[float, float]:
        """Mean time of a request's own prefill and of its wait [s]."""
        wait, longer = self.wait, 0.0
        if self._blocked[-1]:
            tau = max(self.kv_wait_s, 1e-12)
            longer = tau * float(np.exp(-wait.waits_s / tau).mean())
        own, beyond = kernels.mean_beyond(
            self._prefill_s,
            self._blocked,
            self._weights,
            wait.bin_wait_s,
            BIN_EDGES,
            longer,
            wait.last_step,
        )
        if wait.load >= 1:
            return own, float("inf")
        return own, wait.mean_s * float(self._weights.sum()) + beyond

    def queue_s(self, before_s: _Array, shares: Sequence[float]) -> list[float]:
        """Return mean and quantiles of the time to the first step that works on a request [s].

        What lies before the engine's queue, the prefill work ahead of it, and what is left of a
        decode step where nothing is prefilled but others decode; of those blocked the wait for KV
        if that is longer.

        Parameters
        ----------
        before_s : ndarray of float, shape (m,)
            Equally likely times before the queue [s].
        shares : sequence of float
            Such as ``(0.5, 0.9)``.

        Returns
        -------
        list of float
            The mean, then the quantiles.
        """
        waits_s = self.wait.waits_s
        cuts = (_QUEUE_EDGES * waits_s.size).round().astype(int)
        waits = (np.add.reduceat(waits_s, cuts[:-1]) / np.diff(cuts))[None, :, None]
        part = (np.arange(_QUEUE_PARTS) + 0.5) / _QUEUE_PARTS
        before = np.quantile(before_s, part)[:, None, None]
        # an arrival finds an idle engine, one that decodes, or one that prefills
        step = self._step_s(max(self.mean_batch, 1.0))
        left = np.where(part > float(self.law.seen[0]), step * part[::-1], 0.0)
        free = waits + np.where(waits > 0, 0.5 * step, left)
        blocked = float(self._weights[self._blocked].sum())
        laws = [(float(self._weights.sum()) - blocked, free)]
        if blocked:
            laws.append((blocked, np.maximum(waits, -self.kv_wait_s * np.log1p(-part))))
        values = np.array([before + law for _, law in laws])
        each = np.array([weight for weight, _ in laws])[:, None, None, None]
        weights = np.broadcast_to(each * np.diff(_QUEUE_EDGES)[:, None], values.shape)
        mean = float((values * weights).sum() / weights.sum())
        return [mean, *weighted_quantiles(values, weights, shares)]

    def ttft_quantiles_s(self, shares: Sequence[float]) -> list[float]:
        """Return quantiles of the TTFT over requests and waits [s].

        Parameters
        ----------
        shares : sequence of float
            Such as ``(0.5, 0.9)``.

        Returns
        -------
        list of float
        """
        wait, before = self.wait, self.instance.mix.before_prefill_s
        step = wait.last_step
        top = float(self._prefill_s.max()) + float(before.max()) + wait.horizon_s
        top += 25 * self.kv_wait_s + step.under_way_s + step.most_s
        rows = spread(np.arange(before.size), _REQUESTS)
        own = self._prefill_s[:, rows]
        found = _quantile_kernels.ttft_quantiles(
            np.asarray(shares),
            0.999 * (float(self._prefill_s.min()) + float(before.min())),
            top,
            own,
            before[rows],
            self._blocked,
            self._weights,
            wait.law,
            wait.step_s,
            max(self.kv_wait_s, 1e-12),
            step,
        )
        return [float(value) for value in found]

    # --- stalls -----------------------------------------------------------------------------

    def mean_decode_s(self) -> float:
        """Return the mean time from first to last token, stalls included [s]."""
        return self.law.mean_decoding / self.rate_rps

    def _met(self, kinds: tuple[float, float]) -> tuple[_Array, _Array]:
        """Prefill times of those who arrive at some moments, and the weight of each.

        ``kinds``: how often sticky and free requests do, against their share of all arrivals.
        """
        work, is_free = self._work_s, self._is_free
        if kinds == (1.0, 1.0) or is_free is None or is_free.all() or not is_free.any():
            return condensed(work, 20)
        parts = [condensed(work[which], 14) for which in (~is_free, is_free)]
        share = float(is_free.mean())
        weights = np.array([(1.0 - share) * kinds[0], share * kinds[1]])
        weights /= weights.sum()
        return (
            np.concatenate([values for values, _ in parts]),
            np.concatenate([w * each for w, (_, each) in zip(weights, parts, strict=True)]),
        )

    @cached_property
    def _met_beside(self) -> tuple[_Array, _Array]:
        return self._met(self.law.beside_kinds)

    @cached_property
    def _met_busy(self) -> tuple[_Array, _Array]:
        return self._met(self.law.busy_kinds)

    @cached_property
    def _behind_ratio(self) -> float:
        """Work that comes in a second while a prefill runs ÷ beside a decode."""
        (busy, busy_share), (beside, beside_share) = self._met_busy, self._met_beside
        coming = self.law.beside_rate_rps * float(beside @ beside_share)
        busy_load = self.law.busy_rate_rps * float(busy @ busy_share)
        return busy_load / coming if coming > 0 else 1.0

    @cached_property
    def _cases(self) -> tuple[NDArray[np.int64], _Array]:
        """Circumstances told apart where TPOT depends on them: group, and the part of its waits.

        Of shape (cases,) and (2, cases); of those blocked all waits are one.
        """
        bins = BIN_EDGES.size - 1
        each = np.where(self._blocked, 1, bins)
        edges = np.concatenate(
            [
                [[0.0], [1.0]] if alone else (BIN_EDGES[:-1], BIN_EDGES[1:])
                for alone in self._blocked
            ],
            axis=1,
        )
        return np.repeat(np.arange(each.size), each), edges

    @cached_property
    def _intervals_s(self) -> _Array:
        """Interval whose arrivals stall each request in each of the circumstances [s]."""
        groups, edges = self._cases
        blocked = self._blocked[groups]
        bins = np.searchsorted(BIN_EDGES, edges[0])
        return np.asarray(
            kernels.stall_intervals(
                self._prefill_s,
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
        return StallLaw(
            *self._met_beside,
            self.law.beside_rate_rps,
            float(intervals.min()),
            float(intervals.max()),
            np.exp(self._log_most[several]),
            (*self._met_busy, self.law.busy_rate_rps),
        )

    def slo_probability(self) -> SloProbability:
        """Return how likely each request meets its limits."""
        groups, edges = self._cases
        table = places = NO_STALLS
        limit, intervals = 0.0, np.zeros((groups.size, self._steps.size))
        steps = np.zeros(self._steps.size)
        if self._steps.any() and np.isfinite(self.tpot_limit_s):
            table, places = self._stalls.arrivals, self._stalls.places
            limit, intervals, steps = self.tpot_limit_s, self._log_intervals, self._steps
        probability = within_slo(
            self._prefill_s,
            self._decode_s,
            self._blocked,
            self._weights,
            groups,
            edges,
            intervals,
            self._log_most,
            steps,
            self.ttft_limit_s - self.instance.mix.before_prefill_s,
            limit,
            self.wait.law,
            self.wait.step_s,
            max(self.kv_wait_s, 1e-12),
            self.wait.last_step,
            table,
            places,
        )
        return SloProbability(*probability)

    def tpot_quantiles_s(self, shares: Sequence[float]) -> list[float]:
        """Return quantiles of the mean time per output token, over requests with two or more [s].

        Parameters
        ----------
        shares : sequence of float
            Such as ``(0.5, 0.9)``.

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
            self._weights[groups] * (edges[1] - edges[0]),
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
            Such as ``(0.5, 0.9)``.
        after_first_token_s : ndarray of float, optional
            Equally likely times from first to last token where another pool decodes, independent of
            those before [s]; by default requests decode here, beside the prefills of others.

        Returns
        -------
        list of float
        """
        rows = unevenly(self._steps.size, _E2E_REQUESTS)
        if after_first_token_s is not None:
            rows = rows[::3]
        weights, times, intervals = kernels.e2e_cases(
            rows,
            turns(rows.size, _TURNS),
            _TURNS,
            self.instance.mix.before_prefill_s,
            self._prefill_s,
            self._decode_s,
            self._blocked,
            self._weights,
            *self._e2e_waits_s,
            self.wait.per_load,
            self.wait.last_step,
            self._behind_ratio,
        )
        if after_first_token_s is not None:
            total = times[:, None] + after_first_token_s
            return weighted_quantiles(total, np.broadcast_to(weights[:, None], total.shape), shares)
        groups = self._weights.size
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

    @property
    def _e2e_waits_s(self) -> tuple[_Array, _Array]:
        """Equally likely waits for prefill, and for the longer of prefill and KV [s]."""
        waits_s = self.wait.waits_s
        waits = waits_s.reshape(_E2E_WAITS, -1).mean(axis=1)
        if not self._blocked[-1]:
            return waits, waits
        tau = max(self.kv_wait_s, 1e-12)
        grid = np.geomspace(1e-3 * tau, 20 * tau + 2 * waits_s[-1], 256)
        law = self.wait.within(grid) * -np.expm1(-grid / tau)
        return waits, np.interp((np.arange(_E2E_WAITS) + 0.5) / _E2E_WAITS, law, grid)
