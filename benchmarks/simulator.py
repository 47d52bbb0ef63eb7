"""Speed of the simulator: agent replay, skipping, reference, number of instances.

With ``VIDUR_PYTHON`` set (an interpreter that has ``vidur==0.0.26``), vidur runs the same small
load side by side: 4 replicas, 1,024 + 128 tokens at 10 requests/s.  Its operator times are
constants (its profiles are not part of the package) and it has no prefix cache, tiers or links, so
only the work of an event loop over batches is compared.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from smetric_model.scenario import Scenario
from smetric_model.simulate import engine, reference, simulate
from smetric_model.simulate.loads import fixed_length_trace, with_fixed_load
from smetric_model.simulate.outcome_row import outcome_of
from smetric_model.simulate.prepare import prepare
from smetric_model.simulate.workload import replayed_trace


def timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Wall and CPU seconds, and the result."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return time.perf_counter() - wall, time.process_time() - cpu, result


def agents(instances: int, rate_rps: float, requests: int, decode: int = 0) -> Scenario:
    cluster: dict[str, Any] = {"instances": instances}
    if decode:
        cluster |= {
            "serving": "disaggregated",
            "prefill_instances": instances - decode,
            "decode_instances": decode,
            "nics_per_node": 8,  # one a GPU: with fewer, KV transfers of 60k prompts bind
        }
    return Scenario(
        cluster=cluster,
        workload={
            "preset": "bailian-trace-1-long",
            "rate_rps": rate_rps,
            "warmup_s": 600.0,
            "window_s": requests / rate_rps,
        },
    )


def replay(instances: int, rate_rps: float, requests: int, decode: int = 0) -> None:
    scenario = agents(instances, rate_rps, requests, decode)
    generating, _, (trace, _) = timed(lambda: replayed_trace(scenario))
    preparing, _, prepared = timed(lambda: prepare(scenario, trace))
    engine.run(prepared.inputs)
    runs = [timed(lambda: engine.run(prepared.inputs)) for _ in range(3)]
    wall, cpu = min(r[0] for r in runs), min(r[1] for r in runs)
    result = runs[-1][2]
    outcome_of(scenario, prepared, result)
    tables, _, outcome = timed(lambda: outcome_of(scenario, prepared, result))
    count = result.order.size
    data = prepared.inputs.requests
    tokens = int((data.prompt_tokens + data.output_tokens)[result.order].sum())
    print(
        f"{instances:5d} instances ({decode} only decode), {rate_rps:g}/s: {count:,} requests,"
        f" mean prompt {data.prompt_tokens[result.order].mean():,.0f}; engine {count / wall:,.0f}"
        f" requests/s ({count / cpu:,.0f} per core-second), {tokens / wall / 1e9:.2f} G tokens/s,"
        f" {result.counts['events'] / wall / 1e6:.2f} M events/s,"
        f" {result.counts['steps'] / count:.0f} steps/request"
        f" in {result.counts['runs'] / count:.1f} runs; with preparation, Outcome and tables"
        f" {count / (preparing + wall + tables):,.0f} requests/s"
        f" (generating the trace {generating:.1f} s more);"
        f" busy {outcome.number('compute_utilisation_ratio'):.0%},"
        f" within SLO {outcome.number('within_slo_ratio'):.0%}"
    )


def skipping() -> None:
    scenario = agents(8, 0.7, 6_000)
    trace, _ = replayed_trace(scenario)
    inputs = prepare(scenario, trace).inputs
    engine.run(inputs)
    fast, _, one = timed(lambda: engine.run(inputs))
    slow, _, two = timed(lambda: engine.run(inputs, skip=False))
    same = all((getattr(one, n) == getattr(two, n)).all() for n in ("first_token", "done", "order"))
    count = one.order.size
    print(
        f"skipping: {count / fast:,.0f} requests/s, without {count / slow:,.0f};"
        f" equal to the tick: {same}"
    )


def readable() -> None:
    scenario = agents(4, 0.3, 200)
    trace, _ = replayed_trace(scenario)
    inputs = prepare(scenario, trace).inputs
    engine.run(inputs)
    fast, _, one = timed(lambda: engine.run(inputs))
    slow, _, two = timed(lambda: reference.run(inputs))
    print(
        f"reference: {one.order.size / slow:,.0f} requests/s; engine on the same input"
        f" {slow / fast:,.0f} times faster; equal: {bool((one.done == two.done).all())}"
    )


def fixed(requests: int) -> None:
    trace = fixed_length_trace(512, 64, requests, 100.0)
    scenario = with_fixed_load(
        Scenario(cluster={"instances": 32}, router={"policy": "load-balance"}), trace
    )
    inputs = prepare(scenario, trace).inputs
    wall, _, result = timed(lambda: engine.run(inputs))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"fixed load: {requests:,} requests, {requests / wall:,.0f} requests/s, peak {peak:.1f} GiB"
        f" ({result.counts['steps']:,} steps)"
    )


def peer(python: str) -> None:
    driver = Path(__file__).with_name("vidur_driver.py")

    def vidur_s(requests: int) -> float:
        with tempfile.TemporaryDirectory() as folder:
            output = subprocess.run(
                [python, str(driver), str(requests)],
                capture_output=True,
                text=True,
                check=True,
                cwd=folder,
            ).stdout
        return float(output.rsplit("SECONDS", 1)[1])

    few, many = 500, 2_500
    theirs = (many - few) / (vidur_s(many) - vidur_s(few))  # start-up taken off
    scenario = Scenario(cluster={"instances": 4}, router={"policy": "load-balance"})
    for requests in (many, 100 * many):
        trace = fixed_length_trace(1024, 128, requests, 10.0)
        asked = with_fixed_load(scenario, trace)
        inputs = prepare(asked, trace).inputs
        engine.run(inputs)
        ours = requests / timed(lambda given=inputs: engine.run(given))[0]
        whole = requests / timed(lambda a=asked, t=trace: simulate(a, t))[0]
        print(
            f"4 replicas, 1,024 + 128 tokens, {requests:,} requests: engine {ours:,.0f} requests/s,"
            f" with Outcome and tables {whole:,.0f}; vidur {theirs:,.0f}:"
            f" {ours / theirs:,.0f} and {whole / theirs:,.0f} times"
        )


def main() -> None:
    engine.run(prepare(*(lambda s: (s, replayed_trace(s)[0]))(agents(2, 0.2, 20))).inputs)
    skipping()
    readable()
    replay(32, 3.0, 200_000)
    for instances in (8, 128, 1024):
        replay(instances, instances * 3.0 / 32, 20_000)
    replay(32, 3.0, 60_000, decode=8)
    if "VIDUR_PYTHON" in os.environ:
        peer(os.environ["VIDUR_PYTHON"])
    fixed(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)


if __name__ == "__main__":
    main()
