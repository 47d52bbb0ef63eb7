"""What a scenario's keys allow, in words: for error messages and for ``docs/scenario.md``.

Both are written from the model's own annotations, so that they say what is checked.
"""

from __future__ import annotations

import inspect
import math
import re
import types
from difflib import get_close_matches
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

__all__ = ["allowed", "problems", "scenario_markdown", "toml_position"]

_MOST_LINES = 8


def allowed(field: FieldInfo) -> str:
    """Say which values a field allows, such as ``number in (0, 1] | "measured"``.

    Parameters
    ----------
    field : FieldInfo
        A field of a scenario's section.

    Returns
    -------
    str
    """
    return _allowed(field.annotation, list(field.metadata))


def _allowed(annotation: Any, metadata: list[Any]) -> str:
    origin = get_origin(annotation)
    if origin is not None and hasattr(annotation, "__metadata__"):  # Annotated
        base, *extra = get_args(annotation)
        for item in extra:
            metadata = [*metadata, *(item.metadata if isinstance(item, FieldInfo) else [item])]
        return _allowed(base, metadata)
    if origin is Literal:
        return " | ".join(f'"{value}"' for value in get_args(annotation))
    if origin in (Union, types.UnionType):
        parts = [part for part in get_args(annotation) if part is not type(None)]
        return " | ".join(_allowed(part, metadata) for part in parts)
    if origin is tuple:  # each of a list
        return _allowed(get_args(annotation)[0], [])
    if annotation is bool:
        return "true | false"
    if annotation is str:
        return "text"
    if annotation in (int, float):
        return ("integer" if annotation is int else "number") + _range(annotation, metadata)
    raise TypeError(f"no words for {annotation!r}")  # a new kind of key needs some


def _range(annotation: type, metadata: list[Any]) -> str:
    limits: dict[str, Any] = {}
    finite = annotation is int
    for item in metadata:
        finite = finite or getattr(item, "allow_inf_nan", None) is False
        limits |= {k: getattr(item, k) for k in ("gt", "ge", "lt", "le") if hasattr(item, k)}
    low = limits.get("gt", limits.get("ge"))
    high = limits.get("lt", limits.get("le"))
    if low is not None and high is not None:
        left, right = "(" if "gt" in limits else "[", ")" if "lt" in limits else "]"
        return f" in {left}{_short(low)}, {_short(high)}{right}"
    text = "" if low is None else f" {'>' if 'gt' in limits else '>='} {_short(low)}"
    return text if finite else f"{text} or inf"


def _short(value: float) -> str:
    if value == 2**63:
        return "2**63"
    return f"{value:g}"


def problems(model: type[BaseModel], error: ValidationError) -> list[str]:
    """Lines of an error message, one a problem: dotted key, value, what is allowed.

    Parameters
    ----------
    model : type
        Model that was validated.
    error : ValidationError
        What pydantic found.

    Returns
    -------
    list of str
        At most eight, and how many more there are.
    """
    lines: dict[str, None] = {}
    # A mistyped key explains other problems, so it comes first.
    items = error.errors(include_url=False)
    for item in sorted(items, key=lambda item: item["type"] != "extra_forbidden"):
        lines[_problem(model, item)] = None
    found = list(lines)
    if len(found) > _MOST_LINES:
        found[_MOST_LINES:] = [f"and {len(found) - _MOST_LINES} more"]
    return found


def _problem(model: type[BaseModel], item: Any) -> str:
    path = [part for part in item["loc"] if isinstance(part, str)]  # without places in lists
    if item["type"] == "extra_forbidden":
        return _unknown(model, path, item["input"])
    field, known = _field(model, path)
    dotted = ".".join(path[:known])
    if item["type"] == "value_error":  # a check across keys, in its own words
        return f"{dotted}: {item['ctx']['error']}" if dotted else str(item["ctx"]["error"])
    value = item["input"]
    if item["type"] == "missing":
        return f"{dotted}: needed; allowed is {allowed(field)}" if field else f"{dotted}: needed"
    if field is not None and _is_list(field) and not isinstance(value, dict):
        return f"{dotted} = {value!r}: a list of tables is needed"
    if field is not None and get_origin(field.annotation) is tuple and item["type"] == "tuple_type":
        return f"{dotted} = {_written(value)}: a list is needed"
    if field is None or _section(field) is not None:
        return f"{dotted} = {value!r}: a table of keys is needed"
    text = f"{dotted} = {_written(value)}: allowed is {allowed(field)}"
    if isinstance(value, str):
        close = get_close_matches(value, _words(field.annotation), n=1)
        text += f"; did you mean {_written(close[0])}?" if close else ""
    return text


def _field(model: type[BaseModel], path: list[str]) -> tuple[FieldInfo | None, int]:
    """Field a path leads to, and how much of the path names it (unions append their own)."""
    field, known = None, 0
    inner: type[BaseModel] | None = model
    for part in path:
        if inner is None or part not in inner.model_fields:
            break
        field, known = inner.model_fields[part], known + 1
        inner = _section(field)
    return field, known


