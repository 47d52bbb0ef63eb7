"""The ladder on a fine grid of rates: the paper's three set-ups, no global tier, both traces.

Usage: ``python benchmarks/bound_ladder.py simulate|bound|report [--work DIR] [NAME ...]``; names:
those of ``SETUPS`` and (with ``SMETRIC_SHARED``) ``TRACES``.

``simulate`` looks for the rate at which each set-up processes most, by a coarse scan, then runs
every policy and eviction at ten rates around it, with two seeds.  ``bound`` bounds each of these
runs on the requests that it really had.  Both keep every row at once in ``DIR`` and go on where
they stopped; minutes each.  ``report`` prints the tables and writes ``bound_ladder.csv`` beside
this file and ``docs/figures/bound_ladder.png``.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from smetric_model.bound.solvers import SolverOptions
from smetric_model.scenario import Scenario
from smetric_model.workload.trace import Trace

SEEDS = (0, 1)
EVICTIONS = ("clairvoyant", "lru")
#: Rates, over the one at which the coarse scan processed most.
GRID = (0.5, 0.65, 0.8, 0.88, 0.94, 1.0, 1.06, 1.12, 1.2, 1.35)
COLOCATED = ("smetric", "bailian", "lmetric", "load-balance")
BASE = {
    "workload": {"preset": "bailian-trace-1-medium", "warmup_s": 600.0, "window_s": 600.0},
    "global_tier": {"bytes_per_node": 1280e9},
}
#: Changes, and the rate at which the coarse scan begins.
SETUPS: dict[str, tuple[dict[str, object], float]] = {
    "colocated-30b": ({}, 4.0),
    "colocated-235b": (
        {
            "llm": {"name": "Qwen3-235B-A22B-FP8"},
            "engine": {"tp": 4},
            "cluster": {"instances": 8},
        },
        1.0,
    ),
    # 32 prefill instances, as in the paper, which looks at these alone: decode shall not limit
    "disaggregated-30b": (
        {
            "llm": {"name": "Qwen3-30B-A3B"},
            "cluster": {
                "serving": "disaggregated",
                "prefill_instances": 32,
                "decode_instances": 32,
                "instances": 64,
            },
            "global_tier": {"bytes_per_node": 640e9},
            "slo": {"tpot_s": 0.1},
        },
        6.0,
    ),
    "no-tier-30b": ({"cluster": {"instances": 16}, "global_tier": {"bytes_per_node": 0.0}}, 2.5),
}
TRACES = {
    "mooncake": ("mooncake-conversation.jsonl.gz", 8.0),
    "weka": ("weka-claude-code-120.jsonl.gz", 1.0),
}
KEYS = ("name", "policy", "eviction", "rate_rps", "seed")
COLUMNS = (
    "arrival_rate_rps",
    "requests",
    "total_tps",
    "total_within_slo_tps",
    "within_slo_ratio",
    "local_ratio",
    "global_ratio",
    "recomputed_ratio",
    "compute_utilisation_ratio",
    "kv_utilisation_ratio",
    "nic_in_utilisation_ratio",
    "decode_compute_utilisation_ratio",
)


def scenario_of(name: str) -> tuple[Scenario, float]:
    if name in SETUPS:
        changes, start = SETUPS[name]
        return Scenario.from_dict({"name": name, **BASE, **changes}), start
    file, start = TRACES[name]
    workload = {
        "trace": os.path.join(os.environ["SMETRIC_SHARED"], "traces", file),
        "warmup_s": 600.0,
        "window_s": 600.0,
        "session_start": "poisson",
    }
    return Scenario.from_dict({"name": name, **BASE, "workload": workload}), start


def policies_of(scenario: Scenario) -> tuple[str, ...]:
    split = scenario.cluster.serving == "disaggregated"
    return (*COLOCATED[:3], "dynamo") if split else COLOCATED


def load_of(scenario: Scenario) -> Trace | None:
    """The trace, if it is a file: loaded once."""
    from smetric_model.workload import load_trace

    return load_trace(scenario.workload.trace) if scenario.workload.trace else None


class Table:
    """Rows of a CSV file, each kept as soon as it is known."""

    def __init__(self, path: Path, keys: tuple[str, ...]):
        self.path, self.keys = path, keys
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            self.rows = pd.read_csv(path).to_dict("records")
        self.known = {self._key(row) for row in self.rows}

    def _key(self, row: dict[str, Any]) -> tuple[str, ...]:
        return tuple(
            f"{row[k]:.6g}" if isinstance(row[k], float) else str(row[k]) for k in self.keys
        )

    def has(self, **key: Any) -> bool:
        return self._key(key) in self.known

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.known.add(self._key(row))
        pd.DataFrame(self.rows).to_csv(self.path, index=False, float_format="%.6g")


def _file(key: dict[str, Any]) -> str:
    return "_".join(str(key[k]) for k in KEYS)


def run_one(
    scenario: Scenario, trace: Trace | None, policy: str, eviction: str, rate: float, seed: int
) -> tuple[Scenario, Any]:
    from smetric_model.simulate.run import simulate_in_detail

    here = scenario.replace(
        **{
            "seed": seed,
            "router.policy": policy,
            "local_tier.eviction": eviction,
            "global_tier.eviction": eviction,
            "workload.rate_rps": float(rate),
        }
    )
    return here, simulate_in_detail(here, trace)


def peak_rate(scenario: Scenario, trace: Trace | None, start: float) -> float:
    """Rate at which most is processed, on a grid of steps of a quarter."""
    best: dict[float, float] = {}

    def at(rate: float) -> float:
        if rate not in best:
            _, run = run_one(scenario, trace, "smetric", "lru", rate, SEEDS[0])
            best[rate] = float(run.outcome["total_tps"])
            print(f"    coarse: {rate:.3g}/s {best[rate]:,.0f} tokens/s", flush=True)
        return best[rate]

    rate = start
    while at(rate * 1.25) > at(rate):
        rate *= 1.25
    while at(rate / 1.25) > at(rate):
        rate /= 1.25
    return rate


def simulate_all(names: list[str], work: Path) -> None:
    knees = Table(work / "knees.csv", ("name",))
    table = Table(work / "runs.csv", KEYS)
    for name in names:
        scenario, start = scenario_of(name)
        trace = load_of(scenario)
        print(f"== {name}", flush=True)
        if not knees.has(name=name):
            knees.add({"name": name, "rate_rps": peak_rate(scenario, trace, start)})
        knee = next(float(row["rate_rps"]) for row in knees.rows if row["name"] == name)
        for seed in SEEDS:
            for share in GRID:
                rate = float(f"{share * knee:.4g}")
                for policy in policies_of(scenario):
                    for eviction in EVICTIONS:
                        key = {
                            "name": name,
                            "policy": policy,
                            "eviction": eviction,
                            "rate_rps": rate,
                            "seed": seed,
                        }
                        if table.has(**key):
                            continue
                        before = time.process_time()
                        _, run = run_one(scenario, trace, policy, eviction, rate, seed)
                        replay = run.replay
                        np.savez_compressed(
                            work / f"{_file(key)}.npz", arrival=replay.arrival, done=replay.done
                        )
                        row = {**key, **{c: run.outcome[c] for c in COLUMNS}}
                        row["end_tick"] = int(replay.end_tick)
                        row["simulate_cpu_s"] = time.process_time() - before
                        table.add(row)
                done = [row for row in table.rows if row["name"] == name]
                cpu = sum(row["simulate_cpu_s"] for row in done)
                print(f"    seed {seed}, {rate:.3g}/s: {cpu:.0f} CPU s so far", flush=True)


def bound_all(names: list[str], work: Path) -> None:
    """Bound every run on the requests that it really had, and what it knew of their times."""
    from types import SimpleNamespace

    from smetric_model.bound.ladder import ttl_estimate
    from smetric_model.bound.problem import make_problem, realised_timeline
    from smetric_model.bound.timed import timed_bound
    from smetric_model.bound.volume import volume_bound
    from smetric_model.simulate.prepare import prepare
    from smetric_model.simulate.workload import replayed_trace

    options = SolverOptions("highs-direct")
    runs = pd.read_csv(work / "runs.csv")
    table = Table(work / "bounds.csv", KEYS)
    for name in names:
        scenario, _ = scenario_of(name)
        trace = load_of(scenario)
        spent = 0.0
        for (seed, rate), group in runs[runs["name"] == name].groupby(["seed", "rate_rps"]):
            keys = [{k: row[k] for k in KEYS} for _, row in group.iterrows()]
            if all(table.has(**key) for key in keys):
                continue
            here = scenario.replace(**{"seed": int(seed), "workload.rate_rps": float(rate)})
            prepared = prepare(here, replayed_trace(here, trace)[0])
            for key, end_tick in zip(keys, group["end_tick"], strict=True):
                if table.has(**key):
                    continue
                before = time.process_time()
                with np.load(work / f"{_file(key)}.npz") as saved:
                    replay = SimpleNamespace(
                        arrival=saved["arrival"], done=saved["done"], end_tick=int(end_tick)
                    )
                timeline = realised_timeline(here, prepared.inputs, replay)
                problem = make_problem(here, prepared.inputs, timeline)
                volume = volume_bound(problem, options)
                goodput = timed_bound(problem, options, fallback=volume.prices)
                cpu = time.process_time() - before
                spent += cpu
                table.add(
                    {
                        **key,
                        "volume_tps": volume.total_tps,
                        "ttl_tps": ttl_estimate(problem).total_tps,
                        "goodput_tps": goodput.total_within_slo_tps,
                        **{f"share_{k}": v for k, v in volume.elasticity.items()},
                        "bound_cpu_s": cpu,
                    }
                )
            print(f"    {name}, seed {seed}, {rate:.3g}/s: {spent:.0f} CPU s so far", flush=True)


RUNGS = ("total_tps", "volume_tps"), ("total_within_slo_tps", "goodput_tps")


def peaks(table: pd.DataFrame, of: str, bound: str) -> pd.DataFrame:
    """Each policy's best rate by eviction and seed, beside the bound on that very run."""
    best = table.loc[table.groupby(["name", "eviction", "policy", "seed"], sort=False)[of].idxmax()]
    best = best.assign(bound_ratio=best[bound] / best[of])
    columns = ["arrival_rate_rps", of, bound, "volume_tps", "ttl_tps", "bound_ratio"]
    columns = [*dict.fromkeys(columns), *COLUMNS[5:]]
    return best.groupby(["name", "eviction", "policy"], sort=False)[columns].mean()


