"""Write ``data/traces/agents-small.parquet``: a small trace for the scenario that is shipped.

An hour of the preset ``bailian-trace-1-medium`` at a low rate.  Equal seeds give equal files (with
equal versions of numpy and pyarrow, byte for byte).  The same from the command line::

    smetric-model synthesise bailian-trace-1-medium --rate 1.2 --window 3600 --seed 0 \
        --out data/traces/agents-small.parquet

    python tools/make_agents_small.py [--seed 0] [--out data/traces/agents-small.parquet]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from smetric_model.workload import Trace
from smetric_model.workload import write_trace as write
from smetric_model.workload.synthesis import load_preset

__all__ = ["make", "write"]

PRESET = "bailian-trace-1-medium"
RATE_RPS = 1.2
WINDOW_S = 3_600.0


def make(seed: int) -> Trace:
    """Return the trace for one seed."""
    return load_preset(PRESET, rate_rps=RATE_RPS, window_s=WINDOW_S, seed=seed)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Write the small trace that is shipped.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("data/traces/agents-small.parquet"))
    options = parser.parse_args()
    write(make(options.seed), options.out)


if __name__ == "__main__":
    main()
