"""``smetric-model latency``: one request on an instance that is not queueing."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from smetric_model.cli.instance_options import (
    COUNT,
    LENGTH,
    build_instance,
    echo_notes,
    instance_options,
    limits,
)
from smetric_model.cli.output import echo_json, json_option, print_table

__all__ = ["command"]


@click.command("latency")
@instance_options
@click.option("--prompt-tokens", type=LENGTH, required=True)
@click.option("--output-tokens", type=LENGTH, required=True)
@click.option("--hit-tokens", type=COUNT, default=0, show_default=True, help="Cached prefix.")
@click.option(
    "--hit-tier",
    type=click.Choice(["local", "dram", "rdma"]),
    default="local",
    show_default=True,
    help="GPU memory, the node's memory, another node's.",
)
@click.option(
    "--concurrency",
    type=LENGTH,
    default=1,
    show_default=True,
    help="Streams that decode at the same context, this one included.",
)
@json_option
def command(
    prompt_tokens: int,
    output_tokens: int,
    hit_tokens: int,
    hit_tier: Any,
    concurrency: int,
    as_json: bool,
    **given: Any,
) -> None:
    """TTFT, TPOT and end-to-end time of one request, without queueing."""
    from smetric_model.analytic.efficiencies import get_efficiencies
    from smetric_model.analytic.latency import request_latency

    instance = build_instance(given)
    fitted = get_efficiencies(instance.gpu.name, instance.engine)
    latency = request_latency(
        instance,
        prompt_tokens,
        output_tokens,
        hit_tokens,
        hit_tier,
        concurrency,
        efficiencies=fitted,
    )
    notes = limits(instance, concurrency, prompt_tokens + output_tokens)
    if as_json:
        echo_json(
            {
                **asdict(latency),
                "fitted_for": fitted.fitted_for,
                "carried_over": fitted.carried_over,
                "notes": notes,
            }
        )
        return
    echo_notes(instance, fitted, notes)
    parts = [
        ("TTFT", latency.ttft_s),
        ("  host", latency.host_s),
        ("  fetch", latency.fetch_s),
        ("  prefill", latency.prefill_s),
        ("TPOT", latency.tpot_s),
        ("end to end", latency.e2e_s),
    ]
    print_table(
        f"{instance.llm.name} on {instance.tp} x {instance.gpu.name}: {prompt_tokens} prompt tokens"
        f" ({latency.reused_prompt_tokens} reused), {output_tokens} output tokens",
        ["quantity", "ms"],
        [[name, "-" if seconds != seconds else f"{seconds * 1e3:.2f}"] for name, seconds in parts],
    )
    if latency.fetch_s > 0:
        click.echo(latency.advice)
