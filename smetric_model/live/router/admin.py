"""Instances at run time.  Every path needs the token; without one there is no such endpoint.

::

    GET    /router/status                      the whole state
    POST   /router/instances                   add one (the keys of ``[[instances]]``)
    POST   /router/instances/NAME/drain        no new requests
    POST   /router/instances/NAME/undrain      new requests again
    DELETE /router/instances/NAME              take it out; requests in flight end where they are
"""

from __future__ import annotations

import hmac
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from smetric_model.errors import SpecError
from smetric_model.live.router.config import InstanceSection, RouterConfig
from smetric_model.live.router.http_errors import HttpError

if TYPE_CHECKING:
    from smetric_model.live.router.fleet import Instance
    from smetric_model.live.router.http_server import Incoming
    from smetric_model.live.router.service import Service

__all__ = ["Admin", "read_token"]

_LOGGER = logging.getLogger("smetric_model.router")


class Admin:
    """The admin endpoint.

    Parameters
    ----------
    service : Service
        The router.
    token : str or None
        Bearer token; None: no endpoint.
    """

    def __init__(self, service: Service, token: str | None):
        self._service = service
        self._expected = None if token is None else b"Bearer " + token.encode()

    def answer(self, request: Incoming, path: str) -> tuple[int, dict[str, Any]]:
        """Answer a request.

        Raises
        ------
        HttpError
            If it is not allowed, or wrong.
        """
        if self._expected is None:
            raise HttpError(404, "not_found", "there is no admin endpoint: no token is configured")
        given = request.header(b"authorization") or b""
        if not hmac.compare_digest(given, self._expected):
            raise HttpError(
                401,
                "bad_token",
                "the admin endpoint needs its bearer token",
                headers=((b"www-authenticate", b"Bearer"),),
            )
        parts = path.strip("/").split("/")[1:]
        match (request.method, parts):
            case (b"GET", ["status"]):
                return 200, self._status()
            case (b"POST", ["instances"]):
                return 201, self._add(request.body)
            case (b"POST", ["instances", name, "drain" | "undrain" as verb]):
                return 200, self._drain(name, verb == "drain")
            case (b"DELETE", ["instances", name]):
                return 200, self._remove(name)
        raise HttpError(404, "not_found", "the admin endpoint has no such path or method")

    def _status(self) -> dict[str, Any]:
        service = self._service
        return {
            "uptime_s": round(time.time() - service.started_s, 3),
            "draining": service.draining,
            "policy": service.decider.policy.name,
            "in_flight": len(service.exchanges),
            "hits": service.hits_state(),
            "instances": [self._instance(item) for item in service.fleet],
        }

    def _instance(self, item: Instance) -> dict[str, Any]:
        engine = item.engine
        return {
            "name": item.name,
            "url": item.section.url,
            "role": item.role,
            "up": item.up,
            "down_reason": item.down_reason,
            "draining": item.draining,
            "in_flight": item.load.requests,
            "unprefilled_tokens": item.load.unprefilled_tokens,
            "held_tokens": item.load.held_tokens,
            "requests": item.requests,
            "failures": item.failures,
            "kv_capacity_tokens": item.kv_capacity_tokens,
            "engine": None
            if engine is None
            else {
                "running": engine.running,
                "waiting": engine.waiting,
                "kv_usage_ratio": engine.kv_usage_ratio,
                "age_s": round(self._service.loop.time() - engine.scraped_s, 3),
            },
        }

    def _add(self, data: bytes) -> dict[str, Any]:
        try:
            given = orjson.loads(data)
            if not isinstance(given, dict):
                raise SpecError("the body is no object; the keys of [[instances]] are allowed")
            instance = self._service.members.add(InstanceSection(**given))
        except (orjson.JSONDecodeError, SpecError) as error:
            raise HttpError(400, "bad_instance", str(error)) from None
        _LOGGER.info("instance added", extra={"fields": {"instance": instance.name}})
        return self._instance(instance)

    def _drain(self, name: str, drain: bool) -> dict[str, Any]:
        instance = self._find(name)
        instance.draining = drain
        word = "instance drains" if drain else "instance takes requests again"
        _LOGGER.info(word, extra={"fields": {"instance": name}})
        return self._instance(instance)

    def _remove(self, name: str) -> dict[str, Any]:
        self._find(name)
        instance = self._service.members.remove(name)
        _LOGGER.info("instance removed", extra={"fields": {"instance": name}})
        return self._instance(instance)

    def _find(self, name: str) -> Instance:
        fleet = self._service.fleet
        if name not in fleet:
            raise HttpError(404, "no_such_instance", f"there is no instance {name[:100]!r}")
        return fleet[name]


def read_token(config: RouterConfig) -> str | None:
    """Return the admin endpoint's token, from the configuration or the file that it names.

    Parameters
    ----------
    config : RouterConfig

    Raises
    ------
    SpecError
        If the file cannot be read, or what it holds is too short.
    """
    admin = config.admin
    if admin.token_file is None:
        return admin.token
    try:
        token = Path(admin.token_file).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"admin.token_file: {admin.token_file} cannot be read: {error}") from None
    if len(token) < 16:
        raise SpecError(
            f"admin.token_file: {admin.token_file} holds {len(token)} characters; "
            "16 or more are allowed"
        )
    return token
