"""A validation from the command line, interrupted at a line that it tells; what is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from smetric_model.live.rig import Rig


class Run:
    """``smetric-model validate`` in a process of its own."""

    def __init__(self, spec: Path, out: Path, python: Path | str, *more: str):
        self.out = out
        code = "from smetric_model.cli import main; main()"
        command = [sys.executable, "-c", code, "validate", str(spec)]
        command += ["--out", str(out), "--python", str(python), *more]
        self.child = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "COLUMNS": "300"},
            # a shell may have told its children to ignore interrupts
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        self.lines: list[str] = []
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self) -> None:
        assert self.child.stderr is not None
        for line in self.child.stderr:
            self.lines.append(line.rstrip())

    def told(self, words: str, patience_s: float) -> None:
        """Wait until a line with these words has come."""
        end = time.monotonic() + patience_s
        while not any(words in line for line in self.lines):
            assert self.child.poll() is None, "\n".join(self.lines)
            assert time.monotonic() < end, f"{words!r} never came:\n" + "\n".join(self.lines)
            time.sleep(0.05)

    def processes(self) -> list:
        """What it has started, as in its state file."""
        rig = Rig.found(self.out / "engines")
        return [] if rig is None else rig.processes

    def end(self, number: int | None, patience_s: float) -> int:
        """Send a signal, if any, and wait for its end; its exit status."""
        if number is not None:
            self.child.send_signal(number)
        try:
            status = self.child.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.child.kill()
            raise
        self.reader.join(5.0)
        assert self.child.stderr is not None
        self.child.stderr.close()
        return status


def nothing_runs(processes: list) -> bool:
    return all(not one.alive and one.members() == [] for one in processes)


def routers_below(folder: Path) -> list[int]:
    """Routers whose configuration lies in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(word.startswith(str(folder).encode()) for word in words) and b"route" in words:
                found.append(int(entry.name))
    return found
