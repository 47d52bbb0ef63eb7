"""The target of a request: what the engine would take it for, and how it is forwarded."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import unquote_to_bytes

__all__ = ["clean_path", "origin_form"]

_ABSOLUTE = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")
_END_OF_PATH = re.compile(rb"[?#]")


def clean_path(target: bytes) -> bytes:
    """Return the path an engine would see: decoded, without empty, ``.`` and ``..`` parts.

    Rules on paths are kept on this form alone: engines decode what is escaped, and leave query,
    fragment and the host of an absolute target aside.
    """
    return _clean(_END_OF_PATH.split(origin_form(target), 1)[0])


def origin_form(target: bytes) -> bytes:
    """Return path and query; the host of an absolute target, and a fragment, are dropped."""
    if target.startswith(b"/"):
        rest = target
    else:
        absolute = _ABSOLUTE.match(target)
        if absolute is None:
            return target
        rest = target[absolute.end() :]
        if not rest.startswith(b"/"):
            rest = b"/" + rest
    return rest.split(b"#", 1)[0] if b"#" in rest else rest


@lru_cache(maxsize=1024)
def _clean(path: bytes) -> bytes:
    if not path.startswith(b"/"):
        return path
    parts: list[bytes] = []
    for part in unquote_to_bytes(path).split(b"/"):
        if part == b"..":
            del parts[-1:]
        elif part not in (b"", b"."):
            parts.append(part)
    return b"/" + b"/".join(parts)
