"""KV events of engines in a window: blocks stored and removed, by medium."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Sequence

from smetric_model.live.rig.engines import Endpoint

__all__ = ["KvWatch"]


class KvWatch:
    """Listens to the engines' KV events, and reads them only when it has stopped.

    Parameters
    ----------
    endpoints : sequence of Endpoint
        Whose events.
    """

    def __init__(self, endpoints: Sequence[Endpoint]):
        self._endpoints = tuple(endpoints)
        self._payloads: list[tuple[int, bytes]] = []
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to listen."""
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it; again and again does no harm."""
        self._ends.set()
        if self._thread is not None:
            self._thread.join(5.0)
            self._thread = None

    def _listen(self) -> None:
        import zmq

        context = zmq.Context()
        poller = zmq.Poller()
        sockets = {}
        for index, point in enumerate(self._endpoints):
            one = context.socket(zmq.SUB)
            one.setsockopt(zmq.SUBSCRIBE, b"")
            one.setsockopt(zmq.LINGER, 0)
            one.connect(point.kv_events)
            poller.register(one, zmq.POLLIN)
            sockets[one] = index
        try:
            while not self._ends.is_set():
                for one, _ in poller.poll(200):
                    self._payloads.append((sockets[one], one.recv_multipart()[-1]))
        finally:
            for one in sockets:
                one.close()
            context.term()

    def counts(self) -> dict[str, dict[str, int]]:
        """Return blocks by engine: ``stored_gpu``, ``removed_gpu``, and those of other media.

        Returns
        -------
        dict of str to dict of str to int
        """
        from smetric_model.live.router.kv_wire import (
            BlocksRemoved,
            BlocksStored,
            WireError,
            decode_batch,
        )

        result = {point.name: Counter[str]() for point in self._endpoints}
        for index, payload in self._payloads:
            counter = result[self._endpoints[index].name]
            with contextlib.suppress(WireError):
                for event in decode_batch(payload).events:
                    if isinstance(event, BlocksStored | BlocksRemoved):
                        what = "stored" if isinstance(event, BlocksStored) else "removed"
                        medium = (event.medium or "gpu").lower()
                        counter[f"{what}_{medium}"] += len(event.hashes)
        return {name: dict(counter) for name, counter in result.items()}
