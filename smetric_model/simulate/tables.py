"""From a replay to the per-request and per-instance tables, and the row of the schema."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from smetric_model.routing.policy import Reason
from smetric_model.schema import imbalance_column
from smetric_model.simulate.inputs import FailedTries, Inputs, Replay
from smetric_model.simulate.prepare import BIN_S, Prepared
from smetric_model.simulate.steps import TICKS_PER_S
from smetric_model.simulate.try_tables import (
    GAVE_UP_REASONS,
    GIVEN_UP,
    ended_without_answer,
    failure_columns,
    try_columns,
    try_row,
)

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.outcome import Outcome
    from smetric_model.scenario import Scenario

__all__ = ["inflight_bins", "instance_table", "outcome_of", "request_table", "series_table"]

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
_TOKENS = ("prompt", "computed_prompt", "reused_prompt", "output", "total")
#: Above this share of its capacity a resource is what limits throughput.
_SATURATED = 0.95
#: A node's interfaces busier than this over the window carry less than is sent.
_ALWAYS_BUSY = 0.98

#: arrivals below this share of what was asked for are noted, where so many were asked for
_MUCH_LESS, _ENOUGH_REQUESTS = 0.9, 1000


def _seconds(start: Any, end: Any) -> FloatArray:
    """Differences of ticks [s]; NaN where either did not happen."""
    there = (start >= 0) & (end >= 0)
    return np.where(there, (end - start) / TICKS_PER_S, np.nan)


def request_table(scenario: Scenario, prepared: Prepared, replay: Replay) -> pd.DataFrame:
    """Return the requests that arrive in the window, in order of arrival.

    Parameters
    ----------
    scenario : Scenario
        For its SLO.
    prepared : Prepared
        What was simulated.
    replay : Replay
        What happened.

    Returns
    -------
    DataFrame
        Columns of ``load_schema("requests")``; with disaggregated serving also
        ``decode_instance`` (−1: none), ``transfer_wait_s`` (from the end of prefill until the
        decode pool has room) and ``transfer_s`` (while KV is sent there).
    """
    import pandas as pd

    inputs = prepared.inputs
    window = inputs.window
    rows = replay.order
    arrival = replay.arrival[rows]
    rows = rows[(arrival >= window.start) & (arrival < window.end)]
    data = inputs.requests
    prompt, output = data.prompt_tokens[rows], data.output_tokens[rows]
    at = {
        name: getattr(replay, name)[rows]
        for name in ("arrival", "fetch_start", "fetch_done", "first_step", "first_token", "done")
    }
    reason = data.unservable[rows]
    served = at["done"] >= 0
    ended = ended_without_answer(replay)[rows]
    status = np.where(reason > 0, "unservable", np.where(served, "served", "unfinished"))
    status = np.where(ended > 0, np.array(GIVEN_UP)[ended], status)
    why = np.array(
        ["", *prepared.reasons, *GAVE_UP_REASONS[1:], "still running at the drain limit"],
        dtype=object,
    )
    which = np.where(served, 0, len(why) - 1)
    which = np.where(ended > 0, len(prepared.reasons) + ended, which)
    which = np.where(reason > 0, reason, which)
    ttft = _seconds(at["arrival"], at["first_token"])
    e2e = _seconds(at["arrival"], at["done"])
    with np.errstate(invalid="ignore", divide="ignore"):
        tpot = np.where(output > 1, (e2e - ttft) / (output - 1), np.nan)
    fetch = np.where(at["fetch_start"] >= 0, _seconds(at["fetch_start"], at["fetch_done"]), 0.0)
    queue = _seconds(at["arrival"], at["first_step"]) - fetch
    slo = scenario.slo
    within = served & (ttft <= slo.ttft_s(prompt)) & ((output == 1) | (tpot <= slo.tpot_s))
    admitted = replay.admitted[rows] >= 0
    local = np.where(admitted, replay.local_tokens[rows], 0)
    fetched = np.where(admitted, replay.fetched_tokens[rows], 0)
    peer = replay.peer[rows] >= 0
    trace = prepared.trace
    table = pd.DataFrame(
        {
            "request_id": rows,
            "session_id": trace.column("session_id")[rows],
            "turn": data.turn[rows],
            "status": status,
            "reason": why[which],
            "instance": replay.instance[rows],
            "route": _routes(inputs, replay, rows),
            "arrival_s": at["arrival"] / TICKS_PER_S,
            "prompt_tokens": prompt,
            "output_tokens": output,
            "local_tokens": local,
            "global_tokens": np.where(peer, 0, fetched),
            "peer_tokens": np.where(peer, fetched, 0),
            "recomputed_tokens": prompt - local - fetched,
            "queue_s": queue,
            "fetch_s": np.where(reason > 0, np.nan, fetch),
            "ttft_s": ttft,
            "tpot_s": tpot,
            "e2e_s": e2e,
            "within_slo": within,
            **try_columns(replay, rows),
        }
    )
    if is_disaggregated(inputs):
        start, done = replay.transfer_start[rows], replay.transfer_done[rows]
        table["decode_instance"] = replay.decode_instance[rows]
        table["transfer_wait_s"] = _seconds(at["first_token"], start)
        table["transfer_s"] = _seconds(start, done)
    return table


def _routes(inputs: Inputs, replay: Replay, rows: NDArray[np.int64]) -> NDArray[np.object_]:
    """Why each request went where it did; empty where the previous turn's instance is unknown."""
    previous = inputs.requests.previous[rows]
    before = np.where(previous >= 0, replay.instance[np.maximum(previous, 0)], -1)
    here = replay.instance[rows]
    causes = np.array(["", *(reason.migration_cause for reason in Reason if reason >= 0)], object)
    route = causes[replay.reason[rows] + 1]
    route[(here >= 0) & (before == here)] = "stayed"
    route[before < 0] = ""
    route[inputs.requests.turn[rows] == 0] = "first"
    route[here < 0] = ""
    return route


