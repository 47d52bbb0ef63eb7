"""Keys of a prompt's prefixes: chained hashes of its messages, or of pieces of a plain prompt.

The hash is fast and not cryptographic, with a seed of this process: a collision makes a wrong
guess about a cache, never a wrong answer.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from xxhash import xxh3_64_intdigest

from smetric_model.routing.bodies import Entry, EntryKind
from smetric_model.routing.token_count import BYTES_PER_TOKEN
from smetric_model.routing.turn import IMAGE_TOKENS, Conversation

__all__ = ["SEED", "Chain", "answered_key", "chain_of_conversation", "chain_of_prompt"]

#: of this process
SEED = secrets.randbits(64)
#: Tokens of one element of a plain prompt: fine enough for a shared prefix, coarse enough to be
#: cheap.
PIECE_TOKENS = 64
_SEPARATOR = b"\x1f"


@dataclass(slots=True)
class Chain:
    """A prompt as a chain.

    Parameters
    ----------
    keys : list of int
        Key of every prefix.
    ends : list of int
        Length of every prefix [tokens].
    answers : list of int
        ``answers[i]``: length of the prefix with the model's entries that follow element i
        [tokens]; ``ends[i]`` where none follow.
    session_key : int
        Hash of what the session starts with.
    has_images : bool
        Whether the prompt has images.
    """

    keys: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    session_key: int = 0
    has_images: bool = False

    @property
    def prompt_tokens(self) -> int:
        """Length of the whole prompt [tokens]."""
        return self.ends[-1] if self.ends else 0


def answered_key(key: int) -> int:
    """Key of "this prefix, and the answer given to it"."""
    return key ^ 0x9E3779B97F4A7C15


def chain_of_conversation(
    api: str, conversation: Conversation, body: dict[str, Any], root: bytes = b""
) -> Chain:
    """Chain the entries of a conversation; the static part is the first element.

    Parameters
    ----------
    api : str
        Which API the body is for.
    conversation : Conversation
        The body, read.
    body : dict
        The body; images are told apart by what it says of them.
    root : bytes
        What keeps caches apart: model, tenant.
    """
    chain = Chain()
    images = any(entry.text.images for entry in conversation.entries)
    raw = _image_data(api, conversation, body) if images else None
    key = xxh3_64_intdigest(root, SEED)
    size = image_tokens = 0
    data = [piece for text in conversation.static for piece in text.pieces]
    if data:
        joined = _encoded(data)
        size += len(joined) - len(data)
        image_tokens += IMAGE_TOKENS * sum(text.images for text in conversation.static)
        key = xxh3_64_intdigest(joined, key)
        _add(chain, key, size // BYTES_PER_TOKEN + image_tokens)
    opening = 0
    for index, entry in enumerate(conversation.entries):
        text = entry.text
        if _is_silent(entry):
            continue
        joined = _encoded(text.pieces)
        size += len(joined) - len(text.pieces)
        image_tokens += IMAGE_TOKENS * text.images
        if raw is not None and text.images:
            joined += raw(index)
        key = xxh3_64_intdigest(entry.kind.name.encode() + joined, key)
        _add(chain, key, size // BYTES_PER_TOKEN + image_tokens)
        if entry.kind is EntryKind.INPUT and not opening:
            opening = key
    chain.session_key = opening or key
    answered = conversation.turn.history_items > 0
    chain.answers = _with_answers(chain, conversation) if answered else chain.ends
    chain.has_images = images or image_tokens > 0
    return chain


def _is_silent(entry: Entry) -> bool:
    """Whether an entry adds nothing to the prompt: told in the static part, or reasoning."""
    return not entry.text.pieces and not entry.text.images


def _add(chain: Chain, key: int, tokens: int) -> None:
    chain.keys.append(key)
    chain.ends.append(tokens)


def _with_answers(chain: Chain, conversation: Conversation) -> list[int]:
    """For every element, the prefix with the run of the model that follows it."""
    kinds = [entry.kind for entry in conversation.entries if not _is_silent(entry)]
    answers = list(chain.ends)
    offset = len(chain.ends) - len(kinds)
    for position in range(len(kinds) - 2, -1, -1):
        # the last entry is new input, or a prefill: nobody has answered with it yet
        if kinds[position + 1] is EntryKind.MODEL and position + 2 < len(kinds):
            follows = offset + position + 1
            answers[offset + position] = max(answers[follows], chain.ends[follows])
    return answers


def _encoded(pieces: Sequence[str]) -> bytes:
    # Each piece with its length's worth of separator: ["ab"] and ["a", "b"] differ.
    return b"".join(piece.encode("utf-8", "surrogatepass") + _SEPARATOR for piece in pieces)


def _image_data(api: str, conversation: Conversation, body: dict[str, Any]) -> Any:
    """Return a function of an entry's index that gives bytes which tell its images apart."""
    listed = body.get("input" if api == "responses" else "messages")
    if isinstance(listed, list) and len(listed) >= len(conversation.entries):
        first = len(listed) - len(conversation.entries)
        return lambda index: orjson.dumps(listed[first + index], option=orjson.OPT_SORT_KEYS)
    whole = orjson.dumps(listed)
    return lambda index: whole


def chain_of_prompt(prompt: object, root: bytes = b"") -> Chain:
    """Chain the prompt of a completion: a text, token ids, or a list of either.

    Of several prompts each is chained by itself in its turn, so that equal first prompts match;
    the length is that of all.
    """
    chain = Chain()
    key = xxh3_64_intdigest(root, SEED)
    total = 0
    for one in _prompts(prompt):
        if isinstance(one, str):
            data = one.encode("utf-8", "surrogatepass")
            step, unit = PIECE_TOKENS * BYTES_PER_TOKEN, BYTES_PER_TOKEN
        else:
            data = array("Q", one).tobytes()
            step, unit = PIECE_TOKENS * 8, 8
        for start in range(0, len(data), step):
            piece = data[start : start + step]
            key = xxh3_64_intdigest(piece, key)
            chain.keys.append(key)
            chain.ends.append(total + (start + len(piece)) // unit)
        total = chain.ends[-1] if chain.ends else 0
        if not chain.session_key and chain.keys:
            chain.session_key = chain.keys[0]
    chain.answers = list(chain.ends)
    return chain


def _prompts(prompt: object) -> list[Any]:
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        return []
    return prompt if isinstance(prompt[0], str | list) else [prompt]
