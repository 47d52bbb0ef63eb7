"""Look a name up in a catalog; an unknown one lists what is known and the nearest guess."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from smetric_model.errors import SpecError

__all__ = ["find", "unknown"]


def unknown(kind: str, name: str, known: Iterable[str], hint: str = "") -> SpecError:
    """Build the error for a name that no catalog holds."""
    names = list(known)
    folded = {candidate.casefold(): candidate for candidate in names}
    near = get_close_matches(str(name).casefold(), folded, n=1, cutoff=0.6)
    guess = f" Did you mean {folded[near[0]]!r}?" if near else ""
    return SpecError(f"{kind} {name!r} is not known.{guess} Known: {', '.join(names)}.{hint}")


def find(kind: str, name: str, table: Mapping[str, Any], hint: str = "") -> Any:
    """Return ``table[name]``, or raise a helpful :class:`SpecError`.

    Parameters
    ----------
    kind : str
        What is looked up, for the message (``"GPU"``).
    name : str
        The name asked for; upper and lower case count.
    table : Mapping
        The catalog.
    hint : str
        What else would have been allowed, appended to the message.

    Raises
    ------
    SpecError
        If ``name`` is not in ``table``.
    """
    if name not in table:
        raise unknown(kind, name, table, hint)
    return table[name]
