"""``smetric-model bound``: what no router can beat."""

from __future__ import annotations

import contextlib
import math
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smetric_model.cli.output import echo_json, echo_wrapped, json_option, print_table
from smetric_model.cli.scenario_options import ScenarioFile, TraceFile, workload_changes

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.bound import Bound

__all__ = ["command"]

#: option -> key of the scenario
_KEYS = {
    "rate": "workload.rate_rps",
    "instances": "cluster.instances",
    "warmup": "workload.warmup_s",
    "window": "workload.window_s",
    "loop": "workload.loop",
    "seed": "seed",
}


@click.command("bound")
@click.argument("scenario", required=False, type=ScenarioFile())
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    help="Requests/s of the cluster; of --trace or --preset, by default, its own.",
)
@click.option("--instances", type=click.IntRange(1), help="Instances of the cluster.")
@click.option(
    "--global-tier-gb-per-node", type=click.FloatRange(0), help="Global tier, GB (1e9) per node."
)
@click.option("--warmup", type=click.FloatRange(0), help="Seconds before the window.")
@click.option("--window", type=click.FloatRange(0, min_open=True), help="Seconds of the window.")
@click.option("--loop", type=click.Choice(["closed", "open"]), help="Closed or open loop.")
@click.option("--seed", type=click.IntRange(0), help="Seed of everything random.")
@click.option("--trace", type=TraceFile(), help="Trace to bound.")
@click.option("--preset", help="Synthetic workload to bound.")
@click.option(
    "--only-volume", is_flag=True, help="Only the bound on averages over time: much sooner."
)
@click.option("--solver", default="HIGHS", show_default=True, help="cvxpy's name, or highs-direct.")
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=1e-7,
    show_default=True,
    help="Of the solver; the bound is proved apart from it.",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(0, min_open=True),
    default=float("inf"),
    help="Seconds of one solve; what is found by then gives a weaker, valid bound.",
)
@click.option(
    "--resolution",
    type=click.FloatRange(0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds of a window of the time-resolved bounds.",
)
@click.option(
    "--layout",
    type=click.Choice(["spread", "free"]),
    default="spread",
    show_default=True,
    help="Global tier: KV spread over the nodes, or wherever it is needed next.",
)
@click.option(
    "--simulate",
    is_flag=True,
    help="Simulate the scenario's router too, and bound its own realised requests.",
)
@click.option("--prices", is_flag=True, help="What one more instance, GB or Gbit/s would bring.")
@json_option
def command(scenario: Path | None, as_json: bool, **given: Any) -> None:
    """Bound what any router, cache policy and schedule can deliver.

    SCENARIO is a TOML file; without one, the shipped example.  Its router does not matter.
    An interrupt (Ctrl-C) during the time-resolved bounds ends them with the best bound so far.
    """
    from rich.console import Console

    from smetric_model.bound import BoundOptions, SolverOptions, bound_in_detail
    from smetric_model.datafiles import data_dir
    from smetric_model.scenario import Scenario

    changes = workload_changes(given["trace"], given["preset"])
    for option, key in _KEYS.items():
        if given[option] is not None:
            changes[key] = given[option]
    if given["global_tier_gb_per_node"] is not None:
        changes["global_tier.bytes_per_node"] = given["global_tier_gb_per_node"] * 1e9
    shipped = data_dir() / "scenarios" / "agents-small.toml"
    asked = Scenario.from_toml(scenario or shipped).replace(**changes)
    options = BoundOptions(
        solver=SolverOptions(given["solver"], given["tolerance"], given["time_limit"]),
        window_s=given["resolution"],
        layout=given["layout"],
        timed=not given["only_volume"],
    )
    with Console(stderr=True).status("bounding") as status:
        run = None
        if given["simulate"]:
            from smetric_model.simulate import simulate_in_detail

            run = simulate_in_detail(asked, progress=status.update)
        with _one_interrupt():
            result = bound_in_detail(asked, options=options, simulation=run, progress=status.update)
    simulated = None if run is None else run.outcome.number("total_within_slo_tps")
    prices = None
    if given["prices"]:
        from smetric_model.bound.prices import break_even, shadow_prices

        prices = shadow_prices(result.problem, result.volume, result.goodput)
        prices = prices.join(break_even(prices).add_prefix("break_even_"))
    if as_json:
        detail = _detail(result)
        if simulated is not None:
            detail["simulated"] = {
                "policy": asked.router.policy,
                "total_within_slo_tps": simulated,
            }
        if prices is not None:
            detail["prices"] = prices.to_dict("index")
        echo_json({**result.outcome.to_dict(), "detail": detail})
        return
    _print(result)
    if simulated is not None:
        echo_wrapped(f"{asked.router.policy}, simulated: {simulated:,.0f} tokens/s within SLO")
    if prices is not None:
        _print_prices(prices)


@contextlib.contextmanager
def _one_interrupt() -> Iterator[None]:
    """Let the first interrupt be caught by the bound, which ends with what it has by then."""
    before = signal.getsignal(signal.SIGINT)
    if not callable(before):  # ignored (nohup)
        yield
        return

    def interrupt(_number: int, _frame: Any) -> None:
        signal.signal(signal.SIGINT, before)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _detail(result: Bound) -> dict[str, Any]:
    volume = result.volume
    detail: dict[str, Any] = {
        "volume": {
            "load_multiple": volume.load_multiple,
            "rate_rps": volume.rate_rps,
            "total_tps": volume.total_tps,
            "elasticity": volume.elasticity,
            "local_gap_s": volume.thresholds.local_gap_s,
            "fetch_gap_s": volume.thresholds.fetch_gap_s,
            "recompute_gap_s": volume.thresholds.recompute_gap_s,
            "status": volume.status,
        },
        "volume_within_slo": {
            "load_multiple": result.volume_within_slo.load_multiple,
            "status": result.volume_within_slo.status,
        },
    }
    if result.goodput is not None:
        detail["goodput"] = {
            "total_within_slo_tps": result.goodput.total_within_slo_tps,
            "served_ratio": result.goodput.served_ratio,
            "status": result.goodput.status,
        }
    if result.scale is not None:
        detail["timed"] = {
            "load_multiple": result.scale.load_multiple,
            "status": result.scale.status,
        }
    return detail


def _print_prices(prices: pd.DataFrame) -> None:
    columns = [name for name in ("volume_tps", "goodput_tps") if name in prices]
    print_table(
        "Tokens/s that one more unit brings to the bound",
        ["", *("volume" if name == "volume_tps" else "goodput" for name in columns), "worth"],
        [
            [
                str(row["unit"]),
                *(f"{row[name]:,.3g}" for name in columns),
                f"{row['break_even_by_volume']:.3g}",
            ]
            for row in prices.to_dict("records")
        ],
    )
    echo_wrapped("worth: cost, in instances, at which it brings as much volume as instances do")


def _print(result: Bound) -> None:
    outcome, volume = result.outcome, result.volume
    echo_wrapped(
        f"bound: {outcome.number('requests'):.0f} requests in {outcome.number('window_s'):g} s"
        f" ({outcome.number('arrival_rate_rps'):.4g}/s),"
        f" {outcome.number('unservable_ratio'):.2%} unservable"
    )
    rows = [
        [
            "on average over time, any latency (volume)",
            f"{volume.total_tps:,.0f}",
            f"{volume.rate_rps:.4g}",
            f"{volume.load_multiple:.3f}",
        ]
    ]
    within = result.volume_within_slo
    rows.append(
        [
            "the same, each TTFT within SLO",
            f"{within.total_tps:,.0f}",
            f"{within.rate_rps:.4g}",
            f"{within.load_multiple:.3f}",
        ]
    )
    if result.scale is not None:
        multiple = result.scale.load_multiple
        problem = result.problem
        offered = float(problem.value_tokens.sum()) / problem.window_s
        rows.append(
            [
                "in every window, all within SLO, every session so many times",
                f"{multiple * offered:,.0f}",
                f"{multiple * problem.size / problem.window_s:.4g}",
                f"{multiple:.3f}",
            ]
        )
    print_table(
        "No schedule carries more than", ["", "tokens/s", "requests/s", "times the load"], rows
    )
    if result.goodput is not None:
        echo_wrapped(
            f"At this load, within SLO: at most {result.goodput.total_within_slo_tps:,.0f} tokens/s"
            f" ({result.goodput.served_ratio:.1%} of those offered)"
        )
    gaps = volume.thresholds
    print_table(
        "Where the bottleneck is (volume bound)",
        ["", "share"],
        [[name, f"{share:.1%}"] for name, share in volume.elasticity.items()],
    )
    if math.isfinite(gaps.local_gap_s):
        echo_wrapped(
            f"KV is worth keeping in GPU memory over gaps up to {gaps.local_gap_s:.3g} s, in the"
            f" global tier up to {max(gaps.fetch_gap_s, 0.0):.3g} s"
        )
    for note in str(outcome["note"]).split("; "):
        if note:
            echo_wrapped(f"note: {note}")
