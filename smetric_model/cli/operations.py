"""``smetric-model operations``: questions of running a cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from smetric_model.cli.output import echo_json, echo_wrapped, json_option, print_table
from smetric_model.cli.scenario_options import (
    ScenarioFile,
    TraceFile,
    group_changes,
    group_option,
    workload_changes,
)

if TYPE_CHECKING:
    from smetric_model.operations import Finding, RateCurve
    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

__all__ = ["command", "print_finding"]

F = TypeVar("F", bound=Callable[..., Any])

_EVENTS = ("instance", "node", "store", "cluster", "scale-out")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Answer questions of running a cluster: peak and autoscaling, N + 1, cold caches, and more.

    Each reads a scenario (TOML; without one, the shipped example) and says for every number whether
    it comes from a closed form, a simulation or a bound.
    """


def _options(function: F) -> F:
    options = (
        click.argument("scenario", required=False, type=ScenarioFile()),
        click.option("--trace", type=TraceFile(), help="Trace file."),
        click.option("--preset", help="Synthetic workload in place of a trace."),
        click.option(
            "--rate",
            type=click.FloatRange(0, min_open=True),
            help="Requests/s of the cluster; of --trace or --preset, by default, its own.",
        ),
        click.option("--instances", type=click.IntRange(1), help="Instances of the cluster."),
        click.option(
            "--out",
            type=click.Path(file_okay=False, path_type=Path),
            help="Folder for the finding: JSON, its tables as CSV, its figure as SVG.",
        ),
        json_option,
    )
    for option in reversed(options):
        function = option(function)
    return function


def _seeds(default: int) -> Callable[[F], F]:
    return click.option(
        "--seeds",
        type=click.IntRange(0),
        default=default,
        show_default=True,
        help="Simulated seeds; 0: closed form only.",
    )


def _asked(given: dict[str, Any]) -> Scenario:
    from smetric_model.datafiles import data_dir
    from smetric_model.scenario import Scenario

    changes = workload_changes(given["trace"], given["preset"])
    for option, key in (("rate", "workload.rate_rps"), ("instances", "cluster.instances")):
        if given[option] is not None:
            changes[key] = given[option]
    path = given["scenario"] or data_dir() / "scenarios" / "agents-small.toml"
    asked: Scenario = Scenario.from_toml(path).replace(**changes)
    return asked


def _answer(
    given: dict[str, Any], ask: Callable[[Scenario, Callable[[str], None]], Finding]
) -> None:
    """Ask, showing progress; print or write what is found."""
    from rich.console import Console

    asked = _asked(given)
    out: Path | None = given["out"]
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    with Console(stderr=True).status("working") as status:
        finding = ask(asked, status.update)
    if out is not None:
        _write(finding, out)
    if given["as_json"]:
        echo_json(finding.to_dict())
    else:
        print_finding(finding)
    click.echo(f"answered in {finding.elapsed_s:.1f} s", err=True)


def print_finding(finding: Finding) -> None:
    """Print a finding for people.

    Parameters
    ----------
    finding : Finding
        Any.
    """
    for line in finding.words:
        echo_wrapped(line)
    click.echo()
    rows = [[figure.label, figure.text, figure.source] for figure in finding.figures]
    print_table(finding.title, ["", "", "source"], rows)
    for note in finding.notes:
        echo_wrapped(f"note: {note}")


def _write(finding: Finding, out: Path) -> None:
    import orjson

    from smetric_model.operations.figures import finding_figure

    path = out / f"{finding.question}.json"
    path.write_bytes(
        orjson.dumps(finding.to_dict(), option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY)
    )
    written = [path]
    for name, table in finding.tables.items():
        path = out / f"{finding.question}-{name}.csv"
        table.to_csv(path, index=False)
        written.append(path)
    figure = finding_figure(finding)
    if figure is not None:
        path = out / f"{finding.question}.svg"
        figure.savefig(path, facecolor="white")
        written.append(path)
    for path in written:
        click.echo(f"written: {path}", err=True)


@command.command("replicas")
@_options
@click.option(
    "--curve",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="CSV with start_s and rate_rps, in place of the workload's own rate over time.",
)
@click.option(
    "--amplitude",
    type=click.FloatRange(0, 1),
    help="A sine of requests with a period of a day: its height ÷ the mean.",
)
@click.option("--peak-hour", type=click.FloatRange(0, 24), default=14.0, show_default=True,
              help="When that sine is highest.")  # fmt: skip
