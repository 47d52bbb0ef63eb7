"""Preemption in plain Python: KV grows with the output, and the latest admitted gives way."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smetric_model.simulate.reference import Cluster

__all__ = ["make_room"]


def make_room(cluster: Cluster, index: int, now: int) -> bool:
    """Give every decoding sequence KV for its next token; whether others had to give way."""
    instance = cluster.instances[index]
    block = cluster.inputs.engine.block_tokens
    prompt = cluster.inputs.requests.prompt_tokens
    preempted = False
    while True:
        growing = [
            r for r in instance.decoding if int(prompt[r]) + cluster.made[r] > cluster.room[r]
        ]
        if instance.cache.take(len(growing) * block):
            break
        running = [r for r in instance.prefilling if r not in instance.fetching]
        running += instance.decoding
        preempt(cluster, index, max(running, key=lambda r: cluster.rank[r]))
        preempted = True
    if growing and cluster.inputs.tiers.write_back:
        cluster.store(index, growing[0], instance.cache.victims[::-1], now)
    for request in growing:
        cluster.room[request] += block
        cluster.private[request] += block
    return preempted


def preempt(cluster: Cluster, index: int, request: int) -> None:
    """Take a request's KV and put it at the head of the queue; its cached blocks stay for now."""
    instance, out = cluster.instances[index], cluster.out
    block = cluster.inputs.engine.cache_block_tokens
    path = cluster.path(request)
    if request in instance.decoding:
        instance.decoding.remove(request)
    else:
        instance.prefilling.remove(request)
        whole = cluster.at[request]
        cluster.private[request] -= instance.cache.insert(path[: whole // block]) * block
        out.repeated_tokens[request] += whole - cluster.found[request]
        if out.first_token[request] < 0:
            for name in ("admitted", "fetch_start", "fetch_done", "first_step", "peer"):
                getattr(out, name)[request] = -1
            out.local_tokens[request] = out.fetched_tokens[request] = 0
    instance.cache.release(path, cluster.private[request])
    cluster.private[request] = 0
    instance.waiting.appendleft(request)
    out.preemptions[request] += 1
