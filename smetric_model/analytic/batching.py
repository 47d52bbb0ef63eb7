r"""One colocated instance under load: batch law, stability, ceilings, TTFT and TPOT within SLO.

A request needs ``w`` engine seconds for its uncached tokens and a share ``O T_d(l)/l`` of the
decode steps it sits in, so that an instance with ``l`` requests in service completes

.. math:: \mu(l) = \frac{1}{w(l - 1) + O\,T_d(l)/l}

requests per second in total (DESIGN §3).  ``w(d)`` is the *marginal* time of the prefill steps
beside ``d`` decodes: mixed steps read the weights once.  The number in service is capped by the
KV pool, ``b = pool / E[context of a running request]``; those above wait for KV space.

What is assumed: Poisson arrivals at each instance (a router that spreads better waits less),
independent requests, first-come-first-served prefill, and within one request a constant batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.signal import fftconvolve

from smetric_model.analytic.latency import prefill_steps, prefill_time_s
from smetric_model.analytic.queueing import (
    DiscreteWork,
    number_in_system,
    state_dependent_queue,
)
from smetric_model.analytic.step_time import StepModel, step_time_s
from smetric_model.errors import SpecError

__all__ = [
    "ColocatedInstance",
    "LoadedInstance",
    "RequestMix",
    "SloProbability",
    "tpot_ceiling_rps",
]

_MAX_LEVELS = 24  # lengths of output at which the law of stalls is evaluated
_QUANTILE_REQUESTS = 1024  # requests behind a quantile of TPOT
_MAX_STATES = 40  # batch sizes told apart
_NEGLIGIBLE = 1e-9  # states rarer than this are left out
_TAIL = 1e-5  # probability at which the geometric tail of waiting requests is cut


@dataclass(frozen=True)
class RequestMix:
    """What arrives at an instance; arrays of shape (n,), one entry per request.

    Attributes
    ----------
    prompt_tokens, output_tokens : ndarray of float
        Lengths [tokens]; outputs at least 1.
    hit_tokens : ndarray of float
        Prompt tokens that are not computed, wherever they come from [tokens].
    before_prefill_s : ndarray of float
        Host time and fetch of each request [s]; the engine works on others meanwhile.
    """

    prompt_tokens: NDArray[np.float64]
    output_tokens: NDArray[np.float64]
    hit_tokens: NDArray[np.float64]
    before_prefill_s: NDArray[np.float64]

    def __post_init__(self) -> None:
        sizes = {len(getattr(self, name)) for name in self.__dataclass_fields__}
        if len(sizes) != 1 or 0 in sizes:
            raise SpecError(f"a request mix needs arrays of one length above 0, got {sizes}")

    @property
    def total_tokens(self) -> NDArray[np.float64]:
        """Prompt plus output tokens of each request."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True)
class SloProbability:
    """How likely each request meets its SLOs at one rate; arrays of shape (n,).

    Attributes
    ----------
    ttft, tpot, both : ndarray of float
        Probabilities.
    """

    ttft: NDArray[np.float64]
    tpot: NDArray[np.float64]
    both: NDArray[np.float64]


def tpot_ceiling_rps(
    decode_fixed_s: float,
    decode_slope_s: float,
    prefill_s: float,
    output_tokens: float,
    tpot_slo_s: float,
) -> float:
    r"""Return the request rate at which the mean TPOT reaches its limit.

    With a decode step of ``a + e l`` seconds and prefill taking the share ``λ w`` of the engine,
    Little's law gives ``TPOT = a / (1 - λ (w + O e))`` and so

    .. math:: \lambda \le \frac{1 - a/\mathrm{SLO}}{w + O\,e}

    Parameters
    ----------
    decode_fixed_s, decode_slope_s : float
        a [s] and e [s per sequence].
    prefill_s : float
        w, engine seconds of a request's prefill [s].
    output_tokens : float
        O [tokens].
    tpot_slo_s : float
        Limit on the mean TPOT [s].

    Returns
    -------
    float
        Requests per second of one instance; 0 where even an empty engine is too slow.
    """
    if decode_fixed_s >= tpot_slo_s:
        return 0.0
    return (1.0 - decode_fixed_s / tpot_slo_s) / (prefill_s + output_tokens * decode_slope_s)


