"""Scenario: the one input that every verb reads.

A scenario says which LLM runs on which engines, on which cluster, with which KV tiers, under
which workload, client, router and SLO.  It is immutable: :meth:`Scenario.replace` makes another.
The same content stands in a TOML file (:meth:`Scenario.from_toml`, :meth:`Scenario.to_toml`).
Names (LLM, GPU, engine, preset) are kept as written; the catalog resolves them.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PrivateAttr, field_validator, model_validator

from smetric_model._scenario_text import toml_position
from smetric_model.datafiles import data_dir
from smetric_model.errors import SpecError
from smetric_model.scenario_groups import GroupSection
from smetric_model.scenario_sections import (
    ClientSection,
    ClusterSection,
    Dtype,
    EngineSection,
    FailureSection,
    GlobalTierSection,
    LlmSection,
    LocalTierSection,
    Name,
    Policy,
    RouterSection,
    SloSection,
    Spec,
    WorkloadSection,
)

__all__ = [
    "ClientSection",
    "ClusterSection",
    "Dtype",
    "EngineSection",
    "FailureSection",
    "GlobalTierSection",
    "GroupSection",
    "LlmSection",
    "LocalTierSection",
    "Policy",
    "RouterSection",
    "Scenario",
    "SloSection",
    "WorkloadSection",
]


class Scenario(Spec):
    """LLM, engines, cluster, KV tiers, workload, client, router and SLO: one question.

    Keys left out take their defaults; unknown keys are errors.  ``docs/scenario.md`` lists every
    key with unit, default and allowed values.

    Raises
    ------
    SpecError
        If a key is unknown, a value not allowed, or two values contradict each other; one line
        a problem, with dotted key, value and what is allowed.

    Examples
    --------
    >>> from smetric_model import Scenario
    >>> scenario = Scenario.from_toml("data/scenarios/agents-small.toml")
    >>> scenario.cluster.instances, scenario.slo.tpot_s
    (32, 0.03)
    >>> scenario.replace(**{"cluster.instances": 0})
    Traceback (most recent call last):
    smetric_model.errors.SpecError: cluster.instances = 0: allowed is integer >= 1
    """

    name: Name = Field("colocated-30b", description="What reports call the scenario.")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(0, description="Seed of everything random.")
    llm: LlmSection = LlmSection()
    engine: EngineSection = EngineSection()
    cluster: ClusterSection = ClusterSection()
    local_tier: LocalTierSection = LocalTierSection()
    global_tier: GlobalTierSection = GlobalTierSection()
    workload: WorkloadSection = WorkloadSection()
    client: ClientSection = ClientSection()
    router: RouterSection = RouterSection()
    slo: SloSection = SloSection()
    groups: tuple[GroupSection, ...] = ()
    failures: tuple[FailureSection, ...] = ()

    #: folder of the scenario's file, against which relative paths resolve; no part of the content
    _folder: Path | None = PrivateAttr(None)

    @field_validator("groups", "failures", mode="before")
    @classmethod
    def _frozen(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="before")
    @classmethod
    def _sum_groups(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not data.get("groups"):
            return data
        cluster = data.get("cluster", {})
        listed = data["groups"] if isinstance(data["groups"], list | tuple) else []
        counts = [_count(group) for group in listed]
        said = not isinstance(cluster, dict) or {"instances", "prefill_instances"} & set(cluster)
        if not said and min(counts, default=0):
            return {**data, "cluster": {**cluster, "instances": sum(counts)}}
        return data

    @model_validator(mode="after")
    def _check(self) -> Scenario:
        tp, gpus = self.engine.tp, self.cluster.gpus_per_node
        if tp > gpus and tp % gpus:
            raise ValueError(
                f"engine.tp = {tp} exceeds cluster.gpus_per_node = {gpus} and is no multiple of it:"
                " an instance larger than a node takes whole nodes"
            )
        self._check_groups()
        tier, dram = self.global_tier.bytes_per_node, self.cluster.dram_bytes_per_node
        if tier > dram:
            raise ValueError(
                f"global_tier.bytes_per_node = {tier:g} exceeds"
                f" cluster.dram_bytes_per_node = {dram:g}"
            )
        return self

    def _check_groups(self) -> None:
        total = sum(group.instances for group in self.groups)
        if self.groups and total != self.cluster.instances:
            raise ValueError(
                f"the groups have {total} instances, cluster.instances = {self.cluster.instances}:"
                " they must be as many (or leave cluster.instances out)"
            )
        for number, group in enumerate(self.groups):
            try:
                self.replace(**group.changes())
            except SpecError as error:
                raise ValueError(f"groups[{number}]: {error}") from None

    def by_group(self) -> tuple[Scenario, ...]:
        """Return a scenario of each group's instances alone.

        Returns
        -------
        tuple of Scenario
            Colocated and without groups; this one alone where instances are equal.
        """
        if not self.groups:
            return (self,)
        return tuple(self.replace(**group.changes()) for group in self.groups)

    def __eq__(self, other: object) -> bool:
        # By content: where the file lay makes no difference.
        return isinstance(other, Scenario) and self.to_dict() == other.to_dict()

    @classmethod
    def from_toml(cls, path: str | Path) -> Scenario:
        """Read a scenario file.

        Parameters
        ----------
        path : str or Path

        Returns
        -------
        Scenario

        Raises
        ------
        SpecError
            If the file is missing or no TOML (with the line), or its content is wrong.
        """
        path = Path(path)
        try:
            content = tomllib.loads(path.read_bytes().decode())
        except FileNotFoundError:
            raise SpecError(f"{path}: no such scenario file") from None
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise SpecError(f"{path}: cannot be read as a scenario: {reason}") from None
        except tomllib.TOMLDecodeError as error:
            raise SpecError(f"{path}{toml_position(error)}") from None
        try:
            scenario = cls.from_dict(content)
        except SpecError as error:
            raise SpecError(
                "\n".join(f"{path}: {line}" for line in str(error).split("\n"))
            ) from None
        scenario._folder = path.resolve().parent
        return scenario

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Scenario:
        """Scenario of nested dicts, shaped as the TOML file.

        Parameters
        ----------
        content : mapping
            ``name``, ``seed`` and sections; None stands for a key left out.

        Returns
        -------
        Scenario

        Raises
        ------
        SpecError
            See :class:`Scenario`.
        """
        return cls(**{str(key): value for key, value in content.items()})

    def to_dict(self) -> dict[str, Any]:
        """Whole content as nested dicts, defaults filled in.

        Returns
        -------
        dict
            In the order of the example file; keys without a value are left out.
        """
        content = self.model_dump(exclude_none=True)
        listed = {name: list(content.pop(name)) for name in ("groups", "failures")}
        return {**content, **{name: tables for name, tables in listed.items() if tables}}

    def to_toml(self) -> str:
        """Whole content as a scenario file, defaults filled in.

        Returns
        -------
        str
            TOML.  Relative paths stay relative to where this scenario came from.
        """
        import tomli_w

        return tomli_w.dumps(self.to_dict())

    def replace(self, **changes: Any) -> Scenario:
        """Make another scenario with some keys changed.

        Parameters
        ----------
        **changes
            By dotted key, ``scenario.replace(**{"cluster.instances": 16})``; None takes a key
            out, so that it has its default.  A section's name replaces the whole section.  With
            other groups there are as many instances as they have.

        Returns
        -------
        Scenario

        Raises
        ------
        SpecError
            See :class:`Scenario`.
        """
        content = self.to_dict()
        if changes.get("groups"):
            changes = {"cluster.instances": None, **changes}
        for dotted, value in changes.items():
            section, _, key = dotted.partition(".")
            if not key:
                content[section] = value
            else:
                # An unknown section is made, so that the check can name it.
                table = content.setdefault(section, {})
                if not isinstance(table, dict):
                    raise SpecError(f"{dotted} = {value!r}: {section} has no keys")
                table[key] = value
        scenario = type(self).from_dict(content)
        scenario._folder = self._folder
        return scenario

    @property
    def scenario_id(self) -> str:
        """Hash of the content, the same on every machine; ``name`` is no part of it.

        Twelve hexadecimal digits of the SHA-256 of all keys with their values, defaults filled
        in.  The trace counts by its path as written, not by what the file holds.
        """
        content = {key: value for key, value in self.to_dict().items() if key != "name"}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def trace_path(self) -> Path:
        """Where the trace file, or the folder of its files, lies.

        Returns
        -------
        Path
            ``workload.trace`` if absolute; else the first that exists beside the scenario file
            (without one: in the current directory) or in the package's data.

        Raises
        ------
        SpecError
            If there is no such file (lists where it was looked for), or the workload is a preset.
        """
        if self.workload.trace is None:
            raise SpecError(
                f"workload.preset = {self.workload.preset!r}: a preset has no trace file, and is "
                "not drawn yet; give workload.trace"
            )
        return self._find("workload.trace", self.workload.trace, folder_too=True)

    def llm_config_path(self) -> Path | None:
        """Where the model's ``config.json`` lies, if ``llm.name`` is a path.

        Returns
        -------
        Path or None
            None if ``llm.name`` is a catalog name (does not end in ``.json``); else found as
            :meth:`trace_path` is.

        Raises
        ------
        SpecError
            If there is no such file.
        """
        if not self.llm.name.endswith(".json"):
            return None
        return self._find("llm.name", self.llm.name)

    def gpu_name(self) -> str:
        """Name under which the catalog finds the GPU.

        Returns
        -------
        str
            ``engine.gpu``; if that is a path (ends in ``.toml``), where the file lies.

        Raises
        ------
        SpecError
            If there is no such file.
        """
        if not self.engine.gpu.endswith(".toml"):
            return self.engine.gpu
        return str(self._find("engine.gpu", self.engine.gpu))

    def _find(self, key: str, written: str, folder_too: bool = False) -> Path:
        path = Path(written).expanduser()
        data = data_dir()
        # "data/traces/x" as a checkout has it, and "traces/x", below the package's data.
        folders = [self._folder or Path.cwd(), data.parent, data]
        candidates = [path] if path.is_absolute() else [folder / path for folder in folders]
        for candidate in candidates:
            if candidate.is_file() or (folder_too and candidate.is_dir()):
                return candidate
        looked = ", ".join(str(candidate) for candidate in dict.fromkeys(candidates))
        kind = "file or folder" if folder_too else "file"
        raise SpecError(f"{key} = {written!r}: no such {kind}; looked for {looked}")


def _count(group: Any) -> int:
    """Instances of a table of groups that is not checked yet; 0 where it does not say."""
    count = group.get("instances") if isinstance(group, dict) else getattr(group, "instances", 0)
    return count if type(count) is int and count > 0 else 0
