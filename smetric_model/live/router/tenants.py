"""Tenants are kept apart by a salt in each body, which goes into the engines' block hashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smetric_model.live.router.body_edit import tenant_salt, with_member
from smetric_model.live.router.http_errors import HttpError

if TYPE_CHECKING:
    from smetric_model.live.router.question import Question

__all__ = ["salted_body"]

#: APIs whose requests can carry ``cache_salt`` (vLLM)
_SALTED = ("chat", "completions", "responses")
#: paths that take a body and compute nothing that is cached
_PROMPTLESS = ("/tokenize", "/detokenize")


def salted_body(question: Question, data: bytes, path: str, tenant: bytes, secret: str) -> bytes:
    """Put a tenant's salt into a body; what cannot carry one is not forwarded.

    Parameters
    ----------
    question : Question
        What was understood of the body; its ``cache_salt`` becomes the tenant's.
    data : bytes
        The body as it came.
    path : str
        Of the request.
    tenant : bytes
        What names the tenant.
    secret : str
        Key of the salts.

    Returns
    -------
    bytes
        The body to forward.

    Raises
    ------
    HttpError
        501 for paths and APIs without a salt, 400 for a body that cannot be read.
    """
    if question.api is None:
        if path in _PROMPTLESS or path.endswith("/render"):
            return data
        raise HttpError(
            501,
            "not_isolated",
            "this path has no known cache_salt, and tenants are kept apart: not forwarded",
        )
    if question.api not in _SALTED:
        raise HttpError(
            501,
            "not_isolated",
            "this API has no cache_salt, and tenants are kept apart: not forwarded",
        )
    if question.body is None:
        raise HttpError(400, "bad_body", f"{question.note}: not forwarded, it cannot be salted")
    salt = tenant_salt(secret, tenant, question.body.get("cache_salt"))
    salted = with_member(data, question.body, "cache_salt", salt)
    question.body["cache_salt"] = salt  # what the engine's block hashes will hold
    return salted
