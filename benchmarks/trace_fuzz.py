"""Load 10,000 mutated trace files; each must load right or raise TraceError.

    python benchmarks/trace_fuzz.py [--count 10000] [--first 0]

Truncated, bit-flipped, reordered, wrong types, huge numbers, mixed formats, every container; each
file is made from its number alone.  Memory is limited to 2 GiB above the start, time to 20 s
a file.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import resource
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "workload"))

from trace_mutations import check

_ALLOWED_BYTES = 2 * 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    faulthandler.enable()
    outcomes: collections.Counter[str] = collections.Counter()
    failures = 0
    slowest = (0.0, -1)
    with tempfile.TemporaryDirectory() as folder:
        check(0, Path(folder))  # compile the kernels before memory is limited
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + _ALLOWED_BYTES, resource.RLIM_INFINITY))
        start = time.perf_counter()
        for seed in range(options.first, options.first + options.count):
            begin = time.perf_counter()
            try:
                outcomes[check(seed, Path(folder))] += 1
            except Exception:
                failures += 1
                print(f"file {seed} failed", file=sys.stderr)
                traceback.print_exc()
            slowest = max(slowest, (time.perf_counter() - begin, seed))
            for leftover in Path(folder).glob(f"{seed}[.-]*"):
                leftover.unlink()
        elapsed = time.perf_counter() - start
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:6d}  {outcome}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{options.count} files in {elapsed:.1f} s, {failures} failures; slowest file "
        f"{slowest[1]} {slowest[0]:.2f} s; peak memory {peak:.2f} GiB"
    )
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
