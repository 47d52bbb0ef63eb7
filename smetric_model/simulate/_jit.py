"""Compilation of the simulator.

Numba's cache on disk notices a change only of the file in which the cached function stands.  So
only one function is cached (:mod:`smetric_model.simulate.engine`), everything it calls is compiled
into it, and its key holds a fingerprint of every file that it depends on.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["borrowed", "fingerprint", "jit", "part"]

F = TypeVar("F", bound=Callable[..., Any])

#: Files outside this package whose code is compiled in.
_OTHERS = ("../analytic/step_time.py", "../routing/compiled.py", "../routing/ties.py")


def jit(function: F) -> F:
    """Compile a function on its first call, or into its caller; not kept on disk."""
    return cast(F, numba.njit(error_model="numpy")(function))


def part(function: Any) -> Any:
    """Compile a function into its caller only: nothing but compiled code can call it.

    Without the entry for Python, which would unpack every table, it compiles far sooner.
    """
    compiler: Any = numba.njit
    return compiler(no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy")(function)


def source_files() -> list[Path]:
    """Files that the compiled simulator is made of."""
    here = Path(__file__).parent
    return sorted(here.glob("*.py")) + [(here / other).resolve() for other in _OTHERS]


def fingerprint() -> int:
    """Return a checksum of the files that the compiled simulator is made of."""
    value = 0
    for path in source_files():
        value = zlib.crc32(path.read_bytes(), value)
    return value


@intrinsic
def borrowed(_typing: Any, value: Any) -> Any:
    """Return a (nested) tuple with the same arrays, not counted as references.

    Compiled code counts references to every array that it takes out of a tuple, with atomic
    operations that take a third of the simulator's time.  Whoever calls this keeps the arrays
    alive.
    """

    def without(context: Any, builder: Any, kind: Any, item: Any) -> Any:
        if isinstance(kind, types.Array):
            array = context.make_array(kind)(context, builder, value=item)
            for name in ("meminfo", "parent"):
                setattr(array, name, cgutils.get_null_value(getattr(array, name).type))
            return array._getvalue()
        if isinstance(kind, types.BaseTuple):
            for place, inner in enumerate(kind):
                old = builder.extract_value(item, place)
                item = builder.insert_value(item, without(context, builder, inner, old), place)
        return item

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return without(context, builder, signature.args[0], arguments[0])

    return value(value), codegen
