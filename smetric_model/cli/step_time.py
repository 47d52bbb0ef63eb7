"""``smetric-model step-time``: one engine step, by operator group."""

from __future__ import annotations

from typing import Any

import click

from smetric_model.cli.instance_options import (
    COUNT,
    build_instance,
    echo_notes,
    instance_options,
    limits,
)
from smetric_model.cli.output import echo_json, json_option, print_table

__all__ = ["command"]


@click.command("step-time")
@instance_options
@click.option(
    "--prefill-tokens",
    type=COUNT,
    default=0,
    show_default=True,
    help="New tokens of the prefill chunk.",
)
@click.option(
    "--prefill-context",
    type=COUNT,
    default=0,
    show_default=True,
    help="Tokens cached before the chunk.",
)
@click.option(
    "--decode-batch",
    type=COUNT,
    default=0,
    show_default=True,
    help="Decoding sequences.",
)
@click.option(
    "--decode-context",
    type=COUNT,
    default=0,
    show_default=True,
    help="Context of each decoding sequence.",
)
@json_option
def command(
    prefill_tokens: int,
    prefill_context: int,
    decode_batch: int,
    decode_context: int,
    as_json: bool,
    **given: Any,
) -> None:
    """Time of one engine step, and what binds each operator group."""
    from smetric_model.analytic.efficiencies import get_efficiencies
    from smetric_model.analytic.step_model import step_model
    from smetric_model.analytic.step_time import step_breakdown

    instance = build_instance(given)
    fitted = get_efficiencies(instance.gpu.name, instance.engine)
    step = step_breakdown(
        step_model(instance, fitted), prefill_tokens, prefill_context, decode_batch, decode_context
    )
    notes = limits(instance, max(decode_batch, 1), decode_context)
    if prefill_tokens + decode_batch > instance.token_budget:
        notes.append(
            f"{prefill_tokens + decode_batch:,} tokens exceed the token budget of a step, "
            f"{instance.token_budget:,}"
        )
    if as_json:
        echo_json(
            {
                "step_time_s": step.step_time_s,
                "bound_by": step.bound_by,
                "groups": step.groups,
                "fitted_for": fitted.fitted_for,
                "carried_over": fitted.carried_over,
                "notes": notes,
            }
        )
        return
    echo_notes(instance, fitted, notes)
    print_table(
        f"One step of {instance.llm.name} on {instance.tp} x {instance.gpu.name}: "
        f"{step.step_time_s * 1e3:.3f} ms, bound by {step.bound_by}",
        ["group", "ms", "share", "bound by"],
        [
            [name, f"{g['time_s'] * 1e3:.3f}", f"{g['share_ratio']:.1%}", g["bound_by"]]
            for name, g in step.groups.items()
            if g["time_s"] > 0
        ],
    )
