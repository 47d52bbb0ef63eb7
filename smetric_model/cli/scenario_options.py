"""Scenarios and traces on the command line, and what options of several commands change in them.

A file that is something else is told here, with the command that was probably meant.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from smetric_model.scenario import Scenario

__all__ = [
    "ScenarioFile",
    "TraceFile",
    "group_changes",
    "group_option",
    "llm_changes",
    "slo_changes",
    "slo_options",
    "workload_changes",
]

F = TypeVar("F", bound=Callable[..., Any])


#: sections that a workload's parameters have, and a scenario has not
_WORKLOAD = {"arrivals", "frameworks", "sessions", "think"}


class ScenarioFile(click.Path):
    """Path of a scenario; a preset, parameters of a workload or a trace are told as such."""

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, if it is that of a TOML file that may be a scenario."""
        name = str(value)
        if not Path(name).exists() and name in _presets():
            self.fail(f"{name!r} is a preset, not a scenario. {_with_preset(ctx, name)}", param)
        path = super().convert(value, param, ctx)
        assert isinstance(path, Path)
        content = _toml(path)
        if content is None:
            self.fail(f"{name} is no TOML, as a scenario is. {_with_trace(ctx, name)}", param)
        if _is_workload(content):
            what = f"{name} describes a synthetic workload, not a scenario."
            self.fail(f"{what} {_with_workload(ctx, path, content)}", param)
        return path


class TraceFile(click.Path):
    """Path of a trace; a preset, parameters of a workload or a scenario are told as such."""

    def __init__(self) -> None:
        super().__init__(exists=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, if it is not that of a TOML file."""
        name = str(value)
        if not Path(name).exists() and name in _presets():
            self.fail(f"{name!r} is a preset, not a trace. {_with_preset(ctx, name)}", param)
        path = super().convert(value, param, ctx)
        assert isinstance(path, Path)
        if path.is_dir() or path.suffix != ".toml":
            return path
        content = _toml(path)
        if content is not None and _is_workload(content):
            what = f"{name} describes a synthetic workload, not a trace."
            self.fail(f"{what} {_with_workload(ctx, path, content)}", param)
        raise click.BadParameter(
            f"{name} is a TOML file, not a trace. If it is a scenario, try: {_command(ctx)} {name}",
            ctx,
            param,
        )


def _presets() -> tuple[str, ...]:
    from smetric_model.workload.synthesis import preset_names

    return preset_names()


def _toml(path: Path) -> dict[str, Any] | None:
    """Content of a TOML file; None where a binary or JSON file shows that it is none.

    Text that may have been meant as TOML is left to what reads it, which says where it is wrong.
    """
    try:
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        return None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None if text.lstrip()[:1] == "{" else {}


def _is_workload(content: dict[str, Any]) -> bool:
    return bool(_WORKLOAD & content.keys()) and "workload" not in content


def _command(ctx: click.Context | None) -> str:
    return "smetric-model plan" if ctx is None else ctx.command_path


def _has(ctx: click.Context | None, option: str) -> bool:
    return ctx is None or any(param.name == option for param in ctx.command.params)


def _with_preset(ctx: click.Context | None, name: str) -> str:
    if _has(ctx, "preset"):
        return f"Try: {_command(ctx)} --preset {name}"
    return f'A scenario with preset = "{name}" under [workload] is needed.'


def _with_trace(ctx: click.Context | None, name: str) -> str:
    if _has(ctx, "trace"):
        return f"If it is a trace, try: {_command(ctx)} --trace {name}"
    return f'If it is a trace, a scenario with trace = "{name}" under [workload] is needed.'


def _with_workload(ctx: click.Context | None, path: Path, content: dict[str, Any]) -> str:
    name = str(content.get("name", path.stem))
    if name in _presets():
        return _with_preset(ctx, name)
    made = "trace.parquet"
    return f"`smetric-model synthesise {path} --out {made}` draws a trace of it. " + _with_trace(
        ctx, made
    ).replace("If it is a trace, try", "Then")


#: unequal instances
group_option = click.option(
    *("--group", "groups"),
    type=(str, int),
    multiple=True,
    metavar="GPU INSTANCES",
    help="Equal instances of a cluster of several kinds; once a kind, in place of [[groups]].",
)


def group_changes(groups: Sequence[tuple[str, int]]) -> dict[str, Any]:
    """Return what ``--group`` changes in a scenario.

    Parameters
    ----------
    groups : sequence of (str, int)
        GPU and number of instances of each.
    """
    if not groups:
        return {}
    return {"groups": [{"gpu": gpu, "instances": count} for gpu, count in groups]}


def workload_changes(trace: Path | None, preset: str | None = None) -> dict[str, Any]:
    """Return what ``--trace`` or ``--preset`` changes in a scenario: the workload and its own rate.

    Parameters
    ----------
    trace : Path or None
        File.
    preset : str, optional
        Name of a synthetic workload.

    Raises
    ------
    click.UsageError
        If both are given.
    """
    if trace is not None and preset is not None:
        raise click.UsageError("--trace and --preset exclude each other")
    if trace is None and preset is None:
        return {}
    return {
        "workload.trace": None if trace is None else str(trace.resolve()),
        "workload.preset": preset,
        "workload.rate_rps": "trace",
    }


def slo_options(function: F) -> F:
    """Add the options of an SLO; :func:`slo_changes` reads them."""
    above = click.FloatRange(0, min_open=True)
    options = (
        click.option("--slo-ttft", type=click.FloatRange(0), help="TTFT SLO, its part that every"
                     " prompt has, seconds."),
        click.option("--slo-ttft-per-token", type=click.FloatRange(0),
                     help="TTFT SLO, what each prompt token adds, milliseconds."),
        click.option("--slo-tpot", type=above, help="TPOT SLO, milliseconds."),
        click.option("--slo-share", type=click.FloatRange(0, 100, min_open=True),
                     help="Per cent of the requests that must meet both."),
    )  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


def slo_changes(given: dict[str, Any]) -> dict[str, float]:
    """Return what the options of an SLO change in a scenario.

    Parameters
    ----------
    given : dict of str to value
        Options of a command; others are not looked at.
    """
    keys = {
        "slo_ttft": ("slo.ttft_base_s", 1.0),
        "slo_ttft_per_token": ("slo.ttft_per_prompt_token_s", 1e-3),
        "slo_tpot": ("slo.tpot_s", 1e-3),
        "slo_share": ("slo.attainment", 1e-2),
    }
    return {
        key: given[option] * unit
        for option, (key, unit) in keys.items()
        if given.get(option) is not None
    }


def llm_changes(scenario: Scenario, llm: str) -> dict[str, Any]:
    """Return what another LLM changes in a scenario.

    Its types are its own, and so is the longest context that it was made for, where the
    scenario's is longer: both belong to the model that the scenario was written for.

    Parameters
    ----------
    scenario : Scenario
    llm : str
        Catalog name, or path to a ``config.json``.

    Raises
    ------
    SpecError
        If there is no such LLM.
    """
    from smetric_model.catalog.llm import get_llm

    name = str(Path(llm).resolve()) if Path(llm).is_file() else llm
    longest = min(scenario.engine.max_context_tokens, get_llm(name).max_context_tokens)
    return {
        "llm.name": name,
        "llm.weight_dtype": None,
        "llm.kv_dtype": None,
        "engine.max_context_tokens": longest,
    }
