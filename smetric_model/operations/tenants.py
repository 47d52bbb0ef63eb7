"""Tenant isolation's price: caches that tenants do not share, or clusters of their own."""

from __future__ import annotations

import contextlib
import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from smetric_model.analytic.demand import Demand, demand_of, trace_of
from smetric_model.errors import SpecError, UnstableError
from smetric_model.operations.findings import Figure, Finding, Progress, silent, to_rate
from smetric_model.planning.words import number, percent
from smetric_model.scenario_groups import check_equal_instances

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

__all__ = ["salted", "tenant_isolation", "tenant_shares"]

_KEPT = ("local_ratio", "global_ratio", "within_slo_ratio", "total_within_slo_tps")


def tenant_shares(tenants: int, zipf_exponent: float) -> np.ndarray:
    """Return each tenant's share of the sessions: k to the power of minus the exponent.

    Parameters
    ----------
    tenants : int
        At least 1.
    zipf_exponent : float
        0: equal shares.

    Returns
    -------
    ndarray, shape (tenants,)

    Raises
    ------
    SpecError
        If a value is not allowed.
    """
    from smetric_model.workload.synthesis_sections import zipf_shares

    if tenants < 1:
        raise SpecError(f"tenants = {tenants!r}: at least 1 is needed")
    if not (math.isfinite(zipf_exponent) and zipf_exponent >= 0):
        raise SpecError(f"zipf_exponent = {zipf_exponent!r}: a number of at least 0 is needed")
    return np.asarray(zipf_shares(tenants, zipf_exponent), dtype=float)


def salted(trace: Trace, tenants: int, zipf_exponent: float = 0.0, seed: int = 0) -> Trace:
    """Return a trace whose sessions belong to tenants who share no block.

    Parameters
    ----------
    trace : Trace
        One clock for all sessions, which it names.
    tenants : int
        How many; each session (with the subagents it spawned) gets one at random.
    zipf_exponent : float, default 0
        Of their shares.
    seed : int, default 0

    Returns
    -------
    Trace
        The same requests; with one tenant the trace itself.

    Raises
    ------
    SpecError
        If a value is not allowed.
    TraceError
        If sessions share no clock or are not named.
    """
    from dataclasses import replace

    from smetric_model.workload.starts import root_sessions
    from smetric_model.workload.synthesis_build import compact_tree
    from smetric_model.workload.synthesis_scaling import superpose

    shares = tenant_shares(tenants, zipf_exponent)
    if tenants == 1:
        return trace
    root = root_sessions(trace)
    drawn = np.random.default_rng([seed, 2]).choice(tenants, size=root.size, p=shares)
    of_row = drawn[root][trace.require_sessions()]
    parts = []
    for tenant in np.unique(of_row):
        part = trace.take(np.flatnonzero(of_row == tenant))
        parts.append(part if part.tree is None else replace(part, tree=compact_tree(part.tree)))
    return replace(superpose(parts), source=f"{trace.source}, {tenants} tenants apart")


def tenant_isolation(
    scenario: Scenario,
    tenants: int = 8,
    zipf_exponent: float = 0.0,
    *,
    seeds: int = 0,
    trace: Trace | None = None,
    progress: Progress = silent,
) -> Finding:
    """Return what it costs that tenants share no KV, and that each has a cluster of its own.

    Parameters
    ----------
    scenario : Scenario
        The question.
    tenants : int, default 8
        How many.
    zipf_exponent : float, default 0
        Of their shares of the traffic; 0: equal ones.
    seeds : int, default 0
        Simulated seeds of shared against salted caches; 0: closed form only.
    trace : Trace, optional
        The workload, if it is at hand.
    progress : callable, optional
        Told what is worked out.

    Returns
    -------
    Finding
        Table ``partitions``: one line a tenant with its share, rate and instances.

    Raises
    ------
    SpecError
        If a value is not allowed, or the scenario cannot be resolved.
    TraceError
        If sessions share no clock or are not named.
    """
    from smetric_model.tuning.sizing import fewest_instances

    check_equal_instances(scenario, "operations tenants")
    started = time.perf_counter()
    shares = tenant_shares(tenants, zipf_exponent)
    trace = trace_of(scenario) if trace is None else trace
    apart = salted(trace, tenants, zipf_exponent, scenario.seed)
    works = {"shared": demand_of(scenario, trace), "salted": demand_of(scenario, apart)}
    asked = to_rate(scenario, works["shared"])
    figures: list[Figure] = [Figure("tenants", "tenants", tenants, "", "given")]
    counts: dict[str, int | None] = {}
    for name, work in works.items():
        progress(f"{name} caches: instances")
        needed = fewest_instances(asked, demand=work)
        counts[name] = needed.instances
        figures += _figures(asked, name, work, needed.instances)
    partitions = _partitions(asked, shares, works["shared"], progress)
    whole = partitions["instances"].sum() if partitions["instances"].notna().all() else math.nan
    figures += [
        Figure("partitioned_instances", "instances, a cluster for each tenant", float(whole), "",
               "closed form", "each tenant's traffic like the whole's"),
        Figure("salted_more_ratio", "more instances for salted caches",
               _more(counts["salted"], counts["shared"]), "", "closed form"),
        Figure("partitioned_more_ratio", "more instances for clusters of their own",
               _more(float(whole), counts["shared"]), "", "closed form"),
    ]  # fmt: skip
    if seeds:
        figures += _simulated(asked, tenants, zipf_exponent, seeds, trace, progress)
    return Finding(
        question="tenants",
        title=f"Isolation of {tenants} tenants",
        figures=tuple(figures),
        words=_words(asked, tenants, figures),
        notes=(
            "which tenant a session belongs to is drawn at random, with the subagents it spawned",
            "a tenant's cluster has whole instances and whole nodes: the fewer instances it needs,"
            " the more rounding up costs",
        ),
        tables={"partitions": partitions},
        elapsed_s=time.perf_counter() - started,
    )


def _more(count: float | None, base: float | None) -> float:
    return math.nan if not count or not base else count / base - 1


def _figures(scenario: Scenario, name: str, demand: Demand, instances: int | None) -> list[Figure]:
    from smetric_model.analytic.predict import predict

    prompt = float(demand.prompt_tokens.sum())
    row = None
    with contextlib.suppress(UnstableError):
        row = predict(scenario, demand=demand)
    found = {key: math.nan if row is None else row.number(key) for key in _KEPT[:3]}
    return [
        Figure(f"{name}_ideal_reuse_ratio", f"prompt tokens reusable, {name}",
               float(demand.reusable_tokens.sum()) / prompt, "", "bound"),
        Figure(f"{name}_local_ratio", f"found locally, {name}", found["local_ratio"], "",
               "closed form"),
        Figure(f"{name}_global_ratio", f"fetched, {name}", found["global_ratio"], "",
               "closed form"),
        Figure(f"{name}_within_slo_ratio", f"share within SLO, {name}", found["within_slo_ratio"],
               "", "closed form"),
        Figure(f"{name}_instances", f"instances for the rate, {name}",
               math.nan if instances is None else instances, "", "closed form"),
    ]  # fmt: skip


def _partitions(
    scenario: Scenario, shares: np.ndarray, demand: Demand, progress: Progress
) -> pd.DataFrame:
    import pandas as pd

    from smetric_model.operations.autoscaling import instances_at_rates

    rate = scenario.workload.rate_rps
    assert rate != "trace"
    rates = rate * shares

    def tell(text: str) -> None:
        progress(f"clusters of their own: {text}")

    counts = instances_at_rates(scenario, rates, demand, tell)
    return pd.DataFrame(
        {
            "tenant": np.arange(shares.size),
            "share_ratio": shares,
            "rate_rps": rates,
            "instances": np.where(counts < 0, np.nan, counts),
        }
    )


def _simulated(
    scenario: Scenario,
    tenants: int,
    zipf_exponent: float,
    seeds: int,
    trace: Trace,
    progress: Progress,
) -> list[Figure]:
    import pandas as pd

    from smetric_model.simulate import simulate
    from smetric_model.simulate.workload import replayed_trace

    rows = []
    replayed = {"workload.rate_rps": "trace", "workload.start": "cold"}
    given = scenario.workload.preset is None
    for seed in range(scenario.seed, scenario.seed + seeds):
        one = scenario.replace(seed=seed)
        # the same requests for both: brought to rate and start once, then salted
        whole, _ = replayed_trace(one, trace if given else None)
        whole = _without_history(whole)
        as_it_is = one.replace(**replayed, **{"workload.session_start": "trace"})
        for name, work in (
            ("shared", whole),
            ("salted", salted(whole, tenants, zipf_exponent, seed)),
        ):
            progress(f"simulating {name} caches, seed {seed}")
            outcome = simulate(as_it_is, work)
            rows.append({"name": name, **{key: outcome.number(key) for key in _KEPT}})
    means: Any = pd.DataFrame(rows).groupby("name").mean()
    validity = f"{seeds} seeds"
    return [
        Figure(f"simulated_{name}_{key}", f"{label}, {name}", float(means.loc[name, key]), unit,
               "simulated", validity)
        for name in ("shared", "salted")
        for key, label, unit in (
            ("local_ratio", "found locally", ""),
            ("global_ratio", "fetched", ""),
            ("within_slo_ratio", "share within SLO", ""),
            ("total_within_slo_tps", "tokens within SLO", "tokens/s"),
        )
    ]  # fmt: skip


def _without_history(trace: Trace) -> Trace:
    from dataclasses import replace

    return replace(trace, requests=trace.requests.drop(columns="previous_tokens"))


def _words(scenario: Scenario, tenants: int, figures: list[Figure]) -> tuple[str, ...]:
    value = {figure.name: figure.value for figure in figures}
    rate = number(float(scenario.workload.rate_rps))

    def count(name: str) -> str:
        found = value[name]
        return "no number of" if math.isnan(found) else f"{found:.0f}"

    words = [
        f"{tenants} tenants who share no KV: {percent(value['salted_ideal_reuse_ratio'])} of the"
        f" prompt tokens can be reused in place of {percent(value['shared_ideal_reuse_ratio'])};"
        f" {rate} requests/s need {count('salted_instances')} instances for"
        f" {count('shared_instances')}.",
        f"With a cluster for each they need {count('partitioned_instances')}"
        f" ({percent(value['partitioned_more_ratio'], 0)} more).",
    ]
    if "simulated_salted_within_slo_ratio" in value:
        words.append(
            "Simulated at the scenario's size:"
            f" {percent(value['simulated_salted_within_slo_ratio'])} within the SLO with salted"
            f" caches, {percent(value['simulated_shared_within_slo_ratio'])} with shared ones."
        )
    return tuple(words)
