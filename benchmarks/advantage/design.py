"""Workloads and clusters on which SMetric is compared with the baselines.

``space``: the first points of a scrambled Sobol sequence over :data:`PARAMETERS`, so that any
number of them from the first on fills the space evenly.  ``lines``: one parameter at a time from
the reference.  ``peaks``: some of the lines' clusters at many loads.  ``ages``: what the router
knows, and how old it is, on four clusters.

A point's rate is its load times the rate at which the closed form's engines or links are about to
saturate where sessions stay (``rough_capacity_rps``), on a pilot trace.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.stats import qmc

from smetric_model.advantage.saturation import rough_capacity_rps
from smetric_model.analytic.demand import demand_of, instance_of
from smetric_model.analytic.memory import kv_bytes_per_token, local_tier
from smetric_model.analytic.predict import cluster_form
from smetric_model.scenario import Scenario
from smetric_model.workload.synthesis import WorkloadParameters, generate, preset_parameters
from smetric_model.workload.synthesis_distributions import Constant, LogNormal, scaled
from smetric_model.workload.trace import Trace

SEED = 20_261_130
SPACE = 1024
PRESET = "bailian-trace-1-medium"
LLM = "Qwen3-Coder-30B-A3B-Instruct"
POLICIES = ("smetric", "bailian", "lmetric", "load-balance")
#: requests of a window and of its warm-up, and bounds of both [s]
WINDOW_REQUESTS, WARMUP_REQUESTS = 10_000, 6_000
LEAST_S, MOST_S = 900.0, 14_400.0
PILOT_SEED, PILOT_REQUESTS = 77, 5_000


@dataclass(frozen=True)
class Point:
    """A workload on a cluster; factors are those of the preset's values.

    ``history`` says what breaks sessions' prefixes: ``append`` (nothing), ``rewind`` (the preset's
    way: what follows some point is replaced) or ``reset`` (the agent compacts to a summary), in the
    share ``edit_ratio`` of the turns.  ``tier_ratio``: global tier ÷ all local tiers.
    """

    kind: str
    number: int
    load: float = 0.85
    instances: int = 16
    think_factor: float = 1.0
    context_factor: float = 1.0
    median_turns: float = 38.6
    turns_sigma: float = 1.0
    frameworks: int = 10
    system_factor: float = 1.0
    history: str = "rewind"
    edit_ratio: float = 0.396
    output_factor: float = 1.0
    tier_ratio: float = 5.6
    nic_bytes_per_s: float = 25e9
    tpot_s: float = 0.030
    ttft_base_s: float = 2.0
    hit_index: str = "exact"
    hit_index_age_s: float = 0.0
    load_age_s: float = 0.0
    line: str = ""

    def parameters(self) -> WorkloadParameters:
        """Parameters of the workload."""
        base = preset_parameters(PRESET)
        sessions, think, frameworks = base.sessions, base.think, base.frameworks
        size, wait, system = self.context_factor, self.think_factor, self.system_factor
        rewinds, resets = self.history == "rewind", self.history == "reset"
        return replace(
            base,
            name=f"advantage {self.kind} {self.number}",
            sessions=replace(
                sessions,
                turns=LogNormal(self.median_turns, self.turns_sigma, high=1000.0),
                first_tokens=scaled(sessions.first_tokens, size),
                tool_result_tokens=scaled(sessions.tool_result_tokens, size),
                user_tokens=scaled(sessions.user_tokens, size),
                context_limit_tokens=scaled(sessions.context_limit_tokens, size),
                output_tokens=scaled(sessions.output_tokens, self.output_factor),
            ),
            frameworks=replace(
                frameworks,
                count=self.frameworks,
                toolsets=1,
                system_tokens=scaled(frameworks.system_tokens, size * system),
                tool_tokens=scaled(frameworks.tool_tokens, size * system),
            ),
            think=replace(
                think,
                tool_s=scaled(think.tool_s, wait),
                human_s=scaled(think.human_s, wait),
                idle_s=scaled(think.idle_s, wait),
            ),
            history=replace(
                base.history,
                rewrite_ratio=self.edit_ratio if rewinds else 0.0,
                rewrite_spread=base.history.rewrite_spread if rewinds else 0.0,
                compaction_ratio=self.edit_ratio if resets else 0.0,
                restored_tokens=Constant(0.0),
            ),
        )

    @property
    def times_s(self) -> tuple[float, float]:
        """Warm-up and window, given the rate [s]."""
        rate = self.rate_rps
        return tuple(  # type: ignore[return-value]
            60.0 * round(min(max(count / rate, LEAST_S), MOST_S) / 60)
            for count in (WARMUP_REQUESTS, WINDOW_REQUESTS)
        )

    @property
    def rate_rps(self) -> float:
        """Rate asked for [requests/s]."""
        same = asdict(self) | {
            "load": 1.0, "line": "", "kind": "", "number": 0, "hit_index": "exact",
            "hit_index_age_s": 0.0, "load_age_s": 0.0, "ttft_base_s": 2.0, "tpot_s": 0.03,
        }  # fmt: skip
        return self.load * _capacity_rps(Point(**same))

    def trace(self, seed: int) -> Trace:
        """Return a trace, sessions under way at its start; some minutes longer than the run."""
        warmup, window = self.times_s
        return generate(
            self.parameters(),
            rate_rps=self.rate_rps,
            window_s=warmup + window + 600.0,
            seed=seed,
        )

    def scenario(self, seed: int, times_s: tuple[float, float] | None = None) -> Scenario:
        """Return the scenario under SMetric; its workload is the trace that goes with it."""
        warmup, window = times_s or self.times_s
        tier = self.tier_ratio * 8 * _pool_bytes()
        return Scenario(
            name=f"advantage-{self.kind}-{self.number}",
            seed=seed,
            llm={"name": LLM},
            cluster={
                "instances": self.instances,
                "nic_bytes_per_s": self.nic_bytes_per_s,
                "dram_bytes_per_node": max(1280e9, tier),
            },
            global_tier={"bytes_per_node": tier},
            workload={
                "rate_rps": "trace",
                "start": "cold",  # the trace is handed over and entered at its beginning
                "warmup_s": warmup,
                "window_s": window,
            },
            router={
                "policy": POLICIES[0],
                "hit_index": self.hit_index,
                "hit_index_age_s": self.hit_index_age_s,
                "load_age_s": self.load_age_s,
            },
            slo={"ttft_base_s": self.ttft_base_s, "tpot_s": self.tpot_s},
        )


@lru_cache(maxsize=1)
def _pool_bytes() -> float:
    instance = instance_of(Scenario(llm={"name": LLM}))
    return float(local_tier(instance).tokens * kv_bytes_per_token(instance))


@lru_cache(maxsize=4096)
def _capacity_rps(point: Point) -> float:
    """Rate at which the point's cluster is about to saturate, on a pilot trace [requests/s]."""
    rate = 0.3 * point.instances * point.context_factor**-1.3
    length = PILOT_REQUESTS / rate
    trace = generate(point.parameters(), rate_rps=rate, window_s=length, seed=PILOT_SEED)
    scenario = point.scenario(0, (0.3 * length, 0.7 * length))
    return rough_capacity_rps(cluster_form(scenario, demand_of(scenario, trace)))


