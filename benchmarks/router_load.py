"""Engines and clients for ``router_overhead.py``: quick, and the same for every router.

Usage: ``router_load.py engines PORT...`` answers at once on those ports until killed.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass, field

CHUNK = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":" word"}}]}\n\n'
CHUNKS = 64
CHUNK_S = 0.005
ANSWER = (
    b'{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"done"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,'
    b'"completion_tokens":1,"total_tokens":10}}'
)


def _head(kind: bytes, length: int | None, status: bytes = b"200 OK") -> bytes:
    size = b"transfer-encoding: chunked" if length is None else b"content-length: %d" % length
    return b"HTTP/1.1 %s\r\ncontent-type: %s\r\n%s\r\n\r\n" % (status, kind, size)


_WHOLE = _head(b"application/json", len(ANSWER)) + ANSWER
_MODELS = b'{"object":"list","data":[{"id":"m","object":"model"}]}'
_INFO = b'{"model_path":"m","is_generation":true,"served_model_name":"m"}'
_SMALL = {
    b"/v1/models": _head(b"application/json", len(_MODELS)) + _MODELS,
    b"/health": _head(b"text/plain", 0),
    b"/get_model_info": _head(b"application/json", len(_INFO)) + _INFO,
    b"/model_info": _head(b"application/json", len(_INFO)) + _INFO,
    b"/get_server_info": _head(b"application/json", 2) + b"{}",
    b"/server_info": _head(b"application/json", 2) + b"{}",
    b"/metrics": _head(b"text/plain", 0),
}
_NONE = _head(b"application/json", 2, b"404 Not Found") + b"{}"
_STREAM = _head(b"text/event-stream", None)
_FRAME = b"%x\r\n%s\r\n" % (len(CHUNK), CHUNK)
_LAST = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


class Mock(asyncio.Protocol):
    """An engine that costs as little as possible."""

    asked: dict[bytes, int] = {}  # noqa: RUF012 - one process, one count

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.buffer = b""
        self.need = 0

    def data_received(self, data: bytes) -> None:
        self.buffer = self.buffer + data if self.buffer else data
        while True:
            if not self.need:
                end = self.buffer.find(b"\r\n\r\n")
                if end < 0:
                    return
                head = self.buffer[:end].lower()
                at = head.find(b"content-length:")
                length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
                self.need = end + 4 + length
            if len(self.buffer) < self.need:
                return
            request, self.buffer = self.buffer[: self.need], self.buffer[self.need :]
            self.need = 0
            self.answer(request)

    def answer(self, request: bytes) -> None:
        path = request.split(b" ", 2)[1].split(b"?")[0]
        self.asked[path] = self.asked.get(path, 0) + 1
        if path.endswith(b"/completions"):
            if b'"stream":true' in request:
                self.transport.write(_STREAM + _FRAME)
                self.left = CHUNKS - 1
                self.loop = asyncio.get_running_loop()
                self.due = self.loop.time() + CHUNK_S
                self.loop.call_at(self.due, self.tick)
            else:
                self.transport.write(_WHOLE)
        else:
            self.transport.write(_SMALL.get(path, _NONE))

    def tick(self) -> None:
        if self.transport.is_closing():
            return
        if self.left:
            self.left -= 1
            self.transport.write(_FRAME)
            self.due += CHUNK_S
            self.loop.call_at(self.due, self.tick)
        else:
            self.transport.write(_LAST)


async def engines(ports: list[int]) -> None:
    loop = asyncio.get_running_loop()
    for port in ports:
        await loop.create_server(Mock, "127.0.0.1", port)
    print("ready", flush=True)
    await asyncio.Event().wait()


@dataclass
class Load:
    """A closed loop of connections, each one request after the other."""

    port: int
    bodies: list[bytes]
    connections: int
    requests: int
    seconds: list[float] = field(default_factory=list)
    errors: int = 0
    chunks: int = 0

    async def run(self) -> float:
        """Return the wall time [s]."""
        loop = asyncio.get_running_loop()
        self.left = self.requests
        self.done = loop.create_future()
        self.open = self.connections
        start = time.perf_counter()
        for index in range(self.connections):
            await loop.create_connection(lambda i=index: _Client(self, i), "127.0.0.1", self.port)
        await self.done
        return time.perf_counter() - start


class _Client(asyncio.Protocol):
    def __init__(self, load: Load, index: int):
        self.load = load
        self.next = index
        self.parts: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.send()

    def send(self) -> None:
        load = self.load
        if load.left <= 0:
            self.transport.close()
            return
        load.left -= 1
        body = load.bodies[self.next % len(load.bodies)]
        self.next += 1
        self.parts = []
        self.start = time.perf_counter()
        self.transport.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        )
        self.transport.write(body)

    def data_received(self, data: bytes) -> None:
        parts = self.parts
        parts.append(data)
        tail = data if len(data) > 64 or len(parts) < 2 else parts[-2] + data
        streamed = tail.endswith(b"0\r\n\r\n")
        if not streamed and not (tail.endswith(b"}}") and self.whole()):
            return
        load = self.load
        load.seconds.append(time.perf_counter() - self.start)
        text = b"".join(parts)
        if not text.startswith(b"HTTP/1.1 200"):
            load.errors += 1
        load.chunks += text.count(b"data: {")
        self.send()

    def whole(self) -> bool:
        text = b"".join(self.parts)
        head, _, body = text.partition(b"\r\n\r\n")
        at = head.lower().find(b"content-length:")
        return at >= 0 and len(body) >= int(head[at + 15 :].split(b"\r\n", 1)[0])

    def connection_lost(self, exc: Exception | None) -> None:
        load = self.load
        if self.parts and load.left > 0:
            load.errors += 1
        load.open -= 1
        if load.open == 0 and not load.done.done():
            load.done.set_result(None)


if __name__ == "__main__":
    import uvloop

    if sys.argv[1:2] == ["engines"]:
        uvloop.run(engines([int(port) for port in sys.argv[2:]]))
    else:
        sys.exit(__doc__)
