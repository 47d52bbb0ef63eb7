"""What is built, in a few words: GPUs, nodes, pools; the recommended design; the traffic served."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smetric_model.analytic.demand import cluster_of
from smetric_model.designing.rows import counted, rate_text
from smetric_model.planning.words import percent
from smetric_model.tuning.sizing import with_instances

if TYPE_CHECKING:
    from smetric_model.designing.results import DesignPlan, DesignResult
    from smetric_model.scenario import Scenario

__all__ = ["advice", "design_hardware", "hardware", "spare_gpus", "traffic"]


def hardware(scenario: Scenario, count: int, nodes: bool = True) -> str:
    """Return so many instances of a scenario as GPUs, nodes and pools.

    Parameters
    ----------
    scenario : Scenario
    count : int
        Instances.
    nodes : bool, default True
        Whether nodes are named.
    """
    engine = scenario.engine
    sized = with_instances(scenario, count)
    text = f"{count * engine.tp:,} {engine.gpu}"
    if nodes:
        cluster = cluster_of(sized)
        text += f" on {counted(cluster.nodes, 'node')} of {cluster.gpus_per_node}"
    parts = []
    if engine.tp > 1:
        parts.append(f"{counted(count, 'instance')} of {engine.tp}")
    section = sized.cluster
    if section.serving == "disaggregated":
        parts.append(f"{section.prefill_instances} prefill, {section.decode_instances} decode")
    return f"{text} ({'; '.join(parts)})" if parts else text


def design_hardware(plan: DesignPlan, design: DesignResult, count: int | None = None) -> str:
    """Return a design's hardware at its answer, or at so many instances.

    Parameters
    ----------
    plan : DesignPlan
    design : DesignResult
    count : int, optional
    """
    scenario = design.scenario or plan.scenario
    if count is None:
        count = design.instances or plan.scenario.cluster.instances
    return hardware(scenario, count, nodes=plan.goal == "instances")


def advice(plan: DesignPlan) -> str:
    """Return the recommended design with its hardware in a few words.

    Parameters
    ----------
    plan : DesignPlan
    """
    design = plan.advised
    text = design_hardware(plan, design)
    if design is plan.given:
        return f"{text}, all else as given" if design.instances is not None else f"{text}, as given"
    gpu = design.scenario.engine.gpu if design.scenario is not None else ""
    return text if design.name == gpu else f"{text}: {design.name}"


def spare_gpus(scenario: Scenario) -> int:
    """Return the GPUs that its last nodes have beyond its instances.

    Parameters
    ----------
    scenario : Scenario
    """
    cluster = cluster_of(scenario)
    return cluster.nodes * cluster.gpus_per_node - cluster.instances * cluster.gpus_per_instance


def traffic(plan: DesignPlan) -> str:
    """Return the rate and the share that is to be within SLO, of what can be served.

    Parameters
    ----------
    plan : DesignPlan
    """
    wanted = percent(plan.scenario.slo.attainment, 0)
    lost = plan.given.number("unservable_ratio")
    if not lost > 0:
        return f"{rate_text(plan.rate_rps)} with {wanted} of requests within the SLO"
    rate = (plan.rate_rps or 0.0) * (1 - lost)
    return (
        f"{rate_text(plan.rate_rps)}, of which {percent(1 - lost, 0)} ({rate_text(rate)}) can be"
        f" served, with {wanted} of those within the SLO"
    )
