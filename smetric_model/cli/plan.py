"""``smetric-model plan``: the capacity plan of a scenario."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smetric_model.cli.output import echo_json, json_option, print_table

if TYPE_CHECKING:
    from smetric_model.plan import Plan
    from smetric_model.scenario import Scenario

__all__ = ["command"]


@click.command("plan")
@click.argument(
    "scenario", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--trace", type=click.Path(exists=True, path_type=Path), help="Trace to plan for.")
@click.option("--llm", help="Catalog name, or path to a config.json.")
@click.option("--gpu", help="Catalog name, such as H20.")
@click.option("--tp", type=click.IntRange(1), help="GPUs of an instance.")
@click.option("--instances", type=click.IntRange(1), help="Instances of the cluster.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Requests/s to serve.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write a self-contained HTML report (and the JSON) to this folder.",
)
@json_option
def command(
    scenario: Path | None,
    trace: Path | None,
    llm: str | None,
    gpu: str | None,
    tp: int | None,
    instances: int | None,
    rate: float | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Tokens per second a cluster can serve within its SLO, and why.

    SCENARIO is a TOML file; without one, the shipped example is planned.  Options replace its keys.
    With --trace and no --rate, the trace's own rate is planned for (none, where its sessions share
    no clock: then capacity only).
    """
    from rich.console import Console

    from smetric_model.datafiles import data_dir
    from smetric_model.plan import plan
    from smetric_model.scenario import Scenario

    path = scenario or data_dir() / "scenarios" / "agents-small.toml"
    changes: dict[str, Any] = {}
    if trace is not None:
        changes |= {"workload.trace": str(trace.resolve()), "workload.preset": None}
        changes |= {"workload.rate_rps": "trace"}
    if llm is not None:  # another checkpoint has types of its own
        changes |= {"llm.weight_dtype": None, "llm.kv_dtype": None}
    for key, value in (
        ("llm.name", llm),
        ("engine.gpu", gpu),
        ("engine.tp", tp),
        ("cluster.instances", instances),
        ("workload.rate_rps", rate),
    ):
        if value is not None:
            changes[key] = value
    asked: Scenario = Scenario.from_toml(path).replace(**changes)
    with Console(stderr=True).status("planning") as status:
        result = plan(asked, progress=status.update)
    if out is not None:
        from smetric_model.report import write_plan_report

        page = write_plan_report(result, out)
        click.echo(f"report: {page}", err=True)
    if as_json:
        echo_json(result.to_dict())
    else:
        _print(result)


def _number(value: float | None, unit: str = "", scale: float = 1.0, digits: int = 3) -> str:
    if value is None or value != value:
        return "-"
    scaled = value / scale
    return (f"{scaled:,.0f}" if abs(scaled) >= 1000 else f"{scaled:.{digits}g}") + unit


def _print(result: Plan) -> None:
    work, ends, tiers, fetch = result.workload, result.ends, result.tiers, result.fetch
    unservable = sum(work["unservable"].values())
    reasons = "; ".join(f"{count} {reason}" for reason, count in work["unservable"].items())
    click.echo(
        f"unservable: {unservable} of {work['requests']} requests"
        f" ({work['unservable_ratio']:.1%})" + (f": {reasons}" if reasons else "")
    )
    instance = result.instance
    cluster = result.scenario.cluster
    click.echo(
        f"{instance['llm']} on {cluster.instances} instances of {instance['tp']} x "
        f"{instance['gpu']} ({instance['engine']}); KV pool {instance['local_tier_tokens']:,.0f} "
        "tokens an instance"
    )
    click.echo(
        f"{work['source']}: mean prompt {work['prompt_tokens_mean']:,.0f}, output "
        f"{work['output_tokens_mean']:,.0f} tokens, ideal reuse {work['ideal_reuse_ratio']:.1%}"
    )
    slo = result.scenario.slo
    names = {"none": "no reuse", "tiers": "this cluster's tiers", "ideal": "ideal reuse"}

    def row(label: str, cell: Any) -> list[str]:
        return [label, *(cell(ends[name]) for name in names)]

    rate = "-" if result.rate_rps is None else f"{result.rate_rps:.3g}"
    print_table(
        "Capacity of the cluster (perfect placement)",
        ["", *names.values()],
        [
            row("reused prompt tokens", lambda e: f"{e.reused_ratio:.1%}"),
            row("saturates at [requests/s]", lambda e: _number(e.saturation_rps)),
            row("  total tokens/s there", lambda e: _number(e.saturation_tps)),
            row("  binding resource", lambda e: e.binding_resource),
            row("mean TPOT reaches its SLO at [requests/s]", lambda e: _number(e.tpot_ceiling_rps)),
            row("most tokens/s within SLO", lambda e: _number(e.peak_within_slo_tps)),
            row("  at [requests/s]", lambda e: _number(e.peak_rps)),
            row(
                f"{slo.attainment:.0%} within SLO up to [requests/s]",
                lambda e: _number(e.attainment_rps),
            ),
            row("  total tokens/s there", lambda e: _number(e.attainment_tps)),
            row(
                f"instances needed for {rate} requests/s",
                lambda e: "-" if e.instances_needed is None else str(e.instances_needed),
            ),
        ],
    )
    for name, title in names.items():
        click.echo(f"  {title}: {ends[name].limited_by}")
    needed = ", ".join(
        f"{share}: {_number(size, ' GB', 1e9)}" for share, size in tiers.global_bytes.items()
    )
    print_table(
        f"KV tiers at {tiers.rate_rps:.3g} requests/s, ideal reuse",
        ["", "value"],
        [
            ["local tiers together", _number(tiers.local_bytes, " GB", 1e9)],
            ["  pinned by running requests", _number(tiers.pinned_bytes, " GB", 1e9)],
            ["  keep KV for", _number(tiers.local_retention_s, " s")],
            ["prompt tokens from the local tier", f"{tiers.local_ratio:.1%}"],
            ["  from the global tier", f"{tiers.global_ratio:.1%}"],
            ["global tier for a share of the reuse", needed],
            ["  provisioned", _number(tiers.provisioned_bytes, " GB", 1e9)],
            ["  serves", f"{tiers.provisioned_serves_ratio:.1%}"],
            [
                "link demanded, per node and direction",
                _number(tiers.link_bytes_per_s_per_node * 8, " Gbit/s", 1e9),
            ],
            ["  NICs carry", _number(tiers.link_capacity_bytes_per_s_per_node * 8, " Gbit/s", 1e9)],
        ],
    )
    if fetch is not None:
        click.echo(
            f"load or recompute a prefix of {fetch.prefix_tokens:,.0f} tokens: recompute "
            f"{_number(fetch.recompute_s, ' s')}, own node's DRAM {_number(fetch.dram_s, ' s')}, "
            f"RDMA {_number(fetch.rdma_s, ' s')}; break-even link "
            f"{_number(fetch.break_even_bytes_per_s, ' GB/s', 1e9)}; {fetch.verdict}"
        )
    for note in result.notes:
        click.echo(f"note: {note}")
    click.echo(f"planned in {result.elapsed_s:.1f} s", err=True)