def instance_table(prepared: Prepared, replay: Replay, requests: pd.DataFrame) -> pd.DataFrame:
    """One line an instance, inside the window.

    Parameters
    ----------
    prepared : Prepared
        What was simulated.
    replay : Replay
        What happened.
    requests : DataFrame
        From :func:`request_table`.

    Returns
    -------
    DataFrame
        Columns of ``load_schema("instances")``, and ``pcie_utilisation_ratio``.
    """
    import pandas as pd

    inputs = prepared.inputs
    count, window_s = inputs.fabric.instances, _window_s(inputs)
    placed = requests["instance"].to_numpy()
    first = requests["turn"].to_numpy() == 0
    if is_disaggregated(inputs):
        placed = np.concatenate((placed, requests["decode_instance"].to_numpy()))
        first = np.concatenate((first, first))
    ticks = window_s * TICKS_PER_S
    tokens = _window_tokens(replay)
    pool_tokens = inputs.of_instances("engine.pool_tokens")
    pcie_bytes_per_s = inputs.of_instances("fabric.pcie_bytes_per_s")
    return pd.DataFrame(
        {
            "instance": np.arange(count),
            "role": _roles(inputs),
            "group": inputs.kind_of,
            "requests": np.bincount(placed[placed >= 0], minlength=count),
            "first_turns": np.bincount(placed[(placed >= 0) & first], minlength=count),
            **{f"{name}_tps": tokens[name].sum(axis=1) / window_s for name in _TOKENS},
            "compute_utilisation_ratio": replay.busy_ticks / ticks,
            "kv_utilisation_ratio": replay.held_token_ticks / ticks / pool_tokens,
            "pcie_utilisation_ratio": replay.pcie_bytes / (window_s * pcie_bytes_per_s),
            **failure_columns(inputs, replay),
        }
    )


def is_disaggregated(inputs: Inputs) -> bool:
    """Whether some instances only decode.

    Parameters
    ----------
    inputs : Inputs
        What was simulated.
    """
    return inputs.fabric.prefill_instances < inputs.fabric.instances


def _roles(inputs: Inputs) -> NDArray[np.object_]:
    role = np.full(inputs.fabric.instances, "colocated", dtype=object)
    if is_disaggregated(inputs):
        role[:] = "decode"
        role[: inputs.fabric.prefill_instances] = "prefill"
    return role


def _window_s(inputs: Inputs) -> float:
    return (inputs.window.end - inputs.window.start) / TICKS_PER_S


def _window_tokens(replay: Replay) -> dict[str, NDArray[np.int64]]:
    """Tokens by instance and bin."""
    prompt = replay.computed_tokens + replay.reused_tokens
    return {
        "prompt": prompt,
        "computed_prompt": replay.computed_tokens,
        "reused_prompt": replay.reused_tokens,
        "output": replay.generated_tokens,
        "total": prompt + replay.generated_tokens,
    }


