"""A cache that tells its events as vLLM does, and an index that follows it."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import Any

import msgspec

from smetric_model.live.router.config import InstanceSection
from smetric_model.live.router.exact import ExactIndex, ExactPrompt
from smetric_model.live.router.fleet import Fleet, Instance
from smetric_model.live.router.kv_wire import (
    BlocksRemoved,
    BlocksStored,
)

BLOCK = 16
encode = msgspec.msgpack.encode


def instances(count: int) -> list[Instance]:
    fleet = Fleet()
    return [
        fleet.add(InstanceSection(name=f"e{k}", url=f"http://127.0.0.1:{k + 1}"))
        for k in range(count)
    ]


def prompt(tokens: list[int], **more: Any) -> ExactPrompt:
    return ExactPrompt(array("I", tokens).tobytes(), **more)


class Engine:
    """Caches blocks as vLLM does, names them its own way, and tells.

    What lies behind an evicted block is computed anew, and then is there twice.
    """

    def __init__(self, name: str = "x"):
        self.name = name
        self.cached: Counter[int] = Counter()
        self.number = 0

    def hashes(self, tokens: list[int], salt: str | None = None) -> list[int]:
        names, parent = [], hash((self.name, "root"))
        for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
            extra = salt if not start else None
            parent = hash((parent, tuple(tokens[start : start + BLOCK]), extra)) & (2**63 - 1)
            names.append(parent)
        return names

    def hit(self, tokens: list[int], salt: str | None = None) -> int:
        count = 0
        for name in self.hashes(tokens, salt):
            if name not in self.cached:
                break
            count += 1
        return min(count, (len(tokens) - 1) // BLOCK) * BLOCK

    def store(self, tokens: list[int], salt: str | None = None) -> BlocksStored | None:
        names = self.hashes(tokens, salt)
        first = next((k for k, name in enumerate(names) if name not in self.cached), None)
        if first is None:
            return None
        new = names[first:]
        self.cached.update(new)
        extras = [[salt] if salt and not k else None for k in range(first, len(names))]
        return BlocksStored(
            new,
            names[first - 1] if first else None,
            tokens[first * BLOCK : len(names) * BLOCK],
            BLOCK,
            "GPU",
            extras if salt else None,
        )

    def evict(self, names: list[int]) -> BlocksRemoved:
        self.cached = self.cached - Counter(names)
        return BlocksRemoved(names, "GPU")


def live_index(count: int) -> tuple[ExactIndex, list[Instance]]:
    index, fleet = ExactIndex(), instances(count)
    for item in fleet:
        index.live |= item.bit
    return index, fleet
