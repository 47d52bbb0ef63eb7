"""Packages named as their verb: ``smetric_model.bound`` is a package and may be called as well.

Importing a subpackage binds its name in ``smetric_model``, where the function of that name is
looked for.  Both can be called, so that it does not matter which one ``from smetric_model import
bound`` finds.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

__all__ = ["make_callable"]


class _VerbModule(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*arguments, **options)


def make_callable(name: str) -> None:
    """Let a package be called as the function of its name.

    Parameters
    ----------
    name : str
        The package's ``__name__``.
    """
    sys.modules[name].__class__ = _VerbModule
