"""An environment whose ``vllm`` is the stand-in of ``fake_vllm.py``, and ``lmcache`` a listener."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent


#: listens on the port that it is given, and does nothing
TIER = """
import socket, sys, time
one = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
time.sleep(600)
"""


def make_environment(folder: Path, modules: tuple[str, ...] = ("vllm",)) -> Path:
    """Make it; its interpreter."""
    (folder / "bin").mkdir(parents=True)
    for name in modules:
        (folder / "lib" / name).mkdir(parents=True)
        (folder / "lib" / name / "__init__.py").write_text("")
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder / "lib"} exec {sys.executable} "$@"\n')
    vllm = folder / "bin" / "vllm"
    vllm.write_text(f'#!/bin/sh\nexec {sys.executable} {HERE / "fake_vllm.py"} "$@"\n')
    (folder / "tier.py").write_text(TIER)
    lmcache = folder / "bin" / "lmcache"
    lmcache.write_text(f'#!/bin/sh\nexec {sys.executable} {folder / "tier.py"} "$@"\n')
    for one in (python, vllm, lmcache):
        one.chmod(0o755)
    return python
