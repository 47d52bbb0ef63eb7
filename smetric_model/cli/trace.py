"""``smetric-model trace``: look at a request trace, convert it, study its reuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from smetric_model.cli.output import echo_json, json_option, print_table

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.workload.trace import Trace

__all__ = ["command"]

F = TypeVar("F", bound=Callable[..., Any])

_QUANTILES = (0.5, 0.9, 0.99)
_LIMITS_S = (1, 10, 100, 1000)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Look at a request trace, convert it, study its reuse."""


def _add_options(function: F, *options: Callable[[F], F]) -> F:
    for option in reversed(options):
        function = option(function)
    return function


def load_options(function: F) -> F:
    """Options of every subcommand that reads a trace."""
    return _add_options(
        function,
        click.argument("file", type=click.Path(path_type=Path)),
        click.option(
            "--skip-broken",
            is_flag=True,
            help="Skip lines that cannot be read, and count them, instead of stopping.",
        ),
        click.option(
            "--time-unit",
            type=click.Choice(["auto", "s", "ms", "us", "ns"]),
            default="auto",
            help="Unit of time stamps (auto: the format's own).",
        ),
        click.option(
            "--block-tokens",
            type=click.IntRange(1, 1_000_000_000),
            help="Tokens of a KV block, where the file does not say.",
        ),
        click.option(
            "--drop-duplicates",
            is_flag=True,
            help="Leave out sessions that repeat an earlier one exactly.",
        ),
        click.option(
            "--seed",
            type=click.IntRange(0),
            default=0,
            help="Of requests that are drawn (ServeGen) and starts.",
        ),
    )


def study_options(function: F) -> F:
    """Options of every subcommand that needs sessions or one clock."""
    return _add_options(
        load_options(function),
        click.option(
            "--infer-sessions",
            is_flag=True,
            help="Infer sessions from prefixes even where the trace names them.",
        ),
        click.option(
            "--session-rate",
            type=float,
            metavar="RPS",
            help="Session starts per second (Poisson), for sessions that share no clock.",
        ),
    )


def _load(
    file: Path,
    skip_broken: bool,
    time_unit: Any,
    block_tokens: int | None,
    drop_duplicates: bool,
    seed: int,
) -> Trace:
    from smetric_model.workload.trace import load_trace

    return load_trace(
        file,
        on_error="skip" if skip_broken else "raise",
        time_unit=time_unit,
        duplicates="drop" if drop_duplicates else "keep",
        block_tokens=block_tokens,
        seed=seed,
    )


def _study(
    infer_sessions: bool, session_rate: float | None, **options: Any
) -> tuple[Trace, dict[str, float] | None]:
    """Load a trace, infer its sessions where needed, lay them on one clock where asked."""
    trace = _load(**options)
    limits = None
    if infer_sessions or (trace.sessions is None and trace.tree is not None):
        from smetric_model.workload.sessions import infer_sessions as infer

        inferred = infer(trace)
        trace, limits = inferred.trace, inferred.limits
        click.echo(
            "sessions are inferred from prefixes; see sessions_inferred for the limits", err=True
        )
    if session_rate is not None:
        from smetric_model.workload.starts import with_poisson_starts

        trace = with_poisson_starts(trace, session_rate, options["seed"])
    return trace, limits


@command.command()
@load_options
@json_option
@click.option("--infer-sessions", is_flag=True, help="Infer sessions from prefixes.")
def info(as_json: bool, infer_sessions: bool, **options: Any) -> None:
    """Show requests, sessions, tokens and ideal reuse of a trace."""
    from smetric_model.workload.summary import summarise

    if infer_sessions:
        trace, _ = _study(True, None, **options)
    else:
        trace = _load(**options)
    result = summarise(trace)
    if as_json:
        echo_json(result)
        return
    report = result.pop("report")
    _print_values(f"Trace {result.pop('source')}", result)
    if report:
        print_table(
            "Repaired, dropped, noted",
            ["action and kind", "count", "first lines"],
            [
                [f"{e['action']}: {e['kind']}", f"{e['count']:,}", " ".join(map(str, e["lines"]))]
                for e in report
            ],
        )


@command.command()
@json_option
def schema(as_json: bool) -> None:
    """Print the schema of traces: columns, types, units, meaning."""
    from dataclasses import asdict

    from smetric_model.workload.columns import BLOCK_COLUMNS, REQUEST_COLUMNS, header_keys

    columns = [*REQUEST_COLUMNS, *BLOCK_COLUMNS]
    if as_json:
        echo_json({"header": header_keys(), "columns": [asdict(column) for column in columns]})
        return
    click.echo(
        "A trace is a Parquet file, or JSON lines (plain, .gz or .zst) whose first line is the\n"
        "header; in Parquet the header is the metadata value `smetric_trace`, as JSON.\n\nHeader"
    )
    for key, meaning in header_keys().items():
        click.echo(f"  {key}\n      {meaning}")
    click.echo("\nColumns (in JSON lines: keys; what is unknown is left out or null)")
    for column in columns:
        unknown = f", unknown: {column.unknown}" if column.unknown else ", required"
        if column.name == "request_id":
            unknown = ""
        click.echo(f"  {column.name} ({column.dtype}{unknown})\n      {column.meaning}")


@command.command()
@study_options
@click.argument("target", type=click.Path(path_type=Path, dir_okay=False))
def convert(target: Path, infer_sessions: bool, session_rate: float | None, **options: Any) -> None:
    """Write a trace in the documented schema, to TARGET (.parquet, .jsonl, .jsonl.gz, .jsonl.zst).

    Sessions are inferred, or given starts on one clock, only if the options say so.
    """
    from smetric_model.workload.trace import write_trace

    trace = _load(**options)
    if infer_sessions or session_rate is not None:
        trace, _ = _study(infer_sessions, session_rate, **options)
    write_trace(trace, target)
    click.echo(
        f"{len(trace):,} requests written to {target}; repaired {trace.report.repaired:,}, "
        f"dropped {trace.report.dropped:,}",
        err=True,
    )


@command.command()
@study_options
@json_option
@click.option(
    "--kv-bytes-per-token",
    type=float,
    help="KV bytes of a token: store sizes then also in GB.",
)
@click.option(
    "--size-tokens",
    "sizes",
    type=click.IntRange(0, 10**18),
    multiple=True,
    help="Store size for the hit curve, in tokens; may be repeated.",
)
@click.option("--optimum/--no-optimum", default=True, help="Whether to compute the optimum.")
@click.option(
    "--common-session-ratio",
    type=click.FloatRange(0, 1),
    default=0.01,
    help="Share of sessions that must begin with a prefix for it to be a system prompt.",
)
@click.option("--window", "window_s", type=float, default=60.0, help="Window of the working set.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="CSV tables go here.")
def reuse(
    as_json: bool,
    kv_bytes_per_token: float | None,
    sizes: tuple[int, ...],
    optimum: bool,
    common_session_ratio: float,
    window_s: float,
    out: Path | None,
    **options: Any,
) -> None:
    """Show ideal reuse, its origin, intervals, and hit ratio against store size."""
    from smetric_model.errors import SpecError
    from smetric_model.workload.curves import hit_curve
    from smetric_model.workload.intervals import reuse_intervals, share_within, working_set
    from smetric_model.workload.origin import origin_shares, reuse_origin
    from smetric_model.workload.reuse import last_touches

    if kv_bytes_per_token is not None and not 0 < kv_bytes_per_token < float("inf"):
        raise SpecError(f"kv_bytes_per_token is {kv_bytes_per_token}; a number above 0 is needed")
    trace, limits = _study(**options)
    touches = last_touches(trace)
    prompt_tokens = int(trace.column("prompt_tokens").sum())
    origin = origin_shares(
        reuse_origin(trace, common_session_ratio=common_session_ratio, touches=touches),
        prompt_tokens,
    )
    intervals = reuse_intervals(trace, touches)
    result: dict[str, Any] = {
        "ideal_reuse_ratio": float(touches.tokens.sum() / prompt_tokens),
        "sessions_inferred": limits,
    }
    for name in origin.columns:
        result[str(name)] = {key: float(value) for key, value in origin[name].items()}
    for column in ("start_to_start_s", "interval_s"):
        shares = share_within(intervals[column], intervals["tokens"], _LIMITS_S)
        result[f"{column.removesuffix('_s')}_token_share_within_s"] = {
            str(limit): float(share) for limit, share in zip(_LIMITS_S, shares, strict=True)
        }
    tables: dict[str, pd.DataFrame] = {"origin": origin.reset_index(), "intervals": intervals}
    result["hit_curve"] = None
    if trace.session_clock == "shared":
        curve = hit_curve(trace, list(sizes) or None, optimum=optimum, touches=touches)
        if kv_bytes_per_token is not None:
            curve.insert(1, "size_gb", curve["size_tokens"] * kv_bytes_per_token / 1e9)
        result["optimum_is_exact"] = optimum or None  # nothing is sampled
        result["hit_curve"] = curve.to_dict("list")
        tables["hit_curve"] = curve
        tables["working_set"] = working_set(trace, window_s, touches)
        result["live_tokens_max"] = int(tables["working_set"]["live_tokens_max"].max())
        result["distinct_tokens"] = int(tables["working_set"]["total_tokens"].iloc[-1])
    else:
        click.echo(
            "sessions share no clock: no hit curve, no working set (give --session-rate)", err=True
        )
    _save(tables, out)
    if as_json:
        echo_json(result)
        return
    curve_values = result.pop("hit_curve")
    _print_values(f"Reuse of {trace.source}", _flat(result))
    if curve_values is not None:
        _print_frame("One store for all requests", tables["hit_curve"])


@command.command()
@study_options
@json_option
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="CSV tables go here.")
def sessions(as_json: bool, out: Path | None, **options: Any) -> None:
    """Show turns, gaps, think times, growth, rewrites and triggers."""
    from smetric_model.workload.sessions import session_table, turn_table

    trace, limits = _study(**options)
    by_session = session_table(trace)
    turns = turn_table(trace)
    result: dict[str, Any] = {
        "requests": len(trace),
        "sessions": trace.sessions,
        "sessions_inferred": limits,
        "first_turn_ratio": float((turns["history"] == "first").mean()),
        "history_ratio": turns["history"].value_counts(normalize=True).to_dict(),
        "trigger_ratio": turns["trigger"].value_counts(normalize=True).to_dict(),
    }
    columns = {"turns": by_session["turns"], "session_prompt_tokens": by_session["prompt_tokens"]}
    if "computed_tokens" in by_session:
        columns["session_computed_tokens"] = by_session["computed_tokens"]
    for name in ("gap_s", "think_time_s", "growth_tokens", "kept_ratio"):
        columns[name] = turns[name]
    for name, values in columns.items():
        known = values.dropna()
        result[name] = {
            f"p{round(100 * q)}": float(known.quantile(q)) if len(known) else None
            for q in _QUANTILES
        }
    _save({"sessions": by_session.reset_index(), "turns": turns}, out)
    if as_json:
        echo_json(result)
        return
    _print_values(f"Sessions of {trace.source}", _flat(result))