def figure_of(table: pd.DataFrame, path: Path) -> None:
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(table["name"]))
    figure = Figure(figsize=(2.5 * len(names), 5.2), layout="constrained")
    axes = figure.subplots(2, len(names), sharex="col", squeeze=False)
    colours = dict(zip((*COLOCATED, "dynamo"), ("C0", "C1", "C2", "C3", "C3"), strict=True))
    for column, name in enumerate(names):
        part = table[table["name"] == name]
        for row, (of, bound) in enumerate(RUNGS):
            plot = axes[row, column]
            for (eviction, policy), runs in part.groupby(["eviction", "policy"], sort=False):
                mean = runs.groupby("rate_rps")[["arrival_rate_rps", of, bound]].mean()
                line = "-" if eviction == "lru" else ":"
                rate = mean.index
                plot.plot(rate, mean[of] / 1e3, line, color=colours[policy], lw=1, label=policy)
            # the bound on the requests of the run that delivers most at each rate
            best = part.loc[part.groupby(["rate_rps", "seed"])[of].idxmax()]
            mean = best.groupby("rate_rps")[bound].mean()
            plot.plot(mean.index, mean / 1e3, color="0.5", lw=3, label="bound")
            plot.set_ylim(0)
            plot.grid(color="0.9")
        axes[0, column].set_title(name, fontsize=9)
        axes[1, column].set_xlabel("rate asked for [1/s]")
        handles = dict(zip(*axes[0, column].get_legend_handles_labels()[::-1], strict=True))
        axes[1, column].legend(handles.values(), handles.keys(), fontsize=6)
    axes[0, 0].set_ylabel("processed [1000 tokens/s]")
    axes[1, 0].set_ylabel("within SLO [1000 tokens/s]")
    figure.savefig(path, dpi=110)


