r"""The decode pool of a disaggregated cluster: batch law, wait for room, time per output token.

Requests come from the prefill pool at λ and go to the decode instance with most free KV, as soon
as it has room: the least loaded of D, so that loads differ by little.  With l requests an instance
completes ``l / (O T_d(l))``, up to as many as fit its KV pool, which hold prompt and output from
the start.  Its law is that of join-the-least-loaded (:func:`least_loaded_law`); what exceeds the
places is the wait for room.

TPOT counts from the first token, and so includes that wait and the transfer:

.. math:: \mathrm{TPOT} = \frac{\text{wait} + \text{transfer}}{O - 1} + \overline{T_d}(l).

A long output sees many batches: the deviation of its mean step from the average is that of one
moment times √f, f = 2 (x - 1 + e^{-x})/x², x = its decode time ÷ the mean one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic._step_kernels import step_time_s
from smetric_model.analytic.queueing import fitting_counts
from smetric_model.analytic.step_time import StepModel
from smetric_model.analytic.stickiness import least_loaded_law
from smetric_model.errors import UnstableError

__all__ = ["DecodePool"]

FloatArray = NDArray[np.float64]

_GROUPS = 8  # batch sizes told apart
_BEYOND = 400  # requests that wait for room, at most


class DecodePool:
    """Decode instances at one rate.

    Parameters
    ----------
    model : StepModel
        Step time of an instance.
    instances : int
        D.
    rate_rps : float
        Requests that decode, of the whole pool [requests/s].
    prompt_tokens, output_tokens : ndarray of float, shape (n,)
        Equally likely requests of two output tokens or more [tokens].
    pool_tokens, fixed_state_tokens : float
        KV pool of an instance, and the fixed state of a request [tokens].
    max_running_requests : int
        Limit of the engine.
    transfer_s : ndarray of float, shape (n,)
        How long the KV of each takes to come [s]; may be set later, nothing here depends on it.

    Raises
    ------
    UnstableError
        If the pool completes less: ``decode_kv``, or ``decode_compute`` where the engine's limit on
        running requests binds.
    """

    def __init__(
        self,
        model: StepModel,
        instances: int,
        rate_rps: float,
        prompt_tokens: FloatArray,
        output_tokens: FloatArray,
        pool_tokens: float,
        fixed_state_tokens: float,
        max_running_requests: int,
        transfer_s: FloatArray,
    ):
        self.output_tokens = output_tokens
        self.transfer_s = transfer_s
        self.rate_rps = rate_rps
        self.instances = instances
        held = np.minimum(prompt_tokens + output_tokens + fixed_state_tokens, pool_tokens)
        # the first token comes from the prefill pool
        self._steps = np.maximum(output_tokens - 1.0, 1.0)
        mean_steps = float(self._steps.mean())
        fits = fitting_counts(held, self._steps, pool_tokens, max_running_requests)
        batches = np.cumsum(fits)
        context = prompt_tokens + 0.5 * output_tokens
        mean_context = float((self._steps * context).sum() / self._steps.sum())
        step = np.asarray(step_time_s(model, 0, 0, batches, mean_context), dtype=float).reshape(-1)
        completion = np.maximum.accumulate(batches / (mean_steps * step))
        own = rate_rps / instances
        if not own < completion[-1]:
            resource = "decode_compute" if fits.size >= max_running_requests else "decode_kv"
            raise UnstableError(
                f"{rate_rps:.4g} requests/s: the decode pool of {instances} instances completes"
                f" {completion[-1] * instances:.4g} at most; {resource} saturates",
                resource,
            )
        places = batches.size
        longer = np.append(completion, np.full(_BEYOND, completion[-1]))
        law = least_loaded_law(own, longer, instances)
        running = np.append(batches, np.full(_BEYOND, batches[-1]))
        present = np.arange(1, law.size)
        self.mean_running = float(law[1:] @ running[: law.size - 1])
        waiting = float(law[1:] @ np.maximum(present - running[: law.size - 1], 0.0))
        # a request waits for the whole pool: only what exceeds the places of all counts
        full = float(law[places:].sum())
        self.wait_s = waiting / own * (full if instances > 1 else 1.0)
        self.kv_ratio = min(
            self.mean_running * float((self._steps * held).sum() / self._steps.sum()) / pool_tokens,
            1.0,
        )
        self.computing = 1.0 - float(law[0])
        # tokens see a batch as often as it makes them
        made = law[1 : places + 1] * batches[: law.size - 1][:places] / step[: law.size - 1]
        if law.size > places + 1:
            made[-1] += float(law[places + 1 :].sum()) * batches[-1] / step[-1]
        made = made / made.sum()
        self.mean_step_s = float(made @ step[: made.size])
        order = np.minimum((np.cumsum(made) * _GROUPS - 1e-9).astype(int), _GROUPS - 1)
        self._group_weight = np.bincount(order, made, minlength=_GROUPS).astype(float)
        self._group_step_s = np.bincount(
            order, made * step[: made.size], minlength=_GROUPS
        ) / np.maximum(self._group_weight, 1e-300)
        longest = self._steps * self.mean_step_s
        x = np.maximum(longest / max(float(longest.mean()), 1e-12), 1e-6)
        self._steady = np.sqrt(2 * (x - 1 + np.exp(-x)) / x**2)

    def mean_after_first_token_s(self) -> float:
        """Return the mean time from first to last token [s]."""
        return (
            self.wait_s
            + float(self.transfer_s.mean())
            + float(self._steps.mean()) * self.mean_step_s
        )

    def after_first_token_s(self, count: int) -> FloatArray:
        """Return equally likely times from first to last token, output by output [s].

        Parameters
        ----------
        count : int
            How many.
        """
        order = np.argsort(self._steps, kind="stable")
        at = order[((np.arange(count) + 0.5) / count * order.size).astype(int)]
        stay = self.wait_s + self.transfer_s + self._steps * self.mean_step_s
        return np.asarray(stay[at])

    def _tpot(self) -> tuple[FloatArray, FloatArray]:
        """TPOT of each request in each group of batches, shape (groups, n), and the weights."""
        deviation = (self._group_step_s - self.mean_step_s)[:, None] * self._steady[None, :]
        before = (self.wait_s + self.transfer_s) / self._steps
        return self.mean_step_s + deviation + before[None, :], self._group_weight

    def within(self, limit_s: float) -> FloatArray:
        """Return P(TPOT <= limit) of each request.

        Parameters
        ----------
        limit_s : float
            Limit [s].

        Returns
        -------
        ndarray, shape (n,)
        """
        tpot, weight = self._tpot()
        return np.asarray(weight @ (tpot <= limit_s))

    def mean_tpot_s(self) -> float:
        """Return the mean over requests of the TPOT: short outputs feel their wait most [s]."""
        tpot, weight = self._tpot()
        return float(weight @ tpot.mean(axis=1)) / float(weight.sum())

    def tpot_quantiles_s(self, shares: Sequence[float]) -> list[float]:
        """Return quantiles of the TPOT [s].

        Parameters
        ----------
        shares : sequence of float
            Such as ``(0.5, 0.9)``.

        Returns
        -------
        list of float
        """
        tpot, weight = self._tpot()
        values = tpot.ravel()
        order = np.argsort(values)
        upto = np.cumsum(np.repeat(weight, tpot.shape[1])[order])
        at = np.searchsorted(upto, np.asarray(shares) * upto[-1])
        return [float(v) for v in values[order][np.minimum(at, values.size - 1)]]
