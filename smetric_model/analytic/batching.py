r"""One colocated instance under load: batch law, stability, ceilings, TTFT and TPOT within SLO.

A request needs ``w`` engine seconds for its uncached tokens and a share ``O T_d(l)/l`` of the
decode steps it sits in, so that an instance with ``l`` requests in service completes

.. math:: \mu(l) = \frac{1}{w(l - 1) + O\,T_d(l)/l}

requests per second in total (DESIGN §3).  ``w(d)`` is the *marginal* time of the prefill steps
beside ``d`` decodes: mixed steps read the weights once.  The number in service is capped by the
KV pool: as many contexts as fit when they are taken as they come (a renewal count, not the pool
over the mean context); those above wait for KV space.

What is assumed: arrivals that depend on the number present and on nothing else (Poisson unless
:class:`~smetric_model.analytic.arrivals.Arrivals` say otherwise), independent requests,
first-come-first-served prefill that goes before decode, and within one request a constant batch.
``docs/instance-model.md`` derives the laws and says how far they are from a step-by-step
simulation.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic import _instance_kernels as kernels
from smetric_model.analytic._step_kernels import prefill_time_s, step_time_s
from smetric_model.analytic.arrivals import POISSON, Arrivals
from smetric_model.analytic.latency import prefill_steps
from smetric_model.analytic.loaded import BatchLaw, LoadedInstance, SloProbability
from smetric_model.analytic.poisson_batch import poisson_batch_law
from smetric_model.analytic.queueing import fitting_counts
from smetric_model.analytic.routed_batch import routed_batch_law
from smetric_model.analytic.step_time import StepModel
from smetric_model.errors import SpecError, UnstableError

__all__ = [
    "ColocatedInstance",
    "LoadedInstance",
    "RequestMix",
    "SloProbability",
    "tpot_ceiling_rps",
]


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
        arrays = (self.prompt_tokens, self.output_tokens, self.hit_tokens, self.before_prefill_s)
        sizes = set(map(len, arrays))
        if len(sizes) != 1 or 0 in sizes:
            raise SpecError(f"a request mix needs arrays of one length above 0, got {sizes}")

    @property
    def total_tokens(self) -> NDArray[np.float64]:
        """Prompt plus output tokens of each request."""
        return self.prompt_tokens + self.output_tokens


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

    Attributes
    ----------
    fits_ratio : ndarray, shape (b,)
        P(at least 1, 2, … b running requests fit the pool).
    batches : ndarray, shape (b,)
        Mean number in service with 1, 2, … b present; the last is ``max_batch``.
    new_tokens : ndarray, shape (n,)
        Prompt tokens that each request computes [tokens].
    decode_step_s : ndarray, shape (b,)
        Decode step time at each of ``batches``, at the mean decode context [s].
    completion_rate_rps, decode_completion_rps : ndarray, shape (b,)
        Total completion rate µ with 1, 2, … b present, and that of decode alone [requests/s].
    stability_rps : float
        Request rate at which the instance saturates, the last µ [requests/s].
    mean_output_tokens, mean_resident_tokens, decode_context_tokens : float
        Mean output; mean KV of a running request; mean context that a decode step meets [tokens].
    """

    fits_ratio: NDArray[np.float64]
    batches: NDArray[np.float64]
    new_tokens: NDArray[np.float64]
    decode_step_s: NDArray[np.float64]
    completion_rate_rps: NDArray[np.float64]
    decode_completion_rps: NDArray[np.float64]
    mean_output_tokens: float
    mean_resident_tokens: float
    decode_context_tokens: float

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
        self._laws: dict[float, BatchLaw] = {}
        self._beside: float | None = None
        prompt, output, hit = (
            np.ascontiguousarray(tokens, dtype=float)
            for tokens in (mix.prompt_tokens, mix.output_tokens, mix.hit_tokens)
        )
        budget, most = float(token_budget), float(max_running_requests)
        (
            alone_s,
            context,
            stay_s,
            self.decode_context_tokens,
            self.mean_output_tokens,
            self.mean_resident_tokens,
        ) = kernels.residence(
            model, prompt, output, hit, budget, float(pool_tokens), most, float(fixed_state_tokens)
        )
        self.fits_ratio = fitting_counts(context, stay_s, pool_tokens, max_running_requests)
        self.new_tokens = prompt - hit
        (
            self.batches,
            self._grid,
            self._prefill_table_s,
            self._mean_prefill_table_s,
            self.decode_step_s,
            self.completion_rate_rps,
            self.decode_completion_rps,
        ) = kernels.tables(
            model,
            self.new_tokens,
            hit,
            np.argsort(self.new_tokens),
            alone_s,
            self.fits_ratio,
            budget,
            self.decode_context_tokens,
            self.mean_output_tokens,
        )
        self.max_batch = float(self.batches[-1])
        self.stability_rps = float(self.completion_rate_rps[-1])

    def with_mix(self, mix: RequestMix) -> ColocatedInstance:
        """Return the same instance for a mix that differs in ``before_prefill_s`` alone."""
        other = copy(self)  # keeps what has been tabulated
        other.mix = mix
        return other

    def rate_with_pool(self, factor: float) -> float:
        """Return the saturation rate with a KV pool ``factor`` times as large [requests/s]."""
        batch = float(np.clip(self.max_batch * factor, 1.0, self.max_running_requests))
        step = float(step_time_s(self.model, 0, 0, batch, self.decode_context_tokens))
        hit, new = self.mix.hit_tokens, self.new_tokens
        others = batch - 1.0
        context = self.decode_context_tokens if others > 0 else 0.0
        with_chunks = prefill_time_s(self.model, new, hit, self.token_budget, others, context)
        without = float(step_time_s(self.model, 0, 0, others, context))
        steps = prefill_steps(new, self.token_budget, others)
        prefill = float((with_chunks - steps * without).mean())
        rate = 1.0 / (prefill + self.mean_output_tokens * step / batch)
        # a larger pool never completes less: an engine may run a smaller batch
        return float(max(rate, self.stability_rps)) if factor >= 1 else rate

    def _place(self, decode_batch: float) -> tuple[int, float]:
        """Row of the tabulated batches below a batch, and the share of the next one."""
        grid = self._grid
        if grid.size == 1:
            return 0, 0.0
        row = min(max(int(grid.searchsorted(decode_batch)), 1), grid.size - 1) - 1
        share = (decode_batch - float(grid[row])) / float(grid[row + 1] - grid[row])
        return row, min(max(share, 0.0), 1.0)

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
        row, share = self._place(decode_batch)
        table = self._prefill_table_s
        if share == 0.0:
            return np.asarray(table[row])
        return np.asarray((1.0 - share) * table[row] + share * table[row + 1])

    def own_prefill_s(self, batches: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the time of the steps that carry each request's own prefill.

        Parameters
        ----------
        batches : ndarray, shape (k,)
            Sequences in these steps, the request among them; at least 1.

        Returns
        -------
        ndarray, shape (k, n)
            Its marginal engine time and the decode steps of the others meanwhile [s].
        """
        return np.asarray(
            kernels.own_prefills(
                self.new_tokens,
                self._grid,
                self._prefill_table_s,
                batches,
                step_time_s(self.model, 0, 0, batches - 1.0, self.decode_context_tokens),
                float(self.token_budget),
            )
        )

    def mean_prefill_s(self, decode_batch: float) -> float:
        """Return the mean of :meth:`prefill_s` over requests [s].

        Parameters
        ----------
        decode_batch : float
            Sequences that decode in the same steps.
        """
        row, share = self._place(decode_batch)
        means = self._mean_prefill_table_s
        if share == 0.0:
            return float(means[row])
        return float((1.0 - share) * means[row] + share * means[row + 1])

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
            self.mean_prefill_s(self.max_batch - 1.0),
            self.mean_output_tokens,
            tpot_slo_s,
        )

    # --- at one rate ------------------------------------------------------------------------

    def batch_law(self, rate_rps: float, arrivals: Arrivals = POISSON) -> BatchLaw:
        r"""Return the stationary law of the batch at ``rate_rps``.

        See :mod:`~smetric_model.analytic.poisson_batch`; where arrivals depend on the load, see
        :mod:`~smetric_model.analytic.routed_batch`.

        Parameters
        ----------
        rate_rps : float
            Mean arrival rate [requests/s].
        arrivals : Arrivals
            How the rate depends on the load; Poisson by default.

        Returns
        -------
        BatchLaw

        Raises
        ------
        UnstableError
            At :attr:`stability_rps` or above.
        """
        if not rate_rps < self.stability_rps:
            raise UnstableError(
                f"{rate_rps:.4g} requests/s; an instance bears {self.stability_rps:.4g}", "engine"
            )
        if not arrivals.is_poisson:
            guess = rate_rps * self.mean_output_tokens * float(self.decode_step_s[0])
            beside = min(guess, self.max_batch) if self._beside is None else self._beside
            law = routed_batch_law(self, rate_rps, arrivals, beside)
            self._beside = max(law.mean_running - 1.0, 0.0)
            return law
        if rate_rps not in self._laws:
            law = poisson_batch_law(self, rate_rps, 0.0)
            law = poisson_batch_law(self, rate_rps, max(law.mean_running - 1.0, 0.0))
            self._laws[rate_rps] = law
        return self._laws[rate_rps]

    def mean_batch(self, rate_rps: float) -> float:
        """Return the mean number in service at ``rate_rps``; ``nan`` without a steady state."""
        return self.batch_law(rate_rps).mean_running if rate_rps < self.stability_rps else np.nan

    def at_rate(
        self,
        rate_rps: float,
        ttft_limit_s: NDArray[np.float64],
        tpot_limit_s: float,
        arrivals: Arrivals = POISSON,
    ) -> LoadedInstance:
        """Return the instance under an arrival rate below :attr:`stability_rps`.

        Parameters
        ----------
        rate_rps : float
            Arrival rate of this instance [requests/s].
        ttft_limit_s : ndarray of float, shape (n,)
            TTFT limit of each request [s].
        tpot_limit_s : float
            Limit on a request's mean time per output token [s].
        arrivals : Arrivals
            How arrivals depend on the load; Poisson by default.

        Returns
        -------
        LoadedInstance
        """
        # an idle instance is the limit of a small rate
        rate = max(rate_rps, 1e-9 * self.stability_rps)
        return LoadedInstance(self, rate, ttft_limit_s, tpot_limit_s, arrivals)

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
