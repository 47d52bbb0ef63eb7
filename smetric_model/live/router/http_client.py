"""HTTP/1.1 towards engines: one pool of connections an instance.

A connection carries one request at a time.  What arrives is handed on as it arrives; nothing is
buffered here, and reading can be paused.  Trouble is told once, with a word for it and with
whether anything of the answer was there.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Protocol, cast

import httptools

from smetric_model.errors import LiveError
from smetric_model.live.router.http_server import Headers

__all__ = ["EngineConnection", "EnginePool", "Sink", "fetch"]


class Sink(Protocol):
    """Who takes an engine's answer."""

    def on_head(self, status: int, headers: Headers, length: int | None) -> None:
        """Take status and headers (names in lower case); length None: not known beforehand."""

    def on_piece(self, piece: bytes) -> None:
        """Take a piece of the body."""

    def on_end(self) -> None:
        """Take the end: the answer is whole."""

    def on_broken(self, word: str, stale: bool) -> None:
        """Take the news that there will be no whole answer.

        ``stale``: a used connection closed with nothing sent.
        """


class EngineConnection(asyncio.Protocol):
    """One connection to an engine."""

    __slots__ = (
        "_chunked",
        "_complete",
        "_garbled",
        "_head_bytes",
        "_headers",
        "_in_head",
        "_keep",
        "_length",
        "_no_body",
        "_pieces",
        "_pool",
        "_received",
        "_reused",
        "_sink",
        "_until_close",
        "idle_since",
        "parser",
        "single_use",
        "transport",
    )

    def __init__(self, pool: EnginePool):
        self._pool = pool
        self._sink: Sink | None = None
        self.parser = httptools.HttpResponseParser(self)
        self.transport: asyncio.Transport | None = None
        self.idle_since = 0.0
        self.single_use = False
        self._reused = False
        self._pieces: list[bytes] = []
        self._garbled = False
        self._start(no_body=False)

    def _start(self, no_body: bool) -> None:
        self._no_body = no_body
        self._received = False
        self._in_head = True
        self._head_bytes = 0
        self._headers: Headers = []
        self._length: int | None = None
        self._chunked = False
        self._until_close = False
        self._complete = False
        self._keep = False

    # ---------------------------------------------------------------- use

    def send(self, head: bytes, body: bytes, sink: Sink, *, no_body: bool = False) -> None:
        """Send a request; the answer goes to ``sink``."""
        assert self.transport is not None
        assert self._sink is None
        self._start(no_body)
        self._sink = sink
        if len(body) < 16_384:
            self.transport.write(head + body)
        else:
            self.transport.write(head)
            self.transport.write(body)

    def pause(self) -> None:
        """Stop reading."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def abandon(self) -> None:
        """Close at once and tell nobody; the engine sees that its client is gone."""
        self._sink = None
        if self.transport is not None:
            self.transport.abort()

    # ---------------------------------------------------------------- transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are none of asyncio's classes
        self.transport = cast(asyncio.Transport, transport)
        self._pool.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.open.discard(self)
        self._pool.forget(self)
        sink, self._sink = self._sink, None
        if sink is None:
            return
        if self._until_close and exc is None:
            sink.on_end()  # the end of the connection is the end of the body
        elif not self._received:
            sink.on_broken("closed before the answer", self._reused)
        else:
            sink.on_broken("closed within the answer", False)

    def data_received(self, data: bytes) -> None:
        if self._sink is None:
            self.abandon()  # an engine that speaks unasked cannot be trusted with the next request
            return
        self._received = True
        if self._in_head:
            self._head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._garbled = True
        sink = self._sink
        if sink is None:
            return  # abandoned meanwhile
        if self._in_head and self._head_bytes > self._pool.header_bytes:
            self._garbled = True
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            sink.on_piece(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if self._sink is None:
            return
        if self._complete:
            self._sink = None
            self._give_back()
            sink.on_end()
        elif self._garbled:
            self.abandon()
            sink.on_broken("not valid HTTP/1.1", False)

    # ---------------------------------------------------------------- parser

    def on_message_begin(self) -> None:
        if self._complete:
            self._garbled = True  # a second answer to one request: neither is to be mixed with it

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer
        name = name.lower()
        if name == b"content-length":
            self._length = int(value)
        elif name == b"transfer-encoding":
            self._chunked = True
            if value.lower() != b"chunked":
                self._garbled = True  # none was asked for, and it would be lost on the way
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._complete or self._garbled:
            return
        status = self.parser.get_status_code()
        if status < 200 and status != 101:
            self._headers, self._length, self._chunked = [], None, False
            return  # provisional: the answer follows
        size = sum(len(name) + len(value) for name, value in self._headers)
        if status == 101 or size > self._pool.header_bytes:
            self._garbled = True
            return
        self._in_head = False
        bodiless = self._no_body or status in (204, 304)
        self._until_close = not (bodiless or self._chunked or self._length is not None)
        sink = self._sink
        if sink is not None:
            length = None if self._chunked else self._length
            sink.on_head(status, self._headers, 0 if status == 204 else length)
        if self._no_body:
            self._complete = True

    def on_body(self, piece: bytes) -> None:
        if not self._complete and not self._garbled:
            self._pieces.append(piece)

    def on_message_complete(self) -> None:
        if not self._in_head and not self._garbled:
            self._complete = True
            self._keep = self.parser.should_keep_alive()  # the parser forgets it after this

    # ---------------------------------------------------------------- back to the pool

    def _give_back(self) -> None:
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if (
            self._garbled
            or self.single_use
            or self._no_body  # the parser waits for a body that a HEAD does not get
            or self._until_close
            or not self._keep
            or transport.get_write_buffer_size()  # it answered without reading the request
        ):
            transport.close()
        else:
            self._reused = True
            self._pool.put(self)


class EnginePool:
    """Connections to one engine.

    Parameters
    ----------
    scheme, host, port : str, str, int
        Of its URL.
    connect_s : float
        Longest wait for a connection [s].
    keep_alive_s : float
        Longest time a connection waits for its next request [s].
    header_bytes : int
        Limit on the head of an answer [bytes].
    """

    def __init__(
        self,
        scheme: str,
        host: str,
        port: int,
        *,
        connect_s: float,
        keep_alive_s: float,
        header_bytes: int = 65_536,
    ):
        self.host_header = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.header_bytes = header_bytes
        self.open: set[EngineConnection] = set()
        self._address = (host, port)
        self._ssl = ssl.create_default_context() if scheme == "https" else None
        self._connect_s = connect_s
        self._keep_alive_s = keep_alive_s
        self._idle: list[EngineConnection] = []
        self._closed = False

    @property
    def idle(self) -> int:
        """Connections that wait for a request."""
        return len(self._idle)

    def take(self) -> EngineConnection | None:
        """Return a connection that waits, the latest used first; None if there is none."""
        oldest = asyncio.get_running_loop().time() - self._keep_alive_s
        while self._idle:
            connection = self._idle.pop()
            transport = connection.transport
            if transport is None or transport.is_closing():
                continue
            if connection.idle_since < oldest:
                transport.close()
                continue
            return connection
        return None

    async def connect(self) -> EngineConnection:
        """Open a connection.

        Raises
        ------
        LiveError
            If the engine cannot be reached in time.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await loop.create_connection(
                    lambda: EngineConnection(self), *self._address, ssl=self._ssl
                )
        except TimeoutError:
            raise LiveError(f"no connection within {self._connect_s:g} s") from None
        except OSError as error:
            raise LiveError(f"no connection: {error.strerror or type(error).__name__}") from None
        except ValueError:  # a name that is none, to the resolver
            raise LiveError("no connection: the host is no name that can be looked up") from None
        return connection

    def put(self, connection: EngineConnection) -> None:
        """Keep a connection for the next request."""
        if self._closed:
            assert connection.transport is not None
            connection.transport.close()
            return
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)

    def forget(self, connection: EngineConnection) -> None:
        """Drop a connection that is gone."""
        if connection in self._idle:
            self._idle.remove(connection)

    def close_idle(self, all_of_them: bool = False) -> None:
        """Close connections that have waited too long."""
        oldest = asyncio.get_running_loop().time() - self._keep_alive_s
        kept = []
        for connection in self._idle:
            if all_of_them or connection.idle_since < oldest:
                assert connection.transport is not None
                connection.transport.close()
            else:
                kept.append(connection)
        self._idle = kept

    def close(self) -> None:
        """Close what waits; what carries a request ends with it."""
        self._closed = True
        self.close_idle(all_of_them=True)

    def abort(self) -> None:
        """Close everything at once."""
        self.close()
        for connection in tuple(self.open):
            if connection.transport is not None:
                connection.transport.abort()


