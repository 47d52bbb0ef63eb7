"""``advantage``: does a policy serve more tokens within SLO than others, here, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from smetric_model.advantage.coordinates import coordinates
from smetric_model.advantage.mechanisms import MECHANISMS, Solved, mechanisms
from smetric_model.advantage.verdicts import (
    FLOOR,
    TIE_RATIO,
    Verdict,
    relative_advantage,
    verdict,
)
from smetric_model.errors import SolveError, SpecError, UnstableError
from smetric_model.scenario_groups import check_equal_instances

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.analytic.demand import Demand
    from smetric_model.outcome import Outcome
    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

__all__ = ["BASELINES", "Advantage", "advantage"]

#: What the SMetric paper compares with under colocated serving.
BASELINES = ("bailian", "lmetric", "load-balance")
_KEPT = (
    "arrival_rate_rps",
    "total_tps",
    "total_within_slo_tps",
    "within_slo_ratio",
    "ttft_p50_s",
    "ttft_p90_s",
    "tpot_p50_s",
    "tpot_p90_s",
    "fetch_mean_s",
    "local_ratio",
    "global_ratio",
    "recomputed_ratio",
    "imbalance_processed_tokens_60s_mean",
    "return_to_previous_ratio",
    "migrated_overload_ratio",
    "migrated_evicted_ratio",
    "nic_in_utilisation_ratio",
    "kv_utilisation_ratio",
    "binding_resource",
    "valid",
)


@dataclass(frozen=True, eq=False)
class Advantage:
    """A policy against others on one scenario.

    Attributes
    ----------
    policy : str
        The scenario's own.
    baseline : str
        The best of the others: most tokens within SLO.
    verdict : {"win", "tie", "lose", "none"}
        See :func:`~smetric_model.advantage.verdicts.verdict`; ``none`` also where the closed form
        found no answer for the policy, or for any of the others.
    advantage_ratio : float
        Mean over seeds of (own − best) ÷ max(best, a tenth of what is offered).
    noise_ratio : float
        Its standard error over seeds; 0 in closed form, ``nan`` with one simulated seed.
    rows : DataFrame
        One row a policy and seed: ``policy``, ``seed``, ``steady`` (whether there is a steady
        state; always so in a simulation) and columns of the schema.  What saturates serves
        nothing within SLO; where the closed form found no answer figures are missing, and a
        baseline without one is left out of the comparison.
    mechanisms : dict of str to float
        In closed form, colocated, with steady states and no tie: what ``local_hits``,
        ``global_tier``, ``fetch`` and ``balance`` contribute, in the units of ``advantage_ratio``
        (they add up to about that).  Else empty.
    mechanism : str
        The largest of them in the verdict's direction; ``saturates: RESOURCE`` where one of the
        two has no steady state; empty for a tie and without mechanisms.
    coordinates : dict of str to float
        Where the scenario lies (:data:`~smetric_model.advantage.coordinates.COORDINATES`);
        empty where disaggregated.
    note : str
        What a reader must know.
    """

    policy: str
    baseline: str
    verdict: Verdict
    advantage_ratio: float
    noise_ratio: float
    rows: pd.DataFrame
    mechanisms: dict[str, float]
    mechanism: str
    coordinates: dict[str, float]
    note: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; ``rows`` as a list of dicts.

        Returns
        -------
        dict
        """
        return {
            "policy": self.policy,
            "baseline": self.baseline,
            "verdict": self.verdict,
            "advantage_ratio": self.advantage_ratio,
            "noise_ratio": self.noise_ratio,
            "mechanism": self.mechanism,
            "mechanisms": dict(self.mechanisms),
            "coordinates": dict(self.coordinates),
            "rows": self.rows.to_dict("records"),
            "note": self.note,
        }


