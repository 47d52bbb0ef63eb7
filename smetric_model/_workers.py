"""Processes that work for another one: they do not hear interrupts, and end when it does."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import wait

__all__ = ["Workers", "worker_pool"]


class Workers:
    """Worker processes that can be ended before their work is.

    Parameters
    ----------
    processes : int
        How many; they start when there is work.

    Attributes
    ----------
    executor : ProcessPoolExecutor
        Spawned: a process that compiles or has threads cannot be forked safely.
    """

    def __init__(self, processes: int):
        context = multiprocessing.get_context("spawn")
        self._others = set(multiprocessing.active_children())
        self.executor = ProcessPoolExecutor(
            processes, mp_context=context, initializer=_start_worker
        )

    def close(self, kill: bool = False) -> None:
        """Wait until all workers have ended.

        Parameters
        ----------
        kill : bool
            Whether what is under way is given up.
        """
        if kill:
            for process in set(multiprocessing.active_children()) - self._others:
                process.kill()
        self.executor.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def worker_pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Make worker processes that end with the block: after their work, or at once at an exception.

    Parameters
    ----------
    processes : int

    Yields
    ------
    ProcessPoolExecutor
    """
    workers = Workers(processes)
    try:
        yield workers.executor
    except BaseException:
        workers.close(kill=True)
        raise
    workers.close()


def _start_worker() -> None:
    """Make the process that calls a worker.

    An interrupt is its parent's to handle.  A parent that is killed cannot end its workers, and a
    worker that waits for work does not see that nobody is left to give any: a thread waits for the
    parent's end and ends the process, at the latest when the call under way in compiled code has
    returned.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)  # nobody is left to read an answer or to see an exception
