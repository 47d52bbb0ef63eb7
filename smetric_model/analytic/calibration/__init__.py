r"""Fit the efficiencies of a GPU to measured rows; anyone can re-run it.

Three fits, each few-parametric and bounded:

1. *kernels*: one (compute, bandwidth, latency) triple per kernel family;
2. *sglang*: whole requests at batch 1 over model sizes, dtypes and lengths;
3. *vllm*: single requests of one model (cold, cached, beside decodes).

Requests timed on engines of one's own are fitted on top of these (:func:`fit_requests`).

What an engine's rows cannot identify is taken from the kernel families and says so in its
provenance.  Errors are relative, the loss is least squares on logarithms, and each fit reports
its error on rows it did not see: every group of rows is left out in turn, refitted without, and
predicted (leave-one-group-out).
"""

from __future__ import annotations

from smetric_model.analytic.calibration.calibrate import calibrate, to_table
from smetric_model.analytic.calibration.engine_fit import (
    PARAMETERS,
    EngineFit,
    Parameter,
    fit_engine,
    predict_engine_row,
)
from smetric_model.analytic.calibration.kernel_fit import fit_kernels
from smetric_model.analytic.calibration.measurements import (
    engine_rows,
    kernel_rows,
    read_measurements,
)
from smetric_model.analytic.calibration.own_requests import (
    fit_requests,
    hardly_told,
    is_requests,
    read_requests,
)
from smetric_model.analytic.calibration.starting_point import starting_point

__all__ = [
    "PARAMETERS",
    "EngineFit",
    "Parameter",
    "calibrate",
    "engine_rows",
    "fit_engine",
    "fit_kernels",
    "fit_requests",
    "hardly_told",
    "is_requests",
    "kernel_rows",
    "predict_engine_row",
    "read_measurements",
    "read_requests",
    "starting_point",
    "to_table",
]
