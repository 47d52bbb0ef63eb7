"""Compiled kernels behind :mod:`smetric_model.analytic.cluster_links`."""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["fetches", "nic_s", "transfers_on_link"]

_FULL = 0.995  # a link busier than this counts as saturated


@njit(cache=True, error_model="numpy")
def nic_s(tokens, wire, computing, result):  # type: ignore[no-untyped-def]
    """Time that transfers between nodes take alone [s].

    ``wire``: bytes per token, share that moves, interfaces that one instance drives, line rate of
    each [bytes/s]; efficiency by the logarithm of the size, and by how much GPUs that compute, with
    the probability ``computing``, lower it.
    """
    per_token, remote, driven, line, log_bytes, efficiency, busy_ratio = wire
    slower = computing / busy_ratio + 1.0 - computing
    last = log_bytes.size - 1
    for i in range(tokens.size):
        result[i] = 0.0
        if tokens[i] <= 0.0 or remote == 0.0:
            continue
        each = tokens[i] * per_token * remote / driven
        size, share = np.log(max(each, 1.0)), efficiency[last]
        if size <= log_bytes[0]:
            share = efficiency[0]
        elif size < log_bytes[last]:
            low = 0
            while log_bytes[low + 1] <= size:
                low += 1
            share = (size - log_bytes[low]) / (log_bytes[low + 1] - log_bytes[low])
            share = efficiency[low] + share * (efficiency[low + 1] - efficiency[low])
        result[i] = each / (line * share) * slower
    return result


@njit(cache=True, error_model="numpy")
def transfers_on_link(work, streams):  # type: ignore[no-untyped-def]
    r"""Law of the transfers on a link, P(n) ∝ Π work[j - 1] streams / min(j, streams)."""
    law = np.zeros(work.size)
    most = 0.0
    for n in range(1, work.size):
        step = max(work[n - 1], 1e-12) * streams / min(float(n), streams)
        law[n] = law[n - 1] + np.log(step)
        most = max(most, law[n])
    total = 0.0
    for n in range(work.size):
        law[n] = np.exp(law[n] - most)
        total += law[n]
    for n in range(work.size):
        law[n] /= total
    return law


@njit(cache=True, error_model="numpy")
def fetches(  # type: ignore[no-untyped-def]
    tokens,
    weights,
    written,
    recompute_s,
    flows,
    wire,
    pcie_bytes_per_s,
    fixed_s,
    per_node_rps,
    per_instance_rps,
    streams,
    passing,
    computing,
    computing_at_writes,
    result,
):
    """Fill P(each fetch is made) and how long those take [s]; return what links are used.

    ``flows``: transfers told apart on a link; ``recompute_s`` is empty where fetches are always
    made; ``computing`` and ``computing_at_writes``: probability that GPUs compute meanwhile, of
    fetches and of writes.  Returns the load of the NICs, of PCIe, the NICs' if every fetch were
    made, and that of writes alone.
    """
    size = tokens.size
    made, time = result[0], result[1]
    nic = nic_s(tokens, wire, computing, np.empty(size))
    writes = nic_s(written, wire, computing_at_writes, np.empty(size))
    writing, offered = 0.0, 0.0
    for i in range(size):
        writing += weights[i] * writes[i]
        offered += weights[i] * nic[i]
    writing *= per_node_rps
    fixed = writing + passing
    choosy = recompute_s.size > 0
    # how many may be on the link for fetching still to be faster
    count = np.zeros(size, np.int64)
    joining = np.zeros(flows + 1)
    for i in range(size):
        if tokens[i] > 0.0:
            count[i] = flows
            if choosy:
                spare = recompute_s[i] - fixed_s
                if tokens[i] * wire[0] / pcie_bytes_per_s > spare:
                    count[i] = 0
                elif nic[i] > 0.0:
                    while count[i] > 0 and max(count[i] / streams, 1.0) * nic[i] > spare:
                        count[i] -= 1
        joining[count[i]] += weights[i] * nic[i]
    # work that comes while n are on the link: of those that still join, and of the others
    work, rest = np.empty(flows), 0.0
    for n in range(flows - 1, -1, -1):
        rest += joining[n + 1]
        work[n] = per_node_rps * rest + fixed
    law = transfers_on_link(work, streams)
    upto, stretch = law.copy(), law.copy()
    for n in range(flows):
        stretch[n] *= max((n + 1) / streams, 1.0)
        if n > 0:
            upto[n] += upto[n - 1]
            stretch[n] += stretch[n - 1]
    load, used = 0.0, 0.0
    for i in range(size):
        made[i] = upto[count[i] - 1] if count[i] > 0 else 0.0
        if choosy and fixed >= 1.0 and nic[i] > 0.0:
            # more and more writes share the link: sooner or later computing is always faster
            made[i] = 0.0
        load += weights[i] * nic[i] * made[i]
        used += weights[i] * tokens[i] * made[i]
    used *= per_instance_rps * wire[0] / pcie_bytes_per_s
    slow = 1.0 / (1.0 - min(used, _FULL))
    for i in range(size):
        time[i] = 0.0
        if tokens[i] > 0.0:
            n = max(count[i] - 1, 0)
            there = tokens[i] * wire[0] / pcie_bytes_per_s * slow
            time[i] = fixed_s + max(nic[i] * stretch[n] / max(upto[n], 1e-300), there)
    return per_node_rps * load + writing, used, per_node_rps * offered + writing, writing
