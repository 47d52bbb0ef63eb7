"""One request on its way: attempts, streaming, timeouts, and exactly one end.

An exchange stands between a client's connection and an engine's.  Nothing is sent to the client
before the first byte of an answer's body is here; until then a failure may be tried on another
instance, after it never: two answers must not be glued together.  An answer that breaks off is
cut, so that nobody takes it for whole.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smetric_model.errors import LiveError
from smetric_model.live.router.fleet import Charge, Instance
from smetric_model.live.router.http_client import EngineConnection, Sink
from smetric_model.live.router.http_errors import HttpError
from smetric_model.live.router.http_server import ClientConnection, Headers, Incoming
from smetric_model.live.router.target import origin_form
from smetric_model.live.router.usage import TAIL_BYTES

if TYPE_CHECKING:
    from smetric_model.live.router.decide import Choice
    from smetric_model.live.router.exact import ExactPrompt, Speculation
    from smetric_model.live.router.question import Question
    from smetric_model.live.router.service import Service

__all__ = ["Exchange", "Failure", "connection_headers", "where"]

_LOGGER = logging.getLogger("smetric_model.router")

#: Headers that speak of one connection, or that are written anew.
_NOT_FORWARDED = frozenset(
    {
        b"connection",
        b"content-length",
        b"expect",
        b"host",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_OURS = b"x-smetric-"
#: The value of ``x-smetric-instance`` and the headers after it, formatted in one go.
_DECISION = (
    b"%s\r\nx-smetric-reason: %s\r\nx-smetric-hit-tokens: %d\r\nx-smetric-hit-source: %s\r\n"
    b"x-smetric-est-hit-tokens: %d\r\nx-smetric-prompt-tokens: %d\r\nx-smetric-turn: %d\r\n"
    b"x-smetric-load: %d\r\nx-smetric-attempts: %d"
)


@dataclass(slots=True)
class Failure:
    """Why an attempt gave nothing, with nothing sent to the client.

    Parameters
    ----------
    word : str
        What happened, for metrics and messages.
    status : int
        What the engine answered, if it did.
    stale : bool
        Whether a used connection turned out to be closed: the engine never saw the request.
    final : bool
        Whether no other instance may be tried.
    """

    word: str
    status: int = 0
    stale: bool = False
    final: bool = False


class Exchange:
    """One request, from its arrival to its one end.

    Parameters
    ----------
    service : Service
        The router.
    request : Incoming
        The request.
    client : ClientConnection
        Where the answer goes.
    request_id : bytes
        Name of the request in logs and at the engine.
    """

    __slots__ = (
        "_answered_with",
        "_begun",
        "_charge",
        "_chunked",
        "_connection",
        "_done",
        "_expired",
        "_first_byte_s",
        "_gone",
        "_head",
        "_last_activity_s",
        "_may_retry",
        "_paused",
        "_started_s",
        "_tail",
        "_total_due_s",
        "attempts",
        "body",
        "choice",
        "client",
        "decoder",
        "ended_as",
        "loop",
        "mark",
        "prefill_tail",
        "prompt",
        "question",
        "request",
        "request_id",
        "service",
        "speculation",
        "task",
        "tried",
    )

    def __init__(
        self, service: Service, request: Incoming, client: ClientConnection, request_id: bytes
    ):
        self.service = service
        self.request = request
        self.client = client
        self.request_id = request_id
        self.loop = service.loop
        self.body = request.body
        self.question: Question | None = None
        self.choice: Choice | None = None
        self.attempts = 0
        self.tried: list[Instance] = []
        self.ended_as = ""
        self.mark = 0
        self.decoder: Instance | None = None
        self.prefill_tail = b""
        self.prompt: ExactPrompt | None = None
        self.speculation: Speculation | None = None
        self._started_s = self.loop.time()
        self._total_due_s = self._started_s + service.config.timeouts.total_s
        self._first_byte_s: float | None = None
        self._last_activity_s = self._started_s
        self._expired = ""
        self._gone = False
        self._begun = False
        self._chunked = False
        self._paused = False
        self._may_retry = False
        self._answered_with = 0
        self._head: tuple[int, Headers, int | None] = (0, [], None)
        self._tail = b""
        self._charge: Charge | None = None
        self._connection: EngineConnection | None = None
        self._done: asyncio.Future[Failure | None] | None = None
        self.task: asyncio.Task[None] | None = None

    # ---------------------------------------------------------------- what the client does

    def client_gone(self) -> None:
        """Stop everything; the engine sees its connection close."""
        self._gone = True
        self._drop_engine()
        if self.task is not None:
            self.task.cancel()

    def client_slow(self) -> None:
        """Stop reading from the engine."""
        if self._connection is not None and not self._paused:
            self._paused = True
            self._connection.pause()

    def client_ready(self) -> None:
        """Read on."""
        self._last_activity_s = self.loop.time()
        if self._paused:
            self._paused = False
            if self._connection is not None:
                self._connection.resume()

    # ---------------------------------------------------------------- the whole way

    async def run(self) -> None:
        """Serve the request, to its one end."""
        service = self.service
        try:
            await service.serve(self)
        except HttpError as error:
            self._answer_error(error)
        except asyncio.CancelledError:
            if self._gone:
                self.ended_as = "client_gone"
            elif self._expired and not self._begun:
                self._answer_error(self._timeout_error())
            else:
                self._cut("stopped")
        except Exception:
            # A defect of the router must not leave a client waiting or a load charged.  The
            # message of the exception may hold parts of the prompt, so only where it was raised.
            _LOGGER.error("defect", extra={"fields": {"where": where()}})
            if self._begun:
                self._cut("defect")
            else:
                self._answer_error(HttpError(500, "router_error", "the router failed"))
        finally:
            self._drop_engine()
            service.ended(self)

    async def attempt(
        self,
        instance: Instance,
        *,
        unprefilled_tokens: int,
        held_tokens: int,
        may_retry: bool,
        body: bytes | None = None,
        sink: Sink | None = None,
    ) -> Failure | None:
        """Send the request to an instance and its answer to the client (or to ``sink``).

        The load is charged before anything is sent, and released on every way out.

        Returns
        -------
        Failure or None
            None: the client has its answer, whole or cut.  Else nothing was sent to it.
        """
        self.attempts += 1
        charge = self._charge = Charge(instance.load, unprefilled_tokens, held_tokens)
        instance.requests += 1
        self._may_retry = may_retry
        assert instance.pool is not None
        try:
            connection = instance.pool.take()
            if connection is not None:
                failure = await self._through(connection, instance, body, sink)
                if failure is None or not failure.stale:
                    return self._noted(instance, failure)
                # The engine had closed it while it waited: this is no failure of the engine.
            try:
                connection = await instance.pool.connect()
            except LiveError as error:
                self.service.members.unreachable(instance, str(error))
                return self._noted(instance, Failure("unreachable"))
            return self._noted(instance, await self._through(connection, instance, body, sink))
        finally:
            charge.release()
            self._drop_engine()

    async def collect(
        self, instance: Instance, body: bytes, *, unprefilled_tokens: int, held_tokens: int
    ) -> tuple[int, Headers, bytes] | Failure:
        """Send a request of the router's own and return the whole answer."""
        sink = _Collected(self)
        failure = await self.attempt(
            instance,
            unprefilled_tokens=unprefilled_tokens,
            held_tokens=held_tokens,
            may_retry=False,
            body=body,
            sink=sink,
        )
        if failure is not None:
            return failure
        return sink.status, sink.headers, b"".join(sink.pieces)

    def pass_on(self, status: int, headers: Headers, body: bytes) -> None:
        """Answer the client with a collected answer."""
        self._may_retry = False
        self.on_head(status, headers, len(body))
        if body:
            self.on_piece(body)
        self.on_end()

    def _noted(self, instance: Instance, failure: Failure | None) -> Failure | None:
        if failure is not None:
            instance.failures += 1
        return failure

    async def _through(
        self,
        connection: EngineConnection,
        instance: Instance,
        body: bytes | None,
        sink: Sink | None,
    ) -> Failure | None:
        self._connection = connection
        self._paused = False
        self._tail = b""
        done: asyncio.Future[Failure | None] = self.loop.create_future()
        self._done = done
        payload = self.body if body is None else body
        self._last_activity_s = self.loop.time()
        assert instance.pool is not None
        connection.send(
            self._request_head(instance.pool.host_header, len(payload)),
            payload,
            sink or self,
            no_body=self.request.method == b"HEAD",
        )
        try:
            return await done
        finally:
            self._done = None

    # ---------------------------------------------------------------- what the engine does

    def on_head(self, status: int, headers: Headers, length: int | None) -> None:
        """Take the head; keep it until the first byte of the body."""
        if self._may_retry and status in self.service.retry_statuses:
            self._settle(Failure(f"status_{status}", status))
            return
        self._head = (status, headers, length)

    def on_piece(self, piece: bytes) -> None:
        """Send a piece on at once."""
        self._last_activity_s = self.loop.time()
        client = self.client
        if not self._begun:
            self._begin(piece)
        else:
            client.send_piece(piece, self._chunked)
        self._tail = piece if len(piece) >= TAIL_BYTES else (self._tail + piece)[-TAIL_BYTES:]
        if client.is_slow and not self._paused:
            self.client_slow()

    def on_end(self) -> None:
        """End the answer."""
        self._connection = None
        if self._charge is not None:
            self._charge.release()
        if not self._begun:
            self._begin(b"")
        self.ended_as = "whole"
        self.service.answered(self, self._answered_with, self._tail)
        self._settle(None)
        self.client.send_end(self._chunked)

    def on_broken(self, word: str, stale: bool) -> None:
        """Cut what has begun; leave the rest to whoever tries again."""
        self._connection = None
        if self._begun:
            self._cut(word)
            self._settle(None)
        else:
            self._settle(Failure(word, stale=stale))

    def _begin(self, piece: bytes) -> None:
        """Send the head with the first bytes; from here on there is no second attempt."""
        self._begun = True
        status, headers, length = self._head
        self._answered_with = status
        self._first_byte_s = self._last_activity_s
        if self._charge is not None:
            self._charge.first_token()
        self.service.begun(self, status)
        if not piece and length is None:
            length = 0
        self._chunked = self.client.send_head(status, self._answer_headers(headers), length, piece)

    def collected(self, failure: Failure | None) -> None:
        """Take the end of a collected answer."""
        self._connection = None
        if self._charge is not None:
            self._charge.release()
        self._settle(failure)

    def _settle(self, failure: Failure | None) -> None:
        self._drop_engine()
        if self._done is not None and not self._done.done():
            self._done.set_result(failure)

    def _drop_engine(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abandon()

    # ---------------------------------------------------------------- time

    def check_time(self, now_s: float) -> None:
        """End what takes too long; the service looks at all exchanges in turn."""
        waits = self._done is not None
        due = self._total_due_s
        if waits:
            timeouts = self.service.config.timeouts
            wait = timeouts.idle_s if self._begun else timeouts.first_byte_s
            due = min(due, self._last_activity_s + wait)
        if now_s < due:
            return
        total = now_s >= self._total_due_s
        self._expired = "total" if total else "idle" if self._begun else "first_byte"
        if not waits:
            if self.task is not None:
                self.task.cancel()
        elif self._begun:
            self._drop_engine()
            self._cut(f"timeout_{self._expired}")
            self._settle(None)
        else:
            self._settle(Failure(f"timeout_{self._expired}", final=total))

    def _timeout_error(self) -> HttpError:
        seconds = self.service.config.timeouts.total_s
        return HttpError(504, "timeout_total", f"the request took longer than {seconds:g} s")

    # ---------------------------------------------------------------- ends

    def _answer_error(self, error: HttpError) -> None:
        self.ended_as = error.code
        if self._gone:
            return
        self._answered_with = error.status
        anthropic = self.question is not None and self.question.api == "anthropic"
        headers = [
            (b"content-type", b"application/json"),
            (b"x-request-id", self.request_id),
            *error.headers,
        ]
        self.client.send(error.status, headers, error.body(anthropic))

    def _cut(self, word: str) -> None:
        """Break the answer off where it is; a stream of events gets a last one that says so."""
        self.ended_as = word
        if self._charge is not None:
            self._charge.release()
        last = b""
        content_type = next((v for n, v in self._head[1] if n == b"content-type"), b"")
        if (
            self._begun
            and content_type.startswith(b"text/event-stream")
            and self._tail.endswith(b"\n\n")
            and not self.client.is_slow
        ):
            error = HttpError(502, "engine_error", "the engine broke the answer off")
            anthropic = self.question is not None and self.question.api == "anthropic"
            name = b"event: error\n" if anthropic else b""
            last = name + b"data: " + error.body(anthropic) + b"\n\n"
        self.client.cut(last, self._chunked)

    # ---------------------------------------------------------------- headers

    def _request_head(self, host: str, length: int) -> bytes:
        request = self.request
        parts = [
            b"%s %s HTTP/1.1\r\nhost: %s\r\n"
            % (request.method, origin_form(request.target), host.encode())
        ]
        dropped = connection_headers(request.headers)
        parts += [
            b"%s: %s\r\n" % header
            for header in request.headers
            if header[0] not in dropped and not header[0].startswith(_OURS)
        ]
        if length or request.method in (b"POST", b"PUT", b"PATCH"):
            parts.append(b"content-length: %d\r\n" % length)
        if request.header(b"x-request-id") is None:
            parts.append(b"x-request-id: %s\r\n" % self.request_id)
        parts.append(b"\r\n")
        return b"".join(parts)

    def _answer_headers(self, headers: Headers) -> Headers:
        dropped = connection_headers(headers)
        sent = [
            header
            for header in headers
            if header[0] not in dropped and not header[0].startswith(_OURS)
        ]
        if not any(name == b"x-request-id" for name, _ in sent):
            sent.append((b"x-request-id", self.request_id))
        choice = self.choice
        if choice is not None and self.service.config.log.decision_headers:
            request = choice.request
            told = _DECISION % (
                choice.instance.name_bytes,
                choice.reason.name.lower().encode(),
                choice.hit_tokens,
                choice.source.encode(),
                request.est_hit_tokens,
                request.prompt_tokens,
                request.turn,
                choice.load,
                self.attempts,
            )
            sent.append((b"x-smetric-instance", told))
            if self.decoder is not None:
                sent.append((b"x-smetric-decode-instance", self.decoder.name_bytes))
        return sent

    # ---------------------------------------------------------------- for metrics and logs

    @property
    def begun(self) -> bool:
        """Whether the client has bytes of an answer."""
        return self._begun

    @property
    def status(self) -> int:
        """Status the client saw; 0 if none."""
        return self._answered_with

    @property
    def seconds(self) -> float:
        """Time since the request arrived [s]."""
        return self.loop.time() - self._started_s

    @property
    def first_byte_s(self) -> float | None:
        """Time from arrival to the first byte of the answer's body [s]."""
        return None if self._first_byte_s is None else self._first_byte_s - self._started_s


class _Collected:
    """A sink that keeps an answer, within the limit on bodies."""

    __slots__ = ("_exchange", "_size", "headers", "pieces", "status")

    def __init__(self, exchange: Exchange):
        self._exchange = exchange
        self._size = 0
        self.status = 0
        self.headers: Headers = []
        self.pieces: list[bytes] = []

    def on_head(self, status: int, headers: Headers, length: int | None) -> None:
        self.status, self.headers = status, headers

    def on_piece(self, piece: bytes) -> None:
        self._size += len(piece)
        self.pieces.append(piece)
        if self._size > self._exchange.service.config.limits.body_bytes:
            self._exchange._drop_engine()
            self._exchange.collected(Failure("answer too long"))

    def on_end(self) -> None:
        self._exchange.collected(None)

    def on_broken(self, word: str, stale: bool) -> None:
        self._exchange.collected(Failure(word, stale=stale))


def connection_headers(headers: Headers) -> frozenset[bytes] | set[bytes]:
    """Return the names of headers that speak of this connection only."""
    for name, value in headers:
        if name == b"connection":
            named = {part.strip().lower() for part in value.split(b",")}
            if named - {b"close", b"keep-alive"}:
                return _NOT_FORWARDED | named
    return _NOT_FORWARDED


def where() -> str:
    """Place where the exception being handled was raised, without its message."""
    import sys
    import traceback

    kind, _, trace = sys.exc_info()
    frames = traceback.extract_tb(trace)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "?"
    return f"{kind.__name__ if kind else '?'} at {place}"
