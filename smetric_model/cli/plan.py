"""``smetric-model plan``: the capacity plan of a scenario."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smetric_model.cli.output import echo_json, echo_wrapped, json_option, print_table

if TYPE_CHECKING:
    from smetric_model.planning import Plan
    from smetric_model.planning.words import Row
    from smetric_model.scenario import Scenario

__all__ = ["command"]


@click.command("plan")
@click.argument(
    "scenario", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--trace", type=click.Path(exists=True, path_type=Path), help="Trace to plan for.")
@click.option("--llm", help="Catalog name, or path to a config.json.")
@click.option("--weight-dtype", help="Type of the weights; with --llm, by default the model's own.")
@click.option("--kv-dtype", help="Type of the KV cache; with --llm, by default the model's own.")
@click.option("--gpu", help="Catalog name, such as H20.")
@click.option("--tp", type=click.IntRange(1), help="GPUs of an instance.")
@click.option("--instances", type=click.IntRange(1), help="Instances of the cluster.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Requests/s to serve.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write a self-contained HTML report (and the JSON) to this folder.",
)
@json_option
def command(
    scenario: Path | None,
    trace: Path | None,
    llm: str | None,
    weight_dtype: str | None,
    kv_dtype: str | None,
    gpu: str | None,
    tp: int | None,
    instances: int | None,
    rate: float | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Tokens per second a cluster can serve within its SLO, and why.

    SCENARIO is a TOML file; without one, the shipped example is planned.  Options replace its keys.
    With --trace and no --rate, the trace's own rate is planned for (none, where its sessions share
    no clock: then capacity only).
    """
    from rich.console import Console

    from smetric_model.datafiles import data_dir
    from smetric_model.planning import plan
    from smetric_model.scenario import Scenario

    path = scenario or data_dir() / "scenarios" / "agents-small.toml"
    changes: dict[str, Any] = {}
    if trace is not None:
        changes |= {"workload.trace": str(trace.resolve()), "workload.preset": None}
        changes |= {"workload.rate_rps": "trace"}
    if llm is not None:
        # the scenario's types belong to the scenario's model: another one brings its own
        changes |= {"llm.weight_dtype": None, "llm.kv_dtype": None}
        if Path(llm).is_file():
            llm = str(Path(llm).resolve())
    for key, value in (
        ("llm.name", llm),
        ("llm.weight_dtype", weight_dtype),
        ("llm.kv_dtype", kv_dtype),
        ("engine.gpu", gpu),
        ("engine.tp", tp),
        ("cluster.instances", instances),
        ("workload.rate_rps", rate),
    ):
        if value is not None:
            changes[key] = value
    asked: Scenario = Scenario.from_toml(path).replace(**changes)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)  # a folder that cannot be is told before the work
    with Console(stderr=True).status("planning") as status:
        result = plan(asked, progress=status.update)
    if out is not None:
        from smetric_model.report import write_plan_report

        page = write_plan_report(result, out)
        click.echo(f"report: {page}", err=True)
    if as_json:
        echo_json(result.to_dict())
    else:
        _print(result)


def _print(result: Plan) -> None:
    from smetric_model.planning import words

    echo_wrapped(f"unservable: {words.unservable(result)}")
    echo_wrapped(words.headline(result))
    work = result.workload
    echo_wrapped(
        f"{work['source']}: mean prompt {words.number(work['prompt_tokens_mean'])}, output"
        f" {words.number(work['output_tokens_mean'])} tokens; {words.reusable(work)}"
    )
    click.echo()
    echo_wrapped(words.answer(result))
    click.echo()
    print_table(
        "Capacity of the cluster (perfect placement)",
        ["", *words.END_NAMES.values()],
        [_row(row) for row in words.capacity_rows(result)],
    )
    for text in words.details(result):
        echo_wrapped(f"- {text}")
    click.echo()
    print_table(
        f"KV tiers and links at {words.number(result.tiers.rate_rps)} requests/s, ideal reuse",
        ["", "demanded", "provisioned", "used"],
        [_row(row) for row in words.tier_rows(result)],
    )
    for text in words.tier_facts(result):
        echo_wrapped(f"- {text}")
    if result.fetch is not None:
        click.echo()
        print_table(
            f"Load or recompute a prefix of {words.number(result.fetch.prefix_tokens)} tokens",
            ["", "time", "pays at"],
            [_row(row) for row in words.fetch_rows(result)],
        )
        slowest = words.number(result.fetch.break_even_bytes_per_s / 1e9)
        echo_wrapped(f"- {result.fetch.verdict}; slowest link worth using: {slowest} GB/s")
    click.echo()
    for note in result.notes:
        echo_wrapped(f"note: {note}")
    click.echo(f"planned in {result.elapsed_s:.1f} s", err=True)


def _row(row: Row) -> list[str]:
    return [("  " if row.detail else "") + row.title, *row.cells]
