"""From a replay and its tables to the row of the schema."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from smetric_model.schema import imbalance_column
from smetric_model.simulate.inputs import Inputs, Replay
from smetric_model.simulate.prepare import BIN_S, Prepared
from smetric_model.simulate.steps import TICKS_PER_S
from smetric_model.simulate.tables import (
    TOKENS,
    inflight_bins,
    instance_table,
    is_disaggregated,
    request_table,
    window_s_of,
    window_tokens,
)
from smetric_model.simulate.try_tables import (
    GIVEN_UP,
    try_row,
)

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.outcome import Outcome
    from smetric_model.scenario import Scenario

__all__ = ["nic_utilisations", "outcome_of"]

FloatArray = NDArray[np.float64]

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_STATISTICS: dict[str, Any] = {
    "mean": np.mean,
    "median": np.median,
    "p75": lambda values: np.quantile(values, 0.75),
    "p90": lambda values: np.quantile(values, 0.90),
    "p99": lambda values: np.quantile(values, 0.99),
    "max": np.max,
}
#: Above this share of its capacity a resource is what limits throughput.
_SATURATED = 0.95
#: A node's interfaces busier than this over the window carry less than is sent.
_ALWAYS_BUSY = 0.98

#: arrivals below this share of what was asked for are noted, where so many were asked for
_MUCH_LESS, _ENOUGH_REQUESTS = 0.9, 1000


def _imbalances(
    inputs: Inputs, replay: Replay, inflight: dict[str, FloatArray]
) -> dict[str, float]:
    bins = {"processed_tokens": window_tokens(replay)["total"].astype(np.float64), **inflight}
    whole = (inputs.window.end - inputs.window.start) // inputs.window.bin_ticks
    result = {}
    for quantity, rows in bins.items():
        values = rows[: inputs.fabric.prefill_instances]
        for width in (1, 2):
            windows = whole // width
            if windows == 0:
                continue
            table = values[:, : windows * width].reshape(values.shape[0], windows, width).sum(2)
            mean = table.mean(axis=0)
            ratio = table.max(axis=0)[mean > 0] / mean[mean > 0]
            for statistic, function in _STATISTICS.items():
                if ratio.size:
                    name = imbalance_column(quantity, width * BIN_S, statistic)
                    result[name] = float(function(ratio))
    return result


def _reuse_shares(prepared: Prepared, replay: Replay, rows: NDArray[np.int64]) -> dict[str, float]:
    """Shares of the reused tokens of the window's requests by who produced them first."""
    inputs, trace = prepared.inputs, prepared.trace
    if trace.tree is None or not rows.size:
        return {}
    from smetric_model.workload._reuse_kernels import producers
    from smetric_model.workload.origin import common_prefix_blocks

    nodes = inputs.nodes
    size = inputs.requests.turn.size
    own, system, other = (np.zeros(size, np.int64) for _ in range(3))
    producers(
        nodes.parent,
        nodes.start,
        nodes.end,
        nodes.longest_path(),
        nodes.leaf,
        nodes.blocks,
        replay.order,
        trace.column("session_id").astype(np.int64),
        common_prefix_blocks(trace),
        inputs.engine.cache_block_tokens,
        np.where(replay.first_token >= 0, replay.local_tokens + replay.fetched_tokens, 0),
        own,
        system,
        other,
    )
    sums = [int(values[rows].sum()) for values in (own, system, other)]
    total = sum(sums)
    if total == 0:
        return {}
    names = ("intra_reuse_ratio", "system_reuse_ratio", "other_reuse_ratio")
    return {name: value / total for name, value in zip(names, sums, strict=True)}


