"""What every subcommand shares: JSON to stdout, tables by rich, common options."""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Callable
from typing import Any, TypeVar

import click
import orjson

__all__ = ["echo_json", "echo_wrapped", "json_option", "percent", "print_table"]

F = TypeVar("F", bound=Callable[..., Any])


def json_option(function: F) -> F:
    """Add ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Write one JSON object to stdout.")(
        function
    )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return float(value)  # readers of JSON take such a number for one as well
    return value


def echo_json(result: dict[str, Any]) -> None:
    """Write ``result`` as one indented JSON object; ``nan`` and ``inf`` become ``null``."""
    sys.stdout.buffer.write(
        orjson.dumps(
            _plain(result),
            option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE,
        )
    )
    sys.stdout.flush()


def echo_wrapped(text: str) -> None:
    """Write a line to stdout, broken between words where the terminal ends."""
    from rich.console import Console

    click.echo(
        textwrap.fill(
            text,
            max(Console().width, 20),
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


def percent(share: float) -> str:
    """Write a share as a percentage; a dash where there was nothing to take a share of."""
    return "-" if math.isnan(share) else f"{share:.1%}"


def print_table(
    title: str, columns: list[str], rows: list[list[str]], *, frame: bool = True
) -> None:
    """Print a table to stdout; the first column is text, the others are right-aligned."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # As Text: rich would read the brackets of a unit, or of a file's name, as its markup.
    # The title stands above, since rich would wrap it at the width of a narrow table.
    console = Console()
    console.print(Text(title, style="bold"))
    table = Table(box=box.HEAVY_HEAD if frame else box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        table.add_column(Text(column), justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
