"""Where a scenario lies on the map: what decides between policies, as a few numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smetric_model.errors import SpecError

if TYPE_CHECKING:
    from smetric_model.analytic.demand import Demand
    from smetric_model.scenario import Scenario

__all__ = ["COORDINATES", "coordinates"]

#: coordinate -> (unit, what it is)
COORDINATES: dict[str, tuple[str, str]] = {
    "load_ratio": (
        "ratio",
        "rate ÷ about the rate at which engines or links saturate where sessions stay",
    ),
    "instances": ("instances", "instances that the router chooses from"),
    "prompt_mean_tokens": ("tokens", "mean prompt"),
    "output_mean_tokens": ("tokens", "mean output"),
    "reusable_ratio": ("ratio", "ideal reuse ÷ prompt tokens"),
    "shared_prefix_ratio": ("ratio", "tokens that many sessions begin with ÷ prompt tokens"),
    "follow_up_ratio": ("ratio", "requests that follow a turn of their session"),
    "rewritten_ratio": (
        "ratio",
        "follow-ups that share no more than half of what their history should hit",
    ),
    "think_median_s": ("s", "median from a turn's completion to the next turn"),
    "local_reach_s": ("s", "age up to which the local tiers together hold KV"),
    "kept_ratio": ("ratio", "think times within local_reach_s"),
    "global_to_local_ratio": ("ratio", "global tier ÷ all local tiers"),
    "link_load_ratio": (
        "ratio",
        "share of the NICs that fetching all reuse and writing would take; above 1: impossible",
    ),
    "tpot_slack_ratio": ("ratio", "TPOT SLO ÷ decode step of one mean request alone"),
}


def coordinates(scenario: Scenario, demand: Demand, rate_rps: float) -> dict[str, float]:
    """Return the coordinates of a colocated scenario.

    Parameters
    ----------
    scenario : Scenario
        The question; its rate is not looked at.
    demand : Demand
        Its workload.
    rate_rps : float
        Servable requests of the cluster [requests/s].

    Returns
    -------
    dict of str to float
        The keys of :data:`COORDINATES`.

    Raises
    ------
    SpecError
        If the cluster is disaggregated.
    """
    from smetric_model.advantage.saturation import rough_capacity_rps
    from smetric_model.analytic.cluster_demand import cluster_demand, with_sessions
    from smetric_model.analytic.memory import kv_bytes_per_token
    from smetric_model.analytic.predict import Prediction, cluster_form
    from smetric_model.analytic.step_model import step_model
    from smetric_model.analytic.step_time import step_time_s

    if scenario.cluster.serving != "colocated":
        raise SpecError(
            f"cluster.serving = {scenario.cluster.serving!r}: coordinates are those of colocated"
            " serving"
        )
    demand = with_sessions(demand)
    work = cluster_demand(scenario, demand)
    local = work.local
    placed = Prediction(scenario, demand, "tiers")
    sticky = cluster_form(scenario.replace(**{"router.policy": "smetric"}), demand)
    saturation = rough_capacity_rps(sticky)
    reach = placed.hits(min(rate_rps, saturation)).local_retention_s
    think = demand.session_reuse.think_s[work.rows]
    think = think[np.isfinite(think)]
    home = local.has_home
    expected = np.maximum(local.expected, 1.0)
    everything = np.asarray(demand.reusable_tokens, dtype=float)
    fully = scenario.global_tier.bytes_per_node > 0
    pools = scenario.cluster.instances * demand.pool_tokens * kv_bytes_per_token(demand.instance)
    prompt = float(demand.prompt_tokens[work.rows].mean())
    output = float(demand.output_tokens[work.rows].mean())
    alone = float(step_time_s(step_model(demand.instance), 0.0, 0.0, 1.0, prompt))
    return {
        "load_ratio": rate_rps / saturation,
        "instances": float(scenario.cluster.instances),
        "prompt_mean_tokens": prompt,
        "output_mean_tokens": output,
        "reusable_ratio": float(everything.sum() / demand.prompt_tokens.sum()),
        "shared_prefix_ratio": float(local.shared.mean() / local.prompt.mean()),
        "follow_up_ratio": work.follow_up_ratio,
        "rewritten_ratio": float(np.mean((local.own[0] <= 0.5 * expected)[home]))
        if home.any()
        else 0.0,
        "think_median_s": float(np.median(think)) if think.size else float("nan"),
        "local_reach_s": float(reach),
        "kept_ratio": float(np.mean(think <= reach)) if think.size else float("nan"),
        "global_to_local_ratio": placed.cluster.nodes * scenario.global_tier.bytes_per_node / pools,
        "link_load_ratio": placed.nic_utilisation(rate_rps, everything) if fully else 0.0,
        "tpot_slack_ratio": scenario.slo.tpot_s / alone,
    }
