"""Synthetic agent traffic: presets by name, parameters from a file, traces.

``load_preset("bailian-trace-1-medium")`` gives a trace; :func:`preset_parameters` its parameters,
:func:`generate` a trace of any parameters, :mod:`~smetric_model.workload.synthesis_fit` parameters
of a trace, :mod:`~smetric_model.workload.synthesis_scaling` other rates of a trace.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from smetric_model.errors import SpecError
from smetric_model.workload.synthesis_build import generate
from smetric_model.workload.synthesis_parameters import WorkloadParameters

if TYPE_CHECKING:
    from smetric_model.workload.trace import Trace

__all__ = ["WorkloadParameters", "generate", "load_preset", "preset_names", "preset_parameters"]


def preset_names() -> tuple[str, ...]:
    """Names of the presets, sorted."""
    from smetric_model.datafiles import data_dir

    return tuple(sorted(path.stem for path in (data_dir() / "presets").glob("*.toml")))


def preset_parameters(name: str) -> WorkloadParameters:
    """Parameters of a preset.

    Parameters
    ----------
    name : str
        One of :func:`preset_names`.

    Returns
    -------
    WorkloadParameters

    Raises
    ------
    SpecError
        If there is no such preset.
    """
    from smetric_model.datafiles import data_dir

    names = preset_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise SpecError(f"preset = {name!r}: one of {', '.join(names)} is needed{hint}")
    return WorkloadParameters.from_toml(data_dir() / "presets" / f"{name}.toml")


def load_preset(name: str, **options: Any) -> Trace:
    """Trace of a preset: what ``workload.preset`` of a scenario names.

    Parameters
    ----------
    name : str
        One of :func:`preset_names`.
    **options
        ``rate_rps``, ``window_s``, ``sessions``, ``seed``, ``start``, ``ends`` as in
        :func:`generate`.

    Returns
    -------
    Trace

    Raises
    ------
    SpecError
        If there is no such preset, or an option is not allowed.
    """
    return generate(preset_parameters(name), **options)
