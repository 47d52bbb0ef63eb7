"""How each claim is read off a result table: one rule a claim, fixed before the comparison.

Where a figure names no load: hit ratios stand beside peaks and are taken at each policy's own
peak; loads, latencies and returns at the operating load (``data/reproduction.toml``), where
SMetric peaks.  The strongest of several baselines is the one with the best mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smetric_model.reproduction.rows import FloatArray, Rows, Value, ratio

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ESTIMATES", "LEVELS", "Estimate", "Level", "workload_estimate"]

#: rows, operating load -> value
Estimate = Callable[[Rows, float], Value]

_SMALL, _LARGE, _PREFILL = "colocated-30b", "colocated-235b", "prefill-30b"
_BASELINES = {
    _SMALL: ("bailian", "lmetric", "load-balance"),
    _LARGE: ("bailian", "lmetric", "load-balance"),
    _PREFILL: ("bailian", "lmetric", "dynamo"),
}
_PEAK, _OPERATING = math.nan, -1.0
_TIERS = ("none", "0.8x", "1.6x", "3.2x", "full")


def _load(given: float, operating: float) -> float:
    return operating if given == _OPERATING else given


@dataclass(frozen=True)
class Level:
    """Figure of one policy: a column of an outcome as it is.

    Attributes
    ----------
    setup, policy, column : str
        On which cluster, under which policy, which figure.
    load : float
        In multiples of 1.0x; NaN: of the policy's own peak; −1: the operating load.
    tier : str
        Global tier.
    """

    setup: str
    policy: str
    column: str
    load: float = _OPERATING
    tier: str = "full"

    def __call__(self, rows: Rows, operating: float) -> Value:
        """Value with its spread over seeds."""
        where = _load(self.load, operating)
        if math.isnan(where):
            where = rows.peak_load(self.setup, self.policy, self.tier)
        values = rows.at(self.setup, self.policy, self.tier, self.column, where)
        late = rows.undrained(self.setup, self.policy, self.tier, where)
        note = f"at {where:g}x" + (f"; {late} of {values.size} runs not drained" if late else "")
        return Value.of(values, note=note)


def _reuse(setup: str, policies: tuple[str, ...]) -> Estimate:
    """Total reuse with the full tier at the policies' peaks: its range."""

    def estimate(rows: Rows, _operating: float) -> Value:
        found = [
            Value.of(1 - rows.at(setup, policy, "full", "recomputed_ratio", _PEAK))
            for policy in policies
        ]
        means = [value.mean for value in found]
        spread = max(value.spread for value in found)
        note = ", ".join(
            f"{policy} {mean:.3f}" for policy, mean in zip(policies, means, strict=True)
        )
        mean = float(np.mean(means))
        return Value(mean, spread, min(means), max(means), note if len(policies) > 1 else "")

    return estimate


def _best(candidates: dict[str, FloatArray], lowest: bool) -> str:
    means = {name: float(np.nanmean(v)) for name, v in candidates.items() if not _void(v)}
    if not means:
        return next(iter(candidates))
    return (min if lowest else max)(means, key=lambda name: means[name])


def _void(values: FloatArray) -> bool:
    return not values.size or bool(np.isnan(values).all())


def _gain(
    setup: str,
    policy: str,
    against: tuple[str, ...],
    load: float,
    tier: str = "full",
    column: str = "goodput_tps",
    lowest: bool = False,
) -> Estimate:
    """Relative difference to the strongest of others (each at its own peak, or all at a load)."""

    def estimate(rows: Rows, operating: float) -> Value:
        where = _load(load, operating)
        others = {name: rows.at(setup, name, tier, column, where) for name in against}
        best = _best(others, lowest)
        value = ratio(rows.at(setup, policy, tier, column, where), others[best])
        at = "peaks" if math.isnan(where) else f"at {where:g}x"
        return Value(value.mean, value.spread, value.low, value.high, f"against {best}, {at}")

    return estimate


def _gain_over_tiers(setup: str, tiers: tuple[str, ...]) -> Estimate:
    """Range of SMetric's gain over the strongest baseline's peak."""

    def estimate(rows: Rows, operating: float) -> Value:
        found = {
            tier: _gain(setup, "smetric", _BASELINES[setup], _PEAK, tier)(rows, operating)
            for tier in tiers
        }
        known = {tier: value for tier, value in found.items() if not math.isnan(value.mean)}
        if not known:
            return Value()
        means = [value.mean for value in known.values()]
        note = "; ".join(
            f"{tier} {value.mean:+.3f} {value.note.split(',')[0]}" for tier, value in known.items()
        )
        spread = float(np.max([value.spread for value in known.values()]))
        return Value(float(np.mean(means)), spread, min(means), max(means), note)

    return estimate


