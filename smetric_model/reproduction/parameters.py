"""Free parameters of the paper's experiments: ``data/reproduction.toml``, resolved."""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from smetric_model.errors import SpecError
from smetric_model.scenario import Scenario

__all__ = ["Assumption", "Experiments", "Setup", "load_parameters"]


@dataclass(frozen=True)
class Assumption:
    """One assumption of the sensitivity table.

    Attributes
    ----------
    name : str
        What it is about.
    variants : tuple of dict
        Keys of the scenario (or, after ``preset.``, of the workload's parameters) and the values
        that replace those of the main run; one dict a variant.
    """

    name: str
    variants: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Setup:
    """One cluster of the paper's evaluation.

    Attributes
    ----------
    name, description : str
        What it is called, and where the paper shows it.
    goodput : str
        Column of an outcome that is its tokens within SLO.
    policies : tuple of str
        Compared on it; SMetric first.
    scenario : Scenario
        With the full global tier; workload and seed still to be set.
    """

    name: str
    description: str
    goodput: str
    policies: tuple[str, ...]
    scenario: Scenario

    @property
    def full_tier_bytes(self) -> float:
        """Global tier at its largest: the DRAM of the nodes that the router serves [bytes]."""
        cluster = self.scenario.cluster
        if cluster.serving == "colocated":
            return cluster.dram_bytes_per_node * self._nodes(cluster.instances)
        # the paper's testbed is the prefill pool; the decode pool stands for clients
        return cluster.dram_bytes_per_node * self._nodes(cluster.prefill_instances or 0)

    @cached_property
    def local_tier_bytes(self) -> float:
        """KV pools of all instances that the router serves [bytes]."""
        from smetric_model.analytic.demand import instance_of
        from smetric_model.analytic.memory import local_tier

        cluster = self.scenario.cluster
        return local_tier(instance_of(self.scenario)).bytes * float(
            cluster.prefill_instances or cluster.instances
        )

    def _nodes(self, instances: int) -> int:
        per_node = self.scenario.cluster.gpus_per_node // self.scenario.engine.tp
        return -(-instances // per_node)

    def tier_bytes_per_node(self, tier: float | str) -> float:
        """Return what each node holds of a global tier.

        Parameters
        ----------
        tier : float or "full"
            Size in multiples of the local tier, or all of the testbed's DRAM.

        Returns
        -------
        float
            Spread over all nodes of the scenario, those of a decode pool included [bytes].
        """
        total = self.full_tier_bytes
        if tier != "full":
            total = min(float(tier) * self.local_tier_bytes, total)
        return total / self._nodes(self.scenario.cluster.instances)


@dataclass(frozen=True)
class Experiments:
    """Everything that ``reproduce`` runs, and with which values.

    Attributes
    ----------
    presets : tuple of str
        Workloads, each a reproduction of its own.
    seeds : tuple of int
        Traces, the same for all policies.
    setups : tuple of Setup
        Clusters.
    loads : tuple of float
        Offered load, in multiples of 1.0x.
    anchor : float
        Load at which SMetric's goodput with the full tier peaks: what fixes 1.0x.
    anchor_coarse_ratio, anchor_fine_ratio : float
        Steps of the search for that peak.
    operating : float
        Load of figures that name none.
    tiers : dict of str to float or "full"
        Global tiers by name, as multiples of the local tier.
    router_sweeps : dict of str to tuple
        Values of the router's keys that the paper sweeps.
    assumptions : tuple of Assumption
        The sensitivity table.
    """

    presets: tuple[str, ...]
    seeds: tuple[int, ...]
    setups: tuple[Setup, ...]
    loads: tuple[float, ...]
    anchor: float
    anchor_coarse_ratio: float
    anchor_fine_ratio: float
    operating: float
    tiers: dict[str, float | str]
    router_sweeps: dict[str, tuple[float, ...]]
    assumptions: tuple[Assumption, ...]

    def setup(self, name: str) -> Setup:
        """Return a set-up by name.

        Parameters
        ----------
        name : str

        Raises
        ------
        SpecError
            If there is none.
        """
        for setup in self.setups:
            if setup.name == name:
                return setup
        names = ", ".join(setup.name for setup in self.setups)
        raise SpecError(f"setup = {name!r}: one of {names} is needed")

    def only(
        self, presets: tuple[str, ...] = (), setups: tuple[str, ...] = (), quick: bool = False
    ) -> Experiments:
        """Leave out presets, set-ups, or most of the work.

        Parameters
        ----------
        presets, setups : tuple of str
            Those to keep; empty: all (quick: the medium preset).
        quick : bool, default False
            Two seeds, seven loads, no tier and the full one, and no sweeps of the router's keys.

        Returns
        -------
        Experiments

        Raises
        ------
        SpecError
            For an unknown name.
        """
        unknown = [preset for preset in presets if preset not in self.presets]
        if unknown:
            raise SpecError(f"preset = {unknown[0]!r}: one of {', '.join(self.presets)} is needed")
        kept = tuple(self.setup(name) for name in setups) or self.setups
        if not quick:
            return dataclasses.replace(self, presets=presets or self.presets, setups=kept)
        medium = tuple(name for name in self.presets if name.endswith("-medium"))
        return dataclasses.replace(
            self,
            presets=presets or medium or self.presets[:1],
            setups=kept,
            seeds=self.seeds[:2],
            loads=tuple(load for load in self.loads if load in _QUICK_LOADS),
            tiers={name: size for name, size in self.tiers.items() if size in (0.0, "full")},
            router_sweeps={},
        )


_QUICK_LOADS = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)


