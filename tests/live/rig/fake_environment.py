"""An environment whose ``vllm`` is the stand-in of ``fake_vllm.py``, and ``lmcache`` a listener."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent


#: listens on the port that it is given, and does nothing, while the tests run
TIER = """
import socket, sys, time
sys.path.insert(0, {folder!r})
from fake_vllm import end_with
end_with({tests})
one = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
time.sleep(600)
"""


def make_environment(folder: Path, modules: tuple[str, ...] = ("vllm",)) -> Path:
    """Make it; its interpreter.  What it starts ends with this process."""
    tests = os.getpid()
    (folder / "bin").mkdir(parents=True)
    for name in modules:
        (folder / "lib" / name).mkdir(parents=True)
        (folder / "lib" / name / "__init__.py").write_text("")
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder / "lib"} exec {sys.executable} "$@"\n')
    vllm = folder / "bin" / "vllm"
    engine = f'{sys.executable} {HERE / "fake_vllm.py"} "$@" --end-with {tests}'
    vllm.write_text(f"#!/bin/sh\nexec {engine}\n")
    (folder / "tier.py").write_text(TIER.format(folder=str(HERE), tests=tests))
    lmcache = folder / "bin" / "lmcache"
    lmcache.write_text(f'#!/bin/sh\nexec {sys.executable} {folder / "tier.py"} "$@"\n')
    for one in (python, vllm, lmcache):
        one.chmod(0o755)
    return python
