"""Compiled kernel of least-in-flight-tokens dispatch."""

from __future__ import annotations

import heapq

import numpy as np
from numba import njit

__all__ = ["least_inflight"]


@njit(cache=True)
def least_inflight(  # type: ignore[no-untyped-def]
    arrival, service, tokens, window, window_s, processed, inflight
):
    """Dispatch in order of arrival; adds up tokens by window and instance."""
    windows, instances = processed.shape
    load = np.zeros(instances)
    running = [(0.0, 0, 0.0) for _ in range(0)]
    turn = 0
    for request in range(arrival.size):
        now = arrival[request]
        while len(running) > 0 and running[0][0] <= now:
            _, done, size = heapq.heappop(running)
            load[done] -= size
        chosen = turn % instances
        for step in range(1, instances):
            other = (turn + step) % instances
            if load[other] < load[chosen]:
                chosen = other
        turn = chosen + 1
        load[chosen] += tokens[request]
        end = now + service[request]
        heapq.heappush(running, (end, chosen, tokens[request]))
        processed[window[request], chosen] += tokens[request]
        at = now
        index = window[request]
        while index < windows and at < end:
            until = min(end, (index + 1) * window_s)
            if until > at:
                inflight[index, chosen] += (until - at) * tokens[request]
            at = max(at, until)
            index += 1
