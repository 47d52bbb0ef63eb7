"""Command line: ``smetric-model``.

Each subcommand lives in a module of its own and is imported when it is called, so that
``smetric-model --help`` stays quick.  Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import contextlib
import difflib
import signal
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import click

from smetric_model.errors import LiveError, SolveError, SpecError, TraceError, UnstableError

__all__ = ["main"]

#: subcommand -> (module, one-line help); the function in the module is called ``command``
_COMMANDS: dict[str, tuple[str, str]] = {
    "advantage": (
        "smetric_model.cli.advantage",
        "The scenario's routing policy against others, and why.",
    ),
    "bound": ("smetric_model.cli.bound", "What no router can beat, and what limits it."),
    "calibrate": ("smetric_model.cli.calibrate", "Fit the efficiencies to measurements."),
    "capacity": (
        "smetric_model.cli.capacity",
        "The most a cluster serves within its SLO, by any verb.",
    ),
    "compare": ("smetric_model.cli.compare", "Outcomes side by side: what differs, beyond noise."),
    "engines": (
        "smetric_model.cli.engines",
        "A local cluster of vLLM instances, started or ended.",
    ),
    "fit": ("smetric_model.cli.fit", "Parameters of synthetic traffic from a trace."),
    "kv": ("smetric_model.cli.kv", "KV bytes per token, weights and local-tier size."),
    "latency": ("smetric_model.cli.latency", "TTFT, TPOT and end-to-end time of one request."),
    "operations": (
        "smetric_model.cli.operations",
        "Peak and autoscaling, N + 1, cold caches, routers, tenants, FP8 KV.",
    ),
    "plan": ("smetric_model.cli.plan", "How many GPUs a workload needs, which design, and why."),
    "predict": ("smetric_model.cli.predict", "The closed-form answer to a scenario."),
    "reproduce": ("smetric_model.cli.reproduce", "The paper's experiments, and its claims."),
    "route": ("smetric_model.cli.route", "The SMetric router in front of vLLM instances."),
    "simulate": (
        "smetric_model.cli.simulate",
        "Simulate every engine step of a cluster.",
    ),
    "step-time": ("smetric_model.cli.step_time", "Time of one engine step, by operator group."),
    "sweep": ("smetric_model.cli.sweep", "Many scenarios, any verb, one row each; resumable."),
    "synthesise": ("smetric_model.cli.synthesise", "A trace of synthetic agent traffic."),
    "trace": ("smetric_model.cli.trace", "Look at a request trace."),
    "tune": ("smetric_model.cli.tune", "OVERLOAD and HIT_RATIO for a scenario, and why."),
    "turn": ("smetric_model.cli.turn", "Turn and expected hit of one API request body."),
    "validate": ("smetric_model.cli.validate", "The model against real engines and router."),
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = import_module(_COMMANDS[cmd_name][0]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        near = difflib.get_close_matches(args[0], _COMMANDS, n=1) if args else []
        if near and args[0] not in _COMMANDS:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][1]) for name in sorted(_COMMANDS)])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="smetric-model")
def _root() -> None:
    """How many tokens per second can an LLM serving cluster deliver within its SLO, and why."""


@contextlib.contextmanager
def _heard_interrupts() -> Iterator[threading.Event]:
    """Let an interrupt come again, every second, until it ends the command.

    Extension modules of pandas swallow one that arrives while they are loaded: about one in five,
    and the command would run on to its end.  The event yielded tells that one came: a compiler it
    hits may fail with an error of its own.
    """
    came = threading.Event()
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not (ours and hasattr(signal, "setitimer")):  # ignored (nohup), or not ours to handle
        yield came
        return

    def interrupt(_number: int, _frame: Any) -> None:
        came.set()
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        raise KeyboardInterrupt

    report = sys.unraisablehook

    def quiet(unraisable: Any) -> None:
        # a compiler's callback cannot pass it on, and would print where it was
        if not isinstance(unraisable.exc_value, KeyboardInterrupt):
            report(unraisable)

    sys.unraisablehook = quiet
    alarm = signal.signal(signal.SIGALRM, interrupt)
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield came
    finally:
        sys.unraisablehook = report
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGALRM, alarm)


def main() -> None:
    """Entry point of ``smetric-model``: errors become one line on stderr and exit status 1.

    A wrong option ends with 2, an interrupt with 130, as in a shell.
    """
    try:
        with _heard_interrupts() as interrupted:
            try:
                # standalone, click would make an interrupt an ordinary failure
                status = _root.main(prog_name="smetric-model", standalone_mode=False)
            except Exception:
                if interrupted.is_set():
                    raise KeyboardInterrupt from None
                raise
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (SpecError, TraceError, UnstableError, SolveError, LiveError) as error:
        click.echo(f"smetric-model: {error}", err=True)
        sys.exit(1)
    except OSError as error:
        named = error.filename is not None and error.strerror is not None
        text = f"{error.filename}: {error.strerror}" if named else str(error)
        click.echo(f"smetric-model: {text}", err=True)
        sys.exit(1)
    except (click.Abort, KeyboardInterrupt):
        click.echo("smetric-model: interrupted", err=True)
        sys.exit(130)
    sys.exit(status if isinstance(status, int) else 0)
