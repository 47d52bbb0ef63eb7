"""All fits in order, and their entry in ``data/efficiencies.toml``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import pandas as pd

from smetric_model.analytic.calibration.engine_fit import EngineFit, fit_engine
from smetric_model.analytic.calibration.kernel_fit import fit_kernels
from smetric_model.analytic.calibration.starting_point import starting_point
from smetric_model.analytic.efficiencies import Efficiencies
from smetric_model.catalog.gpu import Gpu

__all__ = ["calibrate", "to_table"]


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
