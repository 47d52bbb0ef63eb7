"""What a routing policy is: a pure function of request, hits, loads and tie state.

A policy sees, for one request, the longest cached prefix on every instance (*hits*), the load of
every instance, which instances may take requests at all, and a small tie state.  It answers with
the instance, the reason, and the next tie state.  It never sees the output length, keeps nothing
between requests, and draws no randomness but from the tie state, so that a simulator, a live
router and a test get the same answer to the same question (paper §4.1, Figure 10).

**Load.**  The caller chooses what load means and says so (:class:`LoadUnit`):

* colocated serving: requests in flight (waiting and running) on the instance;
* disaggregated serving: prompt tokens not yet prefilled, over waiting and running requests.

Either way the load *excludes the request being placed*.  Loads may be old: ``age_s`` travels
with them for the caller's bookkeeping; policies do not act on it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smetric_model.errors import SpecError

if TYPE_CHECKING:
    from smetric_model.routing.thresholds import ThresholdForm

__all__ = [
    "Decision",
    "LoadUnit",
    "Loads",
    "MigrationCause",
    "Policy",
    "Reason",
    "RoutingRequest",
    "Snapshot",
    "TieState",
]

BoolVector = NDArray[np.bool_]
FloatVector = NDArray[np.float64]
IntVector = NDArray[np.int64]
KeyVector = NDArray[np.uint64]

MigrationCause = Literal["overload", "evicted", "other"]

_UINT64 = 2**64


class LoadUnit(Enum):
    """What a load counts."""

    REQUESTS = "requests"
    UNPREFILLED_TOKENS = "unprefilled_tokens"


class Reason(IntEnum):
    """Why an instance was chosen.

    Add numbers, never change one: compiled code on disk keeps those it was built with.
    """

    NO_INSTANCE = -1
    """Nothing is available (compiled twin only; the readable functions raise)."""
    FIRST_TURN = 0
    """First request of its session: placed by the policy's rule for first turns."""
    STICK = 1
    """A follow-up stays where its context is cached."""
    OVERLOADED = 2
    """The instance with the context is over the load threshold."""
    EVICTED = 3
    """The longest hit is too short to be this session's context."""
    SHARED_PREFIX = 4
    """The longest hit is a prefix that (nearly) every instance holds."""
    HOME_DOWN = 5
    """The instance with the context takes no requests."""
    SLO_MISSED = 6
    """The instance with the context would miss the TTFT SLO; another would not."""
    OUTWEIGHED = 7
    """A score preferred a lighter instance to the one with the context."""
    BLIND = 8
    """The policy looks at no cached context (load balance, random …)."""
    HASHED = 9
    """The session's hash names this instance."""
    HASH_FULL = 10
    """The instance the hash names is over the load bound; the next one was taken."""

    @property
    def migration_cause(self) -> MigrationCause:
        """Cause under which a follow-up that did not return to its last instance is counted.

        Only the caller knows the last instance, so only the caller can tell that a request moved.
        """
        return _CAUSES.get(self, "other")


_CAUSES: dict[Reason, MigrationCause] = {
    Reason.OVERLOADED: "overload",
    Reason.SLO_MISSED: "overload",
    Reason.OUTWEIGHED: "overload",
    Reason.HASH_FULL: "overload",
    Reason.EVICTED: "evicted",
    Reason.SHARED_PREFIX: "evicted",
}


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """What a policy may know of a request.

    Parameters
    ----------
    prompt_tokens : int
        Length of the prompt [tokens].
    turn : int
        0 for the first request of a session, else how often the model has answered in it.
    est_hit_tokens : int
        Hit to expect from the request's own history if nothing was evicted [tokens]; what
        :func:`smetric_model.routing.turn.infer_turn` estimates.
    session_key : int
        64-bit key of the session; only the hash policies read it.
    """

    prompt_tokens: int
    turn: int = 0
    est_hit_tokens: int = 0
    session_key: int = 0

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "turn", "est_hit_tokens"):
            value = getattr(self, name)
            if value < 0:
                raise SpecError(f"request {name} is {value}; it cannot be negative")
        if not 0 <= self.session_key < _UINT64:
            raise SpecError(f"request session_key is {self.session_key}; 0 to 2**64 - 1")


