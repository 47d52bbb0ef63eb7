"""Compiled links: transfers that share NICs and PCIe equally.

Transfers of one kind (reads, or writes) of one node run at one rate, so each such class keeps the
bytes that every one of its transfers has had (``served``) and a list of transfers by the value of
``served`` at which they are done.  Every instance's PCIe is a class as well.  KV on its way to the
decode pool uses one node's link out and another's in: each such transfer keeps its own rate.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math

from smetric_model.simulate._heaps import KIND, set_timer, stop_timer
from smetric_model.simulate._jit import part, tables
from smetric_model.simulate._state import NIC_NOW, TRANSFERS

__all__ = [
    "advance_nics",
    "advance_pcie",
    "cancel_flow",
    "end_transfer",
    "nic_rate",
    "overlap",
    "pop_flow",
    "schedule_nics",
    "schedule_pcie",
    "start_nic",
    "start_pcie",
    "start_transfer",
    "transfer_rate",
]

_LINK = 1 << KIND


@part
def overlap(p, start, end):
    """Ticks of [start, end] inside the window."""
    _, w = tables(p)
    return max(0, min(end, w.window.end) - max(start, w.window.start))


@part
def _kind(p, link):
    """Row of the flow tables: reads, writes, PCIe."""
    _, w = tables(p)
    if link < 2 * w.fabric.nodes:
        return link % 2
    return 2


@part
def _add(p, link, work, request):
    s, _ = tables(p)
    kind = _kind(p, link)
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
def pop_flow(p, link):
    """Take out the transfer that is done; returns its request."""
    s, _ = tables(p)
    kind = _kind(p, link)
    request = s.link[link].first_flow
    s.link[link].first_flow = s.next_flow[kind, request]
    s.link[link].flows -= 1
    s.link[link].served = max(s.link[link].served, s.tag[kind, request])
    return request


@part
def cancel_flow(p, link, request):
    """Take a transfer out before it is done, if it is there; returns what was left of it."""
    s, _ = tables(p)
    kind = _kind(p, link)
    before, here = -1, s.link[link].first_flow
    while here >= 0 and here != request:
        before, here = here, s.next_flow[kind, here]
    if here < 0:
        return 0.0
    if before < 0:
        s.link[link].first_flow = s.next_flow[kind, request]
    else:
        s.next_flow[kind, before] = s.next_flow[kind, request]
    s.link[link].flows -= 1
    return max(0.0, s.tag[kind, request] - s.link[link].served)


@part
def _ticks_left(p, link):
    s, _ = tables(p)
    first = s.link[link].first_flow
    left = (s.tag[_kind(p, link), first] - s.link[link].served) / s.link[link].rate
    return max(0, math.ceil(left * 1e12))


@part
def advance_nics(p, now):
    """Bring all NICs to the present."""
    s, w = tables(p)
    before = s.count[NIC_NOW]
    seconds = (now - before) * 1e-12
    inside = overlap(p, before, now) * 1e-12
    for link in range(2 * w.fabric.nodes):
        if s.link[link].flows > 0:
            s.link[link].served += s.link[link].rate * seconds
            s.nic_work[link % 2, link >> 1] += s.link[link].flows * s.link[link].rate * inside
    for k in range(s.count[TRANSFERS]):
        s.transfer[k].left -= s.transfer[k].rate * seconds
        s.nic_work[2, s.transfer[k].target] += s.transfer[k].rate * inside
        s.nic_work[3, s.transfer[k].source] += s.transfer[k].rate * inside
    s.count[NIC_NOW] = now


@part
def _rates(p, only, more):
    """Set every class's rate, or (``only`` a node) return that of a read with ``more`` of them."""
    s, w = tables(p)
    nodes = w.fabric.nodes
    others = nodes - 1
    reads = float(more)
    writes = 0.0
    for node in range(nodes):
        reads += float(s.link[2 * node].flows)
        writes += float(s.link[2 * node + 1].flows)
    # loads are in transfers at the speed of the first node's links; of each direction the two
    # busiest, to leave out a node's own
    in_1 = in_2 = out_1 = out_2 = 0.0
    in_at = out_at = -1
    for node in range(nodes):
        here = float(s.link[2 * node].flows) + (more if node == only else 0)
        wrote = float(s.link[2 * node + 1].flows)
        slowness = w.interface[node].slowness
        inward = (here + (writes - wrote) / others + s.link[2 * node].passing) * slowness
        outward = (wrote + (reads - here) / others + s.link[2 * node + 1].passing) * slowness
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
        slowness = w.interface[node].slowness
        inward = (here + (writes - wrote) / others + s.link[2 * node].passing) * slowness
        outward = (wrote + (reads - here) / others + s.link[2 * node + 1].passing) * slowness
        flow = w.interface[node].flow_nic_bytes_per_s
        result = _slowest(p, flow, max(inward, out_2 if out_at == node else out_1))
        if only < 0:
            s.link[2 * node].rate = result
            busiest = max(outward, in_2 if in_at == node else in_1)
            s.link[2 * node + 1].rate = _slowest(p, flow, busiest)
    if only < 0:
        for k in range(s.count[TRANSFERS]):
            source, target = s.transfer[k].source, s.transfer[k].target
            s.transfer[k].rate = _pair_rate(p, source, target, reads, writes, 0.0)
    return result


