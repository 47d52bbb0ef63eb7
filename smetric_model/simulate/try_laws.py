"""Laws of tries: how long they last, what follows them, and that the routers forget none."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from smetric_model.identities import Violation
from smetric_model.simulate.faults import DOWN, UP
from smetric_model.simulate.inputs import FAILED, TIMED_OUT, Inputs, Replay

__all__ = ["fault_laws", "load_laws", "preemption_laws", "try_laws"]


def try_laws(inputs: Inputs, replay: Replay) -> Iterator[Violation]:
    """Check that tries end as their client's patience says, and are followed as it says.

    Parameters
    ----------
    inputs : Inputs
        What was simulated.
    replay : Replay
        What happened.

    Yields
    ------
    Violation
    """
    clients, failed = inputs.clients, replay.failed
    count = np.bincount(failed.request, minlength=replay.arrival.size)
    if not np.array_equal(count, replay.failed_tries):
        yield Violation("failed tries of the requests = of the list", "they differ")
    gave_up = replay.gave_up >= 0
    if ((count > clients.retries) != gave_up).any() or (count > clients.retries + 1).any():
        yield Violation("a client gives up after its last try, not before", "one does not")
    if (gave_up & (replay.done >= 0)).any():
        yield Violation("a request is answered or given up", "one is both")
    if (failed.end < failed.placed).any() or (failed.until < failed.end).any():
        yield Violation("a try begins before it ends", "one does not")
    late = failed.cause == TIMED_OUT
    if (failed.end[late] - failed.placed[late] != clients.timeout_ticks).any():
        yield Violation("a try that times out lasts client.timeout_s", "one does not")
    answered = replay.done >= 0
    patience = clients.timeout_ticks
    if patience >= 0 and (replay.done[answered] - replay.placed[answered] > patience).any():
        yield Violation("no answer comes after client.timeout_s", "one does")
    # each try but the first begins a back-off after the one before it ended
    order = np.argsort(failed.request, kind="stable")
    request, end = failed.request[order], failed.end[order]
    following = np.append(request[1:] == request[:-1], False)
    start = np.where(following, np.append(failed.placed[order][1:], -1), replay.placed[request])
    again = start >= 0
    if (start[again] - end[again] != clients.backoff_ticks).any():
        yield Violation("a retry comes client.backoff_s after the try before it", "one does not")


def preemption_laws(inputs: Inputs, replay: Replay) -> Iterator[Violation]:
    """Check that only preempted requests compute anything twice, and only where they may be.

    Parameters
    ----------
    inputs : Inputs
        What was simulated.
    replay : Replay
        What happened.

    Yields
    ------
    Violation
    """
    often, again = replay.preemptions, replay.repeated_tokens
    if not inputs.engine.preempt and often.any():
        yield Violation("no preemption where KV is reserved", f"{int(often.sum())}")
    if (again[often == 0] != 0).any():
        yield Violation("only preempted requests compute again", "another one does")
    whole = inputs.requests.prompt_tokens + inputs.requests.output_tokens
    if (again > often * whole).any():
        yield Violation("tokens computed again <= preemptions * (prompt + output)", "more are")


def fault_laws(inputs: Inputs, replay: Replay) -> Iterator[Violation]:
    """Check that nothing is served by an instance that is down, and that only such ones fail tries.

    Parameters
    ----------
    inputs : Inputs
        What was simulated.
    replay : Replay
        What happened.

    Yields
    ------
    Violation
    """
    failed = replay.failed
    rows = zip(*(part.tolist() for part in inputs.faults), strict=True)
    since: dict[int, int] = {}
    spans = []
    for tick, what, where in rows:
        if what == DOWN:
            since[where] = tick
        elif what == UP:
            spans.append((where, since.pop(where), tick))
    spans += [(where, tick, replay.end_tick) for where, tick in since.items()]
    explained = failed.instance < 0
    for where, start, end in spans:
        explained |= (failed.instance == where) & (failed.end >= start) & (failed.end <= end)
        for name in ("first_step", "first_token", "done"):
            moment = getattr(replay, name)
            if ((replay.instance == where) & (moment > start) & (moment < end)).any():
                yield Violation(f"no {name} on an instance that is down", f"instance {where}")
    if not explained[failed.cause == FAILED].all():
        yield Violation("a try fails where an instance is down", "one fails elsewhere")


def load_laws(replay: Replay) -> Iterator[Violation]:
    """Check that routers count what is in flight at the end: each charge is released once.

    Parameters
    ----------
    replay : Replay
        What happened, with loads of the routers' own counters.

    Yields
    ------
    Violation
    """
    counted_still = (replay.placed >= 0) & (replay.done < 0)
    if replay.transfer_done.size:  # its prefill instance is done with it
        counted_still &= replay.transfer_done < 0
    flying = np.flatnonzero(counted_still)
    prompt = flying[replay.first_token[flying] < 0]
    size = replay.loads_end.size
    requests = np.bincount(replay.instance[flying], minlength=size)
    tokens = np.bincount(replay.instance[prompt], replay.charge[prompt], minlength=size)
    for name, counted, expected in (
        ("requests", replay.loads_end, requests),
        ("unprefilled tokens", replay.unprefilled_end, tokens),
    ):
        if (counted != expected).any():
            index = int(np.argmax(counted != expected))
            yield Violation(
                f"{name} that the routers count = in flight",
                f"instance {index}: {counted[index]:g}, not {expected[index]:g}",
            )
