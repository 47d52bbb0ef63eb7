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

import itertools
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic import _stall_kernels as kernels
from smetric_model.analytic._step_kernels import step_time_s
from smetric_model.analytic.arrivals import POISSON, Arrivals
from smetric_model.analytic.busy_periods import BusyPeriods, condensed
from smetric_model.analytic.latency import prefill_steps
from smetric_model.analytic.queueing import DiscreteWork

if TYPE_CHECKING:
    from smetric_model.analytic.batching import ColocatedInstance

__all__ = ["LoadedInstance", "SloProbability"]

_Array = NDArray[np.float64]

_GROUPS = 4  # batch sizes told apart
#: waits told apart where TPOT depends on them
_BIN_EDGES = np.array([0.0, 0.5, 0.8, 0.95, 1.0])
_WAIT_POINTS = 400  # (a multiple of _E2E_WAITS) equally likely waits behind those bins
_QUANTILE_REQUESTS = 1024  # requests behind a quantile
_QUEUE_WAITS = 50  # waits told apart in the time to the first step
_QUEUE_PARTS = 8  # times before the queue, and parts of a step or of a wait for KV, told apart
_E2E_WAITS = 16  # waits told apart in the end-to-end time
_E2E_REQUESTS = 512  # requests behind its quantiles
_PARTS = 4  # of the requests meet each of the circumstances behind the TPOT, in turn
_FEW_ROWS = 64  # so few requests are all met in all circumstances
_TURNS = 8  # a request meets every eighth of the circumstances behind a quantile, others in turn
_GOLDEN = 0.6180339887498949  # its multiples fill [0, 1) evenly
_WAIT_GRID = 1 << 12  # points behind the law of the wait
_LEVELS = 24  # intervals, or counts, at which the law of stalls is tabulated
_BISECTIONS = 14  # steps to a quantile
_QUANTILE_RATIO = 0.02  # width of the bracket in which a quantile is interpolated, in logarithms
_COARSER = 3.0  # a grid serves intervals that reach up to this much further than its first
_FEWEST = 1e-3  # places that count as none


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


class _Group(NamedTuple):
    """Arrivals that will run in about the same batch."""

    weight: float
    batch: float
    blocked: bool


