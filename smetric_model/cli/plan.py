"""``smetric-model plan``: the capacity plan of a scenario."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smetric_model.cli.output import echo_json, echo_wrapped, json_option, print_table
from smetric_model.cli.scenario_options import (
    ScenarioFile,
    TraceFile,
    llm_changes,
    slo_changes,
    slo_options,
    workload_changes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from smetric_model.designing import DesignPlan, DesignSpace
    from smetric_model.planning import Plan, TierDemand
    from smetric_model.planning.words import Row

__all__ = ["command"]

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_MOST_ROWS = 24  # designs printed
_LOG_EVERY_S = 10.0  # a line of progress, where nothing can spin
_OPERATIONS_SEEDS = 2  # simulated for the operational questions


@click.command("plan")
@click.argument("scenario", required=False, type=ScenarioFile())
@click.option("--trace", type=TraceFile(), help="Trace to plan for.")
@click.option("--preset", help="Synthetic workload to plan for, by its name.")
@click.option(
    "--llm",
    help="Catalog name, or path to a config.json; its types and longest context come with it.",
)
@click.option("--weight-dtype", help="Type of the weights; with --llm, by default the model's own.")
@click.option("--kv-dtype", help="Type of the KV cache; with --llm, by default the model's own.")
@click.option("--gpu", help="Catalog name, such as H20.")
@click.option("--tp", type=click.IntRange(1), help="GPUs of an instance.")
@click.option("--instances", type=click.IntRange(1), help="Instances of the cluster.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Requests/s to serve.")
@click.option("--policy", help="Routing policy of the given design.")
@slo_options
@click.option("--space", type=_FILE, help="TOML file whose table [space] lists designs to compare.")
@click.option(
    "--vary",
    multiple=True,
    metavar="KEY=VALUES",
    help="Values of a scenario key to compare, such as engine.gpu=H20,H100 or"
    " prefill_share=0,0.25; may be given again: all combinations.",
)
@click.option("--prices", type=_FILE, help="TOML file with a table [prices].")
@click.option(
    "--capacity", is_flag=True, help="Take the instances as given: how much do they serve?"
)
@click.option(
    "--check",
    type=click.IntRange(0),
    default=5,
    show_default=True,
    help="Designs simulated beside the given one.",
)
@click.option(
    "--seeds",
    type=click.IntRange(3),
    default=5,
    show_default=True,
    help="Simulations of each number of instances.",
)
@click.option(
    "--operations",
    is_flag=True,
    help="Answer operational questions too: a node lost or restarted, several routers, tenants"
    " apart, FP8 KV (docs/operations.md).",
)
@click.option("--no-simulation", is_flag=True, help="Closed form only: no simulation, no bound.")
@click.option(
    "--budget",
    type=click.FloatRange(0, min_open=True),
    default=600,
    show_default=True,
    help="Seconds after which no new round of simulations is begun.",
)
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Processes.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write a self-contained HTML report, designs.csv and the JSON to this folder; finished"
    " answers are kept there, and found again.",
)
@json_option
def command(
    scenario: Path | None,
    trace: Path | None,
    preset: str | None,
    llm: str | None,
    weight_dtype: str | None,
    kv_dtype: str | None,
    gpu: str | None,
    tp: int | None,
    instances: int | None,
    rate: float | None,
    policy: str | None,
    space: Path | None,
    vary: tuple[str, ...],
    prices: Path | None,
    capacity: bool,
    check: int,
    seeds: int,
    operations: bool,
    no_simulation: bool,
    budget: float,
    jobs: int,
    out: Path | None,
    as_json: bool,
    **slo: float | None,
) -> None:
    """How many GPUs a workload needs, which router, and what is worth its price.

    SCENARIO is a TOML file; without one, the shipped example is planned.  Options replace its keys.
    With --trace or --preset and no --rate, the workload's own rate is planned for (none, where a
    trace's sessions share no clock: then capacity only).

    Designs (by default: global tier and link smaller and larger, other policies) are compared in
    closed form, the best simulated, the given one bounded.  An interrupted plan with --out goes on
    where it stopped when it is called again.
    """
    from rich.console import Console

    from smetric_model.datafiles import data_dir
    from smetric_model.designing import plan, read_prices
    from smetric_model.scenario import Scenario

    path = scenario or data_dir() / "scenarios" / "agents-small.toml"
    written = Scenario.from_toml(path)
    changes = workload_changes(trace, preset)
    if llm is not None:
        changes |= llm_changes(written, llm)
    for key, value in (
        ("llm.weight_dtype", weight_dtype),
        ("llm.kv_dtype", kv_dtype),
        ("engine.gpu", gpu),
        ("engine.tp", tp),
        ("cluster.instances", instances),
        ("workload.rate_rps", rate),
        ("router.policy", policy),
    ):
        if value is not None:
            changes[key] = value
    changes |= slo_changes(slo)
    asked = written.replace(**changes)
    wanted = _space(space, vary)
    money = None if prices is None else read_prices(prices)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)  # a folder that cannot be is told before the work
    kept_before = _kept(out)
    try:
        with Console(stderr=True).status("planning") as status:
            tell = status.update if sys.stderr.isatty() else _slowly()
            result = plan(
                asked,
                progress=tell,
                space=wanted,
                prices=money,
                check=-1 if no_simulation else check,
                seeds=seeds,
                capacity=capacity,
                budget_s=budget,
                folder=out,
                jobs=jobs,
                operations=(0 if no_simulation else _OPERATIONS_SEEDS) if operations else None,
            )
    except KeyboardInterrupt:
        click.echo(_interrupted(out, kept_before), err=True)
        raise
    timed = result
    if out is not None:
        from smetric_model.report import write_plan_report

        started = time.monotonic()
        page = write_plan_report(result, out)
        timed = result.with_time("report", time.monotonic() - started)
        click.echo(f"report: {page}", err=True)
    if as_json:
        echo_json(result.to_dict())
    else:
        _print(result)
        from smetric_model.designing.rows import spent_text

        click.echo(f"planned in {spent_text(timed)}", err=True)


def _kept(folder: Path | None) -> int:
    """Count the finished answers in a folder."""
    return 0 if folder is None else sum(1 for _ in folder.glob("points/*/*.json"))


def _interrupted(folder: Path | None, before: int) -> str:
    """Say what an interrupted plan leaves behind."""
    if folder is None:
        return "nothing is kept: with --out FOLDER a plan goes on where it was interrupted"
    held = _kept(folder)
    if held == 0:
        return f"nothing was finished yet: the same command begins anew in {folder}"
    answers = "answer is" if held == 1 else "answers are"
    return (
        f"{held} finished {answers} kept in {folder} ({held - before} of this call); the same"
        " command goes on"
    )


def _slowly() -> Callable[[str], None]:
    """Return what tells where it is, a line now and then: for logs, where nothing can spin."""
    told = -math.inf

    def tell(text: str) -> None:
        nonlocal told
        if time.monotonic() - told >= _LOG_EVERY_S:
            told = time.monotonic()
            click.echo(text, err=True)

    return tell


def _space(file: Path | None, vary: tuple[str, ...]) -> DesignSpace | None:
    """Return the designs asked for: of a file, of options (which replace its lists), or none."""
    from smetric_model.cli.sweep import parse_values
    from smetric_model.designing import DesignSpace, read_space

    axes: dict[str, tuple[Any, ...]] = {}
    if file is not None:
        axes |= read_space(file).axes
    given: set[str] = set()
    for text in vary:
        key, values = parse_values(text, "--vary")
        if key in given:
            raise click.UsageError(f"--vary {key} is given twice")
        given.add(key)
        axes[key] = tuple(values)
    return DesignSpace(axes) if file is not None or vary else None


def _print(result: DesignPlan) -> None:
    from smetric_model.designing.hardware import advice
    from smetric_model.designing.rows import balance_note
    from smetric_model.planning import words

    placement = result.placement
    if result.advised.instances is not None:
        echo_wrapped(f"recommended: {advice(result)}")
    else:
        echo_wrapped("recommended: nothing, no design compared serves this within the SLO")
    echo_wrapped(f"unservable: {words.unservable(placement)}")
    if words.beyond_context(placement):
        echo_wrapped(f"beware: {words.beyond_context(placement)}")
    for warning in result.warnings:
        echo_wrapped(f"beware: {warning}")
    echo_wrapped(words.engine(placement))
    work = placement.workload
    own = work["trace_rate_rps"]
    echo_wrapped(
        f"{work['source']}: mean prompt {words.number(work['prompt_tokens_mean'])}, output"
        f" {words.number(work['output_tokens_mean'])} tokens; {words.reusable(work)}"
        + (f"; its own rate {words.number(own)} requests/s" if math.isfinite(own) else "")
    )
    echo_wrapped(f"SLO: {words.slo(placement)}")
    for answer in result.answers:
        click.echo()
        _heading(answer.question)
        echo_wrapped(answer.text)
        validity = f"; {answer.validity}" if answer.validity else ""
        echo_wrapped(f"[{answer.source}{validity}]")
    if result.findings:
        click.echo()
        echo_wrapped(f"In operation: {advice(result)}.")
    for finding in result.findings:
        click.echo()
        _heading(finding.title)
        for text in finding.words:
            echo_wrapped(text)
        for note in finding.notes:
            echo_wrapped(f"note: {note}")
    _print_designs(result)
    if placement.tiers is not None:
        _print_placement(placement, placement.tiers, advice(result), balance_note(result))
    click.echo()
    for note in (*result.notes, *placement.notes):
        echo_wrapped(f"note: {note}")


def _heading(text: str) -> None:
    from rich.console import Console
    from rich.text import Text

    Console().print(Text(text, style="bold"))


def _print_designs(result: DesignPlan) -> None:
    from smetric_model.designing.pools import far_more
    from smetric_model.designing.rows import (
        design_caption,
        design_cells,
        design_columns,
        design_order,
    )

    done = [design for design in result.designs if not design.error]
    shown = sorted(done[1:], key=lambda d: design_order(result, d))[: _MOST_ROWS - 1]
    click.echo()
    if done:
        print_table(
            "Designs",
            ["", *design_columns(result)],
            [[d.name, *design_cells(result, d)] for d in (*done[:1], *shown)],
        )
        echo_wrapped(design_caption(result))
    if len(done) > len(shown) + 1:
        echo_wrapped(f"{len(done) - len(shown) - 1} more designs; --out or --json gives all")
    for line in far_more(result):
        echo_wrapped(f"- {line}")
    reasons: dict[str, list[str]] = {}
    for design in result.designs:
        if design.error:
            reasons.setdefault(design.error.splitlines()[0], []).append(design.name)
    for reason, names in reasons.items():
        echo_wrapped(f"- not possible: {'; '.join(names)}: {reason}")


def _print_placement(placement: Plan, tiers: TierDemand, cluster: str, note: str) -> None:
    from smetric_model.planning import words

    click.echo()
    print_table(
        f"What reuse is worth: {cluster}; without load balance (random arrivals)",
        ["", *words.END_NAMES.values()],
        [_row(row) for row in words.capacity_rows(placement, needed=False)],
    )
    if note:
        echo_wrapped(f"{note}.")
    click.echo()
    print_table(
        f"KV tiers and links: {cluster}; {_servable(placement, tiers)}, ideal reuse",
        ["", "demanded", "provisioned", "used"],
        [_row(row) for row in words.tier_rows(placement)],
    )
    for text in words.tier_facts(placement):
        echo_wrapped(f"- {text}")
    if placement.fetch is not None:
        click.echo()
        print_table(
            f"Load or recompute a prefix of {words.number(placement.fetch.prefix_tokens)} tokens",
            ["", "time", "pays at"],
            [_row(row) for row in words.fetch_rows(placement)],
        )
        slowest = words.number(placement.fetch.break_even_bytes_per_s / 1e9)
        echo_wrapped(f"- {placement.fetch.verdict}; slowest link worth using: {slowest} GB/s")


def _servable(placement: Plan, tiers: TierDemand) -> str:
    from smetric_model.designing.rows import rate_text

    text = rate_text(tiers.rate_rps)
    return f"{text} that can be served" if placement.workload["unservable_ratio"] > 0 else text


def _row(row: Row) -> list[str]:
    return [("  " if row.detail else "") + row.title, *row.cells]
