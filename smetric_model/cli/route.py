"""``smetric-model route``: the SMetric router in front of vLLM instances."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path
from typing import Any

import click
import orjson

from smetric_model.cli.output import echo_json, json_option
from smetric_model.errors import LiveError, SpecError

__all__ = ["command"]


class _JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time_s": round(record.created, 6),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        return orjson.dumps(line, default=str).decode()


@click.command("route")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="Configuration file (TOML); docs/router.md lists its keys.",
)
@click.option("--host", help="Address to listen on; loopback by default.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 8080 by default.")
@click.option(
    "--instance",
    "instances",
    multiple=True,
    metavar="[NAME=]URL",
    help="An engine, in addition to those of the file; may be repeated.",
)
@click.option("--policy", help="Routing policy; smetric by default.")
@click.option(
    "--hits",
    type=click.Choice(["exact", "approximate", "none"]),
    help="Where hit lengths come from; approximate by default.",
)
@click.option("--decisions", type=click.Path(path_type=Path), help="Log decisions to this file.")
@click.option("--check", is_flag=True, help="Check the configuration and end.")
@click.option(
    "--replay",
    type=click.Path(path_type=Path),
    help="Decide the decisions of a log again, and tell which come out differently.",
)
@json_option
def command(
    config: Path | None,
    host: str | None,
    port: int | None,
    instances: tuple[str, ...],
    policy: str | None,
    hits: str | None,
    decisions: Path | None,
    check: bool,
    replay: Path | None,
    as_json: bool,
) -> None:
    """Route requests to vLLM instances, by SMetric or another policy.

    An OpenAI-compatible front: clients speak to it as to one engine.  It runs until SIGTERM or
    SIGINT, then lets requests in flight end.  Its log goes to stderr, one JSON object a line.
    """
    if replay is not None:
        _replay(replay, as_json)
        return
    settings = _settings(config, host, port, instances, policy, hits, decisions)
    try:
        from smetric_model.live.router.running import run_router
    except ImportError as error:
        raise LiveError(
            f"route needs the package {error.name!r}, which is not installed; "
            "pip install 'smetric-model[live]'"
        ) from None
    if check:
        if as_json:
            echo_json(_without_secrets(settings.model_dump()))
        else:
            click.echo(f"{len(settings.instances)} instances, policy {settings.policy.name}: ok")
        return
    _log_to_stderr(settings.log.level)

    def ready(host: str, port: int) -> None:
        where = f"[{host}]" if ":" in host else host
        click.echo(f"listening on http://{where}:{port}", err=True)

    if not run_router(settings, ready):
        raise LiveError("stopped with requests in flight")


def _settings(
    config: Path | None,
    host: str | None,
    port: int | None,
    instances: tuple[str, ...],
    policy: str | None,
    hits: str | None,
    decisions: Path | None,
) -> Any:
    from smetric_model.live.router.config import RouterConfig, read_config

    content = {} if config is None else read_config(config)
    given: dict[str, dict[str, Any]] = {
        "listen": {"host": host, "port": port},
        "hits": {"source": hits},
        "log": {"decisions": None if decisions is None else str(decisions)},
    }
    for section, values in given.items():
        told = {key: value for key, value in values.items() if value is not None}
        old = content.get(section, {})
        if told and isinstance(old, dict):  # else the configuration says what is wrong
            content[section] = {**old, **told}
    if policy is not None:
        old = content.get("policy", {})
        if isinstance(old, dict):
            same = old.get("name", "smetric") == policy
            content["policy"] = {**(old if same else {}), "name": policy}
    for index, text in enumerate(instances):
        name, equals, url = text.partition("=")
        if not equals or "/" in name:
            name, url = f"instance-{index}", text
        listed = content.setdefault("instances", [])
        if isinstance(listed, list):
            listed.append({"name": name, "url": url})
    where = "" if config is None else f"{config}: "
    try:
        settings = RouterConfig(**content)
        settings.make_policy()
    except SpecError as error:
        lines = str(error).splitlines()
        raise SpecError("\n".join(where + line for line in lines)) from None
    if not settings.instances and settings.admin.token is None and not settings.admin.token_file:
        raise SpecError(
            f"{where}there are no instances; give [[instances]] in the file, --instance, or an "
            "[admin] token to add them at run time"
        )
    return settings


def _without_secrets(content: dict[str, Any]) -> dict[str, Any]:
    for section, key in (("admin", "token"), ("tenants", "secret")):
        if content[section][key] is not None:
            content[section][key] = "(set)"
    return content


def _log_to_stderr(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    logger = logging.getLogger("smetric_model.router")
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(level.upper())


def _replay(path: Path, as_json: bool) -> None:
    from smetric_model.live.router.decision_log import replay

    start = time.perf_counter()
    found = replay(path)
    seconds = time.perf_counter() - start
    if as_json:
        echo_json(
            {
                "decisions": found.decisions,
                "different": found.different,
                "seconds": seconds,
            }
        )
    else:
        click.echo(
            f"{path}: {found.decisions:,} decisions asked again, "
            f"{len(found.different):,} came out differently"
        )
    if found.different:
        lines = ", ".join(str(line) for line in found.different[:10])
        raise LiveError(f"{path}: decisions on lines {lines} do not repeat")