class LoadedInstance:
    """A :class:`~smetric_model.analytic.batching.ColocatedInstance` at one rate.

    Parameters
    ----------
    instance : ColocatedInstance
        The instance.
    rate_rps, ttft_limit_s, tpot_limit_s, arrivals
        As in :meth:`~smetric_model.analytic.batching.ColocatedInstance.at_rate`.
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
        self._new = mix.prompt_tokens - mix.hit_tokens
        self._steps = np.maximum(mix.output_tokens - 1.0, 0.0)

        beside = max(self.mean_batch - 1.0, 0.0)
        work = instance.prefill_s(beside)
        self._work_s = work
        busy_rate = self.law.busy_rate_rps
        self.prefill_load = busy_rate * float(work.mean())
        decode_s = self._step_s(max(self.mean_batch, 1.0)) * (1.0 - float(self.law.seen[0]))
        chunk = max(instance.token_budget - self.mean_batch, 1.0)
        self._chunk_s = float(work.sum() / self._new.sum()) * chunk
        stretch = 1.0 + decode_s / self._chunk_s if self._chunk_s > 0 else 1.0
        if self.prefill_load > 0:
            stretch = min(stretch, max(0.999 / self.prefill_load, 1.0))
        load = min(self.prefill_load, 0.999)
        self._under_way_s = (1 + 2 * load) * decode_s / (2 * (1 - load))
        self._under_way_s += instance.model.wait_steps * decode_s
        self._shared_s = 0.5 * (self._chunk_s + decode_s)  # most that later arrivals add
        # of an arrival's work no more than the rest of the budget is shared
        fills = float(np.minimum(work, self._shared_s).mean() / max(work.mean(), 1e-12))
        self._share_slope = fills * load / (1 + load)
        self._share_load = fills * load

        sample, share = condensed(work, 128)
        ahead = sample * stretch
        mean, second = float(ahead @ share), float((ahead * ahead) @ share)
        decay = second / (2 * mean) / max(1 - busy_rate * mean, 1e-3) if mean > 0 else 1.0
        self._ahead = DiscreteWork(
            ahead, max(1.5 * float(ahead.max()), 25 * decay), share, _WAIT_GRID
        )
        self._waiting = self._ahead.waiting_cdf(busy_rate)
        # Prefill is busy for the share λ w of the time, and arrivals come at the busy rate
        # meanwhile: λ_b w of them find it busy.  Theirs is the wait of M/G/1 at that rate, in
        # which as many are delayed; nothing changes but what the busy rate is.
        self._met_beside = self._met(arrivals, self.law.beside_kinds)
        self._met_busy = self._met(arrivals, self.law.busy_kinds)
        # equally likely waits, and their means by bin
        self._waits_s = self._quantiles_of_wait((np.arange(_WAIT_POINTS) + 0.5) / _WAIT_POINTS)
        cuts = (_BIN_EDGES * _WAIT_POINTS).round().astype(int)
        self._bin_wait_s = [
            float(self._waits_s[low:high].mean()) for low, high in itertools.pairwise(cuts)
        ]
        self.groups, self.kv_wait_s = self._groups()
        own_batches = {group.batch for group in self.groups}
        self._own_prefill_s = {b: self._own_prefill_of(b) for b in own_batches}
        self._own_step_s = {b: self._decode_step_of(b) for b in own_batches}
        # prefills that the other places of a full instance allow beside each request
        context = mix.prompt_tokens + 0.5 * mix.output_tokens + instance.fixed_state_tokens
        beside_mean = max(instance.pool_tokens - instance.mean_resident_tokens, 1.0)
        left = np.maximum(instance.pool_tokens - context, 0.0) / beside_mean
        places = max(instance.max_batch - 1.0, 0.0) * left
        self._most_prefills = places * self._steps / max(instance.mean_output_tokens, 1.0)

    @property
    def stretched_prefill_s(self) -> float:
        """Mean time that the engine is busy with a request's prefill, decodes beside it [s]."""
        return self._ahead.mean_s

    def _met(self, arrivals: Arrivals, kinds: tuple[float, float]) -> tuple[_Array, _Array]:
        """Prefill times of those who arrive at some moments, and the weight of each.

        ``kinds``: how often sticky and free requests do, against their share of all arrivals.
        """
        work, is_free = self._work_s, arrivals.is_free
        if kinds == (1.0, 1.0) or is_free is None or is_free.all() or not is_free.any():
            return condensed(work, 24)
        parts = [condensed(work[which], 16) for which in (~is_free, is_free)]
        share = float(is_free.mean())
        weights = np.array([(1.0 - share) * kinds[0], share * kinds[1]])
        weights /= weights.sum()
        return (
            np.concatenate([values for values, _ in parts]),
            np.concatenate([w * each for w, (_, each) in zip(weights, parts, strict=True)]),
        )

    # --- states -----------------------------------------------------------------------------

    def _groups(self) -> tuple[list[_Group], float]:
        """Arrivals by the batch they will run in, and the mean wait of those blocked [s]."""
        instance, law = self.instance, self.law
        batches, free, rates = instance.batches, instance.fits_ratio, instance.completion_rate_rps
        taken = law.seen * (1.0 - free)
        blocked = float(taken.sum()) + law.seen_full
        groups = []
        cumulated = np.cumsum(law.tokens)
        if cumulated[-1] > 0 and blocked < 1:
            index = np.minimum(
                (cumulated / cumulated[-1] * _GROUPS - 1e-9).astype(int), _GROUPS - 1
            )
            # one that finds room starts below the largest batch; one that waited starts in it
            share = (1.0 - blocked) / cumulated[-1]
            for g in np.unique(index):
                members = index == g
                weight = float(law.tokens[members].sum())
                if weight > 0:
                    batch = float(law.tokens[members] @ batches[np.flatnonzero(members) - 1])
                    groups.append(_Group(weight * share, max(batch / weight, 1.0), False))
        if blocked <= 0:
            return groups, 0.0
        present = np.arange(batches.size, dtype=float)
        ahead = present - np.append(0.0, batches[:-1]) + 1.0
        wait = float(taken[1:] @ (ahead[1:] / rates[:-1]))
        ratio = min(law.full_rate_rps / rates[-1], 1.0 - 1e-6)
        beyond = batches.size - batches[-1] + 1.0 + ratio / (1.0 - ratio)
        wait += law.seen_full * beyond / rates[-1]
        groups.append(_Group(blocked, float(batches[-1]), True))
        # what a full pool is short of is KV x time: the variability of a request's share of it
        full = float(batches[-1])
        mix = instance.mix
        stay = full * float(self._work_s.mean()) + mix.output_tokens * self._step_s(full)
        held = stay * (mix.prompt_tokens + 0.5 * mix.output_tokens + instance.fixed_state_tokens)
        variability = float(held.var() / held.mean() ** 2)
        return groups, wait / blocked * 0.5 * (1.0 + variability)

    def _step_s(self, batch: float) -> float:
        instance = self.instance
        if batch <= 0:
            return 0.0
        return float(step_time_s(instance.model, 0, 0, batch, instance.decode_context_tokens))

    def _own_prefill_of(self, batch: float) -> _Array:
        """Time of the steps that carry each request's own prefill [s]."""
        steps = prefill_steps(self._new, self.instance.token_budget, batch - 1.0)
        return np.asarray(self.instance.prefill_s(batch - 1.0) + steps * self._step_s(batch - 1.0))

    def _decode_step_of(self, batch: float) -> _Array:
        """Decode step of a batch that holds each request, at its mean context [s]."""
        instance = self.instance
        own = instance.mix.prompt_tokens + 0.5 * instance.mix.output_tokens
        context = ((batch - 1.0) * instance.decode_context_tokens + own) / batch
        return np.asarray(step_time_s(instance.model, 0, 0, batch, context))

    # --- wait -------------------------------------------------------------------------------

    def _quantiles_of_wait(self, shares: _Array) -> _Array:
        grid = np.arange(self._waiting.size) * self._ahead.step_s
        return np.asarray(np.interp(shares, self._waiting, grid))

    def _shared_base_s(self, own: _Array) -> _Array:
        """Work of later arrivals in the last step that does not depend on the wait [s]."""
        return np.asarray(self._share_load * np.maximum(own - self._shared_s, 0.0))

    def _shared(self, own: _Array, wait_s: float) -> _Array:
        """Work of later arrivals that leaves with each request, after a wait [s]."""
        return np.minimum(self._shared_base_s(own) + self._share_slope * wait_s, self._shared_s)

    def _ttft_within(
        self, group: _Group, limit_s: _Array, rows: slice | NDArray[np.intp]
    ) -> _Array:
        """P(TTFT <= limit) of requests that run in a group."""
        own = self._own_prefill_s[group.batch][rows]
        spare = limit_s - self.instance.mix.before_prefill_s[rows] - own
        if group.blocked:
            kv = 1.0 - np.exp(-np.maximum(spare, 0.0) / max(self.kv_wait_s, 1e-12))
            return np.asarray(self._ahead.at(self._waiting, spare) * kv)
        return np.asarray(self._ahead.at(self._waiting, self._longest_wait(own, spare)))

    def _longest_wait(self, own: _Array, spare: _Array) -> _Array:
        """Wait at which wait and shared work fill the spare time; below 0 where none does."""
        spare = spare - self._under_way_s
        return np.maximum(
            (spare - self._shared_base_s(own)) / (1 + self._share_slope), spare - self._shared_s
        )

    def mean_wait_s(self) -> float:
        """Return the mean wait for KV space, prefill work ahead and the step under way [s]."""
        if self.prefill_load >= 1:
            return float("inf")
        total = 0.0
        busy = self.law.busy_rate_rps
        mean = busy * self._ahead.second_moment_s2 / (2 * max(1 - busy * self._ahead.mean_s, 1e-9))
        for group in self.groups:
            if group.blocked:
                tau = max(self.kv_wait_s, 1e-12)
                total += group.weight * (mean + tau * float(np.exp(-self._waits_s / tau).mean()))
            else:
                own = self._own_prefill_s[group.batch]
                shared = sum(
                    share * float(self._shared(own, wait).mean())
                    for share, wait in zip(np.diff(_BIN_EDGES), self._bin_wait_s, strict=True)
                )
                total += group.weight * (mean + self._under_way_s + shared)
        return total

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
        waits = self._waits_s.reshape(_QUEUE_WAITS, -1).mean(axis=1)
        part = (np.arange(_QUEUE_PARTS) + 0.5) / _QUEUE_PARTS
        before = np.quantile(before_s, part)[:, None, None]
        # an arrival finds an idle engine, one that decodes, or one that prefills
        step = self._step_s(max(self.mean_batch, 1.0))
        decodes = part > float(self.law.seen[0])
        left = np.where(decodes, step * part[::-1], 0.0)[None, None, :]
        left = np.where(waits[None, :, None] > 0, 0.5 * step, left)
        values, weights = [], []
        for group in self.groups:
            if group.blocked:
                room = -self.kv_wait_s * np.log1p(-part)[None, None, :]
                law = before + np.maximum(waits[None, :, None], room)
            else:
                law = before + waits[None, :, None] + left
            values.append(law.ravel())
            weights.append(np.full(law.size, group.weight / law.size))
        value, weight = np.concatenate(values), np.concatenate(weights)
        order = np.argsort(value)
        upto = np.cumsum(weight[order])
        at = np.minimum(np.searchsorted(upto, np.asarray(shares) * upto[-1]), value.size - 1)
        return [float(value @ weight) / float(upto[-1]), *map(float, value[order][at])]

    def mean_ttft_s(self) -> float:
        """Return the mean time to first token [s]."""
        own = sum(g.weight * float(self._own_prefill_s[g.batch].mean()) for g in self.groups)
        return float(self.instance.mix.before_prefill_s.mean()) + self.mean_wait_s() + own

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
        mix = self.instance.mix
        rows = _spread(np.arange(mix.prompt_tokens.size))
        shortest = min(float(own.min()) for own in self._own_prefill_s.values())
        longest = max(float(own.max()) for own in self._own_prefill_s.values())
        before = mix.before_prefill_s
        top = longest + float(before.max()) + self._ahead.horizon_s + 25 * self.kv_wait_s
        top += self._under_way_s + self._shared_s

        own = np.array([self._own_prefill_s[g.batch][rows] for g in self.groups])
        given = (
            own + before[rows],
            np.array([self._shared_base_s(row) for row in own]),
            np.array([g.blocked for g in self.groups]),
            np.array([g.weight for g in self.groups]),
            self._waiting,
            self._ahead.step_s,
            max(self.kv_wait_s, 1e-12),
            self._under_way_s,
            self._share_slope,
            self._shared_s,
        )

        def within(limit_s: float) -> float:
            return float(kernels.mean_ttft_within(limit_s, *given))

        return _invert(within, 0.999 * (shortest + float(before.min())), top, shares)

    # --- stalls -----------------------------------------------------------------------------

    def mean_decode_s(self) -> float:
        """Return the mean time from first to last token, stalls included [s]."""
        return self.law.mean_decoding / self.rate_rps

    def _behind_s(
        self, group: _Group, wait_s: float, rows: NDArray[np.intp] | NDArray[np.bool_]
    ) -> _Array:
        """Interval whose arrivals are still to be prefilled when each request starts to decode [s].

        As long as it would have to be beside a decode for as much work to come.
        """
        own = self._own_prefill_s[group.batch][rows]
        if group.blocked or self.prefill_load <= 0:
            return np.asarray((own + wait_s) * self._behind_ratio)
        shared = self._shared(own, wait_s)
        behind = np.maximum(own + wait_s + shared - shared / self.prefill_load, 0.0)
        return np.asarray(behind * self._behind_ratio)

    @cached_property
    def _behind_ratio(self) -> float:
        """Work that comes in a second while a prefill runs ÷ beside a decode."""
        (busy, busy_share), (beside, beside_share) = self._met_busy, self._met_beside
        coming = self.law.beside_rate_rps * float(beside @ beside_share)
        busy_load = self.law.busy_rate_rps * float(busy @ busy_share)
        return busy_load / coming if coming > 0 else 1.0

    @cached_property
    def _stalls(self) -> _StallLaw:
        """Law of stalls over all intervals that occur."""
        several = self._steps > 0
        shortest, longest = np.inf, 0.0
        for group in self.groups:
            own = (self._steps * self._own_step_s[group.batch])[several]
            for wait in (0.0,) if group.blocked else (self._bin_wait_s[0], self._bin_wait_s[-1]):
                interval = own + self._behind_s(group, wait, several)
                shortest = min(shortest, float(interval.min()))
                longest = max(longest, float(interval.max()))
        return _StallLaw(
            *self._met_beside,
            self.law.beside_rate_rps,
            shortest,
            longest,
            self._most_prefills[several],
            (*self._met_busy, self.law.busy_rate_rps),
        )

    def _tpot_within(
        self, limit_s: float, rows: NDArray[np.intp]
    ) -> list[tuple[_Group, list[_Array]]]:
        """P(TPOT <= limit) by group and bin of the wait, for requests of two tokens or more."""
        steps = self._steps[rows]
        most = self._most_prefills[rows]
        result = []
        for group in self.groups:
            own = steps * self._own_step_s[group.batch][rows]
            waits = [0.0] if group.blocked else self._bin_wait_s
            parts = [
                self._stalls.within(
                    own + self._behind_s(group, wait, rows), most, steps * limit_s - own
                )
                for wait in waits
            ]
            result.append((group, parts))
        return result

    def slo_probability(self) -> SloProbability:
        """Return how likely each request meets its limits."""
        mix = self.instance.mix
        n = mix.prompt_tokens.size
        ttft, tpot, both = np.zeros(n), np.zeros(n), np.zeros(n)
        several = np.flatnonzero(self._steps > 0)
        by_group: dict[_Group, list[_Array]] = {}
        if several.size and np.isfinite(self.tpot_limit_s):
            by_group = dict(self._tpot_within(self.tpot_limit_s, several))
        everyone = slice(None)
        for group in self.groups:
            in_ttft = self._ttft_within(group, self.ttft_limit_s, everyone)
            ttft += group.weight * in_ttft
            within = by_group.get(group, [np.ones(several.size)])
            edges = _BIN_EDGES if len(within) > 1 else np.array([0.0, 1.0])
            for low, high, part in zip(edges[:-1], edges[1:], within, strict=True):
                in_tpot = np.ones(n)
                in_tpot[several] = part
                # of this bin of waits, the part short enough for the TTFT
                short = np.clip(in_ttft - low, 0.0, high - low)
                tpot += group.weight * (high - low) * in_tpot
                both += group.weight * short * in_tpot
        return SloProbability(*(np.clip(p, 0.0, 1.0) for p in (ttft, tpot, both)))

    def _ttft_at_waits(self, rows: NDArray[np.intp]) -> tuple[_Array, _Array, _Array]:
        """TTFT at some of the equally likely waits: weight of a case, TTFT and later interval.

        The last two of shape (groups, waits, rows) [s], the first (groups, 1, 1); the interval is
        the one whose arrivals are still to be prefilled when a request has its first token.  Each
        request meets every ``_TURNS``-th of the waits, its neighbour the next ones.
        """
        waits = self._waits_s.reshape(_E2E_WAITS, -1).mean(axis=1)
        longer = waits
        if any(group.blocked for group in self.groups):
            tau = max(self.kv_wait_s, 1e-12)
            grid = np.geomspace(1e-3 * tau, 20 * tau + 2 * self._waits_s[-1], 256)
            whole = (np.arange(_E2E_WAITS) + 0.5) / _E2E_WAITS
            law = self._ahead.at(self._waiting, grid) * -np.expm1(-grid / tau)
            longer = np.interp(whole, law, grid)  # the longer of the waits for prefill and for KV
        before = self.instance.mix.before_prefill_s[rows]
        steps = np.arange(0, _E2E_WAITS, _TURNS)[:, None]
        turn = _turns(rows.size, _TURNS)
        times, intervals = [], []
        for place, group in enumerate(self.groups):
            own = self._own_prefill_s[group.batch][rows]
            met = steps + (turn + place) % _TURNS
            if group.blocked:
                times.append(before + own + longer[met])
                behind = self._behind_s(group, 0.0, rows)
                intervals.append(np.broadcast_to(behind, met.shape))
                continue
            wait = waits[met]
            shared = self._shared(own, wait)
            times.append(before + own + wait + (self._under_way_s + shared))
            intervals.append(self._behind_s(group, wait, rows))
        weights = np.array([group.weight for group in self.groups]) / (steps.size * rows.size)
        return weights[:, None, None], np.array(times), np.array(intervals)

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
        size = self._steps.size
        # not every fourth: requests may come in strata, which equal steps would always meet alike
        steps_to = np.arange(min(size, _E2E_REQUESTS))
        rows = ((steps_to + (steps_to * _GOLDEN) % 1.0) * (size / steps_to.size)).astype(int)
        if after_first_token_s is not None:
            weights, times, _ = self._ttft_at_waits(rows[::3])
            total = times[..., None] + after_first_token_s
            order = np.argsort(total, axis=None)
            upto = np.cumsum(np.broadcast_to(weights[..., None], total.shape).ravel()[order])
            at = np.searchsorted(upto, np.asarray(shares) * upto[-1])
            return [float(v) for v in total.ravel()[order][np.minimum(at, order.size - 1)]]
        weights, times, intervals = self._ttft_at_waits(rows)
        steps = self._steps[rows]
        decode = np.array([steps * self._own_step_s[group.batch][rows] for group in self.groups])
        decode = np.broadcast_to(decode[:, None, :], times.shape)
        apart = times + decode
        each = np.broadcast_to(weights, times.shape)
        one = steps <= 0  # over with the first token: nobody can stall it
        order = np.argsort(times[..., one], axis=None)
        lone = times[..., one].ravel()[order]
        alone = np.append(0.0, np.cumsum(each[..., one].ravel()[order]))
        stalled = None
        if not one.all():
            kept = np.broadcast_to(~one, times.shape)
            stalled = self._stalls.mean_within(
                np.ones(int(kept.sum())),
                apart[kept],
                (decode + intervals)[kept],
                each[kept],
                np.broadcast_to(self._most_prefills[rows], times.shape)[kept],
            )

        def within(limit_s: float) -> float:
            first = alone[np.searchsorted(lone, limit_s, side="right")]
            return float(first + (stalled(limit_s) if stalled is not None else 0.0))

        top = float(apart.max()) + 20 * float(self._work_s.max())
        top += float(decode.max()) * self.prefill_load / max(1.0 - self.prefill_load, 0.05) * 3
        return _invert(within, 0.999 * float(apart.min()), top, shares)

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
        rows = _spread(several)
        fastest = min(float(step[rows].min()) for step in self._own_step_s.values())
        slowest = max(float(step[rows].max()) for step in self._own_step_s.values())
        # a request of two tokens may wait for several whole prefills between them
        top = 5 * float(self._work_s.max()) + 20 * slowest

        turn = _turns(rows.size, _PARTS)
        taken: list[NDArray[np.intp]] = []
        own, intervals, weights = [], [], []
        for group in self.groups:
            steps_s = self._steps * self._own_step_s[group.batch]
            waits = [0.0] if group.blocked else self._bin_wait_s
            widths = [1.0] if group.blocked else np.diff(_BIN_EDGES)
            for width, wait in zip(widths, waits, strict=True):
                part = rows[turn == len(taken) % _PARTS] if rows.size > _FEW_ROWS else rows
                taken.append(part)
                own.append(steps_s[part])
                intervals.append(steps_s[part] + self._behind_s(group, wait, part))
                weights.append(np.full(part.size, group.weight * float(width) / part.size))
        everyone = np.concatenate(taken)
        within = self._stalls.mean_within(
            self._steps[everyone],
            np.concatenate(own),
            np.concatenate(intervals),
            np.concatenate(weights),
            self._most_prefills[everyone],
        )
        return _invert(within, 0.999 * fastest, top / max(1.0 - self.prefill_load, 0.05), shares)


