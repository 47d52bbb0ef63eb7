"""The client: times and tokens from the bytes of a stream, however they are cut."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smetric_model.live.client import Answer, _read, complete

TOKENS = [17, 18, 19]


def stream(chunked: bool) -> tuple[bytes, bytes]:
    events = [{"choices": [{"token_ids": [token]}]} for token in TOKENS]
    usage = {"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}}
    events.append({"choices": [], "usage": usage})
    lines = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
    lines.append(b"data: [DONE]\n\n")
    if not chunked:
        return b"HTTP/1.1 200 OK\r\n\r\n", b"".join(lines)
    body = b"".join(b"%x\r\n" % len(line) + line + b"\r\n" for line in lines) + b"0\r\n\r\n"
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: b\r\n\r\n", body


@given(st.booleans(), st.lists(st.integers(1, 400), max_size=12))
def test_cuts_change_nothing_but_times(chunked, cuts):
    head, body = stream(chunked)
    whole = head + body
    edges = sorted({0, *(cut for cut in cuts if cut < len(whole)), len(whole)})
    pieces = [(float(i), whole[a:b]) for i, (a, b) in enumerate(itertools.pairwise(edges))]
    answer = Answer(0.0)
    _read(answer, pieces, len(TOKENS))
    assert answer.token_ids == TOKENS
    assert (answer.prompt_tokens, answer.cached_tokens) == (7, 4)
    assert answer.token_times_s == sorted(answer.token_times_s)
    # a token came with the piece that completed its line
    ends = [whole.index(b'"token_ids": [%d]' % token) for token in TOKENS]
    for end, when in zip(ends, answer.token_times_s, strict=True):
        assert edges[int(when) + 1] > end


def test_nobody_listens():
    answer = asyncio.run(complete("http://127.0.0.1:9", [1], 1, model="m", timeout_s=2))
    assert answer.error.startswith("connection")


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (b"HTTP/1.1 503 No\r\n\r\nbusy", "HTTP 503: busy"),
        (b"HTTP/1.1 200 OK\r\n\r\ndata: {}\n\n", "0 of 1 tokens"),
        (b"HTTP/1.1 200 OK\r\n\r\ndata: {\n\n", "answer:"),
        (b'HTTP/1.1 200 OK\r\n\r\ndata: {"error": "gone"}\n\n', "gone"),
        (b"", "empty"),
        (None, "no whole answer"),
    ],
)
def test_what_is_no_answer(reply, words):
    async def ask() -> Answer:
        async def serve(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            if reply is None:
                await asyncio.sleep(0.7)
            else:
                writer.write(reply)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            answer = await complete(f"http://127.0.0.1:{port}", [1, 2], 1, model="m", timeout_s=0.5)
            await asyncio.sleep(0.4)  # the server closes its side too
            return answer

    answer = asyncio.run(ask())
    assert words in answer.error
