r"""Batch law of an instance whose requests arrive as a Poisson stream.

Prefill goes before decode, so that decode has a clock of its own that stands still while prefills
add their marginal time.  On that clock requests come in bursts, all those that a busy period of the
prefill queue serves (M/G/1, marginal times, its mean ``1 / (1 - ρ)``), at the rate λ of first
arrivals, and ``l`` decoding requests complete at ``l / (O T_d(l))``:
:func:`~smetric_model.analytic.busy_periods.bursty_queue`.  While all places are taken the prefills
are admitted one completion at a time, the instance completes µ(b) on the true clock, and an excess
of ``x`` waiting requests lasts ``(1 + x) / (µ(b) - λ)``.  Of a burst's excess K - n the share 1 - ρ
is there when the places run out; the rest would have come during prefills that are put off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smetric_model.analytic.busy_periods import bursty_queue, busy_period_counts, condensed
from smetric_model.analytic.loaded import BatchLaw

if TYPE_CHECKING:
    from smetric_model.analytic.batching import ColocatedInstance

__all__ = ["poisson_batch_law"]


def poisson_batch_law(instance: ColocatedInstance, rate_rps: float, beside: float) -> BatchLaw:
    """Return the batch law of an instance with Poisson arrivals.

    Parameters
    ----------
    instance : ColocatedInstance
        The instance.
    rate_rps : float
        Arrival rate, below saturation [requests/s].
    beside : float
        Decodes beside a prefill, for its marginal time.

    Returns
    -------
    BatchLaw
    """
    work = instance.prefill_s(beside)
    load = min(rate_rps * float(work.mean()), 0.995)
    decode_rate = instance.decode_completion_rps
    places = decode_rate.size
    sample, share = condensed(work)
    scale = load / (rate_rps * float(work.mean())) if load > 0 else 1.0
    over = busy_period_counts(sample * scale, share, rate_rps, places)
    weights, bursts = bursty_queue(rate_rps, over, decode_rate)
    # bursts that fill all places, and what they leave waiting
    missing = places - np.arange(places)
    excess = 1.0 / (1.0 - load) - np.cumsum(over[:places])[missing - 1]
    entry = bursts @ (over[missing - 1] + (1.0 - load) * np.maximum(excess, 0.0))
    spare = instance.stability_rps - rate_rps
    # the true clock: with n prefills of a busy period over the next one stops decode for w
    stopped = load * np.convolve(weights, over[:places])[:places]
    opened = weights + stopped
    total = float(opened.sum() + entry / spare)
    present, full = opened / total, float(entry / spare / total)

    batches = np.append(0.0, instance.batches[:-1])
    prefilling = instance.stability_rps * instance.mean_prefill_s(instance.max_batch - 1.0)
    decoding = float(present @ batches) + full * max(instance.max_batch - min(prefilling, 1.0), 0.0)
    wait = rate_rps * float((work * work).mean()) / (2 * (1 - load))
    # tokens see a batch as often as it makes them
    step_s = np.append(1.0, instance.decode_step_s[:-1])
    made = weights * batches / step_s
    made_full = full * instance.stability_rps / rate_rps
    tokens = made / max(float(made.sum()), 1e-300) * max(1.0 - made_full, 0.0)
    return BatchLaw(
        present=present,
        full=full,
        tokens=tokens,
        tokens_full=min(made_full, 1.0),
        mean_decoding=decoding,
        mean_running=decoding + min(load, 1.0),
        prefill_wait_s=wait,
        seen=present,
        seen_full=full,
        busy_rate_rps=rate_rps,
        full_rate_rps=rate_rps,
        beside_rate_rps=rate_rps,
        idle=float(weights[0] / total),
    )
