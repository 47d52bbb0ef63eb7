"""``[[groups]]``: unequal instances, as tables of what is different from ``[engine]``."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from smetric_model.errors import SpecError
from smetric_model.scenario_sections import Count, Name, PositiveShare, Spec

__all__ = ["GroupSection", "check_equal_instances", "group_names", "kind_name"]

#: keys of a group by the section whose key they replace
_SECTIONS = {
    "gpu": "engine",
    "tp": "engine",
    "ep": "engine",
    "memory_utilisation": "engine",
    "token_budget": "engine",
    "max_running_requests": "engine",
    "kv_pool_tokens": "engine",
    "gpus_per_node": "cluster",
    "nics_per_node": "cluster",
}


class GroupSection(Spec):
    """``[[groups]]``: equal instances of a cluster of several kinds; one table each.

    Groups follow each other in the numbers of their instances, and each fills nodes of its own.
    Keys left out are those of `[engine]` and `[cluster]`.
    """

    instances: Count = Field(
        description="Instances of the group; `cluster.instances` is the sum, and may be left out."
    )
    gpu: Name | None = Field(None, description="As `engine.gpu`.")
    tp: Count | None = Field(None, description="As `engine.tp`.")
    ep: Count | None = Field(None, description="As `engine.ep`.")
    memory_utilisation: PositiveShare | None = Field(
        None, description="As `engine.memory_utilisation`."
    )
    token_budget: Count | None = Field(None, description="As `engine.token_budget`.")
    max_running_requests: Count | None = Field(
        None, description="As `engine.max_running_requests`."
    )
    kv_pool_tokens: Count | None = Field(None, description="As `engine.kv_pool_tokens`.")
    gpus_per_node: Count | None = Field(None, description="As `cluster.gpus_per_node`.")
    nics_per_node: Count | None = Field(None, description="As `cluster.nics_per_node`.")

    def changes(self) -> dict[str, Any]:
        """Return what makes of a scenario that of this group's instances alone.

        Returns
        -------
        dict
            By dotted key, for :meth:`~smetric_model.scenario.Scenario.replace`; colocated, since
            pools are of the whole cluster.
        """
        given = self.model_dump(exclude_none=True)
        return {
            "groups": None,
            "cluster.serving": "colocated",
            "cluster.prefill_instances": None,
            "cluster.decode_instances": None,
            "cluster.instances": self.instances,
            **{f"{_SECTIONS[key]}.{key}": given[key] for key in _SECTIONS if key in given},
        }


def check_equal_instances(scenario: Any, who: str) -> None:
    """Refuse a scenario of unequal instances.

    Parameters
    ----------
    scenario : Scenario
        The question.
    who : str
        Who takes equal instances only.

    Raises
    ------
    SpecError
        Names the groups, and who takes them.
    """
    if scenario.groups:
        raise SpecError(
            f"groups = {group_names(scenario)}: {who} takes equal instances only; simulate takes"
            " unequal ones, and so do operations mixed and, by simulation, capacity, compare and"
            " sweep"
        )


def group_names(scenario: Any) -> str:
    """Say of what a scenario's groups are, such as ``8 x H20, 4 x (2 x H100)``.

    Parameters
    ----------
    scenario : Scenario
        With groups.
    """
    return ", ".join(
        f"{alike.cluster.instances} x {name if alike.engine.tp == 1 else f'({name})'}"
        for alike in scenario.by_group()
        for name in (kind_name(alike),)
    )


def kind_name(scenario: Any) -> str:
    """Say what an instance of a scenario is, such as ``H20`` or ``2 x H100``.

    Parameters
    ----------
    scenario : Scenario
        Of equal instances.
    """
    gpu, tp = scenario.engine.gpu, scenario.engine.tp
    return str(gpu) if tp == 1 else f"{tp} x {gpu}"
