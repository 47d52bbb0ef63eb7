"""Where tasks run: in this process, in several of this machine, or on a Dask cluster.

A few tasks a worker are under way at once, so that memory does not grow with the sweep.  Every
record goes to ``keep`` as soon as it is there, also those that are there when an interrupt comes.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from typing import Any

from smetric_model._workers import Workers
from smetric_model.errors import SpecError
from smetric_model.sweeping.store import Record, library_digest
from smetric_model.sweeping.work import Task, failed, run_task, run_tasks

__all__ = ["run_here", "run_on_dask", "run_on_processes"]

_Numbered = tuple[int, Task]
Tasks = Iterator[_Numbered]
Keep = Callable[[int, Record], None]

#: tasks, or chunks of them, under way or waiting, for each worker
_AHEAD = 2
#: work that a process gets at once, and most tasks that it may be
_CHUNK_S, _LARGEST = 0.1, 32


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
                while chunk := list(itertools.islice(tasks, pool.chunk)):
                    pool.submit(chunk)
                    pool.collect(_AHEAD * jobs - 1)
                pool.collect(0)
            except BrokenProcessPool:
                more = True
        _run_alone(pool.left, keep)


def _run_alone(left: list[_Numbered], keep: Keep) -> None:
    """Run tasks beside which a process died one after the other, so that it is known of which."""
    while left:
        with _Pool(1, keep) as alone:
            try:
                for item in left:
                    alone.submit([item])
                    alone.collect(0)
                return
            except BrokenProcessPool:
                died = RuntimeError("the process died: out of memory, or a crash")
        ((number, _),) = alone.left
        keep(number, failed(died) | {"error_class": "ProcessDied"})
        left = [item for item in left if item[0] > number]


class _Pool:
    """Processes that do not hear interrupts, and end with the block.

    Attributes
    ----------
    chunk : int
        Tasks to give a process at once: so many that it is not waiting for most of the time.
    """

    def __init__(self, jobs: int, keep: Keep):
        self._workers = Workers(jobs)
        self._keep = keep
        self._pending: dict[Future[tuple[list[Record], float]], list[_Numbered]] = {}
        self.chunk = 1

    @property
    def left(self) -> list[_Numbered]:
        return sorted(itertools.chain(*self._pending.values()), key=lambda item: item[0])

    def submit(self, items: list[_Numbered]) -> None:
        # A process takes over what is blocked when it starts: an interrupt waits meanwhile.
        with _blocked_interrupts():
            try:
                future = self._workers.executor.submit(run_tasks, [task for _, task in items])
            except BrokenProcessPool:
                future = Future()
                self._pending[future] = items
                raise
        self._pending[future] = items

    def collect(self, most: int) -> None:
        """Keep what is done, and wait until no more than ``most`` chunks are under way."""
        while len(self._pending) > most:
            wait(self._pending, return_when=FIRST_COMPLETED)
            self._take_done()

    def _take_done(self) -> None:
        broken = None
        for future in [f for f in self._pending if f.done()]:
            items = self._pending[future]
            try:
                records, took_s = future.result()
            except BrokenProcessPool as error:
                broken = error
                continue
            except Exception as error:  # it could not be sent, or its answer not be read
                if len(items) > 1:  # of which of them is not known
                    del self._pending[future]
                    for item in items:
                        self.submit([item])
                    continue
                records, took_s = [failed(error)], _CHUNK_S
            for (number, _), record in zip(items, records, strict=True):
                self._keep(number, record)
            del self._pending[future]
            self.chunk = min(max(int(_CHUNK_S * len(items) / max(took_s, 1e-9)), 1), _LARGEST)
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
