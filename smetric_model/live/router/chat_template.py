"""Chat templates: the text an engine makes of a chat body.

The environment is the one templates are written for (sandboxed Jinja with trimmed blocks, loop
controls, ``tojson`` without HTML escapes, ``raise_exception``, ``strftime_now``).  Bodies are
prepared as vLLM does: lists of text parts are joined by line feeds unless the template goes
through them itself, arguments of tool calls become objects.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from smetric_model.errors import SpecError

__all__ = ["CannotRenderError", "ChatTemplate"]

#: What the router cannot know the effect of.
_UNKNOWN_MEMBERS = ("chat_template", "mm_processor_kwargs", "documents", "prompt_embeds")
_PROBE = "a-probe-of-the-template"


class CannotRenderError(ValueError):
    """A body whose prompt cannot be known here."""


class _Generation(Extension):
    """``{% generation %}``, which marks what training looks at and prints its inside."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own way

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_inside"), [], [], body).set_lineno(line)

    def _inside(self, caller: Any) -> str:
        return str(caller())


class ChatTemplate:
    """One chat template.

    Parameters
    ----------
    source : str
        Jinja source.
    variables : dict
        Special tokens by name, as templates use them (``bos_token`` …).

    Raises
    ------
    SpecError
        If it is not valid.
    """

    def __init__(self, source: str, variables: dict[str, Any] | None = None):
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise SpecError(f"hits.chat_template is not valid: {error}") from None
        self._variables = variables or {}
        self._takes_parts = self._goes_through_parts()

    @classmethod
    def find(cls, folder: Path, given: str | Path | None = None) -> ChatTemplate | None:
        """Find the template of a model's folder; None if it has none.

        Raises
        ------
        SpecError
            If a file cannot be read.
        """
        folder = folder if folder.is_dir() else folder.parent
        config = _read_json(folder / "tokenizer_config.json") or {}
        variables = {
            key: value["content"] if isinstance(value, dict) else value
            for key, value in config.items()
            if key.endswith("_token") and isinstance(value, str | dict)
        }
        source: Any = None
        file = folder / "chat_template.jinja" if given is None else Path(given)
        try:
            source = file.read_text("utf-8")
        except FileNotFoundError:
            if given is not None:
                raise SpecError(f"hits.chat_template: {file}: no such file") from None
        except (OSError, UnicodeDecodeError) as error:
            raise SpecError(f"hits.chat_template: {file} cannot be read: {error}") from None
        if source is None:
            source = config.get("chat_template")
            if isinstance(source, list):  # several, by name
                named = {one.get("name"): one.get("template") for one in source}
                source = named.get("default")
        return cls(source, variables) if isinstance(source, str) else None

    def render(self, body: dict[str, Any]) -> str:
        """Return the prompt of a chat body.

        Raises
        ------
        CannotRenderError
            If the template refuses it, or it asks for what is not known here.
        """
        if any(body.get(name) is not None for name in _UNKNOWN_MEMBERS):
            raise CannotRenderError("the body brings its own template or data")
        try:
            messages = [self._message(message) for message in body["messages"]]
            options = body.get("chat_template_kwargs")
            return self._render(
                messages=messages,
                tools=body.get("tools") or None,
                documents=None,
                add_generation_prompt=body.get("add_generation_prompt", True),
                **(options if isinstance(options, dict) else {}),
            )
        except CannotRenderError:
            raise
        except Exception as error:  # templates are programs: they may raise anything
            raise CannotRenderError(type(error).__name__) from None

    def _render(self, **variables: Any) -> str:
        return self._template.render(**{**self._variables, **variables})

    def _message(self, message: dict[str, Any]) -> dict[str, Any]:
        made = dict(message)
        content = made.get("content")
        if isinstance(content, list):
            texts = [part if isinstance(part, str) else _text(part) for part in content]
            made["content"] = (
                [{"type": "text", "text": text} for text in texts]
                if self._takes_parts
                else "\n".join(texts)
            )
        elif self._takes_parts and isinstance(content, str):
            made["content"] = [{"type": "text", "text": content}]
        if made.get("role") == "assistant" and isinstance(made.get("tool_calls"), list):
            made["tool_calls"] = [_call(call) for call in made["tool_calls"]]
        return made

    def _goes_through_parts(self) -> bool:
        """Whether the template goes through a message's parts itself: tried out."""
        parts = [{"type": "text", "text": _PROBE}]
        try:
            text = self._render(
                messages=[{"role": "user", "content": parts}], add_generation_prompt=True
            )
        except Exception:
            return False
        return _PROBE in text and "'text'" not in text and '"text"' not in text


def _text(part: dict[str, Any]) -> str:
    if part.get("type", "text") not in ("text", "input_text", "output_text", "refusal"):
        raise CannotRenderError("a part that is no text")
    text = part.get("text", part.get("refusal"))
    if not isinstance(text, str):
        raise CannotRenderError("a part without text")
    return text


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    arguments = json.loads(function["arguments"]) if function["arguments"] else {}
    return {**call, "function": {**function, "arguments": arguments}}


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise SpecError(f"hits.tokenizer: {path} cannot be read: {error}") from None