def report(work: Path, to: Path, drawing: Path) -> None:
    """Print the tables; write all rows and the figure."""
    runs, bounds = (pd.read_csv(work / f"{name}.csv") for name in ("runs", "bounds"))
    bounds = bounds.rename(columns=lambda name: name.replace("share_", "bottleneck_"))
    table = runs.drop(columns="end_tick").merge(bounds, on=list(KEYS))
    table.to_csv(to, index=False, float_format="%.6g")
    figure_of(table, drawing)
    pd.set_option("display.width", 250, "display.max_columns", 40, "display.max_rows", 500)
    for of, bound in RUNGS:
        print(f"== most {of}, and the bound on the same run ({bound})")
        print(peaks(table, of, bound).to_string(float_format=lambda value: f"{value:,.3f}"))
    cpu = table.groupby("name", sort=False)[["simulate_cpu_s", "bound_cpu_s"]].sum() / 60
    print(cpu.to_string(float_format=lambda value: f"{value:.1f} min"))


def main() -> None:
    known = [*SETUPS, *(TRACES if "SMETRIC_SHARED" in os.environ else ())]
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["simulate", "bound", "report"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--work", type=Path, default=Path("bound-ladder"))
    options = parser.parse_intermixed_args()
    options.work.mkdir(parents=True, exist_ok=True)
    names = options.names or known
    if options.what == "simulate":
        simulate_all(names, options.work)
    elif options.what == "bound":
        bound_all(names, options.work)
    else:
        here = Path(__file__).resolve().parent
        drawing = here.parent / "docs" / "figures" / "bound_ladder.png"
        report(options.work, here / "bound_ladder.csv", drawing)


if __name__ == "__main__":
    main()
