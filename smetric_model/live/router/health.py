"""Probes and scraping, one task an instance; neither ever touches the load."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from smetric_model.errors import LiveError
from smetric_model.live.router.fleet import Instance
from smetric_model.live.router.http_client import fetch
from smetric_model.live.router.scrape import read_engine_metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from smetric_model.live.router.config import HealthSection

__all__ = ["HealthWatch"]

_LOGGER = logging.getLogger("smetric_model.router")


class HealthWatch:
    """Watches one instance.

    Parameters
    ----------
    instance : Instance
        The instance.
    section : HealthSection
        Of the configuration.
    scraped : callable
        Called after a reading of the metrics, with whether the engine's process turned out to be
        another one.
    """

    def __init__(
        self, instance: Instance, section: HealthSection, scraped: Callable[[Instance, bool], None]
    ):
        self._instance = instance
        self._section = section
        self._scraped = scraped
        self._wake = asyncio.Event()

    def unreachable(self, reason: str) -> None:
        """Take the instance out at once: a request found nobody there; probes take it back."""
        self._instance.failed_probes = self._section.fails
        self._instance.passed_probes = 0
        self._set(False, reason)
        self._wake.set()

    async def run(self) -> None:
        """Probe and scrape until cancelled."""
        await asyncio.gather(self._probe_forever(), self._scrape_forever())

    async def _probe_forever(self) -> None:
        section = self._section
        while True:
            await self._probe()
            try:
                async with asyncio.timeout(section.interval_s):
                    await self._wake.wait()
                self._wake.clear()
                await asyncio.sleep(min(0.2, section.interval_s))
            except TimeoutError:
                pass

    async def _probe(self) -> None:
        instance, section = self._instance, self._section
        assert instance.pool is not None
        instance.pool.close_idle()
        try:
            status, _ = await fetch(instance.pool, section.path, timeout_s=section.timeout_s)
            reason = "" if 200 <= status < 300 else f"{section.path} answered {status}"
        except LiveError as error:
            reason = f"{section.path}: {error}"
        if reason:
            instance.failed_probes += 1
            instance.passed_probes = 0
            if instance.failed_probes >= section.fails:
                self._set(False, reason)
        else:
            instance.passed_probes += 1
            if instance.up or instance.passed_probes >= section.successes:
                instance.failed_probes = 0
                self._set(True)

    def _set(self, up: bool, reason: str = "") -> None:
        if self._instance.set_up(up, reason):
            level = logging.INFO if up else logging.WARNING
            fields = {"instance": self._instance.name, "reason": reason}
            _LOGGER.log(level, "instance up" if up else "instance down", extra={"fields": fields})

    async def _scrape_forever(self) -> None:
        interval = self._section.scrape_interval_s
        if not interval:
            return
        loop = asyncio.get_running_loop()
        instance = self._instance
        assert instance.pool is not None
        while True:
            try:
                status, body = await fetch(
                    instance.pool, "/metrics", timeout_s=self._section.timeout_s
                )
                if status == 200:
                    self._read(body.decode("utf-8", "replace"), loop.time())
            except LiveError:
                pass  # the probe tells; what was read before ages visibly
            await asyncio.sleep(interval)

    def _read(self, text: str, now_s: float) -> None:
        new, old = read_engine_metrics(text, now_s), self._instance.engine
        if new is None:
            return
        self._instance.engine = new
        restarted = (
            old is not None
            and None not in (old.start_s, new.start_s)
            and old.start_s != new.start_s
        )
        if restarted:
            _LOGGER.warning("engine restarted", extra={"fields": {"instance": self._instance.name}})
        self._scraped(self._instance, restarted)