@click.option("--interval", type=click.FloatRange(1), default=3600.0, show_default=True,
              help="Seconds of an interval.")  # fmt: skip
@click.option("--startup", type=click.FloatRange(0), default=300.0, show_default=True,
              help="Seconds from the order of an instance until it serves.")  # fmt: skip
@click.option("--warm", type=click.FloatRange(0),
              help="Seconds until its caches are warm. [default: closed form]")  # fmt: skip
@click.option("--keep", type=click.FloatRange(0), default=300.0, show_default=True,
              help="Seconds for which an instance is kept that is not needed.")  # fmt: skip
@click.option("--minimum", type=click.IntRange(1), default=1, show_default=True,
              help="Fewest instances.")  # fmt: skip
@click.option("--simulate", "simulated", is_flag=True,
              help="Simulate the day too (a preset with --amplitude, or a trace).")  # fmt: skip
def replicas(
    curve: Path | None,
    amplitude: float | None,
    peak_hour: float,
    interval: float,
    startup: float,
    warm: float | None,
    keep: float,
    minimum: int,
    simulated: bool,
    **given: Any,
) -> None:
    """Peak of the day, instances over time, GPU-hours."""
    from smetric_model.operations import Autoscaler, replicas_over_time
    from smetric_model.operations.findings import demand_for
    from smetric_model.scenario_groups import check_equal_instances

    if curve is not None and (amplitude is not None or simulated):
        raise click.UsageError("--curve excludes --amplitude and --simulate")

    def ask(asked: Scenario, tell: Callable[[str], None]) -> Finding:
        check_equal_instances(asked, "operations replicas")
        tell("loading the workload")
        demand = demand_for(asked)
        rates, day = _curve(asked, demand.trace, curve, amplitude, peak_hour, interval, simulated)
        seconds = warm
        if seconds is None:
            tell("how long new instances take to warm")
            seconds = _warm_s(asked.replace(**{"workload.rate_rps": rates.mean_rps}), demand)
        scaler = Autoscaler(startup, seconds, keep, minimum)
        return replicas_over_time(asked, rates, scaler, simulated=day, demand=demand, progress=tell)

    _answer(given, ask)


def _warm_s(scenario: Scenario, demand: Any) -> float:
    """Return when an added instance's hits are within a tenth of the others'; 60 s if unknown."""
    from smetric_model.errors import SpecError, UnstableError
    from smetric_model.operations.filling import cold_caches
    from smetric_model.tuning.sizing import fewest_instances, with_instances

    needed = fewest_instances(scenario, demand=demand).instances
    if needed is None:
        return 0.0
    try:
        caches = cold_caches(with_instances(scenario, needed), "scale-out", demand)
    except (SpecError, UnstableError):
        return 0.0
    return caches.recovered_s("instance_local_ratio", 0.1)


def _curve(
    scenario: Scenario,
    trace: Trace,
    path: Path | None,
    amplitude: float | None,
    peak_hour: float,
    interval_s: float,
    simulated: bool,
) -> tuple[RateCurve, Trace | None]:
    from smetric_model.operations import diurnal_curve, file_curve, trace_curve
    from smetric_model.operations.day import diurnal_parameters
    from smetric_model.operations.rate_curve import DAY_S
    from smetric_model.workload.synthesis import generate, preset_parameters
    from smetric_model.workload.synthesis_scaling import scale_to_rate

    rate = scenario.workload.rate_rps
    if path is not None:
        return file_curve(path), None
    if amplitude is not None:
        if rate == "trace":
            raise click.UsageError("--amplitude needs --rate: the mean of the day")
        wave = diurnal_curve(rate, amplitude, interval_s, peak_s=3600 * peak_hour)
        if not simulated:
            return wave, None
        if scenario.workload.preset is None:
            raise click.UsageError("--simulate with --amplitude needs a --preset to draw a day of")
        parameters = diurnal_parameters(
            preset_parameters(scenario.workload.preset), amplitude, 3600 * peak_hour, DAY_S
        )
        return wave, generate(parameters, rate_rps=rate, window_s=DAY_S, seed=scenario.seed)
    if scenario.workload.preset is not None:
        raise click.UsageError("a preset's rate is constant: --amplitude or --curve is needed")
    if rate != "trace":
        # in step: the day keeps its shape
        trace = scale_to_rate(trace, rate, scenario.seed, in_step=True)
    return trace_curve(trace, interval_s), trace if simulated else None


