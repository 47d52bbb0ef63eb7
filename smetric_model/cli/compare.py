"""``smetric-model compare``: outcomes side by side."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    )
    if csv is not None:
        found.table.to_csv(csv, index=False)
        click.echo(f"table: {csv}", err=True)
    if plot is not None:
        from smetric_model.comparison.figure import comparison_figure

        comparison_figure(found).savefig(plot, dpi=150)
        click.echo(f"figure: {plot}", err=True)
    if as_json:
        echo_json(found.to_dict())
    else:
        _print(found)


def _print(found: Comparison) -> None:
    for condition, part in found.table.groupby("condition", sort=False):
        for group, lines in part.groupby("group", sort=False):
            title = ", ".join(text for text in (str(group), str(condition)) if text)
            rows = []
            for quantity, each in lines.groupby("quantity", sort=False):
                unit = str(each["unit"].iloc[0])
                by_name = {str(line["name"]): line for line in each.to_dict("records")}
                label = str(quantity) + (f" [{unit}]" if unit not in ("", "ratio") else "")
                rows.append([label, *(_cell(by_name.get(name), unit) for name in found.names)])
            print_table(title.capitalize(), ["", *found.names], rows)
    echo_wrapped(
        f"baseline: {found.baseline}; ± half of the {found.confidence:.0%} interval over seeds;"
        " differences of shares in points, of all else relative"
    )
    if _tested(found.table):
        echo_wrapped(
            f"= tie: below noise ({found.confidence:.0%}, Holm's correction over the quantities of"
            " each name); no sign: not tested, fewer than two seeds"
        )
    else:
        echo_wrapped("nothing is tested: that needs two seeds or more of each")
    for note in found.notes:
        echo_wrapped(f"note: {note}")


def _tested(table: pd.DataFrame) -> bool:
    return bool(table["verdict"].isin(["tie", "higher", "lower"]).any())


def _cell(line: dict[Any, Any] | None, unit: str) -> str:
    if line is None or not line["count"]:
        return "-"
    text = _number(line["mean"], unit)
    if not math.isnan(line["low"]):
        text += f" ±{_number((line['high'] - line['low']) / 2, unit)}"
    if line["verdict"] == "baseline" or math.isnan(line["difference"]):
        return text
    if line["verdict"] == "tie":
        return f"{text}  ="
    if unit == "ratio" and not str(line["quantity"]).startswith("imbalance"):
        away = f"{100 * line['difference']:+.2f} pt"
    elif math.isnan(line["relative_difference"]):
        away = f"{line['difference']:+.3g}"
    else:
        away = f"{line['relative_difference']:+.1%}"
    sign = {"higher": " ▲", "lower": " ▼"}.get(line["verdict"], "")
    return f"{text}  {away}{sign}"


def _number(value: float, unit: str) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
