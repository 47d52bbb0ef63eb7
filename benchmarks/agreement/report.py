"""How far ``predict`` is from ``simulate``: tables by load and policy.

``python benchmarks/agreement/report.py --half development`` reads what ``run.py`` wrote, prints a
report (Markdown) and writes a tidy table, one line a scenario and quantity.

Errors compare means over the seeds of a scenario, on the same traces.  *Noise* is the standard
error of the simulated mean (standard deviation over seeds ÷ √seeds), on the same scale as the
error, for as many seeds as were predicted.  Scenarios whose simulation finds no steady state
(requests take longer and longer, or do not end) are counted apart, with what ``predict`` says of
them at the rate that they were asked for (``asked``).
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import design
import numpy as np
import pandas as pd
import run


@dataclass(frozen=True)
class Quantity:
    """A column that is judged: absolute or relative error, target for its median."""

    label: str
    target: float
    relative: bool

    def value(self, row: dict[str, Any]) -> float:
        if self.label == "total_reuse_ratio":
            return 1.0 - float(row.get("recomputed_ratio", np.nan))
        return float(row.get(self.label, np.nan))


QUANTITIES = (
    Quantity("total_within_slo_tps", 0.05, True),
    Quantity("local_ratio", 0.03, False),
    Quantity("total_reuse_ratio", 0.02, False),
    Quantity("return_to_first_ratio", 0.015, False),
    Quantity("imbalance_processed_tokens_60s_mean", 0.10, True),
    Quantity("imbalance_processed_tokens_30s_mean", 0.10, True),
    Quantity("ttft_p50_s", 0.15, True),
    Quantity("ttft_p90_s", 0.25, True),
    Quantity("tpot_p50_s", 0.10, True),
)
STRATA = ("<.5", ".5-.8", ".8-.95")
#: tokens/s within SLO below this share of all tokens/s are measured against that share
LEAST_WITHIN_SLO = 0.1
#: no steady state where times grow by this factor from the window's first third to its last, or
#: where no more than this share of the design's rate comes about and requests take this many
#: times as long as recorded: sessions then wait, rather than being few
GROWTH, REALISED, LONGER = 1.5, 0.9, 2.0


def no_steady_state(rows: list[dict[str, Any]], point: design.Point) -> bool:
    """Whether the simulation of a scenario drifts or saturates."""
    done = [row for row in rows if row["status"] == "done"]
    if not done:
        return False
    growth = np.median([row["growth"] for row in done])
    unfinished = sum(not row["valid"] for row in done)
    rate = np.mean([row["arrival_rate_rps"] for row in done])
    output = np.mean([row["output_tps"] for row in done]) / rate
    recorded = point.base_s + point.per_output_token_s * output
    took = np.mean([row.get("e2e_mean_s", np.inf) for row in done])  # none: no request ended
    waits = rate < REALISED * point.rate_rps and took > LONGER * recorded
    return bool(not growth <= GROWTH or waits or 2 * unfinished > len(done))


def tidy(
    points: list[design.Point], rows: list[dict[str, Any]]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return one line a scenario and quantity, and one line a scenario with its state."""
    found: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["seed"]):
        found.setdefault((row["number"], row["verb"]), []).append(row)
    lines, states = [], []
    for point in points:
        about = {
            **asdict(point),
            "stratum": point.stratum,
            "serving": "disaggregated" if point.prefill_instances else "colocated",
        }
        simulated = found.get((point.number, "simulate"), [])
        predicted = found.get((point.number, "predict"), [])
        done = [row for row in simulated if row["status"] == "done"]
        answers = {row["seed"]: row for row in predicted if row["status"] == "done"}
        state = {
            **about,
            "simulate": _status(simulated),
            "predict": _status(predicted),
            "asked": _status(found.get((point.number, "asked"), [])),
            "error": next((row["error"] for row in predicted + simulated if "error" in row), ""),
            "steady": bool(done) and not no_steady_state(simulated, point),
            "utilisation": np.mean([r["compute_utilisation_ratio"] for r in done]) if done else 0.0,
            "growth": np.median([row["growth"] for row in done]) if done else np.nan,
            "simulate_cpu_s": sum(r["cpu_s"] + r.get("trace_cpu_s", 0) for r in simulated),
            "predict_cpu_s": sum(row["cpu_s"] for row in predicted),
        }
        states.append(state)
        pairs = [(row, answers[row["seed"]]) for row in done if row["seed"] in answers]
        if not state["steady"] or not pairs:
            continue
        for quantity in QUANTITIES:
            truth = np.array([quantity.value(row) for row, _ in pairs])
            answer = np.array([quantity.value(row) for _, row in pairs])
            scale = 1.0
            if quantity.relative:
                scale = float(truth.mean())
                if quantity.label == "total_within_slo_tps":
                    every = np.mean([row["total_tps"] for row, _ in pairs])
                    scale = max(scale, LEAST_WITHIN_SLO * float(every))
            error = (answer.mean() - truth.mean()) / scale
            every_seed = np.array([quantity.value(row) for row in done])
            several = every_seed.size > 1
            lines.append(
                {
                    "quantity": quantity.label,
                    "target": quantity.target,
                    **about,
                    "simulated": truth.mean(),
                    "predicted": answer.mean(),
                    "error": error,
                    "noise": truth.std(ddof=1) / np.sqrt(truth.size) / scale if several else np.nan,
                    "seeds": truth.size,
                }
            )
    return pd.DataFrame(lines), pd.DataFrame(states)


