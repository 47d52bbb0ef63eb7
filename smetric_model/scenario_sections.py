"""Sections of a scenario: every key with its default, its range and what it says.

Descriptions and ranges stand here once; error messages and ``docs/scenario.md`` are written from
them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, overload

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from smetric_model._scenario_text import problems
from smetric_model.errors import SpecError

__all__ = [
    "ClientSection",
    "ClusterSection",
    "Dtype",
    "EngineSection",
    "FailureSection",
    "GlobalTierSection",
    "LlmSection",
    "LocalTierSection",
    "Name",
    "Policy",
    "RouterSection",
    "SloSection",
    "Spec",
    "WorkloadSection",
]

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
#: like Positive and NotNegative, but ``inf`` switches the limit off
PositiveOrInf = Annotated[float, Field(gt=0)]
NotNegativeOrInf = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Name = Annotated[str, Field(min_length=1)]

Dtype = Literal["fp32", "bf16", "fp16", "fp8", "int8", "int4"]
Policy = Literal[
    "smetric",
    "smetric-basic",
    "smetric-slo",
    "bailian",
    "lmetric",
    "load-balance",
    "dynamo",
    "bounded-hash",
    "always-sticky",
    "power-of-two",
    "round-robin",
    "random",
]

_DEFAULT_TRACE = "data/traces/agents-small.parquet"

Time = TypeVar("Time")


def _plain(value: Any) -> Any:
    """``value`` without the keys that are None, and with numpy scalars as Python's."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items() if item is not None}
    if hasattr(value, "dtype") and hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return value.item()
    return value


