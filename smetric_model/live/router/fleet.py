"""Instances, and what is charged to them.

Load and health are separate: a probe, a restart or draining never touches the load, and a load
never takes an instance out.  What is charged is released exactly once, whichever way a request
ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from smetric_model.errors import SpecError
from smetric_model.live.router.config import InstanceSection, Role, parse_url

if TYPE_CHECKING:
    from smetric_model.live.router.http_client import EnginePool
    from smetric_model.live.router.scrape import EngineMetrics

__all__ = ["Charge", "Fleet", "Instance", "Load"]


class Load:
    """What is in flight on one instance.

    Parameters
    ----------
    requests : int
        Requests sent and not ended.
    unprefilled_tokens : int
        Their prompt tokens not cached and not yet prefilled [tokens]: until the first token.
    held_tokens : int
        Prompt tokens of all of them [tokens]: what they hold of the KV cache.
    """

    __slots__ = ("held_tokens", "requests", "unprefilled_tokens")

    def __init__(self) -> None:
        self.requests = 0
        self.unprefilled_tokens = 0
        self.held_tokens = 0

    @property
    def is_zero(self) -> bool:
        """Whether nothing is charged."""
        return not (self.requests or self.unprefilled_tokens or self.held_tokens)


class Charge:
    """One request's share of an instance's load; released once, however often one asks."""

    __slots__ = ("_held_tokens", "_load", "_unprefilled_tokens")

    def __init__(self, load: Load, unprefilled_tokens: int = 0, held_tokens: int = 0):
        load.requests += 1
        load.unprefilled_tokens += unprefilled_tokens
        load.held_tokens += held_tokens
        self._load: Load | None = load
        self._unprefilled_tokens = unprefilled_tokens
        self._held_tokens = held_tokens

    def first_token(self) -> None:
        """Release the unprefilled tokens: the prompt is prefilled."""
        if self._load is not None and self._unprefilled_tokens:
            self._load.unprefilled_tokens -= self._unprefilled_tokens
            self._unprefilled_tokens = 0

    def release(self) -> None:
        """Release everything."""
        load, self._load = self._load, None
        if load is not None:
            load.requests -= 1
            load.unprefilled_tokens -= self._unprefilled_tokens
            load.held_tokens -= self._held_tokens


class Instance:
    """One engine, as the router sees it.

    Parameters
    ----------
    section : InstanceSection
        Its configuration.
    slot : int
        Its bit in the masks of the prefix tables; free again once it is removed.
    key : int
        64-bit name for the hash policies.
    """

    def __init__(self, section: InstanceSection, slot: int, key: int):
        self.section = section
        self.name = section.name
        self.name_bytes = section.name.encode()
        self.role: Role = section.role
        self.scheme, self.host, self.port = parse_url(section.url)
        self.slot = slot
        self.bit = 1 << slot
        self.key = key
        self.load = Load()
        self.up = True
        self.draining = False
        self.removed = False
        self.down_reason = ""
        self.failed_probes = 0
        self.passed_probes = 0
        self.requests = 0
        self.failures = 0
        self.engine: EngineMetrics | None = None
        self.pool: EnginePool | None = None

    @property
    def takes_requests(self) -> bool:
        """Whether new requests may go there."""
        return self.up and not self.draining

    @property
    def kv_capacity_tokens(self) -> int | None:
        """Tokens the KV cache holds, configured or scraped [tokens]."""
        if self.section.kv_capacity_tokens is not None:
            return self.section.kv_capacity_tokens
        return None if self.engine is None else self.engine.kv_capacity_tokens

    @property
    def free_kv_tokens(self) -> float:
        """KV cache that requests do not hold [tokens]; minus what they hold if unknown.

        The larger of what the engine says it uses and what is charged here counts: the scrape is
        old, and the charge knows only this router's requests.
        """
        capacity = self.kv_capacity_tokens
        if capacity is None:
            return -float(self.load.held_tokens)
        usage = 0.0 if self.engine is None else self.engine.kv_usage_ratio
        return capacity - max(usage * capacity, float(self.load.held_tokens))

    def set_up(self, up: bool, reason: str = "") -> bool:
        """Record the health; return whether it changed."""
        changed = up != self.up
        self.up = up
        self.down_reason = "" if up else reason
        return changed


class Fleet:
    """The instances of a router, in the order of their configuration."""

    def __init__(self) -> None:
        self._instances: dict[str, Instance] = {}
        self._by_role: dict[Role, tuple[Instance, ...]] = {}
        self._slots: set[int] = set()
        self.version = 0

    def __iter__(self) -> Iterator[Instance]:
        return iter(tuple(self._instances.values()))

    def __len__(self) -> int:
        return len(self._instances)

    def __contains__(self, name: str) -> bool:
        return name in self._instances

    def __getitem__(self, name: str) -> Instance:
        return self._instances[name]

    def add(self, section: InstanceSection) -> Instance:
        """Add an instance.

        Raises
        ------
        SpecError
            If its name or its URL is there already, or its role does not fit.
        """
        if section.name in self._instances:
            raise SpecError(f"instance {section.name!r} is there already; another name is allowed")
        for other in self._instances.values():
            if other.section.url == section.url:
                raise SpecError(f"instance {other.name!r} has the URL {section.url!r} already")
            if (other.role == "serve") != (section.role == "serve"):
                raise SpecError(
                    f"instance {section.name!r} has role {section.role!r}, instance "
                    f"{other.name!r} has {other.role!r}; either all serve, or each is prefill or "
                    "decode"
                )
        slot = next(slot for slot in range(len(self._slots) + 1) if slot not in self._slots)
        self._slots.add(slot)
        instance = Instance(section, slot, _key(section.name))
        self._instances[section.name] = instance
        self._changed()
        return instance

    def remove(self, name: str) -> Instance:
        """Take an instance out; its requests in flight end where they are."""
        instance = self._instances.pop(name)
        instance.removed = True
        self._changed()
        return instance

    def free_slot(self, instance: Instance) -> None:
        """Give the bit of a removed instance back, once no table has it."""
        self._slots.discard(instance.slot)

    def pool(self, role: Role) -> tuple[Instance, ...]:
        """Return the instances of a role, in order."""
        return self._by_role.get(role, ())

    def _changed(self) -> None:
        self.version += 1
        self._by_role = {
            role: tuple(item for item in self._instances.values() if item.role == role)
            for role in ("serve", "prefill", "decode")
        }


def _key(name: str) -> int:
    """64-bit key of an instance, the same in every process."""
    import hashlib

    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")
