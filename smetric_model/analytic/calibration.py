r"""Fit the efficiencies of a GPU to measured rows; anyone can re-run it.

Three fits, each few-parametric and bounded:

1. *kernels*: one (compute, bandwidth, latency) triple per kernel family;
2. *sglang*: whole requests at batch 1 over model sizes, dtypes and lengths;
3. *vllm*: single requests of one model (cold, cached, beside decodes).

What an engine's rows cannot identify is taken from the kernel families and says so in its
provenance.  Errors are relative, the loss is least squares on logarithms, and each fit reports
its error on rows it did not see: every group of rows is left out in turn, refitted without, and
predicted (leave-one-group-out).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import least_squares

from smetric_model.analytic import kernels
from smetric_model.analytic.efficiencies import Efficiencies
from smetric_model.analytic.latency import request_latency
from smetric_model.analytic.measurements import engine_rows, kernel_rows
from smetric_model.catalog.gpu import Gpu
from smetric_model.catalog.instance import InstanceSpec
from smetric_model.catalog.llm import get_llm

__all__ = [
    "EngineFit",
    "Parameter",
    "calibrate",
    "fit_engine",
    "fit_kernels",
    "predict_engine_row",
    "starting_point",
    "to_table",
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
    """

    efficiencies: Efficiencies
    rows: pd.DataFrame
    at_bound: tuple[str, ...]
    quality: dict[str, float]


# --- kernel families ----------------------------------------------------------------------------


def fit_kernels(table: pd.DataFrame, gpu: Gpu) -> tuple[dict[str, kernels.KernelFit], pd.DataFrame]:
    """Fit each kernel family of a measurements table.

    Parameters
    ----------
    table : DataFrame
        From :func:`smetric_model.analytic.measurements.read_measurements`.
    gpu : Gpu
        The GPU they were measured on.

    Returns
    -------
    fits : dict of str to KernelFit
        By family.
    rows : DataFrame
        ``id``, ``family``, ``value_s``, ``fitted_s``, ``error_ratio``, ``doubtful``.  Rows their
        own source calls outliers are shown and not fitted.
    """
    rows = kernel_rows(table)
    fits: dict[str, kernels.KernelFit] = {}
    parts = []
    for family, part in rows.groupby("family", sort=True):
        fit, fitted = _fit_family(str(family), part, gpu)
        fits[str(family)] = fit
        parts.append(
            part[["id", "family", "value_s", "doubtful"]].assign(
                fitted_s=fitted, error_ratio=fitted / part["value_s"] - 1
            )
        )
    return fits, pd.concat(parts, ignore_index=True)


_TILE_ROWS = 128.0  # largest row tile of the grouped GEMM kernels (DeepGEMM aligns to 128)


def _family_time(family: str, rows: pd.DataFrame, gpu: Gpu, fit: kernels.KernelFit) -> Any:
    bandwidth = gpu.memory_bandwidth_bytes_per_s
    if family == "gemm_fp8":
        shape = (rows["rows"], rows["inputs"], rows["outputs"])
        return kernels.gemm_s(fit, *shape, 1.0, gpu.flops["fp8"], bandwidth)
    if family == "attention_prefill":
        shape = (rows["rows"], rows["heads"], rows["head_dim"])
        return kernels.attention_prefill_s(fit, *shape, gpu.flops["bf16"])
    if family.startswith("attention_decode"):
        element = 1.0 if family.endswith("fp8") else 2.0
        kv_bytes = 2 * rows["kv_heads"] * rows["head_dim"] * element
        return kernels.attention_decode_s(
            fit, rows["batch"], rows["context_tokens"], kv_bytes, bandwidth
        )
    assigned = rows["rows"] * rows["experts_per_token"]
    # the tables spread rows evenly: an expert is idle only where there are fewer rows than experts
    touched = np.minimum(assigned, rows["experts"])
    return kernels.grouped_gemm_s(
        fit, assigned, touched, rows["expert_params"], 1.0, gpu.flops["fp8"], bandwidth
    )


