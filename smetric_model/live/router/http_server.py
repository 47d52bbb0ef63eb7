"""HTTP/1.1 towards clients.

llhttp (by httptools) does the parsing; this file does what is around it: limits, deadlines,
keep-alive, pipelined requests in order, backpressure, and telling an exchange that its client is
gone.  A request is handed over whole, its body as the bytes that came.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, cast

import httptools

from smetric_model.live.router.http_errors import HttpError, reason_phrase
from smetric_model.live.router.target import clean_path

if TYPE_CHECKING:
    from smetric_model.live.router.config import LimitSection, TimeoutSection

__all__ = ["ClientConnection", "Handler", "Headers", "Incoming", "Server"]

Headers = list[tuple[bytes, bytes]]


@dataclass(slots=True)
class Incoming:
    """A request, complete.

    Parameters
    ----------
    method, target : bytes
        As sent; the target with its query.
    headers : list of (bytes, bytes)
        Names in lower case, in the order sent.
    body : bytes
        The payload, unchanged.
    http11 : bool
        Whether the client speaks HTTP/1.1 (chunks can be sent).
    keep_alive : bool
        Whether the connection stays open after the answer.
    """

    method: bytes
    target: bytes
    headers: Headers
    body: bytes = b""
    http11: bool = True
    keep_alive: bool = True
    _by_name: dict[bytes, bytes] | None = field(default=None, repr=False)

    def header(self, name: bytes) -> bytes | None:
        """Return a header's value (the last, if it came twice)."""
        if self._by_name is None:
            self._by_name = dict(self.headers)
        return self._by_name.get(name)

    @property
    def path(self) -> str:
        """The path as an engine sees it; bytes that are not ASCII are replaced."""
        return clean_path(self.target).decode("ascii", "replace")


class Ending(Protocol):
    """What a connection tells the one who answers its request."""

    def client_gone(self) -> None:
        """Stop: the client closed the connection before the answer ended."""

    def client_slow(self) -> None:
        """Stop reading from the engine: more is written than the client takes."""

    def client_ready(self) -> None:
        """Read on: the client takes more."""


Handler = Callable[["Incoming", "ClientConnection"], Ending | None]


