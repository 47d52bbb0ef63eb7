"""Run the benchmarks; ``make bench``.  Timings are of this machine and this moment.

Usage: ``python benchmarks/run.py [NAME ...]``; without names, all but the long ones.
Traces that the repository does not carry are read from ``$SMETRIC_SHARED`` where it is set.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
#: minutes, not seconds: run by name
LONG = {
    "bound_ladder",
    "bound_scale",
    "bound_tiny",
    "bound_validity",
    "closed_form_vs_reference",
    "router_overhead",
    "router_soak",
    "simulator",
    "synthesis",
    "trace_fuzz",
    "trace_scale",
}


def main(names: list[str]) -> int:
    helpers = {"run", "__init__", "vidur_driver", "router_aiohttp", "router_engines", "router_load"}
    known = sorted(p.stem for p in HERE.glob("*.py") if p.stem not in helpers)
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}", file=sys.stderr)
        return 2
    failed = []
    for name in names or [n for n in known if n not in LONG]:
        print(f"== {name}", flush=True)
        start = time.perf_counter()
        if subprocess.run([sys.executable, str(HERE / f"{name}.py")], check=False).returncode:
            failed.append(name)
        print(f"   ({time.perf_counter() - start:.1f} s)", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
