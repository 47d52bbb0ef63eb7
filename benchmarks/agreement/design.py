"""Scenarios on which the closed form is judged against the simulator.

Two Latin hypercubes of 200 points each, one for development, one held out.  Everything follows
from the seed of the half, but the rates, paces and warm-ups: they follow from the closed form and
the simulator as they were when ``development.csv`` and ``held-out.csv`` were written, and stand
there, so that the scenarios stay the same while the closed form is improved.

``python benchmarks/agreement/design.py HALF`` completes a half's file; remove it to begin anew.

The pace at which traces are recorded is that of a pilot simulation, so that as many sessions are
under way at the start as the cluster will hold.

Rates are shares of the *capacity*: the rate at which the closed form's engines saturate, with
perfect placement and the scenario's tiers (``Prediction.stability_rps``), or its NICs, if they
saturate first.  For ``load-balance`` and ``lmetric``, which scatter copies, the local tier counts
as one instance's.  Disaggregated, it is the smaller of what the prefill pool computes (the same
hits) and what the decode pool completes.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy.stats import qmc

from smetric_model.analytic.batching import ColocatedInstance, RequestMix
from smetric_model.analytic.demand import Demand, cluster_of, demand_of, instance_of
from smetric_model.analytic.latency import prefill_time_s
from smetric_model.analytic.memory import kv_bytes_per_token, local_tier
from smetric_model.analytic.predict import Prediction
from smetric_model.analytic.step_model import step_model
from smetric_model.errors import UnstableError
from smetric_model.scenario import Scenario
from smetric_model.simulate import simulate
from smetric_model.workload.synthesis import WorkloadParameters, generate, preset_parameters
from smetric_model.workload.synthesis_distributions import LogNormal, scaled
from smetric_model.workload.trace import Trace

Half = Literal["development", "held-out"]
HALVES: tuple[Half, ...] = ("development", "held-out")
SCENARIOS = 200
BATCH = 20  # points worked out before they are kept
#: seed of each half's hypercube; the traces' seeds follow
SEEDS: dict[str, int] = {"development": 20_260_701, "held-out": 20_260_702}
HERE = Path(__file__).resolve().parent

MODELS = (("Qwen3-Coder-30B-A3B-Instruct", 1), ("Qwen3-235B-A22B-FP8", 4))
#: policies with a threshold form, and how many of 20 scenarios each gets
POLICIES = (
    *("smetric",) * 5,
    *("smetric-basic",) * 2,
    *("smetric-slo",) * 2,
    *("bailian",) * 3,
    *("lmetric",) * 2,
    *("load-balance",) * 2,
    "dynamo",
    "dynamo",
    "bounded-hash",
    "always-sticky",
)
SCATTERING = {"load-balance", "lmetric"}
PRESET = "bailian-trace-1-medium"

#: requests that a window should hold, and its bounds [s]
REQUESTS, LEAST_WINDOW_S, MOST_WINDOW_S = 20_000, 600.0, 14_400.0
#: warm-up: this many times the reach of the tiers, at most so long [s]
REACHES, MOST_WARMUP_S = 1.2, 5_400.0
#: … and at least so long below a load, and above it, where the backlog of cold caches lasts [s]
HIGH_LOAD, LEAST_WARMUP_S, LEAST_WARMUP_HIGH_S = 0.75, 1_500.0, 2_700.0
#: the pilot simulation: seed, requests, bounds of its window and its warm-up [s]
PILOT_SEED, PILOT_REQUESTS, PILOT_WINDOW_S, PILOT_WARMUP_S = 99_991, 8_000, (900, 7_200), 900.0


@dataclass(frozen=True)
class Point:
    """One scenario of the study: a row of the design's file.

    ``overload`` is the policy's own parameter of that name (SMetric: a multiple of the mean load;
    bounded hash: likewise).  ``tier_ratio`` is the global tier ÷ all local tiers together.
    ``base_s``, ``per_new_token_s`` and ``per_output_token_s`` are the pace at which the trace is
    recorded.
    """

    number: int
    policy: str
    llm: str
    tp: int
    instances: int
    prefill_instances: int
    load: float
    tier_ratio: float
    think_factor: float
    context_factor: float
    median_turns: float
    frameworks: int
    rewrite_ratio: float
    spawn_ratio: float
    nics_per_node: int
    overload: float
    hit_ratio: float
    hit_weight: float
    ttft_base_s: float
    tpot_s: float
    capacity_rps: float = math.nan
    rate_rps: float = math.nan
    limit: str = ""
    base_s: float = math.nan
    per_new_token_s: float = math.nan
    per_output_token_s: float = math.nan
    warmup_s: float = math.nan
    window_s: float = math.nan
    nic_bytes_per_s: float = 25e9
    recompute_if_faster: bool = True

    @property
    def stratum(self) -> str:
        """Stratum of the load."""
        return "<.5" if self.load < 0.5 else ".5-.8" if self.load < 0.8 else ".8-.95"

    def parameters(self) -> WorkloadParameters:
        """Parameters of the workload."""
        base = preset_parameters(PRESET)
        sessions, think, frameworks = base.sessions, base.think, base.frameworks
        size, wait = self.context_factor, self.think_factor
        pace = {
            name: getattr(self, name)
            for name in ("base_s", "per_new_token_s", "per_output_token_s")
            if not math.isnan(getattr(self, name))
        }
        return replace(
            base,
            name=f"agreement {self.number}",
            sessions=replace(
                sessions,
                turns=LogNormal(self.median_turns, 1.0, high=500.0),
                first_tokens=scaled(sessions.first_tokens, size),
                tool_result_tokens=scaled(sessions.tool_result_tokens, size),
                user_tokens=scaled(sessions.user_tokens, size),
                context_limit_tokens=scaled(sessions.context_limit_tokens, size),
            ),
            frameworks=replace(
                frameworks,
                count=self.frameworks,
                toolsets=1,
                system_tokens=scaled(frameworks.system_tokens, size),
                tool_tokens=scaled(frameworks.tool_tokens, size),
            ),
            think=replace(
                think,
                tool_s=scaled(think.tool_s, wait),
                human_s=scaled(think.human_s, wait),
                idle_s=scaled(think.idle_s, wait),
            ),
            history=replace(base.history, rewrite_ratio=self.rewrite_ratio),
            forks=replace(base.forks, spawn_ratio=self.spawn_ratio),
            execution=replace(base.execution, **pace),
        )

    def trace(
        self, seed: int, rate_rps: float | None = None, length_s: float | None = None
    ) -> Trace:
        """Return a trace, sessions under way at its start; some minutes longer than the run."""
        return generate(
            self.parameters(),
            rate_rps=rate_rps or self.rate_rps,
            window_s=length_s or self.warmup_s + self.window_s + 600.0,
            seed=seed,
        )

    def scenario(self, seed: int = 0) -> Scenario:
        """Return the scenario; its workload is the trace that goes with it."""
        instance = instance_of(Scenario(llm={"name": self.llm}, engine={"tp": self.tp}))
        local_bytes = local_tier(instance).tokens * kv_bytes_per_token(instance)
        tier = self.tier_ratio * local_bytes * (8 // self.tp)
        pools = {"instances": self.instances}
        if self.prefill_instances:
            pools = {
                "serving": "disaggregated",
                "prefill_instances": self.prefill_instances,
                "decode_instances": self.instances - self.prefill_instances,
            }
        return Scenario(
            name=f"agreement-{self.number}",
            seed=seed,
            llm={"name": self.llm},
            engine={"tp": self.tp},
            cluster={
                **pools,
                "nics_per_node": self.nics_per_node,
                "nic_bytes_per_s": self.nic_bytes_per_s,
                "dram_bytes_per_node": max(1280e9, tier),
            },
            global_tier={
                "bytes_per_node": tier,
                "recompute_if_faster": self.recompute_if_faster,
            },
            workload={
                # the trace is handed over; it is entered at its beginning, at its own rate
                "rate_rps": "trace",
                "start": "cold",
                "warmup_s": 0.0 if math.isnan(self.warmup_s) else self.warmup_s,
                "window_s": LEAST_WINDOW_S if math.isnan(self.window_s) else self.window_s,
            },
            router={
                "policy": self.policy,
                "overload": self.overload,
                "hit_ratio": self.hit_ratio,
                "hit_weight": self.hit_weight,
            },
            slo={"ttft_base_s": self.ttft_base_s, "tpot_s": self.tpot_s},
        )


def _log(share: float, low: float, high: float) -> float:
    return float(low * (high / low) ** share)


def _rounded(value: float, digits: int = 4) -> float:
    return float(f"{value:.{digits}g}")


def _point(number: int, u: Any) -> Point:
    """Point of a row of the hypercube, in [0, 1) each."""
    llm, tp = MODELS[int(u[0] * 2)]
    instances = round(_log(u[1], 4, 128))
    disaggregated = u[2] < 0.2
    # a tenth without a global tier
    tier = 0.0 if u[5] < 0.1 else 6.0 * (u[5] - 0.1) / 0.9
    share = 0.25 + 0.5 * u[3]
    policy = POLICIES[int(u[4] * len(POLICIES))]
    overload = _log(u[13], 1.25, 4.0)
    tpot = (0.02, 0.06) if tp == 1 else (0.03, 0.09)
    return Point(
        number=number,
        policy=policy,
        llm=llm,
        tp=tp,
        instances=instances,
        prefill_instances=min(max(round(share * instances), 1), instances - 1)
        if disaggregated
        else 0,
        load=_rounded(0.2 + 0.75 * u[6]),
        tier_ratio=_rounded(tier),
        think_factor=_rounded(_log(u[7], 0.25, 4.0)),
        context_factor=_rounded(_log(u[8], 0.25, 2.0)),
        median_turns=_rounded(_log(u[9], 6.0, 40.0)),
        frameworks=round(_log(u[10], 1, 50)),
        rewrite_ratio=_rounded(0.45 * u[11]),
        spawn_ratio=0.011 if u[12] < 0.5 else 0.0,
        nics_per_node=(1, 2, 4, 8)[int(u[15] * 4)],
        overload=_rounded(overload),
        hit_ratio=_rounded(0.9 * u[14]),
        hit_weight=_rounded(0.5 + 0.4 * u[14]),
        ttft_base_s=_rounded(_log(u[16], 0.5, 4.0)),
        tpot_s=_rounded(_log(u[17], *tpot)),
    )


def drawn(half: Half) -> list[Point]:
    """Return a half's points as drawn, without what the closed form adds."""
    cube = qmc.LatinHypercube(d=18, rng=np.random.default_rng(SEEDS[half]))
    return [_point(number, u) for number, u in enumerate(cube.random(SCENARIOS))]


