"""Compiled kernels of the radix tree: insertion of run-length encoded block paths.

All state lies in flat arrays whose capacity the caller guarantees beforehand (at most two new
nodes a path, at most one new run a run), so that the kernels never allocate.  Their compiled form
is cached on disk.
"""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = [
    "depths",
    "encode_runs",
    "insert_paths",
    "path_runs",
    "rehash",
    "resolve_leaves",
    "root_of",
]

_MIX_A = np.uint64(0x9E3779B97F4A7C15)
_MIX_B = np.uint64(0xC2B2AE3D27D4EB4F)
_SHIFT = np.uint64(29)


@njit(cache=True, inline="always")
def _slot(node, block, mask):  # type: ignore[no-untyped-def]
    key = np.uint64(node) * _MIX_A ^ np.uint64(block) * _MIX_B
    key ^= key >> _SHIFT
    key *= _MIX_A
    key ^= key >> _SHIFT
    return np.int64(key & np.uint64(mask))


@njit(cache=True)
def _find(slot_node, slot_block, slot_child, mask, node, block):  # type: ignore[no-untyped-def]
    """Slot that holds ``(node, block)``, or the free slot where it belongs."""
    slot = _slot(node, block, mask)
    while slot_child[slot] >= 0 and (slot_node[slot] != node or slot_block[slot] != block):
        slot = (slot + 1) & mask
    return slot


@njit(cache=True)
def rehash(old_node, old_block, old_child, slot_node, slot_block, slot_child):  # type: ignore[no-untyped-def]
    """Move every entry of an open-addressing table into a larger one."""
    mask = slot_child.size - 1
    for index in range(old_child.size):
        if old_child[index] >= 0:
            slot = _find(slot_node, slot_block, slot_child, mask, old_node[index], old_block[index])
            slot_node[slot] = old_node[index]
            slot_block[slot] = old_block[index]
            slot_child[slot] = old_child[index]


@njit(cache=True)
def encode_runs(ids, offsets, run_first, run_count, run_offsets):  # type: ignore[no-untyped-def]
    """Run-length encode paths of block ids; returns the number of runs.

    A run is a stretch of consecutive ids; ``run_first`` and ``run_count`` have the capacity of
    ``ids``.
    """
    runs = 0
    for path in range(offsets.size - 1):
        run_offsets[path] = runs
        for index in range(offsets[path], offsets[path + 1]):
            block = ids[index]
            if index > offsets[path] and block == ids[index - 1] + 1:
                run_count[runs - 1] += 1
            else:
                run_first[runs] = block
                run_count[runs] = 1
                runs += 1
    run_offsets[offsets.size - 1] = runs
    return runs


