"""What engines to start, or to use: the ``[engines]`` table of a validation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from smetric_model.scenario_sections import Spec

__all__ = ["TINY_MODEL", "EndpointSpec", "EnginesSpec", "TierSpec"]

#: a Qwen3-MoE that is generated: configuration and tokenizer, random weights
TINY_MODEL = "tiny-qwen3-moe"

Count = Annotated[int, Field(ge=1)]


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class TierSpec(Spec):
    """``[engines.tier]``: the KV store that the engines share."""

    kind: Literal["none", "lmcache", "mooncake"] = "none"
    bytes: Annotated[int, Field(ge=16_000_000)] = 64_000_000
    chunk_tokens: Count = 64  #: LMCache stores chunks of so many tokens


class EndpointSpec(Spec):
    """``[[engines.endpoints]]``: an engine that runs already."""

    url: str
    kv_events: str


class EnginesSpec(Spec):
    """Engines of a rig; the keys are those of ``[engines]`` in the specification.

    With ``endpoints`` nothing is started, and what else is said here describes what runs there.
    ``python`` is the interpreter of the environment in which vLLM is installed.
    """

    instances: Count = 2
    device: Literal["cpu", "cuda"] = "cpu"
    python: str | None = None
    model: str = TINY_MODEL
    load_format: Literal["dummy", "auto"] = "dummy"
    blocks: Count | None = 320
    block_tokens: Count = 32
    max_context_tokens: Count = 9216
    token_budget: Count = 2048
    max_running_requests: Count = 32
    #: core of each engine, in turn; empty: not pinned
    cores: tuple[Annotated[int, Field(ge=0)], ...] = ()
    ready_s: Annotated[float, Field(gt=0)] = 300.0
    arguments: tuple[str, ...] = ()
    tier: TierSpec = TierSpec()
    endpoints: tuple[EndpointSpec, ...] = ()

    @field_validator("cores", "arguments", "endpoints", mode="before")
    @classmethod
    def _tuples(cls, value: Any) -> Any:
        return _tuple(value)

    @model_validator(mode="after")
    def _check(self) -> EnginesSpec:
        if self.endpoints and len(self.endpoints) != self.instances:
            raise ValueError(f"instances = {self.instances}, but {len(self.endpoints)} endpoints")
        if self.blocks is not None and self.blocks * self.block_tokens < self.max_context_tokens:
            raise ValueError(
                f"blocks = {self.blocks} of {self.block_tokens} tokens hold less than"
                f" max_context_tokens = {self.max_context_tokens}: vLLM would not start"
            )
        if self.device == "cpu" and self.blocks is None and not self.endpoints:
            raise ValueError("blocks is needed with device = 'cpu'")
        if self.tier.kind == "lmcache" and self.tier.chunk_tokens % self.block_tokens:
            raise ValueError(
                f"tier.chunk_tokens = {self.tier.chunk_tokens} is no multiple of"
                f" block_tokens = {self.block_tokens}"
            )
        return self

    def model_folder(self, folder: Path) -> Path:
        """Where the model's ``config.json`` lies, or will lie.

        Parameters
        ----------
        folder : Path
            Folder of the rig.
        """
        if self.model == TINY_MODEL:
            return folder / TINY_MODEL
        return Path(self.model).expanduser().resolve()