@command.command("node-loss")
@_options
@_seeds(2)
@click.option("--horizon", type=click.FloatRange(60), default=1800.0, show_default=True,
              help="Seconds simulated after the loss.")  # fmt: skip
def lost_node(seeds: int, horizon: float, **given: Any) -> None:
    """N + 1: what a node's loss does, and how many instances bear it."""
    from smetric_model.operations import node_loss

    _answer(given, lambda asked, tell: node_loss(asked, seeds=seeds, horizon_s=horizon,
                                                 progress=tell))  # fmt: skip


@command.command("recovery")
@_options
@_seeds(2)
@click.option("--event", type=click.Choice(_EVENTS), default="node", show_default=True,
              help="What starts cold.")  # fmt: skip
@click.option("--within", type=click.FloatRange(0, 100, min_open=True, max_open=True), default=5.0,
              show_default=True, help="Per cent below steady that count as back.")  # fmt: skip
def recovery(seeds: int, event: Any, within: float, **given: Any) -> None:
    """Cold caches: how long after a restart or a scale-out until hits are back."""
    from smetric_model.operations import cold_recovery

    _answer(given, lambda asked, tell: cold_recovery(asked, event, within / 100, seeds=seeds,
                                                     progress=tell))  # fmt: skip


@command.command("routers")
@_options
@_seeds(3)
@click.option("--replicas", "counts", type=click.IntRange(1), multiple=True,
              help="Number of routers; may be given several times. [default: 1 2 4 8]")  # fmt: skip
@click.option("--age", "ages", type=click.FloatRange(0), multiple=True,
              help="Age of their loads, seconds; may be given several times. [default: 0]",
              )  # fmt: skip
def routers(seeds: int, counts: tuple[int, ...], ages: tuple[float, ...], **given: Any) -> None:
    """Several routers, and loads of some age: what they cost."""
    from smetric_model.operations import router_replicas

    _answer(given, lambda asked, tell: router_replicas(asked, counts or (1, 2, 4, 8),
                                                       ages or (0.0,), seeds=seeds,
                                                       progress=tell))  # fmt: skip


@command.command("tenants")
@_options
@_seeds(0)
@click.option("--tenants", type=click.IntRange(1), default=8, show_default=True,
              help="How many.")  # fmt: skip
@click.option("--zipf", type=click.FloatRange(0, 10), default=0.0, show_default=True,
              help="Exponent of their shares; 0: equal.")  # fmt: skip
def tenants(seeds: int, tenants: int, zipf: float, **given: Any) -> None:
    """Tenants apart: salted caches, or clusters of their own."""
    from smetric_model.operations import tenant_isolation

    _answer(given, lambda asked, tell: tenant_isolation(asked, tenants, zipf, seeds=seeds,
                                                        progress=tell))  # fmt: skip


@command.command("kv-dtype")
@_options
@click.option("--kv-dtype", default="fp8", show_default=True, help="The other type.")
def kv_dtype(kv_dtype: str, **given: Any) -> None:
    """KV cache of another type: instances and tokens per second."""
    from smetric_model.operations import kv_cache_dtype

    _answer(given, lambda asked, tell: kv_cache_dtype(asked, kv_dtype, progress=tell))


@command.command("mixed")
@_options
@_seeds(2)
@group_option
def mixed(groups: tuple[tuple[str, int], ...], seeds: int, **given: Any) -> None:
    """Unequal instances: what bounds them, and what routers make of them."""
    from smetric_model.operations import mixed_cluster

    if groups and given["instances"] is not None:
        raise click.UsageError("--group and --instances exclude each other")

    def ask(asked: Scenario, tell: Callable[[str], None]) -> Finding:
        unequal = asked.replace(**group_changes(groups))
        return mixed_cluster(unequal, seeds=seeds, progress=tell)

    _answer(given, ask)
