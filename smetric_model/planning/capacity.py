"""Capacity under one assumption about reuse: limits, best rates, instances needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from smetric_model.analytic.predict import Prediction
from smetric_model.planning.results import EndPlan
from smetric_model.planning.words import percent
from smetric_model.searches import fewest

__all__ = ["capacity"]

_LARGEST_CLUSTER = 1 << 30  # the search doubles: a rate no cluster is built for still has a number
_IDLE = 1e-3  # load below which a cluster counts as idle


def _link_limit(prediction: Prediction, high: float) -> float:
    """Largest rate below ``high`` at which the NICs do not saturate."""

    def carried(rate: float) -> bool:
        return prediction.nic_utilisation(rate, prediction.hits(rate).fetched) < 1

    if prediction.reuse == "none" or carried(high):
        return high
    low = 0.0
    for _ in range(14):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if carried(middle) else (low, middle)
    return low


def capacity(
    prediction: Prediction, servable_rps: float | None, tell: Callable[[str], None]
) -> EndPlan:
    """Work out the capacity of a cluster under one assumption about reuse.

    Parameters
    ----------
    prediction : Prediction
        The closed form, at any rate.
    servable_rps : float or None
        Servable requests per second that the cluster must serve, for the instances needed.
    tell : callable
        Told what is being worked out.

    Returns
    -------
    EndPlan
    """
    stable = prediction.stability_rps
    limit = _link_limit(prediction, stable)
    n = prediction.cluster.instances
    instance, _ = prediction.instance_at(0.999 * limit)
    resource = "nic" if limit < stable else prediction.engine_resource(instance)
    mean_tokens = float(prediction.total_tokens.mean())

    seen: dict[float, tuple[float, float]] = {}

    def within_slo(rate: float) -> tuple[float, float]:
        if rate not in seen:
            seen[rate] = prediction.within_slo(rate)
        return seen[rate]

    rates = np.concatenate((limit * np.array([1e-3, 0.05]), np.linspace(0.1, 0.98, 12) * limit))
    shares, good = (np.array(v) for v in zip(*(within_slo(float(r)) for r in rates), strict=True))
    best = int(good.argmax())
    around = (rates[max(best - 1, 0)], rates[min(best + 1, rates.size - 1)])
    refined = minimize_scalar(
        lambda r: -within_slo(float(r))[1],
        bounds=around,
        method="bounded",
        options={"xatol": 0.003 * limit},
    )
    peak_rps, peak_tps = float(refined.x), float(-refined.fun)
    if good[best] > peak_tps:
        peak_rps, peak_tps = float(rates[best]), float(good[best])

    wanted = prediction.scenario.slo.attainment
    attainment = _attainment(within_slo, rates, shares, wanted)
    at = attainment if attainment else limit * 0.999
    _, hits = prediction.instance_at(at)
    reused = prediction.prompt_share(hits.local + hits.fetched)
    ttft_missed, tpot_missed = _missed(prediction, attainment or float(rates[0]))
    needed = None
    if servable_rps is not None:
        tell(f"instances needed, reuse = {prediction.reuse}")
        needed = _instances_needed(prediction, servable_rps, wanted)
    return EndPlan(
        reuse=prediction.reuse,
        reused_ratio=reused,
        saturation_rps=limit,
        saturation_tps=limit * mean_tokens,
        binding_resource=resource,
        tpot_ceiling_rps=n * instance.tpot_ceiling_rps(prediction.scenario.slo.tpot_s),
        peak_rps=peak_rps,
        peak_within_slo_tps=peak_tps,
        attainment_rps=attainment,
        attainment_tps=None if attainment is None else attainment * mean_tokens,
        best_within_slo_ratio=float(shares[0]),
        instances_needed=needed,
        max_batch=instance.max_batch,
        limited_by=_why(attainment, limit, wanted, float(shares[0]), ttft_missed, tpot_missed),
        ttft_missed_ratio=ttft_missed,
        tpot_missed_ratio=tpot_missed,
        rates_rps=tuple(sorted(seen)),
        within_slo_ratio=tuple(seen[r][0] for r in sorted(seen)),
        within_slo_tps=tuple(seen[r][1] for r in sorted(seen)),
    )


def _attainment(
    within_slo: Callable[[float], tuple[float, float]], rates: Any, shares: Any, wanted: float
) -> float | None:
    met = np.flatnonzero(shares >= wanted)
    if not met.size:
        return None
    last = int(met[-1])
    if last == rates.size - 1:
        return float(rates[last])
    low, high = float(rates[last]), float(rates[last + 1])
    for _ in range(9):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if within_slo(middle)[0] >= wanted else (low, middle)
    return low


def _instances_needed(prediction: Prediction, rate_rps: float, wanted: float) -> int | None:
    """Fewest instances with the wanted share within SLO; nodes grow with them."""

    def enough(instances: int) -> bool:
        scenario = prediction.scenario.replace(**{"cluster.instances": instances})
        other = prediction.on(scenario)
        return other.within_slo(rate_rps)[0] >= wanted

    # on an idle cluster nothing waits: more instances then change nothing
    idle = rate_rps * prediction.cluster.instances / (_IDLE * prediction.stability_rps)
    start = max(prediction.cluster.instances, 1)
    return fewest(enough, start, most=max(min(int(idle) + 1, _LARGEST_CLUSTER), start))


def _why(
    attainment: float | None,
    limit: float,
    wanted: float,
    best: float,
    ttft_missed: float,
    tpot_missed: float,
) -> str:
    missed = f"TTFT missed by {ttft_missed:.1%}, TPOT by {tpot_missed:.1%} of requests there"
    if attainment is None:
        return (
            f"no rate: even idle, {percent(best)} of requests meet the SLO ({wanted:.0%} wanted); "
            + missed
        )
    return "saturation" if attainment >= 0.97 * limit else missed


def _missed(prediction: Prediction, rate: float) -> tuple[float, float]:
    loaded, _ = prediction.loaded(rate)
    probability = loaded.slo_probability()
    return 1 - float(probability.ttft.mean()), 1 - float(probability.tpot.mean())