def _evener_tail(rows: Rows, operating: float) -> Value:
    """C23: the guards lower the upper quarter of the windows' imbalance."""
    found = {}
    for statistic in ("p75", "p90", "p99"):
        column = f"imbalance_processed_tokens_30s_{statistic}"
        pair = [
            rows.at(_SMALL, policy, "full", column, operating)
            for policy in ("smetric", "smetric-basic")
        ]
        found[statistic] = ratio(*pair)
    if any(math.isnan(value.mean) for value in found.values()):
        return Value()
    holds = float(all(value.mean < 0 for value in found.values()))
    note = ", ".join(f"{name} {value.mean:+.3f}" for name, value in found.items())
    return Value(found["p90"].mean, found["p90"].spread, holds, holds, note)


def _slowest_fall(load: float) -> Estimate:
    """C31: beyond its peak every policy loses, SMetric the smallest share."""

    def estimate(rows: Rows, _operating: float) -> Value:
        falls = {
            policy: ratio(
                rows.at(_SMALL, policy, "full", "goodput_tps", load),
                rows.at(_SMALL, policy, "full", "goodput_tps", _PEAK),
            )
            for policy in ("smetric", *_BASELINES[_SMALL])
        }
        means = {policy: value.mean for policy, value in falls.items()}
        if any(math.isnan(mean) for mean in means.values()):
            return Value()
        others = max(mean for policy, mean in means.items() if policy != "smetric")
        holds = float(all(mean < 0 for mean in means.values()) and means["smetric"] > others)
        note = ", ".join(f"{policy} {mean:+.3f}" for policy, mean in means.items())
        return Value(means["smetric"], falls["smetric"].spread, holds, holds, note)

    return estimate


def _plateau(key: str) -> Estimate:
    """C69, C70: largest change of SMetric's goodput over the values of a key."""

    def estimate(rows: Rows, operating: float) -> Value:
        default = rows.at(_SMALL, "smetric", "full", "goodput_tps", operating)
        changes = {
            variant: ratio(values, default) for variant, values in rows.router(_SMALL, key).items()
        }
        known = {name: value for name, value in changes.items() if not math.isnan(value.mean)}
        if not known:
            return Value()
        name = max(known, key=lambda variant: abs(known[variant].mean))
        value = known[name]
        note = "; ".join(
            f"{v.split(' = ')[-1]}: {found.mean:+.3f}" for v, found in sorted(known.items())
        )
        return Value(abs(value.mean), value.spread, abs(value.mean), abs(value.mean), note)

    return estimate


def _long_request(_rows: Rows, _operating: float) -> Value:
    """C12: bytes of 131,072 tokens, in GiB."""
    from smetric_model.analytic.memory import kv_bytes_per_token
    from smetric_model.catalog.gpu import get_gpu
    from smetric_model.catalog.instance import InstanceSpec
    from smetric_model.catalog.llm import get_llm
    from smetric_model.units import GIB

    instance = InstanceSpec(get_llm("Qwen3-32B"), get_gpu("H20"), tp=2, kv_dtype="bf16")
    return Value.of(np.array([kv_bytes_per_token(instance) * 131_072 / GIB]), note="GiB")


_IMBALANCE = "imbalance_processed_tokens_60s_mean"
_UNPREFILLED = "imbalance_unprefilled_tokens_60s_mean"
_ALL_SMALL = ("smetric", *_BASELINES[_SMALL])


def _peak_gain(setup: str, policy: str, against: tuple[str, ...], tier: str = "full") -> Estimate:
    return _gain(setup, policy, against, _PEAK, tier)


