"""The study of tune: what was simulated once says what docs/thresholds.md says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

STUDY = Path(__file__).resolve().parents[2] / "benchmarks" / "agreement"


@pytest.fixture(scope="module")
def study() -> Any:
    sys.path.insert(0, str(STUDY))
    try:
        import design
        import thresholds_report

        yield design, thresholds_report
    finally:
        sys.path.remove(str(STUDY))
        for name in ("design", "thresholds_report"):
            sys.modules.pop(name, None)


def test_every_case_has_a_best_and_a_worst_pair_that_differ(study: Any) -> None:
    design, report = study
    simulated, predicted = report.grids()
    cases = [n for n, variant in simulated if variant == "base"]
    assert len([n for n in cases if n < report.FRESH]) == 20
    assert {p.number for p in design.load("thresholds-short")} == {
        n for n in cases if n < report.FRESH
    }
    assert {p.number for p in design.load("thresholds-candidates")} >= set(cases)
    for number in cases:
        grid = simulated[number, "base"]
        assert len(grid) == len(report.OVERLOADS) * len(report.HIT_RATIOS)
        means = np.array([value.mean() for value in grid.values()])
        # chosen by two seeds and five pairs; with all three of them it is still so
        assert means.min() < 0.9 * means.max()
        assert set(predicted[number, "base"]) == set(grid)


def test_regrets(study: Any) -> None:
    report = study[1]
    grid = {(1.0, 0.5): np.array([8.0, 8.0, 8.0]), (2.0, 0.5): np.array([9.0, 11.0, 10.0])}
    assert report.regret_of(grid, (2.0, 0.5)) == (0.0, 0.0, 0.0)
    worse = report.regret_of(grid, (1.0, 0.5))
    assert worse.regret == pytest.approx(0.2)
    assert worse.standard_error == pytest.approx(0.1 / 3**0.5)
    assert worse.held_out == pytest.approx(np.mean([1 / 9, 3 / 11, 2 / 10]))
    simulated, _ = report.grids()
    lost = [
        report.regret_of(grid, report.CONSTANT)
        for (number, variant), grid in simulated.items()
        if variant == "base" and number < report.FRESH
    ]
    # as docs/thresholds.md has it: the usual pair is as good as any chosen on other seeds
    assert np.median([r.regret for r in lost]) == pytest.approx(0.0055, abs=1e-4)
    assert abs(np.median([r.held_out for r in lost])) < 0.001
    never = [report.regret_of(simulated[n, "base"], (1.0, 0.5)).regret for n in (21, 8, 5)]
    assert min(never) > 0.2


def test_longer_histories_lean_towards_leaving_late(study: Any) -> None:
    report = study[1]
    simulated, _ = report.grids()
    for variant, least in (("short", 10), ("short, same rate", 14)):
        turns = [
            report.turn(simulated[number, variant], simulated[number, "base"])
            for number, name in simulated
            if name == variant
        ]
        told = [size for size, error in turns if abs(size) > 2 * error]
        assert sum(size > 0 for size in told) >= least
        assert sum(size > 0 for size in told) >= 0.9 * len(told)