def outcome_of(scenario: Scenario, prepared: Prepared, replay: Replay) -> Outcome:
    """Return the outcome of a replay, with its tables.

    Parameters
    ----------
    scenario : Scenario
        The question.
    prepared : Prepared
        What was simulated.
    replay : Replay
        What happened.

    Returns
    -------
    Outcome
    """
    from smetric_model.outcome import Outcome

    inputs = prepared.inputs
    window_s = window_s_of(inputs)
    requests = request_table(scenario, prepared, replay)
    instances = instance_table(prepared, replay, requests)
    status = requests["status"].to_numpy()
    served, servable = status == "served", status != "unservable"
    within = requests["within_slo"].to_numpy()
    good = requests[within]
    tokens = {
        "prompt": good["prompt_tokens"].sum(),
        "computed_prompt": good["recomputed_tokens"].sum(),
        "output": good["output_tokens"].sum(),
    }
    tokens["reused_prompt"] = tokens["prompt"] - tokens["computed_prompt"]
    tokens["total"] = tokens["prompt"] + tokens["output"]
    processed = window_tokens(replay)
    done = requests[served]
    prompt = float(done["prompt_tokens"].sum())
    inflight = inflight_bins(inputs, replay)
    notes = [*prepared.notes, *_status_notes(requests), *_lagging_links(inputs, replay)]
    if requests.empty:
        notes.append("no request arrives in the window")
    notes += _slowed_sessions(scenario, len(requests), window_s)
    unfinished = int((status == "unfinished").sum())
    row: dict[str, Any] = {
        "scenario_id": scenario.scenario_id,
        "verb": "simulate",
        "policy": scenario.router.policy,
        "seed": scenario.seed,
        "arrival_rate_rps": len(requests) / window_s,
        "warmup_s": scenario.workload.warmup_s,
        "window_s": scenario.workload.window_s,
        "requests": len(requests),
        "unservable_ratio": float(np.mean(~servable)) if len(requests) else math.nan,
        "within_slo_ratio": float(within.sum() / servable.sum()) if servable.any() else math.nan,
        **try_row(inputs, replay, requests),
        "inflight_requests_mean": float(
            inflight["requests"].sum() * inputs.window.bin_ticks / (window_s * TICKS_PER_S)
        ),
        **{f"{name}_tps": float(processed[name].sum() / window_s) for name in TOKENS},
        **{f"{name}_within_slo_tps": float(tokens[name] / window_s) for name in TOKENS},
        **_latencies(done, ("ttft", "tpot", "e2e", "queue", "fetch")),
        **_imbalances(inputs, replay, inflight),
        **_stickiness(inputs, replay, requests),
        "valid": unfinished == 0 and len(requests) > 0,
    }
    if prompt > 0:
        for source in ("local", "global", "peer", "recomputed"):
            row[f"{source}_ratio"] = float(done[f"{source}_tokens"].sum() / prompt)
        row |= _reuse_shares(prepared, replay, done["request_id"].to_numpy())
    row |= _utilisations(inputs, replay, instances)
    if is_disaggregated(inputs):
        row |= _latencies(done, ("transfer_wait", "transfer"))
        row |= _pool_utilisations(inputs, replay, instances)
    row["binding_resource"] = _binding(scenario, row, requests)
    row["note"] = "; ".join(notes)
    return Outcome(row, requests=requests, instances=instances)


def _status_notes(requests: pd.DataFrame) -> list[str]:
    left = requests[requests["status"] != "served"]
    return [f"{len(lines)} requests {reason}" for reason, lines in left.groupby("reason")]


def _slowed_sessions(scenario: Scenario, arrived: int, window_s: float) -> list[str]:
    """Say that fewer requests came about than asked for: a next turn waits for its answer."""
    asked = scenario.workload.rate_rps
    if asked == "trace" or asked * window_s < _ENOUGH_REQUESTS:
        return []
    if arrived >= _MUCH_LESS * asked * window_s:
        return []
    return [
        f"{arrived / window_s:.4g} requests/s arrived in the window where {asked:.4g} were asked"
        " for: a session sends its next turn after the answer, and answers come late"
    ]


def _latencies(done: pd.DataFrame, quantities: tuple[str, ...]) -> dict[str, float]:
    result = {}
    for quantity in quantities:
        values = done[f"{quantity}_s"].to_numpy()
        values = values[~np.isnan(values)]
        if values.size:
            result[f"{quantity}_mean_s"] = float(values.mean())
            levels = np.quantile(values, list(_QUANTILES.values()))
            result |= {
                f"{quantity}_{name}_s": float(level)
                for name, level in zip(_QUANTILES, levels, strict=True)
            }
    return result


def _stickiness(inputs: Inputs, replay: Replay, requests: pd.DataFrame) -> dict[str, float]:
    """Shares of the follow-ups whose previous turn was placed in this run."""
    route = requests["route"].to_numpy()
    follows = (route != "first") & (route != "")
    if not follows.any():
        return {}
    rows = requests["request_id"].to_numpy()[follows]
    first = _first_placed(inputs, replay)
    return {
        "return_to_first_ratio": float(np.mean(replay.instance[rows] == first[rows])),
        "return_to_previous_ratio": float(np.mean(route[follows] == "stayed")),
        **{
            f"migrated_{cause}_ratio": float(np.mean(route[follows] == cause))
            for cause in ("overload", "evicted", "other")
        },
    }


