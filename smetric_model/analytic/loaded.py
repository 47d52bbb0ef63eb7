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
from smetric_model.analytic._step_kernels import step_time_s
from smetric_model.analytic.arrivals import POISSON, Arrivals
from smetric_model.analytic.decode_stalls import DecodeStalls
from smetric_model.analytic.prefill_wait import BIN_EDGES, PrefillWait
from smetric_model.analytic.quantiles import quantiles, spread, weighted_quantiles

if TYPE_CHECKING:
    from smetric_model.analytic.batching import ColocatedInstance

__all__ = ["BatchLaw", "LoadedInstance", "SloProbability"]

_Array = NDArray[np.float64]

_GROUPS = 4  # batch sizes told apart
_RARE = 1e-7  # so few arrivals that are blocked are left out
_REQUESTS = 1024  # behind a quantile
#: waits told apart in the time to the first step: usual quantiles lie amid one, not between two
_QUEUE_EDGES = np.array(
    [0, 10, 20, 30, 40, 46, 54, 60, 70, 80, 85, 88.5, 91.5, 94, 96, 97.5, 98.5, 99.5, 100]
)
_QUEUE_EDGES /= 100
_QUEUE_PARTS = 4  # times before the queue, and parts of a step or of a wait for KV, told apart


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


class Groups(NamedTuple):
    """Arrivals that will run in about the same batch.

    Attributes
    ----------
    weight : ndarray, shape (groups,)
        Probability of each; they sum to 1.
    batch : ndarray, shape (groups,)
        Its batch.
    blocked : ndarray of bool, shape (groups,)
        Whether it waits for KV space: at most the last one.
    kv_wait_s : float
        Mean wait of that one [s].
    """

    weight: _Array
    batch: _Array
    blocked: NDArray[np.bool_]
    kv_wait_s: float


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
    work_s : ndarray, shape (n,)
        Marginal prefill time of each request [s].
    wait : PrefillWait
        Wait for prefill.
    groups : Groups
        Arrivals by the batch they will run in.
    prefill_s : ndarray, shape (groups, n)
        Time of the steps that carry each request's own prefill [s].
    is_free : ndarray of bool or None
        Which requests could have gone anywhere.
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
        self.law = instance.batch_law(rate_rps, arrivals)
        self.mean_batch = self.law.mean_running
        self.is_free = arrivals.is_free
        self.work_s = instance.prefill_s(max(self.mean_batch - 1.0, 0.0))
        chunk = max(instance.token_budget - self.mean_batch, 1.0)
        self.wait = PrefillWait(
            self.work_s,
            self.law.busy_rate_rps,
            float(self.work_s.sum() / instance.new_tokens.sum()) * chunk,
            self._step_s(max(self.mean_batch, 1.0)) * (1.0 - float(self.law.seen[0])),
            instance.model.wait_steps,
        )
        self.groups = self._groups()
        self.prefill_s = instance.own_prefill_s(self.groups.batch)

    # --- states -----------------------------------------------------------------------------

    def _groups(self) -> Groups:
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
            stay = full * float(self.work_s.mean()) + mix.output_tokens * self._step_s(full)
            held = stay * self.context_tokens
            wait *= 0.5 * (1.0 + float(held.var() / held.mean() ** 2))
        is_blocked = np.zeros(int(kept.sum()), dtype=bool)
        is_blocked[-1] = blocked
        return Groups(weights[kept], batches[kept], is_blocked, wait if blocked else 0.0)

    @property
    def context_tokens(self) -> _Array:
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
        if self.groups.blocked[-1]:
            tau = max(self.groups.kv_wait_s, 1e-12)
            longer = tau * float(np.exp(-wait.waits_s / tau).mean())
        own, beyond = kernels.mean_beyond(
            self.prefill_s,
            self.groups.blocked,
            self.groups.weight,
            wait.bin_wait_s,
            BIN_EDGES,
            longer,
            wait.last_step,
        )
        if wait.load >= 1:
            return own, float("inf")
        return own, wait.mean_s * float(self.groups.weight.sum()) + beyond

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
        before = np.reshape(quantiles(before_s, part.tolist()), (-1, 1, 1))
        # an arrival finds an idle engine, one that decodes, or one that prefills
        step = self._step_s(max(self.mean_batch, 1.0))
        left = np.where(part > float(self.law.seen[0]), step * part[::-1], 0.0)
        free = waits + np.where(waits > 0, 0.5 * step, left)
        blocked = float(self.groups.weight[self.groups.blocked].sum())
        laws = [(float(self.groups.weight.sum()) - blocked, free)]
        if blocked:
            laws.append((blocked, np.maximum(waits, -self.groups.kv_wait_s * np.log1p(-part))))
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
        top = float(self.prefill_s.max()) + float(before.max()) + wait.horizon_s
        top += 25 * self.groups.kv_wait_s + step.under_way_s + step.most_s
        rows = spread(np.arange(before.size), _REQUESTS)
        own = self.prefill_s[:, rows]
        found = _quantile_kernels.ttft_quantiles(
            np.asarray(shares),
            0.999 * (float(self.prefill_s.min()) + float(before.min())),
            min(self.mean_ttft_s(), 0.999 * top),
            top,
            own,
            before[rows],
            self.groups.blocked,
            self.groups.weight,
            wait.law,
            wait.step_s,
            max(self.groups.kv_wait_s, 1e-12),
            step,
        )
        return [float(value) for value in found]

    # --- stalls -----------------------------------------------------------------------------

    def mean_decode_s(self) -> float:
        """Return the mean time from first to last token, stalls included [s]."""
        return self.law.mean_decoding / self.rate_rps

    @cached_property
    def _stalls(self) -> DecodeStalls:
        return DecodeStalls(self)

    def slo_probability(self) -> SloProbability:
        """Return how likely each request meets its limits."""
        return SloProbability(*self._stalls.within_slo(self.ttft_limit_s, self.tpot_limit_s))

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
        return self._stalls.tpot_quantiles_s(shares)

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
        return self._stalls.e2e_quantiles_s(shares, after_first_token_s)
