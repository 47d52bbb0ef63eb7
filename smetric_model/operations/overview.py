"""The questions that a plan asks beside its own, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from smetric_model.analytic.demand import demand_of, trace_of
from smetric_model.errors import SolveError, SpecError, TraceError, UnstableError
from smetric_model.operations.findings import Finding, Progress, silent, to_rate
from smetric_model.operations.kv_dtype import kv_cache_dtype
from smetric_model.operations.node_loss import node_loss
from smetric_model.operations.recovery import cold_recovery
from smetric_model.operations.routers import router_replicas
from smetric_model.operations.tenants import tenant_isolation

if TYPE_CHECKING:
    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

__all__ = ["operational_findings"]


def operational_findings(
    scenario: Scenario,
    *,
    seeds: int = 0,
    trace: Trace | None = None,
    progress: Progress = silent,
) -> list[Finding]:
    """Ask what a node's loss, cold caches, several routers, tenants apart and FP8 KV do here.

    Parameters
    ----------
    scenario : Scenario
        The question.
    seeds : int, default 0
        Simulated seeds of those questions that are simulated; 0: closed form only, as always where
        serving is disaggregated (failures are not simulated there).
    trace : Trace, optional
        The workload, if it is at hand.
    progress : callable, optional
        Told what is worked out.

    Returns
    -------
    list of Finding
        Where a question has no answer here, its finding says why, without figures.

    Raises
    ------
    SpecError
        If the scenario cannot be resolved.
    TraceError
        If the trace cannot be read.
    """
    trace = trace_of(scenario) if trace is None else trace
    demand = demand_of(scenario, trace)
    asked = to_rate(scenario, demand)
    if scenario.cluster.serving == "disaggregated":
        seeds = 0
    several = min(max(scenario.router.replicas, 4), 64)

    def told(name: str) -> Progress:
        return lambda text: progress(f"{name}: {text}")

    questions: dict[str, Callable[[Progress], Finding]] = {
        "A node is lost": lambda tell: node_loss(asked, seeds=seeds, demand=demand, progress=tell),
        "A node restarts": lambda tell: cold_recovery(
            asked, "node", seeds=seeds, demand=demand, progress=tell
        ),
        "Several routers": lambda tell: router_replicas(
            asked, (1, several), seeds=seeds, demand=demand, progress=tell
        ),
        "Tenants apart": lambda tell: tenant_isolation(asked, trace=trace, progress=tell),
        "FP8 KV": lambda tell: kv_cache_dtype(asked, trace=trace, progress=tell),
    }
    findings = []
    for title, ask in questions.items():
        try:
            findings.append(ask(told(title)))
        except (SpecError, TraceError, UnstableError, SolveError) as error:
            findings.append(
                Finding("none", title, (), (f"No answer here: {error}",), elapsed_s=0.0)
            )
    return findings
