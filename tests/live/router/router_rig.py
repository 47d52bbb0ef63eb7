"""Fake engines with faults, a router on a real socket, and a client that checks answers.

The fake engine speaks HTTP by hand and the client is aiohttp's, so that neither shares code with
the router.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from smetric_model.live.router.config import RouterConfig
from smetric_model.live.router.service import Service

CHUNKS = 5


@dataclass
class Seen:
    """A request as an engine saw it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    ended: str = ""

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.body)


async def until(condition: Callable[[], object], seconds: float = 5.0) -> None:
    """Wait for what will be true soon, however busy the machine is."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


@dataclass(eq=False)
class FakeEngine:
    """An engine that answers with the request's ``user``, or fails as told.

    ``behave`` maps a request to a fault: ok, slow, close, head, die, status N, hang, stall,
    garbage, huge, short, trickle.
    """

    behave: Callable[[Seen], str] = lambda seen: "ok"
    seen: list[Seen] = field(default_factory=list)
    keep: bool = True
    healthy: bool = True
    in_flight: int = 0
    peak: int = 0
    cached_tokens: Callable[[Seen], int] | None = None
    prompt_tokens: Callable[[Seen], int] = lambda seen: len(seen.body) // 4
    chunks: int = CHUNKS
    chunk_s: float = 0.0
    slow_s: float = 0.2
    piece: bytes = b""
    metrics: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    port: int = 0

    async def start(self) -> FakeEngine:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        assert self._server is not None
        await asyncio.sleep(0.03)  # asyncio leaks a connection accepted in the very same turn
        self._server.close()
        await asyncio.sleep(0.01)  # what was accepted has a task by then
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in tuple(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0.01)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def requests(self) -> list[Seen]:
        """Requests that were no probes."""
        return [seen for seen in self.seen if seen.target not in ("/health", "/metrics")]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            self._tasks.discard(task)
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ")
        headers = {}
        for line in lines[1:]:
            if line:
                name, value = line.split(":", 1)
                headers[name.lower()] = value.strip()
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        seen = Seen(method, target, headers, body)
        if self.keep or target not in ("/health", "/metrics"):
            self.seen.append(seen)
        if not self.keep:
            self.seen = self.seen[-100:]
        if target == "/health":
            return await self._send(writer, 200 if self.healthy else 503, b"")
        if target == "/metrics":
            return await self._send(writer, 200, self.metrics.encode())
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        gone = asyncio.ensure_future(reader.read(1))
        work = asyncio.ensure_future(self._answer(seen, writer))
        try:
            await asyncio.wait({gone, work}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                seen.ended = seen.ended or "answered"
                return await work and not gone.done()
            seen.ended = "client gone"
            return False
        finally:
            self.in_flight -= 1
            for one in (gone, work):
                one.cancel()
            await asyncio.gather(gone, work, return_exceptions=True)

    async def _send(self, writer: asyncio.StreamWriter, status: int, body: bytes) -> bool:
        writer.write(
            b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
            % (status, len(body), body)
        )
        await writer.drain()
        return True

    async def _answer(self, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        fault = self.behave(seen)
        if fault.startswith("status"):
            return await self._send(writer, int(fault.split()[1]), b'{"error":"engine says no"}')
        if fault == "close":
            return False
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault == "garbage":
            writer.write(b"\x00\xff this is not HTTP at all \r\n\r\n")
            await writer.drain()
            return False
        if fault == "slow":
            await asyncio.sleep(self.slow_s)
        try:
            parsed = seen.json if seen.body else {}
        except ValueError:
            return await self._send(writer, 400, b'{"error":"not JSON"}')
        user = parsed.get("user", "")
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens(seen),
            "completion_tokens": CHUNKS,
        }
        if self.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens(seen)}
        if not parsed.get("stream"):
            return await self._whole(writer, fault, {"id": user, **self.extra, "usage": usage})
        return await self._stream(writer, fault, user, usage)

    async def _whole(
        self, writer: asyncio.StreamWriter, fault: str, answer: dict[str, Any]
    ) -> bool:
        if fault == "huge":
            answer["filler"] = "x" * 3_000_000
        data = json.dumps(answer).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % len(data))
        if fault in ("head", "die", "short"):
            if fault != "head":
                writer.write(data[: len(data) // 2])
            await writer.drain()
            return False
        if fault == "stall":
            writer.write(data[:10])
            await writer.drain()
            await asyncio.sleep(3600)
        writer.write(data)
        await writer.drain()
        return True

    async def _stream(
        self, writer: asyncio.StreamWriter, fault: str, user: str, usage: dict[str, Any]
    ) -> bool:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        await writer.drain()
        if fault == "head":
            return False
        for index in range(self.chunks):
            if fault in ("die", "short") and index == 2:
                return False
            if fault == "stall" and index == 2:
                await asyncio.sleep(3600)
            event: dict[str, Any] = {"id": user, "index": index}
            if fault == "huge":
                event["filler"] = "x" * 600_000
            await self._chunk(writer, b"data: " + json.dumps(event).encode() + self.piece + b"\n\n")
            if self.chunk_s:
                await asyncio.sleep(self.chunk_s)
        await self._chunk(writer, b"data: " + json.dumps({"usage": usage}).encode() + b"\n\n")
        await self._chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def _chunk(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await writer.drain()


@dataclass
class Rig:
    """A router with its engines."""

    service: Service
    engines: list[FakeEngine]
    url: str
    client: aiohttp.ClientSession

    async def chat(
        self, user: str = "u", path: str = "/v1/chat/completions", **body: Any
    ) -> Answer:
        body.setdefault("messages", [{"role": "user", "content": "hello"}])
        headers = body.pop("headers", None)
        return await ask(self.client, self.url + path, {"user": user, **body}, headers)

    async def settle(self, seconds: float = 5.0) -> None:
        """Wait until nothing is in flight."""
        async with asyncio.timeout(seconds):
            while self.service.exchanges:
                await asyncio.sleep(0.005)

    def loads(self) -> list[tuple[int, int, int]]:
        return [
            (item.load.requests, item.load.unprefilled_tokens, item.load.held_tokens)
            for item in self.service.fleet
        ]

    def metric(self, name: str, **labels: str) -> float:
        value = self.service.metrics.registry.get_sample_value("smetric_router_" + name, labels)
        return 0.0 if value is None else value


@dataclass
class Answer:
    """What a client got: status, whether it is whole and right, headers, body."""

    status: int
    whole: bool
    headers: dict[str, str]
    body: bytes
    error: str = ""

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.body)

    @property
    def instance(self) -> str:
        return self.headers.get("x-smetric-instance", "")


async def ask(
    client: aiohttp.ClientSession, url: str, body: dict[str, Any], headers: Any = None
) -> Answer:
    """Ask, and check that an answer taken for whole is whole, right and single."""
    data = bytearray()
    status, answer_headers = 0, {}
    try:
        async with client.post(url, json=body, headers=headers) as response:
            status = response.status
            answer_headers = {key.lower(): value for key, value in response.headers.items()}
            async for piece in response.content.iter_any():
                data += piece
    except aiohttp.ClientError as error:
        return Answer(status, False, answer_headers, bytes(data), type(error).__name__)
    whole = status == 200 and (
        is_right_stream(bytes(data), body["user"])
        if body.get("stream")
        else json.loads(data).get("id") == body["user"]
    )
    return Answer(status, whole, answer_headers, bytes(data))


def is_right_stream(data: bytes, user: str, chunks: int = CHUNKS) -> bool:
    events = data.decode().split("\n\n")
    if events[-1] != "" or events[-2] != "data: [DONE]":
        return False
    got = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    return [(one.get("id"), one.get("index")) for one in got[:-1]] == [
        (user, index) for index in range(chunks)
    ] and "usage" in got[-1]


FAST: dict[str, Any] = {
    "health": {"interval_s": 0.1, "timeout_s": 1.0, "fails": 2, "scrape_interval_s": 0.0},
    "timeouts": {"connect_s": 1.0, "first_byte_s": 5.0, "idle_s": 5.0, "drain_s": 2.0},
}


def merged(*parts: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            result[key] = {**result.get(key, {}), **value} if isinstance(value, dict) else value
    return result


@contextlib.asynccontextmanager
async def rig(
    *engines: FakeEngine, config: dict[str, Any] | None = None, roles: tuple[str, ...] = ()
) -> AsyncIterator[Rig]:
    """Run a router in front of engines."""
    for engine in engines:
        await engine.start()
    instances = [
        {"name": f"e{index}", "url": engine.url, **({"role": roles[index]} if roles else {})}
        for index, engine in enumerate(engines)
    ]
    extra = dict(config or {})
    more = extra.pop("instance_settings", None)
    if more:
        instances = [{**one, **settings} for one, settings in zip(instances, more, strict=True)]
    settings = merged(FAST, {"listen": {"port": 0}}, {"instances": instances}, extra)
    service = Service(RouterConfig(**settings))
    host, port = await service.start()
    client = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=30)
    )
    try:
        yield Rig(service, list(engines), f"http://{host}:{port}", client)
    finally:
        await client.close()
        await service.stop()
        for engine in engines:
            await engine.stop()
        await asyncio.sleep(0.01)
