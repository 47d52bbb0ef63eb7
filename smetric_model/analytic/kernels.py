r"""Roofline of single kernels, with the launch latency that a lone kernel shows.

.. math:: t = t_0 + \max\left(\frac{\mathrm{FLOP}}{\eta^c F}, \frac{\mathrm{bytes}}{\eta^b B}\right)

The step model adds these up without ``t_0``, which there is part of the gaps between kernels.
They serve to fit efficiencies to published kernel tables and to report how far off the form is,
family by family.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from smetric_model.analytic.step_time import padded_rows

__all__ = [
    "KernelFit",
    "attention_decode_s",
    "attention_prefill_s",
    "gemm_s",
    "grouped_gemm_s",
]


class KernelFit(NamedTuple):
    """What is fitted per kernel family.

    ``tile_tokens`` means keys a query sees in vain (prefill attention) or the largest tile of
    rows (grouped GEMM); other families ignore it.
    """

    compute_ratio: float
    bandwidth_ratio: float
    latency_s: float
    tile_tokens: float = 0.0


def _roofline(
    fit: KernelFit, flop: Any, size_bytes: Any, flop_per_s: float, bytes_per_s: float
) -> Any:
    return fit.latency_s + np.maximum(
        flop / (fit.compute_ratio * flop_per_s), size_bytes / (fit.bandwidth_ratio * bytes_per_s)
    )


def gemm_s(
    fit: KernelFit,
    rows: Any,
    inputs: Any,
    outputs: Any,
    weight_bytes: float,
    flop_per_s: float,
    bytes_per_s: float,
) -> Any:
    """Return the time of a dense matrix product of ``rows × inputs`` and ``inputs × outputs``.

    Parameters
    ----------
    fit : KernelFit
        Efficiencies and latency.
    rows, inputs, outputs : float or ndarray
        Shape.
    weight_bytes : float
        Bytes of one weight.
    flop_per_s, bytes_per_s : float
        Peaks of the GPU.

    Returns
    -------
    float or ndarray
        Time [s].
    """
    return _roofline(
        fit, 2 * rows * inputs * outputs, inputs * outputs * weight_bytes, flop_per_s, bytes_per_s
    )


def grouped_gemm_s(
    fit: KernelFit,
    assigned: Any,
    touched: Any,
    expert_params: Any,
    weight_bytes: float,
    flop_per_s: float,
    bytes_per_s: float,
) -> Any:
    """Return the time of one layer's routed experts (up and down together).

    Parameters
    ----------
    fit : KernelFit
        Efficiencies, latency and largest tile.
    assigned, touched : float or ndarray
        Rows over all experts, and experts that get any.
    expert_params : float or ndarray
        Parameters of one expert.
    weight_bytes, flop_per_s, bytes_per_s : float
        As in :func:`gemm_s`.

    Returns
    -------
    float or ndarray
        Time [s].
    """
    rows = padded_rows(assigned, touched, fit.tile_tokens)
    return _roofline(
        fit,
        2 * rows * expert_params,
        touched * expert_params * weight_bytes,
        flop_per_s,
        bytes_per_s,
    )


def attention_prefill_s(
    fit: KernelFit, tokens: Any, heads: Any, head_dim: Any, flop_per_s: float
) -> Any:
    """Return the time of causal attention of a prompt with itself, one layer.

    Parameters
    ----------
    fit : KernelFit
        Efficiency, latency and wasted keys per query.
    tokens, heads, head_dim : float or ndarray
        Prompt length, query heads, head dimension.
    flop_per_s : float
        Peak of the GPU in 16 bits.

    Returns
    -------
    float or ndarray
        Time [s].
    """
    pairs = tokens * (0.5 * tokens + fit.tile_tokens)
    return fit.latency_s + 4 * heads * head_dim * pairs / (fit.compute_ratio * flop_per_s)


def attention_decode_s(
    fit: KernelFit,
    batch: Any,
    context_tokens: Any,
    kv_bytes_per_token: Any,
    bytes_per_s: float,
) -> Any:
    """Return the time of decode attention of a batch, one layer (memory side only).

    Parameters
    ----------
    fit : KernelFit
        Efficiency and latency.
    batch, context_tokens : float or ndarray
        Sequences, and the context of each.
    kv_bytes_per_token : float or ndarray
        KV of one token in one layer [bytes].
    bytes_per_s : float
        Peak of the GPU.

    Returns
    -------
    float or ndarray
        Time [s].
    """
    size = batch * context_tokens * kv_bytes_per_token
    return fit.latency_s + size / (fit.bandwidth_ratio * bytes_per_s)
