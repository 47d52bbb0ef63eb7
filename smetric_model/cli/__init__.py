"""Command line: ``smetric-model``.

Each subcommand lives in a module of its own and is imported when it is called, so that
``smetric-model --help`` stays quick.  Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import sys
from importlib import import_module

import click

from smetric_model.errors import LiveError, SolveError, SpecError, TraceError, UnstableError

__all__ = ["main"]

#: subcommand -> (module, one-line help); the function in the module is called ``command``
_COMMANDS: dict[str, tuple[str, str]] = {
    "calibrate": ("smetric_model.cli.calibrate", "Fit the efficiencies to measurements."),
    "fit": ("smetric_model.cli.fit", "Parameters of synthetic traffic from a trace."),
    "kv": ("smetric_model.cli.kv", "KV bytes per token, weights and local-tier size."),
    "latency": ("smetric_model.cli.latency", "TTFT, TPOT and end-to-end time of one request."),
    "plan": ("smetric_model.cli.plan", "Tokens per second a cluster can serve, and why."),
    "simulate": (
        "smetric_model.cli.simulate",
        "Simulate every engine step of a cluster.",
    ),
    "step-time": ("smetric_model.cli.step_time", "Time of one engine step, by operator group."),
    "synthesise": ("smetric_model.cli.synthesise", "A trace of synthetic agent traffic."),
    "trace": ("smetric_model.cli.trace", "Look at a request trace."),
    "turn": ("smetric_model.cli.turn", "Turn and expected hit of one API request body."),
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = import_module(_COMMANDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][1]) for name in sorted(_COMMANDS)])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="smetric-model")
def _root() -> None:
    """How many tokens per second can an LLM serving cluster deliver within its SLO, and why."""


def main() -> None:
    """Entry point of ``smetric-model``: errors become one line on stderr and exit status 1."""
    try:
        _root(prog_name="smetric-model")
    except (SpecError, TraceError, UnstableError, SolveError, LiveError, OSError) as error:
        click.echo(f"smetric-model: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:  # pragma: no cover - click turns most of these into Abort
        click.echo("smetric-model: interrupted", err=True)
        sys.exit(130)
