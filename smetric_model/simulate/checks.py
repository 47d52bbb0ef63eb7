"""Laws that every simulation keeps; a broken one is a defect of the simulator."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from smetric_model.identities import Violation, check_identities
from smetric_model.simulate.inputs import HANDOVER, Inputs, Replay
from smetric_model.simulate.steps import TICKS_PER_S
from smetric_model.simulate.try_laws import fault_laws, load_laws, preemption_laws, try_laws

if TYPE_CHECKING:
    from smetric_model.outcome import Outcome

__all__ = ["broken_laws", "replay_violations"]


#: what a run without skipping is compared by
_RESULTS = (
    "arrival",
    "placed",
    "instance",
    "first_step",
    "first_token",
    "done",
    "gave_up",
    "local_tokens",
    "failed",
    "preemptions",
    "repeated_tokens",
    *HANDOVER,
)


def broken_laws(inputs: Inputs, replay: Replay, outcome: Outcome) -> list[Violation]:
    """Check a simulation: its laws, the outcome's identities, and that skipping changes nothing.

    Parameters
    ----------
    inputs : Inputs
        What was simulated.
    replay : Replay
        What happened.
    outcome : Outcome
        What was made of it.

    Returns
    -------
    list of Violation
        Empty where all hold.
    """
    from smetric_model.simulate import engine

    found = [
        *replay_violations(inputs, replay),
        *_in_flight(inputs, replay, outcome),
        *check_identities(outcome, carried_in_s=_in_window_s(inputs, replay, before=True)),
    ]
    again = engine.run(inputs, skip=False, caches=True)
    found += _kv(inputs, again)  # the same run, with what its caches hold at the end
    found += [
        Violation("the same without skipping decode steps", f"{name} differs")
        for name in _RESULTS
        if not np.array_equal(getattr(replay, name), getattr(again, name))
    ]
    return found


def replay_violations(inputs: Inputs, replay: Replay) -> list[Violation]:
    """Laws of one replay: requests, causality, tokens, KV, work.

    Parameters
    ----------
    inputs : Inputs
        What was simulated.
    replay : Replay
        What happened.

    Returns
    -------
    list of Violation
    """
    return [
        *_requests(inputs, replay),
        *_causality(inputs, replay),
        *_handover(inputs, replay),
        *_tokens(inputs, replay),
        *_kv(inputs, replay),
        *_work(inputs, replay),
        *try_laws(inputs, replay),
        *preemption_laws(inputs, replay),
        *fault_laws(inputs, replay),
        *([] if inputs.signals.scraped else load_laws(replay)),
    ]


def _in_window_s(inputs: Inputs, replay: Replay, before: bool = False) -> float:
    """Return the request-seconds in the window: of all tries, or of what arrived before it."""
    window, failed = inputs.window, replay.failed
    rows = np.flatnonzero((replay.placed >= 0) & (replay.instance >= 0) & (replay.gave_up < 0))
    tried = np.flatnonzero(failed.instance >= 0)
    request = np.append(rows, failed.request[tried])
    start = np.append(replay.placed[rows], failed.placed[tried])
    end = np.where(replay.done[rows] >= 0, replay.done[rows], replay.end_tick)
    end = np.append(end, failed.end[tried])
    inside = np.minimum(end, window.end) - np.maximum(start, window.start)
    inside = np.maximum(inside, 0).astype(np.float64)
    if before:
        inside = inside[replay.arrival[request] < window.start]
    return float(inside.sum()) / TICKS_PER_S


def _in_flight(inputs: Inputs, replay: Replay, outcome: Outcome) -> Iterator[Violation]:
    """Check that requests in flight, averaged, are the time of all tries over the window."""
    window_s = (inputs.window.end - inputs.window.start) / TICKS_PER_S
    counted = outcome.number("inflight_requests_mean")
    expected = _in_window_s(inputs, replay) / window_s
    if not math.isclose(counted, expected, rel_tol=1e-6, abs_tol=1e-9):
        detail = f"{counted:g}, not {expected:g}"
        yield Violation("inflight_requests_mean * window_s = time of all tries in it", detail)


def _requests(inputs: Inputs, replay: Replay) -> Iterator[Violation]:
    """Each request arrives at most once, and is placed exactly if it is servable."""
    rows = replay.order
    if np.unique(rows).size != rows.size:
        yield Violation("a request arrives once", "an arrival stands twice")
    if not np.array_equal(np.flatnonzero(replay.arrival >= 0), np.sort(rows)):
        yield Violation("arrivals are those with an arrival time", "they differ")
    placed = (replay.instance[rows] >= 0) | (replay.failed_tries[rows] > 0)
    if not np.array_equal(placed, inputs.requests.unservable[rows] == 0):
        yield Violation("servable requests are placed, no others", "they differ")
    if (np.diff(replay.arrival[rows]) < 0).any():
        yield Violation("arrivals in order", "one goes back in time")
    previous = inputs.requests.previous[rows]
    closed = (previous >= 0) & (inputs.requests.arrival_tick[rows] < 0)
    before = previous[closed]
    ended = np.maximum(replay.done[before], replay.gave_up[before])
    since = np.where(ended >= 0, ended, replay.arrival[before])
    if (replay.arrival[rows[closed]] - since != inputs.requests.think_ticks[rows[closed]]).any():
        yield Violation("a turn arrives a think time after its predecessor", "one does not")


def _causality(inputs: Inputs, replay: Replay) -> Iterator[Violation]:
    stages = ("arrival", "placed", "ready", "admitted", "first_step", "first_token", "done")
    for earlier, later in pairwise(stages):
        one, two = getattr(replay, earlier), getattr(replay, later)
        if ((two >= 0) & ((one < 0) | (two < one))).any():
            yield Violation(f"{earlier} <= {later}", "not for every request")
    fetched = replay.fetch_start >= 0
    if (replay.fetch_start[fetched] != replay.admitted[fetched]).any():
        yield Violation("a fetch starts at admission", "one does not")
    done = replay.fetch_done >= 0
    after = replay.first_step[done]
    if (replay.fetch_done[done] < replay.fetch_start[done]).any() or (
        (after >= 0) & (after < replay.fetch_done[done])
    ).any():
        yield Violation("fetch_start <= fetch_done <= first_step", "not for every request")


def _handover(inputs: Inputs, replay: Replay) -> Iterator[Violation]:
    """Disaggregated serving: each request goes from one pool to the other, once and in time."""
    fabric, data = inputs.fabric, inputs.requests
    if fabric.prefill_instances == fabric.instances:
        return
    stages = {
        "first_token": replay.first_token,
        "transfer_start": replay.transfer_start,
        "transfer_done": replay.transfer_done,
        "decode_start": replay.decode_start,
    }
    decodes = data.output_tokens > 1
    for (before, one), (after, two) in pairwise(stages.items()):
        if ((two >= 0) & ((one < 0) | (two < one))).any():
            yield Violation(f"{before} <= {after}", "not for every request")
    if ((replay.done >= 0) & decodes & (replay.decode_start < 0)).any():
        yield Violation("a request of several tokens decodes in the decode pool", "one does not")
    if ((replay.done >= 0) & decodes & (replay.done <= replay.decode_start)).any():
        yield Violation("decode_start < done", "not for every request")
    if (replay.transfer_start[~decodes] >= 0).any():
        yield Violation("a request of one token does not decode", "one does")
    prefilled, where = replay.instance, replay.decode_instance
    if (prefilled >= fabric.prefill_instances).any():
        yield Violation("routers place in the prefill pool", "one placed elsewhere")
    sent = replay.transfer_start >= 0
    if (sent != (where >= 0)).any() or (where[sent] < fabric.prefill_instances).any():
        yield Violation("KV is sent to the decode pool", "some is not")
    # first come, first served by the whole pool
    rows = np.flatnonzero(decodes & (replay.first_token >= 0))
    rows = rows[np.argsort(replay.first_token[rows], kind="stable")]
    begins = np.where(replay.transfer_start[rows] < 0, np.iinfo(np.int64).max, 0)
    begins = np.maximum(begins, replay.transfer_start[rows])
    first = replay.first_token[rows]
    if ((np.diff(begins) < 0) & (np.diff(first) > 0)).any():
        yield Violation("the decode pool serves first come, first served", "one overtakes")
    if replay.computed_tokens[fabric.prefill_instances :].any():
        yield Violation("the decode pool computes no prompts", "some are")


def _tokens(inputs: Inputs, replay: Replay) -> Iterator[Violation]:
    data, engine = inputs.requests, inputs.engine
    hit = replay.local_tokens + replay.fetched_tokens
    if (hit >= data.prompt_tokens).any() and (hit > 0).any():
        yield Violation("hit < prompt", "a request computes nothing")
    if (hit > inputs.nodes.blocks * engine.cache_block_tokens).any():
        yield Violation("hit <= cacheable blocks", "one is longer")
    if (hit % engine.block_tokens != 0).any():
        yield Violation("hits are whole engine blocks", "one is not")
    remote = replay.peer >= 0
    if (remote & (replay.peer == replay.instance)).any():
        yield Violation("a peer is another instance", "one fetches from itself")
    if (remote & (replay.fetched_tokens == 0)).any() or (
        remote.any() and not inputs.tiers.peer_fetch
    ):
        yield Violation("what comes from peers is fetched", "nothing was, or may be")
    # what the engine counted in the window, against the requests' own times
    window = inputs.window
    inside = (replay.first_token >= window.start) & (replay.first_token < window.end)
    reused = int(hit[inside].sum())
    computed = int((data.prompt_tokens - hit)[inside].sum())
    failed = replay.failed
    moment = np.where(failed.first_token >= 0, failed.first_token, failed.end)
    lost = (moment >= window.start) & (moment < window.end)
    reused += int(failed.reused_tokens[lost].sum())
    computed += int(failed.computed_tokens[lost].sum())
    for name, expected in (("reused_tokens", reused), ("computed_tokens", computed)):
        counted = int(getattr(replay, name).sum())
        if counted != expected:
            yield Violation(f"{name} of the bins = of the requests", f"{counted}, not {expected}")


def _kv(inputs: Inputs, replay: Replay) -> Iterator[Violation]:
    engine, nodes = inputs.engine, inputs.nodes
    ticks = inputs.window.end - inputs.window.start
    pool_tokens = inputs.of_instances("engine.pool_tokens")
    if (replay.held_token_ticks > pool_tokens * float(ticks) * (1 + 1e-9)).any():
        yield Violation("KV of running requests <= pool", "more was held")
    held = replay.held_blocks
    if held.shape[0]:
        cached = held.sum(axis=0) * engine.cache_block_tokens
        if (cached > pool_tokens[: cached.size]).any():
            yield Violation("cached blocks <= pool", "more are cached")
        child = np.flatnonzero(nodes.parent >= 0)
        above = nodes.parent[child]
        whole = held[above] == (nodes.end - nodes.start)[above][:, None]
        if ((held[child] > 0) & ~whole).any():
            yield Violation("a cached block's prefix is cached", "one is not")
        counts = replay.counts
        # what fails loses more than is evicted
        failing = inputs.faults.tick.size > 0
        if not failing and held.sum() != counts["inserted_blocks"] - counts["evicted_blocks"]:
            yield Violation("cached blocks = inserted - evicted", "they differ")
    stored, counts = int(replay.global_held_blocks.sum()), replay.counts
    left = counts["global_written_blocks"] - counts["global_evicted_blocks"]
    if not inputs.faults.tick.size and stored != left:
        yield Violation("stored blocks = written - evicted", "they differ")
    if (replay.global_held_blocks > nodes.end - nodes.start).any():
        yield Violation("stored blocks of a node <= its blocks", "more are stored")
    if replay.global_held_blocks.sum() > inputs.fabric.global_blocks:
        yield Violation("global blocks <= capacity", "more are stored")


def _work(inputs: Inputs, replay: Replay) -> Iterator[Violation]:
    """Check that engines step exactly while they have work (less, where fetches stall them)."""
    from smetric_model.simulate._tables import covered_ticks

    window, failed = inputs.window, replay.failed
    # of a preempted request it is not known when it was computed first: not before it was ready
    often = replay.preemptions > 0
    begins = np.where(often, replay.ready, replay.first_step)
    tried = np.where(often[failed.request], failed.placed, failed.first_step)
    rows = np.flatnonzero(begins >= 0)
    start, where, end = begins[rows], replay.instance[rows], replay.done[rows]
    if inputs.fabric.prefill_instances < inputs.fabric.instances:
        decoded = np.flatnonzero(replay.decode_start >= 0)
        start = np.concatenate((start, replay.decode_start[decoded]))
        where = np.concatenate((where, replay.decode_instance[decoded]))
        end = np.concatenate((replay.first_token[rows], replay.done[decoded]))
    end = np.where(end >= 0, end, replay.end_tick)
    lost = np.flatnonzero((tried >= 0) & (failed.instance >= 0))
    start = np.append(start, tried[lost])
    where = np.append(where, failed.instance[lost])
    until = failed.until[lost]
    if inputs.fabric.prefill_instances < inputs.fabric.instances:
        prefilled = failed.first_token[lost]
        until = np.where(prefilled >= 0, prefilled, until)
        decoded = np.flatnonzero(failed.decode_start >= 0)
        start = np.append(start, failed.decode_start[decoded])
        where = np.append(where, failed.decode_instance[decoded])
        until = np.append(until, failed.until[decoded])
    end = np.append(end, until)
    rows = np.argsort(start, kind="stable")
    covered = np.zeros(inputs.fabric.instances, np.int64)
    covered_ticks(
        start[rows],
        end[rows],
        where[rows],
        window.start,
        min(window.end, replay.end_tick),
        covered,
    )
    # a request that was preempted may wait for one whose KV is being fetched
    idle = inputs.fabric.stall or often.any() or inputs.faults.tick.size
    wrong = replay.busy_ticks > covered if idle else replay.busy_ticks != covered
    if wrong.any():
        index = int(np.argmax(wrong))
        yield Violation(
            "an engine steps while it has work",
            f"instance {index}: {replay.busy_ticks[index]} of {covered[index]} ticks",
        )
