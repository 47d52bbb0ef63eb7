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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic import _stall_kernels as kernels
from smetric_model.analytic._step_kernels import step_time_s
from smetric_model.analytic.arrivals import POISSON, Arrivals
from smetric_model.analytic.busy_periods import condensed
from smetric_model.analytic.latency import prefill_steps
from smetric_model.analytic.quantiles import GOLDEN, inverted, spread, turns
from smetric_model.analytic.queueing import DiscreteWork
from smetric_model.analytic.stall_laws import FEWEST_PLACES, StallLaw

if TYPE_CHECKING:
    from smetric_model.analytic.batching import ColocatedInstance

__all__ = ["LoadedInstance", "SloProbability"]

_Array = NDArray[np.float64]
_Law = Callable[[float], float]
_Rows = slice | NDArray[np.intp] | NDArray[np.bool_]

_GROUPS = 4  # batch sizes told apart
_CONTEXTS = 9  # at which a decode step is worked out
#: waits told apart where TPOT depends on them
_BIN_EDGES = np.array([0.0, 0.5, 0.8, 0.95, 1.0])
_WAIT_POINTS = 400  # (a multiple of _E2E_WAITS) equally likely waits behind those bins
_QUANTILE_REQUESTS = 1024  # requests behind a quantile
#: waits told apart in the time to the first step
_QUEUE_EDGES = np.array(
    [
        0.0,
        0.1,
        0.2,
        0.3,
        0.4,
        0.5,
        0.6,
        0.7,
        0.8,
        0.85,
        0.9,
        0.925,
        0.95,
        0.97,
        0.98,
        0.99,
        0.995,
        1,
    ]
)
_QUEUE_PARTS = 4  # times before the queue, and parts of a step or of a wait for KV, told apart
_E2E_WAITS = 16  # waits told apart in the end-to-end time
_E2E_REQUESTS = 512  # requests behind its quantiles
_PARTS = 4  # of the requests meet each of the circumstances behind the TPOT, in turn
_FEW_ROWS = 64  # so few requests are all met in all circumstances
_ROUGH = 11  # every so many-th of the cases serves a first look
_TURNS = 8  # a request meets every eighth of the circumstances behind a quantile, others in turn
_WAIT_GRID = 1 << 12  # points behind the law of the wait


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
        self._is_free = arrivals.is_free
        # equally likely waits, and their means by bin
        self._waits_s = self._quantiles_of_wait((np.arange(_WAIT_POINTS) + 0.5) / _WAIT_POINTS)
        cuts = (_BIN_EDGES * _WAIT_POINTS).round().astype(int)
        self._bin_wait_s = [
            float(self._waits_s[low:high].mean()) for low, high in itertools.pairwise(cuts)
        ]
        self.groups, self.kv_wait_s = self._groups()
        self._weights = np.array([group.weight for group in self.groups])
        self._blocked = np.array([group.blocked for group in self.groups])
        #: time of the steps that carry each request's own prefill, by group [s]
        self._prefill_s = np.array([self._own_prefill_of(group.batch) for group in self.groups])

    @cached_property
    def _step_of_s(self) -> _Array:
        """Decode step of each group's batch that holds a request, by group and request [s]."""
        return np.array([self._decode_step_of(group.batch) for group in self.groups])

    @cached_property
    def _most_prefills(self) -> _Array:
        """Prefills that the other places of a full instance allow beside each request."""
        instance, mix = self.instance, self.instance.mix
        context = mix.prompt_tokens + 0.5 * mix.output_tokens + instance.fixed_state_tokens
        beside_mean = max(instance.pool_tokens - instance.mean_resident_tokens, 1.0)
        left = np.maximum(instance.pool_tokens - context, 0.0) / beside_mean
        places = max(instance.max_batch - 1.0, 0.0) * left
        return np.asarray(places * self._steps / max(instance.mean_output_tokens, 1.0))

    @property
    def stretched_prefill_s(self) -> float:
        """Mean time that the engine is busy with a request's prefill, decodes beside it [s]."""
        return self._ahead.mean_s

    @cached_property
    def _met_beside(self) -> tuple[_Array, _Array]:
        return self._met(self.law.beside_kinds)

    @cached_property
    def _met_busy(self) -> tuple[_Array, _Array]:
        return self._met(self.law.busy_kinds)

    def _met(self, kinds: tuple[float, float]) -> tuple[_Array, _Array]:
        """Prefill times of those who arrive at some moments, and the weight of each.

        ``kinds``: how often sticky and free requests do, against their share of all arrivals.
        """
        work, is_free = self._work_s, self._is_free
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
        # linear in the context, but for a kink where launching the step is what takes longest
        some = np.linspace(float(context.min()), float(context.max()), _CONTEXTS)
        return np.asarray(np.interp(context, some, step_time_s(instance.model, 0, 0, batch, some)))

    # --- wait -------------------------------------------------------------------------------

    def _quantiles_of_wait(self, shares: _Array) -> _Array:
        grid = np.arange(self._waiting.size) * self._ahead.step_s
        return np.asarray(np.interp(shares, self._waiting, grid))

    def _shared_base_s(self, own: _Array) -> _Array:
        """Work of later arrivals in the last step that does not depend on the wait [s]."""
        return np.asarray(self._share_load * np.maximum(own - self._shared_s, 0.0))

    def _shared(self, own: _Array, wait_s: float | _Array) -> _Array:
        """Work of later arrivals that leaves with each request, after a wait [s]."""
        return np.minimum(self._shared_base_s(own) + self._share_slope * wait_s, self._shared_s)

    def mean_wait_s(self) -> float:
        """Return the mean wait for KV space, prefill work ahead and the step under way [s]."""
        if self.prefill_load >= 1:
            return float("inf")
        busy = self.law.busy_rate_rps
        mean = busy * self._ahead.second_moment_s2 / (2 * max(1 - busy * self._ahead.mean_s, 1e-9))
        base = self._shared_base_s(self._prefill_s).ravel()
        shared = np.zeros(self._weights.size)
        for share, wait in zip(np.diff(_BIN_EDGES), self._bin_wait_s, strict=True):
            each = np.minimum(base + self._share_slope * wait, self._shared_s)
            shared += share * each.reshape(self._prefill_s.shape).mean(axis=1)
        beyond = self._under_way_s + shared
        if self._blocked.any():
            tau = max(self.kv_wait_s, 1e-12)
            beyond[self._blocked] = tau * float(np.exp(-self._waits_s / tau).mean())
        return float(self._weights @ (mean + beyond))

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
        cuts = (_QUEUE_EDGES * _WAIT_POINTS).round().astype(int)
        waits = np.add.reduceat(self._waits_s, cuts[:-1]) / np.diff(cuts)
        shares_of = np.diff(_QUEUE_EDGES)
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
            each = shares_of[None, :, None] * (group.weight / _QUEUE_PARTS**2)
            weights.append(np.broadcast_to(each, law.shape).ravel())
        value, weight = np.concatenate(values), np.concatenate(weights)
        order = np.argsort(value)
        upto = np.cumsum(weight[order])
        at = np.minimum(np.searchsorted(upto, np.asarray(shares) * upto[-1]), value.size - 1)
        return [float(value @ weight) / float(upto[-1]), *map(float, value[order][at])]

    def mean_ttft_s(self) -> float:
        """Return the mean time to first token [s]."""
        own = float(self._weights @ self._prefill_s.mean(axis=1))
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
        rows = spread(np.arange(mix.prompt_tokens.size), _QUANTILE_REQUESTS)
        shortest, longest = float(self._prefill_s.min()), float(self._prefill_s.max())
        before = mix.before_prefill_s
        top = longest + float(before.max()) + self._ahead.horizon_s + 25 * self.kv_wait_s
        top += self._under_way_s + self._shared_s

        own = self._prefill_s[:, rows]
        given = (
            own + before[rows],
            self._shared_base_s(own),
            self._blocked,
            self._weights,
            self._waiting,
            self._ahead.step_s,
            max(self.kv_wait_s, 1e-12),
            self._under_way_s,
            self._share_slope,
            self._shared_s,
        )

        def within(limit_s: float) -> float:
            return float(kernels.mean_ttft_within(limit_s, *given))

        return inverted(within, 0.999 * (shortest + float(before.min())), top, shares)

    # --- stalls -----------------------------------------------------------------------------

    def mean_decode_s(self) -> float:
        """Return the mean time from first to last token, stalls included [s]."""
        return self.law.mean_decoding / self.rate_rps

    def _behind_s(self, group: int, wait_s: float | _Array, rows: _Rows) -> _Array:
        """Interval whose arrivals are still to be prefilled when each request starts to decode [s].

        As long as it would have to be beside a decode for as much work to come.
        """
        own = self._prefill_s[group, rows]
        if self._blocked[group] or self.prefill_load <= 0:
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
    def _stalls(self) -> StallLaw:
        """Law of stalls over all intervals that occur."""
        several = self._steps > 0
        shortest, longest = np.inf, 0.0
        for group, blocked in enumerate(self._blocked):
            own = (self._steps * self._step_of_s[group])[several]
            for wait in (0.0,) if blocked else (self._bin_wait_s[0], self._bin_wait_s[-1]):
                interval = own + self._behind_s(group, wait, several)
                shortest = min(shortest, float(interval.min()))
                longest = max(longest, float(interval.max()))
        return StallLaw(
            *self._met_beside,
            self.law.beside_rate_rps,
            shortest,
            longest,
            self._most_prefills[several],
            (*self._met_busy, self.law.busy_rate_rps),
        )

    def slo_probability(self) -> SloProbability:
        """Return how likely each request meets its limits."""
        none = np.zeros(0)
        table = most_table = (np.zeros((0, 0)), none, 0.0, 0.0)
        limit = self.tpot_limit_s if self._steps.any() else float("inf")
        most, factor = self._steps, 1.0
        if np.isfinite(limit):
            table, factor = self._stalls.arrivals.laws, self._behind_ratio
            if self._stalls.places is not None:
                most_table = self._stalls.places.laws
                most = np.maximum(self._most_prefills, FEWEST_PLACES)
        load = self.prefill_load
        probability = kernels.within_slo(
            self._prefill_s,
            self._step_of_s,
            self._blocked,
            self._weights,
            self._steps,
            most,
            self.ttft_limit_s - self.instance.mix.before_prefill_s,
            limit,
            self._waiting,
            self._ahead.step_s,
            np.array(self._bin_wait_s),
            _BIN_EDGES,
            (
                max(self.kv_wait_s, 1e-12),
                self._under_way_s,
                self._share_load,
                self._share_slope,
                self._shared_s,
            ),
            (1.0 - 1.0 / load if load > 0 else 0.0, factor),
            table,
            most_table,
        )
        return SloProbability(*probability)

    def _ttft_at_waits(self, rows: NDArray[np.intp]) -> tuple[_Array, _Array, _Array]:
        """TTFT at some of the equally likely waits: weight of a case, TTFT and later interval.

        The last two of shape (groups, waits, rows) [s], the first (groups, 1, 1); the interval is
        the one whose arrivals are still to be prefilled when a request has its first token.  Each
        request meets every ``_TURNS``-th of the waits, its neighbour the next ones.
        """
        waits = self._waits_s.reshape(_E2E_WAITS, -1).mean(axis=1)
        longer = waits
        if self._blocked.any():
            tau = max(self.kv_wait_s, 1e-12)
            grid = np.geomspace(1e-3 * tau, 20 * tau + 2 * self._waits_s[-1], 256)
            whole = (np.arange(_E2E_WAITS) + 0.5) / _E2E_WAITS
            law = self._ahead.at(self._waiting, grid) * -np.expm1(-grid / tau)
            longer = np.interp(whole, law, grid)  # the longer of the waits for prefill and for KV
        before = self.instance.mix.before_prefill_s[rows]
        steps = np.arange(0, _E2E_WAITS, _TURNS)[:, None]
        turn = turns(rows.size, _TURNS)
        times, intervals = [], []
        for group, blocked in enumerate(self._blocked):
            own = self._prefill_s[group, rows]
            met = steps + (turn + group) % _TURNS
            if blocked:
                times.append(before + own + longer[met])
                behind = self._behind_s(group, 0.0, rows)
                intervals.append(np.broadcast_to(behind, met.shape))
                continue
            wait = waits[met]
            shared = self._shared(own, wait)
            times.append(before + own + wait + (self._under_way_s + shared))
            intervals.append(self._behind_s(group, wait, rows))
        weights = self._weights / (steps.size * rows.size)
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
        rows = ((steps_to + (steps_to * GOLDEN) % 1.0) * (size / steps_to.size)).astype(int)
        if after_first_token_s is not None:
            weights, times, _ = self._ttft_at_waits(rows[::3])
            total = times[..., None] + after_first_token_s
            order = np.argsort(total, axis=None)
            upto = np.cumsum(np.broadcast_to(weights[..., None], total.shape).ravel()[order])
            at = np.searchsorted(upto, np.asarray(shares) * upto[-1])
            return [float(v) for v in total.ravel()[order][np.minimum(at, order.size - 1)]]
        weights, times, intervals = self._ttft_at_waits(rows)
        steps = self._steps[rows]
        decode = steps * self._step_of_s[:, rows]
        decode = np.broadcast_to(decode[:, None, :], times.shape)
        apart = times + decode
        each = np.broadcast_to(weights, times.shape)
        one = steps <= 0  # over with the first token: nobody can stall it
        order = np.argsort(times[..., one], axis=None)
        lone = times[..., one].ravel()[order]
        alone = np.append(0.0, np.cumsum(each[..., one].ravel()[order]))
        stalled: _Law = _nothing
        rough: _Law = _nothing
        if not one.all():
            kept = np.broadcast_to(~one, times.shape)
            stalled, rough = self._mean_within(
                np.ones(int(kept.sum())),
                apart[kept],
                (decode + intervals)[kept],
                each[kept],
                np.broadcast_to(self._most_prefills[rows], times.shape)[kept],
            )

        def over(limit_s: float) -> float:
            return float(alone[np.searchsorted(lone, limit_s, side="right")])

        top = float(apart.max()) + 20 * float(self._work_s.max())
        top += float(decode.max()) * self.prefill_load / max(1.0 - self.prefill_load, 0.05) * 3
        return inverted(
            lambda limit_s: over(limit_s) + stalled(limit_s),
            0.999 * float(apart.min()),
            top,
            shares,
            lambda limit_s: over(limit_s) + rough(limit_s),
        )

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
        rows = spread(several, _QUANTILE_REQUESTS)
        fastest, slowest = (float(f(self._step_of_s[:, rows])) for f in (np.min, np.max))
        # a request of two tokens may wait for several whole prefills between them
        top = 5 * float(self._work_s.max()) + 20 * slowest

        turn = turns(rows.size, _PARTS)
        taken: list[NDArray[np.intp]] = []
        own, intervals, weights = [], [], []
        for group, blocked in enumerate(self._blocked):
            steps_s = self._steps * self._step_of_s[group]
            waits = [0.0] if blocked else self._bin_wait_s
            widths = [1.0] if blocked else np.diff(_BIN_EDGES)
            for width, wait in zip(widths, waits, strict=True):
                part = rows[turn == len(taken) % _PARTS] if rows.size > _FEW_ROWS else rows
                taken.append(part)
                own.append(steps_s[part])
                intervals.append(steps_s[part] + self._behind_s(group, wait, part))
                weights.append(np.full(part.size, self._weights[group] * float(width) / part.size))
        everyone = np.concatenate(taken)
        within, rough = self._mean_within(
            self._steps[everyone],
            np.concatenate(own),
            np.concatenate(intervals),
            np.concatenate(weights),
            self._most_prefills[everyone],
        )
        top /= max(1.0 - self.prefill_load, 0.05)
        return inverted(within, 0.999 * fastest, top, shares, rough)

    def _mean_within(
        self, steps: _Array, own_s: _Array, interval_s: _Array, weights: _Array, most: _Array
    ) -> tuple[_Law, _Law]:
        """As of :meth:`StallLaw.mean_within`, of all cases and, for a first look, of some."""
        all_cases = (steps, own_s, interval_s, weights, most)
        some = [np.ascontiguousarray(array[::_ROUGH]) for array in all_cases]
        some[3] = some[3] * (float(weights.sum()) / float(some[3].sum()))
        return self._stalls.mean_within(*all_cases), self._stalls.mean_within(*some)


def _nothing(limit_s: float) -> float:
    return 0.0
