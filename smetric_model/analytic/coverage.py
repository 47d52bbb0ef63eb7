"""What the closed forms make of each key of a scenario, and what they leave out of an answer.

A key is modelled, assumed (one value is taken whatever the scenario says, which is harmless or
stands in the table), noted (left out: the outcome's ``note`` names it, and ``valid`` is False where
it would change the answer), refused, or not asked for.  :data:`COVERAGE` is the one home of this;
the table of ``docs/cluster-model.md`` is written from it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from smetric_model.analytic.cluster import ClusterState, ColocatedCluster
    from smetric_model.scenario import Scenario

__all__ = [
    "COVERAGE",
    "Coverage",
    "coverage_markdown",
    "left_out",
    "notes_left_out",
    "too_far",
    "two_states",
]

Treatment = Literal["modelled", "assumed", "noted", "refused", "unused"]


class Coverage(NamedTuple):
    """What each verb makes of a key.

    Attributes
    ----------
    predict : str
        ``predict`` under the scenario's router, ``predicted_capacity``.
    tune : str
        ``tune``.
    plan : str
        ``plan`` and ``predict`` with perfect placement.
    remark : str
        What is assumed, or when what is left out makes an answer invalid.
    """

    predict: Treatment
    tune: Treatment
    plan: Treatment
    remark: str = ""


_MODELLED = Coverage("modelled", "modelled", "modelled")
_ROUTER = Coverage("modelled", "modelled", "unused")
_OF_OTHERS = Coverage("modelled", "unused", "unused", "tune: SMetric's own keys only")
_NOTED = Coverage("noted", "noted", "noted")


def _signal(remark: str) -> Coverage:
    return Coverage("noted", "noted", "unused", remark)


#: every key of a scenario; ``*`` stands for all keys of a section
COVERAGE: dict[str, Coverage] = {
    "name": Coverage("unused", "unused", "unused", "a label"),
    "seed": Coverage("unused", "unused", "unused", "draws a preset's trace, nothing else"),
    "llm.name": _MODELLED,
    "llm.weight_dtype": _MODELLED,
    "llm.kv_dtype": _MODELLED,
    "engine.gpu": _MODELLED,
    "engine.name": _MODELLED,
    "engine.tp": _MODELLED,
    "engine.ep": _MODELLED,
    "engine.mode": _MODELLED,
    "engine.memory_utilisation": _MODELLED,
    "engine.token_budget": _MODELLED,
    "engine.max_running_requests": _MODELLED,
    "engine.kv_pool_tokens": _MODELLED,
    "engine.kv_admission": _NOTED._replace(
        remark="`preempt` is answered as `reserve`; invalid where running requests hold more than"
        " half of the pool"
    ),
    "engine.block_tokens": _MODELLED,
    "engine.max_context_tokens": _MODELLED,
    "engine.max_context": _MODELLED,
    "cluster.instances": _MODELLED,
    "cluster.gpus_per_node": _MODELLED._replace(remark="an instance larger than a node is refused"),
    "cluster.nics_per_node": _MODELLED,
    "cluster.nic_bytes_per_s": _MODELLED,
    "cluster.nic_efficiency": _MODELLED,
    "cluster.dram_bytes_per_node": _MODELLED._replace(remark="as the limit of the global tier"),
    "cluster.serving": Coverage(
        "modelled",
        "modelled",
        "refused",
        "perfect placement is for colocated serving; `plan` of two pools leaves it out",
    ),
    "cluster.prefill_instances": Coverage("modelled", "modelled", "refused", "as `serving`"),
    "cluster.decode_instances": Coverage("modelled", "modelled", "refused", "as `serving`"),
    "global_tier.bytes_per_node": _MODELLED,
    "global_tier.write": Coverage(
        "modelled", "modelled", "assumed", "plan: every tier holds what was written last"
    ),
    "global_tier.fetch": _NOTED._replace(
        remark="`stall` is answered as `async`; invalid where engines would stand still for more"
        " than 2 % of the time"
    ),
    "global_tier.recompute_if_faster": _MODELLED,
    "global_tier.peer_fetch": Coverage(
        "noted",
        "noted",
        "unused",
        "invalid where more than 2 % of the prompt tokens are reusable and computed again; with"
        " perfect placement no peer has more",
    ),
    "global_tier.eviction": _NOTED._replace(
        remark="others are answered as `lru`; invalid where more than 2 % of the prompt tokens are"
        " reusable and computed again"
    ),
    "local_tier.eviction": _NOTED._replace(
        remark="others are answered as `lru`; invalid where more than 2 % of the turns come after"
        " their context was evicted"
    ),
    "workload.trace": _MODELLED,
    "workload.preset": _MODELLED,
    "workload.rate_rps": _MODELLED._replace(
        remark="taken as realised: a slow cluster delays the turns of a closed loop beyond the"
        " window, which lowers the realised rate of a run"
    ),
    "workload.session_start": Coverage(
        "assumed", "assumed", "assumed", "sessions start at random, recorded bursts are smoothed"
    ),
    "workload.window_s": Coverage("modelled", "modelled", "assumed", "plan: the steady state"),
    "workload.warmup_s": Coverage("modelled", "modelled", "assumed", "plan: the steady state"),
    "workload.start": Coverage(
        "noted",
        "noted",
        "assumed",
        "`cold` counts the window's own requests where times are recorded or a preset's; else it"
        " is answered as `equilibrium`, and noted. plan: the steady state",
    ),
    "workload.loop": _NOTED._replace(
        remark="`open` is answered as `closed`: a turn comes a think time after the previous one"
    ),
    "client.timeout_s": _NOTED._replace(
        remark="invalid where more than a few per cent of the requests would take that long"
    ),
    "client.retries": _NOTED._replace(remark="with `timeout_s` or failures only"),
    "client.backoff_s": _NOTED._replace(remark="with `timeout_s` or failures only"),
    "router.policy": Coverage("modelled", "assumed", "unused", "tune: SMetric"),
    "router.overload": Coverage("modelled", "unused", "unused", "what tune looks for"),
    "router.hit_ratio": Coverage("modelled", "unused", "unused", "what tune looks for"),
    "router.overload_floor": _ROUTER,
    "router.subtract_shared_prefix": _ROUTER,
    "router.tie_break": _signal("`first` is answered as `least-loaded`, for policies that have it"),
    "router.hit_weight": _OF_OTHERS,
    "router.load_normalisation": _OF_OTHERS,
    "router.count_self": _OF_OTHERS,
    "router.load_indicator": _signal(
        "other than `serving`'s: answered as if each request counted alike, for policies that"
        " balance either"
    ),
    "router.hit_index": _signal(
        "invalid for `blind` where more than 2 % of the turns come after their context was evicted"
    ),
    "router.hit_index_age_s": _signal(
        "invalid for `delayed` where more than 2 % of the turns come within this age"
    ),
    "router.load_source": _signal("invalid where two requests are with the host at a time"),
    "router.load_age_s": _signal("invalid where two requests arrive within this age"),
    "router.detection_s": Coverage("noted", "noted", "unused", "with failures only"),
    "router.replicas": _signal(
        "invalid where a router has fewer than .75 requests on an instance, unless it scrapes"
    ),
    "slo.ttft_base_s": _MODELLED,
    "slo.ttft_per_prompt_token_s": _MODELLED,
    "slo.tpot_s": _MODELLED,
    "slo.attainment": _MODELLED._replace(remark="capacity, and what binds"),
    "groups.*": Coverage("refused", "refused", "refused", "`operations mixed` takes them"),
    "failures.*": _NOTED._replace(remark="always invalid if before the window's end"),
}

#: policies that look at hits, and those that look at no load
_LOOK_AT_HITS = frozenset(("smetric", "smetric-basic", "smetric-slo", "bailian", "lmetric"))
_LOOK_AT_HITS |= {"dynamo"}
_LOOK_AT_NO_LOAD = frozenset(("always-sticky", "round-robin", "random"))

_FEW = 0.02  # share of time, tokens or turns that may be answered wrongly
_HALF_A_POOL = 0.5
_OWN_REQUESTS = 0.75  # of a router on an instance: below, it sees little of the load
_AT_A_TIME = 2.0  # requests that a router places unseen
#: share of the NICs that fetching all KV again would take, and of saturation, from which a cluster
#: may stay without local hits
_REFILL, _LOADED = 0.8, 0.65


def left_out(scenario: Scenario, policy: str | None = None) -> tuple[str, ...]:
    """Return the keys that ask for something the closed forms leave out.

    Parameters
    ----------
    scenario : Scenario
        The question.
    policy : str, optional
        In place of the scenario's; ``""``: nobody places requests.

    Returns
    -------
    tuple of str
        Dotted keys whose value would make a difference, in the order of :data:`COVERAGE`.
    """
    from smetric_model.routing.registry import POLICIES, policy_parameters

    router, tier, work = scenario.router, scenario.global_tier, scenario.workload
    serving = scenario.cluster.serving
    name = router.policy if policy is None else policy
    end_s = work.warmup_s + work.window_s
    fails = any(failure.at_s < end_s for failure in scenario.failures)
    gives_up = math.isfinite(scenario.client.timeout_s)
    several = scenario.cluster.instances > 1 and name != ""
    hits = several and name in _LOOK_AT_HITS
    loads = several and name not in _LOOK_AT_NO_LOAD
    asked = {
        "engine.kv_admission": scenario.engine.kv_admission == "preempt",
        "global_tier.fetch": tier.fetch == "stall" and tier.bytes_per_node > 0,
        "global_tier.peer_fetch": tier.peer_fetch and several,
        "global_tier.eviction": tier.eviction != "lru" and tier.bytes_per_node > 0,
        "local_tier.eviction": scenario.local_tier.eviction != "lru",
        "workload.start": work.start == "cold"
        and work.preset is None
        and work.session_start == "poisson"
        and name != "",
        "workload.loop": work.loop == "open",
        "client.timeout_s": gives_up,
        "client.retries": scenario.client.retries > 0 and (gives_up or fails),
        "client.backoff_s": scenario.client.backoff_s > 0
        and scenario.client.retries > 0
        and (gives_up or fails),
        "router.tie_break": several
        and router.tie_break != "least-loaded"
        and "tie_break" in policy_parameters(name),
        "router.load_indicator": loads
        and not POLICIES[name].needs_unprefilled_tokens
        and router.balances_tokens(serving) != (serving == "disaggregated"),
        "router.hit_index": hits and router.hit_index == "blind",
        "router.hit_index_age_s": hits
        and router.hit_index == "delayed"
        and router.hit_index_age_s > 0,
        "router.load_source": loads and router.load_source == "scraped",
        "router.load_age_s": loads and router.load_age_s > 0,
        "router.detection_s": several and fails,
        "router.replicas": loads and router.replicas > 1,
        "failures": fails,
    }
    return tuple(key for key, is_asked in asked.items() if is_asked)


def notes_left_out(scenario: Scenario, policy: str | None = None) -> tuple[str, ...]:
    """Return :func:`left_out` as notes: one line, or none.

    Parameters
    ----------
    scenario, policy
        As of :func:`left_out`.

    Returns
    -------
    tuple of str
    """
    names = left_out(scenario, policy)
    return (f"not in these figures: {', '.join(names)}",) if names else ()


def too_far(
    cluster: ColocatedCluster, state: ClusterState, latency: dict[str, float]
) -> tuple[str, ...]:
    """Return those of :func:`left_out` that would change the answer at this rate.

    Parameters
    ----------
    cluster : ColocatedCluster
        The scenario.
    state : ClusterState
        Its fixed point.
    latency : dict
        The outcome's latencies [s].

    Returns
    -------
    tuple of str
        Reasons, a text each.  The limits are those of :data:`COVERAGE`.
    """
    scenario, work = cluster.scenario, cluster.work
    router, n = scenario.router, cluster.instances
    names = left_out(scenario)
    if not names:
        return ()
    reasons = []

    def far(key: str, is_far: bool, why: str) -> None:
        if key in names and is_far:
            reasons.append(f"{key}: {why}")

    held = state.pinned_tokens / cluster.demand.pool_tokens
    decode = getattr(cluster, "decode", None)
    if decode is not None:
        held = max(held, decode.kv_ratio)
    far("engine.kv_admission", held > _HALF_A_POOL, f"running requests hold {held:.0%} of the pool")
    stands = state.rate_rps / n * latency["fetch_mean_s"]
    far("global_tier.fetch", stands > _FEW, f"engines would stand still {stands:.0%} of the time")
    lacking = float((work.reusable - state.total_tokens).mean()) / float(work.local.prompt.mean())
    for key in ("global_tier.peer_fetch", "global_tier.eviction"):
        far(
            key,
            lacking > _FEW,
            f"{lacking:.0%} of the prompt tokens are reusable and computed again",
        )
    output = float(np.quantile(work.output_tokens, 0.99))
    tpot = latency["tpot_p99_s"] if output > 1 else 0.0
    longest = latency["ttft_p99_s"] + tpot * (output - 1)
    far(
        "client.timeout_s",
        not longest <= scenario.client.timeout_s,
        f"requests take up to {longest:.3g} s",
    )
    think = work.think_time
    with np.errstate(over="ignore", under="ignore"):
        gone = float(think.weights @ np.exp(-state.hits.retention_s / think.means_s))
        unseen = float(think.weights @ -np.expm1(-router.hit_index_age_s / think.means_s))
    seen = scenario.workload.warmup_s + scenario.workload.window_s
    gone = gone if state.hits.retention_s < seen else 0.0
    for key in ("router.hit_index", "local_tier.eviction"):
        far(key, gone > _FEW, f"{gone:.0%} of the turns come after their eviction")
    far("router.hit_index_age_s", unseen > _FEW, f"{unseen:.0%} of the turns come within it")
    unread = state.rate_rps * float(cluster.engines.host_s(state.mixed.prompt).mean())
    far(
        "router.load_source",
        unread > _AT_A_TIME,
        f"{unread:.3g} requests are with the host at a time",
    )
    old = state.rate_rps * router.load_age_s
    far("router.load_age_s", old > _AT_A_TIME, f"{old:.3g} requests arrive within it")
    # a router that scrapes sees what the others placed
    own = state.routed.mean_load / router.replicas
    far(
        "router.replicas",
        router.load_source == "own" and own < _OWN_REQUESTS,
        f"each router has {own:.3g} of its requests on an instance",
    )
    far("failures", True, "figures are of a whole cluster")
    return tuple(reasons)


def two_states(cluster: ColocatedCluster, state: ClusterState) -> tuple[str, ...]:
    """Say whether a cluster may also be in a state that the rounds do not end in.

    Where running requests fill the pools (from a cold start, after a burst), contexts leave the
    local tiers before their session comes back.  Where the NICs carry them again, the pools drain;
    where they do not, prompts are computed again, requests stay longer, and the pools remain full.

    Parameters
    ----------
    cluster, state
        As of :func:`too_far`.

    Returns
    -------
    tuple of str
        A reason, or none.
    """
    fetches, fetched = state.fetches, state.global_ratio
    if cluster.scenario.cluster.serving == "disaggregated" or not fetched > 1e-3:
        return ()
    use = state.rate_rps / (cluster.instances * state.loaded.instance.stability_rps)
    reads = fetches.nic_utilisation - fetches.write_utilisation
    held = float(cluster.work.within(state.reach_s).mean())
    share = held / float(cluster.work.local.prompt.mean())
    refill = fetches.write_utilisation + reads * share / fetched
    if use < _LOADED or refill < _REFILL:
        return ()
    return (
        f"two states are possible at {use:.0%} of saturation: these figures are of the one with"
        " local hits; from a cold start or a burst the cluster may stay with full KV pools, where"
        f" fetching every context again would take {refill:.2g} times what the NICs carry and"
        " prompts are computed again",
    )


def coverage_markdown() -> str:
    """Return the table of the documentation, a row a key.

    Returns
    -------
    str
        Markdown.
    """
    lines = [
        "| key | `predict` | `tune` | `plan`, perfect placement | remark |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| `{key}` | {one.predict} | {one.tune} | {one.plan} | {one.remark} |"
        for key, one in COVERAGE.items()
    ]
    return "\n".join(lines) + "\n"
