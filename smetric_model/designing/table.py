"""A search over designs as a tidy table, and as plain values."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from smetric_model.analytic.demand import cluster_of
from smetric_model.designing.closed_form import COLUMNS

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.designing.results import DesignPlan, DesignResult

__all__ = ["designs_frame", "plan_dict"]


def designs_frame(plan: DesignPlan) -> pd.DataFrame:
    """Return all designs, one row each; see :meth:`DesignPlan.frame`.

    Parameters
    ----------
    plan : DesignPlan
    """
    import pandas as pd

    keys = list(dict.fromkeys(key for d in plan.designs for key, _ in d.changes))
    return pd.DataFrame([_row(plan, design, keys) for design in plan.designs])


def _row(plan: DesignPlan, design: DesignResult, keys: list[str]) -> dict[str, Any]:
    changes = dict(design.changes)
    row: dict[str, Any] = {"design": design.name}
    row |= {key: changes.get(key, _given(plan, key)) for key in keys}
    row |= {
        "error": design.error,
        "instances": design.instances,
        "instances_source": "" if design.error else design.source,
        "gpus": design.gpus,
        "on_front": design.on_front,
        "closed_form_instances": design.closed_form_instances,
        "closed_form_instances_exact": design.row.get("instances_exact"),
        "rate_rps": design.row.get("rate_rps"),
    }
    row |= {f"closed_form_{name}": design.row.get(name) for name in COLUMNS if name != "note"}
    check, at = design.check, None if design.check is None else design.check.at
    row |= {
        "simulated_instances": None if check is None else check.instances,
        "simulated_instances_low": None if check is None else check.low,
        "simulated_instances_high": None if check is None else check.high,
        "simulated_within_slo_ratio": None if at is None else at.mean,
        "simulated_within_slo_ratio_half_width": None if at is None else at.half_width,
        "simulated_total_within_slo_tps": None if at is None else at.total_within_slo_tps,
        "simulated_ttft_p90_s": None if at is None else at.ttft_p90_s,
        "simulated_tpot_p90_s": None if at is None else at.tpot_p90_s,
        "cost_unit": plan.prices.unit,
        "cost_per_hour": None if design.bill is None else design.bill.total,
    }
    for name in ("computed_prompt", "reused_prompt", "output", "total", "within_slo"):
        cost = None if design.costs is None else getattr(design.costs, name)
        row[f"cost_per_million_{name}_tokens"] = cost
    return row | {"note": design.row.get("note", "")}


def _given(plan: DesignPlan, key: str) -> Any:
    section, _, inner = key.partition(".")
    if key == "prefill_share":
        cluster = plan.scenario.cluster
        return (cluster.prefill_instances or 0) / cluster.instances
    held = plan.scenario.to_dict().get(section)
    return held.get(inner) if isinstance(held, dict) else held


def plan_dict(plan: DesignPlan) -> dict[str, Any]:
    """Return a plan as plain values; see :meth:`DesignPlan.to_dict`.

    Parameters
    ----------
    plan : DesignPlan
    """
    placement = plan.placement
    at = placement.scenario
    result: dict[str, Any] = {
        "scenario": plan.scenario.to_dict(),
        "scenario_id": plan.scenario.scenario_id,
        "rate_rps": plan.rate_rps,
        "goal": plan.goal,
        "recommended": _brief(plan, plan.recommended),
        "cheapest": _brief(plan, plan.cheapest),
        "warnings": list(plan.warnings),
        "answers": [asdict(answer) for answer in plan.answers],
    }
    # of the recommended design: workload, instance, ends, tiers, fetch, steps
    result["placement"] = {
        "design": plan.recommended,
        "scenario_id": at.scenario_id,
        "instances": at.cluster.instances,
        "nodes": cluster_of(at).nodes,
        "rate_rps": placement.rate_rps,
    }
    result |= {key: v for key, v in placement.to_dict().items() if key not in result}
    result |= {
        "designs": [_design(design) for design in plan.designs],
        "space": plan.space.to_dict(),
        "prices": plan.prices.to_dict(),
        "tuning": None if plan.tuning is None else plan.tuning.to_dict(),
        "marginals": [asdict(m) | {"saved_gpus": m.saved_gpus} for m in plan.marginals],
        "optimum": None if plan.optimum is None else asdict(plan.optimum),
        "limit": None if plan.limit is None else asdict(plan.limit),
        "looser_slo": None if plan.looser is None else asdict(plan.looser),
        "sensitivities": [move.to_dict() for move in plan.sensitivities],
        "findings": [finding.to_dict() for finding in plan.findings],
        "seeds": list(plan.seeds),
        "notes": [*plan.notes, *plan.placement.notes],
        "elapsed_s": plan.elapsed_s,
        "seconds": plan.seconds,
    }
    return {key: _finite(value) for key, value in result.items()}


def _brief(plan: DesignPlan, name: str) -> dict[str, Any] | None:
    """Return a design in the fields that a reader wants first; None where there is none."""
    if not name:
        return None
    design = plan[name]
    return {
        "design": name,
        "instances": design.instances,
        "instances_source": "" if design.error else design.source,
        "gpu": None if design.scenario is None else design.scenario.engine.gpu,
        "gpus": design.gpus,
        "cost_per_hour": None if design.bill is None else design.bill.total,
        "cost_unit": plan.prices.unit,
    }


def _design(design: DesignResult) -> dict[str, Any]:
    return {
        "name": design.name,
        "changes": dict(design.changes),
        "scenario_id": None if design.scenario is None else design.scenario.scenario_id,
        "error": design.error,
        "instances": design.instances,
        "instances_source": "" if design.error else design.source,
        "gpus": design.gpus,
        "on_front": design.on_front,
        "closed_form": {k: v for k, v in design.row.items() if k not in ("error", "error_class")},
        "bill": None if design.bill is None else asdict(design.bill) | {"total": design.bill.total},
        "cost_per_million_tokens": None if design.costs is None else design.costs.to_dict(),
        "simulated": None if design.check is None else design.check.to_dict(),
    }


def _finite(value: Any) -> Any:
    """Return what is not finite as None, as JSON has it."""
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
