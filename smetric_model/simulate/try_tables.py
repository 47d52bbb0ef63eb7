"""What tries that came to nothing add to the tables and to the row of the schema."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from smetric_model.simulate.faults import DOWN, UP
from smetric_model.simulate.inputs import FAILED, FailedTries, Inputs, Replay
from smetric_model.simulate.steps import TICKS_PER_S

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "GAVE_UP_REASONS",
    "GIVEN_UP",
    "ended_without_answer",
    "failure_columns",
    "try_columns",
    "try_row",
]

#: Status of a request that was given up, and why, by the cause of its last try's end.
GIVEN_UP = ("", "timed_out", "failed")
GAVE_UP_REASONS = (
    "",
    "not answered within client.timeout_s at the last try",
    "sent to an instance that failed, or to none, at the last try",
)


def ended_without_answer(replay: Replay) -> NDArray[np.int64]:
    """Cause of the last try's end of each request that its client gave up; else 0.

    Parameters
    ----------
    replay : Replay
        What happened.

    Returns
    -------
    ndarray of int64, shape (requests,)
    """
    cause = np.zeros(replay.arrival.size, np.int64)
    cause[replay.failed.request] = replay.failed.cause  # in order of their end: the last one stays
    return np.where(replay.gave_up >= 0, cause, 0)


def _wasted_tokens(failed: FailedTries) -> NDArray[np.int64]:
    return failed.reused_tokens + failed.computed_tokens + failed.generated_tokens


def try_columns(replay: Replay, rows: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """Columns of the table of requests.

    Parameters
    ----------
    replay : Replay
        What happened.
    rows : ndarray of int64
        The table's requests.

    Returns
    -------
    dict of str to ndarray
        ``retries``, ``wasted_tokens``, ``preemptions`` and ``repeated_tokens``.
    """
    wasted = np.bincount(
        replay.failed.request, _wasted_tokens(replay.failed), minlength=replay.arrival.size
    )
    retries = replay.failed_tries - (replay.gave_up >= 0)
    return {
        "retries": retries[rows],
        "wasted_tokens": wasted[rows].astype(np.int64),
        "preemptions": replay.preemptions[rows],
        "repeated_tokens": replay.repeated_tokens[rows],
    }


def try_row(inputs: Inputs, replay: Replay, requests: pd.DataFrame) -> dict[str, Any]:
    """Columns of the outcome.

    Parameters
    ----------
    inputs : Inputs
        What was simulated.
    replay : Replay
        What happened.
    requests : DataFrame
        The table of requests.

    Returns
    -------
    dict of str to float
        ``timed_out_ratio``, ``failed_ratio``, ``retries``, ``wasted_tps``, ``preemptions`` and
        ``repeated_tps``.
    """
    window = inputs.window
    status = requests["status"].to_numpy()
    servable = int((status != "unservable").sum())
    end = replay.failed.end
    inside = (end >= window.start) & (end < window.end)
    window_s = (window.end - window.start) / TICKS_PER_S
    ratios = {
        f"{name}_ratio": float((status == name).sum() / servable) if servable else math.nan
        for name in GIVEN_UP[1:]
    }
    return {
        **ratios,
        "retries": int(requests["retries"].sum()),
        "wasted_tps": float(_wasted_tokens(replay.failed)[inside].sum() / window_s),
        "preemptions": int(requests["preemptions"].sum()),
        "repeated_tps": float(requests["repeated_tokens"].sum() / window_s),
    }


def failure_columns(inputs: Inputs, replay: Replay) -> dict[str, NDArray[Any]]:
    """Columns of the table of instances.

    Parameters
    ----------
    inputs : Inputs
        What was simulated.
    replay : Replay
        What happened.

    Returns
    -------
    dict of str to ndarray
        ``failures``, ``down_s`` and ``failed_tries``, inside the window.
    """
    window, faults, failed = inputs.window, inputs.faults, replay.failed
    count = inputs.fabric.instances
    failures, down = np.zeros(count, np.int64), np.zeros(count)
    since = np.full(count, -1, np.int64)
    for tick, what, where in zip(*(part.tolist() for part in faults), strict=True):
        if what == DOWN:
            failures[where] += window.start <= tick < window.end
            since[where] = tick
        elif what == UP:
            down[where] += max(0, min(tick, window.end) - max(since[where], window.start))
            since[where] = -1
    still = since >= 0
    down[still] += np.maximum(0, window.end - np.maximum(since[still], window.start))
    lost = (failed.cause == FAILED) & (failed.instance >= 0)
    lost &= (failed.end >= window.start) & (failed.end < window.end)
    return {
        "failures": failures,
        "down_s": down / TICKS_PER_S,
        "failed_tries": np.bincount(failed.instance[lost], minlength=count),
    }
