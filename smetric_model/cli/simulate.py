"""``smetric-model simulate``: every engine step of a scenario's cluster."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smetric_model.cli.output import echo_json, echo_wrapped, json_option, percent, print_table
from smetric_model.cli.scenario_options import (
    ScenarioFile,
    TraceFile,
    group_changes,
    group_option,
    llm_changes,
    slo_changes,
    slo_options,
    workload_changes,
)

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.outcome import Outcome
    from smetric_model.scenario import Scenario
    from smetric_model.simulate import Simulation

__all__ = ["command", "print_outcome", "scenario_of"]

#: option -> key of the scenario
_KEYS = {
    "weight_dtype": "llm.weight_dtype",
    "kv_dtype": "llm.kv_dtype",
    "gpu": "engine.gpu",
    "tp": "engine.tp",
    "engine": "engine.name",
    "mode": "engine.mode",
    "token_budget": "engine.token_budget",
    "max_running_requests": "engine.max_running_requests",
    "kv_admission": "engine.kv_admission",
    "instances": "cluster.instances",
    "prefill_instances": "cluster.prefill_instances",
    "decode_instances": "cluster.decode_instances",
    "gpus_per_node": "cluster.gpus_per_node",
    "nics_per_node": "cluster.nics_per_node",
    "local_eviction": "local_tier.eviction",
    "global_eviction": "global_tier.eviction",
    "global_write": "global_tier.write",
    "peer_fetch": "global_tier.peer_fetch",
    "policy": "router.policy",
    "timeout": "client.timeout_s",
    "retries": "client.retries",
    "backoff": "client.backoff_s",
    "detection": "router.detection_s",
    "rate": "workload.rate_rps",
    "warmup": "workload.warmup_s",
    "window": "workload.window_s",
    "start": "workload.start",
    "loop": "workload.loop",
    "seed": "seed",
}


#: resource -> what its utilisation is a share of
_RESOURCES = {
    "compute": "time with a step running",
    "kv": "KV pool held by running requests",
    "nic_in": "NICs in",
    "nic_out": "NICs out",
    "pcie": "PCIe",
}


@click.command("simulate")
@click.argument("scenario", required=False, type=ScenarioFile())
@click.option("--policy", help="Routing policy.")
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    help="Requests/s of the cluster; of --trace or --preset, by default, its own.",
)
@click.option("--seed", type=click.IntRange(0), help="Seed of everything random.")
@click.option("--trace", type=TraceFile(), help="Trace to replay.")
@click.option("--preset", help="Synthetic workload to replay.")
@click.option("--llm", help="Catalog name, or path to a config.json.")
@click.option("--weight-dtype", help="Type of the weights; with --llm, by default the model's own.")
@click.option("--kv-dtype", help="Type of the KV cache; with --llm, by default the model's own.")
@click.option("--gpu", help="Catalog name, such as H20.")
@click.option("--tp", type=click.IntRange(1), help="GPUs of an instance.")
@click.option("--engine", help="Whose fitted efficiencies: vllm, sglang.")
@click.option("--mode", type=click.Choice(["graph", "eager"]), help="CUDA graphs or eager.")
@click.option("--token-budget", type=click.IntRange(1), help="Tokens of one engine step.")
@click.option("--max-running-requests", type=click.IntRange(1), help="Requests running at once.")
@click.option(
    "--kv-admission",
    type=click.Choice(["reserve", "preempt"]),
    help="KV for the output at admission, or as it grows.",
)
@click.option("--instances", type=click.IntRange(1), help="Instances of the cluster.")
@group_option
@click.option(
    "--prefill-instances", type=click.IntRange(1), help="Disaggregated serving: prefill pool."
)
@click.option(
    "--decode-instances", type=click.IntRange(1), help="Disaggregated serving: decode pool."
)
@click.option("--gpus-per-node", type=click.IntRange(1), help="GPUs of a node.")
@click.option("--nics-per-node", type=click.IntRange(1), help="Network interfaces of a node.")
@click.option(
    "--global-tier-gb-per-node", type=click.FloatRange(0), help="Global tier, GB (1e9) per node."
)
@click.option(
    "--local-eviction",
    type=click.Choice(["lru", "dead-first", "clairvoyant"]),
    help="What the instances evict first.",
)
@click.option(
    "--global-eviction",
    type=click.Choice(["lru", "dead-first", "clairvoyant"]),
    help="What the global tier evicts first.",
)
@click.option(
    "--global-write",
    type=click.Choice(["through", "back"]),
    help="Whether the global tier takes what is computed, or what instances evict.",
)
@click.option(
    "--peer-fetch/--no-peer-fetch", default=None, help="Whether KV may come from other instances."
)
@slo_options
@click.option("--warmup", type=click.FloatRange(0), help="Seconds before the window.")
@click.option("--window", type=click.FloatRange(0, min_open=True), help="Seconds of the window.")
@click.option("--start", type=click.Choice(["equilibrium", "cold"]), help="Sessions under way?")
@click.option("--loop", type=click.Choice(["closed", "open"]), help="Closed or open loop.")
@click.option(
    "--timeout", type=click.FloatRange(0, min_open=True), help="Seconds a client waits for a try."
)
@click.option("--retries", type=click.IntRange(0), help="Tries of a client after the first.")
@click.option("--backoff", type=click.FloatRange(0), help="Seconds before a retry.")
@click.option(
    *("--fail-instance", "fail_instance"),
    type=(int, float, float),
    multiple=True,
    metavar="N AT DOWN",
    help="Instance N fails AT seconds after the start of the warm-up, for DOWN seconds (or inf).",
)
@click.option(
    *("--fail-node", "fail_node"),
    type=(int, float, float),
    multiple=True,
    metavar="N AT DOWN",
    help="Node N fails, with its instances and its share of the global tier.",
)
@click.option(
    *("--fail-store", "fail_store"),
    type=(int, float, float),
    multiple=True,
    metavar="N AT DOWN",
    help="Node N's share of the global tier alone is lost.",
)
@click.option("--detection", type=click.FloatRange(0), help="Seconds until routers know of it.")
@click.option("--prompt-tokens", type=click.IntRange(1), help="Fixed load: prompt length.")
@click.option("--output-tokens", type=click.IntRange(1), help="Fixed load: output length.")
@click.option("--requests", type=click.IntRange(1), help="Fixed load: how many requests.")
@click.option(
    "--arrivals",
    type=click.Choice(["poisson", "uniform"]),
    default="poisson",
    show_default=True,
    help="Fixed load: arrivals.",
)
@click.option("--check", is_flag=True, help="Check the laws of the simulation; slower.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for outcome.json and the tables requests, instances and series (Parquet; with"
    " unequal instances also groups).",
)
@json_option
def command(
    scenario: Path | None, check: bool, out: Path | None, as_json: bool, **given: Any
) -> None:
    """Simulate every engine step of a scenario's cluster.

    SCENARIO is a TOML file; without one, the shipped example.  Options replace its keys.  With
    --prompt-tokens, --output-tokens, --requests and --rate, equal requests that share nothing
    arrive in place of the scenario's workload (open loop, no warm-up).
    """
    from rich.console import Console

    from smetric_model.simulate import simulate_in_detail
    from smetric_model.simulate.prepare import check_simulated

    asked = scenario_of(scenario, given)
    check_simulated(asked)
    trace = None
    fixed = [given[name] for name in ("prompt_tokens", "output_tokens", "requests")]
    if any(value is not None for value in fixed):
        if None in fixed or given["rate"] is None:
            raise click.UsageError(
                "a fixed load needs --prompt-tokens, --output-tokens, --requests and --rate"
            )
        if given["trace"] is not None or given["preset"] is not None:
            raise click.UsageError("a fixed load excludes --trace and --preset")
        for name in ("warmup", "window", "start", "loop"):
            if given[name] is not None:
                raise click.UsageError(
                    f"a fixed load excludes --{name}: open loop, cold, its own window"
                )
        from smetric_model.simulate.loads import fixed_length_trace, with_fixed_load

        prompt, output, count = fixed
        trace = fixed_length_trace(
            prompt, output, count, given["rate"], asked.seed, given["arrivals"]
        )
        asked = with_fixed_load(asked, trace)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    with Console(stderr=True).status("simulating") as status:

        def tell(text: str) -> None:
            status.update(text)
            if text.startswith("compiling"):
                click.echo(text, err=True)  # it takes a while: said also where no status shows

        result = simulate_in_detail(asked, trace, check=check, progress=tell)
    outcome = result.outcome
    if out is not None:
        _write(result, out)
    if as_json:
        echo_json(outcome.to_dict())
    else:
        print_outcome(outcome)
        if asked.groups:
            _print_groups(result.groups())


def _print_groups(groups: pd.DataFrame) -> None:
    """Print what each group of unequal instances did."""
    rows = groups.to_dict("records")
    names = [row["gpu"] if row["tp"] == 1 else f"{row['tp']} x {row['gpu']}" for row in rows]
    shares = ("compute_utilisation", "kv_utilisation", "within_slo")
    latencies = [(name, level) for name in ("ttft", "tpot") for level in ("mean", "p50", "p90")]
    click.echo()
    print_table(
        "Groups of instances",
        ["", *names],
        [
            *([name, *(str(row[name]) for row in rows)] for name in ("instances", "requests")),
            ["tokens/s", *(f"{row['total_tps']:,.0f}" for row in rows)],
            *(
                [name.replace("_", " "), *(percent(row[f"{name}_ratio"]) for row in rows)]
                for name in shares
            ),
            *(
                [f"{name.upper()} {level}, s", *(f"{row[f'{name}_{level}_s']:.4g}" for row in rows)]
                for name, level in latencies
            ),
        ],
    )


def scenario_of(path: Path | None, given: dict[str, Any]) -> Scenario:
    """Return the scenario of a file, or the shipped example, with options in place of its keys.

    Parameters
    ----------
    path : Path or None
        TOML file.
    given : dict
        Options by name; None where not given.
    """
    from smetric_model.datafiles import data_dir
    from smetric_model.scenario import Scenario

    written = Scenario.from_toml(path or data_dir() / "scenarios" / "agents-small.toml")
    changes = workload_changes(given["trace"], given["preset"])
    if given["llm"] is not None:
        changes |= llm_changes(written, given["llm"])
    if given["prefill_instances"] is not None or given["decode_instances"] is not None:
        # the sum of the pools, unless --instances says otherwise
        changes |= {"cluster.serving": "disaggregated", "cluster.instances": None}
    for option, key in _KEYS.items():
        if given[option] is not None:
            changes[key] = given[option]
    changes |= slo_changes(given)
    if given["global_tier_gb_per_node"] is not None:
        changes["global_tier.bytes_per_node"] = given["global_tier_gb_per_node"] * 1e9
    if given.get("groups"):
        if given["instances"] is not None:
            raise click.UsageError("--group and --instances exclude each other")
        changes |= group_changes(given["groups"])
    failures = [
        {what: number, "at_s": at, "down_s": down}
        for what in ("instance", "node", "store")
        for number, at, down in given[f"fail_{what}"]
    ]
    if failures:
        changes["failures"] = failures
    result: Scenario = written.replace(**changes)
    return result


def _write(result: Simulation, out: Path) -> None:
    outcome = result.outcome
    (out / "outcome.json").write_text(outcome.to_json() + "\n")
    tables: dict[str, pd.DataFrame | None] = {
        "requests": outcome.requests,
        "instances": outcome.instances,
        "series": result.series(),
    }
    if result.scenario.groups:
        tables["groups"] = result.groups()
    for name, table in tables.items():
        assert table is not None  # a simulation has them all
        path = out / f"{name}.parquet"
        table.to_parquet(path, index=False)
        click.echo(f"{name}: {path}", err=True)


def print_outcome(outcome: Outcome) -> None:
    """Print the row of an outcome for people.

    Parameters
    ----------
    outcome : Outcome
        Of ``simulate`` or ``predict``.
    """
    number = outcome.number
    echo_wrapped(
        f"{outcome['policy']}: {number('requests'):.0f} requests in {number('window_s'):g} s"
        f" ({number('arrival_rate_rps'):.4g}/s), {number('unservable_ratio'):.2%} unservable,"
        f" {percent(number('within_slo_ratio'))} within SLO"
    )
    if number("timed_out_ratio") > 0 or number("failed_ratio") > 0 or number("retries") > 0:
        echo_wrapped(
            f"{number('timed_out_ratio'):.2%} given up by their client,"
            f" {number('failed_ratio'):.2%} failed with their instance,"
            f" {number('retries'):.0f} retries, {number('wasted_tps'):,.0f} tokens/s wasted"
        )
    if number("preemptions") > 0:
        echo_wrapped(
            f"{number('preemptions'):.0f} preemptions, {number('repeated_tps'):,.0f} tokens/s"
            " computed again"
        )
    click.echo()
    print_table(
        "Tokens/s of the cluster",
        ["", "processed", "within SLO"],
        [
            [
                name.replace("_", " "),
                f"{number(f'{name}_tps'):,.0f}",
                f"{number(f'{name}_within_slo_tps'):,.0f}",
            ]
            for name in ("prompt", "computed_prompt", "reused_prompt", "output", "total")
        ],
    )
    statistics = ("mean", "p50", "p90", "p99")
    latencies = ["ttft", "tpot", "e2e", "queue", "fetch", "transfer_wait", "transfer"]
    latencies = [name for name in latencies if not math.isnan(number(f"{name}_mean_s"))]
    print_table(
        "Seconds",
        ["", *statistics],
        [
            [
                name.upper().replace("_", " "),
                *(
                    "-" if math.isnan(v) else f"{v:.4g}"
                    for v in map(number, (f"{name}_{s}_s" for s in statistics))
                ),
            ]
            for name in latencies
        ],
    )
    shares = {
        "prompt tokens": ("local", "global", "peer", "recomputed"),
        "follow-ups": ("return_to_first", "return_to_previous"),
        "migrated": ("migrated_overload", "migrated_evicted", "migrated_other"),
    }
    rows = [
        [f"{title}: {name.replace('_', ' ')}", percent(number(f"{name}_ratio"))]
        for title, names in shares.items()
        for name in names
    ]
    colocated = math.isnan(number("prefill_compute_utilisation_ratio"))
    for pool in ("",) if colocated else ("prefill", "decode"):
        prefix = f"{pool}_" if pool else ""
        rows += [
            [
                f"used{' by ' * bool(pool)}{pool}: {words}",
                percent(number(f"{prefix}{resource}_utilisation_ratio")),
            ]
            for resource, words in _RESOURCES.items()
        ]
    print_table("Shares", ["", "share"], rows)
    imbalance = number("imbalance_processed_tokens_60s_mean")
    echo_wrapped(f"imbalance of processed tokens, 60 s windows, mean: {imbalance:.3g}")
    echo_wrapped(f"limited by, or first to be at a higher rate: {outcome['binding_resource']}")
    if outcome["valid"] is not True and number("requests") != 0:  # of none there is a note
        why = "requests were still running at the drain limit"
        echo_wrapped(f"not valid: {'see the notes' if outcome['verb'] == 'predict' else why}")
    for note in str(outcome["note"]).split("; "):
        if note:
            echo_wrapped(f"note: {note}")
