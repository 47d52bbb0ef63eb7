"""Fit an engine's efficiencies to whole requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import OptimizeResult, least_squares

from smetric_model.analytic.calibration.measurements import engine_rows
from smetric_model.analytic.efficiencies import Efficiencies
from smetric_model.analytic.latency import request_latency
from smetric_model.catalog.gpu import Gpu
from smetric_model.catalog.instance import InstanceSpec
from smetric_model.catalog.llm import get_llm

__all__ = [
    "PARAMETERS",
    "EngineFit",
    "Parameter",
    "Prior",
    "fit_engine",
    "fit_rows",
    "predict_engine_row",
]


@dataclass(frozen=True)
class Parameter:
    """One fitted number.

    Attributes
    ----------
    name : str
        Attribute of :class:`Efficiencies`, with ``.dtype`` for a mapping's entry.
    lower, upper : float
        Bounds; efficiencies end where the best published kernel does, not at 1.
    """

    name: str
    lower: float
    upper: float

    def get(self, values: Efficiencies) -> float:
        """Return its value in ``values``."""
        attribute, _, key = self.name.partition(".")
        held = getattr(values, attribute)
        return float(held[key] if key else held)

    def set(self, values: Efficiencies, number: float) -> Efficiencies:
        """Return ``values`` with this number replaced."""
        attribute, _, key = self.name.partition(".")
        new: Any = {**getattr(values, attribute), key: number} if key else number
        return replace(values, **{attribute: new})


@dataclass(frozen=True)
class Prior:
    """How far rows and numbers are expected to be off, as standard deviations of logarithms.

    Attributes
    ----------
    row_sd : float
        Of a row: its noise, and what the form does not say.
    number_sd : float
        Of a number from where it starts.
    """

    row_sd: float
    number_sd: float


@dataclass(frozen=True)
class EngineFit:
    """Result of one fit.

    Attributes
    ----------
    efficiencies : Efficiencies
        With the fitted numbers.
    rows : DataFrame
        The rows, with ``fitted_s``, ``error_ratio`` (fitted / measured - 1),
        ``left_out_error_ratio`` (predicted by a fit without the row's group) and ``group``.
    at_bound : tuple of str
        Parameters that ended on a bound: the rows do not identify them further.
    quality : dict of str to float
        Number of rows and errors, as stored beside the numbers.
    parameters : tuple of Parameter
        What was fitted.
    spread_ratio : dict of str to float
        Standard error of the logarithm of each number, where the fit had a prior.
    """

    efficiencies: Efficiencies
    rows: pd.DataFrame
    at_bound: tuple[str, ...]
    quality: dict[str, float]
    parameters: tuple[Parameter, ...] = ()
    spread_ratio: Mapping[str, float] = field(default_factory=dict)


#: what counts as no cost at all, as a share of a number's range
_NEAR_ZERO = 1e-3
#: best published kernels on H20 reach 0.966 of the dense peak; nothing fitted may claim more
_BEST_COMPUTE = 0.97
_BEST_BANDWIDTH = 0.95

_SGLANG = (
    Parameter("dense_bandwidth.bf16", 0.1, _BEST_BANDWIDTH),
    Parameter("dense_bandwidth.fp8", 0.1, _BEST_BANDWIDTH),
    Parameter("dense_bandwidth.int4", 0.1, _BEST_BANDWIDTH),
    Parameter("dense_compute.int4", 0.1, _BEST_COMPUTE),
    Parameter("expert_compute.int4", 0.05, _BEST_COMPUTE),
    Parameter("expert_call_s.int4", 0.0, 2e-3),
    Parameter("attention_compute", 0.5, _BEST_COMPUTE),
    Parameter("attention_stream_bandwidth", 0.05, _BEST_BANDWIDTH),
    Parameter("graph_s_per_dense_layer", 1e-6, 3e-4),
    Parameter("graph_s_per_moe_layer", 1e-6, 3e-4),
    Parameter("all_reduce_s", 1e-6, 1e-4),
)
_VLLM = (
    Parameter("expert_tile_tokens", 16.0, 256.0),
    Parameter("attention_compute", 0.5, _BEST_COMPUTE),
    Parameter("graph_s_per_moe_layer", 1e-6, 3e-4),
    Parameter("eager_s_per_layer", 1e-5, 2e-3),
    Parameter("request_host_s", 0.0, 0.1),
    Parameter("request_host_s_per_token", 0.0, 1e-5),
    Parameter("dram_fetch_s", 0.0, 0.1),
)
PARAMETERS: Mapping[str, tuple[Parameter, ...]] = {"sglang": _SGLANG, "vllm": _VLLM}


def _groups(engine: str, rows: pd.DataFrame) -> pd.Series[str]:
    """Label the groups that are left out together."""
    if engine == "vllm":
        return rows["id"].str.replace(r"-r\d+$", "", regex=True)
    return rows["llm"] + " " + rows["weight_dtype"]


def _families(ids: pd.Series[str]) -> set[str]:
    """``KVC-miss-*`` and the like."""
    return {"-".join(name.split("-")[:2]) + "-*" for name in ids}


def predict_engine_row(row: Any, gpu: Gpu, efficiencies: Efficiencies | None = None) -> float:
    """Return what the model says of one row of :func:`engine_rows`.

    Parameters
    ----------
    row : namedtuple or Series
        One row.
    gpu : Gpu
        The GPU it was measured on.
    efficiencies : Efficiencies, optional
        In place of the stored ones.

    Returns
    -------
    float
        Seconds of the row's quantity.
    """
    instance = InstanceSpec(
        llm=get_llm(row.llm),
        gpu=gpu,
        tp=int(row.tp),
        engine=row.engine,
        mode=row.mode,
        weight_dtype=row.weight_dtype,
        kv_dtype=getattr(row, "kv_dtype", "bf16"),
    )
    latency = request_latency(
        instance,
        int(row.prompt_tokens),
        int(row.output_tokens),
        int(row.hit_tokens),
        row.hit_tier,
        int(row.concurrency),
        efficiencies=efficiencies,
    )
    return float(getattr(latency, row.quantity))


def fit_engine(
    table: pd.DataFrame,
    gpu: Gpu,
    start: Efficiencies,
    engine: str,
    leave_out: bool = True,
    progress: Callable[[str], None] | None = None,
) -> EngineFit:
    """Fit one engine's efficiencies.

    Parameters
    ----------
    table : DataFrame
        From :func:`smetric_model.analytic.measurements.read_measurements`.
    gpu : Gpu
        The GPU they were measured on.
    start : Efficiencies
        Where the search starts; numbers that are not fitted are kept.
    engine : str
        ``vllm`` or ``sglang``.
    leave_out : bool
        Whether to refit without each group in turn.
    progress : callable, optional
        Told what is being fitted.

    Returns
    -------
    EngineFit
    """
    every = engine_rows(table)
    every = every[every["engine"] == engine].reset_index(drop=True)
    group = _groups(engine, every)
    # repeats of one set-up together weigh as much as one row
    weight = (
        np.sqrt(1.0 / every.groupby(group)["id"].transform("size")) if engine == "vllm" else 1.0
    )
    every = every.assign(group=group, weight=weight)
    source = f"fitted on {len(every)} rows of {', '.join(sorted(_families(every['id'])))}"
    return fit_rows(
        every, gpu, start, engine, PARAMETERS[engine], source, leave_out, progress=progress
    )


def fit_rows(
    every: pd.DataFrame,
    gpu: Gpu,
    start: Efficiencies,
    engine: str,
    parameters: tuple[Parameter, ...],
    source: str,
    leave_out: bool = True,
    prior: Prior | None = None,
    progress: Callable[[str], None] | None = None,
) -> EngineFit:
    r"""Fit some efficiencies to rows by least squares on logarithms.

    Minimised is :math:`\sum_i w_i^2 \ln^2(\mathrm{model}_i/\mathrm{measured}_i)`, with a prior plus
    :math:`\sum_j (\sigma/\sigma_0)^2 \ln^2(x_j/x_{0j})`: the mode of the posterior where rows are
    off by :math:`\sigma` and numbers by :math:`\sigma_0` from where they start.

    Parameters
    ----------
    every : DataFrame
        Columns of :func:`engine_rows`, and ``group`` (left out together) and ``weight``.
    gpu : Gpu
        The GPU they were measured on.
    start : Efficiencies
        Where the search starts; numbers that are not fitted are kept.
    engine : str
        For messages and the result's name.
    parameters : tuple of Parameter
        What is fitted.
    source : str
        Provenance of the fitted numbers.
    leave_out, progress
        As in :func:`fit_engine`.
    prior : Prior, optional
        Without one the rows alone decide.

    Returns
    -------
    EngineFit
    """
    scale = np.array([p.upper - p.lower for p in parameters])
    low = np.array([p.lower for p in parameters])

    def build(x: NDArray[np.float64]) -> Efficiencies:
        values = start
        for parameter, number in zip(parameters, x, strict=True):
            values = parameter.set(values, float(number))
        return values

    def errors(values: Efficiencies, rows: pd.DataFrame) -> NDArray[np.float64]:
        predicted = np.array([predict_engine_row(r, gpu, values) for r in rows.itertuples()])
        return np.asarray(np.log(predicted / rows["value_s"].to_numpy()))

    def logarithm(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.log(x + _NEAR_ZERO * scale))  # a cost may be nothing

    def solve(rows: pd.DataFrame, x0: NDArray[np.float64]) -> OptimizeResult:
        weight = rows["weight"].to_numpy()

        def residual(u: NDArray[np.float64]) -> NDArray[np.float64]:
            x = low + u * scale
            off = errors(build(x), rows) * weight
            if prior is None:
                return np.asarray(off)
            moved = (logarithm(x) - logarithm(x0)) * (prior.row_sd / prior.number_sd)
            return np.concatenate((off, moved))

        return least_squares(
            residual,
            (x0 - low) / scale,
            bounds=(0.0, 1.0),
            diff_step=np.full(len(parameters), 1e-4),
            xtol=1e-6,
        )

    x0 = np.array([np.clip(p.get(start), p.lower, p.upper) for p in parameters])
    x0 = np.clip(x0, low + 1e-3 * scale, low + (1 - 1e-3) * scale)
    result = solve(every, x0)
    x = low + result.x * scale
    fitted = build(x)
    error = np.exp(errors(fitted, every)) - 1
    left_out = np.full(len(every), np.nan)
    if leave_out:
        for name in every["group"].unique():
            if progress:
                progress(f"{engine}: left out {name}")
            rest = every[every["group"] != name]
            # from the same start: what no other row identifies stays there
            without = build(low + solve(rest, x0).x * scale)
            members = (every["group"] == name).to_numpy()
            left_out[members] = np.exp(errors(without, every[members])) - 1
    quality = {
        "rows": len(every),
        "median_error_ratio": round(float(np.median(np.abs(error))), 4),
        "largest_error_ratio": round(float(np.max(np.abs(error))), 4),
    }
    if leave_out:
        quality |= {
            "left_out_median_error_ratio": round(float(np.median(np.abs(left_out))), 4),
            "left_out_largest_error_ratio": round(float(np.max(np.abs(left_out))), 4),
        }
    fitted = replace(
        fitted,
        fitted_for=f"{gpu.name}/{engine}",
        carried_over=False,
        provenance={**start.provenance, **{p.name: source for p in parameters}},
    )
    at_bound = tuple(
        p.name
        for p, number in zip(parameters, x, strict=True)
        if min(number - p.lower, p.upper - number) < 1e-3 * (p.upper - p.lower)
    )
    spread: dict[str, float] = {}
    if prior is not None:
        covariance = np.linalg.inv(result.jac.T @ result.jac) * prior.row_sd**2
        sd = np.sqrt(np.diag(covariance)) * scale / (x + _NEAR_ZERO * scale)
        spread = {p.name: float(each) for p, each in zip(parameters, sd, strict=True)}
    rows = every.drop(columns="weight").assign(
        fitted_s=every["value_s"] * (1 + error),
        error_ratio=error,
        left_out_error_ratio=left_out,
    )
    return EngineFit(fitted, rows, at_bound, quality, parameters, spread)