def _turns(count: int, turns: int) -> NDArray[np.int64]:
    """In which of some turns each of so many is taken: evenly, but not in equal steps."""
    return ((np.arange(count) * _GOLDEN) % 1.0 * turns).astype(np.int64)


def _spread(rows: NDArray[np.intp]) -> NDArray[np.intp]:
    if rows.size <= _QUANTILE_REQUESTS:
        return rows
    return np.asarray(rows[np.linspace(0, rows.size - 1, _QUANTILE_REQUESTS).round().astype(int)])


def _invert(
    cdf: Callable[[float], float], low_s: float, high_s: float, shares: Sequence[float]
) -> list[float]:
    """Quantiles, on the logarithm; ``inf`` where the law ends below a share.

    Every evaluation narrows the brackets of all shares; interpolation in the bracket takes turns
    with bisection, so that steps of the law cost no more than bisection alone.
    """
    logs = [float(np.log(low_s)), float(np.log(high_s))]
    laws = [0.0, cdf(high_s)]
    found = []
    for share in shares:
        if share > laws[-1]:
            found.append(float("inf"))
            continue
        for turn in range(2 * _BISECTIONS):
            at = bisect_left(laws, share, 1)
            low, high = logs[at - 1], logs[at]
            if high - low < _QUANTILE_RATIO:
                break
            rise = laws[at] - laws[at - 1]
            part = (share - laws[at - 1]) / rise if turn % 2 == 0 and rise > 0 else 0.5
            middle = low + min(max(part, 0.05), 0.95) * (high - low)
            value = min(max(cdf(float(np.exp(middle))), laws[at - 1]), laws[at])
            logs.insert(at, middle)
            laws.insert(at, value)
        at = bisect_left(laws, share, 1)
        rise = laws[at] - laws[at - 1]
        part = (share - laws[at - 1]) / rise if rise > 0 else 1.0
        found.append(float(np.exp(logs[at - 1] + part * (logs[at] - logs[at - 1]))))
    return found


