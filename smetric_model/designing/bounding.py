"""How far a design is from what no router can beat: bounds of its simulated answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smetric_model.designing.optimum import fewest_by_volume
from smetric_model.designing.results import DesignResult, Goal, Optimum
from smetric_model.errors import SolveError
from smetric_model.searches import fewest_near
from smetric_model.tuning.sizing import with_instances

if TYPE_CHECKING:
    from smetric_model.designing.runs import Runs
    from smetric_model.scenario import Scenario

__all__ = ["optimum_of"]


def optimum_of(runs: Runs, result: DesignResult, goal: Goal) -> Optimum | None:
    """Bound a design that was simulated; the fewest instances that the bound still allows.

    Parameters
    ----------
    runs : Runs
        Where bounds are worked out.
    result : DesignResult
    goal : {"instances", "capacity"}

    Returns
    -------
    Optimum or None
        None where it was not simulated, or cannot be bounded.
    """
    sized = result.sized
    if sized is None or result.check is None or result.instances is None:
        return None
    row = runs.bound({result.name: sized}, beside_run=True)[0]
    if row.get("error") or not row.get("bound_within_slo_tps"):
        return None
    at = result.check.at
    wanted = float(row["simulated_within_slo_tps"]) / float(row["offered_tps"])
    if at is not None and at.total_tps > 0:
        wanted = at.total_within_slo_tps / at.total_tps
    multiple, binding = float(row["volume_load_multiple"]), str(row["binding"])
    fewest = volume = None
    exact = bool(row["exact"])
    if goal == "instances":
        fewest, exact = _fewest_by_bound(runs, sized, wanted, exact)
        if "tier_elasticity" in row:  # rows of older versions do not have it
            volume = fewest_by_volume(
                sized, multiple, float(row["tier_elasticity"]), float(row["nic_elasticity"])
            )
    return Optimum(
        design=result.name,
        instances=result.instances,
        goodput_share=float(row["simulated_within_slo_tps"]) / float(row["bound_within_slo_tps"]),
        wanted_ratio=wanted,
        fewest_instances=fewest,
        volume_load_multiple=multiple,
        binding=binding,
        exact=exact,
        fewest_by_volume=volume,
    )


def _fewest_by_bound(
    runs: Runs, scenario: Scenario, wanted: float, exact: bool
) -> tuple[int | None, bool]:
    """Fewest instances with which some schedule might serve a share of the tokens within SLO."""
    proved = [exact]

    def possible(count: int) -> bool:
        name = f"{count} instances"
        row = runs.bound({name: with_instances(scenario, count)}, beside_run=False)[0]
        if row.get("error"):
            raise SolveError(str(row["error"]))
        proved.append(bool(row["exact"]))
        return float(row["bound_served_ratio"]) >= wanted

    least = 2 if scenario.cluster.serving == "disaggregated" else 1
    most = scenario.cluster.instances
    try:
        found = fewest_near(possible, max(round(0.6 * most), least), least, most)
    except SolveError:
        return None, False
    return found, all(proved)
