"""A comparison as a page: one HTML file that needs nothing else, and the tidy table beside it."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smetric_model.comparison.words import cell, paper_lines, reading
from smetric_model.errors import SpecError

if TYPE_CHECKING:
    from smetric_model.comparison.run import Comparison

__all__ = ["comparison_page", "write_comparison_report"]


def write_comparison_report(found: Comparison, out_dir: str | Path) -> Path:
    """Write ``compare.html`` and ``compare.csv`` to a folder.

    Parameters
    ----------
    found : Comparison
        What to report.
    out_dir : str or Path
        Folder; made if it is not there.  Files of these names are replaced.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    OSError
        If the folder cannot be written.
    """
    folder = Path(out_dir)
    page = comparison_page(found)
    folder.mkdir(parents=True, exist_ok=True)
    found.table.to_csv(folder / "compare.csv", index=False)
    path = folder / "compare.html"
    path.write_text(page, encoding="utf-8")
    return path


def comparison_page(found: Comparison) -> str:
    """Return the page of a comparison.

    Parameters
    ----------
    found : Comparison
        What to report.

    Returns
    -------
    str
        HTML that loads nothing, runs nothing, and follows the reader's light or dark setting.
        Whatever comes from files is escaped.
    """
    from importlib.metadata import version

    from smetric_model.pages import filled_page

    svg, why_none = _figure(found)
    return filled_page(
        "compare.html.j2",
        found=found,
        answers=_answers(found),
        figure=svg,
        why_none=why_none,
        tables=_tables(found),
        paper=None if found.paper is None else paper_lines(found.paper),
        reading=[_sentence(line) for line in reading(found)],
        notes=[_sentence(note) for note in found.notes],
        version=version("smetric-model"),
        written=datetime.now(UTC),
    )


def _answers(found: Comparison) -> list[str]:
    """Say in words how far what is served within SLO differs, a sentence a condition."""
    sentences = []
    goodput = found.table[found.table["quantity"] == "total_within_slo_tps"]
    for condition, part in goodput.groupby("condition", sort=False):
        told: dict[str, list[str]] = {"differs": [], "untested": [], "tie": []}
        for line in part.to_dict("records"):
            if line["verdict"] == "baseline" or math.isnan(line["relative_difference"]):
                continue
            verdict = "differs" if line["verdict"] in ("higher", "lower") else line["verdict"]
            much = f" {line['relative_difference']:+.1%}"
            told[verdict].append(line["name"] + ("" if verdict == "tie" else much))
        parts = [f"{', '.join(told['differs'])}"] if told["differs"] else []
        if told["untested"]:
            parts.append(f"{', '.join(told['untested'])} (not tested: fewer than two seeds)")
        if told["tie"]:
            parts.append(f"{', '.join(told['tie'])} cannot be told from it")
        if parts:
            where = f", {condition!s}" if condition else ""
            sentences.append(
                f"Tokens within SLO against {found.baseline}{where}: {'; '.join(parts)}."
            )
    return sentences


def _figure(found: Comparison) -> tuple[Any, str]:
    from markupsafe import Markup

    from smetric_model.comparison.figure import comparison_figure
    from smetric_model.plots import svg

    try:
        figure = comparison_figure(found)
    except SpecError as error:
        return None, str(error)
    return Markup(svg(figure, "compare", "Means with their intervals")), ""


def _tables(found: Comparison) -> list[dict[str, Any]]:
    """One a condition and group: a row a quantity, a cell a name."""
    tables = []
    for (condition, group), lines in found.table.groupby(["condition", "group"], sort=False):
        rows = []
        for quantity, each in lines.groupby("quantity", sort=False):
            unit = str(each["unit"].iloc[0])
            by_name = {str(line["name"]): line for line in each.to_dict("records")}
            verdicts = [str(by_name[n]["verdict"]) if n in by_name else "" for n in found.names]
            texts = [cell(by_name.get(name), unit) for name in found.names]
            rows.append(
                {
                    "quantity": str(quantity),
                    "unit": unit if unit not in ("", "ratio") else "",
                    "cells": list(zip(texts, verdicts, strict=True)),
                }
            )
        title = ", ".join(text for text in (str(group), str(condition)) if text)
        tables.append({"title": title[:1].upper() + title[1:], "rows": rows})
    return tables


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
