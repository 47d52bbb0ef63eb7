"""``smetric-model tune``: thresholds for a scenario, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from smetric_model.cli.output import echo_json, echo_wrapped, json_option, print_table
from smetric_model.cli.scenario_options import ScenarioFile, TraceFile, workload_changes

if TYPE_CHECKING:
    from smetric_model.tuning import Tuning

__all__ = ["command"]


@click.command("tune")
@click.argument("scenario", required=False, type=ScenarioFile())
@click.option("--trace", type=TraceFile(), help="Trace to tune for.")
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    help="Requests/s of the cluster; with --trace, by default its own.",
)
@click.option("--instances", type=click.IntRange(1), help="Instances of the cluster.")
@click.option(
    "--loss",
    type=click.FloatRange(0, 100, min_open=True, max_open=True),
    default=5.0,
    show_default=True,
    help="Per cent that may be lost, for the rate, instances, tier and link that are needed.",
)
@click.option(
    "--overload",
    "overloads",
    type=click.FloatRange(0),
    multiple=True,
    help="Try this OVERLOAD (inf: never); may be given several times. Default: ten, 1 to inf.",
)
@click.option(
    "--hit-ratio",
    "hit_ratios",
    type=click.FloatRange(0, 1),
    multiple=True,
    help="Try this HIT_RATIO; may be given several times. Default: five, 0 to 0.9.",
)
@click.option("--no-needs", is_flag=True, help="Leave the needs out: much quicker.")
@json_option
def command(
    scenario: Path | None,
    trace: Path | None,
    rate: float | None,
    instances: int | None,
    loss: float,
    overloads: tuple[float, ...],
    hit_ratios: tuple[float, ...],
    no_needs: bool,
    as_json: bool,
) -> None:
    """Choose OVERLOAD and HIT_RATIO for a scenario's cluster under SMetric, and say why.

    SCENARIO is a TOML file; without one, the shipped example.  Options replace its keys.
    """
    from rich.console import Console

    from smetric_model.datafiles import data_dir
    from smetric_model.scenario import Scenario
    from smetric_model.tuning import tune
    from smetric_model.tuning.search import HIT_RATIOS, OVERLOADS

    changes = workload_changes(trace)
    if rate is not None:
        changes["workload.rate_rps"] = rate
    if instances is not None:
        changes["cluster.instances"] = instances
    asked = Scenario.from_toml(scenario or data_dir() / "scenarios" / "agents-small.toml")
    asked = asked.replace(**changes)
    with Console(stderr=True).status("tuning") as status:
        result = tune(
            asked,
            loss=None if no_needs else loss / 100,
            overloads=overloads or OVERLOADS,
            hit_ratios=hit_ratios or HIT_RATIOS,
            progress=status.update,
        )
    if as_json:
        echo_json(result.to_dict())
    else:
        _print(result)


def _print(result: Tuning) -> None:
    from smetric_model.planning.words import number, percent
    from smetric_model.tuning.words import needs_words, threshold

    for line in result.advice:
        echo_wrapped(line)
    click.echo()
    served = ""
    if result.unservable_ratio > 0:
        served = f", of which {percent(1 - result.unservable_ratio, 0)} can be served"
    print_table(
        f"{result.name}: thresholds at {number(result.rate_rps)} requests/s{served}",
        ["", "OVERLOAD", "HIT_RATIO"],
        [
            ["advice", *(threshold(value) for value in result.advised)],
            ["middle of the plateau", threshold(result.overload), threshold(result.hit_ratio)],
            [
                "closed form, whole cluster",
                threshold(result.social_overload),
                threshold(result.social_hit_ratio),
            ],
            [
                "closed form, own request",
                threshold(result.private_overload),
                threshold(result.private_hit_ratio),
            ],
            ["Bailian's hit_weight that matches the middle", number(result.hit_weight), ""],
        ],
    )
    hits = sorted({point.hit_ratio for point in result.grid})
    rows: dict[float, list[str]] = {}
    for point in result.grid:
        rows.setdefault(point.overload, []).append(number(point.total_within_slo_tps))
    print_table(
        "tokens/s within SLO, predicted",
        ["OVERLOAD \\ HIT_RATIO", *(threshold(hit) for hit in hits)],
        [[threshold(over), *cells] for over, cells in rows.items()],
    )
    if result.needs is not None:
        for line in needs_words(result.needs, result.rate_rps):
            echo_wrapped(line)
    for note in result.notes:
        echo_wrapped(f"note: {note}")
