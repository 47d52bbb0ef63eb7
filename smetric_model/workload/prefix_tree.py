"""Radix tree of a trace's prompts: each prompt a short list of segments.

A prompt is a path of KV blocks.  Paths that begin alike share their first blocks; the tree holds
each distinct stretch once, as a *segment*, split only where two paths part.  A 60k-token prompt
is then a handful of segments instead of thousands of blocks, and a request is two numbers: the
segment in which it ends and its depth in blocks.

Block ids enter as they stand in a file.  Whether an id names a block's content or its whole
prefix does not matter here: a block is identified by its id *and* the path that leads to it, and
paths of different namespaces (sessions with ids of their own, models) never meet.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["PrefixTree", "PrefixTreeBuilder"]

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PrefixTree:
    """Segments of a radix tree and the place of each request in it.

    Segments are numbered so that a parent comes before its children.  The first segments are the
    roots, one a namespace, of length zero.

    Attributes
    ----------
    parent : ndarray of int32, shape (segments,)
        Segment above; −1 for a root.
    start_block, end_block : ndarray of int64, shape (segments,)
        Depth [blocks] at which the segment begins and ends.
    root : ndarray of int32, shape (segments,)
        Root (namespace) to which the segment belongs.
    request_segment : ndarray of int32, shape (requests,)
        Segment in which the request's path ends.
    request_blocks : ndarray of int64, shape (requests,)
        Length of the request's path [blocks].
    """

    parent: npt.NDArray[np.int32]
    start_block: IntArray
    end_block: IntArray
    root: npt.NDArray[np.int32]
    request_segment: npt.NDArray[np.int32]
    request_blocks: IntArray

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            getattr(self, name).setflags(write=False)

    def __repr__(self) -> str:
        return (
            f"PrefixTree({self.request_segment.size:,} requests, {self.parent.size:,} segments, "
            f"{self.distinct_blocks:,} distinct blocks)"
        )

    @property
    def distinct_blocks(self) -> int:
        """Count the different blocks of all paths."""
        return int((self.end_block - self.start_block).sum())

    @property
    def first_block_id(self) -> IntArray:
        """Chained id of the first block of each segment; ids within a segment follow each other.

        Returns
        -------
        ndarray of int64, shape (segments,)
        """
        lengths = self.end_block - self.start_block
        result: IntArray = np.cumsum(lengths) - lengths
        return result

    def path(self, request: int) -> tuple[IntArray, IntArray]:
        """Segments of one request, from the root down.

        Parameters
        ----------
        request : int
            Row of the request.

        Returns
        -------
        segments : ndarray of int64
            Segment numbers, without the root.
        blocks : ndarray of int64
            Blocks of each segment that the request covers (all but the last are covered whole).
        """
        segments = []
        node = int(self.request_segment[request])
        while self.parent[node] >= 0:
            segments.append(node)
            node = int(self.parent[node])
        numbers = np.array(segments[::-1], dtype=np.int64)
        ends = np.minimum(self.end_block[numbers], self.request_blocks[request])
        return numbers, ends - self.start_block[numbers]

    def block_ids(self, request: int) -> IntArray:
        """Chained block ids of one request, one a block (for small traces and tests).

        Returns
        -------
        ndarray of int64, shape (request_blocks[request],)
        """
        segments, counts = self.path(request)
        first = self.first_block_id
        parts = [np.arange(first[s], first[s] + n) for s, n in zip(segments, counts, strict=True)]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def runs(self) -> tuple[IntArray, IntArray, IntArray]:
        """All paths as runs of chained ids.

        Returns
        -------
        offsets : ndarray of int64, shape (requests + 1,)
            Where each request's runs begin.
        first, count : ndarray of int64
            First id and length [blocks] of each run.
        """
        from smetric_model.workload._tree_kernels import path_runs

        offsets = np.empty(self.request_segment.size + 1, np.int64)
        arguments = (
            self.parent,
            self.start_block,
            self.end_block,
            self.first_block_id,
            int(self.path_lengths().max(initial=0)),
            self.request_segment,
            self.request_blocks,
            offsets,
        )
        none = np.empty(1, np.int64)
        size = path_runs(*arguments, none, none, False)
        first, count = np.empty(max(size, 1), np.int64), np.empty(max(size, 1), np.int64)
        path_runs(*arguments, first, count, True)
        return offsets, first[:size], count[:size]

    def path_lengths(self) -> npt.NDArray[np.int32]:
        """Count the segments from the root down to each segment, roots left out.

        Returns
        -------
        ndarray of int32, shape (segments,)
        """
        from smetric_model.workload._tree_kernels import depths

        result: npt.NDArray[np.int32] = depths(self.parent)
        return result

    def take(self, rows: npt.NDArray[np.intp]) -> PrefixTree:
        """Tree of the requests ``rows``, in that order (a row may occur more than once).

        Segments that no remaining request uses stay in the tree; they touch nothing.
        """
        return PrefixTree(
            self.parent,
            self.start_block,
            self.end_block,
            self.root,
            self.request_segment[rows],
            self.request_blocks[rows],
        )


class PrefixTreeBuilder:
    """Builds a :class:`PrefixTree` from paths that arrive in any order, in bounded memory.

    Only *distinct* blocks are held (as runs of consecutive ids), plus two numbers a request.
    """

    _GROWTH = 2

    def __init__(self) -> None:
        self._counters = np.zeros(3, dtype=np.int64)  # nodes, runs, table entries
        self._nodes: dict[str, npt.NDArray[Any]] = {
            "parent": np.empty(64, np.int32),
            "start": np.empty(64, np.int64),
            "length": np.empty(64, np.int64),
            "head_run": np.empty(64, np.int64),
            "head_skip": np.empty(64, np.int64),
            "tail_run": np.empty(64, np.int64),
            "has_child": np.empty(64, np.bool_),
        }
        self._runs: dict[str, IntArray] = {
            name: np.empty(64, np.int64) for name in ("first", "count", "next")
        }
        self._table = self._empty_table(256)
        self._roots: dict[Hashable, int] = {}
        self._leaves: list[npt.NDArray[np.int32]] = []
        self._blocks: list[IntArray] = []

    @staticmethod
    def _empty_table(size: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        return (
            np.empty(size, np.int32),
            np.empty(size, np.int64),
            np.full(size, -1, np.int32),
        )

    def _reserve(self, paths: int, runs: int) -> None:
        nodes = int(self._counters[0]) + 2 * paths
        if nodes > self._nodes["parent"].size:
            for name, array in self._nodes.items():
                self._nodes[name] = np.resize(array, max(nodes, self._GROWTH * array.size))
        links = int(self._counters[1]) + runs
        if links > self._runs["first"].size:
            for name, array in self._runs.items():
                self._runs[name] = np.resize(array, max(links, self._GROWTH * array.size))
        size = self._table[0].size
        entries = int(self._counters[2]) + 2 * paths
        if 2 * entries > size:
            from smetric_model.workload._tree_kernels import rehash

            while 2 * entries > size:
                size *= self._GROWTH
            table = self._empty_table(size)
            old = self._table
            rehash(old[0], old[1], old[2], table[0], table[1], table[2])
            self._table = table

    def root(self, namespace: Hashable) -> int:
        """Root of a namespace, made on first use.

        Parameters
        ----------
        namespace : hashable
            Paths of different namespaces share nothing.

        Returns
        -------
        int
            To be passed to :meth:`add_runs` and :meth:`add_ids`.
        """
        known = self._roots.get(namespace)
        if known is not None:
            return known
        self._reserve(1, 0)
        node = int(self._counters[0])
        self._counters[0] += 1
        for name, value in (("parent", -1), ("start", 0), ("length", 0), ("has_child", False)):
            self._nodes[name][node] = value
        for name in ("head_run", "head_skip", "tail_run"):
            self._nodes[name][node] = -1
        self._roots[namespace] = node
        return node

    def add_ids(self, roots: npt.ArrayLike, ids: npt.ArrayLike, offsets: npt.ArrayLike) -> None:
        """Add paths given as block ids.

        Parameters
        ----------
        roots : array_like of int, shape (paths,)
            Root of each path, from :meth:`root`.
        ids : array_like of int64
            Block ids of all paths, one path after the other.
        offsets : array_like of int64, shape (paths + 1,)
            Where each path begins in ``ids``.
        """
        from smetric_model.workload._tree_kernels import encode_runs

        block_ids = np.ascontiguousarray(ids, dtype=np.int64)
        bounds = np.ascontiguousarray(offsets, dtype=np.int64)
        first = np.empty(max(block_ids.size, 1), np.int64)
        count = np.empty(max(block_ids.size, 1), np.int64)
        run_offsets = np.empty(bounds.size, np.int64)
        runs = encode_runs(block_ids, bounds, first, count, run_offsets)
        self.add_runs(roots, first[:runs], count[:runs], run_offsets)

    def add_runs(
        self,
        roots: npt.ArrayLike,
        run_first: npt.ArrayLike,
        run_count: npt.ArrayLike,
        offsets: npt.ArrayLike,
    ) -> None:
        """Add paths given as runs of consecutive block ids.

        Parameters
        ----------
        roots : array_like of int, shape (paths,)
            Root of each path, from :meth:`root`.
        run_first, run_count : array_like of int64
            First id and length (≥ 1) of the runs of all paths, one path after the other.
        offsets : array_like of int64, shape (paths + 1,)
            Where each path begins in ``run_first``.

        Raises
        ------
        ValueError
            If a run is empty, or the shapes do not fit.
        """
        from smetric_model.workload._tree_kernels import insert_paths

        root_nodes = np.ascontiguousarray(roots, dtype=np.int64)
        first = np.ascontiguousarray(run_first, dtype=np.int64)
        count = np.ascontiguousarray(run_count, dtype=np.int64)
        bounds = np.ascontiguousarray(offsets, dtype=np.int64)
        if first.shape != count.shape or bounds.shape != (root_nodes.size + 1,):
            raise ValueError("run_first and run_count, or roots and offsets, differ in length")
        if bounds[0] != 0 or bounds[-1] != first.size or (np.diff(bounds) < 0).any():
            raise ValueError("offsets do not divide the runs")
        if (count < 1).any():
            raise ValueError("a run of no blocks")
        if not root_nodes.size:
            return
        self._reserve(root_nodes.size, first.size)
        leaf = np.empty(root_nodes.size, np.int32)
        blocks = np.empty(root_nodes.size, np.int64)
        nodes, runs = self._nodes, self._runs
        insert_paths(
            root_nodes,
            bounds,
            first,
            count,
            nodes["parent"],
            nodes["start"],
            nodes["length"],
            nodes["head_run"],
            nodes["head_skip"],
            nodes["tail_run"],
            nodes["has_child"],
            runs["first"],
            runs["count"],
            runs["next"],
            *self._table,
            self._counters,
            leaf,
            blocks,
        )
        self._leaves.append(leaf)
        self._blocks.append(blocks)

    def build(self) -> PrefixTree:
        """Tree of all paths added so far, requests in the order in which they were added.

        Returns
        -------
        PrefixTree
        """
        from smetric_model.workload._tree_kernels import resolve_leaves, root_of

        nodes = int(self._counters[0])
        parent = self._nodes["parent"][:nodes]
        start = self._nodes["start"][:nodes]
        length = self._nodes["length"][:nodes]
        leaf = np.concatenate(self._leaves) if self._leaves else np.zeros(0, np.int32)
        blocks = np.concatenate(self._blocks) if self._blocks else np.zeros(0, np.int64)
        resolve_leaves(parent, start, leaf, blocks)
        # Parents first: roots, then by depth.  A child's depth exceeds its parent's unless the
        # parent is a root, whose length is zero.
        order = np.lexsort((start, parent >= 0))
        rank = np.empty(nodes, np.int32)
        rank[order] = np.arange(nodes, dtype=np.int32)
        new_parent = parent[order]
        new_parent = np.where(new_parent >= 0, rank[new_parent], -1).astype(np.int32)
        return PrefixTree(
            parent=new_parent,
            start_block=start[order],
            end_block=start[order] + length[order],
            root=root_of(new_parent),
            request_segment=rank[leaf],
            request_blocks=blocks,
        )
