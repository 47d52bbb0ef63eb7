"""The common schema: which columns an outcome has, in which unit, and who fills them.

The facts stand in ``data/schema.toml``, families of columns written once; this module expands
them.  Imbalance columns exist for every window, not only for those that the file
lists, so they have a name rule of their own (:func:`imbalance_column`).
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Literal

from smetric_model.datafiles import load_toml
from smetric_model.errors import SpecError

__all__ = [
    "TABLES",
    "VERBS",
    "Column",
    "imbalance_column",
    "imbalance_schema_column",
    "load_schema",
    "parse_imbalance_column",
    "schema_markdown",
]

Kind = Literal["number", "text", "boolean"]

VERBS = ("predict", "simulate", "bound", "measure")
#: the row itself, and the two tables behind it
TABLES = ("outcome", "requests", "instances")

_KINDS = ("number", "text", "boolean")
_IMBALANCE = "imbalance_{quantity}_{window}_{statistic}"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the schema.

    Parameters
    ----------
    name : str
        Key in tables and JSON.
    description : str
        What it says.
    kind : {'number', 'text', 'boolean'}
        Missing numbers are NaN, missing texts empty, missing booleans None.
    unit : str
        Unit, empty for text; ``"ratio"`` is dimensionless.
    group : str
        Heading under which the column is shown; empty for the tables behind the row.
    verbs : tuple of str
        Verbs that fill the column; the others leave it missing.
    minimum, maximum : float
        Range of a number; NaN is always allowed.
    """

    name: str
    description: str
    kind: Kind = "number"
    unit: str = ""
    group: str = ""
    verbs: tuple[str, ...] = ()
    minimum: float = 0.0
    maximum: float = math.inf


def load_schema(table: str = "outcome") -> Mapping[str, Column]:
    """Columns of one table, in their order.

    Parameters
    ----------
    table : {'outcome', 'requests', 'instances'}
        The row itself (default), or one of the tables behind it.

    Returns
    -------
    mapping of str to Column
        By name; read-only.

    Raises
    ------
    SpecError
        If there is no such table, or ``data/schema.toml`` contradicts itself.
    """
    if table not in TABLES:
        raise SpecError(f"schema table {table!r} is not known; one of {', '.join(TABLES)}")
    return _load()[table]


def imbalance_column(quantity: str, window_s: float, statistic: str) -> str:
    """Name of an imbalance column.

    Parameters
    ----------
    quantity : str
        ``processed_tokens``, ``inflight_tokens``, ``unprefilled_tokens`` or ``requests``.
    window_s : float
        Length of the windows over which the instances are compared [s]; any positive number.
    statistic : str
        Statistic over the windows: ``mean``, ``median``, ``p75``, ``p90``, ``p99`` or ``max``.

    Returns
    -------
    str
        Such as ``imbalance_processed_tokens_60s_mean``.

    Raises
    ------
    SpecError
        If quantity or statistic is not in the schema, or the window is not positive and finite.
    """
    axes = _imbalance_axes()
    for axis, value in (("quantity", quantity), ("statistic", statistic)):
        if value not in axes[axis]:
            raise SpecError(
                f"imbalance {axis} {value!r} is not known; one of {', '.join(axes[axis])}"
            )
    if not (math.isfinite(window_s) and window_s > 0):
        raise SpecError(f"imbalance window_s = {window_s!r}: a finite number > 0 is needed")
    return _IMBALANCE.format(quantity=quantity, window=f"{_number(window_s)}s", statistic=statistic)


def parse_imbalance_column(name: str) -> tuple[str, float, str]:
    """Quantity, window and statistic of an imbalance column.

    Parameters
    ----------
    name : str
        Name as :func:`imbalance_column` writes it.

    Returns
    -------
    quantity : str
    window_s : float
        Length of the windows [s].
    statistic : str

    Raises
    ------
    SpecError
        If the name is not one that :func:`imbalance_column` writes.
    """
    axes = _imbalance_axes()
    match = re.fullmatch(
        rf"imbalance_({'|'.join(axes['quantity'])})_([0-9.]+)s_({'|'.join(axes['statistic'])})",
        name,
    )
    if match:
        quantity, window, statistic = match.groups()
        try:
            if imbalance_column(quantity, float(window), statistic) == name:
                return quantity, float(window), statistic
        except ValueError:  # "1.2.3", or a window of zero
            pass
    raise SpecError(
        f"{name!r} is not an imbalance column; imbalance_<quantity>_<window>s_<statistic>, with"
        f" quantity one of {', '.join(axes['quantity'])} and statistic one of"
        f" {', '.join(axes['statistic'])}"
    )


def imbalance_schema_column(name: str) -> Column:
    """Column of an imbalance name with any window, described as its family is.

    Parameters
    ----------
    name : str
        Name as :func:`imbalance_column` writes it.

    Returns
    -------
    Column

    Raises
    ------
    SpecError
        If the name is not one that :func:`imbalance_column` writes.
    """
    quantity, window_s, statistic = parse_imbalance_column(name)
    axes = _imbalance_axes()
    number = _number(window_s)
    one = {
        "quantity": {quantity: axes["quantity"][quantity]},
        "window": {f"{number}s": f"{number} s"},
        "statistic": {statistic: axes["statistic"][statistic]},
    }
    (column,) = _expand({**_imbalance_entry(), "axes": one})
    return column


