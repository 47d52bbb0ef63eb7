"""Pieces of request bodies.

``t(n)`` is a text of n tokens at 4 bytes a token; an image counts as 1,000 tokens.
"""

from __future__ import annotations

from typing import Any

import pytest

#: name, body, (turn, items of history, tokens that may be hit)
Case = tuple[str, dict[str, Any], tuple[int, int, int]]


def t(tokens: int) -> str:
    return "abcd" * tokens


B64 = "A" * 200_000
SYSTEM = {"role": "system", "content": t(10)}
USER = {"role": "user", "content": t(5)}
ANSWER = {"role": "assistant", "content": t(3)}


def call(identity: str, tokens: int = 2) -> dict[str, Any]:
    """A chat tool call: name of one token, arguments of ``tokens``."""
    return {
        "id": identity,
        "type": "function",
        "function": {"name": "read", "arguments": t(tokens)},
    }


def result(identity: str, tokens: int = 4) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": t(tokens)}


def params(cases: list[Case]) -> list[Any]:
    """Cases for ``parametrize``, each under its name."""
    return [pytest.param(body, expected, id=name) for name, body, expected in cases]