# --- capacity --------------------------------------------------------------------------------


def _hits_of_global_tier(scenario: Scenario, demand: Demand, rate_rps: float) -> Any:
    """Reused tokens of each request where copies scatter: one instance's memory, or the tier's."""
    cluster = cluster_of(scenario)
    tokens = cluster.nodes * scenario.global_tier.bytes_per_node / demand.kv_bytes_per_token
    tokens = max(tokens, 0.5 * demand.pool_tokens)
    return demand.profile.hit_tokens(demand.profile.retention_s(tokens, rate_rps))


def _instance(scenario: Scenario, demand: Demand, hit: Any) -> ColocatedInstance:
    rows = slice(None)
    if demand.prompt_tokens.size > 4_096:
        rows = demand.representatives
    prompt = demand.prompt_tokens[rows]
    block = demand.instance.block_tokens
    hit = np.minimum(np.asarray(hit, float)[rows], (prompt - 1) // block * block)
    mix = RequestMix(prompt, demand.output_tokens[rows], hit, np.zeros(prompt.size))
    return ColocatedInstance(
        step_model(demand.instance),
        mix,
        demand.pool_tokens,
        demand.instance.token_budget,
        demand.instance.max_running_requests,
        demand.fixed_state_tokens,
    )


def capacity(point: Point, scenario: Scenario, demand: Demand) -> tuple[float, str]:
    """Rate at which the closed form saturates, and what does [requests/s]."""
    colocated = scenario.replace(cluster=_colocated(scenario))
    prediction = Prediction(colocated, demand, "tiers")
    n = point.instances

    def hits(rate: float) -> Any:
        if point.policy in SCATTERING:
            return _hits_of_global_tier(scenario, demand, rate)
        tiers = prediction.hits(rate)
        return tiers.local + tiers.fetched

    def engines(rate: float) -> tuple[float, str]:
        hit = np.asarray(hits(rate))
        if not point.prefill_instances:
            if hit.size != demand.prompt_tokens.size:
                return prediction.instance_at(rate)[0].stability_rps * n, "engines"
            return _instance(scenario, demand, hit).stability_rps * n, "engines"
        whole = hit.size == demand.prompt_tokens.size
        prompt = demand.prompt_tokens if whole else prediction.prompt_tokens
        hit = np.minimum(hit, prompt - 1)
        work = prefill_time_s(
            step_model(demand.instance), prompt - hit, hit, demand.instance.token_budget
        )
        prefill = point.prefill_instances / float(np.mean(work))
        all_there = _instance(scenario, demand, demand.prompt_tokens)
        decode = (n - point.prefill_instances) * all_there.stability_rps
        return min((prefill, "prefill"), (decode, "decode"))

    low, high = 0.0, engines(1e-9)[0]
    for _ in range(14):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if engines(middle)[0] > middle else (low, middle)
    link = low
    for _ in range(20):
        if prediction.nic_utilisation(link, prediction.hits(link).fetched) < 1:
            break
        link *= 0.93
    return link, "nic" if link < low else engines(low)[1]


def _colocated(scenario: Scenario) -> dict[str, Any]:
    section = scenario.cluster.model_dump(exclude_none=True)
    for key in ("prefill_instances", "decode_instances"):
        section.pop(key, None)
    return section | {"serving": "colocated"}


def completed(point: Point) -> Point:
    """Return a point with its rate, pace, warm-up and window."""
    # gaps and lengths hardly depend on the rate: about 12,000 requests tell them
    guess = 0.3 * point.instances
    trace = point.trace(1, rate_rps=guess, length_s=max(12_000 / guess, 3_600.0))
    for _ in range(2):
        scenario = point.scenario()
        demand = demand_of(scenario, trace)
        limit_rps, limit = capacity(point, scenario, demand)
        rate = point.load * limit_rps
        prediction = Prediction(scenario.replace(cluster=_colocated(scenario)), demand, "tiers")
        try:
            loaded, hits = prediction.loaded(rate)
        except UnstableError:
            loaded, hits = prediction.loaded(0.5 * rate)
        steps = float(np.maximum(demand.output_tokens - 1, 0).mean())
        new = prediction.prompt_tokens - hits.local - hits.fetched
        alone = prefill_time_s(step_model(demand.instance), new, hits.local + hits.fetched, 8192)
        per_new = float(np.mean(alone) / np.mean(new))
        point = replace(
            point,
            capacity_rps=_rounded(limit_rps),
            rate_rps=_rounded(rate),
            limit=limit,
            base_s=_rounded(max(loaded.mean_ttft_s() - per_new * float(np.mean(new)), 0.02)),
            per_new_token_s=_rounded(per_new),
            per_output_token_s=_rounded(loaded.mean_decode_s() / steps),
        )
        reach = max(hits.local_retention_s, hits.global_retention_s)
        trace = point.trace(1, length_s=min(max(12_000 / rate, 1_800.0), 28_800.0))
    least = LEAST_WARMUP_S if point.load < HIGH_LOAD else LEAST_WARMUP_HIGH_S
    warmup = min(max(REACHES * reach, least), MOST_WARMUP_S)
    window = min(max(REQUESTS / rate, LEAST_WINDOW_S), MOST_WINDOW_S)
    return replace(point, warmup_s=60.0 * round(warmup / 60), window_s=60.0 * round(window / 60))


def paced(point: Point) -> Point:
    """Return a point with the pace of a pilot simulation."""
    window = min(max(PILOT_REQUESTS / point.rate_rps, PILOT_WINDOW_S[0]), PILOT_WINDOW_S[1])
    pilot = replace(point, warmup_s=PILOT_WARMUP_S, window_s=window)
    trace = pilot.trace(PILOT_SEED)
    outcome = simulate(pilot.scenario(PILOT_SEED), trace)
    if not outcome["valid"]:
        return point
    table = outcome.requests
    assert table is not None
    steps = float((table["output_tokens"] - 1).clip(lower=0).sum())
    per_output = float((table["e2e_s"] - table["ttft_s"]).sum()) / steps
    output = float(np.maximum(trace.column("output_tokens"), 1).mean())
    recorded = float(trace.column("e2e_s").mean())
    rest = recorded - point.base_s - point.per_output_token_s * output
    base = float(table["e2e_s"].mean()) - rest - per_output * output
    return replace(point, base_s=_rounded(max(base, 0.02)), per_output_token_s=_rounded(per_output))


def save(name: str, points: list[Point]) -> None:
    """Write points to a file."""
    names = [field.name for field in fields(Point)]
    table = pd.DataFrame([[getattr(p, n) for n in names] for p in points], columns=names)
    table.to_csv(HERE / f"{name}.csv", index=False)


def load(half: str) -> list[Point]:
    """Read points from a file: those of a half, or others of this form."""
    table = pd.read_csv(HERE / f"{half}.csv", keep_default_na=False)
    kinds = {field.name: field.type for field in fields(Point)}
    cast = {"int": int, "float": float, "str": str, "bool": bool}
    return [
        Point(**{name: cast[str(kinds[name])](value) for name, value in row.items()})
        for row in table.to_dict("records")
    ]


def complete(name: str, points: list[Point], jobs: int) -> list[Point]:
    """Complete points that are not in a file yet, and keep them there, some at a time."""
    done = load(name) if (HERE / f"{name}.csv").exists() else []
    context = multiprocessing.get_context("spawn")
    while len(done) < len(points):
        batch = points[len(done) : len(done) + BATCH]
        with context.Pool(jobs) as pool:
            done += pool.map(finished, batch, chunksize=1)
        save(name, done)
        print(f"{name}: {len(done)} of {len(points)}", file=sys.stderr, flush=True)
    return done[: len(points)]


def finished(point: Point) -> Point:
    """Return a point with everything that is worked out for it."""
    return paced(completed(point))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Complete a half's file; takes a while.")
    parser.add_argument("halves", nargs="+", choices=HALVES)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    for half in options.halves:
        complete(half, drawn(half), options.jobs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
