"""Read request bodies of four APIs into one list of entries: whose they are and what they say.

OpenAI chat completions, completions and Responses, and Anthropic messages, with what vLLM and
common agents add to them.  Types not known today are read by their shape (``…_call`` is the
model's, ``…_output`` is not), so that a new tool does not stop the router; values of the wrong
JSON type are errors that name the path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from smetric_model.errors import SpecError
from smetric_model.routing.content import (
    OPAQUE_KEYS,
    Text,
    add_arguments,
    add_content,
    add_text,
    json_text,
    read_list,
    read_object,
    read_string,
    type_name,
    without_reasoning,
    wrong_type,
)

__all__ = ["APIS", "Body", "Entry", "EntryKind", "read_body"]

_STATIC_ROLES = ("system", "developer")
_COMPACTIONS = ("compaction", "compaction_summary", "context_compaction")
#: A block that one agent puts in front of its system prompt, different in every request; providers
#: strip it, and a cache that kept it would never hit.
_BILLING_HEADER = "x-anthropic-billing-header:"


class EntryKind(Enum):
    """Whose an entry is."""

    STATIC = auto()
    """System prompt."""
    MODEL = auto()
    """The model's: text, tool call, reasoning."""
    INPUT = auto()
    """Somebody else's: user, tool."""
    NEUTRAL = auto()
    """Neither ends a run nor makes one (a server's list of tools)."""
    COMPACTION = auto()
    """Stands for everything before it."""


@dataclass(slots=True)
class Entry:
    """One entry of the message or input list.

    Parameters
    ----------
    kind : EntryKind
        Whose it is.
    text : Text
        What it adds to the prompt.
    restarts : bool
        Whether the context starts with this entry (a compaction).
    """

    kind: EntryKind
    text: Text
    restarts: bool = False


@dataclass(slots=True)
class Body:
    """A request body, read.

    Parameters
    ----------
    entries : list of Entry
        The message or input list, entry by entry.  System messages in front have their text in
        ``static``.
    static : list of Text
        Tools, system prompt, instructions.
    stored : bool
        Whether it continues a conversation that the server has stored.
    """

    entries: list[Entry] = field(default_factory=list)
    static: list[Text] = field(default_factory=list)
    stored: bool = False


def read_body(api: str, body: dict[str, Any]) -> Body:
    """Read a body of the given API.

    Raises
    ------
    SpecError
        For an unknown API or a value of the wrong type (names the JSON path).
    """
    try:
        reader = _READERS[api]
    except KeyError:
        raise SpecError(f"api {api!r} is not known; one of {', '.join(_READERS)}") from None
    return reader(read_object(body, "$"))


def _read_chat(body: dict[str, Any]) -> Body:
    read = Body(static=[_tools(body, "tools"), _tools(body, "functions")])
    for index, value in enumerate(read_list(body, "messages", "$")):
        if isinstance(value, dict) and len(value) == 2:  # most are a role and a text: quickly read
            role, content = value.get("role"), value.get("content")
            if isinstance(role, str) and isinstance(content, str):
                kind = _kind_of(role)
                if kind is EntryKind.MODEL:
                    content = without_reasoning(content)
                read.entries.append(Entry(kind, Text([content] if content else [])))
                continue
        path = f"$.messages[{index}]"
        message = read_object(value, path)
        role = _role(message, path)
        text = Text()
        add_content(text, message.get("content"), f"{path}.content", by_model=role == "assistant")
        add_text(text, read_string(message, "refusal", path))
        for position, call in enumerate(read_list(message, "tool_calls", path)):
            _add_chat_call(text, call, f"{path}.tool_calls[{position}]")
        if message.get("function_call") is not None:
            _add_function(text, message["function_call"], f"{path}.function_call")
        read.entries.append(Entry(_kind_of(role), text))
    return _with_leading_static(read)


def _add_chat_call(text: Text, value: object, path: str) -> None:
    call = read_object(value, path)
    for key in ("function", "custom"):
        if call.get(key) is not None:
            _add_function(text, call[key], f"{path}.{key}")


def _add_function(text: Text, value: object, path: str) -> None:
    function = read_object(value, path)
    add_text(text, read_string(function, "name", path))
    add_arguments(text, function, "input" if "input" in function else "arguments", path)


