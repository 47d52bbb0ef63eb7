"""Where tasks run: in this process, in several of this machine, or on a Dask cluster.

A few tasks a worker are under way at once, so that memory does not grow with the sweep.  Every
record goes to ``keep`` as soon as it is there, also those that are there when an interrupt comes.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from typing import Any

from smetric_model._workers import Workers
from smetric_model.errors import SpecError
from smetric_model.sweeping.store import Record, library_digest
from smetric_model.sweeping.work import Task, failed, run_task

__all__ = ["run_here", "run_on_dask", "run_on_processes"]

Tasks = Iterator[tuple[int, Task]]
Keep = Callable[[int, Record], None]

#: tasks under way or waiting, for each worker
_AHEAD = 2


def run_here(tasks: Tasks, keep: Keep) -> None:
    """Run tasks one after the other.

    Parameters
    ----------
    tasks : iterator of (int, Task)
    keep : callable
        Given the number of a task and its record.
    """
    for number, task in tasks:
        keep(number, run_task(task))


def run_on_processes(tasks: Tasks, keep: Keep, jobs: int) -> None:
    """Run tasks in several processes of this machine.

    A process that dies (out of memory, a crash in compiled code) fails the task that it dies of
    again when that runs alone, and no other.

    Parameters
    ----------
    tasks, keep
        As of :func:`run_here`.
    jobs : int
        Processes.
    """
    more = True
    while more:
        more = False
        with _Pool(jobs, keep) as pool:
            try:
                for number, task in tasks:
                    pool.submit(number, task)
                    pool.collect(_AHEAD * jobs - 1)
                pool.collect(0)
            except BrokenProcessPool:
                more = True
        for number, task in pool.left:
            with _Pool(1, keep) as alone:
                try:
                    alone.submit(number, task)
                    alone.collect(0)
                except BrokenProcessPool:
                    died = RuntimeError("the process died: out of memory, or a crash")
                    keep(number, failed(died) | {"error_class": "ProcessDied"})


class _Pool:
    """Processes that do not hear interrupts, and end with the block."""

    def __init__(self, jobs: int, keep: Keep):
        self._workers = Workers(jobs)
        self._keep = keep
        self._pending: dict[Future[Record], tuple[int, Task]] = {}

    @property
    def left(self) -> list[tuple[int, Task]]:
        return sorted(self._pending.values(), key=lambda item: item[0])

    def submit(self, number: int, task: Task) -> None:
        # A process takes over what is blocked when it starts: an interrupt waits meanwhile.
        with _blocked_interrupts():
            try:
                future = self._workers.executor.submit(run_task, task)
            except BrokenProcessPool:
                future = Future()
                self._pending[future] = (number, task)
                raise
        self._pending[future] = (number, task)

    def collect(self, most: int) -> None:
        """Keep what is done, and wait until no more than ``most`` are under way."""
        while len(self._pending) > most:
            wait(self._pending, return_when=FIRST_COMPLETED)
            self._take_done()

    def _take_done(self) -> None:
        broken = None
        for future in [f for f in self._pending if f.done()]:
            number, _ = self._pending[future]
            try:
                record = future.result()
            except BrokenProcessPool as error:
                broken = error
                continue
            except Exception as error:  # it could not be sent, or its answer not be read
                record = failed(error)
            self._keep(number, record)
            del self._pending[future]
        if broken is not None:
            raise broken

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            with contextlib.suppress(BrokenProcessPool):
                self._take_done()
        self._workers.close(kill=kind is not None or bool(self._pending))


@contextlib.contextmanager
def _blocked_interrupts() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_on_dask(tasks: Tasks, keep: Keep, address: str) -> None:
    """Run tasks on a Dask cluster.

    Parameters
    ----------
    tasks, keep
        As of :func:`run_here`.
    address : str
        Of its scheduler, ``tcp://host:port``.

    Raises
    ------
    SpecError
        If ``distributed`` is not installed, no scheduler answers, there are no workers, or their
        library is not this one.
    """
    try:
        distributed: Any = import_module("distributed")
    except ImportError:
        raise SpecError(
            "sweep: a scheduler needs Dask: pip install 'smetric-model[distributed]'"
        ) from None
    try:
        client = distributed.Client(address, set_as_default=False, timeout="10s")
    except (OSError, ValueError, TimeoutError) as error:
        raise SpecError(f"sweep: scheduler = {address!r}: no answer ({error})") from None
    with client:
        ours = library_digest()
        theirs = client.run(library_digest)
        if not theirs:
            raise SpecError(f"sweep: scheduler = {address!r} has no workers")
        unlike = sorted(worker for worker, digest in theirs.items() if digest != ours)
        if unlike:
            raise SpecError(
                f"sweep: the library of {', '.join(unlike)} is another one than here: the same"
                " version and files are needed on every worker"
            )
        most = _AHEAD * sum(client.nthreads().values())
        numbers: dict[Any, int] = {}
        completed = distributed.as_completed(loop=client.loop)

        def take() -> None:
            future = next(completed)
            number = numbers.pop(future.key)
            try:
                record = future.result()
            except Exception as error:  # the worker died, or the task could not be sent
                record = failed(error)
            future.release()
            keep(number, record)

        for number, task in tasks:
            future = client.submit(run_task, task, pure=False)
            numbers[future.key] = number
            completed.add(future)
            while len(numbers) >= most:
                take()
        while numbers:
            take()
