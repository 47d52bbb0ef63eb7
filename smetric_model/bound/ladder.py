"""The ladder: from what nothing can beat down to what each policy delivers, and where it is lost.

==========================  ====================================================================
rung                        what is given up
==========================  ====================================================================
volume bound                nothing: hindsight, work anywhere, any latency
TTL (an estimate)           knowing the future: KV is kept for a time after each use, dead KV too
simulated, best eviction    averages over time, pooled instances: real steps, queues, placement
simulated, LRU              the eviction's hindsight
==========================  ====================================================================

Between the first two lies what caches lose, between the last two what eviction loses; what policies
differ in is the router's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from smetric_model.bound.problem import Problem
from smetric_model.bound.solvers import SolverOptions

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

__all__ = ["EVICTIONS", "TtlEstimate", "ladder", "ttl_estimate"]

#: evictions that are simulated, the best first
EVICTIONS = ("clairvoyant", "dead-first", "lru")


@dataclass(frozen=True)
class TtlEstimate:
    """What caches without foresight would allow; an estimate, no bound.

    Attributes
    ----------
    load_multiple, total_tps : float
        As of a volume bound.
    local_ttl_s, global_ttl_s : float
        How long KV is kept after each use in either tier [s].
    binding : str
        Resource that limits it.
    """

    load_multiple: float
    total_tps: float
    local_ttl_s: float
    global_ttl_s: float
    binding: str


def ttl_estimate(problem: Problem) -> TtlEstimate:
    """Estimate the volume that caches carry which keep everything for a time (LRU).

    Parameters
    ----------
    problem : Problem
        Requests and pieces.

    Returns
    -------
    TtlEstimate

    Notes
    -----
    Every touch holds its tokens for min(gap to the next touch, τ), the last touch for τ (dead KV).
    Tokens over time fill the tier at τ (Che's approximation; DESIGN §4).  The global tier is
    written through and sees every touch.
    """
    from smetric_model.bound.volume import usage_of

    tokens = problem.piece_tokens
    gap = np.maximum(problem.gap_end_s - problem.gap_start_s, 0.0)
    order = np.argsort(gap)
    sorted_gap, sorted_tokens = gap[order], tokens[order]
    below = np.concatenate(([0.0], np.cumsum(sorted_tokens * sorted_gap)))
    count = np.concatenate(([0.0], np.cumsum(sorted_tokens)))
    touched = float(problem.written_tokens.sum() + tokens.sum())

    def held(ttl_s: float) -> float:
        """Token seconds that all touches hold."""
        k = int(np.searchsorted(sorted_gap, ttl_s, side="right"))
        return float(below[k] + (touched - count[k]) * ttl_s)

    def ttl(capacity: float) -> float:
        """Longest time that fills no more than this many token seconds."""
        if capacity <= 0:
            return 0.0
        low, high = 0.0, 1.0
        while held(high) < capacity and high < 1e7:
            high *= 2
        for _ in range(60):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if held(middle) <= capacity else (low, middle)
        return low

    have = problem.capacities
    window = problem.window_s
    pinned = usage_of(problem, np.zeros(tokens.size, np.int8))["local"][0] * have.local_tokens
    pinned -= float((tokens * gap).sum())

    def outcome(multiple: float) -> tuple[float, float, float, str]:
        local = ttl(have.local_tokens * window / multiple - pinned)
        stored = ttl(have.global_tokens * window / multiple)
        mode = np.where(gap <= local, 0, np.where(gap <= stored, 1, 2)).astype(np.int8)
        used = usage_of(problem, mode)
        worst, binding = 0.0, ""
        for name in ("compute", "decode_compute", "nic", "pcie"):
            if name in used:
                value = multiple * float(used[name].max()) / window
                if value > worst:
                    worst, binding = value, name
        held_running = multiple * pinned / window / have.local_tokens
        if held_running > worst:
            worst, binding = held_running, "local"
        return worst, local, stored, binding

    low, high = 1e-6, 1.0
    while outcome(high)[0] <= 1 and high < 1e6:
        low, high = high, 2 * high
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if outcome(middle)[0] <= 1 else (low, middle)
    _, local, stored, binding = outcome(low)
    offered = float(problem.value_tokens.sum()) / window
    return TtlEstimate(low, low * offered, local, stored, binding)


def ladder(
    scenario: Scenario,
    policies: Sequence[str],
    rates_rps: Sequence[float] | None = None,
    trace: Trace | None = None,
    *,
    evictions: Sequence[str] = EVICTIONS,
    options: SolverOptions | None = None,
    progress: Callable[[str], None] | None = None,
) -> pd.DataFrame:
    """Simulate policies and evictions at several rates and lay them below the bounds.

    Parameters
    ----------
    scenario : Scenario
        The question.
    policies : sequence of str
        Router policies.
    rates_rps : sequence of float, optional
        Rates to try; default the scenario's own.
    trace : Trace, optional
        Its workload, if at hand.
    evictions : sequence of str
        Of both tiers, from :data:`EVICTIONS`.
    options : SolverOptions, optional
        For the bounds.
    progress : callable, optional
        Told what is being done.

    Returns
    -------
    DataFrame
        ``rung``, ``policy``, ``eviction``, ``rate_rps`` (where ``total_tps`` is largest),
        ``total_tps``: most tokens/s processed at any of the rates; ``total_within_slo_tps``: most
        within SLO at any of the rates, at ``within_slo_rate_rps``, and ``within_slo_ratio`` and
        ``recomputed_ratio`` there; ``attainment_rps``: highest of the rates at which the
        scenario's attainment is kept; ``goodput_share``: the largest
        ``total_within_slo_tps`` over the goodput bound on that run's own requests.
        First the bounds, then the simulations, best first.
    """
    import pandas as pd

    from smetric_model.bound.problem import make_problem, problem_of, realised_timeline
    from smetric_model.bound.timed import timed_bound
    from smetric_model.bound.volume import volume_bound
    from smetric_model.simulate.run import simulate_in_detail

    tell = progress or (lambda _text: None)
    asked: list[float | None] = [*rates_rps] if rates_rps else [None]
    rows: list[dict[str, Any]] = []
    volumes, estimates = [], []
    for rate in asked:
        here = scenario if rate is None else scenario.replace(**{"workload.rate_rps": float(rate)})
        tell(f"volume bound at {rate or 'the scenario'}")
        problem, _ = problem_of(here, trace)
        volumes.append(volume_bound(problem, options))
        estimates.append(ttl_estimate(problem))
    best = max(volumes, key=lambda v: v.total_tps)
    rows.append({"rung": "volume bound", "rate_rps": best.rate_rps, "total_tps": best.total_tps})
    estimate = max(estimates, key=lambda e: e.total_tps)
    rows.append({"rung": "TTL (estimate)", "total_tps": estimate.total_tps})
    simulated = []
    for eviction in evictions:
        for policy in policies:
            runs = []
            for rate in asked:
                changes: dict[str, Any] = {
                    "router.policy": policy,
                    "local_tier.eviction": eviction,
                    "global_tier.eviction": eviction,
                }
                if rate is not None:
                    changes["workload.rate_rps"] = float(rate)
                here = scenario.replace(**changes)
                tell(f"simulating {policy}, {eviction}, {rate or 'the scenario'}")
                run = simulate_in_detail(here, trace)
                runs.append((here, run))
            simulated.append(_simulated_row(policy, eviction, runs))
            here, run = max(runs, key=lambda r: r[1].outcome.number("total_within_slo_tps"))
            inputs = run.prepared.inputs
            problem = make_problem(here, inputs, realised_timeline(here, inputs, run.replay))
            volume = volume_bound(problem, options)
            goodput = timed_bound(problem, options, fallback=volume.prices)
            within = run.outcome.number("total_within_slo_tps")
            simulated[-1]["goodput_share"] = within / goodput.total_within_slo_tps
    simulated.sort(key=lambda row: -row["total_within_slo_tps"])
    simulated.sort(key=lambda row: EVICTIONS.index(row["eviction"]))
    return pd.DataFrame(rows + simulated)


def _simulated_row(policy: str, eviction: str, runs: list[tuple[Any, Any]]) -> dict[str, Any]:
    most = max(runs, key=lambda r: r[1].outcome.number("total_tps"))
    good = max(runs, key=lambda r: r[1].outcome.number("total_within_slo_tps"))
    kept = [
        run.outcome.number("arrival_rate_rps")
        for here, run in runs
        if run.outcome.number("within_slo_ratio") >= here.slo.attainment
    ]
    return {
        "rung": "simulated",
        "policy": policy,
        "eviction": eviction,
        "rate_rps": most[1].outcome.number("arrival_rate_rps"),
        "total_tps": most[1].outcome.number("total_tps"),
        "total_within_slo_tps": good[1].outcome.number("total_within_slo_tps"),
        "within_slo_rate_rps": good[1].outcome.number("arrival_rate_rps"),
        "within_slo_ratio": good[1].outcome.number("within_slo_ratio"),
        "recomputed_ratio": good[1].outcome.number("recomputed_ratio"),
        "attainment_rps": max(kept, default=float("nan")),
    }
