"""What options of several commands change in a scenario."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from smetric_model.scenario import Scenario

__all__ = ["group_changes", "group_option", "llm_changes"]

#: unequal instances
group_option = click.option(
    *("--group", "groups"),
    type=(str, int),
    multiple=True,
    metavar="GPU INSTANCES",
    help="Equal instances of a cluster of several kinds; once a kind, in place of [[groups]].",
)


def group_changes(groups: Sequence[tuple[str, int]]) -> dict[str, Any]:
    """Return what ``--group`` changes in a scenario.

    Parameters
    ----------
    groups : sequence of (str, int)
        GPU and number of instances of each.
    """
    if not groups:
        return {}
    return {"groups": [{"gpu": gpu, "instances": count} for gpu, count in groups]}


def llm_changes(scenario: Scenario, llm: str) -> dict[str, Any]:
    """Return what another LLM changes in a scenario.

    Its types are its own, and so is the longest context that it was made for, where the
    scenario's is longer: both belong to the model that the scenario was written for.

    Parameters
    ----------
    scenario : Scenario
    llm : str
        Catalog name, or path to a ``config.json``.

    Raises
    ------
    SpecError
        If there is no such LLM.
    """
    from smetric_model.catalog.llm import get_llm

    name = str(Path(llm).resolve()) if Path(llm).is_file() else llm
    longest = min(scenario.engine.max_context_tokens, get_llm(name).max_context_tokens)
    return {
        "llm.name": name,
        "llm.weight_dtype": None,
        "llm.kv_dtype": None,
        "engine.max_context_tokens": longest,
    }
