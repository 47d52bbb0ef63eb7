"""Time and memory to load traces.

    python benchmarks/trace_load.py [TRACE ...]

Without names: the shipped trace, and those of $SMETRIC_SHARED/traces where that is set.

Each trace is loaded in a process of its own: once to compile (or fetch compiled kernels), then
three times for the time; peak memory is of the whole process.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path


def load(path: str) -> None:
    from smetric_model.workload import ideal_reuse, load_trace

    begin = time.perf_counter()
    load_trace(path)
    first = time.perf_counter() - begin
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        trace = load_trace(path)
        times.append(time.perf_counter() - begin)
    ideal_reuse(trace)
    begin = time.perf_counter()
    ideal_reuse(trace)
    reuse = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{trace.source}: {len(trace):,} requests; load {min(times):.2f} s (first {first:.2f} s), "
        f"ideal reuse {1e3 * reuse:.1f} ms, peak {peak:.2f} GiB"
    )


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--one":
        load(sys.argv[2])
    else:
        shipped = sorted((Path(__file__).parents[1] / "data" / "traces").glob("*.parquet"))
        shared = os.environ.get("SMETRIC_SHARED")
        others = sorted((Path(shared) / "traces").glob("*.jsonl.gz")) if shared else []
        for name in sys.argv[1:] or [str(path) for path in (*shipped, *others)]:
            subprocess.run([sys.executable, __file__, "--one", name], check=True)
