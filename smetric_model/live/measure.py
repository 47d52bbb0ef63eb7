"""From a replay to an Outcome: the same tables and formulas as of a simulation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from smetric_model.routing.policy import Reason
from smetric_model.simulate.inputs import Replay
from smetric_model.simulate.outcome_row import outcome_of
from smetric_model.simulate.steps import TICKS_PER_S

if TYPE_CHECKING:
    from smetric_model.live.replay import Replayed
    from smetric_model.outcome import Outcome
    from smetric_model.scenario import Scenario
    from smetric_model.simulate.prepare import Prepared

__all__ = ["COUNTERS", "measured_outcome"]

#: counters of an engine that are read at both edges of the window
COUNTERS = (
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "external_prefix_cache_queries_total",
    "external_prefix_cache_hits_total",
    "num_preemptions_total",
    "generation_tokens_total",
    "prompt_tokens_total",
)

#: what only a simulation knows
_UNKNOWN = (*("compute", "kv", "nic_in", "nic_out", "pcie"),)


def measured_outcome(
    scenario: Scenario, prepared: Prepared, replayed: Replayed, counted: dict[str, float]
) -> Outcome:
    """Return the outcome of a replay, with its tables.

    Times are the client's.  What a request reused is what its engine said
    (``cached_tokens``); its local part is what the router saw at that instance when it decided,
    and the shares of local and global hits in the row are those of the engines' counters.

    Parameters
    ----------
    scenario : Scenario
        The question.
    prepared : Prepared
        What was replayed.
    replayed : Replayed
        What came back.
    counted : dict of str to float
        Increase of :data:`COUNTERS` in the window, all engines together.

    Returns
    -------
    Outcome
        ``verb`` is ``measure``; utilisations, queue and fetch times are missing.  The table of
        requests has ``error`` and ``output_reuse_tokens``: hits on tokens that earlier requests
        generated, which the simulator's convention does not know.
    """
    from smetric_model.workload.reuse import ideal_reuse

    inputs = prepared.inputs
    measured = Replay.empty(inputs)
    reasons = {reason.name.lower().replace("_", "-"): int(reason) for reason in Reason}
    window = inputs.window
    errors: dict[int, str] = {}
    for row, answer in replayed.answers.items():
        arrival = _tick(answer.sent_s - replayed.start_s)
        measured.arrival[row] = measured.placed[row] = measured.ready[row] = arrival
        named = answer.headers.get("x-smetric-instance", "")
        if named.startswith("v"):
            measured.instance[row] = int(named[1:])
        reason = answer.headers.get("x-smetric-reason", "").replace("_", "-")
        measured.reason[row] = reasons.get(reason, -1)
        if answer.error:
            errors[row] = answer.error
            continue
        seen = int(answer.headers.get("x-smetric-hit-tokens", "0"))
        local = min(seen, answer.cached_tokens)
        measured.admitted[row] = arrival
        measured.first_token[row] = _tick(answer.first_s - replayed.start_s)
        measured.done[row] = _tick(answer.last_s - replayed.start_s)
        measured.local_tokens[row] = local
        measured.fetched_tokens[row] = answer.cached_tokens - local
        measured.charge[row] = max(0, answer.prompt_tokens - seen)
        _count(measured, inputs, row, answer, replayed.start_s)
    rows = np.flatnonzero(measured.arrival >= 0)
    measured.order = rows[np.argsort(measured.arrival[rows], kind="stable")]
    measured.end_tick = int(max(measured.done.max(initial=0), window.end))
    outcome = outcome_of(scenario, prepared, measured)
    requests = outcome.requests
    assert requests is not None
    asked = requests["request_id"].to_numpy()
    requests["error"] = [errors.get(int(row), "") for row in asked]
    requests["queue_s"] = requests["fetch_s"] = np.nan
    ideal = ideal_reuse(prepared.trace)
    reused = requests["local_tokens"] + requests["global_tokens"]
    requests["output_reuse_tokens"] = np.maximum(reused - ideal[asked], 0)
    instances = outcome.instances
    assert instances is not None
    for name in _UNKNOWN:
        column = f"{name}_utilisation_ratio"
        if column in instances:
            instances[column] = np.nan
    changes: dict[str, Any] = {
        "verb": "measure",
        "binding_resource": "",
        **{f"{name}_utilisation_ratio": math.nan for name in _UNKNOWN},
        **{
            f"{quantity}_{statistic}_s": math.nan
            for quantity in ("queue", "fetch")
            for statistic in ("mean", "p50", "p90", "p95", "p99")
        },
        "preemptions": counted.get("num_preemptions_total", math.nan),
        "repeated_tps": math.nan,
        "wasted_tps": math.nan,
    }
    hits = counted.get("prefix_cache_hits_total", 0.0)
    fetched = counted.get("external_prefix_cache_hits_total", 0.0)
    reused_ratio = outcome.number("local_ratio") + outcome.number("global_ratio")
    if hits + fetched > 0 and not math.isnan(reused_ratio):
        changes["local_ratio"] = reused_ratio * hits / (hits + fetched)
        changes["global_ratio"] = reused_ratio * fetched / (hits + fetched)
    inside = [row for row in errors if row in set(asked.tolist())]
    notes = [str(outcome["note"])] if outcome["note"] else []
    if inside:
        changes["failed_ratio"] = len(inside) / len(requests)
        first = errors[inside[0]]
        notes.append(f"{len(inside)} requests failed, the first: {first}")
        changes["valid"] = False
    if replayed.notes:
        notes += replayed.notes
        changes["valid"] = False
    changes["note"] = "; ".join(notes)
    from smetric_model.outcome import Outcome

    return Outcome({**dict(outcome), **changes}, requests=requests, instances=instances)


def _tick(seconds: float) -> int:
    return max(0, round(seconds * TICKS_PER_S))


def _count(measured: Replay, inputs: Any, row: int, answer: Any, start_s: float) -> None:
    """Add a request's tokens to the bins in which they were processed."""
    window = inputs.window
    where = int(measured.instance[row])
    if where < 0:
        return

    def bin_of(when: int) -> int:
        return (
            (when - window.start) // window.bin_ticks if window.start <= when < window.end else -1
        )

    at = bin_of(int(measured.first_token[row]))
    if at >= 0:
        measured.computed_tokens[where, at] += answer.prompt_tokens - answer.cached_tokens
        measured.reused_tokens[where, at] += answer.cached_tokens
    for when in answer.token_times_s:
        at = bin_of(_tick(when - start_s))
        if at >= 0:
            measured.generated_tokens[where, at] += 1