def advantage(
    scenario: Scenario,
    baselines: Sequence[str] = BASELINES,
    *,
    verb: Literal["predict", "simulate"] = "predict",
    seeds: int = 3,
    trace: Trace | None = None,
    demand: Demand | None = None,
    tie_ratio: float = TIE_RATIO,
) -> Advantage:
    """Compare a scenario's policy with others at the scenario's rate.

    Parameters
    ----------
    scenario : Scenario
        The question; ``router.policy`` is the policy that is asked about, and ``router``'s other
        keys hold for all.
    baselines : sequence of str
        The others.
    verb : {"predict", "simulate"}
        Who answers.  The closed form takes a third of a second and sees no index or counter ages.
    seeds : int, default 3
        Of a simulation: ``scenario.seed`` and those that follow, the same for all policies.
    trace : Trace, optional
        The workload, if it is at hand (then all simulated seeds replay it).
    demand : Demand, optional
        For the closed form: what the workload asks for.
    tie_ratio : float, default 0.02
        Differences up to this count as none.

    Returns
    -------
    Advantage

    Raises
    ------
    SpecError
        If a policy is unknown or compared with itself, or the scenario cannot be resolved.
    TraceError
        If the trace cannot be read.

    Examples
    --------
    >>> from smetric_model import Scenario, advantage
    >>> scenario = Scenario.from_toml("data/scenarios/agents-small.toml")
    >>> found = advantage(scenario, ["load-balance"])
    >>> found.baseline, found.verdict in ("win", "tie", "lose", "none")
    ('load-balance', True)
    """
    import pandas as pd

    check_equal_instances(scenario, "advantage")
    policy = scenario.router.policy
    if not baselines or policy in baselines or len(set(baselines)) != len(baselines):
        raise SpecError(
            f"baselines = {list(baselines)!r}: one or more, each once, and not {policy!r} itself"
        )
    if verb not in ("predict", "simulate"):
        raise SpecError(f"verb = {verb!r}; one of predict, simulate")
    if verb == "simulate" and seeds < 1:
        raise SpecError(f"seeds = {seeds!r}: at least 1")
    asked = {name: scenario.replace(**{"router.policy": name}) for name in (policy, *baselines)}
    if verb == "simulate":
        rows = _simulated(asked, seeds, trace)
        return _answer(policy, pd.DataFrame(rows), tie_ratio, {}, "", {}, "", simulated=True)
    from smetric_model.analytic.demand import demand_of, trace_of

    if demand is None:
        demand = demand_of(scenario, trace_of(scenario) if trace is None else trace)
    return _predicted(scenario, asked, demand, tie_ratio)


def _row(name: str, seed: int, outcome: Outcome) -> dict[str, Any]:
    return {
        "policy": name,
        "seed": seed,
        "steady": True,
        **{key: outcome[key] for key in _KEPT},
    }


def _simulated(asked: dict[str, Scenario], seeds: int, trace: Trace | None) -> list[dict[str, Any]]:
    from smetric_model.simulate import simulate

    rows = []
    first = next(iter(asked.values()))
    for seed in range(first.seed, first.seed + seeds):
        for name, scenario in asked.items():
            outcome = simulate(scenario.replace(seed=seed), trace)
            rows.append(_row(name, seed, outcome))
    return rows


