"""From a replay to the tables of requests and instances, and to series."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from smetric_model.routing.policy import Reason
from smetric_model.simulate.inputs import FailedTries, Inputs, Replay
from smetric_model.simulate.prepare import Prepared
from smetric_model.simulate.steps import TICKS_PER_S
from smetric_model.simulate.try_tables import (
    GAVE_UP_REASONS,
    GIVEN_UP,
    ended_without_answer,
    failure_columns,
    try_columns,
)

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.scenario import Scenario

__all__ = [
    "TOKENS",
    "inflight_bins",
    "instance_table",
    "is_disaggregated",
    "request_table",
    "series_table",
    "window_s_of",
    "window_tokens",
]

FloatArray = NDArray[np.float64]

TOKENS = ("prompt", "computed_prompt", "reused_prompt", "output", "total")


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
    count, window_s = inputs.fabric.instances, window_s_of(inputs)
    placed = requests["instance"].to_numpy()
    first = requests["turn"].to_numpy() == 0
    if is_disaggregated(inputs):
        placed = np.concatenate((placed, requests["decode_instance"].to_numpy()))
        first = np.concatenate((first, first))
    ticks = window_s * TICKS_PER_S
    tokens = window_tokens(replay)
    pool_tokens = inputs.of_instances("engine.pool_tokens")
    pcie_bytes_per_s = inputs.of_instances("fabric.pcie_bytes_per_s")
    return pd.DataFrame(
        {
            "instance": np.arange(count),
            "role": _roles(inputs),
            "group": inputs.kind_of,
            "requests": np.bincount(placed[placed >= 0], minlength=count),
            "first_turns": np.bincount(placed[(placed >= 0) & first], minlength=count),
            **{f"{name}_tps": tokens[name].sum(axis=1) / window_s for name in TOKENS},
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


def window_s_of(inputs: Inputs) -> float:
    """Return the length of the window [s]."""
    return (inputs.window.end - inputs.window.start) / TICKS_PER_S


def window_tokens(replay: Replay) -> dict[str, NDArray[np.int64]]:
    """Return the tokens by instance and bin."""
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
            **{f"{k}_tokens": v.ravel() for k, v in window_tokens(replay).items()},
            "inflight_requests": inflight["requests"].ravel(),
            "inflight_tokens": inflight["inflight_tokens"].ravel(),
            "unprefilled_tokens": inflight["unprefilled_tokens"].ravel(),
        }
    )
