"""What a clairvoyant or session-aware tier knows beforehand: next uses, and sessions."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from smetric_model.simulate.nodes import Nodes

__all__ = ["next_uses", "session_roots"]


def session_roots(previous: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the first row of each request's session.

    Parameters
    ----------
    previous : ndarray of int64, shape (requests,)
        Row of the turn before, which stands before it; −1 for none.
    """
    root = np.empty(previous.size, np.int32)
    _roots(previous, root)
    return root


def next_uses(nodes: Nodes) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return which requests use each node.

    Parameters
    ----------
    nodes : Nodes
        Rows in order of the trace's arrivals.

    Returns
    -------
    first : ndarray of int64, shape (nodes + 1,)
        Where each node's uses begin.
    uses : ndarray of int32
        Rows, in order.
    """
    first = np.zeros(nodes.parent.size + 1, np.int64)
    _count_uses(nodes.parent, nodes.leaf, first)
    np.cumsum(first, out=first)
    uses = np.empty(int(first[-1]), np.int32)
    _list_uses(nodes.parent, nodes.leaf, first[:-1].copy(), uses)
    return first, uses


@njit(cache=True)
def _roots(previous, root):  # type: ignore[no-untyped-def]
    for row in range(previous.size):
        root[row] = row if previous[row] < 0 else root[previous[row]]


@njit(cache=True)
def _count_uses(parent, leaf, first):  # type: ignore[no-untyped-def]
    for row in range(leaf.size):
        node = leaf[row]
        while node >= 0:
            first[node + 1] += 1
            node = parent[node]


@njit(cache=True)
def _list_uses(parent, leaf, at, uses):  # type: ignore[no-untyped-def]
    for row in range(leaf.size):
        node = leaf[row]
        while node >= 0:
            uses[at[node]] = row
            at[node] += 1
            node = parent[node]