class Spec(BaseModel):
    """Frozen, strict, no unknown keys; a wrong value is a SpecError naming key and value."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def __init__(self, **data: Any):
        try:
            self.__pydantic_validator__.validate_python(_plain(data), self_instance=self)
        except ValidationError as error:
            raise SpecError("\n".join(problems(type(self), error))) from None

    # Marks the line above as no more than BaseModel's own __init__, so that sections inside a
    # scenario are validated in one go and every problem is reported with its dotted key.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


class LlmSection(Spec):
    """``[llm]``: which model is served."""

    name: Name = Field(
        "Qwen3-Coder-30B-A3B-Instruct",
        description="Name in the catalog, or path of a Hugging Face `config.json`.",
    )
    weight_dtype: Dtype | None = Field(
        None, description="Type of the weights in GPU memory; by default the checkpoint's own."
    )
    kv_dtype: Dtype | None = Field(
        None, description="Type of the KV cache; by default what the checkpoint asks for."
    )


class EngineSection(Spec):
    """``[engine]``: one serving instance."""

    gpu: Name = Field(
        "H20", description="Name in the catalog, or path of a file of your own (`.toml`)."
    )
    name: Name = Field("vllm", description="Which fitted efficiencies are used.")
    tp: Count = Field(1, description="Tensor parallelism: GPUs of an instance.")
    ep: Count = Field(1, description="Expert parallelism; divides `tp`.")
    mode: Literal["graph", "eager"] = Field(
        "graph", description="Whether decode steps replay CUDA graphs."
    )
    memory_utilisation: PositiveShare = Field(
        0.9, description="Share of GPU memory the engine may use."
    )
    token_budget: Count = Field(8192, description="Tokens of one engine step.")
    max_running_requests: Count = Field(256, description="Requests running at once.")
    kv_pool_tokens: Count | None = Field(
        None,
        description="KV pool of an instance, as the engine's log states it; by default what the"
        " memory model leaves.",
    )
    kv_admission: Literal["reserve", "preempt"] = Field(
        "reserve",
        description="A request is admitted with KV for prompt and output; or with KV for its"
        " prompt, more as the output grows, and the latest admitted gives way where there is none.",
    )
    block_tokens: Count = Field(16, description="Tokens of one KV block.")
    max_context_tokens: Count = Field(
        262144, description="Longest prompt plus output that is served."
    )
    max_context: Literal["cap", "drop", "fail"] = Field(
        "drop",
        description="What happens to a longer request: cut, counted as unservable, or an error.",
    )

    @model_validator(mode="after")
    def _check(self) -> EngineSection:
        if self.tp % self.ep:
            raise ValueError(f"ep = {self.ep} does not divide tp = {self.tp}")
        if self.block_tokens > self.max_context_tokens:
            raise ValueError(
                f"block_tokens = {self.block_tokens} exceeds"
                f" max_context_tokens = {self.max_context_tokens}"
            )
        return self


class ClusterSection(Spec):
    """``[cluster]``: how many instances, on which nodes."""

    instances: Count = Field(
        32,
        description="Serving instances; disaggregated: prefill and decode together (then the"
        " default is their sum).",
    )
    gpus_per_node: Count = Field(
        8,
        description="GPUs of a node. Instances fill nodes in order, none straddles two nodes: a"
        " node holds floor(gpus_per_node / tp) of them, GPUs left over stay idle and the last"
        " node may be part-filled; where `tp` exceeds it, `tp` is a multiple and an instance"
        " takes whole nodes.",
    )
    nics_per_node: Count = Field(1, description="Network interfaces of a node.")
    nic_bytes_per_s: Positive = Field(
        25e9, description="Line rate of one interface and direction (25e9: 200 Gbit/s)."
    )
    nic_efficiency: PositiveShare | Literal["measured"] = Field(
        "measured",
        description="Share of the line rate that KV transfers reach; `measured`: the measured"
        " curve over transfer size and load.",
    )
    dram_bytes_per_node: NotNegative = Field(
        1280e9, description="Host memory of a node that may hold KV."
    )
    serving: Literal["colocated", "disaggregated"] = Field(
        "colocated",
        description="Prefill and decode on the same instances, or on two pools; the prefill pool's"
        " instances come first.",
    )
    prefill_instances: Count | None = Field(
        None, description="Instances of the prefill pool; with `disaggregated` only, then needed."
    )
    decode_instances: Count | None = Field(
        None, description="Instances of the decode pool; with `disaggregated` only, then needed."
    )

    @model_validator(mode="before")
    @classmethod
    def _sum_pools(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("instances") is None:
            pools = [data.get("prefill_instances"), data.get("decode_instances")]
            if all(type(pool) is int for pool in pools):
                return {**data, "instances": sum(pools)}
        return data

    @model_validator(mode="after")
    def _check(self) -> ClusterSection:
        pools = (self.prefill_instances, self.decode_instances)
        if self.serving == "colocated":
            if pools != (None, None):
                raise ValueError(
                    'prefill_instances and decode_instances need serving = "disaggregated"'
                )
            return self
        if self.prefill_instances is None or self.decode_instances is None:
            raise ValueError(
                'serving = "disaggregated" needs prefill_instances and decode_instances'
            )
        if self.prefill_instances + self.decode_instances != self.instances:
            raise ValueError(
                f"prefill_instances = {self.prefill_instances} and decode_instances ="
                f" {self.decode_instances} must sum to instances = {self.instances}"
                " (or leave instances out)"
            )
        return self


Eviction = Literal["lru", "dead-first", "clairvoyant"]


class LocalTierSection(Spec):
    """``[local_tier]``: the prefix cache in the GPU memory of each instance."""

    eviction: Eviction = Field(
        "lru",
        description="What goes first: the least recently used; that of finished sessions; or, of"
        " all, what any request uses last (knows the future: a bound, no policy).",
    )


class GlobalTierSection(Spec):
    """``[global_tier]``: the KV store that all instances share."""

    bytes_per_node: NotNegative = Field(
        1000e9, description="Capacity on each node, at most `cluster.dram_bytes_per_node`; 0: none."
    )
    write: Literal["through", "back"] = Field(
        "through", description="KV is written when computed, or when the local tier evicts it."
    )
    fetch: Literal["async", "stall"] = Field(
        "async", description="Whether other requests run while KV is fetched."
    )
    recompute_if_faster: bool = Field(
        True, description="KV is computed again where that is faster than fetching it."
    )
    peer_fetch: bool = Field(False, description="KV may come from another instance's GPU memory.")
    eviction: Eviction = Field("lru", description="What goes first, as in `[local_tier]`.")


class WorkloadSection(Spec):
    """``[workload]``: what arrives, and the window in which it is looked at."""

    trace: Name | None = Field(
        None,
        description="Trace file. A relative path is looked for beside the scenario file, then"
        f" in the package's data. Excludes `preset`; with neither, `{_DEFAULT_TRACE}`.",
    )
    preset: Name | None = Field(
        None, description="Name of a synthetic workload, in place of `trace`."
    )
    rate_rps: Positive | Literal["trace"] = Field(
        10.0,
        description="Requests per second of the cluster, reached by thinning or superposing whole"
        " sessions; `trace`: as recorded (none, where the sessions share no clock).",
    )
    session_start: Literal["trace", "poisson"] = Field(
        "trace",
        description="When sessions start: as recorded, or at random (for traces whose sessions"
        " share no clock).",
    )
    window_s: Positive = Field(900.0, description="Length of the window that is measured.")
    warmup_s: NotNegative = Field(900.0, description="Time before the window.")
    start: Literal["equilibrium", "cold"] = Field(
        "equilibrium",
        description="Whether sessions are under way at the start (length-biased), or none is.",
    )
    loop: Literal["closed", "open"] = Field(
        "closed",
        description="A turn comes a think time after the previous one completed, or when the"
        " trace says.",
    )

    @model_validator(mode="before")
    @classmethod
    def _default_trace(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("trace") is None and data.get("preset") is None:
            return {**data, "trace": _DEFAULT_TRACE}
        return data

    @model_validator(mode="after")
    def _check(self) -> WorkloadSection:
        if self.trace is not None and self.preset is not None:
            raise ValueError(
                f"trace = {self.trace!r} and preset = {self.preset!r}: exactly one of them"
            )
        return self


class ClientSection(Spec):
    """``[client]``: what an agent does that waits too long."""

    timeout_s: PositiveOrInf = Field(
        math.inf,
        description="Time from a try's arrival to its last token after which the client cancels"
        " it; `inf`: never.",
    )
    retries: Annotated[int, Field(ge=0)] = Field(0, description="Tries after the first.")
    backoff_s: NotNegative = Field(
        0.0, description="Time from a try's end to the next one's arrival."
    )


class FailureSection(Spec):
    """``[[failures]]``: an instance, a node or a node's store that fails; one table each."""

    instance: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Instance that fails, counted from 0; or give `node` or `store`."
    )
    node: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="Node that fails, counted from 0: its instances, and its share of the global"
        " tier.",
    )
    store: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="Node, counted from 0, whose share of the global tier alone is lost; its"
        " instances go on.",
    )
    at_s: NotNegative = Field(description="When, from the start of the warm-up; needed.")
    down_s: PositiveOrInf = Field(
        math.inf, description="Time until it is back, with cold caches; `inf`: it stays down."
    )
    drain_s: NotNegative = Field(
        0.0,
        description="Time before `at_s` in which routers send it nothing new and it finishes what"
        " it has: it is taken away, and what is left then fails; 0: it fails.",
    )

    @model_validator(mode="after")
    def _check(self) -> FailureSection:
        given = (self.instance, self.node, self.store)
        if sum(one is not None for one in given) != 1:
            raise ValueError(
                f"instance = {self.instance}, node = {self.node} and store = {self.store}: exactly"
                " one of them"
            )
        if self.store is not None and self.drain_s > 0:
            raise ValueError(
                f"drain_s = {self.drain_s:g} with store = {self.store}: only what serves requests"
                " can finish them first"
            )
        return self


