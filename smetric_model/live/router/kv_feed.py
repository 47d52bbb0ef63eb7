"""Subscription to an engine's KV events: numbers, gaps, replay, restarts.

Messages are numbered from 0 at the start of the engine's process.  What the numbers say:

* the next one: apply it;
* a later one: some were lost.  They are asked for at the replay endpoint; where there is none, or
  it has them no longer, everything known of the instance is forgotten, since what is stale may
  lie, and what is missing only costs;
* an earlier one: the engine restarted and has nothing any more;
* one that a replay has brought already: skip it.

A subscriber that comes late asks for a replay from the start.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from smetric_model.live.router.exact import ExactIndex
from smetric_model.live.router.kv_wire import (
    AllCleared,
    BlocksRemoved,
    BlocksStored,
    KvBatch,
    WireError,
    decode_batch,
)

__all__ = ["KvFeed"]

_LOGGER = logging.getLogger("smetric_model.router")
_END = (1 << 64) - 1
_REPLAY_S = 5.0


class KvFeed:
    """The events of one instance.

    Parameters
    ----------
    name : str
        Of the instance.
    bit : int
        Its bit.
    index : ExactIndex
        What they are applied to.
    endpoint, replay : str, str or None
        ZMQ endpoints of the events and of their replay.
    topic : str
        Topic to subscribe to; empty takes all.
    """

    def __init__(
        self,
        name: str,
        bit: int,
        index: ExactIndex,
        endpoint: str,
        replay: str | None = None,
        topic: str = "",
    ):
        self.name = name
        self.bit = bit
        self.counts: Counter[str] = Counter()
        self.state = "connecting"
        self.task: asyncio.Task[None] | None = None
        self._index = index
        self._endpoint = endpoint
        self._replay = replay
        self._topic = topic.encode()
        #: number of the last batch applied, and of the last that came by subscription
        self._applied: int | None = None
        self._heard = -1
        self._lost_connection = False
        self._restart_heard = False

    @property
    def is_live(self) -> bool:
        """Whether the index can be trusted for this instance."""
        return bool(self._index.live & self.bit)

    @property
    def applied(self) -> int:
        """Number of the last batch applied; -1 if none was."""
        return -1 if self._applied is None else self._applied

    # ---------------------------------------------------------------- socket

    async def run(self, context: zmq.asyncio.Context) -> None:
        """Follow the events until cancelled."""
        socket = context.socket(zmq.SUB)
        socket.linger = 0
        socket.rcvhwm = 0  # a burst waits here: dropped, it would cost the whole index
        socket.subscribe(self._topic)
        monitor = socket.get_monitor_socket(
            zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
        )
        socket.connect(self._endpoint)
        watching = asyncio.ensure_future(self._watch(monitor))
        try:
            if self._replay is not None:
                await self._replayed(0, 0, context)  # what was cached before we came
            while True:
                frames = await socket.recv_multipart()
                await self.take(frames, context)
                await asyncio.sleep(0)  # a burst must not hold requests up
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            socket.disable_monitor()
            monitor.close(0)
            socket.close(0)

    async def _watch(self, monitor: zmq.asyncio.Socket) -> None:
        while True:
            event = await recv_monitor_message(monitor)
            if event["event"] == zmq.EVENT_CONNECTED:
                if not self.is_live and self._applied is None:
                    # Nothing has come yet: what the engine has cached since its start is unknown,
                    # and the first message tells by its number whether anything is missing.
                    self._set("live")
                self.counts["connected"] += 1
            else:
                self._lost_connection = True

    # ---------------------------------------------------------------- numbers

    async def take(self, frames: list[bytes], context: zmq.asyncio.Context | None = None) -> None:
        """Take one message of the subscription: topic, number, batch."""
        if len(frames) != 3 or len(frames[1]) != 8:
            self.counts["garbled"] += 1
            return
        number = int.from_bytes(frames[1], "big")
        if number <= self._heard:
            self._restart()
        self._heard = number
        expected = 0 if self._applied is None else self._applied + 1
        if number < expected:
            return  # a replay has brought it
        if number > expected:
            await self._fill(expected, number, context)
        if self._applied is None or number > self._applied:
            self._apply(number, frames[2])

    async def _fill(self, expected: int, number: int, context: zmq.asyncio.Context | None) -> None:
        """Get the batches before ``number``, or forget what they may have changed."""
        late = self._applied is None
        if not late:
            self.counts["gaps"] += 1
        if self._lost_connection and not late:
            # Meanwhile it may have been another process that counted: start over.
            self._index.cleared(self.bit)
            expected, self._applied = 0, None
        self._lost_connection = False
        if self._replay is not None and context is not None:
            self._set("replaying")
            if await self._replayed(expected, number, context):
                self._set("live")
                return
        if self._applied is None or self._applied + 1 < number:
            self._index.cleared(self.bit)
            self._applied = number - 1
        word = "came late" if late else "gap"
        self._set(f"live, {word}: what was cached before is not known")
        fields = {"instance": self.name, "expected": expected, "got": number}
        _LOGGER.warning("kv events missing", extra={"fields": fields})

    async def _replayed(self, first: int, number: int, context: zmq.asyncio.Context) -> bool:
        """Apply a replay from ``first`` on; whether nothing is missing before ``number``.

        Where the engine has the beginning no longer, what it changed is unknown: everything is
        forgotten, and the rest of the replay applied.
        """
        expected, whole = first, True
        try:
            async with asyncio.timeout(_REPLAY_S):
                async for got, payload in self._ask_replay(first, context):
                    if got < expected:
                        continue
                    if got > expected:
                        whole = False
                        self._index.cleared(self.bit)
                    self._apply(got, payload)
                    self.counts["replayed"] += 1
                    expected = got + 1
        except TimeoutError:
            pass
        return whole and expected >= number

    async def _ask_replay(
        self, first: int, context: zmq.asyncio.Context
    ) -> AsyncIterator[tuple[int, bytes]]:
        socket = context.socket(zmq.DEALER)
        socket.linger = 0
        socket.rcvhwm = 0
        try:
            assert self._replay is not None
            socket.connect(self._replay)
            await socket.send_multipart([b"", first.to_bytes(8, "big")])
            while True:
                frames = await socket.recv_multipart()
                # [b"", number, batch], or with the topic before the number
                if len(frames) not in (3, 4) or len(frames[-2]) != 8:
                    self.counts["garbled"] += 1
                    return
                number = int.from_bytes(frames[-2], "big")
                if number == _END:
                    return
                yield number, frames[-1]
        finally:
            socket.close(0)

    def _apply(self, number: int, payload: bytes) -> None:
        self._applied = number
        try:
            batch = decode_batch(payload)
        except WireError as error:
            # What it said is lost, as in a gap.
            self.counts["garbled"] += 1
            self._index.cleared(self.bit)
            fields = {"instance": self.name, "error": str(error)}
            _LOGGER.warning("kv events garbled", extra={"fields": fields})
            return
        self.apply_batch(batch)

    def apply_batch(self, batch: KvBatch) -> None:
        """Apply the events of one batch."""
        index, bit = self._index, self.bit
        for event in batch.events:
            if isinstance(event, BlocksStored):
                index.stored(bit, event)
            elif isinstance(event, BlocksRemoved):
                index.removed(bit, event)
            elif isinstance(event, AllCleared):
                index.cleared(bit)
        self.counts["batches"] += 1
        self.counts["orphans"] = index.orphans.get(bit, 0)
        if self.state in ("connecting", "replaying"):
            self._set("live")

    def _restart(self) -> None:
        self.counts["restarts"] += 1
        self._index.cleared(self.bit)
        self._applied = None
        self._heard = -1
        self._lost_connection = False
        self._restart_heard = True
        self._set("live")
        _LOGGER.warning("engine restarted", extra={"fields": {"instance": self.name}})

    def restarted(self) -> None:
        """Forget everything: the engine's process is another one."""
        if self._restart_heard:  # its numbers have told already, and its events count
            self._restart_heard = False
            return
        self._index.cleared(self.bit)
        self._applied = None
        self._heard = -1

    def _set(self, state: str) -> None:
        self.state = state
        if state.startswith("live"):
            self._index.live |= self.bit
        else:
            self._index.live &= ~self.bit
