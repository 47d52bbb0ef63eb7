r"""Latency of one request on one instance: prefill in chunks, decode, host, fetch.

.. math::

   \mathrm{TTFT} = t_\mathrm{host} + t_\mathrm{fetch} +
       \sum_\mathrm{chunks} t_\mathrm{step}(\mathrm{chunk}, d), \qquad
   \mathrm{TPOT} = \frac{1}{O-1} \sum_{i=1}^{O-1} t_\mathrm{step}(0, d; L + i)

(DESIGN §§2, 3).  Queueing for the engine is not in here; see
:mod:`smetric_model.analytic.batching`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smetric_model.analytic.efficiencies import Efficiencies, get_efficiencies
from smetric_model.analytic.fabric import fetch_bytes_per_s
from smetric_model.analytic.memory import kv_bytes_per_token
from smetric_model.analytic.step_model import step_model
from smetric_model.analytic.step_time import StepModel, step_time_s
from smetric_model.catalog.cluster import Cluster, get_cluster
from smetric_model.errors import SpecError

if TYPE_CHECKING:
    from smetric_model.catalog.instance import InstanceSpec

__all__ = [
    "RequestLatency",
    "decode_time_s",
    "fetch_time_s",
    "host_time_s",
    "prefill_steps",
    "prefill_time_s",
    "request_latency",
    "usable_hit_tokens",
]

HitTier = Literal["local", "dram", "rdma"]

_MAX_STEPS = 100_000  # chunks of one prompt, added up one by one: some seconds


def usable_hit_tokens(
    prompt_tokens: ArrayLike, hit_tokens: ArrayLike, block_tokens: int
) -> NDArray[np.int64]:
    """Return how much of a hit an engine uses: whole blocks, and at least one token is computed.

    Parameters
    ----------
    prompt_tokens, hit_tokens : array_like of int
        Prompt length and cached prefix [tokens].
    block_tokens : int
        Tokens of a KV block.

    Returns
    -------
    ndarray of int
        Tokens whose prefill is skipped; a fully cached prompt recomputes its last block (its last
        ``block_tokens`` tokens, fewer where the prompt ends inside a block).
    """
    prompt = np.asarray(prompt_tokens, dtype=np.int64)
    longest = np.maximum(prompt - 1, 0)
    hit = np.minimum(np.asarray(hit_tokens, dtype=np.int64), longest)
    return hit // block_tokens * block_tokens


def prefill_steps(new_tokens: ArrayLike, token_budget: int, decode_batch: ArrayLike = 0) -> Any:
    """Return the number of engine steps a prefill takes.

    Parameters
    ----------
    new_tokens : array_like of float
        Tokens to compute.
    token_budget : int
        Tokens of one step, decoding sequences included.
    decode_batch : array_like of float
        Decoding sequences beside it.

    Returns
    -------
    ndarray of float
        Steps.
    """
    chunk = np.maximum(token_budget - np.asarray(decode_batch, dtype=float), 1.0)
    return np.ceil(np.asarray(new_tokens, dtype=float) / chunk)


def prefill_time_s(
    model: StepModel,
    new_tokens: ArrayLike,
    context_tokens: ArrayLike,
    token_budget: int,
    decode_batch: ArrayLike = 0,
    decode_context_tokens: ArrayLike = 0,
) -> Any:
    """Return the time of the steps that prefill one prompt, chunk by chunk.

    Parameters
    ----------
    model : StepModel
        The instance.
    new_tokens, context_tokens : array_like of float
        Tokens to compute and tokens already cached before them [tokens].
    token_budget : int
        Tokens of one step.
    decode_batch, decode_context_tokens : array_like of float
        Sequences that decode in the same steps, and the context of each [tokens].

    Returns
    -------
    float or ndarray
        Sum of the step times [s], with what the request itself adds to them; of the broadcast
        shape.
    """
    new, context, batch, decode_context = np.broadcast_arrays(
        *(
            np.asarray(a, dtype=float)
            for a in (new_tokens, context_tokens, decode_batch, decode_context_tokens)
        )
    )
    shape = new.shape
    new, context, batch, decode_context = (
        a.reshape(-1) for a in (new, context, batch, decode_context)
    )
    chunk = np.maximum(token_budget - batch, 1.0)
    total = np.zeros(new.size)
    steps = int(np.max(np.ceil(new / chunk), initial=0.0))
    active = np.arange(new.size)
    for index in range(steps):
        active = active[new[active] > index * chunk[active]]
        done = index * chunk[active]
        total[active] += step_time_s(
            model,
            np.minimum(chunk[active], new[active] - done),
            context[active] + done,
            batch[active],
            decode_context[active],
        )
    total += np.where(new > 0, model.request_s, 0.0)
    return total.reshape(shape) if shape else float(total[0])


def decode_time_s(
    model: StepModel, decode_batch: ArrayLike, context_tokens: ArrayLike, output_tokens: ArrayLike
) -> Any:
    """Return the time per output token of a batch that decodes together.

    The step time is linear in the context between kinks, so that the step at the mean context is
    the mean step.

    Parameters
    ----------
    model : StepModel
        The instance.
    decode_batch : array_like of float
        Decoding sequences.
    context_tokens : array_like of float
        Context of each when decode starts [tokens].
    output_tokens : array_like of float
        Tokens each generates, the first included.

    Returns
    -------
    float or ndarray
        Mean time of a decode step [s].
    """
    mean_context = np.asarray(context_tokens, dtype=float) + 0.5 * np.asarray(
        output_tokens, dtype=float
    )
    return step_time_s(model, 0, 0, decode_batch, mean_context)


def host_time_s(
    instance: InstanceSpec, prompt_tokens: ArrayLike, efficiencies: Efficiencies | None = None
) -> Any:
    """Return the host cost of a request: constant plus per prompt token [s].

    Parameters
    ----------
    instance : InstanceSpec
        For its GPU and engine.
    prompt_tokens : array_like of float
        Prompt length, hits included (they are tokenised and hashed too) [tokens].
    efficiencies : Efficiencies, optional
        In place of the fitted ones.
    """
    fitted = efficiencies or get_efficiencies(instance.gpu.name, instance.engine)
    tokens = np.asarray(prompt_tokens, dtype=float)
    time = fitted.request_host_s + fitted.request_host_s_per_token * tokens
    return time if time.ndim else float(time)


def fetch_time_s(
    instance: InstanceSpec,
    cluster: Cluster,
    hit_tokens: ArrayLike,
    path: Literal["dram", "rdma"],
    busy: bool = False,
    efficiencies: Efficiencies | None = None,
) -> Any:
    """Return the time to fetch a prefix from the global tier, alone on its links.

    Parameters
    ----------
    instance : InstanceSpec
        Where it goes.
    cluster : Cluster
        Its NICs.
    hit_tokens : array_like of float
        Tokens fetched.
    path : {"dram", "rdma"}
        The node's own memory, or another node's.
    busy : bool
        Whether the GPUs compute meanwhile.
    efficiencies : Efficiencies, optional
        In place of the fitted ones.

    Returns
    -------
    float or ndarray
        Latency plus transfer [s]; 0 for 0 tokens.
    """
    fitted = efficiencies or get_efficiencies(instance.gpu.name, instance.engine)
    tokens = np.asarray(hit_tokens, dtype=float)
    size = tokens * kv_bytes_per_token(instance)
    rate = fetch_bytes_per_s(cluster, instance.gpu, instance.tp, path, size, busy)
    fixed = fitted.dram_fetch_s if path == "dram" else fitted.rdma_fetch_s
    time = np.where(tokens > 0, fixed + size / rate, 0.0)
    return time if time.ndim else float(time)


@dataclass(frozen=True)
class RequestLatency:
    """Latency of one request and where it comes from; seconds.

    Attributes
    ----------
    ttft_s, tpot_s, e2e_s : float
        Time to first token; mean time per output token after it (``nan`` for one token); whole
        request.
    host_s, fetch_s, prefill_s : float
        Parts of the TTFT.
    computed_prompt_tokens, reused_prompt_tokens : int
        Tokens computed, and skipped thanks to the hit.
    recompute_s : float
        Prefill time had the hit been computed instead of fetched.
    advice : str
        Whether the fetch pays.
    """

    ttft_s: float
    tpot_s: float
    e2e_s: float
    host_s: float
    fetch_s: float
    prefill_s: float
    computed_prompt_tokens: int
    reused_prompt_tokens: int
    recompute_s: float
    advice: str


def request_latency(
    instance: InstanceSpec,
    prompt_tokens: int,
    output_tokens: int,
    hit_tokens: int = 0,
    hit_tier: HitTier = "local",
    concurrency: int = 1,
    cluster: Cluster | None = None,
    efficiencies: Efficiencies | None = None,
) -> RequestLatency:
    """Return the latency of one request on an instance that is not queueing.

    Parameters
    ----------
    instance : InstanceSpec
        LLM, GPU, engine.
    prompt_tokens, output_tokens : int
        Lengths, at least 1 [tokens].
    hit_tokens : int
        Cached prefix [tokens]; used as :func:`usable_hit_tokens` says.
    hit_tier : {"local", "dram", "rdma"}
        Where it lies: GPU memory, the node's memory, another node's.
    concurrency : int
        Sequences in the batch, this one included: its prefill runs beside ``concurrency - 1``
        decodes at the same context, and it decodes in a batch of ``concurrency``.
    cluster : Cluster, optional
        For the links; default the paper's testbed.
    efficiencies : Efficiencies, optional
        In place of the fitted ones.

    Returns
    -------
    RequestLatency

    Raises
    ------
    SpecError
        For lengths below 1, a hit longer than the prompt, or a concurrency below 1.
    """
    for name, value in (
        ("prompt_tokens", prompt_tokens),
        ("output_tokens", output_tokens),
        ("concurrency", concurrency),
    ):
        if value < 1:
            raise SpecError(f"{name} is {value}; it must be at least 1")
    if not 0 <= hit_tokens <= prompt_tokens:
        raise SpecError(
            f"hit_tokens is {hit_tokens}; it must lie between 0 and prompt_tokens = {prompt_tokens}"
        )
    if hit_tier not in ("local", "dram", "rdma"):
        raise SpecError(f"hit_tier is {hit_tier!r}; one of local, dram, rdma")
    fitted = efficiencies or get_efficiencies(instance.gpu.name, instance.engine)
    model = step_model(instance, fitted)
    hit = int(usable_hit_tokens(prompt_tokens, hit_tokens, instance.block_tokens))
    beside = concurrency - 1
    steps = float(prefill_steps(prompt_tokens, instance.token_budget, beside))
    if steps > _MAX_STEPS:
        raise SpecError(
            f"prompt_tokens is {prompt_tokens}: {steps:.0f} steps of token_budget = "
            f"{instance.token_budget} beside {beside} decodes; at most {_MAX_STEPS} are added up"
        )

    def prefill(cached: int) -> float:
        return float(
            prefill_time_s(
                model,
                prompt_tokens - cached,
                cached,
                instance.token_budget,
                beside,
                prompt_tokens,
            )
        )

    host = float(host_time_s(instance, prompt_tokens, fitted))
    fetch = 0.0
    if hit_tier != "local":
        cluster = cluster or get_cluster()
        fetch = float(fetch_time_s(instance, cluster, hit, hit_tier, efficiencies=fitted))
    own = prefill(hit)
    cold = prefill(0)
    ttft = host + fetch + own
    tpot = float("nan")
    e2e = ttft
    if output_tokens > 1:
        tpot = float(decode_time_s(model, concurrency, prompt_tokens, output_tokens))
        e2e += (output_tokens - 1) * tpot
    advice = "nothing is fetched"
    if fetch > 0:
        saved = cold - own - fetch
        advice = (
            f"fetching saves {saved:.3g} s against recomputing"
            if saved > 0
            else f"recomputing is {-saved:.3g} s faster than fetching"
        )
    return RequestLatency(
        ttft, tpot, e2e, host, fetch, own, prompt_tokens - hit, hit, cold - own, advice
    )
