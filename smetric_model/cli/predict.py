"""``smetric-model predict``: the closed-form answer to a scenario."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smetric_model.cli import simulate
from smetric_model.cli.output import echo_json, echo_wrapped

if TYPE_CHECKING:
    from smetric_model.scenario import Scenario

__all__ = ["command"]

#: what ``simulate`` alone understands: its fixed load, its checks, its tables
_OF_SIMULATION = {"prompt_tokens", "output_tokens", "requests", "arrivals", "check", "out"}


def _command(
    scenario: Path | None, reuse: str, find: str | None, as_json: bool, **given: Any
) -> None:
    """Answer a scenario in closed form.

    SCENARIO is a TOML file; without one, the shipped example.  Options replace its keys.  The
    router of the scenario places the requests; --reuse none|tiers|ideal places them perfectly
    instead.

    --find asks the other way round: the largest rate with slo.attainment of the requests within
    SLO, the rate with most tokens within SLO, or the fewest instances for the scenario's rate.
    """
    from smetric_model.analytic.predict import predict

    asked = simulate.scenario_of(scenario, given)
    if find is not None:
        if reuse != "router":
            raise click.UsageError("--find is answered for the scenario's router: without --reuse")
        _find(asked, find, as_json)
        return
    outcome = predict(asked, reuse)  # type: ignore[arg-type]
    if as_json:
        echo_json(outcome.to_dict())
    else:
        simulate.print_outcome(outcome)


def _find(asked: Scenario, find: str, as_json: bool) -> None:
    from dataclasses import fields

    from smetric_model.analytic.cluster_capacity import PredictedCapacity, predicted_capacity
    from smetric_model.tuning.sizing import InstancesNeeded, fewest_instances

    found: PredictedCapacity | InstancesNeeded
    wanted = f"{asked.slo.attainment:.0%} of the requests within SLO"
    if find == "instances":
        found = fewest_instances(asked)
        if found.instances is None:
            line = f"No number of instances serves {wanted}."
        else:
            pools = ""
            if found.prefill_instances is not None:
                pools = f" ({found.prefill_instances} prefill, {found.decode_instances} decode)"
            line = f"{found.instances} instances{pools} are the fewest that serve {wanted}."
    else:
        found = predicted_capacity(asked, "peak_goodput" if find == "peak" else "attainment")
        if found.rate_rps is None:
            line = f"No rate has {wanted}: an idle cluster has {found.within_slo_ratio:.1%}."
        elif find == "peak":
            line = f"Most tokens within SLO at {found.rate_rps:.4g} requests/s."
        else:
            line = f"Up to {found.rate_rps:.4g} requests/s with {wanted}."
        line += f" {found.resource} saturates above {found.saturation_rps:.4g} requests/s."
    row = found.outcome
    if as_json:
        answer = {field.name: getattr(found, field.name) for field in fields(found)}
        echo_json(answer | {"outcome": None if row is None else row.to_dict()})
        return
    echo_wrapped(line)
    if row is not None:
        click.echo()
        simulate.print_outcome(row)


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
        click.Option(
            ["--find"],
            type=click.Choice(["capacity", "peak", "instances"]),
            help="Instead: the largest rate within SLO, the rate with most tokens within SLO, or"
            " the fewest instances.",
        ),
    ],
)
