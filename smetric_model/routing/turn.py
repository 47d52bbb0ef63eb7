"""Turn of a request and the hit to expect, inferred from its body alone (paper §4.2).

The chat APIs are stateless: a request carries the session's history, so a router needs no table
of sessions.  The *turn* is how often the model has answered in the history a body shows, the
*expected hit* the length of what was in the last turn's cache.

Rules, the same for all APIs (the readers in :mod:`smetric_model.routing.bodies` say which entry is
what):

* system prompt, instructions and tools are static input: no turn, but part of the expected hit;
* consecutive entries of the model (text, parallel tool calls, reasoning) are one *run*, one turn;
  a run ends where somebody else's entry follows (tool results in a row start one new turn);
* a run at the very end is a prefill: new input, no turn;
* a compaction restarts the session: what lies before it is in no cache that helps;
* an unanswered user message is no turn, an empty answer is one;
* a stored-response id (``previous_response_id``, ``conversation``) is one turn more than the body
  shows, with the expected hit of what it shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from smetric_model.errors import SpecError
from smetric_model.routing.bodies import APIS, Entry, EntryKind, read_body
from smetric_model.routing.content import Text, wrong_type
from smetric_model.routing.token_count import BYTES_PER_TOKEN, ByteCount, TokenCount

__all__ = [
    "APIS",
    "BYTES_PER_TOKEN",
    "IMAGE_TOKENS",
    "Conversation",
    "TurnInfo",
    "est_hit_of_lengths",
    "infer_turn",
    "parse_body",
    "read_conversation",
]

#: Tokens of one image, whatever its encoding (assumption: about a megapixel in 28 × 28 patches).
IMAGE_TOKENS = 1_000


@dataclass(frozen=True, slots=True)
class TurnInfo:
    """What a body says about its place in the session.

    Parameters
    ----------
    turn : int
        How often the model has answered in the history; 0 for the first request of a session.
    history_items : int
        Entries of the message or input list up to and including the last run of the model before
        the new input; 0 when there is none.
    est_hit_tokens : int
        Hit to expect if nothing was evicted [tokens]: tools, system or instructions, and those
        entries; without reasoning and without encoded data.
    """

    turn: int
    history_items: int
    est_hit_tokens: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """A body read for its turn, with the prompt's texts in order.

    Parameters
    ----------
    turn : TurnInfo
        Its place in the session.
    static : list of Text
        Tools, system prompt, instructions.
    entries : list of Entry
        The message or input list from where the context starts (after the last compaction).
    """

    turn: TurnInfo
    static: list[Text]
    entries: list[Entry]


def parse_body(data: bytes) -> dict[str, Any]:
    """Parse a request body.

    Raises
    ------
    SpecError
        If it is not JSON, or not an object.
    """
    try:
        body = orjson.loads(data.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        raise SpecError(f"$: the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise wrong_type("$", body, "an object")
    return body


def infer_turn(
    api: str,
    body: dict[str, Any],
    count: TokenCount | None = None,
    image_tokens: int = IMAGE_TOKENS,
) -> TurnInfo:
    """Infer turn and expected hit from a request body.

    Parameters
    ----------
    api : {"chat", "completions", "responses", "anthropic"}
        Which API the body is for.
    body : dict
        The parsed body.
    count : TokenCount, optional
        Counts tokens of texts; :class:`ByteCount` (4 bytes a token) by default.
    image_tokens : int
        Tokens of one image [tokens].

    Returns
    -------
    TurnInfo
        Turn, history items and expected hit.

    Raises
    ------
    SpecError
        For an unknown API, or a body whose structure is wrong (names the JSON path).
    """
    return read_conversation(api, body, count, image_tokens).turn


def read_conversation(
    api: str,
    body: dict[str, Any],
    count: TokenCount | None = None,
    image_tokens: int = IMAGE_TOKENS,
) -> Conversation:
    """Read a request body for its turn, and keep the prompt's texts.

    Parameters and errors are those of :func:`infer_turn`.
    """
    if image_tokens < 0:
        raise SpecError(f"image_tokens is {image_tokens}; it cannot be negative")
    read = read_body(api, body)
    turn, start, end = _history(read.entries)
    counted = read.static
    if end:
        counted = counted + [entry.text for entry in read.entries[start:end]]
    tokens = _tokens(counted, count or ByteCount(), image_tokens)
    info = TurnInfo(turn + (1 if read.stored else 0), end, tokens)
    return Conversation(info, read.static, read.entries[start:])


def est_hit_of_lengths(
    previous_prompt_tokens: int, previous_output_tokens: int, prompt_tokens: int
) -> int:
    """Take the hit to expect where only lengths are known, as in block traces.

    Parameters
    ----------
    previous_prompt_tokens, previous_output_tokens : int
        Of the session's last request [tokens]; both are in its instance's cache afterwards.
    prompt_tokens : int
        Of this request [tokens]; a shortened history cannot hit more.

    Returns
    -------
    int
        min(previous prompt + previous output, this prompt) [tokens].
    """
    return min(previous_prompt_tokens + previous_output_tokens, prompt_tokens)


def _history(entries: Sequence[Entry]) -> tuple[int, int, int]:
    """Find turns, first entry still in the context, and end of the history (0: no history)."""
    start = _restart(entries)
    end = len(entries)
    while end > start and entries[end - 1].kind in (EntryKind.MODEL, EntryKind.NEUTRAL):
        end -= 1  # a run at the end is a prefill
    turns = last = 0
    in_run = False
    for index in range(start, end):
        kind = entries[index].kind
        if kind is EntryKind.MODEL:
            turns += not in_run
            in_run, last = True, index + 1
        elif kind is not EntryKind.NEUTRAL:
            in_run = False
    return turns, start, last


def _restart(entries: Sequence[Entry]) -> int:
    """First entry of the context: the last compaction, or 0.

    Static entries in front stay in the context; the readers keep them apart.
    """
    for index in range(len(entries) - 1, -1, -1):
        if entries[index].restarts:
            return index
    return 0


def _tokens(texts: Sequence[Text], count: TokenCount, image_tokens: int) -> int:
    pieces = [piece for text in texts for piece in text.pieces]
    return count.tokens(pieces) + image_tokens * sum(text.images for text in texts)