@command.command()
@study_options
@json_option
@click.option("--instances", type=click.IntRange(1), default=32, help="Instances. [32]")
@click.option("--window", "window_s", type=float, default=60.0, help="Window [s]. [60]")
@click.option(
    "--seconds-per-new-token",
    type=float,
    default=None,
    help="Service time where the trace records none: each prompt token to compute. [1e-4]",
)
@click.option(
    "--seconds-per-output-token",
    type=float,
    default=None,
    help="Service time where the trace records none: each output token. [0.025]",
)
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="CSV table goes here."
)
def balance(
    as_json: bool,
    instances: int,
    window_s: float,
    seconds_per_new_token: float | None,
    seconds_per_output_token: float | None,
    out: Path | None,
    **options: Any,
) -> None:
    """Show the imbalance under dispatch to the instance with the fewest tokens in flight."""
    from smetric_model.workload.balance import dispatch_balance, service_times

    if options["session_rate"] is None and not options["infer_sessions"]:
        trace = _load(**{k: v for k, v in options.items() if k not in _STUDY_KEYS})
    else:
        trace, _ = _study(**options)
    stated = {
        "seconds_per_new_token": seconds_per_new_token,
        "seconds_per_output_token": seconds_per_output_token,
    }
    service_s, recorded = service_times(trace, **{k: v for k, v in stated.items() if v is not None})
    table = dispatch_balance(trace, instances, window_s=window_s, service_s=service_s)
    result: dict[str, Any] = {
        "instances": instances,
        "window_s": window_s,
        "recorded_service_time_ratio": recorded,
        "windows": len(table),
    }
    for name in (
        "requests_per_instance",
        "imbalance_processed_tokens",
        "imbalance_inflight_tokens",
    ):
        values = table[name].dropna()
        result[name] = {
            "mean": float(values.mean()),
            "p50": float(values.median()),
            "p75": float(values.quantile(0.75)),
            "max": float(values.max()),
            "min": float(values.min()),
        }
    _save({"balance": table}, out)
    if as_json:
        echo_json(result)
        return
    _print_values(f"Least in-flight tokens, {trace.source}", _flat(result))


_STUDY_KEYS = ("infer_sessions", "session_rate")


def _save(tables: dict[str, pd.DataFrame], out: Path | None) -> None:
    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        table.to_csv(out / f"{name}.csv", index=False)


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat.update({f"{name}: {key}": inner for key, inner in value.items()})
        else:
            flat[name] = value
    return flat


def _print_values(title: str, values: dict[str, Any]) -> None:
    print_table(
        title, ["quantity", "value"], [[name, _show(value)] for name, value in values.items()]
    )


def _print_frame(title: str, table: pd.DataFrame) -> None:
    print_table(
        title,
        [str(name) for name in table.columns],
        [[_show(value) for value in row] for row in table.itertuples(index=False)],
    )


def _show(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, float):
        if value != value:
            return "unknown"
        return f"{value:.4f}" if abs(value) < 10 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
