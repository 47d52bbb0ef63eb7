"""``smetric-model trace``: look at a request trace, convert it, study its reuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from smetric_model.cli.output import echo_json, json_option, print_table

__all__ = ["command"]

F = TypeVar("F", bound=Callable[..., Any])


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Look at a request trace, convert it, study its reuse."""


def load_options(function: F) -> F:
    """Options of every subcommand that reads a trace."""
    for option in (
        click.option(
            "--drop-duplicates",
            is_flag=True,
            help="Leave out sessions that repeat an earlier one exactly.",
        ),
        click.option(
            "--time-unit",
            type=click.Choice(["auto", "s", "ms", "us", "ns"]),
            default="auto",
            help="Unit of time stamps (auto: the format's own).",
        ),
        click.option(
            "--skip-broken",
            is_flag=True,
            help="Skip lines that cannot be read, and count them, instead of stopping.",
        ),
        click.argument("file", type=click.Path(path_type=Path)),
    ):
        function = option(function)
    return function


def load(file: Path, skip_broken: bool, time_unit: Any, drop_duplicates: bool) -> Any:
    """Load a trace as the options of :func:`load_options` say."""
    from smetric_model.workload.trace import load_trace

    return load_trace(
        file,
        on_error="skip" if skip_broken else "raise",
        time_unit=time_unit,
        duplicates="drop" if drop_duplicates else "keep",
    )


@command.command()
@load_options
@json_option
def info(as_json: bool, **options: Any) -> None:
    """Show requests, sessions, tokens and ideal reuse of a trace."""
    from smetric_model.workload.summary import summarise

    result = summarise(load(**options))
    if as_json:
        echo_json(result)
        return
    report = result.pop("report")
    print_table(
        f"Trace {result.pop('source')}",
        ["quantity", "value"],
        [[name, _show(value)] for name, value in result.items()],
    )
    if report:
        print_table(
            "Repaired, dropped, noted",
            ["action and kind", "count", "first lines"],
            [
                [f"{e['action']}: {e['kind']}", f"{e['count']:,}", " ".join(map(str, e["lines"]))]
                for e in report
            ],
        )


def _show(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) < 10 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
