"""Compiled event queues: a heap of requests' events, and an indexed heap of timers.

A request has at most one event to come.  An instance's step, its PCIe link and the NICs have one
timer each, which moves when the step is cut short or a rate changes.  Order: tick, then code, which
is kind · 2³² + number.
"""
# Named tuples of arrays go in and out; numba infers their types.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from smetric_model.simulate._jit import part, tables
from smetric_model.simulate._state import QUEUE

__all__ = ["KIND", "pop_event", "push_event", "set_timer", "stop_timer"]

KIND = 32  # bits of a number in a code


@part
def push_event(p, tick, code):
    """Add an event of a request."""
    s, _ = tables(p)
    place = s.count[QUEUE]
    s.count[QUEUE] += 1
    while place > 0:
        above = (place - 1) >> 1
        if s.event[above].tick < tick or (
            s.event[above].tick == tick and s.event[above].code < code
        ):
            break
        s.event[place].tick = s.event[above].tick
        s.event[place].code = s.event[above].code
        place = above
    s.event[place].tick = tick
    s.event[place].code = code


@part
def pop_event(p):
    """Remove the first event (read it before)."""
    s, _ = tables(p)
    s.count[QUEUE] -= 1
    size = s.count[QUEUE]
    tick, code = s.event[size].tick, s.event[size].code
    place = 0
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        right = below + 1
        if right < size and (
            s.event[right].tick < s.event[below].tick
            or (
                s.event[right].tick == s.event[below].tick
                and s.event[right].code < s.event[below].code
            )
        ):
            below = right
        if tick < s.event[below].tick or (
            tick == s.event[below].tick and code < s.event[below].code
        ):
            break
        s.event[place].tick = s.event[below].tick
        s.event[place].code = s.event[below].code
        place = below
    s.event[place].tick = tick
    s.event[place].code = code


@part
def _before(p, one, two):
    s, _ = tables(p)
    if s.timer[one].tick != s.timer[two].tick:
        return s.timer[one].tick < s.timer[two].tick
    return s.timer[one].code < s.timer[two].code


@part
def _settle(p, timer, place):
    """Move a timer from ``place`` to where it belongs."""
    s, _ = tables(p)
    heap = s.timer_heap
    while place > 0:
        above = (place - 1) >> 1
        if not _before(p, timer, heap[above]):
            break
        heap[place] = heap[above]
        s.timer[heap[place]].place = place
        place = above
    size = s.timer_size[0]
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        if below + 1 < size and _before(p, heap[below + 1], heap[below]):
            below += 1
        if not _before(p, heap[below], timer):
            break
        heap[place] = heap[below]
        s.timer[heap[place]].place = place
        place = below
    heap[place] = timer
    s.timer[timer].place = place


@part
def set_timer(p, timer, tick, code):
    """Set or move a timer."""
    s, _ = tables(p)
    s.timer[timer].tick = tick
    s.timer[timer].code = code
    place = s.timer[timer].place
    if place < 0:
        place = s.timer_size[0]
        s.timer_size[0] += 1
    _settle(p, timer, place)


@part
def stop_timer(p, timer):
    """Remove a timer, if it is set."""
    s, _ = tables(p)
    place = s.timer[timer].place
    if place < 0:
        return
    s.timer[timer].place = -1
    s.timer_size[0] -= 1
    last = s.timer_heap[s.timer_size[0]]
    if last != timer:
        _settle(p, last, place)
