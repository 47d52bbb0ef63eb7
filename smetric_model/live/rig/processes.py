"""Processes of a rig: each in a session of its own, with a log; only these are ever ended."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from smetric_model.errors import LiveError

__all__ = [
    "RigProcess",
    "cpu_seconds",
    "machine_cpu_seconds",
    "start_process",
    "uninterrupted",
]

_CLOCK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def _stat(pid: int) -> list[str] | None:
    """Fields of ``/proc/PID/stat`` after the name, or None."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text.rsplit(") ", 1)[-1].split()


def _began(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None or fields[0] == "Z" else int(fields[19])


@dataclass(frozen=True)
class RigProcess:
    """One process that the rig started, as it stands in the state file.

    ``began`` is the kernel's start time: a process id alone may be another's later.
    """

    name: str
    pid: int
    began: int
    log: str

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        with contextlib.suppress(ChildProcessError, OSError):
            os.waitpid(self.pid, os.WNOHANG)  # ours may be a zombie
        return _began(self.pid) == self.began

    def members(self) -> list[int]:
        """Ids of all processes in its session (workers that it started included)."""
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                fields = _stat(int(entry))
                if fields and fields[0] != "Z" and int(fields[3]) == self.pid:
                    found.append(int(entry))
        return found

    def end_of_log(self, lines: int = 12) -> str:
        """Return the last lines of its log."""
        try:
            text = Path(self.log).read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def stop(self, patience_s: float = 10.0) -> None:
        """End it and what it started: asked first, then killed."""
        if not self.alive and not self.members():
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            if number == signal.SIGTERM and self.alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, number)
            else:
                for pid in self.members():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
            end = time.monotonic() + patience_s
            while time.monotonic() < end:
                if not self.alive and not self.members():
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(self.pid, 0)  # it may have ended after the look above
                    return
                time.sleep(0.05)
        raise LiveError(f"{self.name}: process {self.pid} does not end")

    def to_dict(self) -> dict[str, object]:
        """Content for the state file."""
        return asdict(self)


def start_process(
    name: str,
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str] | None = None,
    core: int | None = None,
) -> RigProcess:
    """Start a process that outlives this one unless it is stopped.

    Parameters
    ----------
    name : str
        What messages call it; its log is ``NAME.log``.
    command : sequence of str
        Program and arguments.
    folder : Path
        Working folder, also of the log.
    environment : mapping, optional
        Added to this process's own.
    core : int, optional
        The one core on which it may run.

    Returns
    -------
    RigProcess

    Raises
    ------
    LiveError
        If it cannot be started.
    """
    log = folder / f"{name}.log"
    pin = [] if core is None else ["taskset", "-c", str(core)]
    try:
        with log.open("wb") as output:
            child = subprocess.Popen(
                [*pin, *command],
                cwd=folder,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise LiveError(f"{name}: {command[0]} cannot be started: {error.strerror}") from None
    child.returncode = 0  # it is watched by its id; the object must not complain when it goes
    began = _began(child.pid)
    if began is None:
        raise LiveError(f"{name}: ended at once; {log}")
    return RigProcess(name, child.pid, began, str(log))


def cpu_seconds(pids: Sequence[int]) -> float:
    """CPU time that processes have taken so far [s]; those gone count 0.

    Parameters
    ----------
    pids : sequence of int
        Process ids.
    """
    total = 0
    for pid in pids:
        fields = _stat(pid)
        if fields:
            total += int(fields[11]) + int(fields[12])
    return total / _CLOCK


def machine_cpu_seconds() -> tuple[float, float]:
    """CPU time that the machine's cores have worked so far, and that its host took from them [s].

    Returns
    -------
    tuple of float
        All processes together, the kernel included; and time stolen by the hypervisor.  NaN where
        the machine does not say.
    """
    try:
        line = Path("/proc/stat").read_text().splitlines()[0].split()
    except (OSError, IndexError):
        return math.nan, math.nan
    user, nice, system, _idle, _wait, irq, soft, steal = (int(word) for word in line[1:9])
    return (user + nice + system + irq + soft) / _CLOCK, steal / _CLOCK


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let interrupts wait until the block is done: nothing is half started, or half ended.

    Raises
    ------
    KeyboardInterrupt
        At the end of the block, if an interrupt came within it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    # an interrupt of the command line comes again by the timer (smetric_model.cli)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    before = [
        (number, signal.getsignal(number))
        for number in numbers
        if callable(signal.getsignal(number))
    ]
    for number, _ in before:
        signal.signal(number, lambda which, _frame: came.append(which))
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt
