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

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic.latency import prefill_steps, prefill_time_s
from smetric_model.analytic.queueing import (
    DiscreteWork,
    number_in_system,
    state_dependent_queue,
)
from smetric_model.analytic.step_time import StepModel, step_time_s
from smetric_model.errors import SpecError

__all__ = ["ColocatedInstance", "RequestMix", "SloProbability", "tpot_ceiling_rps"]

_MAX_LEVELS = 24  # lengths of output at which the law of stalls is evaluated
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
    """

    def __init__(
        self,
        model: StepModel,
        mix: RequestMix,
        pool_tokens: float,
        token_budget: int,
        max_running_requests: int,
    ):
        self.model = model
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

    def _max_batch(self) -> float:
        """KV pool over the mean context of a running request, weighted by its residence."""
        mix = self.mix
        context = mix.prompt_tokens + 0.5 * mix.output_tokens
        own = self._prefill_of(0.0)
        batch = 1.0
        for _ in range(20):
            step = float(step_time_s(self.model, 0, 0, batch, self.decode_context_tokens))
            residence = batch * own.mean() + mix.output_tokens * step
            mean_context = float((residence * context).sum() / residence.sum())
            new = float(
                np.clip(self.pool_tokens / mean_context, 1.0, self.max_running_requests)
            )
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

    @property
    def unlimited_kv_rps(self) -> float:
        """Rate at which it would saturate with a KV pool that never limits the batch."""
        big = float(max(self.max_running_requests, 1))
        step = float(step_time_s(self.model, 0, 0, big, self.decode_context_tokens))
        return 1.0 / (
            float(self._prefill_of(big - 1.0).mean()) + self.mean_output_tokens * step / big
        )

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

    def _seen(self, rate_rps: float) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """States an arrival sees: probability, batch it will run in, wait for KV space [s]."""
        probabilities, ratio = self.states(rate_rps)
        batches = self.batches
        # arrival that sees l < b in service joins as number l + 1
        weight, batch, wait = probabilities[:-1], batches, np.zeros(batches.size)
        depth = 1
        if ratio > 0:
            depth = int(np.clip(np.log(_TAIL) / np.log(ratio), 1, 400))
        k = np.arange(depth)
        tail = probabilities[-1] * ratio**k
        tail[-1] = probabilities[-1] * ratio ** k[-1] / (1 - ratio)
        return (
            np.concatenate((weight, tail)),
            np.concatenate((batch, np.full(depth, batches[-1]))),
            np.concatenate((wait, (k + 1) / self.stability_rps)),
        )

    def slo_probability(
        self, rate_rps: float, ttft_limit_s: NDArray[np.float64], tpot_limit_s: float
    ) -> SloProbability:
        """Return how likely each request meets its limits at a rate.

        TTFT: host and fetch, wait for KV space, wait for the prefill work ahead (M/G/1 with the
        mix's own law, heavy tails included), own prefill.  TPOT: own decode steps plus the
        prefills that arrive while it decodes (compound Poisson), on average over its output.

        Parameters
        ----------
        rate_rps : float
            Poisson arrival rate of the instance [requests/s].
        ttft_limit_s : ndarray of float, shape (n,)
            Limit of each request [s].
        tpot_limit_s : float
            Limit on a request's mean time per output token [s].

        Returns
        -------
        SloProbability
            Zeros where there is no steady state.
        """
        mix = self.mix
        n = mix.prompt_tokens.size
        if not rate_rps < self.stability_rps:
            zero = np.zeros(n)
            return SloProbability(zero, zero, zero)
        weight, batch, kv_wait = self._seen(rate_rps)
        beside = max(self.mean_batch(rate_rps) - 1.0, 0.0)
        work = self.prefill_s(beside)
        steps = np.maximum(mix.output_tokens - 1.0, 0.0)
        horizon = float(max(ttft_limit_s.max(), steps.max() * tpot_limit_s)) * 1.02
        law = DiscreteWork(work, horizon)
        waiting = law.waiting_cdf(rate_rps)

        spare_ttft = ttft_limit_s - mix.before_prefill_s
        # distinct batches only: the tail states differ in the KV wait alone
        tpot_of = {b: self._tpot_probability(law, rate_rps, b, steps, tpot_limit_s) for b in set(batch)}
        prefill_of = {b: self.prefill_s(b - 1.0) + float(
            step_time_s(self.model, 0, 0, b - 1.0, self.decode_context_tokens)
        ) for b in set(batch)}
        ttft = np.zeros(n)
        tpot = np.zeros(n)
        both = np.zeros(n)
        for w, b, wait in zip(weight, batch, kv_wait, strict=True):
            if w < 1e-9:
                continue
            in_time = law.at(waiting, spare_ttft - prefill_of[b] - wait)
            ttft += w * in_time
            tpot += w * tpot_of[b]
            both += w * in_time * tpot_of[b]
        return SloProbability(ttft, tpot, both)

    def _tpot_probability(
        self,
        law: DiscreteWork,
        rate_rps: float,
        batch: float,
        steps: NDArray[np.float64],
        tpot_limit_s: float,
    ) -> NDArray[np.float64]:
        """P(mean time per output token <= limit) of each request in a batch of this size."""
        context = self.mix.prompt_tokens + 0.5 * self.mix.output_tokens
        mean_context = ((batch - 1.0) * self.decode_context_tokens + context) / batch
        own = step_time_s(self.model, 0, 0, batch, mean_context)
        slack_share = 1.0 - own / tpot_limit_s  # of the time it may take, what stalls may use
        allowed = steps * tpot_limit_s
        probability = np.where(slack_share >= 0, 1.0, 0.0)
        several = (steps > 0) & (slack_share >= 0)
        if not several.any():
            return np.where(steps > 0, probability, 1.0)
        longest, shortest = allowed[several].max(), allowed[several].min()
        levels = np.geomspace(shortest, max(longest, shortest * 1.0001), _MAX_LEVELS)
        nearest = np.abs(np.log(allowed[several])[:, None] - np.log(levels)[None, :]).argmin(1)
        result = np.empty(several.sum())
        for index in np.unique(nearest):
            members = nearest == index
            cdf = law.arrived_cdf(rate_rps, float(levels[index]))
            result[members] = law.at(cdf, slack_share[several][members] * levels[index])
        probability[several] = result
        return np.where(steps > 0, probability, 1.0)
