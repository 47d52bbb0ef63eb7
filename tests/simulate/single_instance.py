"""One instance with an invented step time, for laws of queueing and of accounting."""

from __future__ import annotations

import numpy as np

from smetric_model.analytic.step_time import StepModel
from smetric_model.routing.registry import make_policy
from smetric_model.simulate.inputs import Engine, Fabric, Inputs, Requests, Window
from smetric_model.simulate.nodes import no_nodes, split_nodes
from smetric_model.simulate.steps import decode_tables, to_ticks
from smetric_model.workload.prefix_tree import PrefixTreeBuilder

NOTHING = StepModel(**(dict.fromkeys(StepModel._fields, 0.0) | {"kv_stream_ratio": 1.0}))


def inputs_of(
    arrival_s,
    prompt_tokens,
    output_tokens,
    model=NOTHING,
    paths=None,
    pool_tokens=10**9,
    token_budget=8192,
    max_running_requests=256,
    block_tokens=16,
    instances=1,
    prefill_instances=None,
    window_s=None,
    warmup_s=0.0,
    **parts,
) -> Inputs:
    """Open loop, no host time, no global tier; everything arrives inside the window.

    ``parts`` are further fields of the inputs, such as ``clients``.
    """
    n = len(arrival_s)
    prompt = np.broadcast_to(prompt_tokens, n).astype(np.int64)
    output = np.broadcast_to(output_tokens, n).astype(np.int64)
    rows, none = np.arange(n), np.full(n, -1)
    nodes = no_nodes(n)
    if paths is not None:
        builder = PrefixTreeBuilder()
        root = builder.root(None)
        for path in paths:
            builder.add_ids([root], np.array(path, dtype=np.int64), [0, len(path)])
        blocks = np.minimum([len(path) for path in paths], prompt // block_tokens)
        nodes = split_nodes(builder.build(), blocks, rows, in_order=False)
    window_s = float(np.max(arrival_s)) + 1.0 if window_s is None else window_s
    return Inputs(
        requests=Requests(
            arrival_tick=to_ticks(arrival_s),
            think_ticks=np.zeros(n, np.int64),
            previous=none,
            following=none,
            turn=np.zeros(n, np.int64),
            prompt_tokens=prompt,
            output_tokens=output,
            est_hit_tokens=np.zeros(n, np.int64),
            session_key=rows.astype(np.uint64),
            host_ticks=np.zeros(n, np.int64),
            unservable=np.zeros(n, np.int64),
        ),
        nodes=nodes,
        engine=Engine(
            pool_tokens=pool_tokens,
            fixed_state_tokens=0,
            token_budget=token_budget,
            max_running_requests=max_running_requests,
            block_tokens=block_tokens,
            cache_block_tokens=block_tokens,
        ),
        fabric=Fabric(
            instances=instances,
            prefill_instances=prefill_instances or instances,
            instances_per_node=instances,
            nodes=1,
            node_nic_bytes_per_s=25e9,
            flow_nic_bytes_per_s=25e9,
            pcie_bytes_per_s=54e9,
            block_bytes=1e6,
            nic_work_idle=np.zeros(2),
            nic_work_busy=np.zeros(2),
            transfer_work_idle=np.zeros(0),
            transfer_work_busy=np.zeros(0),
            fixed_fetch_ticks=0,
            global_blocks=0,
            stall=0,
            recompute_if_faster=1,
        ),
        window=Window(
            start=to_ticks(warmup_s),
            end=to_ticks(warmup_s + window_s),
            drain_end=to_ticks(warmup_s + window_s + 1e5),
            bin_ticks=to_ticks(30.0),
            bins=int(np.ceil(window_s / 30.0)),
        ),
        model=model,
        decode=decode_tables(model, max_running_requests),
        policy=make_policy("load-balance"),
        **parts,
    )


def mean_and_error(values, batches=50):
    """Mean, and its standard error by batch means: neighbours are correlated."""
    means = np.array([part.mean() for part in np.array_split(np.asarray(values, float), batches)])
    return means.mean(), means.std(ddof=1) / np.sqrt(batches)
