"""Token counts an engine reports at the end of an answer."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["TAIL_BYTES", "Usage", "read_usage"]

#: Where the counts stand: within the last bytes of the answer.
TAIL_BYTES = 4096

# In a string of the answer every quote is escaped, so that these only match members.
_PROMPT = re.compile(rb'(?<!\\)"(?:prompt_tokens|input_tokens)"\s*:\s*(\d{1,12})')
_OUTPUT = re.compile(rb'(?<!\\)"(?:completion_tokens|output_tokens)"\s*:\s*(\d{1,12})')
_CACHED = re.compile(rb'(?<!\\)"(?:cached_tokens|cache_read_input_tokens)"\s*:\s*(\d{1,12})')


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts of one answer; None where the engine does not tell.

    Parameters
    ----------
    prompt_tokens, output_tokens, cached_tokens : int or None
        [tokens]
    """

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None


def read_usage(tail: bytes) -> Usage:
    """Read the counts from the last bytes of an answer, whole or streamed."""
    if b"_tokens" not in tail:
        return Usage()
    return Usage(_last(_PROMPT, tail), _last(_OUTPUT, tail), _last(_CACHED, tail))


def _last(pattern: re.Pattern[bytes], tail: bytes) -> int | None:
    found = pattern.findall(tail)
    return int(found[-1]) if found else None
