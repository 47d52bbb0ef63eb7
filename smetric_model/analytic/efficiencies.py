"""Efficiencies of one (GPU, engine) pair: few, named, fitted, stored with their provenance.

The numbers live in ``data/efficiencies.toml`` and are written by
:mod:`smetric_model.analytic.calibration`, which anyone can re-run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from smetric_model.datafiles import load_toml, read_toml
from smetric_model.errors import SpecError

__all__ = ["Efficiencies", "get_efficiencies"]

#: an element type that has no fit of its own is computed like this one
_SAME_KERNELS = {"fp16": "bf16", "int8": "fp8", "fp32": "bf16"}


#: 0 where a fit does not give them
_OPTIONAL = ("sampled_token_s", "request_engine_s", "request_wait_steps")


@dataclass(frozen=True)
class Efficiencies:
    """How close an engine's kernels come to the roofline of a GPU, and its fixed costs.

    Every ``*_compute`` and ``*_bandwidth`` entry is a share in (0, 1] of the GPU's dense peak or
    of its memory bandwidth.  Mappings are keyed by the dtype of the weights (of the KV cache for
    attention).

    Attributes
    ----------
    dense_compute, dense_bandwidth : mapping of str to float
        Projections, dense FFN, router, shared experts.
    expert_compute, expert_bandwidth : mapping of str to float
        Routed experts (grouped GEMM), after padding to tiles.
    expert_call_s : mapping of str to float
        Fixed cost of calling a MoE layer's experts, beyond kernel gaps [s] (0 for fused kernels).
    head_bandwidth : float
        Output head, one large matrix-vector product.
    attention_compute : float
        Attention FLOPs (always in 16 bits).
    attention_bandwidth : mapping of str to float
        KV reading with many sequences in the batch.
    attention_stream_bandwidth : float
        KV reading of *one* sequence; with B sequences the smaller of B times this and
        ``attention_bandwidth`` holds.
    attention_stream_group : float
        Query heads per KV head from which one sequence reads at ``attention_stream_bandwidth``;
        with fewer, the decode kernel reads proportionally faster.
    attention_tile_tokens : float
        Keys each new token sees in vain, because causal masks act on whole tiles.
    expert_tile_tokens : float
        Largest number of rows to which each touched expert's rows are padded.
    graph_s_per_dense_layer, graph_s_per_moe_layer : float
        Gaps between kernels replayed from a CUDA graph [s per layer].
    eager_s_per_layer : float
        Time the CPU needs to launch one layer's kernels [s per layer]; it runs beside the GPU.
    graph_capture_tokens : int
        Largest step captured as a graph; above it kernels are launched eagerly [tokens].
    all_reduce_s : float
        Latency of one tensor-parallel all-reduce [s].
    all_reduce_bandwidth : float
        Share of NVLink's bandwidth reached by all-reduces.
    request_host_s, request_host_s_per_token : float
        Host cost of a request: constant [s] and per prompt token [s/token].
    dram_fetch_s, rdma_fetch_s : float
        Fixed cost of one fetch from the node's DRAM and from a remote node [s].
    sampled_token_s : float
        What each sequence adds to a step beyond the kernels' work: sampling, detokenising and
        sending its token, where that does not run beside the GPU [s]; optional, 0.
    request_engine_s : float
        What a request adds to the engine's steps: the share of its host work that runs on the
        processor of the steps, or between them [s]; optional, 0.
    request_wait_steps : float
        Decode steps under way that a request waits through before it is scheduled: where steps
        are scheduled ahead of time, or a tier's answer is only looked at between steps;
        optional, 0.
    provenance : mapping of str to str
        Where each number comes from.
    fitted_for : str
        The (GPU, engine) pair the numbers were fitted on.
    carried_over : bool
        True where the GPU at hand is not the fitted one.
    """

    dense_compute: Mapping[str, float]
    dense_bandwidth: Mapping[str, float]
    expert_compute: Mapping[str, float]
    expert_bandwidth: Mapping[str, float]
    expert_call_s: Mapping[str, float]
    head_bandwidth: float
    attention_compute: float
    attention_bandwidth: Mapping[str, float]
    attention_stream_bandwidth: float
    attention_stream_group: float
    attention_tile_tokens: float
    expert_tile_tokens: float
    graph_s_per_dense_layer: float
    graph_s_per_moe_layer: float
    eager_s_per_layer: float
    graph_capture_tokens: int
    all_reduce_s: float
    all_reduce_bandwidth: float
    request_host_s: float
    request_host_s_per_token: float
    dram_fetch_s: float
    rdma_fetch_s: float
    provenance: Mapping[str, str]
    fitted_for: str
    carried_over: bool = False
    sampled_token_s: float = 0.0
    request_engine_s: float = 0.0
    request_wait_steps: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            values = value if isinstance(value, Mapping) else {"": value}
            for key, number in values.items():
                name = f"efficiency {field.name}{'.' + key if key else ''} of {self.fitted_for}"
                if field.name.endswith(("_compute", "_bandwidth")):
                    if not 0 < number <= 1:
                        raise SpecError(f"{name} is {number}; it must lie in (0, 1]")
                elif isinstance(number, int | float) and number < 0:
                    raise SpecError(f"{name} is {number}; it must not be negative")

    def of(self, group: str, dtype: str) -> float:
        """Return one entry of a mapping, for a dtype.

        Parameters
        ----------
        group : str
            Name of a mapping attribute, such as ``"dense_compute"``.
        dtype : str
            Element type; ``fp16`` counts as ``bf16`` and ``int8`` as ``fp8``.

        Returns
        -------
        float
            Share in (0, 1].

        Raises
        ------
        SpecError
            If nothing is known for this dtype.
        """
        table: Mapping[str, float] = getattr(self, group)
        for key in (dtype, _SAME_KERNELS.get(dtype, dtype)):
            if key in table:
                return table[key]
        raise SpecError(
            f"no {group} for dtype {dtype!r} in {self.fitted_for}; known: {', '.join(table)}"
        )


def get_efficiencies(gpu_name: str, engine: str) -> Efficiencies:
    """Look up the efficiencies of an engine on a GPU.

    A GPU without a fit of its own gets those of the engine's reference GPU, marked
    ``carried_over``: fitted efficiencies transfer badly between GPUs (40-50 % was seen between
    H200 and H20), so the result is an estimate.

    Parameters
    ----------
    gpu_name : str
        Catalog name of the GPU, or the path of a file of one's own (``.toml``), whose tables
        ``[efficiencies.vllm]`` … have the keys of ``data/efficiencies.toml``.
    engine : str
        ``vllm`` or ``sglang``.

    Returns
    -------
    Efficiencies

    Raises
    ------
    SpecError
        If the engine is not known, or a file has efficiencies of other engines only.
    """
    own = read_toml(gpu_name).get("efficiencies") if gpu_name.endswith(".toml") else None
    if own is not None:
        if engine not in own:
            known = ", ".join(sorted(own)) or "none"
            raise SpecError(f"{gpu_name}: no [efficiencies.{engine}]; known: {known}")
        return _from_table(own[engine], f"{gpu_name}/{engine}")
    tables = load_toml("efficiencies.toml")
    engines = sorted({name for per_gpu in tables.values() for name in per_gpu})
    if engine not in engines:
        raise SpecError(
            f"engine {engine!r} has no fitted efficiencies; known: {', '.join(engines)}"
        )
    if engine in tables.get(gpu_name, {}):
        return _from_table(tables[gpu_name][engine], f"{gpu_name}/{engine}")
    reference = next(gpu for gpu, per_gpu in tables.items() if engine in per_gpu)
    fitted = _from_table(tables[reference][engine], f"{reference}/{engine}")
    return replace(fitted, carried_over=True)


def _from_table(table: dict[str, Any], fitted_for: str) -> Efficiencies:
    names = {field.name for field in fields(Efficiencies)} - {"fitted_for", "carried_over"}
    missing = names - set(table) - set(_OPTIONAL)
    unknown = set(table) - names - {"fit"}
    if missing or unknown:
        raise SpecError(
            f"efficiencies of {fitted_for}: missing {sorted(missing)}, unknown {sorted(unknown)}"
        )
    given = {name: table[name] for name in names if name in table}
    return Efficiencies(**given, fitted_for=fitted_for)
