"""Hits, loads and policy put together: one decision.

The policy is called through :meth:`smetric_model.routing.policy.Policy.choose`, as everywhere.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smetric_model.live.router.approximate import ApproximateIndex
from smetric_model.live.router.fleet import Instance
from smetric_model.live.router.question import Question
from smetric_model.routing.policy import (
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

__all__ = ["SOURCES", "Choice", "Decider"]

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
    load : float
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
    load: float
    source: str
    seconds: float

    @property
    def unprefilled_tokens(self) -> int:
        """Prompt tokens the instance must prefill [tokens]."""
        return max(self.request.prompt_tokens - self.hit_tokens, 0)


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
    """

    def __init__(
        self,
        policy: Policy,
        seed: int = 0,
        unit: LoadUnit = LoadUnit.REQUESTS,
        approximate: ApproximateIndex | None = None,
        exact: ExactIndex | None = None,
        log: DecisionLog | None = None,
    ):
        self.policy = policy
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
        if not any(available):
            return None
        request, hits, sources = self._hits(question, instances, prompt)
        queued = [item.load.unprefilled_tokens for item in instances]
        if self.unit is LoadUnit.REQUESTS:
            loads = Loads.requests([item.load.requests for item in instances], queued)
        else:
            loads = Loads.tokens(queued)
        keys = [item.key for item in instances]
        before = self.ties
        decision = self.policy.choose(
            request, hits, loads, before, available=available, instance_keys=keys
        )
        self.ties = decision.ties
        chosen = decision.instance
        choice = Choice(
            instances[chosen],
            decision.reason,
            request,
            hits[chosen],
            float(loads.values[chosen]),
            sources[chosen],
            time.perf_counter() - start,
        )
        if self.log is not None:
            self.log.write(
                request_id, instances, request, hits, loads, available, before, decision, choice
            )
        return choice

    def _hits(
        self, question: Question, instances: Sequence[Instance], prompt: ExactPrompt | None
    ) -> tuple[RoutingRequest, list[int], list[str]]:
        """Hit length per instance, each from the best source there is for it."""
        request = question.request
        known: dict[int, int] = {}
        if self.approximate is not None and question.chain.keys:
            wanted = 0
            for item in instances:
                wanted |= item.bit
            known = self.approximate.hits(question.chain, wanted)
        source = "none" if self.approximate is None else "approximate"
        hits = [known.get(item.bit, 0) for item in instances]
        sources = [source] * len(instances)
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
