"""Decisions as JSON lines, with all that went into them: the same inputs give the same choices.

Three kinds of lines: ``policy`` (name, parameters) first, ``fleet`` whenever the instances
changed, ``decision``.  No line holds anything from a prompt but its length and a hash.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from smetric_model.errors import TraceError
from smetric_model.routing.policy import (
    Decision,
    Loads,
    LoadUnit,
    Policy,
    Reason,
    RoutingRequest,
    TieState,
)
from smetric_model.routing.registry import make_policy

if TYPE_CHECKING:
    from smetric_model.live.router.decide import Asked, Choice
    from smetric_model.live.router.fleet import Instance

__all__ = ["DecisionLog", "LoggedDecision", "Replay", "read_decisions", "replay"]

_LOGGER = logging.getLogger("smetric_model.router")


class DecisionLog:
    """Appends decisions to a file; what cannot be written is counted, and serving goes on.

    Parameters
    ----------
    path : str or Path
        The file.
    policy : Policy
        The policy that decides.
    """

    def __init__(self, path: str | Path, policy: Policy):
        self._file = Path(path).open("ab", buffering=1 << 16)  # noqa: SIM115 - closed by close()
        self._fleet: tuple[str, ...] | None = None
        self.failed = 0
        self._write(
            {
                "type": "policy",
                "name": policy.name,
                "parameters": {
                    field.name: _written(getattr(policy, field.name)) for field in fields(policy)
                },
            }
        )

    def write(
        self,
        request_id: str,
        instances: Sequence[Instance],
        asked: Asked,
        decision: Decision,
        choice: Choice,
    ) -> None:
        """Write one decision."""
        names = tuple(item.name for item in instances)
        if names != self._fleet:
            self._fleet = names
            self._write(
                {
                    "type": "fleet",
                    "instances": [{"name": item.name, "key": item.key} for item in instances],
                }
            )
        request, ties = asked.request, asked.ties
        self._write(
            {
                "type": "decision",
                "time_s": time.time(),
                "request_id": request_id,
                "prompt_tokens": request.prompt_tokens,
                "turn": request.turn,
                "est_hit_tokens": request.est_hit_tokens,
                "session_key": request.session_key,
                "hit_tokens": asked.hit_tokens,
                "hit_source": choice.source,
                "load_unit": asked.unit.value,
                "loads": asked.loads,
                "unprefilled_tokens": asked.unprefilled_tokens,
                "available": asked.available,
                "ties": [ties.next_instance, ties.random_state],
                "instance": decision.instance,
                "reason": decision.reason.name,
                "ties_after": [decision.ties.next_instance, decision.ties.random_state],
            }
        )

    def flush(self) -> None:
        """Write what is buffered."""
        try:
            self._file.flush()
        except OSError as error:
            self._lost(error)

    def close(self) -> None:
        """Write what is buffered and close the file."""
        try:
            self._file.close()
        except OSError as error:
            self._lost(error)

    def _write(self, line: dict[str, Any]) -> None:
        try:
            self._file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        except (OSError, ValueError) as error:
            self._lost(error)

    def _lost(self, error: Exception) -> None:
        if not self.failed:
            _LOGGER.error("decision log cannot be written", extra={"fields": {"error": str(error)}})
        self.failed += 1


@dataclass(frozen=True)
class LoggedDecision:
    """One decision of a log.

    Parameters
    ----------
    policy : Policy
        Who decided.
    request, hit_tokens, loads, ties, available, instance_keys
        What :meth:`Policy.choose` was called with.
    decision : Decision
        What it answered.
    names : tuple of str
        Names of the instances.
    time_s : float
        When [s since 1970].
    """

    policy: Policy
    request: RoutingRequest
    hit_tokens: list[int]
    loads: Loads
    ties: TieState
    available: list[bool]
    instance_keys: list[int]
    decision: Decision
    names: tuple[str, ...]
    time_s: float

    def ask(self, choose: Callable[..., Decision] | None = None) -> Decision:
        """Decide again.

        Parameters
        ----------
        choose : callable, optional
            :func:`smetric_model.routing.compiled.choose_compiled`, the simulator's own; the
            policy's method by default.
        """
        return (choose or type(self.policy).choose)(
            self.policy,
            self.request,
            self.hit_tokens,
            self.loads,
            self.ties,
            available=self.available,
            instance_keys=self.instance_keys,
        )


@dataclass(frozen=True)
class Replay:
    """What a replay found.

    Parameters
    ----------
    decisions : int
        Decisions asked again.
    different : list of int
        Lines of those that came out differently.
    """

    decisions: int
    different: list[int]


def read_decisions(path: str | Path) -> Iterator[tuple[int, LoggedDecision]]:
    """Read a decision log.

    Yields
    ------
    (line, decision) : int, LoggedDecision

    Raises
    ------
    TraceError
        If a line is none of a decision log (names the line).
    """
    policy: Policy | None = None
    fleet: list[dict[str, Any]] = []
    with Path(path).open("rb") as file:
        for number, text in enumerate(file, 1):
            try:
                line = orjson.loads(text)
                kind = line["type"]
                if kind == "policy":
                    policy = make_policy(
                        line["name"],
                        {key: _read(value) for key, value in line["parameters"].items()},
                    )
                elif kind == "fleet":
                    fleet = line["instances"]
                elif kind == "decision":
                    if policy is None:
                        raise ValueError("it stands before the policy")
                    yield number, _decision(policy, fleet, line)
            except (KeyError, TypeError, ValueError, IndexError) as error:
                raise TraceError(
                    f"not a line of a decision log: {error!r}; types policy, fleet and decision "
                    "are allowed",
                    path,
                    number,
                ) from None


def replay(path: str | Path, choose: Callable[..., Decision] | None = None) -> Replay:
    """Decide every decision of a log again.

    Parameters
    ----------
    path : str or Path
        The log.
    choose : callable, optional
        As in :meth:`LoggedDecision.ask`.

    Raises
    ------
    TraceError
        If the file is no decision log.
    """
    count, different = 0, []
    for line, logged in read_decisions(path):
        count += 1
        if logged.ask(choose) != logged.decision:
            different.append(line)
    return Replay(count, different)


def _decision(policy: Policy, fleet: list[dict[str, Any]], line: dict[str, Any]) -> LoggedDecision:
    if LoadUnit(line["load_unit"]) is LoadUnit.REQUESTS:
        loads = Loads.requests(line["loads"], line["unprefilled_tokens"])
    else:
        loads = Loads.tokens(line["loads"])
    return LoggedDecision(
        policy,
        RoutingRequest(
            line["prompt_tokens"], line["turn"], line["est_hit_tokens"], line["session_key"]
        ),
        line["hit_tokens"],
        loads,
        TieState(*line["ties"]),
        line["available"],
        [item["key"] for item in fleet],
        Decision(line["instance"], Reason[line["reason"]], TieState(*line["ties_after"])),
        tuple(item["name"] for item in fleet),
        line["time_s"],
    )


def _written(value: object) -> object:
    return "inf" if isinstance(value, float) and math.isinf(value) else value


def _read(value: object) -> object:
    return math.inf if value == "inf" else value
