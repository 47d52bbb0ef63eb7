"""Workers end with the process that they work for, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# as sweep and reproduce have them
POOLS = {
    "sweep": """
from smetric_model.sweeping.pools import _Pool
with _Pool(2, print) as pool:
    go(pool._workers.executor)
""",
    "reproduce": """
from smetric_model.reproduction.runner import worker_pool
with worker_pool(2) as pool:
    go(pool)
""",
}
SCRIPT = """
import multiprocessing, os, signal, time

# also where the tests run in the background of a shell, which ignores interrupts there
signal.signal(signal.SIGINT, signal.default_int_handler)

def go(executor):
    jobs = [executor.submit(time.sleep, 600 if busy else 0) for _ in range(2)]
    while len(multiprocessing.active_children()) < 2:
        time.sleep(0.05)
    time.sleep(1.0)  # both have started to work
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    time.sleep(600)

if __name__ == "__main__":
    busy = {busy}
"""


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("pool", POOLS)
def test_no_worker_is_left(pool, how, tmp_path):
    body = SCRIPT.replace("{busy}", str(how != signal.SIGKILL))
    body += "".join(f"    {line}\n" for line in POOLS[pool].strip().splitlines())
    path = tmp_path / "script.py"
    path.write_text(body)
    process = subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True)
    workers: list[int] = []
    try:
        assert process.stdout is not None
        workers = [int(pid) for pid in process.stdout.readline().split()]
        assert len(workers) == 2
        assert all(alive(pid) for pid in workers)
        process.send_signal(how)
        process.wait(60)
        end = time.monotonic() + 60
        while any(alive(pid) for pid in workers) and time.monotonic() < end:
            time.sleep(0.1)
        assert not [pid for pid in workers if alive(pid)]
    finally:
        process.kill()
        process.communicate()
        for pid in workers:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
