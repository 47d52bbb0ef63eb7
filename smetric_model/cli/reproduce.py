"""``smetric-model reproduce``: the paper's experiments from simulation and closed form."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from smetric_model.cli.output import echo_json, echo_wrapped, json_option, print_table

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.reproduction.parameters import Experiments
    from smetric_model.reproduction.runner import Run

__all__ = ["command"]


@click.command("reproduce")
@click.option(
    "--quick",
    is_flag=True,
    help="Medium preset, two seeds, fewer loads and tiers: a few minutes.",
)
@click.option("--preset", "presets", multiple=True, help="Workload; again for more. All if none.")
@click.option("--setup", "setups", multiple=True, help="Cluster; again for more. All if none.")
@click.option("--sensitivity", is_flag=True, help="One assumption at a time at other values, too.")
@click.option(
    "--processes", type=click.IntRange(1), default=2, show_default=True, help="Side by side."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the run; what it holds is not run again.  [default: out/reproduction, or"
    " out/reproduction-quick]",
)
@json_option
def command(
    quick: bool,
    presets: tuple[str, ...],
    setups: tuple[str, ...],
    sensitivity: bool,
    processes: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Repeat the experiments of the SMetric paper and hold its claims against them.

    Parameters stand in data/reproduction.toml. Rows are kept as they come: after an interrupt the
    same command goes on.
    """
    from smetric_model.reproduction import claims_table, load_parameters, score
    from smetric_model.reproduction.table import write_results

    parameters = load_parameters().only(presets, setups, quick)
    folder = out or Path("out") / ("reproduction-quick" if quick else "reproduction")
    run = _run(parameters, folder, processes, sensitivity)
    write_results(run.table, folder / "results.parquet", _commit())
    claims = claims_table(run.table, run.workload, parameters.operating, presets=parameters.presets)
    claims.to_csv(folder / "claims.csv", index=False)
    scores = score(claims)
    _write_report(run, claims, scores, folder)
    click.echo(f"results and claims: {folder}", err=True)
    click.echo(f"{run.computed_rows} rows computed in {run.seconds:.0f} s", err=True)
    if as_json:
        echo_json(
            {
                "score": scores.to_dict("records"),
                "claims": claims.to_dict("records"),
                "anchors_rps": run.anchors,
                "rows": len(run.table),
                "seconds": run.seconds,
            }
        )
        return
    _print(claims, scores, run, quick)


def _write_report(run: Run, claims: pd.DataFrame, scores: pd.DataFrame, folder: Path) -> None:
    """Claims as Markdown; of each preset with variants, the sensitivity table and its figure."""
    from smetric_model.reproduction.report import claims_markdown, score_markdown
    from smetric_model.reproduction.sensitivity import (
        deciding,
        sensitivity_figure,
        sensitivity_table,
    )

    text = score_markdown(scores) + "\n" + claims_markdown(claims)
    (folder / "claims.md").write_text(text, encoding="utf-8")
    for preset in claims["preset"].unique():
        found = sensitivity_table(run.table, preset)
        if found["base_agrees"].eq("no").any():
            found.to_csv(folder / f"sensitivity-{preset}.csv", index=False)
            deciding(found).to_csv(folder / f"deciding-{preset}.csv", index=False)
            sensitivity_figure(found).savefig(folder / f"sensitivity-{preset}.png", dpi=120)


def _run(parameters: Experiments, folder: Path, processes: int, sensitivity: bool) -> Run:
    """Run with a bar and the time left on stderr."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from smetric_model.reproduction import reproduce

    console = Console(stderr=True)
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=None)
        said = [0.0]

        def tell(done: int, total: int, text: str) -> None:
            bar.update(task, completed=done, total=total or None, description=text)
            if not console.is_terminal and time.monotonic() - said[0] > 30:
                said[0] = time.monotonic()
                click.echo(f"{done} of {total or '?'} rows: {text}", err=True)

        run: Run = reproduce(parameters, folder, processes, sensitivity, tell)
    return run


def _commit() -> str:
    """Commit of the checkout, if this is one; with a mark where files differ from it."""
    import subprocess

    from smetric_model.datafiles import data_dir

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(data_dir()), *arguments],
            capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def _print(claims: pd.DataFrame, scores: pd.DataFrame, run: Run, quick: bool) -> None:
    for preset, part in claims.groupby("preset", sort=False):
        print_table(
            f"Claims, {preset}",
            ["claim", "what", "policy", "paper", "simulated", "closed form", "agrees"],
            [
                [
                    f"{row['claim']} {row['use'][0]}",
                    f"{row['quantity']} ({row['setting']})",
                    row["policy"],
                    row["paper"],
                    _value(row["simulated"], row["spread"]),
                    _value(row["predicted"]),
                    row["agrees"],
                ]
                for row in part.to_dict("records")
            ],
        )
    print_table(
        "Claims that agree, of those comparable",
        ["preset", "use", "simulated", "closed form"],
        [
            [
                row["preset"],
                row["use"],
                f"{row['agree']} of {row['comparable']}",
                f"{row['predicted_agree']} of {row['predicted_comparable']}",
            ]
            for row in scores.to_dict("records")
        ],
    )
    rates = [
        [setup, preset, f"{rate:.3g}"]
        for setup, by_preset in run.anchors.items()
        for preset, rate in by_preset.items()
    ]
    print_table("1.0x load", ["set-up", "preset", "requests/s"], rows=rates)
    echo_wrapped(
        "c, p: the claim could inform parameters (calibrate), or never did (predict)."
        " simulated: mean ± standard deviation over the seeds."
    )
    if quick:
        echo_wrapped("quick: two seeds, few loads; the full run decides.")


def _value(mean: float, spread: float = math.nan) -> str:
    if math.isnan(mean):
        return "-"
    return f"{mean:.3g}" + ("" if math.isnan(spread) else f" ± {spread:.2g}")