#: claim -> how it is read; the traces' own claims are in :func:`workload_estimate`
ESTIMATES: dict[str, Estimate] = {
    "C12": _long_request,
    "C13": _peak_gain(_SMALL, "load-balance", ("bailian", "lmetric")),
    "C14": _reuse(_SMALL, ("bailian", "lmetric", "load-balance")),
    "C15": Level(_SMALL, "bailian", "local_ratio", _PEAK, "none"),
    "C16": Level(_SMALL, "lmetric", "local_ratio", _PEAK, "none"),
    "C17": Level(_SMALL, "load-balance", "local_ratio", _PEAK, "none"),
    "C18": Level(_SMALL, "load-balance", _IMBALANCE),
    "C19": Level(_SMALL, "lmetric", _IMBALANCE),
    "C20": Level(_SMALL, "bailian", _IMBALANCE),
    "C21": Level(_SMALL, "load-balance", "return_to_first_ratio"),
    "C22": Level(_SMALL, "bailian", "return_to_first_ratio"),
    "C23": _evener_tail,
    "C24": Level(_SMALL, "smetric", _IMBALANCE),
    "C25": Level(_SMALL, "bailian", _IMBALANCE),
    "C26": Level(_SMALL, "lmetric", _IMBALANCE),
    "C27": Level(_SMALL, "load-balance", _IMBALANCE),
    "C28": _gain(_SMALL, "smetric", _BASELINES[_SMALL], 1.0),
    "C29": _gain(_SMALL, "smetric", _BASELINES[_SMALL], 1.5),
    "C30": _gain(_SMALL, "smetric", _BASELINES[_SMALL], 1.75),
    "C31": _slowest_fall(2.0),
    "C32": _gain_over_tiers(_SMALL, _TIERS[1:]),
    "C33": _peak_gain(_SMALL, "smetric", ("bailian",), "none"),
    "C34": Level(_SMALL, "smetric", "local_ratio", _PEAK),
    "C35": Level(_SMALL, "bailian", "local_ratio", _PEAK),
    "C36": Level(_SMALL, "smetric", "ttft_p50_s", 1.5),
    "C37": _gain(_SMALL, "smetric", _BASELINES[_SMALL], 1.5, column="tpot_p50_s", lowest=True),
    "C38": _gain(_SMALL, "smetric", _BASELINES[_SMALL], 1.5, column="tpot_p90_s", lowest=True),
    "C39": Level(_LARGE, "smetric", "goodput_tps", _PEAK),
    "C40": _peak_gain(_LARGE, "smetric", ("bailian",)),
    "C41": _gain(_LARGE, "smetric", ("lmetric",), _OPERATING),
    "C42": Level(_LARGE, "smetric", _IMBALANCE),
    "C43": Level(_LARGE, "lmetric", _IMBALANCE),
    "C44": Level(_LARGE, "bailian", _IMBALANCE),
    "C45": Level(_LARGE, "load-balance", _IMBALANCE),
    "C46": _gain(_LARGE, "load-balance", ("smetric",), _OPERATING),
    "C47": Level(_LARGE, "smetric", "local_ratio", _PEAK),
    "C48": _reuse(_LARGE, ("smetric",)),
    "C49": Level(_LARGE, "smetric", "ttft_p50_s"),
    "C50": Level(_LARGE, "smetric", "ttft_p90_s"),
    "C51": _gain(
        _LARGE, "smetric", _BASELINES[_LARGE], _OPERATING, column="tpot_p90_s", lowest=True
    ),
    "C52": _gain(
        _LARGE, "smetric", _BASELINES[_LARGE], _OPERATING, column="tpot_p99_s", lowest=True
    ),
    "C53": _gain_over_tiers(_PREFILL, _TIERS),
    "C54": _peak_gain(_PREFILL, "smetric", ("bailian",), "1.6x"),
    "C55": _peak_gain(_PREFILL, "smetric", ("lmetric",)),
    "C56": _reuse(_PREFILL, ("smetric",)),
    "C57": Level(_PREFILL, "smetric", "local_ratio", _PEAK),
    "C58": Level(_PREFILL, "bailian", "local_ratio", _PEAK),
    "C59": Level(_PREFILL, "smetric", _UNPREFILLED),
    "C60": Level(_PREFILL, "bailian", _UNPREFILLED),
    "C61": Level(_PREFILL, "lmetric", _UNPREFILLED),
    "C62": Level(_PREFILL, "dynamo", _UNPREFILLED),
    "C63": Level(_PREFILL, "smetric", "ttft_p50_s"),
    "C64": Level(_PREFILL, "smetric", "ttft_p90_s"),
    "C65": Level(_PREFILL, "smetric", "ttft_p99_s"),
    "C66": Level(_SMALL, "smetric", "ttft_p90_s"),
    "C67": Level(_SMALL, "smetric", "ttft_p99_s"),
    "C68": Level(_SMALL, "smetric", "tpot_p95_s"),
    "C69": _plateau("router.overload"),
    "C70": _plateau("router.hit_ratio"),
}

#: the claims that are a column of an outcome as it is
LEVELS: dict[str, Level] = {
    claim: estimate for claim, estimate in ESTIMATES.items() if isinstance(estimate, Level)
}

#: claim of the traces -> column, and whether it is about the paper's second trace
_WORKLOAD = {
    "C01": ("ideal_reuse_ratio", False),
    "C02": ("intra_reuse_ratio", False),
    "C03": ("system_reuse_ratio", False),
    "C04": ("system_reuse_ratio", True),
    "C05": ("soon_reuse_ratio", False),
    "C06": ("first_turn_ratio", False),
    "C07": ("requests_per_instance_and_minute", False),
    "C08": ("requests_per_instance_and_minute", True),
    "C09": ("imbalance_median", False),
    "C10": ("imbalance_median", True),
}


def workload_estimate(claim: str, table: pd.DataFrame, preset: str) -> Value | None:
    """Value of a claim about the traces.

    Parameters
    ----------
    claim : str
        Its id.
    table : DataFrame
        Rows of :func:`~smetric_model.reproduction.workload.workload_row`.
    preset : str

    Returns
    -------
    Value or None
        None, if the claim is about something else.
    """
    from smetric_model.reproduction.workload import other_trace

    if claim not in _WORKLOAD:
        return None
    column, second = _WORKLOAD[claim]
    name = other_trace(preset) if second else preset
    if not len(table):
        return Value()
    values = table.loc[table["preset"] == name, column].to_numpy(dtype=np.float64)
    return Value.of(values)