def _unknown(model: type[BaseModel], path: list[str], value: Any) -> str:
    keys = _dotted_keys(model)
    dotted = ".".join(path)
    folder = ".".join(path[:-1])
    siblings = {k.rpartition(".")[2]: k for k in keys if k.rpartition(".")[0] == folder}
    elsewhere = {k.rpartition(".")[2]: k for k in keys}
    what = "section" if isinstance(value, dict) else "key"
    shown = "" if isinstance(value, dict) else f" = {_written(value)}"
    begun = [name for name in siblings if name.startswith(f"{path[-1]}_")]
    if len(begun) == 1 and not get_close_matches(path[-1], siblings, n=1, cutoff=0.85):
        return f"{dotted}{shown}: unknown {what}; did you mean {siblings[begun[0]]}?"
    for names in (siblings, elsewhere):
        close = get_close_matches(path[-1], names, n=1, cutoff=0.6 if names is siblings else 0.85)
        if close:
            unit = path[-1].endswith("_ms") and close[0].endswith("_s")
            meant = f"{names[close[0]]} (in seconds)" if unit else names[close[0]]
            return f"{dotted}{shown}: unknown {what}; did you mean {meant}?"
    known = ", ".join(siblings)
    return f"{dotted}{shown}: unknown {what}; known here: {known}"


def _dotted_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    keys = []
    for name, field in model.model_fields.items():
        keys.append(prefix + name)
        section = _section(field)
        if section is not None:
            keys += _dotted_keys(section, f"{prefix}{name}.")
    return keys


def _section(field: FieldInfo) -> type[BaseModel] | None:
    annotation = field.annotation
    if get_origin(annotation) is tuple:
        annotation = get_args(annotation)[0]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return None


def _is_list(field: FieldInfo) -> bool:
    """Whether a key holds any number of sections."""
    return get_origin(field.annotation) is tuple and _section(field) is not None


def _words(annotation: Any) -> list[str]:
    """Words that a field allows."""
    if get_origin(annotation) is Literal:
        return [str(word) for word in get_args(annotation)]
    return [word for part in get_args(annotation) for word in _words(part)]


def _written(value: Any) -> str:
    """``value`` as a TOML file would have it, near enough, and not too long."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def toml_position(error: ValueError) -> str:
    """Line and message of a TOML syntax error: ``":3: no valid TOML: ... (column 5)"``.

    Parameters
    ----------
    error : TOMLDecodeError

    Returns
    -------
    str
        To be appended to the file's name.
    """
    match = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", str(error), re.DOTALL)
    if match:
        message, line, column = match.groups()
        return f":{line}: no valid TOML: {message} (column {column})"
    return f": no valid TOML: {error}"


def scenario_markdown() -> str:
    """Documentation page of the scenario file, generated so that it cannot differ from it.

    Returns
    -------
    str
        Markdown: every key with unit, default, allowed values and meaning.
    """
    from smetric_model.scenario import Scenario

    defaults = Scenario()
    sections = {n: _section(f) for n, f in Scenario.model_fields.items()}
    lines = [
        "# Scenario file",
        "",
        "Generated from `smetric_model/scenario_sections.py` by",
        "`smetric_model._scenario_text.scenario_markdown()`; do not edit. A scenario is a TOML",
        "file; keys left out take the defaults shown here, unknown keys are errors.",
        "",
        "## Top level",
        "",
        *_table(Scenario, [n for n, s in sections.items() if s is None], defaults),
    ]
    for name, section in sections.items():
        if section is not None:
            purpose = inspect.cleandoc(section.__doc__ or "").partition(": ")[2]
            listed = _is_list(Scenario.model_fields[name])
            title = f"[[{name}]]" if listed else f"[{name}]"
            lines += ["", f"## `{title}`", "", purpose[:1].upper() + purpose[1:], ""]
            values = section.model_construct() if listed else getattr(defaults, name)
            lines += _table(section, list(section.model_fields), values)
    return "\n".join(lines) + "\n"


def _table(model: type[BaseModel], names: list[str], defaults: BaseModel) -> list[str]:
    lines = ["| key | unit | default | allowed | meaning |", "|---|---|---|---|---|"]
    for name in names:
        field = model.model_fields[name]
        default = getattr(defaults, name, None)
        shown = "" if default is None else f"`{_default(default)}`"
        words = allowed(field).replace("|", "\\|")
        lines.append(f"| `{name}` | {_unit(name)} | {shown} | {words} | {field.description} |")
    return lines


def _default(value: Any) -> str:
    if isinstance(value, float) and math.isfinite(value) and value >= 1e6:
        return f"{value / 1e9:g}e9"
    return _written(value)


_UNITS = (
    ("bytes_per_s", "bytes/s"),
    ("bytes_per_node", "bytes"),
    ("per_prompt_token_s", "s/token"),
    ("_rps", "requests/s"),
    ("_tokens", "tokens"),
    ("token_budget", "tokens"),
    ("overload_floor", "requests"),
    ("_s", "s"),
)


def _unit(name: str) -> str:
    return next((unit for suffix, unit in _UNITS if name.endswith(suffix)), "")
