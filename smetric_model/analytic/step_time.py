r"""Time of one engine step, by operator group (roofline with few fitted efficiencies).

One step carries ``d`` decoding sequences with total context ``S`` and prefill chunks with ``p``
new tokens.  Each operator group takes the larger of its compute and its memory time,

.. math:: t_g = \max\left(\frac{\mathrm{FLOP}_g}{\eta^c_g F},
                          \frac{\mathrm{bytes}_g}{\eta^b_g B}\right)

per GPU, and the groups add up (DESIGN §2; roofline: Williams, Waterman, Patterson, CACM 2009).
Three refinements come from published kernel measurements on H20:

* *experts touched*: ``E (1 - (1 - k/E)^n)`` of a layer's experts are read, for independent and
  uniform choice, so that one token reads 8 of 128 experts and 64 tokens read 126;
* *tiles*: the rows of each touched expert are padded to a tile, so a 1,024-token chunk over 128
  experts computes about twice the rows it needs; causal attention masks whole tiles likewise;
* *launch*: kernels replayed from a CUDA graph leave a gap per layer.  Launched eagerly they need
  CPU time that runs *beside* the GPU, so an eager step takes the longer of the two.  A
  captured-graph engine launches steps above ``graph_capture_tokens`` eagerly as well.

:func:`step_groups` holds the formula once; it uses array functions only, so that it serves
scalars, arrays and a compiled loop alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smetric_model.errors import SpecError

__all__ = [
    "GROUPS",
    "StepBreakdown",
    "StepModel",
    "experts_touched",
    "padded_rows",
    "step_breakdown",
    "step_groups",
    "step_time_s",
]

#: operator groups, in the order :func:`step_groups` returns them
GROUPS = (
    "dense",
    "experts",
    "attention_prefill",
    "attention_decode",
    "linear_attention",
    "lm_head",
    "all_reduce",
    "launch",
)

_MIN_TILE = 16.0  # rows of the smallest tensor-core tile


class StepModel(NamedTuple):
    """Coefficients of the step time of one instance, per GPU; plain floats throughout.

    ``*_flop_s`` are seconds per unit of work at the fitted compute rate, ``*_byte_s`` seconds per
    unit at the fitted memory rate.
    """

    dense_flop_s_per_token: float
    dense_weights_s: float
    experts: float  #: experts of a layer on the whole instance (0 for a dense LLM)
    experts_per_token: float
    expert_row_s: float  #: one row through one expert of every MoE layer, compute
    expert_weights_s: float  #: one expert of every MoE layer, memory
    expert_call_s: float  #: fixed cost of the experts of all MoE layers, per step
    expert_tile_tokens: float
    attention_pair_s: float  #: one (query token, key token) pair over all layers, prefill compute
    attention_decode_key_s: float  #: one key of one decoding sequence, compute
    attention_tile_tokens: float
    kv_token_s: float  #: reading one token's KV at full batch
    kv_stream_ratio: float  #: bandwidth of one sequence / bandwidth at full batch
    linear_token_s: float  #: linear-attention layers, compute per token
    linear_state_s: float  #: reading and writing one sequence's state
    head_token_s: float
    head_weights_s: float
    all_reduce_latency_s: float
    all_reduce_token_s: float
    gap_s: float  #: gaps between kernels, per step
    eager_launch_s: float  #: CPU time to launch one step
    graph_capture_tokens: float  #: 0 in eager mode
    request_s: float = 0.0  #: what a request adds to the steps that prefill it, once
    #: decode steps under way that a request waits through before it is scheduled
    wait_steps: float = 0.0


def experts_touched(experts: Any, experts_per_token: Any, tokens: Any) -> Any:
    r"""Return the expected number of experts of one layer that a batch of tokens uses.

    .. math:: E\,(1 - (1 - k/E)^n)

    for uniform choice, independent between tokens (an assumption: real routers are skewed, which
    touches fewer).

    Parameters
    ----------
    experts, experts_per_token : float or ndarray
        Experts of the layer, E, and those chosen by each token, k.
    tokens : float or ndarray
        Tokens in the batch, n; broadcast against the others.

    Returns
    -------
    ndarray or float
        Expected number of experts, in [0, E].
    """
    # all experts for a share of 1: exp(-huge * n) is 0 for every n >= 1 and 1 for n = 0
    share = np.minimum(experts_per_token / experts, 1.0 - 1e-16)
    return experts * (1.0 - np.exp(tokens * np.log1p(-share)))


def padded_rows(assigned: Any, touched: Any, tile_tokens: float) -> Any:
    """Return the rows a grouped GEMM computes: each expert's rows are padded to whole tiles.

    The tile follows the rows per expert, from 16 (smallest tensor-core tile) up to the kernel's
    largest.  Half a tile is wasted per expert on average, and all of the tile but the rows where
    an expert gets less than half of one.

    Parameters
    ----------
    assigned : float or ndarray
        Rows asked for: tokens times experts per token.
    touched : float or ndarray
        Experts that get any.
    tile_tokens : float
        Largest tile [rows].

    Returns
    -------
    float or ndarray
        Rows computed.
    """
    per_expert = assigned / np.maximum(touched, 1e-9)
    tile = np.minimum(np.maximum(per_expert, _MIN_TILE), tile_tokens)
    return np.maximum(assigned + 0.5 * tile * touched, tile * touched)


def step_groups(
    model: StepModel,
    prefill_tokens: Any,
    prefill_pairs: Any,
    prefill_keys: Any,
    decode_batch: Any,
    decode_context_tokens: Any,
    sampled: Any,
) -> tuple[Any, ...]:
    """Return the seconds of each operator group of one step, in the order of :data:`GROUPS`.

    Parameters
    ----------
    model : StepModel
        Coefficients of the instance.
    prefill_tokens : float or ndarray
        New tokens of all prefill chunks, p [tokens].
    prefill_pairs : float or ndarray
        (query, key) pairs of the chunks: the sum of ``p c + p^2/2`` over chunks [tokens^2].
    prefill_keys : float or ndarray
        Keys the chunks read: the sum of ``c + p`` over chunks [tokens].
    decode_batch : float or ndarray
        Decoding sequences, d.
    decode_context_tokens : float or ndarray
        Their total context, S [tokens].
    sampled : float or ndarray
        Sequences that sample a token in this step.

    Returns
    -------
    tuple of float or ndarray
        Seconds per group [s].  ``launch`` is the gaps between kernels plus whatever the eager
        launch takes beyond the GPU's own time, so that the groups sum to the step time.
    """
    tokens = prefill_tokens + decode_batch
    dense = np.maximum(model.dense_flop_s_per_token * tokens, model.dense_weights_s)

    experts = 0.0 * tokens
    if model.experts > 0:
        touched = experts_touched(model.experts, model.experts_per_token, tokens)
        rows = padded_rows(model.experts_per_token * tokens, touched, model.expert_tile_tokens)
        experts = np.maximum(model.expert_row_s * rows, model.expert_weights_s * touched)
        experts = experts + model.expert_call_s * np.minimum(tokens, 1.0)

    attention_prefill = np.maximum(
        model.attention_pair_s * (prefill_pairs + model.attention_tile_tokens * prefill_tokens),
        model.kv_token_s * prefill_keys,
    )
    streams = np.minimum(1.0, np.maximum(decode_batch, 1.0) * model.kv_stream_ratio)
    attention_decode = np.maximum(
        model.attention_decode_key_s * decode_context_tokens,
        model.kv_token_s * decode_context_tokens / streams,
    )
    linear = model.linear_token_s * tokens + model.linear_state_s * (
        decode_batch + np.minimum(prefill_tokens, 1.0)
    )
    busy = np.minimum(tokens, 1.0)  # a step without tokens costs nothing
    head = np.maximum(model.head_token_s * sampled, model.head_weights_s * np.minimum(sampled, 1.0))
    all_reduce = model.all_reduce_latency_s * busy + model.all_reduce_token_s * tokens
    gpu = dense + experts + attention_prefill + attention_decode + linear + head + all_reduce
    # (no np.where: compiled, it would make arrays of scalars)
    eager = model.eager_launch_s * (tokens > model.graph_capture_tokens)
    launch = np.maximum(model.gap_s, eager - gpu) * busy
    return (
        dense * busy,
        experts,
        attention_prefill,
        attention_decode,
        linear,
        head,
        all_reduce,
        launch,
    )


def step_time_s(
    model: StepModel,
    prefill_tokens: ArrayLike = 0,
    prefill_context_tokens: ArrayLike = 0,
    decode_batch: ArrayLike = 0,
    decode_context_tokens: ArrayLike = 0,
) -> Any:
    """Return the time of one engine step with at most one prefill chunk.

    Parameters
    ----------
    model : StepModel
        Coefficients from :func:`smetric_model.analytic.step_model.step_model`.
    prefill_tokens : array_like of float
        New tokens of the chunk, p [tokens].
    prefill_context_tokens : array_like of float
        Tokens already in the KV cache before the chunk, c [tokens].
    decode_batch : array_like of float
        Decoding sequences, d.
    decode_context_tokens : array_like of float
        Context of *each* decoding sequence (their mean) [tokens].

    Returns
    -------
    float or ndarray
        Step time [s], of the broadcast shape; 0 for an empty step, ``nan`` where an input is
        negative or not finite.
    """
    p, c, d, context = np.broadcast_arrays(
        *(
            np.asarray(a, dtype=float)
            for a in (prefill_tokens, prefill_context_tokens, decode_batch, decode_context_tokens)
        )
    )
    total = _evaluate(model, p, c, d, context)
    return total if total.ndim else float(total)


_BLOCK = 1 << 14  # evaluations per slice: temporaries stay in the CPU's cache


def _evaluate(
    model: StepModel,
    p: NDArray[np.float64],
    c: NDArray[np.float64],
    d: NDArray[np.float64],
    context: NDArray[np.float64],
) -> NDArray[np.float64]:
    out = np.empty(p.shape)
    if p.size <= _BLOCK:
        out[...] = _one_chunk(model, p, c, d, context)
        return out
    flat = [np.ascontiguousarray(a).reshape(-1) for a in (p, c, d, context)]
    result = out.reshape(-1)
    for start in range(0, p.size, _BLOCK):
        part = slice(start, start + _BLOCK)
        result[part] = _one_chunk(model, *(a[part] for a in flat))
    return out


def _one_chunk(model: StepModel, p: Any, c: Any, d: Any, context: Any) -> Any:
    valid = (p >= 0) & (c >= 0) & (d >= 0) & (context >= 0)
    has_chunk = np.minimum(p, 1.0)
    with np.errstate(invalid="ignore"):
        groups = step_groups(
            model, p, p * (c + 0.5 * p), (c + p) * has_chunk, d, d * context, d + has_chunk
        )
        return np.where(valid, sum(groups), np.nan)


@dataclass(frozen=True)
class StepBreakdown:
    """Where the time of one step goes.

    Attributes
    ----------
    step_time_s : float
        The whole step [s].
    groups : dict of str to dict
        Per operator group: ``time_s``, ``share_ratio`` of the step, and ``bound_by``
        (``compute``, ``memory``, ``network`` or ``launch``).
    bound_by : str
        The kind of bound that takes most of the step.
    """

    step_time_s: float
    groups: dict[str, dict[str, Any]]
    bound_by: str


def step_breakdown(
    model: StepModel,
    prefill_tokens: float = 0,
    prefill_context_tokens: float = 0,
    decode_batch: float = 0,
    decode_context_tokens: float = 0,
) -> StepBreakdown:
    """Explain one step: time, share and binding resource of each operator group.

    Parameters
    ----------
    model, prefill_tokens, prefill_context_tokens, decode_batch, decode_context_tokens
        As in :func:`step_time_s`, scalars.

    Returns
    -------
    StepBreakdown

    Raises
    ------
    SpecError
        For negative or non-finite numbers, or an empty step.
    """
    given = {
        "prefill_tokens": prefill_tokens,
        "prefill_context_tokens": prefill_context_tokens,
        "decode_batch": decode_batch,
        "decode_context_tokens": decode_context_tokens,
    }
    for name, value in given.items():
        if not np.isfinite(value) or value < 0:
            raise SpecError(f"{name} is {value}; it must be a finite number >= 0")
    if prefill_tokens + decode_batch == 0:
        raise SpecError("an empty step: prefill_tokens or decode_batch must be above 0")
    p, d = float(prefill_tokens), float(decode_batch)
    has_chunk = min(p, 1.0)
    work = (
        p,
        p * (prefill_context_tokens + 0.5 * p),
        (prefill_context_tokens + p) * has_chunk,
        d,
        d * decode_context_tokens,
        d + has_chunk,
    )
    seconds = [float(s) for s in step_groups(model, *work)]
    # The same formula with infinitely fast memory tells which side of each maximum binds.
    no_memory = model._replace(
        dense_weights_s=0.0, expert_weights_s=0.0, kv_token_s=0.0, head_weights_s=0.0
    )
    compute_only = [float(s) for s in step_groups(no_memory, *work)]
    total = sum(seconds)
    groups: dict[str, dict[str, Any]] = {}
    by_bound: dict[str, float] = {}
    for name, time_s, compute_s in zip(GROUPS, seconds, compute_only, strict=True):
        if name == "all_reduce":
            bound = "network"
        elif name == "launch":
            bound = "launch"
        else:
            bound = "compute" if compute_s >= time_s * (1 - 1e-12) else "memory"
        groups[name] = {"time_s": time_s, "share_ratio": time_s / total, "bound_by": bound}
        by_bound[bound] = by_bound.get(bound, 0.0) + time_s
    return StepBreakdown(total, groups, max(by_bound, key=lambda k: by_bound[k]))
