"""``smetric-model fit``: parameters of the generator from a trace."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from smetric_model.cli.output import echo_json, json_option, print_table
from smetric_model.cli.trace import _study, study_options

__all__ = ["command"]


@click.command("fit")
@study_options
@click.option(
    "--out", type=click.Path(path_type=Path), help="Where to write the parameters (TOML)."
)
@click.option("--name", help="Name of the parameter set (default: the file's).")
@json_option
def command(out: Path | None, name: str | None, as_json: bool, **options: Any) -> None:
    """Set the generator's parameters from a trace; shows how far what they generate is from it."""
    from smetric_model.workload.synthesis_fit import fit

    trace, _ = _study(**options)
    result = fit(trace, name=name or Path(options["file"]).name.split(".")[0], seed=options["seed"])
    if out is not None:
        result.parameters.to_toml(out)
        click.echo(f"wrote {out}", err=True)
    if as_json:
        echo_json(
            {
                "parameters": result.parameters.to_dict(),
                "distances": result.distances.to_dict(orient="index"),
                "notes": list(result.notes),
            }
        )
        return
    for note in result.notes:
        click.echo(f"note: {note}", err=True)
    print_table(
        f"{result.parameters.name} (trace) and what is generated (ours); "
        "ks: KS distance, of ratios the difference",
        ["quantity", "ks", "trace: mean, P50, P90", "ours: mean, P50, P90"],
        [
            [
                str(quantity),
                "" if math.isnan(row["ks"]) else _show(row["ks"]),
                *(
                    "  ".join(
                        _show(row[f"{whose}_{statistic}"])
                        for statistic in ("mean", "p50", "p90")
                        if not math.isnan(row[f"{whose}_{statistic}"])
                    )
                    for whose in ("trace", "generated")
                ),
            ]
            for quantity, row in result.distances.to_dict("index").items()
        ],
    )


def _show(value: float) -> str:
    digits = 3 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:,.{digits}f}"