class RouterSection(Spec):
    """``[router]``: which instance a request goes to.  Keys a policy does not use are ignored."""

    policy: Policy = Field("smetric", description="Routing policy.")
    overload: NotNegativeOrInf = Field(
        2.0,
        description="OVERLOAD: an instance is overloaded above this multiple of the mean load;"
        " `inf`: never.",
    )
    hit_ratio: Share = Field(
        0.5,
        description="HIT_RATIO: a follow-up stays where more than this share of its expected hit"
        " is left.",
    )
    overload_floor: NotNegative = Field(
        0.0,
        description="Load above the mean (requests or tokens, see `load_indicator`) that never"
        " counts as overload (guard at low load).",
    )
    subtract_shared_prefix: bool = Field(
        False, description="Take the shared prefix off both sides of the HIT_RATIO test."
    )
    tie_break: Literal["least-loaded", "first"] = Field(
        "least-loaded", description="Which of several instances with the highest hit."
    )
    hit_weight: Share = Field(
        0.7, description="Bailian's weight of the hit; the load has the rest."
    )
    load_normalisation: Literal["mean", "max", "minmax"] = Field(
        "mean", description="What Bailian's load is divided by."
    )
    count_self: bool = Field(
        True, description="LMetric multiplies by load + 1: counts the request being placed."
    )
    load_indicator: Literal["serving", "requests", "unprefilled_tokens"] = Field(
        "serving",
        description="The load that policies balance: requests in flight, or prompt tokens not yet"
        " prefilled; `serving`: requests where colocated, tokens where disaggregated.",
    )
    hit_index: Literal["exact", "delayed", "blind"] = Field(
        "exact",
        description="What the router knows of the instances' caches: all, all but the last"
        " `hit_index_age_s`, or only what it routed there.",
    )
    hit_index_age_s: NotNegative = Field(0.0, description="Age of a `delayed` hit index.")
    load_source: Literal["own", "scraped"] = Field(
        "own", description="The router's own counters, or metrics read from the engines."
    )
    load_age_s: NotNegative = Field(0.0, description="Age of the load the router sees.")
    detection_s: NotNegative = Field(
        5.0,
        description="Time after which the routers know that an instance has failed, or is back.",
    )
    replicas: Count = Field(
        1, description="Routers; each counts only the requests that it placed itself."
    )

    def balances_tokens(self, serving: str) -> bool:
        """Whether policies balance unprefilled tokens, in place of requests.

        Parameters
        ----------
        serving : str
            The cluster's ``serving``.
        """
        if self.load_indicator == "serving":
            return serving == "disaggregated"
        return self.load_indicator == "unprefilled_tokens"