def _read_anthropic(body: dict[str, Any]) -> Body:
    system = Text()
    add_content(system, body.get("system"), "$.system")
    read = Body(static=[_tools(body, "tools"), _without_billing(system)])
    for index, value in enumerate(read_list(body, "messages", "$")):
        path = f"$.messages[{index}]"
        message = read_object(value, path)
        role = _role(message, path)
        content, by_model = message.get("content"), role == "assistant"
        kind, text = _kind_of(role), Text()
        add_content(text, content, f"{path}.content", by_model=by_model)
        first = _last_compaction(content)
        if first is not None:  # checked as a whole, counted from the compaction on
            rest = content[first:] if isinstance(content, list) else []
            if len(rest) == 1:
                kind = EntryKind.COMPACTION  # nothing was generated after it yet
            text = Text()
            add_content(text, rest, f"{path}.content", by_model=by_model)
        read.entries.append(Entry(kind, text, restarts=first is not None))
    return _with_leading_static(read)


def _last_compaction(content: Any) -> int | None:
    if isinstance(content, list):
        for index in range(len(content) - 1, -1, -1):
            if _is_compaction(content[index]):
                return index
    return None


def _is_compaction(block: object) -> bool:
    """Whether a block replaces what lies before it; one without content failed, and does not."""
    return (
        isinstance(block, dict)
        and block.get("type") == "compaction"
        and bool(block.get("content") or block.get("encrypted_content"))
    )


def _read_responses(body: dict[str, Any]) -> Body:
    instructions = Text()
    _add_instructions(instructions, body.get("instructions"))
    read = Body(static=[_tools(body, "tools"), instructions], stored=_is_stored(body))
    given = body.get("input")
    if given is None:
        return read
    if isinstance(given, str):
        read.entries.append(Entry(EntryKind.INPUT, Text([given])))
        return read
    if not isinstance(given, list):
        raise wrong_type("$.input", given, "a string or a list of items")
    for index, value in enumerate(given):
        path = f"$.input[{index}]"
        read.entries.append(_read_item(read_object(value, path), path))
    return _with_leading_static(read)


def _add_instructions(text: Text, value: object) -> None:
    if not isinstance(value, list):
        add_content(text, value, "$.instructions")
        return
    for index, item in enumerate(value):
        path = f"$.instructions[{index}]"
        if isinstance(item, dict) and "role" in item:
            add_content(text, item.get("content"), f"{path}.content")
        else:
            add_content(text, [item], path)


def _is_stored(body: dict[str, Any]) -> bool:
    conversation = body.get("conversation")
    if isinstance(conversation, dict):
        name = read_string(conversation, "id", "$.conversation")
    else:
        name = read_string(body, "conversation", "$")
    return bool(read_string(body, "previous_response_id", "$") or name)


def _read_item(item: dict[str, Any], path: str) -> Entry:
    kind = item.get("type")
    if kind is not None and not isinstance(kind, str):
        raise wrong_type(f"{path}.type", kind, "a string")
    if kind in (None, "message") and "role" in item:
        return _read_message(item, path)
    if kind == "message":
        raise SpecError(f"{path}.role is missing; a message needs a role")
    if kind is None:
        if "id" not in item:
            raise SpecError(f"{path} has neither 'role' nor 'type'; an item needs one of them")
        kind = "item_reference"
    if kind in ("item_reference", "reasoning"):
        # Stored items that clients refer to are the model's own.
        return Entry(EntryKind.MODEL, Text())
    text = Text()
    if kind in _COMPACTIONS:
        for key in ("summary", "content"):
            add_content(text, item.get(key), f"{path}.{key}")
        return Entry(EntryKind.COMPACTION, text, restarts=True)
    if kind == "mcp_list_tools":
        for tool in read_list(item, "tools", path):
            add_text(text, json_text(tool))
        return Entry(EntryKind.NEUTRAL, text)
    if kind.endswith("_call") or kind == "mcp_approval_request":
        return Entry(EntryKind.MODEL, _call_text(item, kind, path))
    if kind.endswith(("_output", "_result", "_response")):
        output = item.get("output")
        if isinstance(output, str | list) or output is None:
            add_content(text, output, f"{path}.output")
        else:
            add_content(text, [output], f"{path}.output")
        # A tool that the server ran belongs to the run that called it.
        ran_here = item.get("execution") == "server"
        return Entry(EntryKind.NEUTRAL if ran_here else EntryKind.INPUT, text)
    if "role" in item:
        return _read_message(item, path)
    add_text(text, json_text(item, OPAQUE_KEYS))
    return Entry(EntryKind.INPUT, text)


