"""Directions of OVERLOAD* with link speed, from what was simulated once."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).resolve().parent
NAME = "thresholds-links"
LINES, TUNED = HERE / f"{NAME}-lines.csv", HERE / f"{NAME}-tuned.csv"
SEEDS = tuple(range(3_000, 3_006))
