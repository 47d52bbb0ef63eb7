"""The questions that a plan asks beside its own, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
    from smetric_model.analytic.demand import Demand
    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

__all__ = ["operational_findings"]


def operational_findings(
    scenario: Scenario,
    *,
    seeds: int = 0,
    trace: Trace | None = None,
    progress: Progress = silent,
    keep: Callable[[str, Callable[[], Finding]], Finding] = lambda _title, work: work(),
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
    keep : callable, optional
        Given a question's title and what works out its finding: may return one that it has.

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
    if scenario.cluster.serving == "disaggregated":
        seeds = 0
    several = min(max(scenario.router.replicas, 4), 64)
    held: list[tuple[Trace, Demand, Scenario]] = []

    def work() -> tuple[Trace, Demand, Scenario]:
        """Load the workload for the first question that has to be worked out."""
        if not held:
            loaded = trace_of(scenario) if trace is None else trace
            demand = demand_of(scenario, loaded)
            held.append((loaded, demand, to_rate(scenario, demand)))
        return held[0]

    def told(name: str) -> Progress:
        return lambda text: progress(f"{name}: {text}")

    def lost(tell: Progress) -> Finding:
        _, demand, asked = work()
        return node_loss(asked, seeds=seeds, demand=demand, progress=tell)

    def restarted(tell: Progress) -> Finding:
        _, demand, asked = work()
        return cold_recovery(asked, "node", seeds=seeds, demand=demand, progress=tell)

    def routers(tell: Progress) -> Finding:
        _, demand, asked = work()
        return router_replicas(asked, (1, several), seeds=seeds, demand=demand, progress=tell)

    def tenants(tell: Progress) -> Finding:
        loaded, _, asked = work()
        return tenant_isolation(asked, trace=loaded, progress=tell)

    def halved(tell: Progress) -> Finding:
        loaded, _, asked = work()
        return kv_cache_dtype(asked, trace=loaded, progress=tell)

    questions: dict[str, Callable[[Progress], Finding]] = {
        "A node is lost": lost,
        "A node restarts": restarted,
        "Several routers": routers,
        "Tenants apart": tenants,
        "FP8 KV": halved,
    }

    def answered(title: str, ask: Callable[[Progress], Finding]) -> Finding:
        try:
            return ask(told(title))
        except (SpecError, TraceError, UnstableError, SolveError) as error:
            return Finding("none", title, (), (f"No answer here: {error}",), elapsed_s=0.0)

    return [keep(title, partial(answered, title, ask)) for title, ask in questions.items()]