class Server:
    """Listens, and holds the connections of clients.

    Parameters
    ----------
    handler : callable
        (request, connection) -> what is told of the connection's end, or None if it is answered.
    limits, timeouts : LimitSection, TimeoutSection
        Of the configuration.
    """

    def __init__(self, handler: Handler, limits: LimitSection, timeouts: TimeoutSection):
        self.handler = handler
        self.limits = limits
        self.timeouts = timeouts
        self.connections: set[ClientConnection] = set()
        self.draining = False
        self.refused = 0
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int, backlog: int) -> tuple[str, int]:
        """Listen; return the address."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: ClientConnection(self, loop), host, port, backlog=backlog
        )
        self._sweeper = loop.create_task(self._sweep())
        address = self._server.sockets[0].getsockname()
        return address[0], address[1]

    def stop_listening(self) -> None:
        """Take no connection any more; close those that wait, and the others after their answer."""
        self.draining = True
        if self._server is not None:
            self._server.close()
        for connection in tuple(self.connections):
            connection.drain()

    def abort_all(self) -> None:
        """Cut every connection."""
        for connection in tuple(self.connections):
            connection.abort()

    async def close(self) -> None:
        """Stop and wait until the sockets are closed."""
        self.stop_listening()
        self.abort_all()
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        await asyncio.sleep(0)

    async def _sweep(self) -> None:
        """End what waits too long; one task for all connections is cheaper than a timer each."""
        loop = asyncio.get_running_loop()
        step = min(1.0, self.timeouts.request_s / 4, self.timeouts.keep_alive_s / 4)
        while True:
            await asyncio.sleep(step)
            now = loop.time()
            for connection in tuple(self.connections):
                if connection.deadline < now:
                    connection.on_deadline()


_FOREVER = float("inf")
_LINGER_S = 2.0
_SMALL_PIECE = 4096
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientConnection(asyncio.Protocol):
    """One connection of a client; requests on it are answered one after the other."""

    __slots__ = (
        "_advancing",
        "_body",
        "_body_bytes",
        "_broken",
        "_closing",
        "_ending",
        "_expects",
        "_head_bytes",
        "_headers",
        "_http11",
        "_in_head",
        "_keep_alive",
        "_lingers",
        "_loop",
        "_paused_reading",
        "_raw_bytes",
        "_server",
        "_started",
        "_target",
        "_waiting",
        "_writing_paused",
        "current",
        "deadline",
        "head_sent",
        "parser",
        "transport",
    )

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop):
        self._server = server
        self._loop = loop
        self.parser = httptools.HttpRequestParser(self)
        self.transport: asyncio.Transport | None = None
        self.current: Incoming | None = None
        self.head_sent = False
        self.deadline = loop.time() + server.timeouts.request_s
        self._ending: Ending | None = None
        self._waiting: deque[Incoming | HttpError] = deque()
        self._closing = False
        self._broken = False
        self._writing_paused = False
        self._paused_reading = False
        self._advancing = False
        self._lingers = False
        self._started = False  # a request has begun to arrive
        self._reset()

    def _reset(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        self._target = b""
        self._headers: Headers = []
        self._body: list[bytes | bytearray] = []
        self._body_bytes = 0
        self._raw_bytes = 0
        self._expects = False
        self._http11 = True
        self._keep_alive = True

    # ---------------------------------------------------------------- transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are none of asyncio's classes
        self.transport = cast(asyncio.Transport, transport)
        server = self._server
        if server.draining or len(server.connections) >= server.limits.connections:
            server.refused += 1
            self.abort()
            return
        server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self._closing = True
        self._waiting.clear()
        self._body = []
        ending, self._ending = self._ending, None
        if ending is not None:
            ending.client_gone()

    def pause_writing(self) -> None:
        self._writing_paused = True
        if self._ending is not None:
            self._ending.client_slow()

    def resume_writing(self) -> None:
        self._writing_paused = False
        if self._ending is not None:
            self._ending.client_ready()

    @property
    def is_slow(self) -> bool:
        """Whether more is written than the client has taken."""
        return self._writing_paused

    def data_received(self, data: bytes) -> None:
        if self._broken or self._closing:
            return
        self._raw_bytes += len(data)
        if self._in_head:
            self._head_bytes += len(data)
            if not self._started:
                self._started = True
                self._set_deadline(self._server.timeouts.request_s)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._broken = True  # answered as HTTP/1.1, then closed: nothing is upgraded
            self._close_after_current()
        except httptools.HttpParserError as error:
            context = error.__context__
            self._refuse(
                context
                if isinstance(context, HttpError)
                else HttpError(400, "bad_http", "the request is not valid HTTP/1.1", close=True)
            )
            return
        limit = self._server.limits.header_bytes
        if self._in_head:
            if self._head_bytes > limit:
                self._refuse(self._too_long())
        elif self._raw_bytes - 16 * self._body_bytes > 2 * limit + len(data):
            # Trailers and chunk extensions are read by nobody, but the parser keeps them.
            self._refuse(self._too_long())

    # ---------------------------------------------------------------- parser

    def on_url(self, piece: bytes) -> None:
        self._target += piece
        if len(self._target) > self._server.limits.header_bytes:
            raise self._too_long()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # what comes after the body is a trailer, and not forwarded
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        parser, limits = self.parser, self._server.limits
        size = len(self._target) + sum(len(name) + len(value) for name, value in self._headers)
        if size > limits.header_bytes:
            raise self._too_long()
        self._keep_alive = parser.should_keep_alive()
        version = parser.get_http_version()
        if version not in ("1.0", "1.1"):
            raise HttpError(505, "http_version", "HTTP 1.1 and 1.0 are allowed, no other")
        self._http11 = version == "1.1"
        for name, value in self._headers:
            if name == b"content-length" and int(value) > limits.body_bytes:
                raise self._too_large()
            if name == b"transfer-encoding" and value.lower() != b"chunked":
                raise HttpError(
                    501, "transfer_encoding", "of transfer encodings only chunked is allowed"
                )
            if name == b"expect" and value.lower() == b"100-continue":
                self._expects = True
        if self._expects and self._http11 and self.current is None and not self._waiting:
            assert self.transport is not None
            self.transport.write(_CONTINUE)

    def on_body(self, piece: bytes) -> None:
        self._body_bytes += len(piece)
        if self._body_bytes > self._server.limits.body_bytes:
            raise self._too_large()
        # A body in chunks of a byte must not take fifty times its length.
        if len(piece) >= _SMALL_PIECE:
            self._body.append(piece)
        elif self._body and isinstance(self._body[-1], bytearray):
            self._body[-1] += piece
        else:
            self._body.append(bytearray(piece) if self._body else piece)

    def on_message_complete(self) -> None:
        request = Incoming(
            self.parser.get_method(),
            self._target,
            self._headers,
            bytes(self._body[0]) if len(self._body) == 1 else b"".join(self._body),
            self._http11,
            self._keep_alive,
        )
        self._reset()
        self._started = False
        self._waiting.append(request)
        if self.current is None:
            self._next()
        elif not self._paused_reading:
            # More than one ahead of the answers: whoever pipelines waits.
            self._paused_reading = True
            assert self.transport is not None
            self.transport.pause_reading()

    # ---------------------------------------------------------------- requests, in order

    def _next(self) -> None:
        """Hand the next request over, if nothing is being answered."""
        if self._advancing:
            return  # answered at once: the loop below goes on
        self._advancing = True
        while self.current is None and self._waiting and not self._closing:
            item = self._waiting.popleft()
            if isinstance(item, HttpError):
                self._answer_error(item)
                break
            self.current = item
            self.head_sent = False
            self.deadline = _FOREVER
            ending = self._server.handler(item, self)
            if self.current is item:
                self._ending = ending
        self._advancing = False
        if self._paused_reading and not self._waiting and not self._closing:
            self._paused_reading = False
            assert self.transport is not None
            self.transport.resume_reading()

    def _finished(self) -> None:
        request, self.current, self._ending = self.current, None, None
        assert request is not None
        if not request.keep_alive or self._server.draining:
            self._close()
            return
        if self._broken and not self._waiting:
            self._close()
            return
        if not self._waiting:
            wait = self._server.timeouts
            self._set_deadline(wait.request_s if self._started else wait.keep_alive_s)
        self._next()

    def _refuse(self, error: HttpError) -> None:
        """Answer what cannot be parsed, after what came before it, and close."""
        self._broken = True
        self._body = []
        if self.current is None and not self._waiting:
            self._answer_error(error)
        else:
            self._waiting.append(error)

    def _answer_error(self, error: HttpError) -> None:
        self.current = Incoming(b"GET", b"/", [], keep_alive=False)
        self.head_sent = False
        self._lingers = True
        self.send(error.status, [(b"content-type", b"application/json")], error.body())

    def _too_long(self) -> HttpError:
        limit = self._server.limits.header_bytes
        return HttpError(
            431,
            "header_too_large",
            f"request line and headers are longer than {limit} bytes",
            close=True,
        )

    def _too_large(self) -> HttpError:
        limit = self._server.limits.body_bytes
        return HttpError(
            413, "body_too_large", f"the body is longer than {limit} bytes", close=True
        )

    # ---------------------------------------------------------------- answers

    def send(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Answer the current request in one piece."""
        self.send_head(status, headers, len(body))
        request = self.current
        assert request is not None
        if body and request.method != b"HEAD":
            assert self.transport is not None
            self.transport.write(body)
        self._finished()

    def send_head(
        self,
        status: int,
        headers: Iterable[tuple[bytes, bytes]],
        length: int | None,
        first: bytes = b"",
    ) -> bool:
        """Send status and headers, and the first piece of the body in the same write.

        Parameters
        ----------
        status : int
            HTTP status.
        headers : iterable of (bytes, bytes)
            Without those that speak of the connection or the length.
        length : int, optional
            Length of the body [bytes]; None: not known.
        first : bytes
            First piece of the body, already framed.

        Returns
        -------
        bool
            Whether the body is sent in chunks.
        """
        request = self.current
        assert request is not None
        assert self.transport is not None
        chunked = length is None and request.http11 and request.method != b"HEAD"
        if status in (204, 304) or status < 200:
            chunked, length = False, None
        elif length is None and not chunked:
            request.keep_alive = False  # the end of the connection is the end of the body
        parts = [b"HTTP/1.1 %d %s\r\n" % (status, reason_phrase(status))]
        parts += [b"%s: %s\r\n" % header for header in headers]
        if length is not None:
            parts.append(b"content-length: %d\r\n" % length)
        elif chunked:
            parts.append(b"transfer-encoding: chunked\r\n")
        if not request.keep_alive or self._server.draining:
            request.keep_alive = False
            parts.append(b"connection: close\r\n")
        elif not request.http11:
            parts.append(b"connection: keep-alive\r\n")
        parts.append(b"\r\n")
        if first:
            parts.append(b"%x\r\n%s\r\n" % (len(first), first) if chunked else first)
        self.head_sent = True
        self.transport.write(b"".join(parts))
        return chunked

    def send_piece(self, piece: bytes, chunked: bool) -> None:
        """Send a piece of the body."""
        assert self.transport is not None
        self.transport.write(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)

    def send_end(self, chunked: bool) -> None:
        """End the body."""
        if chunked:
            assert self.transport is not None
            self.transport.write(b"0\r\n\r\n")
        self._finished()

    def cut(self, last: bytes = b"", chunked: bool = False) -> None:
        """End the connection without the end of the body, so that nobody takes it for whole."""
        self.current = self._ending = None
        if last and self.transport is not None and not self.transport.is_closing():
            self.send_piece(last, chunked)
            self._close()  # what is written is sent first
        else:
            self.abort()

    # ---------------------------------------------------------------- ends

    def drain(self) -> None:
        """Close when nothing is being answered."""
        if self.current is None:
            self._close()
        else:
            self.current.keep_alive = False

    def on_deadline(self) -> None:
        """End a connection whose client sends nothing, or too slowly."""
        if self._closing:
            self.abort()  # it does not even take the rest
        elif self.current is not None:
            self.deadline = _FOREVER
        elif self._started:
            self._broken = True
            seconds = self._server.timeouts.request_s
            self._answer_error(
                HttpError(
                    408, "request_timeout", f"the request took longer than {seconds:g} s to arrive"
                )
            )
        else:
            self._close()

    def abort(self) -> None:
        """Cut the connection now."""
        self._closing = True
        if self.transport is not None:
            self.transport.abort()

    def _close_after_current(self) -> None:
        if self.current is not None:
            self.current.keep_alive = False
        elif not self._waiting:
            self._close()

    def _close(self) -> None:
        self._closing = True
        transport = self.transport
        if transport is None:
            return
        if self._lingers and transport.can_write_eof() and not transport.is_closing():
            # What the client still sends is thrown away for a while: closed at once, its system
            # would drop the answer, too.
            transport.write_eof()
            self._set_deadline(min(_LINGER_S, self._server.timeouts.request_s))
        else:
            transport.close()
            self._set_deadline(self._server.timeouts.request_s)

    def _set_deadline(self, seconds: float) -> None:
        self.deadline = self._loop.time() + seconds