class _Whole:
    """A sink that collects a small answer."""

    def __init__(self, limit: int) -> None:
        self.done: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._limit = limit
        self._status = 0
        self._body = bytearray()

    def on_head(self, status: int, headers: Headers, length: int | None) -> None:
        self._status = status

    def on_piece(self, piece: bytes) -> None:
        self._body += piece
        if len(self._body) > self._limit:
            self.on_broken(f"longer than {self._limit} bytes", False)

    def on_end(self) -> None:
        if not self.done.done():
            self.done.set_result((self._status, bytes(self._body)))

    def on_broken(self, word: str, stale: bool) -> None:
        if not self.done.done():
            self.done.set_exception(LiveError(word))


async def fetch(
    pool: EnginePool,
    path: str,
    *,
    timeout_s: float,
    body: bytes | None = None,
    limit_bytes: int = 16_000_000,
) -> tuple[int, bytes]:
    """Ask an engine for something small, on a connection of its own.

    Returns
    -------
    (status, body) : int, bytes

    Raises
    ------
    LiveError
        If there is no whole answer in time.
    """
    method = "GET" if body is None else "POST"
    head = f"{method} {path} HTTP/1.1\r\nhost: {pool.host_header}\r\nconnection: close\r\n"
    if body is not None:
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    try:
        async with asyncio.timeout(timeout_s):
            connection = await pool.connect()
            try:
                connection.single_use = True
                sink = _Whole(limit_bytes)
                connection.send((head + "\r\n").encode(), body or b"", sink)
                return await sink.done
            finally:
                connection.abandon()
    except TimeoutError:
        raise LiveError(f"no answer within {timeout_s:g} s") from None
