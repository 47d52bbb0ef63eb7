"""Compiled links: transfers that share NICs and PCIe equally.

Transfers of one kind (reads, or writes) of one node run at one rate, so each such class keeps the
bytes that every one of its transfers has had (``served``) and a list of transfers by the value of
``served`` at which they are done.  Every instance's PCIe is a class as well.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math

from smetric_model.simulate._heaps import KIND, set_timer, stop_timer
from smetric_model.simulate._jit import jit
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


@jit
def overlap(window, start, end):
    """Ticks of [start, end] inside the window."""
    return max(0, min(end, window.end) - max(start, window.start))


@jit
def _kind(fabric, link):
    """Row of the flow tables: reads, writes, PCIe."""
    if link < 2 * fabric.nodes:
        return link % 2
    return 2


@jit
def _add(s, fabric, link, work, request):
    kind = _kind(fabric, link)
    if s.flows[link] == 0:
        s.served[link] = 0.0
    tag = s.served[link] + work
    s.tag[kind, request] = tag
    before, here = -1, s.first_flow[link]
    while here >= 0 and (
        s.tag[kind, here] < tag or (s.tag[kind, here] == tag and here < request)
    ):
        before, here = here, s.next_flow[kind, here]
    s.next_flow[kind, request] = here
    if before < 0:
        s.first_flow[link] = request
    else:
        s.next_flow[kind, before] = request
    s.flows[link] += 1


@jit
def pop_flow(s, fabric, link):
    """Take out the transfer that is done; returns its request."""
    kind = _kind(fabric, link)
    request = s.first_flow[link]
    s.first_flow[link] = s.next_flow[kind, request]
    s.flows[link] -= 1
    s.served[link] = max(s.served[link], s.tag[kind, request])
    return request


@jit
def _ticks_left(s, fabric, link):
    first = s.first_flow[link]
    left = (s.tag[_kind(fabric, link), first] - s.served[link]) / s.rate[link]
    return max(0, int(math.ceil(left * 1e12)))


@jit
def advance_nics(s, fabric, window, now):
    """Bring all NICs to the present."""
    before = s.count[NIC_NOW]
    seconds = (now - before) * 1e-12
    inside = overlap(window, before, now) * 1e-12
    for link in range(2 * fabric.nodes):
        if s.flows[link] > 0:
            s.served[link] += s.rate[link] * seconds
            s.nic_work[0] += s.flows[link] * s.rate[link] * inside
    s.count[NIC_NOW] = now


@jit
def _rates(s, fabric, only, more):
    """Set every class's rate, or (``only`` a node) return that of a read with ``more`` of them."""
    nodes = fabric.nodes
    others = nodes - 1
    reads = float(more)
    writes = 0.0
    for node in range(nodes):
        reads += float(s.flows[2 * node])
        writes += float(s.flows[2 * node + 1])
    # the two busiest links of each direction, to leave out a node's own
    in_1 = in_2 = out_1 = out_2 = 0.0
    in_at = out_at = -1
    for node in range(nodes):
        here = float(s.flows[2 * node]) + (more if node == only else 0)
        wrote = float(s.flows[2 * node + 1])
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
        here = float(s.flows[2 * node]) + (more if node == only else 0)
        wrote = float(s.flows[2 * node + 1])
        inward = here + (writes - wrote) / others
        outward = wrote + (reads - here) / others
        result = _slowest(fabric, max(inward, out_2 if out_at == node else out_1))
        if only < 0:
            s.rate[2 * node] = result
            busiest = max(outward, in_2 if in_at == node else in_1)
            s.rate[2 * node + 1] = _slowest(fabric, busiest)
    return result


@jit
def _slowest(fabric, busiest):
    if busiest == 0.0:
        return fabric.flow_nic_bytes_per_s
    return min(fabric.flow_nic_bytes_per_s, fabric.node_nic_bytes_per_s / busiest)


@jit
def nic_rate(s, fabric, node):
    """Rate of a read that started now on a node."""
    return _rates(s, fabric, node, 1)


@jit
def schedule_nics(s, fabric, now):
    """Set the rates, and the timer of the transfer that is done next."""
    _rates(s, fabric, -1, 0)
    best, at = -1, -1
    for link in range(2 * fabric.nodes):
        if s.flows[link] > 0:
            ticks = _ticks_left(s, fabric, link)
            if at < 0 or ticks < best:
                best, at = ticks, link
    timer = 2 * fabric.instances
    if at < 0:
        stop_timer(s, timer)
    else:
        set_timer(s, timer, now + best, _LINK + at)


@jit
def start_nic(s, fabric, window, link, work, request, now):
    """Start a transfer on a class of the NICs."""
    advance_nics(s, fabric, window, now)
    _add(s, fabric, link, work, request)
    schedule_nics(s, fabric, now)


@jit
def advance_pcie(s, fabric, window, pcie_bytes, instance, now):
    """Bring an instance's PCIe link to the present."""
    link = 2 * fabric.nodes + instance
    if s.flows[link] > 0:
        before = s.link_now[link]
        s.served[link] += s.rate[link] * ((now - before) * 1e-12)
        inside = overlap(window, before, now) * 1e-12
        pcie_bytes[instance] += s.flows[link] * s.rate[link] * inside
    s.link_now[link] = now


@jit
def schedule_pcie(s, fabric, instance, now):
    """Set the rate of an instance's PCIe link, and its timer."""
    link = 2 * fabric.nodes + instance
    timer = fabric.instances + instance
    if s.flows[link] == 0:
        stop_timer(s, timer)
        return
    s.rate[link] = fabric.pcie_bytes_per_s / s.flows[link]
    set_timer(s, timer, now + _ticks_left(s, fabric, link), _LINK + link)


@jit
def start_pcie(s, fabric, window, pcie_bytes, instance, size, request, now):
    """Start a transfer over an instance's PCIe link."""
    advance_pcie(s, fabric, window, pcie_bytes, instance, now)
    _add(s, fabric, 2 * fabric.nodes + instance, size, request)
    schedule_pcie(s, fabric, instance, now)