def _log(share: float, low: float, high: float) -> float:
    return float(f"{low * (high / low) ** share:.4g}")


def _linear(share: float, low: float, high: float) -> float:
    return float(f"{low + share * (high - low):.4g}")


#: parameter -> what its column of the sequence, in [0, 1), becomes
PARAMETERS: dict[str, Any] = {
    "load": lambda u: _linear(u, 0.5, 1.05),
    "instances": lambda u: round(_log(u, 8, 32)),
    "think_factor": lambda u: _log(u, 0.25, 8.0),
    "context_factor": lambda u: _log(u, 0.4, 2.0),
    "median_turns": lambda u: _log(u, 6.0, 60.0),
    "turns_sigma": lambda u: _linear(u, 0.3, 1.3),
    "frameworks": lambda u: round(_log(u, 1, 50)),
    "system_factor": lambda u: _log(u, 0.25, 4.0),
    "history": lambda u: ("append", "rewind", "reset")[int(3 * u)],
    "edit_ratio": lambda u: _linear(u, 0.02, 0.5),
    "output_factor": lambda u: _log(u, 0.25, 4.0),
    # a seventh without a global tier
    "tier_ratio": lambda u: 0.0 if u < 1 / 7 else _log((u - 1 / 7) * 7 / 6, 0.3, 8.0),
    "nic_bytes_per_s": lambda u: _log(u, 3e9, 100e9),
    "tpot_s": lambda u: _log(u, 0.015, 0.08),
    "ttft_base_s": lambda u: _log(u, 0.5, 8.0),
}