@njit(cache=True)
def insert_paths(  # type: ignore[no-untyped-def]
    roots,
    offsets,
    run_first,
    run_count,
    parent,
    start,
    length,
    head_run,
    head_skip,
    tail_run,
    has_child,
    link_first,
    link_count,
    link_next,
    slot_node,
    slot_block,
    slot_child,
    counters,
    leaf,
    blocks,
):
    """Insert paths given as runs; fills ``leaf`` and ``blocks`` (depth) of each path.

    A leaf whose end a path reaches is lengthened in place; a segment that a path leaves half-way
    is split, the *lower* part keeping its number, so that leaves noted earlier stay below
    or at the node they belong to (see :func:`resolve_leaves`).
    """
    mask = slot_child.size - 1
    nodes = counters[0]
    links = counters[1]
    for path in range(roots.size):
        node = roots[path]
        depth = 0
        run = offsets[path]
        last_run = offsets[path + 1]
        first = run_first[run] if run < last_run else 0
        left = run_count[run] if run < last_run else 0
        while run < last_run:
            slot = _find(slot_node, slot_block, slot_child, mask, node, first)
            child = slot_child[slot]
            if child < 0:
                if parent[node] < 0 or has_child[node]:
                    child = nodes
                    nodes += 1
                    parent[child] = node
                    start[child] = depth
                    length[child] = 0
                    head_skip[child] = 0
                    head_run[child] = -1
                    tail_run[child] = -1
                    has_child[child] = False
                    has_child[node] = True
                    slot_node[slot] = node
                    slot_block[slot] = first
                    slot_child[slot] = child
                    counters[2] += 1
                    node = child
                while run < last_run:
                    tail = tail_run[node]
                    if tail >= 0 and link_first[tail] + link_count[tail] == first:
                        link_count[tail] += left
                    else:
                        link_first[links] = first
                        link_count[links] = left
                        link_next[links] = -1
                        if tail >= 0:
                            link_next[tail] = links
                        else:
                            head_run[node] = links
                        tail_run[node] = links
                        links += 1
                    length[node] += left
                    depth += left
                    run += 1
                    if run < last_run:
                        first = run_first[run]
                        left = run_count[run]
                break
            segment_left = length[child]
            link = head_run[child]
            held = link_first[link] + head_skip[child]
            held_left = link_count[link] - head_skip[child]
            matched = 0
            while segment_left > 0 and run < last_run and held == first:
                step = min(held_left, left, segment_left)
                matched += step
                held += step
                first += step
                held_left -= step
                left -= step
                segment_left -= step
                if left == 0:
                    run += 1
                    if run < last_run:
                        first = run_first[run]
                        left = run_count[run]
                if held_left == 0 and segment_left > 0:
                    link = link_next[link]
                    held = link_first[link]
                    held_left = link_count[link]
            depth += matched
            if segment_left == 0 or run >= last_run:
                node = child
                continue
            upper = nodes
            nodes += 1
            parent[upper] = node
            start[upper] = start[child]
            length[upper] = matched
            head_run[upper] = head_run[child]
            head_skip[upper] = head_skip[child]
            tail_run[upper] = -1
            has_child[upper] = True
            slot_child[slot] = upper
            parent[child] = upper
            start[child] += matched
            length[child] -= matched
            head_run[child] = link
            head_skip[child] = held - link_first[link]
            slot = _find(slot_node, slot_block, slot_child, mask, upper, held)
            slot_node[slot] = upper
            slot_block[slot] = held
            slot_child[slot] = child
            counters[2] += 1
            node = upper
        leaf[path] = node
        blocks[path] = depth
    counters[0] = nodes
    counters[1] = links


@njit(cache=True)
def resolve_leaves(parent, start, leaf, blocks):  # type: ignore[no-untyped-def]
    """Move each path's leaf up to the segment in which the path ends."""
    for path in range(leaf.size):
        node = leaf[path]
        while parent[node] >= 0 and start[node] >= blocks[path]:
            node = parent[node]
        leaf[path] = node


@njit(cache=True)
def depths(parent):  # type: ignore[no-untyped-def]
    """Segments from the root down to each segment, the root not counted; parents come first."""
    depth = np.zeros(parent.size, np.int32)
    for node in range(parent.size):
        if parent[node] >= 0:
            depth[node] = depth[parent[node]] + 1
    return depth


@njit(cache=True)
def root_of(parent):  # type: ignore[no-untyped-def]
    """Root above each segment; parents come first."""
    root = np.empty(parent.size, np.int32)
    for node in range(parent.size):
        root[node] = node if parent[node] < 0 else root[parent[node]]
    return root


@njit(cache=True)
def path_runs(  # type: ignore[no-untyped-def]
    parent, start, end, first_id, longest, leaf, blocks, offsets, first, count, fill
):
    """Write each path as runs of chained ids, neighbours joined; once to count, once to fill."""
    stack = np.empty(longest + 1, np.int64)
    runs = 0
    for path in range(leaf.size):
        offsets[path] = runs
        depth = 0
        node = leaf[path]
        while parent[node] >= 0:
            stack[depth] = node
            depth += 1
            node = parent[node]
        follows = -1  # id that would continue the run before
        for level in range(depth - 1, -1, -1):
            segment = stack[level]
            length = min(end[segment], blocks[path]) - start[segment]
            if first_id[segment] == follows:
                if fill:
                    count[runs - 1] += length
            else:
                if fill:
                    first[runs] = first_id[segment]
                    count[runs] = length
                runs += 1
            follows = first_id[segment] + length
    offsets[leaf.size] = runs
    return runs
