"""The connection code by itself: any split of the bytes, any bytes."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from smetric_model.live.router.config import LimitSection, TimeoutSection
from smetric_model.live.router.http_client import EngineConnection, EnginePool
from smetric_model.live.router.http_server import ClientConnection, Incoming, Server


class Pipe:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closed = False
        self.reading = True

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(places) if a != b]


def served(data: bytes, cuts: list[int]) -> tuple[list[Incoming], bytes, bool]:
    """Feed bytes to a connection whose requests are answered at once."""

    async def main() -> tuple[list[Incoming], bytes, bool]:
        seen: list[Incoming] = []

        def handler(request: Incoming, client: ClientConnection) -> None:
            seen.append(request)
            client.send(200, [], b"ok")

        server = Server(handler, LimitSection(header_bytes=2048, body_bytes=500), TimeoutSection())
        connection = ClientConnection(server, asyncio.get_running_loop())
        pipe = Pipe()
        connection.connection_made(pipe)
        for piece in pieces(data, cuts):
            connection.data_received(piece)
        connection.connection_lost(None)
        assert not server.connections
        return seen, bytes(pipe.written), pipe.closed

    return asyncio.run(main())


BODY = b'{"messages": []}'
REQUESTS = [
    b"POST /v1/x?y=1 HTTP/1.1\r\nHost: a\r\nX-A:  b \r\nContent-Length: 16\r\n\r\n" + BODY,
    b"POST /v1/x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n%s\r\nc;ext=1\r\n%s\r\n"
    b"0\r\nTrailer: t\r\n\r\n" % (BODY[:4], BODY[4:]),
    b"GET / HTTP/1.1\r\nConnection: keep-alive\r\n\r\n",
    b"HEAD /z HTTP/1.1\r\n\r\n",
]
cuts_of = st.lists(st.integers(0, 2000), max_size=12)


@given(st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=4), cuts_of)
@settings(max_examples=80)
def test_requests_are_the_same_however_they_are_split(parts: list[bytes], cuts: list[int]) -> None:
    data = b"".join(parts)
    whole, split = served(data, []), served(data, cuts)
    assert [(r.method, r.target, r.headers, r.body) for r in whole[0]] == [
        (r.method, r.target, r.headers, r.body) for r in split[0]
    ]
    assert len(whole[0]) == len(parts)
    assert whole[1] == split[1]
    for request in whole[0]:
        if request.method == b"POST":
            assert request.body == BODY
            assert all(name == name.lower() for name, _ in request.headers)
            assert b"trailer" not in dict(request.headers)


@given(st.binary(max_size=300), st.sampled_from(REQUESTS), st.integers(0, 200), cuts_of)
@settings(max_examples=150)
def test_any_bytes_are_answered_or_waited_for(
    noise: bytes, request: bytes, at: int, cuts: list[int]
) -> None:
    for data in (noise, request[:at] + noise, request + noise, request[:at] + noise + request[at:]):
        seen, written, closed = served(data, cuts)
        answers = written.count(b"HTTP/1.1 ")
        assert answers >= len(seen)
        if answers > len(seen):  # a refusal is the last word
            assert closed
        for status in (b"HTTP/1.1 5",):
            assert status not in written.replace(b"HTTP/1.1 501", b"").replace(b"HTTP/1.1 505", b"")


class Taken:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.status = 0
        self.length: int | None = None
        self.body = bytearray()
        self.ends: list[str] = []

    def on_head(self, status: int, headers: Any, length: int | None) -> None:
        assert not self.ends
        self.status, self.length = status, length

    def on_piece(self, piece: bytes) -> None:
        assert not self.ends
        assert self.status
        self.body += piece

    def on_end(self) -> None:
        self.ends.append("end")

    def on_broken(self, word: str, stale: bool) -> None:
        self.ends.append(word)


def received(data: bytes, cuts: list[int], no_body: bool = False) -> tuple[Taken, Pipe, int]:
    async def main() -> tuple[Taken, Pipe, int]:
        pool = EnginePool("http", "h", 1, connect_s=1, keep_alive_s=1)
        connection, pipe, sink = EngineConnection(pool), Pipe(), Taken()
        connection.connection_made(pipe)
        connection.send(b"", b"", sink, no_body=no_body)
        for piece in pieces(data, cuts):
            connection.data_received(piece)
        idle = pool.idle
        connection.connection_lost(None)
        assert len(sink.ends) == 1  # one end, whatever came
        assert not pool.open
        return sink, pipe, idle

    return asyncio.run(main())


ANSWERS = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n"
    b"0\r\nA: b\r\n\r\n",
    "to the close": b"HTTP/1.1 200 OK\r\n\r\nhello",
    "after 100": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "http/1.0": b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
}


@given(st.sampled_from(list(ANSWERS)), cuts_of)
@settings(max_examples=80)
def test_answers_are_the_same_however_they_are_split(kind: str, cuts: list[int]) -> None:
    sink, _, idle = received(ANSWERS[kind], cuts)
    assert (sink.status, bytes(sink.body), sink.ends) == (200, b"hello", ["end"])
    assert idle == (1 if kind in ("length", "chunks", "after 100") else 0)


@given(st.sampled_from(["length", "chunks"]), st.integers(0, 90), cuts_of)
def test_an_answer_cut_short_is_never_taken_for_whole(kind: str, at: int, cuts: list[int]) -> None:
    data = ANSWERS[kind][: at % len(ANSWERS[kind])]
    sink, _, idle = received(data, cuts)
    assert sink.ends != ["end"]
    assert idle == 0


@given(st.binary(max_size=200), st.sampled_from(list(ANSWERS)), st.integers(0, 100), cuts_of)
@settings(max_examples=150)
def test_any_bytes_of_an_engine_have_one_end(
    noise: bytes, kind: str, at: int, cuts: list[int]
) -> None:
    answer = ANSWERS[kind]
    for data in (noise, answer[:at] + noise, answer[:at] + noise + answer[at:]):
        received(data, cuts)
    sink, pipe, idle = received(answer + b"unasked" + noise, [])
    if kind != "to the close":
        assert sink.ends == ["end"]
        assert pipe.closed or not idle or kind == "after 100"


def test_a_head_answer_has_no_body_and_ends() -> None:
    sink, pipe, idle = received(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n", [], no_body=True)
    assert (sink.status, sink.length, sink.ends) == (200, 500, ["end"])
    assert pipe.closed
    assert idle == 0
