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
import numba.core.cgutils
import numba.core.datamodel.models
import numba.core.imputils
import numba.core.typing.templates
import numba.extending

__all__ = ["address", "fingerprint", "jit", "part", "tables"]

F = TypeVar("F", bound=Callable[..., Any])

# numba's insides are not typed, and what an intrinsic makes is called in compiled code only
types: Any = numba.types
cgutils: Any = numba.core.cgutils
models: Any = numba.core.datamodel.models
templates: Any = numba.core.typing.templates
registry: Any = numba.core.imputils.builtin_registry
register_model: Any = numba.extending.register_model


def _intrinsic(function: Any) -> Any:
    made: Any = numba.extending.intrinsic
    return made(function)


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
    own = [here / name for name in ("engine.py", "inputs.py", "steps.py")]
    return sorted(here.glob("_*.py")) + own + [(here / other).resolve() for other in _OTHERS]


def fingerprint() -> int:
    """Return a checksum of the files that the compiled simulator is made of."""
    value = 0
    for path in source_files():
        value = zlib.crc32(path.read_bytes(), value)
    return value


def _leaves(context: Any, builder: Any, kind: Any, pointer: Any) -> Any:
    """Load a tuple part by part: what is not used is then not loaded."""
    if not isinstance(kind, types.BaseTuple) or not len(kind):
        return builder.load(pointer)
    value = context.get_constant_undef(kind)
    for place, inner in enumerate(kind):
        part_pointer = cgutils.gep_inbounds(builder, pointer, 0, place)
        value = builder.insert_value(value, _leaves(context, builder, inner, part_pointer), place)
    return value


def _borrowed(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """Take the owner out of every array of a tuple: references to it are not counted."""
    if isinstance(kind, types.Array):
        array = context.make_array(kind)(context, builder, value=value)
        for name in ("meminfo", "parent"):
            setattr(array, name, cgutils.get_null_value(getattr(array, name).type))
        return array._getvalue()
    if isinstance(kind, types.BaseTuple):
        for place, inner in enumerate(kind):
            old = builder.extract_value(value, place)
            new = _borrowed(context, builder, inner, old)
            value = builder.insert_value(value, new, place)
    return value


@_intrinsic
def address(_typing: Any, tables: Any) -> Any:
    """Put a tuple of tables into memory and return where; the caller keeps the tables alive.

    Compiled functions that take the tables themselves copy hundreds of numbers at each call, and
    count references to each array, which together take most of the simulator's time.
    """

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = _borrowed(context, builder, signature.args[0], arguments[0])
        place = cgutils.alloca_once_value(builder, value)
        return builder.bitcast(place, context.get_value_type(signature.return_type))

    return types.CPointer(tables)(tables), codegen


class Tables(types.Type):  # type: ignore[misc]
    """Type of a named tuple in memory, of which an attribute is loaded when it is asked for."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        super().__init__(name=f"Tables({kind})")


@register_model(Tables)
class _TablesModel(models.OpaqueModel):  # type: ignore[misc]
    """An address."""


@templates.infer_getattr
class _TablesAttributes(templates.AttributeTemplate):  # type: ignore[misc]
    key = Tables

    def generic_resolve(self, tables: Any, name: str) -> Any:
        kind = tables.kind
        return kind.types[kind.fields.index(name)] if name in kind.fields else None


def _load_attribute(context: Any, builder: Any, kind: Any, value: Any, name: str) -> Any:
    """Load one member of the tuple at an address."""
    place = kind.kind.fields.index(name)
    inner = kind.kind.types[place]
    pointer = builder.bitcast(value, context.get_value_type(kind.kind).as_pointer())
    pointer = cgutils.gep_inbounds(builder, pointer, 0, place)
    return _borrowed(context, builder, inner, _leaves(context, builder, inner, pointer))


registry.lower_getattr_generic(Tables)(_load_attribute)


@_intrinsic
def tables(_typing: Any, pointer: Any) -> Any:
    """Return the tuples at an address; a member of theirs is loaded where it is used."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        whole = pointer.dtype
        base = builder.bitcast(arguments[0], context.get_value_type(whole).as_pointer())
        made = context.get_constant_undef(signature.return_type)
        for place in range(len(whole)):
            inner = cgutils.gep_inbounds(builder, base, 0, place)
            inner = builder.bitcast(inner, cgutils.voidptr_t)
            made = builder.insert_value(made, inner, place)
        return made

    return types.Tuple([Tables(kind) for kind in pointer.dtype])(pointer), codegen