def _predicted(
    scenario: Scenario, asked: dict[str, Scenario], demand: Demand, tie_ratio: float
) -> Advantage:
    import pandas as pd

    from smetric_model.advantage.saturation import surely_saturates
    from smetric_model.analytic.cluster_outcome import outcome_of
    from smetric_model.analytic.predict import cluster_form, steady_rate_rps

    colocated = scenario.cluster.serving == "colocated"
    solved: dict[str, Solved] = {}
    rows: list[dict[str, Any]] = []
    said: dict[str, list[str]] = {}  # policies by note
    rate = math.nan
    for name, one in asked.items():
        cluster = cluster_form(one, demand)
        rate = steady_rate_rps(cluster)
        try:
            limit = surely_saturates(cluster, rate) if colocated else ""
            if limit:
                raise UnstableError(f"{rate:.4g} requests/s: {limit} saturates", limit)
            state = cluster.at(rate)
        except (UnstableError, SolveError) as error:
            # what saturates serves nothing in the long run; what was not solved is unknown
            served = 0.0 if isinstance(error, UnstableError) else math.nan
            rows.append(
                {
                    "policy": name,
                    "seed": one.seed,
                    "steady": False,
                    **dict.fromkeys(_KEPT, math.nan),
                    "arrival_rate_rps": rate / (1 - demand.unservable_ratio),
                    "total_within_slo_tps": served,
                    "within_slo_ratio": served,
                    "binding_resource": getattr(error, "resource", ""),
                    "valid": False,
                }
            )
            said.setdefault(str(error), []).append(name)
            continue
        solved[name] = Solved(cluster, state)
        outcome = outcome_of(cluster, state)
        rows.append(_row(name, one.seed, outcome))
        for note in filter(None, str(outcome["note"]).split("; ")):
            said.setdefault(note, []).append(name)
    table = pd.DataFrame(rows)
    if table["total_tps"].isna().all():
        mean = float(demand.prompt_tokens.mean() + demand.output_tokens.mean())
        table["total_tps"] = rate * mean
    else:
        table["total_tps"] = table["total_tps"].fillna(table["total_tps"].max())
    where = coordinates(scenario, demand, rate) if colocated else {}
    best = _best(table, scenario.router.policy)
    parts: dict[str, float] = {}
    mechanism = ""
    own = scenario.router.policy
    if own in solved and best in solved:
        tps = table.set_index("policy")["total_within_slo_tps"]
        unit = max(float(tps[best]), FLOOR * float(table["total_tps"].max()))
        if colocated and abs(tps[own] - tps[best]) > tie_ratio * unit:
            parts = {k: v / unit for k, v in mechanisms(solved[own], solved[best]).items()}
    elif own in solved or best in solved:
        bad = table[~table["steady"] & table["policy"].isin([own, best])].iloc[0]
        mechanism = f"saturates: {bad['binding_resource']}" if bad["binding_resource"] else ""
    notes = [
        note if len(names) == len(asked) else f"{', '.join(names)}: {note}"
        for note, names in said.items()
    ]
    return _answer(own, table, tie_ratio, parts, mechanism, where, "; ".join(notes))


def _best(table: pd.DataFrame, own: str) -> str:
    means = table[table["policy"] != own].groupby("policy", sort=False)["total_within_slo_tps"]
    return str(means.mean().fillna(-1.0).idxmax())


def _answer(
    own: str,
    table: pd.DataFrame,
    tie_ratio: float,
    parts: dict[str, float],
    mechanism: str,
    where: dict[str, float],
    note: str,
    simulated: bool = False,
) -> Advantage:
    best = _best(table, own)
    known = table.groupby("policy")["total_within_slo_tps"].mean()
    if math.isnan(known[own]) or math.isnan(known[best]):
        return Advantage(own, best, "none", math.nan, math.nan, table, {}, "", where, note)
    by_seed = table.pivot_table(index="seed", columns="policy", values="total_within_slo_tps")
    offered = table.groupby("seed")["total_tps"].max()
    values = [
        relative_advantage(by_seed.loc[seed, own], by_seed.loc[seed, best], offered[seed])
        for seed in by_seed.index
    ]
    count = len(values)
    mean = float(sum(values) / count)
    noise = math.nan if simulated else 0.0
    if count > 1:
        spread = sum((value - mean) ** 2 for value in values) / (count - 1)
        noise = math.sqrt(spread / count)
    served = float(by_seed[[own, best]].mean().max() / offered.mean())
    found = verdict(values, served, tie_ratio, 0.0 if math.isnan(noise) else noise)
    if found in ("tie", "none"):
        mechanism = ""
    elif not mechanism and parts:
        sign = 1.0 if found == "win" else -1.0
        mechanism = max(MECHANISMS, key=lambda name: sign * parts[name])
    return Advantage(own, best, found, mean, noise, table, parts, mechanism, where, note)
