"""Options that describe one instance, shared by the commands that take them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from smetric_model.analytic.efficiencies import Efficiencies
    from smetric_model.catalog.instance import InstanceSpec

__all__ = ["COUNT", "LENGTH", "build_instance", "echo_notes", "instance_options", "limits"]

#: lengths and counts: as far as the traces' readers go; beyond it no figure means anything
LENGTH = click.IntRange(1, 1_000_000_000)
COUNT = click.IntRange(0, 1_000_000_000)

F = TypeVar("F", bound=Callable[..., Any])


def instance_options(function: F) -> F:
    """Add ``--llm --gpu --tp --ep --engine --mode`` and the dtypes; pass them to a dict."""
    options = (
        click.option("--llm", required=True, help="Catalog name, or path to a config.json."),
        click.option("--gpu", required=True, help="Catalog name, such as H20."),
        click.option(
            "--tp",
            type=click.IntRange(1),
            default=1,
            show_default=True,
            help="GPUs of the instance.",
        ),
        click.option(
            "--ep",
            type=click.IntRange(1),
            default=1,
            show_default=True,
            help="Expert-parallel groups; divides --tp.",
        ),
        click.option(
            "--engine", default="vllm", show_default=True, help="Whose fitted efficiencies."
        ),
        click.option(
            "--mode", type=click.Choice(["graph", "eager"]), default="graph", show_default=True
        ),
        click.option("--weight-dtype", help="Default: the checkpoint's own."),
        click.option("--kv-dtype", help="Default: the checkpoint's own."),
        click.option(
            "--token-budget",
            type=LENGTH,
            default=8192,
            show_default=True,
            help="Tokens of one engine step.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def build_instance(given: dict[str, Any]) -> InstanceSpec:
    """Build the instance from the options of :func:`instance_options`."""
    from smetric_model.catalog.gpu import get_gpu
    from smetric_model.catalog.instance import InstanceSpec
    from smetric_model.catalog.llm import get_llm

    return InstanceSpec(
        llm=get_llm(given["llm"]),
        gpu=get_gpu(given["gpu"]),
        **{k: v for k, v in given.items() if k not in ("llm", "gpu")},
    )


def echo_notes(instance: InstanceSpec, fitted: Efficiencies, notes: list[str]) -> None:
    """Write to stderr what to know before believing the numbers, one line each."""
    if fitted.carried_over:
        notes = [f"efficiencies of {fitted.fitted_for} carried over to {instance.gpu.name}", *notes]
    for note in notes:
        click.echo(f"note: {note}", err=True)


def limits(instance: InstanceSpec, sequences: int, context_tokens: int) -> list[str]:
    """Say what an instance cannot do of what is asked; the times are those if it could.

    Parameters
    ----------
    instance : InstanceSpec
        The instance.
    sequences : int
        Sequences in the batch.
    context_tokens : int
        Longest context among them [tokens].

    Returns
    -------
    list of str
        One sentence each; empty where it can.
    """
    from smetric_model.analytic.memory import local_tier, min_tp, missing_bytes
    from smetric_model.units import GIB

    found = []
    lacking = missing_bytes(instance)
    if lacking > 0:
        smallest = min_tp(instance)
        found.append(
            f"{instance.llm.name} does not fit {instance.tp} x {instance.gpu.name}: "
            f"{lacking / GIB:.2f} GiB are missing; "
            + (f"the smallest tp that fits is {smallest}" if smallest else "no tp fits")
        )
    longest = instance.max_context_tokens or instance.llm.max_context_tokens
    if context_tokens > longest:
        found.append(f"{context_tokens:,} tokens exceed the longest context of {longest:,}")
    pool = local_tier(instance).tokens
    if not lacking and sequences * context_tokens > pool:
        found.append(
            f"{sequences:,} x {context_tokens:,} tokens exceed the KV pool of {pool:,}: "
            "they cannot run at once"
        )
    return found
