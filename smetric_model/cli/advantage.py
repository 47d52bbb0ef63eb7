"""``smetric-model advantage``: a scenario's policy against others, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from smetric_model.advantage import BASELINES, COORDINATES, Advantage, advantage
from smetric_model.cli import simulate
from smetric_model.cli.output import echo_json, echo_wrapped, print_table

__all__ = ["command"]

#: what ``simulate`` alone understands: its fixed load, its checks, its tables
_OF_SIMULATION = {"prompt_tokens", "output_tokens", "requests", "arrivals", "check", "out"}


def _command(
    scenario: Path | None,
    baselines: tuple[str, ...],
    by_simulation: bool,
    seeds: int,
    as_json: bool,
    **given: Any,
) -> None:
    """Compare the scenario's policy with others, at the scenario's rate.

    SCENARIO is a TOML file; without one, the shipped example.  Options replace its keys.  Says
    whether its policy serves more tokens within SLO than the best of the others, by how much, and
    (in closed form) through what: local hits, the global tier, fetch times or balance.
    """
    asked = simulate.scenario_of(scenario, given)
    others = baselines or tuple(b for b in BASELINES if b != asked.router.policy)
    found = advantage(asked, others, verb="simulate" if by_simulation else "predict", seeds=seeds)
    if as_json:
        echo_json(found.to_dict())
    else:
        _print(found)


def _print(found: Advantage) -> None:
    means = found.rows.groupby("policy", sort=False)
    columns = {
        "in SLO [tokens/s]": ("total_within_slo_tps", "{:,.0f}"),
        "requests [%]": ("within_slo_ratio", "%"),
        "local [%]": ("local_ratio", "%"),
        "global [%]": ("global_ratio", "%"),
        "fetch [ms]": ("fetch_mean_s", "ms"),
        "max/mean": ("imbalance_processed_tokens_60s_mean", "{:.2f}"),
    }
    rows = []
    for policy, part in means:
        cells = [str(policy)]
        for name, form in columns.values():
            value = float(part[name].mean())
            if value != value:
                cells.append("–")
            elif form == "%":
                cells.append(f"{100 * value:.1f}")
            elif form == "ms":
                cells.append(f"{1000 * value:.1f}")
            else:
                cells.append(form.format(value))
        rows.append(cells)
    print_table("Policies", ["policy", *columns], rows)
    words = {"win": "serves more than", "lose": "serves less than", "tie": "ties with"}
    if found.verdict == "none":
        echo_wrapped(f"no verdict on {found.policy} against {found.baseline}: see the note")
    else:
        noise = f" ± {100 * found.noise_ratio:.1f}" if found.noise_ratio > 0 else ""
        why = f", mostly through {found.mechanism.replace('_', ' ')}" if found.mechanism else ""
        echo_wrapped(
            f"{found.policy} {words[found.verdict]} the best of the others, {found.baseline}:"
            f" {100 * found.advantage_ratio:+.1f}{noise} % tokens within SLO{why}"
        )
    if found.mechanisms:
        parts = [[name.replace("_", " "), f"{100 * value:+.1f}"]
                 for name, value in found.mechanisms.items()]  # fmt: skip
        print_table("Contributions", ["through", "%"], parts)
    if found.coordinates:
        print_table(
            "Where the scenario lies (docs/map.md)",
            ["coordinate", "value", "unit"],
            [[name.replace("_", " "), f"{value:.3g}", COORDINATES[name][0]]
             for name, value in found.coordinates.items()],
        )  # fmt: skip
    if found.note:
        echo_wrapped(f"note: {found.note}")


command = click.Command(
    "advantage",
    callback=_command,
    help=_command.__doc__,
    params=[
        *(option for option in simulate.command.params if option.name not in _OF_SIMULATION),
        click.Option(
            ["--baseline", "baselines"],
            multiple=True,
            metavar="POLICY",
            help="Policy to compare with, repeatable.  [default: bailian, lmetric, load-balance]",
        ),
        click.Option(
            ["--simulate", "by_simulation"],
            is_flag=True,
            help="Simulate instead of the closed form.",
        ),
        click.Option(
            ["--seeds"],
            type=click.IntRange(min=1),
            default=3,
            show_default=True,
            help="Simulated seeds, the same for all policies.",
        ),
    ],
)