def _read_message(item: dict[str, Any], path: str) -> Entry:
    role = _role(item, path)
    text = Text()
    add_content(text, item.get("content"), f"{path}.content", by_model=role == "assistant")
    return Entry(_kind_of(role), text)


def _call_text(item: dict[str, Any], kind: str, path: str) -> Text:
    """Text of a tool call: what the model wrote and, for hosted tools, what came back."""
    text = Text()
    if kind == "image_generation_call":
        text.images = 1 if item.get("result") else 0
        return text
    add_text(text, read_string(item, "name", path))
    for key in ("arguments", "input", "code", "action", "actions", "operation", "queries"):
        add_arguments(text, item, key, path)
    for key in ("output", "outputs", "results"):
        value = item.get(key)
        if isinstance(value, str):
            add_text(text, value)
        elif value is not None:
            add_text(text, json_text(value, OPAQUE_KEYS))
    return text


def _read_completions(body: dict[str, Any]) -> Body:
    """Check a prompt; it has no structure, so it shows no history."""
    prompt = body.get("prompt")
    if prompt is None:
        return Body()
    if not isinstance(prompt, str):
        if not isinstance(prompt, list):
            raise wrong_type("$.prompt", prompt, "a string, token ids, or a list of either")
        _check_prompts(prompt)
    return Body(entries=[Entry(EntryKind.INPUT, Text())])


def _check_prompts(prompt: list[Any]) -> None:
    if not prompt:
        return
    first = prompt[0]
    if _is_token(first):
        _check_tokens(prompt, "$.prompt")
    elif isinstance(first, str):
        for index, text in enumerate(prompt):
            if not isinstance(text, str):
                raise wrong_type(f"$.prompt[{index}]", text, "a string, as the first is,")
    elif isinstance(first, list):
        for index, tokens in enumerate(prompt):
            if not isinstance(tokens, list):
                raise wrong_type(f"$.prompt[{index}]", tokens, "a list, as the first is,")
            _check_tokens(tokens, f"$.prompt[{index}]")
    else:
        what = repr(first) if isinstance(first, int | float) else type_name(first)
        raise SpecError(
            f"$.prompt[0] is {what}; a string, a token id (a whole number, 0 or more) or a list "
            "of token ids is allowed"
        )


def _check_tokens(tokens: list[Any], path: str) -> None:
    for index, token in enumerate(tokens):
        if not _is_token(token):
            raise SpecError(
                f"{path}[{index}] is {token!r}; a token id (a whole number, 0 or more) is allowed"
            )


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _tools(body: dict[str, Any], key: str) -> Text:
    text = Text()
    for index, tool in enumerate(read_list(body, key, "$")):
        add_text(text, json_text(read_object(tool, f"$.{key}[{index}]"), ("cache_control",)))
    return text


def _role(message: dict[str, Any], path: str) -> str:
    if "role" not in message:
        raise SpecError(f"{path}.role is missing; a message needs a role")
    role = message["role"]
    if not isinstance(role, str):
        raise wrong_type(f"{path}.role", role, "a string")
    return role


def _kind_of(role: str) -> EntryKind:
    if role == "assistant":
        return EntryKind.MODEL
    return EntryKind.STATIC if role in _STATIC_ROLES else EntryKind.INPUT


def _with_leading_static(read: Body) -> Body:
    """Move the text of system messages in front to the static part: a prefix of every turn."""
    for entry in read.entries:
        if entry.kind is not EntryKind.STATIC:
            break
        read.static.append(_without_billing(entry.text))
        entry.text = Text()
    return read


def _without_billing(text: Text) -> Text:
    pieces = [
        piece.partition("\n")[2] if piece.startswith(_BILLING_HEADER) else piece
        for piece in text.pieces
    ]
    return Text([piece for piece in pieces if piece], text.images)


_READERS: dict[str, Callable[[dict[str, Any]], Body]] = {
    "chat": _read_chat,
    "completions": _read_completions,
    "responses": _read_responses,
    "anthropic": _read_anthropic,
}

#: Names of the APIs a body can be for.
APIS = tuple(_READERS)