class ColocatedInstance:
    """Closed form of one instance that prefills and decodes, for one request mix.

    Parameters
    ----------
    model : StepModel
        Step time of the instance.
    mix : RequestMix
        What arrives.
    pool_tokens : float
        KV pool [tokens].
    token_budget : int
        Tokens of one engine step.
    max_running_requests : int
        Limit of the engine.
    fixed_state_tokens : float
        Memory of a running request that does not grow with its context, in tokens of the pool.
    """

    def __init__(
        self,
        model: StepModel,
        mix: RequestMix,
        pool_tokens: float,
        token_budget: int,
        max_running_requests: int,
        fixed_state_tokens: float = 0.0,
    ):
        self.model = model
        self.fixed_state_tokens = fixed_state_tokens
        self.mix = mix
        self.pool_tokens = pool_tokens
        self.token_budget = token_budget
        self.max_running_requests = max_running_requests
        self.mean_output_tokens = float(mix.output_tokens.mean())
        # decode steps see a request's context weighted by how long it decodes
        self.decode_context_tokens = float(
            (mix.output_tokens * (mix.prompt_tokens + 0.5 * mix.output_tokens)).sum()
            / mix.output_tokens.sum()
        )
        self.max_batch = self._max_batch()
        full = max(int(self.max_batch), 1)
        self.batches = np.arange(1.0, full + 1.0)
        if self.max_batch > full:  # a last state between two whole numbers
            self.batches = np.append(self.batches, self.max_batch)

    def with_mix(self, mix: RequestMix) -> ColocatedInstance:
        """Return the same instance for a mix that differs in ``before_prefill_s`` alone."""
        other = copy(self)  # keeps what has been tabulated
        other.mix = mix
        return other

    @cached_property
    def mean_resident_tokens(self) -> float:
        """Mean KV of a running request at the largest batch, weighted by residence [tokens]."""
        context = self.mix.prompt_tokens + 0.5 * self.mix.output_tokens + self.fixed_state_tokens
        step = float(step_time_s(self.model, 0, 0, self.batches[-1], self.decode_context_tokens))
        residence = self.batches[-1] * self.prefill_s(0.0).mean() + self.mix.output_tokens * step
        return float((residence * context).sum() / residence.sum())

    def rate_with_pool(self, factor: float) -> float:
        """Return the saturation rate with a KV pool ``factor`` times as large [requests/s]."""
        batch = float(np.clip(self.max_batch * factor, 1.0, self.max_running_requests))
        step = float(step_time_s(self.model, 0, 0, batch, self.decode_context_tokens))
        prefill = float(self._prefill_of(batch - 1.0).mean())
        return 1.0 / (prefill + self.mean_output_tokens * step / batch)

    def _max_batch(self) -> float:
        """KV pool over the mean context of a running request, weighted by its residence."""
        mix = self.mix
        context = mix.prompt_tokens + 0.5 * mix.output_tokens + self.fixed_state_tokens
        own = self._prefill_of(0.0)
        batch = 1.0
        for _ in range(20):
            step = float(step_time_s(self.model, 0, 0, batch, self.decode_context_tokens))
            residence = batch * own.mean() + mix.output_tokens * step
            mean_context = float((residence * context).sum() / residence.sum())
            new = float(np.clip(self.pool_tokens / mean_context, 1.0, self.max_running_requests))
            if abs(new - batch) < 1e-6:
                break
            batch = 0.5 * (batch + new)
        return batch

    def _prefill_of(self, decode_batch: float) -> NDArray[np.float64]:
        """Marginal engine time of each request's prefill beside ``decode_batch`` decodes [s]."""
        mix = self.mix
        new = mix.prompt_tokens - mix.hit_tokens
        decode_context = self.decode_context_tokens if decode_batch > 0 else 0.0
        time = prefill_time_s(
            self.model, new, mix.hit_tokens, self.token_budget, decode_batch, decode_context
        )
        idle = float(step_time_s(self.model, 0, 0, decode_batch, decode_context))
        steps = prefill_steps(new, self.token_budget, decode_batch)
        return np.asarray(time - steps * idle)

    @cached_property
    def _prefill_grid(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Batches d at which the marginal prefill times are tabulated, and those, (d, n)."""
        top = max(float(self.batches[-1]) - 1.0, 0.0)
        grid = np.unique(np.concatenate(([0.0], np.geomspace(1.0, max(top, 1.0), 6).round())))
        grid = grid[grid <= max(top, 0.0)] if top >= 1 else np.array([0.0])
        return grid, np.stack([self._prefill_of(float(d)) for d in grid])

    def prefill_s(self, decode_batch: float) -> NDArray[np.float64]:
        """Return the marginal engine time of each request's prefill beside other decodes.

        Parameters
        ----------
        decode_batch : float
            Sequences that decode in the same steps.

        Returns
        -------
        ndarray, shape (n,)
            Engine time [s], interpolated between tabulated batches.
        """
        grid, table = self._prefill_grid
        upper = int(np.clip(np.searchsorted(grid, decode_batch), 1, max(grid.size - 1, 1)))
        if grid.size == 1:
            return table[0]
        share = np.clip(
            (decode_batch - grid[upper - 1]) / (grid[upper] - grid[upper - 1]), 0.0, 1.0
        )
        return np.asarray((1 - share) * table[upper - 1] + share * table[upper])

    @cached_property
    def decode_step_s(self) -> NDArray[np.float64]:
        """Decode step time at each of ``batches``, at the mean decode context [s]."""
        return np.asarray(
            step_time_s(self.model, 0, 0, self.batches, self.decode_context_tokens), dtype=float
        ).reshape(-1)

    @cached_property
    def completion_rate_rps(self) -> NDArray[np.float64]:
        """Total completion rate µ with each of ``batches`` in service [requests/s]."""
        prefill = np.array([self.prefill_s(b - 1.0).mean() for b in self.batches])
        share = self.mean_output_tokens * self.decode_step_s / self.batches
        # a larger batch never completes less: an engine may run a smaller one
        return np.maximum.accumulate(1.0 / (prefill + share))

    @property
    def stability_rps(self) -> float:
        """Request rate at which the instance saturates, µ(b) [requests/s]."""
        return float(self.completion_rate_rps[-1])

    def tpot_ceiling_rps(self, tpot_slo_s: float) -> float:
        """Return the rate at which the mean TPOT reaches ``tpot_slo_s`` [requests/s].

        The decode step is linearised between batch 1 and the largest; see
        :func:`tpot_ceiling_rps`.
        """
        first, last = float(self.decode_step_s[0]), float(self.decode_step_s[-1])
        span = float(self.batches[-1] - self.batches[0])
        slope = (last - first) / span if span > 0 else 0.0
        return tpot_ceiling_rps(
            first - slope,
            slope,
            float(self.prefill_s(float(self.batches[-1]) - 1.0).mean()),
            self.mean_output_tokens,
            tpot_slo_s,
        )

    # --- at one rate ------------------------------------------------------------------------

    def states(self, rate_rps: float) -> tuple[NDArray[np.float64], float]:
        """Return P(0..b) of the number in service, and the tail's ratio, at ``rate_rps``."""
        return state_dependent_queue(rate_rps, self.completion_rate_rps)

    def mean_batch(self, rate_rps: float) -> float:
        """Return the mean number in service at ``rate_rps``; ``nan`` without a steady state."""
        probabilities, ratio = self.states(rate_rps)
        if not ratio < 1:
            return float("nan")
        counts = np.concatenate(([0.0], self.batches))
        beyond = probabilities[-1] * ratio / (1 - ratio)
        return float(probabilities @ counts + beyond * counts[-1])

    def mean_waiting(self, rate_rps: float) -> float:
        """Return the mean number waiting for KV space at ``rate_rps``."""
        return number_in_system(*self.states(rate_rps))[1]

    def _seen(
        self, rate_rps: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """States an arrival sees: probability, batch it will run in, wait for KV space [s]."""
        probabilities, ratio = self.states(rate_rps)
        # an arrival that sees l < b in service joins as number l + 1
        groups = np.arange(self.batches.size)
        if groups.size > _MAX_STATES:  # neighbouring batches stand for each other
            edges = np.unique(np.geomspace(1, groups.size, _MAX_STATES).round().astype(int)) - 1
            groups = edges[np.searchsorted(edges, groups, side="right") - 1]
        kept, group = np.unique(groups, return_inverse=True)
        weight = np.bincount(group, probabilities[:-1])
        depth = 1
        if ratio > 0:
            depth = int(np.clip(np.log(_TAIL) / np.log(ratio), 1, 400))
        k = np.arange(depth)
        tail = probabilities[-1] * ratio**k
        tail[-1] = probabilities[-1] * ratio ** k[-1] / (1 - ratio)
        return (
            np.concatenate((weight, tail)),
            np.concatenate((self.batches[kept], np.full(depth, self.batches[-1]))),
            np.concatenate((np.zeros(kept.size), (k + 1) / self.stability_rps)),
        )

    def at_rate(
        self, rate_rps: float, ttft_limit_s: NDArray[np.float64], tpot_limit_s: float
    ) -> LoadedInstance:
        """Return the instance under a Poisson arrival rate below :attr:`stability_rps`.

        Parameters
        ----------
        rate_rps : float
            Arrival rate of this instance [requests/s].
        ttft_limit_s : ndarray of float, shape (n,)
            TTFT limit of each request [s].
        tpot_limit_s : float
            Limit on a request's mean time per output token [s].

        Returns
        -------
        LoadedInstance
        """
        return LoadedInstance(self, rate_rps, ttft_limit_s, tpot_limit_s)

    def slo_probability(
        self, rate_rps: float, ttft_limit_s: NDArray[np.float64], tpot_limit_s: float
    ) -> SloProbability:
        """Return how likely each request meets its limits at a rate.

        Parameters
        ----------
        rate_rps, ttft_limit_s, tpot_limit_s
            As in :meth:`at_rate`.

        Returns
        -------
        SloProbability
            Zeros where there is no steady state.
        """
        if not rate_rps < self.stability_rps:
            zero = np.zeros(self.mix.prompt_tokens.size)
            return SloProbability(zero, zero, zero)
        return self.at_rate(rate_rps, ttft_limit_s, tpot_limit_s).slo_probability()


class LoadedInstance:
    """A :class:`ColocatedInstance` at one rate: latency laws of its requests.

    TTFT: host and fetch, wait for KV space, wait for the prefill work ahead (M/G/1 with the mix's
    own law, heavy tails included), own prefill.  TPOT: own decode steps plus the prefills that
    arrive while it decodes (compound Poisson), averaged over its output.

    Parameters
    ----------
    instance : ColocatedInstance
        The instance.
    rate_rps, ttft_limit_s, tpot_limit_s
        As in :meth:`ColocatedInstance.at_rate`.
    """

    def __init__(
        self,
        instance: ColocatedInstance,
        rate_rps: float,
        ttft_limit_s: NDArray[np.float64],
        tpot_limit_s: float,
    ):
        self.instance = instance
        self.rate_rps = rate_rps
        self.ttft_limit_s = ttft_limit_s
        self.tpot_limit_s = tpot_limit_s
        mix = instance.mix
        self.weight, self.batch, self.kv_wait_s = instance._seen(rate_rps)
        self.mean_batch = instance.mean_batch(rate_rps)
        work = instance.prefill_s(max(self.mean_batch - 1.0, 0.0))
        self._steps = np.maximum(mix.output_tokens - 1.0, 0.0)
        limits = [
            float(x)
            for x in (ttft_limit_s.max(), self._steps.max() * tpot_limit_s, 20 * work.max())
            if np.isfinite(x)
        ]
        self._law = DiscreteWork(work, 1.02 * max(limits))
        self._waiting = self._law.waiting_cdf(rate_rps)
        self.prefill_load = rate_rps * float(work.mean())
        self._own_prefill_s = {
            b: instance.prefill_s(b - 1.0)
            + float(step_time_s(instance.model, 0, 0, b - 1.0, instance.decode_context_tokens))
            for b in set(self.batch)
        }
        self._own_step_s = {b: self._decode_step_of(b) for b in set(self.batch)}

    def _decode_step_of(self, batch: float) -> NDArray[np.float64]:
        """Decode step of a batch that holds each request, at its mean context [s]."""
        instance = self.instance
        own = instance.mix.prompt_tokens + 0.5 * instance.mix.output_tokens
        context = ((batch - 1.0) * instance.decode_context_tokens + own) / batch
        return np.asarray(step_time_s(instance.model, 0, 0, batch, context))

    def slo_probability(self) -> SloProbability:
        """Return how likely each request meets its limits."""
        mix = self.instance.mix
        n = mix.prompt_tokens.size
        spare = self.ttft_limit_s - mix.before_prefill_s
        stalls = _StallLaw(self._law, self.rate_rps, self._steps, self.tpot_limit_s)
        tpot_of = {b: stalls.within(step) for b, step in self._own_step_s.items()}
        ttft, tpot, both = np.zeros(n), np.zeros(n), np.zeros(n)
        for weight, b, wait in zip(self.weight, self.batch, self.kv_wait_s, strict=True):
            if weight < _NEGLIGIBLE:
                continue
            in_time = self._law.at(self._waiting, spare - self._own_prefill_s[b] - wait)
            ttft += weight * in_time
            tpot += weight * tpot_of[b]
            both += weight * in_time * tpot_of[b]
        return SloProbability(ttft, tpot, both)

    def mean_wait_s(self) -> float:
        """Return the mean wait for KV space and prefill work ahead [s]."""
        work = self._law
        if self.prefill_load >= 1:
            return float("inf")
        prefill = self.rate_rps * work.second_moment_s2 / (2 * (1 - self.prefill_load))
        return prefill + float(self.weight @ self.kv_wait_s)

    def mean_ttft_s(self) -> float:
        """Return the mean time to first token [s]."""
        own = sum(
            w * self._own_prefill_s[b].mean() for w, b in zip(self.weight, self.batch, strict=True)
        )
        return float(self.instance.mix.before_prefill_s.mean()) + self.mean_wait_s() + float(own)

    def mean_decode_s(self) -> float:
        """Return the mean time from first to last token, stalls included [s]."""
        own = sum(
            w * (self._steps * self._own_step_s[b]).mean()
            for w, b in zip(self.weight, self.batch, strict=True)
        )
        return float(own) / max(1.0 - self.prefill_load, 1e-9)

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
        mix, law = self.instance.mix, self._law
        grid = np.arange(self._waiting.size) * law.step_s
        start = np.zeros(grid.size)
        for weight, b, wait in zip(self.weight, self.batch, self.kv_wait_s, strict=True):
            if weight >= _NEGLIGIBLE:
                fixed = mix.before_prefill_s + self._own_prefill_s[b] + wait
                at = np.minimum(fixed / law.step_s, grid.size - 2)
                low = at.astype(int)
                share = (at - low) * weight / fixed.size
                start += np.bincount(low, weight / fixed.size - share, minlength=grid.size)
                start += np.bincount(low + 1, share, minlength=grid.size)
        waits = np.diff(self._waiting, prepend=0.0)
        total = fftconvolve(start, waits)[: grid.size]
        cdf = np.cumsum(np.clip(total, 0.0, None))
        return [
            float(np.interp(share, cdf, grid)) if cdf[-1] >= share else float("inf")
            for share in shares
        ]

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
        if several.size > _QUANTILE_REQUESTS:
            several = several[
                np.linspace(0, several.size - 1, _QUANTILE_REQUESTS).round().astype(int)
            ]
        steps = self._steps[several]
        own = {b: step[several] for b, step in self._own_step_s.items()}
        fastest = min(float(step.min()) for step in own.values())
        slowest = max(float(step.max()) for step in own.values())
        # a request of two tokens may wait for several whole prefills between them
        top = 5 * float(self._own_prefill_s[self.batch[-1]].max()) + 20 * slowest
        grid = np.geomspace(fastest * 0.999, top / max(1.0 - self.prefill_load, 0.05), 80)
        cdf = []
        for limit in grid:
            stalls = _StallLaw(self._law, self.rate_rps, steps, float(limit), levels=8)
            within = {b: stalls.within(step).mean() for b, step in own.items()}
            cdf.append(sum(w * within[b] for w, b in zip(self.weight, self.batch, strict=True)))
        values = np.maximum.accumulate(cdf)
        return [
            float(np.exp(np.interp(share, values, np.log(grid))))
            if values[-1] >= share
            else float("inf")
            for share in shares
        ]


class _StallLaw:
    """P(own decode steps + prefills that arrive meanwhile <= allowance), request by request.

    Over an allowance ``y`` the work that arrives is compound Poisson; a request whose own steps
    take ``x`` is in time if no more than ``y - x`` arrives.  (An earlier moment at which it would
    have been done, followed by more work, counts as late: slightly conservative.)
    """

    def __init__(
        self,
        law: DiscreteWork,
        rate_rps: float,
        steps: NDArray[np.float64],
        limit_s: float,
        levels: int = _MAX_LEVELS,
    ):
        self.law, self.rate_rps, self.limit_s = law, rate_rps, limit_s
        self.several = steps > 0
        allowed = np.log(np.maximum(steps, 1.0) * limit_s)
        first, last = float(allowed.min()), float(allowed.max())
        count = 1 if last - first < 1e-9 else levels
        self.levels = np.exp(np.linspace(first, last, count))
        self.laws = [law.arrived_cdf(rate_rps, float(y)) for y in self.levels]
        position = (allowed - first) / max(last - first, 1e-9) * (count - 1)
        self.low = np.clip(position.astype(int), 0, max(count - 2, 0))
        self.share = position - self.low

    def within(self, own_step_s: NDArray[np.float64]) -> NDArray[np.float64]:
        slack = 1.0 - own_step_s / self.limit_s  # share of the allowance that stalls may take
        result = np.zeros(slack.size)
        for index, (level, cdf) in enumerate(zip(self.levels, self.laws, strict=True)):
            below = self.low == index
            above = (self.low + 1 == index) & (self.share > 0)
            for members, part in ((below, 1.0 - self.share), (above, self.share)):
                if members.any():
                    spare = slack[members] * level
                    within = np.where(
                        spare <= self.law.horizon_s,
                        self.law.at(cdf, spare),
                        # beyond the grid many prefills add up: their sum is all but normal
                        self.law.arrived_normal(self.rate_rps, float(level), spare),
                    )
                    result[members] += part[members] * within
        return np.where(self.several, result, 1.0)