class _Table:
    """Laws on grids of their own at levels of a parameter, linear between levels' logarithms."""

    def __init__(self, levels: _Array, laws: list[_Array], steps: list[float]):
        self.log_first = float(np.log(levels[0]))
        span = float(np.log(levels[-1])) - self.log_first
        self.per_level = (levels.size - 1) / span if span > 1e-9 else 0.0
        self.last = levels.size - 1
        self.cdf = np.concatenate(laws)
        self.steps = np.array(steps)

    def place(self, parameter: _Array) -> tuple[NDArray[np.int64], _Array]:
        """Level below each parameter, and how far it is towards the next."""
        position = np.clip(
            (np.log(parameter) - self.log_first) * self.per_level, 0.0, float(self.last)
        )
        low = np.minimum(position.astype(np.int64), max(self.last - 1, 0))
        return low, position - low

    def at(self, parameter: _Array, x_s: _Array) -> _Array:
        return kernels.law_at(self.cdf, self.steps, *self.place(parameter), x_s)


def _alike(reach: _Array) -> list[slice]:
    """Parts of ascending numbers that one grid serves: the largest at most _COARSER the first."""
    parts = []
    start = 0
    while start < reach.size:
        end = int(np.searchsorted(reach, _COARSER * reach[start], side="right"))
        parts.append(slice(start, end))
        start = end
    return parts