def _fit_family(
    family: str, rows: pd.DataFrame, gpu: Gpu
) -> tuple[kernels.KernelFit, NDArray[np.float64]]:
    measured = rows["value_s"].to_numpy()
    good = ~rows["doubtful"].to_numpy()

    def build(x: NDArray[np.float64]) -> kernels.KernelFit:
        if family == "attention_prefill":
            return kernels.KernelFit(float(x[0]), 1.0, float(x[2]), float(x[1] * 1e3))
        return kernels.KernelFit(float(x[0]), float(x[1]), float(x[2]), _TILE_ROWS)

    def time(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(_family_time(family, rows, gpu, build(x)), dtype=float)

    result = least_squares(
        lambda x: np.log(time(x) / measured)[good],
        [0.9, 0.5, 5e-6],
        bounds=([0.1, 0.05, 0.0], [0.97, 1.0, 2e-4]),
        x_scale=[0.1, 0.1, 1e-5],
        loss="soft_l1",
        f_scale=0.1,
    )
    return build(result.x), time(result.x)


# --- engines ------------------------------------------------------------------------------------

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
        kv_dtype="bf16",
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
    parameters = PARAMETERS[engine]

    def build(x: NDArray[np.float64]) -> Efficiencies:
        values = start
        for parameter, number in zip(parameters, x, strict=True):
            values = parameter.set(values, float(number))
        return values

    def errors(values: Efficiencies, rows: pd.DataFrame) -> NDArray[np.float64]:
        predicted = np.array([predict_engine_row(r, gpu, values) for r in rows.itertuples()])
        return np.asarray(np.log(predicted / rows["value_s"].to_numpy()))

    def solve(rows: pd.DataFrame, x0: NDArray[np.float64]) -> NDArray[np.float64]:
        scale = np.array([p.upper - p.lower for p in parameters])
        low = np.array([p.lower for p in parameters])
        result = least_squares(
            lambda u: errors(build(low + u * scale), rows) * rows["weight"].to_numpy(),
            (x0 - low) / scale,
            bounds=(0.0, 1.0),
            diff_step=1e-4,
            xtol=1e-6,
        )
        return np.asarray(low + result.x * scale)

    x0 = np.array([np.clip(p.get(start), p.lower, p.upper) for p in parameters])
    inside = 1e-3 * np.array([p.upper - p.lower for p in parameters])
    bounds_low = np.array([p.lower for p in parameters]) + inside
    bounds_high = np.array([p.upper for p in parameters]) - inside
    x0 = np.clip(x0, bounds_low, bounds_high)
    x = solve(every, x0)
    fitted = build(x)
    error = np.exp(errors(fitted, every)) - 1
    left_out = np.full(len(every), np.nan)
    if leave_out:
        for name in every["group"].unique():
            if progress:
                progress(f"{engine}: left out {name}")
            rest = every[every["group"] != name]
            # from the same start: what no other row identifies stays there
            without = build(solve(rest, x0))
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
    source = f"fitted on {len(every)} rows of {', '.join(sorted(_families(every['id'])))}"
    fitted = replace(
        fitted,
        fitted_for=f"{gpu.name}/{engine}",
        provenance={**start.provenance, **{p.name: source for p in parameters}},
    )
    at_bound = tuple(
        p.name
        for p, number in zip(parameters, x, strict=True)
        if min(number - p.lower, p.upper - number) < 1e-3 * (p.upper - p.lower)
    )
    rows = every.drop(columns="weight").assign(
        fitted_s=every["value_s"] * (1 + error),
        error_ratio=error,
        left_out_error_ratio=left_out,
    )
    return EngineFit(fitted, rows, at_bound, quality)


def starting_point(kernel_fits: Mapping[str, kernels.KernelFit], engine: str) -> Efficiencies:
    """Return the numbers an engine's rows do not identify, and where the search starts.

    Parameters
    ----------
    kernel_fits : mapping of str to KernelFit
        From :func:`fit_kernels`.
    engine : str
        ``vllm`` or ``sglang``.

    Returns
    -------
    Efficiencies
        With provenance for every number that the engine fit will not replace.
    """
    gemm = kernel_fits["gemm_fp8"]
    experts = kernel_fits["grouped_gemm_prefill_fp8"]
    experts_decode = kernel_fits["grouped_gemm_decode_fp8"]
    attention = kernel_fits["attention_prefill"]
    decode = {d: kernel_fits[f"attention_decode_{d}"].bandwidth_ratio for d in ("bf16", "fp8")}
    isk = "kernel tables ISK-*"
    provenance = {
        "dense_compute.bf16": "median of large BF16 GEMMs, AICDB-gemm-bf16-max (135.95 of 148 TFLOPS)",
        "dense_compute.fp8": f"{isk} gemm (DeepGEMM)",
        "dense_compute.int4": "as fitted on sglang's AWQ rows",
        "dense_bandwidth.bf16": "AICDB-gemv-bf16: large weights at m <= 16 read at 78 % of peak",
        "dense_bandwidth.fp8": f"{isk} gemm (DeepGEMM)",
        "dense_bandwidth.int4": "as fitted on sglang's AWQ rows",
        "expert_compute.bf16": "as FP8, kernel tables ISK-gg-prefill",
        "expert_compute.fp8": f"{isk} gg-prefill (DeepGEMM contiguous)",
        "expert_compute.int4": "as fitted on sglang's GPTQ-Marlin MoE rows",
        "expert_bandwidth.bf16": (
            "assumption: as dense BF16; rows at one stream cannot tell it from the gaps between kernels"
        ),
        "expert_bandwidth.fp8": f"{isk} gg-decode (DeepGEMM masked)",
        "expert_bandwidth.int4": "as int4 dense",
        "expert_call_s.bf16": "fused kernels: 0",
        "expert_call_s.fp8": "fused kernels: 0",
        "expert_call_s.int4": "as fitted on sglang's GPTQ-Marlin MoE rows",
        "head_bandwidth": "AICDB-gemv-bf16",
        "attention_compute": f"{isk} attnpre (FlashAttention-3)",
        "attention_bandwidth.bf16": f"{isk} attndec (FlashInfer)",
        "attention_bandwidth.fp8": f"{isk} attndec, FP8 KV (FlashInfer)",
        "attention_stream_bandwidth": f"{isk} attndec: a long sequence alone reaches it",
        "attention_stream_group": (
            "QW rows: models with 2 query heads per KV head read one sequence at twice the rate of "
            "those with 4 and more"
        ),
        "attention_tile_tokens": f"{isk} attnpre (FlashAttention-3)",
        "expert_tile_tokens": "largest M tile of the grouped GEMM kernels",
        "graph_s_per_dense_layer": "as fitted on sglang's dense rows",
        "graph_s_per_moe_layer": "as fitted on sglang's MoE rows",
        "eager_s_per_layer": "as fitted on vllm's eager rows",
        "graph_capture_tokens": "vLLM's default largest captured size",
        "all_reduce_s": "as fitted on sglang's TP8 rows",
        "all_reduce_bandwidth": "assumption: 0.8 of NVLink, usual for NCCL rings at large sizes",
        "request_host_s": "as fitted on vllm's rows",
        "request_host_s_per_token": "as fitted on vllm's rows",
        "dram_fetch_s": "as fitted on KVC-cpuhit",
        "rdma_fetch_s": "assumption: as dram_fetch_s; no row of its own",
    }
    return Efficiencies(
        dense_compute={"bf16": 0.919, "fp8": gemm.compute_ratio, "int4": 0.59},
        dense_bandwidth={"bf16": 0.78, "fp8": gemm.bandwidth_ratio, "int4": 0.25},
        expert_compute={
            "bf16": experts.compute_ratio,
            "fp8": experts.compute_ratio,
            "int4": 0.59,
        },
        expert_bandwidth={"bf16": 0.78, "fp8": experts_decode.bandwidth_ratio, "int4": 0.25},
        expert_call_s={"bf16": 0.0, "fp8": 0.0, "int4": 7e-4},
        head_bandwidth=0.78,
        attention_compute=attention.compute_ratio,
        attention_bandwidth=decode,
        attention_stream_bandwidth=decode["bf16"],
        attention_stream_group=4.0,
        attention_tile_tokens=attention.tile_tokens,
        expert_tile_tokens=_TILE_ROWS,
        graph_s_per_dense_layer=7e-5,
        graph_s_per_moe_layer=8e-5,
        eager_s_per_layer=5e-4,
        graph_capture_tokens=512,
        all_reduce_s=1e-5,
        all_reduce_bandwidth=0.8,
        request_host_s=0.018,
        request_host_s_per_token=1e-6,
        dram_fetch_s=0.0,
        rdma_fetch_s=0.0,
        provenance=provenance,
        fitted_for=f"start/{engine}",
    )


def calibrate(
    table: pd.DataFrame,
    gpu: Gpu,
    leave_out: bool = True,
    progress: Callable[[str], None] | None = None,
) -> tuple[dict[str, EngineFit], pd.DataFrame]:
    """Fit kernels, then both engines; sglang first, for what it alone can tell.

    Parameters
    ----------
    table : DataFrame
        From :func:`smetric_model.analytic.measurements.read_measurements`.
    gpu : Gpu
        The GPU they were measured on.
    leave_out, progress
        As in :func:`fit_engine`.

    Returns
    -------
    engines : dict of str to EngineFit
        By engine.
    kernels : DataFrame
        Rows of the kernel tables with their errors.
    """
    kernel_fits, kernel_errors = fit_kernels(table, gpu)
    sglang_start = starting_point(kernel_fits, "sglang")
    vllm_start = starting_point(kernel_fits, "vllm")
    # host and eager costs of sglang, and multi-GPU and dense-layer gaps of vllm, have no rows of
    # their own: each takes the other's
    vllm = fit_engine(table, gpu, vllm_start, "vllm", False)
    borrowed = ("request_host_s", "request_host_s_per_token", "eager_s_per_layer", "dram_fetch_s")
    sglang_start = replace(sglang_start, **{n: getattr(vllm.efficiencies, n) for n in borrowed})
    sglang = fit_engine(table, gpu, sglang_start, "sglang", leave_out, progress)
    lent: dict[str, Any] = {
        name: getattr(sglang.efficiencies, name)
        for name in (
            "all_reduce_s",
            "graph_s_per_dense_layer",
            "graph_s_per_moe_layer",
            "expert_call_s",
        )
    }
    for name in ("dense_compute", "dense_bandwidth", "expert_compute"):
        lent[name] = {
            **getattr(vllm_start, name),
            "int4": getattr(sglang.efficiencies, name)["int4"],
        }
    vllm_start = replace(vllm_start, **lent)
    vllm = fit_engine(table, gpu, vllm_start, "vllm", leave_out, progress)
    return {name: _share_fetch_cost(fit) for name, fit in (("sglang", sglang), ("vllm", vllm))}, (
        kernel_errors
    )


def _share_fetch_cost(fit: EngineFit) -> EngineFit:
    """No row times a fetch over RDMA: its fixed cost is taken to be that of DRAM."""
    values = fit.efficiencies
    return replace(fit, efficiencies=replace(values, rdma_fetch_s=values.dram_fetch_s))


def to_table(fit: EngineFit) -> dict[str, Any]:
    """Return one engine's entry of ``data/efficiencies.toml``, numbers to five digits.

    Parameters
    ----------
    fit : EngineFit
        A fit.

    Returns
    -------
    dict
        Ready for a TOML writer.
    """

    def tidy(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: tidy(held) for key, held in value.items()}
        return float(f"{value:.5g}") if isinstance(value, float) else value

    names = [f.name for f in fields(Efficiencies) if f.name not in ("fitted_for", "carried_over")]
    entry = {name: tidy(getattr(fit.efficiencies, name)) for name in names}
    return {**entry, "fit": tidy(fit.quality)}
