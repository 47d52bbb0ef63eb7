"""The study of predict against simulate: its scenarios are fixed, its errors are what they say."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

STUDY = Path(__file__).resolve().parents[2] / "benchmarks" / "agreement"


@pytest.fixture(scope="module")
def modules() -> Any:
    sys.path.insert(0, str(STUDY))
    try:
        import design
        import report
        import run

        yield design, run, report
    finally:
        sys.path.remove(str(STUDY))
        for name in ("design", "run", "report"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def design(modules: Any) -> ModuleType:
    return modules[0]


@pytest.mark.parametrize("half", ["development"])
def test_file_holds_what_the_seed_draws(design: Any, half: str) -> None:
    names = (
        "capacity_rps rate_rps limit base_s per_new_token_s per_output_token_s warmup_s window_s"
    )
    empty = design.Point(*[0] * 20)
    added = {name: getattr(empty, name) for name in names.split()}
    drawn = [replace(point, **added) for point in design.drawn(half)]
    stored = [replace(point, **added) for point in design.load(half)]
    assert repr(drawn) == repr(stored)


@pytest.mark.parametrize("half", ["development"])
def test_rates_are_the_drawn_share_of_the_capacity(design: Any, half: str) -> None:
    points = design.load(half)
    load = np.array([p.load for p in points])
    assert np.allclose([p.rate_rps / p.capacity_rps for p in points], load, rtol=1e-3)
    # a Latin hypercube: one point in each of 200 strata
    middles = 0.2 + 0.75 * (np.arange(200) + 0.5) / 200
    assert np.abs(np.sort(load) - middles).max() < 0.75 / 400 + 1e-4  # rounded to 4 digits
    assert {p.policy for p in points} == set(design.POLICIES)
    assert {p.llm for p in points} == {name for name, _ in design.MODELS}
    assert sum(p.prefill_instances > 0 for p in points) == 40


def test_scenario_of_a_point_is_what_the_row_says(design: Any) -> None:
    from smetric_model.analytic.demand import cluster_of, instance_of
    from smetric_model.analytic.memory import kv_bytes_per_token, local_tier

    for point in design.load("development")[:40]:
        scenario = point.scenario(3)
        assert scenario.cluster.instances == point.instances
        assert (scenario.cluster.serving == "disaggregated") == (point.prefill_instances > 0)
        instance = instance_of(scenario)
        local = point.instances * local_tier(instance).tokens * kv_bytes_per_token(instance)
        tier = scenario.global_tier.bytes_per_node * cluster_of(scenario).nodes
        # the last node may be part-filled, and its memory counts whole
        assert point.tier_ratio * local <= tier * (1 + 1e-9)
        if point.instances * point.tp % 8 == 0:
            assert tier == pytest.approx(point.tier_ratio * local)


def test_cut_line_is_left_out_and_the_last_row_counts(modules: Any, tmp_path: Path) -> None:
    _, run, _ = modules
    rows = [{"number": 1, "seed": 0, "verb": "predict", "status": s} for s in ("failed", "done")]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + '\n{"number": 2, "se')
    assert run.read_rows(path) == rows[1:]
    assert run.read_rows(tmp_path / "none.jsonl") == []


def test_only_missing_stale_or_refused_rows_are_computed(modules: Any) -> None:
    design, run, _ = modules
    point = design.load("development")[0]
    seeds = run.seeds_of(point, "development")

    def missing(again: set[str] = frozenset(), **changes: Any) -> set[str]:  # type: ignore[assignment]
        rows = [
            {"number": 0, "seed": s, "verb": v, "status": "done", "sources": "now"} | changes
            for s in seeds
            for v in run.VERBS
        ]
        tasks = run._tasks([point], "development", rows, "now", again, run.SEEDS)
        return {verb for _, _, known, _ in tasks for verb, row in known.items() if row is None}

    assert missing() == set()
    assert missing(sources="before") == {"predict", "asked"}
    assert missing(status="refused") == {"simulate", "predict", "asked"}
    assert missing(status="failed") == set()
    assert missing({"simulate"}) == {"simulate"}


def test_report_finds_known_errors_and_noise(modules: Any) -> None:
    design, run, report = modules
    points = [p for p in design.load("development") if not p.prefill_instances][:30]
    rows = []
    for point in points:
        for seed in run.seeds_of(point, "development"):
            key = {"number": point.number, "seed": seed, "status": "done", "cpu_s": 1.0}
            truth = {
                "total_tps": 1000.0,
                "total_within_slo_tps": 500.0 + 50.0 * (-1) ** seed,
                "local_ratio": 0.5,
                "recomputed_ratio": 0.2,
                "ttft_p50_s": 1.0,
                "compute_utilisation_ratio": 0.5,
                "arrival_rate_rps": point.rate_rps,
                "output_tps": 300 * point.rate_rps,
                "e2e_mean_s": point.base_s + 300 * point.per_output_token_s,
                "growth": 1.0,
                "valid": True,
            }
            answer = truth | {
                "total_within_slo_tps": truth["total_within_slo_tps"] + 25.0,
                "recomputed_ratio": 0.3,
                "ttft_p50_s": 1.2,
            }
            rows += [{**key, "verb": "simulate", **truth}, {**key, "verb": "predict", **answer}]
    lines, states = report.tidy(design.load("development"), rows)
    assert states["steady"].sum() == len(points)
    by = lines.groupby("quantity")["error"].median()
    assert by["total_within_slo_tps"] == pytest.approx(0.05, rel=0.1)
    assert by["total_reuse_ratio"] == pytest.approx(-0.1)
    assert by["ttft_p50_s"] == pytest.approx(0.2)
    assert np.isnan(by["return_to_first_ratio"])
    noise = lines[(lines["quantity"] == "total_within_slo_tps") & (lines["seeds"] == 5)]["noise"]
    assert np.allclose(noise, np.std([550, 450, 550, 450, 550], ddof=1) / np.sqrt(5) / 510)
    text = report.report("development", lines, states)
    assert "0.200 / 0.200" in text


def test_simulations_that_drift_are_counted_apart(modules: Any) -> None:
    design, _, report = modules
    point = design.load("development")[0]
    row = {
        "status": "done",
        "growth": 1.0,
        "valid": True,
        "arrival_rate_rps": point.rate_rps,
        "output_tps": 300 * point.rate_rps,
        "e2e_mean_s": point.base_s + 300 * point.per_output_token_s,
    }
    few = row | {"arrival_rate_rps": 0.8 * point.rate_rps, "output_tps": 240 * point.rate_rps}
    assert not report.no_steady_state([row], point)
    assert not report.no_steady_state([few], point)
    assert report.no_steady_state([few | {"e2e_mean_s": 3 * row["e2e_mean_s"]}], point)
    assert report.no_steady_state([row | {"growth": 3.0}], point)
    assert report.no_steady_state([row | {"growth": float("nan")}], point)
    assert report.no_steady_state([row | {"valid": False}], point)
    assert not report.no_steady_state([row, row, row | {"growth": 3.0}], point)


def test_one_verb_alone_leaves_the_other_out(modules: Any) -> None:
    design, run, _ = modules
    point = design.load("development")[0]
    both: dict[str, Any] = {"simulate": None, "predict": None, "asked": None}
    _, _, known, _ = run._without_others((point, 0, both, "now"), "simulate")
    assert known["simulate"] is None
    assert known["predict"] is not None
    row = {"status": "done"}
    _, _, known, _ = run._without_others((point, 0, {**both, "simulate": row}, "now"), "simulate")
    assert known["simulate"] == row