class SloSection(Spec):
    """``[slo]``: when a request counts as served well."""

    ttft_base_s: NotNegativeOrInf = Field(
        2.0, description="TTFT allowed to any prompt; `inf`: no TTFT SLO."
    )
    ttft_per_prompt_token_s: NotNegative = Field(
        0.0005, description="TTFT allowed on top for each prompt token."
    )
    tpot_s: PositiveOrInf = Field(
        0.030, description="Largest mean TPOT of a request; `inf`: no TPOT SLO."
    )
    attainment: PositiveShare = Field(
        0.95, description="Share of requests that must meet both, for capacity by attainment."
    )

    @model_validator(mode="after")
    def _check(self) -> SloSection:
        if self.ttft_base_s == 0 and self.ttft_per_prompt_token_s == 0:
            raise ValueError(
                "ttft_base_s and ttft_per_prompt_token_s are both 0: no request could meet it"
            )
        return self

    @overload
    def ttft_s(self, prompt_tokens: float) -> float: ...
    @overload
    def ttft_s(self, prompt_tokens: Time) -> Time: ...
    def ttft_s(self, prompt_tokens: Any) -> Any:
        """TTFT that the SLO allows to a prompt.

        Parameters
        ----------
        prompt_tokens : float or array
            Prompt length [tokens].

        Returns
        -------
        float or array
            ``ttft_base_s + ttft_per_prompt_token_s * prompt_tokens`` [s], shaped as the argument.
        """
        return self.ttft_base_s + self.ttft_per_prompt_token_s * prompt_tokens
