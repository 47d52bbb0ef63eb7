"""Numbers that an engine's own rows do not identify, and where a fit starts."""

from __future__ import annotations

from collections.abc import Mapping

from smetric_model.analytic import kernels
from smetric_model.analytic.calibration.kernel_fit import TILE_ROWS
from smetric_model.analytic.efficiencies import Efficiencies

__all__ = ["starting_point"]


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
        "dense_compute.bf16": "AICDB-gemm-bf16-max: large GEMMs, median 135.95 of 148 TFLOPS",
        "dense_compute.fp8": f"{isk} gemm (DeepGEMM)",
        "dense_compute.int4": "as fitted on sglang's AWQ rows",
        "dense_bandwidth.bf16": "AICDB-gemv-bf16: large weights at m <= 16 read at 78 % of peak",
        "dense_bandwidth.fp8": f"{isk} gemm (DeepGEMM)",
        "dense_bandwidth.int4": "as fitted on sglang's AWQ rows",
        "expert_compute.bf16": "as FP8, kernel tables ISK-gg-prefill",
        "expert_compute.fp8": f"{isk} gg-prefill (DeepGEMM contiguous)",
        "expert_compute.int4": "as fitted on sglang's GPTQ-Marlin MoE rows",
        "expert_bandwidth.bf16": (
            "assumption: as dense BF16; one stream cannot tell it from the gaps between kernels"
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
        expert_tile_tokens=TILE_ROWS,
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
