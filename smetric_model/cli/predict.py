"""``smetric-model predict``: the closed-form answer to a scenario."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from smetric_model.cli import simulate
from smetric_model.cli.output import echo_json

__all__ = ["command"]

#: what ``simulate`` alone understands: its fixed load, its checks, its tables
_OF_SIMULATION = {"prompt_tokens", "output_tokens", "requests", "arrivals", "check", "out"}


def _command(scenario: Path | None, reuse: str, as_json: bool, **given: Any) -> None:
    """Answer a scenario in closed form.

    SCENARIO is a TOML file; without one, the shipped example.  Options replace its keys.  The
    router of the scenario places the requests; --reuse none|tiers|ideal places them perfectly
    instead.
    """
    from smetric_model.analytic.predict import predict

    asked = simulate.scenario_of(scenario, given)
    outcome = predict(asked, reuse)  # type: ignore[arg-type]
    if as_json:
        echo_json(outcome.to_dict())
    else:
        simulate.print_outcome(outcome)


command = click.Command(
    "predict",
    callback=_command,
    help=_command.__doc__,
    params=[
        *(option for option in simulate.command.params if option.name not in _OF_SIMULATION),
        click.Option(
            ["--reuse"],
            type=click.Choice(["router", "none", "tiers", "ideal"]),
            default="router",
            show_default=True,
            help="Who places the requests: the router, or nobody (perfect placement).",
        ),
    ],
)
