"""Typed access to the keys of a configuration file, with errors that name key and file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from smetric_model.errors import SpecError

__all__ = ["Keys"]


@dataclass(frozen=True)
class Keys:
    """The keys of one configuration file.

    Parameters
    ----------
    config : Mapping
        The table that describes the language model.
    outer : Mapping
        The whole file, the same table unless the model is multi-modal.
    where : str
        File and table, for messages.
    """

    config: Mapping[str, Any]
    outer: Mapping[str, Any]
    where: str

    def error(self, key: str, problem: str) -> SpecError:
        """Build the error about one key."""
        return SpecError(f"{self.where}: key {key!r} {problem}")

    def get(self, key: str, default: Any = None) -> Any:
        """Value of a key; ``default`` where it is missing or null."""
        value = self.config.get(key)
        if value is None:
            value = self.outer.get(key)
        return default if value is None else value

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.get(key) is not None

    def text(self, key: str) -> str:
        """Value of a key that must be there and be text."""
        value = self.get(key)
        if not isinstance(value, str):
            raise self.error(key, "is missing" if value is None else f"must be text, is {value!r}")
        return value

    def integer(self, key: str, default: int | None = None, least: int = 1) -> int:
        """Whole number of a key, at least ``least``; ``default`` where it is missing or null.

        Raises
        ------
        SpecError
            If it is missing without a default, no whole number, or too small.
        """
        value = self.get(key, default)
        if value is None:
            raise self.error(key, "is missing")
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(key, f"must be a whole number, is {value!r}")
        if value < least and value != default:
            raise self.error(key, f"is {value}, must be >= {least}")
        return value

    def flag(self, key: str) -> bool:
        """Value of a key that must be true or false; false where it is missing or null."""
        value = self.get(key, False)
        if not isinstance(value, bool):
            raise self.error(key, f"must be true or false, is {value!r}")
        return value
