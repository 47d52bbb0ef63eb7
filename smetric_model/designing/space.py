"""Which designs of a cluster a plan compares: a space of scenario keys, and what is in it."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smetric_model.analytic.demand import instance_of
from smetric_model.catalog.gpu import get_gpu
from smetric_model.catalog.llm import get_llm
from smetric_model.designing.names import design_name
from smetric_model.errors import SpecError
from smetric_model.scenario import Scenario
from smetric_model.sweeping.design import check_keys

__all__ = ["GIVEN", "PREFILL_SHARE", "Design", "DesignSpace", "default_space", "read_space"]

#: name of the scenario's own design
GIVEN = "as given"
#: the one axis that is no key of a scenario: share of the instances that prefill, 0 for colocated
PREFILL_SHARE = "prefill_share"
#: designs that one plan compares at most
MOST_DESIGNS = 5_000
#: instances among which a prefill share is kept to within a per cent
_PARTS = 100


@dataclass(frozen=True)
class Design:
    """One cluster to look at.

    Attributes
    ----------
    name : str
        What reports call it; unique in its plan.
    changes : tuple of (str, value)
        Keys of the space in which it differs from the given scenario.
    scenario : Scenario or None
        The question; its instances are where a search begins. None where keys contradict
        each other or the LLM does not fit.
    error : str
        Then why.
    """

    name: str
    changes: tuple[tuple[str, Any], ...]
    scenario: Scenario | None
    error: str = ""


@dataclass(frozen=True)
class DesignSpace:
    """Values of scenario keys that a plan combines.

    Attributes
    ----------
    axes : mapping of str to tuple
        Values by dotted key, all combinations; ``prefill_share`` splits the instances into two
        pools (0: colocated).  The scenario's own design is always among those compared.
    beside : tuple of mapping of str to value
        Single designs beside the combinations.

    Raises
    ------
    SpecError
        If a key is unknown, a list empty, or a value stands twice.
    """

    axes: Mapping[str, tuple[Any, ...]]
    beside: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        for key, values in self.axes.items():
            if not values:
                raise SpecError(f"space: {key} has no values")
            if len(set(map(repr, values))) < len(values):
                raise SpecError(f"space: {key}: a value stands twice in {list(values)}")
            for value in values:
                if not isinstance(value, str | int | float | bool):
                    raise SpecError(f"space: {key} = {value!r}: numbers, texts, booleans only")
        keys = [*self.axes, *(key for design in self.beside for key in design)]
        _check(keys)
        for key, find in (("engine.gpu", get_gpu), ("llm.name", get_llm)):
            for name in self.axes.get(key, ()):
                if isinstance(name, str) and not name.endswith((".toml", ".json")):
                    find(name)  # a file lies beside the scenario, which is not known here
        shares = [*self.axes.get(PREFILL_SHARE, ())]
        shares += [design[PREFILL_SHARE] for design in self.beside if PREFILL_SHARE in design]
        for share in shares:
            if isinstance(share, bool | str) or not 0 <= share < 1:
                raise SpecError(
                    f"space: {PREFILL_SHARE} = {share!r}: a share of the instances in [0, 1) is"
                    " needed; 0 for colocated"
                )
        if self.size > MOST_DESIGNS:
            raise SpecError(
                f"space: {self.size:,} combinations; {MOST_DESIGNS:,} at most. Fewer values, or"
                " several plans"
            )

    @property
    def size(self) -> int:
        """Designs in the space, the scenario's own not counted."""
        product = 1
        for values in self.axes.values():
            product *= len(values)
        return (product if self.axes else 0) + len(self.beside)

    def designs(self, scenario: Scenario) -> list[Design]:
        """List the designs, the scenario's own first, none twice.

        Parameters
        ----------
        scenario : Scenario
            What is varied.

        Returns
        -------
        list of Design
            Also those that cannot be, with the reason.

        Raises
        ------
        SpecError
            If a value is wrong by itself.
        """
        instance_of(scenario)  # what was asked first must be possible
        found = [Design(GIVEN, (), scenario)]
        seen = {scenario.scenario_id}
        names = {GIVEN}
        combinations: Iterable[Mapping[str, Any]] = (
            dict(zip(self.axes, values, strict=True))
            for values in itertools.product(*self.axes.values())
        )
        if not self.axes:
            combinations = ()
        for values in itertools.chain(combinations, self.beside):
            design = _design(scenario, values, names)
            key = design.name if design.scenario is None else design.scenario.scenario_id
            if key in seen:
                continue
            seen.add(key)
            names.add(design.name)
            found.append(design)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Axes and single designs as plain values."""
        return {
            "axes": {key: list(values) for key, values in self.axes.items()},
            "beside": [dict(design) for design in self.beside],
        }


def _check(keys: Iterable[str]) -> None:
    wanted = [key for key in dict.fromkeys(keys) if key != PREFILL_SHARE]
    if "cluster.serving" in wanted:
        raise SpecError(
            f"space: cluster.serving is not an axis; {PREFILL_SHARE} is (0 for colocated, 0.25 for"
            " a quarter of the instances in a prefill pool)"
        )
    for key in ("name", "workload.rate_rps", "cluster.prefill_instances"):
        if key in wanted:
            raise SpecError(f"space: {key} is no part of a design")
    try:
        check_keys(wanted)
    except SpecError as error:
        raise SpecError(str(error).replace("sweep: ", "space: ")) from None


def _design(scenario: Scenario, values: Mapping[str, Any], names: set[str]) -> Design:
    given = scenario.to_dict()
    changes = tuple(
        (key, value) for key, value in values.items() if not _is_given(given, key, value)
    )
    name = design_name(changes) or GIVEN
    while name in names and name != GIVEN:
        name += "'"
    try:
        made = scenario.replace(**_keys(scenario, dict(changes)))
    except SpecError as error:
        _raise_if_wrong_by_itself(error, changes)
        return Design(name, changes, None, str(error))
    _resolve_files(made, changes)
    try:
        instance = instance_of(made)
    except SpecError as error:
        _raise_if_wrong_by_itself(error, changes)
        return Design(name, changes, None, str(error))
    if instance.engine_refusal and name != GIVEN:
        return Design(name, changes, None, instance.engine_refusal)
    return Design(name, changes, made)


def _resolve_files(scenario: Scenario, changes: tuple[tuple[str, Any], ...]) -> None:
    """Read the files that a design names: what is wrong with one is a mistake of the space."""
    found: dict[str, Callable[[], Any]] = {
        "engine.gpu": lambda: get_gpu(scenario.gpu_name()),
        "llm.name": lambda: get_llm(str(scenario.llm_config_path() or scenario.llm.name)),
        "workload.trace": scenario.trace_path,
    }
    for key, _ in changes:
        try:
            found.get(key, lambda: None)()
        except SpecError as error:
            raise SpecError(f"space: {error}") from None


def _raise_if_wrong_by_itself(error: SpecError, changes: tuple[tuple[str, Any], ...]) -> None:
    """Raise where a value is not allowed in any scenario: a mistake of the space."""
    for key, _ in changes:
        if f"{key} = " in str(error) and ": allowed is" in str(error):
            raise SpecError(f"space: {error}") from None


def _is_given(given: Mapping[str, Any], key: str, value: Any) -> bool:
    section, _, inner = key.partition(".")
    if key == PREFILL_SHARE:
        return bool(value == 0) and given["cluster"]["serving"] == "colocated"
    held = given.get(section) if not inner else given.get(section, {}).get(inner)
    return bool(held == value) and held is not None


def _keys(scenario: Scenario, changes: dict[str, Any]) -> dict[str, Any]:
    """Keys of a scenario that make a design; a larger tier takes the memory it needs."""
    keys = dict(changes)
    share = keys.pop(PREFILL_SHARE, None)
    if share is not None and share > 0:
        prefill = min(max(round(share * _PARTS), 1), _PARTS - 1)
        keys |= {
            "cluster.serving": "disaggregated",
            "cluster.instances": _PARTS,
            "cluster.prefill_instances": prefill,
            "cluster.decode_instances": _PARTS - prefill,
        }
    elif share is not None:
        keys |= {
            "cluster.serving": "colocated",
            "cluster.prefill_instances": None,
            "cluster.decode_instances": None,
        }
    tier = keys.get("global_tier.bytes_per_node")
    memory = keys.get("cluster.dram_bytes_per_node", scenario.cluster.dram_bytes_per_node)
    if isinstance(tier, int | float) and "cluster.dram_bytes_per_node" not in keys:
        keys["cluster.dram_bytes_per_node"] = max(float(tier), float(memory))
    for key in ("global_tier.bytes_per_node", "cluster.nic_bytes_per_s"):
        if isinstance(keys.get(key), int):
            keys[key] = float(keys[key])
    return keys


def read_space(path: str | Path) -> DesignSpace:
    """Read the ``[space]`` table of a TOML file.

    Parameters
    ----------
    path : str or Path
        Keys may be dotted, or stand in tables: ``[space.global_tier]``.

    Returns
    -------
    DesignSpace

    Raises
    ------
    SpecError
        If there is no such table, or a key or value is wrong.
    """
    table = read_table(path, "space")
    axes: dict[str, tuple[Any, ...]] = {}
    for key, values in _flat(table):
        if not isinstance(values, list):
            raise SpecError(f"{path}: space: {key} = {values!r}: a list of values is needed")
        axes[key] = tuple(values)
    try:
        return DesignSpace(axes)
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None


def read_table(path: str | Path, name: str) -> dict[str, Any]:
    """Return one table of a TOML file.

    Parameters
    ----------
    path : str or Path
    name : str
        Of the table.

    Raises
    ------
    SpecError
        If the file cannot be read, is no TOML, or has no such table.
    """
    try:
        content = tomllib.loads(Path(path).read_bytes().decode())
    except FileNotFoundError:
        raise SpecError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise SpecError(f"{path}: cannot be read: {reason}") from None
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path}: no TOML: {error}") from None
    table = content.get(name)
    if not isinstance(table, dict):
        has = ", ".join(f"[{key}]" for key in content) or "nothing"
        raise SpecError(f"{path}: a table [{name}] is needed; the file has {has}")
    return table


def _flat(table: Mapping[str, Any], above: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def default_space(scenario: Scenario, thresholds: tuple[float, float] | None = None) -> DesignSpace:
    """Return the designs that are compared when none are asked for.

    Global tier none, half, as given and double, each with half, the given and double the line
    rate; and the other policies on the given hardware.

    Parameters
    ----------
    scenario : Scenario
        The question.
    thresholds : (float, float), optional
        OVERLOAD and HIT_RATIO of ``tune``, a design of their own where they are not the given ones.

    Returns
    -------
    DesignSpace
    """
    tier = scenario.global_tier.bytes_per_node
    line = scenario.cluster.nic_bytes_per_s
    axes: dict[str, tuple[Any, ...]] = {}
    sizes = (0.0, tier / 2, tier, 2 * tier) if tier > 0 else (0.0, 500e9, 1000e9)
    axes["global_tier.bytes_per_node"] = sizes
    axes["cluster.nic_bytes_per_s"] = (line / 2, line, 2 * line)
    beside: list[dict[str, Any]] = [
        {"router.policy": policy} for policy in _COMPARED if policy != scenario.router.policy
    ]
    if thresholds is not None:
        overload, hit_ratio = thresholds
        router = scenario.router
        same = (router.overload, router.hit_ratio) == (overload, hit_ratio)
        if router.policy == "smetric" and not same:
            beside.insert(0, {"router.overload": overload, "router.hit_ratio": hit_ratio})
    return DesignSpace(axes, tuple(beside))


#: policies that a plan compares with by default
_COMPARED = ("smetric", "bailian", "lmetric", "load-balance")
