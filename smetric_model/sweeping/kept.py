"""Answers that are no row of a table, kept beside those that are: one dataclass a question."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from smetric_model.sweeping.store import Store, Verb, point_digest

if TYPE_CHECKING:
    from smetric_model.scenario import Scenario

__all__ = ["Kept", "from_plain", "to_plain"]

T = TypeVar("T")


class Kept:
    """Folder of finished answers, the one of a sweep.

    Parameters
    ----------
    folder : Path or None
        None: nothing is kept.

    Attributes
    ----------
    computed, found : int
        Answers worked out, and found in the folder.
    """

    def __init__(self, folder: Path | None):
        self.store = None if folder is None else Store(folder)
        self.computed = self.found = 0

    def answer(
        self,
        scenario: Scenario,
        question: Verb,
        work: Callable[[], T],
        plain: Callable[[T], Any],
        whole: Callable[[Any], T],
    ) -> T:
        """Return an answer from the folder, or work it out and keep it.

        Parameters
        ----------
        scenario : Scenario
            The question's.
        question : callable
            A function at the top of a module, or a partial of one, that stands for the question: it
            is not called.
        work : callable
            Works the answer out.
        plain, whole : callable
            To values ready for Python's JSON, and back.
        """
        if self.store is None:
            self.computed += 1
            return work()
        digest = point_digest(scenario, question)
        record = self.store.read(digest)
        if record is not None:
            try:
                answer = whole(record["values"]["answer"])
            except (LookupError, TypeError, ValueError):
                pass  # written by something else: worked out again
            else:
                self.found += 1
                return answer
        answer = work()
        self.computed += 1
        self.store.write(digest, {"status": "kept", "values": {"answer": plain(answer)}})
        return answer


def to_plain(answer: Any, leave_out: tuple[str, ...] = ()) -> Any:
    """Return a dataclass, or a sequence of them, as values ready for Python's JSON.

    Parameters
    ----------
    answer : dataclass, sequence of dataclass, or None
    leave_out : tuple of str
        Fields that :func:`from_plain` is given.
    """
    if isinstance(answer, list | tuple):
        return [to_plain(one, leave_out) for one in answer]
    if answer is None:
        return None
    kept = [f.name for f in dataclasses.fields(answer) if f.name not in leave_out]
    return {name: _plain(getattr(answer, name)) for name in kept}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_plain(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.item() if hasattr(value, "item") else value


def from_plain(kind: Any, values: Any, given: Mapping[str, Any] | None = None) -> Any:
    """Return what :func:`to_plain` made plain.

    Parameters
    ----------
    kind : type
        A dataclass whose annotations can be resolved, a tuple of it, or one of them and None.
    values : dict, list or None
    given : mapping of str to value, optional
        Fields that were left out.

    Raises
    ------
    ValueError
        If the values are not those of such a dataclass.
    """
    from pydantic import TypeAdapter

    if isinstance(values, dict):
        values = values | dict(given or {})
    return TypeAdapter(kind).validate_python(values)
