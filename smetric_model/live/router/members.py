"""The instances of a router with what watches them: connections, probes, feeds of KV events."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import zmq.asyncio

from smetric_model.errors import SpecError
from smetric_model.live.router.fleet import Fleet, Instance
from smetric_model.live.router.health import HealthWatch
from smetric_model.live.router.http_client import EnginePool
from smetric_model.live.router.kv_feed import KvFeed

if TYPE_CHECKING:
    from smetric_model.live.router.approximate import ApproximateIndex
    from smetric_model.live.router.config import InstanceSection, RouterConfig
    from smetric_model.live.router.exact import ExactIndex

__all__ = ["Members"]


class Members:
    """Instances, added and taken out while the router runs.

    Parameters
    ----------
    config : RouterConfig
        Of the router.
    loop : AbstractEventLoop
        Where watches and feeds run.
    approximate, exact : optional
        Indices of what instances hold, which forget an instance that leaves or restarts.

    Attributes
    ----------
    fleet : Fleet
        The instances.
    feeds : dict of str to KvFeed
        KV events by instance; empty unless hits are exact.
    """

    def __init__(
        self,
        config: RouterConfig,
        loop: asyncio.AbstractEventLoop,
        approximate: ApproximateIndex | None,
        exact: ExactIndex | None,
    ):
        self.config = config
        self.loop = loop
        self.approximate = approximate
        self.exact = exact
        self.fleet = Fleet()
        self.feeds: dict[str, KvFeed] = {}
        self._watches: dict[str, tuple[HealthWatch, asyncio.Task[None]]] = {}
        self._context: Any = None if exact is None else zmq.asyncio.Context()

    def tasks(self) -> list[asyncio.Task[None]]:
        """Return what runs for the instances: probes and feeds."""
        found = [task for _, task in self._watches.values()]
        return found + [feed.task for feed in self.feeds.values() if feed.task is not None]

    def close(self) -> None:
        """Break all connections to engines."""
        for instance in self.fleet:
            if instance.pool is not None:
                instance.pool.abort()
        if self._context is not None:
            self._context.destroy(linger=0)

    def add(self, section: InstanceSection) -> Instance:
        """Add an instance; it takes requests at once, and probes may take it out.

        Raises
        ------
        SpecError
            If it is there already, or its role does not fit.
        """
        if len(self.fleet) and self.config.is_disaggregated != (section.role != "serve"):
            raise SpecError(f"instance {section.name!r}: role {section.role!r} does not fit")
        instance = self.fleet.add(section)
        timeouts = self.config.timeouts
        instance.pool = EnginePool(
            instance.scheme,
            instance.host,
            instance.port,
            connect_s=timeouts.connect_s,
            keep_alive_s=timeouts.engine_keep_alive_s,
            header_bytes=self.config.limits.header_bytes,
        )
        watch = HealthWatch(instance, self.config.health, self._scraped)
        self._watches[section.name] = (watch, self.loop.create_task(watch.run()))
        if self.exact is not None and section.kv_events is not None:
            feed = KvFeed(
                section.name,
                instance.bit,
                self.exact,
                section.kv_events,
                section.kv_replay,
                section.kv_topic,
            )
            feed.task = self.loop.create_task(feed.run(self._context))
            self.feeds[section.name] = feed
        return instance

    def remove(self, name: str) -> Instance:
        """Take an instance out; its requests in flight end where they are.

        Raises
        ------
        KeyError
            If there is none of that name.
        """
        instance = self.fleet.remove(name)
        _, task = self._watches.pop(name)
        task.cancel()
        feed = self.feeds.pop(name, None)
        if feed is not None and feed.task is not None:
            feed.task.cancel()
        self._forget(instance)
        assert instance.pool is not None
        instance.pool.close()
        self._free_slot_when_idle(instance)
        return instance

    def _free_slot_when_idle(self, instance: Instance) -> None:
        """Free the bit after the last request: one still there may yet teach the index."""
        if instance.load.requests:
            self.loop.call_later(1.0, self._free_slot_when_idle, instance)
            return
        self._forget(instance)
        self.fleet.free_slot(instance)

    def _forget(self, instance: Instance) -> None:
        if self.approximate is not None:
            self.approximate.drop_instance(instance.bit)
        if self.exact is not None:
            self.exact.forget(instance.bit)

    def unreachable(self, instance: Instance, reason: str) -> None:
        """Take an instance out that a request could not connect to."""
        watch = self._watches.get(instance.name)
        if watch is not None and not instance.removed:
            watch[0].unreachable(reason)

    def _scraped(self, instance: Instance, restarted: bool) -> None:
        """Learn the block size; forget what a process that is gone had cached."""
        if restarted:
            if self.approximate is not None:
                self.approximate.drop_instance(instance.bit)
            feed = self.feeds.get(instance.name)
            if feed is not None:
                feed.restarted()
        engine = instance.engine
        if self.exact is not None and engine is not None and engine.block_tokens is not None:
            self.exact.set_block_size(instance.bit, engine.block_tokens)
