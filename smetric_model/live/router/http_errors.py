"""Errors as clients see them: JSON in OpenAI's form (Anthropic's on ``/v1/messages``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from smetric_model.live.router.exchange import Failure

__all__ = ["HttpError", "no_answer", "reason_phrase"]

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    411: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    431: "invalid_request_error",
    499: "client_closed_request",
    501: "not_implemented_error",
    502: "engine_error",
    503: "service_unavailable_error",
    504: "timeout_error",
    505: "not_implemented_error",
}

_PHRASES = {
    200: b"OK",
    201: b"Created",
    202: b"Accepted",
    204: b"No Content",
    400: b"Bad Request",
    401: b"Unauthorized",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    409: b"Conflict",
    413: b"Content Too Large",
    422: b"Unprocessable Content",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
    505: b"HTTP Version Not Supported",
}


def reason_phrase(status: int) -> bytes:
    """Return the phrase of a status line."""
    return _PHRASES.get(status, b"Status")


@dataclass(eq=False)
class HttpError(Exception):
    """An answer that is an error of the router's own.

    Parameters
    ----------
    status : int
        HTTP status.
    code : str
        Word for programs.
    message : str
        Sentence for people: what, the value, what is allowed.  Never from a prompt.
    close : bool
        Whether the connection cannot be used any further.
    """

    status: int
    code: str
    message: str
    close: bool = False
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def body(self, anthropic: bool = False) -> bytes:
        """Return the JSON body."""
        kind = _TYPES.get(self.status, "api_error")
        error = {"message": self.message, "type": kind, "param": None, "code": self.code}
        if anthropic:
            return orjson.dumps({"type": "error", "error": {"type": kind, "message": self.message}})
        return orjson.dumps({"error": error})


def no_answer(failure: Failure | None, attempts: int) -> HttpError:
    """Build the error of a request that no instance has answered.

    Parameters
    ----------
    failure : Failure or None
        Of the last attempt; None: none was made.
    attempts : int
        How many were made.
    """
    if failure is None:
        return HttpError(
            503,
            "no_instance",
            "no instance takes requests",
            headers=((b"retry-after", b"1"),),
        )
    times = f"after {attempts} attempt{'s' if attempts > 1 else ''}"
    if failure.word.startswith("timeout"):
        return HttpError(504, failure.word, f"no instance has answered in time, {times}")
    if failure.status:
        return HttpError(
            failure.status, "engine_error", f"the engine answered {failure.status}, {times}"
        )
    word = failure.word.replace(" ", "_")
    return HttpError(502, word, f"no instance has answered, {times}: {failure.word}")
