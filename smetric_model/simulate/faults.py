"""Failures as a simulation reads them: what happens to which instance or node, and when."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smetric_model.errors import SpecError
from smetric_model.simulate._jit import jit
from smetric_model.simulate.steps import to_ticks

if TYPE_CHECKING:
    from smetric_model.scenario import Scenario

__all__ = [
    "DOWN",
    "HIDDEN",
    "NODE_BACK",
    "NODE_LOST",
    "SEEN",
    "UP",
    "Faults",
    "fault_rows",
    "faults_of",
    "lies_on",
]

#: What happens: an instance fails, or is back; the routers stop to send to it, or begin again; a
#: node's share of the global tier is lost, or can be filled again.
DOWN, UP, HIDDEN, SEEN, NODE_LOST, NODE_BACK = range(6)

IntArray = NDArray[np.int64]


class Faults(NamedTuple):
    """What happens in order of time; arrays of shape (faults,).

    ``what`` is one of the numbers above, ``where`` an instance or a node.
    """

    tick: IntArray
    what: IntArray
    where: IntArray

    @classmethod
    def none(cls) -> Faults:
        """Nothing fails."""
        return cls(*(np.zeros(0, np.int64) for _ in cls._fields))

    @classmethod
    def of(cls, rows: list[tuple[int, int, int]]) -> Faults:
        """Faults of (tick, what, where) in any order; those of a moment stay as they are."""
        rows = sorted(rows, key=lambda row: row[0])
        table = np.array(rows, dtype=np.int64).reshape(-1, 3)
        return cls(*(np.ascontiguousarray(column) for column in table.T))


def fault_rows(
    instances: list[int], at: int, down: int, detection: int, node: int = -1, drain: int = 0
) -> list[tuple[int, int, int]]:
    """List what happens when instances fail together.

    Parameters
    ----------
    instances : list of int
        Those that fail.
    at, down : int
        When, and for how long (−1: for ever) [ticks].
    detection : int
        Time after which the routers know that they failed, or are back [ticks].
    node : int, optional
        Node whose share of the global tier is lost; −1 for none.
    drain : int, optional
        For how long before they go the routers, who know of it, send them nothing new [ticks].

    Returns
    -------
    list of (int, int, int)
        Rows of :class:`Faults`.
    """
    rows = [(at, DOWN, instance) for instance in instances]
    if node >= 0:
        rows.append((at, NODE_LOST, node))
    if down >= 0:
        rows += [(at + down, UP, instance) for instance in instances]
        if node >= 0:
            rows.append((at + down, NODE_BACK, node))
    if drain > 0 or down < 0 or down > detection:  # a shorter failure goes unnoticed
        known = max(at - drain, 0) if drain > 0 else at + detection
        rows += [(known, HIDDEN, instance) for instance in instances]
        if down >= 0:
            rows += [(at + down + detection, SEEN, instance) for instance in instances]
    return rows


def faults_of(scenario: Scenario, node_of: IntArray) -> Faults:
    """Work out what happens when.

    Parameters
    ----------
    scenario : Scenario
        Its ``failures`` and ``router.detection_s``.
    node_of : ndarray of int64, shape (instances,)
        Node of each instance; nodes have as many numbers as there are.

    Returns
    -------
    Faults

    Raises
    ------
    SpecError
        If there is no such instance or node, or one fails that is down, or not yet known to be
        back.
    """
    detection = to_ticks(scenario.router.detection_s)
    instances, nodes = node_of.size, int(node_of[-1]) + 1
    rows: list[tuple[int, int, int]] = []
    spans: dict[int, list[tuple[float, float, int]]] = {}
    lost: dict[int, list[tuple[float, float, int]]] = {}
    for number, failure in enumerate(scenario.failures):
        what, most, where = "instance", instances, failure.instance
        for other in ("node", "store"):
            if getattr(failure, other) is not None:
                what, most, where = other, nodes, getattr(failure, other)
        assert where is not None  # the section has one of them
        if where >= most:
            raise SpecError(
                f"failures[{number}].{what} = {where}: the cluster has {most}, counted from 0"
            )
        failing, node = [where], -1
        if what == "node":
            node, failing = where, np.flatnonzero(node_of == where).tolist()
        elif what == "store":
            failing, node = [], where
        endless = math.isinf(failure.down_s)
        down = -1 if endless else to_ticks(failure.down_s)
        drain = to_ticks(failure.drain_s)
        rows += fault_rows(failing, to_ticks(failure.at_s), down, detection, node, drain)
        until = failure.at_s + failure.down_s + scenario.router.detection_s
        for instance in failing:
            begins = max(failure.at_s - failure.drain_s, 0.0)
            spans.setdefault(instance, []).append((begins, until, number))
        if node >= 0:
            lost.setdefault(node, []).append((failure.at_s, failure.at_s + failure.down_s, number))
    for instance, listed in spans.items():
        listed.sort()
        for (_, until, one), (at, _, two) in pairwise(listed):
            if at < until:
                raise SpecError(
                    f"failures[{two}].at_s = {scenario.failures[two].at_s:g}: instance {instance}"
                    f" is down, or not yet known to be back, until {until:g} s"
                    f" (failures[{one}]); it goes, or begins to drain, at {at:g} s"
                )
    for node, listed in lost.items():
        listed.sort()
        for (_, until, one), (at, _, two) in pairwise(listed):
            if at < until:
                raise SpecError(
                    f"failures[{two}].at_s = {at:g}: the store of node {node} is lost until"
                    f" {until:g} s (failures[{one}])"
                )
    return Faults.of(rows)


@jit
def lies_on(block: int, nodes: int) -> int:
    """Node on which a block of the global tier lies: spread evenly, without a pattern."""
    mixed = np.uint64(block) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(32)
    return int(mixed % np.uint64(nodes))