def schema_markdown() -> str:
    """Documentation page of the schema, generated so that it cannot differ from it.

    Returns
    -------
    str
        Markdown: one table a group, who fills what, and the tables behind the row.
    """
    lines = [
        "# Schema of an outcome",
        "",
        "Generated from `data/schema.toml` by `smetric_model.schema.schema_markdown()`; do not",
        "edit. Keys are the same in tables and JSON. A column that a verb does not fill is NaN",
        "(numbers), empty (text) or null (booleans); in JSON NaN is `null` and an infinite number",
        'the string `"inf"`. Imbalance columns exist for any window length, those below are the',
        "usual ones.",
        "",
        "Window: `[warmup_s, warmup_s + window_s)`. `*_tps` counts tokens processed inside it,",
        "`*_within_slo_tps` the tokens of requests that arrive in it and meet the SLO (each runs",
        "on to completion, up to a stated drain limit); both are divided by `window_s`. Quantiles",
        "and ratios are over requests that arrive in it.",
    ]
    for group, columns in itertools.groupby(load_schema().values(), lambda c: c.group):
        lines += [
            "",
            f"## {group.capitalize()}",
            "",
            "| column | unit | " + " | ".join(VERBS) + " | meaning |",
            "|---|---|" + "---|" * len(VERBS) + "---|",
        ]
        for column in columns:
            filled = " | ".join("x" if verb in column.verbs else "" for verb in VERBS)
            lines.append(
                f"| `{column.name}` | {_unit_text(column)} | {filled} | {column.description} |"
            )
    for table in TABLES[1:]:
        lines += ["", f"## Table `{table}`", "", "| column | unit | meaning |", "|---|---|---|"]
        lines += [
            f"| `{column.name}` | {_unit_text(column)} | {column.description} |"
            for column in load_schema(table).values()
        ]
    return "\n".join(lines) + "\n"


def _unit_text(column: Column) -> str:
    return column.unit or ("" if column.kind == "number" else column.kind)


def _number(value: float) -> str:
    """Shortest decimal text of a positive number, without exponent: 60, 7.5, 0.00001."""
    text = f"{value:.12f}".rstrip("0").rstrip(".")
    if float(text) != value:
        raise SpecError(f"imbalance window_s = {value!r}: at most 12 decimals are kept in a name")
    return text


@cache
def _load() -> Mapping[str, Mapping[str, Column]]:
    tables: dict[str, dict[str, Column]] = {table: {} for table in TABLES}
    for entry in load_toml("schema.toml")["column"]:
        table = entry.get("table", "outcome")
        if table not in tables:
            raise SpecError(f"data/schema.toml: {entry['name']!r}: table {table!r} is not known")
        for column in _expand(entry):
            if column.name in tables[table]:
                raise SpecError(f"data/schema.toml: column {column.name!r} stands twice")
            tables[table][column.name] = column
    return MappingProxyType({t: MappingProxyType(columns) for t, columns in tables.items()})


def _expand(entry: Mapping[str, Any]) -> Iterator[Column]:
    """Columns that an entry of the file stands for."""
    apart = ("table", "name", "description", "axes", "verbs", "missing")
    rest = {k: v for k, v in entry.items() if k not in apart}
    missing: dict[str, list[str]] = entry.get("missing", {})
    left = {name for names in missing.values() for name in names}
    axes: dict[str, dict[str, str]] = entry.get("axes", {})
    for combination in itertools.product(*(axis.items() for axis in axes.values())):
        chosen = list(zip(axes, combination, strict=True))
        name = entry["name"].format(**{axis: value for axis, (value, _) in chosen})
        left.discard(name)
        column = Column(
            name=name,
            description=entry["description"].format(**{axis: text for axis, (_, text) in chosen}),
            verbs=tuple(v for v in entry.get("verbs", ()) if name not in missing.get(v, ())),
            **rest,
        )
        if column.kind not in _KINDS or not set(column.verbs) <= set(VERBS):
            raise SpecError(
                f"data/schema.toml: {column.name!r}: kind {column.kind!r} is one of"
                f" {', '.join(_KINDS)}, verbs {column.verbs} of {', '.join(VERBS)}"
            )
        yield column
    if left:
        raise SpecError(
            f"data/schema.toml: {entry['name']!r}: missing names {', '.join(sorted(left))},"
            " which are not in the family"
        )


@cache
def _imbalance_entry() -> Mapping[str, Any]:
    (entry,) = (e for e in load_toml("schema.toml")["column"] if e["name"] == _IMBALANCE)
    return MappingProxyType(entry)


def _imbalance_axes() -> Mapping[str, Mapping[str, str]]:
    axes: Mapping[str, Mapping[str, str]] = _imbalance_entry()["axes"]
    return axes
