"""Step-time evaluations per second, import time, and loading of the shared traces.

Run: python benchmarks/instance_model.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from smetric_model.analytic.step_model import step_model
from smetric_model.analytic.step_time import step_time_s
from smetric_model.catalog.gpu import get_gpu
from smetric_model.catalog.instance import InstanceSpec
from smetric_model.catalog.llm import get_llm


def step_time() -> None:
    """Vectorised evaluations of random mixed steps."""
    rng = np.random.default_rng(0)
    count = 2_000_000
    steps = [rng.integers(0, top, count) for top in (8192, 60_000, 64, 60_000)]
    for llm, tp in (("Qwen3-Coder-30B-A3B-Instruct", 1), ("Qwen3-32B", 2)):
        model = step_model(InstanceSpec(get_llm(llm), get_gpu("H20"), tp=tp))
        times = []
        for _ in range(3):
            start = time.perf_counter()
            step_time_s(model, *steps)
            times.append(time.perf_counter() - start)
        print(f"step time, {llm}: {count / np.median(times) / 1e6:.2f} million evaluations/s")


def import_time() -> None:
    """Interpreter start with and without the package, median of five each."""
    medians = {}
    for code in ("pass", "import smetric_model"):
        times = []
        for _ in range(5):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            times.append(time.perf_counter() - start)
        medians[code] = float(np.median(times))
    extra = medians["import smetric_model"] - medians["pass"]
    print(f"import smetric_model: {extra:.3f} s, beside {medians['pass']:.3f} s for no import")


def loading(folder: Path) -> None:
    """Each trace in a process of its own: wall time of the load, peak memory of the process."""
    code = (
        "import time, resource, sys; from smetric_model.workload.trace import load_trace; "
        "start = time.perf_counter(); trace = load_trace(sys.argv[1]); "
        "print(len(trace), time.perf_counter() - start, "
        "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)"
    )
    for name in ("mooncake-conversation.jsonl.gz", "weka-claude-code-120.jsonl.gz"):
        runs = [
            subprocess.run(
                [sys.executable, "-c", code, str(folder / name)],
                check=True,
                capture_output=True,
                text=True,
            ).stdout.split()
            for _ in range(3)
        ]
        seconds = float(np.median([float(run[1]) for run in runs]))
        peak = max(float(run[2]) for run in runs)
        print(f"load {name}: {runs[0][0]} requests, {seconds:.2f} s, peak {peak / 1e9:.2f} GB")


if __name__ == "__main__":
    step_time()
    import_time()
    shared = os.environ.get("SMETRIC_SHARED")
    if shared:
        loading(Path(shared) / "traces")
    else:
        print("loading: skipped, SMETRIC_SHARED is not set")
