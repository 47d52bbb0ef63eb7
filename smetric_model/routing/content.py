"""What of a message becomes prompt text: the content parts of the four APIs.

Counted: text, tool calls (name and arguments), tool results, text documents.  An image counts as
an image, never by its base64.  Not counted: reasoning in any form (templates drop it from the
history, so it is not in the next prompt), signatures and encrypted state, audio, video and files
(their tokens cannot be told from the body), ids and cache marks.  What is not counted lowers the
expected hit, which errs towards sticking; the overload guard still applies.

Bodies are other people's data of any depth: nothing here recurses.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import orjson

from smetric_model.errors import SpecError

__all__ = [
    "Text",
    "add_content",
    "add_text",
    "json_text",
    "read_list",
    "read_object",
    "read_string",
    "type_name",
    "wrong_type",
]

_TEXT_FIELDS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "summary_text": "text",
    "refusal": "refusal",
}
_IMAGES = {
    "computer_screenshot",
    "image",
    "image_embeds",
    "image_pil",
    "image_url",
    "input_image",
    "output_image",
}
_SILENT = {
    "audio",
    "audio_url",
    "container_upload",
    "file",
    "input_audio",
    "input_file",
    "input_video",
    "output_audio",
    "reasoning",
    "reasoning_text",
    "redacted_thinking",
    "thinking",
    "video",
    "video_url",
}
_CALLS = {"tool_use", "server_tool_use", "mcp_tool_use", "tool_call"}
#: Keys that never reach the prompt: encoded data, encrypted state, ids, client-side marks.
OPAQUE_KEYS = frozenset(
    {
        "b64_json",
        "cache_control",
        "call_id",
        "data",
        "encrypted_content",
        "encrypted_index",
        "file_data",
        "file_id",
        "id",
        "result",
        "signature",
        "status",
        "tool_use_id",
        "type",
    }
)
_END_OF_REASONING = "</think>"


@dataclass(slots=True)
class Text:
    """Prompt text collected from a body.

    Parameters
    ----------
    pieces : list of str
        In the order of the prompt.
    images : int
        Images among them.
    """

    pieces: list[str] = field(default_factory=list)
    images: int = 0


def type_name(value: object) -> str:
    """Return the JSON name of a value's type, with its article."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, list) else "an object"


def wrong_type(path: str, value: object, allowed: str) -> SpecError:
    """Build the error for a value of the wrong type."""
    return SpecError(f"{path} is {type_name(value)}; {allowed} is allowed")


def read_object(value: object, path: str) -> dict[str, Any]:
    """Return ``value`` if it is an object."""
    if not isinstance(value, dict):
        raise wrong_type(path, value, "an object")
    return value


def read_list(parent: dict[str, Any], key: str, path: str) -> list[Any]:
    """Return a list member; an empty list if it is absent or null."""
    value = parent.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise wrong_type(f"{path}.{key}", value, "a list")
    return value


def read_string(parent: dict[str, Any], key: str, path: str) -> str:
    """Return a string member; empty if it is absent or null."""
    value = parent.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise wrong_type(f"{path}.{key}", value, "a string")
    return value


def add_text(text: Text, piece: str) -> None:
    """Add a piece unless it is empty."""
    if piece:
        text.pieces.append(piece)


def without_reasoning(piece: str) -> str:
    """Drop inline reasoning from a model's text, as chat templates do for the history."""
    if _END_OF_REASONING in piece:
        return piece.rsplit(_END_OF_REASONING, 1)[1].lstrip("\n")
    return piece


def add_arguments(text: Text, parent: dict[str, Any], key: str, path: str) -> None:
    """Add arguments of a tool call: a string as it is, anything else as JSON."""
    value = parent.get(key)
    if value is None:
        return
    if not isinstance(value, str | dict | list):
        raise wrong_type(f"{path}.{key}", value, "a string or an object")
    add_text(text, value if isinstance(value, str) else json_text(value))


