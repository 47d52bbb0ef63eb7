"""One streamed completion over a plain socket: cheap to receive, timed by arrival of its bytes.

What arrives is only stamped with the time while it streams; it is read once the answer is whole, so
that the client takes little of a CPU that it may share with the engines.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import orjson

from smetric_model.errors import LiveError

__all__ = ["Answer", "complete"]


@dataclass
class Answer:
    """What came back.

    Attributes
    ----------
    sent_s, first_s, last_s : float
        When the request was sent, and when its first and last token came [s of the monotonic
        clock]; NaN where none came.
    token_ids : list of int
        What was generated.
    token_times_s : list of float
        When each of them came.
    cached_tokens, prompt_tokens : int
        As the engine says.
    status : int
        HTTP status; 0 without an answer.
    error : str
        Why it is not whole; empty if it is.
    headers : dict of str to str
        Of the answer, in lower case.
    """

    sent_s: float
    first_s: float = float("nan")
    last_s: float = float("nan")
    token_ids: list[int] = field(default_factory=list)
    token_times_s: list[float] = field(default_factory=list)
    cached_tokens: int = 0
    prompt_tokens: int = 0
    status: int = 0
    error: str = ""
    headers: dict[str, str] = field(default_factory=dict)


async def complete(
    url: str,
    prompt: list[int],
    output_tokens: int,
    *,
    model: str,
    headers: dict[str, str] | None = None,
    timeout_s: float = 120.0,
) -> Answer:
    """Ask for exactly so many tokens after a prompt of token ids.

    Parameters
    ----------
    url : str
        Engine or router, ``http://host:port``.
    prompt : list of int
        Token ids.
    output_tokens : int
        Tokens to generate; the end-of-sequence token does not end it.
    model : str
        Name under which the model is served.
    headers : dict, optional
        Added to the request's.
    timeout_s : float
        After which the answer counts as failed [s].

    Returns
    -------
    Answer
        With ``error`` set where it failed; nothing is raised for that.
    """
    parts = urlsplit(url)
    body = orjson.dumps(
        {
            "model": model,
            "prompt": prompt,
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
    )
    lines = [
        "POST /v1/completions HTTP/1.1",
        f"host: {parts.netloc}",
        "content-type: application/json",
        "connection: close",
        f"content-length: {len(body)}",
        *(f"{name}: {value}" for name, value in (headers or {}).items()),
    ]
    request = "\r\n".join(lines).encode() + b"\r\n\r\n" + body
    answer = Answer(time.monotonic())
    pieces: list[tuple[float, bytes]] = []
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            try:
                writer.write(request)
                await writer.drain()
                end = b""
                while piece := await reader.read(1 << 16):
                    pieces.append((time.monotonic(), piece))
                    end = (end + piece)[-7:]
                    if end == b"\r\n0\r\n\r\n":  # the last chunk, where the line stays open
                        break
            finally:
                writer.close()
    except TimeoutError:
        answer.error = f"no whole answer in {timeout_s:g} s"
    except OSError as error:
        answer.error = f"connection: {error.strerror or error}"
    try:
        _read(answer, pieces, output_tokens)
    except (ValueError, KeyError, IndexError, TypeError, LiveError) as error:
        answer.error = answer.error or f"answer: {error}"
    return answer


def _read(answer: Answer, pieces: list[tuple[float, bytes]], output_tokens: int) -> None:
    whole = b"".join(piece for _, piece in pieces)
    if not whole:
        raise LiveError("empty")
    head, found, rest = whole.partition(b"\r\n\r\n")
    if not found:
        raise LiveError("cut off within its head")
    status, *fields = head.split(b"\r\n")
    answer.status = int(status.split()[1])
    for line in fields:
        name, _, value = line.decode("latin-1").partition(":")
        answer.headers[name.strip().lower()] = value.strip()
    if answer.status != 200:
        raise LiveError(f"HTTP {answer.status}: {rest[:200].decode(errors='replace')}")
    # where each received piece ends, to find when an event came
    ends, position = [], -len(head) - 4
    for when, piece in pieces:
        position += len(piece)
        ends.append((position, when))
    at = 0
    chunked = answer.headers.get("transfer-encoding", "").lower() == "chunked"
    for offset, event in _events(rest, chunked):
        while at < len(ends) - 1 and ends[at][0] < offset:
            at += 1
        if event == b"[DONE]":
            continue
        data = orjson.loads(event)
        if "error" in data:
            raise LiveError(str(data["error"])[:200])
        _take(answer, data, ends[at][1])
    if answer.token_times_s:
        answer.first_s, answer.last_s = answer.token_times_s[0], answer.token_times_s[-1]
    if len(answer.token_ids) != output_tokens:
        raise LiveError(f"{len(answer.token_ids)} of {output_tokens} tokens")


def _take(answer: Answer, data: dict[str, Any], when: float) -> None:
    for choice in data.get("choices") or []:
        ids = choice.get("token_ids") or []
        answer.token_ids += ids
        answer.token_times_s += [when] * len(ids)
    usage = data.get("usage")
    if usage:
        answer.prompt_tokens = usage["prompt_tokens"]
        details = usage.get("prompt_tokens_details") or {}
        answer.cached_tokens = details.get("cached_tokens") or 0


def _events(body: bytes, chunked: bool) -> list[tuple[int, bytes]]:
    """Return the data of each event, with the offset in ``body`` at which it was complete."""
    found: list[tuple[int, bytes]] = []
    if not chunked:
        spans = [(0, body)]
    else:
        spans, at = [], 0
        while at < len(body):
            line, newline, _ = body[at : at + 20].partition(b"\r\n")
            if not newline:
                break
            size = int(line.split(b";")[0], 16)
            at += len(line) + 2
            if size == 0:
                break
            spans.append((at, body[at : at + size]))
            at += size + 2
    left = b""
    for start, span in spans:
        lines = (left + span).split(b"\n")
        shift = start - len(left)
        left = lines.pop()
        for line in lines:
            shift += len(line) + 1
            if line.startswith(b"data:"):
                found.append((shift, line[5:].strip()))
    return found
