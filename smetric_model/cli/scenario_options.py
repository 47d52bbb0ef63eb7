"""What options of several commands change in a scenario."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smetric_model.scenario import Scenario

__all__ = ["llm_changes"]


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
