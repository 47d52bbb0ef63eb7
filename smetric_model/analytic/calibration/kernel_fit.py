"""Fit one (compute, bandwidth, latency) triple per kernel family."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import least_squares

from smetric_model.analytic import kernels
from smetric_model.analytic.calibration.measurements import kernel_rows
from smetric_model.catalog.gpu import Gpu

__all__ = ["TILE_ROWS", "fit_kernels"]


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


TILE_ROWS = 128.0  # largest row tile of the grouped GEMM kernels (DeepGEMM aligns to 128)


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
        return kernels.KernelFit(float(x[0]), float(x[1]), float(x[2]), TILE_ROWS)

    def time(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(_family_time(family, rows, gpu, build(x)), dtype=float)

    def residual(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.log(time(x) / measured)[good])

    result = least_squares(
        residual,
        [0.9, 0.5, 5e-6],
        bounds=([0.1, 0.05, 0.0], [0.97, 1.0, 2e-4]),
        x_scale=[0.1, 0.1, 1e-5],
        loss="soft_l1",
        f_scale=0.1,
    )
    return build(result.x), time(result.x)
