"""Run a router until it is told to stop."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable

from smetric_model.live.router.config import RouterConfig
from smetric_model.live.router.service import Service

__all__ = ["run_router"]


def run_router(config: RouterConfig, ready: Callable[[str, int], None]) -> bool:
    """Run a router; SIGTERM or SIGINT lets it drain, a second one ends it.

    Parameters
    ----------
    config : RouterConfig
        Its configuration.
    ready : callable
        Called with host and port once it listens.

    Returns
    -------
    bool
        Whether all requests had ended when it stopped.

    Raises
    ------
    SpecError
        If the configuration does not work out on this machine.
    """
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    try:
        import uvloop

        factory = uvloop.new_event_loop
    except ImportError:
        pass  # not on Windows
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(_run(config, ready))


async def _run(config: RouterConfig, ready: Callable[[str, int], None]) -> bool:
    loop = asyncio.get_running_loop()
    told, again = asyncio.Event(), asyncio.Event()

    def stop() -> None:
        (again if told.is_set() else told).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    service = Service(config)
    try:
        ready(*await service.start())
        # What lives as long as the router need not be looked at again, and what a request leaves
        # has no cycles worth looking for often.
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        await told.wait()
        drained = asyncio.ensure_future(service.drain())
        impatient = asyncio.ensure_future(again.wait())
        await asyncio.wait({drained, impatient}, return_when=asyncio.FIRST_COMPLETED)
        impatient.cancel()
        if drained.done():
            return drained.result()
        drained.cancel()
        return False
    finally:
        await service.stop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