def _first_placed(inputs: Inputs, replay: Replay) -> NDArray[np.int64]:
    """Instance of the first turn of each request's session that was placed in this run."""
    first = np.full(replay.instance.size, -1, np.int64)
    previous = inputs.requests.previous
    for row in replay.order.tolist():  # a previous turn arrives before the next
        before = previous[row]
        known = first[before] if before >= 0 else -1
        first[row] = known if known >= 0 else replay.instance[row]
    return first


def nic_utilisations(inputs: Inputs, replay: Replay) -> tuple[FloatArray, FloatArray]:
    """Return the shares of each node's network interfaces that transfers take, in and out.

    Parameters
    ----------
    inputs : Inputs
        What was simulated.
    replay : Replay
        What happened.

    Returns
    -------
    inward, outward : ndarray of float64, shape (nodes,)
        Averaged over the window.
    """
    fabric = inputs.fabric
    if fabric.nodes == 1:
        return np.zeros(1), np.zeros(1)
    reads, writes, kv_in, kv_out = replay.nic_work_bytes
    others = fabric.nodes - 1
    rate = inputs.of_nodes("fabric.node_nic_bytes_per_s")
    capacity = rate * window_s_of(inputs)
    inward = reads + (writes.sum() - writes) / others + kv_in
    outward = writes + (reads.sum() - reads) / others + kv_out
    return inward / capacity, outward / capacity


def _lagging_links(inputs: Inputs, replay: Replay) -> list[str]:
    """Say that links are busy all the time: writes queue without end, and nobody waits for them."""
    inward, outward = nic_utilisations(inputs, replay)
    busiest = float(max(inward.max(), outward.max()))
    written = float(replay.nic_work_bytes[1].sum())
    if busiest < _ALWAYS_BUSY or not written > 0:
        return []
    share = written / float(replay.nic_work_bytes.sum())
    return [
        f"the NICs of a node are busy for {busiest:.0%} of the window, {share:.0%} of what they"
        " carry being writes to the global tier, which lag behind: requests do not wait for them, a"
        " store with a bounded buffer drops them"
    ]


def _utilisations(inputs: Inputs, replay: Replay, instances: pd.DataFrame) -> dict[str, float]:
    # every remote byte leaves one node and enters another: the means are equal
    inward, outward = nic_utilisations(inputs, replay)
    return {
        "compute_utilisation_ratio": float(instances["compute_utilisation_ratio"].mean()),
        "kv_utilisation_ratio": float(instances["kv_utilisation_ratio"].mean()),
        "nic_in_utilisation_ratio": float(inward.mean()),
        "nic_out_utilisation_ratio": float(outward.mean()),
        "pcie_utilisation_ratio": float(instances["pcie_utilisation_ratio"].mean()),
    }


def _pool_utilisations(inputs: Inputs, replay: Replay, instances: pd.DataFrame) -> dict[str, float]:
    """Means over the instances of each pool, and over the nodes that hold any of it."""
    inward, outward = nic_utilisations(inputs, replay)
    used = {}
    for pool, lines in instances.groupby("role"):
        for resource in ("compute", "kv", "pcie"):
            column = f"{resource}_utilisation_ratio"
            used[f"{pool}_{column}"] = float(lines[column].mean())
        nodes = np.unique(inputs.node_of[lines["instance"]])
        used[f"{pool}_nic_in_utilisation_ratio"] = float(inward[nodes].mean())
        used[f"{pool}_nic_out_utilisation_ratio"] = float(outward[nodes].mean())
    return used


def _binding(scenario: Scenario, row: dict[str, Any], requests: pd.DataFrame) -> str:
    """Name what limits throughput: a saturated resource, else the SLO most requests miss."""
    resources = ["compute", "kv", "nic_in", "nic_out", "pcie"]
    if "prefill_compute_utilisation_ratio" in row:
        # a decode pool steps nearly always, however few it serves: too slow, it misses the TPOT SLO
        resources = ["prefill_compute"]
        names = ("kv", "pcie", "nic_in", "nic_out")
        resources += [f"{pool}_{name}" for pool in ("prefill", "decode") for name in names]
    used = {name: row[f"{name}_utilisation_ratio"] for name in resources}
    busiest = max(used, key=lambda name: used[name])
    attained = row["within_slo_ratio"]
    if used[busiest] >= _SATURATED or not attained < scenario.slo.attainment:
        return busiest
    limit = scenario.slo.ttft_s(requests["prompt_tokens"])
    late = (requests["ttft_s"] > limit).sum() + requests["status"].isin(GIVEN_UP[1:]).sum()
    slow = (requests["tpot_s"] > scenario.slo.tpot_s).sum()
    return "ttft" if late >= slow else "tpot"
