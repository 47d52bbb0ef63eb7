"""Compiled links: transfers that share NICs and PCIe equally.

Transfers of one kind (reads, or writes) of one node run at one rate, so each such class keeps the
bytes that every one of its transfers has had (``served``) and a list of transfers by the value of
``served`` at which they are done.  Every instance's PCIe is a class as well.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math

from smetric_model.simulate._heaps import KIND, set_timer, stop_timer
from smetric_model.simulate._jit import part
from smetric_model.simulate._state import NIC_NOW

__all__ = [
    "advance_nics",
    "advance_pcie",
    "nic_rate",
    "overlap",
    "pop_flow",
    "schedule_nics",
    "schedule_pcie",
    "start_nic",
    "start_pcie",
]

_LINK = 1 << KIND


@part
def overlap(w, start, end):
    """Ticks of [start, end] inside the window."""
    return max(0, min(end, w.window.end) - max(start, w.window.start))


@part
def _kind(w, link):
    """Row of the flow tables: reads, writes, PCIe."""
    if link < 2 * w.fabric.nodes:
        return link % 2
    return 2


@part
def _add(s, w, link, work, request):
    kind = _kind(w, link)
    if s.link[link].flows == 0:
        s.link[link].served = 0.0
    tag = s.link[link].served + work
    s.tag[kind, request] = tag
    before, here = -1, s.link[link].first_flow
    while here >= 0 and (s.tag[kind, here] < tag or (s.tag[kind, here] == tag and here < request)):
        before, here = here, s.next_flow[kind, here]
    s.next_flow[kind, request] = here
    if before < 0:
        s.link[link].first_flow = request
    else:
        s.next_flow[kind, before] = request
    s.link[link].flows += 1


@part
def pop_flow(s, w, link):
    """Take out the transfer that is done; returns its request."""
    kind = _kind(w, link)
    request = s.link[link].first_flow
    s.link[link].first_flow = s.next_flow[kind, request]
    s.link[link].flows -= 1
    s.link[link].served = max(s.link[link].served, s.tag[kind, request])
    return request


@part
def _ticks_left(s, w, link):
    first = s.link[link].first_flow
    left = (s.tag[_kind(w, link), first] - s.link[link].served) / s.link[link].rate
    return max(0, math.ceil(left * 1e12))


@part
def advance_nics(s, w, now):
    """Bring all NICs to the present."""
    before = s.count[NIC_NOW]
    seconds = (now - before) * 1e-12
    inside = overlap(w, before, now) * 1e-12
    for link in range(2 * w.fabric.nodes):
        if s.link[link].flows > 0:
            s.link[link].served += s.link[link].rate * seconds
            s.nic_work[0] += s.link[link].flows * s.link[link].rate * inside
    s.count[NIC_NOW] = now


@part
def _rates(s, w, only, more):
    """Set every class's rate, or (``only`` a node) return that of a read with ``more`` of them."""
    nodes = w.fabric.nodes
    others = nodes - 1
    reads = float(more)
    writes = 0.0
    for node in range(nodes):
        reads += float(s.link[2 * node].flows)
        writes += float(s.link[2 * node + 1].flows)
    # the two busiest links of each direction, to leave out a node's own
    in_1 = in_2 = out_1 = out_2 = 0.0
    in_at = out_at = -1
    for node in range(nodes):
        here = float(s.link[2 * node].flows) + (more if node == only else 0)
        wrote = float(s.link[2 * node + 1].flows)
        inward = here + (writes - wrote) / others
        outward = wrote + (reads - here) / others
        if inward > in_1:
            in_1, in_2, in_at = inward, in_1, node
        elif inward > in_2:
            in_2 = inward
        if outward > out_1:
            out_1, out_2, out_at = outward, out_1, node
        elif outward > out_2:
            out_2 = outward
    result = 0.0
    for node in range(nodes):
        if only >= 0 and node != only:
            continue
        here = float(s.link[2 * node].flows) + (more if node == only else 0)
        wrote = float(s.link[2 * node + 1].flows)
        inward = here + (writes - wrote) / others
        outward = wrote + (reads - here) / others
        result = _slowest(w, max(inward, out_2 if out_at == node else out_1))
        if only < 0:
            s.link[2 * node].rate = result
            busiest = max(outward, in_2 if in_at == node else in_1)
            s.link[2 * node + 1].rate = _slowest(w, busiest)
    return result


@part
def _slowest(w, busiest):
    if busiest == 0.0:
        return w.fabric.flow_nic_bytes_per_s
    return min(w.fabric.flow_nic_bytes_per_s, w.fabric.node_nic_bytes_per_s / busiest)


@part
def nic_rate(s, w, node):
    """Rate of a read that started now on a node."""
    return _rates(s, w, node, 1)


@part
def schedule_nics(s, w, now):
    """Set the rates, and the timer of the transfer that is done next."""
    _rates(s, w, -1, 0)
    best, at = -1, -1
    for link in range(2 * w.fabric.nodes):
        if s.link[link].flows > 0:
            ticks = _ticks_left(s, w, link)
            if at < 0 or ticks < best:
                best, at = ticks, link
    timer = 2 * w.fabric.instances
    if at < 0:
        stop_timer(s, timer)
    else:
        set_timer(s, timer, now + best, _LINK + at)


@part
def start_nic(s, w, link, work, request, now):
    """Start a transfer on a class of the NICs."""
    advance_nics(s, w, now)
    _add(s, w, link, work, request)
    schedule_nics(s, w, now)


@part
def advance_pcie(s, w, instance, now):
    """Bring an instance's PCIe link to the present."""
    link = 2 * w.fabric.nodes + instance
    if s.link[link].flows > 0:
        before = s.link[link].now
        s.link[link].served += s.link[link].rate * ((now - before) * 1e-12)
        inside = overlap(w, before, now) * 1e-12
        s.instance[instance].pcie_bytes += s.link[link].flows * s.link[link].rate * inside
    s.link[link].now = now


@part
def schedule_pcie(s, w, instance, now):
    """Set the rate of an instance's PCIe link, and its timer."""
    link = 2 * w.fabric.nodes + instance
    timer = w.fabric.instances + instance
    if s.link[link].flows == 0:
        stop_timer(s, timer)
        return
    s.link[link].rate = w.fabric.pcie_bytes_per_s / s.link[link].flows
    set_timer(s, timer, now + _ticks_left(s, w, link), _LINK + link)


@part
def start_pcie(s, w, instance, size, request, now):
    """Start a transfer over an instance's PCIe link."""
    advance_pcie(s, w, instance, now)
    _add(s, w, 2 * w.fabric.nodes + instance, size, request)
    schedule_pcie(s, w, instance, now)
