"""``smetric-model validate``: the model against real engines behind the real router."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import click

from smetric_model.cli.output import echo_json, echo_wrapped, json_option, print_table

__all__ = ["command"]


@click.command("validate")
@click.argument("spec", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out/validate"),
    show_default=True,
    help="Folder of the validation; what is there is not run again.",
)
@click.option("--python", help="Interpreter with vLLM, in place of engines.python.")
@click.option("--repeats", type=click.IntRange(1), help="Replays of each policy.")
@click.option(
    "--trace",
    type=click.Path(exists=True, path_type=Path),
    help="Replayed in place of the file's workload, scaled to the engines.",
)
@click.option("--policy", "policies", multiple=True, help="In place of the file's policies.")
@click.option("--report-only", is_flag=True, help="Write the report of what is there.")
@json_option
def command(
    spec: Path,
    out: Path,
    python: str | None,
    repeats: int | None,
    trace: Path | None,
    policies: tuple[str, ...],
    report_only: bool,
    as_json: bool,
) -> None:
    """Calibrate engines, predict, replay, and compare.

    SPEC is a TOML file (docs/live.md).  Engines that it describes are started, and ended when it
    is over, whichever way.  Interrupted, it goes on where it stopped when called again.
    """
    from rich.console import Console

    from smetric_model.errors import LiveError
    from smetric_model.live.compare import comparison, cpu_table
    from smetric_model.live.validation import Validation
    from smetric_model.live.validation_report import (
        LEGEND,
        narrow_rows,
        speed_sentence,
        summary_sentence,
        write_validation_report,
    )
    from smetric_model.live.validation_spec import ValidationSpec

    asked = ValidationSpec.from_toml(spec, trace)
    content = asked.model_dump()
    if python:
        content["engines"]["python"] = python
    if repeats:
        content["repeats"] = repeats
    if policies:
        content["policies"] = list(policies)
    if report_only and not (out / "predictions.json").exists():
        raise LiveError(f"{out}: no validation with predictions is there to report")
    console = Console(stderr=True)
    # asked to end, it ends its engines as after Ctrl-C
    signal.signal(signal.SIGTERM, _interrupt)
    validation = Validation(ValidationSpec(**content), out, lambda text: console.print(text))
    try:
        if not report_only:
            validation.run()
    finally:
        if validation.results():
            page = write_validation_report(validation)
            console.print(f"report: {page}")
    table = comparison(validation)
    if as_json:
        cpu = cpu_table(validation).to_dict("records")
        echo_json({"comparison": table.to_dict("records"), "cpu": cpu, "facts": validation.facts})
        return
    for policy in dict.fromkeys(table["policy"] if len(table) else ()):
        lines = table[table["policy"] == policy]
        bound = lines["bound"].max()
        print_table(
            f"{policy}: {int(lines['repeats'].max())} replays"
            + (f"; no router beats {bound:,.0f} tokens/s" if bound > 0 else ""),
            *narrow_rows(table, policy),
            frame=False,
        )
    if len(table):
        echo_wrapped(LEGEND)
    for sentence in (summary_sentence(table), speed_sentence(validation)):
        if sentence:
            echo_wrapped(sentence)


def _interrupt(_number: int, _frame: Any) -> None:
    raise KeyboardInterrupt
