"""The reference of the configuration file, written from its models: it cannot differ from them."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from smetric_model.live.router.config import RouterConfig

__all__ = ["config_markdown"]


def config_markdown() -> str:
    """Return a table for every section: key, default, what it says."""
    parts = []
    for name, field in RouterConfig.model_fields.items():
        section = _section(field.annotation)
        title = f"[[{name}]]" if name == "instances" else f"[{name}]"
        parts += [f"### `{title}`", "", "| key | default | |", "|---|---|---|"]
        parts += [
            f"| `{key}` | {_default(key, one)} | {one.description or ''} |"
            for key, one in section.model_fields.items()
        ]
        parts.append("")
    return "\n".join(parts)


def _section(annotation: Any) -> type[BaseModel]:
    found: type[BaseModel] = (get_args(annotation) or (annotation,))[0]
    return found


def _default(key: str, field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined or value is None:
        return ""
    if value == {}:
        return "none: its keys stand beside `name`"
    if key == "refuse":
        return "the engines' control and development paths"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, float) and value == int(value):
        return f"`{int(value)}`"
    return f"`{value}`"