def load_parameters(path: str | Path | None = None) -> Experiments:
    """Read the parameters.

    Parameters
    ----------
    path : str or Path, optional
        Another file than the shipped ``data/reproduction.toml``.

    Returns
    -------
    Experiments

    Raises
    ------
    SpecError
        If the file is not as it should be.
    """
    from smetric_model.datafiles import data_dir

    file = Path(path) if path is not None else data_dir() / "reproduction.toml"
    try:
        content = tomllib.loads(file.read_bytes().decode())
        load, tiers = content["load"], dict(content["tiers"])
        tiers.pop("reason")
        common = _values(content["scenario"])
        return Experiments(
            presets=tuple(content["presets"]),
            seeds=tuple(content["seeds"]),
            setups=tuple(
                _setup(name, table, common, content["policies"])
                for name, table in content["setups"].items()
            ),
            loads=tuple(load["grid"]),
            anchor=load["anchor"],
            anchor_coarse_ratio=load["anchor_coarse_ratio"],
            anchor_fine_ratio=load["anchor_fine_ratio"],
            operating=load["operating"],
            tiers=tiers,
            router_sweeps={key: tuple(v) for key, v in content["router_sweeps"].items()},
            assumptions=tuple(
                Assumption(entry["name"], tuple(_flat(variant) for variant in entry["values"]))
                for entry in content["sensitivity"]
            ),
        )
    except FileNotFoundError:
        raise SpecError(f"{file}: no such file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SpecError(f"{file}: {error}") from None
    except KeyError as error:
        raise SpecError(f"{file}: the key {error} is missing") from None


def _values(table: dict[str, Any]) -> dict[str, Any]:
    return {key: entry["value"] for key, entry in table.items()}


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys of nested tables (a TOML file may write either)."""
    result: dict[str, Any] = {}
    for key, value in table.items():
        inner = value if isinstance(value, dict) else None
        result |= _flat(inner, f"{prefix}{key}.") if inner is not None else {prefix + key: value}
    return result


def _setup(name: str, table: dict[str, Any], common: dict[str, Any], policies: list[str]) -> Setup:
    replaced = table.get("replace_policies", {})
    keys = {"name": name, **common, **_values(table["scenario"])}
    if keys.get("cluster.serving") == "disaggregated":
        keys["cluster.instances"] = None
    setup = Setup(
        name=name,
        description=table["description"],
        goodput=table["goodput"],
        policies=tuple(replaced.get(policy, policy) for policy in policies),
        scenario=Scenario().replace(**keys),
    )
    full = setup.tier_bytes_per_node("full")
    return dataclasses.replace(
        setup, scenario=setup.scenario.replace(**{"global_tier.bytes_per_node": full})
    )
