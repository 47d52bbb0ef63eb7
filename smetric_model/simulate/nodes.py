"""Radix nodes for a simulation: segments of the trace's tree, split where a request ends inside.

Least recently used at the grain of blocks comes down to a list of nodes if no request ever covers
part of a node whose rest is cached.  A session that only appends keeps one long node, however many
turns it has: each turn covers all of it that can be cached by then.  A segment that several
sessions use, or that a session rewinds into, is split wherever a request ends in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numba import njit
from numpy.typing import NDArray

if TYPE_CHECKING:
    from smetric_model.workload.prefix_tree import PrefixTree

__all__ = ["Nodes", "split_nodes"]

IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Nodes:
    """Nodes, parents before children, and the node in which each request's path ends.

    Attributes
    ----------
    parent : ndarray of int64, shape (nodes,)
        Node above; −1 at the top.
    start, end : ndarray of int64, shape (nodes,)
        Depth at which the node begins and ends [blocks].
    leaf : ndarray of int64, shape (requests,)
        Node in which the request's cacheable blocks end; −1 where it has none.
    blocks : ndarray of int64, shape (requests,)
        Cacheable blocks of the request.
    """

    parent: IntArray
    start: IntArray
    end: IntArray
    leaf: IntArray
    blocks: IntArray

    def path(self, request: int) -> list[int]:
        """Nodes of a request from the top down."""
        nodes = []
        node = int(self.leaf[request])
        while node >= 0:
            nodes.append(node)
            node = int(self.parent[node])
        return nodes[::-1]

    def path_sum(self) -> int:
        """Nodes on the paths of all requests."""
        depth = np.zeros(self.parent.size + 1, np.int64)
        _depths(self.parent, depth)
        return int(depth[self.leaf].sum())  # a leaf of −1 reads the last entry, 0

    def longest_path(self) -> int:
        """Most nodes on a path."""
        depth = np.zeros(self.parent.size + 1, np.int64)
        _depths(self.parent, depth)
        return int(depth.max(initial=0))


def no_nodes(requests: int) -> Nodes:
    """Nodes of a trace that carries no block ids: nothing can be reused."""
    empty = np.zeros(0, np.int64)
    return Nodes(empty, empty, empty, np.full(requests, -1), np.zeros(requests, np.int64))


def split_nodes(tree: PrefixTree, blocks: IntArray, session: IntArray, in_order: bool) -> Nodes:
    """Split a tree's segments as the simulation needs them.

    Parameters
    ----------
    tree : PrefixTree
        Rows in order of arrival.
    blocks : ndarray of int64, shape (requests,)
        Cacheable blocks of each request: whole blocks, at most its path [blocks].
    session : ndarray of int64, shape (requests,)
        Session of each request.
    in_order : bool
        Whether a turn arrives only after the session's previous one is done.

    Returns
    -------
    Nodes
    """
    segments = tree.parent.size
    leaf = tree.request_segment.astype(np.int64)
    cover = tree.start_block.astype(np.int64).copy()  # deepest block that any request covers
    shared = np.zeros(segments, np.bool_)
    parent = tree.parent.astype(np.int64)
    _covers(parent, tree.start_block, leaf, blocks, session, in_order, cover, shared)
    used = cover > tree.start_block
    inside = (leaf >= 0) & shared[np.maximum(leaf, 0)]
    inside &= blocks < cover[np.maximum(leaf, 0)]
    # ends of nodes: every end inside a shared segment, and the end of each segment
    at_segment = np.concatenate((leaf[inside], np.flatnonzero(used)))
    at_depth = np.concatenate((blocks[inside], cover[used]))
    base = np.int64(max(int(cover.max(initial=0)), int(blocks.max(initial=0))) + 1)
    points = np.unique(at_segment * base + at_depth)
    node_segment, node_end = np.divmod(points, base)
    first = np.append(True, node_segment[1:] != node_segment[:-1])[: node_segment.size]
    previous_end = np.append(0, node_end[:-1])[: node_end.size]
    node_start = np.where(first, tree.start_block[node_segment], previous_end)
    last_of = np.full(segments + 1, -1, np.int64)  # the last entry stands for "no segment"
    last_of[node_segment] = np.arange(node_segment.size)
    node_parent = np.where(first, last_of[parent[node_segment]], np.arange(node_segment.size) - 1)
    # a request ends in the first node of its segment that reaches its depth
    place = np.searchsorted(points, leaf * base + blocks)
    return Nodes(node_parent, node_start, node_end, np.where(leaf >= 0, place, -1), blocks)


@njit(cache=True)
def _covers(  # type: ignore[no-untyped-def]
    parent, start, leaf, blocks, session, in_order, cover, shared
):
    """Walk every request's path: truncate leaves, find segments that need splitting."""
    owner = np.full(parent.size, -1, np.int64)
    last = np.zeros(parent.size, np.int64)
    for request in range(leaf.size):
        depth = blocks[request]
        node = leaf[request]
        while node >= 0 and start[node] >= depth:
            node = parent[node]
        if node >= 0 and parent[node] < 0:
            node = -1  # a root: nothing is cacheable
        leaf[request] = node
        reach = depth
        while node >= 0 and parent[node] >= 0:
            if owner[node] < 0:
                owner[node] = session[request]
            else:
                grown = reach >= last[node] if in_order else reach == last[node]
                if owner[node] != session[request] or not grown:
                    shared[node] = True
            last[node] = reach
            cover[node] = max(cover[node], reach)
            reach = start[node]
            node = parent[node]


@njit(cache=True)
def _depths(parent, depth):  # type: ignore[no-untyped-def]
    for node in range(parent.size):
        depth[node] = 1 + (depth[parent[node]] if parent[node] >= 0 else 0)