@dataclass(frozen=True, slots=True, eq=False)
class Loads:
    """Load of every instance, with its meaning.

    Build it with :meth:`requests` (colocated) or :meth:`tokens` (disaggregated).

    Parameters
    ----------
    values : (instances,) float
        The load that policies balance, without the request being placed.
    unit : LoadUnit
        What ``values`` count.
    unprefilled_tokens : (instances,) float, optional
        Prompt tokens not yet prefilled [tokens], for the policies that need them beside
        requests in flight (``dynamo``, ``smetric-slo``).
    age_s : float
        How old the loads are [s].
    """

    values: FloatVector
    unit: LoadUnit
    unprefilled_tokens: FloatVector | None = None
    age_s: float = 0.0

    @classmethod
    def requests(
        cls, values: ArrayLike, unprefilled_tokens: ArrayLike | None = None, age_s: float = 0.0
    ) -> Loads:
        """Take loads counted in requests in flight."""
        queued = None if unprefilled_tokens is None else _floats(unprefilled_tokens)
        return cls(_floats(values), LoadUnit.REQUESTS, queued, age_s)

    @classmethod
    def tokens(cls, values: ArrayLike, age_s: float = 0.0) -> Loads:
        """Take loads counted in unprefilled prompt tokens."""
        tokens = _floats(values)
        return cls(tokens, LoadUnit.UNPREFILLED_TOKENS, tokens, age_s)

    def __post_init__(self) -> None:
        for name in ("values", "unprefilled_tokens"):
            vector = getattr(self, name)
            if vector is None:
                continue
            if vector.ndim != 1 or vector.size == 0:
                raise SpecError(f"loads {name} have shape {vector.shape}; one value per instance")
            wrong = ~(np.isfinite(vector) & (vector >= 0))
            if wrong.any():
                index = int(np.argmax(wrong))
                raise SpecError(
                    f"loads {name}[{index}] is {vector[index]}; finite and not negative is allowed"
                )
        if self.unprefilled_tokens is not None and (
            self.unprefilled_tokens.shape != self.values.shape
        ):
            raise SpecError(
                f"loads have {self.values.size} values and {self.unprefilled_tokens.size} "
                "unprefilled_tokens; one of each per instance"
            )
        if not self.age_s >= 0:
            raise SpecError(f"loads age_s is {self.age_s}; it cannot be negative")


@dataclass(frozen=True, slots=True)
class TieState:
    """What must be remembered between decisions to break ties fairly.

    Parameters
    ----------
    next_instance : int
        Where the next round-robin search starts.
    random_state : int
        State of the counter-based generator (64 bit); also the seed.
    """

    next_instance: int = 0
    random_state: int = 0

    def __post_init__(self) -> None:
        if self.next_instance < 0 or not 0 <= self.random_state < _UINT64:
            raise SpecError(
                f"tie state ({self.next_instance}, {self.random_state}): next_instance >= 0 and "
                "0 <= random_state < 2**64 are allowed"
            )


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a request goes, and why.

    Parameters
    ----------
    instance : int
        Index of the chosen instance.
    reason : Reason
        Why this one.
    ties : TieState
        Tie state for the next decision.
    """

    instance: int
    reason: Reason
    ties: TieState


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The instances as a policy sees them at one decision, checked once.

    Parameters
    ----------
    hit_tokens : (instances,) int
        Longest cached prefix of the prompt [tokens].
    loads : Loads
        Load without the request being placed.
    available : (instances,) bool
        Whether the instance may take requests.
    instance_keys : (instances,) uint64
        What names an instance to the hash policies, independent of its position.
    """

    hit_tokens: IntVector
    loads: Loads
    available: BoolVector
    instance_keys: KeyVector

    @classmethod
    def of(
        cls,
        request: RoutingRequest,
        hit_tokens: ArrayLike,
        loads: Loads,
        available: ArrayLike | None = None,
        instance_keys: ArrayLike | None = None,
    ) -> Snapshot:
        """Check the inputs of one decision.

        Raises
        ------
        SpecError
            If lengths differ, a hit is negative or longer than the prompt, or nothing is
            available.
        """
        instances = loads.values.size
        hits = np.asarray(hit_tokens)
        if hits.size and not np.issubdtype(hits.dtype, np.integer):
            raise SpecError(f"hit_tokens are {hits.dtype}; whole tokens are allowed")
        hits = hits.astype(np.int64)
        up = np.ones(instances, bool) if available is None else np.asarray(available)
        if up.dtype != np.bool_:
            raise SpecError(f"available is {up.dtype}; booleans are allowed")
        keys = (
            np.arange(instances, dtype=np.uint64)
            if instance_keys is None
            else np.asarray(instance_keys, dtype=np.uint64)
        )
        for name, vector in (("hit_tokens", hits), ("available", up), ("instance_keys", keys)):
            if vector.shape != (instances,):
                raise SpecError(
                    f"{name} has shape {vector.shape}, loads have {instances} instances; "
                    "one value per instance"
                )
        wrong = (hits < 0) | (hits > request.prompt_tokens)
        if wrong.any():
            index = int(np.argmax(wrong))
            raise SpecError(
                f"hit_tokens[{index}] is {hits[index]}; 0 to prompt_tokens = "
                f"{request.prompt_tokens} is allowed"
            )
        if not up.any():
            raise SpecError(
                f"no instance is available: all {instances} are masked out, "
                "at least one is needed to place a request"
            )
        return cls(hits, loads, up, keys)


