"""Compiled event queues: a heap of requests' events, and an indexed heap of timers.

A request has at most one event to come.  An instance's step, its PCIe link and the NICs have one
timer each, which moves when the step is cut short or a rate changes.  Order: tick, then code, which
is kind · 2³² + number.
"""
# Named tuples of arrays go in and out; numba infers their types.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from smetric_model.simulate._jit import jit
from smetric_model.simulate._state import QUEUE

__all__ = ["KIND", "pop_event", "push_event", "set_timer", "stop_timer"]

KIND = 32  # bits of a number in a code


@jit
def push_event(s, tick, code):
    """Add an event of a request."""
    place = s.count[QUEUE]
    s.count[QUEUE] += 1
    while place > 0:
        above = (place - 1) >> 1
        if s.event_tick[above] < tick or (
            s.event_tick[above] == tick and s.event_code[above] < code
        ):
            break
        s.event_tick[place] = s.event_tick[above]
        s.event_code[place] = s.event_code[above]
        place = above
    s.event_tick[place] = tick
    s.event_code[place] = code


@jit
def pop_event(s):
    """Remove the first event (read it before)."""
    s.count[QUEUE] -= 1
    size = s.count[QUEUE]
    tick, code = s.event_tick[size], s.event_code[size]
    place = 0
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        right = below + 1
        if right < size and (
            s.event_tick[right] < s.event_tick[below]
            or (
                s.event_tick[right] == s.event_tick[below]
                and s.event_code[right] < s.event_code[below]
            )
        ):
            below = right
        if tick < s.event_tick[below] or (
            tick == s.event_tick[below] and code < s.event_code[below]
        ):
            break
        s.event_tick[place] = s.event_tick[below]
        s.event_code[place] = s.event_code[below]
        place = below
    s.event_tick[place] = tick
    s.event_code[place] = code


@jit
def _before(s, one, two):
    if s.timer_tick[one] != s.timer_tick[two]:
        return s.timer_tick[one] < s.timer_tick[two]
    return s.timer_code[one] < s.timer_code[two]


@jit
def _settle(s, timer, place):
    """Move a timer from ``place`` to where it belongs."""
    heap = s.timer_heap
    while place > 0:
        above = (place - 1) >> 1
        if not _before(s, timer, heap[above]):
            break
        heap[place] = heap[above]
        s.timer_place[heap[place]] = place
        place = above
    size = s.timer_size[0]
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        if below + 1 < size and _before(s, heap[below + 1], heap[below]):
            below += 1
        if not _before(s, heap[below], timer):
            break
        heap[place] = heap[below]
        s.timer_place[heap[place]] = place
        place = below
    heap[place] = timer
    s.timer_place[timer] = place


@jit
def set_timer(s, timer, tick, code):
    """Set or move a timer."""
    s.timer_tick[timer] = tick
    s.timer_code[timer] = code
    place = s.timer_place[timer]
    if place < 0:
        place = s.timer_size[0]
        s.timer_size[0] += 1
    _settle(s, timer, place)


@jit
def stop_timer(s, timer):
    """Remove a timer, if it is set."""
    place = s.timer_place[timer]
    if place < 0:
        return
    s.timer_place[timer] = -1
    s.timer_size[0] -= 1
    last = s.timer_heap[s.timer_size[0]]
    if last != timer:
        _settle(s, last, place)
