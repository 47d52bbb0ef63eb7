"""Token counts an engine reports at the end of an answer."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["TAIL_BYTES", "Usage", "read_usage"]

#: Where the counts stand: within the last bytes of the answer.
TAIL_BYTES = 4096

# In a string of the answer every quote is escaped, so that these only match members.
_PROMPT = (b'"prompt_tokens"', b'"input_tokens"')
_OUTPUT = (b'"completion_tokens"', b'"output_tokens"')
_CACHED = (b'"cached_tokens"', b'"cache_read_input_tokens"')
_NUMBER = re.compile(rb"\s*:\s*(\d{1,12})")


_BACKSLASH = ord("\\")


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


def _last(names: tuple[bytes, bytes], tail: bytes) -> int | None:
    for name in names:
        at = tail.rfind(name)
        if at > 0 and tail[at - 1] != _BACKSLASH:
            number = _NUMBER.match(tail, at + len(name))
            if number is not None:
                return int(number[1])
    return None
