"""The paper's experiments from the library's own models (``docs/reproduction.md``).

Parameters (``data/reproduction.toml``) -> points -> one row a point, seed and verb -> claims.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = [
    "Claim",
    "Experiments",
    "claims_table",
    "load_claims",
    "load_parameters",
    "read_results",
    "reproduce",
    "score",
]

_HOMES = {
    "Claim": "claims",
    "Experiments": "parameters",
    "claims_table": "evaluate",
    "load_claims": "claims",
    "load_parameters": "parameters",
    "read_results": "table",
    "reproduce": "runner",
    "score": "evaluate",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
