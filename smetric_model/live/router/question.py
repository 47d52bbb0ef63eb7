"""What a request's body tells the policy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from xxhash import xxh3_64_intdigest

from smetric_model.errors import SpecError
from smetric_model.live.router.chain import Chain, chain_of_conversation, chain_of_prompt
from smetric_model.live.router.http_errors import HttpError
from smetric_model.live.router.http_server import Incoming
from smetric_model.routing.policy import RoutingRequest
from smetric_model.routing.turn import parse_body, read_conversation

__all__ = ["API_OF_PATH", "EST_HIT_HEADER", "TURN_HEADER", "Question", "api_of", "ask"]

#: path -> API of its body
API_OF_PATH = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "anthropic",
}
#: A client that knows its session may say so: completions have no structure to read a turn from.
TURN_HEADER = b"x-smetric-turn"
EST_HIT_HEADER = b"x-smetric-est-hit-tokens"


@dataclass(slots=True)
class Question:
    """A request as the policy sees it.

    Parameters
    ----------
    api : str or None
        Which API; None for the engines' other paths.
    request : RoutingRequest
        What the policy reads.
    chain : Chain
        The prompt's prefixes.
    body : dict or None
        The body, parsed; None if it is no JSON object.
    streams : bool
        Whether the answer is asked for as a stream.
    has_images : bool
        Whether the prompt has more than text.
    tenant : bytes
        Hash of the tenant; empty if tenants are not kept apart.
    note : str
        Why the body was not read, if it was not.
    """

    api: str | None
    request: RoutingRequest
    chain: Chain = field(default_factory=Chain)
    body: dict[str, Any] | None = None
    streams: bool = False
    has_images: bool = False
    tenant: bytes = b""
    note: str = ""


def api_of(path: str) -> str | None:
    """Return the API of a path, or None."""
    return API_OF_PATH.get(path.rstrip("/"))


def ask(
    request: Incoming,
    *,
    session_header: bytes | None = None,
    tenant: bytes = b"",
) -> Question:
    """Read a request for what the policy needs.

    A body that cannot be read is a first turn, and the engine answers it as it will.

    Parameters
    ----------
    request : Incoming
        The request.
    session_header : bytes, optional
        Name of the header that names the session.
    tenant : bytes
        Hash of the tenant: caches of different tenants are different caches.

    Raises
    ------
    HttpError
        If a header that speaks to the router is wrong.
    """
    api = api_of(request.path) if request.method == b"POST" else None
    session = request.header(session_header) if session_header else None
    key = xxh3_64_intdigest(session) if session else 0
    if api is None:
        return Question(None, RoutingRequest(0, session_key=key), tenant=tenant)
    try:
        body = parse_body(request.body)
    except SpecError as error:
        note = "body is not JSON" if "JSON" in str(error) else "body is no object"
        return Question(api, RoutingRequest(0, session_key=key), tenant=tenant, note=note)
    question = Question(
        api, RoutingRequest(0), body=body, tenant=tenant, streams=body.get("stream") is True
    )
    try:
        turn, est_hit = _read(question, body, tenant)
    except SpecError as error:
        question.note = _path_of(error)
        question.chain = Chain()
        turn = est_hit = 0
    tokens = question.chain.prompt_tokens
    turn = _told(request, TURN_HEADER, turn)
    told = _told(request, EST_HIT_HEADER, est_hit)
    question.request = RoutingRequest(
        tokens, turn, min(told, tokens), key or question.chain.session_key
    )
    return question


def _read(question: Question, body: dict[str, Any], tenant: bytes) -> tuple[int, int]:
    assert question.api is not None
    conversation = read_conversation(question.api, body)
    model = body.get("model")
    root = tenant + (model.encode("utf-8", "surrogatepass") if isinstance(model, str) else b"")
    salt = body.get("cache_salt")
    if isinstance(salt, str):
        root += b"\x00" + salt.encode("utf-8", "surrogatepass")
    if question.api == "completions":
        question.chain = chain_of_prompt(body.get("prompt"), root)
    else:
        question.chain = chain_of_conversation(question.api, conversation, body, root)
        question.has_images = question.chain.has_images
    return conversation.turn.turn, conversation.turn.est_hit_tokens


def _told(request: Incoming, name: bytes, inferred: int) -> int:
    value = request.header(name)
    if value is None:
        return inferred
    if not value.isdigit() or len(value) > 12:
        raise HttpError(
            400,
            "bad_header",
            f"header {name.decode()} is no whole number; 0 to 999999999999 is allowed",
        )
    return int(value)


def _path_of(error: SpecError) -> str:
    """Where the body is wrong; never what stands there."""
    return f"body is wrong at {str(error).split(' ', 1)[0]}"