#: parameter -> its values on the lines
LINES: dict[str, tuple[Any, ...]] = {
    "load": (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1),
    "instances": (8, 12, 24, 32),
    "think_factor": (0.25, 0.5, 2.0, 4.0, 8.0),
    "context_factor": (0.4, 0.7, 1.4, 2.0),
    "median_turns": (6.0, 15.0, 60.0),
    "turns_sigma": (0.3, 0.7, 1.3),
    "frameworks": (1, 3, 25, 50),
    "system_factor": (0.25, 0.5, 2.0, 4.0),
    "edit_ratio": (0.0, 0.1, 0.2, 0.3, 0.5),
    "output_factor": (0.25, 0.5, 2.0, 4.0),
    "tier_ratio": (0.0, 0.3, 0.7, 1.5, 3.0),
    "nic_bytes_per_s": (3e9, 6e9, 12e9, 50e9, 100e9),
    "tpot_s": (0.015, 0.02, 0.045, 0.08),
}
PEAKS: dict[str, dict[str, Any]] = {
    "reference": {},
    "think x 4": {"think_factor": 4.0},
    "contexts x 2": {"context_factor": 2.0},
    "contexts x 0.5": {"context_factor": 0.5},
    "1 framework": {"frameworks": 1},
    "append-only": {"edit_ratio": 0.0},
    "outputs x 4": {"output_factor": 4.0},
    "no global tier": {"tier_ratio": 0.0},
    "small global tier": {"tier_ratio": 0.7},
    "links / 4": {"nic_bytes_per_s": 6.25e9},
    "TPOT 60 ms": {"tpot_s": 0.06},
    "32 instances": {"instances": 32},
}
PEAK_LOADS = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25)
AGES: dict[str, dict[str, Any]] = {
    "all known": {},
    "index 2 s old": {"hit_index": "delayed", "hit_index_age_s": 2.0},
    "index 10 s old": {"hit_index": "delayed", "hit_index_age_s": 10.0},
    "index 60 s old": {"hit_index": "delayed", "hit_index_age_s": 60.0},
    "index blind to evictions": {"hit_index": "blind"},
    "counters 0.5 s old": {"load_age_s": 0.5},
    "counters 2 s old": {"load_age_s": 2.0},
    "counters 10 s old": {"load_age_s": 10.0},
}
AGED = ("reference", "append-only", "links / 4", "no global tier")


def space(count: int = SPACE) -> list[Point]:
    """Return the first points of the sequence."""
    sobol = qmc.Sobol(d=len(PARAMETERS), scramble=True, rng=np.random.default_rng(SEED))
    rows = sobol.random_base2(math.ceil(math.log2(SPACE)))[:count]
    return [
        Point(
            "space",
            number,
            **{name: of(float(u)) for (name, of), u in zip(PARAMETERS.items(), row, strict=True)},
        )
        for number, row in enumerate(rows)
    ]


def lines() -> list[Point]:
    """Return the lines' points; the first is the reference."""
    points = [Point("lines", 0, line="reference")]
    for name, values in LINES.items():
        for value in values:
            changed = {name: value}
            if name == "edit_ratio" and not value:
                changed["history"] = "append"
            points.append(Point("lines", len(points), line=name, **changed))
    return points


def peaks() -> list[Point]:
    """Return the clusters whose peaks are looked for, at every load."""
    return [
        Point("peaks", 100 * place + step, line=name, load=load, **changed)
        for place, (name, changed) in enumerate(PEAKS.items())
        for step, load in enumerate(PEAK_LOADS)
    ]


def ages() -> list[Point]:
    """Return clusters whose router knows less, or later."""
    return [
        Point("ages", 100 * place + step, line=f"{name}: {what}", load=0.9, **PEAKS[name], **known)
        for place, name in enumerate(AGED)
        for step, (what, known) in enumerate(AGES.items())
    ]