class _StallLaw:
    """P(prefills beside a decode take no longer than its spare time)."""

    def __init__(
        self,
        work_s: _Array,
        weights: _Array,
        rate_rps: float,
        shortest_s: float,
        longest_s: float,
        most_prefills: _Array,
        meanwhile: tuple[_Array, _Array, float] | None = None,
    ):
        mean, second = float(work_s @ weights), float((work_s * work_s) @ weights)
        largest = float(work_s.max())
        growing, growing_weights, growth_rps = meanwhile or (work_s, weights, rate_rps)
        growth = growth_rps * float(growing @ growing_weights)
        load = min(growth, 0.995)
        scale = load / growth if load > 0 else 1.0
        beside = rate_rps * mean
        levels = np.geomspace(max(shortest_s, 1e-9), max(longest_s, 2e-9), _LEVELS)
        spread = np.sqrt(rate_rps * levels * second / (1 - load) ** 3)
        reach = np.maximum(levels * beside / (1 - load) + 8 * spread, 1.02 * largest)
        laws, steps = [], []
        for part in _alike(reach):
            top = float(reach[part].max())
            first = None if meanwhile is None else (work_s, weights, rate_rps)
            busy = BusyPeriods(growing * scale, growing_weights, growth_rps, top, first=first)
            laws.append(busy.delay_cdf(levels[part]))
            steps += [busy.step_s] * len(laws[-1])
        self.arrivals = _Table(levels, laws, steps)
        self.places: _Table | None = None
        most = np.maximum(most_prefills, _FEWEST)
        # a large pool never limits how many prefills come
        binding = rate_rps * longest_s / (1 - load) > most - 4 * np.sqrt(most)
        if binding.any():
            counts = np.geomspace(float(most.min()), float(most.max()) * (1 + 1e-9), _LEVELS)
            reach = np.maximum(counts * mean + 8 * np.sqrt(counts * second), 1.02 * largest)
            laws, steps = [], []
            for part in _alike(reach):
                law = DiscreteWork(work_s, float(reach[part].max()), weights, 1 << 11)
                laws.append(law.sum_cdf(counts[part]))
                steps += [law.step_s] * len(laws[-1])
            self.places = _Table(counts, laws, steps)

    def within(self, interval_s: _Array, most_prefills: _Array, spare_s: _Array) -> _Array:
        within = self.arrivals.at(interval_s, spare_s)
        if self.places is not None:
            most = np.maximum(most_prefills, _FEWEST)
            within = np.maximum(within, self.places.at(most, spare_s))
        return within

    def mean_within(
        self,
        steps: _Array,
        own_s: _Array,
        interval_s: _Array,
        weights: _Array,
        most_prefills: _Array,
    ) -> Callable[[float], float]:
        """Weighted mean of P(TPOT <= limit) as a function of the limit; arrays of one length."""
        laws = (self.arrivals.cdf, self.arrivals.steps, *self.arrivals.place(interval_s))
        most: tuple[_Array, _Array, NDArray[np.int64], _Array]
        if self.places is None:
            none = np.zeros(0)
            most = (np.zeros((0, 0)), none, np.zeros(0, np.int64), none)
        else:
            place = self.places.place(np.maximum(most_prefills, _FEWEST))
            most = (self.places.cdf, self.places.steps, *place)

        def within(limit_s: float) -> float:
            return float(kernels.mean_within(limit_s, steps, own_s, weights, *laws, *most))

        return within