def inflight_bins(inputs: Inputs, replay: Replay) -> dict[str, FloatArray]:
    """Return what is in flight, averaged over each bin of the window.

    Parameters
    ----------
    inputs : Inputs
        What was simulated.
    replay : Replay
        What happened.

    Returns
    -------
    dict of str to ndarray, shape (instances, bins)
        ``requests``, ``inflight_tokens`` (prompt and output of the requests in flight),
        ``unprefilled_tokens`` (charged at placement, until the first token).  With disaggregated
        serving a request is on its prefill instance until its KV has been sent, then on the one
        where it decodes.
    """
    from smetric_model.simulate._tables import add_intervals

    window, data = inputs.window, inputs.requests
    rows = replay.order[replay.placed[replay.order] >= 0]
    end = np.where(replay.done[rows] >= 0, replay.done[rows], replay.end_tick)
    first = np.where(replay.first_token[rows] >= 0, replay.first_token[rows], replay.end_tick)
    lost = FailedTries(*(column[replay.failed.instance >= 0] for column in replay.failed))
    start = np.append(replay.placed[rows], lost.placed)
    end = np.append(end, lost.end)
    first = np.append(first, np.where(lost.first_token >= 0, lost.first_token, lost.end))
    where = np.append(replay.instance[rows], lost.instance)
    charge = np.append(replay.charge[rows], lost.charge).astype(np.float64)
    rows = np.append(rows, lost.request)
    tokens = (data.prompt_tokens[rows] + data.output_tokens[rows]).astype(np.float64)
    ones = np.ones(rows.size)
    everyone = np.ones(rows.size, np.bool_)
    stays = [(start, end, where, everyone)]
    if is_disaggregated(inputs):
        answered = rows.size - lost.request.size
        sent = np.append(replay.transfer_done[rows[:answered]], lost.transfer_done)
        target = np.append(replay.decode_instance[rows[:answered]], lost.decode_instance)
        there = sent >= 0
        stays = [
            (start, np.where(there, sent, end), where, everyone),
            (sent[there], end[there], target[there], there),
        ]
    result = {}
    for name, intervals, weight in (
        ("requests", stays, ones),
        ("inflight_tokens", stays, tokens),
        ("unprefilled_tokens", [(start, first, where, everyone)], charge),
    ):
        sums = np.zeros(replay.computed_tokens.shape)
        for begin, stop, instance, part in intervals:
            add_intervals(
                begin,
                stop,
                instance,
                weight[part],
                window.start,
                window.end,
                window.bin_ticks,
                sums,
            )
        result[name] = sums / window.bin_ticks
    return result


def series_table(prepared: Prepared, replay: Replay) -> pd.DataFrame:
    """Return what each instance did over time, for heat maps.

    Parameters
    ----------
    prepared : Prepared
        What was simulated.
    replay : Replay
        What happened.

    Returns
    -------
    DataFrame
        One line an instance and interval of :data:`~smetric_model.simulate.prepare.BIN_S` inside
        the window (the last may be shorter): ``instance`` and its ``role``; ``start_s``, from the
        start of the warm-up, and ``length_s``; tokens processed (``prompt_tokens``,
        ``computed_prompt_tokens``, ``reused_prompt_tokens``, ``output_tokens``,
        ``total_tokens``); and averages over the interval (``inflight_requests``,
        ``inflight_tokens``, ``unprefilled_tokens``).
    """
    import pandas as pd

    window = prepared.inputs.window
    instances, bins = replay.computed_tokens.shape
    start = window.start + window.bin_ticks * np.arange(bins)
    length = np.minimum(start + window.bin_ticks, window.end) - start
    inflight = {
        name: values * window.bin_ticks / length
        for name, values in inflight_bins(prepared.inputs, replay).items()
    }
    return pd.DataFrame(
        {
            "instance": np.repeat(np.arange(instances), bins),
            "role": np.repeat(_roles(prepared.inputs), bins),
            "start_s": np.tile(start / TICKS_PER_S, instances),
            "length_s": np.tile(length / TICKS_PER_S, instances),
            **{f"{k}_tokens": v.ravel() for k, v in _window_tokens(replay).items()},
            "inflight_requests": inflight["requests"].ravel(),
            "inflight_tokens": inflight["inflight_tokens"].ravel(),
            "unprefilled_tokens": inflight["unprefilled_tokens"].ravel(),
        }
    )


def _imbalances(
    inputs: Inputs, replay: Replay, inflight: dict[str, FloatArray]
) -> dict[str, float]:
    bins = {"processed_tokens": _window_tokens(replay)["total"].astype(np.float64), **inflight}
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
    window_s = _window_s(inputs)
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
    processed = _window_tokens(replay)
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
        **{f"{name}_tps": float(processed[name].sum() / window_s) for name in _TOKENS},
        **{f"{name}_within_slo_tps": float(tokens[name] / window_s) for name in _TOKENS},
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
    capacity = rate * _window_s(inputs)
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
