"""Hits, loads and policy put together: one decision.

The policy is asked through :meth:`smetric_model.routing.policy.Policy.choose` or, ten times as
quickly, through its compiled twin, which the simulator calls.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smetric_model.live.router.approximate import ApproximateIndex
from smetric_model.live.router.fleet import Instance
from smetric_model.live.router.question import Question
from smetric_model.routing.policy import (
    Decision,
    Loads,
    LoadUnit,
    Policy,
    Reason,
    RoutingRequest,
    TieState,
)

if TYPE_CHECKING:
    from smetric_model.live.router.decision_log import DecisionLog
    from smetric_model.live.router.exact import ExactIndex, ExactPrompt

__all__ = ["SOURCES", "Asked", "Choice", "Decider"]

_LOGGER = logging.getLogger("smetric_model.router")
#: where a hit length comes from
SOURCES = ("exact", "approximate", "none")


@dataclass(slots=True)
class Choice:
    """A decision, with what it rests on.

    Parameters
    ----------
    instance : Instance
        The chosen one.
    reason : Reason
        Why.
    request : RoutingRequest
        What the policy was asked; lengths in the tokens of ``source``.
    hit_tokens : int
        Prefix the instance is believed to hold [tokens].
    load : int
        Its load before this request, in the policy's unit.
    source : {"exact", "approximate", "none"}
        Where the hit length comes from.
    seconds : float
        Time the decision took [s].
    """

    instance: Instance
    reason: Reason
    request: RoutingRequest
    hit_tokens: int
    load: int
    source: str
    seconds: float

    @property
    def unprefilled_tokens(self) -> int:
        """Prompt tokens the instance must prefill [tokens]."""
        return max(self.request.prompt_tokens - self.hit_tokens, 0)


@dataclass(slots=True)
class Asked:
    """What a policy is asked: one value per instance in each list.

    Parameters
    ----------
    request : RoutingRequest
        The request.
    hit_tokens, loads, unprefilled_tokens, available, instance_keys : list
        As in :meth:`smetric_model.routing.policy.Policy.choose`.
    unit : LoadUnit
        What ``loads`` count.
    ties : TieState
        Tie state before the decision.
    """

    request: RoutingRequest
    hit_tokens: list[int]
    unit: LoadUnit
    loads: list[int]
    unprefilled_tokens: list[int]
    available: list[bool]
    instance_keys: list[int]
    ties: TieState


class Decider:
    """Asks the policy, and remembers the tie state.

    Parameters
    ----------
    policy : Policy
        Any policy of the registry.
    seed : int
        Of the policies that draw.
    unit : LoadUnit
        What load means: requests in flight, or unprefilled tokens (disaggregated).
    approximate : ApproximateIndex, optional
        Hits learnt from responses.
    exact : ExactIndex, optional
        Hits from KV events.
    log : DecisionLog, optional
        Where decisions are written.
    compiled : bool
        Whether the policy's compiled twin is asked (the same answers, bit for bit).
    """

    def __init__(
        self,
        policy: Policy,
        seed: int = 0,
        unit: LoadUnit = LoadUnit.REQUESTS,
        approximate: ApproximateIndex | None = None,
        exact: ExactIndex | None = None,
        log: DecisionLog | None = None,
        compiled: bool = False,
    ):
        self.policy = policy
        self._decide = (_compiled if compiled else _readable)(policy)
        self.unit = unit
        self.approximate = approximate
        self.exact = exact
        self.log = log
        self.ties = TieState(random_state=seed)

    def choose(
        self,
        question: Question,
        instances: Sequence[Instance],
        tried: Collection[Instance] = (),
        prompt: ExactPrompt | None = None,
        request_id: str = "",
    ) -> Choice | None:
        """Choose an instance.

        Parameters
        ----------
        question : Question
            The request.
        instances : sequence of Instance
            The pool.
        tried : collection of Instance
            Those that have failed this request: not chosen again.
        prompt : ExactPrompt, optional
            The prompt's tokens.
        request_id : str
            For the log.

        Returns
        -------
        Choice or None
            None if no instance takes requests.
        """
        start = time.perf_counter()
        available = [item.takes_requests and item not in tried for item in instances]
        if True not in available:
            return None
        request, hits, sources = self._hits(question, instances, prompt)
        queued = [item.load.unprefilled_tokens for item in instances]
        loads = queued
        if self.unit is LoadUnit.REQUESTS:
            loads = [item.load.requests for item in instances]
        keys = [item.key for item in instances]
        before = self.ties
        asked = Asked(request, hits, self.unit, loads, queued, available, keys, before)
        decision = self._decide(asked)
        self.ties = decision.ties
        chosen = decision.instance
        choice = Choice(
            instances[chosen],
            decision.reason,
            request,
            hits[chosen],
            loads[chosen],
            sources[chosen],
            time.perf_counter() - start,
        )
        if self.log is not None:
            self.log.write(request_id, instances, asked, decision, choice)
        return choice

    def _hits(
        self, question: Question, instances: Sequence[Instance], prompt: ExactPrompt | None
    ) -> tuple[RoutingRequest, list[int], list[str]]:
        """Hit length per instance, each from the best source there is for it."""
        request = question.request
        sources = ["none" if self.approximate is None else "approximate"] * len(instances)
        hits = [0] * len(instances)
        if self.approximate is not None and question.chain.keys:
            known = self.approximate.hits(question.chain, -1)
            if known:
                hits = [known.get(item.bit, 0) for item in instances]
        if self.exact is None or prompt is None:
            return request, hits, sources
        # The prompt's real length; what is known only in bytes by four is brought to its scale.
        scale = prompt.tokens / request.prompt_tokens if request.prompt_tokens else 1.0
        request = RoutingRequest(
            prompt.tokens,
            request.turn,
            min(round(request.est_hit_tokens * scale), prompt.tokens),
            request.session_key,
        )
        exact = self.exact.hits(prompt, instances)
        for index, item in enumerate(instances):
            hit = exact.get(item.bit)
            if hit is None:
                hits[index] = min(round(hits[index] * scale), prompt.tokens)
            else:
                hits[index], sources[index] = hit, "exact"
        return request, hits, sources


def _readable(policy: Policy) -> Callable[[Asked], Decision]:
    """Return a function that asks the policy itself."""

    def decide(asked: Asked) -> Decision:
        if asked.unit is LoadUnit.REQUESTS:
            loads = Loads.requests(asked.loads, asked.unprefilled_tokens)
        else:
            loads = Loads.tokens(asked.loads)
        return policy.choose(
            asked.request,
            asked.hit_tokens,
            loads,
            asked.ties,
            available=asked.available,
            instance_keys=asked.instance_keys,
        )

    return decide


def _compiled(policy: Policy) -> Callable[[Asked], Decision]:
    """Return a function that asks the policy's compiled twin."""
    import numpy as np

    from smetric_model.routing.compiled import choose, pack

    packed = pack(policy)
    reasons = {int(reason): reason for reason in Reason}
    array, uint64 = np.array, np.uint64

    def decide(asked: Asked) -> Decision:
        request, ties = asked.request, asked.ties
        loads = array(asked.loads, dtype=np.float64)
        queued = loads
        if asked.unit is LoadUnit.REQUESTS:
            queued = array(asked.unprefilled_tokens, dtype=np.float64)
        instance, reason, next_instance, random_state = choose(
            packed,
            request.prompt_tokens,
            request.turn,
            request.est_hit_tokens,
            uint64(request.session_key),
            array(asked.hit_tokens, dtype=np.int64),
            loads,
            queued,
            array(asked.available, dtype=np.bool_),
            array(asked.instance_keys, dtype=uint64),
            ties.next_instance,
            uint64(ties.random_state),
        )
        return Decision(instance, reasons[reason], TieState(next_instance, int(random_state)))

    # Compiles, or loads what an earlier process has compiled.
    _LOGGER.info("loading the compiled policy; the first time takes some seconds")
    decide(Asked(RoutingRequest(1), [0], LoadUnit.REQUESTS, [0], [0], [True], [0], TieState()))
    return decide