def add_content(text: Text, content: object, path: str, *, by_model: bool = False) -> None:
    """Add the content of a message: a string, a list of parts, or null.

    Parameters
    ----------
    text : Text
        Where to collect.
    content : object
        The value of ``content``.
    path : str
        Its JSON path, for errors.
    by_model : bool
        Whether the model wrote it (then inline reasoning is dropped).

    Raises
    ------
    SpecError
        If a value has the wrong type.
    """
    # (value, path, whether it stands in a list): lists hold parts, contents hold lists.
    stack: list[tuple[object, str, bool]] = [(content, path, False)]
    while stack:
        value, where, is_part = stack.pop()
        if isinstance(value, str):
            add_text(text, without_reasoning(value) if by_model else value)
        elif is_part:
            if not isinstance(value, dict):
                raise wrong_type(where, value, "an object (a content part) or a string")
            stack.extend(reversed(_open_part(text, value, where, by_model)))
        elif isinstance(value, list):
            stack.extend(
                (value[index], f"{where}[{index}]", True) for index in reversed(range(len(value)))
            )
        elif value is not None:
            raise wrong_type(where, value, "a string, a list of content parts or null")


def _open_part(
    text: Text, part: dict[str, Any], path: str, by_model: bool
) -> list[tuple[object, str, bool]]:
    """Add what a part itself holds; return the contents inside it."""
    kind = part.get("type")
    if kind is None:
        kind = "text" if "text" in part else next((k for k in part if k in _IMAGES), "")
    if not isinstance(kind, str):
        raise wrong_type(f"{path}.type", kind, "a string")
    if kind in _TEXT_FIELDS:
        piece = read_string(part, _TEXT_FIELDS[kind], path)
        add_text(text, without_reasoning(piece) if by_model else piece)
    elif kind in _IMAGES:
        text.images += 1
    elif kind in _CALLS:
        add_text(text, read_string(part, "name", path))
        add_arguments(text, part, "input" if "input" in part else "arguments", path)
    elif kind == "document":
        return _open_document(text, part, path)
    elif kind == "search_result":
        for key in ("title", "source"):
            add_text(text, read_string(part, key, path))
        return [(part.get("content"), f"{path}.content", False)]
    elif kind == "compaction" or kind.endswith("tool_result"):
        content = part.get("content")
        return [(content, f"{path}.content", isinstance(content, dict))]
    elif kind not in _SILENT:
        add_text(text, json_text(part, OPAQUE_KEYS))
    return []


def _open_document(text: Text, part: dict[str, Any], path: str) -> list[tuple[object, str, bool]]:
    for key in ("title", "context"):
        add_text(text, read_string(part, key, path))
    if part.get("source") is None:
        return []
    source = read_object(part["source"], f"{path}.source")
    if source.get("type") == "text":
        add_text(text, read_string(source, "data", f"{path}.source"))
    elif source.get("type") == "content":
        return [(source.get("content"), f"{path}.source.content", False)]
    return []


def json_text(value: object, without: Collection[str] = ()) -> str:
    """Write JSON without blanks, at any depth.

    Parameters
    ----------
    value : object
        Parsed JSON.
    without : collection of str
        Keys to leave out; if any are given, data URLs in base64 are left out too.

    Returns
    -------
    str
        Empty if leaving keys out leaves nothing of an object.
    """
    out: list[str] = []
    stack: list[object] = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, _Raw):
            out.append(item.text)
        elif isinstance(item, dict):
            members = [
                (key, member)
                for key, member in item.items()
                if key not in without and not (without and _is_data_url(member))
            ]
            if item is value and without and not members:
                return ""  # nothing of it reaches the prompt
            stack.append(_Raw("}"))
            for index, (key, member) in reversed(list(enumerate(members))):
                stack.append(member)
                stack.append(_Raw(f"{',' if index else ''}{_json_string(key)}:"))
            stack.append(_Raw("{"))
        elif isinstance(item, list):
            stack.append(_Raw("]"))
            for index in reversed(range(len(item))):
                stack.append(item[index])
                if index:
                    stack.append(_Raw(","))
            stack.append(_Raw("["))
        elif isinstance(item, str):
            out.append(_json_string(item))
        elif isinstance(item, int) and not isinstance(item, bool):
            out.append(str(item))  # of any size
        else:
            out.append(orjson.dumps(item).decode())
    return "".join(out)


class _Raw:
    """Punctuation on the stack of :func:`json_text`."""

    __slots__ = ("text",)

    def __init__(self, text: str):
        self.text = text


def _json_string(value: str) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # a lone surrogate, which only Python's own parser lets through
        return orjson.dumps(value.encode("utf-8", "replace").decode()).decode()


def _is_data_url(value: object) -> bool:
    return isinstance(value, str) and value.startswith("data:") and ";base64," in value[:200]
