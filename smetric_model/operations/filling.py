r"""How long cold caches take to fill, and what can be served meanwhile.

A tier that was emptied a time ``t`` ago holds what was touched since: it serves as an LRU tier
with characteristic time ``t`` would, and from its own characteristic time on it is as before.  The
closed form evaluates the whole cluster with such tiers
(:meth:`~smetric_model.analytic.cluster.ColocatedCluster.emptied`): hits, loads, latencies, SLO.

Where only some of the instances are cold, a share ``k/N`` of the sessions meets cold caches: the
cluster's figures are the mixture.  A node takes its blocks of the global tier with it.  Blocks are
spread over the M nodes one by one, and of a path nothing behind a lost block can be read, so that
of ``b`` blocks

.. math:: \sum_{i=1}^{b} (1 - 1/M)^i = (M - 1)\,(1 - (1 - 1/M)^b)

are left: a few blocks of any path, however long.  Losing one node's share is losing the tier.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from smetric_model.analytic.demand import Demand, cluster_of
from smetric_model.analytic.predict import cluster_form
from smetric_model.errors import SolveError, SpecError, UnstableError
from smetric_model.operations.findings import Progress, silent
from smetric_model.searches import largest

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.analytic.cluster import ColocatedCluster
    from smetric_model.outcome import Outcome
    from smetric_model.scenario import Scenario

__all__ = [
    "EVENTS",
    "ColdCaches",
    "Event",
    "admitted_rps",
    "cold_caches",
    "full_load_after_s",
    "readable_ratio",
]

#: What starts cold.
Event = Literal["instance", "node", "store", "cluster", "scale-out"]
EVENTS: tuple[Event, ...] = ("instance", "node", "store", "cluster", "scale-out")

_AGES = 15
_FIRST_S = 1.0
_MOMENTS = 60  # of which a mean over time is taken
_RATIOS = ("local_ratio", "global_ratio", "within_slo_ratio")


@dataclass(frozen=True, eq=False)
class ColdCaches:
    """Caches over time after they were emptied, in closed form.

    Attributes
    ----------
    event : str
        What started cold.
    share : float
        Share of the instances whose own caches are cold.
    steady : dict of str to float
        ``local_ratio``, ``global_ratio`` (÷ prompt tokens), ``within_slo_ratio`` long after.
    curve : DataFrame
        By ``age_s``: the same of the cluster, ``reused_ratio``, and ``instance_local_ratio``, what
        requests find on an instance that was emptied.  NaN where there is no steady state.
    retention_s, reach_s : float
        Characteristic times of the local and the global tier [s].
    """

    event: Event
    share: float
    steady: dict[str, float]
    curve: pd.DataFrame
    retention_s: float
    reach_s: float

    def mean_over(self, column: str, span_s: float) -> float:
        """Return the mean of a column over the first seconds.

        Parameters
        ----------
        column : str
            Of :attr:`curve`.
        span_s : float
            From the moment at which caches are empty [s].

        Returns
        -------
        float
            Of the ages at which there is a steady state.
        """
        known = self.curve[self.curve[column].notna()]
        moments = (np.arange(_MOMENTS) + 0.5) * (span_s / _MOMENTS)
        ages = np.log(known["age_s"].to_numpy(dtype=float))
        return float(np.interp(np.log(moments), ages, known[column].to_numpy(dtype=float)).mean())

    def recovered_s(self, column: str, tolerance_ratio: float) -> float:
        """Return the age from which on a column stays within a tolerance of its steady value.

        Parameters
        ----------
        column : str
            Of :attr:`curve`.
        tolerance_ratio : float
            In (0, 1).

        Returns
        -------
        float
            Between ages by interpolation in the logarithm; 0 where it was never lost [s].
        """
        steady = {
            **self.steady,
            "reused_ratio": self.steady["local_ratio"] + self.steady["global_ratio"],
            "instance_local_ratio": self.steady["local_ratio"],
        }[column]
        wanted = (1 - tolerance_ratio) * steady
        values = self.curve[column].to_numpy(dtype=float)
        ages = self.curve["age_s"].to_numpy(dtype=float)
        below = np.flatnonzero(~(values >= wanted))
        if not below.size:
            return 0.0
        last = int(below[-1])
        if last == ages.size - 1:
            return math.inf
        low, high = values[last], values[last + 1]
        if not np.isfinite(low):
            return float(ages[last + 1])
        part = (wanted - low) / (high - low)
        return float(math.exp(np.interp(part, [0, 1], np.log(ages[last : last + 2]))))


def readable_ratio(prompt_blocks: np.ndarray, nodes: int) -> float:
    """Return the share of stored prefixes that can still be read after one node's share is lost.

    Parameters
    ----------
    prompt_blocks : ndarray
        Blocks of each prompt.
    nodes : int
        M, over which blocks are spread.

    Returns
    -------
    float
        Mean blocks left ÷ mean blocks; 0 on one node.
    """
    blocks = np.asarray(prompt_blocks, dtype=float)
    kept = (nodes - 1) * -np.expm1(blocks * math.log1p(-1 / nodes)) if nodes > 1 else 0 * blocks
    return float(kept.sum() / max(blocks.sum(), 1e-300))


def solved(cluster: ColocatedCluster, rate_rps: float) -> Outcome | None:
    """Return the outcome of a cluster at a rate; None where there is no steady state.

    Parameters
    ----------
    cluster : ColocatedCluster
        Closed form.
    rate_rps : float
        Servable requests [requests/s].
    """
    from smetric_model.analytic.cluster_outcome import outcome_of

    try:
        return outcome_of(cluster, cluster.at(rate_rps))
    except (UnstableError, SolveError):
        return None


def cold_caches(
    scenario: Scenario, event: Event, demand: Demand, progress: Progress = silent
) -> ColdCaches:
    """Return the caches' recovery from an event in closed form.

    Parameters
    ----------
    scenario : Scenario
        The cluster once it is whole again; its rate is a number.
    event : {"instance", "node", "store", "cluster", "scale-out"}
        One instance restarts; a node with its instances and its share of the global tier; the
        global tier alone; everything; one instance more (which loses nobody's KV).
    demand : Demand
        The workload.
    progress : callable, optional
        Told what is worked out.

    Returns
    -------
    ColdCaches

    Raises
    ------
    SpecError
        If there is no such event, the cluster has no global tier to lose, or there is no steady
        state at the rate.
    """
    import pandas as pd

    if event not in EVENTS:
        raise SpecError(f"event = {event!r}: one of {', '.join(EVENTS)} is needed")
    if event == "store" and scenario.global_tier.bytes_per_node <= 0:
        raise SpecError("event = 'store': global_tier.bytes_per_node = 0, there is none to lose")
    work = scenario.workload
    assert work.rate_rps != "trace"
    form = cluster_form(scenario, demand)
    rate = work.rate_rps * (1 - demand.unservable_ratio)
    steady_form = form.emptied()
    state = steady_form.at(rate)
    steady_row = solved(steady_form, rate)
    assert steady_row is not None
    steady = {name: steady_row.number(name) for name in _RATIOS}
    shape = cluster_of(scenario)
    n = form.instances
    cold = {"instance": 1, "node": shape.instances_per_node, "store": 0, "cluster": n}
    share = min(cold.get(event, 1), n) / n
    left = 0.0
    if event == "node":
        block = float(demand.trace.block_tokens or demand.instance.block_tokens)
        left = readable_ratio(np.ceil(demand.prompt_tokens / block), shape.nodes)
    loses_store = event in ("node", "store", "cluster") and form.has_global
    retention, reach = state.hits.retention_s, state.reach_s
    longest = max(min(retention, 1e5), min(reach, 1e5) if loses_store else 0.0, 60.0)
    rows = []
    for age in np.geomspace(_FIRST_S, 1.5 * longest, _AGES):
        progress(f"{event}: caches after {age:.0f} s")
        old = float(age) if loses_store else math.inf
        warm = _ratios(solved(form.emptied(global_s=old), rate)) if loses_store else steady
        cool = _ratios(solved(form.emptied(local_s=float(age), global_s=old), rate))
        # what can still be read of the store serves as before
        mixed = {name: left * steady[name] + (1 - left) * warm[name] for name in _RATIOS}
        both = {name: left * steady[name] + (1 - left) * cool[name] for name in _RATIOS}
        loses = 0.0 if event == "scale-out" else share
        row = {name: (1 - loses) * mixed[name] + loses * both[name] for name in _RATIOS}
        rows.append({"age_s": float(age), **row, "instance_local_ratio": cool["local_ratio"]})
    curve = pd.DataFrame(rows)
    curve["reused_ratio"] = curve["local_ratio"] + curve["global_ratio"]
    return ColdCaches(event, share, steady, curve, retention, reach)


def _ratios(row: Outcome | None) -> dict[str, float]:
    if row is None:
        return dict.fromkeys(_RATIOS, math.nan)
    return {name: row.number(name) for name in _RATIOS}


def admitted_rps(
    scenario: Scenario, demand: Demand, local_s: float, global_s: float
) -> float | None:
    """Return the largest rate with the wanted share within SLO on tiers emptied so long ago.

    Parameters
    ----------
    scenario : Scenario
        The cluster.
    demand : Demand
        The workload.
    local_s, global_s : float
        Time since the instances' caches, and the global tier, were emptied [s].

    Returns
    -------
    float or None
        Requests of the cluster, unservable ones included; None where no rate has it [requests/s].
    """
    form = cluster_form(scenario, demand).emptied(local_s, global_s)
    wanted = scenario.slo.attainment
    servable = 1 - demand.unservable_ratio

    def good(rate: float) -> bool:
        row = solved(form, rate * servable)
        return row is not None and row.number("within_slo_ratio") >= wanted

    rate = scenario.workload.rate_rps
    return largest(good, 1.0 if rate == "trace" else rate, tolerance=0.02)


def full_load_after_s(scenario: Scenario, demand: Demand) -> tuple[float, float]:
    r"""Return how long an added instance takes to get its share, if all new sessions go to it.

    Sessions of K turns, one every T, start at the rate λ/K of the cluster.  An instance that gets
    all of them has λ/K · (1 + t/T) requests a second a time ``t`` after it began: its share, λ/N,
    at once where K is no more than N, else T·(K/N − 1) later.  It is the home of as many sessions
    as the others, of which each lasts D = (K − 1)·T, after D/N.  Routers whose first turns do not
    look at the load take up to D.

    Parameters
    ----------
    scenario : Scenario
        The cluster with the added instance; its rate is a number.
    demand : Demand
        The workload.

    Returns
    -------
    requests_s, sessions_s : float
        Until it serves its share of the requests, and is the home of its share of the sessions
        [s].
    """
    form = cluster_form(scenario, demand)
    rate = scenario.workload.rate_rps
    assert rate != "trace"
    state = form.emptied().at(rate * (1 - demand.unservable_ratio))
    follow = min(form.work.follow_up_ratio, 1 - 1e-6)
    turns = 1 / (1 - follow)
    think = form.work.think_time
    request_s = state.pace.first_token_s + state.pace.per_output_token_s * form.work.mean_output
    turn_s = float(think.weights @ think.means_s) + request_s
    n = form.instances
    return max(turns / n - 1, 0.0) * turn_s, (turns - 1) * turn_s / n
