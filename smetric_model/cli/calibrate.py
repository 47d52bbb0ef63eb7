"""``smetric-model calibrate``: fit the efficiencies to a table of measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from smetric_model.cli.output import echo_json, json_option, print_table

__all__ = ["command"]


@click.command("calibrate")
@click.argument("measurements", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--gpu", default="H20", show_default=True, help="GPU they were measured on.")
@click.option(
    "--write",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the fitted efficiencies to this TOML file.",
)
@click.option("--leave-out/--no-leave-out", default=True, help="Refit without each group of rows.")
@json_option
def command(
    measurements: Path, gpu: str, write: Path | None, leave_out: bool, as_json: bool
) -> None:
    """Fit kernel families and engines to MEASUREMENTS (CSV) and show every row's error."""
    import tomli_w
    from rich.console import Console

    from smetric_model.analytic.calibration import (
        PARAMETERS,
        calibrate,
        read_measurements,
        to_table,
    )
    from smetric_model.catalog.gpu import get_gpu

    table = read_measurements(measurements)
    with Console(stderr=True).status("fitting") as status:
        engines, kernels = calibrate(table, get_gpu(gpu), leave_out, status.update)
    entries = {name: to_table(fit) for name, fit in engines.items()}
    if write is not None:
        head = (
            "# Written by `smetric-model calibrate`; the provenance of every number follows it.\n"
            "# Measurements: third-party published rows (not part of this package).\n\n"
        )
        write.write_text(head + tomli_w.dumps({gpu: entries}))
    good = kernels[~kernels["doubtful"]]
    families = good.groupby("family")["error_ratio"].agg(
        rows="size",
        median=lambda e: e.abs().median(),
        p90=lambda e: e.abs().quantile(0.9),
        largest=lambda e: e.abs().max(),
    )
    if as_json:
        result: dict[str, Any] = {
            "engines": {
                name: {
                    **entries[name],
                    "at_bound": list(fit.at_bound),
                    "rows": fit.rows.to_dict("records"),
                }
                for name, fit in engines.items()
            },
            "kernel_families": families.reset_index().to_dict("records"),
        }
        echo_json(result)
        return
    print_table(
        "Kernel families: |error| of the fitted roofline",
        ["family", "rows", "median %", "P90 %", "largest %"],
        [
            [str(name), f"{int(r.rows)}", *(f"{100 * v:.1f}" for v in (r.median, r.p90, r.largest))]
            for name, r in zip(families.index, families.itertuples(index=False), strict=True)
        ],
    )
    for name, fit in engines.items():
        print_table(
            f"{gpu}/{name}: fitted numbers",
            ["number", "value"],
            [[p.name, f"{p.get(fit.efficiencies):.4g}"] for p in PARAMETERS[name]],
        )
        print_table(
            f"{gpu}/{name}: rows ({fit.quality})",
            ["row", "measured s", "fitted s", "error %", "left out %"],
            [
                [
                    str(r["id"]),
                    f"{r['value_s']:.4g}",
                    f"{r['fitted_s']:.4g}",
                    f"{100 * r['error_ratio']:+.1f}",
                    f"{100 * r['left_out_error_ratio']:+.1f}",
                ]
                for r in fit.rows.to_dict("records")
            ],
        )
