"""``smetric-model calibrate``: fit the efficiencies to a table of measurements."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smetric_model.cli.output import echo_json, json_option, percent, print_table

if TYPE_CHECKING:
    from smetric_model.analytic.calibration import EngineFit

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
    """Fit an engine's efficiencies to MEASUREMENTS (CSV) and show every row's error.

    MEASUREMENTS are requests that you timed, a line each: llm, prompt_tokens, quantity (ttft_s,
    tpot_s or e2e_s) and value_s; docs/calibration.md has the other columns.  Numbers that they do
    not tell stay near those of the catalog.  --write makes a GPU file of them, for --gpu.
    (Or the collection of published rows that the catalog was fitted to: kernels and both engines.)
    """
    import tomli_w
    from rich.console import Console

    from smetric_model.analytic.calibration import (
        PARAMETERS,
        calibrate,
        is_requests,
        read_measurements,
    )
    from smetric_model.catalog.gpu import get_gpu

    if is_requests(measurements):
        _own(measurements, gpu, write, leave_out, as_json)
        return
    table = read_measurements(measurements)
    with Console(stderr=True).status("fitting") as status:
        engines, kernels = calibrate(table, get_gpu(gpu), leave_out, status.update)
    if write is not None:
        head = (
            "# Written by `smetric-model calibrate`; the provenance of every number follows it.\n"
            "# Measurements: third-party published rows (not part of this package).\n\n"
        )
        write.write_text(head + tomli_w.dumps({gpu: _entries(engines)}))
    good = kernels[~kernels["doubtful"]]
    families = good.groupby("family")["error_ratio"].agg(
        rows="size",
        median=lambda e: e.abs().median(),
        p90=lambda e: e.abs().quantile(0.9),
        largest=lambda e: e.abs().max(),
    )
    if as_json:
        result: dict[str, Any] = {
            "engines": _engines(engines),
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
        _print_rows(f"{gpu}/{name}", fit)


def _own(path: Path, gpu: str, write: Path | None, leave_out: bool, as_json: bool) -> None:
    """Fit requests of one's own, on top of what the catalog has."""
    import tomli_w
    from rich.console import Console

    from smetric_model.analytic.calibration import fit_requests, read_requests
    from smetric_model.analytic.efficiencies import get_efficiencies
    from smetric_model.catalog.gpu import get_gpu, gpu_table

    table = read_requests(path)
    facts = get_gpu(gpu)
    with Console(stderr=True).status("fitting") as status:
        fits = fit_requests(table, facts, leave_out, status.update)
    if write is not None:
        head = f"# Written by `smetric-model calibrate` from {path.name}: use it with --gpu.\n\n"
        content = {"gpu": gpu_table(gpu), "efficiencies": _entries(fits)}
        write.write_text(head + tomli_w.dumps(content))
        click.echo(f"wrote {write}: use it as --gpu {write}, or as engine.gpu", err=True)
    if as_json:
        echo_json({"engines": _engines(fits)})
        return
    for name, fit in fits.items():
        start = get_efficiencies(facts.name, name)
        print_table(
            f"{name} on {gpu}: fitted numbers, from those of {start.fitted_for}",
            ["number", "before", "fitted", "give or take"],
            [
                [
                    p.name,
                    f"{p.get(start):.4g}",
                    f"{p.get(fit.efficiencies):.4g}",
                    _give_or_take(fit.spread_ratio[p.name]),
                ]
                for p in fit.parameters
            ],
        )
        _print_rows(f"{name} on {gpu}", fit)


def _give_or_take(spread: float) -> str:
    from smetric_model.analytic.calibration import hardly_told

    return "not told" if hardly_told(spread) else f"{100 * spread:.0f} %"


def _entries(fits: dict[str, EngineFit]) -> dict[str, Any]:
    from smetric_model.analytic.calibration import to_table

    return {name: to_table(fit) for name, fit in fits.items()}


def _engines(fits: dict[str, EngineFit]) -> dict[str, Any]:
    return {
        name: {
            **entry,
            "at_bound": list(fits[name].at_bound),
            "spread_ratio": dict(fits[name].spread_ratio),
            "rows": fits[name].rows.to_dict("records"),
        }
        for name, entry in _entries(fits).items()
    }


def _print_rows(title: str, fit: EngineFit) -> None:
    quality = fit.quality
    told = (
        f"{quality['rows']} rows, |error| {percent(quality['median_error_ratio'])} in the median,"
        f" {percent(quality['largest_error_ratio'])} at most"
    )
    if "left_out_median_error_ratio" in quality:
        told += (
            f"; left out {percent(quality['left_out_median_error_ratio'])} and"
            f" {percent(quality['left_out_largest_error_ratio'])}"
        )
    print_table(
        f"{title}: {told}",
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
