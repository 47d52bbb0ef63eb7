"""What is run: points that differ in one thing, grouped by the trace that they share."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from smetric_model.reproduction.parameters import Experiments, Setup
from smetric_model.scenario import Scenario

__all__ = ["Group", "Point", "group_scenario", "groups", "point_scenario", "variant_text"]

#: keys of a scenario that change what arrives: points that differ there share no trace
_WORKLOAD_KEYS = ("workload.window_s", "workload.warmup_s", "workload.start")


@dataclass(frozen=True)
class Point:
    """One row of the result table, up to verb and seed.

    Attributes
    ----------
    study : str
        ``sweep``, ``router`` (sweeps of the router's keys) or ``sensitivity``.
    assumption, variant : str
        What differs from the main run, as in the sensitivity table; empty in a sweep.
    policy, tier : str
        Policy and name of the global tier.
    changes : tuple of (str, value)
        Keys of the scenario that differ.
    """

    study: str
    policy: str
    tier: str
    assumption: str = ""
    variant: str = ""
    changes: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Group:
    """Points that share a trace.

    Attributes
    ----------
    setup, preset : str
        Where and under which workload.
    load : float
        In multiples of 1.0x.
    rate_rps : float
        The same, of the cluster [requests/s].
    seed : int
        Of the trace.
    points : tuple of Point
        What is simulated on it.
    workload : tuple of (str, value)
        Keys that change what arrives, for all points.
    verb : str
        Who answers: ``simulate`` or ``predict``.
    """

    setup: str
    preset: str
    load: float
    rate_rps: float
    seed: int
    points: tuple[Point, ...] = field(repr=False)
    workload: tuple[tuple[str, Any], ...] = ()
    verb: str = "simulate"

    def row_keys(self) -> list[tuple[Any, ...]]:
        """Return what identifies each row of the group, as in the result table."""
        return [
            (
                self.setup,
                self.preset,
                point.study,
                point.assumption,
                point.variant,
                point.policy,
                point.tier,
                self.load,
                self.seed,
                self.verb,
            )
            for point in self.points
        ]


def variant_text(changes: dict[str, Any]) -> str:
    """Name of a variant: its keys and values.

    Parameters
    ----------
    changes : dict
        By dotted key.
    """
    return ", ".join(f"{key} = {value}" for key, value in changes.items())


def groups(parameters: Experiments, anchors: dict[str, dict[str, float]]) -> Iterator[Group]:
    """Yield the main run: load sweeps of all policies and tiers, and the router's keys.

    Parameters
    ----------
    parameters : Experiments
    anchors : dict of str to dict of str to float
        Rate at 1.0x by set-up and preset [requests/s].

    Yields
    ------
    Group
        First what most claims are about (two seeds, no tier and the full one, then the closed
        form), so that an interrupted run is of use; the rest seed by seed.  The closed form does
        not depend on the seed but through its trace: it answers for the first.
    """
    first, rest = parameters.seeds[:2], parameters.seeds[2:]
    ends = {name for name, size in parameters.tiers.items() if size in (0.0, "full")}
    between = set(parameters.tiers) - ends
    passes: list[tuple[str, tuple[int, ...], set[str]]] = [
        ("simulate", first, ends),
        ("predict", first[:1], ends),
        ("simulate", first, between),
        ("predict", first[:1], between),
        ("simulate", rest, set(parameters.tiers)),
    ]
    for verb, seeds, tiers in passes:
        for seed in seeds:
            for preset in parameters.presets:
                for setup, load in itertools.product(parameters.setups, parameters.loads):
                    points = _main_points(parameters, setup, load)
                    chosen = tuple(point for point in points if point.tier in tiers)
                    rate = load * anchors[setup.name][preset]
                    if chosen:
                        yield Group(setup.name, preset, load, rate, seed, chosen, verb=verb)


def _main_points(parameters: Experiments, setup: Setup, load: float) -> tuple[Point, ...]:
    points = [
        Point("sweep", policy, tier)
        for tier, size in parameters.tiers.items()
        for policy in setup.policies
        # the paper shows SMetric without its guards with the full tier only
        if policy != "smetric-basic" or size == "full"
    ]
    if load == parameters.operating:
        for key, values in parameters.router_sweeps.items():
            for value in values:
                if value != _value(setup.scenario, key):  # that one is in the sweep
                    change = {key: value}
                    points.append(
                        Point(
                            "router",
                            "smetric",
                            "full",
                            key,
                            variant_text(change),
                            tuple(change.items()),
                        )
                    )
    return tuple(points)


def sensitivity_groups(
    parameters: Experiments,
    anchors: dict[str, dict[str, float]],
    loads: tuple[float, ...],
    tiers: tuple[str, ...],
) -> Iterator[Group]:
    """Yield the sensitivity table: one assumption at a time, at the main run's rates.

    Parameters
    ----------
    parameters : Experiments
    anchors : dict
        As for :func:`groups`: 1.0x stays what it is.
    loads : tuple of float
        Loads at which they are run.
    tiers : tuple of str
        Global tiers, by name.

    Yields
    ------
    Group
    """
    for seed in parameters.seeds:
        for preset in parameters.presets:
            for setup in parameters.setups:
                for load in loads:
                    by_workload: dict[tuple[tuple[str, Any], ...], list[Point]] = {}
                    for assumption in parameters.assumptions:
                        for variant in assumption.variants:
                            arriving = tuple(
                                (key, value)
                                for key, value in variant.items()
                                if key.startswith("preset.") or key in _WORKLOAD_KEYS
                            )
                            rest = tuple(
                                (key, value)
                                for key, value in variant.items()
                                if (key, value) not in arriving
                            )
                            by_workload.setdefault(arriving, []).extend(
                                Point(
                                    "sensitivity",
                                    policy,
                                    tier,
                                    assumption.name,
                                    variant_text(variant),
                                    rest,
                                )
                                for tier in tiers
                                for policy in setup.policies
                            )
                    for workload, points in by_workload.items():
                        yield Group(
                            setup=setup.name,
                            preset=preset,
                            load=load,
                            rate_rps=load * anchors[setup.name][preset],
                            seed=seed,
                            points=tuple(points),
                            workload=workload,
                        )


def group_scenario(setup: Setup, group: Group) -> Scenario:
    """Scenario of a group's trace.

    Parameters
    ----------
    setup : Setup
    group : Group

    Returns
    -------
    Scenario
        Without the workload's own parameters (``preset.``), which no scenario holds.
    """
    changes = {key: value for key, value in group.workload if not key.startswith("preset.")}
    return setup.scenario.replace(
        **{
            "workload.trace": None,
            "workload.preset": group.preset,
            "workload.rate_rps": group.rate_rps,
            "seed": group.seed,
            **changes,
        }
    )


def point_scenario(
    setup: Setup, base: Scenario, point: Point, tiers: dict[str, float | str]
) -> Scenario:
    """Scenario of a point.

    Parameters
    ----------
    setup : Setup
    base : Scenario
        Of its group.
    point : Point
    tiers : dict of str to float or "full"
        Global tiers by name.

    Returns
    -------
    Scenario
    """
    return base.replace(
        **{
            "global_tier.bytes_per_node": setup.tier_bytes_per_node(tiers[point.tier]),
            "router.policy": point.policy,
            **dict(point.changes),
        }
    )


def _value(scenario: Scenario, key: str) -> Any:
    value: Any = scenario
    for part in key.split("."):
        value = getattr(value, part)
    return math.inf if value is None else value
