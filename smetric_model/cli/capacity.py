"""``smetric-model capacity``: the most a cluster serves within its SLO, by any verb."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smetric_model.cli import simulate
from smetric_model.cli.output import echo_json, echo_wrapped, percent, print_table

if TYPE_CHECKING:
    from smetric_model.capacity import Capacity

__all__ = ["command"]

#: options of ``simulate`` that say nothing here: its rate is what is looked for
_OF_SIMULATION = {
    *("prompt_tokens", "output_tokens", "requests", "arrivals"),
    *("check", "out", "rate"),
}


def _command(
    scenario: Path | None,
    verb: str,
    criterion: str,
    seeds: int | None,
    tolerance: float,
    csv: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Find the most that a cluster serves within its SLO, over all rates.

    SCENARIO is a TOML file; without one, the shipped example.  Options replace its keys; its rate
    is not looked at.  The closed form answers in seconds; a simulation is asked at about ten
    rates, with the same seeds at each, and says how large the noise is.
    """
    from rich.console import Console

    from smetric_model.capacity import capacity

    asked = simulate.scenario_of(scenario, given | {"rate": None})
    begin = time.perf_counter()
    with Console(stderr=True).status("looking for the capacity") as status:
        found = capacity(
            asked,
            verb,
            criterion.replace("-", "_"),  # type: ignore[arg-type]
            seeds=seeds,
            tolerance=tolerance / 100,
            progress=status.update,
        )
    took_s = time.perf_counter() - begin
    if csv is not None:
        found.rows.to_csv(csv, index=False)
        click.echo(f"rows: {csv}", err=True)
    if as_json:
        echo_json(found.to_dict())
    else:
        _print(found, asked.slo.attainment)
    click.echo(f"took {took_s:.1f} s", err=True)


def _print(found: Capacity, wanted: float) -> None:
    share = f"{wanted:.0%} of the requests within SLO"
    several = len(found.seeds) > 1
    if found.rate_rps is None:
        echo_wrapped(
            f"No rate has {share}: at the lowest looked at it is {percent(found.within_slo_ratio)}."
        )
    elif found.criterion == "attainment":
        most = "No router has more than" if found.verb == "bound" else "Up to"
        noise = f" ± {found.noise_rps:.2g} (standard error)" if several else ""
        echo_wrapped(f"{most} {found.rate_rps:.4g}{noise} requests/s with {share}.")
        if found.upper_rps > found.rate_rps:
            echo_wrapped(f"The next rate tried, {found.upper_rps:.4g}, has fewer.")
    else:
        noise = f" ± {found.noise_within_slo_tps:,.0f} (standard error)" if several else ""
        echo_wrapped(
            f"Most tokens within SLO, {found.total_within_slo_tps:,.0f}{noise} tokens/s, at"
            f" {found.rate_rps:.4g} requests/s."
        )
        if found.upper_rps > found.lower_rps:
            alike = "cannot be told from it" if several else "are its neighbours tried"
            echo_wrapped(f"{found.lower_rps:.4g} to {found.upper_rps:.4g} requests/s {alike}.")
    if found.resource:
        echo_wrapped(f"limited by: {found.resource}")
    if found.outcomes and found.outcomes[0]["note"]:
        echo_wrapped(f"note: {found.outcomes[0]['note']}")
    if len(found.rows) > 1:
        click.echo()
        _print_rows(found)


def _print_rows(found: Capacity) -> None:
    columns = {
        "within_slo_ratio": "within SLO",
        "ttft_missed_ratio": "TTFT missed",
        "tpot_missed_ratio": "TPOT missed",
        "total_within_slo_tps": "tokens/s within SLO",
        "ttft_p90_s": "TTFT P90, s",
        "tpot_p90_s": "TPOT P90, s",
    }
    shown = {name: title for name, title in columns.items() if name in found.rows}
    means = found.rows.groupby("rate_rps")[list(shown)].mean()
    shown = {name: title for name, title in shown.items() if means[name].notna().any()}

    def cell(name: str, value: float) -> str:
        if math.isnan(value):
            return "-"
        if name.endswith("_ratio"):
            return f"{value:.1%}"
        return f"{value:,.0f}" if name.endswith("_tps") else f"{value:.3g}"

    print_table(
        f"{found.verb}, mean of {len(found.seeds)}" if len(found.seeds) > 1 else found.verb,
        ["requests/s", *shown.values()],
        [
            [f"{rate:.4g}", *(cell(name, row[name]) for name in shown)]
            for rate, row in means.iterrows()
        ],
    )


command = click.Command(
    "capacity",
    callback=_command,
    help=_command.__doc__,
    params=[
        click.Argument(
            ["scenario"],
            required=False,
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
        ),
        click.Option(
            ["--verb"],
            type=click.Choice(["predict", "simulate", "bound"]),
            default="predict",
            show_default=True,
            help="Who answers at each rate.",
        ),
        click.Option(
            ["--criterion"],
            type=click.Choice(["attainment", "peak-goodput"]),
            default="attainment",
            show_default=True,
            help="Largest rate with slo.attainment of the requests within SLO, or the rate with"
            " most tokens within SLO.",
        ),
        click.Option(
            ["--seeds"],
            type=click.IntRange(1),
            help="Seeds at each rate.  Default 3; for bound 1.",
        ),
        click.Option(
            ["--tolerance"],
            type=click.FloatRange(0, 100, min_open=True, max_open=True),
            default=3.0,
            show_default=True,
            help="Per cent between the last two rates tried.",
        ),
        click.Option(
            ["--csv"],
            type=click.Path(dir_okay=False, path_type=Path),
            help="File for all answers, a row a rate and seed.",
        ),
        *(
            option
            for option in simulate.command.params
            if isinstance(option, click.Option) and option.name not in _OF_SIMULATION
        ),
    ],
)
