"""One serving instance: an LLM on one or more GPUs of a kind, and the engine's settings."""

from __future__ import annotations

from dataclasses import dataclass

from smetric_model.catalog.gpu import Gpu
from smetric_model.catalog.llm import Llm
from smetric_model.errors import SpecError

__all__ = ["InstanceSpec", "tensor_parallel_problem"]

_MODES = ("graph", "eager")
_KV_DTYPES = ("bf16", "fp16", "fp8", "int8")


@dataclass(frozen=True)
class InstanceSpec:
    """One instance.

    After construction `llm` is the model *as served*: its weights are stored in `weight_dtype`, and
    what was left to the model is filled in.  To look at another model, build another spec;
    ``dataclasses.replace`` would carry the filled-in types and context over.

    Parameters
    ----------
    llm : Llm
        The model.
    gpu : Gpu
        The kind of GPU.
    tp : int
        GPUs of the instance; every layer is split over all of them (tensor parallelism).
    ep : int
        Expert parallelism: groups of GPUs that hold whole experts; divides `tp`.
    engine : str
        Name of the engine, for its fitted constants.
    mode : str
        ``graph`` (CUDA graphs) or ``eager``.
    weight_dtype : str, optional
        Type of the linear layers' weights; the checkpoint's own by default.
    kv_dtype : str, optional
        Type of the KV cache; by default what the checkpoint asks for, which is the activation type
        also where the weights are FP8.
    memory_utilisation : float
        Share of the device memory that the engine takes, in (0, 1].
    token_budget : int
        Most tokens of one engine step [tokens].
    max_running_requests : int
        Most requests that run at once.
    block_tokens : int
        Tokens of one KV block [tokens].
    max_context_tokens : int, optional
        Longest prompt + output; the model's own by default [tokens].
    kv_pool_tokens : int, optional
        Size of the KV pool, where the engine has told; by default the memory model works it out
        [tokens].

    Raises
    ------
    SpecError
        If a value is out of range, or the model cannot be split that way.
    """

    llm: Llm
    gpu: Gpu
    tp: int = 1
    ep: int = 1
    engine: str = "vllm"
    mode: str = "graph"
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    memory_utilisation: float = 0.9
    token_budget: int = 8192
    max_running_requests: int = 256
    block_tokens: int = 16
    max_context_tokens: int | None = None
    kv_pool_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.weight_dtype is not None:
            object.__setattr__(self, "llm", self.llm.with_weight_dtype(self.weight_dtype))
        object.__setattr__(self, "weight_dtype", self.llm.weight_dtype)
        object.__setattr__(self, "kv_dtype", self.kv_dtype or self.llm.kv_dtype)
        if self.max_context_tokens is None:
            object.__setattr__(self, "max_context_tokens", self.llm.max_context_tokens)
        for name in (
            "tp",
            "ep",
            "token_budget",
            "max_running_requests",
            "block_tokens",
            "max_context_tokens",
            "kv_pool_tokens",
        ):
            value = getattr(self, name)
            if name == "kv_pool_tokens" and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise SpecError(f"{name} = {value!r}: must be a whole number >= 1")
        if not 0 < self.memory_utilisation <= 1:
            raise SpecError(f"memory_utilisation = {self.memory_utilisation!r}: must be in (0, 1]")
        if self.mode not in _MODES:
            raise SpecError(f"mode {self.mode!r} is not known; one of {', '.join(_MODES)}")
        if self.kv_dtype not in _KV_DTYPES:
            raise SpecError(
                f"kv_dtype {self.kv_dtype!r} is not known; one of {', '.join(_KV_DTYPES)}"
            )
        problem = tensor_parallel_problem(self.llm, self.tp, self.ep)
        if problem:
            raise SpecError(problem)

    @property
    def kv_heads_per_gpu(self) -> int:
        """KV heads each GPU keeps: at least one, so that they are replicated beyond their number.

        With multi-head latent attention every GPU keeps the whole latent vector, counted as one.
        """
        if self.llm.attention.kind == "mla":
            return 1
        return max(1, self.llm.attention.kv_heads // self.tp)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a planner should know about this combination: the model's notes and more."""
        llm = self.llm
        found = list(llm.notes)
        if self.weight_dtype not in (*self.gpu.flops, "int4"):
            found.append(
                f"{self.gpu.name} does not multiply {self.weight_dtype} natively: it saves memory, "
                "not arithmetic"
            )
        copies = self.tp // llm.attention.kv_heads
        if llm.attention.kind == "mla" and self.tp > 1:
            found.append(f"every one of the {self.tp} GPUs keeps the whole latent KV cache")
        elif copies > 1:
            found.append(
                f"{llm.attention.kv_heads} KV heads on {self.tp} GPUs: each is kept {copies} times"
            )
        if self.engine_refusal:
            found.append(self.engine_refusal)
        return tuple(found)

    @property
    def engine_refusal(self) -> str:
        """Why vLLM would not start this instance, which can be modelled all the same; or empty."""
        llm = self.llm
        rows = llm.quantisation.block[0] if llm.quantisation else 0
        if self.engine != "vllm" or llm.moe is None or rows <= 1:
            return ""
        width = llm.moe.intermediate_size * self.ep // self.tp
        if width % rows == 0:
            return ""
        return (
            f"experts are split to {width} rows, no multiple of the {rows}-row scale block: vLLM"
            f" refuses this; ep = {self.tp} or a smaller tp avoids it"
        )


def tensor_parallel_problem(llm: Llm, tp: int, ep: int = 1) -> str | None:
    """Say why a model cannot be split over `tp` GPUs with `ep` expert groups; None if it can.

    Heads are whole on a GPU, so their number is a multiple of `tp`; KV heads are split evenly, or
    replicated evenly where there are fewer than GPUs.  Feed-forward widths are split evenly.

    Parameters
    ----------
    llm : Llm
        The model.
    tp, ep : int
        GPUs of an instance; groups of GPUs holding whole experts.
    """
    attention = llm.attention
    if attention.heads % tp:
        allowed = ", ".join(
            str(n) for n in range(1, attention.heads + 1) if not attention.heads % n
        )
        return (
            f"tp = {tp}: {llm.name} has {attention.heads} attention heads, which {tp} does not "
            f"divide; divisors: {allowed}"
        )
    if attention.kind == "gqa" and attention.kv_heads % tp and tp % attention.kv_heads:
        return (
            f"tp = {tp}: {llm.name} has {attention.kv_heads} KV heads, which can neither be split "
            f"over nor replicated evenly on {tp} GPUs"
        )
    linear = llm.linear_attention
    if linear is not None and (linear.key_heads % tp or linear.value_heads % tp):
        return (
            f"tp = {tp}: {llm.name} has {linear.key_heads} key and {linear.value_heads} value "
            f"heads in its linear attention, which {tp} does not divide"
        )
    if tp % ep:
        return f"ep = {ep}: must divide tp = {tp} (experts are spread over the instance's own GPUs)"
    if llm.dense_layers and llm.dense_intermediate_size % tp:
        return (
            f"tp = {tp}: the feed-forward width {llm.dense_intermediate_size} of {llm.name} is no "
            f"multiple of {tp}"
        )
    moe = llm.moe
    if moe is None:
        if ep > 1:
            return f"ep = {ep}: {llm.name} has no experts; only ep = 1"
        return None
    if ep > moe.experts:
        return f"ep = {ep}: {llm.name} has only {moe.experts} experts"
    if moe.intermediate_size % (tp // ep):
        return (
            f"tp = {tp}, ep = {ep}: an expert of {llm.name} is {moe.intermediate_size} wide, no "
            f"multiple of tp / ep = {tp // ep}"
        )
    if moe.shared_intermediate_size % tp:
        return (
            f"tp = {tp}: the shared expert of {llm.name} is {moe.shared_intermediate_size} wide, "
            f"no multiple of {tp}"
        )
    return None