@dataclass(frozen=True)
class Policy(ABC):
    """Base of all policies: frozen parameters and one pure function, :meth:`choose`.

    The fields of a policy are its parameters; the metadata of each holds its ``unit`` and the
    reason of its default (``why``), see :func:`smetric_model.routing.registry.describe`.
    """

    name: ClassVar[str]
    """The policy's name in scenario files."""
    source: ClassVar[str]
    """Where the policy comes from."""
    needs_unprefilled_tokens: ClassVar[bool] = False
    """Whether loads must carry unprefilled tokens."""

    def choose(
        self,
        request: RoutingRequest,
        hit_tokens: ArrayLike,
        loads: Loads,
        ties: TieState,
        *,
        available: ArrayLike | None = None,
        instance_keys: ArrayLike | None = None,
    ) -> Decision:
        """Choose the instance that serves ``request``.

        Parameters
        ----------
        request : RoutingRequest
            The request being placed.
        hit_tokens : (instances,) int
            Longest cached prefix of its prompt on every instance [tokens].
        loads : Loads
            Load of every instance, without this request.
        ties : TieState
            Tie state left by the decision before (``TieState()`` for the first).
        available : (instances,) bool, optional
            Instances that may take requests; all by default.
        instance_keys : (instances,) uint64, optional
            Names of the instances for the hash policies; their positions by default.

        Returns
        -------
        Decision
            Instance, reason and next tie state.

        Raises
        ------
        SpecError
            If an input is wrong or no instance is available.
        """
        snapshot = Snapshot.of(request, hit_tokens, loads, available, instance_keys)
        if self.needs_unprefilled_tokens and loads.unprefilled_tokens is None:
            raise SpecError(
                f"policy {self.name!r} needs unprefilled tokens; loads carry {loads.unit.value} "
                "only: use Loads.tokens(...) or Loads.requests(..., unprefilled_tokens=...)"
            )
        return self._decide(request, snapshot, ties)

    @abstractmethod
    def _decide(self, request: RoutingRequest, snapshot: Snapshot, ties: TieState) -> Decision:
        """Decide on checked inputs."""

    @property
    @abstractmethod
    def threshold_form(self) -> ThresholdForm | None:
        """When a follow-up stays home, as a threshold on the home's load; None if it has none."""

    def with_parameters(self, **changes: Any) -> Policy:
        """Return a copy with some parameters replaced."""
        known = {field.name for field in fields(self)}
        for name in changes:
            if name not in known:
                raise SpecError(
                    f"policy {self.name!r} has no parameter {name!r}; "
                    f"it has {', '.join(sorted(known)) or 'none'}"
                )
        return replace(self, **changes)


def check_range(
    policy: Policy, name: str, low: float, high: float, *, open_low: bool = False
) -> None:
    """Raise SpecError unless ``low <= value <= high`` (``low <`` if ``open_low``); nan never is."""
    value = getattr(policy, name)
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise SpecError(f"policy {policy.name!r}: {name} is {value!r}; a number is allowed")
    if not (low < value if open_low else low <= value) or not value <= high:
        interval = f"{'more than' if open_low else 'at least'} {low:g}"
        if not math.isinf(high):
            interval += f" and at most {high:g}"
        raise SpecError(f"policy {policy.name!r}: {name} is {value}; {interval} is allowed")


def check_choice(policy: Policy, name: str, choices: Sequence[str]) -> None:
    """Raise SpecError unless the parameter is one of ``choices``."""
    value = getattr(policy, name)
    if value not in choices:
        raise SpecError(f"policy {policy.name!r}: {name} is {value!r}; one of {', '.join(choices)}")


def check_flag(policy: Policy, name: str) -> None:
    """Raise SpecError unless the parameter is true or false."""
    value = getattr(policy, name)
    if not isinstance(value, bool):
        raise SpecError(f"policy {policy.name!r}: {name} is {value!r}; true or false is allowed")


def _floats(values: ArrayLike) -> FloatVector:
    return np.asarray(values, dtype=np.float64)
