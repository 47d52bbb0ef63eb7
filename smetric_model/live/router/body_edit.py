"""The few changes the router makes to bodies: one member in front, all other bytes as they came."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

__all__ = ["tenant_salt", "with_member"]


def with_member(data: bytes, parsed: dict[str, Any], name: str, value: object) -> bytes:
    """Return a JSON object with a member set.

    A member of that name that is there already is taken out, which means writing the whole
    object anew: two members of one name would leave it to the reader which of them counts.

    Parameters
    ----------
    data : bytes
        The object as it came.
    parsed : dict
        The same, parsed.
    name : str
        Of the member.
    value : object
        Its value.
    """
    if name in parsed:
        return orjson.dumps({**parsed, name: value})
    start = data.index(b"{") + 1
    member = orjson.dumps({name: value})[1:-1]
    comma = b"," if parsed else b""
    return b"".join((data[:start], member, comma, data[start:]))


def tenant_salt(secret: str, tenant: bytes, client_salt: object = None) -> str:
    """Return the ``cache_salt`` of a tenant.

    Parameters
    ----------
    secret : str
        Key; without it nobody can compute another tenant's salt.
    tenant : bytes
        What names the tenant.
    client_salt : object
        The salt the client asks for; it divides the tenant's cache further.
    """
    digest = hashlib.blake2b(tenant, key=secret.encode()[:64], digest_size=24)
    if isinstance(client_salt, str):
        digest.update(b"\x00" + client_salt.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