@part
def _pair_rate(p, source, target, reads, writes, more):
    """Rate of KV between two nodes, with ``more`` of it beside what is under way."""
    s, w = tables(p)
    others = w.fabric.nodes - 1
    into, out_of = 2 * target, 2 * source + 1
    wrote = float(s.link[into + 1].flows)
    inward = float(s.link[into].flows) + (writes - wrote) / others + s.link[into].passing
    here = float(s.link[out_of - 1].flows)
    outward = float(s.link[out_of].flows) + (reads - here) / others + s.link[out_of].passing
    busiest = max(
        (inward + more) * w.interface[target].slowness,
        (outward + more) * w.interface[source].slowness,
    )
    flow = min(w.interface[source].flow_nic_bytes_per_s, w.interface[target].flow_nic_bytes_per_s)
    return _slowest(p, flow, busiest)


@part
def _slowest(p, flow, busiest):
    _, w = tables(p)
    if busiest == 0.0:
        return flow
    return min(flow, w.fabric.node_nic_bytes_per_s / busiest)


@part
def nic_rate(p, node):
    """Rate of a read that started now on a node."""
    return _rates(p, node, 1)


@part
def transfer_rate(p, source, target):
    """Rate of KV that started now from one node to another."""
    s, w = tables(p)
    reads = writes = 0.0
    for node in range(w.fabric.nodes):
        reads += float(s.link[2 * node].flows)
        writes += float(s.link[2 * node + 1].flows)
    return _pair_rate(p, source, target, reads, writes, 1.0)


@part
def schedule_nics(p, now):
    """Set the rates, and the timer of the transfer that is done next."""
    s, w = tables(p)
    _rates(p, -1, 0)
    best, at = -1, -1
    for link in range(2 * w.fabric.nodes):
        if s.link[link].flows > 0:
            ticks = _ticks_left(p, link)
            if at < 0 or ticks < best:
                best, at = ticks, link
    for k in range(s.count[TRANSFERS]):
        ticks = max(0, math.ceil(s.transfer[k].left / s.transfer[k].rate * 1e12))
        link = 2 * w.fabric.nodes + w.fabric.instances + s.transfer[k].request
        if at < 0 or ticks < best or (ticks == best and link < at):
            best, at = ticks, link
    timer = 2 * w.fabric.instances
    if at < 0:
        stop_timer(p, timer)
    else:
        set_timer(p, timer, now + best, _LINK + at)


@part
def start_nic(p, link, work, request, now):
    """Start a transfer on a class of the NICs."""
    advance_nics(p, now)
    _add(p, link, work, request)
    schedule_nics(p, now)


@part
def start_transfer(p, request, source, target, work, now):
    """Start to send KV from one node to another."""
    s, _ = tables(p)
    advance_nics(p, now)
    entry = s.count[TRANSFERS]
    s.count[TRANSFERS] += 1
    s.transfer[entry].request = request
    s.transfer[entry].source = source
    s.transfer[entry].target = target
    s.transfer[entry].left = work
    s.link[2 * target].passing += 1.0
    s.link[2 * source + 1].passing += 1.0
    schedule_nics(p, now)


@part
def end_transfer(p, request, now):
    """Take out KV that has been sent, or is not wanted any more; if it is there."""
    s, _ = tables(p)
    first = 0
    while first < s.count[TRANSFERS] and s.transfer[first].request != request:
        first += 1
    if first == s.count[TRANSFERS]:
        return
    advance_nics(p, now)
    kept = 0
    for k in range(s.count[TRANSFERS]):
        if s.transfer[k].request == request:
            s.link[2 * s.transfer[k].target].passing -= 1.0
            s.link[2 * s.transfer[k].source + 1].passing -= 1.0
        else:
            s.transfer[kept].request = s.transfer[k].request
            s.transfer[kept].source = s.transfer[k].source
            s.transfer[kept].target = s.transfer[k].target
            s.transfer[kept].left = s.transfer[k].left
            s.transfer[kept].rate = s.transfer[k].rate
            kept += 1
    s.count[TRANSFERS] = kept
    schedule_nics(p, now)


@part
def advance_pcie(p, instance, now):
    """Bring an instance's PCIe link to the present."""
    s, w = tables(p)
    link = 2 * w.fabric.nodes + instance
    if s.link[link].flows > 0:
        before = s.link[link].now
        s.link[link].served += s.link[link].rate * ((now - before) * 1e-12)
        inside = overlap(p, before, now) * 1e-12
        s.instance[instance].pcie_bytes += s.link[link].flows * s.link[link].rate * inside
    s.link[link].now = now


@part
def schedule_pcie(p, instance, now):
    """Set the rate of an instance's PCIe link, and its timer."""
    s, w = tables(p)
    link = 2 * w.fabric.nodes + instance
    timer = w.fabric.instances + instance
    if s.link[link].flows == 0:
        stop_timer(p, timer)
        return
    s.link[link].rate = w.instance[instance].pcie_bytes_per_s / s.link[link].flows
    set_timer(p, timer, now + _ticks_left(p, link), _LINK + link)


@part
def start_pcie(p, instance, size, request, now):
    """Start a transfer over an instance's PCIe link."""
    _, w = tables(p)
    advance_pcie(p, instance, now)
    _add(p, 2 * w.fabric.nodes + instance, size, request)
    schedule_pcie(p, instance, now)
