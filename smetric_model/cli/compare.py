"""``smetric-model compare``: outcomes side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from smetric_model.cli.output import echo_json, echo_wrapped, json_option, print_table

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.comparison import Comparison

__all__ = ["command"]


@click.command("compare")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--by", multiple=True, help="Column whose values are compared: policy, verb, source ..."
)
@click.option("--baseline", help="Which of them the others are compared with; else the first.")
@click.option(
    *("--quantity", "quantities"),
    multiple=True,
    help="Column of the schema, or a pattern such as 'ttft_*'; else the headlines.",
)
@click.option(
    "--confidence",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.95,
    show_default=True,
    help="Of intervals and verdicts.",
)
@click.option(
    "--test",
    type=click.Choice(["t", "wilcoxon"]),
    default="t",
    show_default=True,
    help="Paired t (Welch where seeds differ), or signed ranks (Mann-Whitney).",
)
@click.option("--csv", "csv", type=click.Path(dir_okay=False, path_type=Path), help="Tidy table.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Figure: .svg, .png or .pdf.",
)
@click.option(
    "--paper",
    help="Set-up of the SMetric paper whose figures stand beside: colocated-30b, colocated-235b,"
    " prefill-30b.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for a page (compare.html) that needs nothing else, and the tidy table.",
)
@json_option
def command(
    files: tuple[Path, ...],
    by: tuple[str, ...],
    baseline: str | None,
    quantities: tuple[str, ...],
    confidence: float,
    test: str,
    csv: Path | None,
    plot: Path | None,
    paper: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Lay outcomes side by side.

    FILES are outcomes or rows as the verbs (--json) and sweep write them: JSON, CSV, Parquet, or a
    folder of simulate or sweep.
    """
    from smetric_model.comparison import compare

    if plot is not None and plot.suffix not in (".svg", ".png", ".pdf"):
        raise click.UsageError(f"--plot {plot}: a name that ends in .svg, .png or .pdf")
    found = compare(
        list(files),
        list(by) or None,
        baseline,
        quantities=list(quantities) or None,
        confidence=confidence,
        test=test,  # type: ignore[arg-type]
        paper=paper,
    )
    if csv is not None:
        found.table.to_csv(csv, index=False)
        click.echo(f"table: {csv}", err=True)
    if plot is not None:
        from smetric_model.comparison.figure import comparison_figure

        comparison_figure(found).savefig(plot, dpi=150)
        click.echo(f"figure: {plot}", err=True)
    if out is not None:
        from smetric_model.comparison.report import write_comparison_report

        page = write_comparison_report(found, out)
        click.echo(f"report: {page}", err=True)
    if as_json:
        echo_json(found.to_dict())
    else:
        _print(found)


def _print(found: Comparison) -> None:
    from smetric_model.comparison.words import cell, reading

    for condition, part in found.table.groupby("condition", sort=False):
        for group, lines in part.groupby("group", sort=False):
            title = ", ".join(text for text in (str(group), str(condition)) if text)
            rows = []
            for quantity, each in lines.groupby("quantity", sort=False):
                unit = str(each["unit"].iloc[0])
                by_name = {str(line["name"]): line for line in each.to_dict("records")}
                label = str(quantity) + (f" [{unit}]" if unit not in ("", "ratio") else "")
                rows.append([label, *(cell(by_name.get(name), unit) for name in found.names)])
            print_table(title.capitalize(), [f"by {' / '.join(found.by)}", *found.names], rows)
    if found.paper is not None:
        _print_paper(found.paper)
    for line in reading(found):
        echo_wrapped(line)
    for note in found.notes:
        echo_wrapped(f"note: {note}")


def _print_paper(paper: pd.DataFrame) -> None:
    from smetric_model.comparison.words import paper_lines

    if paper.empty:
        echo_wrapped("The paper has no figure of these policies and quantities for that cluster.")
        return
    conditions, lines = paper_lines(paper)
    print_table(
        "Beside the paper",
        ["claim", "quantity", "name", "paper", *(condition or "here" for condition in conditions)],
        [
            [
                f"{line['claim']} {line['figure']}",
                f"{line['quantity']} ({line['setting']})",
                line["name"],
                f"{line['paper']}" + (f" ({line['tolerance']})" if line["tolerance"] else ""),
                *(f"{text} {agrees}".rstrip() for text, agrees in line["here"]),
            ]
            for line in lines
        ],
    )
