"""Bound against brute force: every placement of tiny clusters simulated.

Usage: ``python benchmarks/bound_tiny.py [CASES]`` (default 60).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "bound"))

from tiny import best_placement, tiny_scenario


def main(cases: int) -> int:
    ratios, strained, broken = [], [], 0
    for seed in range(cases):
        best, bound, offered, _ = best_placement(*tiny_scenario(seed))
        broken += best > bound * (1 + 1e-9)
        nothing = 1.0 if bound <= 0 else np.inf
        ratio = bound / best if best > 0 else nothing
        ratios.append(ratio)
        if best < offered * (1 - 1e-9):
            strained.append(ratio)
    for name, values in (("all", ratios), ("SLO missed by some", strained)):
        print(
            f"{name}: {len(values)} cases, bound over brute force median"
            f" {np.median(values):.3f}, 75 % {np.quantile(values, 0.75):.3f},"
            f" largest {max(values):.3f}"
        )
    print(f"{broken} broken")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 60))
