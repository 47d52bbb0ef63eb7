"""Shadow prices: what one more instance, GB or Gbit/s would bring to a bound.

The bound at given prices is a function of the capacities; its derivative at the optimal prices is
that of the optimum (envelope theorem).  So the same certificate is worked out once more for a
slightly larger cluster.  That includes what a larger pool does to the batch, which no price of a
capacity row shows.  Re-solving for the larger cluster gives the finite difference to compare with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from smetric_model.bound.certify import RESOURCES, Prices, goodput_bound, scale_bound
from smetric_model.bound.problem import Problem
from smetric_model.bound.row_choice import for_pool
from smetric_model.bound.solvers import SolverOptions
from smetric_model.errors import SpecError

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.bound.timed import Timed
    from smetric_model.bound.volume import Volume

__all__ = ["UNITS", "break_even", "grown", "shadow_prices", "window_prices"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class _Unit:
    text: str
    size: float  #: of one unit, in SI


#: what may be bought, and the unit in which it is priced
UNITS = {
    "instance": _Unit("one more instance (prefills; colocated: both)", 1.0),
    "decode_instance": _Unit("one more decode instance", 1.0),
    "local_gb": _Unit("1 GB more GPU memory for KV, spread over all instances", 1e9),
    "global_gb": _Unit("1 GB more in the global tier, all nodes together", 1e9),
    "nic_gbps": _Unit("1 Gbit/s more of NICs, all nodes together", 1e9 / 8),
    "pcie_gbps": _Unit("1 Gbit/s more of PCIe, all instances together", 1e9 / 8),
}


def grown(problem: Problem, what: str, units: float) -> Problem:
    """Return the problem on a cluster with more of something.

    Parameters
    ----------
    problem : Problem
        Before.
    what : str
        A key of :data:`UNITS`.
    units : float
        How much more; may be a fraction.

    Returns
    -------
    Problem

    Raises
    ------
    SpecError
        If there is no such unit, or the cluster has no such pool.
    """
    if what not in UNITS:
        raise SpecError(f"what = {what!r}: one of {', '.join(UNITS)}")
    have = problem.capacities
    amount = units * UNITS[what].size
    if what == "instance":
        pcie = have.pcie_bytes_per_s / (have.compute + have.decode_compute)
        return problem.with_capacities(
            compute=have.compute + amount,
            local_tokens=have.local_tokens + amount * problem.pool_tokens,
            pcie_bytes_per_s=have.pcie_bytes_per_s + amount * pcie,
        )
    if what == "decode_instance":
        if not have.decode_compute:
            raise SpecError("decode_instance: the cluster is colocated")
        pcie = have.pcie_bytes_per_s / (have.compute + have.decode_compute)
        return problem.with_capacities(
            decode_compute=have.decode_compute + amount,
            decode_local_tokens=have.decode_local_tokens + amount * problem.pool_tokens,
            pcie_bytes_per_s=have.pcie_bytes_per_s + amount * pcie,
        )
    if what == "local_gb":
        total = have.local_tokens + have.decode_local_tokens
        factor = 1.0 + amount / problem.kv_bytes_per_token / total
        larger = problem.with_capacities(
            local_tokens=have.local_tokens * factor,
            decode_local_tokens=have.decode_local_tokens * factor,
        )
        return for_pool(larger, factor)
    if what == "global_gb":
        more = amount / problem.kv_bytes_per_token
        return problem.with_capacities(global_tokens=have.global_tokens + more)
    if what == "nic_gbps":
        return problem.with_capacities(nic_bytes_per_s=have.nic_bytes_per_s + amount)
    return problem.with_capacities(pcie_bytes_per_s=have.pcie_bytes_per_s + amount)


def _sensible(problem: Problem) -> list[str]:
    have = problem.capacities
    names = ["instance", *(["decode_instance"] if have.decode_compute else []), "local_gb"]
    if have.global_tokens > 0:
        names.append("global_gb")
        names += ["nic_gbps"] if np.isfinite(have.nic_bytes_per_s) else []
        names.append("pcie_gbps")
    return names


def shadow_prices(
    problem: Problem,
    volume: Volume,
    goodput: Timed | None = None,
    *,
    check: float | None = None,
    options: SolverOptions | None = None,
) -> pd.DataFrame:
    """Return what one more unit of each resource brings.

    Parameters
    ----------
    problem : Problem
        What was bounded.
    volume : Volume
        Its volume bound.
    goodput : Timed, optional
        Its goodput bound.
    check : float, optional
        Also re-solve for clusters with this relative increase, such as 0.01, and give the finite
        differences.
    options : SolverOptions, optional
        For these solves.

    Returns
    -------
    DataFrame
        One row a unit of :data:`UNITS` that the cluster has: ``unit``; ``volume_tps``,
        ``goodput_tps``, the increase of ``total_tps`` and ``total_within_slo_tps`` per unit
        [tokens/s]; ``volume_relative`` of the former; with ``check`` ``step_units`` and
        ``volume_difference_tps``, ``goodput_difference_tps`` per unit.
    """
    import pandas as pd

    from smetric_model.bound.timed import timed_bound
    from smetric_model.bound.volume import volume_by_thresholds

    offered = float(problem.value_tokens.sum()) / problem.window_s
    rows = []
    tiny = 1e-6
    if check is not None:
        base_low, _, _ = volume_by_thresholds(problem, tolerance=1e-9)
    for name in _sensible(problem):
        step = tiny * _size(problem, name)
        larger = grown(problem, name, step)
        before, _ = scale_bound(problem, volume.prices, writes=True)
        after, _ = scale_bound(larger, volume.prices, writes=True)
        gain = offered * (1 / after - 1 / before) / step if before > 0 else np.nan
        row: dict[str, object] = {
            "what": name,
            "unit": UNITS[name].text,
            "volume_tps": gain,
            "volume_relative": gain * before / offered,
        }
        if goodput is not None:
            a, _ = goodput_bound(problem, goodput.prices)
            b, _ = goodput_bound(larger, goodput.prices)
            row["goodput_tps"] = (b - a) / problem.window_s / step
        if check is not None:
            units = check * _size(problem, name)
            wide = grown(problem, name, units)
            low, _, _ = volume_by_thresholds(wide, tolerance=1e-9)
            row["step_units"] = units
            row["volume_difference_tps"] = offered * (1 / low - 1 / base_low) / units
            if goodput is not None:
                width = float(goodput.prices.capacity_s[0])
                settings = {"window_s": width, "fallback": volume.prices}
                now = timed_bound(problem, options, **settings)  # type: ignore[arg-type]
                then = timed_bound(wide, options, **settings)  # type: ignore[arg-type]
                row["goodput_difference_tps"] = (
                    then.total_within_slo_tps - now.total_within_slo_tps
                ) / units
        rows.append(row)
    return pd.DataFrame(rows).set_index("what")


def _size(problem: Problem, name: str) -> float:
    """How much the cluster has, in units."""
    have = problem.capacities
    bytes_ = problem.kv_bytes_per_token
    return {
        "instance": have.compute,
        "decode_instance": have.decode_compute,
        "local_gb": (have.local_tokens + have.decode_local_tokens) * bytes_ / 1e9,
        "global_gb": have.global_tokens * bytes_ / 1e9,
        "nic_gbps": have.nic_bytes_per_s * 8 / 1e9,
        "pcie_gbps": have.pcie_bytes_per_s * 8 / 1e9,
    }[name]


def window_prices(problem: Problem, prices: Prices) -> pd.DataFrame:
    """Value of each resource's capacity in each window: when it binds.

    Parameters
    ----------
    problem : Problem
        What was bounded.
    prices : Prices
        Of a time-resolved bound.

    Returns
    -------
    DataFrame
        One row a window: ``start_s``, ``end_s`` and one column a resource of
        :data:`~smetric_model.bound.certify.RESOURCES` that is priced, the value of all its
        capacity in that window (goodput: tokens; multiple of the load: shares that sum to 1).
    """
    import pandas as pd

    from smetric_model.bound.certify import capacity_value_s

    table: dict[str, FloatArray] = {"start_s": prices.edges_s[:-1], "end_s": prices.edges_s[1:]}
    values = capacity_value_s(problem, prices)
    for name in RESOURCES:
        if name in values:
            table[name] = values[name] * prices.capacity_s
    return pd.DataFrame(table)


def break_even(table: pd.DataFrame, instance_cost: float = 1.0) -> pd.DataFrame:
    """Return what a unit may cost to bring as much as the same money spent on instances.

    Parameters
    ----------
    table : DataFrame
        From :func:`shadow_prices`.
    instance_cost : float, default 1
        Cost of one instance, in any currency and per any time.

    Returns
    -------
    DataFrame
        Index as ``table``; ``by_volume`` and (if there) ``by_goodput``: the break-even cost of one
        unit, in the currency of ``instance_cost``; NaN where an instance brings nothing.
    """
    import pandas as pd

    result = {}
    for column, name in (("volume_tps", "by_volume"), ("goodput_tps", "by_goodput")):
        if column in table:
            per_instance = float(table[column].to_dict()["instance"])
            worth = table[column].to_numpy(dtype=float)
            result[name] = (
                instance_cost * worth / per_instance
                if per_instance > 0
                else np.full(worth.size, np.nan)
            )
    return pd.DataFrame(result, index=table.index)
