"""``smetric-model sweep``: many scenarios, any verb, one row each."""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smetric_model.cli.output import echo_json, echo_wrapped, json_option, print_table
from smetric_model.cli.scenario_options import ScenarioFile

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["command"]

#: columns of the printed table, of those that are there
_SHOWN = {
    "status": "status",
    "arrival_rate_rps": "requests/s",
    "within_slo_ratio": "within SLO",
    "total_within_slo_tps": "tokens/s within SLO",
    "ttft_p90_s": "TTFT P90 [s]",
    "tpot_p90_s": "TPOT P90 [s]",
    "tiers_attainment_rps": "capacity [requests/s]",
    "tiers_attainment_tps": "capacity [tokens/s]",
    "binding_resource": "limited by",
}


@click.command("sweep")
@click.argument("scenario", type=ScenarioFile())
@click.option(
    *("--set", "given"),
    multiple=True,
    metavar="KEY=VALUES",
    help="Values of a key: a,b,c or FROM:TO:STEP (TO included). Several --set: all combinations.",
)
@click.option(
    *("--verb", "verbs"),
    multiple=True,
    default=["predict"],
    show_default=True,
    help="predict, simulate, bound or plan; may be given more than once.",
)
@click.option("--seeds", type=click.IntRange(1), help="How many seeds, from the scenario's own on.")
@click.option("--zip", "zipped", is_flag=True, help="First values together, second together, …")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of rows.parquet and rows.csv, and of finished points, which are found again.",
)
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Processes.")
@click.option("--scheduler", metavar="ADDRESS", help="Dask scheduler, tcp://HOST:PORT.")
@json_option
def command(
    scenario: Path,
    given: tuple[str, ...],
    verbs: tuple[str, ...],
    seeds: int | None,
    zipped: bool,
    out: Path | None,
    jobs: int,
    scheduler: str | None,
    as_json: bool,
) -> None:
    """Answer many scenarios, one row each.

    SCENARIO is a TOML file; --set varies its keys.  With --out, what was finished is not computed
    again: after an interrupt, or with more values.  Points that fail are rows, too.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from smetric_model.sweeping import sweep

    over: dict[str, list[Any]] = {}
    for text in given:
        key, values = parse_values(text)
        if key in over:
            raise click.UsageError(f"--set {key} is given twice")
        over[key] = values
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        line = bar.add_task("sweeping", total=None)
        frame = sweep(
            scenario,
            over,
            list(dict.fromkeys(verbs)),
            seeds=seeds,
            design="zip" if zipped else "product",
            folder=out,
            jobs=jobs,
            scheduler=scheduler,
            progress=lambda done, total: bar.update(line, completed=done, total=total),
        )
    told = frame.attrs
    if out is not None:
        _write(frame, out)
    if as_json:
        echo_json(
            {
                **{str(k): v for k, v in told.items()},
                "rows": frame.astype(object).to_dict("records"),
            }
        )
    else:
        _print(frame, list(over))
    click.echo(
        f"{len(frame)} points: {told['found']} found, {told['computed']} computed in"
        f" {told['elapsed_s']:.1f} s",
        err=True,
    )


def parse_values(text: str, option: str = "--set") -> tuple[str, list[Any]]:
    """Key and values of ``KEY=VALUES``.

    Parameters
    ----------
    text : str
        Values separated by commas, a range ``FROM:TO:STEP``, or a TOML array.
    option : str, default "--set"
        What it was given to, for messages.

    Returns
    -------
    key : str
    values : list

    Raises
    ------
    click.UsageError
        If the text is nothing of these.
    """
    key, equals, values = text.partition("=")
    key, values = key.strip(), values.strip()
    if not (key and equals and values):
        raise click.UsageError(
            f"{option} {text!r}: KEY=VALUES is needed, such as cluster.instances=8,16"
        )
    if values.startswith("["):
        try:
            return key, list(tomllib.loads(f"values = {values}")["values"])
        except tomllib.TOMLDecodeError:
            raise click.UsageError(f"{option} {text!r}: the values are no TOML array") from None
    number = r"[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?"
    if re.fullmatch(rf"{number}:{number}(:{number})?", values):
        return key, _range(f"{option} {text!r}", [_value(part) for part in values.split(":")])
    found = [part.strip() for part in values.split(",")]
    if "" in found:
        raise click.UsageError(f"{option} {text!r}: a value is empty")
    return key, [_value(part) for part in found]


def _range(told: str, parts: list[Any]) -> list[Any]:
    if len(parts) != 3 or any(isinstance(part, str) for part in parts):
        raise click.UsageError(f"{told}: a range is FROM:TO:STEP")
    first, last, step = parts
    if step <= 0 or last < first:
        raise click.UsageError(f"{told}: FROM <= TO and STEP > 0 are needed")
    # rounding must not lose the last value of a range such as 0:1:0.1
    count = math.floor((last - first) / step * (1 + 1e-12) + 1e-9) + 1
    if count > 100_000:
        raise click.UsageError(f"{told}: {count} values are too many")
    values = [first + k * step for k in range(count)]
    return [value if isinstance(value, int) else float(f"{value:.12g}") for value in values]


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _write(frame: pd.DataFrame, out: Path) -> None:
    from smetric_model.sweeping.store import written_apart

    plain = frame.copy()
    plain.attrs = {}
    for path in (out / "rows.parquet", out / "rows.csv"):
        with written_apart(path) as apart:
            if path.suffix == ".csv":
                plain.to_csv(apart, index=False)
            else:
                _same_kinds(plain).to_parquet(apart, index=False)
        click.echo(f"rows: {path}", err=True)


def _same_kinds(frame: pd.DataFrame) -> pd.DataFrame:
    """``frame`` with columns of mixed kinds (a rate that may be "trace") as text."""
    plain = frame.copy()
    for name in frame:
        kinds = {type(value) for value in frame[name].dropna()}
        if frame[name].dtype == object and len(kinds) > 1:
            plain[name] = frame[name].map(lambda value: value if value is None else str(value))
    return plain


def _print(frame: pd.DataFrame, keys: list[str]) -> None:
    names = [name for name in (*keys, "verb", "seed") if name in frame]
    names = [name for name in names if len(set(frame[name])) > 1]
    shown = {str(name): str(name).rpartition(".")[2] for name in names}
    shown |= {
        name: title
        for name, title in _SHOWN.items()
        if name in frame
        and not (name == "status" and (frame[name] == "done").all())
        and not (name == "arrival_rate_rps" and "workload.rate_rps" in keys)
        and frame[name].notna().any()
        and (frame[name] != "").any()
    }
    rows = frame[list(shown)].astype(object).to_numpy().tolist()
    most = 40
    print_table(
        "Sweep",
        list(shown.values()),
        [[_cell(name, v) for name, v in zip(shown, row, strict=True)] for row in rows[:most]],
    )
    if len(rows) > most:
        echo_wrapped(f"{len(rows) - most} more rows; --out or --json gives all")
    bad = frame[frame["status"] != "done"]
    for reason, group in bad.groupby("error", sort=False):
        status, kind = group["status"].iloc[0], group["error_class"].iloc[0]
        lines = str(reason).splitlines() or [""]
        echo_wrapped(f"{len(group)} {status}: {kind}: {lines[0]}")


def _cell(name: str, value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, float):
        if name.endswith("_ratio"):
            return f"{value:.1%}"
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)