def _status(rows: list[dict[str, Any]]) -> str:
    kinds = {row["status"] for row in rows}
    for kind in ("failed", "unstable", "refused", "done"):
        if kind in kinds:
            return kind
    return "missing"


def _cell(part: pd.DataFrame) -> str:
    error = part["error"].abs().dropna()
    if error.empty:
        return "–"
    return f"{error.median():.3f} / {error.quantile(0.9):.3f}"


def table(lines: pd.DataFrame, by: str, groups: list[str]) -> str:
    """Median / P90 absolute error of each quantity in all groups, and the noise."""
    counts = {g: lines[lines[by] == g]["number"].nunique() for g in groups}
    head = ["quantity", "target", "all", "noise", *(f"{g} ({counts[g]})" for g in groups)]
    out = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for quantity in QUANTITIES:
        part = lines[lines["quantity"] == quantity.label]
        noise = part["noise"].median()
        met = part["error"].abs().median() <= quantity.target
        cells = [
            quantity.label + (" (relative)" if quantity.relative else ""),
            f"{quantity.target:g}",
            _cell(part) + (" ✓" if met else ""),
            f"{noise:.3f}",
            *(_cell(part[part[by] == g]) for g in groups),
        ]
        out.append("| " + " | ".join(cells) + " |")
    return "\n".join(out)


def worst(lines: pd.DataFrame, count: int) -> str:
    """Scenarios with the largest errors of each quantity."""
    out = [
        "| quantity | scenario | policy | LLM | N | load | tier | simulated | predicted | noise |",
        "|" + "---|" * 10,
    ]
    for quantity in QUANTITIES:
        part = lines[lines["quantity"] == quantity.label].dropna(subset=["error"])
        part = part.reindex(part["error"].abs().sort_values(ascending=False).index)
        out += [
            f"| {quantity.label} | {row.number} | {row.policy} | {row.llm[:10]} | {row.instances} |"
            f" {row.load:.2f} | {row.tier_ratio:.2f} | {row.simulated:.4g} | {row.predicted:.4g} |"
            f" {row.noise:.3f} |"
            for row in part.head(count).itertuples()
        ]
    return "\n".join(out)


def report(title: str, lines: pd.DataFrame, states: pd.DataFrame, count: int = 3) -> str:
    """Return the report of what :func:`tidy` made."""
    out = [f"# Closed form against simulation: {title}", ""]
    pairs = (
        states.groupby(["serving", "simulate", "predict", "asked", "steady"]).size().reset_index()
    )
    out += [
        "Scenarios by state (`steady`: the simulation has a steady state):",
        "",
        "| serving | simulate | predict | asked | steady | scenarios |",
        "|---|---|---|---|---|---|",
        *("| " + " | ".join(map(str, row)) + " |" for row in pairs.to_numpy()),
        "",
    ]
    failed = states[(states["simulate"] == "failed") | (states["predict"] == "failed")]
    out += [f"- scenario {row.number} ({row.policy}): {row.error}" for row in failed.itertuples()]
    if lines.empty:
        return "\n".join([*out, "Nothing to compare yet."])
    policies = [p for p in dict.fromkeys(design.POLICIES) if (lines["policy"] == p).any()]
    out += [
        "Median / 90th percentile of the absolute error; ✓: median within the target.",
        "",
        "## By load (rate ÷ capacity)",
        "",
        table(lines, "stratum", list(STRATA)),
        "",
        "## By policy",
        "",
        table(lines, "policy", policies),
        "",
        "## By model and serving",
        "",
        table(lines, "llm", [name for name, _ in design.MODELS]),
        "",
        table(lines, "serving", ["colocated", "disaggregated"]),
        "",
        "## Largest errors",
        "",
        worst(lines, count),
        "",
        f"CPU: simulate {states['simulate_cpu_s'].sum():.0f} s with the traces, predict"
        f" {states['predict_cpu_s'].sum():.0f} s.",
    ]
    return "\n".join(out)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--half", choices=design.HALVES, required=True)
    parser.add_argument("--out", type=Path, default=Path("out/agreement"))
    parser.add_argument("--worst", type=int, default=3, help="scenarios listed a quantity")
    parser.add_argument("--scenarios", help="numbers, such as 0-9,17; default: all")
    options = parser.parse_args(arguments)
    try:
        points = run.chosen(design.load(options.half), options.scenarios)
    except ValueError as error:
        parser.error(f"--scenarios: {error}")
    name = options.half + (f"-{options.scenarios}" if options.scenarios else "")
    rows = run.read_rows(options.out / f"{options.half}.jsonl")
    if not rows:
        print(f"no rows in {options.out}: run.py first", file=sys.stderr)
        return 1
    lines, states = tidy(points, rows)
    text = report(name, lines, states, options.worst)
    lines.to_csv(options.out / f"{name}-errors.csv", index=False)
    states.to_csv(options.out / f"{name}-states.csv", index=False)
    (options.out / f"{name}.md").write_text(text + "\n", encoding="utf-8")
    with contextlib.suppress(BrokenPipeError):
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
