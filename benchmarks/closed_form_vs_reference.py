"""The closed form of one colocated instance against a step-by-step simulation of it.

    python benchmarks/closed_form_vs_reference.py [--requests 20000] [--out table.csv]

Per scenario: saturation rate; at four loads mean batch, TTFT, TPOT (mean, P50, P90) and shares
within SLO; largest rate with 95 % within SLO and largest tokens/s within SLO.  The closed form's
value, the simulation's, its standard error over seeds, and the deviation.  Scenarios of the
Mooncake trace need ``SMETRIC_SHARED``.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import pandas as pd

from smetric_model.analytic.batching import ColocatedInstance, RequestMix
from smetric_model.analytic.demand import demand_of
from smetric_model.analytic.latency import host_time_s, usable_hit_tokens
from smetric_model.analytic.memory import local_tier
from smetric_model.analytic.step_model import step_model
from smetric_model.catalog.gpu import get_gpu
from smetric_model.catalog.instance import InstanceSpec
from smetric_model.catalog.llm import get_llm
from smetric_model.scenario import Scenario
from smetric_model.workload.trace import load_trace

ROOT = Path(__file__).parents[1]
LOADS = (0.2, 0.5, 0.7, 0.85)
SWEEP = (0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
TTFT_BASE_S, TTFT_PER_TOKEN_S, TPOT_S, ATTAINMENT = 2.0, 0.0005, 0.050, 0.95


def _reference():
    path = ROOT / "tests" / "analytic" / "reference_instance.py"
    spec = importlib.util.spec_from_file_location("reference_instance", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


reference = _reference()


@dataclass
class Case:
    name: str
    spec: InstanceSpec
    mix: RequestMix

    def __post_init__(self):
        self.model = step_model(self.spec)
        self.pool_tokens = float(local_tier(self.spec).tokens)
        self.engine = {
            "token_budget": self.spec.token_budget,
            "max_running_requests": self.spec.max_running_requests,
        }

    def closed_form(self) -> ColocatedInstance:
        return ColocatedInstance(
            self.model,
            self.mix,
            self.pool_tokens,
            self.spec.token_budget,
            self.spec.max_running_requests,
        )

    @property
    def ttft_limit_s(self):
        return TTFT_BASE_S + TTFT_PER_TOKEN_S * self.mix.prompt_tokens


def spec_of(llm: str, tp: int = 1) -> InstanceSpec:
    return InstanceSpec(get_llm(llm), get_gpu("H20"), tp, 1, "vllm", "graph", token_budget=8192)


def mix_of(spec: InstanceSpec, prompt, output, hit) -> RequestMix:
    prompt, output, hit = np.broadcast_arrays(
        *(np.asarray(a, dtype=float) for a in (prompt, output, hit))
    )
    hit = usable_hit_tokens(prompt, hit, spec.block_tokens).astype(float)
    return RequestMix(
        np.atleast_1d(prompt),
        np.atleast_1d(output),
        np.atleast_1d(hit),
        np.atleast_1d(host_time_s(spec, prompt)),
    )


def trace_mix(spec: InstanceSpec, path: Path, reuse: bool) -> RequestMix:
    """Requests of a trace, with all or none of their reusable tokens as hits."""
    scenario = Scenario.from_toml(ROOT / "data" / "scenarios" / "agents-small.toml")
    demand = demand_of(scenario, load_trace(path))
    pool = local_tier(spec).tokens
    fits = demand.prompt_tokens + demand.output_tokens < pool
    hit = demand.reusable_tokens if reuse else np.zeros(fits.size)
    return mix_of(spec, demand.prompt_tokens[fits], demand.output_tokens[fits], hit[fits])


def cases() -> list[Case]:
    small = spec_of("Qwen3-Coder-30B-A3B-Instruct")
    dense = spec_of("Qwen3-32B-FP8", 2)
    large = spec_of("Qwen3-235B-A22B-FP8", 4)
    agents = ROOT / "data" / "traces" / "agents-small.parquet"
    listed = [
        ("30B short 2k/256", small, (2048, 256, 0)),
        ("30B medium 12k/350", small, (12_000, 350, 0)),
        ("30B long 60k/300 hit .95", small, (60_000, 300, 57_000)),
        ("30B long 60k/300 cold", small, (60_000, 300, 0)),
        ("32B tp2 medium 12k/350", dense, (12_000, 350, 0)),
        ("32B tp2 long 60k/300 hit .95", dense, (60_000, 300, 57_000)),
        ("235B tp4 short 2k/256", large, (2048, 256, 0)),
        ("235B tp4 long 60k/300 hit .95", large, (60_000, 300, 57_000)),
    ]
    found = [Case(name, spec, mix_of(spec, *lengths)) for name, spec, lengths in listed]
    found += [
        Case("30B agents, reuse", small, trace_mix(small, agents, True)),
        Case("30B agents, cold", small, trace_mix(small, agents, False)),
        Case("235B tp4 agents, reuse", large, trace_mix(large, agents, True)),
    ]
    if os.environ.get("SMETRIC_SHARED"):
        path = Path(os.environ["SMETRIC_SHARED"]) / "traces" / "mooncake-conversation.jsonl.gz"
        found += [
            Case("30B Mooncake, reuse", small, trace_mix(small, path, True)),
            Case("32B tp2 Mooncake, cold", dense, trace_mix(dense, path, False)),
        ]
    return found


def simulated(case: Case, rate_rps: float, requests: int, seed: int) -> dict[str, float]:
    rows, served = reference.serve_poisson(
        case.model, case.mix, rate_rps, requests, seed, case.pool_tokens, **case.engine
    )
    seen = slice(requests // 10, requests - requests // 20)
    ttft, tpot = served.ttft_s[seen], served.tpot_s[seen]
    rows = rows[seen]
    in_ttft = ttft <= case.ttft_limit_s[rows]
    in_tpot = ~(tpot > TPOT_S)
    both = in_ttft & in_tpot
    tokens = case.mix.total_tokens[rows]
    return {
        "batch": served.mean_running,
        "ttft_mean": ttft.mean(),
        "ttft_p50": np.quantile(ttft, 0.5),
        "ttft_p90": np.quantile(ttft, 0.9),
        "tpot_mean": (served.last_s - served.first_s)[seen].sum()
        / np.maximum(case.mix.output_tokens[rows] - 1, 0).sum(),
        "tpot_p50": np.nanquantile(tpot, 0.5),
        "tpot_p90": np.nanquantile(tpot, 0.9),
        "P(ttft)": in_ttft.mean(),
        "P(tpot)": in_tpot.mean(),
        "P(both)": both.mean(),
        "within_tps": rate_rps * (both * tokens).mean(),
        "preempted": served.preemptions / requests,
    }


def predicted(case: Case, instance: ColocatedInstance, rate_rps: float) -> dict[str, float]:
    loaded = instance.at_rate(rate_rps, case.ttft_limit_s, TPOT_S)
    probability = loaded.slo_probability()
    ttft, tpot = loaded.ttft_quantiles_s((0.5, 0.9)), loaded.tpot_quantiles_s((0.5, 0.9))
    steps = np.maximum(case.mix.output_tokens - 1, 0).mean()
    return {
        "batch": loaded.mean_batch,
        "ttft_mean": loaded.mean_ttft_s(),
        "ttft_p50": ttft[0],
        "ttft_p90": ttft[1],
        "tpot_mean": loaded.mean_decode_s() / steps,
        "tpot_p50": tpot[0],
        "tpot_p90": tpot[1],
        "P(ttft)": probability.ttft.mean(),
        "P(tpot)": probability.tpot.mean(),
        "P(both)": probability.both.mean(),
    }


def sweep(share, goodput, rates) -> dict[str, float]:
    """Largest rate with the asked share within SLO, by interpolation, and the peak."""
    met = np.flatnonzero(np.asarray(share) >= ATTAINMENT)
    attained = float("nan")
    if met.size:
        last = met[-1]
        attained = rates[last]
        if last + 1 < len(rates):
            step = (share[last] - ATTAINMENT) / (share[last] - share[last + 1])
            attained += step * (rates[last + 1] - rates[last])
    return {"attainment_rps": attained, "peak_within_tps": float(np.max(goodput))}


def compare(case: Case, requests: int, seeds: int) -> list[dict[str, object]]:
    started = perf_counter()
    instance = case.closed_form()
    lines = []

    def line(load, quantity, closed, simulations):
        simulations = np.asarray(simulations, dtype=float)
        value = float(simulations.mean())
        error = float(simulations.std(ddof=1) / np.sqrt(simulations.size))
        lines.append(
            {
                "case": case.name,
                "load": load,
                "quantity": quantity,
                "closed_form": closed,
                "simulated": value,
                "noise": error,
                "deviation": closed - value if quantity[0] == "P" else closed / value - 1,
            }
        )

    saturation = [
        reference.saturation_rps(
            case.model,
            case.mix,
            1.3 * instance.stability_rps,
            requests,
            seed,
            case.pool_tokens,
            **case.engine,
        )
        for seed in range(seeds)
    ]
    line("", "saturation_rps", instance.stability_rps, saturation)
    true = float(np.mean(saturation))
    for load in LOADS:
        rate = load * true
        closed = predicted(case, instance, rate) if rate < instance.stability_rps else {}
        runs = [simulated(case, rate, requests, 100 + seed) for seed in range(seeds)]
        for name in closed:
            line(load, name, closed[name], [r[name] for r in runs])
    rates = [x * true for x in SWEEP]
    tokens = case.mix.total_tokens
    share, good = [], []
    for rate in rates:
        both = instance.slo_probability(rate, case.ttft_limit_s, TPOT_S).both
        share.append(both.mean())
        good.append(rate * (both * tokens).mean())
    closed = sweep(share, good, rates)
    found = []
    for seed in range(seeds):
        runs = [simulated(case, rate, requests // 2, 200 + seed) for rate in rates]
        found.append(sweep([r["P(both)"] for r in runs], [r["within_tps"] for r in runs], rates))
    for name in closed:
        line("", name, closed[name], [f[name] for f in found])
    print(f"{case.name}: {perf_counter() - started:.1f} s", file=sys.stderr)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    lines = []
    for case in cases():
        if chosen.only in case.name:
            lines += compare(case, chosen.requests, chosen.seeds)
    table = pd.DataFrame(lines)
    if chosen.out:
        table.to_csv(chosen.out, index=False)
    table["column"] = table["quantity"] + table["load"].astype(str).where(
        table["load"] == "", "@" + table["load"].astype(str)
    )
    pd.set_option("display.width", 250, "display.max_columns", 60, "display.max_rows", 500)
    for load in ("", *LOADS):
        part = table[table["load"] == load]
        wide = part.pivot_table(index="case", columns="quantity", values="deviation")
        wide = wide.reindex(index=part["case"].unique(), columns=part["quantity"].unique())
        print(f"\ndeviation of the closed form{f' at {load} of saturation' if load else ''}")
        print(wide.to_string(float_format=lambda x: f"{x:+.3f}"))


if __name__ == "__main__":
    main()
