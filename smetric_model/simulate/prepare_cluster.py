"""From a scenario to the instances, nodes and links that a simulation reads."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic.demand import cluster_of
from smetric_model.analytic.efficiencies import get_efficiencies
from smetric_model.analytic.fabric import nic_bytes_per_s, pcie_bytes_per_s
from smetric_model.analytic.latency import host_time_s
from smetric_model.analytic.memory import (
    fixed_state_bytes_per_request,
    kv_bytes_per_token,
    local_tier,
)
from smetric_model.analytic.scenario_policy import policy_of
from smetric_model.analytic.step_model import step_model
from smetric_model.analytic.step_time import step_time_s
from smetric_model.simulate.inputs import Clients, Engine, Fabric, Group, Requests, Tiers
from smetric_model.simulate.steps import decode_tables, to_ticks

if TYPE_CHECKING:
    from smetric_model.catalog.cluster import Cluster
    from smetric_model.catalog.instance import InstanceSpec
    from smetric_model.routing.policy import Policy
    from smetric_model.scenario import Scenario

__all__ = [
    "carried_over",
    "clients_of",
    "engine_of",
    "kinds_of",
    "most_request_tokens",
    "router_policy",
    "tiers_of",
]


def carried_over(instances: list[InstanceSpec]) -> list[str]:
    """Say whose efficiencies were fitted on another GPU, each once."""
    notes: dict[str, None] = {}
    for instance in instances:
        fitted = get_efficiencies(instance.gpu.name, instance.engine)
        if fitted.carried_over:
            notes[f"efficiencies of {fitted.fitted_for} carried over to {instance.gpu.name}"] = None
    return list(notes)


def engine_of(scenario: Scenario, instance: InstanceSpec, cache_block_tokens: int) -> Engine:
    """Return the engine of an instance; hits are counted in blocks of ``cache_block_tokens``."""
    return Engine(
        pool_tokens=local_tier(instance).blocks * instance.block_tokens,
        fixed_state_tokens=math.ceil(
            fixed_state_bytes_per_request(instance) / kv_bytes_per_token(instance)
        ),
        token_budget=instance.token_budget,
        max_running_requests=instance.max_running_requests,
        block_tokens=instance.block_tokens,
        cache_block_tokens=cache_block_tokens,
        preempt=int(scenario.engine.kv_admission == "preempt"),
    )


def most_request_tokens(engine: Engine) -> int:
    """Return the tokens of the longest request that an instance has room for."""
    whole = engine.pool_tokens // engine.block_tokens
    state = -(-engine.fixed_state_tokens // engine.block_tokens)
    return (whole - state) * engine.block_tokens


def kinds_of(
    scenario: Scenario,
    instances: list[InstanceSpec],
    engines: list[Engine],
    requests: Requests,
) -> list[Group]:
    """Return the groups of instances; one, where all are equal."""
    clusters = [cluster_of(one) for one in scenario.by_group()]
    nodes = sum(cluster.nodes for cluster in clusters)
    # one store for all: its blocks are as large as those of the group that takes most for a token
    token_bytes = max(kv_bytes_per_token(instance) for instance in instances)
    tier = scenario.global_tier.bytes_per_node * nodes
    stored = int(tier // (token_bytes * engines[0].cache_block_tokens))
    kinds = []
    for instance, engine, cluster in zip(instances, engines, clusters, strict=True):
        model = step_model(instance)
        host = to_ticks(host_time_s(instance, requests.prompt_tokens))
        own = not np.array_equal(host, requests.host_ticks)
        kinds.append(
            Group(
                instances=cluster.instances,
                engine=engine,
                model=model,
                decode=decode_tables(model, engine.max_running_requests),
                fabric=_fabric(scenario, instance, engine, cluster, nodes, stored),
                peer_bytes_per_s=instance.tp * instance.gpu.nvlink_bytes_per_s,
                host_ticks=host if own else requests.host_ticks,
            )
        )
    return kinds


def _fabric(
    scenario: Scenario,
    instance: InstanceSpec,
    engine: Engine,
    cluster: Cluster,
    nodes: int,
    global_blocks: int,
) -> Fabric:
    """Links of a group's instances and nodes, which are ``cluster``, among all ``nodes``."""
    fitted = get_efficiencies(instance.gpu.name, instance.engine)
    block_bytes = kv_bytes_per_token(instance) * instance.block_tokens
    largest = -(-scenario.engine.max_context_tokens // engine.block_tokens)
    largest = max(largest, engine.pool_tokens // engine.block_tokens)
    size = np.arange(largest + 1) * block_bytes
    driven = min(cluster.nics_per_node, instance.tp)  # one GPU drives one NIC

    def work(share: float, busy: bool) -> NDArray[np.float64]:
        part = size * share
        efficiency = nic_bytes_per_s(cluster, part / driven, busy) / cluster.nic_bytes_per_s
        return np.asarray(part / efficiency)

    section = scenario.cluster
    pools = section.serving == "disaggregated"
    whole = pools or scenario.global_tier.peer_fetch  # KV goes from one node to one other
    none = np.zeros(0)
    remote_ratio = (nodes - 1) / nodes
    return Fabric(
        instances=section.instances,
        prefill_instances=section.prefill_instances or section.instances,
        instances_per_node=cluster.instances_per_node,
        nodes=nodes,
        node_nic_bytes_per_s=cluster.nics_per_node * cluster.nic_bytes_per_s,
        flow_nic_bytes_per_s=driven * cluster.nic_bytes_per_s,
        pcie_bytes_per_s=instance.tp * pcie_bytes_per_s(instance.gpu),
        block_bytes=float(block_bytes),
        nic_work_idle=work(remote_ratio, False),
        nic_work_busy=work(remote_ratio, True),
        transfer_work_idle=work(1.0, False) if whole else none,
        transfer_work_busy=work(1.0, True) if whole else none,
        fixed_fetch_ticks=to_ticks(fitted.rdma_fetch_s if nodes > 1 else fitted.dram_fetch_s),
        global_blocks=global_blocks,
        stall=int(scenario.global_tier.fetch == "stall"),
        recompute_if_faster=int(scenario.global_tier.recompute_if_faster),
    )


def router_policy(
    scenario: Scenario, instances: list[InstanceSpec], kinds: list[Group], cache_block: int
) -> Policy:
    """Return the router's policy; it knows one speed of prefill, the slowest group's."""
    chunk = [float(step_time_s(kind.model, kind.engine.token_budget)) for kind in kinds]
    pace = [s / kind.engine.token_budget for s, kind in zip(chunk, kinds, strict=True)]
    slowest = pace.index(max(pace))
    return policy_of(scenario, instances[slowest], kinds[slowest].model, cache_block)


def tiers_of(scenario: Scenario, peer_bytes_per_s: float) -> Tiers:
    """Return how the tiers evict, write and fetch."""
    names = ("lru", "dead-first", "clairvoyant")
    return Tiers(
        local_eviction=names.index(scenario.local_tier.eviction),
        global_eviction=names.index(scenario.global_tier.eviction),
        write_back=int(scenario.global_tier.write == "back"),
        peer_fetch=int(scenario.global_tier.peer_fetch),
        peer_bytes_per_s=peer_bytes_per_s,
    )


def clients_of(scenario: Scenario) -> Clients:
    """Return how long clients wait, and what they do then."""
    client = scenario.client
    waits = math.isinf(client.timeout_s)
    return Clients(
        timeout_ticks=-1 if waits else to_ticks(client.timeout_s),
        retries=client.retries,
        backoff_ticks=to_ticks(client.backoff_s),
    )
