"""When requests arrive, when each is complete at the latest, and the least time that each takes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from smetric_model.bound.minorant import least_step_s, minorants
from smetric_model.simulate.steps import TICKS_PER_S

if TYPE_CHECKING:
    from smetric_model.scenario import Scenario
    from smetric_model.simulate.inputs import Inputs, Replay

__all__ = [
    "Timeline",
    "deadline_s",
    "least_decode_step_s",
    "least_prefill_s",
    "longest_hit_tokens",
    "nominal_timeline",
    "realised_timeline",
]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Timeline:
    """When requests arrive, and when each is complete at the latest; arrays of shape (requests,).

    Attributes
    ----------
    arrival_s : ndarray of float64
        Arrival [s]; NaN where it does not arrive.
    completion_s : ndarray of float64
        Latest completion that schedules of the class have [s].
    kind : {'nominal', 'realised'}
        As if each request were served alone, or as in a given run.
    """

    arrival_s: FloatArray
    completion_s: FloatArray
    kind: Literal["nominal", "realised"]


def nominal_timeline(scenario: Scenario, inputs: Inputs) -> Timeline:
    """When requests arrive if each takes the least time it can.

    Closed loop: a turn comes a think time after its predecessor's earliest completion, and so
    early completions are exact for every schedule with these arrivals.  Open loop: as recorded; a
    request within SLO is complete at its deadline at the latest.

    Parameters
    ----------
    scenario : Scenario
        For its SLO.
    inputs : Inputs
        The workload.
    """
    data = inputs.requests
    n = data.turn.size
    arrival = data.arrival_tick / TICKS_PER_S
    least = _least_service_s(inputs)
    think = data.think_ticks / TICKS_PER_S
    limit = deadline_s(scenario, inputs)
    waits = data.arrival_tick < 0
    if waits.any():
        # a session's requests in their order: predecessors have smaller rows
        done = np.where(data.unservable > 0, 0.0, least)
        _chain(data.previous, waits, think, done, arrival)
    completion = arrival + limit
    following = np.flatnonzero(waits)
    before = data.previous[following]
    completion[before] = arrival[following] - think[following]
    return (
        Timeline(arrival, np.maximum(completion, arrival), "nominal")
        if n
        else Timeline(arrival, arrival, "nominal")
    )


def realised_timeline(scenario: Scenario, inputs: Inputs, replay: Replay) -> Timeline:
    """When requests arrived in a run, and when each is complete at the latest.

    Parameters
    ----------
    scenario : Scenario
        For its SLO.
    inputs, replay : Inputs, Replay
        The run.  Where the next turn waited for a request, its completion is exact; else it is
        the later of the deadline and the run's.
    """
    arrived = replay.arrival >= 0
    arrival = np.where(arrived, replay.arrival / TICKS_PER_S, np.nan)
    end = replay.end_tick / TICKS_PER_S
    done = np.where(replay.done >= 0, replay.done / TICKS_PER_S, np.where(arrived, end, np.nan))
    completion = np.fmax(done, arrival + deadline_s(scenario, inputs))
    data = inputs.requests
    following = np.flatnonzero((data.arrival_tick < 0) & arrived)
    before = data.previous[following]
    completion[before] = done[before]
    refused = data.unservable > 0
    completion[refused] = arrival[refused]
    return Timeline(arrival, completion, "realised")


def _chain(
    previous: IntArray,
    waits: NDArray[np.bool_],
    think: FloatArray,
    least: FloatArray,
    out: FloatArray,
) -> None:
    order = np.flatnonzero(waits)
    before = previous[order]
    # by depth in the session, so that each step is one array operation
    depth = np.zeros(previous.size, np.int64)
    for row, above in zip(order.tolist(), before.tolist(), strict=True):
        depth[row] = depth[above] + 1
    levels = depth[order]
    rank = np.argsort(levels, kind="stable")
    bounds = np.searchsorted(levels[rank], np.arange(levels.max(initial=0) + 2))
    for low, high in itertools.pairwise(bounds[1:]):
        rows = order[rank[low:high]]
        above = previous[rows]
        out[rows] = out[above] + least[above] + think[rows]


def deadline_s(scenario: Scenario, inputs: Inputs) -> FloatArray:
    """Longest time from arrival to completion within SLO; the drain limit caps it."""
    data = inputs.requests
    ttft = scenario.slo.ttft_s(data.prompt_tokens.astype(np.float64))
    tail = np.where(
        data.output_tokens > 1, scenario.slo.tpot_s * np.maximum(data.output_tokens - 1, 1), 0.0
    )
    whole = (inputs.window.drain_end - inputs.window.start) / TICKS_PER_S
    return np.minimum(ttft + tail, whole)


def least_prefill_s(inputs: Inputs, tokens: FloatArray, pairs: FloatArray) -> FloatArray:
    """Least time of prefill steps: the largest of the minorants of pure prefill [s]."""
    engine = inputs.engine
    family = minorants(inputs.model, engine.token_budget, engine.max_running_requests, mixed=False)
    result = np.zeros(tokens.shape)
    for token_s, pair_s in {(m.prefill_token_s, m.prefill_pair_s) for m in family}:
        result = np.maximum(result, token_s * tokens + pair_s * pairs)
    return result


def least_decode_step_s(inputs: Inputs) -> tuple[float, float]:
    """Least time of a decode step, and what each token of context adds [s]."""
    engine = inputs.engine
    return least_step_s(inputs.model, engine.token_budget, engine.max_running_requests)


def longest_hit_tokens(inputs: Inputs) -> IntArray:
    """Longest hit of each request [tokens]."""
    engine, prompt = inputs.engine, inputs.requests.prompt_tokens
    most = np.minimum(inputs.nodes.blocks * engine.cache_block_tokens, np.maximum(prompt - 1, 0))
    return np.asarray(most // engine.block_tokens * engine.block_tokens)


def _least_service_s(inputs: Inputs) -> FloatArray:
    """Least time from arrival to completion: host, what no cache saves, decode alone."""
    data = inputs.requests
    prompt = data.prompt_tokens.astype(np.float64)
    hit = longest_hit_tokens(inputs).astype(np.float64)
    step, key = least_decode_step_s(inputs)
    prefill = least_prefill_s(inputs, prompt - hit, 0.5 * (prompt**2 - hit**2))
    decode = (data.output_tokens - 1) * (step + key * prompt)
    return np.asarray(data.host_ticks / TICKS_PER_S + prefill + decode)
