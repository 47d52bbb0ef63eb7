"""``smetric-model engines``: a local cluster of vLLM instances with a shared KV tier."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from smetric_model.cli.output import echo_json, json_option, print_table
from smetric_model.units import GB

if TYPE_CHECKING:
    from smetric_model.live.rig import Rig

__all__ = ["command"]

F = TypeVar("F", bound=Callable[..., Any])


@click.group("engines")
def command() -> None:
    """Start, end and look at the engines of a validation's specification."""


def _folder(function: F) -> F:
    return click.option(
        "--folder",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path("out/engines"),
        show_default=True,
        help="Logs, generated model and state.",
    )(function)


@command.command("up")
@click.argument("spec", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--python", help="Interpreter with vLLM, in place of engines.python.")
@_folder
@json_option
def up(spec: Path, python: str | None, folder: Path, as_json: bool) -> None:
    """Start the engines of SPEC, and wait until they answer."""
    from rich.console import Console

    from smetric_model.live.rig import Rig
    from smetric_model.live.validation_spec import ValidationSpec

    engines = ValidationSpec.from_toml(spec).engines
    if python:
        engines = engines.model_copy(update={"python": python})
    rig = Rig(engines, folder)
    with Console(stderr=True).status("starting") as status:
        rig.up(status.update)
    click.echo(f"ready after {rig.started_s:.0f} s", err=True)
    _show(rig, as_json)


@command.command("down")
@_folder
def down(folder: Path) -> None:
    """End what `up` started in this folder, and nothing else."""
    from smetric_model.errors import LiveError
    from smetric_model.live.rig import Rig

    rig = Rig.found(folder)
    if rig is None:
        raise LiveError(f"{folder}: no engines were started there")
    rig.down()
    click.echo("ended", err=True)


@command.command("status")
@_folder
@json_option
def status(folder: Path, as_json: bool) -> None:
    """Whether the engines run; ends with status 1 if one does not."""
    from smetric_model.errors import LiveError
    from smetric_model.live.rig import Rig

    rig = Rig.found(folder)
    if rig is None:
        raise LiveError(f"{folder}: no engines were started there")
    _show(rig, as_json)
    rig.check()


def _show(rig: Rig, as_json: bool) -> None:
    lines = rig.status()
    urls = {point.name: point.url for point in rig.endpoints}
    if as_json:
        echo_json({"processes": lines, "endpoints": [vars(one) for one in rig.endpoints]})
        return
    print_table(
        "engines",
        ["name", "runs", "memory [GB]", "CPU [s]", "URL"],
        [
            [
                line["name"],
                "yes" if line["alive"] else "no",
                f"{line['memory_bytes'] / GB:.2f}" if "memory_bytes" in line else "",
                f"{line['cpu_s']:.1f}" if "cpu_s" in line else "",
                urls.get(line["name"], ""),
            ]
            for line in lines
        ],
    )
