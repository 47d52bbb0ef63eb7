"""Compiled: what the routers see of loads, and who arrives next."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from smetric_model.simulate._heaps import KIND, push_event
from smetric_model.simulate._jit import part, tables
from smetric_model.simulate._state import LOAD_END, LOAD_NEXT

__all__ = ["ARRIVAL", "catch_up_loads", "change_load", "next_turn"]

ARRIVAL = 3 << KIND


@part
def change_load(p, request, now, requests, tokens):
    """Change the load that routers see of an instance, at once or when it is old enough."""
    s, w = tables(p)
    replica, instance = s.request[request].replica, s.out[request].instance
    if w.signals.load_age_ticks == 0:
        s.loads[replica, instance] += requests
        s.unprefilled[replica, instance] += tokens
        return
    entry = s.count[LOAD_END]
    s.count[LOAD_END] += 1
    s.load_log[entry].tick = now
    s.load_log[entry].replica = replica
    s.load_log[entry].instance = instance
    s.load_log[entry].requests = requests
    s.load_log[entry].tokens = tokens


@part
def catch_up_loads(p, tick):
    s, _ = tables(p)
    entry = s.count[LOAD_NEXT]
    while entry < s.count[LOAD_END] and s.load_log[entry].tick <= tick:
        replica, instance = s.load_log[entry].replica, s.load_log[entry].instance
        s.loads[replica, instance] += s.load_log[entry].requests
        s.unprefilled[replica, instance] += s.load_log[entry].tokens
        entry += 1
    s.count[LOAD_NEXT] = entry


@part
def next_turn(p, request, now):
    _, w = tables(p)
    following = w.requests[request].following
    if following >= 0 and w.requests[following].arrival_tick < 0:
        push_event(p, now + w.requests[following].think_ticks, ARRIVAL + following)
