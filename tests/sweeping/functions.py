"""Verbs of the tests, at the top of a module, so that they can be sent to other processes."""

from __future__ import annotations

import os
import time

from smetric_model.errors import UnstableError


def slow_first(scenario):
    """The first points take longest, so that they finish last."""
    time.sleep(0.3 / scenario.cluster.instances)
    return {"twice": 2.0 * scenario.cluster.instances, "label": scenario.router.policy}


def breaks_at_two(scenario):
    count = scenario.cluster.instances
    if count == 2:
        raise KeyError("two")
    if count == 3:
        raise UnstableError("compute saturates", resource="compute")
    if count == 4:
        return [1]
    return {"count": count, "infinite": float("inf"), "missing": float("nan")}


def dies_at_two(scenario):
    if scenario.cluster.instances == 2:
        os._exit(3)
    return {"count": scenario.cluster.instances}


def dies_late(scenario):
    """Points so quick that many are sent at once, of which one is fatal."""
    count = scenario.cluster.instances
    if count == 57:
        os._exit(3)
    return {"count": count, "process": os.getpid()}
