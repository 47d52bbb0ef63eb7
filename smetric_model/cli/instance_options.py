"""Options that describe one instance, shared by the commands that take them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from smetric_model.catalog.instance import InstanceSpec

__all__ = ["build_instance", "instance_options"]

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
            type=click.IntRange(1),
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
