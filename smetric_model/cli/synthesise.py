"""``smetric-model synthesise``: a trace of synthetic agent traffic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smetric_model.cli.output import echo_json, json_option, print_table

if TYPE_CHECKING:
    from smetric_model.workload.synthesis import WorkloadParameters

__all__ = ["command"]


@click.command("synthesise")
@click.argument("parameters", metavar="PRESET|FILE.toml", required=False)
@click.option("--list", "show_presets", is_flag=True, help="List the presets instead.")
@click.option("--rate", "rate_rps", type=float, metavar="RPS", help="Mean requests per second.")
@click.option("--window", "window_s", type=float, metavar="SECONDS", help="Length of the window.")
@click.option(
    "--sessions",
    type=float,
    help="Mean number of sessions that start in the window; in place of --rate or --window.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option(
    "--start",
    type=click.Choice(["equilibrium", "cold"]),
    default="equilibrium",
    show_default=True,
    help="Whether sessions are in progress when the window opens.",
)
@click.option(
    "--ends",
    type=click.Choice(["cut", "whole"]),
    default="cut",
    show_default=True,
    help="Whether sessions stop at the window's end or run to their own.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Where to write the trace: .parquet, .jsonl, .jsonl.gz or .jsonl.zst.",
)
@json_option
def command(
    parameters: str | None, show_presets: bool, out: Path | None, as_json: bool, **options: Any
) -> None:
    """Generate a trace from a preset or a parameter file; shows its reuse.

    Rate and window default to those of the parameters.  Equal seeds give equal traces.
    """
    if show_presets:
        _list(as_json)
        return
    if parameters is None:
        raise click.UsageError("PRESET|FILE.toml is missing (--list shows the presets)")
    from smetric_model.workload import write_trace
    from smetric_model.workload.synthesis import generate
    from smetric_model.workload.synthesis_statistics import traffic_statistics

    found = _parameters(parameters)
    trace = generate(found, **options)
    if out is not None:
        write_trace(trace, out)
        click.echo(f"wrote {out}", err=True)
    result = traffic_statistics(trace)
    if as_json:
        echo_json({"parameters": found.name, "seed": options["seed"], **result})
        return
    print_table(
        f"{found.name}, seed {options['seed']}",
        ["quantity", "value"],
        [[name, _show(value)] for name, value in result.items()],
    )


def _parameters(name: str) -> WorkloadParameters:
    from smetric_model.workload.synthesis import WorkloadParameters, preset_parameters

    if name.endswith(".toml"):
        return WorkloadParameters.from_toml(name)
    return preset_parameters(name)


def _list(as_json: bool) -> None:
    from smetric_model.workload.synthesis import preset_names, preset_parameters

    presets = {name: preset_parameters(name) for name in preset_names()}
    if as_json:
        echo_json({name: preset.to_dict() for name, preset in presets.items()})
        return
    print_table(
        "Presets",
        ["name", "what it stands for"],
        [[name, preset.description] for name, preset in presets.items()],
    )


def _show(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 10 else f"{value:,.1f}".removesuffix(".0")
